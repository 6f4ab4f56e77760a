"""An index of the design's named scenarios and crash points, and stories of the rest.

`WRITTEN` names the stories in other files.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from brokerd.protocols.multi_proxy.messages import Merge, Put, Transferred
from brokerd.protocols.multi_proxy.parameters import CAUSAL
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.proxy_stories import Story, sides
from tests.helpers.stories import is_story
from tests.protocols.multi_proxy.test_causal_ownership import KINDS, Twins
from tests.protocols.multi_proxy.test_stories import owner_of

MUTANTS = bugs_of("multi_proxy")

TESTS = Path(__file__).parents[2]
HERE, PAPERS = "protocols/multi_proxy/", "papers/"

WRITTEN: Mapping[str, str] = {
    "b01-twin-birth": f"{PAPERS}test_mp22.py::"
    "test_concurrent_creations_of_a_topic_over_two_proxies_create_one_topic",
    "b02-owed-put": f"{PAPERS}test_mp22.py::"
    "test_two_owners_lose_publications_with_paper_and_none_with_causal",
    "b03-other-proxy-retry": f"{HERE}test_stories.py::"
    "a_put_is_tried_again_over_another_proxy_and_stored_once",
    "b04-amnesiac-proxy": f"{PAPERS}test_mp22.py::"
    "test_a_proxy_that_has_forgotten_everything_finds_the_right_server",
    "b05-late-unsub": f"{HERE}test_server.py::a_later_follow_wins",
    "b06-late-put": f"{HERE}test_server.py::a_put_ahead_of_its_previous_one_is_dropped",
    "b08-restart-old-heads": f"{HERE}test_stories.py::"
    "a_restarted_access_broker_fetches_undelivered_events",
    "b10-crossed-merge": f"{HERE}test_causal_ownership.py::crash_of_all_servers_while_they_merge",
    "b11-transfer-crash": f"{HERE}test_causal_ownership.py::crash_of_the_giver",
    "b12-same-sub-both": f"{HERE}test_causal_ownership.py::"
    "publications_from_before_a_merge_are_delivered_after_it",
    "b15-slow-server": f"{HERE}test_stories.py::test_a_dead_server_does_not_delay_other_topics",
    "b16-resub": f"{HERE}test_stories.py::"
    "test_a_new_subscription_after_an_unsubscribe_receives_no_earlier_publications",
    "b17-binary": f"{PAPERS}test_mp22.py::test_every_payload_arrives_unchanged",
    "b18-disk-full": "runtime/test_durable.py::"
    "test_a_full_disk_is_waited_for_and_nothing_is_written_meanwhile",
    "b20-candidate-dies": f"{HERE}test_arbiter.py::a_late_server_loses_its_topic",
    "b21-cut-proxy": f"{HERE}test_causal_ownership.py::views_of_two_partitioned_proxies_are_merged",
}

CRASHES: Mapping[str, str] = {
    "C2": f"{HERE}test_server.py::a_stored_put_is_not_stored_again",
    "C3": f"{HERE}test_stories.py::a_restarted_access_broker_fetches_undelivered_events",
    "C4": f"{HERE}test_stories.py::a_restarted_access_broker_fetches_undelivered_events",
    "C5": f"{HERE}test_server.py::a_put_is_acknowledged_once_durable",
    "C6": f"{HERE}test_server.py::a_stored_put_is_recognised_after_truncation",
    "C9": f"{HERE}test_stories.py::a_put_is_tried_again_over_another_proxy_and_stored_once",
    "C10": f"{PAPERS}test_mp22.py::"
    "test_a_proxy_that_has_forgotten_everything_finds_the_right_server",
    "C11": f"{HERE}test_causal_ownership.py::crash_of_the_giver",
    "C12": f"{HERE}test_causal_ownership.py::publications_during_a_transfer_arrive_once",
    "C8": "runtime/test_durable.py::"
    "test_a_full_disk_is_waited_for_and_nothing_is_written_meanwhile",
    "C15": "storage/test_crashes.py::test_no_crash_loses_an_acknowledged_publication",
    "C13": f"{HERE}test_arbiter.py::decisions_outlive_a_crash",
    "C14": f"{HERE}test_arbiter_transfers.py::servers_die_at_each_write_of_a_move",
}


# ------------------------------------------------------------ stories of this file


def b07_lost_reply_get() -> bool:
    """Return True if answers to three requests follow the requests' proxies and arrive once."""
    story = Story()
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    sent = []
    for _ in range(3):
        stuck = [story.cluster.link(name, "e1").absorb() for name in ("x1", "x2")]
        sent += story.publish("e2", 2)
        story.cluster.run_for(0.3)
        for link in stuck:
            link.heal()
        story.cluster.run_for(2)
    return subscription.received == sent


