"""A broker of gryphon: publisher-hosting, intermediate and subscriber-hosting at once.

Publications of this broker are logged, and forwarded once they are durable, to the cells that want
them. Nacks request gaps only.

Paper: [GD02].
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.model.losses import count_published
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.gryphon.acknowledgements import (
    ACKS,
    EXPECTED,
    UNWANTED,
    Acknowledgements,
    OverdueAcks,
)
from brokerd.protocols.gryphon.clients import Clients, HostedClients, SubendHost
from brokerd.protocols.gryphon.curiosity import (
    DELAYS,
    FORGETTING,
    GAPS,
    Curiosity,
    DelayCuriosity,
    GapCuriosity,
    drop_repeated,
)
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.drains import DRAINS, Drains
from brokerd.protocols.gryphon.filter_routes import BEGINNINGS
from brokerd.protocols.gryphon.filter_table import FilterTable
from brokerd.protocols.gryphon.filters import FilterExchange, FilterNarrowed, FilterWrite
from brokerd.protocols.gryphon.flow_control import FLOW, FlowControl
from brokerd.protocols.gryphon.forwarding import Forwarding
from brokerd.protocols.gryphon.messages import (
    EVERYWHERE,
    AckExpected,
    Beginning,
    Done,
    Events,
    LinkStatus,
    Nack,
    Silent,
    WindowProbe,
    WindowUpdate,
)
from brokerd.protocols.gryphon.own_filter import OwnFilter
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubend import (
    Acceptance,
    LogAppend,
    LogRelease,
    PermanentSilence,
    Pubends,
    Reservation,
    Step,
)
from brokerd.protocols.gryphon.replicated_core import ReplicatedCore
from brokerd.protocols.gryphon.routes import RETRY, Links, Neighbours, Routes
from brokerd.protocols.gryphon.state import COUNTERS, TABLES, PersistentState
from brokerd.protocols.gryphon.status import Reports
from brokerd.protocols.gryphon.stream import InFlightEvents, Stream, Streams, check_ticks
from brokerd.protocols.gryphon.total_order import (
    DOUBT,
    JOINING,
    Joins,
    Merge,
    MergeWrite,
    PubendBegin,
    StreamMerge,
)
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
from brokerd.protocols.parts.clients.progress import WRITE
from brokerd.protocols.parts.clients.table import LINGER
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import (
    Durability,
    EventHandler,
    LogFirstMachine,
    MessageHandler,
    message_handler,
)


class Gryphon(LogFirstMachine):
    """A broker that forwards streams of ticks, and recovers lost ticks by curiosity.

    Implements `DeliveryProtocol`, and `SubendHost` and `ClientCore` for its own clients.

    Args:
        has_clients: False for the core of another protocol, which calls `serve` with its own.

    Attributes:
        disk: the actions that wait for durable writes.
        neighbours: the sessions with neighbours.
        persistent: the state on disk.
        filters: the filters of all brokers, as received here.
        own_filter: the filter of this broker's clients.
        drains: the clients that leave once they have received all earlier publications.
        flow: the send windows of neighbours.
        from_brokers: the handlers of neighbours' messages.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        routes: Routes,
        parameters: GryphonParameters,
        decode_attributes: DecodeAttributes,
        *,
        has_clients: bool = True,
    ) -> None:
        super().__init__()
        self._routes = routes
        self._parameters = parameters
        self._is_total = parameters.is_total
        self._has_clients = has_clients
        self._lineage = 0
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.deadlines: DeadlineQueue[tuple[str, Any]] = DeadlineQueue()
        self.disk = Durability(self)
        self.persistent = PersistentState(TABLES, (LOG,))
        self.neighbours = Neighbours(routes.neighbours, parameters, self.deadlines)
        sessions = self.neighbours.sessions
        self.links = Links(routes, sessions)
        self.flow = FlowControl(routes, parameters, self.deadlines)
        self.filters = FilterTable(broker, routes, decode_attributes, is_on=parameters.filters)
        self.streams = streams = Streams(broker, routes, parameters)
        self.pubends = Pubends(broker, parameters)
        self.filter_exchange = FilterExchange(
            broker, routes, self.filters, streams, sessions, self.links, self.deadlines
        )
        self.curiosity = Curiosity(parameters, streams, self.links, self.deadlines, self.counters)
        self._gaps = GapCuriosity(streams, self.curiosity, self.deadlines)
        self._delays = DelayCuriosity(routes, parameters, streams, self.links, self.deadlines)
        self.acknowledgements = Acknowledgements(
            routes,
            parameters,
            streams,
            self.filters,
            self.links,
            self.deadlines,
            self.counters,
        )
        self._overdue = OverdueAcks(
            parameters, streams, self.pubends, self.acknowledgements, self.deadlines
        )
        self.merge = Merge(parameters, streams, self.deadlines)
        self.joins = Joins(broker, routes, parameters, streams, self.deadlines, sessions)
        self.own_filter = OwnFilter(
            [host for host in routes.hosts if host != broker],
            self.disk,
            self.filter_exchange,
            streams,
        )
        self.drains = Drains(streams, routes.pubend_streams(), self.deadlines, parameters)
        self._reports = Reports(
            routes,
            streams,
            self.pubends,
            self.filters,
            self.flow,
            self.neighbours,
            self.counters,
        )
        self.dispatch_events(self.handlers())
        self._part_handlers = {
            **self._delays.handlers(),
            **self.filter_exchange.handlers(),
            **self.joins.handlers(),
        }
        self.from_brokers: dict[type, MessageHandler] = {
            Events: self._on_events,
            Silent: self._on_silent,
            Nack: self._on_nack,
            Done: self.on_done,
            AckExpected: self._on_ack_expected,
            LinkStatus: self.on_link_status,
            WindowProbe: lambda peer, message: self._take(self.flow.on_probe(peer, message)),
            WindowUpdate: self._on_window_update,
            **dict.fromkeys(self._part_handlers, self._on_part_message),
        }
        if has_clients:
            own_filter = self.own_filter if parameters.filters else None
            clients = Clients(
                broker,
                self.disk,
                self.deadlines,
                parameters,
                decode_attributes,
                self.counters,
                core=self,
                pubends=self.pubends,
                streams=streams,
                drains=self.drains,
                routes=routes,
                own_filter=own_filter,
            )
            self.serve(clients, self)

    def serve(self, clients: HostedClients, host: SubendHost) -> None:
        """Serve the clients of this broker; the host delivers their streams."""
        self._clients, self._host = clients, host
        self._from_clients = clients.handlers()
        self.forwarding = Forwarding(
            self._routes,
            self._parameters,
            self.streams,
            self.filters,
            self.links,
            self.flow,
            clients.own.memo,
            self.counters,
        )

    def handlers(self) -> dict[type, EventHandler]:
        return {
            Started: self.on_started,
            RecordsRead: self.on_records,
            SessionEstablished: self.on_session_established,
            SessionLost: self.on_session_lost,
            OpenFailed: lambda event: self.neighbours.retry_later(event.peer, self.now_ns),
            MessageReceived: self._on_message,
            Persisted: lambda event: self.disk.on_persisted(event.token),
            DeadlineReached: self._on_deadline,
        }

    def next_deadline(self) -> Instant | None:
        return self.deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        return self._clients.own.windows.clients_behind()

    def aftermath(self) -> Sequence[str]:
        return self._reports.aftermath()

    def statistics(self) -> Mapping[str, int]:
        return self._reports.statistics(self._clients)

    def status(self) -> CoreStatus[BrokerNumber]:
        found = (*self.filter_exchange.discrepancies(), *self.forwarding.discrepancies())
        return self._reports.status(self._clients, found, is_reading=self.is_reading)

    def detail(self) -> Mapping[str, Any]:
        return self._reports.state().to_mapping()

    # ------------------------------------------------------------ start

    def on_started(self, event: Started) -> None:
        """Restore pubends from the log and the tables."""
        self.effects += self.pubends.recover(
            event.recovered, event.logs[LOG], self.now_ns, event.wall_ns
        )
        if self.pubends.is_read:
            self._take(self.pubends.begin(self.now_ns))
        for pubend in range(self._parameters.pubends):
            released = self.pubends.released(pubend)
            if released:
                self.streams.get(self.pubends.stream(pubend)).finish(released)
        self._lineage = event.lineage
        self.streams.has_lost = bool(event.lineage)
        if event.lineage:
            self._take((self.pubends.exclude_past(self.now_ns),))
        self.begin_after_log(event, is_read=self._host.is_read)

    def on_records(self, event: RecordsRead) -> None:
        """Take a page of the pubends' log."""
        for run in self.pubends.on_records(event):  # brokers that lack the run send nacks
            knowledge = self.streams.get(run.source).knowledge
            knowledge.accumulate(knowledge.highest + 1, run.last + 1, run)
        self.effects += self.pubends.next_page(event)
        if self.pubends.is_read:
            self._take(self.pubends.begin(self.now_ns))
        self.resume_if_read()

    def resume_if_read(self) -> None:
        """Begin once the state of earlier incarnations is complete."""
        if self.is_reading and self._host.is_read:
            self.resume()

    def resume(self) -> None:
        self._deferred = list(drop_repeated(self._deferred))
        super().resume()

    @property
    def is_read(self) -> bool:
        return self.pubends.is_read and not self.pubends.is_reserving

    def _begin(self, event: Started) -> None:
        self._host.begin(event)

    def begin(self, event: Started) -> None:
        has_lost = bool(event.lineage)
        self._take(self.joins.begin(event.incarnation, event.recovered, has_lost=has_lost))
        self._take(self.filter_exchange.begin(event.incarnation, event.recovered))
        self._clients.table.start(event.incarnation, event.recovered, event.lineage)
        self._clients.recover(event.recovered)
        for stream in self.streams.own() if self._routes.is_host else ():
            self._publish_silence(stream, self.pubends.reserved)
        for neighbour in self._routes.neighbours:
            self.emit(OpenSession(neighbour))
        self._delays.begin(self.now_ns)
        self.look_at_all()
        self.settle_all()
        self.effects += self._overdue.check(self.now_ns)
        if event.lineage and self._routes.is_host:  # other brokers have no streams
            for marker in self.pubends.loss_markers(event.lineage):
                self.publish(marker, _nothing)

    # ------------------------------------------------------------ facts of the parts

    def _take(self, outcomes: Iterable[Any]) -> None:
        """Emit the effects and route the facts of a part, in order."""
        for each in outcomes:
            match each:
                case Beginning():
                    self.own_filter.on_beginning(each)
                case FilterNarrowed():
                    self.settle_all()
                case FilterWrite():
                    self.disk.commit(
                        each.rows, partial(self._on_written, self.filter_exchange, each)
                    )
                case MergeWrite():
                    self.disk.commit(each.rows, partial(self._on_written, self.joins, each))
                case Reservation() | LogRelease():
                    self.disk.commit(each.rows, partial(self._on_written, self.pubends, each))
                case PermanentSilence(stream, through):
                    self._publish_silence(self.streams.get(stream), through)
                case StreamMerge(stream):
                    self.merge.add(stream)
                case PubendBegin(stream, tick):
                    self._take(self.pubends.assign_silence(stream.publisher, tick, self.now_ns))
                    self.pubends.begin_pubend(stream.publisher)
                    self._log_held()
                case _:
                    self.effects.append(each)

    def _on_written(self, part: FilterExchange | Joins | Pubends, fact: Any) -> None:
        self._take(part.on_written(fact, self.now_ns))
        self.resume_if_read()

    def on_event_end(self) -> None:
        """See EventMachine: events for a neighbour follow the filters that it is owed."""
        routes = self.filter_exchange.change_routes
        if routes.owed:
            self.effects[:] = [*routes.before_events(self.effects)]

    # ------------------------------------------------------------ sessions

    def on_session_established(self, event: SessionEstablished) -> None:
        """Send a neighbour the state here; open the session of a client."""
        peer = event.peer
        if isinstance(peer, str):
            self._clients.table.open_session(peer, event.session)
            return
        is_new = self.neighbours.is_restart(peer, event)
        self.neighbours.on_established(peer, event, self.now_ns)
        self.flow.on_session(peer)
        self.effects += self.filter_exchange.on_session(peer)
        self.streams.on_session(peer, is_new=is_new)
        self.links.on_session_change(peer)
        self._announce_links()
        self.effects += self.acknowledgements.resend(peer)
        self.resume_answers(peer)
        self.effects += self._overdue.check(self.now_ns)
        self.look_at_all()

    def on_session_lost(self, event: SessionLost) -> None:
        peer = event.peer
        if isinstance(peer, str):
            self._clients.on_lost(peer, event.session)
            return
        self.neighbours.on_lost(peer, event)
        self.streams.on_session_lost(peer)
        self.links.on_session_change(peer)
        self.filter_exchange.on_session_lost(peer)
        self._announce_links()
        self.flow.on_session_lost(peer)
        self._use_room()
        self.look_at_all()
        self.effects += self.neighbours.redial(peer, event, self.now_ns)

    def _announce_links(self) -> None:
        """Send neighbours the link status that has changed, and the filters that follow."""
        self.effects += self.links.changes()
        self.effects += self.filter_exchange.on_links()

    def _on_message(self, event: MessageReceived) -> None:
        """Handle a message of a neighbour or client on its present session."""
        if isinstance(event.peer, int):
            handlers, current = self.from_brokers, self.neighbours.sessions.get(event.peer)
        else:
            handlers, current = self._from_clients, self._clients.table.session_of(event.peer)
        if current != event.session or event.peer in self.neighbours.retired:
            self.counters["messages_ignored"] += 1
            return
        message_handler(handlers, event)(event.peer, event.message)

    # ------------------------------------------------------------ messages of neighbours

    def _on_events(self, peer: BrokerNumber, message: Events) -> None:
        stream = self.streams.from_upstream(peer, message.run.source)
        self.effects += self.forwarding.on_events(peer, stream, message, self.now_ns)
        self._host.look_at(stream)

    def _on_silent(self, peer: BrokerNumber, message: Silent) -> None:
        stream = self.streams.from_upstream(peer, message.stream)
        self.effects += self.forwarding.on_silent(peer, stream, message, self.now_ns)
        self._host.look_at(stream)

    def _on_nack(self, peer: BrokerNumber, message: Nack) -> None:
        cell = self._routes.cell_by_broker[peer]
        stream = self.streams.from_downstream(peer, message.stream, cell)
        known, unknown = self.curiosity.on_nack(peer, stream, message)
        self.effects += self.forwarding.answer(stream, peer, known, self.now_ns)
        if not unknown:
            return
        stream.want(peer, unknown)
        if stream.upstream is None:
            highest, pubend = max(end for _, end in message.ranges) - 1, stream.identity.publisher
            self._take(self.pubends.assign_silence(pubend, highest, self.now_ns))
        else:
            sideways = peer not in self._routes.peers
            self.effects += self.curiosity.request(
                stream, [unknown], self.now_ns, sideways=sideways
            )

    def on_done(self, peer: BrokerNumber, message: Done) -> None:
        """Record a neighbour's acks."""
        for stream, through in self.acknowledgements.check(peer, message):  # lost here
            pubend = stream.identity.publisher
            if not self.pubends.is_assigned(pubend, through):
                self._take(self.pubends.assign_silence(pubend, through, self.now_ns))
                self.publish(self.pubends.next_loss_marker(self._lineage, pubend), _nothing)
        for stream in self.acknowledgements.on_done(peer, message, self.now_ns):
            self._take(self.pubends.release(stream.identity.publisher, stream.knowledge.final))

    def _on_ack_expected(self, peer: BrokerNumber, message: AckExpected) -> None:
        stream = self.streams.from_upstream(peer, message.stream)
        check_ticks(peer, (message.through,))
        if not self.streams.has_target(peer, stream, message.onto):
            return
        self.effects += self.acknowledgements.on_ack_expected(peer, stream, message)
        if message.onto == EVERYWHERE:
            self._host.look_at(stream)
            self.effects += self.acknowledgements.confirm(peer, stream, message.through)

    def on_link_status(self, peer: BrokerNumber, message: LinkStatus) -> None:
        self.links.record_cells(peer, message)
        self._announce_links()
        self.look_at_all()

    def _on_part_message(self, peer: BrokerNumber, message: Any) -> None:
        self._take(self._part_handlers[type(message)](peer, message, self.now_ns))

    # ------------------------------------------------------------ send windows

    def _on_window_update(self, peer: BrokerNumber, message: WindowUpdate) -> None:
        opened = self.flow.on_update(peer, message, self.now_ns)
        if opened is None:
            return
        if opened.again:
            self._host.resume_answers(peer)
        for identity, onto in opened.missed:  # the neighbour sends a nack at once
            through = self.streams.get(identity).knowledge.highest
            self.send(peer, AckExpected(identity, through, onto))
        self._use_room()

    def _use_room(self) -> None:
        """Let neighbours above and publications continue where windows have room."""
        self.effects += self.flow.updates()
        if not self.flow.holds_up():
            self._log_held()

    def resume_answers(self, peer: BrokerNumber) -> None:
        """See SubendHost: continue answers to a neighbour after its window was full."""
        for stream in self.streams:
            self.effects += self.forwarding.resume_answer(stream, peer, self.now_ns)

    # ------------------------------------------------------------ time

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, owner in self.deadlines.due(self.now_ns):
            self.on_due(purpose, owner)

    def on_due(self, purpose: str, owner: Any) -> None:
        """Handle one deadline."""
        if purpose == RETRY:
            self.emit(OpenSession(owner))
        elif purpose == GAPS:
            self.effects += self._gaps.request(owner, self.now_ns)
        elif purpose == BEGINNINGS:
            self.effects += self.filter_exchange.due()
        elif purpose == ACKS:
            self.effects += self.acknowledgements.flush()
        elif purpose == DELAYS:
            is_wanted = bool(self._clients.own.started) or not self._has_clients
            self.effects += self._delays.due(self.now_ns, is_wanted=is_wanted)
        elif purpose == FORGETTING:
            self.curiosity.expire(self.now_ns)
        elif purpose == UNWANTED:
            for stream in self.streams:
                self.effects += self.acknowledgements.release_unwanted(stream)
                self.settle(stream)
        elif purpose == DOUBT:
            self._resolve_doubt()
        elif purpose == DRAINS:
            for stream in self.drains.find_lacking(self.now_ns):
                self.effects += self._delays.request_end(stream, self.now_ns)
        elif purpose == JOINING:
            self._take(self.joins.request(owner, self.now_ns))
        elif purpose == EXPECTED:
            self.effects += self._overdue.check(self.now_ns)
        elif purpose == FLOW:
            self.effects += self.flow.due(self.now_ns)
            self._use_room()
        elif purpose == WRITE:
            self._clients.table.write_progress()
        else:
            assert purpose == LINGER, f"{purpose!r} of {owner!r}"
            self._clients.linger_over(owner)

    # ------------------------------------------------------------ publications

    def publish(self, run: PublicationRun, step: Step) -> None:
        accepted = self.pubends.accept(run, step)
        if accepted is Acceptance.READY:
            self._log_held()
        elif accepted is Acceptance.FIRST:
            stream = self.pubends.stream(self.pubends.pubend_of(run.source))
            self._take(self.joins.join(stream, self.now_ns))
        elif accepted is Acceptance.STORED:
            step()

    def _log_held(self) -> None:
        """Log waiting publications within the room of brokers below and of the log."""
        while self.pubends.can_log and not (self.flow.full and self.flow.holds_up()):
            logged = self.pubends.log_next(self.now_ns)
            self.disk.append(LOG, logged.entry, partial(self._on_logged, logged))
            if logged.lease:
                self._take(self.pubends.reserve(logged.lease))

    def _on_logged(self, logged: LogAppend) -> None:
        """Publish events that are durable now."""
        run, silent = self.pubends.on_logged(logged)
        stream = self.streams.get(run.source)
        self.counters["publications_received"] += count_published(run)
        self.effects += self.forwarding.publish(stream, run, silent, self.now_ns)
        self._host.look_at(stream)
        self._overdue.schedule(self.now_ns)
        logged.step()
        self._take(self.pubends.permanent_silence(logged.pubend))
        self._log_held()

    def _publish_silence(self, stream: Stream, through: int) -> None:
        if through > stream.knowledge.highest:
            self.effects += self.forwarding.publish_silence(stream, through, self.now_ns)
            self._host.look_at(stream)

    # ------------------------------------------------------------ acks

    def settle(self, stream: Stream) -> None:
        """Advance the final tick of a stream after new acks."""
        if self.acknowledgements.settle(stream, self.now_ns):
            self._take(self.pubends.release(stream.identity.publisher, stream.knowledge.final))

    def settle_all(self) -> None:
        """Advance the final ticks of all streams, since filters below may want less."""
        for stream in self.streams:
            self.settle(stream)

    def on_client_done(self, entry: InFlightEvents) -> None:
        stream = self.streams.get(entry.stream)
        stream.subend.drop_closed()
        self.settle(stream)

    # ------------------------------------------------------------ this broker's clients

    def look_at_all(self) -> None:
        for stream in self.streams:
            self._host.look_at(stream)

    def look_at(self, stream: Stream) -> None:
        """See SubendHost: deliver available events of a stream, and look for gaps."""
        subend, knowledge = stream.subend, stream.knowledge
        if self._lineage and not subend.position and knowledge.final:
            self._clients.on_first_final(stream.identity, knowledge.final)
        if not self._clients.own.started:
            subend.skip(knowledge)
        elif self._is_total:
            self._deliver(self.merge.next_runs())
            for each in self.merge:
                self.settle(each)
            self.merge.schedule_doubt(self.now_ns)
        elif (run := subend.next_run(knowledge)) is not None:
            self._deliver((run,))
        if stream.upstream is not None:
            if self._parameters.delay_curiosity_ns:
                self._delays.receive(stream, self.now_ns)
            subend.see_gaps(knowledge, self.now_ns)
            if subend.gaps.pieces:
                self._gaps.schedule(stream)
            else:
                self.deadlines.cancel((GAPS, stream.identity))
        self.settle(stream)
        if self.drains.waiting:
            for client in self.drains.settle():
                self._clients.on_drained(client)

    def _deliver(self, runs: Iterable[PublicationRun]) -> None:
        """Deliver runs of streams to the clients here."""
        for run in runs:
            entry = self._clients.deliver(run.source, run)
            if entry is not None:
                self.streams.get(run.source).subend.on_delivered(entry)

    def _resolve_doubt(self) -> None:
        """Resolve doubt for a waiting event: nacks to other pubends, silence at own pubends."""
        last, lacking = self.merge.find_doubt()
        for stream in lacking if self._clients.own.started else ():
            if stream.upstream is None:
                pubend = stream.identity.publisher
                self._take(self.pubends.assign_silence(pubend, last, self.now_ns))
            elif stream.subend.doubt(last):
                self._gaps.update(stream, self.now_ns)


def _nothing() -> None:
    """Do nothing after a loss marker is on disk."""


def make_core(context: CoreContext) -> Gryphon | ReplicatedCore:
    """Return a broker's core."""
    parameters: GryphonParameters = context.parameters
    routes = Routes(context.broker, context.topology, parameters.pubends)
    core = Gryphon(context.broker, routes, parameters, context.decode_attributes)
    if parameters.replicas == 1:
        return core
    return ReplicatedCore(core, context.broker, context.topology, parameters)
