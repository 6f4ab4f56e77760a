"""Disks of simulated brokers that are copied, and restored later as an operator does."""

from typing import Any

from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.sessions.messages import StateMark
from brokerd.simulator.checks.protocol_checks import planning_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.consumers import Redeliveries
from brokerd.simulator.world.state import ClusterState


class DiskRestoration:
    """The operator of the disks of a cluster.

    Attributes:
        accepted, refused: number of proved losses of state, by the operator's answer.
        restored: number of proved losses of state that other brokers make good.
    """

    def __init__(self, state: ClusterState, redeliveries: Redeliveries) -> None:
        self._state = state
        self._redeliveries = redeliveries
        self.accepted = self.refused = self.restored = 0
        self._newest: dict[BrokerNumber, tuple[Any, ...]] = {}

    def copy(self, broker: SimulatedBroker, *, is_empty: bool) -> tuple[Any, ...] | None:
        """Return a copy of a disk, for `restore`; None for an empty disk."""
        self._state.oracle.losses.copy_disk(broker.number, is_empty=is_empty)
        self._redeliveries.on_disk_copied(self._clients_of(broker), is_empty=is_empty)
        return None if is_empty else broker.disk.copy()

    def put_back(self, broker: SimulatedBroker, copy: tuple[Any, ...] | None) -> None:
        """Replace a disk by an older copy, or by an empty disk, and accept the loss."""
        self._state.oracle.losses.accept(broker.number)
        broker.disk.put_back(copy)
        self._accept(broker)

    def restore(
        self,
        broker: SimulatedBroker,
        copy: tuple[Any, ...] | None,
        witnessed: tuple[BrokerNumber, StateMark] | None,
    ) -> None:
        """Start on an older copy of the disk, or on an empty disk.

        A loss that a neighbour's mark proves ends the broker with the event `state_lost`. The
        operator then accepts the loss or, if the broker cannot announce the loss, puts the newest
        disk back. A loss that no neighbour can prove is no subject of this fault: the newest disk
        is put back.

        Args:
            witnessed: a neighbour, and the newest mark that it has; None if no neighbour has one.

        Raises:
            InvariantViolated: the broker does not detect a loss that the mark proves, or detects a
                loss that did not happen.
        """
        state, disk = self._state, broker.disk
        if witnessed is None:
            self._start(broker)
            return
        newest = disk.copy()
        disk.put_back(copy)
        disk.begin(broker.incarnation + 1)
        present = disk.ledger.present
        peer, mark = witnessed
        missing = max(mark.commits - present.commits, mark.groups - present.groups)
        cause = disk.ledger.loss(peer, mark)
        if (missing > 0 or copy is None) != (cause is not None):
            raise InvariantViolated(
                "state lost",
                f"{broker.name} starts on a disk without {missing} durable writes that its "
                f"neighbours prove, and detects: {cause}",
            )
        if cause is None:
            self._start(broker)
            return
        broker.recorded.append(("state_lost", {"cause": cause}))
        state.note(f"{broker.name} refuses to serve: {cause}")
        if self._can_restore(broker):
            self.restored += 1
            if not broker.restores:
                self._newest[broker.number] = newest
            state.note(f"restore {broker.name}")
            broker.restore_state()
            return
        if state.definition.keeps_loss(state.topology, state.parameters, broker.number):
            self.refused += 1
            disk.put_back(newest)
            self._start(broker)
            return
        self.accepted += 1
        state.oracle.losses.accept(broker.number)
        unacknowledged = state.oracle.losses.list_unacknowledged(broker.number)
        self._redeliveries.on_state_lost(self._clients_of(broker), unacknowledged)
        self._accept(broker)

    def _clients_of(self, broker: SimulatedBroker) -> list[ClientId]:
        clients = self._state.clients.values()
        return [each.name for each in clients if each.broker == broker.number]

    def _start(self, broker: SimulatedBroker) -> None:
        self._state.note(f"start {broker.name}")
        broker.start()

    def _accept(self, broker: SimulatedBroker) -> None:
        self._state.note(f"accept-loss {broker.name}")
        broker.accept_loss()
        for other in self._state.brokers:
            if other.restores and not self._can_restore(other):
                self._put_back_disk(other)

    def _can_restore(self, broker: SimulatedBroker) -> bool:
        """Return True if other brokers have the state that a broker has lost."""
        state = self._state
        where = state.topology, state.parameters, broker.number
        if not state.definition.restores(*where):
            return False
        return planning_of(state.protocol).can_restore(*where, state.brokers)

    def _put_back_disk(self, broker: SimulatedBroker) -> None:
        """Restore the newest disk of a broker after its replicas have lost the state, too."""
        if broker.alive:
            broker.kill()
        broker.disk.put_back(self._newest[broker.number])
        broker.lineage, broker.restores = broker.disk.ledger.lineage, False
        self._start(broker)
