"""Every named bug of ges_reliable breaks the story of its rule."""

from random import Random

import pytest

from brokerd.simulator.named_bugs import bugs_of, mistaken_functions, plant
from tests.protocols.ges_reliable.test_handover import CROSSING_STORIES
from tests.protocols.ges_reliable.test_members import MEMBER_STORIES
from tests.protocols.ges_reliable.test_parts import PARTS, roam
from tests.protocols.ges_reliable.test_stories import BROKEN, STORIES
from tests.protocols.ges_reliable.test_successors import SUCCESSOR_STORIES
from tests.protocols.ges_reliable.test_successors_in_trees import TREE_SUCCESSOR_STORIES
from tests.protocols.ges_reliable.test_trees import TREE_STORIES
from tests.protocols.ges_reliable.test_waiting_fetches import STORIES as WAITING_STORIES

MUTANTS = bugs_of("ges_reliable")
BUGS = tuple(bugs_of("ges_reliable").values())

RULES = {
    "high-water-mark": "a_publisher_roams",
    "stored-before-disk": "publications_behind_a_gap_are_not_stored",
    "begins-before-disk": "a_subscription_is_durable_before_it_is_confirmed",
    "publications-after-a-gap-are-accepted": "events_behind_a_gap_are_dropped",
    "answer-hides-a-hole": "an_incomplete_answer_is_not_delivered",
    "answer-from-before-it-began": "an_answer_from_before_the_start_does_not_count",
    "receipt-covers-repeated-publications": "repeated_events_are_not_acknowledged_early",
    "earlier-stay-is-listened-to": "an_earlier_attachment_takes_nothing_from_a_later_one",
    "overtaken-change-is-applied": "an_older_change_does_not_restore_an_ended_subscription",
    "released-by-the-fastest": "a_client_that_dies_before_the_reply_starts_once",
    "without-memory-begins-anew": "a_client_that_dies_before_the_reply_starts_once",
    "departure-ends-local-subscriptions-only": "a_client_that_detaches_elsewhere_leaves_no_state",
    "answers-itself-in-the-middle": "a_message_to_the_own_broker_waits_for_the_end_of_the_event",
    "request-is-sent-once": "a_storage_stalls_dies_and_restarts",
    "released-before-other-roots": "a_root_dies_and_restarts",
    "released-before-the-finer-one": "a_finer_storage_dies_and_restarts",
    "begins-before-its-parent-confirms": "a_finer_storage_starts_once_its_parent_delivers",
    "profile-ends-with-the-first": "one_of_two_equal_subscriptions_ends",
    "early-keeps-another-root": "the_receiving_root_forwards_a_publication_that_waited",
    "a-run-with-holes-is-whole": "publications_stored_at_another_root_are_not_skipped",
    "foreign-publications-released-before-disk": "publications_are_announced_once_durable",
    "no-room-is-had": "publications_without_room_are_requested_again",
    "one-storage-is-searched": "a_client_that_moves_before_the_reply_is_stored_for_once",
    "successor-delivers-again": "events_of_the_root_are_not_delivered_by_the_successor",
    "done-behind-its-end": "no_acknowledgement_beyond_the_end_reaches_the_old_root",
    "receipts-count-at-another-storage": "acknowledgements_reach_the_successor_too",
    "given-by-both": "later_events_are_delivered_by_the_successor_only",
    "over-before-its-client-is-done": "a_storage_serves_until_the_last_acknowledgement",
    "successor-precedes-its-storage": "of_two_storages_with_a_subscription_the_successor_is_second",
    "end-does-not-reach-the-successor": "an_end_reaches_all_possible_storages",
    "end-stays-where-it-was": "an_end_follows_the_subscription_to_its_successor",
    "added-storage-is-ignored": "a_new_storage_repeats_its_request_until_others_accept_it",
    "added-storage-does-not-fetch": "a_new_storage_repeats_its_request_until_others_accept_it",
    "retired-serves-on": "a_storage_retires",
    "returned-subscription-skips-publications": "a_returning_client_continues_in_between",
    "released-and-not-chopped": "epochs_released_before_a_crash_are_truncated_after_it",
    "recovered-acknowledgements-release-nothing": (
        "acknowledgements_durable_before_a_crash_release_after_it"
    ),
    "successor-without-a-previous-storage": "a_broker_dies_in_a_handover",
    "end-of-the-previous-storage-is-not-reported": (
        "a_client_at_its_successor_first_queries_the_previous_storage"
    ),
    "behind-though-all-is-over": "a_storage_that_ended_a_subscription_is_not_queried",
    "unsettled-end-is-answered": "an_end_awaits_the_previous_storage",
    "released-before-its-end-is-on-disk": "events_are_kept_until_an_end_is_durable",
    "predicate-ends-before-the-row": "events_are_requested_from_the_parent_until_an_end_is_durable",
    "moved-client-starts-again": "a_client_that_moved_restarts_at_no_earlier_broker",
    "later-attachment-is-not-reported": "a_client_that_moved_restarts_at_no_earlier_broker",
    "generation-is-not-raised": "a_new_process_at_another_broker_resumes",
    "ignored-receipts-are-not-answered": "a_new_process_displaced_by_a_late_request_resumes",
    "displaced-broker-misses-publications": "a_new_process_displaced_by_a_late_request_resumes",
    "displaced-broker-receives-for-ever": "a_new_process_displaced_by_a_late_request_resumes",
    "ignored-handover-ends-no-session": "a_handover_that_a_storage_ignores_ends_the_session",
    "late-report-ends-a-later-session": "a_late_report_of_a_displacement_ends_no_later_attachment",
    "new-process-is-refused-for-ever": "a_new_process_at_another_broker_resumes",
    "end-that-is-ignored-is-reported": "an_end_that_a_storage_ignores_ends_the_session",
    "detach-that-is-ignored-is-reported": "an_end_that_a_storage_ignores_ends_the_session",
    "end-of-a-new-process-is-ignored": "a_new_process_at_another_broker_ends_its_subscription",
    "generations-count-at-one-broker": "requests_of_one_broker_count_in_their_order",
    "successors-dropped": "successors_survive_a_restart",
    "finer-storage-lowers-positions": "a_client_may_be_ahead_of_its_finer_storage",
    "begun-behind-a-lost-epoch": "no_epoch_is_stored_that_a_crash_could_remove",
    "newcomer-has-no-address": "a_broker_joins_and_has_clients_like_any_other",
    "storages-receive-no-newcomer": "a_broker_joins_and_has_clients_like_any_other",
    "had-by-its-end": "publications_with_room_for_a_part_are_requested_again",
    "root-is-left-early": "a_handover_waits_for_an_old_root_that_is_behind",
    "given-by-both-roots": "events_that_the_new_root_lacked_are_delivered_by_the_old_root_only",
    "ended-at-the-old-root-too-early": "the_old_root_serves_until_the_last_acknowledgement",
    "delivered-before-the-old-root-ends": "both_roots_store_the_end_before_the_new_one_delivers",
    "end-is-reported-once": "nothing_is_delivered_beyond_the_end_that_is_reported",
    "sends-during-the-report-of-an-end": "nothing_is_delivered_beyond_the_end_that_is_reported",
    "third-root-dropped": "events_of_a_third_root_count_as_received",
    "third-storage-before-the-end": "a_handover_to_a_third_root_awaits_the_first",
    "settled-anew": "a_settled_end_holds_for_the_next_access_broker",
    "epochs-of-another-tree": "positions_of_one_tree_do_not_count_in_another",
    "previous-storage-is-skipped": "the_previous_storage_delivers_first",
    "end-does-not-reach-the-previous-storage": "an_end_reaches_the_previous_storage",
    "end-dropped": "a_settled_handover_survives_a_crash_of_the_storages",
    "begins-by-its-receipt": "the_start_at_the_successor_does_not_depend_on_a_receipt",
    "late-answer-ends-a-new-subscription": "a_late_answer_does_not_end_a_new_subscription",
    "lost-session-ends-at-a-successor": "a_lost_session_ends_nothing_at_an_unknown_successor",
    "looks-at-the-high-water-mark": "a_root_reports_the_position_before_its_first_gap",
    "finer-storage-announces-a-loss": "a_finer_storage_announces_no_loss",
    "markers-of-other-sources-are-stored": "a_storage_refuses_forged_runs",
    "publications-without-origins-are-kept": "a_storage_refuses_forged_runs",
    "joined-marker-is-unpacked-whole": "a_session_joins_a_loss_marker_with_later_publications",
    "stopped-subscription-keeps-its-epochs": "a_stopped_subscription_keeps_no_epochs",
    "later-storage-has-no-name": (
        "a_refused_publisher_receives_the_name_of_the_storage_or_its_number"
    ),
    "routes-outlive-links": "a_gatekeeper_fails_for_ever_and_its_subscriber_moves",
    **{bug: story.__name__ for story, bug in WAITING_STORIES.items()},
}
"""Named bugs with the stories or tests that must find them."""

STORIES_OF_ALL = (
    *PARTS,
    *STORIES,
    *TREE_STORIES,
    *SUCCESSOR_STORIES,
    *TREE_SUCCESSOR_STORIES,
    *CROSSING_STORIES,
    *MEMBER_STORIES,
    *WAITING_STORIES,
)
TOLD = {each.__name__: each for each in STORIES_OF_ALL}


@pytest.mark.drawn("ges_reliable")
@pytest.mark.parametrize("bug", RULES)
def test_each_named_bug_breaks_the_test_of_its_rule(bug: str) -> None:
    with plant((MUTANTS[bug],)), pytest.raises(BROKEN):
        TOLD[RULES[bug]]()


def test_the_high_water_mark_loses_in_every_run_of_a_publisher_that_roams() -> None:
    with plant((MUTANTS["high-water-mark"],)):
        assert not any(roam(Random(seed)) for seed in range(100))


def test_each_bug_has_a_rule_and_fits_the_source() -> None:
    assert {*RULES} == {*MUTANTS}
    assert all(mistaken_functions((bug,)) for bug in BUGS)
