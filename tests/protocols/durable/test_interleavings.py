"""Where tricky scenarios of durable subscriptions are told."""

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.simulator.named_bugs import bugs_of, planted
from tests.helpers.durable_stories import fails
from tests.helpers.told import is_told
from tests.protocols.durable import test_consumers, test_early_release, test_returns, test_stories

MUTANTS = bugs_of("durable")

HERE = Path(__file__).parent

TOLD = {
    1: (
        "a token is ahead of what its broker had committed",
        ("test_stories.py::STORIES[no-floor]",),
    ),
    2: (
        "rows are never committed before the matches that they are about",
        ("test_stories.py::STORIES[rows-before-matches]",),
    ),
    3: (
        "crash between an acknowledgement and its commit",
        ("test_returns.py::test_what_is_acknowledged_and_not_on_disk_is_not_let_go",),
    ),
    4: (
        "crash between the two steps of a commit",
        (
            "test_returns.py::"
            "test_matches_that_are_ahead_of_the_last_commit_are_dropped_and_written_again",
        ),
    ),
    5: (
        "a new subscription between a crash and what comes again",
        ("test_stories.py::STORIES[not-truncated]",),
    ),
    6: (
        "the common stream goes on in the step in which somebody has caught up",
        (
            "test_returns.py::"
            "test_who_catches_up_while_more_comes_goes_live_without_a_loss_or_a_double",
        ),
    ),
    7: (
        "catching up with what goes on, quicker or slower",
        (
            "test_returns.py::"
            "test_who_catches_up_while_more_comes_goes_live_without_a_loss_or_a_double",
            "test_returns.py::test_who_catches_up_and_comes_no_nearer_is_said_aloud",
        ),
    ),
    8: (
        "a client leaves while it catches up, or unsubscribes",
        (
            "test_returns.py::test_a_question_of_a_session_that_is_over_is_answered_to_nobody",
            "test_returns.py::"
            "test_who_unsubscribes_while_it_catches_up_gets_no_more_and_holds_nobody_up",
        ),
    ),
    9: (
        "something missed of one pubend only",
        ("test_returns.py::test_who_has_missed_something_of_one_pubend_is_live_in_the_others",),
    ),
    10: (
        "an older token",
        (
            "test_stories.py::"
            "test_who_comes_back_with_an_old_token_gets_it_again_or_is_told_what_is_lost",
        ),
    ),
    11: (
        "away for longer than events are kept",
        (
            "test_early_release.py::STORIES[gap-to-the-end-of-what-is-lost]",
            "test_early_release.py::test_a_loss_is_told_in_one_gap_however_small_batches_are",
        ),
    ),
    12: (
        "lost while it is asked for",
        (
            "test_early_release.py::"
            "test_what_was_on_its_way_when_it_got_lost_splits_the_gap_and_bounds_it",
            "test_early_release.py::test_what_is_known_to_be_lost_is_not_asked_for_again",
        ),
    ),
    13: (
        "a gap, then a crash of the client",
        ("test_returns.py::test_a_gap_that_was_told_and_not_committed_is_told_again",),
    ),
    14: (
        "one subscriber is away for long, then unsubscribes",
        ("test_stories.py::test_an_unsubscription_lets_go_of_what_it_held_back",),
    ),
    15: (
        "a log of which little is left keeps segments that it shares",
        (
            "../../storage/test_log_volume.py::test_a_slow_log_keeps_the_segments_that_it_shares",
            "../../storage/test_log_volume.py::test_segments_go_when_everything_in_them_is_chopped",
        ),
    ),
    16: (
        "a backlog of several batches",
        (
            "test_stories.py::STORIES[live-too-early]",
            "test_filter_log.py::test_batches_are_what_a_history_per_subscription_says",
        ),
    ),
    17: (
        "the record before is chopped",
        ("test_filter_log.py::test_batches_are_what_a_history_per_subscription_says",),
    ),
    18: (
        "forty come back together",
        (
            "test_returns.py::test_forty_who_come_back_together_have_each_event_fetched_once",
            "test_filter_log.py::test_many_who_come_back_at_once_read_the_disk_once",
        ),
    ),
    19: (
        "a dead broker holds everything back, is given up, and comes back all the same",
        (
            "test_decommissioning.py::STORIES[decommissioned-holds-back]",
            "test_decommissioning.py::STORIES[decommission-forgotten]",
            "test_decommissioning.py::STORIES[decommissioned-is-let-in]",
        ),
    ),
    20: (
        "a pubend's broker has started anew, and only some below have spoken",
        ("test_early_release.py::restarted_with_one_below",),
    ),
    21: (
        "two connections of one subscriber",
        (
            "test_consumers.py::"
            "test_of_two_connections_of_one_consumer_the_newer_one_goes_on_with_its_token",
        ),
    ),
    22: (
        "an acknowledgement of an older session",
        ("test_returns.py::test_what_was_out_to_a_session_that_is_over_is_acknowledged_by_nobody",),
    ),
    23: (
        "the answer to a commit is lost",
        (
            "test_consumers.py::test_a_commit_whose_reply_was_lost_is_asked_for_again_and_answered",
            "test_consumers.py::STORIES[committed-again-is-not-answered]",
        ),
    ),
    24: (
        "a crash between what an application does and its commit",
        (
            "test_consumers.py::"
            "test_a_crash_between_work_and_commit_has_one_batch_come_again_marked",
            "test_consumers.py::STORIES[answered-before-committed]",
        ),
    ),
    25: (
        "come from elsewhere, where brokers on the way know of silence for others",
        ("test_moves.py::beside_one_who_is_away",),
    ),
    26: (
        "the lease of a hold ends",
        ("test_moves.py::said_after_the_lease",),
    ),
    27: (
        "a new pubend, while somebody is away",
        ("test_returns.py::test_who_was_away_gets_what_a_new_pubend_has_from_its_beginning",),
    ),
    28: (
        "a slow client is left to catch up, and is live again",
        ("test_stories.py::test_a_client_that_takes_nothing_holds_nobody_up_and_misses_nothing",),
    ),
    29: (
        "a broker whose subscribers want nothing",
        (
            "test_returns.py::"
            "test_a_broker_whose_subscribers_want_nothing_lets_a_pubend_go_on_letting_go",
        ),
    ),
    30: (
        "what was written cannot be made durable",
        (
            "../../storage/test_crashes.py::"
            "test_an_input_output_error_ends_the_writer_and_nothing_is_called_durable",
        ),
    ),
}


