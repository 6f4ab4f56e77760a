"""An index of the tests for intricate interleavings of durable subscriptions."""

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.durable_stories import fails
from tests.helpers.stories import is_story
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
        ("test_returns.py::test_acknowledged_events_are_not_released_before_the_commit",),
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
        ("test_returns.py::test_a_catch_up_under_load_ends_live_without_loss_or_duplicate",),
    ),
    7: (
        "catching up with what goes on, quicker or slower",
        (
            "test_returns.py::test_a_catch_up_under_load_ends_live_without_loss_or_duplicate",
            "test_returns.py::test_a_diverging_catch_up_is_reported",
        ),
    ),
    8: (
        "a client leaves while it catches up, or unsubscribes",
        (
            "test_returns.py::test_a_request_of_a_closed_session_is_not_answered",
            "test_returns.py::"
            "test_an_unsubscribe_during_catch_up_stops_delivery_and_blocks_no_subscriber",
        ),
    ),
    9: (
        "something missed of one pubend only",
        ("test_returns.py::test_a_subscriber_catching_up_on_one_pubend_is_live_on_the_others",),
    ),
    10: (
        "an older token",
        ("test_stories.py::test_an_old_token_yields_redelivery_or_a_gap",),
    ),
    11: (
        "away for longer than events are kept",
        (
            "test_early_release.py::STORIES[gap-covers-every-lost-event]",
            "test_early_release.py::test_a_loss_is_announced_in_one_gap_for_any_batch_size",
        ),
    ),
    12: (
        "lost while it is asked for",
        (
            "test_early_release.py::test_events_in_flight_split_and_bound_the_gap_of_a_loss",
            "test_early_release.py::test_lost_ticks_are_not_fetched_again",
        ),
    ),
    13: (
        "a gap, then a crash of the client",
        ("test_returns.py::test_an_announced_gap_is_repeated_until_committed",),
    ),
    14: (
        "one subscriber is away for long, then unsubscribes",
        ("test_stories.py::test_an_unsubscription_releases_its_withheld_publications",),
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
            "test_filter_log.py::test_batches_equal_those_of_a_history_per_subscription",
        ),
    ),
    17: (
        "the record before is chopped",
        ("test_filter_log.py::test_batches_equal_those_of_a_history_per_subscription",),
    ),
    18: (
        "forty come back together",
        (
            "test_returns.py::test_forty_returning_subscribers_fetch_each_event_once",
            "test_filter_log.py::test_simultaneous_catch_ups_read_the_disk_once",
        ),
    ),
    19: (
        "a dead broker holds everything back, is given up, and comes back all the same",
        (
            "test_decommissioning.py::STORIES[decommissioned-holds-back]",
            "test_decommissioning.py::STORIES[decommission-dropped]",
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
            "test_the_newer_of_two_connections_of_a_consumer_continues_with_its_token",
        ),
    ),
    22: (
        "an acknowledgement of an older session",
        ("test_returns.py::test_deliveries_of_a_closed_session_are_not_acknowledged",),
    ),
    23: (
        "the answer to a commit is lost",
        (
            "test_consumers.py::test_a_commit_with_a_lost_reply_is_repeated_and_answered",
            "test_consumers.py::STORIES[committed-again-is-not-answered]",
        ),
    ),
    24: (
        "a crash between what an application does and its commit",
        (
            "test_consumers.py::"
            "test_a_crash_between_work_and_commit_redelivers_at_most_one_marked_batch",
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
        ("test_returns.py::test_a_returning_subscriber_receives_a_new_pubend_from_its_start",),
    ),
    28: (
        "a slow client is left to catch up, and is live again",
        ("test_stories.py::test_a_slow_client_delays_no_other_client_and_misses_nothing",),
    ),
    29: (
        "a broker whose subscribers want nothing",
        ("test_returns.py::test_a_broker_without_matching_subscribers_does_not_block_release",),
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
        "announced-before-rows",
        test_returns.test_acknowledged_events_are_not_released_before_the_commit,
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
        test_returns.test_a_catch_up_under_load_ends_live_without_loss_or_duplicate,
        1.5,
    ),
    (
        9,
        "one-position-for-all-streams",
        test_returns.test_a_subscriber_catching_up_on_one_pubend_is_live_on_the_others,
        None,
    ),
    (
        10,
        "lost-is-silent",
        test_stories.test_an_old_token_yields_redelivery_or_a_gap,
        False,
    ),
    (
        12,
        "gap-covers-every-lost-event",
        test_early_release.test_events_in_flight_split_and_bound_the_gap_of_a_loss,
        None,
    ),
    (
        12,
        "a-gap-per-batch",
        test_early_release.test_lost_ticks_are_not_fetched_again,
        None,
    ),
    (
        13,
        "lost-is-silent",
        test_returns.test_an_announced_gap_is_repeated_until_committed,
        None,
    ),
    (
        14,
        "released-by-the-first",
        test_stories.test_an_unsubscription_releases_its_withheld_publications,
        None,
    ),
    (20, "lost-before-the-announcement", test_early_release.restarted_with_one_below, None),
    (
        21,
        "answered-before-committed",
        test_consumers.test_the_newer_of_two_connections_of_a_consumer_continues_with_its_token,
        None,
    ),
    (
        28,
        "silence-covers-events-in-flight",
        test_stories.test_a_slow_client_delays_no_other_client_and_misses_nothing,
        None,
    ),
    (
        29,
        "silence-is-not-announced",
        test_returns.test_a_broker_without_matching_subscribers_does_not_block_release,
        None,
    ),
)
"""Interleavings that no other list of mutants covers, with the named bug for every story."""


def test_all_thirty_scenarios_are_listed() -> None:
    assert sorted(TOLD) == list(range(1, 31))


@pytest.mark.parametrize("number", sorted(TOLD))
def test_every_listed_story_exists(number: int) -> None:
    _, stories = TOLD[number]
    for story in stories:
        assert is_story(story, HERE), story


@pytest.mark.parametrize("_, bugs, story, told", SEEN, ids=[f"{row[0]} {row[1]}" for row in SEEN])
def test_a_story_finds_a_mistake_in_its_subject(
    _: int, bugs: str, story: Callable[..., bool | None], told: float | None
) -> None:
    with plant([MUTANTS[each] for each in bugs.split()]):
        assert fails(lambda: story(*(() if told is None else (told,))) is not False)
