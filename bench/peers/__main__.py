"""`python -m bench.peers`: measure our brokers and external brokers in turn, and print a table.

This module has the list of all systems and is the only place with their names. The table has the
median of each measurement, its spread, and ratios within rounds.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import FrameType
from typing import NoReturn

from bench.peers import measure, mosquitto, nats, ours
from bench.peers.system import (
    Figures,
    PackagesMissing,
    PeerFailed,
    System,
    check_installed,
    version_of,
)
from brokerd.overlay.topology import nearest

SYSTEMS: tuple[System, ...] = (*nats.SYSTEMS, *mosquitto.SYSTEMS)


Rounds = Sequence[Sequence[Figures]]
"""Results of each round: systems one after the other, so within the same minute."""

_HEADS = (
    "system", "promise", "msg/s", "spread", "× ours", "broker CPU µs/msg", "clients µs/msg",
    "1,000/s: p50 µs", "p99 µs", "broker CPU µs/msg", "lost", "limited by",
)  # fmt: skip


@dataclass(frozen=True)
class Promises:
    """The promise of a system, and the durable state behind it."""

    promise: str
    kept: str


def table(rounds: Rounds, promises: Mapping[str, Promises]) -> str:
    """Return a section for each length of chain, with a line for each system.

    Latency, and the second column of CPU, belong to the paced rate.
    """
    sections = []
    lengths = sorted({each.brokers for found in rounds for each in found})
    for brokers in lengths:
        systems = [name for name in promises if any(_select(rounds, name, brokers, None))]
        rows = [_row(rounds, name, brokers, promises[name]) for name in systems]
        title = "one broker" if brokers == 1 else f"{brokers} brokers in a row"
        sections.append(f"{title}\n{_align([_HEADS, *rows])}")
    notes = [f"{name}: {each.promise}; {each.kept}" for name, each in promises.items()]
    return "\n\n".join([*sections, "\n".join(notes)])


def _row(rounds: Rounds, system: str, brokers: int, promises: Promises) -> tuple[str, ...]:
    fast = [each for found in _select(rounds, system, brokers, False) for each in found]
    paced = [each for found in _select(rounds, system, brokers, True) for each in found]
    rates = [each.delivered_per_s for each in fast]
    both = [*fast, *paced]
    lost = [each.lost for each in both if each.lost is not None]
    limits = sorted({each.limited_by for each in fast if each.limited_by})
    return (
        system,
        promises.promise,
        _median(rates, "{:,.0f}"),
        f"{min(rates):,.0f} to {max(rates):,.0f}" if len(rates) > 1 else "",
        _median(_ratios(rounds, system, brokers), "{:.2f}"),
        _median([each.broker_cpu_us() for each in fast], "{:.2f}"),
        _median([each.client_cpu_us() for each in fast if each.client_cpu_us()], "{:.2f}"),
        _median([each.service_us["p50"] for each in paced if each.service_us], "{:,.0f}"),
        _median([each.service_us["p99"] for each in paced if each.service_us], "{:,.0f}"),
        _median([each.broker_cpu_us() for each in paced], "{:.0f}"),
        f"{sum(lost):,}" if lost else "?",
        ", ".join(limits) or "?",
    )


def _ratios(rounds: Rounds, system: str, brokers: int) -> list[float]:
    """Return the ratio to the project's throughput, for each round with both."""
    found = []
    for of_system, of_ours in zip(
        _select(rounds, system, brokers, False),
        _select(rounds, ours.NAME, brokers, False),
        strict=True,
    ):
        if of_system and of_ours:
            found.append(of_system[0].delivered_per_s / of_ours[0].delivered_per_s)
    return found


def _select(rounds: Rounds, system: str, brokers: int, paced: bool | None) -> list[list[Figures]]:
    """Return by round a system's results for a length of chain, paced or not."""

    def is_wanted(each: Figures) -> bool:
        is_of_it = (each.system, each.brokers) == (system, brokers)
        return is_of_it and (paced is None or paced == (each.rate > 0))

    return [list(filter(is_wanted, found)) for found in rounds]


