"""Checks of the messages between brokers, against earlier messages and requests.

Paper: [GD02] §2.4, §3.1 (consolidation of curiosity, answers for the curious only, sideways once).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.overlay.cells import CellGraph
from brokerd.protocols.gryphon.checks.stream_states import gryphon_of
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.gryphon.flow_control import EVENT_BYTES, FIRST_LIMIT
from brokerd.protocols.gryphon.knowledge import IntervalSet, Range
from brokerd.protocols.gryphon.messages import AckExpected, Done, Events, Nack, Silent, WindowUpdate
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.interface import (
    Effect,
    Event,
    Instant,
    MessageReceived,
    Send,
    SessionEstablished,
)
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


@dataclass(slots=True)
class _StreamTraffic:
    """The messages of one incarnation of a broker about one stream.

    Attributes:
        wanted: per neighbour, requested ticks without an answer so far.
        requested: ticks of recent requests, which may not be repeated yet.
        done: per neighbour and cell, the tick of the last ack for the cell.
    """

    wanted: dict[BrokerNumber, IntervalSet] = field(default_factory=dict)
    requested: deque[tuple[Instant, tuple[Range, ...]]] = field(default_factory=deque)
    done: dict[tuple[BrokerNumber, int], int] = field(default_factory=dict)

    def requested_by(self, neighbour: BrokerNumber) -> IntervalSet:
        """Return a neighbour's requested ticks without an answer; the caller may change the set."""
        return self.wanted.setdefault(neighbour, IntervalSet())


@dataclass(slots=True)
class _Untaken:
    """The sent and confirmed bytes of one kind on a neighbour's session."""

    sent_bytes: int = 0
    taken_bytes: int = 0


