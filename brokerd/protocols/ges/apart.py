"""The detection of a part of a cluster that is partitioned, and the redirection of its clients.

A cluster is partitioned when its own links do not connect it any more. One part has the member
with the lowest address; with `partition_policy = "induce_roam"` all other parts take no new
clients after a while and redirect their own, until that member is reachable again; with
`"readdress"` every other part becomes a unit of its own (`readdressing`). The topology defines the
members of the cluster, so that all brokers agree on them. From inside, a member that is down looks
like a member that is cut off. So a part refuses clients for `purge_ns` only. Members still
unreachable then count as failed for ever, and the lowest of the remaining members decides: a
member that never returns denies no client service.

Paper: [GES] §4 (units may vanish). The policy is of our design (A3.9), where the last full view
defines the members of the cluster.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.protocols.ges.parameters import READDRESS, STAY, HintParameters
from brokerd.protocols.ges.units import Place
from brokerd.protocols.ges.view import GraphView
from brokerd.protocols.interface import RedirectClient
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

APART: Final = "apart"
"""Purpose of the deadline at which the rest of the cluster has been out of reach for long."""

MOST_DOUBLINGS: Final = 6
"""The most doublings of the wait of a broker that leaves and returns repeatedly."""

REFUSAL: Final = "this broker is cut off from the rest of its cluster; try another one, or later"


class Fragment:
    """The part of its cluster that one broker is in.

    Args:
        reaches: returns True if a neighbour has a session.
        clients: returns the clients of this broker.
        refuse: refuses new clients for a reason; "" accepts them again.
        leave: makes the brokers of this part, by address, a unit of their own.

    Attributes:
        is_closed: True while this part takes no new clients.
        members: the members of the cluster by address, from the topology.
        counters: for statistics.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        place: Place,
        view: GraphView,
        machine: EventMachine,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: HintParameters,
        wait_ns: int,
        reaches: Callable[[BrokerNumber], bool],
        clients: Callable[[], Sequence[ClientId]],
        refuse: Callable[[str], None],
        leave: Callable[[Collection[Address]], None],
    ) -> None:
        self.is_closed = False
        self.counters = {"clients_sent_out": 0, "came_apart": 0, "members_failed": 0}
        self._policy = parameters.partition_policy
        self._home = place.address
        self._stays_until_ns = 0
        self._returns = 0
        self._deadline = APART, broker
        self._broker = broker
        self._place = place
        self._view = view
        self._machine = machine
        self._deadlines = deadlines
        self._wait_ns = wait_ns
        self._reaches = reaches
        self._clients = clients
        self._refuse = refuse
        self._leave = leave
        self.members: dict[Address, BrokerNumber] = {}
        self._near: tuple[BrokerNumber, ...] = ()
        self._told: dict[ClientId, None] = {}
        self._failed: dict[Address, None] = {}
        self._looked_at = -1

    def use(self, hierarchy: Hierarchy, near: Collection[BrokerNumber]) -> None:
        """Take the members of the cluster from a topology, and the neighbours of this broker."""
        cluster = self._home[:-1]
        addresses = hierarchy.addresses
        present = [each for each in hierarchy.present if addresses[each][: len(cluster)] == cluster]
        self.members = {addresses[each]: each for each in present}
        self._near = tuple(near)
        self._looked_at = -1

    def look(self) -> None:
        """Compare this part with the cluster after a change of the graph or of the members."""
        if self._policy == STAY or self._looked_at == self._view.changes:
            return
        self._looked_at = self._view.changes
        if self._place.address != self._home:
            self._deadlines.cancel(self._deadline)
            return
        part = self._part()
        self._failed = {each: None for each in self._failed if each not in part}
        counted = [each for each in self.members if each not in self._failed]
        if min(counted, default=self._home) in part:
            self._deadlines.cancel(self._deadline)
            self._returns = 0
            if self.is_closed:
                self.is_closed = False
                self._told.clear()
                self._refuse("")
        elif not self.is_closed and self._deadline not in self._deadlines:
            self._deadlines.set(self._deadline, self._machine.now_ns + self._patience_ns())

    def _patience_ns(self) -> int:
        """Return the wait for the lowest member.

        In a part that is to be readdressed, the others wait for the lowest member of the part to
        go first. A broker that returned, and left again before reaching the lowest member, waits
        twice as long every time: sessions may take longer to open than `purge_ns`.
        """
        is_first = self._policy != READDRESS or self._home == min(self._part())
        wait_ns = self._wait_ns << min(self._returns, MOST_DOUBLINGS)
        return wait_ns if is_first else wait_ns * 3 // 2

    def waited(self) -> None:
        """Close this part to clients, or move it, or reopen it `purge_ns` after it closed.

        Paper: [GES] §4, §6 (a broker may fail for ever, and clients are not denied service).
        """
        if self.is_closed:
            part = self._part()
            self._failed = {each: None for each in self.members if each not in part}
            self.counters["members_failed"] += len(self._failed)
            self._looked_at = -1
            self.look()
            return
        self.counters["came_apart"] += 1
        if self._policy == READDRESS:
            self._leave(self._part())
            return
        self.is_closed = True
        self._deadlines.set(self._deadline, self._machine.now_ns + self._wait_ns)
        self._refuse(REFUSAL)
        self.send_out()

    @property
    def may_follow(self) -> bool:
        """True while this broker is partitioned and may follow another broker of the part."""
        return self._deadline in self._deadlines and self._machine.now_ns >= self._stays_until_ns

    def came_back(self) -> None:
        """Note a return to the cluster before the lowest member has become reachable."""
        self._returns += 1
        wait_ns = self._wait_ns << min(self._returns, MOST_DOUBLINGS)
        self._stays_until_ns = self._machine.now_ns + wait_ns // 2
        self._looked_at = -1

    def send_out(self) -> None:
        """Redirect clients: to brokers beyond the cluster, or across the partition.

        Brokers beyond the cluster that have a session are first; the state of those across is
        unknown.
        """
        if not self.is_closed:
            return
        part = self._part()
        beyond = [each for each in self._near if each not in self.members.values()]
        beyond = [each for each in beyond if self._reaches(each)]
        across = [each for address, each in sorted(self.members.items()) if address not in part]
        for name in self._clients():
            if name not in self._told and (beyond or across):
                self._told[name] = None
                self._machine.emit(RedirectClient(name, (*beyond, *across)))
                self.counters["clients_sent_out"] += 1

    def _part(self) -> dict[Address, None]:
        """Return the members that this broker reaches over links of the cluster, with itself."""
        found = {self._place.address: None}
        waiting = [self._place.address]
        while waiting:
            for other in self._view.near(waiting.pop()):
                if other in self.members and other not in found:
                    found[other] = None
                    waiting.append(other)
        return found