def _median(values: Sequence[float], layout: str) -> str:
    return layout.format(median(values)) if values else ""


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            text.ljust(width) if place in (0, 1, len(row) - 1) else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


PACED_RATE = 1_000
WARMUP_S = 1.0
LENGTHS = (1, 3)
_INTERRUPTED, _TERMINATED, _USAGE = 130, 143, 2


class _UsageError(Exception):
    """An invalid word of the command line, with valid words; the user's fault."""

    exit_status = _USAGE


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit status: 2, 3, 4 as in `pubsubctl help exit-statuses`."""
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        chosen = _options().parse_args(arguments)
        systems = _systems(chosen.systems)
        if min(chosen.rounds, chosen.seconds) <= 0:
            raise _UsageError("--rounds and --seconds are positive numbers")
        check_installed(systems)
        rounds = [
            _round(systems, chosen.brokers or LENGTHS, chosen.seconds, f"{turn}/{chosen.rounds}")
            for turn in range(1, chosen.rounds + 1)
        ]
    except (PackagesMissing, PeerFailed, _UsageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return _INTERRUPTED
    if chosen.json:
        print(json.dumps(_document(systems, rounds), indent=2))
    else:
        print(f"{_machine(systems)}\n\n{table(rounds, _promises(systems))}")
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long, each time")
    parser.add_argument("--systems", default="", help="names, with commas between; else all")
    parser.add_argument(
        "--brokers", type=int, action="append", choices=LENGTHS, help="in a row; else both"
    )
    parser.add_argument("--json", action="store_true", help="every measurement as a document")
    return parser


def _systems(words: str) -> list[System]:
    """Return the chosen systems, without the project's brokers, which are always measured."""
    known = {system.name: system for system in SYSTEMS}
    chosen = [word for word in words.split(",") if word and word != ours.NAME]
    for word in chosen:
        if word not in known:
            raise _UsageError(f"no system {word!r}{nearest(word, list(known))}")
    return [known[word] for word in chosen] if words else list(SYSTEMS)


def _round(
    systems: Sequence[System], lengths: Sequence[int], seconds: float, turn: str
) -> list[Figures]:
    """Measure every system once per load, in turn."""
    found = []
    for brokers in lengths:
        for rate in (0, PACED_RATE):
            load = f"{brokers} in a row, {f'{rate:,}/s' if rate else 'as fast as possible'}"
            _print(f"round {turn}: {load}: {ours.NAME}")
            found.append(ours.measure(brokers, rate, seconds))
            for system in systems:
                if brokers <= system.largest_chain:
                    _print(f"round {turn}: {load}: {system.name}")
                    found.append(measure.measure(system, brokers, rate, WARMUP_S, seconds))
    return found


def _promises(systems: Sequence[System]) -> dict[str, Promises]:
    found = {ours.NAME: Promises(ours.PROMISE, ours.KEPT)}
    return found | {system.name: Promises(system.promise, system.kept) for system in systems}


def _machine(systems: Sequence[System]) -> str:
    """Return a line about the machine, the load and the versions."""
    versions = sorted({version_of(system) for system in systems})
    load = os.getloadavg()[0]
    return " · ".join(
        [f"{os.cpu_count()} cores", f"load average {load:.1f}", "250 bytes, loopback", *versions]
    )


def _document(systems: Sequence[System], rounds: Sequence[Sequence[Figures]]) -> dict[str, object]:
    return {
        "schema": "pubsubctl/peers/1",
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "versions": {system.name: version_of(system) for system in systems},
        "promises": {name: vars(each) for name, each in _promises(systems).items()},
        "rounds": [[each.row() for each in found] for found in rounds],
    }


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _on_terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Exit through every `finally`, so that servers end and folders are removed."""
    raise SystemExit(_TERMINATED)


if __name__ == "__main__":
    sys.exit(main())