class TrafficChecks(ProtocolChecks):
    """See ProtocolChecks; the names of rules stand in the protocol's document.

    - unrequested: no answer is sent without a request;
    - window: a neighbour with a full window receives no further answers, and no first transmissions
      beyond several windows;
    - requested twice: no request is repeated within a while (I10);
    - requested without need: every request serves a neighbour's request or a gap of
      clients here (I10);
    - route back: no event returns to the cell of arrival, so none goes sideways twice (I11);
    - acknowledged ahead, acknowledgement decreased: acks for a cell follow received acks, and never
      decrease (I7).
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        parameters: GryphonParameters = world.parameters
        self._forgotten_ns = parameters.curiosity_forgotten_ns
        cells = world.graph.overlay
        assert isinstance(cells, CellGraph), f"{cells} is none of cells"
        self._graph = cells
        self._cells = [cells.cell_of(number) for number in range(len(cells.brokers))]
        self._traffic: dict[tuple[BrokerNumber, int, StreamId], _StreamTraffic] = {}
        self._is_reading = [False] * len(cells.brokers)
        self._most_events = parameters.events_per_message
        news_bytes = FIRST_LIMIT * parameters.send_window_bytes
        self._window_bytes = {False: news_bytes, True: parameters.answer_window_bytes}
        self._untaken: dict[
            tuple[BrokerNumber, BrokerNumber], dict[tuple[int, bool], _Untaken]
        ] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        received = event.message if type(event) is MessageReceived else None
        self._record_window(broker, event)
        if type(event) is MessageReceived and type(received) is Nack:
            assert isinstance(event.peer, int), (
                f"{event.peer} is a client, but announces {received}"
            )
            wanted = self._traffic_of(broker, received.stream).requested_by(event.peer)
            for start, end in received.ranges:
                wanted.add(start, end)
        requested: dict[StreamId, dict[tuple[Range, ...], None]] = {}
        answered: list[tuple[IntervalSet, Sequence[Range]]] = []
        sent: dict[tuple[BrokerNumber, StreamId, bool], Events] = {}
        for effect in effects:
            if type(effect) is not Send or not isinstance(effect.peer, int):
                continue
            message = effect.message
            if type(message) is Nack:
                requested.setdefault(message.stream, {})[message.ranges] = None
            elif type(message) is Events:
                wanted = self._traffic_of(broker, message.run.source).requested_by(effect.peer)
                answered.append((wanted, ((message.start, message.end),)))
                self._check_answer(broker, effect.peer, message.again, *answered[-1])
                key = effect.peer, message.run.source, message.again
                is_rest = self._is_rest(sent.get(key), message)
                self._check_window(broker, effect.peer, message, is_rest=is_rest)
                sent[key] = message
            elif type(message) is Silent:
                wanted = self._traffic_of(broker, message.stream).requested_by(effect.peer)
                answered.append((wanted, message.ranges))
                self._check_answer(broker, effect.peer, message.again, *answered[-1])
            elif type(message) is Done:
                self._check_done(broker, effect.peer, message)
            if type(event) is MessageReceived and isinstance(event.peer, int):
                self._check_way(broker, event.peer, received, effect.peer, message)
        # Only now: a nack repeated while a log was read is answered twice in one step.
        is_resumed = self._has_resumed(broker)
        if is_resumed:
            self._check_all_requested(broker, requested, is_resumed=True)
        for wanted, ranges in answered:
            for start, end in ranges:
                wanted.remove(start, end)
        if not is_resumed:
            self._check_all_requested(broker, requested, is_resumed=False)
        return ()

    def _has_resumed(self, broker: BrokerView) -> bool:
        """Return True if the broker handled the events that waited for its log in this step."""
        was_reading = self._is_reading[broker.number]
        self._is_reading[broker.number] = is_reading = gryphon_of(broker.protocol).is_reading
        return was_reading and not is_reading

    def _traffic_of(self, broker: BrokerView, identity: StreamId) -> _StreamTraffic:
        return self._traffic.setdefault(
            (broker.number, broker.incarnation, identity), _StreamTraffic()
        )

    # ------------------------------------------------------------ answers

    def _check_answer(
        self,
        broker: BrokerView,
        peer: BrokerNumber,
        again: bool,
        wanted: IntervalSet,
        ranges: Sequence[Range],
    ) -> None:
        for start, end in ranges:
            if again and (rest := wanted.gaps(start, end)):
                subject = f"{broker.name} to {peer}"
                raise InvariantViolated("unrequested", f"{subject}: {rest} of [{start}, {end})")

    def _record_window(self, broker: BrokerView, event: Event) -> None:
        if type(event) is SessionEstablished and isinstance(event.peer, int):
            self._untaken[broker.number, event.peer] = {}
        elif type(event) is MessageReceived and isinstance(event.peer, int):
            message = event.message
            if type(message) is WindowUpdate:
                windows = self._untaken[broker.number, event.peer]
                untaken = windows.setdefault((message.origin, message.again), _Untaken())
                untaken.taken_bytes = max(untaken.taken_bytes, message.taken_bytes)

    def _is_rest(self, before: Events | None, message: Events) -> bool:
        """Return whether `events_per_message` cut the messages from one run of events."""
        return (
            before is not None
            and len(before.run) == self._most_events
            and before.end == message.start
        )

    def _check_window(
        self, broker: BrokerView, peer: BrokerNumber, message: Events, *, is_rest: bool
    ) -> None:
        """Check the window before a run of events, which may exceed the rest of the window."""
        run, limit_bytes = message.run, self._window_bytes[message.again]
        origin = own = self._cells[broker.number]
        if self._cells[peer] == own:
            origin = self._graph.cells_between(own, self._cells[message.run.source.broker])[1]
        windows = self._untaken[broker.number, peer]
        untaken = windows.setdefault((origin, message.again), _Untaken())
        if untaken.sent_bytes - untaken.taken_bytes >= limit_bytes and not is_rest:
            subject = f"{broker.name} to {peer}: {untaken}, of {limit_bytes}"
            raise InvariantViolated("window", subject)
        untaken.sent_bytes += run.payload_bytes() + EVENT_BYTES * len(run)

    # ------------------------------------------------------------ questions

    def _check_all_requested(
        self,
        broker: BrokerView,
        requested: dict[StreamId, dict[tuple[Range, ...], None]],
        *,
        is_resumed: bool,
    ) -> None:
        for identity, rows in requested.items():
            self._check_requested(broker, identity, rows, is_resumed=is_resumed)

    def _check_requested(
        self,
        broker: BrokerView,
        identity: StreamId,
        rows: Iterable[tuple[Range, ...]],
        *,
        is_resumed: bool,
    ) -> None:
        """Check requests; one request may be sent to several brokers in one step.

        A broker that resumes handles many events in one step. A later one may answer the request
        of an earlier one, so ticks that are known by now may have been gaps.
        """
        subject = f"{broker.name}, {tuple(identity)}"
        core = gryphon_of(broker.protocol)
        traffic, now_ns = self._traffic_of(broker, identity), core.now_ns
        while traffic.requested and traffic.requested[0][0] <= now_ns:
            traffic.requested.popleft()
        lately = IntervalSet(each for _, ranges in traffic.requested for each in ranges)
        stream = _stream(core, identity)
        needed = IntervalSet(self._list_needed(traffic, stream))
        for start, end in stream.knowledge.known if is_resumed else ():
            needed.add(start, end)
        for ranges in rows:
            for start, end in ranges:
                if twice := lately.within(start, end):
                    raise InvariantViolated("requested twice", f"{subject}: {twice}")
                if idle := needed.gaps(start, end):
                    raise InvariantViolated("requested without need", f"{subject}: {idle}")
            traffic.requested.append((now_ns + self._forgotten_ns, ranges))

    def _list_needed(self, traffic: _StreamTraffic, stream: Stream) -> Iterator[Range]:
        for wanted in traffic.wanted.values():
            yield from wanted
        for piece in stream.subend.gaps.pieces:
            yield piece.start, piece.end

    # ------------------------------------------------------------ paths

    def _check_way(
        self, broker: BrokerView, sender: BrokerNumber, received: object, peer: int, message: object
    ) -> None:
        if type(received) is not type(message) or self._cells[sender] != self._cells[peer]:
            return
        if type(received) is Events and type(message) is Events:
            is_back = not received.again and not message.again
        else:
            is_back = type(received) in (Nack, AckExpected)
        if is_back:
            subject = f"{broker.name} received {received} from {sender}, and sends it to {peer}"
            raise InvariantViolated("route back", subject[:300])

    # ------------------------------------------------------------ acks

    def _check_done(self, broker: BrokerView, peer: BrokerNumber, message: Done) -> None:
        core = gryphon_of(broker.protocol)
        for identity, through in message.through:
            subject = f"{broker.name} to {peer}, cell {message.cell}, {tuple(identity)}: {through}"
            stream = _stream(core, identity)
            is_own = message.cell == self._cells[broker.number]
            known = stream.knowledge.final if is_own else stream.acknowledged_by(message.cell)
            if through > known:
                raise InvariantViolated("acknowledged ahead", f"{subject}, but has {known}")
            done = self._traffic_of(broker, identity).done
            before = done.get((peer, message.cell), 0)
            if through < before:
                raise InvariantViolated("acknowledgement decreased", f"{subject} after {before}")
            done[peer, message.cell] = through


def _stream(core: Gryphon, identity: StreamId) -> Stream:
    return next(stream for stream in core.streams if stream.identity == identity)
