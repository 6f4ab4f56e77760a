"""The broker of durable subscribers: matches are logged for connected and disconnected clients.

Paper: [DS03] §4.1 (consolidated stream), §3 (released).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Acknowledge,
    CommitConsumed,
    Connect,
    Consume,
    Detach,
    Publish,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from brokerd.model.identity import BrokerNumber, ClientId, SourceId, StreamId
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.catching_up import CatchingUp, Fetch
from brokerd.protocols.durable.catchup import LostPart
from brokerd.protocols.durable.catchup_watch import CatchupWatch
from brokerd.protocols.durable.commits import CommitCycle
from brokerd.protocols.durable.handing import parts_by_client
from brokerd.protocols.durable.hosted_streams import (
    DELIVERED,
    WRITTEN,
    HostedStream,
    Snapshot,
)
from brokerd.protocols.durable.lanes import (
    DurableClient,
    DurableSubscription,
    InFlightDelivery,
    Lane,
    Mode,
)
from brokerd.protocols.durable.logs import key_of
from brokerd.protocols.durable.messages import Letter
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.silence import Silences
from brokerd.protocols.durable.subscription_rows import (
    ACKNOWLEDGED,
    lane_key,
    read_subscription,
    subscription_row,
    ticks_of,
)
from brokerd.protocols.durable.tokens import PresentedTokens
from brokerd.protocols.durable.windows import DurableWindows
from brokerd.protocols.gryphon import InFlightEvents, Pubends, Stream
from brokerd.protocols.gryphon.clients import ClientCore
from brokerd.protocols.interface import (
    Append,
    Change,
    Commit,
    RecordsRead,
    Started,
)
from brokerd.protocols.parts.clients.own_subscriptions import (
    SUBSCRIPTIONS,
    OwnSubscriptions,
)
from brokerd.protocols.parts.clients.table import Admission, ClientTable
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler
from brokerd.protocols.parts.selection import match_run


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of a broker that durable subscriptions use.

    Attributes:
        all_streams: of all pubends.
        streams: returns the state of a stream here.
        fetch: requests ticks of a stream; `on_found` takes the answer.
        on_delivered: called when more of a stream may be delivered here, and released by all.
        tell: forwards a message to another broker.
    """

    all_streams: Sequence[StreamId]
    streams: Callable[[StreamId], Stream]
    fetch: Fetch
    on_delivered: Callable[[Stream], None]
    tell: Callable[[Letter], None]


