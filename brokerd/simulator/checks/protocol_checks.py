"""What a protocol brings along for simulations: its marks, and checks that look inside its cores.

They lie in the protocol's own folder, in the module that its definition names, and are imported
when a simulation begins; nothing that is deployed needs them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.routes import Link
from brokerd.overlay.topology import nearest
from brokerd.protocols.definition import ProtocolDefinition
from brokerd.protocols.interface import Effect, Event, MessageReceived
from brokerd.protocols.registry import DEFINITIONS, definition_of
from brokerd.simulator.checks.ablations import Ablation
from brokerd.simulator.checks.growth import Kept
from brokerd.simulator.checks.limits import SHARED, Limit
from brokerd.simulator.checks.marks import ADVANCED_AGAIN, Mark, MarkObserver
from brokerd.simulator.checks.oracle import Oracle
from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.checks.positions import Position, PositionChecks
from brokerd.simulator.checks.reach import Reach
from brokerd.simulator.checks.recounts import Recount
from brokerd.simulator.checks.wording import NamedWorld, Wording
from brokerd.simulator.named_bugs import NamedBug, bugs_of, planted
from brokerd.simulator.world.clock import Schedule
from brokerd.simulator.world.views import BrokerView


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWorld:
    """What checks may see of a simulated world beside its steps.

    Attributes:
        brokers: all, by number.
        has_publishers: whether clients of a broker publish.
        is_gone: whether a broker was decommissioned.
        strict: whether a broken rule is an error; otherwise the oracle is only told.
    """

    schedule: Schedule
    graph: OverlayGraph
    oracle: Oracle
    parameters: Any
    brokers: Callable[[], Sequence[BrokerView]]
    has_publishers: Callable[[BrokerNumber], bool]
    is_gone: Callable[[BrokerNumber], bool]
    strict: bool


def heard(broker: BrokerView, event: Event) -> Any:
    """The message that an event brings; None for one that comes when its session is over.

    No core acts on such a message, so checks must not take its word either.
    """
    if type(event) is MessageReceived and broker.session_with(event.peer) == event.session:
        return event.message
    return None


class ProtocolChecks:
    """Checks of one protocol's steps and states; as it stands, of nothing.

    Every method raises InvariantViolated where a rule is broken, naming broker and rule.
    """

    def __init__(self, world: CheckedWorld) -> None:
        self.world = world

    def client_added(self, client: ClientId, home: BrokerNumber) -> None:
        """A client lives at this broker."""

    def joined(self, newcomer: BrokerNumber) -> None:
        """A broker is in the overlay that has not been there; it has no clients yet."""

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[ClientId, int]]:
        """A core has handled an event; returns subscriptions that it gave up."""
        return ()

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """Look at a live broker's state."""

    def settled(self, brokers: Sequence[BrokerView]) -> None:
        """Look at what brokers know when all faults are over and nothing is under way.

        Args:
            brokers: all, by number; those that never come back are down.
        """

    def left_over(self, brokers: Sequence[BrokerView]) -> list[str]:
        """What brokers still hold when nobody is owed anything, in words.

        Args:
            brokers: all, by number; those that have left are down.
        """
        return []

    def still_to_say(self, brokers: Sequence[BrokerView]) -> list[str]:
        """What brokers say when its time has come, and keep something for until then, in words.

        Nobody is owed it, so a run may be over before; more than what is alive justifies may be
        kept for it.

        Args:
            brokers: as of `left_over`.
        """
        return []

    def are_serving(self, one: BrokerView, other: BrokerView) -> bool:
        """Whether two live brokers have told each other what they know, or need not."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProtocol:
    """A protocol, as simulations know it beyond its definition.

    Attributes:
        ablations: its rules, left out one by one.
        canaries: named bugs that any swarm meets within a few seeds; long swarms run them besides.
        marks: named events of its rules.
        make_observer: what counts them in one cluster; None where there are none.
        make_checks: what looks at its steps and inside its cores.
        forgiven: rules of the oracle that it may break, which are counted.
        checks_always: whether they hold although less than exactly once is promised.
        make_reach: who still hears whom, given the parameters and links that stay broken.
        kept: how much its cores may keep of what.
        limits: constants of its modules that seeds lower.
        positions: its durable rows that say how far something has come.
        recounts: its counters, and what each of them stands for.
        make_planning: how seeds set its parameters.
        make_wording: how scenarios say what its brokers tell each other.
    """

    ablations: Mapping[str, Ablation] = field(default_factory=dict)
    canaries: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    make_observer: Callable[[OverlayGraph], MarkObserver] | None = None
    make_checks: Callable[[CheckedWorld], ProtocolChecks] = ProtocolChecks
    checks_always: bool = False
    forgiven: tuple[str, ...] = ()
    make_reach: Callable[[OverlayGraph, Any, Iterable[Link], Iterable[BrokerNumber]], Reach] = Reach
    kept: Kept = field(default_factory=Kept)
    limits: tuple[Limit, ...] = ()
    positions: tuple[Position, ...] = ()
    recounts: tuple[Recount, ...] = ()
    make_wording: Callable[[NamedWorld], Wording] = Wording
    make_planning: Callable[[ProtocolDefinition], ProtocolPlanning] = ProtocolPlanning


def simulated(protocol: str) -> SimulatedProtocol:
    """What a protocol brings along; nothing where its definition names no module.

    Raises:
        ConfigError: no protocol is called so.
    """
    module = definition_of(protocol).checks
    if not module:
        return SimulatedProtocol()
    found = import_module(module).SIMULATED
    assert isinstance(found, SimulatedProtocol), f"{module}: SIMULATED = {found!r}"
    return found


def marks_of(protocol: str) -> tuple[Mark, ...]:
    """The marks of a protocol; none where its document names none."""
    found = simulated(protocol)
    return (*found.marks, ADVANCED_AGAIN) if found.positions else found.marks


def limits_of(protocol: str) -> tuple[Limit, ...]:
    """Return the limits that seeds of a protocol lower."""
    return (*SHARED, *simulated(protocol).limits)


def planning_of(protocol: str) -> ProtocolPlanning:
    """How seeds set a protocol's parameters."""
    return simulated(protocol).make_planning(definition_of(protocol))


def make_checks(protocol: str, world: CheckedWorld) -> ProtocolChecks:
    """What looks at a protocol's steps and inside its cores; nothing where it promises less."""
    found = simulated(protocol)
    if not (world.oracle.reliable or found.checks_always):
        return ProtocolChecks(world)
    return found.make_checks(world)


def make_position_checks(protocol: str) -> PositionChecks:
    """Return the rule that no durable row of a protocol says less than before."""
    return PositionChecks(simulated(protocol).positions)


def make_observer(protocol: str, graph: OverlayGraph) -> MarkObserver | None:
    """What counts a protocol's marks in one cluster."""
    make = simulated(protocol).make_observer
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
    with planted([named_bug(name, protocol) for name in sorted(names)]):
        yield
