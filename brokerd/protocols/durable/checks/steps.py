"""Invariants of durable: positions of clients, the rate of requests, and counters at rest.

Paper: [DS03] §2 (checkpoint tokens), §3, §4.1 (nacks are consolidated; released(s, p)).
"""

from collections import Counter, deque
from collections.abc import Sequence

from brokerd.model.client_messages import Acknowledge, CommitConsumed, Connect, Unsubscribe
from brokerd.model.identity import BrokerNumber, ClientId, Peer, StreamId
from brokerd.protocols.durable.catchup_streams import CatchupWindow
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.fetching import FetchedEvents, Fetching
from brokerd.protocols.durable.messages import (
    Beyond,
    Decommissioned,
    Deferred,
    Fetch,
    Fetched,
    NothingFetched,
)
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.passed_events import PassedEvents
from brokerd.protocols.durable.state import Lane
from brokerd.protocols.gryphon import InFlightEvents, IntervalSet, Range, weight_bytes
from brokerd.protocols.gryphon.checks.steps import RECOUNTS as CORE
from brokerd.protocols.interface import (
    BrokerDecommissioned,
    Effect,
    Event,
    Instant,
    MessageReceived,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks, message_of
from brokerd.simulator.checks.recounts import Recount, nonzero
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_Lane = tuple[int, ClientId, int, StreamId]
"""The identity of a subscription, its client, its number there, and a stream."""


class AcknowledgementChecks(ProtocolChecks):
    """See ProtocolChecks.

    - acknowledged without client: a position here is no higher than the client's acknowledgements
      here (J9).
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._acknowledged: dict[tuple[BrokerNumber, Peer, StreamId], int] = {}
        self._begun: dict[BrokerNumber, tuple[int, dict[_Lane, int]]] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        if type(event) is not MessageReceived:
            return ()
        message = event.message
        if type(message) is Acknowledge:
            self._note(broker, event.peer, message.stream, message.last)
        elif type(message) is CommitConsumed:
            for stream, last in message.positions:
                self._note(broker, event.peer, stream, last)
        elif type(message) is Connect:
            for _, seen in message.resume:
                for stream, last in seen:
                    self._note(broker, event.peer, stream, last)
        elif type(message) is Unsubscribe:
            _, begun = self._begun.get(broker.number, (0, {}))
            # The next subscription of this number may have the identity, too.
            for key in [each for each in begun if each[1:3] == (event.peer, message.number)]:
                del begun[key]
        return ()

    def _note(self, broker: BrokerView, client: Peer, stream: StreamId, last: int) -> None:
        key = broker.number, client, stream
        self._acknowledged[key] = max(last, self._acknowledged.get(key, 0))

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """See ProtocolChecks; the first observed position of a subscription is always valid."""
        core = broker.protocol
        assert isinstance(core, Durable), f"{core} is no core of durable"
        incarnation, before = self._begun.get(broker.number, (0, {}))
        if incarnation != broker.incarnation:
            before = {}
        begun: dict[_Lane, int] = {}
        self._begun[broker.number] = broker.incarnation, begun
        for local in core.registered.present.values():
            for stream, lane in local.lanes.items():
                acknowledged = lane.acknowledged
                key = local.identity, local.client, local.number, stream
                begun[key] = before.get(key, acknowledged)
                if acknowledged <= begun[key]:
                    continue
                last_stated = self._acknowledged.get((broker.number, local.client, stream), 0)
                if acknowledged > last_stated:
                    subject = f"{broker.name}: {local.client}/{local.number} in {tuple(stream)} has"
                    raise InvariantViolated(
                        "acknowledged without client",
                        f"{subject} {acknowledged}, but announces {last_stated}",
                    )


class QuestionChecks(ProtocolChecks):
    """See ProtocolChecks.

    - fetched twice: a request is not repeated, for any subscriber, before an answer or a while
      (J11).
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        parameters: DurableParameters = world.parameters
        self._while_ns = parameters.nack_repetition_ns
        self._requested: dict[tuple[BrokerNumber, StreamId], IntervalSet] = {}
        self._until: dict[tuple[BrokerNumber, StreamId], deque[tuple[Instant, Range]]] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        message = message_of(broker, event)
        if _is_anew(event) or type(message) is Decommissioned:
            for key in [each for each in self._requested if each[0] == broker.number]:
                del self._requested[key], self._until[key]
        elif isinstance(message, Fetched):
            self._on_answer(broker.number, message.run.source, message.ranges)
        elif isinstance(message, NothingFetched | Beyond | Deferred):
            self._on_answer(broker.number, message.stream, message.ranges)
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Fetch:
                self._request(broker, effect.message)
        return ()

    def _on_answer(self, broker: BrokerNumber, stream: StreamId, ranges: Sequence[Range]) -> None:
        if (requested := self._requested.get((broker, stream))) is not None:
            for start, end in ranges:
                requested.remove(start, end)

    def _request(self, broker: BrokerView, message: Fetch) -> None:
        core, key = broker.protocol, (broker.number, message.stream)
        assert isinstance(core, Durable), f"{core} is no core of durable"
        requested = self._requested.setdefault(key, IntervalSet())
        until = self._until.setdefault(key, deque())
        if until and until[0][0] <= core.gryphon.now_ns:
            while until and until[0][0] <= core.gryphon.now_ns:
                until.popleft()
            later = IntervalSet(each for _, each in until)
            kept = [each for one in requested for each in later.within(*one)]
            requested = self._requested[key] = IntervalSet(kept)
        for start, end in message.ranges:
            if again := requested.within(start, end):
                subject = f"{broker.name} asks for {again} of {tuple(message.stream)}"
                raise InvariantViolated("fetched twice", f"{subject}, which was not answered yet")
        for start, end in message.ranges:
            requested.add(start, end)
            until.append((core.gryphon.now_ns + self._while_ns, (start, end)))


def _is_anew(event: Event) -> bool:
    """Return True if everything may be requested again from now on."""
    if isinstance(event, SessionEstablished | SessionLost):
        return isinstance(event.peer, int)
    return type(event) in (Started, BrokerDecommissioned)


def _count_requests(window: CatchupWindow) -> dict[object, int]:
    found: Counter[object] = Counter()
    for lane, events in window._requested.items():
        found[lane.stream] += events
    return nonzero(found)


def _log_subscriptions(core: Durable) -> list[int]:
    """Return the subscriptions of all logs of matches, by their numbers there."""
    logs = [hosted.log for hosted in core.hosted.values()]
    return sorted({each for log in logs for each in (*log._owed, *log._newest)})


def _present_log_subscriptions(core: Durable) -> list[int]:
    """Return the subscriptions of all logs that have not ended."""
    present = {local.identity for local in core.registered.present.values()}
    return [each for each in _log_subscriptions(core) if each in present]


RECOUNTS = (
    *(each for each in CORE if each.kind is not InFlightEvents),
    Recount(
        Durable,
        "log_subscriptions",
        _log_subscriptions,
        lambda core, _: _present_log_subscriptions(core),
    ),
    Recount(
        Lane,
        "out_events",
        lambda lane: lane.out_events,
        lambda lane, _: sum(handed.events for handed in lane.out),
    ),
    Recount(
        FetchedEvents,
        "payload_bytes",
        lambda kept: kept.payload_bytes,
        lambda kept, _: sum(run.payload_bytes() for run in kept.runs),
    ),
    Recount(
        PassedEvents,
        "stored_bytes",
        lambda passed: passed.stored_bytes,
        lambda passed, _: sum(weight_bytes(run) for _, runs in passed.runs() for run in runs),
    ),
    Recount(
        CatchupWindow,
        "events",
        lambda window: nonzero(window._events),
        lambda window, _: _count_requests(window),
    ),
    Recount(
        Fetching,
        "left_bytes",
        lambda fetching: [
            key
            for key in fetching._left_bytes
            if key[1] not in fetching._unanswered.get(key[0], {})
        ],
        lambda *_: [],
    ),
    Recount(
        Fetching,
        "unanswered",
        lambda fetching: nonzero(fetching._unanswered),
        lambda *_: {},
    ),
)
