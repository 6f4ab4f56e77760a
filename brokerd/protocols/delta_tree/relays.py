"""Relayed sessions at each of their brokers: requests of the asker, passages in the middle.

A passage connects two session instances, the asker's and the target's. It ends with either of
them, and both ends are notified: so messages arrive in order, or not at all from some point on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.messages import Relay
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.regions import path_distance
from brokerd.protocols.delta_tree.sessions import Reach, Sessions
from brokerd.protocols.interface import Effect, Event, Instant, OpenSession, Send

Name = tuple[BrokerNumber, BrokerNumber, int]
"""Asker, target and the asker's number: the key of a relayed session."""


class Relays(Protocol):
    """The layer between driver and core while sessions are relayed.

    Attributes:
        is_busy: a relayed session exists, or is being opened.
        watch: receives every step of the core, if set.
    """

    is_busy: bool
    watch: Callable[[Event, list[Effect]], None] | None

    def handle_relayed(self, event: Event, now_ns: Instant) -> list[Effect]:
        """See DeliveryProtocol.handle."""


@dataclass(slots=True, eq=False)
class Channel:
    """A relayed session with messages on other brokers' sessions.

    Attributes:
        is_closed: no further message is accepted.
    """

    name: Name
    is_closed: bool = False


NOWHERE = Channel((-1, -1, 0), is_closed=True)
"""The channel of messages that belong to a closed relayed session."""


@dataclass(slots=True, eq=False)
class Leg:
    """A direct session that may carry relayed sessions.

    Attributes:
        known_as: the core's number of the session; a different one with a mutant only.
        outgoing, incoming: the channel of the next messages; None: the direct session.
    """

    peer: BrokerNumber
    session: int
    known_as: int
    since_ns: Instant
    outgoing: Channel | None = None
    incoming: Channel | None = None


@dataclass(slots=True, eq=False)
class Passage(Channel):
    """A relayed session at the broker in the middle.

    Attributes:
        incarnation: of the asker.
        target_session: the session of the request to the target; 0 without one.
        accepted: the target has accepted on it.
    """

    incarnation: int = 0
    target_session: int = 0
    accepted: bool = False


@dataclass(slots=True, eq=False)
class RelayedSession(Channel):
    """A relayed session with another broker, at one of its ends.

    Attributes:
        peer: the other end.
        relay: the broker in the middle.
        session: the session's number here.
        incarnation: of the peer.
        proven: the session is also established at the peer.
    """

    peer: BrokerNumber = -1
    relay: BrokerNumber = -1
    session: int = 0
    incarnation: int = 0
    proven: bool = False


@dataclass(slots=True)
class Offer:
    """A peer's request for a relayed session with this broker."""

    name: Name
    incarnation: int


@dataclass(slots=True)
class RelayRequest:
    """The open requests for a relayed session with a peer: their number and relays."""

    number: int
    relays: dict[BrokerNumber, None] = field(default_factory=dict)


@dataclass(slots=True)
class Passages:
    """All passages through a broker; at most one per asker and target.

    Args:
        effects: receives messages about passages on direct sessions.
    """

    legs: dict[BrokerNumber, Leg]
    effects: list[Effect]
    _passages: dict[tuple[BrokerNumber, BrokerNumber], Passage] = field(default_factory=dict)

    def request(self, message: Relay) -> bool:
        """Record a request of the asker; return True if a session leads to the target.

        A request stands until it is withdrawn, so a target that is reached later receives it then.
        """
        asker, target, number = message.name
        passage = self._passages.get((asker, target))
        if passage is not None and passage.name != message.name:
            self._end(passage, notify=target)
            passage = None
        if passage is None:
            passage = Passage((asker, target, number), incarnation=message.incarnation)
            self._passages[asker, target] = passage
        return self._forward(passage, again=True)

    def accept(self, message: Relay) -> None:
        """Record the target's acceptance; from now on messages pass."""
        asker, target, _ = message.name
        passage = self._passages.get((asker, target))
        if passage is None or passage.name != message.name or not passage.target_session:
            self._send(target, Relay("close", *message.name, 0))
        else:
            passage.accepted = True
            self._send(asker, message)

    def close(self, peer: BrokerNumber, message: Relay) -> None:
        """End a passage after the close of one end, or the withdrawal of the request."""
        asker, target, _ = message.name
        passage = self._passages.get((asker, target))
        if passage is not None and passage.name == message.name:
            self._end(passage, notify=target if peer == asker else asker)

    def find(self, name: Name) -> Channel:
        """Return the accepted passage of this name; NOWHERE without one."""
        passage = self._passages.get(name[:2])
        if passage is None or passage.name != name or not passage.accepted:
            return NOWHERE
        return passage

    def leg_established(self, peer: BrokerNumber) -> None:
        """Send pending requests to a target with a new session."""
        for passage in self._passages.values():
            if passage.name[1] == peer and not passage.target_session:
                self._forward(passage)

    def leg_lost(self, peer: BrokerNumber) -> None:
        """End the passages on a lost session."""
        for passage in list(self._passages.values()):
            asker, target, _ = passage.name
            if peer == asker:
                self._end(passage, notify=target)
            elif peer == target and passage.target_session:
                passage.target_session = 0
                if passage.accepted:
                    self._end(passage, notify=asker)

    def forget(self, broker: BrokerNumber) -> None:
        """End the passages of a departed leaf."""
        for passage in list(self._passages.values()):
            asker, target, _ = passage.name
            if broker in (asker, target):
                self._end(passage, notify=target if broker == asker else asker)

    def _send(self, peer: BrokerNumber, message: Relay) -> None:
        self.effects.append(Send(peer, message))

    def _forward(self, passage: Passage, *, again: bool = False) -> bool:
        asker, target, number = passage.name
        leg = self.legs.get(target)
        if leg is None:
            return False
        if again or not passage.target_session:
            passage.target_session = leg.session
            if not passage.accepted:
                self._send(target, Relay("ask", asker, target, number, passage.incarnation))
        return True

    def _end(self, passage: Passage, notify: BrokerNumber) -> None:
        passage.is_closed = True
        del self._passages[passage.name[:2]]
        was_informed = notify == passage.name[0] or passage.target_session
        if was_informed and notify in self.legs:
            self._send(notify, Relay("close", *passage.name, 0))


