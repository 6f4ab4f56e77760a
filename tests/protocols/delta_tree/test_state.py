"""The state of a δ-tree broker, as shown by `status --detail`."""

import json
from typing import Any

from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY, chain


def _shown(cluster: SimulatedCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(cluster.broker(name).status().detail))
    return found


def test_the_state_of_a_broker_has_its_sessions_partitions_and_queue() -> None:
    cluster = SimulatedCluster(chain("b1", "b2", "b3", "b4"), network=STEADY).start()
    cluster.subscribe("b1")
    cluster.subscribe("b3")
    cluster.run_until_quiet()
    at_rest = _shown(cluster, "b1")
    assert at_rest["sessions"] == {"1": "active", "2": "not wanted"}
    assert (at_rest["own"], at_rest["unconfirmed"]) == ({"started": 1}, 0)
    assert (at_rest["queued"], at_rest["sent"], at_rest["detected"]) == ({}, {}, {})
    cluster.broker("b3").kill()
    cluster.run_for(5)
    cluster.publish("b1", n=1)
    cluster.run_for(1)
    beside = _shown(cluster, "b2")
    assert beside["sessions"] == {"0": "active", "2": "unreachable", "3": "active"}
    assert (beside["partitions"], list(beside["detected"].values())) == (2, [[2]])
    assert (list(beside["queued"].values()), beside["sent"]) == ([1], {})
    assert beside["profile"] == "robust"
