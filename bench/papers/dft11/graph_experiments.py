"""Experiments on the shape of a tree: failed brokers are drawn, the tree determines the rest.

Simulated brokers check the result if the protocol has the same measure (active sessions). The raw
rows contain all data of a figure, and the failed brokers, so that any row can be computed again by
other means.

Paper: [DFT11] §IX, Figs. 9, 11, 12.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Annotated, Literal

from pydantic import Field, model_validator

from bench.papers.experiments import ExperimentRecord, RunContext, Tables
from bench.spec.experiment import ExperimentFile, Row
from brokerd.overlay.generate import MAXIMUM_BROKERS, generate_balanced_tree
from brokerd.overlay.graph import Connectivity
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree_section import MAXIMUM_DELTA
from brokerd.simulator.world.cluster import SimulatedCluster


class GraphExperiment(ExperimentFile):
    """A closed description of measures and trees.

    Attributes:
        figure: the figure of the experiment.
        question: connectivity (disconnected pairs), neighbourhoods (brokers within Δ) or
            active-sessions (of live brokers).
        shape: balanced-degree: no broker has more than `fanout` neighbours.
        failed: numbers of failing brokers; none for neighbourhoods.
        runs: draws per number of failed brokers.
        protocol_runs: number of draws that simulated brokers check.
    """

    schema_: Annotated[Literal["pubsubctl/graph-experiment/1"], Field(alias="schema")]
    question: Literal["connectivity", "neighbourhoods", "active-sessions"]
    shape: Literal["balanced-degree"] = "balanced-degree"
    brokers: Annotated[int, Field(ge=2, le=MAXIMUM_BROKERS, strict=True)]
    fanouts: Annotated[
        list[Annotated[int, Field(ge=2, le=1_000, strict=True)]], Field(min_length=1)
    ]
    deltas: Annotated[
        list[Annotated[int, Field(ge=0, le=MAXIMUM_DELTA, strict=True)]], Field(min_length=1)
    ]
    failed: list[Annotated[int, Field(ge=0, strict=True)]] = Field([0], min_length=1)
    runs: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 1
    protocol_runs: Annotated[int, Field(ge=0, strict=True)] = 0

    @model_validator(mode="after")
    def _two_brokers_live(self) -> "GraphExperiment":
        if max(self.failed) > self.brokers - 2:
            raise ValueError(
                f"failed = {max(self.failed)} of {self.brokers} brokers; two must be left"
            )
        if self.question == "neighbourhoods" and {"failed", "runs", "seed"} & self.model_fields_set:
            raise ValueError("failed, runs, seed: nothing fails when neighbourhoods are counted")
        if self.protocol_runs and self.question != "active-sessions":
            raise ValueError("protocol_runs: simulated brokers report active sessions only")
        if self.protocol_runs > self.runs:
            raise ValueError(f"protocol_runs = {self.protocol_runs} of {self.runs} runs")
        return self

    def scale(self) -> Row:
        return {
            "brokers": self.brokers,
            "runs": self.runs,
            "protocol_runs": self.protocol_runs,
        }

    def build_topologies(self) -> Mapping[int, Topology]:
        deepest = max(self.deltas)
        return {
            fanout: generate_balanced_tree(self.brokers, fanout, deepest) for fanout in self.fanouts
        }


def compute_rows(experiment: GraphExperiment, context: RunContext) -> Tables:
    """Return the rows of every table; the same experiment gives the same rows."""
    context.progress.phase(f"{experiment.figure}: {experiment.brokers} brokers")

    def drawn(done: int, of: int) -> None:
        context.progress.update({"draws": f"{done}/{of}"})

    return _tables(experiment, context.topologies, drawn)


def draw_failed_brokers(
    experiment: GraphExperiment, fanout: int, failed: int, run: int
) -> list[int]:
    """Return the failing brokers of a draw, the same for every δ, in ascending order."""
    draw = Random(f"{experiment.seed}/{fanout}/{failed}/{run}")
    return sorted(draw.sample(range(experiment.brokers), failed))


def _tables(
    experiment: GraphExperiment, trees: Mapping[int, Topology], drawn: Callable[[int, int], None]
) -> dict[str, Iterator[Row]]:
    """Return the rows of every table of the experiment, as iterators."""
    graphs = {fanout: Connectivity(topology) for fanout, topology in trees.items()}
    if experiment.question == "neighbourhoods":
        return {"neighbourhoods": _neighbourhood_rows(experiment, graphs)}
    answer = {"connectivity": _connectivity_rows, "active-sessions": _session_rows}
    table = {"connectivity": "connectivity", "active-sessions": "active_sessions"}
    return {
        "failures": _failure_rows(experiment),
        table[experiment.question]: answer[experiment.question](experiment, trees, graphs, drawn),
    }


def _draws(
    experiment: GraphExperiment, drawn: Callable[[int, int], None] | None = None
) -> Iterator[tuple[int, int, int, list[int]]]:
    points = [(fanout, failed) for fanout in experiment.fanouts for failed in experiment.failed]
    for place, (fanout, failed) in enumerate(points):
        for run in range(experiment.runs):
            yield fanout, failed, run, draw_failed_brokers(experiment, fanout, failed, run)
            if drawn is not None:
                drawn(place * experiment.runs + run + 1, len(points) * experiment.runs)


def _failure_rows(experiment: GraphExperiment) -> Iterator[Row]:
    for fanout, failed, run, brokers in _draws(experiment):
        yield {"fanout": fanout, "failed": failed, "run": run, "brokers": brokers}


def _connectivity_rows(
    experiment: GraphExperiment,
    trees: Mapping[int, Topology],
    graphs: Mapping[int, Connectivity],
    drawn: Callable[[int, int], None],
) -> Iterator[Row]:
    for fanout, failed, run, brokers in _draws(experiment, drawn):
        graph = graphs[fanout]
        for delta in experiment.deltas:
            yield {
                "fanout": fanout,
                "delta": delta,
                "failed": failed,
                "run": run,
                "live_pairs": graph.live_pairs(brokers),
                "disconnected_pairs": graph.count_disconnected_pairs(brokers, delta),
            }


def _neighbourhood_rows(
    experiment: GraphExperiment, graphs: Mapping[int, Connectivity]
) -> Iterator[Row]:
    for fanout, graph in graphs.items():
        for delta in experiment.deltas:
            for broker, neighbours in enumerate(graph.neighbourhood_sizes(delta + 1)):
                yield {
                    "fanout": fanout,
                    "delta": delta,
                    "broker": broker,
                    "neighbours": neighbours,
                }


def _session_rows(
    experiment: GraphExperiment,
    trees: Mapping[int, Topology],
    graphs: Mapping[int, Connectivity],
    drawn: Callable[[int, int], None],
) -> Iterator[Row]:
    for fanout, failed, run, brokers in _draws(experiment, drawn):
        for delta in experiment.deltas:
            answers = {"formula": graphs[fanout].active_sessions(brokers, delta + 1)}
            if run < experiment.protocol_runs:
                answers["protocol"] = simulate_sessions(trees[fanout], delta, brokers)
            for by, sessions_of in answers.items():
                for sessions, live in sorted(Counter(sessions_of.values()).items()):
                    yield {
                        "fanout": fanout,
                        "delta": delta,
                        "failed": failed,
                        "run": run,
                        "by": by,
                        "sessions": sessions,
                        "brokers": live,
                    }


def simulate_sessions(topology: Topology, delta: int, failed: Sequence[int]) -> dict[int, int]:
    """Return active sessions per live broker, from simulated brokers in a quiet state.

    The brokers connect in a whole tree; then all brokers of `failed` die at once.
    """
    cluster = SimulatedCluster(
        topology.with_delta(delta), "delta_tree", strict=False, trace=False
    ).start()
    cluster.run_until_quiet()
    for broker in failed:
        cluster.broker(topology.brokers[broker]).kill()
    cluster.run_until_quiet()
    return {
        broker.number: broker.core.statistics()["sessions_active"]
        for broker in cluster.brokers
        if broker.alive
    }


RECORD = ExperimentRecord({"": GraphExperiment}, compute_rows, kind="graph")
