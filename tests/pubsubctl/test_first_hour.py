"""Stories about a user's own study: file names, predictions, and series without a verdict."""

import errno
import json
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.spec.keys import Overrides
from bench.spec.named_files import resolve_name
from bench.spec.predictions import EXTERNAL, SIMULATED, find_owed_pairs, predictions_of
from bench.spec.spec import load_experiment
from bench.spec.sweep import load_sweep, points_of
from bench.spec.validation import SpecError
from fault_injection.schedule.schedule import read_schedule
from pubsubctl.errors import PreflightFailed, VerdictUnknown
from pubsubctl.runs.outputs import check_results
from pubsubctl.runs.series import merge_equal
from results.reference.history_reader import judge_folder
from tests.pubsubctl.conftest import Call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

usage = namedtuple("usage", ("total", "used", "free"))
TWELVE = """\
schema = "pubsubctl/topology/1"
name = "twelve"
kind = "tree"
brokers = ["p1", "p2", "p3", "p4", "m1", "m2", "m3", "s1", "s2", "s3", "s4", "s5"]
links = [["p1", "m1"], ["p2", "m1"], ["p3", "m2"], ["p4", "m2"], ["m1", "m3"], ["m2", "m3"],
         ["m3", "s1"], ["m3", "s2"], ["m1", "s3"], ["m2", "s4"], ["m2", "s5"]]
"""
STUDY = """\
schema = "pubsubctl/workload/1"
name = "study"
topology = "twelve"
protocol = "delta_tree"
calm = true
seed = 7
[phases]
warmup = "1s"
measure = "12s"
[attributes]
symbol = { choose = 40 }
price = { uniform = [1, 500] }
[[publishers]]
at = ["p1", "p2"]
rate = "50/s"
[[publishers]]
at = "p4"
rate = "2/s"
[[subscribers]]
at = "s1"
filter = "price <= 250"
[[subscribers]]
at = "s3"
filter = "symbol = 'SYMBOL007'"
"""
SWEEP = """\
schema = "pubsubctl/sweep/1"
name = "both"
workload = "../workloads/study.toml"
[axes]
protocol = ["delta_tree", "best_effort"]
"""


def _study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> Path:
    """Create a project with a topology, a workload and a sweep, and enter it."""
    folder = tmp_path / "study"
    assert call("init", str(folder)).status == 0
    (folder / "bench/topologies/twelve.toml").write_text(TWELVE)
    (folder / "bench/workloads/study.toml").write_text(STUDY)
    (folder / "bench/sweeps/both.toml").write_text(SWEEP)
    monkeypatch.chdir(folder)
    return folder


def test_a_new_project_has_a_folder_for_each_kind_of_file(call: Call, tmp_path: Path) -> None:
    result = call("init", str(tmp_path / "my study"))
    assert result.status == 0, result.err
    for kind in ("topologies", "workloads", "sweeps", "comparisons", "experiments"):
        assert (tmp_path / "my study" / "bench" / kind).is_dir(), kind
    assert f"next: cd '{tmp_path}/my study' && " in result.err
    assert "next: cd ./-dash && " in call("init", "--", "-dash").err


def test_a_projects_files_are_found_by_their_bare_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    for line in (
        "sweep study --over protocol=delta_tree,best_effort",
        "sweep both",
        "compare study --against protocol=best_effort",
        "sweep demo --set topology=twelve --set subscribers.at=s1 --over publishers.at=p1,p2",
    ):
        result = call("--dry-run", *line.split())
        assert result.status == 0, (line, result.err)


def test_a_workload_finds_the_topology_of_its_own_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    study = _study(tmp_path, monkeypatch, call)
    monkeypatch.chdir(tmp_path)
    assert load_experiment("study/bench/workloads/study.toml").topology.name == "twelve"
    assert load_experiment(study / "bench/workloads/study.toml").topology.name == "twelve"
    with pytest.raises(SpecError, match="no workload called 'study'"):
        load_experiment("study")


