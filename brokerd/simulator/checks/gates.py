"""Gates: source brokers behind a partition, from which a subscription receives nothing yet."""

from brokerd.model.identity import BrokerNumber, ClientId
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
