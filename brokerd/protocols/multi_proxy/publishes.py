"""Publications of this broker's clients that no server has stored yet, in order by topic.

Paper: [MP22] §4 (a put is tried again with the same counter, until it has succeeded). Deviates:
the client's pending puts are those that its library holds unacknowledged; puts to one topic follow
one another without waiting, and each names the previous one, so that none is taken for a duplicate
because a later one arrived first over another proxy.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Instant
from brokerd.protocols.multi_proxy.messages import Put, Stored
from brokerd.protocols.multi_proxy.routes import ServerRoutes
from brokerd.protocols.multi_proxy.state import (
    OwnerTable,
    PendingSource,
    PublishAnswers,
    SentPublish,
)
from brokerd.protocols.parts.event_machine import EventMachine


class Publishes:
    """All publish requests of an access broker that are not stored.

    Args:
        owners: the server of each topic, as far as determined.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        owners: OwnerTable,
        routes: ServerRoutes,
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._owners = owners
        self._routes = routes
        self._sources: dict[SourceId, PendingSource] = {}
        self._servers: dict[BrokerNumber, PublishAnswers] = {}

    def add_publisher(self, source: SourceId, published: int) -> None:
        """Add a publisher with earlier publications acknowledged through a number."""
        pending = self._sources.get(source)
        if pending is None:
            self._sources[source] = PendingSource(published)
        else:
            pending.is_here = True

    def remove_publisher(self, source: SourceId) -> None:
        """Remove a publisher, after its publications are stored."""
        pending = self._sources[source]
        pending.is_here = False
        self._forget(source, pending)

    def put(self, source: SourceId, parts: Sequence[tuple[int, PublicationRun]]) -> Iterator[int]:
        """Send the new publications of a run, by topics; yield the topics without an owner."""
        pending = self._sources[source]
        before = pending.submitted
        for topic, part in parts:
            rest = part.after(before)
            if rest is None:
                continue
            pending.submitted = max(pending.submitted, rest.last)
            chain = pending.chains.setdefault(topic, deque())
            previous = chain[-1].run.last if chain else 0
            chain.append(SentPublish(rest, self._machine.now_ns))
            server = self._owners.of(topic)
            if server is None:
                yield topic
            else:
                self._server(server).unanswered += 1
                self._routes.send(Put(server, self._broker, topic, previous, rest))

    def on_owners(self, topics: Iterable[int]) -> None:
        """Send the publications that have waited for owners of topics."""
        for pending in self._sources.values():
            for topic in topics:
                server, chain = self._owners.of(topic), pending.chains.get(topic, ())
                assert server is not None, f"topic {topic} has no owner"
                self._server(server).unanswered += len(chain)
                self._put_all(server, topic, chain)

    def forget_owners(self, former: Mapping[int, BrokerNumber]) -> tuple[int, ...]:
        """Forget owners of topics, and return all topics with publish requests."""
        topics: dict[int, None] = {}
        for pending in self._sources.values():
            topics.update(dict.fromkeys(pending.chains))
            for topic, server in former.items():
                if topic in pending.chains:
                    self._server(server).unanswered -= len(pending.chains[topic])
        return tuple(topics)

    def done(self, source: SourceId) -> int:
        """Return the number through which a source's publications are stored."""
        return self._sources[source].done

    def unanswered(self, server: BrokerNumber) -> bool:
        """Return True if a server has not stored everything."""
        return self._server(server).unanswered > 0

    def waits_since(self, server: BrokerNumber) -> Instant | None:
        """Return the time since when a server should have stored a request, or None.

        A request that is stored before an earlier request has overtaken that request, which is
        therefore lost; otherwise requests have their turn, and the server works as long as others
        are stored.
        """
        firsts = [
            chain[0].sent_ns
            for pending in self._sources.values()
            for topic, chain in pending.chains.items()
            if self._owners.of(topic) == server
        ]
        if not firsts:
            return None
        oldest, answering = min(firsts), self._server(server)
        return oldest if oldest < answering.sent_ns else max(oldest, answering.answered_ns)

    def _server(self, server: BrokerNumber) -> PublishAnswers:
        return self._servers.setdefault(server, PublishAnswers())

    def count_pending(self) -> int:
        """Return the number of publications that are not stored."""
        return sum(
            len(put.run)
            for source in self._sources.values()
            for chain in source.chains.values()
            for put in chain
        )

    def resend(self, server: BrokerNumber) -> None:
        """Repeat all requests that a server has not stored."""
        if not self.unanswered(server):
            return
        for pending in self._sources.values():
            for topic, chain in pending.chains.items():
                if self._owners.of(topic) == server:
                    self._put_all(server, topic, chain)

    def _put_all(self, server: BrokerNumber, topic: int, chain: Iterable[SentPublish]) -> None:
        previous = 0
        for put in chain:
            put.sent_ns = self._machine.now_ns
            self._routes.send(Put(server, self._broker, topic, previous, put.run))
            previous = put.run.last

    def on_stored(self, peer: Peer, message: Stored) -> Iterator[SourceId]:
        """Take a server's acknowledgement of a source in a topic.

        Yield the source if more of its publications are stored.

        Raises:
            RemoteProtocolError: the server does not own the topic; the fault of the peer.
        """
        topic, source = message.topic, message.source
        if self._owners.of(topic) != message.server and self._owners.may_change:
            return
        if self._owners.of(topic) != message.server:
            raise RemoteProtocolError(peer, f"broker {message.server} stores topic {topic}")
        pending = self._sources.get(source)
        chain = pending.chains.get(topic) if pending is not None else None
        if pending is None or chain is None:
            return
        answering = self._server(message.server)
        answering.answered_ns = self._machine.now_ns
        self._routes.on_answer(message.server, Put)
        if chain[0].run.first > message.through:
            # The server has the request, and no room for it yet.
            chain[0].sent_ns = self._machine.now_ns
            return
        while chain and chain[0].run.last <= message.through:
            answering.sent_ns = max(answering.sent_ns, chain.popleft().sent_ns)
            answering.unanswered -= 1
        rest = chain[0].run.after(message.through) if chain else None
        if rest is not None:
            chain[0].run = rest
        else:
            del pending.chains[topic]
        yield source
        self._forget(source, pending)

    def _forget(self, source: SourceId, pending: PendingSource) -> None:
        if not pending.is_here and not pending.chains:
            del self._sources[source]
