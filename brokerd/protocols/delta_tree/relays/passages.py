"""What a broker in the middle keeps of relayed sessions: who asked for whom, and what passes.

A passage binds two session instances, the asker's and the target's. It is over when either is,
and both ends are told: so what passes arrives in order, or not at all and then no more ever.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.messages import Relay
from brokerd.protocols.interface import Instant

Name = tuple[BrokerNumber, BrokerNumber, int]
"""Asker, target and the asker's number: what tells relayed sessions apart."""


@dataclass(slots=True, eq=False)
class Channel:
    """Something whose messages travel on other brokers' sessions.

    Attributes:
        over: nothing of it is to be taken any more.
    """

    name: Name
    over: bool = False


NOWHERE = Channel((-1, -1, 0), over=True)
"""What a session carries after the name of something that is over here."""


@dataclass(slots=True, eq=False)
class Leg:
    """A direct session, on which relayed ones may travel.

    Attributes:
        known_as: the number by which the core knows it; another one with a mutant only.
        outgoing, incoming: whose messages follow on it; None: its own.
    """

    peer: BrokerNumber
    session: int
    known_as: int
    since_ns: Instant
    outgoing: Channel | None = None
    incoming: Channel | None = None


@dataclass(slots=True, eq=False)
class Passage(Channel):
    """A relayed session as the broker in the middle sees it.

    Attributes:
        incarnation: the asker's.
        target_session: the session on which the target was asked; 0 while there is none.
        accepted: the target has accepted on it.
    """

    incarnation: int = 0
    target_session: int = 0
    accepted: bool = False


@dataclass(slots=True)
class Passages:
    """All passages through one broker; at most one per asker and target.

    Args:
        send: queues a message about passages on a direct session.
    """

    legs: dict[BrokerNumber, Leg]
    send: Callable[[BrokerNumber, Relay], None]
    _passages: dict[tuple[BrokerNumber, BrokerNumber], Passage] = field(default_factory=dict)

    def ask(self, message: Relay) -> bool:
        """The asker wants to meet the target; says whether there is a session to ask it on.

        An ask stands until it is taken back, so a target that is reached later is asked then.
        """
        asker, target, number = message.name
        passage = self._passages.get((asker, target))
        if passage is not None and passage.name != message.name:
            self._end(passage, tell=target)
            passage = None
        if passage is None:
            passage = Passage((asker, target, number), incarnation=message.incarnation)
            self._passages[asker, target] = passage
        return self._forward(passage, again=True)

    def accept(self, message: Relay) -> None:
        """The target agrees; from now on messages pass."""
        asker, target, _ = message.name
        passage = self._passages.get((asker, target))
        if passage is None or passage.name != message.name or not passage.target_session:
            self.send(target, Relay("close", *message.name, 0))
        else:
            passage.accepted = True
            self.send(asker, message)

    def close(self, peer: BrokerNumber, message: Relay) -> None:
        """One end has ended it, or the asker asks no longer."""
        asker, target, _ = message.name
        passage = self._passages.get((asker, target))
        if passage is not None and passage.name == message.name:
            self._end(passage, tell=target if peer == asker else asker)

    def find(self, name: Name) -> Channel:
        """The accepted passage of this name; NOWHERE when there is none."""
        passage = self._passages.get(name[:2])
        if passage is None or passage.name != name or not passage.accepted:
            return NOWHERE
        return passage

    def leg_established(self, peer: BrokerNumber) -> None:
        """There is a session with this broker: ask it what it is to be asked."""
        for passage in self._passages.values():
            if passage.name[1] == peer and not passage.target_session:
                self._forward(passage)

    def leg_lost(self, peer: BrokerNumber) -> None:
        """The session with this broker is over, and with it all that used it."""
        for passage in list(self._passages.values()):
            asker, target, _ = passage.name
            if peer == asker:
                self._end(passage, tell=target)
            elif peer == target and passage.target_session:
                passage.target_session = 0
                if passage.accepted:
                    self._end(passage, tell=asker)

    def forget(self, broker: BrokerNumber) -> None:
        """A leaf has left the tree: nobody meets it any more, and it meets nobody."""
        for passage in list(self._passages.values()):
            asker, target, _ = passage.name
            if broker in (asker, target):
                self._end(passage, tell=target if broker == asker else asker)

    def _forward(self, passage: Passage, *, again: bool = False) -> bool:
        asker, target, number = passage.name
        leg = self.legs.get(target)
        if leg is None:
            return False
        if again or not passage.target_session:
            passage.target_session = leg.session
            if not passage.accepted:
                self.send(target, Relay("ask", asker, target, number, passage.incarnation))
        return True

    def _end(self, passage: Passage, tell: BrokerNumber) -> None:
        passage.over = True
        del self._passages[passage.name[:2]]
        was_told = tell == passage.name[0] or passage.target_session
        if was_told and tell in self.legs:
            self.send(tell, Relay("close", *passage.name, 0))