def b09_string_order() -> bool:
    """Return True if names are compared as text.

    v10 precedes v2 in the choice of the smallest owner and of the giver.
    """
    story = Story(sides(proxies=2, servers=10, edges=2), ownership=CAUSAL, topics=64)
    for at, kinds in (("e1", KINDS), ("e2", KINDS[::-1])):
        for kind in kinds:
            story.cluster.subscribe(at, f"kind = '{kind}'")
            story.cluster.run_for(0.05)
    story.cluster.run_for(12)
    names = story.topology.brokers
    gave = [
        (names[message.server], names[owner.server])
        for name in ("x1", "x2")
        for message in story.told(name, Merge)
        for owner in message.owners
    ]
    named = {name for pair in gave for name in pair}
    return "v10" in named and "v9" not in named and all(giver > owner for giver, owner in gave)


def b13_consumed_elsewhere() -> bool:
    """Return True if events that both received from the second owner are not repeated."""
    story = Twins()
    story.put()
    story.cluster.run_for(0.5)
    had = [len(each.received) for _, each in story.subscriptions]
    story.cluster.run_for(12)
    return sum(had) > 0 and story.lost() == 0


def b19_stale_map_recreate() -> bool:
    """Return True if a new subscription succeeds through a proxy without state.

    The proxy names the former owner of a topic to new access brokers.
    """
    story = Twins()
    story.put()
    story.cluster.run_for(12)
    gone = {message.topic for name in ("v2", "v3") for message in story.told(name, Transferred)}
    gone |= {message.topic for message in story.told("v1", Transferred)}
    story.cluster.broker("x1").kill().start()
    late = story.cluster.subscribe("x1", "kind = 'a'")
    story.cluster.run_for(7)
    sent = story.publish("e1", 2) + story.publish("x1", 2)
    story.cluster.run_for(7)
    return bool(gone) and sorted(map(str, late.received)) == sorted(map(str, sent))


def b23_get_race() -> bool:
    """Return True if the late answer to a repeated request is no duplicate."""
    story = Story()
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    server = owner_of(story, "a")
    stuck = story.cluster.link(server, "x1").absorb()
    other = story.cluster.link(server, "x2").absorb()
    sent = story.publish("e2", 3)
    story.cluster.run_for(0.4)
    other.heal()
    story.cluster.run_for(1)
    stuck.heal()
    sent += story.publish("e2", 3)
    story.cluster.run_for(3)
    return subscription.received == sent


def b24_retention_exceeded() -> bool:
    """Return True if two owners with short retention cause an announced gap."""
    story = Twins(max_retain_ns=1_000_000_000)
    story.put()
    story.cluster.run_for(15)
    gaps = story.cluster.oracle.in_gaps
    story.cluster.oracle.judge_end()
    return sum(gaps.values()) > 0


def c1_before_it_is_put() -> bool:
    """Return True if the client's library repeats a publication that its broker lost in a crash."""
    story = Story()
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    before = len(story.told("e2", Put))
    sent = [story.cluster.publish("e2", kind="a")]
    story.cluster.broker("e2").kill()
    story.cluster.run_for(0.2)
    unsent = len(story.told("e2", Put)) == before
    story.cluster.broker("e2").start()
    story.cluster.run_for(5)
    return unsent and subscription.received == sent


STORIES: Mapping[str, Callable[[], bool]] = {
    "b07-lost-reply-get": b07_lost_reply_get,
    "b09-string-order": b09_string_order,
    "b13-consumed-elsewhere": b13_consumed_elsewhere,
    "b19-stale-map-recreate": b19_stale_map_recreate,
    "b23-get-race": b23_get_race,
    "b24-retention-exceeded": b24_retention_exceeded,
    "C1": c1_before_it_is_put,
}

# Story → a named bug that omits the rule of the story.
SEEN = {
    "b13-consumed-elsewhere": "moved-and-begun-anew",
    "b24-retention-exceeded": "lost-in-silence",
}

MISSING = {
    "b14-wiped-client": "what a client's library does without its memory: its publisher is "
    "another incarnation, see the swarm's `forget`",
    "b22-clock-jump": "no clock decides anything",
    "C7": "one record holds what the paper writes to three files",
}


def test_each_named_scenario_is_present_or_listed_as_missing() -> None:
    names = [*WRITTEN, *CRASHES, *STORIES, *MISSING]
    scenarios = sorted(name[:3] for name in names if name.startswith("b"))
    assert scenarios == [f"b{number:02}" for number in range(1, 25)]
    crashes = sorted(int(name[1:]) for name in names if name.startswith("C"))
    assert crashes == [*range(1, 16)]


@pytest.mark.parametrize("name", [*WRITTEN, *CRASHES])
def test_every_listed_scenario_test_exists(name: str) -> None:
    where = {**WRITTEN, **CRASHES}[name]
    assert is_story(where, TESTS)


@pytest.mark.parametrize("name", STORIES)
def test_the_rules_hold_in(name: str) -> None:
    assert STORIES[name]()


@pytest.mark.parametrize("name", SEEN)
def test_without_its_rule_it_ends_otherwise(name: str) -> None:
    with plant([MUTANTS[SEEN[name]]]):
        try:
            assert not STORIES[name]()
        except InvariantViolated:
            pass
