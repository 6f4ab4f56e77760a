"""An index of the tests for all interleavings that the design lists (delta.md §17)."""

import ast
from pathlib import Path

import pytest

from brokerd.simulator.scenario import play_scenario
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants

HERE = Path(__file__).parent
TESTS = HERE.parents[1]

# Number → scenario files here, or `file::test` below tests/.
TOLD = {
    1: ["01_bypass_resurrects.txt"],
    2: ["02_paper_fig1.txt"],
    3: ["03_island_upstream_copy.txt"],
    4: ["04_island_slow_old_publication.txt"],
    5: ["05_pending_upstream_drops_out.txt"],
    6: ["06_barrier_heals_nearest_first.txt", "06_barrier_heals_farthest_first.txt"],
    7: ["07_prefix_stays_dead.txt"],
    8: [
        "protocols/delta_tree/test_gates.py::test_a_stale_emitter_closes_no_open_gate",
        "protocols/delta_tree/test_gates.py::test_a_stale_emitter_closes_a_gate_if_receivers_accept_any_tags",
    ],
    9: [
        "protocols/delta_tree/test_regions.py::test_an_intersection_covers_the_common_elements",
        "protocols/delta_tree/test_regions.py::test_the_intersection_property_catches",
    ],
    10: ["10_notifier_overtakes_the_confirmation.txt"],
    11: ["11_session_flaps_amid_a_confirmation.txt"],
    12: ["12_half_open.txt"],
    13: ["13_simultaneous_open.txt"],
    14: ["14_bypass_without_a_verdict.txt"],
    15: ["15_switch_back.txt"],
    16: ["16_late_duplicate.txt"],
    17: ["17_lost_confirmation_and_another_way.txt"],
    18: ["18_source_crashes_before_the_confirmation.txt"],
    19: [
        "19_edge_crashes_before_the_start.txt",
        "19_edge_crashes_after_the_start.txt",
        "19_edge_crashes_between_delivery_and_disk.txt",
    ],
    20: ["20_detector_crashes.txt"],
    21: ["21_neighbours_crash_in_a_row.txt"],
    22: ["22_recovery_from_the_far_side.txt"],
    23: ["23_cold_start.txt"],
    24: [
        "simulator/test_unsubscription.py::"
        "test_the_end_overtakes_the_subscription_and_stays_the_end",
        "simulator/test_unsubscription.py::test_a_returning_broker_is_notified_of_an_ended_subscription",
        "simulator/test_unsubscription.py::"
        "test_the_end_is_remembered_on_disk_where_the_subscription_is",
    ],
    25: ["25_*.txt"],
    26: ["26_false_suspicions.txt"],
    27: ["27_*.txt"],
    28: [
        "protocols/delta_tree/test_partitions.py::"
        "test_a_partition_is_withdrawn_after_confirmation_of_its_notifiers",
        "protocols/delta_tree/test_partitions.py::"
        "test_the_early_withdrawal_mutant_drops_a_partition_before_its_gate_opens",
    ],
    29: ["29_stall_then_kill.txt"],
    30: ["30_two_subscriptions_one_partition.txt"],
}


def test_all_thirty_interleavings_are_listed() -> None:
    assert sorted(TOLD) == list(range(1, 31))


@pytest.mark.parametrize("number", sorted(TOLD))
def test_every_listed_test_of_an_interleaving_exists(number: int) -> None:
    for place in TOLD[number]:
        if place.endswith(".txt"):
            assert list((HERE / "scenarios").glob(place)), place
            continue
        file, _, name = place.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], place


