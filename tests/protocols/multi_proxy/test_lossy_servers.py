"""Servers that lost state: requests from before the loss that arrive after it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from brokerd.model.identity import SourceId
from brokerd.overlay.bipartite import Bipartite
from brokerd.protocols.interface import Commit
from brokerd.protocols.multi_proxy.messages import (
    Answered,
    Followed,
    Following,
    Get,
    Lost,
    LostRun,
    Merged,
    Messages,
    Wanted,
)
from brokerd.protocols.multi_proxy.parameters import CAUSAL, MultiProxyParameters
from brokerd.protocols.multi_proxy.routes import KIND
from brokerd.protocols.registry import definition_of
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.proxy_stories import sides
from tests.protocols.multi_proxy.test_server import (
    HOME,
    SERVER,
    TOPIC,
    Disk,
    follow,
    get,
    put,
)

MUTANTS = bugs_of("multi_proxy")

OTHER = 3
"""An access broker without topics."""
LOST = 1 << 31
"""The last position that the server may have assigned before the loss."""
MISSING = f"of topic {TOPIC}, which broker {HOME} has, were on disk, and are missing"


def lossy_server() -> Disk:
    """Return a server that lost its disk; all but one access broker have stated their topics."""
    disk = Disk(lineage=1)
    for home in (0, SERVER, OTHER):
        disk.tell(follow(1, home=home))
    return disk


def test_a_server_with_a_loss_asks_again_if_an_old_follow_came_first() -> None:
    """A slow proxy delivers the first Follow of an access broker after the loss."""
    disk = lossy_server()
    disk.tell(follow(1))
    assert Merged(HOME, ()) in disk.tell(get(5, 2, 2))
    (answer,) = disk.tell(follow(3, TOPIC))
    assert isinstance(answer, Following)
    assert answer.topics == (Followed(SERVER, TOPIC, LOST, LOST),)


def test_publications_released_after_an_old_follow_are_in_a_gap() -> None:
    disk = lossy_server()
    disk.tell(follow(1))
    disk.tell(put(1, 3))
    disk.tell(follow(3, TOPIC))
    disk.tell(put(4, 4))
    lost, messages, answered = disk.tell(get(5, 0, 2))
    assert isinstance(lost, Lost)
    assert lost.runs == (LostRun(3, SourceId(SERVER, TOPIC, 0), 3, LOST + 3),)
    assert isinstance(messages, Messages)
    assert [*messages.run.sequences] == [LOST + 4]
    assert isinstance(answered, Answered)


def test_lost_positions_may_be_acknowledged_before_the_loss_marker_is_on_disk() -> None:
    """Seed 74000061: the server closed the session, as of a position that it never announced."""
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 3))
    disk._lineage = 1
    disk.start(2)
    disk.request(follow(2, TOPIC), Commit)
    assert not disk.request(get(3, 5, 5), Commit)
    answer = disk.tell(follow(4, TOPIC))[-1]
    assert isinstance(answer, Following)
    assert answer.topics == (Followed(SERVER, TOPIC, 3, LOST),), "a durable position is released"
    assert not disk.tell(get(5, LOST + 1, LOST + 1))
    assert disk.proofs == [f"positions {LOST + 1} to {LOST + 1} {MISSING}"]


def a_received_position_beyond_the_log_proves_a_loss() -> bool:
    """Return True if all later requests wait, so that no lost position is assigned again."""
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 3))
    answers = disk.tell(get(1, 3, 3))
    is_early = bool(disk.proofs)
    for request in (get(2, 3, 5), get(3, 3, 6), put(4, 6, previous=3), follow(2)):
        answers += disk.tell(request)
    return not answers and not is_early and disk.proofs == [f"positions 4 to 5 {MISSING}"]


def a_get_after_an_unknown_follow_proves_a_loss(incarnation: int) -> bool:
    """Return True also if the server has a Follow of an earlier incarnation."""
    disk = Disk()
    if incarnation > 1:
        disk.tell(follow(1, TOPIC))
    wanted = (Wanted(SERVER, TOPIC, 0, 0, 9),)
    answers = disk.tell(Get(SERVER, HOME, incarnation, 1, wanted))
    answers += disk.tell(put(1, 3))
    proof = f"the topics that broker {HOME} follows were on disk, and are missing"
    return not answers and disk.proofs == [proof]


def a_proved_loss_stays_proved_over_a_restart() -> bool:
    """Return True if a restarted server without followers stores, and releases, nothing."""
    disk = Disk()
    wanted = (Wanted(SERVER, TOPIC, 0, 0, 9),)
    disk.tell(Get(SERVER, HOME, 1, 1, wanted))
    disk.start(2)
    return not disk.tell(put(1, 3)) and not disk.tell(follow(1, TOPIC)) and not disk.logged


def publications_before_the_proof_have_positions_behind_the_loss() -> bool:
    """Return True if they are stored again once, and sent at no position of a lost one."""
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 3))
    disk.tell(get(1, 3, 5))
    for incarnation in (4_097, 4_098):
        disk._lineage = 1
        disk.start(incarnation)
        for home in (0, SERVER, OTHER):
            disk.tell(follow(1, home=home))
    disk.tell(follow(2, TOPIC))
    lost, messages, _ = disk.tell(get(2, 0, 0))
    return (
        isinstance(lost, Lost)
        and lost.last == LOST
        and [*messages.run.sequences] == [*range(LOST + 1, LOST + 4)]
    )


def a_later_loss_without_a_proof_repeats_nothing() -> bool:
    """Return True if publications keep the positions that they received behind a proved loss."""
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 3))
    disk.tell(get(1, 3, 5))
    for disk._lineage in (1, 2):
        disk.start(4_096 * disk._lineage)
        for home in (0, SERVER, OTHER):
            disk.tell(follow(1, home=home))
    disk.tell(follow(2, TOPIC))
    found = [each for each in disk.tell(get(2, 0, 0)) if isinstance(each, Messages)]
    return [[*each.run.sequences] for each in found] == [[LOST + 1, LOST + 2, LOST + 3]]


RULES: dict[str, Callable[[], bool]] = {
    "received-positions-prove-nothing": a_received_position_beyond_the_log_proves_a_loss,
    "serves-behind-a-proof": a_received_position_beyond_the_log_proves_a_loss,
    "unknown-followers-prove-nothing": partial(a_get_after_an_unknown_follow_proves_a_loss, 1),
    "later-incarnations-prove-nothing": partial(a_get_after_an_unknown_follow_proves_a_loss, 2),
    "a-restart-forgets-the-proof": a_proved_loss_stays_proved_over_a_restart,
    "not-repeated-behind-a-loss": publications_before_the_proof_have_positions_behind_the_loss,
    "repeated-after-each-start": a_later_loss_without_a_proof_repeats_nothing,
    "former-positions-are-sent": publications_before_the_proof_have_positions_behind_the_loss,
}


@pytest.mark.parametrize("bug", RULES)
def test_a_rule_of_proved_losses_holds_and_its_bug_is_seen(bug: str) -> None:
    assert RULES[bug]()
    with plant([MUTANTS[bug]]):
        assert fails(RULES[bug])


def fails(rule: Callable[[], bool]) -> bool:
    """Return True if a rule does not hold, or a broker fails."""
    try:
        return not rule()
    except (AssertionError, ValueError):
        return True


@pytest.mark.parametrize("lineage", [0, 1])
def test_a_get_of_an_unfollowed_topic_is_asked_about_after_a_loss_only(lineage: int) -> None:
    disk = Disk(lineage=lineage)
    disk.tell(follow(1))
    assert (Merged(HOME, ()) in disk.tell(get(1, 0, 0))) == (lineage > 0)


@pytest.mark.parametrize(
    "values",
    [{"ownership": "causal"}, {"ownership": "paper"}, {"spread_topics": 2}],
    ids=["causal", "paper", "spread"],
)
def test_a_loss_is_refused_where_several_servers_may_own_a_topic(values: Mapping[str, Any]) -> None:
    """With causal ownership also at edges, because they choose the servers of publications."""
    keeps = definition_of("multi_proxy").keeps_loss
    parameters = MultiProxyParameters(**values)
    for servers in (1, 2):
        topology = sides(proxies=1, servers=servers, edges=1)
        overlay = topology.overlay(KIND)
        assert isinstance(overlay, Bipartite)
        refused = [each for each in range(servers + 2) if keeps(topology, parameters, each)]
        is_causal = parameters.ownership == CAUSAL
        wanted = [*range(servers + 2)] if is_causal else [*overlay.servers]
        assert refused == (wanted if servers > 1 else [])


@pytest.mark.parametrize("moment", ["before the loss", "before its statement", "after it"])
def test_a_server_with_a_loss_does_not_wait_for_a_decommissioned_broker(moment: str) -> None:
    """Otherwise the server would retain all publications for ever."""
    disk = Disk()
    if moment == "before the loss":
        disk.give_up(OTHER)
    disk._lineage = 1
    disk.start(2)
    assert disk.core.aftermath()
    for home in (0, SERVER):
        disk.tell(follow(1, home=home))
    disk.tell(follow(2, TOPIC))
    if moment == "after it":
        disk.tell(follow(1, home=OTHER))
    if moment != "before the loss":
        disk.give_up(OTHER)
    assert not [text for text in disk.core.aftermath() if "stated" in text]
    disk.tell(put(1, 3))
    disk.tell(get(3, LOST + 3, LOST + 3))
    assert disk.core.status().queued == 0
