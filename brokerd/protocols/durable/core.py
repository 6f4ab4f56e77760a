"""The core of durable: gryphon's core, for clients that disconnect and return.

Paper: [DS03]; [GD02] is the core.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from brokerd.model.identity import BrokerNumber, ClientId, Peer, StreamId
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.durable.arrivals import ARRIVALS
from brokerd.protocols.durable.catchup_watch import CATCHUP_WATCH
from brokerd.protocols.durable.commits import COMMIT
from brokerd.protocols.durable.consuming import ConsumingClients
from brokerd.protocols.durable.fetching import FETCHES, Fetching
from brokerd.protocols.durable.forwarding import Forwarding
from brokerd.protocols.durable.holds import DOUBT_OF_HOLD, LEASE, Holds
from brokerd.protocols.durable.hosted_streams import HostedStream
from brokerd.protocols.durable.hosting import Surroundings
from brokerd.protocols.durable.lanes import DurableSubscription, Lane
from brokerd.protocols.durable.logs import key_of
from brokerd.protocols.durable.messages import Decommissioned, Hold, Letter
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.release import RELEASE, Release
from brokerd.protocols.durable.retention import RETAINED, Retention
from brokerd.protocols.durable.silence import SILENCE
from brokerd.protocols.gryphon import EVERYWHERE, LOG, AckExpected, Done, Range, Routes, Stream
from brokerd.protocols.gryphon.core import RETRY, Gryphon
from brokerd.protocols.interface import (
    BrokerDecommissioned,
    CoreStatus,
    Farewell,
    MessageReceived,
    RecordsRead,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.parts.decommissioning import NOBODY, DecommissionAuthority, Decommissioning


class Durable(Gryphon):
    """See DeliveryProtocol."""

    def __init__(
        self,
        broker: BrokerNumber,
        routes: Routes,
        parameters: DurableParameters,
        decode_attributes: DecodeAttributes,
        authority: DecommissionAuthority = NOBODY,
    ) -> None:
        surroundings = Surroundings(
            routes.pubend_streams(), self._stream, self._fetch, self._on_delivered, self._notify
        )
        make_clients = partial(ConsumingClients, surroundings)
        super().__init__(broker, routes, parameters, decode_attributes, make_clients)
        clients = self._clients
        assert isinstance(clients, ConsumingClients), f"{clients} does not keep what it is given"
        self._durable = clients
        self._holds = Holds(
            self._disk,
            self._deadlines,
            parameters.hold_lease_ns,
            self._stream,
            self._notify,
            self._settle_release,
        )
        takers = {Hold: self._on_hold, **clients.arrivals.takers()}
        self._forwarding = Forwarding(self, broker, routes, self.links, takers)
        self._fetching = Fetching(
            self,
            broker,
            routes,
            parameters,
            self._deadlines,
            self._counters,
            self.streams.get,
            self.links,
            self.flow,
            clients.on_found,
            clients.on_beyond,
            clients.on_deferred,
            lambda stream, first: self._retention.find_loss(stream, first),
            lambda broker: broker in self._decommissioning,
        )
        self._retention = Retention(
            self,
            parameters,
            self._deadlines,
            self.pubends,
            self.pubend_streams,
            self._settle,
        )
        self._release = Release(
            self,
            routes,
            self._deadlines,
            parameters.ack_interval_ns,
            self.streams.get,
            self.links,
            self._own_released_tick,
            self._retention.released,
        )
        self._decommissioning = Decommissioning(
            broker,
            self._disk,
            Decommissioned,
            authority,
            routes.neighbours,
            has_session=self._sessions.__contains__,
            may_leave=routes.is_leaf,
            leave=self._continue_without,
        )
        for hosted in clients.list_streams():
            self._hold_undelivered(hosted.stream)
        for each in (self._fetching, self._release, self._forwarding, self._decommissioning):
            self._from_brokers |= each.handlers()
        self.dispatch_events(
            {
                **self._event_handlers,
                BrokerDecommissioned: self._decommissioning.on_event,
            }
        )

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        found = {**super().statistics(), "catching_up": len(self._durable.catchup_watch)}
        for hosted in self._durable.list_streams():
            stream = key_of(hosted.identity)
            found[f"delivered_us.{stream}"] = hosted.delivered
            found[f"released_us.{stream}"] = self._durable.released(hosted.identity)
        return found

    def list_streams(self) -> Iterator[HostedStream]:
        """Return all streams, as this broker's subscribers have them."""
        return self._durable.list_streams()

    def subscriptions(self) -> Iterator[DurableSubscription]:
        """Return all subscriptions of this broker, with connected or disconnected clients."""
        return self._durable.all_subscriptions()

    def lanes(self, client: ClientId, stream: StreamId) -> Iterator[Lane]:
        """Return a client's lanes in a stream, per subscription."""
        return self._durable.lanes(client, stream)

    def has_safely(self, client: ClientId, number: int) -> bool:
        """Return True if a subscription is here, and everything that it lacks is held."""
        return self._durable.arrivals.is_safe((client, number))

    def recount_released(self) -> Iterator[tuple[StreamId, int, int]]:
        """Yield the cached and the recomputed released tick of streams.

        Streams without a cached value, or with a new value at the next commit, are left out.
        """
        return self._durable.recount_released()

    def pubend_streams(self) -> list[Stream]:
        """Return the streams of this broker's own pubends."""
        pubends = range(self._parameters.pubends)
        return [self._stream(self.pubends.stream(pubend)) for pubend in pubends]

    def find_expired_tick(self) -> int:
        """Return the tick through which events are too old to be retained."""
        return self._retention.expired_tick()

    def _stream(self, identity: StreamId) -> Stream:
        return self.streams.get(identity)

    def _fetch(self, identity: StreamId, ranges: Sequence[Range]) -> None:
        self._fetching.fetch(identity, ranges)

    def _settle_release(self, stream: Stream) -> None:
        self._release.settle(stream)

    def _hold_undelivered(self, stream: Stream) -> None:
        """Leave events unacknowledged that a restart would lack.

        Subscriptions that begin after a restart are matched from the delivered tick on, for which
        the events have to arrive again. The events of own pubends are retained until they are
        released.

        Paper: [DS03] §4.1 (latestDelivered).
        """
        if stream.upstream is not None:
            stream.held = self._durable.durable_delivered_tick(stream.identity)

    def _on_delivered(self, stream: Stream) -> None:
        self._hold_undelivered(stream)
        self._settle(stream)
        self._release.settle(stream)

    def _own_released_tick(self, stream: StreamId) -> int:
        """Return the released tick of this broker's subscriptions and holds."""
        own, held = self._durable.released(stream), self.bound_by_holds(stream)
        return own if held is None else min(own, held)

    def find_released_tick(self, stream: StreamId) -> int:
        """Return the released tick of a stream here and below."""
        return self._release.through(stream)

    def holds(self, stream: StreamId) -> dict[tuple[ClientId, int, BrokerNumber, int], int]:
        """See Holds.of."""
        return self._holds.of(stream)

    def bound_by_holds(self, stream: StreamId) -> int | None:
        """Return the tick after which moved subscriptions hold a stream; None without a hold.

        Streams of other brokers' pubends have no holds here.
        """
        return self._holds.bound(stream)

    def _notify(self, letter: Letter) -> None:
        self._forwarding.send(letter)

    def _on_hold(self, message: Hold) -> None:
        self._durable.arrivals.on_hold(message)
        self._holds.on_hold(message)

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol."""
        found = list(super().aftermath())
        if uncommitted := self._durable.uncommitted():
            found.append(f"{len(uncommitted)} streams with something to commit")
        if self._durable.arrivals:
            found.append(f"{len(self._durable.arrivals)} subscriptions that just arrived")
        if self._holds:
            found.append(f"{len(self._holds)} holds")
        return found

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol: decommissioned brokers are not awaited."""
        found = super().status()
        wanted = tuple(each for each in found.wanted if each not in self._decommissioning)
        ready = tuple(each for each in found.ready if each not in self._decommissioning)
        return replace(found, wanted=wanted, ready=ready)

    # ------------------------------------------------------------ decommissioned brokers

    def farewell(self, broker: BrokerNumber) -> Farewell:
        """See DecommissioningProtocol."""
        if broker in self._decommissioning:
            return Farewell(is_known=True)
        arrivals = self._durable.arrivals.unheld(broker)
        unfinished = sum(
            bool(self._stream(hosted.identity).knowledge.events.events)
            or bool(hosted.stream.subend.gaps)
            or bool(len(hosted.log))
            for hosted in self.list_streams()
            if hosted.identity.broker == broker
        )
        reasons = (
            (broker in self._sessions, "it is up, there is a session with it"),
            (self.is_reading, "this one is starting, and reads its log"),
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
        self._release.drop(cell)
        for stream in self.streams:
            stream.drop(cell)
            stream.forget(broker)
        self._deadlines.cancel((RETRY, broker))
        self._holds.drop(broker)
        self._durable.arrivals.drop(broker)
        self._fetching.drop(broker)
        self._settle_all()
        for stream in self.streams:
            self._release.settle(stream)

    def _retry_lost(self, event: SessionLost) -> None:
        if event.peer not in self._decommissioning:
            super()._retry_lost(event)

    def _retry_later(self, peer: Peer) -> None:
        if peer not in self._decommissioning:
            super()._retry_later(peer)

    def _on_message(self, event: MessageReceived) -> None:
        if event.peer in self._decommissioning:
            self._counters["messages_ignored"] += 1
        else:
            super()._on_message(event)

    # ------------------------------------------------------------ start

    def _on_started(self, event: Started) -> None:
        self._durable.recover_logs(event)
        super()._on_started(event)

    def _on_records(self, event: RecordsRead) -> None:
        if event.log == LOG:
            super()._on_records(event)
            return
        self._durable.on_records(event)
        if self.is_reading and self._is_read():
            self.resume()

    def _is_read(self) -> bool:
        return super()._is_read() and self._durable.is_read

    def _begin(self, event: Started) -> None:
        repetition_ns = self._parameters.nack_repetition_limit_ns
        self._holds.recover(event.recovered, repetition_ns, is_doubtful=bool(event.lineage))
        for hosted in self._durable.list_streams():
            self._hold_undelivered(hosted.stream)
        self._retention.begin()
        for stream in self.pubend_streams():
            self._release.restore(stream, stream.held or 0)
        super()._begin(event)
        self._decommissioning.recover(event.recovered)

    # ------------------------------------------------------------ neighbours' messages

    def _on_session_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        is_new = isinstance(peer, int) and self._incarnations.get(peer) != event.incarnation
        super()._on_session_established(event)
        if isinstance(peer, int):
            self._decommissioning.on_session(peer)
            if peer in self._decommissioning:
                return
            self._release.on_session(peer)
            self._fetching.on_session(peer, is_new=is_new)
            self._expect_of(peer)
            if self.streams.has_lost:
                self._offer_all(peer)

    def _offer_all(self, peer: BrokerNumber) -> None:
        """Acknowledge all streams of a neighbour as far as they are known here, even unknown ones.

        After a loss, the neighbour learns from less than before that this broker lacks the rest.
        """
        cell = self._routes.cell_of(peer)
        streams = [each.stream for each in self.list_streams() if each.stream.upstream == cell]
        through = tuple((stream.identity, stream.knowledge.final) for stream in streams)
        if through:
            self.send(peer, Done(self._routes.cell, through))

    def _resume_answers(self, peer: BrokerNumber) -> None:
        super()._resume_answers(peer)
        self._fetching.answer_more(peer)

    def _expect_of(self, peer: BrokerNumber) -> None:
        """Have a broker below request missed events at once, as after a failure of that broker.

        It may have acknowledged more than has arrived here, and may have lost that in a restart.

        Paper: [DS03] §5.3 ("the constream nacks the events it missed").
        """
        cell = self._routes.cell_of(peer)
        for stream in self.streams:
            if cell not in stream.children:
                continue
            through = max(
                stream.knowledge.highest, stream.subend.expected, stream.acknowledged_by(cell)
            )
            if self._release.below(cell, stream) < through:
                self.send(peer, AckExpected(stream.identity, through, EVERYWHERE))

    def _on_done(self, peer: BrokerNumber, message: Done) -> None:
        """See Relay; a broker below that acknowledges less than before has lost state."""
        super()._on_done(peer, message)
        cell = self._routes.cell_of(peer)
        for identity, through in message.through if message.cell == cell else ():
            known = self._stream(identity).acknowledged_by(cell)
            if through < known:
                self.send(peer, AckExpected(identity, known, EVERYWHERE))

    def _on_durable(self, run: PublicationRun, silent: int) -> None:
        super()._on_durable(run, silent)
        self._retention.published()

    def _look_at(self, stream: Stream) -> None:
        if self.streams.has_lost and stream.upstream is not None:
            self._durable.skip_final(stream)
        super()._look_at(stream)
        self._durable.look_at(stream)
        self._release.settle(stream)
        self._fetching.forget(stream.identity, self._release.through(stream.identity))

    # ------------------------------------------------------------ time

    def _on_due(self, purpose: str, whose: Any) -> None:
        if purpose == ARRIVALS:
            self._durable.arrivals.due(whose)
            return
        if purpose == LEASE:
            self._holds.due(whose)
            return
        if purpose == DOUBT_OF_HOLD:
            self._holds.ask(whose)
            return
        due = {
            COMMIT: self._durable.commit,
            SILENCE: self._durable.silence.say,
            FETCHES: self._fetching.due,
            RELEASE: self._release.due,
            RETAINED: self._retention.due,
            CATCHUP_WATCH: self._durable.catchup_watch.due,
        }.get(purpose)
        if due is None:
            super()._on_due(purpose, whose)
        else:
            due()


def make_core(context: CoreContext) -> Durable:
    """Return the core of a broker."""
    parameters: DurableParameters = context.parameters
    routes = Routes(context.broker, context.topology, parameters.pubends)
    authority = DecommissionAuthority.of(context)
    return Durable(context.broker, routes, parameters, context.decode_attributes, authority)
