"""Invariants of every step of a simulated broker, for every protocol and every failure.

The oracle judges the deliveries to subscribers from outside. The checks in this module look at
single steps. Further checks of a protocol are in its own `checks`.

The check of each invariant of a protocol that promises reliability:

    I1   no phantom            deliveries: `judge` (phantom)
    I2   matches               deliveries: `judge` (unwanted)
    I3   exactly once          deliveries: `judge` (duplicate)
    I4   order per source      deliveries: `_check_rank` (order)
    I5   gapless               deliveries: `_check_rank` (gap), `_check_first` (gap, silent);
                               here: `_check_delivery` (before the start)
    I6   acknowledged arrives  here: `_check_acknowledgement`; oracle: `judge_end`
    I7   all or none           oracle: `judge_end` (all: nothing is rejected in a simulation)
    I8   liveness              plan_run: `_fail_liveness`; liveness: `WhileBroken`, while links are
                               broken
    I9   bounded memory        growth: `check_growth`, at the end of each seed; a client's window
                               bounds the queues before
    I10  honesty               notices: `judge`; deliveries: `_check_first` (silent)
    I11  locality              no check: a simulation has no processor time to lose
    I12  no residue            plan_run: `_has_converged`, `_list_rest`; effects of faults on hosts:
                               tests/fault_injection
    I13  no step back          recounts: `PositionChecks`, durable rows of positions
"""

from collections.abc import Callable, Sequence
from typing import Any

from brokerd.model.client_messages import Connected, Deliveries, PublishAcknowledged, Subscribed
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.interface import (
    FIRST_INNER_SESSION,
    Deliver,
    Effect,
    Event,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.simulator.checks.marks import MarkObserver
from brokerd.simulator.checks.oracle import Oracle
from brokerd.simulator.checks.protocol_checks import ProtocolChecks
from brokerd.simulator.checks.recounts import PositionChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.clock import Schedule
from brokerd.simulator.world.trace import Trace
from brokerd.simulator.world.views import BrokerView

Watcher = Callable[[Any, Event, list[Effect]], None]
"""A function that is called with every step; the broker is of the driver's kind."""


class StepChecker:
    """The checks of each step of each broker, and the keeper of the trace.

    Without `strict` nothing is checked, for a protocol that promises less; the oracle is still
    notified of closed gates.

    Attributes:
        bypass_sessions: number of session ends between brokers that are no neighbours.
        positions: checks of durable rows of positions.
        marks: counts the marks of the protocol, if any.
        looks_at: all brokers, if each broker is examined after each of its steps.
    """

    def __init__(
        self,
        schedule: Schedule,
        graph: OverlayGraph,
        oracle: Oracle,
        trace: Trace | None,
        strict: bool,
        watcher: Watcher | None,
        own: ProtocolChecks,
        positions: PositionChecks,
        marks: MarkObserver | None = None,
    ) -> None:
        self.own = own
        self.positions = positions
        self.marks = marks
        self._schedule = schedule
        self._graph = graph
        self._oracle = oracle
        self._trace = trace
        self._strict = strict
        self._watcher = watcher
        self.looks_at: Sequence[BrokerView] = ()
        self.bypass_sessions = 0
        self._sources: dict[tuple[int, ClientId], SourceId] = {}
        self._started: dict[tuple[ClientId, int], None] = {}

    def client_added(self, client: ClientId, home: int) -> None:
        """Record the access broker of a client."""
        self._oracle.homes[client] = home
        self.own.client_added(client, home)

    def on_joined(self, newcomer: BrokerNumber) -> None:
        """Record a new broker in the overlay, without clients."""
        self.own.on_joined(newcomer)

    def known(self) -> tuple[Any, ...]:
        """Return the sources and the started subscriptions that brokers have announced."""
        return self._sources, self._started

    def look_into(self, brokers: Sequence[BrokerView]) -> None:
        """Check the state of every live broker."""
        for broker in brokers:
            if broker.alive:
                self.own.look_into(broker, brokers)

    def list_rest(self, brokers: Sequence[BrokerView], *, may_queue: bool = False) -> list[str]:
        """Return the remaining state of live brokers once nothing is owed, in words.

        Args:
            may_queue: publications may wait for subscriptions that an older disk has restored.
        """
        lines = []
        for broker in brokers:
            left = list(self.own.aftermath(broker))
            if (queue := broker.protocol.status().queued) and not may_queue:
                left.append(f"{queue} publications queued")
            if left:
                lines.append(f"{broker.name} has {', '.join(left)}")
        return lines

    def on_driven(self, broker: BrokerView, event: Event, effects: list[Effect]) -> None:
        """Add an event of a driver to the trace; see broker.Observer."""
        if self._trace is not None:
            self._trace.step(self._schedule.now_ns, broker.name, event, effects)
        if self._watcher is not None:
            self._watcher(broker, event, effects)

    def step(self, broker: BrokerView, event: Event, effects: list[Effect]) -> None:
        """Check a step of a protocol; see broker.Observer."""
        if (
            self._watcher is not None
            and isinstance(event, SessionEstablished | SessionLost)
            and event.session >= FIRST_INNER_SESSION
        ):
            self._watcher(broker, event, [])
        if self.marks is not None:
            self.marks.step(broker, event, effects)
        if effects or type(event) is Started:
            self.positions.step(broker, event, effects)
        for given_up in self.own.step(broker, event, effects):
            self._started.pop(given_up, None)
        if not self._strict:
            return
        if type(event) is SessionEstablished and isinstance(event.peer, int):
            self.bypass_sessions += self._graph.distance(broker.number, event.peer) > 1
        for effect in effects:
            if type(effect) is Send:
                self._check_send(broker, effect)
            elif type(effect) is Deliver:
                self._check_delivery(broker, effect)
        if self.looks_at:
            self.own.look_into(broker, self.looks_at)

    def _check_send(self, broker: BrokerView, effect: Send) -> None:
        message = effect.message
        if type(message) is PublishAcknowledged:
            if self._oracle.reliable and not self._oracle.logged:
                self._check_acknowledgement(broker, effect.peer, message)
        elif type(message) is Connected and message.source is not None:
            assert isinstance(effect.peer, str), f"{message} sent to a broker"
            self._sources[broker.number, effect.peer] = message.source
        elif type(message) is Subscribed and message.state == "started":
            assert isinstance(effect.peer, str), f"{message} sent to a broker"
            self._started[effect.peer, message.number] = None

    def _check_delivery(self, broker: BrokerView, effect: Deliver) -> None:
        """Check that no delivery precedes the start of its subscription."""
        if not isinstance(effect.item, Deliveries):
            return
        for number in effect.item.subscriptions:
            if (effect.client, number) not in self._started:
                raise InvariantViolated(
                    "delivered before start", f"{broker.name} to {effect.client}/{number}"
                )

    def _check_acknowledgement(
        self, broker: BrokerView, client: Peer, message: PublishAcknowledged
    ) -> None:
        """Check that acknowledged publications have arrived at every owed subscription."""
        assert isinstance(client, str), f"{message} sent to a broker"
        source = self._sources[broker.number, client]
        for sequence in range(message.first, message.last + 1):
            missing = self._oracle.list_missing_subscribers(source, sequence)
            if missing:
                raise InvariantViolated(
                    "acknowledged too early",
                    f"{broker.name} acknowledges {client}'s {sequence}, which {missing} lack",
                )
