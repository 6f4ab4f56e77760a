"""Tests of claims: the conclusions that numbers permit about sentences."""

import hashlib
import json
import math
import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.papers.experiments import load_figure_experiment
from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.runs.claims import (
    Claim,
    Tolerance,
    judge,
    load_claims,
    measurement,
    measurements,
)
from pubsubctl.runs.figure_archives import archive_run, archived_measurements, relative_words
from pubsubctl.runs.paper_experiments import experiment_names
from results.tables.seals import seal, verify_seal
from tests.helpers.runs import ARCHIVES, unpack_sample
from tests.pubsubctl.conftest import Call

OURS = Path(__file__).parents[2] / "bench" / "claims"
TEXT = """
schema = "pubsubctl/claims/1"
paper = "DFT11"

[[claims]]
name = "fig10.delta3"
figure = "dft11.fig10"
statement = "97 % arrive"
paper_value = "97 %"
metric = "delivered_percent"
tolerance = { at_least = 97.0 }
tests = "paper"
wrong = { value = 50.0, system = "loses half" }
scale = { brokers = 500 }
"""


def claim(**changes):
    values = {
        "name": "a", "figure": "dft11.fig10", "statement": "97 % arrive", "paper_value": "97 %",
        "metric": "delivered_percent", "tolerance": {"at_least": 97.0}, "scale": {"brokers": 500},
        "tests": "paper", "wrong": {"value": -1.0, "system": "counts backwards"},
    }  # fmt: skip
    values |= changes
    if "at_most" in values["tolerance"] and "wrong" not in changes:
        values["wrong"] = {"value": 1e9, "system": "counts everything"}
    return Claim.model_validate(values)


def drawn(value, *, brokers=500, run_id="20261120T113502Z-7f3a9c", figure="dft11.fig10", **more):
    return measurement(
        {
            "schema": "pubsubctl/figure/1",
            "figure": figure,
            "caption": "",
            "run_ids": [run_id],
            "scale": {"brokers": brokers},
            "metrics": {"delivered_percent": {"value": value, **more}},
        },
        "figures/dft11.fig10.json",
    )


def the_outcome(claim, *measurements):
    [outcome] = judge([claim], measurements)
    return outcome


def test_a_claim_holds_at_the_bound_and_fails_below_it():
    assert the_outcome(claim(), drawn(97.0)).state == "holds"
    fails = the_outcome(claim(), drawn(96.9, low=95.0, high=98.0))
    assert (fails.state, fails.ours, fails.interval) == ("fails", 96.9, (95.0, 98.0))
    assert fails.row()["ci"] == "95 … 98"
    assert fails.row()["tolerance"] == "≥ 97"


def test_a_number_that_is_none_bears_nothing_out():
    assert the_outcome(claim(), drawn(math.nan)).state == "fails"
    assert the_outcome(claim(tolerance={"at_most": 3}), drawn(math.nan)).state == "fails"


def test_a_claim_without_comparisons_does_not_hold():
    figure = drawn(99.0)
    counted = [replace(figure, metrics={**figure.metrics, "points": (n, None)}) for n in (0, 2)]
    needy = claim(needs="points")
    assert [the_outcome(needy, found).state for found in counted] == ["not run", "holds"]
    ours = {claim.name: claim for claim in load_claims(OURS / "dft11.toml")}
    assert ours["fig9.fanout-points"].needs == "points_with_enough_losses_to_compare_fanouts"
    assert not any(ours[f"fig12.grows-{fanout}"].tolerance.allows(0.0) for fanout in (3, 7))


@pytest.mark.parametrize(
    "file, figure", [("dft11", "dft11.starts"), ("dft11", "dft11.overhead"), ("gd02", "gd02.fig6")]
)
def test_a_count_of_mistakes_needs_something_in_which_they_could_be_made(file, figure):
    counts = [
        claim
        for claim in load_claims(OURS / f"{file}.toml")
        if claim.figure == figure and claim.tolerance.at_most == 0
    ]
    assert counts
    for claim in counts:
        empty = {claim.metric: (0.0, None), claim.needs: (0.0, None)}
        found = replace(drawn(0.0, figure=figure), metrics=empty, scale=dict(claim.scale))
        assert the_outcome(claim, found).state == "not run", claim.name
        assert claim.needs, claim.name