class DurableClients:
    """The clients of a broker: a subscription stays, and misses nothing, while its client is away.

    Args:
        core: publishes, and takes acknowledged events.
        pubends: of this broker.
        is_host: whether this broker may have clients.

    Attributes:
        table: the clients.
        own: their subscriptions.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: DurableParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        core: ClientCore,
        pubends: Pubends,
        is_host: bool,
        **_others: Any,
    ) -> None:
        machine = disk.machine
        self.table = ClientTable(broker, machine, deadlines, parameters, DurableClient)
        self._outlets = DurableWindows(machine, parameters.client_window, counters)
        self.own = OwnSubscriptions(machine, self._outlets, decode_attributes, self.table.clients)
        self._broker = broker
        self._machine = machine
        self._disk = disk
        self._core = core
        self._pubends = pubends
        self._is_host = is_host
        self._parameters = parameters
        self._timers: DeadlineQueue[Any] = deadlines
        self._around = surroundings
        self._all: dict[int, DurableSubscription] = {}
        self._ending: dict[int, DurableSubscription] = {}
        self._released: dict[StreamId, int] = {}
        self._changed: dict[Lane, None] = {}
        self._hosted = {
            each: HostedStream(each, surroundings.streams) for each in surroundings.all_streams
        }
        self.catchup_watch = CatchupWatch(
            self._machine, self._timers, parameters.catchup_watch_ns, counters
        )
        self._catching_up = CatchingUp(
            self._machine,
            self._outlets,
            self.own.memo,
            min(parameters.catchup_batch, parameters.live_limit),
            parameters.catchup_window,
            surroundings.fetch,
            self.catchup_watch,
        )
        self.silence = Silences(
            self._machine,
            self._timers,
            parameters.silence_interval_ns,
            self._hosted,
            self._all,
            self._outlets,
        )
        self._tokens = PresentedTokens(self._machine, self._hosted, surroundings.fetch)
        self._commits = CommitCycle(
            self._disk,
            self._timers,
            parameters.commit_interval_ns,
            next((each.log.name for each in self._hosted.values()), ""),
            self._take,
            self._rows,
            self._on_committed,
        )

    def handlers(self) -> dict[type, MessageHandler]:
        """See HostedClients."""
        return {
            Connect: self._on_connect,
            Subscribe: self.on_subscribe,
            Consume: self.table.on_consume,
            CommitConsumed: self.table.on_commit_consumed,
            Unsubscribe: self._on_unsubscribe,
            Detach: self._on_detach,
            Publish: self._on_publish,
            Acknowledge: self._on_acknowledge,
        }

    # ------------------------------------------------------------ start

    def list_streams(self) -> Iterator[HostedStream]:
        """Return all streams."""
        return iter(self._hosted.values())

    def all_subscriptions(self) -> Iterator[DurableSubscription]:
        """Return the subscriptions of all clients, connected or not."""
        return iter(self._all.values())

    def lanes(self, client: ClientId, stream: StreamId) -> Iterator[Lane]:
        """Return the lanes of a client's subscriptions in a stream."""
        locals_ = self.table.clients[client].subscriptions.values()
        return (local.lane(stream) for local in locals_)

    def uncommitted(self) -> Mapping[StreamId, None]:
        """Return the streams with uncommitted deliveries or acknowledgements."""
        changed = {lane.stream: None for lane in self._changed}
        for identity, hosted in self._hosted.items():
            lanes = (each.lane(identity) for each in self._all.values())
            if hosted.is_ahead or any(lane.committed < lane.acknowledged for lane in lanes):
                changed[identity] = None
        return changed

    def durable_delivered_tick(self, stream: StreamId) -> int:
        """Return the durable delivered tick of a stream, from which a restart continues."""
        return self._hosted[stream].delivered_on_disk

    @property
    def is_read(self) -> bool:
        """True once all logs of matches of earlier incarnations are read."""
        return all(hosted.log.is_read for hosted in self._hosted.values())

    def recover_logs(self, event: Started) -> None:
        """Read the matches of an earlier incarnation, and truncate uncommitted ones."""
        delivered = ticks_of(event.recovered, DELIVERED)
        acknowledged = ticks_of(event.recovered, ACKNOWLEDGED)
        written = ticks_of(event.recovered, WRITTEN)
        identities = [row[0] for row in event.recovered.get(SUBSCRIPTIONS, {}).values()]
        for identity, hosted in self._hosted.items():
            key = key_of(identity)
            hosted.delivered = hosted.delivered_on_disk = delivered.get(key, 0)
            least = [acknowledged.get(f"{each}/{key}", 0) for each in identities]
            chopped = min([hosted.delivered, *least])
            ends = event.logs[hosted.log.name]
            least_next = written.get(key, 1)
            for effect in hosted.log.recover(ends, hosted.delivered, chopped, least_next):
                self._machine.emit(effect)

    def on_records(self, event: RecordsRead) -> None:
        """Take a page of a log of matches."""
        hosted = next(each for each in self._hosted.values() if each.log.name == event.log)
        for effect in hosted.log.on_records(event):
            self._machine.emit(effect)
        self._catching_up.resume(hosted)

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See HostedClients; streams continue from their durable matches."""
        streams = {key_of(each): each for each in self._hosted}
        for key, row in recovered.get(SUBSCRIPTIONS, {}).items():
            local = read_subscription(key, row, streams)
            self.table.find(local.client).subscriptions[local.number] = local
            self._begin(local)
        stale = []
        for key, tick in recovered.get(ACKNOWLEDGED, {}).items():
            owner, _, stream = key.partition("/")
            if int(owner) in self._all:
                lane = self._all[int(owner)].lane(streams[stream])
                lane.acknowledged = lane.committed = tick
            else:
                stale.append(Change(ACKNOWLEDGED, key, None))
        self._released.clear()
        for identity, hosted in self._hosted.items():
            # It may have ended between a commit and that.
            for effect in hosted.log.chop(self.released(identity)):
                self._machine.emit(effect)
        if stale:
            self._machine.emit(Commit(tuple(stale), None))
        for hosted in self._hosted.values():
            if hosted.delivered:
                subend = hosted.stream.subend
                subend.position = max(subend.position, hosted.delivered)
        for name in self.table.clients:
            self.table.linger(name)

    # ------------------------------------------------------------ the one stream for all

    def deliver(self, stream: StreamId, run: PublicationRun) -> InFlightEvents | None:
        """Log the matches of events, and deliver to live clients; None without a match."""
        hosted = self._hosted[stream]
        results = match_run(self.own.memo, run, run.source.broker)
        wanted = [[local.lane(stream) for local in those] for those in results]
        if not any(wanted):
            return None
        self._write(hosted, run, wanted)
        # After that: a lane that falls behind now reads up to the end of the run.
        for part, lanes in parts_by_client(run, wanted):
            self._deliver_live(hosted, part, lanes)
        entry = InFlightEvents(stream, run.first)
        hosted.mark_uncommitted(run.last, entry)
        return entry

    def _write(
        self, hosted: HostedStream, run: PublicationRun, wanted: Sequence[Sequence[Lane]]
    ) -> None:
        """Log the matches of events, except for acknowledged ones.

        Args:
            wanted: the lanes for each place in the run's attribute table.
        """
        everybody = [tuple(lane.subscription.identity for lane in lanes) for lanes in wanted]
        ticks: Sequence[int] = run.sequences
        whose = list(map(everybody.__getitem__, run.attribute_index))
        if any(lane.acknowledged >= run.first for lanes in wanted for lane in lanes):
            whose = [
                tuple(
                    lane.subscription.identity for lane in wanted[place] if lane.acknowledged < tick
                )
                for tick, place in zip(ticks, run.attribute_index, strict=True)
            ]
        if not all(whose):
            ticks = list(compress(ticks, whose))
            whose = [each for each in whose if each]
        if records := hosted.log.records(ticks, whose):
            self._machine.emit(Append(hosted.log.name, tuple(records), None))

    def _deliver_live(
        self, hosted: HostedStream, part: PublicationRun, lanes: Sequence[Lane]
    ) -> None:
        """Deliver events to the live lanes of a client, as far as the lanes have room."""
        groups: dict[tuple[int, int], list[Lane]] = {}
        behind: list[tuple[Lane, int]] = []
        for lane in lanes:
            if lane.mode is not Mode.LIVE:
                continue
            room = self._parameters.live_limit - lane.out_events
            last = part.last
            if room < len(part):
                last = part.sequences[room - 1] if room > 0 else part.first - 1
                behind.append((lane, last))
            had = lane.floor if lane.floor >= part.first else 0
            groups.setdefault((had, last), []).append(lane)
        for (had, last), theirs in groups.items():
            rest = part.after(had) if had else part
            if rest is not None and last < rest.last:
                rest = rest.select_through(last)
            if rest is not None:
                self._outlets.queue_events(rest, theirs)
        for lane, last in behind:
            self._catching_up.begin(hosted, lane, max(last, lane.floor))

    # ------------------------------------------------------------ silence

    def look_at(self, stream: Stream) -> None:
        """Schedule a commit and silence after progress of a stream."""
        hosted = self._hosted[stream.identity]
        if hosted.position > hosted.seen:
            hosted.seen = hosted.position
            self._commits.schedule()
            if self._all:
                self.silence.schedule()

    def skip_final(self, stream: Stream) -> None:
        """Fetch ticks that are final upstream, and missing here after an accepted loss.

        This broker had acknowledged these ticks before the loss, so brokers above forward no events
        of them. The matches are lost, too.
        """
        hosted, before = self._hosted[stream.identity], stream.subend.position
        if stream.knowledge.final <= before or not self._all:
            return
        final = stream.subend.position = stream.knowledge.final
        lanes = [local.lane(stream.identity) for local in self._all.values()]
        for lane in lanes:
            lane.matched_after = lane.lost_through = final
        rows = tuple(subscription_row(local) for local in self._all.values())
        self._machine.emit(Commit(rows, None))
        for lane in lanes:
            self._catching_up.skip(hosted, lane, before)

    # ------------------------------------------------------------ the commit cycle

    def commit(self) -> None:
        """Commit the present state."""
        self._commits.due()

    def released(self, stream: StreamId) -> int:
        """Return the tick through which all subscriptions here have durably acknowledged."""
        found = self._released.get(stream)
        if found is None:
            found = self._released[stream] = self._work_out_released(stream)
        return found

    def _work_out_released(self, stream: StreamId) -> int:
        return self._hosted[stream].released((*self._all.values(), *self._ending.values()))

    def recount_released(self) -> Iterator[tuple[StreamId, int, int]]:
        """Yield the cached and the recomputed released tick of streams with a cached value."""
        for stream, kept in self._released.items():
            yield stream, kept, self._work_out_released(stream)

    def _take(self) -> Snapshot | None:
        delivered = {
            identity: hosted.position
            for identity, hosted in self._hosted.items()
            if hosted.is_ahead
        }
        acknowledged = {lane: lane.acknowledged for lane in self._changed}
        self._changed = {}
        written = {identity: self._hosted[identity].log.next for identity in delivered}
        return Snapshot(delivered, written, acknowledged) if delivered or acknowledged else None

    def _rows(self, taken: Snapshot) -> Sequence[Change]:
        delivered = [
            Change(DELIVERED, key_of(stream), max(tick, self._hosted[stream].delivered))
            for stream, tick in taken.delivered.items()
        ]
        written = [
            Change(WRITTEN, key_of(stream), index) for stream, index in taken.written.items()
        ]
        acknowledged = [
            Change(ACKNOWLEDGED, lane_key(lane), tick)
            for lane, tick in taken.acknowledged.items()
            if not lane.subscription.is_over
        ]
        return [*delivered, *written, *acknowledged]

    def _on_committed(self, taken: Snapshot) -> None:
        """Announce committed positions; later ones could be lost, and requested again."""
        streams: dict[StreamId, None] = dict.fromkeys(taken.delivered)
        for lane, tick in taken.acknowledged.items():
            if not lane.subscription.is_over:  # else it was not written down
                lane.committed = max(lane.committed, tick)
            streams[lane.stream] = None
        for identity in streams:
            hosted = self._hosted[identity]
            self._released.pop(identity, None)
            for entry in hosted.commit(taken.delivered.get(identity, 0)):
                entry.open -= 1
                self._core.on_client_done(entry)
            self._release(hosted)

    def _release(self, hosted: HostedStream) -> None:
        """Release a stream as far as all subscriptions here have acknowledged."""
        for effect in hosted.log.chop(self.released(hosted.identity)):
            self._machine.emit(effect)
        self._around.on_delivered(hosted.stream)

    def _take_done(self, entries: Iterable[InFlightEvents]) -> None:
        """Take deliveries that clients have acknowledged."""
        for entry in entries:
            assert isinstance(entry, InFlightDelivery), f"{entry} was never assigned"
            lane = entry.lane
            if lane.settle():
                self._changed[lane] = None
                self._commits.schedule()
            self._catching_up.advance(self._hosted[lane.stream], lane)

    def on_found(
        self,
        identity: StreamId,
        lost: LostPart,
        ranges: Sequence[tuple[int, int]],
        run: PublicationRun | None,
    ) -> None:
        """Take fetched events for subscriptions that catch up."""
        lanes = [each.lane(identity) for each in self._all.values()]
        self._catching_up.take(self._hosted[identity], lanes, lost, ranges, run)

    def on_beyond(
        self, identity: StreamId, highest: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Refuse clients with tokens of ticks that were never published."""
        refused = self._tokens.beyond(self._all.values(), identity, highest, ranges)
        presented = [local.presented for local in refused]
        self._leave_lanes(refused)
        for local, theirs in zip(refused, presented, strict=True):
            local.presented = theirs

    def on_deferred(self, identity: StreamId, ranges: Sequence[tuple[int, int]]) -> None:
        """Postpone ranges that subscriptions in catch-up have requested."""
        lanes = [each.lane(identity) for each in self._all.values()]
        self._catching_up.defer(self._hosted[identity], lanes, ranges)
        for lane in lanes:
            if any(start <= lane.floor < end for start, end in ranges):
                self._tokens.prove(lane.subscription)

    # ------------------------------------------------------------ subscriptions

    def on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        """Create a subscription, or report its state; the same request again changes nothing."""
        client = self.table.requester(name, "Subscribe")
        if not self.table.is_permitted(client, message):
            return
        known = client.subscriptions.get(message.number)
        if known is not None:
            self._claim(client, known)
        else:
            self._subscribe(client, message)

    def _subscribe(self, client: DurableClient, message: Subscribe) -> None:
        """Begin a subscription after everything delivered; the client is notified once durable.

        A number that a crash took may be given again: the records with that number have earlier
        ticks.

        Paper: [DS03] §4.1 (a new subscriber's starting point).
        """
        local = DurableSubscription(client.name, message.number, message.predicate, client.session)
        others = (*self._all, *self._ending)
        local.identity = max(others, default=0) + 1
        client.subscriptions[local.number] = local
        changes, begun = [], {}
        for identity, hosted in self._hosted.items():
            lane = local.lane(identity)
            lane.acknowledged = lane.committed = hosted.position
            self._place(client, lane)
            if lane.committed:
                changes.append(Change(ACKNOWLEDGED, lane_key(lane), lane.committed))
            if hosted.position and not others:  # earlier events match no subscription
                hosted.delivered = begun[hosted] = hosted.position
                changes.append(Change(DELIVERED, key_of(identity), hosted.position))
        self._begin(local)
        changes += self._rows_first(client, local)
        self._machine.send(client.name, Subscribed(local.number, "pending"))

        def kept() -> None:
            for hosted, tick in begun.items():
                hosted.delivered_on_disk = max(hosted.delivered_on_disk, tick)
                self._released.pop(hosted.identity, None)
                self._around.on_delivered(hosted.stream)
            self._on_kept(client, local)

        self._disk.commit(changes, kept)

    def _place(self, client: DurableClient, lane: Lane) -> None:
        """Place a new lane; by default, after everything delivered here."""

    def _rows_first(self, client: DurableClient, local: DurableSubscription) -> Sequence[Change]:
        """Return the rows that are durable before the client is notified of a new subscription."""
        return (subscription_row(local),)

    def _begin(self, local: DurableSubscription) -> None:
        self._all[local.identity] = local
        self._released.clear()
        self.own.start(local)

    def _on_kept(self, client: DurableClient, local: DurableSubscription) -> None:
        """Begin a subscription that is now on disk, unless it has ended."""
        if not local.is_over:
            self._begin_one(client, local)

    def _begin_one(self, client: DurableClient, local: DurableSubscription) -> None:
        local.accepted = True
        if client.connected and client.session == local.claimed:
            self._attach(local)

    def _claim(self, client: DurableClient, local: DurableSubscription) -> None:
        local.claimed = client.session
        if local.accepted:
            self._attach(local)

    def _attach(self, local: DurableSubscription) -> None:
        """Attach a requested subscription at the position that the client presents.

        A client without a position receives the stored position.
        """
        if not self._tokens.accept(local):
            return
        begins = () if local.presented else local.positions()
        self._machine.send(local.client, Subscribed(local.number, "started", begins))
        if local.is_attached:
            return
        local.is_attached = True
        self._take_done(self.own.complete(self._outlets.claim(local)))
        for identity, hosted in self._hosted.items():
            lane = local.lane(identity)
            had = local.presented.get(identity, lane.acknowledged)
            self._catching_up.begin(hosted, lane, had)
        self.silence.schedule()
        self._tokens.prove(local)

    def _on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        """End a subscription and its stream at once, without waiting for other brokers."""
        client = self.table.check_unsubscribe(name, message)
        found = client.subscriptions.get(message.number)
        answer = partial(self.table.report_end, client, client.session, message.number)
        self._end(client, [found] if found is not None else [], answer)

    def _on_detach(self, name: ClientId, message: Detach) -> None:
        client = self.table.check_detach(name)
        session = client.session

        def leave() -> None:
            client.drains = client.session == session
            self._answer_detach(client)

        self._end(client, [*client.subscriptions.values()], leave, drain=message.drain)

    def _answer_detach(self, client: DurableClient) -> None:
        if self.own.is_drained(client):
            self.table.report_end(client, client.session, 0)

    def _end(
        self,
        client: DurableClient,
        over: Sequence[DurableSubscription],
        then: Callable[[], None] = lambda: None,
        *,
        drain: bool = False,
    ) -> None:
        """End subscriptions, and release their events once the end is durable."""
        self._leave_lanes(over)

        def both() -> None:
            for local in over:
                del self._ending[local.identity]
            self._released.clear()
            for hosted in self._hosted.values() if over else ():
                self._release(hosted)
            then()

        self._take_done(self.own.end(client, over, drain=drain))
        self._on_ended(over)
        self._disk.commit([Change(SUBSCRIPTIONS, local.row, None) for local in over], both)
        # Behind the row of the subscription: a crash between the two must not bring back one that
        # has acknowledged nothing.
        lanes = [lane for local in over for lane in local.lanes.values()]
        if lanes:
            rows = tuple(Change(ACKNOWLEDGED, lane_key(lane), None) for lane in lanes)
            self._machine.emit(Commit(rows, None))

    def _on_ended(self, over: Sequence[DurableSubscription]) -> None:
        for local in over:
            self._ending[local.identity] = self._all.pop(local.identity)
            for lane in local.lanes.values():
                self._changed.pop(lane, None)
                self._hosted[lane.stream].log.forget(local.identity)
        if not self.own.started:
            self._core.on_unwanted()
        self._commits.schedule()

    def _leave_lanes(self, locals_: Sequence[DurableSubscription]) -> None:
        for local in locals_:
            local.is_attached = False
            local.presented = {}
        self._catching_up.leave([lane for local in locals_ for lane in local.lanes.values()])

    # ------------------------------------------------------------ sessions

    def _on_connect(self, name: ClientId, message: Connect) -> None:
        if not self._is_host:
            raise RemoteProtocolError(name, "this broker is one of a cell of several: no clients")
        durable = self._durable(message.source)
        client = self.table.check_connect(name, message, durable or 0, durable)
        if client is not None:
            admission = self.table.assign_source(client, message)
            self._disk.commit(admission.changes, partial(self._admit, admission))

    def _durable(self, source: SourceId | None) -> int | None:
        return self._pubends.durable(source) if source is not None else None

    def _admit(self, admission: Admission[DurableClient]) -> None:
        """Admit a client; a client without memory states no subscription, and resumes all."""
        if not admission.is_current():
            return
        client, message = admission.client, admission.message
        self._resume(client, message)
        if self.table.lineage and message.resume and (over := self.own.unstated(client, message)):
            self._end(client, over)
        lost = self.table.lost_publications(message, self._durable(message.source))
        if lost is not None:
            self._core.publish(lost, lambda: None)
        self.table.enter(client)
        self.table.welcome(client)
        if client.subscriptions:
            self.table.linger(client.name)

    def _resume(self, client: DurableClient, message: Connect) -> None:
        client.submitted = client.told = message.next_sequence - 1
        for number, seen in message.resume:
            if number in client.subscriptions:
                client.subscriptions[number].presented = dict(seen)

    def on_lost(self, name: ClientId, session: int) -> None:
        """See HostedClients."""
        client, was_admitted = self.table.close_session(name, session)
        self._take_done(self.own.close(client))
        self._leave_lanes([*client.subscriptions.values()])
        client.brought = {}
        if was_admitted and not client.subscriptions and client.later is None:
            self._forget(name)
        else:
            self.table.keep(client)

    def linger_over(self, name: ClientId) -> None:
        """See HostedClients."""
        client = self.table.clients[name]
        self._end(client, self.own.unrequested(client))
        if not client.session:
            self._forget(name)

    def _forget(self, name: ClientId) -> None:
        self.table.forget(name)
        self._outlets.forget(name)

    # ------------------------------------------------------------ publications

    def _on_publish(self, name: ClientId, message: Publish) -> None:
        client, run = self.table.check_publish(name, message), message.run
        self.own.check_run(run, name)
        client.submitted = max(client.submitted, run.last)
        self._core.publish(run, partial(self._acknowledge_durable, name))

    def _acknowledge_durable(self, name: ClientId) -> None:
        """Acknowledge the durable publications of a publisher, if connected."""
        client = self.table.clients.get(name)
        if client is not None and client.source is not None:
            self.own.acknowledge_through(client, self._pubends.durable(client.source))

    def _on_acknowledge(self, name: ClientId, message: Acknowledge) -> None:
        client = self.table.check_acknowledge(name, message)
        self._take_done(self.own.acknowledge(name, message))
        self._answer_detach(client)
