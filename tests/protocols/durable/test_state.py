"""The state of a durable broker, as shown by `status --detail`."""

import json

from tests.helpers.durable_stories import DurableStory


def test_the_state_of_a_broker_has_its_hosted_streams_and_its_subscriptions() -> None:
    story = DurableStory("p1-b1", "b1-s1")
    subscription = story.subscriber()
    story.cluster.publish("p1", client="p", kind="a")
    story.cluster.run_for(1)
    story.away(subscription)
    story.cluster.publish("p1", client="p", kind="a")
    story.cluster.run_for(2)
    core = story.core("s1")
    shown = json.loads(json.dumps(core.detail()))
    hosted = shown["hosted"]["0.0"]
    assert (hosted["away"], hosted["live"], hosted["matches"]) == (1, 0, 1)
    assert hosted["released"] < hosted["delivered"] == hosted["position"] == hosted["held"]
    assert shown["streams"]["0.0"]["delivered"] == hosted["position"]
    assert (shown["arrivals"], shown["holds"], shown["retired"]) == (0, 0, [])
    assert {"acknowledged", "holds", "released"} <= {*core.persistent.tables}
    assert core.persistent.logs[:2] == ("events", "matches.0.0")
