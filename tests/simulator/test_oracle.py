"""Tests of the oracle, on histories of a few lines with one mistake each."""

import pytest

from brokerd.model.client_messages import Notice
from brokerd.model.identity import PartitionId, SourceId
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.definition import Order, Promises
from brokerd.simulator.checks.oracle import Oracle
from brokerd.simulator.checks.violations import InvariantViolated

SOURCE = SourceId(0, 0, 1)
PARTITION = PartitionId(2, 1, 1, (1,))


class Story:
    """A story with a publisher p of n = 1, 2, 3, …, and a subscriber s."""

    def __init__(
        self,
        predicate: str = "true",
        *,
        strict: bool = True,
        reliable: bool = True,
        order: Order = Order.PUBLISHER,
        gaps: tuple[str, ...] = (),
        redelivers: bool = False,
        gap_age_ns: int = 0,
        gap_ages_ns: tuple[int | None, ...] = (),
    ) -> None:
        self.now_ns = 0
        promises = Promises(
            exactly_once=reliable,
            members_may_change=False,
            order=order,
            gaps=gaps,
            gap_age_ns=gap_age_ns,
            gap_ages_ns=gap_ages_ns,
            redelivers=redelivers,
        )
        self.oracle = Oracle(lambda blob: {"n": int(blob)}, strict, promises, lambda: self.now_ns)
        self.oracle.on_connected("p", SOURCE)
        self.oracle.on_subscribed("s", 1, parse_predicate(predicate))

    def publish(self, *sequences: int) -> None:
        for sequence in sequences:
            self.oracle.published("p", sequence, str(sequence).encode(), b"x")

    def start(self) -> None:
        self.oracle.on_started("s", 1)

    def deliver(self, *sequences: int, payload: bytes = b"x") -> None:
        for sequence in sequences:
            self.oracle.on_delivered("s", 1, SOURCE, sequence, str(sequence).encode(), payload)

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
        story.oracle.on_acknowledged("p", sequence)
    story.oracle.judge_end()
    assert (story.oracle.deliveries, story.oracle.owed) == (3, 2)


def test_a_publication_that_does_not_match_is_not_missed() -> None:
    story = Story("n in (1, 3)")
    story.start()
    story.publish(1, 2, 3)
    story.deliver(1, 3)
    for sequence in (1, 2, 3):
        story.oracle.on_acknowledged("p", sequence)
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
def test_a_wrong_stream_is_named_in_the_error(delivered: tuple[int, ...], rule: str) -> None:
    story = Story()
    story.start()
    story.publish(1, 2, 3)
    with pytest.raises(InvariantViolated) as caught:
        story.deliver_and_judge(*delivered)
    assert caught.value.rule == rule


def test_a_broker_may_name_a_source_before_its_publisher_receives_the_name() -> None:
    story = Story()
    other, notice = SourceId(1, 0, 1), Notice(1, SourceId(1, 0, 1), ((1, 1),), PARTITION)
    story.oracle.published("q", 1, b"1", b"x")
    story.oracle.on_withheld("s", notice)
    story.oracle.on_connected("q", other)
    assert story.oracle.notices.announced == 1


def test_a_notice_of_a_nonexistent_source_is_a_phantom() -> None:
    story = Story()
    story.oracle.on_withheld("s", Notice(1, SourceId(1, 0, 1), ((1, 1),), PARTITION))
    with pytest.raises(InvariantViolated, match="phantom"):
        story.oracle.judge_end()


def test_other_contents_than_were_published_are_a_phantom() -> None:
    story = Story()
    story.start()
    story.publish(1)
    with pytest.raises(InvariantViolated, match="contents that were not published"):
        story.deliver(1, payload=b"y")


def test_a_delivery_that_does_not_match_is_unwanted() -> None:
    story = Story("n = 2")
    story.start()
    story.publish(1)
    with pytest.raises(InvariantViolated, match="unwanted"):
        story.deliver(1)


def test_a_delivery_before_the_start_is_a_violation() -> None:
    story = Story()
    story.publish(1)
    with pytest.raises(InvariantViolated, match="early"):
        story.deliver(1)