@pytest.mark.parametrize(
    "file, figure",
    [("dft11", "dft11.starts"), ("dft11", "dft11.overhead"), ("gd02", "gd02.fig6"),
     ("ds03", "ds03.pfs")],
)  # fmt: skip
def test_a_tolerance_that_was_fixed_before_the_runs_has_a_source(file, figure):
    found = [claim for claim in load_claims(OURS / f"{file}.toml") if claim.figure == figure]
    assert found
    for claim in found:
        assert (bool(claim.tolerance_from), claim.set_after_results) == (True, ""), claim.name


def test_a_claim_on_a_missing_figure_is_not_run():
    outcome = the_outcome(claim(), drawn(99.0, figure="dft11.fig9"))
    assert (outcome.state, outcome.ours) == ("not run", None)
    assert outcome.because == "dft11.fig10 was not drawn"


def test_a_smaller_experiment_is_no_evidence():
    outcome = the_outcome(claim(), drawn(99.0, brokers=100))
    assert outcome.state == "not run"
    assert outcome.because == "dft11.fig10 was drawn with brokers = 100 instead of 500"


def test_the_latest_run_at_the_right_scale_counts():
    early = drawn(99.0, run_id="20261120T113502Z-7f3a9c")
    late = drawn(90.0, run_id="20261120T113503Z-000000")
    small = drawn(99.0, run_id="20261121T000000Z-000000", brokers=100)
    outcome = the_outcome(claim(), late, small, early)
    assert (outcome.state, outcome.because) == (
        "fails",
        "run 20261120T113503Z-000000, with brokers = 500",
    )


def test_an_unknown_metric_of_a_figure_is_an_error():
    with pytest.raises(UserError, match="no number called 'delivered_per_cent'; did you mean"):
        the_outcome(claim(metric="delivered_per_cent"), drawn(99.0))


def test_a_tolerance_prints_and_applies_its_bounds():
    assert str(Tolerance(at_least=2, at_most=6.5)) == "≥ 2, ≤ 6.5"
    assert [Tolerance(at_most=3).allows(value) for value in (-1, 3, 3.1)] == [True, True, False]


@pytest.mark.parametrize(
    "change, problem",
    [
        (("at_least = 97.0", "at_leats = 97.0"), "unknown key; did you mean 'at_least'?"),
        (("{ at_least = 97.0 }", "{}"), "at_least, at_most or both"),
        (("at_least = 97.0", "at_least = 3, at_most = 2"), "at least 3.0 and at most 2.0"),
        (('metric = "delivered_percent"\n', ""), "key 'metric' is missing"),
        (("scale = { brokers = 500 }\n", ""), "key 'scale' is missing"),
        (("scale = { brokers = 500 }", "scale = {}"), "scale"),
        (('"dft11.fig10"', '"fig 10"'), "figure = 'fig 10'"),
        (('schema = "pubsubctl/claims/1"', 'schema = "pubsubctl/topology/1"'), "this reads"),
    ],
)
def test_a_claims_file_with_a_slip_is_refused_with_its_line(tmp_path, change, problem):
    path = tmp_path / "claims.toml"
    path.write_text(TEXT.replace(*change))
    with pytest.raises(UserError) as refused:
        load_claims(path)
    assert problem in str(refused.value)
    assert f"{path}:" in str(refused.value)


