"""The rate of brokers' requests for missed events.

Paper: [DS03] §3, §4.1 (nacks are consolidated).
"""

from collections import deque
from collections.abc import Sequence

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.messages import (
    Beyond,
    Decommissioned,
    Deferred,
    Fetch,
    Fetched,
    NothingFetched,
)
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.gryphon import IntervalSet, Range
from brokerd.protocols.interface import (
    BrokerDecommissioned,
    Effect,
    Event,
    Instant,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks, message_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


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
        """See ProtocolChecks."""
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
        core, key = broker.core, (broker.number, message.stream)
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
