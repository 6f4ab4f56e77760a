"""The recovery of a restarted broker's subscriptions.

Queue and duplicate table are lost; upstream brokers still hold the unconfirmed publications
and send these again. The routing table is lost except for the subscriptions of own clients; every
neighbour with a newly active session sends the subscriptions that may be missing, then SyncEnd.
Until enough neighbours have done so, local publishers are held and new subscriptions wait.

If all brokers in reach are recovering, one continues alone after a wait, with the subscriptions
that its disk has. The disk of a broker that joined or accepted a loss has them only since the
broker's first recovery. Before that the broker continues alone only if no disk of the tree has
them, which `IncompleteBranch` establishes from the leaves on: otherwise its publications could miss
subscriptions that started long before.

Paper: [DFT11] §VIII-B lines 905-916. Deviates: the end is tied to a peer that is not itself
recovering; local publishers are held.
"""

from brokerd.errors import RemoteProtocolError, StorageCorrupt
from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.messages import IncompleteBranch, RecoveryFlag, SyncEnd
from brokerd.protocols.delta_tree.sessions import Node, Reach, Sessions
from brokerd.protocols.delta_tree.state import Rows, State
from brokerd.protocols.delta_tree.subscriptions import Subscriptions
from brokerd.protocols.interface import Change, Commit

COLD_START = "cold start"


RECOVERY = "recovery"
"""The table with the row of a first recovery."""


COMPLETE = "complete"
"""The key of that row; the value is the lineage of the state folder at the time."""


class Recovery:
    """The recovery of a broker.

    Every method that may end the recovery returns True at the end. The recovery does not end before
    the log of publications is read.
    """

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        subscriptions: Subscriptions,
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._lineage = 0
        self._is_complete = True

    def begin(self, recovered: Rows, lineage: int) -> bool:
        """Begin the recovery of a broker that joins, or has run before, with an empty memory.

        Args:
            lineage: see Started.

        Raises:
            StorageCorrupt: a row is not one that this broker writes.
        """
        self._lineage = lineage
        has_joined = self._state.broker >= self._state.newcomers
        self._is_complete = not (has_joined or lineage) or _read_lineage(recovered) == lineage
        self._state.recovering = True
        self._wait_for_others()
        return self.end_if_complete()

    def on_sync_end(self, peer: BrokerNumber, message: SyncEnd) -> bool:
        """Record that the peer, for which the session is active, has sent all subscriptions."""
        node = self._sessions.node(peer)
        node.synchronised, node.recovering = True, message.recovering
        node.complete = not message.recovering
        return self.end_if_complete()

    def on_recovery_flag(self, peer: BrokerNumber, message: RecoveryFlag) -> bool:
        """Record whether the peer is recovering; it has not sent subscriptions."""
        self._sessions.node(peer).recovering = message.recovering
        return self.end_if_complete()

    def on_incomplete_branch(self, peer: BrokerNumber, _message: IncompleteBranch) -> None:
        """Record that no disk on the peer's side of the link has all subscriptions.

        Raises:
            RemoteProtocolError: the peer is no neighbour in the tree.
        """
        if peer not in self._state.neighbourhood.neighbours[self._state.broker]:
            raise RemoteProtocolError(peer, "is no neighbour, and announces a branch")
        self._sessions.node(peer).branch_incomplete = True

    def announce_incomplete(self) -> None:
        """Announce to recovering neighbours that no disk on this side of their link is complete.

        The announcement follows all subscriptions that this broker has for the neighbour, and
        stays true: a disk becomes complete only by a complete broker, or once none is.
        """
        if self._is_complete:
            return
        neighbours = self._neighbours()
        for node in neighbours:
            if (
                node.ready
                and node.recovering
                and node.activated == node.session
                and node.branch_announced != node.session
                and all(other.branch_incomplete for other in neighbours if other is not node)
            ):
                node.branch_announced = node.session
                self._state.machine.send(node.broker, IncompleteBranch())

    def end_if_complete(self) -> bool:
        """End the recovery once the neighbours have sent their subscriptions.

        A peer that recovers too may have no more than this broker: at least one peer must have been
        complete when sending SyncEnd, which is sent on active sessions only. A peer that
        has recovered since does not count, unless the peer has sent the new subscriptions. A broker
        that accepts late must route by all of its subscriptions, too.
        """
        if (
            self._state.recovering
            and self._state.log_is_read
            and self._have_neighbours_synchronised()
        ):
            helped = any(node.ready and node.complete for node in self._sessions.nodes.values())
            rows = self._subscriptions.table.unconfirmed.values()
            if (helped or not self._sessions.nodes) and all(row.accepted for row in rows):
                self._end()
                return True
        return False

    def cold_start(self) -> bool:
        """Continue with the present subscriptions if no complete broker is in reach, after a wait.

        The promise is void for subscriptions that started before: their lost publications are
        unknown.
        """
        if not self._state.recovering:
            return False
        others_know = any(
            node.ready and not node.recovering for node in self._sessions.nodes.values()
        )
        is_ready = self._state.log_is_read and self._have_neighbours_synchronised()
        if others_know or not (is_ready and self._can_continue_alone()):
            self._wait_for_others()
            return False
        self._state.machine.record("cold_start", subscriptions=len(self._subscriptions))
        self._end()
        return True

    def _neighbours(self) -> list[Node]:
        neighbours = self._state.neighbourhood.neighbours[self._state.broker]
        return [self._sessions.nodes[broker] for broker in neighbours]

    def _have_neighbours_synchronised(self) -> bool:
        return all(
            node.synchronised if node.ready else node.reach is Reach.UNREACHABLE
            for node in self._neighbours()
        )

    def _can_continue_alone(self) -> bool:
        return self._is_complete or all(node.branch_incomplete for node in self._neighbours())

    def _wait_for_others(self) -> None:
        after_ns = self._state.parameters.cold_start_after_ns
        self._state.deadlines.set((COLD_START, -1), self._state.machine.now_ns + after_ns)

    def _end(self) -> None:
        self._state.recovering = False
        self._state.deadlines.cancel((COLD_START, -1))
        if not self._is_complete:
            self._is_complete = True
            row = Change(RECOVERY, COMPLETE, self._lineage)
            rows = self._subscriptions.list_unwritten()
            self._state.machine.emit(Commit((*rows, row), None))
        self._state.machine.record("recovered", subscriptions=len(self._subscriptions))
        for node in self._sessions.usable():
            self._subscriptions.synchronise(node)
        for node in self._sessions.nodes.values():
            if node.active and node.ready:
                self._state.machine.send(node.broker, SyncEnd(recovering=False))
            elif node.ready:
                self._state.machine.send(node.broker, RecoveryFlag(recovering=False))


def _read_lineage(recovered: Rows) -> int:
    """Return the lineage at the end of the first recovery; -1 before that.

    Raises:
        StorageCorrupt: the row is not one that this broker writes.
    """
    found = recovered.get(RECOVERY, {}).get(COMPLETE, -1)
    if not isinstance(found, int):
        raise StorageCorrupt(f"table {RECOVERY}, row {COMPLETE!r}: {found!r} is no lineage")
    return found
