"""Stories of subscribers that were disconnected until their state expired.

A subscriber that returns with its position resumes there. The events released meanwhile are
announced as one gap of any age, for every kind of return.
"""

import pytest

from brokerd.protocols.durable.messages import LOST
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.registry import definition_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.units import SECOND_NS
from tests.protocols.durable.test_moves import MovingStory

NEVER_NS = 10**15


def _story(**parameters: int) -> MovingStory:
    chosen = {"client_linger_ns": SECOND_NS, "hold_lease_ns": NEVER_NS, **parameters}
    return MovingStory(**chosen)


def _is_announced(story: MovingStory) -> bool:
    """Return True if the mover received all but one gap, and the other received everything."""
    ((first, last),) = story.told(story.mover)
    rest = [each for each in story.sent if not first <= each.sequence <= last]
    arrived = story.mover.received == rest and story.other.received == story.sent
    return arrived and story.nothing_is_left()


def test_a_return_to_the_broker_that_ended_a_subscription_announces_one_gap() -> None:
    story = _story()
    story.miss()
    story.cluster.run_for(3)
    story.sent += story.publish(2)
    story.settle(40)
    assert story.told(story.mover) == [(story.sent[3].sequence, story.sent[12].sequence)]
    assert _is_announced(story)


def test_a_return_to_another_broker_announces_one_gap() -> None:
    story = _story()
    link = story.away(story.mover)
    story.sent += story.publish(10)
    story.cluster.run_for(3)
    story.move()
    link.heal()
    story.sent += story.publish(2)
    story.settle(40)
    assert story.told(story.mover) == [(story.sent[3].sequence, story.sent[12].sequence)]
    assert _is_announced(story)


def _move_out_of_reach(story: MovingStory) -> None:
    """Move the client to a broker that cannot hold events before the old state expires."""
    story.miss_without_end()
    story.cluster.link("b1", "s2").cut()
    story.move()
    story.cluster.run_for(4)
    assert story.hosts("s1") == [0]
    story.cluster.link("b1", "s2").heal()
    story.settle(60)
    assert _is_announced(story)


def test_a_move_to_a_broker_without_a_pubend_in_reach_announces_one_gap() -> None:
    _move_out_of_reach(_story())


def test_a_gap_after_an_absence_may_be_of_any_age() -> None:
    story = _story(hold_lease_ns=60 * SECOND_NS)
    assert story.cluster.oracle.promises.gap_age_ns == 60 * SECOND_NS
    _move_out_of_reach(story)


def test_a_return_before_the_other_broker_ended_a_subscription_loses_nothing() -> None:
    story = _story(client_linger_ns=5 * SECOND_NS)
    story.cluster.link("b1", "s2").cut()
    story.move()
    story.cluster.run_for(2)
    story.move("s1")
    story.sent += story.publish(5)
    story.cluster.run_for(8)
    story.cluster.link("b1", "s2").heal()
    story.settle(60)
    assert story.is_whole
    assert not story.told(story.mover)
    assert story.nothing_is_left()


@pytest.mark.parametrize("lease_s", [1, 2])
def test_a_lease_as_long_as_an_absence_promises_gaps_of_its_age(lease_s: int) -> None:
    lease_ns = lease_s * SECOND_NS
    chosen = DurableParameters.from_mapping({"client_linger_ns": lease_ns}, "here")
    promised = definition_of("durable").promises_with(chosen)
    assert (promised.gaps, promised.gap_age_ns) == ((LOST,), lease_ns)
    (warning,) = chosen.warnings()
    assert f"unreachable for {lease_s} s may receive a gap" in warning


def test_a_gap_without_an_absence_is_not_promised() -> None:
    story = MovingStory(client_linger_ns=NEVER_NS, hold_lease_ns=NEVER_NS)
    assert story.cluster.oracle.promises.gaps == ()
    source = next(iter(story.cluster.oracle.register.by_source))
    with pytest.raises(InvariantViolated, match="gap unpromised"):
        story.cluster.oracle.on_gap(story.mover.client.name, 1, source, 1, 1, LOST)
