"""The state of a broker, as shown by `status --detail`."""

import json

from brokerd.protocols.gryphon.core import Gryphon
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import SECOND_NS
from tests.helpers.gryphon_stories import cells


def test_the_state_of_a_broker_has_its_streams_and_the_filters_of_all() -> None:
    cluster = SimulatedCluster(cells("p1-b1", "b1-s1"), "gryphon")
    cluster.start().run_until_quiet()
    cluster.subscribe("s1", "kind = 'a'")
    cluster.run_for(1)
    cluster.publish("p1", client="p", kind="a")
    cluster.run_for(1)
    core = cluster.broker("b1").broker.core
    assert isinstance(core, Gryphon)
    shown = json.loads(json.dumps(core.detail()))
    assert shown["filters"] == {"0": 0, "1": 0, "2": 1}
    (stream,) = [each for name, each in shown["streams"].items() if name.startswith("0.")]
    assert stream["upstream"] == 0
    assert stream["final"] == stream["highest"] == stream["acknowledged"]["2"] > SECOND_NS // 1_000
    assert stream["events"] == stream["gaps"] == 0
    assert "merged" in core.persistent.tables
    assert core.persistent.logs == ("events",)
