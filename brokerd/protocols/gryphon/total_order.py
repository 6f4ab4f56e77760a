"""Total order: the events of all pubends as one sequence, the same at every broker.

Events are delivered in the order of their ticks, and of their pubends for equal ticks, up to the
least doubt horizon of all pubends. Brokers need no agreement for that.

A pubend joins at its first publication; until then no broker waits for it. The pubend's broker asks
all brokers with clients twice. A broker that has answered the first time waits for the pubend from
then on, also after a restart. The second answer contains the last tick of the answering broker's
own pubends. So every event that was delivered without waiting for this pubend existed before all
first answers, and lies below a second answer, even after restarts. The agreed tick is the highest
of the second answers: the events of the pubend lie behind it.

Paper: [GD02] §2.3 (total order, merge), which takes the set of pubends as given. Deviates: an idle
pubend sends nothing unasked; a broker with a waiting event asks the pubend (DCT), and the pubend
assigns silence up to the event.
"""

from bisect import insort
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.knowledge import LAST_TICK
from brokerd.protocols.gryphon.messages import Join, Joined
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Routes
from brokerd.protocols.gryphon.state import MERGED
from brokerd.protocols.gryphon.stream import PartHandler, Stream, Streams
from brokerd.protocols.interface import Change, Instant, Send
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.neighbours import next_wait_ns

DOUBT: Final = "doubt"


class Merge:
    """The streams that are merged into one; equal ticks in the order of the streams."""

    def __init__(
        self,
        parameters: GryphonParameters,
        streams: Streams,
        deadlines: DeadlineQueue[tuple[str, Any]],
    ) -> None:
        self._group: list[StreamId] = []
        self._parameters = parameters
        self._streams = streams
        self._deadlines = deadlines

    def __iter__(self) -> Iterator[Stream]:
        return map(self._streams.get, self._group)

    def add(self, identity: StreamId) -> None:
        """Add a stream to the merge, before any of its events was delivered."""
        self._streams.get(identity)
        insort(self._group, identity)

    def next_runs(self) -> list[PublicationRun]:
        """Return the runs that can be delivered now, in order, and advance the positions."""
        streams = [*self]
        for each in streams:
            each.subend.position = max(each.subend.position, each.knowledge.final)
        horizons = [each.knowledge.horizon(each.subend.position) for each in streams]
        through = min(horizons, default=0)
        parts = []
        for each in streams:
            start = each.subend.position + 1
            if start <= through:
                each.subend.position = through
                part = each.knowledge.events.within(start, through + 1)
                if part is not None:
                    parts.append(part)
        return merge(parts)

    def find_doubt(self) -> tuple[int, list[Stream]]:
        """Return the last event at this broker, and the streams with unknown ticks below it."""
        last = max((each.knowledge.events.last for each in self), default=0)
        lacking = [each for each in self if each.knowledge.horizon(each.subend.position) < last]
        return last, lacking

    def schedule_doubt(self, now_ns: Instant) -> None:
        """Set the deadline for doubt, if an event waits for other streams."""
        _, lacking = self.find_doubt()
        if lacking and (DOUBT, None) not in self._deadlines:
            self._deadlines.set((DOUBT, None), now_ns + self._parameters.doubt_curiosity_ns)


def merge(parts: Sequence[PublicationRun]) -> list[PublicationRun]:
    """Return runs of different streams, cut into the order of ticks; equal ticks as the runs."""
    if len(parts) < 2:
        return [*parts]
    places = sorted(
        (tick, number, position)
        for number, part in enumerate(parts)
        for position, tick in enumerate(part.sequences)
    )
    found: list[PublicationRun] = []
    start = 0
    for place in range(1, len(places) + 1):
        number = places[start][1]
        if place == len(places) or places[place][1] != number:
            first, last = places[start][2], places[place - 1][2]
            found.append(parts[number].select(range(first, last + 1)))
            start = place
    return found