def test_two_claims_of_one_name_are_refused(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text(TEXT + TEXT[TEXT.index("[[claims]]") :])
    with pytest.raises(UserError, match=r"two claims are called 'fig10\.delta3'"):
        load_claims(path)


@pytest.mark.parametrize(
    "document",
    [{}, {"schema": "pubsubctl/figure/1", "figure": "dft11.fig9", "scale": {}, "metrics": []}],
)
def test_an_invalid_figure_file_is_refused(document):
    with pytest.raises(IntegrityError, match=r"there\.json"):
        measurement(document, "there.json")


OUR_CLAIMS = [claim for path in sorted(OURS.glob("*.toml")) for claim in load_claims(path)]


@pytest.mark.parametrize("claim", OUR_CLAIMS, ids=[claim.name for claim in OUR_CLAIMS])
def test_each_claim_of_ours_fails_for_a_wrong_system(claim):
    numbers = {claim.metric: {"value": claim.wrong.value}}
    if claim.needs:
        numbers[claim.needs] = {"value": 1.0}
    document = {
        "schema": "pubsubctl/figure/1", "figure": claim.figure, "run_ids": ["1"],
        "scale": claim.scale, "metrics": numbers,
    }  # fmt: skip
    assert the_outcome(claim, measurement(document, "wrong.json")).state == "fails"


def test_a_claim_that_a_wrong_system_passes_cannot_be_made():
    with pytest.raises(ValueError, match="≥ 97 allows 98, which a wrong system measures"):
        claim(wrong={"value": 98.0, "system": "loses 2 %"})


def test_the_claim_of_97_percent_excludes_100_percent():
    (ours,) = (each for each in OUR_CLAIMS if each.name == "fig10.delta3")
    assert [ours.tolerance.allows(value) for value in (94.0, 97.0, 100.0)] == [False, True, False]


def test_claims_against_our_own_model_are_marked_as_ours():
    of_model = {each.name for each in OUR_CLAIMS if each.tests == "ours"}
    by_model = {each.name for each in OUR_CLAIMS if "computed" in each.paper_value}
    assert len(by_model) == 16
    assert by_model <= of_model
    assert not any(each.paper_value.startswith("none; ours") for each in OUR_CLAIMS
                   if each.tests == "paper")  # fmt: skip


def test_no_two_claims_of_ours_have_one_name() -> None:
    names = [claim.name for path in sorted(OURS.glob("*.toml")) for claim in load_claims(path)]
    assert len({*names}) == len(names)


def test_our_claims_can_all_be_read_and_none_runs_by_itself():
    files = sorted(OURS.glob("*.toml"))
    assert files
    for path in files:
        outcomes = judge(load_claims(path), [])
        assert {outcome.state for outcome in outcomes} == {"not run"}


def test_claims_are_marked_if_counted_differently_or_set_after_results():
    ours = {claim.name: claim for claim in load_claims(OURS / "dft11.toml")}
    beyond_the_paper = ("bypass.", "exclusions.", "queue.")
    afterwards = {name for name, claim in ours.items() if claim.set_after_results}
    assert afterwards == {
        *(name for name in ours if name.startswith(beyond_the_paper)),
        *("fig9.fanout-points", "fig10.barriers", "fig10.delta3"),
        *("fig12.grows-3", "fig12.grows-7", "fig12.protocol"),
    }
    differs = {name: claim.differs for name, claim in ours.items() if claim.differs}
    assert set(differs) == {name for name in ours if name.startswith("fig9.")}
    assert all("pairs" in said and "chains" in said for said in differs.values())


def test_results_for_short_partitions_do_not_support_claims_on_long_ones():
    ours = [claim for claim in load_claims(OURS / "dft11.toml") if claim.name == "queue.empties"]
    scale = load_figure_experiment("dft11.queue").scale()
    for broken_s, state in ((20, "holds"), (2, "not run")):
        document = {
            "schema": "pubsubctl/figure/1", "figure": "dft11.queue", "run_ids": ["1"],
            "scale": {**scale, "broken_s": broken_s}, "metrics": {"drained_s": {"value": 1.0}},
        }  # fmt: skip
        assert the_outcome(*ours, measurement(document, "queue.json")).state == state


def test_every_claim_can_be_held_against_the_experiment_of_its_figure():
    for claim in load_claims(OURS / "dft11.toml"):
        experiment = load_figure_experiment(claim.figure)
        scale = experiment.scale() if hasattr(experiment, "scale") else vars(experiment)
        assert {name: scale[name] for name in claim.scale} == claim.scale, claim.name


def test_archived_runs_support_claims_and_small_ones_are_marked():
    ours = load_claims(OURS / "dft11.toml")
    archived = archived_measurements(ARCHIVES, [claim.figure for claim in ours])
    outcomes = judge(ours, archived)
    assert {o.claim.figure for o in outcomes if o.state == "holds"} == {
        *(f"dft11.{name}" for name in ("fig9", "fig10", "fig11", "fig12", "bypass", "exclusions")),
        *(f"dft11.{name}" for name in ("queue", "starts", "overhead")),
    }
    assert all(o.because.startswith("archived run ") for o in outcomes if o.state == "holds")
    failed = {o.claim.name for o in outcomes if o.state == "fails"}
    assert failed == {"fig10.delta3", "fig10.step-3-2", "fig10.step-2-1"}, "of one drawn tree"
    small = [found for found in archived if found.scale.get("brokers") == 100]
    because = "dft11.fig10 was drawn with brokers = 100 instead of 500"
    found = [o for o in judge(ours, small) if o.claim.figure == "dft11.fig10"]
    assert {o.because[: len(because)] for o in found} == {because}


def test_every_archived_figure_decides_its_claims() -> None:
    claims = [claim for path in OURS.glob("*.toml") for claim in load_claims(path)]
    archived = archived_measurements(ARCHIVES, [claim.figure for claim in claims])
    figures = {found.figure for found in archived}
    assert {"gd02.fig8", "mp22.m4", "ds03.pfs", "ges.fig7", "control.churn"} <= figures
    undecided = {
        outcome.claim.figure
        for outcome in judge(claims, archived)
        if outcome.state == "not run" and outcome.claim.figure in figures
    }
    assert undecided == set()


@pytest.mark.parametrize("seal", ["{digest}  figures/dft11.fig9.json", "{digest}  manifest.json"])
def test_a_number_that_was_changed_by_hand_decides_no_claim(tmp_path, seal):
    run = unpack_sample("dft11-fig9", tmp_path)
    numbers = run / "figures" / "dft11.fig9.json"
    assert len(measurements(tmp_path, ["dft11.fig9"])) == 1
    assert len(measurements(run, ["dft11.fig9"])) == 1, "a run may be named itself"
    digest = hashlib.sha256(numbers.read_bytes()).hexdigest()
    (run / "SHA256SUMS").write_text(seal.format(digest=digest) + "\n")
    document = json.loads(numbers.read_text())
    numbers.write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match=f"plot dft11.fig9 {run}` draws it again"):
        measurements(tmp_path, ["dft11.fig9"])
    (run / "SHA256SUMS").unlink()
    assert len(measurements(tmp_path, ["dft11.fig9"])) == 1


