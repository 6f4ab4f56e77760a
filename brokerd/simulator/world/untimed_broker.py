"""A broker without time: the driver of one core, and its disk."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import (
    Append,
    Change,
    Chop,
    CloseSession,
    Commit,
    DeadlineReached,
    Deliver,
    DeliveryProtocol,
    Effect,
    Event,
    Instant,
    LogEffect,
    LossReason,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Persisted,
    Read,
    Record,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
    Truncate,
)
from brokerd.simulator.world.logs import SimulatedLogs
from brokerd.simulator.world.untimed import End, Endpoint, Lane, UntimedNetwork
from brokerd.simulator.world.wall_clock import WallClocks

PATIENCE_NS = 10**15
"""Deadlines farther off than this, measured from the last one, are meant never to come."""

PAGE = 2
"""So few records are read at once, that cores do not take one answer for all there are."""


class UntimedDisk:
    """What survives of a broker: its meta store and its logs.

    Each becomes durable in the order in which it was written; neither waits for the other.
    """

    def __init__(self, lane: Lane, log_lane: Lane, logs: Iterable[str]) -> None:
        self._lane = lane
        self._log_lane = log_lane
        self._tables: dict[str, dict[str, Any]] = {}
        self.logs = SimulatedLogs(logs)

    @property
    def waits(self) -> bool:
        """Whether the broker has not been told of everything it wrote."""
        return bool(self._lane.queue or self._log_lane.queue)

    def commit(self, effect: Commit) -> None:
        """Rows are to be durable, in their turn."""
        self._lane.push(effect)

    def log(self, effect: LogEffect) -> None:
        """A log is to be changed or read, in its turn."""
        self.logs.take(effect)
        self._log_lane.push(effect)

    def write(self, effect: Commit | LogEffect) -> Event | None:
        """It is durable now, or read; what the core is told of that."""
        if not isinstance(effect, Commit):
            return self.logs.write(effect, PAGE)
        for change in effect.changes:
            self._apply(change)
        return Persisted(effect.token) if effect.token is not None else None

    def crash(self, kept: int) -> None:
        """Of what nobody was told about, keep the first `kept` of each, or all there are."""
        for lane in (self._lane, self._log_lane):
            for effect in [*lane.queue][:kept]:
                self.write(effect)
            lane.keep(0)
        self.logs.crash()

    def recovered(self) -> Mapping[str, Mapping[str, Any]]:
        """What a restarted broker finds: table → key → value, tuples as lists."""
        return {
            table: {key: _as_stored(value) for key, value in rows.items()}
            for table, rows in self._tables.items()
        }

    def _apply(self, change: Change) -> None:
        rows = self._tables.setdefault(change.table, {})
        if change.value is None:
            rows.pop(change.key, None)
        else:
            rows[change.key] = change.value


def _as_stored(value: Any) -> Any:
    return [_as_stored(item) for item in value] if isinstance(value, list | tuple) else value


class UntimedBroker(Endpoint):
    """One broker: a core while it is alive, and a disk that outlives it.

    Attributes:
        now_ns: its own clock; goes on only with its deadlines.
        effects_by_event: how many effects each event had: the shape of its history.
        history: (event, instant, effects) of this incarnation, where it is to be kept.
    """

    def __init__(
        self,
        number: BrokerNumber,
        name: str,
        network: UntimedNetwork,
        make_core: Callable[[BrokerNumber], DeliveryProtocol],
        observe: Callable[["UntimedBroker", Event, list[Effect]], None],
        logs: Iterable[str],
        wall_clocks: WallClocks,
    ) -> None:
        super().__init__(number)
        self.number = number
        self.name = name
        self.core = make_core(number)
        self.now_ns: Instant = 0
        self.effects_by_event: list[int] = []
        self.history: list[tuple[Event, Instant, list[Effect]]] | None = None
        self._network = network
        self._make_core = make_core
        self._observe = observe
        self._wall_clocks = wall_clocks
        self.disk = UntimedDisk(
            network.lane(("persist", number), self._persisted),
            network.lane(("log", number), self._persisted),
            logs,
        )
        self._local: deque[Event] = deque()
        self._handling = False

    @property
    def protocol(self) -> DeliveryProtocol:
        """The protocol itself: nothing is relayed here."""
        return self.core

    def on_disk(self) -> Mapping[str, Mapping[str, Any]]:
        """The rows that a restart would find: table → key → value."""
        return self.disk.recovered()

    def session_with(self, peer: Peer) -> int:
        """The number of its session with a peer, 0 when there is none."""
        end = self.ends.get(peer)
        return end.number if end is not None else 0

    def start(self) -> None:
        """Start a new incarnation on the disk as it is."""
        assert not self.alive, f"{self.name} runs already"
        self.alive = True
        self.incarnation += 1
        self._sessions = 0
        self.core = self._make_core(self.number)
        if self.history is not None:
            self.history = []
        recovering = self.incarnation > 1
        disk = self.disk
        rows, ends = disk.recovered(), disk.logs.ends()
        wall_ns = self._wall_clocks.at_start(self.number, self.now_ns)
        self._handle(Started(self.incarnation, recovering, rows, ends, wall_ns))

    def crash(self, kept: int) -> None:
        """Lose everything volatile; see UntimedDisk.crash."""
        self.alive = False
        self._network.endpoint_died(self)
        self.disk.crash(kept)

    def fire(self) -> bool:
        """The earliest deadline has come; False when there is none worth waiting for."""
        due = self.deadline()
        if due is None:
            return False
        self.now_ns = max(self.now_ns, due)
        self._handle(DeadlineReached())
        return True

    def deadline(self) -> Instant | None:
        """The earliest deadline, if it is meant ever to come."""
        due = self.core.next_deadline() if self.alive else None
        return due if due is not None and due < self.now_ns + PATIENCE_NS else None

    def receive_old(self, incarnation: int, peer: Peer, session: int, message: Any) -> bool:
        """Take a message of a session that is over, as no sound driver would hand it over."""
        if not self.alive or self.incarnation != incarnation:
            return False
        self._handle(MessageReceived(peer, session, message))
        return True

    # ------------------------------------------------------------ what the network says

    def established(self, end: End, incarnation: int) -> None:
        self._handle(SessionEstablished(end.peer, end.number, incarnation))

    def lost(self, end: End, reason: LossReason) -> None:
        self._handle(SessionLost(end.peer, end.number, reason))

    def open_failed(self, peer: Peer, reason: str) -> None:
        self._handle(OpenFailed(peer, reason))

    def message_arrived(self, end: End, message: Any) -> None:
        self._handle(MessageReceived(end.peer, end.number, message))

    # ------------------------------------------------------------ the core

    def _persisted(self, effect: Commit | LogEffect) -> None:
        event = self.disk.write(effect)
        if event is not None:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        """Let the core handle an event and whatever follows at this broker at once."""
        self._local.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._local:
                self._handle_one(self._local.popleft())
        finally:
            self._handling = False

    def _handle_one(self, event: Event) -> None:
        effects = self.core.handle(event, self.now_ns)
        self.effects_by_event.append(len(effects))
        if self.history is not None:
            self.history.append((event, self.now_ns, effects))
        self._observe(self, event, effects)
        network = self._network
        for effect in effects:
            match effect:
                case Send():
                    network.send(self, effect.peer, effect.message)
                case Deliver():
                    network.send(self, effect.client, effect.item)
                case Commit():
                    self.disk.commit(effect)
                case Append() | Read() | Chop() | Truncate():
                    self.disk.log(effect)
                case OpenSession():
                    network.open(self, effect.peer)
                case CloseSession():
                    network.close(self, effect.peer)
                case Record():
                    pass
