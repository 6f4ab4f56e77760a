"""Simulated proxies, servers and two access brokers, with times of publications and deliveries."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from bench.papers.mp22.proxy_files import ProxyExperiment
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.interface import Effect, Event, Send
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.places import Places
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.cluster import Published, SimulatedCluster
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.units import MILLISECOND_NS
from brokerd.wire.attributes import decode_attribute_table

Watcher = Callable[[SimulatedBroker, Event, list[Effect]], None]

NETWORK: Final = NetworkParameters(
    latency_lowest_ns=MILLISECOND_NS, latency_highest_ns=MILLISECOND_NS, jitter_ns=0
)
HOMES: Final = ("e1", "e2")
SETTLING_S: Final = 12
"""More than two periods of the servers' announcements of ownership to proxies."""


def said(effects: Sequence[Effect]) -> list[Any]:
    """Return the messages that a step sends."""
    return [effect.message for effect in effects if type(effect) is Send]


class World:
    """Proxies x1, x2, …, servers v1, …, and two access brokers, one millisecond apart.

    Args:
        watch: receives every step before its effects are carried out.
    """

    def __init__(
        self, experiment: ProxyExperiment, seed: int, watch: Watcher | None = None, **values: Any
    ) -> None:
        sides = {
            "proxies": [f"x{number}" for number in range(1, experiment.proxies + 1)],
            "servers": [f"v{number}" for number in range(1, experiment.servers + 1)],
            "edges": list(HOMES),
        }
        self.topology = Topology.from_mapping(
            {
                "schema": SCHEMA,
                "name": "proxies",
                "kind": "bipartite",
                "bipartite": sides,
                "brokers": [name for names in sides.values() for name in names],
            },
            "proxies",
        )
        self.parameters = MultiProxyParameters(topic_attribute="kind", **values)
        self.cluster = SimulatedCluster(
            self.topology,
            "multi_proxy",
            seed=seed,
            parameters=self.parameters,
            network=replace(NETWORK, session=self.topology.session_parameters()),
            strict=False,
            trace=False,
            watcher=watch,
            observer=Seen(self),
        ).start()
        self.sent_ns: dict[str, int] = {}
        self.came_ns: dict[str, list[int]] = {}
        self.cluster.run_for(1)

    def arbiter(self, kind: str) -> str:
        """Return the server that decides about the owner of a kind's topic."""
        topic = Topics(self.parameters, decode_attribute_table).of_value(kind)
        return self.topology.brokers[
            Places(0, self.topology, self.parameters.topics).arbiters[topic]
        ]

    @property
    def now_ns(self) -> int:
        """The time of the only clock."""
        return self.cluster.schedule.now_ns

    def publish(self, at: str, kind: str) -> Published:
        """Publish at an access broker."""
        sent = self.cluster.publish(at, kind=kind)
        self.sent_ns[str(sent)] = self.now_ns
        return sent

    def violations(self) -> dict[str, int]:
        """Return the violations that the oracle finds after all deliveries should have arrived."""
        self.cluster.oracle.judge_end()
        return dict(self.cluster.oracle.violations)


class Seen:
    """A ClientObserver that records times of deliveries."""

    def __init__(self, world: World) -> None:
        self._world = world

    def connected(self, client: Any, source: Any) -> None:
        """Do nothing."""

    def started(self, client: Any, number: int) -> None:
        """Do nothing."""

    def delivered(
        self, client: Any, number: int, source: Any, sequence: int, blob: bytes, payload: Any
    ) -> None:
        world = self._world
        publisher = world.cluster.name_of(source)
        world.came_ns.setdefault(f"{publisher}/{sequence}", []).append(world.now_ns)

    def withheld(self, client: Any, notice: Any) -> None:
        """Do nothing."""

    def gap(self, client: Any, number: int, source: Any, *rest: Any) -> None:
        """Do nothing."""

    def acknowledged(self, client: Any, sequence: int) -> None:
        """Do nothing."""
