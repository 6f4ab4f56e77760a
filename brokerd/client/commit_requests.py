"""Subscriptions whose broker keeps how far they have come: what it was asked, and has answered.

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
    """One of them.

    Attributes:
        uncommitted: how many publications the application is given before it commits.
        asked, answered: numbers of requests.
        last: the last request, while it is not answered.
        known: how far the broker has each stream committed, as far as it has answered.
        is_known: the broker has said where an earlier process has left it.
        may_have: by stream, how many of the next publications the application may have had from
            an earlier process, and up to which position.
    """

    uncommitted: int
    asked: int = 0
    answered: int = 0
    last: CommitConsumed | None = None
    known: dict[StreamId, int] = field(default_factory=dict)
    is_known: bool = False
    may_have: dict[StreamId, tuple[int, int]] = field(default_factory=dict)


class CommitRequests:
    """Those of one client, by their numbers; of none of them it keeps anything.

    Attributes:
        generation: of the client's stay at its broker, as that said last.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._consumers: dict[int, _Consumer] = {}

    def begin(self, number: int, uncommitted: int) -> None:
        """A subscription is one whose broker keeps how far it has come."""
        self._consumers[number] = _Consumer(uncommitted)

    def forget(self, number: int) -> None:
        """A subscription is over."""
        self._consumers.pop(number, None)

    def uncommitted(self, number: int) -> int:
        """How many publications it leaves uncommitted at most; 0 where it keeps its own token."""
        consumer = self._consumers.get(number)
        return consumer.uncommitted if consumer is not None else 0

    def on_consuming(self, message: Consuming) -> None:
        """The broker goes on with a subscription.

        What this process has had it knows; only what one before it had comes again.
        """
        self.generation = max(self.generation, message.generation)
        consumer = self._consumers.get(message.number)
        if consumer is None or consumer.is_known:
            return
        consumer.is_known = True
        for stream, last in message.given:
            consumer.may_have[stream] = message.uncommitted, last

    def marked(self, fresh: Iterable[Deliveries]) -> Iterator[Deliveries]:
        """The same, with what the application may have had told apart."""
        for item in fresh:
            stream = item.run.source
            for number in item.subscriptions:
                consumer = self._consumers.get(number)
                left, last = consumer.may_have.get(stream, (0, 0)) if consumer else (0, 0)
                if consumer is None or not left:
                    continue
                again = item.run.up_to(min(last, item.run.sequences[min(left, len(item.run)) - 1]))
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

    def ask(self, number: int, positions: Positions) -> CommitConsumed:
        """What to ask the broker, now and after each attach until it has answered.

        Args:
            positions: all that there are; what the broker is known to have is left out.
        """
        consumer = self._consumers[number]
        consumer.asked += 1
        news = [each for each in positions if consumer.known.get(each[0], 0) < each[1]]
        consumer.last = CommitConsumed(number, consumer.asked, tuple(news))
        return consumer.last

    def unanswered(self) -> list[CommitConsumed]:
        """What to ask again: the answer, or the request, was lost with a session."""
        return [each.last for each in self._consumers.values() if each.last is not None]

    def on_committed(self, number: int, request: int) -> bool:
        """Whether the broker may answer that; a request that was sent twice is answered twice."""
        consumer = self._consumers.get(number)
        if consumer is None or not 1 <= request <= consumer.asked:
            return consumer is None
        consumer.answered = max(consumer.answered, request)
        if consumer.last is not None and consumer.last.request <= request:
            consumer.known |= dict(consumer.last.positions)
            consumer.last = None
        return True

    def is_committed(self, number: int, request: int) -> bool:
        """Whether this request, or a later one, is answered."""
        return self._consumers[number].answered >= request
