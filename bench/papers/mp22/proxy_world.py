"""Experiments on topics behind proxies, on simulated brokers: files, points and rows.

The report does not measure these, and a simulated clock is more exact than a busy machine: the
distribution of topics over servers, the effect of a stalled server, the promises after a crash at
any point, and the repetitions of requests to a slow server. A world has proxies, servers and two
access brokers, and records the times of publications and deliveries.

Paper: [MP22] §3, §4, which measures nothing itself.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from bench.spec.experiment import ExperimentFile
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.interface import Effect, Event, Send
from brokerd.protocols.multi_proxy.parameters import ARBITER, CAUSAL, MultiProxyParameters
from brokerd.protocols.multi_proxy.routes import Places
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import PublicationHandle
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.units import MILLISECOND_NS
from brokerd.wire.attributes import decode_attribute_table

Row = dict[str, Any]
Tables = dict[str, list[Row]]
Few = Annotated[int, Field(ge=1, le=16, strict=True)]
Count = Annotated[int, Field(ge=1, le=100_000, strict=True)]
Counts = Annotated[list[Count], Field(min_length=1)]
Percent = Annotated[int, Field(ge=1, le=100, strict=True)]
Ownership = Literal["arbiter", "rendezvous", "causal", "paper"]

CRASH_POINTS: Final[Mapping[str, str]] = {
    "C1": ARBITER,
    "C2": ARBITER,
    "C3": ARBITER,
    "C4": ARBITER,
    "C5": ARBITER,
    "C6": ARBITER,
    "C7": ARBITER,
    "C9": ARBITER,
    "C10": ARBITER,
    "C11": CAUSAL,
    "C12": CAUSAL,
    "C13-pending": ARBITER,
    "C13-assigned": ARBITER,
    "C13-owned": ARBITER,
    "C14-decided": ARBITER,
    "C14-frozen": ARBITER,
    "C14-taken": ARBITER,
    "C14-given": ARBITER,
    "C14-owned": ARBITER,
}
"""The design's crash points on simulated brokers, with the ownership that has the point."""


class ProxyExperiment(ExperimentFile):
    """The common keys of these experiments.

    Attributes:
        runs: draws of each point.
    """

    schema_: Annotated[Literal["pubsubctl/proxy-experiment/1"], Field(alias="schema")]
    runs: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    proxies: Few = 2
    servers: Few

    @abstractmethod
    def points(self) -> list[Row]:
        """Return the points of the experiment, as columns that distinguish the points."""

    def scale(self) -> Row:
        return {"servers": self.servers, "runs": self.runs}


class SpreadExperiment(ProxyExperiment):
    """The number of topics that each server owns.

    Attributes:
        topics: number of topics.
        asked_percent: share of topics, drawn at random, that each of two access brokers requests,
            over two proxies.
    """

    question: Literal["spread"]
    topics: Annotated[int, Field(ge=8, le=4096, strict=True)]
    asked_percent: Percent
    ownerships: Annotated[list[Ownership], Field(min_length=1)]

    def points(self) -> list[Row]:
        return [{"ownership": ownership} for ownership in self.ownerships]

    def scale(self) -> Row:
        return {**super().scale(), "topics": self.topics}


class StallExperiment(ProxyExperiment):
    """The effect of a server that receives everything and answers nothing, dies, and restarts.

    Attributes:
        topics: number of values, published equally often.
        before_s, stalled_s, down_s, after_s: length of each part.
    """

    question: Literal["stall"]
    topics: Annotated[int, Field(ge=2, le=64, strict=True)]
    publications_per_s: Count
    before_s: Few
    stalled_s: Few
    down_s: Few
    after_s: Few

    def points(self) -> list[Row]:
        return [{"ownership": ARBITER}]

    def scale(self) -> Row:
        return {**super().scale(), "down_s": self.down_s}


