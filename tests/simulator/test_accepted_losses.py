"""Tests of the judge's rules after an accepted loss: exactly the lost data may be missing."""

import pytest

from brokerd.model.identity import SourceId
from brokerd.model.losses import STATE_LOST
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.definition import Order
from brokerd.simulator.checks.losses import AccessBrokerDisks, Stretch
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.consumers import Redeliveries
from tests.simulator.test_oracle import SOURCE, Story

HOME, AWAY = 0, 1


class LossStory(Story):
    """The publisher's broker lost its disk; the subscriber is at another broker.

    Args:
        acknowledged: number of publications acknowledged before the loss.
        copied: number of publications before the copy of the disk, which the operator restored.
        late: number of publications whose acknowledgement arrives after the loss.
    """

    def __init__(
        self,
        acknowledged: int = 3,
        copied: int = 0,
        *,
        home: int = AWAY,
        late: int = 0,
        gap_age_ns: int = 0,
    ) -> None:
        super().__init__(gaps=("released",) if gap_age_ns else (), gap_age_ns=gap_age_ns)
        self.oracle.homes |= {"p": HOME, "s": home}
        self.oracle.logged = True
        self.start()
        self.publish(1, 2, 3, 4)
        self.acknowledge(1, copied)
        self.oracle.losses.copy_disk(HOME, is_empty=not copied)
        self.acknowledge(copied + 1, acknowledged)
        self.deliver(1)
        self.oracle.losses.accept(HOME)
        self.acknowledge(acknowledged + 1, acknowledged + late)
        self.oracle.on_connected("p", SOURCE)
        self.publish(5)

    def acknowledge(self, first: int, last: int) -> None:
        for sequence in range(first, last + 1):
            self.oracle.on_acknowledged("p", sequence)

    def announce(self, first: int, last: int) -> None:
        self.oracle.on_gap("s", 1, SOURCE, first, last, STATE_LOST)

    def announce_stream(self) -> None:
        """Announce a gap of a stream, which names no publication."""
        self.oracle.on_gap("s", 1, SOURCE._replace(publisher=7), 1, 1, STATE_LOST)


def test_a_surviving_publication_may_precede_the_gap_of_lost_publications() -> None:
    story = LossStory()
    story.deliver(4)
    assert "received no gap" in "".join(story.oracle.obligations.describe_undelivered())
    story.announce(2, 3)
    story.deliver(5)
    story.acknowledge(4, 5)
    story.oracle.judge_end()


def test_an_acknowledgement_of_a_lost_publication_may_arrive_after_the_loss() -> None:
    story = LossStory(2, late=1)
    story.announce(2, 3)
    story.deliver(4, 5)
    story.acknowledge(4, 5)
    story.oracle.judge_end()


def test_a_publication_that_is_acknowledged_on_the_next_session_is_owed() -> None:
    story = LossStory(2)
    story.acknowledge(3, 3)
    with pytest.raises(InvariantViolated, match="no broker has lost 3"):
        story.announce(2, 3)


@pytest.mark.parametrize("acknowledged, copied", [(2, 0), (3, 2)])
def test_a_survivor_precedes_no_publication_that_its_broker_has(
    acknowledged: int, copied: int
) -> None:
    """The third publication was not acknowledged, or the first two are in the copy."""
    story = LossStory(acknowledged, copied)
    with pytest.raises(InvariantViolated, match="gap"):
        story.deliver(4)


def test_a_gap_of_a_stream_excuses_only_lost_publications() -> None:
    story = LossStory()
    story.announce_stream()
    assert story.oracle.in_gaps == {STATE_LOST: 2}
    with pytest.raises(InvariantViolated, match="gap"):
        story.deliver(5)


class ThirdPosition(AccessBrokerDisks):
    """Disks with the third publication of a stream at each position."""

    def is_in_gap(
        self, gap: Stretch, source: SourceId, sequence: int, *, is_lost_there: bool
    ) -> bool:
        return sequence == 3 and is_lost_there


def test_a_gap_of_a_stream_excuses_only_publications_at_its_positions() -> None:
    story = LossStory()
    story.oracle.losses.disk_view = ThirdPosition()
    story.announce_stream()
    assert story.oracle.in_gaps == {STATE_LOST: 1}
    story.deliver(4)
    assert "the loss of 2 of p" in "".join(story.oracle.obligations.describe_undelivered())


def test_a_gap_of_lost_state_needs_a_loss_at_either_end() -> None:
    story = LossStory()
    story.deliver(4)
    story.announce(2, 3)
    with pytest.raises(InvariantViolated, match="no broker has lost 5"):
        story.announce(5, 5)