def test_an_acknowledgement_before_an_owed_delivery_is_a_violation() -> None:
    story = Story()
    story.start()
    story.publish(1)
    with pytest.raises(InvariantViolated, match="acknowledgement of 1"):
        story.oracle.on_acknowledged("p", 1)


def test_a_source_shared_by_two_clients_is_a_violation() -> None:
    with pytest.raises(InvariantViolated, match="identity"):
        Story().oracle.on_connected("q", SOURCE)


def test_the_oracle_requires_less_of_a_weaker_guarantee() -> None:
    """No rule applies before the start; from then on a gap is a violation for best effort, too."""
    story = Story(strict=False, reliable=False)
    story.publish(1, 2, 3)
    story.deliver(1, 3)
    story.oracle.on_acknowledged("p", 2)
    story.start()
    assert not story.oracle.violations
    story.publish(4, 5)
    story.deliver(5)
    assert story.oracle.violations == {"gap": 1}


# ---------------------------------------------------------------- who stays away, who forgets


def _given_up_after(*delivered: int) -> Story:
    """Publish five; expire the subscriber; publish two more."""
    story = Story()
    story.start()
    story.publish(1, 2, 3, 4, 5)
    story.deliver(*delivered)
    story.oracle.lives.expire("s", 1)
    story.publish(6)
    for sequence in range(1, 7):
        story.oracle.on_acknowledged("p", sequence)
    return story


def test_an_expired_subscription_restarts_without_duplicates() -> None:
    story = _given_up_after(1, 2)
    story.start()
    story.publish(7, 8)
    story.deliver(6, 7, 8)
    for sequence in (7, 8):
        story.oracle.on_acknowledged("p", sequence)
    story.oracle.judge_end()


@pytest.mark.parametrize("again, rule", [((2, 3), "duplicate"), ((8,), "gap")])
def test_a_wrong_delivery_after_a_restart_is_still_a_violation(
    again: tuple[int, ...], rule: str
) -> None:
    story = _given_up_after(1, 2)
    story.start()
    story.publish(7, 8)
    with pytest.raises(InvariantViolated, match=rule):
        story.deliver(*again)


def test_a_subscription_continues_until_its_client_is_notified_of_the_restart() -> None:
    """The publications were in flight when the broker expired the client."""
    story = _given_up_after(1, 2)
    story.deliver(3)
    with pytest.raises(InvariantViolated, match="gap"):
        story.deliver(5)


def _forgotten_after(*delivered: int) -> Story:
    story = Story()
    story.start()
    story.publish(1, 2, 3, 4)
    story.deliver(*delivered)
    story.oracle.on_memory_loss("s")
    story.oracle.on_subscribed("s", 1, parse_predicate("true"))
    story.start()
    return story


@pytest.mark.parametrize("again", [(3, 4), (1, 2, 3, 4), (1, 3, 4)])
def test_a_client_that_lost_its_state_may_receive_duplicates_and_then_the_rest(
    again: tuple[int, ...],
) -> None:
    story = _forgotten_after(1, 2)
    story.deliver(*again)
    for sequence in (1, 2, 3, 4):
        story.oracle.on_acknowledged("p", sequence)
    story.oracle.judge_end()


@pytest.mark.parametrize("again, rule", [((4,), "gap"), ((1, 4), "gap"), ((), "misses 3, 4")])
def test_a_client_that_lost_its_state_may_not_miss_later_publications(
    again: tuple[int, ...], rule: str
) -> None:
    story = _forgotten_after(1, 2)
    with pytest.raises(InvariantViolated, match=rule):
        story.deliver_and_judge(*again)


def test_only_acknowledged_publications_are_owed_after_a_publisher_loses_its_state() -> None:
    story = Story()
    story.start()
    story.publish(1, 2, 3)
    story.deliver(1)
    story.oracle.on_acknowledged("p", 1)
    story.oracle.on_memory_loss("p")
    story.oracle.judge_end()
    with pytest.raises(InvariantViolated, match="gap"):
        story.deliver(3)


