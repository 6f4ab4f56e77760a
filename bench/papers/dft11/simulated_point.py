"""Simulated experiments: the description, a prepared cluster, and the measurement of a point."""

import gc
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bench.spec.experiment import ExperimentFile
from brokerd.model.identity import SourceId
from brokerd.overlay.generate import MAXIMUM_BROKERS, generate_balanced_tree
from brokerd.overlay.graph import Connectivity
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree_section import MAXIMUM_DELTA
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes

SETTLE_S = 10
"""Time between failures and window, for failures before the window."""
LAST_WORD_S = 1
"""Time of the window after the last publication, for its deliveries."""
SET_UP_LIMIT_S = 600

Row = dict[str, Any]


class SimulatedExperiment(ExperimentFile):
    """A closed description of measures and trees.

    Attributes:
        figure: the figure of the experiment.
        question: deliveries (of publications past failures).
        shape: balanced-degree: no broker has more than `fanout` neighbours.
        failed: numbers of brokers that fail for good.
        fail: before the window, or during the first half of the window, at independent moments.
        measured_s: length of the window.
        publications_per_broker: publications of a live broker, at uniform random times of the
            window.
        runs: draws (of failures, publication times, and message latencies) per point.
        full_runs: draws per point for the full experiment.
    """

    schema_: Annotated[Literal["pubsubctl/simulated-experiment/1"], Field(alias="schema")]
    question: Literal["deliveries"]
    shape: Literal["balanced-degree"] = "balanced-degree"
    brokers: Annotated[int, Field(ge=2, le=MAXIMUM_BROKERS, strict=True)]
    fanouts: Annotated[
        list[Annotated[int, Field(ge=2, le=1_000, strict=True)]], Field(min_length=1)
    ]
    deltas: Annotated[
        list[Annotated[int, Field(ge=0, le=MAXIMUM_DELTA, strict=True)]], Field(min_length=1)
    ]
    failed: Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]
    fail: Literal["before", "during"] = "before"
    measured_s: Annotated[int, Field(ge=2, le=3600, strict=True)]
    publications_per_broker: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 1
    payload_bytes: Annotated[int, Field(ge=0, le=65_536, strict=True)] = 100
    runs: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    full_runs: Annotated[int, Field(ge=1, le=1000, strict=True)] = 5

    @model_validator(mode="after")
    def _sound(self) -> "SimulatedExperiment":
        if max(self.failed) > self.brokers - 2:
            raise ValueError(
                f"failed = {max(self.failed)} of {self.brokers} brokers; two must be left"
            )
        for name in ("fanouts", "deltas", "failed"):
            values = getattr(self, name)
            if len({*values}) < len(values):
                raise ValueError(f"{name} = {values}: the same one twice")
        return self

    def scale(self) -> Row:
        return {"brokers": self.brokers, "runs": self.runs, "measured_s": self.measured_s}

    def build_topologies(self) -> Mapping[int, Topology]:
        deepest = max(self.deltas)
        return {
            fanout: generate_balanced_tree(self.brokers, fanout, deepest) for fanout in self.fanouts
        }


def draw_failed_brokers(
    experiment: SimulatedExperiment, fanout: int, failed: int, run: int
) -> list[int]:
    """Return the failing brokers of a draw, the same for every δ, in ascending order.

    The failures of a draw include the failures of the same draw with a smaller number. With few
    draws per point, a curve then shows the cost of more failures rather than the drawn brokers.
    """
    draw = Random(f"{experiment.seed}/{fanout}/{run}")
    return sorted(draw.sample(range(experiment.brokers), max(experiment.failed))[:failed])


@contextmanager
def disable_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector inside the block.

    Simulated brokers create few reference cycles, and so many objects that a third of the time
    would be spent in the collector.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def set_up(
    experiment: SimulatedExperiment, fanout: int, delta: int, run: int, assist: str = "off"
) -> SimulatedCluster:
    """Return a whole tree of brokers in a quiet state, with all subscriptions known everywhere.

    Args:
        assist: see DeltaTreeParameters; the paper has no relayed sessions.
    """
    topology = generate_balanced_tree(experiment.brokers, fanout, delta)
    seed = Random(f"{experiment.seed}/{fanout}/{delta}/{run}/latencies").getrandbits(32)
    parameters = DeltaTreeParameters(delta=topology.delta, assist=assist)
    cluster = SimulatedCluster(
        topology, "delta_tree", seed=seed, parameters=parameters, strict=False, trace=False
    ).start()
    cluster.run_until_quiet(SET_UP_LIMIT_S)
    for broker in topology.brokers:
        cluster.client(publisher_at(broker), broker, publishes=True)
        cluster.subscribe(broker, "true", client=subscriber_at(broker))
    cluster.run_until_quiet(SET_UP_LIMIT_S)
    waiting = [broker for broker in topology.brokers if not _subscriber(cluster, broker)]
    assert not waiting, f"subscriptions at {waiting[:10]} have not started"
    return cluster


def publisher_at(broker: str) -> str:
    return f"p-{broker}"


def subscriber_at(broker: str) -> str:
    return f"s-{broker}"


def _subscriber(cluster: SimulatedCluster, broker: str) -> dict[int, None]:
    return cluster.clients[subscriber_at(broker)].started_numbers


