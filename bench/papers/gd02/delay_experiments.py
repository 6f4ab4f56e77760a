"""Recovery of a lost last event, and the messages that find it: by subends, by pubends, or both.

Ten brokers as in the paper's fault tests. A publisher publishes a few events, pauses for a drawn
time, and publishes the last one while `b1`, which forwards its stream to `s1` and `s2`, absorbs
what it receives; then `b1` is killed. Nothing follows the event, so no subend has a gap. It is
found by a subend that has had no news for DCT, or by the pubend, which misses an acknowledgement
for AET. Messages between brokers other than events are counted while nothing is published, and at
a steady rate, both without a failure.

Paper: [GD02] §3.2 (DCT and AET: subend-driven and pubend-driven liveness); the paper measures
with DCT unbounded and AET = 10 s, and shows no trade-off.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bench.papers.experiments import ExperimentRecord, Point, RunContext, Tables, draw_points
from bench.spec.experiment import ExperimentFile, Row
from bench.spec.spec import load_topology
from brokerd.overlay.topology import Topology
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.gryphon.messages import Events
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.interface import Effect, Send
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import Subscription
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.simulator.world.views import BrokerView
from brokerd.units import MILLISECOND_NS, SECOND_NS

PUBLISHER: Final = "p1"
LOSING: Final = "b1"
BEHIND: Final = ("s1", "s2")
"""The brokers of subscribers that the losing broker forwards the stream to."""
_ABSORBED_S: Final = 0.2
"""The time in which the last event reaches the losing broker, before that is killed."""
_SETTLED_S: Final = 2.0


class Case(BaseModel):
    """A choice of both times.

    Attributes:
        name: name in rows and metrics.
        title: name in the figure.
        aet_s: age of an event at which a pubend requests acknowledgements; 0: never.
        dct_s: time without news after which a subend doubts a stream; 0: never.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"[a-z0-9-]+")]
    title: str
    protocol: Literal["gryphon", "durable"] = "gryphon"
    aet_s: Annotated[float, Field(ge=0, le=600)] = 0
    dct_s: Annotated[float, Field(ge=0, le=600)] = 0

    @model_validator(mode="after")
    def _is_live(self) -> "Case":
        if not self.aet_s and not self.dct_s:
            raise ValueError(f"{self.name}: aet_s or dct_s")
        return self

    @property
    def kind(self) -> str:
        """Return "subends", "pubends" or "both": the ends that look for lost events."""
        if self.aet_s and self.dct_s:
            return "both"
        return "pubends" if self.aet_s else "subends"


class DelayExperiment(ExperimentFile):
    """A closed description of the cases.

    Attributes:
        runs: draws of each case, with another pause before the last event.
        events: events before the last one.
        pause_s: the longest pause before the last event.
        limit_s: the time after which the last event counts as not found.
        idle_s, busy_s: times in which messages are counted.
        rate: events per second while busy.
        latency_ms: latency of every link, one way.
    """

    schema_: Annotated[Literal["pubsubctl/delay-experiment/1"], Field(alias="schema")]
    case: Annotated[list[Case], Field(min_length=1)]
    runs: Annotated[int, Field(ge=1, le=1000, strict=True)]
    events: Annotated[int, Field(ge=1, le=1000, strict=True)] = 5
    pause_s: Annotated[float, Field(ge=0, le=600)]
    limit_s: Annotated[float, Field(gt=0, le=3600)]
    idle_s: Annotated[float, Field(gt=0, le=3600)]
    busy_s: Annotated[float, Field(gt=0, le=3600)]
    rate: Annotated[int, Field(ge=1, le=1000, strict=True)]
    latency_ms: Annotated[int, Field(ge=1, le=1000, strict=True)]

    def scale(self) -> Row:
        return {"brokers": len(load_topology("gd02").brokers), "runs": self.runs}

    def build_topologies(self) -> Mapping[str, Topology]:
        topology = load_topology("gd02")
        return {topology.name: topology}

    def points(self) -> list[Point]:
        """Return the names of the cases."""
        return [{"case": each.name} for each in self.case]


