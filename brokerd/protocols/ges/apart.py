"""Whether a broker is in a part of its cluster that has come off, and what its clients are told.

A cluster comes apart when its own links do not connect it any more. Of its parts one has the
member with the lowest address; with `partition_policy = "induce_roam"` all others take no new
clients after a while and tell those they have to go elsewhere, until they see that member again.
Who is in the cluster the topology says, so that no two brokers differ in it. A member that is down
looks just like one that is cut off: nobody can tell from inside.

Paper: [GES] §4 (units may vanish). The policy is of our design (A3.9), where the last full view
says who is in the cluster.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.protocols.ges.parameters import INDUCE_ROAM, HintParameters
from brokerd.protocols.ges.units import Place
from brokerd.protocols.ges.view import GraphView
from brokerd.protocols.interface import RedirectClient
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

APART: Final = "apart"
"""Purpose of the deadline at which the rest of the cluster has been out of reach for long."""

REFUSAL: Final = "this broker is cut off from the rest of its cluster; try another one, or later"


class Fragment:
    """The part of its cluster that one broker is in.

    Args:
        reaches: whether a neighbour has a session.
        clients: the clients here.
        refuse: take no new ones, for this reason; "" for taking them again.

    Attributes:
        is_closed: it takes no new clients.
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
    ) -> None:
        self.is_closed = False
        self.counters = {"clients_sent_out": 0, "came_apart": 0}
        self._is_on = parameters.partition_policy == INDUCE_ROAM
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
        self._members: dict[Address, BrokerNumber] = {}
        self._near: tuple[BrokerNumber, ...] = ()
        self._told: dict[ClientId, None] = {}
        self._looked_at = -1

    def use(self, hierarchy: Hierarchy, near: Collection[BrokerNumber]) -> None:
        """Who is in the cluster by now, and who is linked to this broker."""
        cluster = self._place.own(1)
        addresses = hierarchy.addresses
        present = [each for each in hierarchy.present if addresses[each][: len(cluster)] == cluster]
        self._members = {addresses[each]: each for each in present}
        self._near = tuple(near)
        self._looked_at = -1

    def look(self) -> None:
        """The graph may have changed, or the members have."""
        if not self._is_on or self._looked_at == self._view.changes:
            return
        self._looked_at = self._view.changes
        if min(self._members, default=self._place.address) in self._part():
            self._deadlines.cancel(self._deadline)
            if self.is_closed:
                self.is_closed = False
                self._told.clear()
                self._refuse("")
        elif not self.is_closed and self._deadline not in self._deadlines:
            self._deadlines.set(self._deadline, self._machine.now_ns + self._wait_ns)

    def waited(self) -> None:
        """The lowest member has been out of reach for long: clients had better go elsewhere."""
        self.is_closed = True
        self.counters["came_apart"] += 1
        self._refuse(REFUSAL)
        self.send_out()

    def send_out(self) -> None:
        """Tell clients that have not been told: to brokers beyond the cluster, or across the gap.

        Those beyond that have a session come first; nobody knows how those across are doing.
        """
        if not self.is_closed:
            return
        part = self._part()
        beyond = [each for each in self._near if each not in self._members.values()]
        beyond = [each for each in beyond if self._reaches(each)]
        across = [each for address, each in sorted(self._members.items()) if address not in part]
        for name in self._clients():
            if name not in self._told and (beyond or across):
                self._told[name] = None
                self._machine.emit(RedirectClient(name, (*beyond, *across)))
                self.counters["clients_sent_out"] += 1

    def _part(self) -> dict[Address, None]:
        """The members that this broker reaches over links of the cluster, itself too."""
        found = {self._place.address: None}
        waiting = [self._place.address]
        while waiting:
            for other in self._view.near(waiting.pop()):
                if other in self._members and other not in found:
                    found[other] = None
                    waiting.append(other)
        return found
