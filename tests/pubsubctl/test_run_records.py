"""Stories about finished runs: listed, described, labelled, measured and removed."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import results.report
from bench.run.run_directory import RunDirectory
from bench.run.series import KIND
from pubsubctl.console.console import Console
from pubsubctl.runs import verdicts
from pubsubctl.runs.run_changes import note_plain_verdict, refresh_run_index, write_run_index
from pubsubctl.runs.run_records import RunFilter, RunRecord, record_of
from pubsubctl.runs.verdicts import judge_with
from results.repetitions import series_runs
from results.tables.derived import VerdictMark
from results.tables.seals import seal, verify_seal
from tests.pubsubctl.conftest import Call

FIRST, SECOND, SERIES, HALF = (f"2026010{day}T000000Z-aaaaaa" for day in (1, 2, 3, 4))


def make_run(experiment: str, run_id: str, verdict: str = "", **about: Any) -> Path:
    folder = Path("results", "runs", experiment, run_id)
    folder.mkdir(parents=True)
    started = f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}T00:00:00.000Z"
    manifest = {
        "run_id": run_id, "experiment": experiment, "state": "complete",
        "protocol": "delta_tree", "seed": 7,
        "started_utc": started, "argv": ["pubsubctl", "bench", "demo"], "labels": {}, **about,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if verdict:
        (folder / "verdict.json").write_text(json.dumps({"verdict": verdict}))
    return folder


@pytest.fixture
def runs(project: Path) -> Path:
    """Return a folder with two runs of a series, the series, and an unfinished run."""
    make_run("demo", FIRST, "valid", labels={"point": "a"})
    make_run("demo", SECOND, "invalid", protocol="gryphon")
    make_run("demo", SERIES, kind=KIND, runs={"a": [FIRST, SECOND]}, protocol=None)
    make_run("chain3", HALF, state="running")
    folder = project / "results" / "runs"
    (folder / "chain3" / "latest").symlink_to(HALF)
    (folder / "latest").symlink_to(f"chain3/{HALF}")
    return folder


def listed(call: Call, *options: str) -> list[str]:
    return [row["run_id"] for row in call("results", "list", "-j", *options).document["runs"]]


@pytest.mark.parametrize(
    "options, found",
    [
        ((), [FIRST, SECOND, SERIES, HALF]),
        (("--experiment", "chain3"), [HALF]),
        (("--protocol", "gryphon"), [SECOND]),
        (("--verdict", "valid"), [FIRST]),
        (("--label", "point"), [FIRST]),
        (("--label", "point=b"), []),
        (("--since", "2026-01-03"), [SERIES, HALF]),
        (("--since", "1h"), []),
        (("--experiment", "demo", "--verdict", "INVALID"), [SECOND]),
    ],
)
def test_runs_are_listed_by_age_and_filtered(
    call: Call, runs: Path, options: tuple[str, ...], found: list[str]
) -> None:
    assert listed(call, *options) == found


def test_a_table_shows_verdicts_and_the_runs_of_a_series(call: Call, runs: Path) -> None:
    rows = [line.split() for line in call("results", "list").out.splitlines()]
    assert rows[1] == [FIRST, "demo", "delta_tree", "complete", "VALID", "point=a"]
    assert " ".join(rows[3]) == f"{SERIES} demo complete 1 VALID, 1 INVALID"
    Path("elsewhere").mkdir()
    assert call("results", "list", "-o", "elsewhere").out == "no runs\n"


def test_a_run_shows_if_its_verdict_is_of_this_program(call: Call, runs: Path) -> None:
    folder = runs / "demo" / FIRST

    def shown() -> str:
        return str(call("results", "show", FIRST, "-j").document["facts"]["judged"])

    seal(folder)
    assert shown().startswith("by another program or user")
    VerdictMark(folder, verify_seal(folder).digest).write()
    seal(folder)
    assert shown() == "by this program and user, from these files"
    (folder / "verdict.json").write_text('{"verdict": "valid", "counts": 7}')
    assert shown().startswith("by another program or user")
    (folder / "log.jsonl").write_text("{}\n")
    assert shown().startswith("before a change of its files: ")


def test_a_verdict_that_changed_since_the_check_is_not_repeated(call: Call, project: Path) -> None:
    """A new seal does not help: the mark of the check names the verdict and the run."""
    runs, folder = project / "results" / "runs", make_run("demo", FIRST, "valid").resolve()
    make_run("demo", SECOND, kind=KIND, runs={"a": [FIRST]}, protocol=None)
    verdict, manifest = folder / "verdict.json", folder / "manifest.json"
    honest = verdict.read_text(), manifest.read_text()
    seal(folder)
    VerdictMark(folder, verify_seal(folder).digest).write()
    seal(folder)

    def shown() -> list[str]:
        (one, series) = (call("results", "list").out.splitlines()[line] for line in (1, 2))
        return [one.split()[4], " ".join(series.split()[3:])]

    assert shown() == ["VALID", "1 VALID"]
    for changed, text in ((verdict, '{"verdict": "invalid"}'), (manifest, honest[1] + " ")):
        changed.write_text(text)
        seal(folder)
        assert shown() == ["CHANGED", "1 CHANGED"], changed
        write_run_index(runs)
        assert (runs / "index.html").read_text().count(">CHANGED<") == 2, "the run and its series"
        verdict.write_text(honest[0])
        manifest.write_text(honest[1])
        seal(folder)
    (folder / "tables" / "judged.json").unlink()
    assert shown()[0] == "VALID"
    verdict.write_text('{"verdict": "invalid"}')
    assert shown()[0] == "CHANGED", "its line in the seal is of another file"


def test_a_pipe_in_place_of_a_file_is_named_and_never_awaited(call: Call, runs: Path) -> None:
    """A pipe without a writer has no end, and opening one waits for a writer."""
    for name in ("manifest.json", "verdict.json"):
        (runs / "demo" / FIRST / name).unlink()
        os.mkfifo(runs / "demo" / FIRST / name)
    os.mkfifo(runs / "index.jsonl")
    assert listed(call) == [FIRST, SECOND, SERIES, HALF]
    assert call("results", "index").status == 0
    for verb in ("show", "label"):
        answer = call("results", verb, FIRST, *(["a=b"] * (verb == "label")))
        assert "no regular file" in answer.err


@pytest.mark.parametrize("line", ["[[[", "3", "{}", '{"same_clock": false, "offset_ns": "x"}'])
def test_a_hostile_comparison_of_clocks_is_refused(call: Call, runs: Path, line: str) -> None:
    (runs / "demo" / FIRST / "clock.jsonl").write_text(f"{line}\n")
    answer = call("clock", "show", FIRST)
    assert (answer.status, "clock.jsonl" in answer.err) == (8, True), answer.err


def refuse_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("results.checker.spark.spark_session", fail)


@pytest.mark.parametrize(
    "table, word, fact",
    [
        ("lost_last_events", "none", "none; this experiment records no deliveries"),
        ("simulated_points", "not judged", "not judged; `pubsubctl check` judges it"),
        ("judged_draws", "not judged", "not judged; `pubsubctl check` judges it"),
    ],
)
def test_an_experiment_has_a_verdict_if_it_records_deliveries(
    call: Call, project: Path, table: str, word: str, fact: str
) -> None:
    run = make_run("simulated", FIRST, kind="simulation", figure="gd02.dct", protocol=None)
    (run / "raw" / "controller" / "simulator").mkdir(parents=True)
    (run / "raw" / "controller" / "simulator" / f"{table}.jsonl").touch()
    rows = [" ".join(line.split()) for line in call("results", "list").out.splitlines()]
    assert f"{FIRST} simulated complete {word}" in rows
    assert f"verdict     {fact}\n" in call("results", "show", str(run)).out
    write_run_index(project / "results" / "runs")
    page = (project / "results" / "runs" / "index.html").read_text()
    assert ("1 not judged" in page) == (word == "not judged")


def test_a_verdict_of_an_experiment_is_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("simulated", FIRST, kind="simulation", figure="dft11.fig10")
    document = {"verdict": "valid", "lines": ["VALID"], "because": []}
    judge = "results.papers.dft11.delivery_figures.check_simulated_run"
    monkeypatch.setattr(judge, lambda *_: document)
    with Console(quiet=True).progress() as progress:
        assert judge_with(None, run, progress).verdict == "VALID"
    assert record_of(run).verdict == "VALID"


def test_an_experiment_without_deliveries_is_refused_without_spark(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_spark(monkeypatch)
    run = make_run("simulated", FIRST, kind="graph", figure="dft11.fig9", protocol=None)
    answer = call("check", str(run))
    assert (answer.status, answer.err) == (
        2, f"error: {run}: no deliveries are recorded, so none can be judged; plot it\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    "figure, kind, words",
    [
        ("gd02.dct", "run", "this is a run of brokers, with run.topology, timeline, rate, "
            "spectrum, run.memory; `pubsubctl experiment gd02.dct` makes a run of it"),
        ("series.sweep", "run", "`pubsubctl sweep WORKLOAD --over KEY=A,B` makes a run of it"),
        ("gd02.fig7", "run", "`pubsubctl experiment gd02.fig7` makes a run of it"),
        ("timeline", "search", "this is a search, with search.knee; `pubsubctl bench WORKLOAD`"),
        ("ges.load", "simulation", "this is a run of dft11.fig10, with dft11.fig10.seconds"),
        ("search.knee", KIND, "this is a series, with series.sweep; `pubsubctl limit WORKLOAD"),
    ],
)  # fmt: skip
def test_a_figure_of_another_kind_of_run_is_refused_without_spark(
    call: Call,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    figure: str,
    kind: str,
    words: str,
) -> None:
    refuse_spark(monkeypatch)
    about = {"figures": ["series.sweep"], "figure": "dft11.fig10"} if kind != "run" else {}
    run = make_run("other", FIRST, **({"kind": kind} if kind != "run" else {}), **about)
    answer = call("plot", figure, str(run))
    assert answer.status == 2
    assert answer.err.startswith(f"error: {run}: no {figure}: this is ")
    assert words in answer.err


def test_a_name_that_no_run_has_is_answered_with_the_nearest() -> None:
    run = RunRecord(
        folder=Path(FIRST), experiment="demo", kind="run", state="complete",
        protocol="delta_tree", verdict="", started_utc="", labels={"point": "a"},
    )  # fmt: skip
    conditions = RunFilter(experiment="demo", protocol="delta", labels=("pint=b", "point=b"))
    assert conditions.explain_names([run]) == [
        "--protocol = 'delta': no run has it; did you mean 'delta_tree'?",
        "--label = 'pint': no run has it; did you mean 'point'?",
    ]
    assert conditions.explain_names([]) == []


def test_a_filter_that_no_run_meets_is_a_warning(call: Call, runs: Path) -> None:
    answer = call("results", "list", "--protocol", "delta")
    assert answer.out.startswith("no runs of ")
    assert answer.err.startswith("warning: --protocol = 'delta': no run has it")


def test_a_run_is_described(call: Call, runs: Path) -> None:
    out = call("results", "show", SECOND).out
    assert "verdict     INVALID" in out
    assert "command     pubsubctl bench demo" in out
    assert call("results", "show", HALF, "-j").document["facts"]["state"] == "interrupted"
    assert "verdict     1 VALID, 1 INVALID" in call("results", "show", SERIES).out


def test_only_a_run_that_a_process_writes_is_listed_as_running(call: Call, project: Path) -> None:
    directory = RunDirectory(project / "results" / "runs" / "chain3" / HALF)
    directory.begin("chain3", {})
    assert call("results", "list").out.splitlines()[1].split()[2] == "running"
    assert "it runs; --force removes it" in call("results", "remove", HALF, "--yes").err
    directory.leave()
    assert call("results", "list").out.splitlines()[1].split()[2] == "interrupted"


def test_an_unpacked_archive_of_a_series_is_named_as_such(call: Call, project: Path) -> None:
    series = make_run("demo", SERIES, kind=KIND, runs={"a": [FIRST]}, figures=["gd02.fig7"])
    (series / "runs" / FIRST).mkdir(parents=True)
    for verb in (["plot", "gd02.fig7"], ["plot", "timeline"], ["check"], ["report"]):
        answer = call(*verb, str(series))
        assert answer.status == 2
        assert "this is the archive of a series" in answer.err
        assert "`pubsubctl experiment gd02.fig7` makes new runs" in answer.err


def test_a_run_of_a_series_is_listed_with_the_verdict_of_the_plain_judge(
    call: Call, project: Path
) -> None:
    runs = project / "results" / "runs"
    second = make_run("demo", SECOND, "invalid")
    third = make_run("demo", "20261128T000009Z-aaaaaa")
    assert "not judged" in call("results", "list", "--experiment", "demo").out
    note_plain_verdict(third, "VALID")
    note_plain_verdict(second, "VALID")  # Spark has judged this run
    with (runs / "index.jsonl").open("a") as index:
        index.write('{"run_id": "20261128T000009Z-aaaaaa", "plain_verdict": "MAYBE"}\n')
    rows = call("results", "list", "--experiment", "demo").out.splitlines()
    assert "VALID (plain judge)" in rows[-1]
    page, _ = write_run_index(runs)
    assert page.read_text().count("VALID by the plain judge") == 1
    assert not any("plain judge" in row for row in rows[:-1])


def test_a_run_with_records_on_its_hosts_is_not_removed_unasked(call: Call, project: Path) -> None:
    make_run("demo", FIRST, "valid")
    half = make_run("chain3", HALF, state="running")
    (half / "uncollected.json").write_text('{"folders": [], "end": {}}')
    assert "uncollected" in call("results", "list", "--experiment", "chain3").out
    refused = call("results", "remove", HALF, "--yes")
    assert refused.status == 2
    assert f"`pubsubctl results collect {HALF}` fetches them" in refused.err
    refused = call("check", HALF)
    assert (refused.status, "its records are on its hosts" in refused.err) == (2, True)
    refused = call("results", "collect", FIRST)
    assert (refused.status, "all records of this run are here" in refused.err) == (2, True)


def test_a_label_is_set_replaced_and_removed_beside_the_sealed_run(call: Call, runs: Path) -> None:
    sealed = (runs / "demo" / SECOND / "manifest.json").read_bytes()
    assert call("results", "label", SECOND, "best=y", "of=paper").status == 0
    assert listed(call, "--label", "best=y") == [SECOND]
    assert call("results", "label", SECOND, "best=", "of=talk").out.endswith(": of=talk\n")
    assert listed(call, "--label", "best") == []
    assert (runs / "demo" / SECOND / "manifest.json").read_bytes() == sealed
    with (runs / "index.jsonl").open("a") as index:
        index.write('{"run_id": 7, "labels": 8}\nhalf a li')
    assert listed(call, "--label", "of=talk") == [SECOND]


def test_removal_needs_a_yes_and_repairs_latest(call: Call, runs: Path) -> None:
    for options in ((), ("--dry-run",)):
        answer = call("results", "remove", FIRST, SECOND, SERIES, *options)
        assert answer.status == (0 if options else 2)
        assert "would remove" in answer.out
        assert (runs / "demo" / FIRST).is_dir()
    assert call("results", "remove", HALF, "--force", "--yes").status == 0
    assert not (runs / "chain3").exists()
    assert (runs / "latest").readlink() == Path("demo", SERIES)
    assert call("results", "remove", FIRST, SECOND, SERIES, "-y").status == 0
    assert listed(call) == []
    assert not (runs / "latest").is_symlink()


def test_sizes_are_summed_by_experiment(call: Call, runs: Path) -> None:
    document = call("results", "size", "-j").document
    assert list(document["experiments"]) == ["chain3", "demo"]
    assert document["total_bytes"] == sum(document["experiments"].values()) > 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["list", "--verdict", "good"], "one of valid, invalid, unknown"),
        (["list", "--since", "yesterday"], "or a date such as 2026-11-30"),
        (["show", "latst"], "did you mean 'latest'?"),
        (["label", FIRST, "best"], "write KEY=VALUE"),
        (["label", FIRST, "a b=c"], "write KEY=VALUE"),
        (["label", FIRST, "a=" + "b" * 201], "at most 200 characters"),
        (["remove", FIRST, "--yes"], f"needs {FIRST}; remove the series, too, or neither"),
        (["remove", HALF, "--yes"], "this run has no end"),
        (["remove", "outside/demo/" + FIRST, "--yes"], "removes runs of results/runs only"),
        (["list", "--dry-run"], "has no --dry-run"),
    ],
)
def test_a_request_that_cannot_be_is_refused(
    call: Call, runs: Path, arguments: list[str], said: str
) -> None:
    outside = Path("outside", "demo", FIRST)
    outside.mkdir(parents=True)
    (outside / "manifest.json").write_text("{}")
    answer = call("results", *arguments)
    assert answer.status == 2
    assert said in answer.err
    assert (runs / "demo" / FIRST).is_dir()
    assert outside.is_dir()


def test_one_page_shows_all_runs_the_newest_first(call: Call, runs: Path) -> None:
    (runs / "demo" / FIRST / "report.html").write_text("<p>")
    document = call("results", "index", "-j").document
    assert (document["page"], document["runs"]) == ("results/runs/index.html", 4)
    page = (runs / "index.html").read_text()
    assert page.index(SERIES) < page.index(SECOND) < page.index(FIRST)
    assert f'href="demo/{FIRST}/report.html"' in page
    assert f"no report: <code>pubsubctl report {SECOND}</code>" in page
    assert all(count in page for count in ("1 VALID", "1 INVALID", "1 not judged"))
    assert "://" not in page
    (runs / "demo" / "report.html").write_text(f"<p>{SECOND}")
    call("results", "index")
    page = (runs / "index.html").read_text()
    assert page.count('<a href="demo/report.html">report on demo</a>') == 2
    assert f"no report: <code>pubsubctl report {SECOND}</code>" not in page


def test_the_page_follows_labels_and_removals(call: Call, runs: Path) -> None:
    call("results", "label", FIRST, "note=<b>bold</b>")
    page = (runs / "index.html").read_text()
    assert "note = &lt;b&gt;bold&lt;/b&gt;" in page
    call("results", "remove", HALF, "--force", "--yes")
    assert HALF not in (runs / "index.html").read_text()


def test_a_page_over_no_runs_is_refused_or_empty(call: Call, project: Path) -> None:
    answer = call("results", "index", "-o", "elsewhere")
    assert answer.status == 2
    assert "elsewhere: no such folder of runs" in answer.err
    Path("empty").mkdir()
    call("results", "index", "-o", "empty")
    assert "There is no run yet" in Path("empty", "index.html").read_text()


def test_a_page_that_cannot_be_written_is_no_error_of_a_run(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "index.jsonl").write_text("")
    (runs / "index.html").mkdir()
    with Console().progress() as progress:
        refresh_run_index([runs / "demo" / FIRST], progress)
    assert "the page over all runs was not written: " in capsys.readouterr().err


def test_the_report_of_a_series_is_linked_from_the_page_over_all_runs(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_page(_folders: object, page: Path, **_: object) -> None:
        page.write_text("a report")

    make_run("demo", FIRST, "valid")
    seal(make_run("demo", SERIES, kind=KIND, runs={"a": [FIRST]}, protocol=None))
    runs = project / "results" / "runs"
    monkeypatch.setattr(verdicts, "draw_and_judge", lambda *_: {})
    monkeypatch.setattr(results.report, "write_experiment_report", write_page)
    monkeypatch.setattr(series_runs, "verdict_lines", lambda _: [])
    (runs / "index.jsonl").write_text("")
    answer = call("report", SERIES)
    assert answer.status == 0, answer.err
    assert f'href="demo/{SERIES}/report.html"' in (runs / "index.html").read_text()
