"""`python -m bench.components NAME`: measure a component, and print the numbers as JSON.

- Cost of matching per publication, and its growth with the number of subscriptions. A symbol has
  ten subscriptions, for a tenth of the prices each. So every publication matches a single
  subscription, for any number of subscriptions, and only the search differs. Times are processor
  time of this process, as the minimum of some rounds.
- Speed of the simulator: events of brokers per second of a core. `pubsubctl experiment dft11.speed`
  prints the same numbers.
- Time for the verdict on ten million generated deliveries, on two cores. The history is correct,
  and any other verdict is no measurement.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bench.papers.dft11.simulator_speed import measure_speed
from bench.run.expectations import Component
from brokerd.interpreter import module_command
from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.predicate_text import parse_predicate
from brokerd.wire.attributes import decode_attribute_table, encode_attributes

FEW: Final = 10
MANY: Final = 10_000
BY_SYMBOL: Final = 10
RUN: Final = 256
"""Publications that are matched together."""
REPEATED: Final = 100
"""Number of attribute sets that repeat."""
HITS: Final = 400 * RUN
MISSES: Final = 100 * RUN
ROUNDS: Final = 5

_Memo = MatchMemo[int, tuple[int, ...]]


def measure_matching() -> Mapping[str, float]:
    """Return `hits_ratio` and `miss_us`.

    `hits_ratio` is the ratio of many subscriptions to few, with repeated attributes. `miss_us` is
    the cost for many subscriptions, without repeated attributes.
    """
    few, many = memo_of(FEW), memo_of(MANY)
    return {
        "hits_ratio": _hit_us(many, MANY) / _hit_us(few, FEW),
        "miss_us": min(
            _cpu_us(many, [_blob(MANY, n, number) for n in range(MISSES)])
            for number in range(1, ROUNDS + 1)
        ),
    }


def memo_of(subscriptions: int) -> _Memo:
    """Return the matching of a broker with this number of subscriptions, a multiple of ten."""
    index: MatchingIndex[int] = MatchingIndex()
    for number in range(subscriptions):
        symbol, tenth = divmod(number, BY_SYMBOL)
        index.add(
            number,
            parse_predicate(
                f"symbol = 'S{symbol}' and price >= {tenth * 10} and price < {tenth * 10 + 10}"
            ),
        )
    return MatchMemo(index, decode_attribute_table)


def _hit_us(memo: _Memo, subscriptions: int) -> float:
    repeated = [_blob(subscriptions, n, 0) for n in range(REPEATED)]
    blobs = [repeated[n % REPEATED] for n in range(HITS)]
    memo.match_all(repeated)
    return min(_cpu_us(memo, blobs) for _ in range(ROUNDS))


def _blob(subscriptions: int, number: int, round_: int) -> bytes:
    """Return attributes that match a single subscription and differ by number and round."""
    symbol = number * 7919 % (subscriptions // BY_SYMBOL)
    return encode_attributes(
        {"symbol": f"S{symbol}", "price": number % 100, "serial": round_ * MISSES + number}
    )


def _cpu_us(memo: _Memo, blobs: Sequence[bytes]) -> float:
    runs = [blobs[first : first + RUN] for first in range(0, len(blobs), RUN)]
    started_ns = time.process_time_ns()
    for run in runs:
        memo.match_all(run)
    return (time.process_time_ns() - started_ns) / 1_000 / len(blobs)


def measure_simulator() -> Mapping[str, float]:
    """Return `events_per_s` of the slowest phase with only the oracle as a watcher."""
    return {"events_per_s": min(speed.per_second for speed in measure_speed()[:-1])}


DELIVERIES: Final = 10_000_000
MASTER: Final = "local[2]"


def measure_verdict(deliveries: int = DELIVERIES) -> Mapping[str, float]:
    """Return `us`: the time from the command to its answer, with the start of all processes."""
    with tempfile.TemporaryDirectory(prefix="verdict.") as folder:
        made = _called("bench.histories", "--deliveries", str(deliveries), "-o", folder, "--json")
        run = json.loads(made)["run_directory"]
        started = time.monotonic()
        _called("pubsubctl", "check", run, "--master", MASTER, "--json")
        return {"us": (time.monotonic() - started) * 1e6}


def _called(module: str, *arguments: str) -> bytes:
    return subprocess.run(
        module_command(module, *arguments), check=True, stdout=subprocess.PIPE
    ).stdout


MEASURES: Final[Mapping[Component, Callable[[], Mapping[str, float]]]] = {
    "matching": measure_matching,
    "simulator": measure_simulator,
    "verdict": measure_verdict,
}


def main() -> None:
    """Measure a component, and print the numbers."""
    parser = argparse.ArgumentParser(prog="python -m bench.components", description=__doc__)
    parser.add_argument("name", choices=MEASURES)
    print(json.dumps(MEASURES[parser.parse_args().name]()))


if __name__ == "__main__":
    main()
