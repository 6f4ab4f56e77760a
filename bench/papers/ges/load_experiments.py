"""Choice between two links while one of them is slow, or has too little capacity.

Two clusters of three brokers are joined by two links of the same cost. A publisher in one cluster
publishes at a constant rate for a subscriber in the other. A case slows the link in use: by a
delay, or by a limit of publications per second, so that excess publications wait before the link. A
probe waits there, too.

Paper: [GES] §3 (link costs are updated for overload every few seconds); experiment G14 of this
project.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bench.papers.experiments import ExperimentRecord, RunContext, Tables
from bench.spec.experiment import ExperimentFile, Row
from brokerd.model.client_messages import Deliveries
from brokerd.overlay.topology import SCHEMA as TOPOLOGY_SCHEMA
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.messages import RoutedPublications
from brokerd.protocols.ges.parameters import GesParameters
from brokerd.protocols.interface import Deliver, Effect, Send
from brokerd.protocols.registry import read_topology
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.simulator.world.views import BrokerView
from brokerd.units import MILLISECOND_NS, SECOND_NS

SOURCE, SINK = "w1", "e1"
SLOW, OTHER = ("w2", "e2"), ("w3", "e3")
"""The slowed link, and the parallel link."""
_TICK_S: Final = 0.1
"""Interval at which a link with a capacity forwards waiting publications."""


class Case(BaseModel):
    """A disturbance of the slow link.

    Attributes:
        name: name in rows.
        title: title of the panel.
        delay_ms: additional delay of each message, one way; or else
        capacity: publications per second.
        measured: True if brokers measure the costs of links.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"[a-z0-9-]+")]
    title: str
    delay_ms: Annotated[int, Field(ge=0, le=60_000, strict=True)] = 0
    capacity: Annotated[int, Field(ge=0, le=100_000, strict=True)] = 0
    measured: bool = True

    @model_validator(mode="after")
    def _is_one(self) -> "Case":
        if bool(self.delay_ms) == bool(self.capacity):
            raise ValueError(f"{self.name}: either delay_ms or capacity")
        return self


class LinkLoadExperiment(ExperimentFile):
    """A closed description of the disturbances of the slow link.

    Attributes:
        rate: publications per second.
        latency_ms: latency of every link, one way.
        slow_link_ms, check_s: see `slow_link_ns` and `cost_check_ns` of GesParameters.
        slow_from_s, slow_until_s: begin and end of the disturbance.
        seconds: length of a case.
    """

    schema_: Annotated[Literal["pubsubctl/link-load-experiment/1"], Field(alias="schema")]
    case: Annotated[list[Case], Field(min_length=1)]
    rate: Annotated[int, Field(ge=1, le=1000, strict=True)]
    latency_ms: Annotated[int, Field(ge=1, le=1000, strict=True)]
    slow_link_ms: Annotated[int, Field(ge=1, le=60_000, strict=True)]
    check_s: Annotated[int, Field(ge=1, le=600, strict=True)]
    slow_from_s: Annotated[int, Field(ge=1, le=3600, strict=True)]
    slow_until_s: Annotated[int, Field(ge=1, le=3600, strict=True)]
    seconds: Annotated[int, Field(ge=1, le=3600, strict=True)]

    def scale(self) -> Row:
        return {"brokers": len(two_clusters().brokers)}

    def build_topologies(self) -> Mapping[str, Topology]:
        topology = two_clusters()
        return {topology.name: topology}

    @model_validator(mode="after")
    def _is_in_order(self) -> "LinkLoadExperiment":
        if not self.slow_from_s < self.slow_until_s < self.seconds:
            raise ValueError("slow_from_s < slow_until_s < seconds")
        return self


def two_clusters() -> Topology:
    """Return two clusters of three linked brokers, with two links in between."""
    names = [f"{side}{number}" for side in "we" for number in (1, 2, 3)]
    inside = [[f"{side}{a}", f"{side}{b}"] for side in "we" for a, b in ((1, 2), (1, 3), (2, 3))]
    addresses = {name: f"{'we'.index(name[0])}.{int(name[1]) - 1}" for name in names}
    values = {
        "schema": TOPOLOGY_SCHEMA, "name": "two-clusters", "kind": "hierarchy", "brokers": names,
        "hierarchy": {"links": [*inside, [*SLOW], [*OTHER]], "addresses": addresses},
    }  # fmt: skip
    return read_topology(values, "two-clusters")


