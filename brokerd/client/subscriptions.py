"""The subscriptions of a client: requested, started, ending."""

from collections.abc import Iterator

from brokerd.client.commits import CommitRequests
from brokerd.client.events import SubscriptionEnded
from brokerd.client.state import ClientState, Revision
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import ClientMessage, Consume, Subscribe, Unsubscribe
from brokerd.model.predicate import NOTHING, Predicate


class Subscriptions:
    """The subscriptions of one client, by number, over all sessions.

    Args:
        revision: counts changes that must survive a restart.

    Attributes:
        predicates: the predicates of the present subscriptions.
        marks: subscriptions that are hidden from the application.
        started: subscriptions with a start that the broker has reported.
        ending: subscriptions with an end that the broker has not confirmed.
        last_number: highest number of all subscriptions ever made.
        commits: the commit requests of subscriptions with positions kept by the broker.
    """

    def __init__(self, revision: Revision) -> None:
        self.predicates: dict[int, Predicate] = {}
        self.marks: dict[int, None] = {}
        self.started: dict[int, None] = {}
        self.ending: dict[int, None] = {}
        self.last_number = 0
        self.commits = CommitRequests()
        self._revision = revision

    def __contains__(self, number: int) -> bool:
        return number in self.predicates

    def __len__(self) -> int:
        return len(self.predicates)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the subscriptions that are present now."""
        return iter(tuple(self.predicates))

    def subscribe(self, predicate: Predicate) -> int:
        """Add a subscription; return the number."""
        self.last_number += 1
        self.predicates[self.last_number] = predicate
        self._revision.current += 1
        return self.last_number

    def consume(self, predicate: Predicate, uncommitted: int) -> int:
        """Add a subscription with positions kept by the broker; return the number.

        Args:
            uncommitted: number of publications that the application receives before it commits.
        """
        self.last_number += 1
        self.predicates[self.last_number] = predicate
        self.commits.begin(self.last_number, uncommitted)
        return self.last_number

    def mark(self) -> int:
        """Add a subscription to nothing, hidden from the application; return the number."""
        number = self.subscribe(NOTHING)
        self.marks[number] = None
        return number

    def end(self, number: int) -> None:
        """End a subscription; the broker confirms the end later."""
        assert number in self.predicates, f"there is no subscription {number}"
        del self.predicates[number]
        self.started.pop(number, None)
        self.ending[number] = None
        self._revision.current += 1
        self.commits.forget(number)

    def request(self, number: int) -> Subscribe | Consume:
        """Return the message that requests a subscription."""
        predicate, uncommitted = self.predicates[number], self.commits.uncommitted_limit(number)
        if uncommitted:
            return Consume(number, predicate, uncommitted)
        return Subscribe(number, predicate)

    def requests(self) -> list[ClientMessage]:
        """Return the messages that are due after an attachment."""
        return [
            *(Unsubscribe(number) for number in self.ending),
            *(self.request(number) for number in self.predicates),
            *self.commits.unanswered(),
        ]

    def on_started(self, number: int) -> None:
        """Record that the broker has reported the start of a present subscription."""
        if number not in self.started:
            self.started[number] = None
            self._revision.current += 1

    def on_ended(self, number: int) -> SubscriptionEnded:
        """Record that the broker has confirmed the end of a subscription.

        Raises:
            RemoteProtocolError: no end was requested.
        """
        self.check(number)
        if self.ending.pop(number, number) is not None:
            raise RemoteProtocolError("broker", f"ended subscription {number} unasked")
        self._revision.current += 1
        return SubscriptionEnded(number)

    def check(self, number: int) -> None:
        """Check that a subscription with this number has ever been made.

        Raises:
            RemoteProtocolError: there was none.
        """
        if not 1 <= number <= self.last_number:
            raise RemoteProtocolError("broker", f"there is no subscription {number}")

    def restore(self, state: ClientState) -> None:
        """Restore the subscriptions of an earlier process."""
        self.last_number = state.last_number
        self.ending = dict.fromkeys(state.ending)
        for kept in state.subscriptions:
            self.predicates[kept.number] = kept.predicate
            if kept.is_started:
                self.started[kept.number] = None
