"""The detection of brokers and units that have failed for ever, and statements in their place.

A broker that has had no path to a broker or unit for long states in its place that its connections
are down and that its profile is empty. All brokers that miss the unit state this under the same
version, so that the statement is flooded once; a live broker that receives the statement about
itself refutes it under a later version.

Paper: [GES] §4 (a broker or unit may fail for ever).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import BLOCK_LIMIT, Address, Hierarchy
from brokerd.protocols.ges.connectivity_graph import GraphView
from brokerd.protocols.ges.messages import AddressStated, AddressTaken
from brokerd.protocols.ges.state import (
    NeighbourArrival,
    NeighbourRelocation,
    Neighbours,
    Outcome,
    Relocation,
)
from brokerd.protocols.ges.units import Unit, is_inside
from brokerd.protocols.interface import Send

LOOKS = 2
"""Looks at which a unit is missing, over the whole wait, before the look that decides."""
MOST_LOOKS = 32
"""The same for a broker that has refuted statements in its place again and again."""


class FailureDetection:
    """The missing brokers and units of a broker.

    Attributes:
        spoken_for: the number of statements made in the place of missing brokers and units.
    """

    def __init__(self) -> None:
        self.spoken_for = 0
        self.missed: dict[Unit, int] = {}
        self._unknown: dict[BrokerNumber, int] = {}
        self._patience: dict[BrokerNumber, int] = {}

    @property
    def is_counting(self) -> bool:
        """True while a broker or unit is missing, and another look is due."""
        return bool(self.missed or self._unknown)

    def restart(self) -> None:
        """Forget all missing brokers and units."""
        self.missed.clear()
        self._unknown.clear()

    def look(self, missing: Iterable[Unit]) -> list[Unit]:
        """Return the units that were missing at the last looks, and count as failed."""
        self.missed = {unit: self.missed.get(unit, 0) + 1 for unit in missing}
        failed = [unit for unit in sorted(self.missed) if self.missed[unit] > LOOKS]
        for unit in failed:
            del self.missed[unit]
        self.spoken_for += len(failed)
        return failed

    def find_unknown(self, unknown: Iterable[BrokerNumber]) -> list[BrokerNumber]:
        """Return the brokers of own units with statements outside only that count as failed.

        All brokers inside that had their statements have restarted. A live broker in a partitioned
        part of the unit refutes the statement; the wait for that broker then doubles.
        """
        self._unknown = {origin: self._unknown.get(origin, 0) + 1 for origin in unknown}
        failed = []
        for origin in sorted(self._unknown):
            if self._unknown[origin] > self._patience.get(origin, LOOKS):
                del self._unknown[origin]
                self._patience[origin] = min(2 * self._patience.get(origin, LOOKS), MOST_LOOKS)
                self.spoken_for += 1
                failed.append(origin)
        return failed


READDRESSED: Final = "has another address"
"""The reason for which sessions are closed."""


class Readdressing:
    """The addresses of a broker and of the neighbours.

    Attributes:
        counters: for statistics.
    """

    def __init__(self, neighbours: Neighbours, view: GraphView) -> None:
        self.counters = {"readdressed": 0}
        self._neighbours = neighbours
        self._place = neighbours.place
        self._home = self._place.address
        self._view = view
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

    def receives_from(self, peer: BrokerNumber) -> bool:
        """Return True if a neighbour with a session has this broker's address."""
        return peer not in self._held

    # ------------------------------------------------------------ sessions

    def on_established(self, peer: BrokerNumber) -> Outcome:
        """Open a session; first send the address if it differs from the topology's."""
        self._neighbours.addresses[peer] = self._homes[peer]
        if self._is_home:
            return NeighbourArrival(peer)
        self._held[peer] = None
        return Send(peer, AddressStated(self._place.address))

    def on_lost(self, peer: BrokerNumber) -> None:
        """Forget a closed session."""
        self._held.pop(peer, None)

    # ------------------------------------------------------------ addresses

    def leave(self, part: Collection[Address]) -> list[Relocation]:
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
            return []
        place = len(self._home) - 1 - min(levels)
        ranked = [each for each in self._ranked if is_inside(each, self._home[:place])]
        taken = {
            address[place]: None
            for address in self._homes.values()
            if is_inside(address, self._home[:place])
        }
        free = [number for number in reversed(range(BLOCK_LIMIT)) if number not in taken]
        rank = ranked.index(min(part))
        if rank >= len(free):
            return []
        return [self._move((*self._home[:place], free[rank], *self._home[place + 1 : -1]))]

    def _move(self, unit: Unit, *, is_return: bool = False) -> Relocation:
        self.counters["readdressed"] += 1
        self._held.clear()
        return Relocation((*unit, self._home[-1]), is_return)

    @property
    def _is_home(self) -> bool:
        return self._place.address == self._home

    def _is_of_cluster(self, peer: BrokerNumber) -> bool:
        return self._homes[peer][:-1] == self._home[:-1]

    def on_stated(
        self, peer: BrokerNumber, message: AddressStated, *, may_follow: bool
    ) -> list[Outcome]:
        """Take the address of a neighbour, or follow a member of the cluster to its unit.

        Args:
            may_follow: True while this broker may follow another broker of its part.

        Raises:
            RemoteProtocolError: no broker of the neighbour's cluster can have the address; the
                fault of the neighbour.
        """
        address, home = message.address, self._homes[peer]
        differ = [place for place, (a, b) in enumerate(zip(address, home, strict=False)) if a != b]
        is_beside = len(address) == len(home) and len(differ) == 1 and differ[0] < len(home) - 1
        if not is_beside or not 0 <= address[differ[0]] < BLOCK_LIMIT:
            raise RemoteProtocolError(peer, f"has {home}, but announces {address}"[:300])
        if self._is_of_cluster(peer) and self._is_home and may_follow:
            return [self._move(address[:-1])]
        taken = Send(peer, AddressTaken(self._place.address))
        if peer in self._held:
            self._neighbours.addresses[peer] = address
            return [taken]
        return [taken, NeighbourRelocation(peer, address)]

    def on_taken(self, peer: BrokerNumber, message: AddressTaken) -> Outcome:
        """Link a neighbour that has this broker's address, or return to the cluster.

        Raises:
            RemoteProtocolError: the neighbour was not sent an address; the fault of the neighbour.
        """
        if peer not in self._held:
            raise RemoteProtocolError(peer, "takes an address that was not assigned to it")
        if self._is_of_cluster(peer) and message.address[:-1] != self._place.address[:-1]:
            return self._move(self._home[:-1], is_return=True)
        del self._held[peer]
        return NeighbourArrival(peer)
