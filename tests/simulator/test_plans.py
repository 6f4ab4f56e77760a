"""Tests of plans: a seed as a value that can be written, read, reduced, and repeated."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from brokerd.protocols.delta_tree.checks.ablations import ABLATIONS
from brokerd.simulator.search.client_moves import PublicationRun, Reattachment, SubscriptionRequest
from brokerd.simulator.search.move import PlanError
from brokerd.simulator.search.moves import FaultInjection, LaneChoice
from brokerd.simulator.search.plan import Plan, read_plan, write_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.planning.draw import is_long
from brokerd.simulator.search.swarm import SwarmOptions, plan_of, run_seed
from tests.helpers.delta_tree_bugs import Mutant

FOLDER = Path(__file__).parent / "plans"
PLANS = sorted(FOLDER.glob("*.plan"))
SOUND = sorted(FOLDER.joinpath("sound").glob("*.plan"))


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_equals_the_plan_of_its_text(seed: int) -> None:
    plan = plan_of(seed, "delta_tree", SwarmOptions(mutants=frozenset((Mutant.NO_CUT,))))
    assert read_plan(write_plan(plan, ["A story."])) == plan


@pytest.mark.parametrize("seed", [3, 13, 19])
def test_a_move_may_name_a_broker_that_joins_later(seed: int) -> None:
    plan = plan_of(seed, "delta_tree", SwarmOptions(moves=True))
    assert read_plan(write_plan(plan)) == plan


@pytest.mark.parametrize("seed", [4, 5])
def test_a_plan_from_its_text_runs_as_its_seed(seed: int) -> None:
    plan = read_plan(write_plan(plan_of(seed, "delta_tree")))
    assert PlanRun(plan).report(-1, "").digest == run_seed(seed, "delta_tree").digest


@pytest.mark.parametrize(
    "protocol, seed",
    [
        ("delta_tree", 1),
        ("delta_tree", 7),
        ("delta_tree", 9),
        pytest.param("ges", 99977, id="joins"),
    ],
)
def test_recorded_choices_of_an_adversary_replay_identically(protocol: str, seed: int) -> None:
    plan = plan_of(seed, protocol)
    drawn = PlanRun(plan, record=True)
    report = drawn.report(-1, "")
    assert len(drawn.taken) > 500
    until_healing = [move for move in drawn.taken if move.when < plan.heal]
    said = replace(plan, drawn=False).with_moves((*plan.moves, *until_healing))
    assert read_plan(write_plan(said)) == said
    assert PlanRun(said).report(-1, "").digest == report.digest


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_left_out_of_a_plan_it_remains_one(seed: int) -> None:
    """Every third move is removed, so faults end that never began, and choices find no target."""
    plan = plan_of(seed, "delta_tree")
    moves = [move for place, move in enumerate(plan.moves) if (place + seed) % 3]
    report = PlanRun(plan.with_moves(moves)).report(seed, "")
    assert not report.violations, report.describe()


def test_no_more_elements_fail_at_once_than_the_plan_allows() -> None:
    """The plan kills three brokers at once; δ = 1 permits one."""
    plan = plan_of(2, "delta_tree")
    plan = replace(plan, failures_at_once=1, links_at_once=1, broken=(), end=plan.heal)
    names = plan.topology.brokers
    kills = [FaultInjection(1_000_000 + place, "kill", (names[place],)) for place in range(3)]
    publications = [move for move in plan.moves if type(move) is PublicationRun]
    report = PlanRun(plan.with_moves([*publications, *kills])).report(2, "")
    assert not report.violations, report.describe()
    assert report.counters["fault_kill"] == 1


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("simulation timed", "simulation time", "line 1, 'simulation time': 'time' is no layer"),
        ("protocol delta_tree", "protocol delta_trees", "did you mean 'delta_tree'?"),
        ("\nheal ", "\nheel ", "unknown word 'heel'; did you mean 'heal'?"),
        (" publish p0-", " publihs p0-", "unknown verb 'publihs'; did you mean 'publish'?"),
        ("limits failed=", "limits fail=", "unknown key 'fail'; did you mean 'failed'?"),
        ("publisher p0-b", "publisher p0-c", "no broker 'c"),
        ("core client", "core klient", "unknown parameter 'klient"),
        ("\nheal ", "\n# heal ", "a plan without a line `heal`"),
        ("\nend ", "\nend soon ", "'soon' is no instant"),
        ("\nheal ", "\nat 1 reattach s-b1 b1\nheal ", "no client can reattach where"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(old: str, new: str, said: str) -> None:
    text = re.sub("core retry_first_ns", "core client_window=5 retry_first_ns",
                  write_plan(plan_of(2, "delta_tree")))  # fmt: skip
    assert old in text, text[:600]
    with pytest.raises(PlanError, match=re.escape(said)):
        read_plan(text.replace(old, new, 1))


def test_a_client_that_reattaches_reads_as_it_was_written() -> None:
    plan = plan_of(2, "durable")
    there, name = Reattachment(7, plan.publishers[0], plan.topology.brokers[0]), "reattach p0-"
    text = write_plan(plan.with_moves([there]))
    assert name in text
    assert read_plan(text).moves == (there,)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_kept_from_a_bug_still_shows_it_and_only_it(path: Path) -> None:
    """The plan violates a rule with the named bug, and no rule without the bug."""
    plan = read_plan(path.read_text(encoding="utf-8"))
    assert plan.mutants, f"{path} names no bug"
    assert plan.faults <= 3
    assert len(plan.topology.brokers) <= 5
    assert plan.publications <= 20
    assert PlanRun(plan).report(-1, "").violations
    sound = PlanRun(replace(plan, mutants=())).report(-1, "")
    assert not sound.violations, sound.describe()


def test_most_bugs_that_a_swarm_sees_have_a_plan() -> None:
    """The plans are small enough to be read; the table of seeds has the others.

    A plan may show a bug that no seed shows any more.
    """
    seen = {name for name, row in ABLATIONS.items() if not row.unseen}
    kept = {path.stem for path in PLANS}
    assert kept <= {*ABLATIONS}
    assert len(kept & seen) > len(seen) // 2, sorted(seen - kept)


@pytest.mark.parametrize("path", SOUND, ids=lambda path: path.stem)
def test_a_plan_in_which_something_was_wrong_once_is_right(path: Path) -> None:
    report = PlanRun(read_plan(path.read_text(encoding="utf-8"))).report(-1, "")
    assert not report.violations, report.describe()


def test_an_impossible_choice_in_a_plan_is_skipped() -> None:
    plan = plan_of(1, "delta_tree")
    moves = [LaneChoice(step, "0>1") for step in range(0, 800, 2)]
    report = PlanRun(plan.with_moves([*plan.moves, *moves])).report(1, "")
    assert not report.violations, report.describe()


SEED_OF_VALUES = {"gryphon": 37, "ges_reliable": 61, "durable": 3}
"""By protocol, a short seed in which such values meet at one broker."""


@pytest.mark.parametrize("protocol", SEED_OF_VALUES)
def test_values_that_are_alike_across_kinds_are_drawn_and_make_no_difference(protocol: str) -> None:
    """A short run of every protocol has such values in the plan."""
    plan = plan_of(seed := SEED_OF_VALUES[protocol], protocol)
    assert {"kind = false", "kind = 0"} <= predicates_of(plan)
    assert not is_long(seed)
    report = PlanRun(plan).report(seed, "")
    assert not report.violations, report.describe()


def predicates_of(plan: Plan) -> set[str]:
    return {move.predicate for move in plan.moves if type(move) is SubscriptionRequest}