SEEN = (
    (
        3,
        "told-before-rows",
        test_returns.test_what_is_acknowledged_and_not_on_disk_is_not_let_go,
        40,
    ),
    (
        4,
        "not-truncated written-twice",
        test_returns.test_matches_that_are_ahead_of_the_last_commit_are_dropped_and_written_again,
        20,
    ),
    (
        6,
        "live-too-early",
        test_returns.test_who_catches_up_while_more_comes_goes_live_without_a_loss_or_a_double,
        1.5,
    ),
    (
        9,
        "one-position-for-all-streams",
        test_returns.test_who_has_missed_something_of_one_pubend_is_live_in_the_others,
        None,
    ),
    (
        10,
        "lost-is-silent",
        test_stories.test_who_comes_back_with_an_old_token_gets_it_again_or_is_told_what_is_lost,
        False,
    ),
    (
        12,
        "gap-to-the-end-of-what-is-lost",
        test_early_release.test_what_was_on_its_way_when_it_got_lost_splits_the_gap_and_bounds_it,
        None,
    ),
    (
        12,
        "a-gap-per-batch",
        test_early_release.test_what_is_known_to_be_lost_is_not_asked_for_again,
        None,
    ),
    (
        13,
        "lost-is-silent",
        test_returns.test_a_gap_that_was_told_and_not_committed_is_told_again,
        None,
    ),
    (
        14,
        "released-when-anybody-has",
        test_stories.test_an_unsubscription_lets_go_of_what_it_held_back,
        None,
    ),
    (20, "lost-before-told", test_early_release.restarted_with_one_below, None),
    (
        21,
        "answered-before-committed",
        test_consumers.test_of_two_connections_of_one_consumer_the_newer_one_goes_on_with_its_token,
        None,
    ),
    (
        28,
        "silence-said-over-what-is-out",
        test_stories.test_a_client_that_takes_nothing_holds_nobody_up_and_misses_nothing,
        None,
    ),
    (
        29,
        "silence-is-not-told",
        test_returns.test_a_broker_whose_subscribers_want_nothing_lets_a_pubend_go_on_letting_go,
        None,
    ),
)
"""Of those that no list of another file shows to fail: the mistake that its story sees."""


def test_all_of_them_are_told() -> None:
    assert sorted(TOLD) == list(range(1, 31))


@pytest.mark.parametrize("number", sorted(TOLD))
def test_what_tells_it_is_there(number: int) -> None:
    _, stories = TOLD[number]
    for story in stories:
        assert is_told(story, HERE), story


@pytest.mark.parametrize("_, bugs, story, told", SEEN, ids=[f"{row[0]} {row[1]}" for row in SEEN])
def test_a_story_sees_a_mistake_in_what_it_is_about(
    _: int, bugs: str, story: Callable[..., bool | None], told: float | None
) -> None:
    with planted([MUTANTS[each] for each in bugs.split()]):
        assert fails(lambda: story(*(() if told is None else (told,))) is not False)
