"""The oracle on histories of a few lines, each with one thing wrong."""

import pytest

from brokerd.model.client_messages import Notice
from brokerd.model.identity import PartitionId, SourceId
from brokerd.model.predicate_text import parse_predicate
from brokerd.simulator.oracle import InvariantViolated, Oracle

SOURCE = SourceId(0, 0, 1)
PARTITION = PartitionId(2, 1, 1, (1,))


class Story:
    """One publisher p of n = 1, 2, 3, …, one subscriber s."""

    def __init__(
        self, predicate: str = "true", *, strict: bool = True, reliable: bool = True
    ) -> None:
        self.oracle = Oracle(lambda blob: {"n": int(blob)}, strict, reliable)
        self.oracle.connected("p", SOURCE)
        self.oracle.subscribed("s", 1, parse_predicate(predicate))

    def publish(self, *sequences: int) -> None:
        for sequence in sequences:
            self.oracle.published("p", sequence, str(sequence).encode(), b"x")

    def start(self) -> None:
        self.oracle.started("s", 1)

    def deliver(self, *sequences: int, payload: bytes = b"x") -> None:
        for sequence in sequences:
            self.oracle.delivered("s", 1, SOURCE, sequence, str(sequence).encode(), payload)

    def deliver_and_judge(self, *sequences: int) -> None:
        self.deliver(*sequences)
        self.oracle.judge_end()


def test_everything_once_in_order_is_right_wherever_it_begins() -> None:
    story = Story()
    story.publish(1, 2)
    story.start()
    story.publish(3, 4)
    story.deliver(2, 3, 4)
    for sequence in (1, 2, 3, 4):
        story.oracle.acknowledged("p", sequence)
    story.oracle.judge_end()
    assert (story.oracle.deliveries, story.oracle.owed) == (3, 2)


def test_what_does_not_match_is_not_missed() -> None:
    story = Story("n in (1, 3)")
    story.start()
    story.publish(1, 2, 3)
    story.deliver(1, 3)
    for sequence in (1, 2, 3):
        story.oracle.acknowledged("p", sequence)
    story.oracle.judge_end()


@pytest.mark.parametrize(
    "delivered, rule",
    [
        ((1, 3), "gap"),
        ((2,), "gap"),
        ((1, 1), "duplicate"),
        ((1, 2, 1), "order"),
        ((4,), "phantom"),
        ((1, 2), "incomplete"),
        ((), "incomplete"),
    ],
)
def test_a_wrong_stream_is_called_what_it_is(delivered: tuple[int, ...], rule: str) -> None:
    story = Story()
    story.start()
    story.publish(1, 2, 3)
    with pytest.raises(InvariantViolated) as caught:
        story.deliver_and_judge(*delivered)
    assert caught.value.rule == rule


def test_a_source_may_be_named_by_its_broker_before_its_publisher_knows() -> None:
    story = Story()
    other, notice = SourceId(1, 0, 1), Notice(1, SourceId(1, 0, 1), ((1, 1),), PARTITION)
    story.oracle.published("q", 1, b"1", b"x")
    story.oracle.withheld("s", notice)
    story.oracle.connected("q", other)
    assert story.oracle.announced == 1


def test_a_source_that_nobody_ever_is_is_a_phantom() -> None:
    story = Story()
    story.oracle.withheld("s", Notice(1, SourceId(1, 0, 1), ((1, 1),), PARTITION))
    with pytest.raises(InvariantViolated, match="phantom"):
        story.oracle.judge_end()


def test_other_contents_than_were_published_are_a_phantom() -> None:
    story = Story()
    story.start()
    story.publish(1)
    with pytest.raises(InvariantViolated, match="contents that were not published"):
        story.deliver(1, payload=b"y")


def test_what_was_not_asked_for_is_unwanted() -> None:
    story = Story("n = 2")
    story.start()
    story.publish(1)
    with pytest.raises(InvariantViolated, match="unwanted"):
        story.deliver(1)


def test_nothing_comes_before_the_start() -> None:
    story = Story()
    story.publish(1)
    with pytest.raises(InvariantViolated, match="early"):
        story.deliver(1)


def test_a_publication_is_done_only_when_everyone_who_is_owed_it_has_it() -> None:
    story = Story()
    story.start()
    story.publish(1)
    with pytest.raises(InvariantViolated, match="told that 1 is done"):
        story.oracle.acknowledged("p", 1)


def test_one_source_is_never_given_to_two_clients() -> None:
    with pytest.raises(InvariantViolated, match="identity"):
        Story().oracle.connected("q", SOURCE)


def test_less_is_asked_of_what_promises_less() -> None:
    """Before the start nothing counts; from then on a gap is a gap for best effort too."""
    story = Story(strict=False, reliable=False)
    story.publish(1, 2, 3)
    story.deliver(1, 3)
    story.oracle.acknowledged("p", 2)
    story.start()
    assert not story.oracle.violations
    story.publish(4, 5)
    story.deliver(5)
    assert story.oracle.violations == {"gap": 1}