JOINING: Final = "joining"


@dataclass(slots=True)
class _JoiningPubend:
    """A pubend of this broker that is joining.

    Attributes:
        since: number of the first request with valid answers.
        is_second: all brokers have answered the first request.
        ticks: the tick in each broker's answer.
    """

    since: int = 1
    is_second: bool = False
    ticks: dict[BrokerNumber, int] = field(default_factory=dict)
    waited_ns: int = 0


@dataclass(slots=True)
class _LatestRequest:
    """The latest request of a pubend: its number, and the neighbour that forwarded it."""

    incarnation: int
    number: int
    via: BrokerNumber | None


class MergeWrite(NamedTuple):
    """A merged stream, with rows to write before `Joins.on_written`."""

    stream: StreamId

    @property
    def rows(self) -> tuple[Change, ...]:
        return (Change(MERGED, f"{self.stream.broker}.{self.stream.publisher}", True),)


class StreamMerge(NamedTuple):
    """A stream that takes part in total order from now on."""

    stream: StreamId


class PubendBegin(NamedTuple):
    """A pubend of this broker that may assign ticks behind a tick."""

    stream: StreamId
    tick: int


class Joins:
    """The joins of pubends at one broker; in total order only.

    Methods return effects and facts, in order: `MergeWrite`, `StreamMerge` and `PubendBegin`.

    Args:
        sessions: the neighbours with a session, as they are at any time.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        routes: Routes,
        parameters: GryphonParameters,
        streams: Streams,
        deadlines: DeadlineQueue[tuple[str, Any]],
        sessions: Container[BrokerNumber],
    ) -> None:
        self._broker = broker
        self._routes = routes
        self._parameters = parameters
        self._streams = streams
        self._deadlines = deadlines
        self._sessions = sessions
        self._incarnation = 0
        self._number = 0
        self._asking: dict[StreamId, _JoiningPubend] = {}
        self._requests: dict[StreamId, _LatestRequest] = {}
        self._merged: dict[StreamId, bool] = {}

    def handlers(self) -> dict[type, PartHandler]:
        """Return the handlers of neighbours' messages by type."""
        return {Join: self.on_join, Joined: self.on_joined}

    def begin(
        self,
        incarnation: int,
        recovered: Mapping[str, Mapping[str, Any]],
        *,
        has_lost: bool = False,
    ) -> list[StreamMerge]:
        """Restore the pubends for which an earlier incarnation has waited.

        Args:
            has_lost: some of them may be lost; then this broker waits for all pubends.
        """
        self._incarnation = incarnation
        merged: list[StreamMerge] = []
        for key in recovered.get(MERGED, {}):
            broker, pubend = map(int, key.split("."))
            stream = StreamId(broker, pubend, 0)
            self._merged[stream] = True
            merged.append(StreamMerge(stream))
        if not has_lost or not self._parameters.is_total or not self._routes.is_host:
            return merged
        for stream in self._routes.pubend_streams():
            if stream not in self._merged:
                self._merged[stream] = True
                merged.append(StreamMerge(stream))
        return merged

    # ------------------------------------------------------------ at the pubend

    def join(self, stream: StreamId, now_ns: Instant) -> list[Any]:
        """Ask all brokers with clients to wait for a pubend here, until all have answered."""
        self._asking[stream] = _JoiningPubend(self._number + 1)
        return self.request(stream, now_ns)

    def request(self, stream: StreamId, now_ns: Instant) -> list[Any]:
        """Send the request, or repeat it after a vain wait."""
        joining = self._asking[stream]
        joining.waited_ns = next_wait_ns(joining.waited_ns, self._parameters)
        self._deadlines.set((JOINING, stream), now_ns + joining.waited_ns)
        self._number += 1
        return self._on_request(Join(stream, self._incarnation, self._number), None, now_ns)

    def _take(self, answer: Joined, now_ns: Instant) -> list[Any]:
        """Record an answer for a pubend of this broker."""
        stream, joining = answer.stream, self._asking.get(answer.stream)
        is_late = answer.incarnation != self._incarnation
        if joining is None or is_late or answer.number < joining.since:
            return []
        joining.ticks[answer.broker] = answer.tick
        if len(joining.ticks) < len(self._routes.hosts):
            return []
        if joining.is_second:
            del self._asking[stream]
            self._deadlines.cancel((JOINING, stream))
            return [PubendBegin(stream, max(joining.ticks.values()))]
        self._asking[stream] = _JoiningPubend(self._number + 1, is_second=True)
        return self.request(stream, now_ns)

    # ------------------------------------------------------------ at all brokers

    def on_join(self, peer: BrokerNumber, message: Join, now_ns: Instant) -> list[Any]:
        """Forward and answer a new request of a pubend.

        Raises:
            RemoteProtocolError: the pubend cannot have sent the request.
        """
        self._check(peer, message)
        latest = self._requests.get(message.stream)
        known = (0, 0) if latest is None else (latest.incarnation, latest.number)
        if (message.incarnation, message.number) > known:
            return self._on_request(message, peer, now_ns)
        return []

    def _on_request(self, message: Join, peer: BrokerNumber | None, now_ns: Instant) -> list[Any]:
        """Forward a new request, and answer it."""
        stream = message.stream
        self._requests[stream] = _LatestRequest(message.incarnation, message.number, peer)
        outcomes: list[Any] = [
            Send(each, message)
            for each in self._routes.neighbours
            if each != peer and each in self._sessions
        ]
        if not self._routes.is_host:
            return outcomes
        if stream not in self._merged:  # a restart must not lose that
            self._merged[stream] = False
            return [*outcomes, MergeWrite(stream)]
        return outcomes + self._answer(stream, now_ns) if self._merged[stream] else outcomes

    def on_written(self, fact: MergeWrite, now_ns: Instant) -> list[Any]:
        """Wait for a pubend from now on, which is durable, and answer its request."""
        self._merged[fact.stream] = True
        return [StreamMerge(fact.stream), *self._answer(fact.stream, now_ns)]

    def _answer(self, stream: StreamId, now_ns: Instant) -> list[Any]:
        request = self._requests[stream]
        tick = max(self._streams.published_ticks())
        answer = Joined(stream, request.incarnation, request.number, self._broker, tick)
        return self._forward(answer, now_ns)

    def on_joined(self, peer: BrokerNumber, message: Joined, now_ns: Instant) -> list[Any]:
        """Forward an answer towards its pubend, or record it there.

        Raises:
            RemoteProtocolError: the pubend has not sent such a request, or no broker answers so.
        """
        self._check(peer, message)
        if message.broker not in self._routes.hosts or not 0 <= message.tick < LAST_TICK:
            raise RemoteProtocolError(peer, f"this is not a valid join: {message}"[:300])
        return self._forward(message, now_ns)

    def _forward(self, answer: Joined, now_ns: Instant) -> list[Any]:
        """Forward an answer towards the pubend; after a lost session the request is repeated."""
        if answer.stream.broker == self._broker:
            return self._take(answer, now_ns)
        request = self._requests.get(answer.stream)
        if request is None or request.via is None or request.via not in self._sessions:
            return []
        return [Send(request.via, answer)]

    def _check(self, peer: BrokerNumber, message: Join | Joined) -> None:
        """Check that the pubend exists, and that it may have sent this request.

        Raises:
            RemoteProtocolError: there is no such pubend, or the request is ahead of this broker's
                own.
        """
        is_here = self._routes.upstream(peer, message.stream) is None
        identity = message.incarnation, message.number
        is_ahead = is_here and identity > (self._incarnation, self._number)
        if not self._parameters.is_total or min(identity) < 1 or is_ahead:
            raise RemoteProtocolError(peer, f"an answer without a question: {message}"[:300])
