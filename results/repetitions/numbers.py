"""The numbers of a run by which repetitions are looked at and runs are compared.

They are what the run and its verdict have written down; nothing is worked out from logs here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from results.tables.derived import derived_of
from results.tables.json_files import read_json

Better = Literal["less", "more"]

_SECOND_NS = 1e9


@dataclass(frozen=True, slots=True)
class Number:
    """One number.

    Attributes:
        better: which of two is the better one.
        is_time: whether less of it is called faster.
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
    Number("recovery_s", "s", "less", True, "from the last fault's end to the last at risk"),
    Number("resent_publications", "", "less", False, "sent again between brokers"),
    Number("resent_bytes", "B", "less", False, "their payload, where all have one size"),
    Number("cpu_us_per_delivered", "µs", "less", True, "of all brokers, per delivered message"),
)


def numbers_of(run: Path) -> dict[str, float]:
    """The numbers that a run has; of one that nobody judged, those without a verdict."""
    manifest = read_json(run / "manifest.json")
    found = dict(_from_headline(manifest))
    verdict = derived_of(run) / "verdict.json"
    if verdict.is_file():
        found.update(_from_verdict(read_json(verdict), manifest))
    return {number.name: found[number.name] for number in NUMBERS if number.name in found}


def _from_headline(manifest: Mapping[str, Any]) -> Mapping[str, float]:
    headline = manifest.get("headline") or {}
    latency = headline.get("response_us") or {}
    found = {f"latency_{name}_ms": us / 1000 for name, us in latency.items()}
    brokers = sum(role["role"] == "broker" for role in (manifest.get("roles") or {}).values())
    if headline.get("delivered"):
        found["delivered_per_s"] = headline["delivered_per_s"]
        if "delivered_new_per_s" in headline:
            found["delivered_new_per_s"] = headline["delivered_new_per_s"]
        found["cpu_us_per_delivered"] = headline["broker_cpu_us_per_message_mean"] * brokers
    return found


def _from_verdict(verdict: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, float]:
    counts, exercised = verdict["counts"], verdict["exercised"]
    found: dict[str, float] = {"resent_publications": exercised["resent_publications"]}
    if counts["owed"]:
        found["delivered_fraction"] = counts["delivered"] / counts["owed"]
    after_ns = [row.get("recovered_after_ns") for row in verdict["recoveries"] if row["at_risk"]]
    if after_ns and None not in after_ns:
        found["recovery_s"] = max(after_ns) / _SECOND_NS
    if size_bytes := manifest.get("payload_bytes"):
        found["resent_bytes"] = exercised["resent_publications"] * size_bytes
    return found


def words_of(number: Number, ratio: float) -> str:
    """`faster`, `slower`, `better` or `worse`: what a ratio to another run's says."""
    less = ratio < 1
    good = less == (number.better == "less")
    if number.is_time:
        return "faster" if good else "slower"
    return "better" if good else "worse"
