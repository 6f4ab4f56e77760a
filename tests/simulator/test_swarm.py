"""Tests of swarms: whole clusters drawn from a seed, with random faults, judged by the oracle."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from brokerd.simulator.checks.marks import compute_coverage, describe_coverage
from brokerd.simulator.checks.protocol_checks import marks_of
from brokerd.simulator.search import determinism
from brokerd.simulator.search.ledger import describe_totals
from brokerd.simulator.search.seed_report import SeedReport, total
from brokerd.simulator.search.swarm import SwarmOptions, run_seed, run_swarm
from tests.helpers.seeds import seeds_of_the_mix

CORES = os.cpu_count() or 1
SEEDS = 48
LONG = 1
DETERMINISTIC = 12

# What must have happened somewhere in the seeds for their verdict to mean anything.
LEAST = {
    "adversarial_seeds": SEEDS // 3,
    "seeds_with_links_broken_for_ever": SEEDS // 4,
    "seeds_with_one_way_links_broken_for_ever": SEEDS // 10,
    "stalled_by_broken_links": 8,
    "simulated_ms": LONG * 500_000,
    "faults_landed": 800,
    "published": 7_000,
    "deliveries": 8_000,
    "owed": 8_000,
    "at_risk": 1_000,
    "subscriptions": 250,
    "duplicates_at_clients": 1,
    "bypass_sessions": 300,
    "old_messages": 15,
    "encoded_seeds": 3,
    "messages_lost": 300,
    "sessions_lost_silent": 150,
    "opens_failed": 150,
    "duplicates_received": 1_500,
    "seeds_telling_duplicates_both_ways": SEEDS // 10,
    "dedupe_disagreements": 1,
    "resent_publications": 1_500,
    "messages_ignored": 15,
    "fault_kill": 5,
    "fault_kill_twice": 5,
    "fault_absorb_then_kill": 5,
    "fault_absorb_then_release": 5,
    "fault_freeze_then_thaw": 5,
    "fault_freeze_then_kill": 5,
    "fault_cut": 5,
    "fault_cut_one_way": 5,
    "fault_blackhole": 5,
    "fault_absorb_link_then_cut": 5,
    "fault_absorb_link_then_heal": 5,
    "fault_suspect": 5,
    "fault_delay": 5,
    "fault_client_drop": 5,
    "fault_slow_client": 5,
}

_reports: list[SeedReport] = []


def test_delta_tree_keeps_its_promises_under_up_to_delta_failures() -> None:
    for report in run_swarm(seeds_of_the_mix(SEEDS, long=LONG), "delta_tree", CORES):
        assert not report.violations, report.describe()
        _reports.append(report)


def test_the_seeds_were_not_empty(record_property: Callable[[str, object], None]) -> None:
    """A swarm without failures or owed deliveries proves nothing."""
    if len(_reports) < SEEDS:
        pytest.skip("judges the seeds above, of which not all were run")
    ledger = total(_reports)
    record_property("measured", f"swarm of delta_tree: {describe_totals(ledger)}")
    lacking = {
        name: ledger.get(name, 0) for name, least in LEAST.items() if ledger.get(name, 0) < least
    }
    assert not lacking, f"too little of {lacking} in {ledger}"
    marks = compute_coverage(marks_of("delta_tree"), _reports)
    record_property("measured", describe_coverage(marks))
    assert all(mark.is_enough for mark in marks), describe_coverage(marks)


def test_best_effort_loses_publications_when_something_fails() -> None:
    """The oracle can find violations."""
    reports = list(run_swarm(seeds_of_the_mix(12, long=0), "best_effort"))
    violating = [report for report in reports if report.violations]
    assert len(violating) > 6, total(reports)
    rules = " ".join(violation for report in violating for violation in report.violations)
    assert "gap" in rules
    assert "incomplete" in rules


def test_best_effort_loses_nothing_while_nothing_fails() -> None:
    seeds = seeds_of_the_mix(16, long=0)
    for report in run_swarm(seeds, "best_effort", options=SwarmOptions(faults=False)):
        assert not report.violations, report.describe()
        assert report.counters["deliveries"]


def test_a_violation_reports_its_command_for_repetition() -> None:
    report = run_seed(3, "best_effort")
    said = report.describe()
    assert "seed 3: at " in said
    assert "last steps:" in said
    assert "pubsubctl simulate swarm --protocol best_effort --seeds 3..3" in said


def test_a_seed_repeats_its_history_and_another_seed_differs() -> None:
    first, again, other = (run_seed(seed, "delta_tree") for seed in (8, 8, 9))
    assert first == again
    assert first.digest != other.digest


def test_a_swarm_over_processes_reports_what_one_process_reports() -> None:
    alone = [report.digest for report in run_swarm(range(4), "delta_tree")]
    shared = [report.digest for report in run_swarm(range(4), "delta_tree", processes=2)]
    assert shared == alone


def test_seeds_have_equal_histories_under_any_string_hash() -> None:
    """Iteration over a set of strings would change the history or counters."""
    first = [report for report in _reports if report.seed <= DETERMINISTIC]
    if len(first) < DETERMINISTIC:
        first = [*run_swarm(range(1, DETERMINISTIC + 1), "delta_tree", CORES)]
    assert len({report.digest for report in first}) == DETERMINISTIC
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    arguments = ["1", str(DETERMINISTIC), "delta_tree", ""]
    program = [sys.executable, "-m", determinism.__name__, *arguments]
    environment = os.environ | {"PYTHONHASHSEED": hashes}
    lines = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    assert lines.stdout.splitlines() == [determinism.line_of(report) for report in first]


def test_differences_between_interpreters_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail."""
    program = "import os; print(os.environ['PYTHONHASHSEED']); print('the same')"
    monkeypatch.setattr(
        "brokerd.simulator.search.determinism._command", lambda *_: [sys.executable, "-c", program]
    )
    assert determinism.find_differing_seeds(1, 2, "delta_tree") == [1]