def test_a_topology_of_the_command_line_is_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    study = _study(tmp_path, monkeypatch, call)
    other = study / "other.toml"
    other.write_text(TWELVE.replace('"twelve"', '"other"'))
    (study / "bench/workloads/other.toml").write_text(TWELVE)
    found = load_experiment("study", Overrides(topology="./other.toml"))
    assert found.topology.name == "other"


def test_an_unknown_topology_names_the_nearest_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    with pytest.raises(SpecError, match="did you mean 'twelve'"):
        load_experiment("study", Overrides(topology="twelv"))


def test_a_path_in_a_file_is_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    study = _study(tmp_path, monkeypatch, call)
    sweep = study / "bench/sweeps/both.toml"
    assert Path(resolve_name("../workloads/study.toml", sweep)).resolve() == (
        study / "bench/workloads/study.toml"
    )
    assert resolve_name("study", sweep) == "study"


def test_an_ordinary_workload_has_no_predicted_doubt_and_lists_pairs_owed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    found = predictions_of(load_experiment("study"), None)
    assert [each.kind for each in found] == ["note"]
    assert "s3-sub-1 of p4-pub-1 (its filter matches none of 26)" in found[0].text


def test_each_command_predicts_the_same_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    bar = ("--set", "bars.deliveries_per_pair_min=100")
    said = (
        "s3-sub-1 is owed 0 of 26 publications of p4-pub-1, and 3 more pairs have too few; below "
        "100 the verdict is UNKNOWN; measure for"
    )
    for line in (
        "bench study",
        "sweep study --over protocol=delta_tree,best_effort",
        "compare study --against protocol=best_effort",
    ):
        result = call("--dry-run", *line.split(), *bar)
        assert result.status == 0, (line, result.err)
        assert result.err.count(said) == 1, (line, result.err)
        assert "deliveries_per_pair_min" in result.err


def test_a_prediction_about_some_points_of_a_sweep_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    result = call("--dry-run", "sweep", "study", "--over", "calm=true,false")
    assert result.status == 0, result.err
    assert "warning: calm=false: nothing is at risk without faults" in result.err


def test_the_predicted_numbers_are_those_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    study = _study(tmp_path, monkeypatch, call)
    # Simulated runs have no warm-up.
    (study / "bench/workloads/study.toml").write_text(
        STUDY.replace('warmup = "1s"', 'warmup = "0s"')
    )
    result = call("simulate", "run", "study", "--record", "--no-check", "-o", "runs")
    assert result.status == 0, result.err
    (run,) = (path.parent for path in Path("runs/study").glob("2*/manifest.json"))
    judgement = judge_folder(run)
    owed = find_owed_pairs(load_experiment("study"))
    assert owed is not None
    assert judgement.counts.owed == sum(pair.owed for pair in owed) > 600
    assert judgement.verdict == "VALID", judgement.doubts
    assert judgement.counts.least_owed == ("s3-sub-1/1", "p4/0", 0)


def test_a_series_of_unknown_runs_ends_with_its_tables_and_status_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, spark: "SparkSession"
) -> None:
    _study(tmp_path, monkeypatch, call)
    bar = ("--set", "bars.deliveries_per_pair_min=10000", "--set", "phases.measure=2s")
    result = call("sweep", "study", "--over", "simulated=true", "--instances", "2", *bar)
    assert result.status == 3, result.err
    assert "series.latency is not drawn" in result.err
    assert result.err.count("error: ") == 1, "one line for all runs"
    assert " and 1 more run: UNKNOWN: " in result.err
    verdicts, numbers = result.out.split("NUMBER")
    assert [*verdicts.split()][:5] == ["POINT", "VALID", "INVALID", "UNKNOWN", "TYPICAL"]
    assert "  0      0        2        " in verdicts
    assert "latency_p99_ms" in numbers