def test_a_publisher_that_forgot_is_another_source() -> None:
    story = Story()
    story.start()
    story.publish(1)
    story.oracle.on_memory_loss("p")
    story.oracle.on_connected("p", SourceId(0, 0, 2))
    story.publish(1)
    story.oracle.on_delivered("s", 1, SourceId(0, 0, 2), 1, b"1", b"x")
    story.deliver(1)
    story.oracle.on_acknowledged("p", 1)
    story.oracle.judge_end()


def test_publications_of_an_expired_publisher_may_be_missing_after_a_later_start() -> None:
    story = Story()
    story.publish(1, 2, 3)
    story.oracle.publishers.give_up("p")
    story.start()
    story.oracle.on_connected("p", SOURCE)
    story.publish(4, 5)
    story.deliver(1, 3, 4)
    for sequence in range(1, 5):
        story.oracle.on_acknowledged("p", sequence)
    with pytest.raises(InvariantViolated, match="misses 5"):
        story.oracle.judge_end()


# ---------------------------------------------------------------- other promises

OTHER = SourceId(1, 0, 1)


class TwoOfTwo(Story):
    """A story with two publishers p and q, and a second subscriber t."""

    def __init__(self, order: Order) -> None:
        super().__init__(order=order)
        self.oracle.on_connected("q", OTHER)
        self.oracle.on_subscribed("t", 1, parse_predicate("true"))
        for client in ("s", "t"):
            self.oracle.on_started(client, 1)
        for client in ("p", "q"):
            for sequence in (1, 2):
                self.oracle.published(client, sequence, str(sequence).encode(), b"x")

    def give(self, client: str, *publications: tuple[SourceId, int]) -> None:
        for source, sequence in publications:
            self.oracle.on_delivered(client, 1, source, sequence, str(sequence).encode(), b"x")


P1, P2, Q1, Q2 = (SOURCE, 1), (SOURCE, 2), (OTHER, 1), (OTHER, 2)


@pytest.mark.parametrize(
    "at_s, at_t", [((P1, Q1, P2, Q2), (P1, Q1, P2, Q2)), ((P1, Q1, Q2, P2), (P1, Q1))]
)
def test_in_a_total_order_all_subscribers_receive_the_same_order(
    at_s: tuple[tuple[SourceId, int], ...], at_t: tuple[tuple[SourceId, int], ...]
) -> None:
    story = TwoOfTwo(Order.TOTAL)
    story.give("s", *at_s)
    story.give("t", *at_t)


def test_a_swap_between_two_subscribers_violates_the_total_order() -> None:
    story = TwoOfTwo(Order.TOTAL)
    story.give("s", P1, Q1)
    story.give("t", Q1)
    with pytest.raises(InvariantViolated, match="total order"):
        story.give("t", P1)
    story = TwoOfTwo(Order.TOTAL)
    story.give("s", P1)
    story.give("t", Q1, P1)
    with pytest.raises(InvariantViolated, match="total order"):
        story.give("s", Q1)


def test_sources_may_be_swapped_in_publisher_order() -> None:
    story = TwoOfTwo(Order.PUBLISHER)
    story.give("s", P1, Q1, P2, Q2)
    story.give("t", Q1, P1, Q2, P2)


def _acknowledge(story: Story, *sequences: int) -> None:
    for sequence in sequences:
        story.oracle.on_acknowledged("p", sequence)


def test_an_unordered_guarantee_requires_each_publication_exactly_once() -> None:
    story = Story(order=Order.NONE)
    story.start()
    story.publish(1, 2, 3)
    story.deliver(3, 1)
    with pytest.raises(InvariantViolated, match="acknowledgement of 2"):
        story.oracle.on_acknowledged("p", 2)
    with pytest.raises(InvariantViolated, match="misses 2"):
        story.oracle.judge_end()
    with pytest.raises(InvariantViolated, match="duplicate"):
        story.deliver(1)
    story.deliver(2)
    _acknowledge(story, 1, 2, 3)
    story.oracle.judge_end()