def test_a_subscription_that_its_broker_lost_may_have_any_publication_in_a_gap() -> None:
    story = LossStory(home=HOME)
    story.start()
    story.announce(2, 5)
    story.acknowledge(4, 5)
    story.oracle.judge_end()


def test_a_gap_of_a_lost_subscription_ends_where_it_has_started_again() -> None:
    story = LossStory(home=HOME)
    story.start()
    story.announce(2, 5)
    story.publish(6)
    with pytest.raises(InvariantViolated, match="no broker has lost 6"):
        story.announce(6, 6)


@pytest.mark.parametrize("acknowledged", [0, 1])
def test_a_publication_that_is_sent_again_has_another_place_in_a_total_order(
    acknowledged: int,
) -> None:
    """Seed 78200196: one subscriber has the publication of before the loss."""
    story = Story(order=Order.TOTAL)
    oracle, other = story.oracle, SOURCE._replace(publisher=8)
    oracle.logged = True
    oracle.homes |= {"p": HOME, "q": AWAY, "s": AWAY, "t": AWAY}
    oracle.on_subscribed("t", 1, parse_predicate("true"))
    oracle.on_connected("q", other)
    for name in ("s", "t"):
        oracle.on_started(name, 1)
    story.publish(1)
    oracle.published("q", 1, b"1", b"x")
    story.deliver(1)
    oracle.on_delivered("s", 1, other, 1, b"1", b"x")
    if acknowledged:
        oracle.on_acknowledged("p", 1)
    oracle.losses.accept(HOME)
    oracle.on_delivered("t", 1, other, 1, b"1", b"x")
    if acknowledged:
        with pytest.raises(InvariantViolated, match="another order"):
            oracle.on_delivered("t", 1, SOURCE, 1, b"1", b"x")
    else:
        oracle.on_delivered("t", 1, SOURCE, 1, b"1", b"x")


@pytest.mark.parametrize("age_ns", [9, 10])
def test_a_gap_of_a_loss_may_end_behind_publications_released_early(age_ns: int) -> None:
    """Seed 78500024: the pubend reports both as one range."""
    story = LossStory(home=HOME, gap_age_ns=10)
    story.start()
    story.publish(6)
    story.now_ns = age_ns
    if age_ns < 10:
        with pytest.raises(InvariantViolated, match="no broker has lost 6"):
            story.announce(2, 6)
    else:
        story.announce(2, 6)


def test_a_gap_of_a_stream_excuses_nothing_after_the_subscription_has_started_again() -> None:
    story = LossStory(home=HOME)
    story.start()
    story.publish(6)
    story.announce_stream()
    assert story.oracle.in_gaps == {STATE_LOST: 4}
    with pytest.raises(InvariantViolated, match="misses 6"):
        story.oracle.judge_end()


@pytest.mark.parametrize("name", ["s", "t"])
def test_a_loss_excuses_nothing_of_a_subscription_that_was_requested_later(name: str) -> None:
    """The subscription is of a client from before the loss, or of a later one."""
    story = LossStory(home=HOME)
    story.start()
    story.oracle.homes["t"] = HOME
    story.oracle.on_subscribed(name, 2, parse_predicate("true"))
    story.oracle.on_started(name, 2)
    story.publish(6)
    with pytest.raises(InvariantViolated, match="no broker has lost 6"):
        story.oracle.on_gap(name, 2, SOURCE, 6, 6, STATE_LOST)


def test_a_client_that_moves_has_the_losses_of_its_earlier_broker() -> None:
    story = LossStory(home=HOME)
    story.oracle.homes["s."] = AWAY
    story.oracle.on_subscribed("s.", 1, parse_predicate("true"))
    story.oracle.on_started("s.", 1)
    story.oracle.on_moved("s", "s.", whole=False)
    story.oracle.on_gap("s.", 1, SOURCE, 4, 5, STATE_LOST)
    assert story.oracle.in_gaps == {STATE_LOST: 2}
    story.publish(6)
    with pytest.raises(InvariantViolated, match="no broker has lost 6"):
        story.oracle.on_gap("s.", 1, SOURCE, 6, 6, STATE_LOST)


def test_a_subscription_that_its_broker_lost_has_to_start_again() -> None:
    story = LossStory(home=HOME)
    story.announce(2, 5)
    story.acknowledge(4, 5)
    with pytest.raises(InvariantViolated, match="has not started"):
        story.oracle.judge_end()


def test_a_broker_with_a_loss_may_announce_the_absence_of_an_expired_client_as_lost() -> None:
    """Seed 73000086: the broker has no record of the subscription that it expired."""
    story = LossStory(home=HOME)
    story.start()
    story.announce(2, 5)
    story.oracle.lives.expire("s", 1)
    story.publish(6, 7)
    story.start()
    story.announce(6, 7)
    story.publish(8)
    with pytest.raises(InvariantViolated, match="no broker has lost 8"):
        story.announce(8, 8)


