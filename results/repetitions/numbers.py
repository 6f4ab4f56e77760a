"""The numbers of a run for repetitions and comparisons.

Latencies, rates and costs are computed from the run's records and statistics, never taken from its
manifest, except for the processor time of another system's servers, which write no statistics. The
other numbers are from the verdict, which `check` computed from the same files and sealed.

A user may set bounds on numbers; the points of a series that break bounds are the danger zone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal

from brokerd.text import format_number, nearest
from results.reference.history import Judgement
from results.rules.terms import CHURN
from results.tables.derived import find_unsealed_derived, read_counts
from results.tables.json_files import ResultsError, read_json, read_json_lines
from results.tables.manifest import Run, read_run
from results.tables.row_counts import headline_of

Better = Literal["less", "more"]

_SECOND_NS = 1e9
_RESENT: Final = "resent_publications"
_MOST: Final = 1e100
"""Beyond all numbers of real runs, and sums of so large values are finite."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a run.

    Attributes:
        better: the better direction.
        is_time: True if less is called faster.
    """

    name: str
    unit: str
    better: Better
    is_time: bool
    meaning: str


NUMBERS: Final = (
    Number("latency_p50_ms", "ms", "less", True, "median from when meant to be sent to received"),
    Number("latency_p99_ms", "ms", "less", True, "what one in a hundred exceeded"),
    Number("latency_max_ms", "ms", "less", True, "the largest"),
    Number("delivered_per_s", "/s", "more", True, "deliveries per second of the measure phase"),
    Number(
        "delivered_new_per_s",
        "/s",
        "more",
        True,
        "the same without what was sent before that phase",
    ),
    Number("delivered_fraction", "", "more", False, "delivered of owed"),
    Number("recovery_s", "s", "less", True, "from a fault's end to the last at risk, 0 if before"),
    Number("resent_publications", "", "less", False, "sent again between brokers"),
    Number("resent_bytes", "B", "less", False, "their payload, where all have one size"),
    Number("cpu_us_per_delivered", "µs", "less", True, "of all brokers, per delivered message"),
)


def numbers_of(run: Path) -> dict[str, float]:
    """Return the numbers of a run; without a verdict, the numbers that need no verdict."""
    manifest = read_json(run / "manifest.json")
    found = dict(_from_records(run))
    verdict = find_unsealed_derived(run) / "verdict.json"
    if verdict.is_file():
        run_id = str(manifest.get("run_id"))
        found.update(_from_verdict(read_counts(verdict, run_id), manifest))
    for name, value in found.items():
        if not abs(value) < _MOST:
            raise ResultsError(f"{run}: {name} = {value:.3g} is no number of a run")
    return {number.name: found[number.name] for number in NUMBERS if number.name in found}


def _from_records(folder: Path) -> Mapping[str, float]:
    run = read_run(folder)
    headline, phase = headline_of(run), run.phase("measure")
    if headline is None:
        return {}
    latency = headline.response_us or {}
    found = {f"latency_{name}_ms": us / 1000 for name, us in latency.items()}
    if headline.delivered:
        per_s = _SECOND_NS / (phase.to_ns - phase.from_ns)
        found["delivered_per_s"] = headline.delivered * per_s
        found["delivered_new_per_s"] = (headline.delivered - headline.earlier) * per_s
        used_s = [
            _compute_used_s(lines, run.origin_ns + phase.from_ns, run.origin_ns + phase.to_ns)
            for lines in _statistics_of_brokers(run)
        ]
        if used_s:
            found["cpu_us_per_delivered"] = sum(used_s) * 1e6 / headline.delivered
        elif "system" in run.manifest and (figures := run.manifest.get("headline")):
            # Servers of other systems write no statistics: only the agent measures the usage.
            brokers = sum(role["role"] == "broker" for role in run.manifest["roles"].values())
            found["cpu_us_per_delivered"] = figures["broker_cpu_us_per_message_mean"] * brokers
    return found


def _statistics_of_brokers(run: Run) -> Iterator[list[Mapping[str, Any]]]:
    for broker in run.topology.get("brokers", ()):
        for path in sorted(run.folder.glob(f"raw/*/{broker}/stats.jsonl")):
            yield [row for row in read_json_lines(path) if "cpu_s" in row]


def _compute_used_s(rows: Sequence[Mapping[str, Any]], from_ns: int, to_ns: int) -> float:
    """Return a broker's processor time between two stamps, interpolated between statistics."""
    used_s = 0.0
    for before, after in pairwise(rows):
        length_ns = after["t_ns"] - before["t_ns"]
        inside_ns = min(to_ns, after["t_ns"]) - max(from_ns, before["t_ns"])
        # A broker that began again counts from 0.
        more_s = after["cpu_s"] - min(before["cpu_s"], after["cpu_s"])
        if length_ns > 0 and inside_ns > 0:
            used_s += more_s * inside_ns / length_ns
    return used_s


