"""The change of address of a partitioned part of a cluster, until connected again.

With `partition_policy = "readdress"` a broker that has not reached the member of the cluster with
the lowest address for long takes another address: of a unit next to the own unit that no topology
assigns. That unit follows from the members of the part, so that no broker has to be asked for the
unit. Brokers of the part that receive the address do the same. A broker restarts there with the
present clients only, and returns in the same manner once there is a session with a member of the
cluster that is elsewhere.

A neighbour has the address of a broker from the topology, and receives another address in the
first message of a session. Until the neighbour confirms that address, messages of the neighbour on
connections and profiles are seen from the wrong address, and dropped.

Paper: [GES] §4 (units may vanish). The policy is of our design (A3.9).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import BLOCK_LIMIT, Address, Hierarchy
from brokerd.protocols.ges.apart import Fragment
from brokerd.protocols.ges.messages import AddressStated, AddressTaken
from brokerd.protocols.ges.units import Place, Unit, is_inside
from brokerd.protocols.ges.view import GraphView
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler

READDRESSED: Final = "has another address"
"""The reason for which sessions are closed."""


class Readdressing:
    """The addresses of a broker and of the neighbours.

    Args:
        near: the neighbours with their present addresses, which are the topology's at the
            beginning of a session.
        rejoin: restarts at another address.
        moves: called with the new address of a neighbour that has a session.
        came: called with a neighbour that has a session and this broker's address.

    Attributes:
        counters: for statistics.
    """

    def __init__(
        self,
        place: Place,
        view: GraphView,
        machine: EventMachine,
        near: dict[BrokerNumber, Address],
        fragment: Fragment,
        rejoin: Callable[[Address], None],
        moves: Callable[[BrokerNumber, Address], None],
        came: Callable[[BrokerNumber], None],
    ) -> None:
        self.counters = {"readdressed": 0}
        self._place = place
        self._home = place.address
        self._view = view
        self._machine = machine
        self._near = near
        self._fragment = fragment
        self._rejoin = rejoin
        self._moves = moves
        self._came = came
        self._homes: Mapping[BrokerNumber, Address] = {}
        self._ranked: Sequence[Address] = ()
        self._held: dict[BrokerNumber, None] = {}

    def use(self, hierarchy: Hierarchy) -> None:
        """Take the addresses of all brokers from a topology."""
        self._homes = dict(enumerate(hierarchy.addresses))
        # Ranks stay as they are when brokers join and leave: two parts that left at different
        # times must not choose one unit.
        base = hierarchy.deployed or hierarchy
        deployed = sorted(base.addresses)
        firsts = {each[:-1]: each for each in reversed(deployed)}
        others = [each for each in deployed if each != firsts[each[:-1]]]
        newcomers = hierarchy.addresses[len(deployed) :]
        self._ranked = (*others, *sorted(firsts.values()), *newcomers)

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of messages about addresses."""
        return {AddressStated: self._on_stated, AddressTaken: self._on_taken}

    def hears(self, peer: BrokerNumber) -> bool:
        """Return True if a neighbour with a session has this broker's address."""
        return peer not in self._held

    def heard(self, handler: MessageHandler) -> MessageHandler:
        """Return a handler that ignores neighbours without this broker's address."""

        def taken(peer: Any, message: Any) -> None:
            if self.hears(peer):
                handler(peer, message)

        return taken

    # ------------------------------------------------------------ sessions

    def established(self, peer: BrokerNumber) -> None:
        """Open a session; first send the address if it differs from the topology's."""
        self._near[peer] = self._homes[peer]
        if self._is_home:
            self._came(peer)
        else:
            self._held[peer] = None
            self._machine.send(peer, AddressStated(self._place.address))

    def lost(self, peer: BrokerNumber) -> None:
        """Forget a closed session."""
        self._held.pop(peer, None)

    # ------------------------------------------------------------ addresses

    def leave(self, part: Collection[Address]) -> None:
        """Take an address in the unit of this part, next to the smallest unit with a link outwards.

        Stay if the part has no such link, or if there is no room for so many parts. Every broker
        may be the lowest of a part, except for the lowest of a cluster, which stays.
        """
        levels = [
            self._place.link_level(member, other)
            for member in part
            for other in self._view.near(member)
            if other not in part
        ]
        if not levels:
            return
        place = len(self._home) - 1 - min(levels)
        ranked = [each for each in self._ranked if is_inside(each, self._home[:place])]
        taken = {
            address[place]: None
            for address in self._homes.values()
            if is_inside(address, self._home[:place])
        }
        free = [number for number in reversed(range(BLOCK_LIMIT)) if number not in taken]
        rank = ranked.index(min(part))
        if rank < len(free):
            self._go((*self._home[:place], free[rank], *self._home[place + 1 : -1]))

    def _go(self, unit: Unit) -> None:
        self.counters["readdressed"] += 1
        self._held.clear()
        self._rejoin((*unit, self._home[-1]))

    @property
    def _is_home(self) -> bool:
        return self._place.address == self._home

    def _is_of_cluster(self, peer: BrokerNumber) -> bool:
        return self._homes[peer][:-1] == self._home[:-1]

    def _on_stated(self, peer: BrokerNumber, message: AddressStated) -> None:
        address, home = message.address, self._homes[peer]
        differ = [place for place, (a, b) in enumerate(zip(address, home, strict=False)) if a != b]
        is_beside = len(address) == len(home) and len(differ) == 1 and differ[0] < len(home) - 1
        if not is_beside or not 0 <= address[differ[0]] < BLOCK_LIMIT:
            raise RemoteProtocolError(peer, f"has {home}, and says that it is {address}"[:300])
        if self._is_of_cluster(peer) and self._is_home and self._fragment.may_follow:
            self._go(address[:-1])
            return
        self._machine.send(peer, AddressTaken(self._place.address))
        if peer in self._held:
            self._near[peer] = address
        else:
            self._moves(peer, address)

    def _on_taken(self, peer: BrokerNumber, message: AddressTaken) -> None:
        if peer not in self._held:
            raise RemoteProtocolError(peer, "takes an address that it was not told")
        if self._is_of_cluster(peer) and message.address[:-1] != self._place.address[:-1]:
            self._fragment.came_back()
            self._go(self._home[:-1])
            return
        del self._held[peer]
        self._came(peer)
