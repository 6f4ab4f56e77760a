"""Stories repeated on the same simulated brokers and clients.

A story arranges a cluster, injects a failure, and checks the deliveries. A bug that appears only
when the failure repeats, such as a table that was not cleared, needs the episode twice on the same
objects: in the second pass every cluster that the story makes is the cluster of the first.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from brokerd.simulator.world.cluster import SimulatedCluster

QUIET_S = 120
"""Maximum time for the cluster to become quiet between the two passes."""


class KeptClusters:
    """The clusters of a story, in the order of creation."""

    def __init__(self) -> None:
        self.clusters: list[SimulatedCluster] = []
        self.next = 0
        self.is_second = False

    def make(self, *arguments: Any, **about: Any) -> SimulatedCluster:
        """Return a new cluster, or the cluster of the first pass in the same position."""
        if not self.is_second:
            self.clusters.append(SimulatedCluster(*arguments, **about))
            return self.clusters[-1]
        self.next += 1
        cluster = self.clusters[self.next - 1]
        cluster.checker._watcher = about.get("watcher")
        return cluster

    def begin_again(self) -> None:
        """End all faults, start stopped brokers and run until quiet."""
        self.is_second = True
        for cluster in self.clusters:
            for broker in cluster.state.staying:
                if not broker.alive:
                    broker.start()
                broker.thaw()
                broker.release()
            names = [broker.name for broker in cluster.brokers] + [*cluster.clients]
            for a in names:
                for b in names:
                    if a < b:
                        cluster.link(a, b).heal()
            for client in cluster.clients.values():
                client.take_after_ns = 0
            cluster.run_for(5)
            cluster.run_until_quiet(QUIET_S)


@contextmanager
def clusters_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptClusters]:
    """Give stories and their helpers clusters that are kept."""
    kept = KeptClusters()
    with monkeypatch.context() as patch:
        for name, module in [*sys.modules.items()]:
            has_clusters = name.startswith("tests.") and hasattr(module, "SimulatedCluster")
            if has_clusters and name != __name__:
                patch.setattr(module, "SimulatedCluster", kept.make)
        yield kept


def tell_twice(story: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a story, and run it again on the same clusters.

    A story that returns a result must succeed both times. A story without a cluster runs once.
    """
    with clusters_kept(monkeypatch) as kept:
        for _ in range(2):
            assert story() is not False, f"{story.__name__} went wrong"
            if not kept.is_second:
                kept.begin_again()
            if not kept.clusters:
                return
        assert kept.next == len(kept.clusters), f"{story.__name__} made other clusters"
