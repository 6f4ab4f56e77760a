"""The filter of this broker: what its clients want, and where each subscription begins.

A subscription begins in a stream behind the last tick that was known of it at its pubend's broker
when this came to know of the subscription: everything behind that is held against it everywhere,
and what lies before may be silence for it although it is not. It starts when all pubends have
said where that is, so that none of its streams begins later than it has.

Paper: none; [GD02] §2 leaves subscriptions that come and go to others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.predicate import Predicate
from brokerd.protocols.gryphon.messages import Beginning
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.own_subscriptions import OwnSubscription
from brokerd.protocols.parts.durability import Durability

BEGINS: Final = "begins"
"""Per subscription that has started, where it begins in the streams of which brokers."""


@dataclass(slots=True)
class _Wanted:
    """A predicate of some subscriptions here; its number is that of the version it came in."""

    number: int
    subscriptions: int = 0


class OwnFilter:
    """What the clients of this broker want.

    Args:
        hosts: all other brokers with pubends.
        change: tells everybody which predicate has come and which have gone; the version's number.
        position: how far a stream was handed out here.
    """

    def __init__(
        self,
        hosts: Sequence[BrokerNumber],
        disk: Durability,
        *,
        change: Callable[[Predicate | None, Sequence[int]], int],
        position: Callable[[StreamId], int],
    ) -> None:
        self._hosts = tuple(hosts)
        self._disk = disk
        self._change = change
        self._position = position
        self._wanted: dict[Predicate, _Wanted] = {}
        self._added: dict[OwnSubscription, None] = {}
        self._waiting: dict[OwnSubscription, Callable[[], None]] = {}
        self._answers: dict[BrokerNumber, Beginning] = {}

    def add(self, local: OwnSubscription, then: Callable[[], None]) -> None:
        """A subscription is on disk: do `then` when it can start."""
        self._want(local)
        self._waiting[local] = then
        self._look_at(local)

    def recover(self, local: OwnSubscription, row: Sequence[Sequence[int]]) -> None:
        """A subscription had started in an earlier incarnation, and begins where it had begun."""
        self._want(local)
        self._begin(local, row)

    def ended(self, local: OwnSubscription) -> None:
        """A subscription is over; others hold events against it until that is on disk."""
        self._waiting.pop(local, None)

    def release(self, local: OwnSubscription) -> None:
        """It cannot come back."""
        if local not in self._added:
            return
        del self._added[local]
        wanted = self._wanted[local.predicate]
        wanted.subscriptions -= 1
        if not wanted.subscriptions:
            del self._wanted[local.predicate]
            self._change(None, (wanted.number,))

    def on_beginning(self, beginning: Beginning) -> None:
        """Some pubends hold what comes behind these ticks against a version of this filter."""
        self._answers[beginning.broker] = beginning
        for local in [*self._waiting]:
            self._look_at(local)

    def _want(self, local: OwnSubscription) -> None:
        self._added[local] = None
        wanted = self._wanted.get(local.predicate)
        if wanted is None:
            wanted = self._wanted[local.predicate] = _Wanted(self._change(local.predicate, ()))
        wanted.subscriptions += 1

    def _look_at(self, local: OwnSubscription) -> None:
        """Start a subscription if all have answered, and that is on disk."""
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

    def _begin(self, local: OwnSubscription, row: Sequence[Sequence[int]]) -> None:
        for broker, *ticks in row:
            for pubend, tick in enumerate(ticks):
                stream = StreamId(broker, pubend, 0)
                had = local.begins_after.get(stream, 0)
                local.begins_after[stream] = max(tick, had, self._position(stream))
