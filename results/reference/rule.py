"""The rank rule, row by row.

For each source, number the committed publications that match a predicate (their ranks). A
publication is committed if it was acknowledged, or if it was not answered and any subscriber
received it. A subscription that walked through its deliveries of the source must have seen each
rank from the opening fence to the closing fence once, in order, and before the opening fence no
rank may be left out after the first. A matching publication that was not committed, in contrast to
later publications of its incarnation, leaves the verdict open: a client completes its publications
in their order, so only the last publications can stay incomplete, at its end. Publications in
notices are not owed to the subscription, if faults confirm the notices. A log that was not closed
proves nothing about its end, and nothing is owed to a subscription that was never accepted.

A protocol may promise more or less. In a total order any two subscriptions received common
publications in the same order; without any order, no order is required. A gap that was announced
for a promised reason excuses its publications; so does a gap that is promised after an absence, for
publications until the subscriber was back. If redelivery is promised, a delivery that is marked
as redelivered is no duplicate unless committed before, and may have been in a gap.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from results.reference import streams, verdict
from results.reference.history import (
    GAP,
    History,
    Judgement,
    SubscriptionLog,
    Violation,
)
from results.reference.pair import Pair
from results.reference.risk import DeliveryPaths, Routes, Tree, is_certainly_sent_in, times_of_risk
from results.reference.source import Source, steps_back
from results.reference.streams import PlacedPublication, Publication
from results.reference.withholding import Reasons
from results.rules.terms import (
    STATE_LOST,
    STREAMS,
    Counts,
    Promises,
    Recovery,
    RiskWindow,
    doubt,
)
from results.witnesses.online import doubts_about_findings


def check(history: History) -> Judgement:
    """Judge a history.

    Raises:
        ValueError: a predicate cannot be read.
    """
    sources = [Source(log, history) for log in history.publishers]
    tree = Tree(history.links if history.routes is None else ())
    reasons = Reasons(tree, history.delta, history.faults, history.newcomers)
    pairs = [
        Pair(subscription, source, reasons, history)
        for subscription in history.subscriptions
        for source in sources
    ]
    violations = [found for source in sources for found in source.find_reused()]
    for subscription in history.subscriptions:
        violations += _strangers(history, subscription)
        violations += _losses_of_streams(subscription, sources, history.promises)
    violations += [found for pair in pairs for found in pair.violations]
    if history.order == "total":
        violations += streams.order_differences(_places(pairs))
    if history.order in STREAMS:
        violations += streams.wrong_places(_list_placed(pairs))
    at_risk, recoveries, reached = _risks(history, pairs)
    started = [pair for pair in pairs if pair.subscription.started]
    counts = Counts(
        pairs=len(started),
        owed=sum(len(pair.owed) for pair in started),
        delivered=sum(pair.delivered for pair in started),
        at_risk=len(at_risk),
        recovered=sum(at_risk),
        violations={**Counter(violation.kind for violation in violations)},
        withheld={**sum((pair.withheld for pair in started), Counter())},
        undecided=sum(pair.undecided for pair in started),
        least_owed=min(
            ((*pair.names, len(pair.owed)) for pair in started),
            key=lambda least: (least[2], *least[:2]),
            default=None,
        ),
        announced={**sum((pair.announced_counts for pair in started), Counter())},
        redelivered=sum(pair.redelivered for pair in started),
        outstanding=sum(pair.outstanding for pair in started),
    )
    doubts = [*history.doubts, *_doubts(history, sources, pairs, recoveries)]
    doubts += doubts_about_findings(history.online, counts.violations, history.order)
    if spared := [broker for broker in history.to_be_reached if broker not in reached]:
        doubts.append(doubt("spared", brokers=", ".join(spared)))
    name, because, doubts_left = verdict.decide(
        counts, doubts, history.guarantee, history.calm, history.deliveries_per_pair_min,
        history.busy, history.was_silent, history.promises.may_lose,
    )  # fmt: skip
    return Judgement(name, because, counts, recoveries, doubts_left, tuple(violations))


def _places(pairs: Sequence[Pair]) -> Mapping[str, Mapping[Publication, int]]:
    """Return the place of the first arrival of each matching publication, by subscription.

    Publications that were sent again after a loss of state have no place.
    """
    found: dict[str, dict[Publication, int]] = {}
    for pair in pairs:
        subscriber, source = pair.names
        of_subscription = found.setdefault(subscriber, {})
        for place, row in pair.rows:
            is_placed = row.key in pair.rank and row.key not in pair.source.log.sent_again
            if row.kind != GAP and is_placed:
                of_subscription.setdefault((source, row.key), place)
    return found


def _list_placed(pairs: Sequence[Pair]) -> Mapping[str, Sequence[PlacedPublication]]:
    """Return the first arrivals with a place, in the order received, by subscription."""
    found: dict[str, list[tuple[int, PlacedPublication]]] = {}
    for pair in pairs:
        subscriber, source = pair.names
        for place, row in pair.first_arrivals():
            if row.stream:
                placed = PlacedPublication(row.stream, row.position, source, row.key)
                found.setdefault(subscriber, []).append((place, placed))
    return {
        subscriber: [placed for _, placed in sorted(rows)] for subscriber, rows in found.items()
    }


def _strangers(history: History, subscription: SubscriptionLog) -> Iterator[Violation]:
    """Yield deliveries of sources that are in no publisher's log, if every publisher has one."""
    logs = history.publishers
    known, names = {log.source for log in logs}, {log.name for log in logs}
    if {*history.content.publishers} <= names and all(log.closed for log in logs):
        for place, row in enumerate(subscription.delivered):
            if row.source not in known:
                yield Violation("phantom", subscription.subscription, row.source, *row.key, place)


