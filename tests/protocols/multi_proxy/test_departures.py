"""Stories of subscribers that leave their access broker for another one.

The next broker delivers behind the heads of topics, and the old one everything up to there.
"""

from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import MILLISECOND_NS
from tests.helpers.durable_stories import fails
from tests.helpers.proxy_stories import Story

MUTANTS = bugs_of("multi_proxy")
RULES = ("leaves-before-publications-arrive", "starts-without-heads")


def move_between_publications() -> bool:
    """Move from a broker that is slow to receive; return True if nothing is missing."""
    story = Story()
    cluster = story.cluster
    mover = cluster.subscribe("e1", "kind = 'a'")
    cluster.run_for(1)
    for proxy in ("x1", "x2"):
        cluster.link("e1", proxy).delay(400 * MILLISECOND_NS)
    sent = [*story.publish("e2", 5)]
    cluster.run_for(0.1)
    arrived: list[str] = []
    cluster.population.move(
        mover.client.name, "e2", lambda name, _: bool(arrived.append(name)) or True
    )
    cluster.run_for(5)
    sent += story.publish("e2", 5)
    cluster.run_for(2)
    there = cluster.clients[arrived[0]]
    received = [number for _, number in mover.client.received[1] + there.received[1]]
    cluster.oracle.judge_end()
    return received == [each.sequence for each in sent]


def test_a_client_leaves_behind_the_heads_at_its_next_broker() -> None:
    """Seed 66000020: publications that had not arrived at the old broker were lost."""
    assert move_between_publications()
    for bug in RULES:
        with plant([MUTANTS[bug]]):
            assert fails(move_between_publications), bug
