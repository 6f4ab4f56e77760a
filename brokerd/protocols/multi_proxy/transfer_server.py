"""A server with topics that move between servers without loss.

With `arbiter` a proxy with a server that has many more topics than another asks the arbiter of a
topic to move it. The arbiter's decision is durable before the owner is notified, which gives the
topic away (`transfers.py`): no publication is accepted until everything is durable at the
other server, in the higher generation; then the old owner stores the new owner, and notifies access
brokers and the arbiter. So at any crash, at most one server accepts publications, and access
brokers use the highest generation that they have received, which is durable there. A topic never
returns to a server that has given it away, so that no two servers name each other as owner.

With `causal` two servers may own a topic until that is detected. In every period a server announces
the last position in every topic, of own positions and of positions announced by others. A new
follower of a topic at a server is owed another server's positions after those announced at that
moment: any later publication has a later position. A server may release positions that all servers
have received, because no new follower elsewhere is owed older positions. This needs no clock; the
design has a clock at every server, with a bound on its error.

Paper: [MP22] §3.1.5 (PERIODIC), §3.1.6, §3.1.7; §4 leaves open the loss from merging two copies of
a topic. Deviates: see `transfers.py`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.arbiter import Arbiter
from brokerd.protocols.multi_proxy.assignments import Assignments
from brokerd.protocols.multi_proxy.messages import (
    Carry,
    Elsewhere,
    Give,
    Merge,
    Merged,
    Owned,
    Owner,
    Periodic,
    Transfer,
    Transferred,
    Wanted,
)
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.retention import Topic
from brokerd.protocols.multi_proxy.routes import Sessions
from brokerd.protocols.multi_proxy.state import Follower, Part
from brokerd.protocols.multi_proxy.topic_log import TopicLog
from brokerd.protocols.multi_proxy.transfers import MOVING, TopicTransfers, TransferHost
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, EventMachine, MessageHandler

PERIOD: Final = "period"
"""Purpose of the deadline at which a server announces its topics."""

Version = tuple[int, int]
"""Incarnation of a server and number of the announcement."""


class StoredPositions:
    """The positions that a server has received, and those that other servers have."""

    def __init__(
        self, broker: BrokerNumber, servers: Sequence[BrokerNumber], log: TopicLog
    ) -> None:
        self._broker = broker
        self._peers = tuple(server for server in servers if server != broker)
        self._log = log
        self._through: dict[Part, int] = {}
        self._versions: dict[BrokerNumber, Version] = dict.fromkeys(self._peers, (0, 0))
        self._peer_positions: dict[BrokerNumber, dict[Part, int]] = {
            each: {} for each in self._peers
        }

    def of(self, topics: Iterable[int]) -> dict[Part, int]:
        """Return the last positions in some topics, of servers without positions here."""
        wanted = {*topics}
        return {
            part: through
            for part, through in self._through.items()
            if part.topic in wanted and not self._log.holds(part)
        }

    def all(self) -> tuple[Elsewhere, ...]:
        """Return the announcement of this server."""
        known = dict(self._through)
        for topic in self._log:
            if topic.durable and topic.is_here:
                known[topic.part] = max(topic.durable, known.get(topic.part, 0))
        return tuple(Elsewhere(*part, through) for part, through in sorted(known.items()))

    def on_announcement(self, message: Periodic) -> bool:
        """Take another server's announcement; return True if it is new."""
        version = message.incarnation, message.number
        if self._versions.get(message.server, version) >= version:
            return False
        self._versions[message.server] = version
        theirs, requested = self._peer_positions[message.server], {*message.topics}
        for server, number, through in message.known:
            part = Part(server, number)
            if server != self._broker:
                self._through[part] = max(through, self._through.get(part, 0))
            if number not in requested:
                theirs[part] = max(through, theirs.get(part, 0))
        return True

    def owed_nothing_through(self, topic: Topic) -> int:
        """Return the position through which followers at other servers are owed nothing."""
        known = [theirs.get(topic.part, 0) for theirs in self._peer_positions.values()]
        return min((topic.durable, *known))


