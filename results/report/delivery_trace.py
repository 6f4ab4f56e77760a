"""The trace of a delivery: the events of a publication on the path to a subscription.

A trace lists events in the order of time: the sending, the acknowledgement, faults and lost
sessions on the path, the arrivals, announced gaps, and the neighbouring publications of the same
source. The plain judge (`results/reference`) decides whether the delivery is missing or repeated.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from brokerd.units import MILLISECOND_NS, SECOND_NS
from results.reference.files import StreamSelection, read_json, read_lines, read_records
from results.reference.history import (
    ACKNOWLEDGED,
    FENCE,
    GAP,
    REDELIVERED,
    DeliveryRow,
    History,
    PublicationRow,
    PublisherLog,
    SubscriptionLog,
)
from results.reference.history_reader import read_streams, timeline_of
from results.reference.predicates import wants
from results.reference.risk import Tree, steps
from results.reference.rule import check
from results.rules.terms import Fault, Gap, Notice

Outcome = Literal[
    "delivered", "repeated", "missing", "announced", "withheld", "not wanted", "not subscribed",
    "not owed",
]  # fmt: skip

_AROUND_NS: Final = SECOND_NS
"""Time before the sending and after the end of the delivery, of which events are shown."""

_WAIT_NS: Final = 10 * SECOND_NS
"""Time after the sending of which events are shown, if the publication never arrived."""

_SHOWN: Final = {
    "session_lost": "loses the session with {peer}: {reason}",
    "session_established": "has a session with {peer}",
    "link_cut": "cuts the link to {peer}",
    "partition_new": "detects an unreachable broker",
    "partition_gone": "ends a partition",
    "loss_accepted": "accepts the loss of its state",
    "run_begun": "starts to record",
}


class TraceRefusal(Exception):
    """A publication or a subscription that is not in the run.

    Attributes:
        wanted: the unknown name; "" if no name is unknown.
        known: the names in the run.
    """

    def __init__(self, text: str, wanted: str = "", known: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.wanted = wanted
        self.known = known


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event on the way of a publication.

    Attributes:
        at_ns: time since the start of the run.
        place: the client, the broker, or the fault.
    """

    at_ns: int
    place: str
    text: str


@dataclass(frozen=True, slots=True)
class DeliveryTrace:
    """The trace of a publication and a subscription.

    Attributes:
        publication: "SOURCE:INCARNATION:NUMBER".
        attributes: of the publication.
        path: the brokers from the publisher to the subscriber; empty in overlays with several
            routes.
        events: in the order of time.
        because: the outcome in a sentence.
    """

    publication: str
    publisher: str
    attributes: Mapping[str, Any]
    subscription: str
    predicate: str
    path: tuple[str, ...]
    events: tuple[TraceEvent, ...]
    outcome: Outcome
    because: str


def trace_delivery(run: Path, publication: str, subscription: str) -> DeliveryTrace:
    """Return the trace of a publication to a subscription of a finished run.

    Args:
        publication: "SOURCE:NUMBER" or "SOURCE:INCARNATION:NUMBER"; the source is "BROKER/NUMBER"
            or the name of the publisher.
        subscription: "CLIENT/NUMBER"; the client alone means the first subscription.

    Raises:
        TraceRefusal: the run has no such publication or subscription.
        FileRefusal: a file of the run cannot be read.
    """
    source, incarnation, number = _parse(publication)
    source = _find_source(run, source)
    subscription = _find_subscription(run, subscription)
    history = read_streams(run, [source], [subscription])
    if not history.publishers:
        raise TraceRefusal(f"{source} has published nothing in this run")
    row = _find_publication(history.publishers[0], incarnation, number)
    return _Delivery(run, history, history.publishers[0], history.subscriptions[0], row).trace()


def _parse(publication: str) -> tuple[str, int | None, int]:
    source, *numbers = publication.rsplit(":", 2)
    if source and 1 <= len(numbers) <= 2 and all(each.isdecimal() for each in numbers):
        return source, int(numbers[0]) if len(numbers) == 2 else None, int(numbers[-1])
    raise TraceRefusal(
        f"publication {publication!r}: write SOURCE:NUMBER or SOURCE:INCARNATION:NUMBER, for "
        "example p1/0:310 or p1-pub-1:310"
    )


