"""A broker of gryphon: publisher-hosting, intermediate and subscriber-hosting at once.

Publications of this broker are logged, and forwarded once they are durable, to the cells that want
them. Nacks request gaps only.

Paper: [GD02].
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, ClientId, Peer, StreamId
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.gryphon.acknowledgements import ACKS
from brokerd.protocols.gryphon.clients import Clients
from brokerd.protocols.gryphon.curiosity import drop_repeated
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.filters import Exchange, FilterTable
from brokerd.protocols.gryphon.flow_control import FLOW, FlowControl
from brokerd.protocols.gryphon.knowledge import ticks_in
from brokerd.protocols.gryphon.own_filter import OwnFilter
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubend import Pubends
from brokerd.protocols.gryphon.relay import FORGETTING, UNWANTED, Relay
from brokerd.protocols.gryphon.routes import Routes
from brokerd.protocols.gryphon.state import InFlightEvents, Stream
from brokerd.protocols.gryphon.total_order import JOINING, Joins, Merge
from brokerd.protocols.interface import (
    CoreStatus,
    DeadlineReached,
    Instant,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Persisted,
    RecordsRead,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.parts.backoff import dials_at_once, next_wait_ns
from brokerd.protocols.parts.clients.service import LINGER
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, message_handler
from brokerd.protocols.parts.log_first import LogFirstMachine

RETRY: Final = "retry"
GAPS: Final = "gaps"
EXPECTED: Final = "expected"
DOUBT: Final = "doubt"

_COUNTED: Final = (
    "publications_received",
    "publications_forwarded",
    "publications_delivered",
    "resent_publications",
    "duplicates_received",
    "messages_ignored",
    "nacks_sent",
    "nacks_received",
    "nacks_consolidated",
    "acks_expected",
)


class Gryphon(LogFirstMachine):
    """See DeliveryProtocol.

    Args:
        make_clients: makes the service of this broker's clients from the arguments of `Clients`.

    Attributes:
        filters: the filters of all brokers, as received here.
        flow: the send windows of neighbours.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        routes: Routes,
        parameters: GryphonParameters,
        decode_attributes: DecodeAttributes,
        make_clients: Callable[..., Clients] = Clients,
    ) -> None:
        super().__init__()
        self._routes = routes
        self._parameters = parameters
        self._sessions: dict[BrokerNumber, int] = {}
        self._incarnations: dict[BrokerNumber, int] = {}
        self._waited_ns: dict[BrokerNumber, int] = {}
        self._established_ns: dict[BrokerNumber, int] = {}
        self._lineage = 0
        self._counters = dict.fromkeys(_COUNTED, 0)
        self._deadlines: DeadlineQueue[tuple[str, Any]] = DeadlineQueue()
        self._disk = Durability(self)
        self.flow = FlowControl(
            self,
            routes,
            parameters,
            self._deadlines,
            on_answers=self._answer_more,
            on_missed=lambda peer, missed: self._relay.expect_missed(peer, missed),
            on_room=lambda: self._pubends.log_waiting(),
        )
        self._pubends = Pubends(
            broker,
            parameters.pubends,
            self._disk,
            self._on_durable,
            self._on_silent,
            parameters,
            on_first=(lambda stream: self._joins.join(stream)) if parameters.is_total else None,
            may_log=lambda: not self.flow.holds_up(),
        )
        self.filters = FilterTable(broker, routes, decode_attributes, is_on=parameters.filters)
        self._exchange = Exchange(
            broker,
            routes,
            self.filters,
            self._disk,
            has_session=self._sessions.__contains__,
            known=self._known,
            on_beginning=lambda beginning: self._own_filter.on_beginning(beginning),
            on_less=lambda: self._relay.settle_all(),
        )
        self._own_filter = OwnFilter(
            [host for host in routes.hosts if host != broker],
            self._disk,
            change=self._exchange.change,
            position=self._position,
        )
        self._clients = make_clients(
            broker,
            self._disk,
            self._deadlines,
            parameters,
            decode_attributes,
            self._counters,
            publish=self._pubends.publish,
            durable=self._pubends.durable,
            on_done=self._on_clients_done,
            on_unwanted=self._look_at_all,
            is_host=routes.is_host,
            streams=routes.pubend_streams(),
            is_total=parameters.is_total,
            position=self._position,
            own_filter=self._own_filter if parameters.filters else None,
        )
        self._relay = Relay(
            self,
            routes,
            parameters,
            self.filters,
            self._deadlines,
            self._counters,
            self.flow,
            has_session=self._sessions.__contains__,
            on_news=self._look_at,
            on_final=self._on_final,
            on_links=self._look_at_all,
            on_beyond=self._on_beyond,
            on_doubt=self._assign_silence,
            check_run=self._clients.check_run,
        )
        self._merge = Merge(self._relay.stream)
        self._joins = Joins(
            broker,
            routes,
            parameters,
            self._disk,
            self._deadlines,
            has_session=self._sessions.__contains__,
            highest=self._known,
            on_merged=self._merge.add,
            on_joined=self._pubends.begin_behind,
        )
        self.dispatch_events(
            {
                Started: self._on_started,
                RecordsRead: self._on_records,
                SessionEstablished: self._on_session_established,
                SessionLost: self._on_session_lost,
                OpenFailed: lambda event: self._retry_later(event.peer),
                MessageReceived: self._on_message,
                Persisted: lambda event: self._disk.on_persisted(event.token),
                DeadlineReached: self._on_deadline,
            }
        )
        self._from_brokers = {
            **self._relay.handlers(),
            **self._exchange.handlers(),
            **self._joins.handlers(),
            **self.flow.handlers(),
        }
        self._from_clients = self._clients.handlers()

    def next_deadline(self) -> Instant | None:
        """See DeliveryProtocol."""
        return self._deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol."""
        return self._clients.windows.clients_behind()

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol."""
        gaps = [
            f"{len(stream.subend.gaps.pieces)} gaps in the stream {tuple(stream.identity)}"
            for stream in self._relay
            if stream.subend.gaps
        ]
        waiting = self._pubends.waiting()
        return (
            [*gaps, f"{waiting} publications whose pubend was not announced to all brokers"]
            if waiting
            else gaps
        )

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        return {
            **self._counters,
            "queue_publications": self._count_retained(),
            "publications_held": self._pubends.held(),
            "queue_bytes": sum(s.knowledge.events.payload_bytes for s in self._relay),
            "subscriptions": self._clients.subscriptions(),
            "matching_hits": self._clients.memo.hits + self.filters.memo.hits,
            "matching_misses": self._clients.memo.misses + self.filters.memo.misses,
            "sessions_active": len(self._sessions),
            "sessions_ready": len(self._sessions),
        }

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol."""
        neighbours = self._routes.neighbours
        subscriptions, queued = self._clients.subscriptions(), self._count_retained()
        idle_reasons = [f"{subscriptions} subscriptions of its own clients"] * bool(subscriptions)
        if queued:
            idle_reasons.append(f"{queued} publications that are not acknowledged everywhere")
        if waiting := self._pubends.waiting():
            idle_reasons.append(
                f"{waiting} publications whose pubend was not announced to all brokers"
            )
        if held := self._pubends.held():
            idle_reasons.append(f"{held} publications that wait until those below have room")
        return CoreStatus(
            state="recovering" if self.is_reading else "running",
            queued=queued,
            subscriptions=subscriptions,
            own_subscriptions=subscriptions,
            wanted=neighbours,
            ready=tuple(peer for peer in neighbours if peer in self._sessions),
            idle_reasons=tuple(idle_reasons),
            discrepancies=(*self._exchange.discrepancies(), *self._relay.discrepancies()),
        )

    def streams(self) -> Iterator[Stream]:
        """Yield all streams with knowledge or requests at this broker."""
        return iter(self._relay)

    def _count_retained(self) -> int:
        return sum(stream.knowledge.events.events for stream in self._relay)

    # ------------------------------------------------------------ start

    def _on_started(self, event: Started) -> None:
        self._pubends.recover(event.recovered, event.logs[LOG], event.wall_ns)
        for pubend in range(self._parameters.pubends):
            released = self._pubends.released(pubend)
            if released:
                self._relay.stream(self._pubends.stream(pubend)).finish(released)
        self._lineage = event.lineage
        self._relay.has_lost = bool(event.lineage)
        if event.lineage:
            self._pubends.exclude_past(self._resume_if_read)
        self.begin_after_log(event, is_read=self._is_read())

    def _on_records(self, event: RecordsRead) -> None:
        self._pubends.on_records(event)
        self._resume_if_read()

    def _resume_if_read(self) -> None:
        if self.is_reading and self._is_read():
            self.resume()

    def resume(self) -> None:
        """See LogFirstMachine."""
        self._early = list(drop_repeated(self._early))
        super().resume()

    def _is_read(self) -> bool:
        """Return True if the state of earlier incarnations is complete."""
        return self._pubends.is_read and not self._pubends.is_reserving

    def _begin(self, event: Started) -> None:
        has_lost = bool(event.lineage)
        self._joins.begin(event.incarnation, event.recovered, has_lost=has_lost)
        self._exchange.begin(event.incarnation, event.recovered)
        self._clients.start(event.incarnation, event.recovered, event.lineage)
        self._clients.recover(event.recovered)
        for pubend in range(self._parameters.pubends if self._routes.is_host else 0):
            stream = self._relay.stream(self._pubends.stream(pubend))
            self._relay.publish_silence(stream, self._pubends.reserved)
        for neighbour in self._routes.neighbours:
            self.emit(OpenSession(neighbour))
        self._look_at_all()
        self._relay.settle_all()
        self._check_acks()
        if event.lineage and self._routes.is_host:  # other brokers have no streams
            self._pubends.publish_loss(event.lineage)

    # ------------------------------------------------------------ sessions

    def _on_session_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        if isinstance(peer, str):
            self._clients.on_established(peer, event.session)
            return
        assert peer not in self._sessions, f"second session with {peer}"
        self._sessions[peer] = event.session
        self._established_ns[peer] = self.now_ns
        self._deadlines.cancel((RETRY, peer))
        self._waited_ns.pop(peer, None)
        is_new = self._incarnations.get(peer) != event.incarnation
        self._incarnations[peer] = event.incarnation
        self.flow.on_session(peer)
        self._exchange.on_session(peer)
        self._relay.on_session(peer, is_new=is_new)
        self._relay.answer_more(peer)
        self._check_acks()
        self._look_at_all()

    def _on_session_lost(self, event: SessionLost) -> None:
        if isinstance(event.peer, str):
            self._clients.on_lost(event.peer, event.session)
            return
        assert self._sessions.get(event.peer) == event.session, f"no session for {event}"
        del self._sessions[event.peer]
        self._relay.on_session_lost(event.peer)
        self.flow.on_session_lost(event.peer)
        self._look_at_all()
        self._retry_lost(event)

    def _retry_lost(self, event: SessionLost) -> None:
        assert isinstance(event.peer, int), f"a broker opens no session to {event.peer!r}"
        established_ns = self._established_ns.pop(event.peer)
        if dials_at_once(event.reason, established_ns, self.now_ns, self._parameters):
            self.emit(OpenSession(event.peer))
        else:
            self._retry_later(event.peer)

    def _retry_later(self, peer: Peer) -> None:
        assert isinstance(peer, int), f"a broker opens no session to {peer!r}"
        if peer in self._sessions:
            return
        wait_ns = next_wait_ns(self._waited_ns.get(peer, 0), self._parameters)
        self._waited_ns[peer] = wait_ns
        self._deadlines.set((RETRY, peer), self.now_ns + wait_ns)

    def _answer_more(self, peer: BrokerNumber) -> None:
        """Continue answers to a neighbour after its window was full."""
        self._relay.answer_more(peer)

    def _on_message(self, event: MessageReceived) -> None:
        if isinstance(event.peer, int):
            handlers, current = self._from_brokers, self._sessions.get(event.peer)
        else:
            handlers, current = self._from_clients, self._clients.session_of(event.peer)
        if current != event.session:
            self._counters["messages_ignored"] += 1
            return
        message_handler(handlers, event)(event.peer, event.message)

    # ------------------------------------------------------------ time

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, whose in self._deadlines.due(self.now_ns):
            self._on_due(purpose, whose)

    def _on_due(self, purpose: str, whose: Any) -> None:
        if purpose == RETRY:
            self.emit(OpenSession(whose))
        elif purpose == GAPS:
            self._ask(whose)
        elif purpose == ACKS:
            self._relay.acks.due()
        elif purpose == FORGETTING:
            self._relay.forget_asked()
        elif purpose == UNWANTED:
            self._relay.let_go()
        elif purpose == DOUBT:
            self._resolve_doubt()
        elif purpose == JOINING:
            self._joins.ask(whose)
        elif purpose == EXPECTED:
            self._check_acks()
        elif purpose == FLOW:
            self.flow.due()
        else:
            assert purpose == LINGER, f"{purpose!r} of {whose!r}"
            self._clients.linger_over(whose)

    def _check_acks(self) -> None:
        """Request missing acks of old events of this broker's pubends, as long as events remain.

        Events of an earlier incarnation count as old.

        Paper: [GD02] §3.2 (AET).
        """
        old = self._pubends.tick(self.now_ns) - ticks_in(self._parameters.ack_expected_ns)
        waits = False
        for pubend in range(self._parameters.pubends):
            stream = self._relay.stream(self._pubends.stream(pubend))
            waits = waits or bool(stream.knowledge.events.events)
            last = stream.knowledge.events.last_up_to(max(old, self._pubends.restored_tick(pubend)))
            if last is not None:
                self._relay.expect_acks(stream, last)
        if waits:
            check_ns = self._parameters.ack_expected_check_ns
            self._deadlines.set((EXPECTED, None), self.now_ns + check_ns)

    # ------------------------------------------------------------ publications

    def _known(self) -> Sequence[int]:
        """Return the last tick of each pubend of this broker that other brokers may have."""
        pubends = map(self._pubends.stream, range(self._parameters.pubends))
        return [self._relay.stream(each).knowledge.highest for each in pubends]

    def _on_durable(self, identity: StreamId, run: PublicationRun, silent: int) -> None:
        stream = self._relay.stream(identity)
        if not self._pubends.is_read or self.is_reading:
            self._relay.restore(stream, run)
            return
        self._counters["publications_received"] += len(run)
        self._relay.publish(stream, run, silent)
        if (EXPECTED, None) not in self._deadlines:
            check_ns = self._parameters.ack_expected_check_ns
            self._deadlines.set((EXPECTED, None), self.now_ns + check_ns)

    def _position(self, identity: StreamId) -> int:
        return self._relay.position(identity)

    def _on_final(self, stream: Stream) -> None:
        self._pubends.release(stream.identity, stream.knowledge.final)

    def _on_clients_done(self, entry: InFlightEvents) -> None:
        stream = self._relay.stream(entry.stream)
        stream.subend.drop_closed()
        self._relay.settle(stream)

    # ------------------------------------------------------------ this broker's clients

    def _look_at_all(self) -> None:
        for stream in self._relay:
            self._look_at(stream)

    def _look_at(self, stream: Stream) -> None:
        """Deliver available events of a stream, and look for gaps."""
        subend, knowledge = stream.subend, stream.knowledge
        if not self._clients.started:
            subend.skip(knowledge)
        elif self._parameters.is_total:
            self._hand_out_merged()
        elif (ready := subend.next_range(knowledge)) is not None:
            subend.position = ready[1] - 1
            run = knowledge.events.within(*ready)
            entry = self._clients.deliver(stream.identity, run) if run is not None else None
            if entry is not None:
                subend.on_delivered(entry)
        subend.see_gaps(knowledge, self.now_ns)
        self._time_gaps(stream)
        self._relay.settle(stream)

    def _hand_out_merged(self) -> None:
        """Deliver events of all streams in total order, up to the least doubt horizon."""
        for run in self._merge.next_runs():
            entry = self._clients.deliver(run.source, run)
            if entry is not None:
                self._relay.stream(run.source).subend.on_delivered(entry)
        for stream in self._merge:
            self._relay.settle(stream)
        _, lacking = self._merge.find_doubt()
        if lacking and (DOUBT, None) not in self._deadlines:
            due_ns = self.now_ns + self._parameters.doubt_curiosity_ns
            self._deadlines.set((DOUBT, None), due_ns)

    def _resolve_doubt(self) -> None:
        """Resolve doubt for a waiting event: nacks to other pubends, silence at own pubends."""
        last, lacking = self._merge.find_doubt()
        for stream in lacking if self._clients.started else ():
            if stream.upstream is None:
                self._assign_silence(stream, last)
            elif stream.subend.doubt(last):
                stream.subend.see_gaps(stream.knowledge, self.now_ns)
                self._time_gaps(stream)

    def _on_beyond(self, stream: Stream, through: int) -> None:
        """Publish a loss for ticks that another broker has and that this broker has lost."""
        self._pubends.publish_loss_behind(self._lineage, stream.identity, through)

    def _assign_silence(self, stream: Stream, through: int) -> None:
        self._pubends.assign_silence(stream.identity, through)

    def _on_silent(self, identity: StreamId, through: int) -> None:
        self._relay.publish_silence(self._relay.stream(identity), through)

    def _ask(self, identity: StreamId) -> None:
        stream = self._relay.stream(identity)
        self._relay.ask(stream, [(piece,) for piece in stream.subend.gaps.due(self.now_ns)])
        self._time_gaps(stream)

    def _time_gaps(self, stream: Stream) -> None:
        """Set the deadline for nacks of gaps, but not without a broker to ask."""
        due_ns = stream.subend.gaps.earliest() if stream.subend.gaps else None
        if due_ns is None or not self._relay.can_ask(stream):
            self._deadlines.cancel((GAPS, stream.identity))
        elif self._deadlines.instant((GAPS, stream.identity)) != due_ns:
            self._deadlines.set((GAPS, stream.identity), due_ns)


def make_core(context: CoreContext) -> Gryphon:
    """Return a broker's core."""
    parameters: GryphonParameters = context.parameters
    routes = Routes(context.broker, context.topology, parameters.pubends)
    return Gryphon(context.broker, routes, parameters, context.decode_attributes)
