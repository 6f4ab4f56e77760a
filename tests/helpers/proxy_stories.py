"""Stories of multi_proxy: proxies, servers and access brokers, with all messages recorded."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from brokerd.model.identity import Peer
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.interface import Effect, Event, Send
from brokerd.protocols.multi_proxy.parameters import RENDEZVOUS, MultiProxyParameters
from brokerd.protocols.multi_proxy.routes import Places
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import PublicationHandle, Subscription
from brokerd.units import MILLISECOND_NS
from tests.helpers.cluster import STEADY

Message = TypeVar("Message")


def sides(proxies: int = 2, servers: int = 2, edges: int = 2) -> Topology:
    """Return a topology of proxies x1, x2, …, servers v1, …, access brokers e1, …."""
    section = {
        "proxies": [f"x{n}" for n in range(1, proxies + 1)],
        "servers": [f"v{n}" for n in range(1, servers + 1)],
        "edges": [f"e{n}" for n in range(1, edges + 1)],
    }
    return Topology.from_mapping(
        {
            "schema": SCHEMA,
            "name": "sides",
            "kind": "bipartite",
            "bipartite": section,
            "brokers": [name for names in section.values() for name in names],
        },
        "sides",
    )


class Story:
    """A simulated cluster that records messages; each message takes one millisecond."""

    def __init__(self, topology: Topology | None = None, **parameters: Any) -> None:
        self.topology = topology or sides()
        self.parameters = MultiProxyParameters(
            **{
                "ownership": RENDEZVOUS,
                "topic_attribute": "kind",
                "topics": 8,
                **parameters,
            }
        )
        self.said: list[tuple[str, Peer, Any]] = []
        self.cluster = SimulatedCluster(
            self.topology,
            "multi_proxy",
            parameters=self.parameters,
            network=replace(STEADY, latency_lowest_ns=MILLISECOND_NS),
            watcher=self._watch,
        ).start()
        self.cluster.run_for(0.5)

    def _watch(self, broker: SimulatedBroker, event: Event, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Send:
                self.said.append((broker.name, effect.peer, effect.message))

    def owner(self, topic: int) -> str:
        """Return the server of a topic, by its hash."""
        places = Places(0, self.topology, self.parameters.topics)
        return self.topology.brokers[places.arbiters[topic]]

    def told(self, broker: str, kind: type[Message]) -> list[Message]:
        """Return the messages of one type that a broker has sent."""
        return [message for who, _, message in self.said if who == broker and type(message) is kind]

    def publish(
        self, at: str, count: int, kind: str = "a", pause_s: float = 0.01
    ) -> list[PublicationHandle]:
        """Publish `count` publications, one after another."""
        sent = []
        for _ in range(count):
            sent.append(self.cluster.publish(at, kind=kind))
            self.cluster.run_for(pause_s)
        return sent


class CountedStory(Story):
    """A story that counts the deliveries at subscribers.

    Attributes:
        kinds: kinds of publications.
        subscriptions: kind and subscription.
        sent: kind and publication.
    """

    def __init__(self, topology: Topology, kinds: str, **parameters: Any) -> None:
        super().__init__(topology, **parameters)
        self.kinds = kinds
        self.subscriptions: list[tuple[str, Subscription]] = []
        self.sent: list[tuple[str, PublicationHandle]] = []

    def subscribe(self, at: str, kind: str) -> None:
        """Add a subscription to publications of one kind."""
        self.subscriptions.append((kind, self.cluster.subscribe(at, f"kind = '{kind}'")))

    def put(self, homes: Sequence[str] = ("e1", "e2")) -> None:
        """Publish a publication of every kind at some access brokers, over both proxies."""
        for kind in self.kinds:
            for at in homes:
                self.sent.append((kind, self.publish(at, 1, kind=kind)[0]))

    def lost(self) -> int:
        """Return the number of missing and duplicate deliveries."""
        twice = sum(
            len(had.received) - len({*map(str, had.received)}) for _, had in self.subscriptions
        )
        return twice + sum(
            each not in had.received
            for kind, each in self.sent
            for wanted, had in self.subscriptions
            if kind == wanted
        )

    def when_told(self, kind: type, then: Callable[[], Any]) -> None:
        """Run until a broker sends a message of this kind, then call `then` at once."""
        for _ in range(20_000):
            if any(type(message) is kind for _, _, message in self.said):
                then()
                return
            self.cluster.run_for(0.0005)
        raise AssertionError(f"nobody has said any {kind.__name__}")
