"""The profiles that a broker keeps, and the units of which it has all profiles.

With `keeper_policy = "paper"` a profile is sent to the brokers that decide by it, and to those
that link them. A broker's duty is the level of the unit whose profiles it keeps: 0 for its own
clients, 1 for its cluster, and so on. It follows from the connectivity graph: gatekeepers of a
level keep the profiles of the unit one level above, and relays connect the gatekeepers of a unit.

A broker that takes a duty lacks profiles at first. Its neighbours send them, and attest the units
of which they have all profiles. A unit without attestation receives every publication.

Paper: [GES] §3 (maintenance of profiles; snapshots). Deviates: the paper has no relays; its
rule for new gatekeepers is lost.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link
from brokerd.protocols.ges.connectivity_graph import Edge, GraphView, Paths
from brokerd.protocols.ges.messages import DutyStated, UnitsAttested
from brokerd.protocols.ges.parameters import PAPER
from brokerd.protocols.ges.state import Neighbours
from brokerd.protocols.ges.units import Place, Unit, is_inside
from brokerd.protocols.interface import Send

EVERYTHING_KEPT: Final = "every broker keeps every profile"

_Near = dict[Unit, dict[Unit, tuple[Link, Unit]]]
"""Neighbouring units inside a unit: the lowest connection, and its end at the first one."""
_Edges = Mapping[Edge, Mapping[Link, int]]


@dataclass(slots=True)
class Duties:
    """The duties that follow from a broker's connectivity graph.

    Attributes:
        of_cluster: the duties of brokers of the cluster, by address; 0 if absent.
        of_links: connections out of the cluster that profiles use, with the least duty of their
            ends: of several connections between two units the lowest, as far as a broker has a path
            to their ends inside its own unit.
    """

    of_cluster: dict[Unit, int] = field(default_factory=dict)
    of_links: dict[Link, int] = field(default_factory=dict)


def find_duties(place: Place, edges: _Edges) -> Duties:
    """Return the duties that a broker finds in its connectivity graph.

    All brokers of a cluster find the same ones.

    Paper: [GES] §3 (profile changes go to the gatekeepers of the unit, level by level).
    """
    duties = Duties(dict.fromkeys(_relays(place, edges), 1))
    for level in range(1, place.top + 1):
        own = place.own_unit(level)
        around = _near_inside(_without_parted(place, edges, own), place.own_unit(level + 1))
        for link, _ in around.get(own, {}).values():
            duties.of_links.setdefault(link, level + 1)
        _connect(place, edges, own, _ends_inside(edges, own), level + 1, duties)
    return duties


def _ends_inside(edges: Iterable[Edge], unit: Unit) -> dict[Unit, None]:
    """Return the ends inside a unit of edges that leave it."""
    return {
        end: None
        for edge in edges
        for end, other in (edge, edge[::-1])
        if is_inside(end, unit) and not is_inside(other, unit)
    }


def _without_parted(place: Place, edges: _Edges, unit: Unit) -> _Edges:
    """Return the edges without those of parts of an own unit that have no path from here inside."""
    near: dict[Unit, list[Unit]] = {}
    for a, b in edges:
        if is_inside(a, unit) and is_inside(b, unit):
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
    found = {place.address: None}
    waiting = [place.address]
    for here in waiting:
        for other in near.get(here, ()):
            if other not in found:
                found[other] = None
                waiting.append(other)
    return {
        edge: links
        for edge, links in edges.items()
        if all(end in found or not is_inside(end, unit) for end in edge)
    }


def _near_inside(edges: _Edges, unit: Unit) -> _Near:
    """Return the graph of the units one level below a unit."""
    near: _Near = {}
    length = len(unit) + 1
    for edge, behind in edges.items():
        for end, other in (edge, edge[::-1]):
            here, there = end[:length], other[:length]
            if is_inside(end, unit) and is_inside(other, unit) and here != there:
                link = min(behind), end
                around = near.setdefault(here, {})
                around[there] = min(around.get(there, link), link)
    return near


def _find_parents(near: _Near, roots: Iterable[Unit]) -> dict[Unit, Unit]:
    """Return the parents in trees of shortest paths, one tree per component with a root."""
    parents: dict[Unit, Unit] = {}
    for root in roots:
        waiting = [] if root in parents else [root]
        parents.setdefault(root, root)
        for here in waiting:
            for other in sorted(near.get(here, {})):
                if other not in parents:
                    parents[other] = here
                    waiting.append(other)
    return parents


def _find_tree(near: _Near, terminals: Iterable[Unit]) -> list[tuple[Unit, Unit]]:
    """Return the pairs of neighbours in the trees that connect terminals, in both directions."""
    roots = sorted(terminals)
    parents = _find_parents(near, roots)
    pairs: dict[tuple[Unit, Unit], None] = {}
    for terminal in roots:
        here = terminal
        while (parent := parents[here]) != here and (here, parent) not in pairs:
            pairs |= {(here, parent): None, (parent, here): None}
            here = parent
    return [*pairs]


def _connect(
    place: Place,
    edges: _Edges,
    unit: Unit,
    ends: Mapping[Unit, None],
    duty: int,
    duties: Duties,
) -> None:
    """Add a duty for the ends in a unit and the tree that connects them.

    The tree connects units first, and then the brokers in each of them, so every broker finds its
    own part of the same tree.
    """
    while len(unit) < place.top:
        length = len(unit) + 1
        near, own = _near_inside(edges, unit), place.address[:length]
        inside = {end: None for end in ends if is_inside(end, own)}
        for one, other in _find_tree(near, {end[:length]: None for end in ends}):
            if one == own:
                link, end = near[one][other]
                inside[end] = None
                duties.of_links[link] = duty
        unit, ends = own, inside
    tree = _find_tree(_near_inside(edges, unit), ends)
    duties.of_cluster |= dict.fromkeys((*ends, *(one for one, _ in tree)), duty)


def _relays(place: Place, edges: _Edges) -> Iterable[Unit]:
    """Return the brokers of the cluster through which others have a path to a gatekeeper.

    A cluster without a gatekeeper has its lowest broker in that place, its controller.
    """
    cluster = place.own_unit(1)
    near = _near_inside(edges, cluster)
    roots = (*sorted(_ends_inside(edges, cluster)), *sorted(near))
    parents = _find_parents(near, roots)
    return {parent: None for unit, parent in parents.items() if parent != unit}


@dataclass(slots=True)
class Adaptation:
    """The result of a changed graph.

    Attributes:
        is_smaller: True if this broker's duty became smaller.
        is_changed: True if the graph requires another duty, or other links, than before.
        changed: neighbours with another duty on their link, and the former one.
        statements: of this broker's duty, for neighbours.
    """

    is_smaller: bool
    is_changed: bool
    changed: dict[BrokerNumber, int]
    statements: list[Send]


class Keepers:
    """The duty of a broker, the duties of its neighbours, and the units with all profiles here.

    Attributes:
        duty: the level of the unit whose profiles this broker keeps.
        is_paper: False if every broker keeps every profile.
        is_waiting: True if a duty or the use of a link is to end after a wait.
        counters: for statistics.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: Neighbours,
        view: GraphView,
        paths: Paths,
        policy: str,
    ) -> None:
        self.is_paper = policy == PAPER
        self.counters = dict.fromkeys(
            ("duties_taken", "duties_ended", "units_attested", "changes_crossed"), 0
        )
        self.duty = 0
        self.is_waiting = False
        self._broker = broker
        self._neighbours = neighbours
        self._place = neighbours.place
        self._view = view
        self._paths = paths
        self._seen = -1
        self._duties: dict[BrokerNumber, int] = {}
        self._expected: dict[BrokerNumber, int] = {}
        self._chosen: dict[BrokerNumber, bool] = {}
        self._sent: dict[BrokerNumber, tuple[int, bool]] = {}
        self._stated: dict[BrokerNumber, DutyStated] = {}
        self._required: tuple[int, dict[BrokerNumber, bool]] = 0, {}
        self._number = 0
        self._raised = 0
        self._least: dict[Unit, int] = {}
        self._visible: dict[Unit, None] = {}
        self._attested: dict[Unit, None] = {}
        self._revoked: dict[Unit, None] = {}
        self._served: dict[BrokerNumber, dict[Unit, None]] = {}

    # ------------------------------------------------------------ for the other parts

    def keeps(self, place: Unit) -> bool:
        """Return True if this broker keeps the profiles of a place."""
        return not self.is_paper or is_inside(place, self._place.own_unit(self.duty))

    def needs(self, peer: BrokerNumber, place: Unit) -> bool:
        """Return True if a linked neighbour has stated that it keeps the profiles of a place."""
        if not self.is_paper:
            return True
        return peer in self._stated and self.covers(peer, self._duties[peer], place)

    def may_need(self, peer: BrokerNumber, place: Unit) -> bool:
        """Return True unless the last duty of a neighbour and the graph exclude a place.

        By the graph, a neighbour may have taken a duty that it has not stated here.
        """
        if not self.is_paper or peer not in self._duties:
            return True
        duty = max(self._duties[peer], self._expected.get(peer, 0))
        return self.covers(peer, duty, place)

    def covers(self, peer: BrokerNumber, duty: int | None, place: Unit) -> bool:
        """Return True if a neighbour with a duty keeps the profiles of a place."""
        address = self._neighbours.addresses[peer]
        return duty is not None and is_inside(place, address[: len(address) - duty])

    def is_complete(self, unit: Unit) -> bool:
        """Return True if this broker has all profiles of a unit, as far as it is connected."""
        if not self.is_paper or unit == self._place.address:
            return True
        if not self._place.is_in(unit):
            return unit in self._attested
        return all(
            each in self._attested or each == self._place.address
            for each in self._visible
            if is_inside(each, unit)
        )

    def incomplete(self, unit: Unit) -> Sequence[Unit]:
        """Return the units one level below a unit that receive every publication."""
        if not self.is_paper:
            return ()
        length = len(unit) + 1
        inner = {
            each[:length]: None
            for each in self._view.units()
            if len(each) >= length and is_inside(each, unit)
        }
        return [
            each
            for each in inner
            if not self.is_complete(each)
            and (self._place.is_in(each) or self._paths.best(each) is not None)
        ]

    # ------------------------------------------------------------ sessions

    def restart(self) -> None:
        """Restart at another address, without a session."""
        self.duty = 0
        self._required = 0, {}
        self._seen = -1
        self._number += 1
        for known in (self._duties, self._expected, self._chosen, self._sent, self._stated):
            known.clear()
        for units in (self._visible, self._attested, self._revoked, self._served):
            units.clear()

    def on_up(self, peer: BrokerNumber) -> list[Send]:
        """State the duty to a neighbour with a new session."""
        self._seen = -1
        return [self._state(peer)] if self.is_paper else []

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Forget the statements sent to a neighbour; the last duty of the neighbour stays."""
        self._seen = -1
        for known in (self._stated, self._served, self._sent):
            known.pop(peer, None)

    def forget(self, peer: BrokerNumber) -> None:
        """Forget a neighbour that has another address, or has left."""
        self.on_session_lost(peer)
        self._duties.pop(peer, None)

    # ------------------------------------------------------------ duties

    @property
    def is_outdated(self) -> bool:
        """True after a change of the graph."""
        return self.is_paper and self._seen != self._view.changes

    def look(self, *, is_late: bool = False) -> Adaptation:
        """Adapt the duty, and the links that profiles use, to a changed graph.

        A larger duty begins at once. Others may not have taken theirs yet, so a smaller one, and
        the end of a link's use, wait.

        Args:
            is_late: True after the wait.
        """
        self._seen = self._view.changes
        duties = find_duties(self._place, self._edges())
        before, self.duty = self.duty, duties.of_cluster.get(self._place.address, 0)
        used = {peer: None for peer, is_chosen in self._chosen.items() if is_chosen}
        self._expect(duties)
        required = self.duty, {**self._chosen}
        is_changed, is_grown = required != self._required, self.duty > self._required[0]
        self._required = required
        unused = [peer for peer in used if self._chosen.get(peer) is False]
        self.is_waiting = not is_late and (self.duty < before or bool(unused))
        if self.is_waiting:
            self.duty = max(before, self.duty)
            self._chosen |= dict.fromkeys(unused, True)
        self._see()
        again = [unit for unit in self._revoked if unit in self._visible and self._needs_all(unit)]
        self._revoked = {unit: None for unit in self._revoked if unit not in self._visible}
        self._number += 1
        if is_grown:
            self._raised = self._number
        self.counters["duties_taken"] += before < self.duty
        self.counters["duties_ended"] += self.duty < before
        changed = {}
        for peer in self._stated:
            known, self._duties[peer] = self._duties[peer], self._effective_duty(peer)
            if known != self._duties[peer]:
                changed[peer] = known
        statements = [
            self._state(peer)
            for peer in self._neighbours.all_linked()
            if again or is_grown or self._sent.get(peer) != (self.duty, self._chosen[peer])
        ]
        return Adaptation(self.duty < before, is_changed, changed, statements)

    def _edges(self) -> _Edges:
        """Return the edges of the graph, with this broker's sessions as connections in any case.

        Others may have stated in the place of a neighbour that it has no connection.
        """
        edges: dict[Edge, Mapping[Link, int]] = {**self._view.edges}
        own = self._place.address
        for peer in self._neighbours.linked:
            other = self._place.outermost_unit_of(self._neighbours.addresses[peer])
            edge = (own, other) if own < other else (other, own)
            link = min(self._broker, peer), max(self._broker, peer)
            edges[edge] = {link: 1, **edges.get(edge, {})}
        return edges

    def _see(self) -> None:
        """Revoke the attestations of units without a path, and of those not kept any more."""
        visible = {unit: None for unit in self._view.units() if self._paths.best(unit) is not None}
        lost = [unit for unit in self._visible if unit not in visible]
        self._visible = visible
        for unit in lost:
            self._revoke(unit)
        for unit in [each for each in self._attested if not self._needs_all(each)]:
            del self._attested[unit]

    def on_stated(self, peer: BrokerNumber, message: DutyStated) -> tuple[int | None, bool]:
        """Take the duty of a neighbour.

        Returns:
            The last duty of the neighbour, if any, and True if this is its first in the session.

        Raises:
            RemoteProtocolError: there is no such level, or every broker keeps every profile; the
                fault of the neighbour.
        """
        self._check(peer, message)
        if not 0 <= message.level <= len(self._place.address) or message.number < 0:
            raise RemoteProtocolError(peer, f"{message}: no such level or number")
        before, is_first = self._duties.get(peer), peer not in self._stated
        self._stated[peer] = message
        self._duties[peer] = self._effective_duty(peer)
        self._served.pop(peer, None)
        return before, is_first

    # ------------------------------------------------------------ attestations

    def attest(self) -> Iterator[Send]:
        """Attest to all neighbours the units that have become complete here."""
        for peer in self._stated:
            units = dict.fromkeys(self._attestable(peer))
            before = self._served.get(peer, {})
            self._served[peer] = units
            fresh = tuple(unit for unit in units if unit not in before)
            if fresh:
                yield Send(peer, UnitsAttested(fresh, self._stated[peer].number))

    def on_attested(self, peer: BrokerNumber, message: UnitsAttested) -> None:
        """Record units of which a neighbour has sent all profiles.

        Raises:
            RemoteProtocolError: a unit is impossible, or every broker keeps every profile; the
                fault of the neighbour.
        """
        self._check(peer, message)
        for unit in message.units:
            if not 0 < len(unit) <= len(self._place.address):
                raise RemoteProtocolError(peer, f"{unit} is no unit of this hierarchy")
            least = max(self._raised, self._least.get(unit, 0))
            if self._place.is_in(unit) or not self._needs_all(unit) or message.number < least:
                continue
            if unit in self._visible:
                self._attested[unit] = None
                self.counters["units_attested"] += 1
            else:
                self._revoke(unit)

    def _attestable(self, peer: BrokerNumber) -> Iterator[Unit]:
        address = self._neighbours.addresses[peer]
        level = self._place.link_level(self._place.address, address)
        left = self._place.own_unit(level)
        if self.is_complete(left) and self.needs(peer, left):
            yield left
        for unit in self._attested:
            is_beside = not is_inside(unit, left) and not is_inside(address, unit)
            if is_beside and self.needs(peer, unit):
                yield unit

    def _revoke(self, unit: Unit) -> None:
        """Ask the neighbours for another attestation of a unit once it has a path again."""
        self._attested.pop(unit, None)
        self._least[unit] = self._number + 1
        if self._needs_all(unit):
            self._revoked[unit] = None

    def _needs_all(self, unit: Unit) -> bool:
        """Return True if the graph requires the profiles of a unit here; a duty may last longer."""
        return is_inside(unit, self._place.own_unit(self._required[0]))

    def _effective_duty(self, peer: BrokerNumber) -> int:
        """Return the duty of a neighbour as far as profiles use the link to it."""
        stated = self._stated[peer]
        return stated.level if stated.is_chosen or self._chosen.get(peer, False) else 0

    def _expect(self, duties: Duties) -> None:
        """Take the duties that neighbours have by the graph, at least."""
        self._expected, self._chosen = {}, {}
        for peer in self._neighbours.linked:
            address = self._neighbours.addresses[peer]
            level = self._place.link_level(self._place.address, address)
            link = min(self._broker, peer), max(self._broker, peer)
            of_link = duties.of_links.get(link, 0)
            self._expected[peer] = of_link if level else duties.of_cluster.get(address, 0)
            self._chosen[peer] = not level or of_link > 0

    def _state(self, peer: BrokerNumber) -> Send:
        is_chosen = self._chosen.get(peer, False)
        self._sent[peer] = self.duty, is_chosen
        return Send(peer, DutyStated(self.duty, is_chosen, self._number))

    def _check(self, peer: BrokerNumber, message: DutyStated | UnitsAttested) -> None:
        if not self.is_paper:
            raise RemoteProtocolError(peer, f"{message}, and {EVERYTHING_KEPT}"[:300])
