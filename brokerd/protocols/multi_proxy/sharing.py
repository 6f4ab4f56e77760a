"""A server of topics that go from one server to another, and nothing is lost.

`Giving` is that of topics which their arbiters give to others, `Sharing` of those that two may own
until that is found (`causal`).

Paper: [MP22] §3.1.5 (PERIODIC), §3.1.6, §3.1.7, §4. Deviates: see `known.py` and `moves.py`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change, Instant
from brokerd.protocols.multi_proxy.followers import Follower, Followers
from brokerd.protocols.multi_proxy.known import Known
from brokerd.protocols.multi_proxy.messages import (
    Answer,
    Carry,
    Merge,
    Merged,
    Owner,
    Periodic,
    Transfer,
    Transferred,
    Wanted,
)
from brokerd.protocols.multi_proxy.moves import Moves
from brokerd.protocols.multi_proxy.topic_log import Part, TopicLog
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.event_machine import MessageHandler

PERIOD: Final = "period"
"""Purpose of the deadline at which a server tells proxies what it owns."""


class Hosting(Protocol):
    """What a server that shares topics has of them."""

    log: TopicLog
    followers: Followers
    asked: dict[int, None]

    def freeze(self, number: int) -> None:
        """Nothing is put to a topic any more."""

    def settle_all(self) -> None:
        """Let go of what nobody needs, or is kept no longer, of all topics."""

    def tell(self, home: BrokerNumber, answer: Answer) -> None:
        """Tell a home something."""


class SharingParameters(Protocol):
    """How long to wait."""

    @property
    def period_ns(self) -> Instant:
        """Before a server says again what it is asked for."""

    @property
    def assign_retry_ns(self) -> Instant:
        """Before it sends again what another server has not answered."""


class Passing:
    """What one server does so that nothing is lost while topics go from one to another.

    Args:
        names: of all servers.
        known: of positions that others have given.
        proxies: those with which there is a session.

    Attributes:
        known: see above.
        moves: topics that are given away, or come.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        names: Mapping[BrokerNumber, str],
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: SharingParameters,
        server: Hosting,
        *,
        known: Known,
        proxies: Collection[BrokerNumber],
    ) -> None:
        self._broker = broker
        self._machine = disk.machine
        self._deadlines = deadlines
        self._period_ns = parameters.period_ns
        self._server = server
        self._names = names
        self._proxies = proxies
        self.known = known
        self.moves = Moves(
            broker,
            disk,
            deadlines,
            parameters.assign_retry_ns,
            server.log,
            server.followers,
            proxies=proxies,
            may_have=self._may_have,
            frozen=server.freeze,
            gone=self._gone,
            rows=self._rows,
            came=self._came,
            tell=server.tell,
        )

    def handlers(self) -> dict[type, MessageHandler]:
        """Who takes what proxies and other servers say."""
        return {
            Carry: self._from_server(self.moves.on_carry),
            Transfer: self._from_server(self.moves.on_transfer),
            Transferred: self._on_transferred,
        }

    def begin(self, incarnation: int) -> None:
        """All that was on disk is known."""
        self.moves.begin()
        self.period()

    def aftermath(self) -> Sequence[str]:
        """What is left of topics that went from one server to another, in words."""
        expected = sum(len(follower.expected) for _, follower in self._server.followers)
        moving = len(self.moves.moving)
        return tuple(
            [f"{moving} topics are being given away"] * bool(moving)
            + [f"{expected} times a home has not said that it follows a topic here"]
            * bool(expected)
        )

    # ------------------------------------------------------------ what others are told

    def period(self) -> None:
        """Tell homes of topics that have come here, until they have said that they know."""
        for home, follower in self._server.followers:
            for number in follower.expected:
                self._server.tell(home, Merged(home, (self._here(number),)))

    def tell(self, proxy: BrokerNumber) -> None:
        """A session with a proxy has begun."""

    def _here(self, number: int) -> Owner:
        return Owner(number, self._broker)

    def _may_have(self, owner: BrokerNumber) -> bool:
        """Whether a topic of this server's may be given to another one."""
        return owner != self._broker

    def _rows(self, number: int, generation: int) -> Sequence[Change]:
        """What is to be on disk of a topic that comes, beside what it has."""
        return ()

    def _again(self) -> None:
        """See to it that it is said again in time."""
        self._deadlines.set((PERIOD, self._broker), self._machine.now_ns + self._period_ns)

    # ------------------------------------------------------------ what homes ask

    def is_away(self, home: BrokerNumber, topics: Sequence[int]) -> bool:
        """Whether some topics are another server's, or to be; a home is told whose they are."""
        return self.moves.tell_owner(home, topics) or any(map(self.moves.is_away, topics))

    def may_follow(
        self, home: BrokerNumber, follower: Follower | None, topics: Sequence[int]
    ) -> bool:
        """Whether a home can follow topics here; nobody new does that are to be another's."""
        if self.moves.tell_owner(home, topics):
            return False
        followers = self._server.followers
        return all(
            number not in self.moves.moving
            or (follower is not None and followers.follows(follower, number))
            for number in topics
        )

    def keep(
        self,
        follower: Follower,
        before: Mapping[Part, int],
        topics: Sequence[int],
        known: Mapping[Part, int],
    ) -> None:
        """A home says what it follows: where it begins in what is elsewhere, and what is kept."""
        wanted = dict.fromkeys(topics)
        for number in wanted:
            follower.expected.pop(number, None)
        for part, done in before.items():
            if part.topic in wanted or part.topic in follower.expected:
                follower.done.setdefault(part, done)
        for part, through in known.items():
            if Part(self._broker, part.topic) not in before:
                follower.done[part] = through

    def got(self, home: BrokerNumber, follower: Follower, wanted: Sequence[Wanted]) -> None:
        """A home asks for what is new; of what has come from another server it may not know."""
        asked = {Part(each.part, each.topic): None for each in wanted}
        unknown = {
            part.topic: None
            for part in follower.done
            if part not in asked
            and Part(self._broker, part.topic) in asked
            and self._server.log.holds(part)
        }
        if unknown:
            owners = tuple(map(self._here, unknown))
            self._server.tell(home, Merged(home, owners))

    # ------------------------------------------------------------ topics that come and go

    def _gone(self, number: int) -> None:
        self._server.asked.pop(number, None)

    def _came(self, number: int, generation: int) -> None:
        self._server.asked[number] = None
        for home, _ in self._server.followers.of(number):
            self._server.tell(home, Merged(home, (self._here(number),)))
        self._server.settle_all()

    def _from_server(self, handler: MessageHandler) -> MessageHandler:
        def take(peer: Any, message: Carry | Transfer) -> None:
            if message.server != self._broker or message.giver not in self._names:
                reason = f"broker {message.giver} gives a topic to {message.server}"
                raise RemoteProtocolError(peer, reason)
            handler(peer, message)

        return take

    def _on_transferred(self, peer: Peer, message: Transferred) -> None:
        if message.giver != self._broker or not {message.server, message.owner} <= {*self._names}:
            raise RemoteProtocolError(peer, f"broker {message.server} has topic {message.topic}")
        self.moves.on_transferred(peer, message)


