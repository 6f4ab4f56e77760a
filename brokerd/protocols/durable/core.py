"""The core of durable: a gryphon core, with clients that disconnect and return.

Paper: [DS03]; [GD02] is the core.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.model.predicate import DecodeAttributes
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.durable.catchup_streams import CATCHUP_WATCH, CatchupStreams, CatchupWatch
from brokerd.protocols.durable.clients import DurableClients
from brokerd.protocols.durable.commit_cycle import COMMIT, CommitCycle, TokenCommits
from brokerd.protocols.durable.consolidated_stream import (
    SILENCE,
    ConsolidatedStream,
    DurableWindows,
    HostedStream,
    Silences,
    SubscriptionTable,
)
from brokerd.protocols.durable.consumers import Consumers
from brokerd.protocols.durable.fetching import FETCHES, Answer, FetchedEvents, Fetching
from brokerd.protocols.durable.holds import DOUBT_OF_HOLD, LEASE, Holds
from brokerd.protocols.durable.messages import (
    Beyond,
    Decommissioned,
    Deferred,
    Fetch,
    Fetched,
    Held,
    Hold,
    LetGo,
    Moved,
    NothingFetched,
    Released,
)
from brokerd.protocols.durable.migration import ARRIVALS, Arrivals, Letters
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.release import RELEASE, RETAINED, Release, Retention
from brokerd.protocols.durable.state import (
    TABLES,
    DurableClient,
    DurableSubscription,
    Lane,
    VolatileState,
)
from brokerd.protocols.durable.subscriptions import HostingParts, Subscriptions
from brokerd.protocols.gryphon import (
    EVERYWHERE,
    LOG,
    AckExpected,
    Done,
    InFlightEvents,
    PersistentState,
    Routes,
    Stream,
)
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.interface import (
    BrokerDecommissioned,
    CoreStatus,
    DeadlineReached,
    Effect,
    Event,
    Farewell,
    Instant,
    RecordsRead,
    SessionEstablished,
    Started,
)
from brokerd.protocols.parts.clients.own_subscriptions import OwnSubscriptions
from brokerd.protocols.parts.clients.table import ClientTable
from brokerd.protocols.parts.decommissioning import NOBODY, DecommissionAuthority, Decommissioning


class Durable:
    """See DeliveryProtocol.

    Attributes:
        gryphon: the streams, pubends, sessions and outbox of this broker.
        persistent: the state on disk.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        routes: Routes,
        parameters: DurableParameters,
        decode_attributes: DecodeAttributes,
        authority: DecommissionAuthority = NOBODY,
    ) -> None:
        self.gryphon = gryphon = Gryphon(
            broker, routes, parameters, decode_attributes, has_clients=False
        )
        self._routes = routes
        self._lease_doubt_ns = parameters.nack_repetition_limit_ns
        streams, disk, deadlines = gryphon.streams, gryphon.disk, gryphon.deadlines
        counters, all_streams = gryphon.counters, routes.pubend_streams()
        self._hosted = hosted = {each: HostedStream(each, streams) for each in all_streams}
        self._registered = registered = SubscriptionTable(hosted)
        table = ClientTable(broker, gryphon, deadlines, parameters, DurableClient)
        windows = DurableWindows(gryphon, parameters.client_window, counters)
        own: OwnSubscriptions[DurableSubscription, InFlightEvents] = OwnSubscriptions(
            gryphon, windows, decode_attributes, table.clients
        )
        self._letters = Letters(gryphon, broker, routes, gryphon.links)
        self._holds = Holds(disk, deadlines, parameters.hold_lease_ns, streams, self._letters)
        self._retention = Retention(gryphon, parameters, deadlines, gryphon.pubends, streams)
        self._release = Release(
            gryphon,
            routes,
            deadlines,
            parameters.ack_interval_ns,
            streams,
            gryphon.links,
            registered,
            self._holds,
            self._retention,
        )
        self._recent = FetchedEvents(parameters.fetched_limit_bytes)
        self._fetching = Fetching(
            gryphon,
            broker,
            routes,
            parameters,
            deadlines,
            counters,
            streams,
            gryphon.links,
            gryphon.flow,
            self._retention,
            gryphon.dialling.retired,
            self._recent,
        )
        self._watch = CatchupWatch(gryphon, deadlines, parameters.catchup_watch_ns, counters)
        self._catchups = CatchupStreams(
            gryphon,
            windows,
            own.memo,
            min(parameters.catchup_batch, parameters.live_limit),
            parameters.catchup_window,
            self._fetching,
            self._watch,
            hosted,
            registered,
        )
        self._silence = Silences(
            gryphon,
            deadlines,
            parameters.silence_interval_ns,
            hosted,
            registered.present,
            windows,
        )
        self._commits = CommitCycle(
            disk, deadlines, parameters.commit_interval_ns, hosted, registered
        )
        tokens = TokenCommits(disk, parameters.token_lanes, parameters.token_batch, counters)
        self._arrivals = Arrivals(
            broker, disk, deadlines, parameters, all_streams, self._letters, table
        )
        parts = HostingParts(
            gryphon=gryphon,
            table=table,
            windows=windows,
            own=own,
            hosted=hosted,
            registered=registered,
            catchups=self._catchups,
            silence=self._silence,
            commits=self._commits,
            consumers=Consumers(disk, table, hosted, self._commits, tokens, self._catchups),
            arrivals=self._arrivals,
            release=self._release,
        )
        self.persistent = PersistentState(
            (*gryphon.persistent.tables, *TABLES),
            (LOG, *(each.log.name for each in hosted.values())),
        )
        self._subscriptions = Subscriptions(parts)
        consolidated = ConsolidatedStream(gryphon, windows, own.memo, parameters.live_limit)
        self._clients = DurableClients(
            parts, consolidated, self._subscriptions, is_host=routes.is_host
        )
        gryphon.serve(self._clients, self)
        self._decommissioning = Decommissioning(
            broker,
            disk,
            Decommissioned,
            authority,
            routes.neighbours,
            has_session=gryphon.sessions.__contains__,
            may_leave=routes.is_leaf,
            leave=self._continue_without,
        )
        for each in hosted.values():
            each.hold_undelivered()
        self._connect()

    def _connect(self) -> None:
        """Connect events, messages and deadlines with the parts."""
        self._letters.receive(
            {
                Hold: self._on_hold,
                Held: self._arrivals.on_held,
                Moved: self._on_moved,
                LetGo: self._arrivals.on_let_go,
            }
        )
        self.gryphon.from_brokers.update(
            {
                Done: self._on_done,
                Released: self._on_released,
                Fetch: self._fetching.on_fetch,
                **dict.fromkeys((Fetched, NothingFetched, Beyond, Deferred), self._on_answer),
                **dict.fromkeys((Hold, Held, Moved, LetGo), self._letters.on_message),
                **self._decommissioning.handlers(),
            }
        )
        self.gryphon.dispatch_events(
            {
                **self.gryphon.handlers(),
                Started: self._on_started,
                RecordsRead: self._on_records,
                SessionEstablished: self._on_session_established,
                DeadlineReached: self._on_deadline,
                BrokerDecommissioned: self._decommissioning.on_event,
            }
        )
        self._due = {
            COMMIT: self._subscriptions.commit,
            SILENCE: self._silence.say,
            FETCHES: self._fetching.due,
            RELEASE: self._release.due,
            RETAINED: self._expire_events,
            CATCHUP_WATCH: self._watch.due,
        }

    # ------------------------------------------------------------ for the driver

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        """See DeliveryProtocol."""
        return self.gryphon.handle(event, now_ns)

    def next_deadline(self) -> Instant | None:
        """See DeliveryProtocol."""
        return self.gryphon.next_deadline()

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol."""
        return self.gryphon.clients_behind()

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        found = {**self.gryphon.statistics(), "catching_up": len(self._watch)}
        for hosted in self._hosted.values():
            stream = hosted.key
            found[f"delivered_us.{stream}"] = hosted.delivered
            found[f"released_us.{stream}"] = self._registered.released(hosted.identity)
        return found

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol."""
        found = list(self.gryphon.aftermath())
        if uncommitted := self._commits.uncommitted():
            found.append(f"{len(uncommitted)} streams with something to commit")
        if self._arrivals:
            found.append(f"{len(self._arrivals)} subscriptions that just arrived")
        if self._holds:
            found.append(f"{len(self._holds)} holds")
        return found

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol: decommissioned brokers are not awaited."""
        return replace(self.gryphon.status(), detail=self.state().to_mapping())

    def state(self) -> VolatileState:
        """Return the state in memory, for people."""
        registered = self._registered
        return VolatileState(
            gryphon=self.gryphon.state().to_mapping(),
            hosted={
                hosted.key: hosted.state(registered.released(identity), registered.lanes(identity))
                for identity, hosted in self._hosted.items()
            },
            arrivals=len(self._arrivals),
            holds=len(self._holds),
            retired=tuple(self._decommissioning),
        )

    # ------------------------------------------------------------ for checks

    @property
    def is_reading(self) -> bool:
        """True while events wait for the logs."""
        return self.gryphon.is_reading

    def list_streams(self) -> Iterator[HostedStream]:
        """Return all streams, as this broker's subscribers have them."""
        return iter(self._hosted.values())

    def subscriptions(self) -> Iterator[DurableSubscription]:
        """Return all subscriptions of this broker, with connected or disconnected clients."""
        return iter(self._registered.present.values())

    def lanes(self, client: ClientId, stream: StreamId) -> Iterator[Lane]:
        """Return a client's lanes in a stream, per subscription."""
        locals_ = self._clients.table.clients[client].subscriptions.values()
        return (local.lane(stream) for local in locals_)

    def has_safely(self, client: ClientId, number: int) -> bool:
        """Return True if a subscription is here, and everything that it lacks is held."""
        return self._arrivals.is_safe((client, number))

    def recount_released(self) -> Iterator[tuple[StreamId, int, int]]:
        """Yield the cached and the recomputed released tick of streams.

        Streams without a cached value, or with a new value at the next commit, are left out.
        """
        return self._commits.recount_released()

    def pubend_streams(self) -> list[Stream]:
        """Return the streams of this broker's own pubends."""
        return self.gryphon.streams.own()

    def find_expired_tick(self) -> int:
        """Return the tick through which events are too old to be retained."""
        return self._retention.expired_tick()

    def find_released_tick(self, stream: StreamId) -> int:
        """Return the released tick of a stream here and below."""
        return self._release.through(stream)

    def holds(self, stream: StreamId) -> dict[tuple[ClientId, int, BrokerNumber, int], int]:
        """See Holds.of."""
        return self._holds.of(stream)

    # ------------------------------------------------------------ streams

    def look_at(self, stream: Stream) -> None:
        """See SubendHost: events are delivered, and everything that all have is released."""
        hosted = self._hosted[stream.identity]
        if self.gryphon.streams.has_lost and stream.upstream is not None:
            self._subscriptions.skip_final(hosted)
        self.gryphon.look_at(stream)
        self._subscriptions.on_progress(hosted)
        self._settle_release(stream)
        if self._recent.runs:  # nobody will fetch events that are released here and below
            through = self._release.through(stream.identity)
            self._recent.drop_through(stream.identity, through)
        if stream.upstream is None:
            self._retention.schedule()

    def _settle_release(self, stream: Stream) -> None:
        """Announce what is released here and below, or release events of a pubend here."""
        if self._release.settle(stream):
            self.gryphon.settle(stream)

    def _expire_events(self) -> None:
        """Release events of pubends here that have become too old."""
        for stream in self._retention.expire():
            self.gryphon.settle(stream)
        self._retention.schedule()

    def _on_released(self, peer: BrokerNumber, message: Released) -> None:
        for stream in self._release.on_message(peer, message):
            self.gryphon.settle(stream)

    def _on_answer(self, peer: BrokerNumber, message: Answer) -> None:
        self._catchups.on_answers(self._fetching.on_answer(peer, message))

    # ------------------------------------------------------------ moved subscriptions

    def _on_hold(self, message: Hold) -> None:
        self._arrivals.on_hold(message)
        for stream in self._holds.on_hold(message):
            self._settle_release(stream)

    def _on_moved(self, message: Moved) -> None:
        local = self._arrivals.on_moved(message)
        if local is not None:
            self._clients.depart(local, message)

    # ------------------------------------------------------------ decommissioned brokers

    def farewell(self, broker: BrokerNumber) -> Farewell:
        """See DecommissioningProtocol."""
        if broker in self._decommissioning:
            return Farewell(is_known=True)
        arrivals = self._arrivals.unheld(broker)
        unfinished = sum(
            bool(hosted.stream.knowledge.events.events)
            or bool(hosted.stream.subend.gaps)
            or bool(len(hosted.log))
            for hosted in self.list_streams()
            if hosted.identity.broker == broker
        )
        reasons = (
            (broker in self.gryphon.sessions, "it is up, there is a session with it"),
            (self.gryphon.is_reading, "this one is starting, and reads its log"),
            (
                arrivals,
                f"{arrivals} subscriptions from another broker are not durable yet",
            ),
            (
                unfinished,
                f"publications of its pubends are not acknowledged here, in {unfinished} streams",
            ),
        )
        kept = sum(each.knowledge.events.events for each in self.pubend_streams())
        losses = (f"{kept} publications are kept until all have acknowledged them",) if kept else ()
        return Farewell(False, tuple(why for holds, why in reasons if holds), losses)

    def _continue_without(self, broker: BrokerNumber) -> None:
        """Stop sending to a decommissioned broker, receiving from it, and retaining for it."""
        cell = self._routes.cell_of(broker)
        self.gryphon.dialling.retire(broker)
        self._release.drop(cell)
        for stream in self.gryphon.streams:
            stream.drop(cell)
            stream.forget(broker)
        for stream in self._holds.drop(broker):
            self._settle_release(stream)
        self._arrivals.drop(broker)
        self._catchups.on_answers(self._fetching.drop(broker))
        self.gryphon.settle_all()
        for stream in self.gryphon.streams:
            self._settle_release(stream)

    # ------------------------------------------------------------ start

    def _on_started(self, event: Started) -> None:
        self._clients.recover_logs(event)
        self.gryphon.on_started(event)

    def _on_records(self, event: RecordsRead) -> None:
        if event.log == LOG:
            self.gryphon.on_records(event)
        else:
            self._clients.on_records(event)
            self.gryphon.resume_if_read()

    @property
    def is_read(self) -> bool:
        """See SubendHost."""
        return self.gryphon.is_read and self._clients.is_read

    def begin(self, event: Started) -> None:
        """See SubendHost."""
        self._holds.recover(event.recovered, self._lease_doubt_ns if event.lineage else 0)
        for hosted in self._hosted.values():
            hosted.hold_undelivered()
        self._retention.begin()
        for stream in self.pubend_streams():
            self._release.restore(stream, stream.held or 0)
        self.gryphon.begin(event)
        self._decommissioning.recover(event.recovered)

    # ------------------------------------------------------------ neighbours

    def _on_session_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        if not isinstance(peer, int):
            self.gryphon.on_session_established(event)
            return
        is_new = self.gryphon.incarnations.get(peer) != event.incarnation
        self.gryphon.on_session_established(event)
        self._decommissioning.on_session(peer)
        if peer in self._decommissioning:
            return
        self._release.on_session(peer)
        self._fetching.on_session(peer, is_new=is_new)
        self._expect_of(peer)
        if self.gryphon.streams.has_lost:
            self._offer_all(peer)

    def _offer_all(self, peer: BrokerNumber) -> None:
        """Acknowledge all streams of a neighbour as far as they are known here, even unknown ones.

        After a loss, the neighbour learns from less than before that this broker lacks the rest.
        """
        cell = self._routes.cell_of(peer)
        streams = [each.stream for each in self.list_streams() if each.stream.upstream == cell]
        through = tuple((stream.identity, stream.knowledge.final) for stream in streams)
        if through:
            self.gryphon.send(peer, Done(self._routes.cell, through))

    def _expect_of(self, peer: BrokerNumber) -> None:
        """Have a broker below request missed events at once, as after a failure of that broker.

        It may have acknowledged more than has arrived here, and may have lost that in a restart.

        Paper: [DS03] §5.3 ("the constream nacks the events it missed").
        """
        cell = self._routes.cell_of(peer)
        for stream in self.gryphon.streams:
            if cell not in stream.children:
                continue
            through = max(
                stream.knowledge.highest, stream.subend.expected, stream.acknowledged_by(cell)
            )
            if self._release.below(cell, stream) < through:
                self.gryphon.send(peer, AckExpected(stream.identity, through, EVERYWHERE))

    def _on_done(self, peer: BrokerNumber, message: Done) -> None:
        """Record acks; a broker below that acknowledges less than before has lost state."""
        self.gryphon.on_done(peer, message)
        cell = self._routes.cell_by_broker[peer]
        for identity, through in message.through if message.cell == cell else ():
            known = self.gryphon.streams.get(identity).acknowledged_by(cell)
            if through < known:
                self.gryphon.send(peer, AckExpected(identity, known, EVERYWHERE))

    def resume_answers(self, peer: BrokerNumber) -> None:
        """See SubendHost."""
        self.gryphon.resume_answers(peer)
        self._fetching.answer_more(peer)

    # ------------------------------------------------------------ time

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, whose in self.gryphon.deadlines.due(self.gryphon.now_ns):
            self._on_due(purpose, whose)

    def _on_due(self, purpose: str, whose: Any) -> None:
        if purpose in self._due:
            self._due[purpose]()
        elif purpose == ARRIVALS:
            self._arrivals.due(whose)
        elif purpose == LEASE:
            for stream in self._holds.expire(whose):
                self._settle_release(stream)
        elif purpose == DOUBT_OF_HOLD:
            self._holds.ask(whose)
        else:
            self.gryphon.on_due(purpose, whose)


def make_core(context: CoreContext) -> Durable:
    """Return the core of a broker."""
    parameters: DurableParameters = context.parameters
    routes = Routes(context.broker, context.topology, parameters.pubends)
    authority = DecommissionAuthority.of(context)
    return Durable(context.broker, routes, parameters, context.decode_attributes, authority)
