"""Relayed sessions: a third broker connects two live brokers with a broken link.

On A-B-C with the link A-B cut, the tree's protocol can only wait: for C the path to A leads through
B, and B has none. So A has a session with C, and requests a session with B through C. For the
protocol that is an ordinary session: another instance, in order, or closed at both ends. No
other part of the protocol depends on relays. The relayed session ends when the direct session is
back.

With at most δ brokers and links down, any δ brokers within δ + 1 links of both ends include a
broker that both ends can reach: every failure removes at most one relay, and the missing link
itself none. So asking δ brokers is enough. PROTOCOL.md, Relayed sessions, has the steps and the
whole argument.

Paper: [DFT11] §II lines 284-304, which makes activity one-sided; silent on the rest.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.overlay.tree import primary_tree
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.delta_tree.core import DEPARTED, DeltaTree
from brokerd.protocols.delta_tree.messages import Relay
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.relays import (
    NOWHERE,
    Channel,
    Leg,
    Offer,
    Passage,
    Passages,
    RelayedSession,
    RelayRequests,
)
from brokerd.protocols.delta_tree.sessions import Reach
from brokerd.protocols.extensions import CoreWrapper
from brokerd.protocols.interface import (
    FIRST_INNER_SESSION,
    CloseSession,
    CoreStatus,
    DeadlineReached,
    DeliveryProtocol,
    Effect,
    Event,
    Instant,
    LossReason,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Record,
    Send,
    SessionEstablished,
    SessionLost,
    TopologyGrown,
    TopologyShrunk,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue

OWN = Relay("own", 0, 0, 0, 0)


class AssistedDeltaTree(CoreWrapper):
    """A δ-tree broker (DeliveryProtocol) with relayed sessions in addition to direct ones.

    Attributes:
        core: the protocol itself; for the core a relayed session is a session.
        is_busy: a relayed session exists, or passes through here.
    """

    def __init__(self, core: DeltaTree, parameters: DeltaTreeParameters) -> None:
        self.core: DeltaTree = core
        self._broker = core.neighbourhood.center
        self._parameters = parameters
        self._now_ns: Instant = 0
        self._effects: list[Effect] = []
        self._legs: dict[BrokerNumber, Leg] = {}
        self._relayed: dict[BrokerNumber, RelayedSession] = {}
        self._offers: dict[tuple[BrokerNumber, BrokerNumber], Offer] = {}
        self._passages = Passages(self._legs, self._effects)
        self._requests = RelayRequests(
            self._broker, core.sessions, parameters, self._legs, self._effects
        )
        self._direct_again: DeadlineQueue[BrokerNumber] = DeadlineQueue()
        self._waits_ns: dict[BrokerNumber, int] = {}
        self.is_busy = False
        # See DeliveryProtocol: the core's, which calls `handle_relayed` if relays are affected.
        self.handle: Callable[[Event, Instant], list[Effect]] = core.handle
        self.next_deadline: Callable[[], Instant | None] = core.next_deadline
        core.deadlines.append(self._direct_again)
        core.relays = self
        self._counters = {"relayed_sessions_established": 0, "messages_relayed": 0}
        self._handlers: dict[type, Callable[[Any], None]] = {
            SessionEstablished: self._on_established,
            SessionLost: self._on_lost,
            OpenFailed: self._on_open_failed,
            TopologyGrown: self._on_grown,
            TopologyShrunk: self._on_shrunk,
            MessageReceived: self._on_message,
            DeadlineReached: self._on_deadline,
        }
        self._steps: dict[str, Callable[[BrokerNumber, Relay], None]] = {
            "ask": self._on_request,
            "accept": self._on_accept,
            "close": self._on_close,
            "carry": self._on_carry,
            "own": self._on_own,
        }

    # ------------------------------------------------------------ for the driver

    def handle_relayed(self, event: Event, now_ns: Instant) -> list[Effect]:
        """Handle an event while sessions are relayed, or may be relayed after it."""
        self._now_ns = now_ns
        self._requests.incarnation = self.core.incarnation
        try:
            self._handlers.get(type(event), self._step)(event)
        finally:
            effects = self._effects[:]
            self._effects.clear()
        self.is_busy = bool(self._relayed) or any(
            leg.incoming or leg.outgoing or leg.known_as != leg.session
            for leg in self._legs.values()
        )
        return effects

    def clients_behind(self) -> Collection[ClientId]:
        return self.core.clients_behind()

    def statistics(self) -> Mapping[str, int]:
        return {
            **self.core.statistics(), **self._counters, "sessions_relayed": len(self._relayed),
        }  # fmt: skip

    def aftermath(self) -> Sequence[str]:
        return self.core.aftermath()

    def status(self) -> CoreStatus[BrokerNumber]:
        return self.core.status()

    def detail(self) -> Mapping[str, Any]:
        """See DeliveryProtocol. `relayed`: the peers of relayed sessions."""
        return {**self.core.detail(), "relayed": list(self._relayed)}

    def session_with(self, peer: BrokerNumber) -> int:
        """Return the number of the core's session with a peer; 0 without a session."""
        relayed, leg = self._relayed.get(peer), self._legs.get(peer)
        if relayed is not None:
            return relayed.session
        return leg.known_as if leg is not None else 0

    # ------------------------------------------------------------ direct sessions

    def _on_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        if isinstance(peer, str) or not self.core.sessions.has_broker(peer):
            self._step(event)
            return
        self._legs[peer] = Leg(peer, event.session, event.session, self._now_ns)
        relayed = self._relayed.get(peer)
        if relayed is None:
            self._step(event)
        else:
            self._end(relayed, "closed_by_us", notify=True)
            self._step(event)
        self._passages.leg_established(peer)
        self._review()

    def _on_lost(self, event: SessionLost) -> None:
        peer = event.peer
        if isinstance(peer, str) or peer not in self._legs:
            self._step(event)
            return
        leg = self._legs.pop(peer)
        self._offers = {key: offer for key, offer in self._offers.items() if key[1] != peer}
        self._requests.on_leg_lost(peer)
        self._passages.leg_lost(peer)
        ended = [relayed for relayed in self._relayed.values() if relayed.relay == peer]
        self._step(replace(event, session=leg.known_as))
        for relayed in ended:
            self._end(relayed, "closed_by_peer", notify=False)
        if self._now_ns - leg.since_ns >= self._waits_ns.get(peer, 0):
            self._waits_ns.pop(peer, None)
        if peer not in self._waits_ns and self.core.sessions.reach_of(peer) is Reach.UNREACHABLE:
            self._effects.append(OpenSession(peer))  # it may have been taken for dead wrongly
        self._review()

    def _on_open_failed(self, event: OpenFailed) -> None:
        peer = event.peer
        assert isinstance(peer, int), f"a broker opens no session to {peer!r}"
        if peer in self._relayed:
            return  # the core has a session
        self._step(event)
        self._review()
        self._requests.repeat(peer)

    def _on_grown(self, event: TopologyGrown) -> None:
        self._requests.on_neighbourhood_changed()
        self._step(event)
        self._review()

    def _on_shrunk(self, event: TopologyShrunk) -> None:
        """Remove a departed leaf from all requests, offers and relayed sessions.

        Its direct session ends as any other, with the driver's SessionLost.
        """
        removed = event.broker
        self._requests.on_neighbourhood_changed()
        was_relayed = removed in self._relayed
        self._step(event)
        if was_relayed:  # a direct attempt may be under way
            self._effects.append(CloseSession(removed, DEPARTED))
        self._requests.withdraw(removed)
        self._waits_ns.pop(removed, None)
        self._direct_again.cancel(removed)
        self._offers = {key: offer for key, offer in self._offers.items() if removed not in key}
        self._requests.on_leg_lost(removed)
        self._passages.forget(removed)
        self._review()

    def _on_deadline(self, event: DeadlineReached) -> None:
        for peer in self._direct_again.due(self._now_ns):
            if self.core.sessions.node(peer).active:
                self._effects.append(OpenSession(peer))
            self._waits_ns[peer] = min(2 * self._waits_ns[peer], self._parameters.retry_limit_ns)
            self._direct_again.set(peer, self._now_ns + self._waits_ns[peer])
        self.core.now_ns = self._now_ns
        if self.core.is_due:
            self._step(event)
            self._review()

    # ------------------------------------------------------------ messages

    def _on_message(self, event: MessageReceived) -> None:
        peer, message = event.peer, event.message
        if isinstance(peer, str):
            self._step(event)
            return
        leg = self._legs.get(peer)
        is_relay = type(message) is Relay
        if leg is None or leg.session != event.session:
            if not is_relay:
                self._step(event)
            return
        if is_relay:
            self._steps[message.step](leg.peer, message)
        elif leg.incoming is None:
            self._step(replace(event, session=leg.known_as))
        else:
            self._take_in(leg, leg.incoming, message)

    def _take_in(self, leg: Leg, channel: Channel, message: Any) -> None:
        """Handle a message on a relayed session: for this broker, or to forward."""
        if isinstance(channel, RelayedSession):
            if channel.is_closed:
                return
            channel.proven = True
            if channel.peer in self._requests.open:
                self._review()
            self._take(channel, message)
        elif isinstance(channel, Passage) and not channel.is_closed:
            asker, target, _ = channel.name
            self._counters["messages_relayed"] += 1
            self._send_through(asker if leg.peer == target else target, channel, message)

    def _take(self, relayed: RelayedSession, message: Any) -> None:
        try:
            self._step(MessageReceived(relayed.peer, relayed.session, message))
        except RemoteProtocolError as error:
            # The fault of the broker at the other end, not of the one in the middle.
            details = {"peer": relayed.peer, "reason": error.reason}
            self._effects.append(Record("protocol_error", details))
            self._end(relayed, "protocol_error", notify=True)
            self._review()

    def _on_request(self, peer: BrokerNumber, message: Relay) -> None:
        asker, target, _ = message.name
        if target == self._broker:
            self._check_end(peer, asker, message)
            relayed = self._relayed.get(asker)
            if relayed is not None and (relayed.name, relayed.relay) == (message.name, peer):
                return
            if not self.core.sessions.has_broker(asker):
                return  # the topologies differ for a moment; the asker repeats
            self._offers[asker, peer] = Offer(message.name, message.incarnation)
            self._review()
            return
        self._check_middle(peer, message)
        if asker != peer:
            raise RemoteProtocolError(peer, f"asks in the name of broker {asker}")
        if not self.core.sessions.has_broker(target):
            return
        if (
            not self._passages.request(message)
            and self.core.sessions.reach_of(target) is Reach.NOT_WANTED
        ):
            self._effects.append(OpenSession(target))

    def _on_accept(self, peer: BrokerNumber, message: Relay) -> None:
        asker, target, number = message.name
        if asker != self._broker:
            self._check_middle(peer, message)
            if target != peer:
                raise RemoteProtocolError(peer, f"accepts in the name of broker {target}")
            self._passages.accept(message)
            return
        self._check_end(peer, target, message)
        if not self._requests.accept(target, number, peer):
            self._send_relay(peer, Relay("close", *message.name, 0))
            return
        old = self._relayed.get(target)
        if old is not None:  # both ends asked; the smaller number's way is kept
            self._end(old, "closed_by_us", notify=True)
        self._begin(RelayedSession(message.name, False, target, peer), message.incarnation, True)

    def _on_close(self, peer: BrokerNumber, message: Relay) -> None:
        asker, target, _ = message.name
        if self._broker not in (asker, target):
            self._check_middle(peer, message)
            self._passages.close(peer, message)
            return
        other = target if asker == self._broker else asker
        self._check_end(peer, other, message)
        offer = self._offers.get((other, peer))
        if offer is not None and offer.name == message.name:
            del self._offers[other, peer]
        relayed = self._relayed.get(other)
        if relayed is not None and (relayed.name, relayed.relay) == (message.name, peer):
            self._end(relayed, "closed_by_peer", notify=False)
            self._review()

    def _on_carry(self, peer: BrokerNumber, message: Relay) -> None:
        asker, target, _ = message.name
        channel: Channel
        if self._broker in (asker, target):
            other = target if asker == self._broker else asker
            self._check_end(peer, other, message)
            relayed = self._relayed.get(other)
            here = relayed is not None and (relayed.name, relayed.relay) == (message.name, peer)
            channel = relayed if relayed is not None and here else NOWHERE
        else:
            self._check_middle(peer, message)
            channel = self._passages.find(message.name)
        self._legs[peer].incoming = channel

    def _on_own(self, peer: BrokerNumber, _message: Relay) -> None:
        self._legs[peer].incoming = None

    def _check_end(self, peer: BrokerNumber, other: BrokerNumber, message: Relay) -> None:
        if other in (peer, self._broker) or message.number < 1:
            raise RemoteProtocolError(peer, f"relays a session with broker {other}: {message}")

    def _check_middle(self, peer: BrokerNumber, message: Relay) -> None:
        asker, target, number = message.name
        if asker == target or peer not in (asker, target) or number < 1:
            raise RemoteProtocolError(peer, f"cannot be asked of broker {self._broker}: {message}")

    # ------------------------------------------------------------ relayed sessions

    def _review(self) -> None:
        """Accept possible offers; request sessions with unreachable brokers only."""
        for (asker, relay), offer in list(self._offers.items()):
            if self._can_accept(asker, offer):
                del self._offers[asker, relay]
                self._accept(asker, relay, offer)
        for peer in [peer for peer in self._requests.open if not self._is_still_open(peer)]:
            self._requests.withdraw(peer)
        for node in list(self.core.sessions.unreachable):
            if node.reach is Reach.UNREACHABLE:
                self._requests.request(node.broker)

    def _can_accept(self, asker: BrokerNumber, offer: Offer) -> bool:
        """Return True if an offer is better than the present session; other offers stay open.

        An own pending attempt will mostly succeed. A newer offer by the same asker proves that it
        has lost the older session.
        """
        relayed = self._relayed.get(asker)
        if relayed is not None:
            theirs = relayed.name[0] == asker
            newer = (offer.incarnation, offer.name[2]) > (relayed.incarnation, relayed.name[2])
            return theirs and newer
        return asker not in self._legs and self.core.sessions.reach_of(asker) is not Reach.TRYING

    def _accept(self, asker: BrokerNumber, relay: BrokerNumber, offer: Offer) -> None:
        old = self._relayed.get(asker)
        if old is not None:
            self._end(old, "closed_by_peer", notify=True)
        if asker < self._broker:
            self._requests.withdraw(asker)
        self._send_relay(relay, Relay("accept", *offer.name, self.core.incarnation))
        self._begin(RelayedSession(offer.name, False, asker, relay), offer.incarnation, False)

    def _is_still_open(self, peer: BrokerNumber) -> bool:
        """Return True if a request must stay open.

        Both ends may request at the same time, and only a single path may be kept: the larger
        number withdraws own requests on acceptance, the smaller number when the session is proven.
        """
        relayed = self._relayed.get(peer)
        if relayed is not None:
            return not relayed.proven and relayed.name[0] == peer and self._broker < peer
        return self.core.sessions.reach_of(peer) is Reach.UNREACHABLE

    def _begin(self, relayed: RelayedSession, incarnation: int, proven: bool) -> None:
        peer = relayed.peer
        relayed.session = FIRST_INNER_SESSION + self._requests.next_number()
        relayed.incarnation, relayed.proven = incarnation, proven
        self._relayed[peer] = relayed
        self._counters["relayed_sessions_established"] += 1
        self._step(SessionEstablished(peer, relayed.session, incarnation))
        if peer not in self._waits_ns:  # that it is alive is news: the link may be back, too
            self._waits_ns[peer] = self._parameters.retry_first_ns
            self._effects.append(OpenSession(peer))
        self._direct_again.set(peer, self._now_ns + self._waits_ns[peer])
        self._review()

    def _end(self, relayed: RelayedSession, reason: LossReason, *, notify: bool) -> None:
        if relayed.is_closed:
            return
        relayed.is_closed = True
        del self._relayed[relayed.peer]
        self._direct_again.cancel(relayed.peer)
        if notify:
            self._send_relay(relayed.relay, Relay("close", *relayed.name, 0))
        self._step(SessionLost(relayed.peer, relayed.session, reason))

    # ------------------------------------------------------------ the core, and the way out

    def _step(self, event: Event) -> None:
        """Let the core handle an event, and perform its effects."""
        effects = self.core.step(event, self._now_ns)
        if self.watch is not None:
            self.watch(event, effects)
        for effect in effects:
            if type(effect) is Send and isinstance(effect.peer, int):
                self._send(effect.peer, effect)
            elif type(effect) is CloseSession and effect.peer in self._relayed:
                assert isinstance(effect.peer, int), f"a relayed session with {effect.peer!r}"
                self._end(self._relayed[effect.peer], "closed_by_us", notify=True)
            else:
                self._effects.append(effect)

    def _send(self, peer: BrokerNumber, effect: Send) -> None:
        relayed = self._relayed.get(peer)
        if relayed is not None:
            self._send_through(relayed.relay, relayed, effect.message)
            return
        leg = self._legs.get(peer)
        if leg is not None and leg.outgoing is not None:
            leg.outgoing = None
            self._effects.append(Send(peer, OWN))
        self._effects.append(effect)

    def _send_through(self, relay: BrokerNumber, channel: Channel, message: Any) -> None:
        leg = self._legs.get(relay)
        if leg is None:
            return  # only a mutant gets here
        if leg.outgoing is not channel:
            leg.outgoing = channel
            self._effects.append(Send(relay, Relay("carry", *channel.name, 0)))
        self._effects.append(Send(relay, message))

    def _send_relay(self, peer: BrokerNumber, message: Relay) -> None:
        self._effects.append(Send(peer, message))


def make_core(context: CoreContext) -> DeliveryProtocol:
    """Return a broker's core."""
    around = primary_tree(context.topology).surroundings(context.broker)
    core = DeltaTree(context.broker, around, context.parameters, context.decode_attributes)
    if context.parameters.assist == "on":
        return AssistedDeltaTree(core, context.parameters)
    return core
