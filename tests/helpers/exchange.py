"""Cores wired by hand: a test can hold every message and cut every link.

The exchange is simpler than the simulator: no clock, no chance, disks that are always durable, and
one session per pair of brokers. A story decides the order of arrivals.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Deliveries,
    Publish,
    PublishAcknowledged,
    Subscribe,
    Subscribed,
)
from brokerd.model.identity import SourceId
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import PublicationRun
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree
from brokerd.overlay.tree_section import TreeSection
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import (
    CloseSession,
    Commit,
    DeadlineReached,
    Deliver,
    Event,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Persisted,
    Record,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
    TopologyShrunk,
)
from brokerd.protocols.registry import definition_of, make_protocol

SECOND_NS = 1_000_000_000


def decode(blobs: Sequence[bytes]) -> list[dict[str, Any]]:
    """Decode attributes as JSON; raise ValueError for malformed input, as the real decoder does."""
    tables = [json.loads(bytes(blob)) for blob in blobs]
    if not all(isinstance(attributes, dict) for attributes in tables):
        raise ValueError("not a map")
    return tables


def blob(**attributes: Any) -> bytes:
    """Return an attribute blob."""
    return json.dumps(attributes, sort_keys=True).encode()


def run_of(source: SourceId, first: int, *blobs: bytes, size: int = 2) -> PublicationRun:
    """Return consecutive publications from `first` on, one per blob, with distinct payloads."""
    table = tuple(dict.fromkeys(blobs))
    index = bytes(table.index(item) for item in blobs)
    payload = b"".join(
        str(sequence).zfill(size)[-size:].encode() for sequence in range(first, first + len(blobs))
    )
    return PublicationRun(
        source, range(first, first + len(blobs)), table, index, size, (memoryview(payload),)
    )


def topology(links: Iterable[tuple[int, int]], delta: int) -> Topology:
    """Return a tree of brokers b0, b1, …"""
    links = tuple(links)
    count = 1 + max((broker for link in links for broker in link), default=0)
    return Topology("t", TreeSection(delta), tuple(f"b{n}" for n in range(count)), links)


def with_cluster(tree: Topology) -> Topology:
    """Return the same brokers and links as a hierarchy with one cluster."""
    addresses = tuple((number,) for number in range(len(tree.brokers)))
    return replace(tree, further=(Hierarchy(tree.brokers, addresses, tree.links),))


class Client:
    """A client that acknowledges deliveries, unless `quiet` is set."""

    def __init__(self, name: str, broker: int) -> None:
        self.name = name
        self.broker = broker
        self.session = 0
        self.quiet = False
        self.source: SourceId | None = None
        self.answers: list[Any] = []
        self.deliveries: list[Deliveries] = []
        self.done: list[tuple[int, int]] = []

    def got(self, number: int = 1) -> list[int]:
        """Return the sequences received for a subscription, in order."""
        return [
            sequence
            for item in self.deliveries
            if number in item.subscriptions
            for sequence in item.run.sequences
        ]

    def payloads(self) -> list[bytes]:
        """Return the payloads received, in order."""
        return [
            bytes(payload) for item in self.deliveries for _, _, payload in item.run.publications()
        ]


OWN_PARAMETERS: Mapping[str, Mapping[str, Any]] = {"ges": {"keeper_policy": "every_node"}}
"""Parameters other than the defaults: here every broker receives every subscription."""


class Exchange:
    """Cores, the messages in flight, and clients."""

    def __init__(
        self,
        links: Iterable[tuple[int, int]],
        *,
        delta: int = 1,
        protocol: str = "delta_tree",
        parameters: DeltaTreeParameters | None = None,
    ) -> None:
        tree = topology(links, delta)
        is_tree = definition_of(protocol).kind == tree.kind
        self.topology = tree if is_tree else with_cluster(tree)
        self.tree = PrimaryTree(self.topology)
        self.protocol = protocol
        # What cores send is told message by message; relayed sessions have tests of their own.
        self.parameters = replace(parameters or DeltaTreeParameters(delta=delta), assist="off")
        self.now_ns = 0
        self.log: list[tuple[int, Event, list[Any]]] = []
        self.records: list[tuple[int, str]] = []
        self.cores: dict[int, Any] = {}
        self.disks: dict[int, dict[str, dict[str, Any]]] = {}
        self.incarnations: dict[int, int] = {}
        self.sessions: dict[tuple[int, int], int] = {}
        self.queues: dict[tuple[int, int], deque[tuple[int, Any]]] = {}
        self.held: dict[tuple[int, int], None] = {}
        self.unreachable: dict[tuple[int, int], None] = {}
        self.clients: dict[str, Client] = {}
        self._last_session = 0
        for number in range(len(self.topology.brokers)):
            self.disks[number] = {}
            self.start(number, settle=False)
        self.settle()

    def _own_parameters(self) -> Any:
        """Return the protocol's parameters, with the given values where the protocol has them."""
        kind = definition_of(self.protocol).parameters
        if isinstance(self.parameters, kind):
            return self.parameters
        names = [field.name for field in fields(kind) if hasattr(self.parameters, field.name)]
        given = {name: getattr(self.parameters, name) for name in names}
        return kind(**{**OWN_PARAMETERS.get(self.protocol, {}), **given})

    # ------------------------------------------------------------ faults

    def start(self, number: int, *, settle: bool = True) -> None:
        """Start or restart a broker."""
        recovering = number in self.incarnations
        self.incarnations[number] = self.incarnations.get(number, 0) + 1
        self.cores[number] = make_protocol(
            self.protocol,
            number,
            self.topology.with_delta(self.parameters.delta),
            self._own_parameters(),
            decode,
        )
        rows = {table: dict(rows) for table, rows in self.disks[number].items()}
        self.handle(number, Started(self.incarnations[number], recovering, rows))
        if settle:
            self.settle()

    def kill(self, number: int) -> None:
        """Crash a broker; peers and clients lose their sessions with the broker."""
        del self.cores[number]
        for a, b in list(self.sessions):
            if a == number:
                self.cut(a, b, heal=True)
        for client in self.clients.values():
            if client.broker == number:
                client.session = 0

    def leave(self, number: int) -> None:
        """Remove a leaf and notify its neighbourhood; stopped brokers see the change at start."""
        near = self.tree.ball(number, self.parameters.delta + 1)
        self.kill(number)
        self.topology = self.topology.without(self.topology.brokers[number], "leave")
        self.tree.change(self.topology)
        for other in near:
            if other in self.cores:
                self.handle(other, TopologyShrunk(number))
        self.settle()

    def cut(self, a: int, b: int, *, heal: bool = False) -> None:
        """End the session of two brokers; unless `heal`, no new session starts before `mend`."""
        if not heal:
            self.unreachable[min(a, b), max(a, b)] = None
        for end, far in ((a, b), (b, a)):
            self.queues.pop((end, far), None)
            session = self.sessions.pop((end, far), None)
            if session is not None and end in self.cores:
                self.handle(end, SessionLost(far, session, "silent"))

    def mend(self, a: int, b: int) -> None:
        """Reconnect two brokers: the broker with the smaller number connects now."""
        self.unreachable.pop((min(a, b), max(a, b)), None)
        self._open(min(a, b), max(a, b))
        self.settle()

    def hold(self, a: int, b: int) -> None:
        """Hold messages from a to b in flight."""
        self.held[a, b] = None

    def release(self, a: int, b: int) -> None:
        """Release held messages."""
        del self.held[a, b]
        self.settle()

    def advance(self, seconds: float) -> None:
        """Advance the time; deadlines fall due in order."""
        until_ns = self.now_ns + int(seconds * SECOND_NS)
        while True:
            dues = [
                (core.next_deadline(), number)
                for number, core in self.cores.items()
                if core.next_deadline() is not None
            ]
            if not dues or min(dues)[0] > until_ns:
                break
            due_ns, number = min(dues)
            self.now_ns = max(self.now_ns, due_ns)
            self.handle(number, DeadlineReached())
            self.settle()
        self.now_ns = until_ns

    # ------------------------------------------------------------ clients

    def client(self, name: str, broker: int, *, publishes: bool = False, **connect: Any) -> Client:
        """Attach a client, new or existing."""
        client = self.clients.setdefault(name, Client(name, broker))
        self._last_session += 1
        client.session = self._last_session
        self.handle(broker, SessionEstablished(name, client.session, 1))
        wanted = {"incarnation": 1, "next_sequence": 1, "highest_sequence": 0, "resume": ()}
        wanted["instance"] = b"process"  # of this name there is one: its source stays as it is
        self.say(client, Connect(publishes, **(wanted | connect)))
        return client

    def detach(self, client: Client) -> None:
        """End the client's session."""
        session, client.session = client.session, 0
        self.handle(client.broker, SessionLost(client.name, session, "closed_by_peer"))
        self.settle()

    def say(self, client: Client, message: Any) -> None:
        """Deliver a client's message to its broker."""
        self.handle(client.broker, MessageReceived(client.name, client.session, message))
        self.settle()

    def subscribe(self, client: Client, predicate: str, number: int = 1) -> None:
        """Subscribe, or repeat the request of the same subscription."""
        self.say(client, Subscribe(number, parse_predicate(predicate)))

    def publish(self, client: Client, first: int, *blobs: bytes) -> None:
        """Publish a run."""
        assert client.source is not None, f"{client.name} is not connected"
        self.say(client, Publish(run_of(client.source, first, *blobs)))

    # ------------------------------------------------------------ the works

    def handle(self, number: int, event: Event) -> list[Any]:
        """Pass an event to a core and carry out the effects."""
        effects = self.cores[number].handle(event, self.now_ns)
        self.log.append((number, event, effects))
        for effect in effects:
            self._perform(number, effect)
        return effects

    def settle(self) -> None:
        """Deliver all messages that are not held."""
        moving = True
        while moving:
            moving = False
            for (a, b), queue in list(self.queues.items()):
                while queue and (a, b) not in self.held and self.queues.get((a, b)) is queue:
                    session, message = queue.popleft()
                    moving = True
                    self.handle(b, MessageReceived(a, session, message))

    def sent(self, a: int, b: int, kind: type) -> list[Any]:
        """Return all messages of a kind that a sent to b."""
        return [
            effect.message
            for number, _, effects in self.log
            for effect in effects
            if number == a
            and isinstance(effect, Send)
            and effect.peer == b
            and isinstance(effect.message, kind)
        ]

    def _perform(self, number: int, effect: Any) -> None:
        match effect:
            case Send(int(peer), message):
                if (number, peer) in self.sessions:
                    self.queues[number, peer].append((self.sessions[number, peer], message))
            case Send(str(name), message):
                self._answer(self.clients[name], message)
            case Deliver(name, Deliveries() as item):
                self._deliver(self.clients[name], item)
            case Deliver(name, item):
                self._answer(self.clients[name], item)
            case OpenSession(peer):
                self._open(number, peer)
            case Commit(changes, token):
                for change in changes:
                    rows = self.disks[number].setdefault(change.table, {})
                    if change.value is None:
                        rows.pop(change.key, None)
                    else:
                        rows[change.key] = change.value
                if token is not None:
                    self.handle(number, Persisted(token))
            case Record(event, _):
                self.records.append((number, event))
            case CloseSession(peer):
                assert (number, peer) not in self.sessions, f"{number} wants {effect}"

    def _open(self, a: int, b: int) -> None:
        if (a, b) in self.sessions or a not in self.cores:
            return
        if b not in self.cores or (min(a, b), max(a, b)) in self.unreachable:
            self.handle(a, OpenFailed(b, "unreachable"))
            return
        self._last_session += 1
        session = self._last_session  # either end may open more sessions because of this one
        self.sessions[a, b] = self.sessions[b, a] = session
        self.queues[a, b], self.queues[b, a] = deque(), deque()
        self.handle(a, SessionEstablished(b, session, self.incarnations[b]))
        self.handle(b, SessionEstablished(a, session, self.incarnations[a]))

    def _answer(self, client: Client, message: Any) -> None:
        client.answers.append(message)
        if isinstance(message, Connected):
            client.source = message.source
        if isinstance(message, PublishAcknowledged):
            client.done.append((message.first, message.last))

    def _deliver(self, client: Client, item: Deliveries) -> None:
        client.deliveries.append(item)
        if not client.quiet:
            acknowledge = Acknowledge(item.run.source, item.run.first, item.run.last)
            self.handle(client.broker, MessageReceived(client.name, client.session, acknowledge))


def states(client: Client, number: int = 1) -> list[str]:
    """Return the states of a subscription that a client received."""
    return [
        answer.state
        for answer in client.answers
        if isinstance(answer, Subscribed) and answer.number == number
    ]
