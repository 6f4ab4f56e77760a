"""Withheld publications: closed gates of subscriptions, and notices of these publications.

A gate is a source broker behind a partition, from which a subscription receives nothing yet.
"""

from brokerd.model.client_messages import Notice
from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.simulator.checks.streams import StreamRegister, Subscription
from brokerd.simulator.checks.violations import Violations


class Gates:
    """The closed gates of all subscriptions. A gate never closes again after its opening."""

    def __init__(self, register: StreamRegister, violations: Violations) -> None:
        self._register = register
        self._violations = violations
        self._closed: dict[tuple[ClientId, int], frozenset[BrokerNumber]] = {}

    def closed_of(self, client: ClientId, number: int) -> frozenset[BrokerNumber]:
        """Return the source brokers behind closed gates of a subscription."""
        return self._closed.get((client, number), frozenset())

    def on_joined(self, client: ClientId, number: int, newcomer: BrokerNumber) -> None:
        """Record a new source broker behind a closed gate of a subscription."""
        subscription = self._register.subscriptions.get((client, number))
        if subscription is not None:
            subscription.closed |= {newcomer}
            self._closed[client, number] = subscription.closed

    def replace(self, client: ClientId, number: int, closed: frozenset[BrokerNumber]) -> None:
        """Replace the source brokers behind closed gates of a subscription."""
        self._closed[client, number] = closed
        subscription = self._register.subscriptions.get((client, number))
        if subscription is None:
            return  # ended at its client, not on this disk
        if subscription.started and not subscription.given_up:
            again = closed - subscription.closed
            if again and subscription.lost:
                self._close_lost(subscription, again)
            elif again:
                subject = f"{client}/{number} does not receive {sorted(again)}"
                self._violations.add("gate closed", subject)
            subscription.closed = closed
            self._register.open_streams(subscription)
        subscription.closed = closed

    def _close_lost(self, subscription: Subscription, closed: frozenset[BrokerNumber]) -> None:
        """Restart the streams of a lost subscription behind gates that are closed again."""
        for publisher in self._register.publishers.values():
            if self._register.homes.get(publisher.client, -1) in closed:
                self._register.stream(subscription, publisher).restart()

    def list_closed_sources(self) -> list[frozenset[BrokerNumber]]:
        """Return the source brokers behind closed gates, by subscription."""
        return [each.closed for each in self._register.subscriptions.values()]

    def describe_closed(self) -> list[str]:
        """Return the subscriptions with closed gates, in words."""
        return [
            f"{subscription.client}/{subscription.number} does not receive {sorted(closed)}"
            for subscription in self._register.subscriptions.values()
            if (closed := subscription.closed) and not subscription.given_up
        ]


class NoticeJudge:
    """The judge of notices.

    Attributes:
        announced: number of (publication, subscription) pairs that were announced as withheld.
    """

    def __init__(self, register: StreamRegister, violations: Violations) -> None:
        self._register = register
        self._violations = violations
        self._unnamed: dict[SourceId, list[tuple[ClientId, Notice]]] = {}
        self.announced = 0

    def judge(self, client: ClientId, notice: Notice) -> None:
        """Judge a notice of withheld publications."""
        publisher = self._register.by_source.get(notice.source)
        subject = f"{client}/{notice.subscription} receives the notice that {notice} is withheld"
        subscription = self._register.subscriptions.get((client, notice.subscription))
        if subscription is None:
            self._violations.add("ended", f"{subject} after its end")
            return
        if publisher is None:
            # The broker may count publications of a source that its client has not named yet.
            self._unnamed.setdefault(notice.source, []).append((client, notice))
            return
        if notice.ranges[-1][1] > len(publisher.contents):
            self._violations.add("phantom", f"{subject}, which was never published")
            return
        stream = self._register.stream(subscription, publisher)
        for first, last in notice.ranges:
            for sequence in range(first, last + 1):
                if sequence not in stream.ranks:
                    continue  # whole stretches are named, also publications that do not match
                self.announced += 1
                if stream.at is not None:
                    delivered = stream.matching[stream.at]
                    self._violations.add("gap", f"{subject} after {delivered} was delivered")
                elif stream.fence is not None and sequence > stream.fence:
                    self._violations.add(
                        "gap", f"{subject}, published while the source was reachable"
                    )
                elif sequence <= stream.withheld:
                    self._violations.add("duplicate", f"{subject} again")
                stream.withheld = sequence

    def judge_named(self, source: SourceId) -> None:
        """Judge the notices of a source that its client has named now."""
        for client, notice in self._unnamed.pop(source, ()):
            self.judge(client, notice)

    def judge_end(self) -> None:
        """Judge the notices of sources that no client has named."""
        for source, notices in self._unnamed.items():
            subject = f"{notices[0][0]} received {source}, which does not exist"
            self._violations.add("phantom", subject)
