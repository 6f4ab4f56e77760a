"""The recovery of a restarted broker's subscriptions.

Queue and duplicate table are lost; upstream brokers still hold the unconfirmed publications
and send these again. The routing table is lost except for the subscriptions of own clients; every
neighbour with a newly active session sends the subscriptions that may be missing, then SyncEnd.
Until enough neighbours have done so, local publishers are held and new subscriptions wait.

If all brokers in reach are recovering, one continues alone after a wait, with the subscriptions
that its disk has. The disk of a broker that joined or accepted a loss has them only since the
broker's first recovery, which therefore needs more than any complete broker. A tag of its parent
covers a newcomer, too, so the parent suffices. After a loss no tag shows what is missing. So such a
broker waits until it has the subscriptions of all brokers: it requests a reply of each neighbour,
which requests replies of all its other neighbours before it replies.

Paper: [DFT11] §VIII-B lines 905-916. Deviates: the end is tied to a peer that is not itself
recovering; local publishers are held.
"""

from brokerd.errors import RemoteProtocolError, StorageCorrupt
from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.messages import BranchReply, BranchRequest, RecoveryFlag, SyncEnd
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

    Attributes:
        exchanges_branches: this broker, or a neighbour, may need the subscriptions of branches.
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
        self.exchanges_branches = False

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
        self.exchanges_branches = not self._is_complete
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

    def on_branch_request(self, peer: BrokerNumber, message: BranchRequest) -> None:
        """Request replies of all other neighbours, later ones than any reply before.

        Raises:
            RemoteProtocolError: the peer is no neighbour in the tree, or repeats a request.
        """
        node = self._check_neighbour(peer)
        if message.number <= node.branch_requested:
            raise RemoteProtocolError(peer, f"requests {message.number} of a branch again")
        node.branch_requested = message.number
        self.exchanges_branches = True
        for other in self._neighbours():
            if other is not node:
                other.branch_awaited = other.branch_complete = False

    def on_branch_reply(self, peer: BrokerNumber, message: BranchReply) -> None:
        """Record that this broker has the subscriptions of all brokers on the peer's side.

        Raises:
            RemoteProtocolError: the peer is no neighbour in the tree.
        """
        node = self._check_neighbour(peer)
        if node.branch_awaited and message.number == node.branch_requests:
            node.branch_complete = True

    def exchange_branches(self) -> None:
        """Send the replies that are due, behind all subscriptions, and the requests for others."""
        neighbours = self._neighbours()
        for node in neighbours:
            if node.branch_requested and all(
                other.branch_complete for other in neighbours if other is not node
            ):
                self._state.machine.send(node.broker, BranchReply(node.branch_requested))
                node.branch_requested = 0
        # A newcomer needs the branches once its parent has left.
        self.exchanges_branches = not self._is_complete or any(
            node.branch_requested for node in neighbours
        )
        for node in neighbours:
            is_needed = self._needs_branches() or any(
                other.branch_requested for other in neighbours if other is not node
            )
            if is_needed and node.ready and not node.branch_awaited:
                node.branch_requests += 1
                node.branch_awaited = True
                self._state.machine.send(node.broker, BranchRequest(node.branch_requests))

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
            rows = self._subscriptions.table.unconfirmed.values()
            if self._has_subscriptions() and all(row.accepted for row in rows):
                self._end()
                return True
        return False

    def _has_subscriptions(self) -> bool:
        """Return True if this broker has all subscriptions that started without a tag of it."""
        if self._needs_branches():
            return all(node.branch_complete for node in self._neighbours())
        helpers = self._sessions.nodes.values() if self._is_complete else [self._parent()]
        return not self._sessions.nodes or any(
            node is not None and node.ready and node.complete for node in helpers
        )

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
        if others_know or not (is_ready and self._is_complete):
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

    def _needs_branches(self) -> bool:
        """Return True if this broker recovers from the loss of its disk, or without a parent."""
        return (
            self._state.recovering
            and not self._is_complete
            and (bool(self._lineage) or self._parent() is None)
        )

    def _parent(self) -> Node | None:
        """Return the neighbour that this broker joined at; None after the neighbour has left."""
        joined_at = [node for node in self._neighbours() if node.broker < self._state.broker]
        return joined_at[0] if joined_at else None

    def _check_neighbour(self, peer: BrokerNumber) -> Node:
        if peer not in self._state.neighbourhood.neighbours[self._state.broker]:
            raise RemoteProtocolError(peer, "is no neighbour, and exchanges branches")
        return self._sessions.node(peer)

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
