"""An index of the tests for 28 intricate scenarios of gryphon."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.stories import is_story

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Scenario:
    """A scenario and its tests.

    Attributes:
        stories: the tests, as `file::test` next to this file, or the file of a scenario.
    """

    name: str
    stories: tuple[str, ...]


TOLD = {
    1: Scenario(
        "a thousand events that a child does not want, then one that it does",
        ("test_filters.py::test_unwanted_events_become_silence_around_wanted_events",),
    ),
    2: Scenario(
        "a child that wants nothing is not asked for acks",
        ("test_filters.py::test_an_idle_cell_is_not_asked_for_acknowledgements",),
    ),
    3: Scenario(
        "path switch between two events, with a filter",
        ("test_filters.py::test_a_route_change_between_two_wanted_events_costs_one_gap_at_most",),
    ),
    4: Scenario(
        "path switch reorders",
        (
            "test_losses.py::test_an_event_overtaken_for_less_than_gct_is_not_requested",
            "test_losses.py::test_an_event_overtaken_for_longer_is_requested_once_and_accepted_once",
        ),
    ),
    5: Scenario(
        "question, then answer, lost at each hop",
        (
            "test_losses.py::test_a_lost_request_is_repeated_within_two_repetition_times",
            "test_losses.py::test_a_lost_answer_is_repeated_within_two_repetition_times",
        ),
    ),
    6: Scenario(
        "jitter blocks a repetition",
        ("test_losses.py::test_a_repetition_that_is_faster_than_the_first_is_passed_on",),
    ),
    7: Scenario(
        "two subends with the same gap",
        (
            "test_stories.py::test_two_subscribers_with_one_gap_are_one_question_to_the_pubend",
            "scenarios/07_two_subends_with_one_gap.txt",
        ),
    ),
    8: Scenario(
        "overlapping questions",
        (
            "test_questions.py::test_only_new_ranges_of_overlapping_requests_are_forwarded",
            "test_stories.py::test_only_new_ranges_are_forwarded_until_the_old_request_expires",
        ),
    ),
    9: Scenario(
        "no answer for who has not asked",
        (
            "test_stories.py::test_only_the_broker_with_a_gap_requests_it_and_receives_the_answer",
            "test_questions.py::"
            "test_silence_and_events_are_sent_only_to_brokers_that_requested_them",
        ),
    ),
    10: Scenario(
        "sideways, then another way",
        (
            "test_cells.py::test_events_sent_before_a_link_loss_is_reported_pass_over_a_peer",
            "scenarios/10_sideways_then_another_way.txt",
        ),
    ),
    11: Scenario(
        "both links of a cell are down",
        (
            "test_cells.py::"
            "test_a_broker_that_its_cell_cannot_reach_requests_missed_events_on_return",
        ),
    ),
    12: Scenario(
        "upstream forgotten",
        (
            "test_losses.py::"
            "test_a_subscribers_broker_without_a_route_asks_each_upstream_broker_once",
        ),
    ),
    13: Scenario(
        "crash, logged and not sent",
        ("test_stories.py::test_logged_events_that_were_not_sent_are_delivered_after_a_restart",),
    ),
    14: Scenario(
        "crash, not on disk",
        ("test_restarts.py::test_a_restart_publishes_logged_events_and_discards_unlogged_ticks",),
    ),
    15: Scenario(
        "clock put back at a restart",
        (
            "test_restarts.py::test_ticks_increase_although_the_clock_is_set_back",
            "test_restarts.py::test_ticks_increase_beyond_those_in_the_log_after_a_restart",
        ),
    ),
    16: Scenario(
        "silence assigned beforehand, then a crash",
        (
            "test_total_order.py::"
            "test_after_a_crash_the_next_event_is_behind_silence_assigned_beforehand",
        ),
    ),
    17: Scenario(
        "torn end of a log",
        ("test_restarts.py::test_a_record_that_is_half_on_disk_never_was",),
    ),
    18: Scenario(
        "published again after a crash",
        ("test_restarts.py::test_a_republished_event_is_acknowledged_again_and_logged_once",),
    ),
    19: Scenario(
        "a broker restarts without filters",
        ("test_filters.py::test_a_restarted_intermediate_broker_forwards_every_wanted_event",),
    ),
    20: Scenario(
        "acks by different brokers of a cell",
        (
            "test_cells.py::test_a_log_is_truncated_despite_acknowledgements_to_different_brokers",
            "scenarios/20_acks_by_different_brokers.txt",
        ),
    ),
    21: Scenario(
        "news after the answer",
        (
            "test_questions.py::test_a_late_first_transmission_still_reaches_brokers_without_a_request",
        ),
    ),
    22: Scenario(
        "silence meets an event on its way to the disk",
        ("test_questions.py::test_silence_ends_below_an_event_that_is_being_written",),
    ),
    23: Scenario(
        "idle pubend in total order",
        ("test_losses.py::test_an_idle_pubend_is_waited_for_no_longer_than_dct_and_a_round_trip",),
    ),
    24: Scenario(
        "an hour asleep",
        ("test_losses.py::test_a_gap_of_an_hour_is_requested_in_few_pieces",),
    ),
    25: Scenario(
        "ack expected while a question is unanswered",
        (
            "test_questions.py::"
            "test_pending_requests_are_not_repeated_when_an_acknowledgement_is_expected",
        ),
    ),
    26: Scenario(
        "the last event of a stream is lost",
        (
            "test_losses.py::test_the_last_event_of_a_stream_arrives_within_aet_and_one_check",
            "test_losses.py::test_the_last_event_of_a_stream_arrives_early_with_a_finite_dct",
        ),
    ),
    27: Scenario(
        "a broker of a cell crashes again and again",
        (
            "test_restarts.py::"
            "test_a_broker_of_a_cell_that_restarts_all_the_time_leaves_all_to_the_other_one",
        ),
    ),
    28: Scenario(
        "a pubend begins while others go on",
        (
            "test_joins.py::test_a_new_pubend_starts_behind_all_delivered_ticks",
            "scenarios/28_a_pubend_begins.txt",
        ),
    ),
}


def test_all_scenarios_are_listed() -> None:
    assert [*TOLD] == [*range(1, 29)]


@pytest.mark.parametrize("number", sorted(TOLD))
def test_every_listed_story_exists(number: int) -> None:
    for story in TOLD[number].stories:
        assert is_story(story, HERE), story