def test_statements_of_claims_are_short() -> None:
    claims = [claim for path in OURS.glob("*.toml") for claim in load_claims(path)]
    assert [claim.name for claim in claims if len(claim.statement) > 120] == []


def test_claims_are_listed_by_verdict_with_paper_and_figure(call: Call) -> None:
    document = call("claims", "list", "--only", "holds", "-j").document
    assert document["claims"] == []
    assert document["total"]["not run"] > 0  # the summary counts all claims
    lines = call("claims", "list", "dft11", "--only", "not-run").out.splitlines()
    assert lines[0].split()[:3] == ["CLAIM", "FIGURE", "VERDICT"]
    assert lines[1].split()[1:4] == ["dft11.fig9", "not", "run"]
    wrong = call("claims", "list", "--only", "hold")
    assert wrong.status == 2
    assert "--only 'hold'; did you mean 'holds'?" in wrong.err


def test_a_claim_names_a_command_that_exists() -> None:
    names = {*experiment_names()}
    claims = [claim for path in OURS.glob("*.toml") for claim in load_claims(path)]
    assert [claim.name for claim in claims if claim.figure not in names] == []


def test_an_archive_of_a_run_is_small_whole_and_equal_each_time(tmp_path: Path) -> None:
    run = unpack_sample("dft11-queue", tmp_path)
    (tmp_path / "one").mkdir()
    (run / "figures" / "dft11.queue.svg").write_text("<svg/>")
    made = archive_run(run, tmp_path / "one")
    assert made.figures == ("dft11.queue",)
    assert made.left_out == ()
    assert made.path.read_bytes() == (ARCHIVES / "dft11-queue.tar.xz").read_bytes()
    (found,) = archived_measurements(tmp_path / "one", ["dft11.queue", "dft11.fig9"])
    assert found.archived
    assert found.metrics["most_bypassed"] == (126.0, None)
    raw = next((run / "raw").rglob("queues.jsonl"))
    raw.write_text(raw.read_text() + "\n")
    with pytest.raises(IntegrityError, match=r"queues\.jsonl has changed"):
        archive_run(run, tmp_path / "one")
    (run / "figures" / "dft11.queue.json").unlink()
    with pytest.raises(UserError, match="no numbers of a paper's figure"):
        archive_run(run, tmp_path / "one")


