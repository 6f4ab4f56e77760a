"""What a change of what clients want takes among brokers, by protocol and number of brokers.

Each protocol runs on simulated brokers of its own kind of overlay, as `topology gen` makes them.
There is a publisher, which publishes nothing, at the first broker that may have clients, and a
subscription at each of these. Then more come and go, one after the other. What the same brokers
say in the same time without that is counted, too.

Paper: none (experiment S9 of ours).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from bench.run.experiment_folder import ExperimentFile, Row, write_experiment
from brokerd.errors import ConfigError
from brokerd.model.identity import ClientId
from brokerd.overlay import generate
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import Effect, Send
from brokerd.protocols.registry import definition_of
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.views import BrokerView
from brokerd.wire.codec import encode

SCHEMA: Final = "pubsubctl/churn-messages-experiment/1"
LIMIT_S: Final = 60.0
"""Within which whatever is asked for must have come about."""


class Side(BaseModel):
    """One protocol, and the overlay it gets.

    Attributes:
        title: what the figure calls it.
        fanout: of a tree or cells, below each; of a hierarchy, members of a unit.
        cell: brokers of a cell.
        brokers_per_proxy: one of so many is a proxy.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    protocol: str
    title: str
    fanout: Annotated[int, Field(ge=2, le=64, strict=True)] = 3
    cell: Annotated[int, Field(ge=1, le=8, strict=True)] = 1
    brokers_per_proxy: Annotated[int, Field(ge=2, le=64, strict=True)] = 5

    @field_validator("protocol")
    @classmethod
    def _is_known(cls, protocol: str) -> str:
        try:
            definition_of(protocol)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return protocol


class ChurnExperiment(ExperimentFile):
    """What is counted, closed: the file says it all.

    Attributes:
        brokers: how many there are, one overlay for each.
        delta: of trees.
        changes: subscriptions that come and go, one after the other.
        pause_s: between a change and the next.
    """

    schema_: Annotated[Literal["pubsubctl/churn-messages-experiment/1"], Field(alias="schema")]
    side: Annotated[list[Side], Field(min_length=1)]
    brokers: Annotated[list[Annotated[int, Field(ge=5, le=1000, strict=True)]], Field(min_length=1)]
    delta: Annotated[int, Field(ge=0, le=8, strict=True)] = 1
    changes: Annotated[int, Field(ge=1, le=1000, strict=True)]
    pause_s: Annotated[float, Field(gt=0, le=60)] = 1.0


@dataclass
class _Traffic:
    """What brokers have said to brokers so far."""

    messages: int = 0
    size_bytes: int = 0

    def watch(self, broker: BrokerView, event: Any, effects: Sequence[Effect]) -> None:
        """See Watcher."""
        for effect in effects:
            if type(effect) is Send and isinstance(effect.peer, int):
                self.messages += 1
                self.size_bytes += sum(len(part) for part in encode(effect.message))