# Scenario → a named bug that omits the rule of the story.
RULES = {
    "01_bypass_resurrects": Mutant.NO_LAST_IN_CUT,
    "02_paper_fig1": Mutant.NO_TAGS_UNREACHABLE_DONE,
    "03_island_upstream_copy": Mutant.NO_UPSTREAM_COPY,
    "04_island_slow_old_publication": Mutant.NO_UPSTREAM_COPY,
    "05_pending_upstream_drops_out": Mutant.NO_UPSTREAM_COPY,
    "06_barrier_heals_farthest_first": Mutant.NO_NOTIFIERS,
    "06_barrier_heals_nearest_first": Mutant.NO_NOTIFIERS,
    "07_prefix_stays_dead": Mutant.NO_NOTIFIERS,
    "10_notifier_overtakes_the_confirmation": Mutant.NOTIFIER_BEFORE_TABLES,
    "11_session_flaps_amid_a_confirmation": Mutant.TAGS_DROPPED_FROM_CONFIRMATION,
    "12_half_open": Mutant.NO_RESEND_ON_ACTIVATION,
    "14_bypass_without_a_verdict": Mutant.NO_UPSTREAM_COPY_ON_ACTIVATION,
    "15_switch_back": Mutant.NO_RESEND_ON_ACTIVATION,
    "16_late_duplicate": Mutant.NO_RESEND_ON_ACTIVATION,
    "16_late_duplicate_by_vector": Mutant.NO_RESEND_ON_ACTIVATION,
    "17_lost_confirmation_and_another_way": Mutant.NO_RESEND_ON_ACTIVATION,
    "18_source_crashes_before_the_confirmation": Mutant.MISSING_PUBLISHERS_IGNORED,
    "19_edge_crashes_after_the_start": Mutant.NO_RESEND_ON_ACTIVATION,
    "19_edge_crashes_before_the_start": Mutant.PENDING_NOT_REISSUED,
    "19_edge_crashes_between_delivery_and_disk": Mutant.EDGE_FORGETS,
    "20_detector_crashes": Mutant.RESTARTED_IS_EDGE,
    "21_neighbours_crash_in_a_row": Mutant.SYNC_END_BEFORE_PENDING,
    "22_recovery_from_the_far_side": Mutant.NO_RESEND_ON_ACTIVATION,
    "23_cold_start": Mutant.NO_HOME_AUTHORITY,
    "24_away_when_it_ends": Mutant.TOMBSTONES_VOLATILE,
    "24_end_overtakes_the_subscription": Mutant.NO_TOMBSTONES,
    "24_home_crashes_before_the_start": Mutant.PENDING_NOT_REISSUED,
    "25_legitimacy_hold": Mutant.HOLD_OUT_OF_ORDER,
    "26_false_suspicions": Mutant.RESEND_AFTER_NEWER,
    "27_vector_killer": Mutant.SHORT_VECTORS,
    "27_vector_killer_by_source": Mutant.ANSWER_FORGETS_CUT,
    "29_stall_then_kill": Mutant.NO_RESEND_ON_ACTIVATION,
    "30_two_subscriptions_one_partition": Mutant.HALF_AN_INTERSECTION,
}
ELSEWHERE = {"13_simultaneous_open": "tests/sessions/test_session.py"}
"""Stories of rules that belong to sessions, with the files that test these rules."""


def test_each_numbered_scenario_names_its_rule() -> None:
    numbered = {path.stem for path in (HERE / "scenarios").glob("[0-9]*.txt")}
    assert numbered == RULES.keys() | ELSEWHERE.keys()
    assert all((TESTS.parent / place).exists() for place in ELSEWHERE.values())


@pytest.mark.parametrize("name", RULES)
def test_a_scenario_changes_without_its_rule(name: str) -> None:
    told = (HERE / "scenarios" / f"{name}.txt").read_text(encoding="utf-8")
    with plant_mutants([RULES[name]]):
        assert play_scenario(told) != told


def test_without_the_start_cut_a_bypass_brings_back_one_and_loses_the_next() -> None:
    told = (HERE / "scenarios" / "01_bypass_resurrects.txt").read_text(encoding="utf-8")
    with plant_mutants([Mutant.NO_LAST_IN_CUT]):
        assert "gap: c-s/1 got (3, 0, 1) 3 after 1, without 2" in play_scenario(told)
