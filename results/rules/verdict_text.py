"""Verdicts, recoveries, withheld publications, and words of the protocol, for people.

They name a publisher as its client is called, as all other outputs do; records and verdicts name
its source, the broker with the number of the publisher there.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from results.rules.terms import CHURN, STREAMS, Counts, Recovery

SECOND_NS = 1_000_000_000
MOST_IDLE_NAMED = 3


def verdict_in_words(verdict: str, *, is_calm: bool = False, brokers: str = "") -> str:
    """Return a verdict with its restrictions.

    Args:
        is_calm: nothing was meant to be at risk.
        brokers: one of WITHOUT_PROCESSES, or "" for processes.
    """
    calm = ["calm"] if is_calm and verdict == "VALID" else []
    limits = [*calm, brokers] if brokers else calm
    return f"{verdict} ({', '.join(limits)})" if limits else verdict


def describe_absent(order: str) -> str:
    """Return the absent violations of a valid run, in words."""
    if order == "none":
        return "nothing missing or repeated"
    within = f" within a {order}" if order in STREAMS else ""
    return f"nothing missing, repeated or out of order{within}"


def counts_in_words(counts: Counts, order: str = "publisher") -> str:
    """Return the owed deliveries and their outcome: the parts add up to the whole.

    Args:
        order: the order of the judgement.
    """
    parts = [f"{counts.delivered:,} delivered"]
    parts += [f"{counts.missing:,} missing"] if counts.missing else []
    parts += [f"{counts.undecided:,} undecided"] if counts.undecided else []
    withheld_text = describe_withheld(counts.withheld)
    gaps = describe_announced(counts.announced)
    again = f"{counts.redelivered:,} redelivered" if counts.redelivered else ""
    others = {kind: n for kind, n in sorted(counts.violations.items()) if kind != "missing"}
    wrong = ", ".join(f"{n:,} {kind}" for kind, n in others.items())
    if not wrong and not counts.missing:
        wrong = describe_absent(order)
    owed = f"{counts.owed:,} owed = {' + '.join(parts)}"
    return " · ".join(text for text in (owed, withheld_text, gaps, again, wrong) if text)


def recoveries_in_words(recoveries: Sequence[Recovery], *, is_decided: bool = True) -> list[str]:
    """Return a line for each recovery, or a single line for many recoveries of a verb without risk.

    Churn has a single line, for any number of absences.

    Args:
        is_decided: False if what did not arrive may have: no delivery of the run is missing.
    """
    fate = "lost" if is_decided else "undecided"
    churn = churn_of(recoveries)
    recoveries = [each for each in recoveries if each.window.verb != CHURN]
    idle: dict[str, int] = {}
    for recovery in recoveries:
        if not recovery.at_risk:
            idle[recovery.window.verb] = idle.get(recovery.window.verb, 0) + 1
    summed = {verb: number for verb, number in idle.items() if number > MOST_IDLE_NAMED}
    found = [
        recovery_in_words(recovery, fate)
        for recovery in recoveries
        if recovery.at_risk or recovery.window.verb not in summed
    ]
    more = " more" if found else ""
    found += [f"{verb} of {n}{more}: nothing was at risk" for verb, n in summed.items()]
    return [*found, *([churn_in_words(churn, fate)] if churn else [])]


def churn_of(recoveries: Sequence[Recovery]) -> dict[str, Any]:
    """Return the totals of a workload's churn; empty without absences."""
    absences = [each for each in recoveries if each.window.verb == CHURN]
    if not absences:
        return {}
    after_ns = [each.recovered_after_ns for each in absences if each.recovered_after_ns is not None]
    return {
        "absences": len(absences),
        "subscribers": len({each.window.target for each in absences}),
        "away_ns_mean": sum(each.window.to_ns - each.window.from_ns for each in absences)
        // len(absences),
        "at_risk": sum(each.at_risk for each in absences),
        "recovered": sum(each.recovered for each in absences),
        "recovered_after_ns_max": max(after_ns, default=None),
    }


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def churn_in_words(churn: Mapping[str, Any], fate: str) -> str:
    """Return the deliveries at risk during absences, and their outcome.

    Args:
        fate: of deliveries that did not arrive: lost, or undecided.
    """
    sentence = (
        f"churn: {_count(churn['subscribers'], 'subscriber', 'subscribers')} disconnected "
        f"{_count(churn['absences'], 'time', 'times')}, "
        f"{churn['away_ns_mean'] / SECOND_NS:.2f} s on the mean"
    )
    if not churn["at_risk"]:
        return f"{sentence}: nothing was at risk"
    at_risk = _count(churn["at_risk"], "delivery", "deliveries")
    text = f"{sentence}: {at_risk} at risk, {churn['recovered']:,} recovered"
    if churn["recovered"] < churn["at_risk"]:
        return f"{text}, {churn['at_risk'] - churn['recovered']:,} {fate}"
    if churn["recovered_after_ns_max"] is None:
        return text
    return f"{text}, the last {churn['recovered_after_ns_max'] / SECOND_NS:.2f} s after the return"