def test_equal_reasons_of_many_runs_are_one_line() -> None:
    runs = [Path("runs/a"), Path("runs/b"), Path("runs/c")]
    found = [(run, VerdictUnknown(f"{run}: UNKNOWN: saturated")) for run in runs]
    found.append((runs[0], VerdictUnknown(f"{runs[0]}: UNKNOWN: torn log")))
    assert [*map(str, merge_equal(found))] == [
        "runs/a and 2 more runs: UNKNOWN: saturated",
        "runs/a: UNKNOWN: torn log",
    ]


def test_a_sweep_and_a_comparison_keep_the_seed_of_the_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    study = _study(tmp_path, monkeypatch, call)
    both = load_sweep(study / "bench/sweeps/both.toml")
    workload = study / "bench/workloads/study.toml"
    assert {point.spec.seed for point in points_of(both, workload, Overrides(), "both")} == {7}
    other = both.model_copy(update={"seed": 11})
    assert {point.spec.seed for point in points_of(other, workload, Overrides(), "both")} == {11}
    typed = Overrides(seed=3)
    assert {point.spec.seed for point in points_of(other, workload, typed, "both")} == {3}


def test_a_sweep_can_be_labelled_and_left_unjudged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    monkeypatch.setattr("results.checker.spark.spark_session", None)
    line = ("sweep", "study", "--over", "simulated=true", "--set", "phases.measure=2s")
    result = call(*line, "--no-check", "--label", "machine=laptop", "-o", "runs")
    assert result.status == 0, result.err
    assert "not judged; the same command without --no-check does that" in result.out
    assert not [*Path("runs").glob("*/2*/verdict.json")]
    manifests = [json.loads(path.read_text()) for path in Path("runs").glob("*/2*/manifest.json")]
    (labels,) = (each["labels"] for each in manifests if "labels" in each)
    assert (labels["machine"], labels["experiment"]) == ("laptop", "study-sweep")


def test_labels_are_those_of_the_runs_of_each_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    options = ("-d", "1s", "--record", "--no-check", "--label", "who=ann", "-o", "made")
    assert call("simulate", "run", "study", *options).status == 0
    (path,) = Path("made").glob("*/2*/manifest.json")
    assert json.loads(path.read_text())["labels"] == {"who": "ann", "brokers": "simulated"}
    plain: list[Any] = []
    for module in ("demo", "targets"):
        monkeypatch.setattr(f"pubsubctl.runs.{module}.run_interruptibly", _leave)
        monkeypatch.setattr(
            f"pubsubctl.runs.{module}.describe_abandoned", lambda spec: plain.append(spec) or ""
        )
        assert call(module, "--label", "who=ann").status == 70, "_Left"
    assert {spec.labels["who"] for spec in plain} == {"ann"}
    assert {next(iter({*spec.labels} - {"who"})) for spec in plain} == {"demo", "target"}


class _Left(Exception):
    """The end of a command before its first run."""


def _leave(*_: object, **options: object) -> None:
    raise _Left


def test_options_of_a_series_go_with_each_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    options = ("--no-check", "--no-teardown", "--label", "a=b", "--budget", "30min")
    for line in ("sweep study --over seed=1,2", "compare study --against best_effort"):
        result = call("--dry-run", *line.split(), *options)
        assert result.status == 0, (line, result.err)
    result = call("sweep", "study", "--over", "seed=1,2", "--label", "point=x")
    assert (result.status, "a series sets this label itself" in result.err) == (2, True)
    for line, by in (
        ("demo --label demo=x", "the demo"), ("targets --label target=x", "a target"),
        ("experiment gd02.fig6 --label point=x", "an experiment"),
        ("experiment ges.load --label point=x", "an experiment"),
    ):  # fmt: skip
        result = call(*line.split())
        assert (result.status, f"{by} sets this label itself" in result.err) == (2, True), line
    result = call("simulate", "run", "study", "--label", "who=ann")
    assert (result.status, "--label requires --record" in result.err) == (2, True)
    result = call("compare", "--comparison", "s3", "--no-check")
    assert (result.status, "can be used with --against" in result.err) == (2, True)
    result = call("bench", "study", "--instances", "2", "--rolling")
    assert (result.status, "--rolling can be used with one run only" in result.err) == (2, True)


