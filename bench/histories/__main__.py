"""`python -m bench.histories`: generate a history of any size to test checkers with."""

import argparse
import json
import sys
from pathlib import Path

from bench.histories.history import MUTATIONS, Asked, make_history
from brokerd.errors import ConfigError


def main() -> int:
    """Generate a history, and print its folder; with --json print its content as JSON."""
    kinds = "; ".join(f"{kind}: {meaning}" for kind, meaning in MUTATIONS.items())
    parser = argparse.ArgumentParser(prog="python -m bench.histories", description=__doc__)
    parser.add_argument("--deliveries", type=int, default=100_000, help="about so many")
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--subscribers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutate", metavar="KIND=N", action="append", default=[], help=kinds)
    parser.add_argument("-o", "--output-dir", type=Path, default=Path("results/runs"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        mutations = {}
        for text in given.mutate:
            kind, _, count = text.partition("=")
            if not count.isdecimal():
                raise ConfigError(f"--mutate {text}: a kind and how many, such as missing=3")
            mutations[kind] = int(count)
        for option in ("deliveries", "publishers", "subscribers"):
            if getattr(given, option) < 1:
                raise ConfigError(f"--{option} {getattr(given, option)}: at least one")
        asked = Asked(given.deliveries, given.publishers, given.subscribers, given.seed, mutations)
        made = make_history(asked, given.output_dir)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        about = {
            "run_directory": str(made.run), "published": made.published,
            "delivered": made.delivered, "mistakes": dict(made.mistakes),
        }  # fmt: skip
        print(json.dumps(about))
    else:
        wrong = ", ".join(f"{n} {kind}" for kind, n in made.mistakes.items()) or "nothing wrong"
        print(f"{made.published:,} published, {made.delivered:,} delivered, {wrong}")
        print(made.run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
