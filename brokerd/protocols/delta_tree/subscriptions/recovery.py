"""How a restarted broker gets the subscriptions it has lost, and when it is whole again.

Its queue and duplicate table are gone; upstream brokers still hold what it had not confirmed
and send it again. Its routing table is gone but for its own clients' subscriptions; every
neighbour whose session becomes active sends what it may lack, then says SyncEnd. Until enough
of them have, local publishers are held and new subscriptions wait.

Paper: [DFT11] §VIII-B lines 905-916. Deviates: the end is tied to a peer that is not itself
recovering; local publishers are held.
"""

from collections.abc import Callable

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.broker.state import State
from brokerd.protocols.delta_tree.messages import RecoveryFlag, SyncEnd
from brokerd.protocols.delta_tree.sessions.sessions import Reach, Sessions
from brokerd.protocols.delta_tree.subscriptions.spreading import Subscriptions

COLD_START = "cold start"


class Recovery:
    """The recovery of one broker; `on_end` is called when it is over, if there is one.

    It is not over before `may_end` says so.
    """

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        subscriptions: Subscriptions,
        may_end: Callable[[], bool],
        on_end: Callable[[], None],
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._may_end = may_end
        self._on_end = on_end

    def begin(self) -> None:
        """This broker has run before: what it knew in memory is gone."""
        self._state.restarted = True
        self._state.recovering = True
        self._wait_for_others()
        self.end_if_complete()

    def on_sync_end(self, peer: BrokerNumber, message: SyncEnd) -> None:
        """The peer, for which the session is active, has sent all it had to."""
        node = self._sessions.node(peer)
        node.synchronised, node.recovering = True, message.recovering
        node.complete = not message.recovering
        self.end_if_complete()

    def on_recovery_flag(self, peer: BrokerNumber, message: RecoveryFlag) -> None:
        """The peer is (no longer) recovering; it has not sent subscriptions."""
        self._sessions.node(peer).recovering = message.recovering
        self.end_if_complete()

    def end_if_complete(self) -> None:
        """End the recovery once the neighbours have told what they know.

        A peer that recovers too may know no more than this broker: one must have known
        everything when it sent its SyncEnd, which is sent on active sessions only. That a peer
        has recovered since does not help, unless it has sent what it learnt.
        """
        if self._state.recovering and self._may_end() and self._neighbours_have_told():
            helped = any(node.ready and node.complete for node in self._sessions.nodes.values())
            if helped or not self._sessions.nodes:
                self._end()

    def cold_start(self) -> None:
        """Nobody around was there before: go on with what there is, after a while.

        The promise is void for subscriptions that started before: which publications of theirs
        were lost nobody knows.
        """
        if not self._state.recovering:
            return
        others_know = any(
            node.ready and not node.recovering for node in self._sessions.nodes.values()
        )
        if others_know or not (self._may_end() and self._neighbours_have_told()):
            self._wait_for_others()
            return
        self._state.machine.record("cold_start", subscriptions=len(self._subscriptions))
        self._end()

    def _neighbours_have_told(self) -> bool:
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
        self._on_end()
