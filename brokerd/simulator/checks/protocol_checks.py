"""The parts of a protocol for simulations: its marks, and checks of the state of its cores.

These parts are in the protocol's own folder, in the module named by its definition, and are
imported at the start of a simulation. No deployment needs them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber, ClientId, SourceId, StreamId
from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.routes import Link
from brokerd.overlay.topology import nearest
from brokerd.protocols.definition import ProtocolDefinition
from brokerd.protocols.interface import Effect, Event, MessageReceived
from brokerd.protocols.registry import DEFINITIONS, definition_of
from brokerd.simulator.checks.growth import SHARED, ContainerLimits, Limit
from brokerd.simulator.checks.losses import Stretch
from brokerd.simulator.checks.marks import ADVANCED_AGAIN, Mark, MarkObserver, make_marks
from brokerd.simulator.checks.oracle import Oracle
from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.checks.recounts import Position, PositionChecks, Recount
from brokerd.simulator.checks.step_text import NamedWorld, Wording
from brokerd.simulator.named_bugs import NamedBug, bugs_of, plant
from brokerd.simulator.world.clock import Schedule
from brokerd.simulator.world.views import BrokerView


class Reach:
    """The demands with these links broken; the base class demands every remaining route.

    Two brokers can have a session if no direction between them is broken.

    Args:
        removed: lost brokers; all other brokers are alive. If only leaves can be lost, no route
            contains a lost broker.

    Attributes:
        includes_recovering: brokers that were recovering when the links broke must finish.
    """

    includes_recovering = True

    def __init__(
        self,
        graph: OverlayGraph,
        parameters: Any,
        broken: Iterable[Link],
        removed: Iterable[BrokerNumber] = (),
    ) -> None:
        self._graph = graph
        self._removed = frozenset(removed)
        self._parameters = parameters
        self._broken = {(min(pair), max(pair)): None for pair in broken}
        self._known: dict[Link, bool] = {}

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        """Return True if publications of one broker reach another broker."""
        pair = source, home
        found = self._known.get(pair)
        if found is None:
            found = self._known[pair] = self._find(source, home)
        return found

    def starts(self, home: BrokerNumber) -> bool:
        """Return True if a subscription at a broker must start."""
        return True

    def ends(self, home: BrokerNumber) -> bool:
        """Return True if requested ends at a broker must complete, answered anywhere."""
        return True

    def recovers(self, broker: BrokerNumber) -> bool:
        """Return True if a broker must end its recovery, whatever it has lost."""
        return True

    def drains(self, home: BrokerNumber) -> bool:
        """Return True if a broker must deliver all earlier publications to a client that moves."""
        return True

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """Return True if publishers at a broker must receive acknowledgements.

        Args:
            homes: the access brokers of all subscribers.
        """
        return all(self.reaches(source, home) for home in homes)

    def _find(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        return self._graph.is_open(source, home, self._broken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """A way to break the protocol.

    Attributes:
        mutants: named bugs of every broker.
        row: row of the campaign; "" for the mix.
        settings: parameters of the protocol, as `name=value`.
        moves: clients move, and brokers join and depart.
        unseen: reason why no swarm finds the bugs; "" if a swarm must find them.
    """

    mutants: tuple[str, ...] = ()
    row: str = ""
    settings: tuple[str, ...] = ()
    moves: bool = False
    unseen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWorld:
    """The parts of a simulated world that are visible to checks, beside its steps.

    Attributes:
        brokers: all brokers, by number.
        has_publishers: returns True if clients of a broker publish.
        is_gone: returns True if a broker was decommissioned.
        strict: a broken rule is an error; otherwise only the oracle is notified.
    """

    schedule: Schedule
    graph: OverlayGraph
    oracle: Oracle
    parameters: Any
    brokers: Callable[[], Sequence[BrokerView]]
    has_publishers: Callable[[BrokerNumber], bool]
    is_gone: Callable[[BrokerNumber], bool]
    strict: bool


def message_of(broker: BrokerView, event: Event) -> Any:
    """Return the message of an event; None for a message on a closed session.

    No core acts on such a message, so checks must ignore the message too.
    """
    if type(event) is MessageReceived and broker.session_with(event.peer) == event.session:
        return event.message
    return None


class ProtocolChecks:
    """Checks of one protocol's steps and states; the base class checks nothing.

    Every method raises InvariantViolated for a broken rule, with the broker and the rule.
    """

    def __init__(self, world: CheckedWorld) -> None:
        self.world = world

    def client_added(self, client: ClientId, home: BrokerNumber) -> None:
        """Record the access broker of a client."""

    def on_joined(self, newcomer: BrokerNumber) -> None:
        """Record a new broker in the overlay, without clients."""

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[ClientId, int]]:
        """Check an event that a core has handled; return the subscriptions that the core ended."""
        return ()

    def origins_of(
        self, stream: StreamId, first: int, last: int
    ) -> Iterable[tuple[SourceId, int]] | None:
        """Return the publications at positions of a stream that no publisher has.

        None if `is_in_gap` decides.
        """
        return None

    def is_in_gap(
        self, gap: Stretch, source: SourceId, sequence: int, *, is_lost_there: bool
    ) -> bool:
        """Return True if lost positions of a stream may have had a publication of its broker.

        Args:
            is_lost_there: the stream's broker has lost the publication; otherwise the subscriber's
                broker.
        """
        return True

    def keeper_of(self, source: SourceId, sequence: int, home: BrokerNumber) -> BrokerNumber:
        """Return the broker that has an acknowledged publication on disk.

        Args:
            home: the access broker of the publisher.
        """
        return home

    def has_lost(self, source: SourceId, sequence: int) -> bool:
        """Return True if an accepted loss took a publication that no broker has stored again.

        Its acknowledgement may still be in transit.
        """
        return False

    def stores_for(self, broker: BrokerNumber, home: BrokerNumber) -> bool:
        """Return True if a broker has the subscriptions of clients at an access broker on disk."""
        return broker == home

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """Check a live broker's state."""

    def check_settled(self, brokers: Sequence[BrokerView]) -> None:
        """Check the state of brokers after the end of all faults, with nothing in flight.

        Args:
            brokers: all brokers, by number; lost brokers are down.
        """

    def list_rest(self, brokers: Sequence[BrokerView]) -> list[str]:
        """Return the remaining state of brokers once nothing is owed, in words.

        Args:
            brokers: all brokers, by number; departed brokers are down.
        """
        return []

    def aftermath(self, broker: BrokerView) -> Sequence[str]:
        """Return the remaining state of a broker that nothing excuses; see DeliveryProtocol."""
        return broker.protocol.aftermath()

    def restored(self, broker: BrokerView) -> int:
        """Return the number of ended subscriptions that a broker has because of an accepted loss.

        An older copy of its disk has restored the subscription, or a broker that was to report a
        move has lost that. The publications stay until the client has been away for
        `client_linger_ns`.
        """
        return 0

    def list_pending(self, brokers: Sequence[BrokerView]) -> list[str]:
        """Return the announcements that brokers delay, with the state kept for them, in words.

        No announcement is owed, so a run may end before. The state that is kept meanwhile may
        exceed the growth limits.

        Args:
            brokers: as in `list_rest`.
        """
        return []

    def can_serve(self, one: BrokerView, other: BrokerView) -> bool:
        """Return True if two live brokers have exchanged their state, or need not."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProtocol:
    """The parts of a protocol for simulations, beyond its definition.

    Attributes:
        ablations: the rules of the protocol, left out one by one.
        canaries: named bugs that any swarm finds within a few seeds; long swarms run them as well.
        marks: named events of the rules.
        make_observer: returns the counter of marks in one cluster; None without marks.
        make_checks: returns the checks of steps and of the state of cores.
        forgiven: rules of the oracle that the protocol may break, which are counted.
        checks_always: the checks apply although less than exactly once is promised.
        make_reach: returns the reachability, given the parameters and links that stay broken.
        kept: limits of the containers of cores.
        limits: constants of modules that seeds lower.
        positions: durable rows with positions.
        recounts: counters, each with the state that it counts.
        make_planning: returns the settings of parameters by seeds.
        counters: statistics of brokers that reports of seeds add up.
        timed_counters: further statistics, which only seeds on a clock add up.
        tallied: counters of reports that the ledger adds up.
        make_wording: returns the words of scenarios for messages of brokers.
    """

    ablations: Mapping[str, Ablation] = field(default_factory=dict)
    canaries: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    make_observer: Callable[[OverlayGraph], MarkObserver] | None = None
    make_checks: Callable[[CheckedWorld], ProtocolChecks] = ProtocolChecks
    checks_always: bool = False
    forgiven: tuple[str, ...] = ()
    make_reach: Callable[[OverlayGraph, Any, Iterable[Link], Iterable[BrokerNumber]], Reach] = Reach
    kept: ContainerLimits = field(default_factory=ContainerLimits)
    limits: tuple[Limit, ...] = ()
    positions: tuple[Position, ...] = ()
    recounts: tuple[Recount, ...] = ()
    counters: tuple[str, ...] = ()
    timed_counters: tuple[str, ...] = ()
    tallied: tuple[str, ...] = ()
    make_wording: Callable[[NamedWorld], Wording] = Wording
    make_planning: Callable[[ProtocolDefinition], ProtocolPlanning] = ProtocolPlanning


COMMON_COUNTERS: Final = ("duplicates_received", "resent_publications", "messages_ignored")
"""Statistics of brokers of several protocols that reports of seeds add up."""


def simulation_of(protocol: str) -> SimulatedProtocol:
    """Return the parts of a protocol for simulations; empty if its definition names no module.

    Raises:
        ConfigError: no protocol has this name.
    """
    module = definition_of(protocol).checks
    if not module:
        return SimulatedProtocol()
    found = import_module(module).SIMULATED
    assert isinstance(found, SimulatedProtocol), f"{module}: SIMULATED = {found!r}"
    return found


def marks_of(protocol: str) -> tuple[Mark, ...]:
    """Return the marks of a protocol; empty if its document names none."""
    found = simulation_of(protocol)
    if not found.marks:
        return ()
    advanced = (ADVANCED_AGAIN,) if found.positions else ()
    return (*found.marks, *advanced, *make_marks(planning_of(protocol).compounds))


def limits_of(protocol: str) -> tuple[Limit, ...]:
    """Return the limits that seeds of a protocol lower."""
    return (*SHARED, *simulation_of(protocol).limits)


def planning_of(protocol: str) -> ProtocolPlanning:
    return simulation_of(protocol).make_planning(definition_of(protocol))


def make_checks(protocol: str, world: CheckedWorld) -> ProtocolChecks:
    """Return the checks of a protocol; empty checks for a protocol that promises less."""
    found = simulation_of(protocol)
    if not (world.oracle.reliable or found.checks_always):
        return ProtocolChecks(world)
    return found.make_checks(world)


def make_position_checks(protocol: str) -> PositionChecks:
    """Return the check that no position in a durable row of a protocol decreases."""
    return PositionChecks(simulation_of(protocol).positions)


def make_observer(protocol: str, graph: OverlayGraph) -> MarkObserver | None:
    """Return the counter of a protocol's marks in one cluster."""
    make = simulation_of(protocol).make_observer
    return make(graph) if make is not None else None


def bug_names() -> list[str]:
    """Return the names of the named bugs of all protocols.

    Raises:
        NoCheckout: this is no source checkout.
    """
    return list(dict.fromkeys(name for protocol in DEFINITIONS for name in bugs_of(protocol)))


def named_bug(name: str, protocol: str) -> NamedBug:
    """Return a named bug: the protocol's own, or else that of another protocol.

    Raises:
        ConfigError: no bug has this name; names the nearest.
        NoCheckout: this is no source checkout.
    """
    for each in (protocol, *DEFINITIONS):
        if name in bugs_of(each):
            return bugs_of(each)[name]
    raise ConfigError(f"no named bug {name!r}{nearest(name, bug_names())}")


@contextmanager
def with_bugs(names: Iterable[str], protocol: str) -> Iterator[None]:
    """Plant named bugs in this process for the duration of the context.

    Raises:
        AnchorLost: a bug does not fit the source any more.
        ConfigError, NoCheckout: as `named_bug`.
    """
    with plant([named_bug(name, protocol) for name in sorted(names)]):
        yield
