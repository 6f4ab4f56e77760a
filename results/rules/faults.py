"""The active times of each fault of a run, from its stamps, for plots and suspects."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from brokerd.model.fault_verbs import KILLING_VERBS, LIMITING_VERBS, ROAM, SLOW
from results.rules.risks import BREAKING_VERBS
from results.rules.terms import NEVER_NS

# held: nothing passes, nothing is lost yet. down: dead. back: restarted, not ready yet.
SpanKind = Literal["held", "down", "back", "limited"]


_LIMITED = (*LIMITING_VERBS, SLOW, ROAM)
"""Verbs whose targets stay in use."""


@dataclass(frozen=True)
class FaultSpan:
    """A period in which a fault had an effect on a target.

    Attributes:
        to_ns: end of the period; the run's end for a fault without an end.
        parts: the affected brokers and links, see `results.rules.risks.parts_of`.
        is_over: the period ended before the run did.
    """

    fault_id: str
    step: str
    verb: str
    target: str
    kind: SpanKind
    from_ns: int
    to_ns: int
    parts: tuple[str, ...]
    is_over: bool


def fault_spans(rows: Iterable[Mapping[str, Any]], end_ns: int) -> list[FaultSpan]:
    """Return the periods in the rows of a fault table, in order."""
    applied = sorted(
        (row for row in rows if row.get("t_applied_ns") is not None),
        key=lambda row: (row["t_applied_ns"], row["fault_id"]),
    )
    spans = []
    for place, row in enumerate(applied):
        from_ns = row["t_applied_ns"]
        to_ns = _end_ns(row, applied[place + 1 :])
        if row["verb"] == "restart":
            kind: SpanKind = "back"
            to_ns = row.get("t_recovered_ns") or row.get("t_observed_ns") or from_ns
        elif row["verb"] in BREAKING_VERBS:
            kind = "down"
        else:
            kind = "limited" if row["verb"] in _LIMITED else "held"
        spans.append(
            FaultSpan(
                row["fault_id"],
                row.get("step") or row["fault_id"],
                row["verb"],
                row["target"],
                kind,
                from_ns,
                min(to_ns, end_ns),
                _parts(row),
                to_ns < end_ns,
            )
        )
    return spans


def _end_ns(row: Mapping[str, Any], later: Sequence[Mapping[str, Any]]) -> int:
    """Return the time of the heal, or of the next fault that replaces this fault."""
    takes_over = ("restart",) if row["verb"] in KILLING_VERBS else BREAKING_VERBS
    over = "t_observed_ns" if row["verb"] == ROAM else "t_healed_ns"
    healed_ns: int = NEVER_NS if row.get(over) is None else row[over]
    for other in later:
        if other["verb"] in takes_over and {*_parts(other)} >= {*_parts(row)}:
            return min(healed_ns, int(other["t_applied_ns"]))
    return healed_ns


def _parts(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row.get("parts") or (row["target"],))
