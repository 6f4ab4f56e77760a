"""A simulated broker: the driver of one core, equivalent to the driver of the runtime."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol

from brokerd.model.client_messages import Redirect
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.extensions import CoreWrapper
from brokerd.protocols.interface import (
    STATE_RESTORED,
    Append,
    Chop,
    CloseSession,
    Commit,
    DeadlineReached,
    Deliver,
    DeliveryProtocol,
    Effect,
    Event,
    Instant,
    LossReason,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Read,
    Record,
    RedirectClient,
    Send,
    SessionEstablished,
    SessionLost,
    Shutdown,
    Started,
    Truncate,
)
from brokerd.sessions.messages import StateMark
from brokerd.simulator.world.clock import PATIENCE_NS, Schedule, WallClocks
from brokerd.simulator.world.disk import SimulatedDisk
from brokerd.simulator.world.network import (
    Network,
    freeze_endpoint,
    kill_endpoint,
    send_withheld,
    thaw_endpoint,
)
from brokerd.simulator.world.sessions import Endpoint, OldMessage, SessionEnd
from brokerd.units import MILLISECOND_NS

DISK_NS = 2 * MILLISECOND_NS
STEP = 4_096
"""The step of the incarnation when a loss is accepted."""
ACCEPTED = 1_000_000
"""The first lineage: far below all incarnations of clients, as the time in seconds is."""


@dataclass(slots=True)
class OwnClock:
    """A clock that advances only to a deadline of its broker."""

    now_ns: Instant = 0


class Observer(Protocol):
    """An observer of every step of every broker, after the core and before the effects."""

    def step(self, broker: "SimulatedBroker", event: Event, effects: list[Effect]) -> None:
        """Record a step of a protocol; relayed sessions look like direct sessions."""
        ...

    def on_driven(self, broker: "SimulatedBroker", event: Event, effects: list[Effect]) -> None:
        """Record an event from a driver with its effects; the driver has direct sessions only."""
        ...


class SimulatedBroker(Endpoint):
    """One broker: a core while the broker is alive, and a disk that outlives the core.

    Args:
        clock: source of the time instead of the schedule; such a broker has no timers, and its disk
            takes no time.

    Attributes:
        core: the core of the current or last incarnation.
        protocol: the core without the relay of sessions.
        disk: the disk; outlives the core.
        events: number of events that the cores of all incarnations have handled.
        history: (event, instant, effects) of this incarnation, if requested.
        joins: the broker first starts without state in a running deployment.
        lineage, restores: see Started.
        recorded: records of the core for the event log, as (event, details).
        has_ended: the core shut the broker down; set until the next start.
    """

    def __init__(
        self,
        number: BrokerNumber,
        name: str,
        network: Network,
        random: Random,
        make_core: Callable[[BrokerNumber], DeliveryProtocol],
        observer: Observer | None,
        logs: Iterable[str],
        wall_clocks: WallClocks,
        clock: OwnClock | None = None,
    ) -> None:
        super().__init__(number)
        self.number = number
        self.name = name
        self.core: DeliveryProtocol
        self.protocol: DeliveryProtocol
        self.events = 0
        self.joins = False
        self.lineage = 0
        self.restores = False
        self.has_ended = False
        self.history: list[tuple[Event, Instant, list[Effect]]] | None = None
        self.recorded: list[tuple[str, Any]] = []
        self._network = network
        self._schedule: Schedule = network.schedule
        self._make_core = make_core
        self._observer = observer
        self._wall_clocks = wall_clocks
        self._own_clock = clock
        self._clock: Schedule | OwnClock = clock or self._schedule
        delay_ns = 0 if clock is not None else DISK_NS
        self.disk = SimulatedDisk(number, self._schedule, random, delay_ns, logs, self._handle)
        self._local: deque[Event] = deque()
        self._handling = False
        self._waited = False
        self._wrapper: CoreWrapper | None = None
        self._absorbed: list[tuple[SessionEnd, Any]] = []
        self._handles_all = True
        self._deadline: Instant | None = None
        self._perform: dict[type, Callable[[Any], None]] = {
            Send: self._perform_send,
            Deliver: self._perform_deliver,
            RedirectClient: self._perform_redirect,
            OpenSession: self._perform_open,
            CloseSession: self._perform_close,
            Commit: self._perform_commit,
            Append: self.disk.log,
            Read: self.disk.log,
            Chop: self.disk.log,
            Truncate: self.disk.log,
            Record: self._perform_record,
            Shutdown: self._perform_shutdown,
        }

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Start a new incarnation on the disk as it is."""
        assert not self.alive, f"{self.name} runs already"
        self.alive, self.has_ended = True, False
        self.incarnation += 1
        self.disk.begin(self.incarnation)
        self._sessions = 0
        self.core = self._make_core(self.number)
        self._wrapper = self.core if isinstance(self.core, CoreWrapper) else None
        self.protocol = self.core if self._wrapper is None else self._wrapper.core
        if self._wrapper is not None and self._observer is not None:
            self._wrapper.watch = partial(self._observer.step, self)
        if self.history is not None:
            self.history = []
        recovering = self.incarnation > 1 or self.joins
        disk = self.disk
        wall_ns = self._wall_clocks.read_at_start(self.number, self._clock.now_ns)
        self._handle(
            Started(
                self.incarnation,
                recovering,
                disk.recovered(),
                disk.ends(),
                wall_ns,
                self.lineage,
                self.restores,
                self.incarnation,
            )
        )

    def accept_loss(self) -> None:
        """Start on a disk that lost durable state, as accepted by the operator."""
        self._begin_lineage()
        self.restores = False
        self._wall_clocks.set_ahead(self.number)
        self.start()

    def restore_state(self) -> None:
        """Start on a disk that lost durable state, which other brokers have."""
        self._begin_lineage()
        self.restores = True
        self.start()

    def _begin_lineage(self) -> None:
        self.incarnation += STEP
        self.lineage = self.disk.ledger.lineage = ACCEPTED + self.incarnation
        self.disk.ledger.vouched.clear()

    def witnessed_mark(self) -> tuple[BrokerNumber, StateMark] | None:
        """Return a neighbour and the mark of durable state that it has; None without a neighbour.

        Marks are sent with heartbeats, so a mark passes wherever a session is alive.
        """
        for peer, end in self.ends.items():
            is_open = end.other.up and not end.other.deaf
            if isinstance(peer, int) and is_open and self._network.is_open(self.key, end.peer):
                return peer, self.disk.ledger.mark()
        return None

    def kill(self, kept: int | None = None) -> None:
        """Lose all volatile state at once; for `kept` see `SimulatedDisk.crash`."""
        assert self.alive, f"{self.name} is dead already"
        self.alive = self.frozen = self.absorbing = False
        self._handles_all = True
        self._absorbed.clear()
        self._local.clear()
        self._deadline = None
        kill_endpoint(self._network, self)
        self.disk.crash(kept)

    def freeze(self) -> None:
        """Stop the time of this broker until `thaw`; peers receive nothing."""
        if not self.frozen:
            freeze_endpoint(self._network, self)
            self.disk.lane.hold()
            self.disk.log_lane.hold()

    def thaw(self) -> None:
        """Resume the time of this broker."""
        if self.frozen:
            self.disk.lane.release()
            self.disk.log_lane.release()
            thaw_endpoint(self._network, self)
            self._deadline = None
            self._rearm()

    def absorb(self) -> None:
        """Receive everything and send only signs of life until `release` or `kill`."""
        self.absorbing = True
        self._handles_all = False

    def omit_sends(self) -> None:
        """Handle everything and send only signs of life until `release` or `kill`."""
        self.absorbing = True

    def release(self) -> None:
        """Handle and send the absorbed messages, in order."""
        if not self.absorbing:
            return
        self.absorbing = False
        self._handles_all = True
        send_withheld(self._network, self)
        absorbed, self._absorbed = self._absorbed, []
        for end, message in absorbed:
            if end.up:
                self._handle(MessageReceived(end.peer, end.number, message))

    def operate(self, event: Event) -> None:
        """Handle an event from the operator; the broker must be alive."""
        self._handle(event)

    @property
    def is_responsive(self) -> bool:
        """Return True if the broker handles requests."""
        return self.alive and not self.frozen and not self.absorbing

    def session_with(self, peer: Peer) -> int:
        """Return the number of the session with a peer, relayed or direct; 0 without a session."""
        if self._wrapper is not None and isinstance(peer, int):
            return self._wrapper.session_with(peer)
        end = self.ends.get(peer)
        return end.number if end is not None else 0

    def on_disk(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the rows for a restart: table → key → value."""
        return self.disk.recovered()

    def rows_of(self, table: str) -> Mapping[str, Any]:
        """Return the durable rows of one table, for a look only."""
        return self.disk.rows_of(table)

    def records_of(self, log: str) -> tuple[int, Sequence[bytes]]:
        """Return the index of the first durable record of a log, and the durable records."""
        return self.disk.records_of(log)

    # ------------------------------------------------------------ events from the network

    def on_established(self, end: SessionEnd, incarnation: int) -> None:
        self._handle(SessionEstablished(end.peer, end.number, incarnation))

    def on_lost(self, end: SessionEnd, reason: LossReason) -> None:
        if self.absorbing:
            self._absorbed = [entry for entry in self._absorbed if entry[0] is not end]
        self._handle(SessionLost(end.peer, end.number, reason))

    def open_failed(self, peer: Peer, reason: str) -> None:
        self._handle(OpenFailed(peer, reason))

    def message_arrived(self, end: SessionEnd, message: Any) -> None:
        if not self._handles_all:
            self._absorbed.append((end, message))
        else:
            self._handle(MessageReceived(end.peer, end.number, message))

    def receive_old(self, old: OldMessage) -> bool:
        """Receive a message of a closed session; return False if the incarnation differs.

        No correct driver passes such a message to a core.
        """
        if not self.alive or self.incarnation != old.incarnation:
            return False
        self._handle(MessageReceived(old.peer, old.session, old.message))
        return True

    # ------------------------------------------------------------ own clock

    @property
    def clock_ns(self) -> Instant:
        return self._clock.now_ns

    def set_clock(self, now_ns: Instant) -> None:
        """Set the own clock, to no earlier time after the first start."""
        assert self._own_clock is not None, f"{self.name} uses the common clock"
        self._own_clock.now_ns = now_ns

    def deadline(self) -> Instant | None:
        """Return the earliest deadline of the core; None for a deadline beyond any patience."""
        due = self.core.next_deadline() if self.alive else None
        return due if due is not None and due < self._clock.now_ns + PATIENCE_NS else None

    def reach_deadline(self) -> bool:
        """Advance the own clock to the earliest deadline; return False without a deadline."""
        assert self._own_clock is not None, f"{self.name} uses the common clock"
        due = self.deadline()
        if due is None:
            return False
        self._own_clock.now_ns = max(self._own_clock.now_ns, due)
        self._handle(DeadlineReached())
        return True

    # ------------------------------------------------------------ core

    def _handle(self, event: Event) -> None:
        """Handle an event in the core, with all immediate consequences at this broker."""
        self._local.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._local:
                self._handle_one(self._local.popleft())
        finally:
            self._handling = False
        if self.alive:
            self._rearm()

    def _handle_one(self, event: Event) -> None:
        now_ns = self._clock.now_ns
        self.events += 1
        self._waited = type(event) is DeadlineReached
        effects = self.core.handle(event, now_ns)
        if self.history is not None:
            self.history.append((event, now_ns, effects))
        if self._observer is not None:
            self._observer.on_driven(self, event, effects)
            if self._wrapper is None:
                self._observer.step(self, event, effects)
        for effect in effects:
            self._perform[type(effect)](effect)

    def _rearm(self) -> None:
        if self._own_clock is not None:
            return  # see reach_deadline
        deadline = self.core.next_deadline()
        if deadline is not None and (self._deadline is None or deadline < self._deadline):
            self._deadline = deadline
            self._schedule.at(deadline, self._fire, self.incarnation, deadline)

    def _fire(self, incarnation: int, deadline: Instant) -> None:
        if not self.alive or self.incarnation != incarnation or self._deadline != deadline:
            return
        if self.frozen:
            return  # thaw checks again
        self._deadline = None
        due = self.core.next_deadline()
        if due is not None and due <= self._schedule.now_ns:
            self._handle(DeadlineReached())
        else:
            self._rearm()

    def _perform_send(self, effect: Send) -> None:
        self._network.send(self, effect.peer, effect.message)

    def _perform_deliver(self, effect: Deliver) -> None:
        self._network.send(self, effect.client, effect.item)

    def _perform_redirect(self, effect: RedirectClient) -> None:
        self._network.send(self, effect.client, Redirect(tuple(map(str, effect.brokers))))

    def _perform_open(self, effect: OpenSession) -> None:
        self._network.open(self, effect.peer, again=self._waited)

    def _perform_close(self, effect: CloseSession) -> None:
        self._network.close(self, effect.peer, "closed_by_us")

    def _perform_commit(self, effect: Commit) -> None:
        self.disk.commit(effect.changes, effect.token)

    def _perform_shutdown(self, _effect: Shutdown) -> None:
        self.kill()
        self.has_ended = True

    def _perform_record(self, effect: Record) -> None:
        if effect.event == STATE_RESTORED:
            self.restores = False
        self.recorded.append((effect.event, effect.details))
