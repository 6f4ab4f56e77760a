"""Tests of targets: goals for brokers, and refusals before any run."""

from pathlib import Path

import pytest

from bench.run.expectations import COMPONENTS, Expectation
from bench.spec.spec import BENCH_FOLDER
from bench.spec.targets import Target, experiment_of, load_targets
from bench.spec.validation import SpecError

OURS = BENCH_FOLDER / "targets" / "performance.toml"
FILE = """
schema = "pubsubctl/targets/1"
name = "story"

[[targets]]
id = "slow"
what = "a chain"
workload = "chain3-paced"
set = { "publishers.rate" = "10/s" }
expectations = { "latency.p50" = "<= 1ms" }
"""


def loaded(tmp_path: Path, text: str) -> list[Target]:
    path = tmp_path / "story.toml"
    path.write_text(text)
    return load_targets(path).select([])


def test_our_own_targets_can_be_run() -> None:
    targets = load_targets(OURS).select([])
    for target in targets:
        assert target.list_expectations()
        if target.component is None:
            assert experiment_of(target, target.workload, "performance.toml").protocol
    assert {target.component for target in targets} == {None, *COMPONENTS}


def test_a_target_changes_keys_of_its_workload(tmp_path: Path) -> None:
    (target,) = loaded(tmp_path, FILE)
    spec = experiment_of(target, target.workload, "story.toml")
    assert spec.workload_mapping()["publishers"][0]["rate"] == "10/s"
    assert [judged.wanted for judged in target.list_expectations()] == ["<= 1ms"]


def test_only_those_that_are_named_are_run() -> None:
    ours = load_targets(OURS)
    assert [target.id for target in ours.select(["P4", "P1"])] == ["P1", "P4"], (
        "as the file has them"
    )
    with pytest.raises(SpecError, match="no target 'P11'; did you mean 'P1'"):
        ours.select(["P11"])


@pytest.mark.parametrize(
    "old, new, words",
    [
        ('"latency.p50"', '"latency.p5"', "no metric 'latency.p5'; did you mean 'latency.p50'"),
        ('"<= 1ms"', '"1ms"', "expected <, <=, >, >= or =="),
        ('{ "latency.p50" = "<= 1ms" }', "{}", "expectations"),
        ('what = "a chain"', 'waht = "a chain"', "waht"),
        (
            'id = "slow"',
            'id = "slow"\nwhat = "x"\nworkload = "x"\n'
            'expectations = { "delivery.missing" = "== 0" }\n[[targets]]\nid = "slow"',
            "id = 'slow' stands there twice",
        ),
        ('workload = "chain3-paced"', 'workload = "x"\ncomponent = "matching"', "one of workload"),
        ('workload = "chain3-paced"', "", "one of workload and component"),
        ('workload = "chain3-paced"', 'component = "match"', "component"),
        ('workload = "chain3-paced"', 'component = "matching"', "faults, inventory and set"),
        (
            'workload = "chain3-paced"\nset = { "publishers.rate" = "10/s" }',
            'component = "matching"',
            "latency.p50 is not measured there",
        ),
        ('"latency.p50" = "<= 1ms"', '"matching.miss" = "<= 5us"', "is not measured there"),
    ],
)
def test_a_file_that_is_none_of_targets_is_refused(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        loaded(tmp_path, FILE.replace(old, new))


def test_a_target_that_cannot_be_run_is_refused_by_its_name(tmp_path: Path) -> None:
    (target,) = loaded(tmp_path, FILE.replace("publishers.rate", "publishers.rite"))
    with pytest.raises(SpecError, match=r"story\.toml: target slow: .*did you mean 'rate'"):
        experiment_of(target, target.workload, "story.toml")


@pytest.mark.parametrize(
    "wanted, is_limited, holds",
    [
        (">= 100/s", True, True),
        (">= 300/s", True, None),
        ("< 300/s", True, None),
        ("< 100/s", True, None),
        ("< 300/s", False, True),
        (">= 300/s", False, False),
    ],
)
def test_a_saturated_load_generator_proves_lower_bounds_only(
    wanted: str, is_limited: bool, holds: bool | None
) -> None:
    headline = {"delivered_per_s": 200.0, "is_load_generator_limit": is_limited}
    assert Expectation.of("delivered.rate", wanted).judge(headline).holds is holds


@pytest.mark.parametrize(
    "metric, wanted, measured, text",
    [
        ("latency.p99", "< 20ms", 19_999, "holds with 20 ms"),
        ("latency.p99", "< 20ms", 20_000, "fails with 20 ms"),
        ("latency.p99", "<= 20ms", 20_000, "holds with 20 ms"),
        ("latency.p99", "<= 20s", 30_000_000, "fails with 30 s"),
        ("latency.p99", "<= 20ms", None, "not measured"),
        ("latency.p99", "<= 20ms", "20", "not measured"),
    ],
)
def test_a_judgement_says_what_holds_and_by_which_number(
    metric: str, wanted: str, measured: object, text: str
) -> None:
    judged = Expectation.of(metric, wanted).judge({"response_us": {"p99": measured}})
    assert judged.text == f"{metric} {wanted}: {text}"
    assert judged.number == (text.partition(" with ")[2])
    is_number = isinstance(measured, int)
    holds = text.startswith("holds") if is_number else None
    assert (judged.row()["value"], judged.row()["holds"]) == (
        measured if is_number else None,
        holds,
    )


@pytest.mark.parametrize("text", ["== 1.5", "== -1", "== one", "== ", "1"])
def test_a_count_is_a_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"whole number|expected <"):
        Expectation.of("delivery.missing", text)
    assert Expectation.of("delivery.missing", "== 3").limit == 3
