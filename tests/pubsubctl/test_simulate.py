"""Stories about `simulate` at the command line."""

import errno
import fcntl
import json
import os
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import bench
from brokerd.simulator import named_bugs
from brokerd.simulator.anchors import Edit
from brokerd.simulator.checks import protocol_checks
from brokerd.simulator.checks.marks import Mark
from brokerd.simulator.named_bugs import NamedBug
from brokerd.simulator.search import campaign
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.search.swarm import SwarmOptions, run_seed
from pubsubctl.simulation import swarms
from pubsubctl.simulation.ledger_file import update_ledger
from results.reference.history_reader import read_history
from results.reference.rule import check
from tests.pubsubctl.conftest import Call

SCENARIO = """\
# A publication reaches its subscriber.
protocol best_effort
chain b1 b2
----
ok

quietly subscribe b2 true
"""


def test_a_swarm_reports_one_reproducible_digest_per_seed(call: Call) -> None:
    arguments = ("simulate", "swarm", "--protocol", "delta_tree", "--seeds", "7..10", "-j")
    first = call(*arguments, "--processes", "1").document
    assert [row["seed"] for row in first["seeds"]] == [7, 8, 9, 10]
    assert len({row["history_digest"] for row in first["seeds"]}) == 4
    assert first["total"]["deliveries"] > 0
    again = call(*arguments, "--processes", "2").document
    assert first["seeds"] == again["seeds"]


