"""The fast path: handling of a publication in a single step, without a new decision.

At low rates a frame brings a single publication, and the decisions equal the decisions
about the previous publication: the path was checked, the publication is new, and the audience is
reached over hops in use and by clients without tags. The decisions are cached
until an event other than publications, confirmations and acknowledgements. All other publications
take the general path (`forwarding.py`), which has the same result, step by step; a test
compares both.

Paper: [DFT11] §VI, Fig. 8 lines 1-18.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Publish
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.losses import MARKER
from brokerd.protocols.delta_tree.home_subscriptions import WithholdingWindows
from brokerd.protocols.delta_tree.messages import NOTIFIER, Path, PublicationCopy
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.queue_entries import Entry, Receipt, SourceQueue, Transfer
from brokerd.protocols.delta_tree.routing_table import Audience, RoutingTable
from brokerd.protocols.delta_tree.sessions import Sessions
from brokerd.protocols.delta_tree.state import LocalSubscription, Phase, State
from brokerd.protocols.interface import MessageReceived, Send

KEPT: Final = 10_000
"""Greatest number of cached routes, and of cached audiences of each."""


@dataclass(frozen=True, slots=True)
class NextHop:
    """A hop for an audience: the session, the homes behind the hop, and the path up to the hop."""

    hop: BrokerNumber
    session: int
    destinations: int
    path: Path


@dataclass(frozen=True, slots=True)
class Direction:
    """The targets of publications with one audience from one route.

    Attributes:
        clients: the local clients, with the subscriptions of every publication.
        names: of the clients.
    """

    onward: tuple[NextHop, ...]
    clients: tuple[tuple[ClientId, tuple[LocalSubscription, ...]], ...]
    names: tuple[ClientId, ...]


@dataclass(frozen=True, slots=True)
class ArrivalRoute:
    """A session and a path from which publications may arrive.

    Attributes:
        path: source broker … here.
        behind_sender: home brokers that the sender reaches by itself, as a bit set.
        source: the only source of a client; None for a broker.
        directions: the decisions by audience; None: the audience takes the general path.
    """

    peer: Peer
    path: Path
    behind_sender: int = 0
    source: SourceId | None = None
    directions: dict[Audience, Direction | None] = field(default_factory=dict)


class FastPath:
    """The fast path for publications without a new decision."""

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        table: RoutingTable,
        queue: PublicationQueue,
        windows: WithholdingWindows,
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._table = table
        self._sequences = state.sequences
        self._queue = queue
        self._windows = windows
        self._routes: dict[tuple[int, Path], ArrivalRoute] = {}

    def clear(self) -> None:
        """Clear the cache after an event that may change decisions."""
        if self._routes:
            self._routes = {}

    def open_to_client(self, session: int, client: ClientId, source: SourceId) -> None:
        """Open the fast path to a client that publishes as `source`, after its first run."""
        path = (self._state.broker,)
        self._routes[session, path] = ArrivalRoute(client, path, source=source)

    def handle(self, event: MessageReceived) -> bool:
        """Handle a publication and return True; False, without any effect, for the general path."""
        message: PublicationCopy | Publish = event.message
        run = message.run
        if len(run.sequences) != 1 or len(run.attribute_table) != 1 or run.origins:
            return False
        if type(message) is PublicationCopy:
            path = message.path
            if message.vector is not None or message.tags:
                return False
        else:
            path = (self._state.broker,)
        arrival = self._routes.get((event.session, path))
        if arrival is None:
            if type(message) is not PublicationCopy or not self._open(event, path):
                return False
            arrival = self._routes[event.session, path]
        source, sequence = run.source, run.sequences[0]
        if arrival.source is None:
            if source.broker != path[0] or source.publisher == NOTIFIER:
                return False
        elif source != arrival.source:
            return False
        received = self._sequences.last
        queue = self._queue
        counters = self._state.counters
        if sequence <= received.get(source, 0) or queue.publications >= queue.limit:
            return False
        if (
            queue.publications >= queue.merge_above
            and counters["publications_received"] + 1 >= queue.merge_at
        ):
            return False
        try:
            audience = self._table.memo.match(run.attribute_table[0])
        except ValueError:
            return False
        direction = arrival.directions.get(audience)
        if direction is None:
            if audience in arrival.directions:
                return False
            if len(arrival.directions) >= KEPT:
                arrival.directions.clear()
            direction = arrival.directions[audience] = self._decide(arrival, audience)
            if direction is None:
                return False
        if not direction.onward and not direction.clients:
            return False  # nobody here or behind wants it: confirmed at once
        for _, subscriptions in direction.clients:
            for local in subscriptions:
                if local.begins_after.get(source, 0) >= sequence:
                    return False
        if direction.clients and run.attribute_table[0] == MARKER:
            return False  # it may name publications before the start of a subscription

        counters["publications_received"] += 1
        self._sequences.paths[source.broker] = path
        received[source] = sequence
        if arrival.source is not None:
            self._sequences.use(source, sequence)
        receipt = Receipt(arrival.peer, event.session, source, sequence, sequence, path)
        entry = Entry(source, None, (), sequence, sequence, sequence, 1, path, [receipt], whole=run)
        receipt.remaining = 1
        of_source = queue.entries.get(source)
        if of_source is None:
            of_source = queue.entries[source] = SourceQueue()
        of_source.append(entry)
        queue.publications += 1
        emit = self._state.machine.effects.append
        for onward in direction.onward:
            hop = onward.hop
            transfer = Transfer(entry, hop, onward.session, onward.destinations, sequence, sequence)
            entry.transfers[hop] = transfer
            by_source = queue.sent.get(hop)
            if by_source is None:
                by_source = queue.sent[hop] = {}
            sent = by_source.get(source)
            if sent is None:
                sent = by_source[source] = deque()
            sent.append(transfer)
            counters["publications_forwarded"] += 1
            emit(Send(hop, PublicationCopy(run, onward.path)))
        if direction.clients:
            entry.clients, entry.serial = direction.names, self._windows.serial
        for client, subscriptions in direction.clients:
            entry.deliveries += 1
            self._windows.deliver(client, run, subscriptions, (entry,))
        return True

    def _open(self, event: MessageReceived, path: Path) -> bool:
        """Return True if publications may arrive on a path and session.

        Errors are left to the general path.
        """
        peer = event.peer
        if not isinstance(peer, int) or self._sessions.current(peer) != event.session:
            return False
        here = self._state.broker
        if not self._sessions.node(peer).ready or peer not in path[:-1] or path[0] == here:
            return False
        try:
            self._state.check_path(path, peer)
        except RemoteProtocolError:
            return False
        if len(self._routes) >= KEPT:
            self.clear()
        behind = self._table.homes_behind(self._state.neighbourhood.direction(peer))
        self._routes[event.session, path] = ArrivalRoute(peer, path, behind)
        return True

    def _decide(self, arrival: ArrivalRoute, audience: Audience) -> Direction | None:
        """Return the targets of an audience; None if sending and delivering are not enough."""
        destinations = audience.homes & ~arrival.behind_sender
        onward: list[NextHop] = []
        for route in self._queue.routes:
            reached = destinations & route.destinations
            if reached:
                destinations &= ~reached
                path = arrival.path + self._state.neighbourhood.paths[route.hop][1:]
                onward.append(NextHop(route.hop, route.session, reached, path))
        if destinations:
            return None
        clients: dict[ClientId, tuple[LocalSubscription, ...]] = {}
        for local in audience.local:
            if local.tags or local.phase not in (Phase.STARTING, Phase.STARTED):
                return None
            clients[local.client] = (*clients.get(local.client, ()), local)
        return Direction(tuple(onward), tuple(clients.items()), tuple(clients))