class TransferServer:
    """The lossless transfers of topics from and to a server.

    Args:
        names: of all servers.
        sessions: with proxies, which forward messages to servers and access brokers.
        arbiter: decides on moves (`arbiter`); None: two servers may own a topic (`causal`).
        assignments: the topics assigned to this server.

    Attributes:
        is_shared: True if two servers may own a topic.
        positions: other servers' positions.
        transfers: topics that are given away, or arrive.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        names: Mapping[BrokerNumber, str],
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
        server: TransferHost,
        sessions: Sessions,
        arbiter: Arbiter | None,
        assignments: Assignments | None,
    ) -> None:
        self._broker = broker
        self._machine = disk.machine
        self._deadlines = deadlines
        self._period_ns = parameters.period_ns
        self._server = server
        self._names = names
        self._sessions = sessions
        self._arbiter = arbiter
        self._assignments = assignments
        self._incarnation = self._number = 0
        self.is_shared = arbiter is None
        known = [*names] if self.is_shared else [broker]
        self.positions = StoredPositions(broker, known, server.log)
        retry_ns = parameters.assign_retry_ns
        self.transfers = TopicTransfers(broker, disk, deadlines, retry_ns, server, sessions)

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of messages from proxies and other servers."""
        handlers: dict[type, MessageHandler] = {
            Carry: self._on_carry,
            Transfer: self._on_transfer,
            Transferred: self._on_transferred,
        }
        if self.is_shared:
            handlers |= {Periodic: self._on_periodic, Merge: self._on_merge}
        return handlers

    def due_handlers(self) -> dict[str, Callable[[Any], None]]:
        """Return the handlers of deadlines by their purposes."""
        return {
            PERIOD: lambda _broker: self.period(),
            MOVING: lambda _broker: self.transfers.send_all(),
        }

    def begin(self, incarnation: int) -> None:
        """Begin after all rows and the log are read."""
        self._incarnation = incarnation
        self.transfers.begin()
        for number in self.transfers.moved:
            self._on_given(number)
            self.transfers.release(number)
        self.transfers.send_all()
        self.period()
        if self._arbiter is not None:
            self._arbiter.order_again()

    def aftermath(self) -> Sequence[str]:
        """Return the unfinished transfers, in words."""
        expected = sum(len(follower.expected) for _, follower in self._server.followers)
        moving = len(self.transfers.moving)
        return tuple(
            [f"{moving} topics are being transferred"] * bool(moving)
            + [f"{expected} access brokers have not announced their topics yet"] * bool(expected)
        )

    # ------------------------------------------------------------ announcements

    def period(self) -> None:
        """Announce the topics in use; notify access brokers of topics that have arrived.

        Access brokers are notified until they have confirmed.
        """
        for proxy in self._sessions.sessions if self.is_shared else ():
            self.announce_to(proxy)
        for home, follower in self._server.followers:
            for number in follower.expected:
                self._sessions.answer(home, Merged(home, (self._name_here(number),)))
        self._schedule()

    def announce_to(self, proxy: BrokerNumber) -> None:
        """Send the announcement of topics with two owners to a proxy."""
        if not self.is_shared:
            return
        self._number += 1
        topics = tuple(self._server.requested)
        known = self.positions.all()
        announcement = Periodic(self._broker, self._incarnation, self._number, topics, known)
        self._machine.send(proxy, announcement)

    def _name_here(self, number: int) -> Owner:
        assigned = self._assignments
        generation = assigned.generation(number) if assigned is not None else 0
        return Owner(number, self._broker, generation)

    def _can_take(self, owner: BrokerNumber) -> bool:
        """Return True if a topic of this server may be given to another server.

        Of two owners the server with the earlier name gets the topic.
        """
        if owner not in self._names:
            return False
        if self.is_shared:
            return self._names[owner] < self._names[self._broker]
        return owner != self._broker

    def _schedule(self) -> None:
        """Schedule the next announcement, if there is one."""
        if self.is_shared or any(follower.expected for _, follower in self._server.followers):
            self._deadlines.set((PERIOD, self._broker), self._machine.now_ns + self._period_ns)

    # ------------------------------------------------------------ access brokers' requests

    def is_away(self, home: BrokerNumber, topics: Sequence[int]) -> bool:
        """Return True if topics have moved or move away; notify the access broker of owners."""
        return self.transfers.notify_moved(home, topics) or any(map(self.transfers.is_away, topics))

    def can_follow(
        self, home: BrokerNumber, follower: Follower | None, topics: Sequence[int]
    ) -> bool:
        """Return True if an access broker may follow topics here.

        Moving topics take no new follower.
        """
        if self.transfers.notify_moved(home, topics):
            return False
        followers = self._server.followers
        return all(
            number not in self.transfers.moving
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
        requested = {Part(each.part, each.topic): None for each in wanted}
        unknown = {
            part.topic: None
            for part in follower.done
            if part not in requested
            and Part(self._broker, part.topic) in requested
            and self._server.log.holds(part)
        }
        if unknown:
            owners = tuple(map(self._name_here, unknown))
            self._sessions.answer(home, Merged(home, owners))

    # ------------------------------------------------------------ transfers of topics

    def give(self, message: Give) -> None:
        """Give a topic away, or report a completed transfer again."""
        assert self._assignments is not None, f"{message} without an arbiter"
        number, generation = message.topic, message.generation
        if self.transfers.generations.get(number, 0) >= generation:
            if number in self.transfers.moved:
                self._report_given(number)
        elif 0 < self._assignments.generation(number) < generation:
            self.transfers.transfer(number, message.owner, generation)

    def _report_given(self, number: int) -> None:
        if self._arbiter is not None:
            owner, generation = self.transfers.moved[number], self.transfers.generations[number]
            self._arbiter.report_given(number, owner, generation)

    def _on_given(self, number: int) -> None:
        self._server.requested.pop(number, None)
        self._report_given(number)

    def _on_received(self, number: int, generation: int) -> None:
        assigned = self._assignments
        if assigned is not None:
            assigned.keep(number, generation)
        self._server.requested[number] = None
        for home, _ in self._server.followers.of(number):
            self._sessions.answer(home, Merged(home, (self._name_here(number),)))
        self._server.settle_all()
        if assigned is not None:
            assigned.announce((number,))
            self._schedule()

    def _on_merge(self, peer: Peer, message: Merge) -> None:
        """Give away topics that other servers own, too.

        Raises:
            RemoteProtocolError: a topic may not be given to that server; the fault of the peer.
        """
        for number, owner, _ in message.owners:
            if not self._can_take(owner):
                raise RemoteProtocolError(peer, f"topic {number} is to be {owner}'s")
        self.transfers.on_merge(message)

    def _check_server(self, peer: Peer, message: Carry | Transfer) -> None:
        if message.server != self._broker or message.giver not in self._names:
            reason = f"broker {message.giver} gives a topic to {message.server}"
            raise RemoteProtocolError(peer, reason)

    def _on_carry(self, peer: Peer, message: Carry) -> None:
        self._check_server(peer, message)
        self.transfers.on_carry(peer, message)

    def _on_transfer(self, peer: Any, message: Transfer) -> None:
        self._check_server(peer, message)
        rows: tuple[Change, ...] = ()
        if self._assignments is not None:
            rows = (self._assignments.row(message.topic, message.generation),)
        self.transfers.on_transfer(peer, message, rows, self._on_received)

    def _on_transferred(self, peer: Peer, message: Transferred) -> None:
        if message.giver != self._broker or not {message.server, message.owner} <= {*self._names}:
            raise RemoteProtocolError(peer, f"broker {message.server} has topic {message.topic}")
        if self.transfers.moving.get(message.topic) != message.server:
            return
        if not self._can_take(message.owner):
            raise RemoteProtocolError(peer, f"topic {message.topic} is {message.owner}'s")
        self.transfers.on_transferred(message, self._on_given)

    def _on_periodic(self, peer: Peer, message: Periodic) -> None:
        if message.server not in self._names:
            raise RemoteProtocolError(peer, f"broker {message.server} answers a request for itself")
        if self.positions.on_announcement(message):
            self._server.settle_all()


class TopicAnnouncements:
    """The periodic announcement of a server's topics to all proxies.

    Args:
        proxies: proxies with a session.

    Paper: [MP22] §3.1.5 (PERIODIC), §5.2.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        period_ns: int,
        server: TransferHost,
        proxies: Collection[BrokerNumber],
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._deadlines = deadlines
        self._period_ns = period_ns
        self._server = server
        self._proxies = proxies

    def announce(self, _broker: BrokerNumber) -> None:
        """Send the announcement, and schedule the next."""
        owned = Owned(tuple(Owner(topic, self._broker) for topic in self._server.requested))
        for proxy in self._proxies:
            self._machine.send(proxy, owned)
        due_ns = self._machine.now_ns + self._period_ns
        self._deadlines.set((PERIOD, self._broker), due_ns)