@pytest.mark.parametrize("what", [("swarm", "--seeds", "1..4"), ("campaign", "--runs", "1")])
def test_simulations_that_miss_required_marks_are_unknown(
    what: tuple[str, ...], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has four seeds, or a seed per row, without requested joins or departures."""
    monkeypatch.setattr(swarms, "ROWS", {"links": campaign.CAMPAIGN["links"]})
    marks = (
        Mark("publications-resent", "sent again", seeds=4),
        Mark("leaf-left", "a leaf left", seeds=1),
    )
    monkeypatch.setattr(swarms, "marks_of", lambda protocol: marks)
    monkeypatch.setattr(swarms, "JUDGED_SEEDS", 1)
    answer = call("simulate", *what, "--processes", "1", "-j")
    assert answer.status == 3
    seeds = answer.document["marks"][1]["required"]
    assert "too few seeds reached mark leaf-left (a leaf left): 0, and" in answer.err
    assert f"{seeds} are required; run more seeds" in answer.err
    assert "publications-resent" not in answer.err
    assert [row["mark"] for row in answer.document["marks"]] == ["publications-resent", "leaf-left"]


def test_a_short_swarm_may_miss_marks(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ended with `error: mark left`, which looked like a violation."""
    marks = (Mark("leaf-left", "a leaf left", seeds=1),)
    monkeypatch.setattr(swarms, "marks_of", lambda protocol: marks)
    answer = call("simulate", "swarm", "--seeds", "1..4", "--processes", "1")
    assert answer.status == 0
    assert "0 of 1 marks reached; 100 seeds or more are judged by that" in answer.out


def test_a_caught_mutant_exits_1_and_prints_the_command_to_repeat_it(call: Call) -> None:
    arguments = ("simulate", "swarm", "--seeds", "1..6", "--mutant", "M21", "-j")
    answer = call(*arguments, "--processes", "1")
    assert answer.status == 1
    wrong = [row for row in answer.document["seeds"] if row["violations"]]
    assert wrong
    assert f"--seeds {wrong[0]['seed']}..{wrong[0]['seed']} --mutant M21" in answer.err


def test_an_adversary_reports_one_reproducible_digest_per_seed(call: Call) -> None:
    arguments = ("simulate", "adversary", "--setting", "crashes-delta2", "--seeds", "7..10", "-j")
    first = call(*arguments, "--processes", "1").document
    assert [row["seed"] for row in first["seeds"]] == [7, 8, 9, 10]
    assert len({row["history_digest"] for row in first["seeds"]}) == 4
    assert first["total"]["actions"] > 1_000
    assert first["seeds"] == call(*arguments, "--processes", "2").document["seeds"]


def test_an_adversary_cuts_a_mutant_down_to_a_few_actions(call: Call) -> None:
    arguments = ("simulate", "adversary", "--seeds", "0..0", "--mutant", "M14", "--shrink", "-j")
    answer = call(*arguments, "--processes", "1")
    assert answer.status == 1
    assert "actions are left" in answer.document["story"][0]
    assert len(answer.document["story"]) < 60
    assert "pubsubctl simulate adversary --seeds 0..0 --mutant M14" in answer.err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["swarm", "--protocol", "delta_trees"], "did you mean 'delta_tree'?"),
        (["swarm", "--seeds", "a..b"], "write 7 or 1..500"),
        (["swarm", "--seeds", "9..3"], "runs backwards"),
        (["swarm", "--mutant", "M2"], "no mutant called 'M2'; did you mean"),
        (["swam"], "did you mean 'swarm'?"),
        (["campain"], "did you mean 'campaign'?"),
        (["explore", "--protocol", "grypon"], "did you mean 'gryphon'?"),
        (["explore", "--brokers", "0"], "brokers = 0; from 2 to 6"),
        (["explore", "--faults", "9"], "faults = 9; from 0 to 4"),
        (["explore", "--kind", "crsh"], "did you mean 'crash'?"),
        (["explore", "--max-states", "0"], "--max-states = 0; a search needs a bound above 0"),
        (["explore", "--max-time", "0s"], "--max-time = 0; a search needs a bound above 0"),
        (["explore", "--max-time", "soon"], "a duration has a number and a unit"),
        (["explore", "--delay-bound", "-1"], "--delay-bound = -1; at least 0"),
        (["explore", "--set", "audit_interval_ns=2000000000000"], "the world cannot be bounded"),
        (["swarm", "7"], "unexpected argument"),
        (["swarm", "--campaign", "link"], "did you mean 'links'?"),
        (["campaign", "links-beyon"], "did you mean 'links-beyond'?"),
        (["adversary", "--setting", "links-beyon"], "did you mean 'links-beyond'?"),
        (["adversary", "--seeds", "5..x"], "write 7 or 1..500"),
        (["adversary", "--seeds", "5..1"], "runs backwards; 1..5?"),
        (["adversary", "--campaign", "links"], "no such option: --campaign"),
        (["adversary", "7"], "unexpected argument"),
        (["adversry"], "did you mean 'adversary'?"),
        (["swarm", "--setting", "links"], "no such option: --setting"),
        (["swarm", "--faults", "demo"], "no such option: --faults"),
        (["swarm", "--output", "seed.plan"], "no such option: --output"),
        (["swarm", "--runs", "3"], "no such option: --runs"),
        (["swarm", "--schedules", "3"], "no such option: --schedules"),
        (["swarm", "--full"], "no such option: --full"),
        (["adversary", "--ledger", "ledger.json"], "no such option: --ledger"),
        (["run", "demo", "--seeds", "1..3"], "no such option: --seeds"),
        (["campaign", "--seeds", "1..3"], "no such option: --seeds"),
        (["run", "dmeo"], "did you mean 'demo'?"),
        (["run", "dft11.fig11"], "`pubsubctl experiment dft11.fig11`"),
        (["rnu"], "did you mean 'run'?"),
        (
            ["mutants", "NOPE"],
            "; known: M14, M15, M20, M21, M22, M23, M24, M25, M27, M41, confirm-cov",
        ),
        (["mutants", "NOPE"], " more\n"),
        (["mutants", "M22x"], "did you mean 'M22'?"),
        (["swarm", "--set", "publication_logs=True"], "did you mean 'publication_log'?"),
        (
            ["swarm", "--protocol", "multi_proxy", "--set", "owner=causal"],
            "did you mean 'ownership'?",
        ),
        (["swarm", "--set", "queue_limit=many"], "queue_limit = 'many' is not of type int"),
        (
            ["swarm", "--protocol", "ges_reliable", "--set", "client_linger_ns=3"],
            "client_linger_ns = 3: storages of ges_reliable keep subscriptions",
        ),
        (["shrink"], "takes one seed"),
        (["shrink", "2", "--profile", "papr"], "did you mean 'paper'?"),
        (["shrink", "A"], "takes one seed"),
        (["shrink", "2"], "seed 2 of delta_tree shows no violation"),
        (["swarm", "--seeds", "1..1", "--ledger", "no/such/ledger.json"], "no such file"),
    ],
)
def test_unsuitable_simulation_arguments_are_refused(
    call: Call, arguments: list[str], said: str
) -> None:
    answer = call("simulate", *arguments)
    assert answer.status == 2
    assert said in answer.err