def recovery_in_words(recovery: Recovery, fate: str) -> str:
    """Return the deliveries that a fault put at risk, and their outcome; see `churn_in_words`."""
    window = recovery.window
    ending = {"kill": "the kill", "cut": "the cut", "release": "its end"}.get(window.ended_by, "")
    sentence = f"{window.verb} {window.target}"
    if ending:
        sentence += f" for {(window.to_ns - window.from_ns) / SECOND_NS:.2f} s"
        sentence += f", then {window.ended_by}" if window.ended_by != "release" else ""
    if not recovery.at_risk:
        return f"{sentence}: nothing was at risk"
    at_risk = _count(recovery.at_risk, "delivery", "deliveries")
    text = f"{sentence}: {at_risk} at risk, {recovery.recovered:,} recovered"
    if recovery.recovered < recovery.at_risk:
        return f"{text}, {recovery.at_risk - recovery.recovered:,} {fate}"
    if recovery.recovered_after_ns is None:
        return text
    after_s = recovery.recovered_after_ns / SECOND_NS
    return f"{text}, the last {abs(after_s):.2f} s {'after' if after_s >= 0 else 'before'} {ending}"


def describe_announced(announced: Mapping[str, int]) -> str:
    """Return the number of publications in announced gaps by reason, for people; empty for none."""
    named = ", ".join(f"{n:,} {reason}" for reason, n in sorted(announced.items()))
    return f"{sum(announced.values()):,} in announced gaps ({named})" if announced else ""


def describe_withheld(withheld: Mapping[str, int]) -> str:
    """Return the number of withheld publications by partition, for people; empty for none."""
    if not withheld:
        return ""
    named = ", ".join(f"{n:,} by {partition}" for partition, n in sorted(withheld.items())[:8])
    more = f" and {len(withheld) - 8} more partitions" if len(withheld) > 8 else ""
    return f"{sum(withheld.values()):,} withheld ({named}{more})"


SOURCE: Final = re.compile(r"(?<![\w/-])[a-z][a-z0-9-]*/[0-9]+(?![\w/])")


def with_publisher_names(text: str, names: Mapping[str, str]) -> str:
    """Return a text in which the names of publishers replace those of their sources."""
    return SOURCE.sub(lambda found: names.get(found[0]) or found[0], text)


_FORMER = Path(__file__).with_name("former_protocols.toml")


@dataclass(frozen=True, slots=True)
class ProtocolWords:
    """The words for a protocol in reports.

    Attributes:
        title: title, with an article if any.
        recovery: the recovery from failures, in whole sentences; "" if unknown.
        wiring: parameters of the topology, such as "δ = 1"; "" for none.
    """

    title: str
    recovery: str = ""
    wiring: str = ""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the words in a manifest; raise TypeError for a value that is no text."""
        found = {name: values[name] for name in ("title", "recovery", "wiring") if name in values}
        if not all(isinstance(text, str) for text in found.values()):
            raise TypeError(f"protocol_words = {dict(values)!r} are no texts")
        return cls(**found)

    @property
    def bare(self) -> str:
        """The title without its article, with ordinary blanks."""
        return self.title.removeprefix("the ").replace("\N{NO-BREAK SPACE}", " ")


def former_words(protocol: str, delta: int | None) -> ProtocolWords:
    """Return words for a run without words in its manifest, as used at the time of the run."""
    known = _former().get(protocol)
    if known is None:
        return ProtocolWords(protocol or "an unnamed protocol")
    return ProtocolWords.from_mapping({**known, "wiring": known["wiring"].format(delta=delta)})


@cache
def _former() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads(_FORMER.read_text(encoding="utf-8"))
