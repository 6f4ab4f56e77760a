"""The filter of this broker's clients, and the beginning of subscriptions in all streams.

A subscription begins in a stream behind the pubend's last tick at the arrival of the subscription
at the pubend's broker. All later events are matched with it at every broker; earlier events may
be silence for it. A subscription starts when all pubends have announced that tick, so that
no stream begins later than the subscription.

Paper: none; [GD02] §2 leaves subscriptions that come and go to others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.predicate import Predicate
from brokerd.protocols.gryphon.filters import FilterExchange
from brokerd.protocols.gryphon.messages import Beginning
from brokerd.protocols.gryphon.state import BEGINS
from brokerd.protocols.gryphon.stream import Streams
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.own_subscriptions import OwnSubscription
from brokerd.protocols.parts.event_machine import Durability


@dataclass(slots=True)
class _OwnPredicate:
    """A predicate of subscriptions here, with the number of the version that added it."""

    number: int
    subscriptions: int = 0


class OwnFilter:
    """The union of the predicates of this broker's clients.

    Args:
        hosts: all other brokers with pubends.
        exchange: announces added and removed predicates.
    """

    def __init__(
        self,
        hosts: Sequence[BrokerNumber],
        disk: Durability,
        exchange: FilterExchange,
        streams: Streams,
    ) -> None:
        self._hosts = tuple(hosts)
        self._disk = disk
        self._exchange = exchange
        self._streams = streams
        self._wanted: dict[Predicate, _OwnPredicate] = {}
        self._added: dict[OwnSubscription, None] = {}
        self._waiting: dict[OwnSubscription, Callable[[], None]] = {}
        self._answers: dict[BrokerNumber, Beginning] = {}

    def add(self, local: OwnSubscription, then: Callable[[], None]) -> None:
        """Add a subscription that is on disk; call `then` when it can start."""
        self._want(local)
        self._waiting[local] = then
        self._look_at(local)

    def recover(self, local: OwnSubscription, row: Sequence[Sequence[int]]) -> None:
        """Restore a subscription that started in an earlier incarnation, with its beginnings."""
        self._want(local)
        self._begin(local, row)

    def on_ended(self, local: OwnSubscription) -> None:
        """Stop waiting for the start of an ended subscription; `release` follows."""
        self._waiting.pop(local, None)

    def release(self, local: OwnSubscription) -> None:
        """Remove a subscription from the filter after its end is durable."""
        if local not in self._added:
            return
        del self._added[local]
        wanted = self._wanted[local.predicate]
        wanted.subscriptions -= 1
        if not wanted.subscriptions:
            del self._wanted[local.predicate]
            self._change(None, (wanted.number,))

    def on_beginning(self, beginning: Beginning) -> None:
        """Record ticks behind which pubends match events with a version of this filter."""
        self._answers[beginning.broker] = beginning
        for local in [*self._waiting]:
            self._look_at(local)

    def retire(self, host: BrokerNumber) -> None:
        """Wait for no pubend of a decommissioned broker."""
        self._hosts = tuple(each for each in self._hosts if each != host)
        for local in [*self._waiting]:
            self._look_at(local)

    def _want(self, local: OwnSubscription) -> None:
        self._added[local] = None
        wanted = self._wanted.get(local.predicate)
        if wanted is None:
            wanted = self._wanted[local.predicate] = _OwnPredicate(
                self._change(local.predicate, ())
            )
        wanted.subscriptions += 1

    def _look_at(self, local: OwnSubscription) -> None:
        """Start a subscription once the answers of all pubends' brokers are here and durable."""
        number = self._wanted[local.predicate].number
        answers = [self._answers.get(host) for host in self._hosts]
        known = [each for each in answers if each is not None and each.version.number >= number]
        if len(known) < len(self._hosts):
            return
        then = self._waiting.pop(local)
        row = [[each.broker, *each.ticks] for each in known]

        def start() -> None:
            if not local.is_over:
                self._begin(local, row)
                then()

        change = Change(BEGINS, f"{local.client}/{local.number}", row)
        self._disk.commit((change,), start)

    def _change(self, added: Predicate | None, removed: Sequence[int]) -> int:
        """Announce an added predicate and removed ones; return the number of the version."""
        number, messages = self._exchange.change(added, removed)
        self._disk.machine.effects += messages
        return number

    def _begin(self, local: OwnSubscription, row: Sequence[Sequence[int]]) -> None:
        for broker, *ticks in row:
            for pubend, tick in enumerate(ticks):
                stream = StreamId(broker, pubend, 0)
                had = local.begins_after.get(stream, 0)
                local.begins_after[stream] = max(tick, had, self._streams.position(stream))
