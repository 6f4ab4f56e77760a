"""What this broker's clients have published and no server has stored yet, in order by topic.

Paper: [MP22] §4 (a put is tried again with the same counter, until it has succeeded). Deviates:
the client's pending puts are what its library holds unacknowledged; puts to one topic follow one
another without waiting, and each names the one before it, so that none is taken for a duplicate
because a later one came first over another proxy.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.multi_proxy.messages import Put, Stored

Chain = deque[PublicationRun]
"""What one source has to put to one topic, in order; the first is put first."""


@dataclass(slots=True)
class PendingSource:
    """A publisher of this broker.

    Attributes:
        submitted: how far it has published here.
        chains: by topic; none is empty.
        is_here: its client has a session.
    """

    submitted: int
    chains: dict[int, Chain] = field(default_factory=dict)
    is_here: bool = True

    @property
    def done(self) -> int:
        """Up to where everything it has published is stored."""
        firsts = [chain[0].first for chain in self.chains.values()]
        return min(firsts) - 1 if firsts else self.submitted


class Puts:
    """All puts of one home that are not stored.

    Args:
        owners: the server of each topic.
        send: sends a put, if there is a way.
        on_stored: a source has come further.
        answered: a server has answered something that was waited for.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        owners: Sequence[BrokerNumber],
        *,
        send: Callable[[Put], None],
        on_stored: Callable[[SourceId], None],
        answered: Callable[[BrokerNumber], None],
    ) -> None:
        self._broker = broker
        self._owners = owners
        self._send = send
        self._on_stored = on_stored
        self._answered = answered
        self._sources: dict[SourceId, PendingSource] = {}
        self._unanswered: dict[BrokerNumber, int] = {}

    def come(self, source: SourceId, published: int) -> None:
        """A publisher is here, and all that it has published before is done up to a number."""
        pending = self._sources.get(source)
        if pending is None:
            self._sources[source] = PendingSource(published)
        else:
            pending.is_here = True

    def gone(self, source: SourceId) -> None:
        """A publisher is not here any more; what it has published is put all the same."""
        pending = self._sources[source]
        pending.is_here = False
        self._forget(source, pending)

    def put(self, source: SourceId, parts: Sequence[tuple[int, PublicationRun]]) -> None:
        """Put what has not been put already of a run, by topics."""
        pending = self._sources[source]
        before = pending.submitted
        for topic, part in parts:
            rest = part.after(before)
            if rest is None:
                continue
            pending.submitted = max(pending.submitted, rest.last)
            chain = pending.chains.setdefault(topic, deque())
            previous = chain[-1].last if chain else 0
            chain.append(rest)
            server = self._owners[topic]
            self._unanswered[server] = self._unanswered.get(server, 0) + 1
            self._send(Put(server, self._broker, topic, previous, rest))

    def done(self, source: SourceId) -> int:
        """Up to where what a source has published is stored."""
        return self._sources[source].done

    def unanswered(self, server: BrokerNumber) -> bool:
        """Whether a server has not stored something."""
        return bool(self._unanswered.get(server))

    def pending(self) -> int:
        """How many publications are not stored."""
        return sum(
            len(run)
            for source in self._sources.values()
            for chain in source.chains.values()
            for run in chain
        )

    def resend(self, server: BrokerNumber) -> None:
        """Put all again that a server has not stored."""
        if not self.unanswered(server):
            return
        for pending in self._sources.values():
            for topic, chain in pending.chains.items():
                if self._owners[topic] != server:
                    continue
                previous = 0
                for run in chain:
                    self._send(Put(server, self._broker, topic, previous, run))
                    previous = run.last

    def on_stored(self, peer: Peer, message: Stored) -> None:
        """What a source has put to a topic is stored up to a number."""
        topic, source = message.topic, message.source
        if topic >= len(self._owners) or self._owners[topic] != message.server:
            raise RemoteProtocolError(peer, f"broker {message.server} stores topic {topic}")
        pending = self._sources.get(source)
        chain = pending.chains.get(topic) if pending is not None else None
        if pending is None or chain is None or chain[0].first > message.through:
            return
        while chain and chain[0].last <= message.through:
            chain.popleft()
            self._unanswered[message.server] -= 1
        rest = chain[0].after(message.through) if chain else None
        if rest is not None:
            chain[0] = rest
        else:
            del pending.chains[topic]
        self._answered(message.server)
        self._on_stored(source)
        self._forget(source, pending)

    def _forget(self, source: SourceId, pending: PendingSource) -> None:
        if not pending.is_here and not pending.chains:
            del self._sources[source]
