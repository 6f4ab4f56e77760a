"""The table of all measurements: medians, their spread, and ratios within rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.peers import ours
from bench.peers.figures import Figures

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
        systems = [name for name in promises if any(_of(rounds, name, brokers, None))]
        rows = [_row(rounds, name, brokers, promises[name]) for name in systems]
        title = "one broker" if brokers == 1 else f"{brokers} brokers in a row"
        sections.append(f"{title}\n{_aligned([_HEADS, *rows])}")
    notes = [f"{name}: {each.promise}; {each.kept}" for name, each in promises.items()]
    return "\n\n".join([*sections, "\n".join(notes)])


def _row(rounds: Rounds, system: str, brokers: int, promises: Promises) -> tuple[str, ...]:
    fast = [each for found in _of(rounds, system, brokers, False) for each in found]
    paced = [each for found in _of(rounds, system, brokers, True) for each in found]
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
        _of(rounds, system, brokers, False), _of(rounds, ours.NAME, brokers, False), strict=True
    ):
        if of_system and of_ours:
            found.append(of_system[0].delivered_per_s / of_ours[0].delivered_per_s)
    return found


def _of(rounds: Rounds, system: str, brokers: int, paced: bool | None) -> list[list[Figures]]:
    """Return by round a system's results for a length of chain, paced or not."""

    def is_wanted(each: Figures) -> bool:
        is_of_it = (each.system, each.brokers) == (system, brokers)
        return is_of_it and (paced is None or paced == (each.rate > 0))

    return [list(filter(is_wanted, found)) for found in rounds]


def _median(values: Sequence[float], layout: str) -> str:
    return layout.format(median(values)) if values else ""


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            text.ljust(width) if place in (0, 1, len(row) - 1) else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
