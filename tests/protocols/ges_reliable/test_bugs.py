"""Every named bug of ges_reliable breaks the story of its rule."""

from random import Random

import pytest

from brokerd.simulator.named_bugs import bugs_of, mistaken_functions, plant
from tests.protocols.ges_reliable.test_handover import CROSSING_STORIES
from tests.protocols.ges_reliable.test_members import MEMBER_STORIES
from tests.protocols.ges_reliable.test_parts import PARTS, roam
from tests.protocols.ges_reliable.test_stories import BROKEN, STORIES
from tests.protocols.ges_reliable.test_successors import HEIR_STORIES
from tests.protocols.ges_reliable.test_trees import TREE_STORIES
from tests.protocols.ges_reliable.test_waiting_fetches import STORIES as WAITING_STORIES

MUTANTS = bugs_of("ges_reliable")
BUGS = tuple(bugs_of("ges_reliable").values())

RULES = {
    "high-water-mark": "a_publisher_roams",
    "stored-before-disk": "what_waits_for_others_is_not_stored",
    "begins-before-disk": "a_subscription_is_on_disk_before_it_is_told",
    "publications-after-a-gap-are-accepted": "what_lies_behind_a_hole_is_let_go",
    "answer-hides-a-hole": "an_answer_of_which_some_is_missing_goes_nowhere",
    "answer-from-before-it-began": "an_answer_from_before_a_subscription_began_says_nothing_of_it",
    "receipt-covers-repeated-publications": "what_comes_again_is_not_done",
    "earlier-stay-is-listened-to": "an_earlier_stay_takes_nothing_from_a_later_one",
    "overtaken-change-is-applied": "an_older_change_does_not_bring_back_what_is_over",
    "released-by-the-fastest": "whoever_dies_before_it_is_told_begins_once",
    "without-memory-begins-anew": "whoever_dies_before_it_is_told_begins_once",
    "departure-ends-known-subscriptions-only": "whoever_leaves_from_elsewhere_leaves_nothing",
    "answers-itself-in-the-middle": "what_a_broker_tells_itself_waits",
    "request-is-sent-once": "a_storage_stalls_and_then_dies_and_comes_back",
    "released-before-other-roots": "a_root_dies_and_comes_back",
    "released-before-the-finer-one": "a_finer_storage_dies_and_comes_back",
    "begins-before-its-parent-confirms": "a_finer_storage_begins_when_its_parent_gives",
    "profile-ends-with-the-first": "one_of_two_that_want_the_same_ends",
    "early-is-of-whoever-fills-the-hole": "what_has_waited_is_given_on_by_whoever_was_sent_it",
    "a-run-with-holes-is-whole": "what_a_publisher_stored_elsewhere_is_not_skipped",
    "foreign-publications-released-before-disk": "what_is_not_on_disk_is_not_said_to_be",
    "no-room-is-had": "what_there_is_no_room_for_is_asked_for_again",
    "one-storage-is-searched": "whoever_goes_before_it_is_told_is_stored_for_once",
    "heir-gives-again": "what_its_root_gave_does_not_come_of_the_heir",
    "done-behind-its-end": "what_is_behind_the_end_is_not_said_to_be_done_at_the_old_root",
    "receipts-count-at-another-storage": "what_its_old_storage_was_told_its_heir_is_told_too",
    "given-by-both": "what_is_behind_comes_of_the_heir_alone",
    "over-before-its-client-is-done": "nothing_is_over_before_its_client_is_done",
    "successor-precedes-its-storage": "of_two_that_know_it_the_heir_is_the_second",
    "end-does-not-reach-the-successor": "an_end_is_told_to_all_who_may_know",
    "end-stays-where-it-was": "an_end_goes_on_to_whoever_has_it_now",
    "added-storage-is-ignored": "whoever_knows_first_that_it_is_a_storage_asks_again",
    "added-storage-does-not-fetch": "whoever_knows_first_that_it_is_a_storage_asks_again",
    "retired-serves-on": "a_storage_retires",
    "returned-subscription-skips-publications": "whoever_comes_back_asks_who_had_it_meanwhile",
    "released-and-not-chopped": "what_was_released_before_a_crash_is_chopped_after_it",
    "successor-without-a-previous-storage": "whose_home_dies_before_it_is_over_is_stored_for_once",
    "end-of-the-previous-storage-is-not-reported": (
        "whoever_comes_first_to_the_heir_asks_who_was_before"
    ),
    "behind-though-all-is-over": "who_knows_that_it_is_over_is_not_asked",
    "unsettled-end-is-answered": "whoever_it_went_on_from_is_waited_for_when_it_ends",
    "released-before-its-end-is-on-disk": "what_is_over_is_needed_until_that_is_on_disk",
    "predicate-ends-before-the-row": "what_is_over_is_asked_for_until_that_is_on_disk",
    "moved-client-starts-again": "who_has_gone_elsewhere_begins_nowhere_anew",
    "later-attachment-is-not-reported": "who_has_gone_elsewhere_begins_nowhere_anew",
    "generation-is-not-raised": "a_new_process_at_another_broker_resumes",
    "ignored-receipts-are-not-answered": "a_new_process_displaced_by_a_late_request_resumes",
    "displaced-broker-misses-publications": "a_new_process_displaced_by_a_late_request_resumes",
    "displaced-broker-receives-for-ever": "a_new_process_displaced_by_a_late_request_resumes",
    "ignored-handover-ends-no-session": "a_handover_that_a_storage_ignores_ends_the_session",
    "late-report-ends-a-later-session": "a_late_report_of_a_displacement_ends_no_later_attachment",
    "new-process-is-refused-for-ever": "a_new_process_at_another_broker_resumes",
    "end-that-is-ignored-is-reported": "an_end_that_a_storage_ignores_ends_the_session",
    "detach-that-is-ignored-is-reported": "an_end_that_a_storage_ignores_ends_the_session",
    "end-of-a-new-process-is-ignored": "a_new_process_at_another_broker_ends_what_it_asks_for",
    "generations-count-at-one-broker": "requests_of_one_broker_count_in_their_order",
    "heirs-forgotten": "heirs_are_kept",
    "finer-storage-lowers-positions": "a_finer_storage_may_be_behind_its_client",
    "begun-behind-a-lost-epoch": "no_epoch_is_written_down_that_a_crash_could_take",
    "newcomer-has-no-address": "a_broker_joins_and_has_clients_like_any_other",
    "storages-hear-of-no-newcomer": "a_broker_joins_and_has_clients_like_any_other",
    "had-by-its-end": "what_there_was_room_for_in_part_is_asked_for_again",
    "root-is-left-early": "the_old_root_is_waited_for_while_it_is_behind",
    "given-by-both-roots": "what_its_new_root_had_not_yet_comes_of_the_old_one_alone",
    "ended-at-the-old-root-too-early": "nothing_is_over_at_the_old_root_before_its_client_is_done",
    "delivered-before-the-old-root-ends": "both_know_the_end_before_the_new_one_gives_anything",
    "end-is-reported-once": "nothing_is_given_behind_the_end_that_is_to_be_said",
    "sends-during-the-report-of-an-end": "nothing_is_given_behind_the_end_that_is_to_be_said",
    "third-root-forgotten": "what_came_of_a_third_root_counts",
    "third-storage-before-the-end": "one_goes_on_to_a_third_when_the_first_has_heard_of_it",
    "settled-anew": "what_was_settled_holds_for_the_next_home",
    "epochs-of-another-tree": "positions_of_one_tree_say_nothing_of_another",
    "previous-storage-is-skipped": "who_has_what_is_before_comes_first",
    "end-does-not-reach-the-previous-storage": "an_end_is_told_to_whoever_was_before",
    "end-forgotten": "what_was_settled_outlives_a_crash_of_the_storages",
    "begins-by-its-receipt": "where_it_goes_on_does_not_depend_on_a_receipt",
    "late-answer-ends-a-new-subscription": "a_late_answer_does_not_end_a_new_subscription",
    "lost-session-ends-at-a-successor": "a_lost_session_ends_nothing_at_an_unknown_successor",
    "looks-at-the-high-water-mark": "a_root_says_how_far_all_has_come_without_a_gap",
    "finer-storage-announces-a-loss": "a_finer_storage_announces_no_loss",
    "stopped-subscription-keeps-its-epochs": "a_stopped_subscription_keeps_no_epochs",
    "routes-outlive-links": "a_gatekeeper_dies_for_ever_and_its_subscriber_goes_elsewhere",
    **{bug: story.__name__ for story, bug in WAITING_STORIES.items()},
}
"""Named bugs with the stories or tests that must find them."""

STORIES_OF_ALL = (
    *PARTS,
    *STORIES,
    *TREE_STORIES,
    *HEIR_STORIES,
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