def _losses_of_streams(
    subscription: SubscriptionLog, sources: Sequence[Source], promises: Promises
) -> Iterator[Violation]:
    """Yield losses in streams without a publisher that no operator had accepted by then."""
    accepted_ns, name = promises.losses_from_ns, subscription.subscription
    known = {source.log.source for source in sources}
    for gap in subscription.gaps:
        is_of_stream = gap.reason == STATE_LOST and gap.source not in known
        if is_of_stream and (accepted_ns is None or accepted_ns > gap.received_ns):
            yield Violation("gap_unpromised", name, gap.source, gap.incarnation, gap.first)


def _list_passing(history: History) -> Tree | Routes:
    return Tree(history.links) if history.routes is None else Routes(history.routes)


def _risks(
    history: History, pairs: Iterable[Pair]
) -> tuple[list[bool], tuple[Recovery, ...], set[str]]:
    """Return arrivals of deliveries at risk, recoveries, and the reached brokers."""
    windows = times_of_risk(history.faults)
    ways = DeliveryPaths(_list_passing(history), history.faults)
    arrivals: dict[RiskWindow, list[int | None]] = {window: [] for window in windows}
    at_risk = []
    reached = set()
    for pair in pairs:
        log, subscription = pair.source.log, pair.subscription
        if not subscription.started:
            continue
        near = [
            window
            for window in windows
            if ways.lead_through(
                window, log.name, log.broker, subscription.subscriber, subscription.broker
            )
        ]
        for publication in pair.owed:
            held = [window for window in near if is_certainly_sent_in(window, publication.sent_ns)]
            for window in held:
                arrivals[window].append(pair.arrived.get(publication.key))
            if held:
                at_risk.append(publication.key in pair.arrived)
                reached.add(subscription.broker)
    recoveries = tuple(_recovery(window, came) for window, came in arrivals.items())
    return at_risk, recoveries, reached


def _recovery(window: RiskWindow, arrivals: Sequence[int | None]) -> Recovery:
    came = [arrived_ns for arrived_ns in arrivals if arrived_ns is not None]
    after_ns = max(came) - window.to_ns if came and window.ended_by else None
    return Recovery(window, len(arrivals), len(came), after_ns)


def _doubts(
    history: History,
    sources: Sequence[Source],
    pairs: Sequence[Pair],
    recoveries: Sequence[Recovery],
) -> Iterator[str]:
    errors = {pair.names: history.clock_errors.get(pair.names, 0) for pair in pairs}
    for subscription in history.subscriptions:
        if not subscription.started:
            yield doubt("never_started", who=subscription.subscription)
    for log in history.publishers:
        if not log.closed:
            yield doubt("open_log", who=f"publisher {log.name}")
    for subscription in history.subscriptions:
        name = f"subscription {subscription.subscription}"
        if not subscription.closed:
            yield doubt("open_log", who=name)
        stamps = [row.received_ns + row.late_ns for row in subscription.delivered]
        yield from steps_back(name, stamps)
    for pair in pairs:
        name, source_name = pair.names
        if pair.has_untimed_notice():
            yield doubt("withheld_without_time", who=name, source=source_name)
        if pair.is_late(errors[pair.names]):
            yield doubt("late_start", who=name, source=source_name)
    for source in sources:
        yield from source.doubts()
        yield from source.undone(s.predicate for s in history.subscriptions if s.started)
        error_ns = history.timeline_errors.get(source.log.source, 0)
        if source.is_closed_before(history.measured_until_ns, error_ns):
            yield doubt("closed_early", source=source.log.source)
    if history.lanes == "topic" and not all(source.has_topics for source in sources):
        yield doubt("no_topic")
    if history.placed and history.order in STREAMS:
        without: Counter[str] = Counter()
        for pair in pairs:
            without[pair.names[0]] += pair.without_place()
        yield from (doubt("unplaced", who=name, n=n) for name, n in sorted(without.items()) if n)
    yield from verdict.doubts_about_faults(history.faults)
    if n := sum(pair.count_wrong_kind() for pair in pairs):
        yield doubt("kind", n=n)
    if n := sum(pair.count_too_early(errors[pair.names]) for pair in pairs):
        yield doubt("too_soon", n=n)
    yield from verdict.doubts_about_risks(history.faults, recoveries)