def test_an_archive_has_relative_paths_only_and_a_seal_that_holds(tmp_path: Path) -> None:
    run = unpack_sample("dft11-queue", tmp_path)
    words = [
        "experiment",
        "dft11.queue",
        "-o",
        "/home/ada/lab/runs",
        "--set=a=/srv/x",
        "-i~/l.toml",
    ]
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["argv"] = ["/home/ada/.venv/bin/pubsubctl", *words]
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "spec").mkdir(exist_ok=True)
    (run / "spec" / "cli.json").write_text('{"file": "/home/ada/lab/bench/mine.toml"}')
    seal(run)
    (tmp_path / "one").mkdir()
    path = archive_run(run, tmp_path / "one").path
    shutil.unpack_archive(path, tmp_path / "again", filter="data")
    again = json.loads((tmp_path / "again" / "manifest.json").read_text())
    assert again["argv"] == [
        *("pubsubctl", "experiment", "dft11.queue", "-o", "runs", "--set=a=x", "-il.toml"),
    ]
    cli = json.loads((tmp_path / "again" / "spec" / "cli.json").read_text())
    assert cli == {"file": "mine.toml"}
    assert verify_seal(tmp_path / "again").is_there
    assert json.loads((run / "manifest.json").read_text()) == manifest
    project = Path("/home/ada/lab")
    assert relative_words(["/home/ada/lab/runs/a"], project) == ["runs/a"]


def contents_of(path: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield the files of an archive with their contents."""
    with tarfile.open(path) as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            yield entry, b"" if file is None else file.read()


def test_no_archive_names_a_folder_of_a_machine() -> None:
    """A path that begins with a root folder; hosts' own folders are in their inventories."""
    found = [
        (path.name, entry.name)
        for path in sorted(ARCHIVES.glob("*.tar.xz"))
        for entry, content in contents_of(path)
        if entry.name.endswith(".json") and re.search(rb'"(?:-\w|[^"]*=)?/\w+/', content)
    ]
    assert found == []


def test_changed_numbers_in_an_archive_decide_no_claim(tmp_path: Path) -> None:
    run = unpack_sample("dft11-queue", tmp_path)
    numbers = run / "figures" / "dft11.queue.json"
    numbers.write_text(numbers.read_text().replace("126.0", "1.0"))
    with tarfile.open(tmp_path / "dft11-queue.tar.xz", "w:xz") as archive:
        for name in ("SHA256SUMS", "figures/dft11.queue.json", "manifest.json"):
            archive.add(run / name, name)
    with pytest.raises(IntegrityError, match=r"figures/dft11\.queue\.json has changed"):
        archived_measurements(tmp_path, ["dft11.queue"])
    (tmp_path / "dft11-queue.tar.xz").write_bytes(b"no archive")
    with pytest.raises(IntegrityError, match="no archive of a run"):
        archived_measurements(tmp_path, ["dft11.queue"])
