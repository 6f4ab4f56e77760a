"""Tests of sweeps: keys, points, and refusals before any run."""

from typing import Any

import pytest

from bench.spec.keys import (
    Overrides,
    check_keys,
    step_keys,
    topology_keys,
    value_of,
    with_keys,
    workload_keys,
)
from bench.spec.spec import BENCH_FOLDER, load_experiment
from bench.spec.sweep import Sweep, axes_of, load_sweep, points_of
from bench.spec.validation import SpecError, validate
from brokerd.errors import ConfigError
from fault_injection.schedule.schedule import ScheduleError, load_schedule

BASE: dict[str, Any] = {"schema": "pubsubctl/sweep/1", "name": "story", "workload": "demo"}


def sweep(**values: Any) -> Sweep:
    return validate(Sweep, {**BASE, **values}, "story.toml")


def names(one: Sweep) -> list[str]:
    return [point.name for point in points_of(one, "demo", Overrides(), "story.toml")]


def test_a_key_reaches_a_table_every_entry_of_a_list_or_one_of_them() -> None:
    values = {"phases": {"measure": "1s"}, "publishers": [{"rate": "1/s"}, {"rate": "2/s"}]}
    changed = with_keys(values, {"phases.measure": "2s", "publishers[1].rate": "9/s", "seed": 3})
    assert changed == {
        "phases": {"measure": "2s"},
        "publishers": [{"rate": "1/s"}, {"rate": "9/s"}],
        "seed": 3,
    }
    both = with_keys(values, {"publishers.rate": "5/s"})
    assert [entry["rate"] for entry in both["publishers"]] == ["5/s", "5/s"]
    assert values["publishers"] == [{"rate": "1/s"}, {"rate": "2/s"}], "the file's stay"