def test_publications_in_a_promised_gap_are_not_owed() -> None:
    story = Story(gaps=("released",))
    story.start()
    story.publish(1, 2, 3, 4, 5)
    story.deliver(1)
    story.oracle.on_gap("s", 1, SOURCE, 2, 3, "released")
    story.deliver(4)
    story.oracle.on_gap("s", 1, SOURCE, 5, 5, "released")
    _acknowledge(story, 1, 2, 3, 4, 5)
    story.oracle.judge_end()
    assert story.oracle.in_gaps == {"released": 3}
    assert story.oracle.owed == 2


@pytest.mark.parametrize("gaps", [(), ("full",)])
def test_a_gap_for_another_reason_is_none(gaps: tuple[str, ...]) -> None:
    story = Story(gaps=gaps)
    story.start()
    story.publish(1, 2)
    with pytest.raises(InvariantViolated, match="gap unpromised"):
        story.oracle.on_gap("s", 1, SOURCE, 1, 1, "released")


def test_a_publication_is_either_delivered_or_in_a_gap() -> None:
    story = Story(gaps=("released",))
    story.start()
    story.publish(1, 2, 3)
    story.oracle.on_gap("s", 1, SOURCE, 1, 2, "released")
    with pytest.raises(InvariantViolated, match="gap delivered"):
        story.deliver(2)
    story.deliver(3)
    with pytest.raises(InvariantViolated, match="gap delivered"):
        story.oracle.on_gap("s", 1, SOURCE, 3, 3, "released")


def test_a_gap_with_publications_younger_than_promised_is_a_violation() -> None:
    story = Story(gaps=("released",), gap_age_ns=10)
    story.start()
    story.publish(1)
    story.now_ns = 5
    story.publish(2)
    story.now_ns = 10
    story.oracle.on_gap("s", 1, SOURCE, 1, 1, "released")
    with pytest.raises(InvariantViolated, match=r"gap early: .* 2 is not that old"):
        story.oracle.on_gap("s", 1, SOURCE, 2, 2, "released")


def test_publications_delivered_before_a_state_loss_may_be_in_any_gap() -> None:
    story = Story(gaps=("released",), gap_age_ns=10)
    story.start()
    story.publish(1, 2)
    story.deliver(1)
    story.oracle.on_memory_loss("s")
    story.oracle.on_subscribed("s", 1, parse_predicate("true"))
    story.start()
    story.oracle.on_gap("s", 1, SOURCE, 1, 1, "released")
    with pytest.raises(InvariantViolated, match="gap early"):
        story.oracle.on_gap("s", 1, SOURCE, 2, 2, "released")


def _forgotten_after_a_gap() -> Story:
    """Publish four; deliver the first; announce a gap of the second."""
    story = Story(gaps=("released",))
    story.start()
    story.publish(1, 2, 3, 4)
    story.deliver(1)
    story.oracle.on_gap("s", 1, SOURCE, 2, 2, "released")
    story.oracle.on_memory_loss("s")
    story.oracle.on_subscribed("s", 1, parse_predicate("true"))
    story.start()
    return story


@pytest.mark.parametrize("again", [(3, 4), (1, 3, 4), (2, 3, 4)])
def test_a_gap_announced_before_a_state_loss_need_not_be_repeated(again: tuple[int, ...]) -> None:
    story = _forgotten_after_a_gap()
    story.deliver(*again)
    _acknowledge(story, 1, 2, 3, 4)
    story.oracle.judge_end()


@pytest.mark.parametrize("again, rule", [((4,), "gap"), ((), "misses 3, 4")])
def test_such_a_gap_excuses_nothing_else(again: tuple[int, ...], rule: str) -> None:
    story = _forgotten_after_a_gap()
    with pytest.raises(InvariantViolated, match=rule):
        story.deliver_and_judge(*again)


