"""The deliveries of a δ-tree broker's clients, with notices and positions."""

from collections.abc import Iterable
from typing import TypeVar

from brokerd.model.client_messages import Notice
from brokerd.model.identity import PartitionId, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.state import (
    POSITIONS,
    LocalSubscription,
    State,
    Withheld,
    position_key,
)
from brokerd.protocols.interface import Change, Commit
from brokerd.protocols.parts.clients.outlets import Delivery
from brokerd.protocols.parts.clients.windows import DeliveryWindows

FLUSH_POSITIONS = "flush positions"


FLUSH_INTERVAL_NS = 100_000_000


Entry = TypeVar("Entry")


class WithholdingWindows(DeliveryWindows[Entry, LocalSubscription]):
    """The deliveries of all clients of a broker."""

    def __init__(self, state: State) -> None:
        super().__init__(state.machine, state.parameters.client_window, state.counters)
        self._state = state
        self._positions: dict[tuple[LocalSubscription, SourceId], int] = {}

    def withhold(
        self,
        local: LocalSubscription,
        run: PublicationRun,
        partition: PartitionId,
        entries: tuple[Entry, ...],
    ) -> None:
        """Queue a notice that the run and all earlier publications are withheld.

        A notice from before a restart may be repeated. The repetition covers the whole range, so
        that the client's answer covers the range; the client ignores the repeated part.
        """
        fresh = local.withhold(run.source, run.last, partition)
        first = run.first if fresh is None else min(run.first, fresh[0])
        notice = Notice(local.number, run.source, ((first, run.last),), partition)
        self.deliver(local.client, run, (local,), entries, notice)

    def queue_notice(self, local: LocalSubscription, source: SourceId, withheld: Withheld) -> None:
        """Queue a notice of publications that need not have arrived here."""
        first, last, partition = withheld
        notice = Notice(local.number, source, ((first, last),), partition)
        self.announce(local.client, (local,), source, last, notice)

    def flush_positions(self) -> None:
        """Commit the positions since the last call, lazily."""
        changes = [
            Change(POSITIONS, position_key(local.client, local.number, source), last)
            for (local, source), last in self._positions.items()
            if not local.is_over
        ]
        self._positions.clear()
        if changes:
            self._state.machine.emit(Commit(tuple(changes), None))

    def _advance(self, finished: Iterable[Delivery[Entry, LocalSubscription]]) -> None:
        for delivery in finished:
            source, last = delivery.remainder.source, delivery.remainder.last
            for local in delivery.subscriptions:
                if local.advance(source, last):
                    self._positions[local, source] = last
        key = (FLUSH_POSITIONS, -1)
        if key not in self._state.deadlines:
            self._state.deadlines.set(key, self._state.machine.now_ns + FLUSH_INTERVAL_NS)