class _World:
    """A cluster with a subscriber at each broker of subscribers, and a count of messages.

    Attributes:
        messages: of brokers to brokers, other than events.
    """

    def __init__(self, experiment: DelayExperiment, case: Case, seed: int) -> None:
        topology = load_topology("gd02")
        self.messages = 0
        chosen = {"gryphon": GryphonParameters, "durable": DurableParameters}[case.protocol]
        latency_ns = experiment.latency_ms * MILLISECOND_NS
        self.cluster = SimulatedCluster(
            topology, case.protocol, seed=seed, strict=False, trace=False, watcher=self._watch,
            parameters=chosen(
                pubends=1,
                ack_expected_ns=int(case.aet_s * SECOND_NS),
                delay_curiosity_ns=int(case.dct_s * SECOND_NS),
            ),
            network=NetworkParameters(
                latency_lowest_ns=latency_ns, latency_highest_ns=latency_ns, jitter_ns=0,
                session=topology.session_parameters(),
            ),
        )  # fmt: skip
        self.cluster.start()
        names = [name for name in topology.brokers if name.startswith("s")]
        self.subscribers = {name: self.cluster.subscribe(name, "true") for name in names}
        while not all(each.started for each in self.subscribers.values()):
            self.cluster.run_for(0.1)
        self.cluster.run_for(_SETTLED_S)

    def _watch(self, broker: BrokerView, event: Any, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if type(effect) is Send and isinstance(effect.peer, int):
                self.messages += type(effect.message) is not Events

    @property
    def now_ns(self) -> int:
        """The time of the virtual clock."""
        return self.cluster.schedule.now_ns

    def publish(self, count: int, rate: int) -> None:
        """Publish events at a steady rate."""
        for _ in range(count):
            self.cluster.publish(PUBLISHER, kind="a")
            self.cluster.run_for(1 / rate)


def find_lost(experiment: DelayExperiment, case: Case, seed: int) -> float | None:
    """Return the seconds from a lost last event to its last delivery; None beyond the limit."""
    world = _World(experiment, case, seed)
    world.publish(experiment.events, experiment.rate)
    world.cluster.run_for(Random(f"pause {seed}").uniform(0, experiment.pause_s))
    losing = world.cluster.broker(LOSING)
    losing.absorb()
    began_ns = world.now_ns
    world.cluster.publish(PUBLISHER, kind="a")
    world.cluster.run_for(_ABSORBED_S)
    losing.kill()
    behind: list[Subscription] = [world.subscribers[name] for name in BEHIND]
    assert not any(len(each.received) > experiment.events for each in behind), "nothing was lost"
    limit_ns = began_ns + int(experiment.limit_s * SECOND_NS)
    while any(len(each.received) <= experiment.events for each in behind):
        if not world.cluster.step(limit_ns):
            return None
    return (world.now_ns - began_ns) / 1e9


def count_messages(experiment: DelayExperiment, case: Case, seed: int) -> tuple[int, int]:
    """Return the messages other than events without load, and at a steady rate."""
    idle = _World(experiment, case, seed)
    before = idle.messages
    idle.cluster.run_for(experiment.idle_s)
    busy = _World(experiment, case, seed)
    first = busy.messages
    busy.publish(int(experiment.busy_s * experiment.rate), experiment.rate)
    return idle.messages - before, busy.messages - first


def draw_point(experiment: DelayExperiment, point: Point, run: int) -> Tables:
    case = next(each for each in experiment.case if each.name == point["case"])
    seed = experiment.seed * 1_000 + run
    idle, busy = count_messages(experiment, case, seed)
    row = {
        "case": case.name, "run": run, "recovery_s": find_lost(experiment, case, seed),
        "idle_messages": idle, "busy_messages": busy,
    }  # fmt: skip
    return {"lost_last_events": [row]}


def compute_rows(experiment: DelayExperiment, context: RunContext) -> Tables:
    """Return the rows of every table; the same experiment gives the same rows."""
    return draw_points(experiment, draw_point, context)


RECORD = ExperimentRecord({"": DelayExperiment}, compute_rows)
