"""The state of a broker, as shown by `status --detail`."""

import json

from brokerd.protocols.ges_reliable.state import TABLES
from brokerd.protocols.parts.publishers import TABLE as PUBLISHERS
from tests.protocols.ges_reliable.test_trees import Trees


def test_a_broker_prints_the_state_of_its_roles() -> None:
    trees = Trees()
    trees.cluster.link(trees.subscription.client.name, "x").cut()
    trees.publish("z", "a", "a", seconds=3)
    cores = {name: trees.cluster.broker(name).broker.core for name in "rxfz"}
    shown = {name: json.loads(json.dumps(core.detail())) for name, core in cores.items()}
    f, r = shown["f"]["storage"], shown["r"]["storage"]
    assert (f["parent"], f["subscriptions"], f["receipts"]) == (0, {"3": 1}, 1)
    assert (f["durable"], f["released"], f["retained"]) == (3, 1, 2)
    assert (r["parent"], r["durable"], r["dependents"]["2"], r["feeds"]) == (None, 3, 3, {"4": 3})
    assert shown["x"]["storage"] is None
    assert shown["z"]["unstored"] == 0
    assert {name: each["role"] for name, each in shown.items()} == {
        "r": "storage",
        "x": "access broker",
        "f": "storage",
        "z": "access broker",
    }
    trees.cluster.link(trees.subscription.client.name, "x").heal()
    trees.settle()
    followed = cores["x"].detail()["followed"]["2"]
    assert followed == {"after": 3, "acknowledged": 3, "subscriptions": 1, "departures": 0}


def test_a_broker_without_a_storage_keeps_the_numbers_of_its_publishers_only() -> None:
    trees = Trees()
    kept = {name: trees.cluster.broker(name).broker.core.persistent for name in "rx"}
    assert (kept["x"].tables, kept["x"].logs) == ((PUBLISHERS,), ())
    assert (kept["r"].tables, kept["r"].logs) == ((PUBLISHERS, *TABLES), ("storage",))
    on_disk = trees.cluster.broker("f").broker.on_disk()
    assert {*on_disk} <= {*kept["r"].tables}