class _Observations:
    """The observations of a case: publications over the slow link, and latencies of deliveries."""

    def __init__(self, topology: Topology) -> None:
        self._slow = tuple(topology.number_of(name) for name in SLOW)
        self.published_ns: list[int] = []
        self.over_slow = self.sent = 0
        self.late_ns: list[int] = []
        self.now_ns: Callable[[], int] = lambda: 0

    def watch(self, broker: BrokerView, event: Any, effects: Sequence[Effect]) -> None:
        """Record publications over the slow link, and latencies."""
        for effect in effects:
            if type(effect) is Send and type(effect.message) is RoutedPublications:
                if (broker.number, effect.peer) == self._slow:
                    self.over_slow += len(effect.message.run)
            elif type(effect) is Deliver and type(effect.item) is Deliveries:
                now_ns = self.now_ns()
                for number in effect.item.run.sequences:
                    self.late_ns.append(now_ns - self.published_ns[number - 1])


def follow_case(experiment: LinkLoadExperiment, case: Case) -> Iterator[Row]:
    """Yield a row for each second of a case; the same arguments give the same rows."""
    topology = two_clusters()
    seen = _Observations(topology)
    latency_ns = experiment.latency_ms * MILLISECOND_NS
    cluster = SimulatedCluster(
        topology, "ges", seed=experiment.seed, strict=False, trace=False, watcher=seen.watch,
        parameters=GesParameters(
            slow_link_ns=experiment.slow_link_ms * MILLISECOND_NS * case.measured,
            cost_check_ns=experiment.check_s * SECOND_NS,
        ),
        network=NetworkParameters(
            latency_lowest_ns=latency_ns, latency_highest_ns=latency_ns, jitter_ns=0,
            session=topology.session_parameters(),
        ),
    )  # fmt: skip
    seen.now_ns = lambda: cluster.schedule.now_ns
    cluster.start()
    subscription = cluster.subscribe(SINK, "true")
    while not subscription.started:
        cluster.run_for(_TICK_S)
    cluster.run_for(1.0)
    link = cluster.link(*SLOW)
    waiting = 0.0
    for second in range(experiment.seconds):
        is_slow = experiment.slow_from_s <= second < experiment.slow_until_s
        before, delivered, missing = seen.over_slow, len(seen.late_ns), len(seen.published_ns)
        for tick in range(round(1 / _TICK_S)):
            tick_before = seen.over_slow
            _publish(cluster, seen, experiment.rate, tick)
            waiting += seen.over_slow - tick_before
            waiting = _slow_link(link, case, waiting, is_slow=is_slow)
        late_ns = seen.late_ns[delivered:]
        yield {
            "case": case.name, "second": second, "is_slow": is_slow,
            "published": len(seen.published_ns) - missing, "over_slow": seen.over_slow - before,
            "delivered": len(late_ns),
            "mean_latency_ms": sum(late_ns) / len(late_ns) / 1e6 if late_ns else None,
        }  # fmt: skip


def _publish(cluster: SimulatedCluster, seen: _Observations, rate: int, tick: int) -> None:
    """Publish the publications of a tick, evenly spaced."""
    ticks = round(1 / _TICK_S)
    count = rate * (tick + 1) // ticks - rate * tick // ticks
    for _ in range(count):
        seen.published_ns.append(cluster.schedule.now_ns)
        cluster.publish(SOURCE, n=len(seen.published_ns))
        cluster.run_for(_TICK_S / count)
    if not count:
        cluster.run_for(_TICK_S)


def _slow_link(link: Any, case: Case, waiting: float, *, is_slow: bool) -> float:
    """Set the delay of the link by the case; return the number of waiting publications."""
    if not case.capacity:
        delay_ns = case.delay_ms * MILLISECOND_NS
        waiting = 0.0
    elif is_slow:
        waiting = max(0.0, waiting - case.capacity * _TICK_S)
        delay_ns = int(waiting / case.capacity * SECOND_NS)
    else:
        waiting = delay_ns = 0
    link.delay(delay_ns if is_slow else 0)
    return waiting


def compute_rows(experiment: LinkLoadExperiment, context: RunContext) -> Tables:
    """Return the rows of every table; the same experiment gives the same rows."""
    return {"link_load": _rows(experiment, context.progress.phase)}


def _rows(experiment: LinkLoadExperiment, phase: Callable[[str], None]) -> Iterator[Row]:
    for case in experiment.case:
        phase(case.title)
        yield from follow_case(experiment, case)


RECORD = ExperimentRecord({"": LinkLoadExperiment}, compute_rows)