def _find_source(run: Path, wanted: str) -> str:
    """Return the source of a publisher that is given by source or name."""
    names: dict[str, str] = {}
    for sidecar in sorted(run.glob("raw/*/*/publications.rec.json")):
        tables = read_json(sidecar).get("tables") or {}
        names |= {str(name): source for source, name in tables.get("publisher_names", {}).items()}
        names |= {source: source for source in tables.get("publishers", ())}
    if wanted not in names:
        raise TraceRefusal(f"no publisher {wanted!r} in this run", wanted, sorted(names))
    return names[wanted]


def _find_subscription(run: Path, wanted: str) -> str:
    names: dict[str, None] = {}
    for lines in sorted(run.glob("raw/*/*/subscriptions.jsonl")):
        names |= dict.fromkeys(str(line.get("sub_id")) for line in read_lines(lines))
    chosen = wanted if "/" in wanted else f"{wanted}/1"
    if chosen not in names:
        raise TraceRefusal(f"no subscription {wanted!r} in this run", chosen, sorted(names))
    return chosen


def _find_publication(log: PublisherLog, incarnation: int | None, number: int) -> PublicationRow:
    found = [row for row in log.published if row.sequence == number]
    chosen = [row for row in found if incarnation in (None, row.incarnation)]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        known = ", ".join(f"{log.source}:{row.incarnation}:{number}" for row in chosen)
        raise TraceRefusal(f"{log.source} has published {number} repeatedly: name one of {known}")
    numbers = [row.sequence for row in log.published if incarnation in (None, row.incarnation)]
    if not numbers:
        raise TraceRefusal(f"{log.source} has no incarnation {incarnation}")
    extent = f"{min(numbers)} to {max(numbers)}"
    raise TraceRefusal(f"{log.source} has not published {number}; the run has {extent}")