def test_a_folder_without_a_run_names_the_runs_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    study = _study(tmp_path, monkeypatch, call)
    (study / "empty").mkdir()
    assert "empty: this folder holds no run" in call("check", "./empty").err.replace("'", "")
    for number in range(6):
        run = study / f"mine/twelve/2026010{number}T000000Z-abcdef"
        run.mkdir(parents=True)
        (run / "manifest.json").write_text("{}")
    for name in ("mine", "mine/twelve"):
        said = call("check", name).err
        assert "this folder is no run; it holds" in said
        assert "20260105T000000Z-abcdef, " in said
        assert "and 2 more" in said
    latest = study / "results/runs/latest"
    latest.mkdir(parents=True)
    (latest / "manifest.json").write_text("{}")
    assert "this folder is no run; it holds" in call("check", ".").err
    missing = call("check", "no/such/run")
    assert (missing.status, missing.err) == (
        2,
        "error: run 'no/such/run': no such folder or run id\n",
    )


def test_an_output_creates_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    for line in (
        "topology gen chain --brokers 3 -o deep/er/chain.toml",
        "topology show twelve --svg deep/and/other/twelve.svg",
    ):
        result = call(*line.split())
        assert result.status == 0, (line, result.err)
    assert Path("deep/er/chain.toml").is_file()


def test_results_that_cannot_be_written_are_found_before_anything_is_deployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    for line in (
        "bench study",
        "sweep study --over seed=1,2",
        "compare study --against best_effort",
    ):
        result = call(*line.split(), "-o", "/proc/none")
        assert result.status == 4, (line, result.err)
        assert "/proc/none: cannot be created: no such file or directory" in result.err
        assert "starting agents" not in result.err


def test_a_run_that_is_larger_than_the_free_space_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(10**9, 10**9, 10**8))
    spec = load_experiment("demo", Overrides(rate="10000/s"))
    with pytest.raises(PreflightFailed, match=r"MB free, and the run needs about [\d,.]+ MB"):
        check_results(tmp_path / "runs", spec)
    check_results(tmp_path / "runs", load_experiment("demo"))


def test_a_full_disk_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pubsubctl.commands.topology.write_output", fail)
    result = call("topology", "gen", "chain", "-o", "chain.toml")
    assert result.status == 4, result.err
    assert "no space left on the disk of results/runs" in result.err


def test_a_rate_that_brokers_determine_is_predicted_as_open_with_the_publications_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    study = _study(tmp_path, monkeypatch, call)
    file = study / "bench/workloads/study.toml"
    file.write_text(STUDY.replace('rate = "2/s"', 'rate = "max"'))
    bar = Overrides(keys={"bars.deliveries_per_pair_min": 6})
    found = predictions_of(load_experiment("study", bar), None)
    assert [each.kind for each in found] == ["open"]
    assert "not predicted: the publications of p4-pub-1" in found[0].text
    # Four of the hundred attribute sets have the symbol.
    assert "s3-sub-1 is owed 4 % of them, so the verdict is UNKNOWN below about 150" in (
        found[0].text
    )
    file.write_text(file.read_text().replace("SYMBOL007", "no such symbol"))
    found = predictions_of(load_experiment("study", bar), None)
    assert [each.kind for each in found] == ["doubt", "open"]
    assert "s3-sub-1 is owed 0 of 650 publications of p1-pub-1, and 2 more pairs" in found[0].text