def topology_of(side: Side, brokers: int, delta: int) -> Topology:
    """So many brokers in the overlay that a side's protocol runs on."""
    makers: Mapping[str, Callable[[], Topology]] = {
        "tree": lambda: generate.balanced_tree(brokers, side.fanout, delta),
        "cells": lambda: generate.cells(brokers, side.cell, side.fanout),
        "hierarchy": lambda: generate.hierarchy(brokers, side.fanout),
        "bipartite": lambda: generate.bipartite(brokers, max(1, brokers // side.brokers_per_proxy)),
    }
    return makers[definition_of(side.protocol).kind]()


@dataclass(frozen=True)
class Counted:
    """What was counted of one side with so many brokers.

    Attributes:
        changes: subscriptions that came, and that went, together.
        messages, size_bytes: among brokers, from the first change to the pause after the last.
        idle_messages, idle_bytes: in the same time without changes.
        seconds: that it was.
        started_s: from a subscription until it had started, by change.
    """

    changes: int
    messages: int
    size_bytes: int
    idle_messages: int
    idle_bytes: int
    seconds: float
    started_s: Sequence[float]

    def row(self) -> dict[str, Any]:
        """For the table."""
        return {
            "changes": self.changes,
            "messages": self.messages,
            "message_bytes": self.size_bytes,
            "idle_messages": self.idle_messages,
            "idle_bytes": self.idle_bytes,
            "seconds": self.seconds,
            "mean_started_s": sum(self.started_s) / len(self.started_s),
        }


def count(experiment: ChurnExperiment, side: Side, brokers: int) -> Counted:
    """Count what changes take; the same arguments give the same counts."""
    topology = topology_of(side, brokers, experiment.delta)
    with_changes = _Churn(experiment, side, topology)
    before_ns = with_changes.begin()
    started_s = [with_changes.change(number) for number in range(experiment.changes)]
    took_s = (with_changes.now_ns - before_ns) / 1e9
    idle = _Churn(experiment, side, topology)
    idle.begin()
    idle.cluster.run_for(took_s)
    return Counted(
        2 * experiment.changes,
        with_changes.traffic.messages, with_changes.traffic.size_bytes,
        idle.traffic.messages, idle.traffic.size_bytes, took_s, started_s,
    )  # fmt: skip


class _Churn:
    """Brokers with a subscription at each, and clients that add to them and take away again."""

    def __init__(self, experiment: ChurnExperiment, side: Side, topology: Topology) -> None:
        self._experiment = experiment
        self._homes = definition_of(side.protocol).homes(topology)
        self._random = Random(f"{experiment.seed}/{topology.name}/{side.protocol}")
        self.traffic = _Traffic()
        self.cluster = SimulatedCluster(
            topology, side.protocol, seed=experiment.seed, strict=False, trace=False,
            watcher=self.traffic.watch,
        )  # fmt: skip

    @property
    def now_ns(self) -> int:
        """The virtual clock."""
        return self.cluster.schedule.now_ns

    def begin(self) -> int:
        """Have all sessions and standing subscriptions; gives when counting begins."""
        self.cluster.start()
        self.cluster.client("publisher", self._homes[0], publishes=True)
        for home in self._homes:
            self.cluster.subscribe(home, f"kind = '{home}'", _client(home))
        for _ in range(int(LIMIT_S / self._experiment.pause_s)):
            self.cluster.run_for(self._experiment.pause_s)
            if self._is_settled():
                break
        else:
            raise AssertionError(f"not settled: {self.cluster.unsettled()}")
        self.traffic.messages = self.traffic.size_bytes = 0
        return self.now_ns

    def change(self, number: int) -> float:
        """A subscription comes and goes at a broker drawn; gives after how long it had started."""
        home = self._random.choice(self._homes)
        began_ns = self.now_ns
        subscription = self.cluster.subscribe(home, f"kind = 'n{number}'", _client(home))
        while not subscription.started:
            assert self.now_ns - began_ns < LIMIT_S * 1e9, f"{home}: not started"
            self.cluster.run_for(0.001)
        started_s = (self.now_ns - began_ns) / 1e9
        self.cluster.run_for(self._experiment.pause_s)
        self.cluster.unsubscribe(_client(home), subscription.number)
        self.cluster.run_for(self._experiment.pause_s)
        assert not self.cluster.clients[_client(home)].waits, f"{home}: not ended"
        return started_s

    def _is_settled(self) -> bool:
        return not self.cluster.unsettled() and all(
            not client.waits for client in self.cluster.clients.values()
        )


def _client(home: str) -> ClientId:
    return f"at-{home}"


def run_churn_experiment(
    experiment: ChurnExperiment,
    runs: Path,
    phase: Callable[[str], None],
    labels: Mapping[str, str] | None = None,
) -> Path:
    """Carry out an experiment; the same experiment gives the same rows.

    Args:
        runs: where run folders lie.
        phase: told what begins.

    Returns:
        The new run's folder.
    """
    topologies = {
        f"{side.protocol}-{brokers}": topology_of(side, brokers, experiment.delta)
        for side in experiment.side
        for brokers in experiment.brokers
    }
    return write_experiment(
        experiment, runs, "simulation", None, {"brokers": max(experiment.brokers)}, labels,
        topologies, lambda: {"churn_messages": _rows(experiment, phase)},
    )  # fmt: skip


def _rows(experiment: ChurnExperiment, phase: Callable[[str], None]) -> Iterator[Row]:
    for side in experiment.side:
        for brokers in experiment.brokers:
            phase(f"{side.title}, {brokers} brokers")
            yield {
                "protocol": side.protocol,
                "title": side.title,
                "brokers": brokers,
                **count(experiment, side, brokers).row(),
            }