@dataclass(frozen=True, slots=True)
class _Delivery:
    """A publication and a subscription of a run."""

    run: Path
    history: History
    publisher: PublisherLog
    subscription: SubscriptionLog
    row: PublicationRow

    def trace(self) -> DeliveryTrace:
        """Return the trace."""
        arrivals = [
            each
            for each in self.subscription.delivered
            if (each.source, each.key) == (self.publisher.source, self.row.key)
        ]
        outcome, because = self._outcome(arrivals)
        path = self._path()
        until_ns = max((each.received_ns for each in arrivals), default=self.row.sent_ns + _WAIT_NS)
        struck = [
            f"{fault.verb} {fault.target}"
            for fault in self._active(self.row.sent_ns, until_ns)
            if steps(path) & fault.struck
        ]
        if struck and outcome in ("delivered", "repeated", "missing"):
            because += f"; on the path meanwhile: {', '.join(dict.fromkeys(struck))}"
        during = (self.row.sent_ns - _AROUND_NS, until_ns + _AROUND_NS)
        events = [
            *self._published(),
            *self._answered(),
            *self._subscribed(),
            *self._received(arrivals),
            *self._neighbours(),
            *self._announced(),
            *self._failed(path, during),
            *self._recorded(path, during),
        ]
        return DeliveryTrace(
            f"{self.publisher.source}:{self.row.incarnation}:{self.row.sequence}",
            self.publisher.name,
            self.history.content.attributes(self.row.attribute_set),
            self.subscription.subscription,
            self.subscription.predicate,
            path,
            tuple(sorted(events, key=lambda event: event.at_ns)),
            outcome,
            because,
        )

    # ------------------------------------------------------------ outcome

    def _outcome(self, arrivals: Sequence[DeliveryRow]) -> tuple[Outcome, str]:
        """Return the outcome and the reason; the plain judge finds the violations."""
        violations = {
            each.kind
            for each in check(self.history).violations
            if (each.incarnation, each.sequence) == self.row.key
            and (each.subscription, each.source)
            == (self.subscription.subscription, self.publisher.source)
        }
        data = [each for each in arrivals if each.kind != GAP]
        if data:
            latency_ns = data[0].received_ns - self.row.sent_ns
            when = f"delivered {latency_ns / MILLISECOND_NS:,.2f} ms after sending"
            again = f", and again {len(data) - 1} times" if len(data) > 1 else ""
            if "duplicate" in violations:
                return "repeated", f"repeated: {when}{again}"
            return "delivered", f"{when}{again}{', marked' if again else ''}"
        if violations & {"missing", "fence_missing"}:
            known = "acknowledged to the publisher"
            if not self._is_acknowledged:
                known = "received by another subscription"
            return "missing", f"missing: {known}, wanted, and never delivered"
        return self._excuse()

    def _excuse(self) -> tuple[Outcome, str]:
        """Return the outcome and the reason of a publication that is absent by right."""
        attributes = self.history.content.attributes(self.row.attribute_set)
        started_ns = self.subscription.accepted_ns
        if not self._is_fence and not wants(self.subscription.predicate)(attributes):
            return (
                "not wanted",
                "not wanted: the attributes do not match the predicate of the subscription",
            )
        if started_ns is None:
            return "not subscribed", "not subscribed: no broker has accepted the subscription"
        notice = next((each for each in self.subscription.notices if self._is_in(each)), None)
        if notice is not None:
            return "withheld", f"withheld: the broker announced partition {notice.partition}"
        gap = next((each for each in self.subscription.gaps if self._is_in(each)), None)
        if gap is not None:
            return "announced", f"announced as a gap: {gap.reason}"
        if not self._is_acknowledged:
            return "not owed", "not owed: no broker has acknowledged the publication"
        if self.row.sent_ns < started_ns:
            early_ns = started_ns - self.row.sent_ns
            return (
                "not subscribed",
                f"not subscribed: sent {early_ns / MILLISECOND_NS:,.2f} ms before the start",
            )
        return (
            "not owed",
            "not owed: sent outside of the fences, lost with a state that was accepted as lost, or "
            "behind the end of a log that was not closed",
        )

    @property
    def _is_fence(self) -> bool:
        return self.row.attribute_set == self.history.content.fence_set

    @property
    def _is_acknowledged(self) -> bool:
        return any(
            outcome == ACKNOWLEDGED
            and incarnation == self.row.incarnation
            and first <= self.row.sequence <= last
            for incarnation, first, last, outcome in self.publisher.answers
        )

    def _is_in(self, gap: Gap | Notice) -> bool:
        return (gap.source, gap.incarnation) == (
            self.publisher.source,
            self.row.incarnation,
        ) and gap.first <= self.row.sequence <= gap.last

    def _path(self) -> tuple[str, ...]:
        if self.history.routes is not None:
            return ()
        return Tree(self.history.links).path(self.publisher.broker, self.subscription.broker)

    # ------------------------------------------------------------ events

    def _published(self) -> Iterator[TraceEvent]:
        text = "sends the fence" if self._is_fence else "sends the publication"
        yield TraceEvent(self.row.sent_ns, self.publisher.name, text)

    def _answered(self) -> Iterator[TraceEvent]:
        timeline, run_id = timeline_of(self.run), self._run_id()
        chosen = StreamSelection(frozenset([self.publisher.source]), frozenset())
        for process in sorted(self.run.glob("raw/*/*")):
            acks = read_records(process, "acks", run_id, chosen)
            for row in acks.rows if acks is not None else ():
                if row["incarnation"] != self.row.incarnation:
                    continue
                if row["first"] <= self.row.sequence <= row["last"]:
                    at_ns = timeline(row["at_ns"], process.parent.name)
                    is_good = row["outcome"] == ACKNOWLEDGED
                    text = "receives the acknowledgement" if is_good else "receives a refusal"
                    yield TraceEvent(at_ns, self.publisher.name, text)

    def _run_id(self) -> str:
        return str(read_json(self.run / "manifest.json").get("run_id"))

    def _subscribed(self) -> Iterator[TraceEvent]:
        """Yield the start of the subscription, if later than the sending."""
        accepted_ns = self.subscription.accepted_ns
        if accepted_ns is not None and accepted_ns > self.row.sent_ns - _AROUND_NS:
            subscriber = self.subscription.subscriber
            yield TraceEvent(accepted_ns, subscriber, "receives the start of the subscription")

    def _received(self, arrivals: Sequence[DeliveryRow]) -> Iterator[TraceEvent]:
        for each in arrivals:
            text = "receives the loss" if each.kind == GAP else "receives the publication"
            if each.kind & REDELIVERED:
                text = "receives the publication again, marked as redelivered"
            yield TraceEvent(each.received_ns, self.subscription.subscriber, text)

    def _neighbours(self) -> Iterator[TraceEvent]:
        """Yield the arrivals of the nearest delivered numbers before and after the publication."""
        received = sorted(
            {
                each.sequence: each.received_ns
                for each in reversed(self.subscription.delivered)
                if each.source == self.publisher.source
                and each.incarnation == self.row.incarnation
                and each.kind in (0, FENCE)
            }.items()
        )
        before = [each for each in received if each[0] < self.row.sequence]
        after = [each for each in received if each[0] > self.row.sequence]
        for sequence, at_ns in before[-1:] + after[:1]:
            text = f"receives number {sequence} of the same source"
            yield TraceEvent(at_ns, self.subscription.subscriber, text)

    def _announced(self) -> Iterator[TraceEvent]:
        for gap in self.subscription.gaps:
            if self._is_in(gap):
                text = f"receives a gap from {gap.first} to {gap.last}: {gap.reason}"
                yield TraceEvent(gap.received_ns, self.subscription.subscriber, text)

    def _failed(self, path: tuple[str, ...], during: tuple[int, int]) -> Iterator[TraceEvent]:
        """Yield faults that were active meanwhile, with a mark for faults on the path."""
        for fault in self._active(*during):
            where = " on the path" if steps(path) & fault.struck else ""
            begins_ns = _begin_ns(fault)
            assert begins_ns is not None, fault
            yield TraceEvent(begins_ns, fault.target, f"{fault.verb} begins{where}")
            if fault.healed_ns is not None:
                yield TraceEvent(fault.healed_ns, fault.target, f"{fault.verb} ends{where}")

    def _active(self, from_ns: int, to_ns: int) -> Iterator[Fault]:
        for fault in self.history.faults:
            begins_ns = _begin_ns(fault)
            is_over = fault.healed_ns is not None and fault.healed_ns < from_ns
            if begins_ns is not None and begins_ns <= to_ns and not is_over:
                yield fault

    def _recorded(self, path: tuple[str, ...], during: tuple[int, int]) -> Iterator[TraceEvent]:
        """Yield lost and new sessions and the like at brokers of the path and at both clients."""
        timeline = timeline_of(self.run)
        ends = {self.publisher.name, self.subscription.subscriber}
        for process in sorted(self.run.glob("raw/*/*")):
            for line in read_lines(process / "events.jsonl") if process.name in path else ():
                words = _SHOWN.get(str(line.get("event")))
                at_ns = line.get("t_ns")
                if words is None or type(at_ns) is not int:
                    continue
                text = words.format(peer=line.get("peer"), reason=line.get("reason"))
                yield from self._within(
                    TraceEvent(timeline(at_ns, process.parent.name), process.name, text), during
                )
            for line in read_lines(process / "sessions.jsonl"):
                at_ns = line.get("t_ns")
                if line.get("client") not in ends or type(at_ns) is not int:
                    continue
                text = (
                    "has a session with" if line.get("event") == "up" else "loses the session with"
                )
                text = f"{text} {line.get('broker')}"
                text = f"{text}: {line['reason']}" if line.get("reason") else text
                at_ns = timeline(at_ns, process.parent.name)
                yield from self._within(TraceEvent(at_ns, str(line["client"]), text), during)

    def _within(self, event: TraceEvent, during: tuple[int, int]) -> Iterator[TraceEvent]:
        if during[0] <= event.at_ns <= during[1]:
            yield event


def _begin_ns(fault: Fault) -> int | None:
    return fault.applied_ns if fault.applied_ns is not None else fault.observed_ns