class CrashExperiment(ProxyExperiment):
    """The promises of the protocol after a crash at each of the design's crash points.

    Attributes:
        crash_points: names of crash points.
        publications: publications of each of two publishers during the story.
    """

    question: Literal["crashes"]
    crash_points: Annotated[list[str], Field(min_length=1)]
    publications: Annotated[int, Field(ge=4, le=1000, strict=True)]

    @model_validator(mode="after")
    def _known(self) -> "CrashExperiment":
        for point in self.crash_points:
            if point not in CRASH_POINTS:
                raise ValueError(f"crash_points: {point!r} is none of {', '.join(CRASH_POINTS)}")
        return self

    def points(self) -> list[Row]:
        return [
            {"crash_point": point, "ownership": CRASH_POINTS[point]} for point in self.crash_points
        ]


class TimeoutExperiment(ProxyExperiment):
    """The number of repeated puts of publications that a stalled server has not stored.

    Attributes:
        timeouts_ms: initial timeouts of an access broker.
        stalls_ms: lengths of the stall.
    """

    question: Literal["timeouts"]
    publications_per_s: Count
    timeouts_ms: Counts
    stalls_ms: Counts

    def points(self) -> list[Row]:
        return [
            {"timeout_ms": timeout, "stall_ms": stall}
            for timeout in self.timeouts_ms
            for stall in self.stalls_ms
        ]

    def scale(self) -> Row:
        return {**super().scale(), "stall_ms": max(self.stalls_ms)}


KINDS: Final[Mapping[str, type[ProxyExperiment]]] = {
    "spread": SpreadExperiment,
    "stall": StallExperiment,
    "crashes": CrashExperiment,
    "timeouts": TimeoutExperiment,
}


Watcher = Callable[[SimulatedBroker, Event, list[Effect]], None]

NETWORK: Final = NetworkParameters(
    latency_lowest_ns=MILLISECOND_NS, latency_highest_ns=MILLISECOND_NS, jitter_ns=0
)
HOMES: Final = ("e1", "e2")
SETTLING_S: Final = 12
"""More than two periods of the servers' announcements of ownership to proxies."""


def messages_of(effects: Sequence[Effect]) -> list[Any]:
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
            observer=Observations(self),
        ).start()
        self.sent_ns: dict[str, int] = {}
        self.came_ns: dict[str, list[int]] = {}
        self.cluster.run_for(1)

    def arbiter(self, kind: str) -> str:
        """Return the server that decides about the owner of a kind's topic."""
        topic = Topics(self.parameters, decode_attribute_table).topic_of_value(kind)
        return self.topology.brokers[
            Places(0, self.topology, self.parameters.topics).arbiters[topic]
        ]

    @property
    def now_ns(self) -> int:
        """The time of the only clock."""
        return self.cluster.schedule.now_ns

    def publish(self, at: str, kind: str) -> PublicationHandle:
        """Publish at an access broker."""
        sent = self.cluster.publish(at, kind=kind)
        self.sent_ns[str(sent)] = self.now_ns
        return sent

    def violations(self) -> dict[str, int]:
        """Return the violations that the oracle finds after all deliveries should have arrived."""
        self.cluster.oracle.judge_end()
        return dict(self.cluster.oracle.violations)


class Observations:
    """A ClientObserver that records times of deliveries."""

    def __init__(self, world: World) -> None:
        self._world = world

    def on_connected(self, client: Any, source: Any) -> None:
        """Do nothing."""

    def on_started(self, client: Any, number: int) -> None:
        """Do nothing."""

    def on_delivered(
        self, client: Any, number: int, source: Any, sequence: int, blob: bytes, payload: Any
    ) -> None:
        world = self._world
        publisher = world.cluster.state.name_of(source)
        world.came_ns.setdefault(f"{publisher}/{sequence}", []).append(world.now_ns)

    def on_withheld(self, client: Any, notice: Any) -> None:
        """Do nothing."""

    def on_gap(self, client: Any, number: int, source: Any, *rest: Any) -> None:
        """Do nothing."""

    def on_acknowledged(self, client: Any, sequence: int) -> None:
        """Do nothing."""