class RelayRequests:
    """The requests of a broker for relayed sessions with unreachable peers.

    Attributes:
        incarnation: of this broker.
        open: the open requests, by peer.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        sessions: Sessions,
        parameters: DeltaTreeParameters,
        legs: dict[BrokerNumber, Leg],
        effects: list[Effect],
    ) -> None:
        self._broker = broker
        self._sessions = sessions
        self._delta = parameters.delta
        self._legs = legs
        self._effects = effects
        self._candidates: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {}
        self._numbers = 0
        self.incarnation = 0
        self.open: dict[BrokerNumber, RelayRequest] = {}

    def next_number(self) -> int:
        """Return a new number of a request, or of a relayed session."""
        self._numbers += 1
        return self._numbers

    def request(self, peer: BrokerNumber) -> None:
        """Ask up to δ relays for a session with a peer."""
        request = self.open.get(peer)
        if request is None:
            request = self.open[peer] = RelayRequest(self.next_number())
        for relay in self._candidates_for(peer):
            if len(request.relays) >= self._delta:
                return
            if relay in self._legs and relay not in request.relays:
                request.relays[relay] = None
                self._send(peer, request, relay)

    def repeat(self, peer: BrokerNumber) -> None:
        """Repeat the requests for a peer, if any, and dial relays without a session."""
        request = self.open.get(peer)
        if request is None:
            return
        for relay in request.relays:
            self._send(peer, request, relay)
        missing = self._delta - len(request.relays)
        others = [relay for relay in self._candidates_for(peer) if relay not in self._legs]
        for relay in others[: max(0, missing)]:
            if self._sessions.reach_of(relay) is Reach.NOT_WANTED:
                self._effects.append(OpenSession(relay))

    def accept(self, peer: BrokerNumber, number: int, relay: BrokerNumber) -> bool:
        """Withdraw all requests for a peer but the accepted one; return False if it is not open."""
        request = self.open.get(peer)
        if request is None or request.number != number or relay not in request.relays:
            return False
        del request.relays[relay]
        self.withdraw(peer)
        return True

    def withdraw(self, peer: BrokerNumber) -> None:
        request = self.open.pop(peer, None)
        if request is not None:
            for relay in request.relays:
                close = Relay("close", self._broker, peer, request.number, 0)
                self._effects.append(Send(relay, close))

    def on_leg_lost(self, relay: BrokerNumber) -> None:
        """Remove a relay without a session from all requests."""
        for request in self.open.values():
            request.relays.pop(relay, None)

    def on_neighbourhood_changed(self) -> None:
        """Determine the possible relays anew."""
        self._candidates.clear()

    def _candidates_for(self, peer: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return possible relays, nearest to the peer first: near ones need no new session."""
        found = self._candidates.get(peer)
        if found is None:
            nodes = self._sessions.nodes
            there = nodes[peer].path
            distances = {other: path_distance(node.path, there) for other, node in nodes.items()}
            near = [each for each in nodes if each != peer and distances[each] <= self._delta + 1]
            found = tuple(sorted(near, key=distances.__getitem__))
            self._candidates[peer] = found
        return found

    def _send(self, peer: BrokerNumber, request: RelayRequest, relay: BrokerNumber) -> None:
        request_message = Relay("ask", self._broker, peer, request.number, self.incarnation)
        self._effects.append(Send(relay, request_message))
