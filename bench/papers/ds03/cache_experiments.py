"""Missed events by the broker that has them: the publishers' broker, or a broker on the way.

Subscribers disconnect and return, each at its own time: 5 s of every 300 s, as in Figs. 4 and 5 of
the paper, at a lower rate. Each broker stores events that have passed it, up to a limit. Events for
catch-up are counted where a broker finds them: in the log of a pubend, among the stored events, or
among events that are not acknowledged there yet. In some cases the subscribers' broker restarts
while a subscriber is away, so its store is empty and the next broker on the way is asked.

Paper: [DS03] §1.1, §3 (caches at intermediate brokers; no figure); the workload of §5.1.
"""

from collections.abc import Mapping
from random import Random
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from bench.papers.experiments import ExperimentRecord, Point, RunContext, Tables, draw_points
from bench.spec.experiment import ExperimentFile, Row
from bench.spec.spec import load_topology
from brokerd.overlay.topology import Topology
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import Subscription
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.units import MILLISECOND_NS
from brokerd.wire.attributes import encode_attributes

TOPOLOGY: Final = "ds03-way"
PUBLISHER: Final = "p1"
_PLACES: Final = ("fetched_from_pubends", "fetched_from_store", "fetched_from_memory")
_STEP_S: Final = 0.1


class Case(BaseModel):
    """A size of the stores.

    Attributes:
        name: name in rows and metrics.
        title: name in the figure.
        store_bytes: most bytes of stored events of a broker; 0: no store.
        restarts: the broker of a subscriber restarts while the subscriber is away.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"[a-z0-9-]+")]
    title: str
    store_bytes: Annotated[int, Field(ge=0, strict=True)]
    restarts: bool = False


class CacheExperiment(ExperimentFile):
    """A closed description of the cases.

    Attributes:
        runs: draws of each case, with other times of absences.
        subscribers: at each of two brokers.
        rate: events per second, of four publishers together.
        payload_bytes: of an event.
        period_s, away_s: a subscriber is disconnected for `away_s` once in `period_s`.
        latency_ms: latency of every link, one way.
    """

    schema_: Annotated[Literal["pubsubctl/cache-experiment/1"], Field(alias="schema")]
    case: Annotated[list[Case], Field(min_length=1)]
    runs: Annotated[int, Field(ge=1, le=1000, strict=True)]
    subscribers: Annotated[int, Field(ge=1, le=100, strict=True)]
    rate: Annotated[int, Field(ge=1, le=1000, strict=True)]
    payload_bytes: Annotated[int, Field(ge=0, le=100_000, strict=True)]
    period_s: Annotated[float, Field(gt=0, le=3600)]
    away_s: Annotated[float, Field(gt=0, le=600)]
    latency_ms: Annotated[int, Field(ge=1, le=1000, strict=True)]

    def scale(self) -> Row:
        return {"subscribers": 2 * self.subscribers, "rate": self.rate, "runs": self.runs}

    def build_topologies(self) -> Mapping[str, Topology]:
        topology = load_topology(TOPOLOGY)
        return {topology.name: topology}

    def points(self) -> list[Point]:
        """Return the names of the cases."""
        return [{"case": each.name} for each in self.case]


def count_events(experiment: CacheExperiment, case: Case, seed: int) -> Row:
    """Return the events that all subscribers missed, by the place where a broker found them."""
    topology = load_topology(TOPOLOGY)
    latency_ns = experiment.latency_ms * MILLISECOND_NS
    cluster = SimulatedCluster(
        topology, "durable", seed=seed, strict=False, trace=False,
        parameters=DurableParameters(passed_limit_bytes=case.store_bytes),
        network=NetworkParameters(
            latency_lowest_ns=latency_ns, latency_highest_ns=latency_ns, jitter_ns=0,
            session=topology.session_parameters(),
        ),
    )  # fmt: skip
    cluster.start()
    names = [f"c{n}-{home}" for home in ("s1", "s2") for n in range(experiment.subscribers)]
    found: dict[str, Subscription] = {}
    for name in names:
        found[name] = cluster.subscribe(name.partition("-")[2], "true", name)
    while not all(each.started for each in found.values()):
        cluster.run_for(_STEP_S)
    random = Random(f"absences {seed}")
    last_s = experiment.period_s - experiment.away_s
    leaves_s = {name: random.uniform(0, last_s) for name in names}
    content = [(encode_attributes({"kind": "a"}), bytes(experiment.payload_bytes))]
    restarted: dict[str, None] = {}
    away: dict[str, float] = {}
    counted = dict.fromkeys(_PLACES, 0)
    published = 0
    steps = round((experiment.period_s + 2 * experiment.away_s) / _STEP_S)
    for step in range(steps):
        now_s = step * _STEP_S
        for name in [each for each in leaves_s if leaves_s[each] <= now_s]:
            home = name.partition("-")[2]
            cluster.link(name, home).cut()
            away[name] = leaves_s.pop(name) + experiment.away_s
        for name in [each for each in away if away[each] - experiment.away_s / 2 <= now_s]:
            home = name.partition("-")[2]
            if case.restarts and name not in restarted:
                restarted[name] = None
                _add_counts(cluster, home, counted)
                cluster.broker(home).restart()
        for name in [each for each in away if away[each] <= now_s]:
            del away[name]
            cluster.link(name, name.partition("-")[2]).heal()
        while published < experiment.rate * now_s:
            client = f"w{published % 4}-{PUBLISHER}"
            cluster.publish_run(PUBLISHER, content, client)
            published += 1
        cluster.run_for(_STEP_S)
    cluster.run_until_quiet()
    for name in topology.brokers:
        _add_counts(cluster, name, counted)
    missing = sum(published - len(each.received) for each in found.values())
    return {"published": published, "missing": missing, **counted}


def _add_counts(cluster: SimulatedCluster, name: str, counted: dict[str, int]) -> None:
    """Add the counters of a broker, which a restart sets to 0."""
    statistics = cluster.broker(name).broker.core.statistics()
    for place in _PLACES:
        counted[place] += statistics[place]


def draw_point(experiment: CacheExperiment, point: Point, run: int) -> Tables:
    case = next(each for each in experiment.case if each.name == point["case"])
    counted = count_events(experiment, case, experiment.seed * 1_000 + run)
    return {"missed_events": [{"case": case.name, "run": run, **counted}]}


def compute_rows(experiment: CacheExperiment, context: RunContext) -> Tables:
    """Return the rows of every table; the same experiment gives the same rows."""
    return draw_points(experiment, draw_point, context)


RECORD = ExperimentRecord({"": CacheExperiment}, compute_rows, protocol="durable")