def test_a_workload_is_broken_in_virtual_time_and_judged(call: Call) -> None:
    answer = call("simulate", "run", "demo", "--faults", "demo", "-j")
    assert answer.status == 0, answer.err
    counters = answer.document["counters"]
    assert answer.document["verdict"] == "VALID"
    assert counters["published"] == 6_000
    assert counters["recovered"] == counters["at_risk"] > 1_000
    assert any("restart b1" in line for line in answer.document["story"])


def test_a_recorded_simulation_can_be_judged_from_its_records(call: Call, project: Path) -> None:
    answer = call(
        "simulate", "run", "demo", "--faults", "demo", "--record", "--no-check", "-o", "kept"
    )
    run = Path(answer.out.splitlines()[-1])
    assert run.parts[:2] == ("kept", "demo")
    judgement = check(read_history(run))
    assert judgement.verdict == "VALID", judgement.because
    assert judgement.counts.recovered == judgement.counts.at_risk > 500


def test_a_record_on_a_full_disk_leaves_nothing(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*details: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bench.run.run_directory.RunDirectory.end", fail)
    answer = call("simulate", "run", "chain3", "-d", "1s", "--record", "--no-check", "-o", "kept")
    assert answer.status == 4, answer.err
    assert [path for path in Path("kept").rglob("*") if not path.is_dir()] == []


@pytest.mark.parametrize("verb", ["draw", "run"])
def test_a_file_of_another_kind_is_named(call: Call, project: Path, verb: str) -> None:
    Path("plan").write_text('schema = "pubsubctl/faults/1"\nname = "plan"\n')
    answer = call("simulate", verb, "./plan")
    assert answer.status == 2
    assert "a file of pubsubctl/faults/1 is no plan, no scenario and no history" in answer.err


def test_late_subscriptions_are_for_simulated_brokers(call: Call, project: Path) -> None:
    workload = (Path(bench.__file__).parent / "workloads" / "demo.toml").read_text()
    (project / "late.toml").write_text(workload + 'subscribes = "2s"\n')
    answer = call("bench", "late.toml", "--dry-run")
    assert answer.status == 2
    assert "simulate run late.toml --record" in answer.err


def test_best_effort_is_found_wanting_by_the_same_simulation(call: Call) -> None:
    answer = call("simulate", "run", "demo", "--faults", "demo", "--protocol", "best_effort")
    assert answer.status == 1
    assert "gap: " in answer.err


def test_a_simulation_in_which_nothing_was_at_risk_shows_nothing(call: Call) -> None:
    assert call("simulate", "run", "demo").status == 3


def test_a_scenario_is_played_and_judged_by_its_expectations(call: Call, project: Path) -> None:
    (project / "s.txt").write_text(SCENARIO)
    played = call("simulate", "run", "s.txt")
    assert played.out.startswith("# A publication reaches its subscriber.\nprotocol best_effort\n")
    (project / "s.txt").write_text(played.out)
    assert call("simulate", "run", "s.txt").status == 0
    (project / "s.txt").write_text(played.out.replace("----\nok", "----\nb1 is surprised", 1))
    answer = call("simulate", "run", "s.txt")
    assert answer.status == 1
    assert "-b1 is surprised" in answer.err
    (project / "s.txt").write_text("chian b1 b2\n")
    assert call("simulate", "run", "s.txt").status == 2
    restless = "protocol delta_tree\nchain b1 b2\ndelay b1 b2 90s\nsubscribe b1 true\nstabilize\n"
    (project / "s.txt").write_text(restless)
    answer = call("simulate", "run", "s.txt")
    assert answer.status == 2
    assert "s.txt: 'stabilize': not quiet after 60 s" in answer.err


_shrink_once = cache(swarms.shrink)
"""The search, which takes seconds, made once for several file names."""


def test_a_failing_seed_is_cut_down_to_a_file_that_fails_in_the_same_way(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "small.plan"
    monkeypatch.setattr(swarms, "shrink", _shrink_once)
    arguments = ("simulate", "shrink", "1", "--mutant", "M21", "--output", str(path), "-j")
    document = call(*arguments).document
    assert document["small"]
    assert document["command"] == f"pubsubctl simulate run {path}"
    again = call("simulate", "run", str(path), "-j")
    assert again.status == 1
    assert again.document["rule"] == document["rule"]
    path.write_text(path.read_text().replace("delta=1 M21", "delta=1").replace("delta=2 M21", ""))
    assert call("simulate", "run", str(path)).status == 0
    path.write_text(path.read_text().replace("\nheal ", "\nheel "))
    refused = call("simulate", "run", str(path))
    assert refused.status == 2
    assert "did you mean 'heal'?" in refused.err


@pytest.mark.parametrize("name", ["small.toml", "ges.fig7", "swarm", "two words.plan"])
def test_the_command_that_repeats_a_shrunk_seed_works_for_any_file_name(
    name: str, call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TOML file was mistaken for a workload, a file named as a figure for the figure."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(swarms, "shrink", _shrink_once)
    arguments = ("simulate", "shrink", "1", "--mutant", "M21", "--output", name, "-j")
    document = call(*arguments).document
    program, *words = shlex.split(document["command"])
    assert program == "pubsubctl"
    again = call(*words, "-j")
    assert again.status == 1
    assert again.document["rule"] == document["rule"]


@pytest.mark.parametrize(
    "chosen",
    [
        ("--moves", "--mutant", "move-forgets-positions"),
        ("--campaign", "links", "--mutant", "M21"),
        ("--profile", "paper", "--set", "queue_limit=20", "--mutant", "M21"),
    ],
    ids=lambda chosen: chosen[0],
)
def test_a_swarm_prints_the_command_that_shrinks_its_first_violation(
    chosen: tuple[str, ...], call: Call, project: Path
) -> None:
    swarm = call("simulate", "swarm", "--seeds", "1..4", *chosen, "--processes", "1", "-j")
    first = next(row for row in swarm.document["seeds"] if row["violations"])
    [said] = [line for line in swarm.err.splitlines() if "cut down with: " in line]
    command = said.partition("cut down with: pubsubctl ")[2].split()
    assert command[:3] == ["simulate", "shrink", str(first["seed"])]
    shrunk = call(*command, "-j")
    assert shrunk.status == 0, shrunk.err
    assert f"# Seed {first['seed']} of delta_tree {' '.join(chosen)}, " in shrunk.document["plan"]
    assert call("simulate", "run", shrunk.document["file"], "-j").document["rule"]


def test_the_last_steps_of_a_failing_seed_are_lines_of_their_own(call: Call) -> None:
    seed = next(
        number
        for number in range(1, 9)
        if run_seed(number, "delta_tree", SwarmOptions(mutants=frozenset({"M21"}))).violations
    )
    failed = call("simulate", "swarm", "--seeds", f"{seed}..{seed}", "--mutant", "M21")
    assert "last steps:" in failed.err.splitlines()
    assert "\\n" not in failed.err


def test_mutants_stand_in_a_table_with_their_first_seeds(call: Call, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    arguments = ("--processes", "1", "--ledger", str(ledger))
    answer = call("simulate", "mutants", "M21", "M14", "--runs", "6", *arguments)
    assert answer.status == 0
    assert "--mutant M21" in answer.out
    table = json.loads(ledger.read_text())["mutants"]
    assert list(table) == ["M14", "M21"]
    assert table["M21"]["first_seed"] < 6
    survived = call("simulate", "mutants", "receiver-takes-any-tags", "--runs", "1", *arguments)
    assert survived.status == 1
    assert "was not seen in 1 seed" in survived.err


def test_a_lost_anchor_is_not_a_bug_that_nothing_finds(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger.json"
    sound = named_bugs.bugs_of("delta_tree")
    lost = NamedBug("M21", "Nothing.", (Edit("brokerd/text.py", "no_such", "1", "2"),))
    monkeypatch.setattr(protocol_checks, "bugs_of", lambda protocol: {**sound, "M21": lost})
    arguments = ("--processes", "1", "--ledger", str(ledger))
    answer = call("simulate", "mutants", "M21", "M14", "--runs", "6", *arguments)
    assert answer.status == 8
    assert "M21: anchor lost in brokerd/text.py, no_such: no such function" in answer.err
    assert "was not seen" not in answer.err
    assert list(json.loads(ledger.read_text())["mutants"]) == ["M14"]
    swarm = call("simulate", "swarm", "--seeds", "1", "--mutant", "M21", *arguments)
    assert swarm.status == 8
    assert "M21: anchor lost in brokerd/text.py" in swarm.err


@pytest.mark.parametrize("what", [("mutants", "M21"), ("swarm", "--seeds", "1", "--mutant", "M21")])
def test_named_bugs_need_a_source_checkout(
    what: tuple[str, ...], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_bugs, "_ROOT", tmp_path)
    monkeypatch.setattr(protocol_checks, "bugs_of", named_bugs.bugs_of.__wrapped__)
    answer = call("simulate", *what, "--processes", "1")
    assert answer.status == 2
    assert "named bugs are data of a source checkout: tests/named_bugs is not here" in answer.err


def test_a_swarm_without_mutants_reads_no_named_bugs(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(protocol: str) -> None:
        raise AssertionError(protocol)

    monkeypatch.setattr(protocol_checks, "bugs_of", refuse)
    answer = call("simulate", "swarm", "--seeds", "1..2", "--processes", "1")
    assert answer.status == 0, answer.err


def test_an_adversary_accepts_parameters(call: Call) -> None:
    arguments = ("simulate", "adversary", "--protocol", "gryphon", "--processes", "1", "-j")
    assert call(*arguments, "--seeds", "3", "--set", "events_per_message=1").status == 0
    refused = call(*arguments, "--seeds", "3", "--set", "events_per_mesage=1")
    assert refused.status == 2
    assert "did you mean" in refused.err


def test_all_failing_seeds_are_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later seeds are named by number alone."""
    monkeypatch.setattr(swarms, "SHOWN", 2)
    arguments = ("simulate", "swarm", "--protocol", "best_effort", "--seeds", "1..6", "-j")
    answer = call(*arguments, "--processes", "1")
    wrong = [row["seed"] for row in answer.document["seeds"] if row["violations"]]
    assert len(wrong) > 3
    rest = ", ".join(map(str, wrong[2:]))
    assert f"{len(wrong) - 2} further seeds with a violation: {rest}" in answer.err


def test_a_parameter_set_by_hand_is_part_of_what_repeats_a_seed(call: Call) -> None:
    arguments = ("simulate", "swarm", "--seeds", "1..2", "--processes", "1", "-j")
    with_log = call(*arguments, "--set", "publication_log=True").document
    assert with_log["seeds"] != call(*arguments, "--set", "publication_log=False").document["seeds"]
    assert "--set publication_log=True" in with_log["seeds"][0]["command"]


def test_each_run_appears_in_the_ledger_once(call: Call, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    arguments = ("--processes", "1", "--ledger", str(ledger), "-j")
    assert call("simulate", "campaign", "links", "--runs", "2", *arguments).status == 0
    answer = call("simulate", "swarm", "--seeds", "98..99", *arguments)
    assert answer.status == 0, answer.err
    assert [canary["seed"] for canary in answer.document["canaries"]] == [99]
    document = json.loads(ledger.read_text())
    assert [entry["row"] for entry in document["entries"]] == ["links", ""]
    assert document["total"]["runs"] == 4
    assert document["total"]["canaries_failed"] == 1
    ledger.write_text("{}")
    refused = call("simulate", "swarm", "--seeds", "1..1", "--ledger", str(ledger))
    assert refused.status == 2
    assert "no ledger" in refused.err


@pytest.mark.parametrize(
    "meanwhile", [("swarm", "--seeds", "5..6"), ("campaign", "links", "--runs", "2")]
)
def test_the_ledger_keeps_counts_of_concurrent_commands(
    meanwhile: tuple[str, ...], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger.json"
    counting = ("--processes", "1", "--ledger", str(ledger))
    run_swarm = swarms.run_swarm
    clean = {"git_commit": "abc", "git_dirty": False}
    monkeypatch.setattr("bench.run.run_directory.program_facts", lambda: clean)

    def while_another_counts(*arguments: Any) -> Iterator[SeedReport]:
        monkeypatch.setattr(swarms, "run_swarm", run_swarm)
        call("simulate", *meanwhile, *counting)
        return run_swarm(*arguments)

    monkeypatch.setattr(swarms, "run_swarm", while_another_counts)
    call("simulate", "swarm", "--seeds", "1..2", *counting)
    document = json.loads(ledger.read_text())
    assert document["total"]["runs"] == 4
    counted = [(entry["row"], entry["seeds"]) for entry in document["entries"]]
    assert counted in ([("", [[1, 2], [5, 6]])], [("links", [[0, 1]]), ("", [[1, 2]])])


def test_a_ledger_counts_for_the_code_that_began_to_run(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is made while the swarm runs."""
    facts = {"git_commit": "abc", "git_dirty": False}
    monkeypatch.setattr("bench.run.run_directory.program_facts", lambda: facts.copy())
    run_swarm = swarms.run_swarm

    def while_somebody_commits(*arguments: Any) -> Iterator[SeedReport]:
        facts.update(git_commit="def")
        return run_swarm(*arguments)

    monkeypatch.setattr(swarms, "run_swarm", while_somebody_commits)
    ledger = tmp_path / "ledger.json"
    call("simulate", "swarm", "--seeds", "1..1", "--processes", "1", "--ledger", str(ledger))
    assert [entry["commit"] for entry in json.loads(ledger.read_text())["entries"]] == ["abc"]


def test_a_ledger_is_added_to_by_one_command_at_a_time(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"

    def add_while_another_wants_to(document: dict[str, Any]) -> dict[str, Any]:
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(folder)
        return document

    update_ledger(ledger, add_while_another_wants_to)
    update_ledger(ledger, lambda document: document)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.json"]


def test_seeds_have_equal_histories_in_two_fresh_interpreters(call: Call) -> None:
    answer = call("simulate", "swarm", "--seeds", "1..3", "--verify-determinism", "-j")
    assert answer.status == 0, answer.err
    assert answer.document["differing_seeds"] == []


@pytest.mark.slow
def test_ways_of_telling_duplicates_are_compared(call: Call) -> None:
    answer = call("experiment", "dft11.dedupe", "--schedules", "1", "-j")
    assert answer.status == 0
    assert len(answer.document["rows"]) == 32
    held = [row for row in answer.document["rows"] if row["must_hold"]]
    assert all(row["violated"] == 0 for row in held)
    assert any(row["violated"] for row in answer.document["rows"])
    assert {cost["dedupe"] for cost in answer.document["costs"]} == {"source", "vector"}


def test_a_swarm_with_profile_paper_warns_about_weaker_guarantees(call: Call) -> None:
    arguments = ("simulate", "swarm", "--campaign", "links", "--processes", "1", "--seeds", "2")
    answer = call(*arguments, "--profile", "paper", "-j")
    assert answer.status == 0, answer.err
    assert "warning: duplicates are detected by sequence vectors (profile paper)" in answer.err
    assert answer.document["profile"] == "paper"
    wrong = call(*arguments, "--profile", "papr")
    assert wrong.status == 2
    assert "did you mean 'paper'?" in wrong.err


def test_a_file_that_is_no_text_is_refused(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "damaged.plan"
    path.write_bytes(b"simulation \xff")
    answer = call("simulate", "run", str(path))
    assert answer.status == 2
    assert "byte 11 is not UTF-8" in answer.err


TINY = ("simulate", "explore", "--brokers", "2", "--publications", "1", "--faults", "0", "-j")


def test_explore_tells_whether_a_world_is_complete(call: Call) -> None:
    whole = call(*TINY, "--protocol", "best_effort")
    assert whole.status == 0
    assert whole.document["complete"]
    part = call(*TINY, "--protocol", "best_effort", "--max-states", "5")
    assert part.status == 3
    assert not part.document["complete"]
    assert "raise --max-states" in part.err


def test_explore_names_the_bounds_under_which_a_world_is_complete(call: Call) -> None:
    prompt = call(*TINY, "--protocol", "best_effort", "--no-lag")
    assert prompt.status == 0
    assert not prompt.document["complete"]
    assert prompt.document["complete_within_bounds"]
    assert prompt.document["bounds"] == ["without lag of clients and disks"]
    delayed = call(*TINY[:-1], "--protocol", "best_effort", "--delay-bound", "0")
    assert "complete only within 0 delays: " in delayed.out


def test_a_history_that_explore_writes_repeats_its_violation(call: Call) -> None:
    found = call(*TINY, "--mutant", "M14", "--output", "found.history")
    assert found.status == 1
    assert found.document["rule"] == "unaware source"
    assert "pubsubctl simulate run ./found.history" in found.err
    again = call("simulate", "run", "found.history", "-j")
    assert again.status == 1
    assert again.document["violation"] == found.document["violation"]
