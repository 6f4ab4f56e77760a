"""Tests of the ledger: it counts each run once, and detects a swarm that misses bugs."""

from dataclasses import replace

import pytest

from brokerd.protocols.delta_tree.checks.ablations import CANARIES
from brokerd.simulator.checks.protocol_checks import simulation_of
from brokerd.simulator.search.ablations import (
    EVERY,
    Caught,
    canaries_among,
    first_catch,
    run_canary,
)
from brokerd.simulator.search.ledger import (
    Campaign,
    LedgerError,
    check_ledger,
    empty_ledger,
    with_caught,
    with_runs,
)
from brokerd.simulator.search.swarm import SwarmOptions, run_swarm
from tests.helpers.delta_tree_bugs import Mutant

CLEAN = Campaign(commit="abc", dirty=False, protocol="delta_tree")


def test_seeds_are_counted_once_however_often_they_run() -> None:
    reports = list(run_swarm(range(6), "delta_tree"))
    once = with_runs(empty_ledger(), CLEAN, reports)
    entry = once["entries"][0]
    assert entry["seeds"] == [[0, 5]]
    assert entry["deliveries"] == sum(report.counters["deliveries"] for report in reports) > 0
    assert once["total"]["faults_landed"] == sum(entry["faults"].values()) > 0
    assert with_runs(once, CLEAN, reports[2:4]) == once
    parts = with_runs(with_runs(empty_ledger(), CLEAN, reports[:2]), CLEAN, reports[4:])
    assert parts["entries"][0]["seeds"] == [[0, 1], [4, 5]]
    assert with_runs(parts, CLEAN, reports) == once


def test_another_commit_is_another_entry_and_changed_code_replaces_itself() -> None:
    reports = list(run_swarm(range(3), "delta_tree"))
    both = with_runs(
        with_runs(empty_ledger(), CLEAN, reports), replace(CLEAN, commit="def"), reports
    )
    assert [entry["commit"] for entry in both["entries"]] == ["abc", "def"]
    assert both["total"]["runs"] == 6
    dirty = replace(CLEAN, dirty=True)
    again = with_runs(with_runs(empty_ledger(), dirty, reports), dirty, reports[:1])
    assert again["total"]["runs"] == 1


def test_a_named_bug_stands_in_the_table_with_its_first_seed_and_not_in_the_totals() -> None:
    options = SwarmOptions(mutants=frozenset((Mutant.CONFIRM_ON_RECEIPT,)))
    reports = list(run_swarm(range(4), "delta_tree", options=options))
    document = with_runs(empty_ledger(), replace(CLEAN, mutants=("M21",)), reports)
    assert document["total"]["runs"] == document["total"]["violations"] == 0
    assert document["entries"][0]["violations"]
    caught = first_catch("M21")
    document = with_caught(document, "abc", [caught])
    first = next(report for report in reports if report.violations)
    assert document["mutants"]["M21"]["first_seed"] == caught.first_seed == first.seed
    assert document["mutants"]["M21"]["rule"] == first.rule
    again = with_caught(document, "def", [Caught("M21", 9, "gap", 10, "")])
    assert again["mutants"]["M21"]["commit"] == "def"


def test_runs_with_manual_settings_have_their_own_ledger_entry_and_count() -> None:
    reports = list(run_swarm(range(2), "delta_tree"))
    broken = [replace(reports[0], violations=("lost",), rule="delivery"), reports[1]]
    document = with_runs(empty_ledger(), replace(CLEAN, settings=("moves",)), broken)
    document = with_runs(document, replace(CLEAN, profile="paper"), broken)
    document = with_runs(document, replace(CLEAN, commit="def"), reports)
    assert len(document["entries"]) == 3
    assert (document["total"]["runs"], document["total"]["violations"]) == (6, 2)
    latest = document["latest"]
    assert (latest["commit"], latest["runs"], latest["violations"]) == ("def", 2, 0)


def test_an_invalid_ledger_is_refused() -> None:
    for wrong in ([], {"schema": "pubsubctl/reliability/0"}, {**empty_ledger(), "entries": 3}):
        with pytest.raises(LedgerError):
            check_ledger(wrong)
    assert check_ledger(empty_ledger()) == empty_ledger()


def test_one_seed_in_a_hundred_has_a_canary() -> None:
    assert canaries_among(range(1, 501)) == [99, 199, 299, 399, 499]


@pytest.mark.parametrize("place", range(len(CANARIES)), ids=CANARIES.__getitem__)
def test_every_canary_fails(place: int) -> None:
    report = run_canary("delta_tree", place * EVERY + EVERY - 1)
    assert report.mutant == CANARIES[place]
    assert report.failed_at >= 0
    assert report.rule


def test_a_canary_that_nothing_sees_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """This swarm cannot meet the bug: the sender of frames is no part of a simulation."""
    blind = replace(simulation_of("delta_tree"), canaries=(str(Mutant.HALF_A_FRAME),))
    monkeypatch.setattr("brokerd.simulator.search.ablations.simulation_of", lambda protocol: blind)
    monkeypatch.setattr("brokerd.simulator.search.ablations.TRIES", 2)
    assert run_canary("delta_tree", 99).failed_at == -1
