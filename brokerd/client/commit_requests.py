"""Subscriptions with positions kept by the broker: the commit requests, and their answers.

Paper: [DS03] §5.2 (JMS: a commit is a request to the SHB, which keeps CT(s)).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from brokerd.client.events import Redelivered
from brokerd.client.state import Positions
from brokerd.model.client_messages import CommitConsumed, Consuming, Deliveries
from brokerd.model.identity import StreamId


@dataclass(slots=True)
class _Consumer:
    """A subscription with positions kept by the broker.

    Attributes:
        uncommitted: number of publications that the application receives before it commits.
        requested, answered: numbers of requests.
        last: the last request, until answered.
        positions: committed position of each stream, as answered by the broker.
        is_known: True once the broker has reported the state of an earlier process.
        may_have: by stream, the number of next publications that an earlier process may have
            delivered, and up to which position.
    """

    uncommitted: int
    requested: int = 0
    answered: int = 0
    last: CommitConsumed | None = None
    positions: dict[StreamId, int] = field(default_factory=dict)
    is_known: bool = False
    may_have: dict[StreamId, tuple[int, int]] = field(default_factory=dict)


class CommitRequests:
    """The commit requests of one client, by subscription; the client stores none of them.

    Attributes:
        generation: generation of the client's attachment to its broker, as last reported.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._consumers: dict[int, _Consumer] = {}

    def begin(self, number: int, uncommitted: int) -> None:
        """Add a subscription with positions kept by the broker."""
        self._consumers[number] = _Consumer(uncommitted)

    def forget(self, number: int) -> None:
        """Remove a subscription that has ended."""
        self._consumers.pop(number, None)

    def uncommitted_limit(self, number: int) -> int:
        """Return the limit of uncommitted publications.

        0 if the subscription keeps its own token.
        """
        consumer = self._consumers.get(number)
        return consumer.uncommitted if consumer is not None else 0

    def on_consuming(self, message: Consuming) -> None:
        """Handle the broker's report of a subscription that it continues.

        Deliveries to this process are recorded; only those of an earlier process may be repeated.
        """
        self.generation = max(self.generation, message.generation)
        consumer = self._consumers.get(message.number)
        if consumer is None or consumer.is_known:
            return
        consumer.is_known = True
        for stream, last in message.delivered:
            consumer.may_have[stream] = message.uncommitted, last

    def mark_redeliveries(self, fresh: Iterable[Deliveries]) -> Iterator[Deliveries]:
        """Yield the same deliveries, with possible redeliveries marked."""
        for item in fresh:
            stream = item.run.source
            for number in item.subscriptions:
                consumer = self._consumers.get(number)
                left, last = consumer.may_have.get(stream, (0, 0)) if consumer else (0, 0)
                if consumer is None or not left:
                    continue
                again = item.run.select_through(
                    min(last, item.run.sequences[min(left, len(item.run)) - 1])
                )
                if again is None:
                    del consumer.may_have[stream]
                    continue
                consumer.may_have[stream] = left - len(again), last
                yield Redelivered(again, item.subscriptions)
                rest = item.run.after(again.last)
                if rest is not None:
                    yield Deliveries(rest, item.subscriptions)
                break
            else:
                yield item

    # ------------------------------------------------------------ commits

    def request(self, number: int, positions: Positions) -> CommitConsumed:
        """Return the request to send, now and after each attachment until answered.

        Args:
            positions: all positions; those that the broker has confirmed are left out.
        """
        consumer = self._consumers[number]
        consumer.requested += 1
        fresh = [each for each in positions if consumer.positions.get(each[0], 0) < each[1]]
        consumer.last = CommitConsumed(number, consumer.requested, tuple(fresh))
        return consumer.last

    def unanswered(self) -> list[CommitConsumed]:
        """Return the requests to repeat after the end of a session."""
        return [each.last for each in self._consumers.values() if each.last is not None]

    def on_committed(self, number: int, request: int) -> bool:
        """Return True if the broker may answer that request.

        A repeated request is answered twice.
        """
        consumer = self._consumers.get(number)
        if consumer is None or not 1 <= request <= consumer.requested:
            return consumer is None
        consumer.answered = max(consumer.answered, request)
        if consumer.last is not None and consumer.last.request <= request:
            consumer.positions |= dict(consumer.last.positions)
            consumer.last = None
        return True

    def is_committed(self, number: int, request: int) -> bool:
        """Return True if this request, or a later request, is answered."""
        return self._consumers[number].answered >= request
