"""A server with topics that move between servers without loss.

`OwnerTransfers` is for topics that arbiters move, `SharedTransfers` for topics that two servers may
own until that is detected (`causal`).

Paper: [MP22] §3.1.5 (PERIODIC), §3.1.6, §3.1.7, §4. Deviates: see `server_positions.py` and
`topic_transfers.py`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change, Instant
from brokerd.protocols.multi_proxy.followers import Follower, Followers
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
from brokerd.protocols.multi_proxy.server_positions import StoredPositions
from brokerd.protocols.multi_proxy.topic_log import Part, TopicLog
from brokerd.protocols.multi_proxy.topic_transfers import Moves
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler

PERIOD: Final = "period"
"""Purpose of the deadline at which a server announces its topics."""


class TransferHost(Protocol):
    """The parts of a server that transfers use."""

    log: TopicLog
    followers: Followers
    requested: dict[int, None]

    def freeze(self, number: int) -> None:
        """Accept no publish requests to a topic any more."""

    def settle_all(self) -> None:
        """Release publications of all topics that are not needed, or not retained any longer."""

    def tell(self, home: BrokerNumber, answer: Answer) -> None:
        """Send an answer to an access broker."""


class SharingParameters(Protocol):
    """The waits of transfers."""

    @property
    def period_ns(self) -> Instant:
        """The time between two announcements of a server."""

    @property
    def assign_retry_ns(self) -> Instant:
        """The wait before an unanswered transfer is repeated."""


class TopicTransfers:
    """The lossless transfers of topics from and to a server.

    Args:
        names: of all servers.
        positions: other servers' positions.
        proxies: proxies with a session.

    Attributes:
        positions: see above.
        moves: topics that are given away, or arrive.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        names: Mapping[BrokerNumber, str],
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: SharingParameters,
        server: TransferHost,
        *,
        known: StoredPositions,
        proxies: Collection[BrokerNumber],
    ) -> None:
        self._broker = broker
        self._machine = disk.machine
        self._deadlines = deadlines
        self._period_ns = parameters.period_ns
        self._server = server
        self._names = names
        self._proxies = proxies
        self.positions = known
        self.moves = Moves(
            broker,
            disk,
            deadlines,
            parameters.assign_retry_ns,
            server.log,
            server.followers,
            proxies=proxies,
            may_have=self._can_take,
            frozen=server.freeze,
            gone=self._on_given,
            rows=self._rows,
            came=self._on_received,
            tell=server.tell,
        )

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of messages from proxies and other servers."""
        return {
            Carry: self._from_server(self.moves.on_carry),
            Transfer: self._from_server(self.moves.on_transfer),
            Transferred: self._on_transferred,
        }

    def begin(self, incarnation: int) -> None:
        """Begin after all rows and the log are read."""
        self.moves.begin()
        self.period()

    def aftermath(self) -> Sequence[str]:
        """Return the unfinished transfers, in words."""
        expected = sum(len(follower.expected) for _, follower in self._server.followers)
        moving = len(self.moves.moving)
        return tuple(
            [f"{moving} topics are being transferred"] * bool(moving)
            + [f"{expected} access brokers have not announced their topics yet"] * bool(expected)
        )

    # ------------------------------------------------------------ announcements

    def period(self) -> None:
        """Notify access brokers of topics that have arrived, until they have confirmed."""
        for home, follower in self._server.followers:
            for number in follower.expected:
                self._server.tell(home, Merged(home, (self._is_here(number),)))

    def announce_to(self, proxy: BrokerNumber) -> None:
        """Announce topics to a proxy with a new session."""

    def _is_here(self, number: int) -> Owner:
        return Owner(number, self._broker)

    def _can_take(self, owner: BrokerNumber) -> bool:
        """Return True if a topic of this server may be given to another server."""
        return owner != self._broker

    def _rows(self, number: int, generation: int) -> Sequence[Change]:
        """Return further rows of a topic that arrives."""
        return ()

    def _schedule(self) -> None:
        """Schedule the next announcement."""
        self._deadlines.set((PERIOD, self._broker), self._machine.now_ns + self._period_ns)

    # ------------------------------------------------------------ access brokers' requests

    def is_away(self, home: BrokerNumber, topics: Sequence[int]) -> bool:
        """Return True if topics have moved or move away; notify the access broker of owners."""
        return self.moves.notify_moved(home, topics) or any(map(self.moves.is_away, topics))

    def can_follow(
        self, home: BrokerNumber, follower: Follower | None, topics: Sequence[int]
    ) -> bool:
        """Return True if an access broker may follow topics here.

        Moving topics take no new follower.
        """
        if self.moves.notify_moved(home, topics):
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
        """Set where a follower begins in other servers' parts, and which positions stay."""
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
        """Notify an access broker of parts that have arrived here and that its get lacks."""
        asked = {Part(each.part, each.topic): None for each in wanted}
        unknown = {
            part.topic: None
            for part in follower.done
            if part not in asked
            and Part(self._broker, part.topic) in asked
            and self._server.log.holds(part)
        }
        if unknown:
            owners = tuple(map(self._is_here, unknown))
            self._server.tell(home, Merged(home, owners))

    # ------------------------------------------------------------ topics that come and go

    def _on_given(self, number: int) -> None:
        self._server.requested.pop(number, None)

    def _on_received(self, number: int, generation: int) -> None:
        self._server.requested[number] = None
        for home, _ in self._server.followers.of(number):
            self._server.tell(home, Merged(home, (self._is_here(number),)))
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


class SharedTransfers(TopicTransfers):
    """The same for topics with two owners, and with the positions of other servers."""

    def __init__(
        self,
        broker: BrokerNumber,
        names: Mapping[BrokerNumber, str],
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: SharingParameters,
        server: TransferHost,
        *,
        proxies: Collection[BrokerNumber],
    ) -> None:
        known = StoredPositions(broker, [*names], server.log)
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
        """See Passing: also announces the topics in use."""
        for proxy in self._proxies:
            self.announce_to(proxy)
        super().period()
        self._schedule()

    def announce_to(self, proxy: BrokerNumber) -> None:
        """See Passing: sends the announcement to a proxy."""
        self._number += 1
        topics = tuple(self._server.requested)
        known = self.positions.all()
        said = Periodic(self._broker, self._incarnation, self._number, topics, known)
        self._machine.send(proxy, said)

    def _can_take(self, owner: BrokerNumber) -> bool:
        """See Passing: the server with the earlier name gets the topic."""
        return self._names[owner] < self._names[self._broker]

    def _on_periodic(self, peer: Peer, message: Periodic) -> None:
        if message.server not in self._names:
            raise RemoteProtocolError(peer, f"broker {message.server} answers a request for itself")
        if self.positions.on_announcement(message):
            self._server.settle_all()