@pytest.mark.parametrize("moment", ["restarted", "requested later", "acknowledged later"])
def test_a_stream_after_a_loss_need_not_have_what_others_had_acknowledged(moment: str) -> None:
    """Seed 73000026: the publisher sends only the other publications again."""
    story = Story()
    story.oracle.homes |= {"p": HOME, "s": HOME}
    story.publish(1, 2)
    if moment != "acknowledged later":
        story.oracle.on_acknowledged("p", 2)
    if moment == "restarted":
        story.start()
    story.oracle.losses.accept(HOME)
    if moment == "requested later":
        story.oracle.on_unsubscribed("s", 1)
        story.oracle.on_subscribed("s", 1, parse_predicate("true"))
    story.start()
    if moment == "acknowledged later":
        story.oracle.on_acknowledged("p", 2)
    story.oracle.on_connected("p", SOURCE)
    story.deliver(1)
    story.publish(3)
    story.deliver(3)
    for sequence in (1, 3):
        story.oracle.on_acknowledged("p", sequence)
    story.oracle.judge_end()


class TransitStory(LossStory):
    """A server lost the second and third publications while acknowledgements were in transit.

    The server has stored the fourth publication again, behind the loss.
    """

    def __init__(self, home: int = AWAY) -> None:
        super().__init__(acknowledged=1, home=home)
        self.oracle.losses.disk_view.origins_of = lambda _stream, first, last: [
            (SOURCE, sequence) for sequence in range(first, last + 1)
        ]
        self.oracle.losses.disk_view.has_lost = lambda _source, sequence: sequence in (2, 3)

    def announce_positions(self) -> None:
        self.oracle.on_gap("s", 1, SOURCE._replace(publisher=7), 2, 4, STATE_LOST)


@pytest.mark.parametrize("acknowledged_before_the_gap", [1, 2, 3])
def test_a_lost_publication_may_be_acknowledged_after_the_loss(
    acknowledged_before_the_gap: int,
) -> None:
    story = TransitStory()
    story.acknowledge(2, acknowledged_before_the_gap)
    story.announce_positions()
    story.deliver(4, 5)
    story.acknowledge(acknowledged_before_the_gap + 1, 5)
    assert story.oracle.in_gaps == {STATE_LOST: 2}
    story.oracle.judge_end()


def test_a_gap_takes_no_publication_that_the_publisher_still_sends() -> None:
    """Seed 73000119: the subscriber's broker had lost its subscription, too."""
    story = TransitStory(home=HOME)
    story.start()
    story.announce_positions()
    story.deliver(2, 3)
    assert story.oracle.in_gaps == {STATE_LOST: 1}


def test_a_publication_that_is_stored_again_behind_a_loss_is_owed() -> None:
    story = TransitStory()
    story.announce_positions()
    story.acknowledge(2, 5)
    with pytest.raises(InvariantViolated, match="without 4"):
        story.deliver(5)


def test_a_consumer_receives_only_lost_commits_again() -> None:
    redeliveries = Redeliveries()
    redeliveries.begin("c", 1)
    for sequence in (1, 2):
        redeliveries.on_delivered("c", SOURCE, sequence, again=False)
        redeliveries.on_committed("c", SOURCE, sequence)
        if sequence == 1:
            redeliveries.on_disk_copied(["c"], is_empty=False)
    redeliveries.on_state_lost(["c"], [])
    redeliveries.on_delivered("c", SOURCE, 2, again=True)
    with pytest.raises(InvariantViolated, match="redelivered committed"):
        redeliveries.on_delivered("c", SOURCE, 1, again=True)


def test_a_later_process_receives_only_unacknowledged_publications_as_others() -> None:
    redeliveries = Redeliveries()
    redeliveries.begin("c", 1)
    for sequence in (1, 2, 3):
        redeliveries.on_delivered("c", SOURCE, sequence, again=False)
        redeliveries.on_committed("c", SOURCE, sequence)
    redeliveries.on_state_lost([], [(SOURCE, 2), (SOURCE, 3)])
    with pytest.raises(InvariantViolated, match="redelivered committed"):
        redeliveries.on_delivered("c", SOURCE, 3, again=False)
    redeliveries.begin("c", 1)
    redeliveries.on_delivered("c", SOURCE, 2, again=False)
    with pytest.raises(InvariantViolated, match="redelivered committed"):
        redeliveries.on_delivered("c", SOURCE, 1, again=False)