def test_the_predictions_of_a_simulation_count_its_own_rates_and_late_subscriptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    study = _study(tmp_path, monkeypatch, call)
    text = STUDY.replace('rate = "2/s"', 'rate = "max"').replace('"12s"', '"2s"')
    text = text.replace('price <= 250"\n', 'price <= 250"\nsubscribes = "1200ms"\n')
    (study / "bench/workloads/study.toml").write_text(text)
    result = call("simulate", "run", "study", "--record", "--no-check", "-o", "runs")
    assert result.status == 0, result.err
    (run,) = (path.parent for path in Path("runs/study").glob("2*/manifest.json"))
    judgement = judge_folder(run)
    owed = find_owed_pairs(load_experiment("study"), SIMULATED)
    assert owed is not None
    assert {pair.published for pair in owed} == {100, 2000}
    predicted = sum(pair.owed or 0 for pair in owed)
    # The window opens a moment after the late subscription, which only the simulation shows.
    assert 0.9 * predicted < judgement.counts.owed <= predicted
    plan = call("--dry-run", "simulate", "run", "study", "--record", "--set", "calm=false")
    assert plan.status == 0, plan.err
    assert "publications are owed from the start of the last subscription (s1-sub-1)" in plan.err
    assert "verdict UNKNOWN: nothing is at risk without faults" in plan.out


def test_a_search_for_the_highest_rate_predicts_doubts_at_its_first_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    _study(tmp_path, monkeypatch, call)
    line = ("limit", "study", "--p99", "20ms", "--from-rate", "2/s", "--to-rate", "1k/s")
    result = call("--dry-run", *line, "--set", "bars.deliveries_per_pair_min=100")
    assert result.status == 0, result.err
    assert "warning: 2/s: s3-sub-1 is owed 0 of 26 publications of p1-pub-1" in result.err
    assert result.err.count("below 100 the verdict is UNKNOWN") == 1
    assert "verdict UNKNOWN: s3-sub-1 is owed 0 of 26" in result.out
    assert "nothing is at risk" not in call("--dry-run", "limit", "survive").err


def test_a_run_on_external_brokers_predicts_doubts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    study = _study(tmp_path, monkeypatch, call)
    file = study / "bench/workloads/study.toml"
    file.write_text(STUDY.replace("price <= 250", "symbol = 'no such symbol'"))
    spec = load_experiment("study", Overrides(keys={"bars.deliveries_per_pair_min": 1}))
    servers = replace(spec.topology, name="servers")
    workload = spec.workload.model_copy(update={"protocol": "mosquitto", "calm": False})
    step = {"id": "k", "do": "kill", "on": "leader", "at": "1s"}
    document = {"schema": "pubsubctl/faults/1", "name": "k", "origin": "measure", "step": [step]}
    schedule = read_schedule(document, "k.toml")
    found = predictions_of(replace(spec, workload=workload, topology=servers), schedule, EXTERNAL)
    assert [each.kind for each in found] == ["doubt", "open"]
    assert "s1-sub-1 is owed 0 of 650 publications of p1-pub-1" in found[0].text
    assert "k is done to leader, which is chosen during the run" in found[1].text


def test_a_rate_shape_is_simulated_predicted_and_judged_by_its_own_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    study = _study(tmp_path, monkeypatch, call)
    shape = '[{ for = "1s", at = "20/s" }, { for = "2s", at = "20/s", to = "200/s" }]'
    text = STUDY.replace('rate = "50/s"', f"rate = {shape}").replace('"12s"', '"5s"')
    (study / "bench/workloads/study.toml").write_text(text)
    spec = load_experiment("study")
    assert str(spec.workload.publishers[0].rate.per_second) == "80"
    result = call("simulate", "run", "study", "--record", "--no-check", "-o", "runs")
    assert result.status == 0, result.err
    (run,) = (path.parent for path in Path("runs/study").glob("2*/manifest.json"))
    judgement = judge_folder(run)
    assert judgement.verdict == "VALID", judgement.doubts
    owed = find_owed_pairs(spec, SIMULATED)
    assert owed is not None
    # 20 + 220 publications in 3 s, then 20 + 65 in half of the ramp; its stairs are short.
    (published,) = {pair.published for pair in owed if pair.publisher == "p1-pub-1"}
    assert 315 <= (published or 0) <= 335
    assert judgement.counts.owed == sum(pair.owed or 0 for pair in owed)