class Sharing(Passing):
    """The same where proxies find two owners of a topic, and what other servers know counts."""

    def __init__(
        self,
        broker: BrokerNumber,
        names: Mapping[BrokerNumber, str],
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: SharingParameters,
        server: Hosting,
        *,
        proxies: Collection[BrokerNumber],
    ) -> None:
        known = Known(broker, [*names], server.log)
        super().__init__(
            broker, names, disk, deadlines, parameters, server, known=known, proxies=proxies
        )
        self._incarnation = self._number = 0

    def handlers(self) -> dict[type, MessageHandler]:
        """See Passing."""
        merging: dict[type, MessageHandler] = {
            Periodic: self._on_periodic,
            Merge: self.moves.on_merge,
        }
        return {**super().handlers(), **merging}

    def begin(self, incarnation: int) -> None:
        """See Passing."""
        self._incarnation = incarnation
        super().begin(incarnation)

    def period(self) -> None:
        """See Passing: also say what this server is asked for."""
        for proxy in self._proxies:
            self.tell(proxy)
        super().period()
        self._again()

    def tell(self, proxy: BrokerNumber) -> None:
        """See Passing: say it to one proxy."""
        self._number += 1
        topics = tuple(self._server.asked)
        known = self.known.all()
        said = Periodic(self._broker, self._incarnation, self._number, topics, known)
        self._machine.send(proxy, said)

    def _may_have(self, owner: BrokerNumber) -> bool:
        """See Passing: it goes to the one whose name comes first."""
        return self._names[owner] < self._names[self._broker]

    def _on_periodic(self, peer: Peer, message: Periodic) -> None:
        if message.server not in self._names:
            raise RemoteProtocolError(peer, f"broker {message.server} says what it is asked for")
        if self.known.hear(message):
            self._server.settle_all()
