"""The recovery of a restarted broker's subscriptions.

Queue and duplicate table are lost; upstream brokers still hold the unconfirmed publications
and send these again. The routing table is lost except for the subscriptions of own clients; every
neighbour with a newly active session sends the subscriptions that may be missing, then SyncEnd.
Until enough neighbours have done so, local publishers are held and new subscriptions wait.

Paper: [DFT11] §VIII-B lines 905-916. Deviates: the end is tied to a peer that is not itself
recovering; local publishers are held.
"""

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.messages import RecoveryFlag, SyncEnd
from brokerd.protocols.delta_tree.sessions import Reach, Sessions
from brokerd.protocols.delta_tree.state import State
from brokerd.protocols.delta_tree.subscriptions import Subscriptions

COLD_START = "cold start"


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

    def begin(self) -> bool:
        """Begin the recovery of a broker that has run before, with an empty memory."""
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
        if others_know or not (self._state.log_is_read and self._have_neighbours_synchronised()):
            self._wait_for_others()
            return False
        self._state.machine.record("cold_start", subscriptions=len(self._subscriptions))
        self._end()
        return True

    def _have_neighbours_synchronised(self) -> bool:
        neighbours = [
            self._sessions.nodes[broker]
            for broker in self._state.neighbourhood.neighbours[self._state.broker]
        ]
        return all(
            node.synchronised if node.ready else node.reach is Reach.UNREACHABLE
            for node in neighbours
        )

    def _wait_for_others(self) -> None:
        after_ns = self._state.parameters.cold_start_after_ns
        self._state.deadlines.set((COLD_START, -1), self._state.machine.now_ns + after_ns)

    def _end(self) -> None:
        self._state.recovering = False
        self._state.deadlines.cancel((COLD_START, -1))
        self._state.machine.record("recovered", subscriptions=len(self._subscriptions))
        for node in self._sessions.usable():
            self._subscriptions.synchronise(node)
        for node in self._sessions.nodes.values():
            if node.active and node.ready:
                self._state.machine.send(node.broker, SyncEnd(recovering=False))
            elif node.ready:
                self._state.machine.send(node.broker, RecoveryFlag(recovering=False))
