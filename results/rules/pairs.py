"""Pairs of a subscription and a source: the keys to walk through, and the walked keys."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from results.rules.facts import RunFacts
from results.rules.findings import SourceSummary
from results.tables.frames import FIRST_KEY, LAST_KEY

Names = tuple[str, str, str]
"""Run, subscription and source."""

Span = tuple[str, int, str, int, int]
"""Run, predicate and source, and the first and last relevant key; empty if the keys cross."""

Walked = Mapping[str, Any]
"""The counts of a pass over a pair's deliveries."""


@dataclass(frozen=True)
class Pair:
    """A subscription and a source of one run."""

    run_id: str
    sub_id: str
    pubend: str
    predicate_id: int
    closed: bool
    started: bool
    source: SourceSummary

    @property
    def names(self) -> Names:
        return self.run_id, self.sub_id, self.pubend

    def span(self, first: int, last: int) -> Span:
        """Return a span of keys of matching publications."""
        return self.run_id, self.predicate_id, self.pubend, first, last

    def compute_owed_span(self) -> Span:
        """Return the span between the fences; empty for a subscription that never started."""
        opening, closing = self.source.opening, self.source.closing
        if not self.started:
            return self.span(LAST_KEY, FIRST_KEY)
        return self.span(
            FIRST_KEY if opening is None else opening + 1,
            LAST_KEY if closing is None else closing - 1,
        )

    def span_to_walk(self, walked: Walked) -> Span:
        """Return the keys to walk through, given the lowest and highest walked key."""
        lowest, highest = walked.get("lowest"), walked.get("highest")
        first, last = [lowest], [highest]
        if self.closed or lowest is not None:
            first.append(self.source.opening)
        if self.closed:
            last.append(self.source.closing)
        known_first = [key for key in first if key is not None]
        known_last = [key for key in last if key is not None]
        if not self.started or not known_first or not known_last:
            return self.span(LAST_KEY, FIRST_KEY)
        return self.span(min(known_first), max(known_last))


@dataclass(frozen=True)
class BadPair:
    """A pair that did not walk the required keys.

    Attributes:
        place: index of the summary.
        span: the required keys.
        in_spite: the pair may have received announced publications.
    """

    pair: Pair
    place: int
    span: Span
    in_spite: bool


def pairs_of(facts: RunFacts, sources: Mapping[str, SourceSummary]) -> Iterator[Pair]:
    """Yield every subscription of a run with every source."""
    predicate_ids = {text: number for number, text in enumerate(facts.predicates)}
    for subscription in facts.subscriptions:
        for source in facts.sources:
            yield Pair(
                facts.run_id,
                subscription.sub_id,
                source.pubend,
                predicate_ids[subscription.predicate],
                subscription.closed,
                subscription.started,
                sources[source.pubend],
            )


def join_counts(earlier: Walked, later: Walked) -> dict[str, Any]:
    """Return the counts of two consecutive stretches of a pair's deliveries as one."""
    steps_back = earlier["last"] is not None and later["first"] is not None
    steps_back = steps_back and later["first"] <= earlier["last"]
    added = ("walked", "objections", "received", "delivered", "other_kind", "too_soon")
    row = {name: earlier[name] + later[name] for name in added}
    row["back"] = earlier["back"] + later["back"] + int(steps_back)
    for name, choose in (("lowest", min), ("highest", max), ("first_seq", min), ("last_seq", max),
                         ("first_ns", min), ("last_ns", max)):  # fmt: skip
        known = [value for value in (earlier[name], later[name]) if value is not None]
        row[name] = choose(known) if known else None
    row["first"] = earlier["first"] if earlier["first"] is not None else later["first"]
    row["last"] = later["last"] if later["last"] is not None else earlier["last"]
    row["xor_hash"] = earlier["xor_hash"] ^ later["xor_hash"]
    places = earlier["first_place"], later["first_place"]
    row["first_place"] = places[0] if places[0] is not None else places[1]
    return row
