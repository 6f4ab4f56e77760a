"""How a pubend joins those of which everybody gets the events in one order, while that goes on.

A pubend joins when somebody publishes there for the first time; until then nobody waits for it.
It asks all brokers with clients twice. Who has answered the first time waits for it from then on,
also after a restart. Who answers the second time says up to where the streams of its own pubends
are known. So whatever anybody was handed without waiting for this pubend was known before all had
answered once, and lies below one of the second answers, whoever has restarted meanwhile. The agreed
tick is the highest of these: the events of the pubend lie behind it.

Paper: none; [GD02] §2.3 takes the set of pubends of a total order as given.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.gryphon.messages import Join, Joined
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Routes
from brokerd.protocols.gryphon.ticks import LAST_TICK
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.backoff import backed_off_ns
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.event_machine import MessageHandler

JOINING: Final = "joining"

MERGED: Final = "merged"
"""Of which pubends, by broker and number, this broker waits for every tick."""


@dataclass(slots=True)
class _Asking:
    """A pubend of this broker that is to join.

    Attributes:
        since: answers to this question and to later ones count.
        is_second: all have answered once.
        ticks: who has answered with which one.
    """

    since: int = 1
    is_second: bool = False
    ticks: dict[BrokerNumber, int] = field(default_factory=dict)
    waited_ns: int = 0


@dataclass(slots=True)
class _Heard:
    """The latest question of one pubend: its number, and who has passed it on to this broker."""

    incarnation: int
    number: int
    via: BrokerNumber | None


class Joins:
    """What one broker knows of pubends that join, and does about it; in total order only.

    Args:
        has_session: whether anything can be said to a neighbour now.
        highest: the last tick of each pubend of this broker that anybody may know.
        on_merged: events are handed out in one order with those of this stream from now on.
        on_joined: a pubend of this broker may give ticks behind this one.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        routes: Routes,
        parameters: GryphonParameters,
        disk: Durability,
        deadlines: DeadlineQueue[tuple[str, Any]],
        *,
        has_session: Callable[[BrokerNumber], bool],
        highest: Callable[[], Sequence[int]],
        on_merged: Callable[[StreamId], None],
        on_joined: Callable[[StreamId, int], None],
    ) -> None:
        self._broker = broker
        self._routes = routes
        self._parameters = parameters
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._has_session = has_session
        self._highest = highest
        self._on_merged = on_merged
        self._on_joined = on_joined
        self._incarnation = 0
        self._number = 0
        self._asking: dict[StreamId, _Asking] = {}
        self._heard: dict[StreamId, _Heard] = {}
        self._merged: dict[StreamId, bool] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        """Who takes which message of a neighbour."""
        return {Join: self._on_join, Joined: self._on_answer}

    def begin(self, incarnation: int, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Wait for the pubends for which an earlier incarnation has waited."""
        self._incarnation = incarnation
        for key in recovered.get(MERGED, {}):
            broker, pubend = map(int, key.split("."))
            stream = StreamId(broker, pubend, 0)
            self._merged[stream] = True
            self._on_merged(stream)

    # ------------------------------------------------------------ at the pubend

    def join(self, stream: StreamId) -> None:
        """Ask all brokers with clients to wait for a pubend of this one, until they do."""
        self._asking[stream] = _Asking(self._number + 1)
        self.ask(stream)

    def ask(self, stream: StreamId) -> None:
        """Ask, again where this was in vain."""
        asking = self._asking[stream]
        asking.waited_ns = backed_off_ns(asking.waited_ns, self._parameters)
        self._deadlines.set((JOINING, stream), self._machine.now_ns + asking.waited_ns)
        self._number += 1
        self._hear(Join(stream, self._incarnation, self._number), None)

    def _take(self, answer: Joined) -> None:
        """Take an answer to a pubend of this broker."""
        stream, asking = answer.stream, self._asking.get(answer.stream)
        is_late = answer.incarnation != self._incarnation
        if asking is None or is_late or answer.number < asking.since:
            return
        asking.ticks[answer.broker] = answer.tick
        if len(asking.ticks) < len(self._routes.hosts):
            return
        if asking.is_second:
            del self._asking[stream]
            self._deadlines.cancel((JOINING, stream))
            self._on_joined(stream, max(asking.ticks.values()))
        else:
            self._asking[stream] = _Asking(self._number + 1, is_second=True)
            self.ask(stream)

    # ------------------------------------------------------------ at all brokers

    def _on_join(self, peer: BrokerNumber, message: Join) -> None:
        self._check(peer, message)
        heard = self._heard.get(message.stream)
        known = (0, 0) if heard is None else (heard.incarnation, heard.number)
        if (message.incarnation, message.number) > known:
            self._hear(message, peer)

    def _hear(self, message: Join, peer: BrokerNumber | None) -> None:
        """Pass on what was not heard before, and do as it says."""
        stream = message.stream
        self._heard[stream] = _Heard(message.incarnation, message.number, peer)
        for each in self._routes.neighbours:
            if each != peer and self._has_session(each):
                self._machine.send(each, message)
        if not self._routes.is_host:
            return
        if stream not in self._merged:
            self._merge(stream)
        elif self._merged[stream]:
            self._answer(stream)

    def _merge(self, stream: StreamId) -> None:
        """Wait for a pubend, and say so when that is on disk: a restart must not forget it."""
        self._merged[stream] = False

        def merge() -> None:
            self._merged[stream] = True
            self._on_merged(stream)
            self._answer(stream)

        key = f"{stream.broker}.{stream.publisher}"
        self._disk.commit((Change(MERGED, key, True),), merge)

    def _answer(self, stream: StreamId) -> None:
        heard = self._heard[stream]
        tick = max(self._highest())
        answer = Joined(stream, heard.incarnation, heard.number, self._broker, tick)
        self._pass_on(answer)

    def _on_answer(self, peer: BrokerNumber, message: Joined) -> None:
        self._check(peer, message)
        if message.broker not in self._routes.hosts or not 0 <= message.tick < LAST_TICK:
            raise RemoteProtocolError(peer, f"nobody joins like this: {message}"[:300])
        self._pass_on(message)

    def _pass_on(self, answer: Joined) -> None:
        """Say it to who has asked; where that one is gone, it will be asked for again."""
        if answer.stream.broker == self._broker:
            self._take(answer)
            return
        heard = self._heard.get(answer.stream)
        if heard is not None and heard.via is not None and self._has_session(heard.via):
            self._machine.send(heard.via, answer)

    def _check(self, peer: BrokerNumber, message: Join | Joined) -> None:
        """There is such a pubend, and it may have asked this.

        Raises:
            RemoteProtocolError: there is none, or it has not.
        """
        is_here = self._routes.upstream(peer, message.stream) is None
        asked = message.incarnation, message.number
        is_ahead = is_here and asked > (self._incarnation, self._number)
        if not self._parameters.is_total or min(asked) < 1 or is_ahead:
            raise RemoteProtocolError(peer, f"nobody has asked this: {message}"[:300])
