"""Tests of the files of a core that one publication visits, per broker on the path."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from brokerd.simulator.world.cluster import SimulatedCluster
from pubsubctl.deployment.topologies import load_topology

ROOT = Path(__file__).parents[2]
PROTOCOLS = f"{ROOT}/brokerd/protocols/"
MOST_FILES = 10
TOPOLOGY = ROOT / "bench" / "topologies" / "t22-hi.toml"
PUBLISHER, SUBSCRIBER = "n22", "n10"


class Visits:
    """The files of every broker's core, from the first event of a publication to the last."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.files: dict[str, dict[str, None]] = {}
        self._names = {id(each.core): each.name for each in cluster.brokers}

    @contextmanager
    def followed(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PROTOCOLS) and (name := self._broker_of(frame)):
            self.files.setdefault(name, {})[path.removeprefix(PROTOCOLS)] = None

    def _broker_of(self, frame: FrameType | None) -> str | None:
        """Return the broker whose core handles an event in this frame, if any."""
        while frame is not None:
            name = self._names.get(id(frame.f_locals.get("self")))
            if name is not None and frame.f_code.co_name == "handle":
                return name
            frame = frame.f_back
        return None


@pytest.mark.parametrize("protocol", ["ges"])
def test_a_publication_visits_few_files_of_each_core(protocol: str) -> None:
    topology = load_topology(TOPOLOGY).restrict_to_kind("hierarchy")
    cluster = SimulatedCluster(topology, protocol, strict=False)
    cluster.start().run_until_quiet()
    subscription = cluster.subscribe(SUBSCRIBER, "kind = 'a'")
    cluster.run_until_quiet()
    visits = Visits(cluster)
    for publication in range(2):
        visits.files.clear()
        with visits.followed():
            cluster.publish(PUBLISHER, kind="a")
            cluster.run_until_quiet()
        assert len(subscription.received) == publication + 1
    assert {PUBLISHER, SUBSCRIBER} < visits.files.keys(), "the publication crosses other brokers"
    for broker, files in visits.files.items():
        assert len(files) <= MOST_FILES, (broker, [*files])