def _from_verdict(verdict: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, float]:
    counts, exercised = verdict["counts"], verdict["exercised"]
    found: dict[str, float] = {"resent_publications": exercised["resent_publications"]}
    if counts["owed"]:
        found["delivered_fraction"] = counts["delivered"] / counts["owed"]
    after_ns = [row.get("recovered_after_ns") for row in verdict["recoveries"] if row["at_risk"]]
    if after_ns and None not in after_ns:
        found["recovery_s"] = max(0, *after_ns) / _SECOND_NS
    if size_bytes := manifest.get("payload_bytes"):
        found["resent_bytes"] = exercised["resent_publications"] * size_bytes
    return found


def doubts_about_verdict(folder: Path, judgement: Judgement) -> Iterator[str]:
    """Yield the numbers in the verdict of a run that its logs contradict, in words.

    Args:
        judgement: a judgement of the files of the run.
    """
    path = find_unsealed_derived(folder) / "verdict.json"
    if not path.is_file():
        return
    manifest = read_json(folder / "manifest.json")
    verdict = read_counts(path, str(manifest.get("run_id")))
    last = [
        rows[-1]
        for path in sorted(folder.glob("raw/*/*/stats.jsonl"))
        if (rows := [*read_json_lines(path)])
    ]
    wanted = {
        "counts": {"owed": judgement.counts.owed, "delivered": judgement.counts.delivered},
        "exercised": {"resent_publications": sum(row.get(_RESENT, 0) for row in last)},
        "recoveries": [
            {"at_risk": each.at_risk, "recovered_after_ns": each.recovered_after_ns}
            for each in judgement.recoveries
            if each.window.verb != CHURN
        ],
    }
    found, logged = _from_verdict(verdict, manifest), _from_verdict(wanted, manifest)
    for name in sorted({*found} | {*logged}):
        if found.get(name) != logged.get(name):
            yield (
                f"verdict.json and the logs in raw/ differ on {name}: {found.get(name)}, and "
                f"{logged.get(name)}"
            )


def words_of(number: Number, ratio: float) -> str:
    """Return `faster`, `slower`, `better` or `worse` for a ratio to another run's number."""
    less = ratio < 1
    good = less == (number.better == "less")
    if number.is_time:
        return "faster" if good else "slower"
    return "better" if good else "worse"


_NUMBERS: Final = {number.name: number for number in NUMBERS}


def check_bounds(bounds: Mapping[str, float]) -> None:
    """Refuse a bound on an unknown number of a run.

    Raises:
        ResultsError: names the number, and the nearest available one.
    """
    for name, bound in bounds.items():
        if name not in _NUMBERS:
            raise ResultsError(f"{name!r} is no number of a run{nearest(name, [*_NUMBERS])}")
        if not isfinite(bound) or bound < 0:
            raise ResultsError(f"{name} = {bound}: a bound is a number, at least 0")


def passes(number: Number, value: float, bound: float) -> bool:
    """Return True if a value is on the wrong side of a bound."""
    return value > bound if number.better == "less" else value < bound


def beyond(about: Mapping[str, Any], bounds: Mapping[str, float]) -> Iterator[str]:
    """Yield the broken bounds and promises of a point in a series, in words.

    Nothing outside danger.

    Bounds apply to means; a bound on a number that no run of the point has counts as broken.

    Args:
        about: the point, as in its summary.
    """
    broken = [*about["runs"].values()].count("INVALID")
    if broken:
        yield f"{broken} of {len(about['runs'])} INVALID"
    for name, bound in bounds.items():
        spread = about["numbers"].get(name)
        if spread is None:
            yield f"no {name}"
        elif passes(_NUMBERS[name], spread["mean"], bound):
            yield f"{name} {format_number(spread['mean'])}, bound {format_number(bound)}"
