"""A synthetic history as events for the simulator's oracle, in order."""

from collections.abc import Mapping

from brokerd.model.identity import SourceId
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.definition import Order, Promises
from brokerd.simulator.checks.oracle import Oracle
from results.reference.history import REDELIVERED, History, PublisherLog, SubscriptionLog
from tests.helpers.histories import BROKERS


def observe(history: History) -> Oracle:
    """Return the oracle at the end of a history of one incarnation, all acknowledged and closed."""
    content = history.content
    promises = Promises(
        exactly_once=True,
        members_may_change=False,
        order=Order(history.order),
        gaps=history.promises.gaps,
        gap_age_ns=history.promises.gap_age_ns,
        gap_ages_ns=history.promises.gap_ages_ns,
        absence_gaps=history.promises.absence_gaps,
        redelivers=history.promises.redelivers,
    )
    clock = [0]
    oracle = Oracle(
        lambda blob: {**content.attributes(int(blob))}, False, promises, lambda: clock[0]
    )
    oracle.logged = True  # publications are acknowledged before anybody has them
    sources = {log.source: _source(log) for log in history.publishers}
    for log in history.publishers:
        oracle.on_connected(log.name, sources[log.source])
    for subscription in history.subscriptions:
        predicate = f"({subscription.predicate}) or fence = '{content.run_id}'"
        oracle.on_subscribed(subscription.subscription, 1, parse_predicate(predicate))
        oracle.on_started(subscription.subscription, 1)
    for log in history.publishers:
        for row in log.published:
            blob, payload = _content(history, log, row.sequence)
            clock[0] = row.sent_ns
            oracle.published(log.name, row.sequence, blob, payload)
            oracle.on_acknowledged(log.name, row.sequence)
        again = oracle.register.publisher(log.name).published_again
        again |= dict.fromkeys(sorted(sequence for _, sequence in log.sent_again))
    for change in history.promises.retentions:
        clock[0] = change.since_ns
        oracle.on_retention(
            BROKERS.index(change.broker), change.stream, change.streams, change.reason,
            change.gap_age_ns,
        )  # fmt: skip
    for subscription in history.subscriptions:
        _play(oracle, history, subscription, sources, clock)
    oracle.judge_end()
    return oracle


def _source(log: PublisherLog) -> SourceId:
    return SourceId(BROKERS.index(log.broker), int(log.source.rpartition("/")[2]), 0)


def _content(history: History, log: PublisherLog, sequence: int) -> tuple[bytes, bytes]:
    """Return the attribute set as blob, and the digest as payload."""
    row = log.published[sequence - 1]
    fence = row.attribute_set == history.content.fence_set
    publisher = history.content.publishers[log.name]
    digest = history.content.digest(publisher, *row.key, fence=fence)
    return str(row.attribute_set).encode(), str(digest).encode()


def _play(
    oracle: Oracle,
    history: History,
    log: SubscriptionLog,
    sources: Mapping[str, SourceId],
    clock: list[int],
) -> None:
    logs = {publisher.source: publisher for publisher in history.publishers}
    end = len(log.delivered)
    for place in range(end + 1):
        for commit in log.commits:
            if min(commit.place, end) == place:
                source = sources[commit.source]
                oracle.on_committed(log.subscription, 1, source, commit.first, commit.last)
        for gap in log.gaps:
            if min(gap.place, end) == place:
                source = sources[gap.source]
                clock[0] = gap.received_ns
                since_ns = history.promises.losses_from_ns
                oracle.losses.are_accepted = since_ns is not None and since_ns <= gap.received_ns
                oracle.losses.are_known = False
                _explain(oracle, log, logs[gap.source], sources[gap.source], gap.absent_until_ns)
                oracle.on_gap(log.subscription, 1, source, gap.first, gap.last, gap.reason)
        for row in log.delivered[place : place + 1]:
            blob, _ = _content(history, logs[row.source], row.sequence)
            oracle.on_delivered(
                log.subscription, 1, sources[row.source], row.sequence, blob,
                str(row.digest).encode(), again=row.kind == REDELIVERED,
            )  # fmt: skip


def _explain(
    oracle: Oracle, log: SubscriptionLog, published: PublisherLog, source: SourceId,
    until_ns: int | None,
) -> None:  # fmt: skip
    """Record an absence that explains the publications until a time, if there was an absence."""
    sent = [row.sequence for row in published.published if row.sent_ns <= (until_ns or 0)]
    stream = oracle.register.stream(
        oracle.register.subscriptions[log.subscription, 1], oracle.register.by_source[source]
    )
    stream.absent = max(sent, default=0)