class Point:
    """A point of a figure: a number of failures in a prepared cluster.

    Only brokers that survive the window publish, and only deliveries at such brokers count.
    """

    def __init__(
        self, experiment: SimulatedExperiment, fanout: int, delta: int, failed: int, run: int
    ) -> None:
        self._experiment = experiment
        self._where = {"fanout": fanout, "delta": delta, "failed": failed, "run": run}
        self._dead = draw_failed_brokers(experiment, fanout, failed, run)
        self._live = [n for n in range(experiment.brokers) if n not in {*self._dead}]
        self._random = Random(f"{experiment.seed}/{fanout}/{failed}/{run}/instants")
        self._content = (encode_attributes({"n": 1}), bytes(experiment.payload_bytes))
        self._seconds: list[Row] = []
        self._brokers: list[Row] = []
        self._whole: Row = {}

    def measure(self, cluster: SimulatedCluster) -> Iterator[int]:
        """Let brokers fail and other brokers publish; yield at each second of the window."""
        began_s, events = time.process_time(), cluster.inspection.broker_events
        schedule, topology = cluster.schedule, cluster.topology
        sent = cluster.network.counters["messages_sent"]
        window_ns = self._experiment.measured_s * SECOND_NS
        deaths = [int(self._random.random() * window_ns / 2) for _ in self._dead]
        if self._experiment.fail == "before":
            for number in self._dead:
                _end_for_good(cluster, topology.brokers[number])
            cluster.run_for(SETTLE_S)
        else:
            for number, when_ns in zip(self._dead, deaths, strict=True):
                schedule.at(
                    schedule.now_ns + when_ns, _end_for_good, cluster, topology.brokers[number]
                )
        counts = {
            number: _count_received(cluster, topology.brokers[number]) for number in self._live
        }
        published_at = self._plan_publications(cluster)
        delivered = cluster.oracle.deliveries
        for second in range(self._experiment.measured_s):
            cluster.run_for(1)
            now = cluster.oracle.deliveries
            self._seconds.append(
                {
                    **self._where,
                    "second": second,
                    "published": published_at.get(second, 0),
                    "deliveries": now - delivered,
                }
            )
            delivered = now
            yield second
        self._brokers = [
            {
                **self._where,
                "broker": number,
                "published": self._experiment.publications_per_broker,
                "deliveries": _count_received(cluster, topology.brokers[number]) - counts[number],
            }
            for number in self._live
        ]
        suppressed, unexplained = self._count_suppressed(cluster, counts)
        after = cluster.statistics()
        self._whole = {
            **self._where,
            "live_brokers": len(self._live),
            "published": sum(published_at.values()),
            "deliveries": sum(row["deliveries"] for row in self._brokers),
            "violations": sum(cluster.oracle.violations.values()),
            "violated": sorted(cluster.oracle.violations),
            "withheld": after.get("publications_withheld", 0),
            "suppressed": suppressed,
            "unexplained": unexplained,
            "duplicates": after["duplicates_received"],
            "resent": after["resent_publications"],
            "messages": cluster.network.counters["messages_sent"] - sent,
            "broker_events": cluster.inspection.broker_events - events,
            "processor_s": round(time.process_time() - began_s, 3),
        }

    def tables(self) -> dict[str, list[Row]]:
        return {
            "simulated_points": [self._whole],
            "simulated_brokers": self._brokers,
            "simulated_seconds": self._seconds,
        }

    def _count_suppressed(
        self, cluster: SimulatedCluster, before: Mapping[int, int]
    ) -> tuple[int, int]:
        """Return the number of publications missed by live subscribers, and of unexplained misses.

        A barrier between live brokers explains a miss.
        """
        graph = Connectivity(cluster.topology)
        delta = int(self._where["delta"])
        reached = {
            number: {*graph.find_reached(number, self._dead, delta)} for number in self._live
        }
        suppressed = unexplained = 0
        for number in self._live:
            got = Counter(
                source.broker
                for source, _ in _deliveries(cluster, cluster.topology.brokers[number])[
                    before[number] :
                ]
            )
            for publisher in self._live:
                missing = self._experiment.publications_per_broker - got[publisher]
                suppressed += missing
                unexplained += missing * (publisher in reached[number])
        return suppressed, unexplained

    def _plan_publications(self, cluster: SimulatedCluster) -> dict[int, int]:
        """Schedule the publications of every live publisher; return the number per second."""
        span_ns = (self._experiment.measured_s - LAST_WORD_S) * SECOND_NS
        counts: dict[int, int] = {}
        for number in self._live:
            broker = cluster.topology.brokers[number]
            for _ in range(self._experiment.publications_per_broker):
                offset_ns = int(self._random.random() * span_ns)
                second = offset_ns // SECOND_NS
                counts[second] = counts.get(second, 0) + 1
                cluster.schedule.at(
                    cluster.schedule.now_ns + offset_ns, self._publish, cluster, broker
                )
        return counts

    def _publish(self, cluster: SimulatedCluster, broker: str) -> None:
        cluster.publish_run(broker, [self._content], publisher_at(broker))


def _end_for_good(cluster: SimulatedCluster, broker: str) -> None:
    """Let a machine fail: the broker, its publisher and its subscriber."""
    cluster.broker(broker).kill()
    for client in (publisher_at(broker), subscriber_at(broker)):
        cluster.clients[client].leave()


def _deliveries(cluster: SimulatedCluster, broker: str) -> list[tuple[SourceId, int]]:
    """Return the deliveries of the only subscription at a broker, in order."""
    (received,) = cluster.clients[subscriber_at(broker)].received.values()
    return received


def _count_received(cluster: SimulatedCluster, broker: str) -> int:
    return len(_deliveries(cluster, broker))
