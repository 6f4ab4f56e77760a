"""Invariants of each step of a broker of a hierarchy, and of the whole system at rest.

G1  a path leaves a unit once: the levels along it do not decrease (`_check_way`)
G2  no publication is sent to a unit without interest in the profiles of the deciding broker
    (`_check_wanted`)
G3  a broker's graph is the outline of the present sessions, at the higher of the two costs that
    the ends state (`_check_graph`)
G4  a broker has exactly the profiles of the others, behind the largest units that do not
    contain the broker (`_check_profiles`)
G5  a graph has no more brokers and units than the blocks of the levels hold (`_check_graph`)
G6  statements about a connection are sent only in the unit of both ends (`_check_statement`)
G7  a broker stores nothing on disk but the progress of own publishers (`_check_kept`)
G8  no honest broker's statement looks forged to the named broker (`_check_names`)
G9  a subscription is reported as started when all brokers with a path have it (`StartChecks`)
G10 neighbours have the number of clients that a broker has sent (`check_client_counts`)
G11 with the policy "paper" a broker keeps the profiles of its duty, no others, and has attestations
    of all units in it (`_check_duty`, against a twin that sees the whole system)
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.publication import PublicationRun
from brokerd.overlay.hierarchy import Address
from brokerd.overlay.routes import Link
from brokerd.protocols.ges.checks.duties import find_duties, outline
from brokerd.protocols.ges.checks.starts import StartChecks
from brokerd.protocols.ges.messages import SYSTEM, GraphStated, Path, RoutedPublications, Target
from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.protocols.ges.units import Place, Unit, is_inside
from brokerd.protocols.interface import Commit, Effect, Event, LogEffect, MessageReceived, Send
from brokerd.protocols.parts.clients.progress import PUBLISHER_PROGRESS
from brokerd.protocols.parts.publishers import TABLE as PUBLISHERS
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.checks.recounts import Recount
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_TABLES = (PUBLISHERS, PUBLISHER_PROGRESS)
"""The tables of a broker without publications on disk."""

BLOCK = 64
"""The most units in a unit."""


class GesChecks(ProtocolChecks):
    """See ProtocolChecks."""

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._starts = StartChecks(world)

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[ClientId, int]]:
        self._starts.step(broker, event, effects)
        received: dict[tuple[int, Unit, Unit], None] = {}
        if type(event) is MessageReceived and type(event.message) is RoutedPublications:
            received = {_describe(target): None for target in event.message.targets}
        elif (
            type(event) is MessageReceived
            and type(event.message) is GraphStated
            and event.session == broker.session_with(event.peer)
        ):
            _check_statement(broker, event.peer, event.message)
        for effect in effects:
            _check_kept(broker, effect)
            if type(effect) is Send and type(effect.message) is RoutedPublications:
                for target in effect.message.targets:
                    for way in target.frames:
                        _check_way(broker, way)
                    decided = _describe(target) not in received and target.skip == SYSTEM
                    if target.level == 0 and decided:
                        self._check_wanted(broker, target.unit, effect.message.run)
        return ()

    def _check_wanted(self, broker: BrokerView, unit: Unit, run: PublicationRun) -> None:
        core: Any = broker.core
        if not core.units.keepers.is_complete(unit):
            return  # without all profiles of a unit, everything is sent there
        predicates = [
            predicate
            for known in core.units.profiles.by_origin().values()
            if is_inside(known.place, unit)
            for predicate in known.predicates.values()
        ]
        for number, blob, _ in run.publications():
            if not any(self.world.oracle.wants(each, bytes(blob)) for each in predicates):
                raise InvariantViolated(
                    "unwanted", f"{broker.name} sends {number} of {run.source} to {unit}"
                )

    def check_settled(self, brokers: Sequence[BrokerView]) -> None:
        cores: dict[BrokerNumber, Any] = {
            broker.number: broker.core for broker in brokers if broker.alive
        }
        for number, core in cores.items():
            _check_names(brokers[number].name, core)
        check_client_counts(brokers)
        addresses = {number: core.units.place.address for number, core in cores.items()}
        up = {
            (broker.number, peer): max(
                cores[broker.number].units.dissemination.factor(peer),
                cores[peer].units.dissemination.factor(broker.number),
            )
            for broker in brokers
            if broker.alive
            for peer in broker.ends
            if isinstance(peer, int) and broker.number < peer and peer in cores
        }
        for number, core in cores.items():
            name = brokers[number].name
            _check_graph(name, core, outline(addresses, up, number))
            scope: Unit = ()
            if core.units.keepers.is_paper:
                duty = find_duties(addresses, up)[number]
                _check_duty(name, core, duty, addresses)
                scope = core.units.place.own_unit(duty)
            _check_profiles(name, core, cores, scope)


def check_client_counts(brokers: Sequence[BrokerView]) -> None:
    """Check that neighbours in a cluster have the number of clients that a broker has sent last.

    Raises:
        InvariantViolated: a neighbour uses another number.
    """
    cores: dict[BrokerNumber, Any] = {each.number: each.core for each in brokers if each.alive}
    for number, core in cores.items():
        for peer, clients in core.units.hints._announcements.items():
            if core.units.is_linked(peer) and clients != cores[peer].units.hints._announced:
                subject = (
                    f"{brokers[number].name} assumes {clients} clients at {brokers[peer].name}"
                )
                raise InvariantViolated(
                    "client counts", f"{subject}: {cores[peer].units.hints._announced}"
                )


def _describe(target: Target) -> tuple[int, Unit, Unit]:
    return target.level, target.unit, target.skip


def _check_way(broker: BrokerView, way: Path) -> None:
    if len({*way}) < len(way) or any(len(here) < len(onward) for here, onward in pairwise(way)):
        raise InvariantViolated("way", f"{broker.name} sends along {way}")


def _check_kept(broker: BrokerView, effect: Effect) -> None:
    rows = effect.changes if isinstance(effect, Commit) else ()
    if isinstance(effect, LogEffect) or any(row.table not in _TABLES for row in rows):
        raise InvariantViolated("stateless", f"{broker.name} keeps {effect}")


def _check_statement(broker: BrokerView, peer: Peer, message: GraphStated) -> None:
    core: Any = broker.core
    if not core.receives_from(peer):
        return  # a neighbour without this broker's address states for another place
    place: Place = core.units.place
    for each in message.statements:
        level = place.link_level(each.low_end, each.high_end)
        within = each.low_end[: len(place.address) - level - 1]
        if not place.is_in(within):
            raise InvariantViolated("scope", f"{broker.name} received {each}")


def _check_names(name: str, core: Any) -> None:
    outbid = {key: value for key, value in core.units.count_restated().items() if value}
    if outbid:
        raise InvariantViolated("forged", f"{name} found forged statements: {outbid}")


def _check_graph(name: str, core: Any, should: Mapping[Any, Mapping[Link, int]]) -> None:
    if core.units.view.edges != should:
        found = {edge: dict(behind) for edge, behind in core.units.view.edges.items()}
        wanted = {edge: dict(behind) for edge, behind in should.items()}
        raise InvariantViolated("graph", f"{name} has {found}, not {wanted}")
    if len(core.units.view.units()) > BLOCK * len(core.units.place.address):
        raise InvariantViolated("graph size", f"{name} has {len(core.units.view.units())} units")


def _check_duty(name: str, core: Any, duty: int, addresses: Mapping[BrokerNumber, Address]) -> None:
    """Check that a broker keeps the profiles that it needs, no others, and has all of them."""
    keepers, place = core.units.keepers, core.units.place
    if keepers.duty < duty or (keepers.duty > duty and not keepers.is_waiting):
        raise InvariantViolated("duty", f"{name} keeps level {keepers.duty}, not {duty}")
    scope = place.own_unit(keepers.duty)
    others = [
        origin
        for origin, known in core.units.profiles.by_origin().items()
        if not is_inside(known.place, scope)
    ]
    if others:
        raise InvariantViolated("duty", f"{name} keeps profiles of {others}, not in {scope}")
    lacking = [
        unit
        for unit in map(place.outermost_unit_of, addresses.values())
        if is_inside(unit, place.own_unit(duty)) and not keepers.is_complete(unit)
    ]
    if lacking:
        raise InvariantViolated("attested", f"{name} is not sure of the profiles of {lacking}")


def _check_profiles(name: str, core: Any, cores: Mapping[BrokerNumber, Any], scope: Unit) -> None:
    """Check that a broker has exactly the profiles of the brokers in a unit.

    Others, of a duty that is about to end, may be outdated.
    """
    for origin, known in core.units.profiles.by_origin().items():
        if not is_inside(known.place, scope):
            continue
        wanted: Mapping[Any, Any] = {}
        if origin in cores:
            wanted = cores[origin].units.profiles.by_origin()[origin].predicates
            address: Address = cores[origin].units.place.address
            if known.place != core.units.place.outermost_unit_of(address):
                raise InvariantViolated(
                    "profile", f"{name} has the profile of {origin} at {known.place}"
                )
        if known.predicates != wanted:
            raise InvariantViolated(
                "profile", f"{name} has {[*known.predicates]} of {origin}, not {[*wanted]}"
            )
    kept = [each for each in cores if is_inside(cores[each].units.place.address, scope)]
    if missing := [origin for origin in kept if origin not in core.units.profiles.by_origin()]:
        raise InvariantViolated("profile", f"{name} has none of {missing}")


def _count(profiles: Profiles, _: Any) -> Mapping[Any, Mapping[Any, int]]:
    """Return the number of equal predicates in each unit, from the profiles themselves."""
    found: dict[Any, Counter[Any]] = {}
    for known in profiles.by_origin().values():
        for predicate in known.predicates.values():
            found.setdefault(predicate, Counter())[known.place] += 1
    return found


RECOUNTS = (Recount(Profiles, "edges", lambda profiles: profiles.edges(), _count),)
