"""The sessions with brokers of the neighbourhood: activity and bypassing.

A session is *active* when no broker strictly between has one; messages travel over active
sessions only. When a broker cannot be reached, its neighbours on the far side are dialled, up to
δ + 1 links away; a broker in its first attempt counts as neither reachable nor unreachable.

Paper: [DFT11] §II (active sessions), §IV (bypass).
"""

from dataclasses import dataclass
from enum import Enum

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.messages import Path
from brokerd.protocols.delta_tree.state import State
from brokerd.protocols.interface import OpenSession
from brokerd.protocols.parts.neighbours import next_wait_ns

RETRY = "retry"


class Reach(Enum):
    """The reachability of another broker from here."""

    NOT_WANTED = "not wanted"  # something nearer on the path has a session, or no verdict yet
    TRYING = "trying"
    UNREACHABLE = "unreachable"
    ESTABLISHED = "established"


@dataclass(slots=True, eq=False)
class Node:
    """Another broker of the neighbourhood, seen from here.

    Attributes:
        path: from here to the broker, both included.
        session: the current session's number; 0 without one.
        ready: the broker's Summary has arrived on that session.
        activated: the session for which this end has completed its activation.
        synchronised: the broker's SyncEnd has arrived on that session.
        complete: the broker was not recovering when it sent SyncEnd.
        recovering: the broker's last announcement about itself.
        branch_requested: the number of the broker's BranchRequest on that session without a reply;
            0 without one.
        branch_requests: the number of the last BranchRequest to the broker.
        branch_awaited: that request was sent on that session.
        branch_complete: the reply to that request has arrived.
        attempting: an attempt to open a session is pending.
        wait_ns: the wait after the last attempt; 0 since the broker was reached.
        partition: number of the broker's partition; 0 unless unreachable.
        expected: the broker is joining: an immediate attempt is useless.
        met: the broker has had a session, or is not joining. Others may still lack a joining
            broker.
    """

    broker: BrokerNumber
    path: Path
    reach: Reach = Reach.NOT_WANTED
    session: int = 0
    ready: bool = False
    active: bool = False
    activated: int = 0
    synchronised: bool = False
    complete: bool = False
    recovering: bool = False
    branch_requested: int = 0
    branch_requests: int = 0
    branch_awaited: bool = False
    branch_complete: bool = False
    attempting: bool = False
    wait_ns: int = 0
    partition: int = 0
    expected: bool = False
    met: bool = True

    def forget_branch(self) -> None:
        """Forget the requests and the reply of a session that has ended."""
        self.branch_requested = 0
        self.branch_awaited = self.branch_complete = False