def test_a_client_with_an_older_store_may_lack_what_it_had_acknowledged() -> None:
    """No policy releases the others: its earlier process has acknowledged 1 and 2 only."""
    story = Story(gaps=("released",), gap_ages_ns=(None,))
    story.start()
    story.publish(1, 2, 3, 4)
    story.deliver(1, 2)
    with pytest.raises(InvariantViolated, match="gap unpromised"):
        story.oracle.on_gap("s", 1, SOURCE, 3, 3, "released")
    story.oracle.on_memory_loss("s")
    story.oracle.on_subscribed("s", 1, parse_predicate("true"))
    story.start()
    story.oracle.on_gap("s", 1, SOURCE, 1, 2, "released")
    with pytest.raises(InvariantViolated, match="gap unpromised"):
        story.oracle.on_gap("s", 1, SOURCE, 2, 3, "released")


def _again(story: Story, *sequences: int) -> None:
    for sequence in sequences:
        story.oracle.on_delivered(
            "s", 1, SOURCE, sequence, str(sequence).encode(), b"x", again=True
        )  # fmt: skip


def _delivered_and_committed(*, redelivers: bool) -> Story:
    """Deliver three and commit the first."""
    story = Story(redelivers=redelivers)
    story.start()
    story.publish(1, 2, 3, 4)
    story.deliver(1, 2, 3)
    story.oracle.on_committed("s", 1, SOURCE, 1, 1)
    return story


def test_uncommitted_publications_may_be_redelivered() -> None:
    story = _delivered_and_committed(redelivers=True)
    _again(story, 2, 3, 4)
    _acknowledge(story, 1, 2, 3, 4)
    story.oracle.judge_end()
    assert story.oracle.arrivals.redelivered == 2


@pytest.mark.parametrize("redelivers, sequence", [(True, 1), (False, 2)])
def test_a_redelivery_that_is_not_permitted_is_a_duplicate(redelivers: bool, sequence: int) -> None:
    story = _delivered_and_committed(redelivers=redelivers)
    with pytest.raises(InvariantViolated, match="duplicate"):
        _again(story, sequence)


def test_an_unmarked_redelivery_is_an_order_violation() -> None:
    story = _delivered_and_committed(redelivers=True)
    with pytest.raises(InvariantViolated, match="order"):
        story.deliver(2)


def _moved_early(
    *, whole: bool, delivered: tuple[int, ...], order: Order = Order.PUBLISHER
) -> None:
    """Move a subscriber whose start at the old broker, after 1, follows the start at the new."""
    story = Story(order=order)
    story.oracle.on_subscribed("s.", 1, parse_predicate("true"))
    story.oracle.on_started("s.", 1)
    story.publish(1)
    story.start()
    story.oracle.on_moved("s", "s.", whole=whole)
    story.publish(2, 3)
    for sequence in delivered:
        story.oracle.on_delivered("s.", 1, SOURCE, sequence, str(sequence).encode(), b"x")
    for sequence in (1, 2, 3):
        story.oracle.on_acknowledged("p", sequence)
    story.oracle.judge_end()


@pytest.mark.parametrize("whole", [True, False])
def test_a_move_owes_nothing_from_before_the_start_at_the_old_broker(whole: bool) -> None:
    """Seed 66000020: the old broker's stream had passed what only the new broker delivered."""
    _moved_early(whole=whole, delivered=(2, 3))


def test_a_whole_move_owes_all_after_the_start_at_the_old_broker() -> None:
    with pytest.raises(InvariantViolated, match="without 2"):
        _moved_early(whole=True, delivered=(3,))


UNORDERED = [each for each in Order if not each.is_of_sources]
"""Orders in which a later publication of a source may overtake an earlier one."""


def _moved(order: Order, *, whole: bool, delivered: tuple[int, ...]) -> Story:
    """Return a story in which a subscriber has 1 and 3, but not 2, and then moves."""
    story = Story(order=order)
    story.start()
    story.publish(1, 2, 3)
    story.deliver(1, 3)
    story.oracle.on_subscribed("s.", 1, parse_predicate("true"))
    story.oracle.on_started("s.", 1)
    story.oracle.on_moved("s", "s.", whole=whole)
    for sequence in delivered:
        story.oracle.on_delivered("s.", 1, SOURCE, sequence, str(sequence).encode(), b"x")
    for sequence in (1, 2, 3):
        story.oracle.on_acknowledged("p", sequence)
    story.oracle.judge_end()
    return story


