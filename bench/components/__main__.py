"""`python -m bench.components NAME`: measure a component, and print the numbers as JSON."""

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Final

from bench.components import matching, simulator, verdict
from bench.run.expectations import Component

MEASURES: Final[Mapping[Component, Callable[[], Mapping[str, float]]]] = {
    "matching": matching.measure,
    "simulator": simulator.measure,
    "verdict": verdict.measure,
}


def main() -> None:
    """Measure a component, and print the numbers."""
    parser = argparse.ArgumentParser(prog="python -m bench.components", description=__doc__)
    parser.add_argument("name", choices=MEASURES)
    print(json.dumps(MEASURES[parser.parse_args().name]()))


if __name__ == "__main__":
    main()