class Sessions:
    """The sessions with brokers of the neighbourhood.

    Attributes:
        nodes: the brokers, nearest first.
        unreachable: the unreachable nodes at the last `refresh`.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._partitions = 0
        self._partitions_begun: list[Node] = []
        self._partitions_ended: list[int] = []
        self.nodes = {
            broker: Node(broker, path) for broker, path in state.neighbourhood.paths.items()
        }
        self.unreachable: list[Node] = []

    def adjust_to_neighbourhood(self) -> None:
        """Add joined leaves, and remove departed ones."""
        paths = self._state.neighbourhood.paths
        left = [node for broker, node in self.nodes.items() if broker not in paths]
        for node in left:
            self._state.deadlines.cancel((RETRY, node.broker))
            if node.partition:
                self._partitions_ended.append(node.partition)
        self.nodes = {
            broker: self.nodes.get(broker) or Node(broker, path, expected=True, met=False)
            for broker, path in paths.items()
        }

    def has_broker(self, peer: BrokerNumber) -> bool:
        """Return True if the broker is (still) in the neighbourhood."""
        return peer in self.nodes

    def node(self, peer: BrokerNumber) -> Node:
        """Return the node of a broker in the neighbourhood."""
        assert peer in self.nodes, f"broker {peer} is outside the neighbourhood"
        return self.nodes[peer]

    def reach_of(self, peer: BrokerNumber) -> Reach:
        """Return the reachability of a broker; NOT_WANTED outside the neighbourhood."""
        node = self.nodes.get(peer)
        return node.reach if node is not None else Reach.NOT_WANTED

    def current(self, peer: BrokerNumber) -> int:
        """Return the session with `peer`, 0 without one, or if the broker has left the tree."""
        node = self.nodes.get(peer)
        return node.session if node is not None else 0

    def on_established(self, peer: BrokerNumber, session: int) -> None:
        """Record a session; it carries nothing before the peer's Summary has arrived."""
        node = self.node(peer)
        assert node.reach is not Reach.ESTABLISHED, f"second session with broker {peer}"
        node.reach, node.session, node.met = Reach.ESTABLISHED, session, True
        node.ready = node.synchronised = node.complete = node.attempting = False
        node.forget_branch()
        self._state.deadlines.cancel((RETRY, peer))

    def on_summary(self, peer: BrokerNumber, recovering: bool) -> None:
        """Record the arrival of the peer's Summary: the session is usable."""
        node = self.node(peer)
        node.ready, node.recovering, node.wait_ns = True, recovering, 0

    def on_lost(self, peer: BrokerNumber, session: int) -> None:
        """Record the end of a session. It never returns: a new one is a new instance."""
        node = self.node(peer)
        assert node.session == session, f"session {session} with {peer} is not {node.session}"
        node.reach, node.session = Reach.UNREACHABLE, 0
        node.ready = node.synchronised = node.complete = False
        node.forget_branch()

    def open_failed(self, peer: BrokerNumber) -> bool:
        """Record a failed attempt; return True if the peer becomes unreachable by it."""
        node = self.node(peer)
        node.attempting = False
        if node.reach is Reach.UNREACHABLE and (RETRY, peer) not in self._state.deadlines:
            self._retry_later(node)
        if node.reach is not Reach.TRYING:
            return False
        node.reach = Reach.UNREACHABLE
        return True

    def retry(self, peer: BrokerNumber) -> None:
        """Dial a peer after the wait."""
        if self.nodes[peer].reach in (Reach.UNREACHABLE, Reach.TRYING):
            self._open(self.nodes[peer])

    def retry_on_change(self) -> None:
        """Dial unreachable brokers at once if their next attempt is far off, after a peer's return.

        The cause of their loss may be gone for all of them. Near attempts happen anyway:
        after the crash of a single broker, no attempt is made twice.
        """
        parameters, deadlines = self._state.parameters, self._state.deadlines
        soon_ns = self._state.machine.now_ns + parameters.retry_first_ns
        for node in self.unreachable:
            key = (RETRY, node.broker)
            due_ns = deadlines.instant(key)
            if node.reach is Reach.UNREACHABLE and due_ns is not None and due_ns > soon_ns:
                deadlines.cancel(key)
                node.wait_ns = 0
                self._open(node)

    def refresh(self) -> list[Node]:
        """Update the wanted and the active sessions; dial newly wanted brokers.

        Returns:
            The nodes with a session that became active and ready, nearest first.

        Paper: [DFT11] §II lines 284-304, §IV lines 356-361.
        """
        newly_active: list[Node] = []
        self.unreachable = []
        exposed: dict[BrokerNumber, bool] = {}  # every broker strictly between is unreachable
        shadowed: dict[BrokerNumber, bool] = {}  # a broker strictly between has a session
        for node in self.nodes.values():
            before = self.nodes.get(node.path[-2])
            if before is None:
                exposed[node.broker], shadowed[node.broker] = True, False
            else:
                exposed[node.broker] = exposed[before.broker] and before.reach is Reach.UNREACHABLE
                shadowed[node.broker] = shadowed[before.broker] or before.reach is Reach.ESTABLISHED
            self._adjust_reach(node, wanted=exposed[node.broker])
            self._number_partition(node)
            node.active = node.reach is Reach.ESTABLISHED and not shadowed[node.broker]
            if not node.active:
                node.activated = 0
            elif node.ready and node.activated != node.session:
                node.activated = node.session
                newly_active.append(node)
        return newly_active

    def take_partition_changes(self) -> tuple[list[Node], list[int]]:
        """Return newly unreachable nodes and ended partitions since the last call."""
        begun, ended = self._partitions_begun, self._partitions_ended
        self._partitions_begun, self._partitions_ended = [], []
        return begun, ended

    def ready(self) -> list[Node]:
        """Return the nodes with a usable session, active or not, nearest first."""
        return [node for node in self.nodes.values() if node.ready]

    def usable(self) -> list[Node]:
        """Return the nodes with an active and ready session, nearest first."""
        return [node for node in self.nodes.values() if node.active and node.ready]

    def next_hop(self, path: Path) -> Node | None:
        """Return the next hop along `path` (from here outward); None means wait.

        Paper: [DFT11] §VI lines 646-652.
        """
        for broker in path[1 : self._state.neighbourhood.radius + 1]:
            node = self.nodes[broker]
            if node.reach is Reach.ESTABLISHED:
                return node if node.ready else None
        return None

    def _adjust_reach(self, node: Node, *, wanted: bool) -> None:
        if node.reach is Reach.ESTABLISHED:
            return
        key = (RETRY, node.broker)
        if not wanted:
            node.reach = Reach.NOT_WANTED
            self._state.deadlines.cancel(key)
        elif node.reach is Reach.NOT_WANTED:
            node.reach = Reach.TRYING
            if node.expected:
                node.expected = False
                self._retry_later(node)
            else:
                self._open(node)
        elif node.attempting or key in self._state.deadlines:
            return
        elif node.reach is Reach.UNREACHABLE:
            self._retry_later(node)

    def _number_partition(self, node: Node) -> None:
        """Assign a partition of its own to each newly unreachable broker.

        Paper: [DFT11] §III lines 337-346.
        """
        if node.reach is not Reach.UNREACHABLE:
            if node.partition:
                self._partitions_ended.append(node.partition)
                node.partition = 0
            return
        self.unreachable.append(node)
        if not node.partition:
            self._partitions += 1
            node.partition = self._partitions
            if node.met:
                self._partitions_begun.append(node)

    def _open(self, node: Node) -> None:
        node.attempting = True
        self._state.machine.emit(OpenSession(node.broker))

    def _retry_later(self, node: Node) -> None:
        node.wait_ns = next_wait_ns(node.wait_ns, self._state.parameters)
        self._state.deadlines.set((RETRY, node.broker), self._state.machine.now_ns + node.wait_ns)
