"""Tests of facts with two sources, read independently: schedules, digests, specifications."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from bench.load.pacing import intended_offsets
from bench.run.run_directory import specification_digest as written_digest
from brokerd.text import toml_text
from results.reference import busyness, specification
from results.reference.files import FileRefusal
from results.reference.times import due
from results.rules.specification import specification_digest
from results.rules.terms import Fault, Guarantee, Promises
from results.rules.timing import schedule
from results.tables.json_files import IntegrityError
from results.tables.specification import check_topology, check_workload
from tests.helpers.runs import DEMO_TOPOLOGY, SECOND, Scenario, workload_of

SECONDS = 3


def by_spark(
    rate: Fraction, arrivals: str, seed: int, index: int, length_ns: int = SECONDS * SECOND
) -> list[int]:
    return [int(at) for at in schedule(rate, arrivals, seed, index, length_ns, 10_000)]


def by_reference(
    rate: Fraction, arrivals: str, seed: int, index: int, length_ns: int = SECONDS * SECOND
) -> list[int]:
    return [*due(seed, index, rate, arrivals, length_ns)]


@pytest.mark.parametrize("worked_out", [by_spark, by_reference])
@pytest.mark.parametrize("arrivals", ["fixed", "poisson"])
def test_nothing_is_due_at_the_end_of_the_load(
    worked_out: Callable[..., list[int]], arrivals: str
) -> None:
    asked = Fraction(25), arrivals, 11, 2
    all_ns = worked_out(*asked)
    assert worked_out(*asked, all_ns[5]) == all_ns[:5]
    assert worked_out(*asked, all_ns[5] + 1) == all_ns[:6]


@pytest.mark.parametrize("worked_out", [by_spark, by_reference])
def test_both_judges_compute_the_same_publication_schedule(
    worked_out: Callable[..., list[int]],
) -> None:
    for arrivals in ("fixed", "poisson"):
        for rate in (Fraction(25), Fraction(1000, 3), Fraction(7, 60), Fraction(1), Fraction(3)):
            for seed, index in ((1, 0), (2**63 - 1, 3), (11, 65_534)):
                wanted = intended_offsets(
                    numerator=rate.numerator, denominator=rate.denominator, arrivals=arrivals,
                    seed=seed, index=index, duration_ns=SECONDS * SECOND,
                )  # fmt: skip
                found = worked_out(rate, arrivals, seed, index)
                assert found == [*chain(*wanted)], (arrivals, rate, seed)


def test_a_digest_is_of_every_file_and_its_name(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text("1")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.json").write_text("2")
    first = specification_digest(tmp_path)
    assert first == written_digest(tmp_path)
    (tmp_path / "b.toml").rename(tmp_path / "a.toml")
    second = specification_digest(tmp_path)
    assert second == written_digest(tmp_path) != first
    (tmp_path / "a.toml").write_text("3")
    assert specification_digest(tmp_path) not in (first, second)


def _with(path: str, value: Any) -> dict[str, Any]:
    workload: dict[str, Any] = workload_of(Scenario())
    *tables, key = path.split(".")
    table: Any = workload
    for name in tables:
        table = table.setdefault(name, {})
    table[key] = value
    return workload


def checked(workload: Mapping[str, Any], topology: Mapping[str, Any]) -> None:
    check_workload(Path("spec/workload.toml"), workload)
    check_topology(Path("spec/topology.toml"), topology)


def verified(workload: Mapping[str, Any], topology: Mapping[str, Any]) -> None:
    specification.verify(Path(), workload, topology)


@pytest.mark.parametrize("check", [checked, verified])
def test_a_value_of_another_kind_is_refused(
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], None],
) -> None:
    check(workload_of(Scenario()), DEMO_TOPOLOGY)
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    for path, value in (
        ("calm", 0),
        ("calm", "true"),
        ("guarantee.gapless", 1),
        ("guarantee.order", "global"),
        ("guarantee.order", True),
        ("guarantee.delivery", ["exactly-once"]),
        ("guarantee", "exactly-once"),
        ("bars.deliveries_per_pair_min", True),
        ("phases.drain_bound", "never"),
        ("churn.pattern", "sometimes"),
        ("attributes.symbol", {"choose": 0}),
        ("attributes.symbol", {"choose": [float("inf")]}),
        ("attributes.price", {"uniform": [1, deep]}),
        ("seed", 2**70),
        ("publishers", {}),
        ("topic", 7),
    ):
        with pytest.raises((IntegrityError, FileRefusal)) as refusal:
            check(_with(path, value), DEMO_TOPOLOGY)
        assert refusal.value.exit_status == 8, path  # type: ignore[attr-defined]
    for changes in ({"brokers": ["p1", "p1"]}, {"links": [["p1", "x"]]}, {"links": ["p1-b1"]}):
        with pytest.raises((IntegrityError, FileRefusal)):
            check(workload_of(Scenario()), {**DEMO_TOPOLOGY, **changes})


def test_a_guarantee_names_the_order_that_is_checked() -> None:
    for promised in ("publisher", "total", "topic", "stream", "none"):
        promises = Promises(order=promised)
        assert Guarantee().with_promised_order(promises).order == promised
        for asked in ("publisher", "total", "topic", "stream", "none"):
            assert Guarantee(order=asked).with_promised_order(promises).order == asked


def test_a_sign_is_none_while_a_fault_explains_it(tmp_path: Path) -> None:
    folder = tmp_path / "raw" / "h1" / "b1"
    folder.mkdir(parents=True)
    line = '{"t_ns": 20000000000, "event": "session_lost", "peer": "b2", "reason": "silent"}\n'
    (folder / "events.jsonl").write_text(line)

    def signs(*faults: Fault) -> list[str]:
        return [*busyness.signs(tmp_path, {}, faults, lambda ns, host: ns)]

    def cut(from_s: int, to_s: int, target: str = "b1-b2") -> Fault:
        return Fault("1", "cut", target, from_s * SECOND, from_s * SECOND, to_s * SECOND)

    assert len(signs()) == 1
    assert signs(cut(1, 10)) == signs(cut(20, 21)) == []
    assert len(signs(cut(1, 4))) == len(signs(cut(30, 31))) == 1
    assert len(signs(cut(1, 30, "b1-b3"))) == 1
    assert signs(cut(1, 30, "b2->b1")) == []


def test_a_check_validates_the_specification_against_the_whole_schema(tmp_path: Path) -> None:
    from pubsubctl.errors import IntegrityError as Unreadable
    from pubsubctl.runs.runs import check_specification

    (tmp_path / "spec").mkdir()
    path = tmp_path / "spec" / "workload.toml"
    path.write_text(toml_text(workload_of(Scenario())))
    check_specification(tmp_path)
    path.write_text(toml_text({**workload_of(Scenario()), "protocol": "somebody-elses"}))
    check_specification(tmp_path)
    for key, value, says in (
        ("colour", "red", "unknown key 'colour'"),
        ("thresholds.loadgen", "1", "unknown key 'loadgen'"),
        ("attributes.symbol", {"choose": [float("nan")]}, "symbol"),
    ):
        path.write_text(toml_text(_with(key, value)))
        with pytest.raises(Unreadable, match=says) as refusal:
            check_specification(tmp_path)
        assert refusal.value.exit_status == 8
        assert str(path) in str(refusal.value)