@pytest.mark.parametrize("order", UNORDERED)
@pytest.mark.parametrize("whole", [True, False])
def test_a_publication_overtaken_before_a_move_may_follow(order: Order, whole: bool) -> None:
    """The oracle reported a duplicate of a later publication, which may have another topic."""
    _moved(order, whole=whole, delivered=(2,))


@pytest.mark.parametrize("order", UNORDERED)
@pytest.mark.parametrize("sequence", [1, 3])
def test_a_redelivery_after_a_move_is_a_duplicate_without_source_order(
    order: Order, sequence: int
) -> None:
    with pytest.raises(InvariantViolated, match="duplicate"):
        _moved(order, whole=False, delivered=(sequence,))


@pytest.mark.parametrize("order", UNORDERED)
def test_in_no_order_a_whole_move_loses_nothing(order: Order) -> None:
    with pytest.raises(InvariantViolated, match="lacks it"):
        _moved(order, whole=True, delivered=())


@pytest.mark.parametrize("whole", [True, False])
def test_in_no_order_a_move_owes_nothing_from_before_the_start_at_the_old_broker(
    whole: bool,
) -> None:
    """Seed 66000020 of multi_proxy: only the new broker delivered what preceded that start."""
    for order in UNORDERED:
        _moved_early(whole=whole, delivered=(2, 3), order=order)


@pytest.mark.parametrize("order", UNORDERED)
def test_a_client_that_forgets_after_a_move_is_not_owed_what_it_had_before(order: Order) -> None:
    """Seed 66000014 of multi_proxy: the numbers of the earlier broker were owed again."""
    story = Story(order=order)
    story.start()
    story.publish(1, 2)
    story.deliver(1, 2)
    story.oracle.on_subscribed("s.", 1, parse_predicate("true"))
    story.oracle.on_started("s.", 1)
    story.oracle.on_moved("s", "s.", whole=True)
    story.oracle.on_memory_loss("s.")
    story.oracle.on_subscribed("s.", 1, parse_predicate("true"))
    story.oracle.on_started("s.", 1)
    for sequence in (1, 2):
        story.oracle.on_acknowledged("p", sequence)
    story.oracle.judge_end()


@pytest.mark.parametrize("order", UNORDERED)
def test_a_gap_announced_before_a_whole_move_is_not_owed_after_it(order: Order) -> None:
    story = Story(order=order, gaps=("released",))
    story.start()
    story.publish(1, 2, 3)
    story.deliver(1, 3)
    story.oracle.on_gap("s", 1, SOURCE, 2, 2, "released")
    story.oracle.on_subscribed("s.", 1, parse_predicate("true"))
    story.oracle.on_started("s.", 1)
    story.oracle.on_moved("s", "s.", whole=True)
    _acknowledge(story, 1, 2, 3)
    story.oracle.judge_end()


@pytest.mark.parametrize("whole", [True, False])
def test_a_gap_at_the_end_of_a_stream_is_not_owed_after_a_move(whole: bool) -> None:
    """Seed 67000010 of durable: the client drops what it has taken for lost at its old broker."""
    for order in Order:
        story = Story(order=order, gaps=("released",))
        story.start()
        story.publish(1, 2, 3)
        story.deliver(1)
        story.oracle.on_subscribed("s.", 1, parse_predicate("true"))
        story.oracle.on_started("s.", 1)
        story.oracle.on_gap("s", 1, SOURCE, 2, 3, "released")
        story.oracle.on_moved("s", "s.", whole=whole)
        _acknowledge(story, 1, 2, 3)
        story.oracle.judge_end()


@pytest.mark.parametrize("order", UNORDERED)
def test_a_publication_overtaken_before_a_subscription_expires_may_follow(
    order: Order,
) -> None:
    story = Story(order=order)
    story.start()
    story.publish(1, 2, 3)
    story.deliver(1, 3)
    story.oracle.lives.expire("s", 1)
    story.start()
    story.deliver(2)
    with pytest.raises(InvariantViolated, match="duplicate"):
        story.deliver(3)
