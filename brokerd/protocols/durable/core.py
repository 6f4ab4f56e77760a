"""The core of durable: a gryphon core, with clients that disconnect and return.

Paper: [DS03]; [GD02] is the core.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.retention_policy import RetentionPolicy
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
from brokerd.protocols.durable.filtered_starts import FilteredStarts
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
from brokerd.protocols.durable.passed_events import PassedEvents
from brokerd.protocols.durable.release import RELEASE, Release
from brokerd.protocols.durable.retention import EXCESSIVE, RETAINED, Retention
from brokerd.protocols.durable.state import (
    COUNTERS,
    RETENTION,
    TABLES,
    DurableClient,
    DurableSubscription,
    VolatileState,
)
from brokerd.protocols.durable.subscriptions import HostingParts, Subscriptions
from brokerd.protocols.extensions import (
    Farewell,
    RetainedStream,
    StreamRetention,
    SubscriptionState,
)
from brokerd.protocols.gryphon import (
    EVERYWHERE,
    LOG,
    AckExpected,
    Done,
    InFlightEvents,
    LinkStatus,
    PersistentState,
    Routes,
    Stream,
)
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.gryphon.replicated_core import ReplicatedCore
from brokerd.protocols.interface import (
    BrokerDecommissioned,
    CoreStatus,
    DeadlineReached,
    Effect,
    Event,
    Instant,
    RecordsRead,
    RetentionChanged,
    SessionEstablished,
    SessionLost,
    Started,
    SubscriptionEnded,
)
from brokerd.protocols.parts.clients.own_subscriptions import OwnSubscriptions
from brokerd.protocols.parts.clients.table import ClientTable
from brokerd.protocols.parts.decommissioning import NOBODY, DecommissionAuthority, Decommissioning


class Durable:
    """A broker with a gryphon core, and clients with durable subscriptions.

    Implements `DeliveryProtocol`, `DecommissioningProtocol`, `ListingProtocol` and `SubendHost`.

    Attributes:
        gryphon: the streams, pubends, sessions and outbox of this broker.
        persistent: the state on disk.
        hosted: all streams, as this broker's subscribers have them; none at a broker that may
            have no clients.
        registered: the subscriptions of clients that are connected or not.
        commits: the commit cycle of this broker.
        release, retention, holds: what pubends here retain.
        passed: the stored events of other brokers' pubends.
        arrivals: the subscriptions that have moved here.
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
        counters |= dict.fromkeys(COUNTERS, 0)
        hosts = all_streams if routes.is_host else ()
        self.hosted = hosted = {each: HostedStream(each, streams) for each in hosts}
        self.registered = registered = SubscriptionTable(hosted)
        pubends = parameters.pubends
        table = ClientTable(broker, gryphon, deadlines, parameters, DurableClient, pubends=pubends)
        windows = DurableWindows(gryphon, parameters.client_window, counters)
        own: OwnSubscriptions[DurableSubscription, InFlightEvents] = OwnSubscriptions(
            gryphon, windows, decode_attributes, table.clients
        )
        self._letters = Letters(gryphon, broker, routes, gryphon.links)
        self.holds = Holds(disk, deadlines, parameters.hold_lease_ns, streams, self._letters)
        self.retention = Retention(gryphon, parameters)
        self.passed = passed = PassedEvents(parameters.passed_limit_bytes)
        self.release = Release(
            gryphon,
            routes,
            parameters.ack_interval_ns,
            registered,
            self.holds,
            self.retention,
            passed,
        )
        self._recent = recent = FetchedEvents(parameters.fetched_limit_bytes)
        self._fetching = Fetching(
            gryphon, broker, routes, parameters, self.retention, recent, passed
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
        silence_ns, present = parameters.silence_interval_ns, registered.present
        self._silence = Silences(gryphon, deadlines, silence_ns, hosted, present, windows)
        self.commits = CommitCycle(
            disk, deadlines, parameters.commit_interval_ns, hosted, registered
        )
        tokens = TokenCommits(disk, parameters.token_lanes, parameters.token_batch, counters)
        self.arrivals = Arrivals(
            broker, disk, deadlines, parameters, all_streams, self._letters, table
        )
        self._starts = starts = FilteredStarts(gryphon, hosted)
        consumers = Consumers(disk, table, hosted, self.commits, tokens, self._catchups, starts)
        parts = HostingParts(
            gryphon=gryphon,
            table=table,
            windows=windows,
            own=own,
            hosted=hosted,
            registered=registered,
            catchups=self._catchups,
            silence=self._silence,
            commits=self.commits,
            consumers=consumers,
            arrivals=self.arrivals,
            release=self.release,
            starts=self._starts,
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
            has_session=gryphon.neighbours.sessions.__contains__,
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
                Held: self.arrivals.on_held,
                Moved: self._on_moved,
                LetGo: self.arrivals.on_let_go,
            }
        )
        self.gryphon.from_brokers.update(
            {
                Done: self._on_done,
                LinkStatus: self._on_link_status,
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
                SessionLost: self._on_session_lost,
                DeadlineReached: self._on_deadline,
                BrokerDecommissioned: self._decommissioning.on_event,
                SubscriptionEnded: self._clients.on_ended,
                RetentionChanged: self._on_retention,
            }
        )
        self._due = {
            COMMIT: self._subscriptions.commit,
            SILENCE: self._silence.announce,
            FETCHES: self._fetching.due,
            RELEASE: self.release.due,
            RETAINED: self._expire_events,
            EXCESSIVE: self._expire_events,
            CATCHUP_WATCH: self._watch.due,
        }

    # ------------------------------------------------------------ for the driver

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        return self.gryphon.handle(event, now_ns)

    def next_deadline(self) -> Instant | None:
        return self.gryphon.next_deadline()

    def clients_behind(self) -> Collection[ClientId]:
        return self.gryphon.clients_behind()

    def statistics(self) -> Mapping[str, int]:
        found = {
            **self.gryphon.statistics(),
            **self._subscriptions.statistics(),
            "catching_up": len(self._watch),
            "passed_bytes": self.passed.stored_bytes,
        }
        for hosted in self.hosted.values():
            stream = hosted.key
            found[f"delivered_us.{stream}"] = hosted.delivered
            found[f"released_us.{stream}"] = self.registered.released(hosted.identity)
        return found

    def aftermath(self) -> Sequence[str]:
        found = list(self.gryphon.aftermath())
        if uncommitted := self.commits.uncommitted():
            found.append(f"{len(uncommitted)} streams with something to commit")
        if self.arrivals:
            found.append(f"{len(self.arrivals)} subscriptions that just arrived")
        if self.holds:
            found.append(f"{len(self.holds)} holds")
        return found

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol: decommissioned brokers are not awaited."""
        return self.gryphon.status()

    def detail(self) -> Mapping[str, Any]:
        return {**self.gryphon.detail(), **self.state().to_mapping()}

    def state(self) -> VolatileState:
        """Return the state in memory beyond that of the gryphon core, for people."""
        registered = self.registered
        return VolatileState(
            hosted={
                hosted.key: hosted.state(registered.released(identity), registered.lanes(identity))
                for identity, hosted in self.hosted.items()
            },
            arrivals=len(self.arrivals),
            holds=len(self.holds),
            retired=tuple(self._decommissioning),
            retention=self.retention.changed(),
        )

    def list_subscriptions(self, now_ns: Instant) -> Sequence[SubscriptionState]:
        return self._subscriptions.list_all(now_ns)

    def list_retained(self, after: Mapping[StreamId, Sequence[int]]) -> Sequence[RetainedStream]:
        return self.release.list_retained(after)

    def list_retention(
        self, now_ns: Instant, proposed: RetentionPolicy | None = None
    ) -> Sequence[StreamRetention]:
        return [*self.retention.list_all(now_ns, proposed)]

    # ------------------------------------------------------------ streams

    def look_at(self, stream: Stream) -> None:
        """See SubendHost: events are delivered, and everything that all have is released."""
        hosted = self.hosted.get(stream.identity)
        if hosted is not None and self.gryphon.streams.has_lost and stream.upstream is not None:
            self._subscriptions.skip_final(hosted)
        if stream.upstream is not None:
            self.passed.pass_on(stream, self.release.through(stream.identity))
        self.gryphon.look_at(stream)
        if hosted is not None:
            self._subscriptions.on_progress(hosted)
        self._settle_release(stream)
        if self._starts.pending:
            self._subscriptions.start_ready()
        if self._clients.departing:
            self._clients.settle_departures()
        if self._recent.runs:  # nobody will fetch events that are released here and below
            through = self.release.through(stream.identity)
            self._recent.drop_through(stream.identity, through)
        if stream.upstream is None:
            self.retention.schedule()

    def _settle_release(self, stream: Stream) -> None:
        """Announce the released ticks of this subtree, or release events of a local pubend."""
        if self.release.settle(stream):
            self.gryphon.settle(stream)

    def _expire_events(self) -> None:
        """Release events of pubends here that are beyond the bounds of retention."""
        for stream in self.retention.expire():
            self.gryphon.settle(stream)
        self.retention.schedule()

    def _on_retention(self, event: RetentionChanged) -> None:
        """Change the policy of a pubend here after the durable write of the policy."""

        def settle() -> None:
            self.gryphon.settle(self.retention.change(event))

        self.gryphon.disk.commit((self.retention.request(event),), settle)

    def _on_released(self, peer: BrokerNumber, message: Released) -> None:
        for stream in self.release.on_message(peer, message):
            self.gryphon.settle(stream)

    def _on_answer(self, peer: BrokerNumber, message: Answer) -> None:
        self._catchups.on_answers(self._fetching.on_answer(peer, message))
        self._clients.settle_departures()

    # ------------------------------------------------------------ moved subscriptions

    def _on_hold(self, message: Hold) -> None:
        self.arrivals.on_hold(message)
        for stream in self.holds.on_hold(message):
            self._settle_release(stream)

    def _on_moved(self, message: Moved) -> None:
        local = self.arrivals.on_moved(message)
        if local is not None:
            self._clients.depart(local, message)

    # ------------------------------------------------------------ decommissioned brokers

    def farewell(self, broker: BrokerNumber) -> Farewell:
        if broker in self._decommissioning:
            return Farewell(is_known=True)
        arrivals = self.arrivals.unheld(broker)
        theirs = [each for each in self._routes.pubend_streams() if each.broker == broker]
        unfinished = sum(map(self._lacks, theirs))
        reasons = (
            (broker in self.gryphon.neighbours.sessions, "it is up, there is a session with it"),
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
        kept = sum(each.knowledge.events.events for each in self.gryphon.streams.own())
        losses = (f"{kept} publications are kept until all have acknowledged them",) if kept else ()
        return Farewell(False, tuple(why for holds, why in reasons if holds), losses)

    def _lacks(self, identity: StreamId) -> bool:
        """Return True if events of a stream are not acknowledged here and below.

        A moved subscription, or the subscription of a broker with a loss, may lack any event before
        the first logged matches.
        """
        stream, hosted = self.gryphon.streams.get(identity), self.hosted.get(identity)
        is_kept = bool(stream.knowledge.events.events) or bool(stream.subend.gaps)
        lanes = self.registered.lanes(identity)
        is_unknown = any(lane.acknowledged < lane.matched_after for lane in lanes)
        return is_kept or is_unknown or (hosted is not None and bool(len(hosted.log)))

    def _continue_without(self, broker: BrokerNumber) -> None:
        """Stop sending to a decommissioned broker, receiving from it, and retaining for it."""
        cell = self._routes.cell_of(broker)
        self.gryphon.neighbours.retire(broker)
        self.release.drop(cell)
        self.gryphon.streams.drop(cell)
        for stream in self.gryphon.streams:
            stream.forget(broker)
        for stream in self.holds.drop(broker):
            self._settle_release(stream)
        self.arrivals.drop(broker)
        self._starts.retire(broker)
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
            self._clients.settle_departures()
            self.gryphon.resume_if_read()

    @property
    def is_read(self) -> bool:
        return self.gryphon.is_read and self._clients.is_read

    def begin(self, event: Started) -> None:
        self.holds.recover(event.recovered, self._lease_doubt_ns, is_doubtful=bool(event.lineage))
        for hosted in self.hosted.values():
            hosted.hold_undelivered()
        if self._routes.is_host:
            is_restart = event.recovering or event.lineage > 0
            self.retention.begin(event.recovered.get(RETENTION, {}), is_restart=is_restart)
            for stream in self.gryphon.streams.own():
                self.release.restore(stream, stream.held or 0)
        self.gryphon.begin(event)
        self._decommissioning.recover(event.recovered)

    # ------------------------------------------------------------ neighbours

    def _on_session_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        if not isinstance(peer, int):
            self.gryphon.on_session_established(event)
            return
        is_new = self.gryphon.neighbours.is_restart(peer, event)
        self.gryphon.on_session_established(event)
        self._decommissioning.on_session(peer)
        if peer in self._decommissioning:
            return
        self.release.on_session(peer)
        self._fetching.on_session(peer, is_new=is_new)
        self.release.expect(peer)
        if self.gryphon.streams.has_lost:
            self.release.offer(peer)

    def _on_session_lost(self, event: SessionLost) -> None:
        self.gryphon.on_session_lost(event)
        if isinstance(event.peer, int):
            self._fetching.on_session_lost(event.peer)

    def _on_link_status(self, peer: BrokerNumber, message: LinkStatus) -> None:
        """Record the cells that a neighbour reaches, and send requests that had no route."""
        self.gryphon.on_link_status(peer, message)
        self._fetching.due()

    def _on_done(self, peer: BrokerNumber, message: Done) -> None:
        """Record acks; a broker below that acknowledges less than before has lost state.

        A broker without clients has none; it may have received less than others of its cell. With
        filters unwanted events count as acknowledged, and no loss of state is accepted.
        """
        self.gryphon.on_done(peer, message)
        if self.gryphon.filters.is_on:
            return
        cell = self._routes.cell_by_broker[peer]
        for identity, through in message.through if message.cell == cell else ():
            known = self.gryphon.streams.get(identity).acknowledged_by(cell)
            if through < known and peer in self._routes.hosts:
                self.gryphon.send(peer, AckExpected(identity, known, EVERYWHERE))

    def resume_answers(self, peer: BrokerNumber) -> None:
        self.gryphon.resume_answers(peer)
        self._fetching.answer_more(peer)

    # ------------------------------------------------------------ time

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, owner in self.gryphon.deadlines.due(self.gryphon.now_ns):
            self._on_due(purpose, owner)

    def _on_due(self, purpose: str, owner: Any) -> None:
        if purpose in self._due:
            self._due[purpose]()
        elif purpose == ARRIVALS:
            self.arrivals.due(owner)
        elif purpose == LEASE:
            for stream in self.holds.expire(owner):
                self._settle_release(stream)
        elif purpose == DOUBT_OF_HOLD:
            self.holds.request(owner)
        else:
            self.gryphon.on_due(purpose, owner)


def make_core(context: CoreContext) -> Durable | ReplicatedCore:
    parameters: DurableParameters = context.parameters
    routes = Routes(context.broker, context.topology, parameters.pubends)
    authority = DecommissionAuthority.of(context)
    core = Durable(context.broker, routes, parameters, context.decode_attributes, authority)
    if parameters.replicas == 1:
        return core
    return ReplicatedCore(core, context.broker, context.topology, parameters)