@pytest.mark.parametrize(
    "key, words",
    [
        ("publishers[2].rate", r"'publishers' has 2 entries"),
        ("seed.of", r"'seed' is not a table"),
        ("publishers[0]", r"no value can be at \[0\]"),
    ],
)
def test_a_key_that_leads_nowhere_is_refused(key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_keys({"publishers": [{}, {}], "seed": 1}, {key: 1})


@pytest.mark.parametrize(
    "keys, words",
    [
        (["publishers.rate", "publishers[0].rate"], "mean the same value"),
        (["phases", "phases.measure"], "mean the same value"),
        (["seed", "seed"], "given twice"),
        (["publishers..rate"], "is no key"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(keys: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_keys(keys)


def test_a_file_and_a_key_in_it_do_not_contradict_each_other() -> None:
    check_keys(["topology", "topology.tree.delta", "faults", "faults.absorb-b1.for"])
    check_keys(["publishers[0].rate", "publishers[1].rate", "publishers.size"])
    keys = {"topology.tree.delta": 2, "faults.x.for": "1s", "protocol": "ges", "seed": 1}
    assert topology_keys(keys) == {"tree.delta": 2}
    assert step_keys(keys) == {"x": {"for": "1s"}}
    assert workload_keys(keys) == {"protocol": "ges", "seed": 1}
    with pytest.raises(ConfigError, match=r"write faults\.STEP\.KEY"):
        step_keys({"faults.for": "1s"})


def test_typed_values_have_the_kind_of_their_notation() -> None:
    typed = ["3", "2.5", "true", "25/s", '"3"', "[1, 2]", "1979-05-27"]
    assert [*map(value_of, typed)] == [3, 2.5, True, "25/s", "3", [1, 2], "1979-05-27"]


def test_every_combination_is_a_point_and_so_is_each_that_is_named() -> None:
    axes = {"publishers.rate": ["25/s", "50/s"], "topology.tree.delta": [0, 1], "calm": [True]}
    one = sweep(axes=axes, points=[{"name": "large", "publishers.size": "64KiB"}])
    points = points_of(one, "demo", Overrides(), "story.toml")
    assert [point.name for point in points] == [
        "rate=25/s,delta=0", "rate=25/s,delta=1", "rate=50/s,delta=0", "rate=50/s,delta=1", "large",
    ]  # fmt: skip
    second, large = points[1], points[4]
    assert {str(each.rate) for each in second.spec.workload.publishers} == {"25/s"}
    assert second.spec.topology.as_it_is()["tree"]["delta"] == 1
    assert points[0].spec.topology.as_it_is()["tree"]["delta"] == 0
    assert {each.size_bytes for each in large.spec.workload.publishers} == {64 * 1024}
    assert second.spec.labels == {"experiment": "story", "point": "rate=25/s,delta=1"}


def test_keys_with_the_same_last_part_keep_their_full_names() -> None:
    axes = {"publishers.count": [1, 2], "subscribers.count": [1, 2]}
    assert names(sweep(axes=axes))[0] == "publishers.count=1,subscribers.count=1"


def test_the_axis_of_figures_is_the_first_with_numbers_or_the_one_that_is_named() -> None:
    axes = {"protocol": ["delta_tree", "best_effort"], "publishers.rate": ["1k/s", "30/min"]}
    first, second = axes_of(sweep(axes=axes))
    assert (first.key, first.numbers, first.unit) == ("publishers.rate", (1000.0, 0.5), "1/s")
    assert (second.key, second.numbers) == ("protocol", ())
    assert axes_of(sweep(axes=axes, x="protocol"))[0].key == "protocol"


@pytest.mark.parametrize(
    "values, words",
    [
        ({}, r"nothing is varied"),
        ({"axes": {"seed": [1, 1]}}, r"'1' stands there twice"),
        ({"axes": {"seed": []}}, r"axes\.seed"),
        ({"axes": {"seed": [1]}, "x": "sed"}, r"did you mean 'seed'"),
        ({"points": [{"seed": 1}]}, r"each of \[\[points\]\] has a name"),
        ({"axes": {"phases": [1], "phases.measure": ["1s"]}}, r"mean the same value"),
        ({"axes": {"seed": [1]}, "budget": {"time": 3}}, r"a duration has a number and a unit"),
        ({"over": {"seed": [1]}}, r"unknown key 'over'; did you mean 'axes'"),
        ({"instances": 3}, r"unknown key 'instances'; did you mean 'repetitions'"),
        ({"axis": {"seed": [1]}}, r"unknown key 'axis'; did you mean 'axes'"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        sweep(**values)


@pytest.mark.parametrize(
    "axes, words",
    [
        ({"publishers.rat": ["1/s"]}, r"point rat=1/s: .*unknown key 'rat'; did you mean 'rate'"),
        ({"publishers.rate": ["1/s", "x"]}, r"point rate=x: .*a rate has a number"),
        ({"topology.tree.delt": [1]}, r"point delt=1: .*'delt'"),
        ({"protocol": ["gryphn"]}, r"point protocol=gryphn: .*did you mean 'gryphon'"),
        ({"faults.absorb-b1.for": ["1s"]}, r"there are no faults"),
        ({"simulated": ["yes"]}, r"point simulated=yes: simulated = 'yes': true or false"),
    ],
)
def test_a_point_that_cannot_be_is_refused_by_name(axes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        names(sweep(axes=axes))


def test_a_key_set_by_two_options_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'publishers\.rate' is given twice"):
        load_experiment("demo", Overrides(rate="1/s", keys={"publishers.rate": "2/s"}))


def test_steps_of_a_schedule_are_changed_by_their_names() -> None:
    schedule = load_schedule("demo", {"absorb-b1": {"for": "1s"}})
    (step,) = [step for step in schedule.steps if step.id == "absorb-b1"]
    assert step.model_dump(mode="json", by_alias=True)["for"] == "1s"
    with pytest.raises(ScheduleError, match=r"no such step; did you mean 'absorb-b1'"):
        load_schedule("demo", {"absorb-b": {"for": "1s"}})


def test_a_key_in_a_table_of_a_step_is_changed_and_the_others_of_it_stay() -> None:
    (step,) = load_schedule("tree100", {"fail": {"pick.count": 5}}).steps
    assert step.pick is not None
    assert step.pick.count == 5
    assert len(step.pick.out_of) == 17
    with pytest.raises(ScheduleError, match="is no table, and so has no 'count'"):
        load_schedule("tree100", {"fail": {"at.count": 5}})


def test_each_point_can_be_one_of_brokers_and_one_of_simulated_ones() -> None:
    one = sweep(axes={"topology.tree.delta": [0, 1], "simulated": [False, True]})
    points = points_of(one, "demo", Overrides(), "story.toml")
    assert [(point.keys["topology.tree.delta"], point.simulated) for point in points] == [
        (0, False), (0, True), (1, False), (1, True),
    ]  # fmt: skip
    assert points[0].spec.workload_mapping() == points[1].spec.workload_mapping()


def test_our_own_sweeps_can_be_run() -> None:
    for path in sorted((BENCH_FOLDER / "sweeps").glob("*.toml")):
        one = load_sweep(path)
        assert points_of(one, one.workload, Overrides(), str(path)), path
