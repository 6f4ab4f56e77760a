"""The detection of brokers and units that have failed for ever, and statements in their place.

A broker that has had no path to a broker or unit for long states in its place that its connections
are down and that its profile is empty. All brokers that miss the unit state this under the same
version, so that the statement is flooded once; a live broker that receives the statement about
itself refutes it under a later version.

Paper: [GES] §4 (a broker or unit may fail for ever).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import BLOCK_LIMIT, Address, Hierarchy
from brokerd.protocols.ges.connectivity_graph import GraphView, Paths
from brokerd.protocols.ges.dissemination import Graph
from brokerd.protocols.ges.messages import AddressStated, AddressTaken
from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.protocols.ges.propagation import Propagation
from brokerd.protocols.ges.roaming import Fragment
from brokerd.protocols.ges.units import Place, Unit, is_inside
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler

LOOKS = 2
"""Looks at which a unit is missing, over the whole wait, before the look that decides."""
MOST_LOOKS = 32
"""The same for a broker that has refuted statements in its place again and again."""


class Ageing:
    """The missing brokers and units of a broker.

    Attributes:
        spoken_for: the number of statements made in the place of missing brokers and units.
    """

    def __init__(
        self,
        place: Place,
        view: GraphView,
        paths: Paths,
        profiles: Profiles,
        graph: Graph,
        propagation: Propagation,
    ) -> None:
        self.spoken_for = 0
        self._place = place
        self._view = view
        self._paths = paths
        self._profiles = profiles
        self._graph = graph
        self._propagation = propagation
        self._missed: dict[Unit, int] = {}
        self._unknown: dict[BrokerNumber, int] = {}
        self._patience: dict[BrokerNumber, int] = {}

    def begin_anew(self) -> None:
        """Forget all missing brokers and units."""
        self._missed.clear()
        self._unknown.clear()

    def look(self) -> bool:
        """State the failure of all units that were missing at the last looks.

        Returns:
            True to look again.
        """
        named = dict.fromkeys((*self._view.connected(), *self._profiles.places()))
        missing = [unit for unit in named if not self._is_there(unit)]
        self._missed = {unit: self._missed.get(unit, 0) + 1 for unit in missing}
        for unit in sorted(self._missed):
            if self._missed[unit] > LOOKS:
                del self._missed[unit]
                self.spoken_for += 1
                self._graph.speak_for(unit)
                self._propagation.speak_for(unit)
        return bool(self._missed) | self._look_for_unknown()

    def unknown(self) -> Sequence[BrokerNumber]:
        """Return brokers of own units with later statements outside than inside."""
        return *self._graph.only_outside(), *self._propagation.only_outside()

    def _look_for_unknown(self) -> bool:
        """Count brokers of own units with statements outside only, as all inside have restarted.

        A live broker in a partitioned part of the unit refutes the statement; the wait for that
        broker then doubles.
        """
        self._unknown = {origin: self._unknown.get(origin, 0) + 1 for origin in self.unknown()}
        for origin in sorted(self._unknown):
            if self._unknown[origin] > self._patience.get(origin, LOOKS):
                del self._unknown[origin]
                self._patience[origin] = min(2 * self._patience.get(origin, LOOKS), MOST_LOOKS)
                self.spoken_for += 1
                self._graph.speak_for_unknown(origin)
                self._propagation.speak_for_unknown(origin)
        return bool(self._unknown)

    def _is_there(self, unit: Unit) -> bool:
        return self._place.is_in(unit) or self._paths.best(unit) is not None


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
