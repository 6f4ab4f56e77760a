"""Tests of repetitions: spread, typical run, and comparison of runs."""

import json
import math
import struct
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

from brokerd.text import toml_text
from results.repetitions.comparable import NotComparable
from results.repetitions.comparison import Group, _verdict, compare
from results.repetitions.numbers import NUMBERS, Number, numbers_of, words_of
from results.repetitions.spread import difference_of, distance, holm, modal, spread_of
from results.tables.json_files import IntegrityError
from results.tables.seals import seal
from tests.helpers.runs import write_lines, write_records

# Student's t for 95 %, from a printed table: degrees of freedom → quantile.
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262}


@pytest.mark.parametrize("n", [freedom + 1 for freedom in TABLE])
def test_the_interval_of_a_mean_is_the_one_of_the_printed_table(n: int) -> None:
    values = [float(value) for value in range(-n // 2, -n // 2 + n)]
    spread = spread_of(values)
    mean = sum(values) / n
    deviation = (sum((value - mean) ** 2 for value in values) / (n - 1)) ** 0.5
    half = TABLE[n - 1] * deviation / n**0.5
    assert (spread.low, spread.high) == pytest.approx((mean - half, mean + half), abs=2e-2)
    assert (spread.smallest, spread.largest) == (min(values), max(values))


@pytest.mark.parametrize(
    "values",
    [[6.404, 7.533, 7.486], [15.5, 25.57, 18.48], [0.2, 9.0], [1.0, 1.0, 1.0], [1e-170, 4e-170]],
)
def test_the_interval_of_positive_numbers_has_no_negative_bound(values: list[float]) -> None:
    """The plain twin is SciPy's interval of the mean, in units of the mean, on logarithms."""
    from scipy.stats import sem, t

    spread, mean = spread_of(values), sum(values) / len(values)
    relative = [value / mean for value in values]
    low, high = 0.0, 0.0
    if len({*values}) > 1:
        low, high = t.interval(0.95, len(values) - 1, loc=0, scale=sem(relative))
    assert spread.low is not None
    assert spread.high is not None
    assert 0 < spread.low <= mean <= spread.high
    assert [math.log(spread.low / mean), math.log(spread.high / mean)] == pytest.approx([low, high])


def test_the_interval_of_counts_with_a_zero_ends_at_zero() -> None:
    spread = spread_of([0.0, 0.0, 5.0])
    assert spread.low == 0
    assert spread.high == pytest.approx(5 / 3 + 4.303 * 5 / 3, abs=2e-2)


def test_the_interval_of_a_ratio_is_the_librarys() -> None:
    """The plain twin is SciPy's t test for unequal variances."""
    from scipy.stats import ttest_ind

    random = Random(7)
    for _ in range(20):
        one, other = (
            [random.lognormvariate(centre, 0.3) for _ in range(random.randrange(2, 9))]
            for centre in (1.0, random.choice((1.0, 2.0)))
        )
        found = difference_of(one, other)
        logs = [[math.log(value) for value in values] for values in (other, one)]
        test = ttest_ind(*logs, equal_var=False).confidence_interval()
        assert found.low is not None
        assert found.high is not None
        assert math.log(found.low) == pytest.approx(test.low)
        assert math.log(found.high) == pytest.approx(test.high)


@pytest.mark.parametrize(
    "first,second,outcome",
    [
        ([100, 101, 99], [200, 202, 198], "differs"),
        ([100, 101, 99], [100.5, 99.5, 100], "same"),
        ([100, 150, 60], [130, 80, 200], "cannot tell"),
        ([100], [200], "cannot tell"),
        ([1.0], [1.0], "same"),
        ([0, 0, 0], [0, 0, 0], "same"),
        ([0, 0, 0], [5, 6, 7], "differs"),
        ([0], [5], "cannot tell"),
        ([1, 1, 1], [1, 1, 1], "same"),
        ([6, 6], [7, 7], "cannot tell"),  # rounded values, equal by chance
        ([0, 0, 0], [1, 1, 1], "cannot tell"),
        ([6, 6, 6, 6], [7, 7, 7, 7], "differs"),
        ([0, 0, 0, 0], [1, 1, 1, 1], "differs"),
    ],
)
def test_only_differences_that_repetitions_confirm_are_reported(
    first: list[float], second: list[float], outcome: str
) -> None:
    assert difference_of(first, second).outcome == outcome


@pytest.mark.parametrize("unit", [1e-170, 1.0, 1e170])
def test_a_difference_does_not_depend_on_the_unit(unit: float) -> None:
    """Squares of such values are out of range; with a 0, the values have no logarithms."""
    first, second = [0.0, 3.0, 4.0], [7.0, 9.0, 8.0, 8.0]
    plain = difference_of(first, second)
    scaled = difference_of([v * unit for v in first], [v * unit for v in second])
    assert (scaled.outcome, scaled.p) == ("differs", pytest.approx(plain.p))
    assert (scaled.low, scaled.high) == pytest.approx(
        [(bound or 0) * unit for bound in (plain.low, plain.high)], rel=1e-9
    )
    spread, whole = spread_of([v * unit for v in second]), spread_of(second)
    assert spread.high == pytest.approx((whole.high or 0) * unit)


def test_the_typical_instance_is_the_one_that_is_least_far_from_all() -> None:
    calm = {"a": 10.0, "b": 10.0}
    instances = {"1": calm, "2": {**calm, "b": 12.0}, "3": {**calm, "b": 90.0}, "4": {"a": 10.0}}
    assert modal(instances) == "2"
    for order in permutations(instances):
        assert modal({name: instances[name] for name in order}) == "2"
    assert distance(instances["1"], instances["4"]) == 0.5, "one of two places is absent"
    assert distance({}, {}) == 0
    assert modal({"2": calm, "1": calm}) == "1"


# --- Runs beside each other -----------------------------------------------------------------

WORKLOAD: dict[str, Any] = {
    "name": "story", "protocol": "gryphon", "topology": "cells", "seed": 3,
    "publishers": [{"at": ["p1"], "count": 4, "rate": "25/s"}],
    "subscribers": [{"at": ["s1"], "count": 1, "filter": "true"}],
    "phases": {"measure": "30s"}, "guarantee": {"delivery": "exactly-once"},
}  # fmt: skip
MANIFEST: dict[str, Any] = {
    "state": "complete", "protocol": "gryphon", "cpu": "fast", "cores": 2, "platform": "Linux",
    "transport": "plaintext", "without_fsync": [], "git_commit": "c1", "payload_bytes": 100,
    "roles": {"p1": {"role": "broker", "host": "h"}, "s1": {"role": "broker", "host": "h"}},
}  # fmt: skip
FAULTS: dict[str, Any] = {"seed": 7, "step": [{"id": "k", "do": "kill", "on": "b1"}]}


def _write_records(run_id: str, raw: Path, origin_ns: int, latencies_ms: list[float]) -> None:
    """Write 1,000 deliveries within 10 s, and brokers that used 50 µs per delivery."""
    publications, deliveries = [], []
    for number, ms in enumerate(latencies_ms, start=1):
        at_ns = origin_ns + number * 9_000_000
        publications.append(struct.pack("<qqqHHI", number, at_ns, at_ns, 0, 1, 0))
        received_ns = at_ns + round(ms * 1_000_000)
        deliveries.append(struct.pack("<qqIIHHBBxx", number, received_ns, 0, 0, 0, 1, 0, 1))
    sources = {"publishers": ["p1/0"], "attribute_sets": [{"n": 1}, {"fence": "story"}]}
    write_records(raw / "load-pub", "publications", run_id, publications, sources)
    names = {"publishers": ["p1/0"], "subscriptions": ["s1-sub-1/1"]}
    write_records(raw / "load-sub", "deliveries", run_id, deliveries, names)
    for broker in ("p1", "s1"):
        rows = [{"t_ns": origin_ns + s * 10**9, "cpu_s": 0.005 * s} for s in range(11)]
        write_lines(raw / broker / "stats.jsonl", rows)


def written(
    folder: Path,
    *,
    p99_ms: float = 10.0,
    manifest: Mapping[str, Any] | None = None,
    workload: Mapping[str, Any] | None = None,
    faults: Mapping[str, Any] | None = None,
    verdict: str = "",
) -> Path:
    """Write the files of a run folder that a comparison reads."""
    (folder / "spec").mkdir(parents=True)
    headline = {
        "delivered": 1000, "delivered_per_s": 100.0, "broker_cpu_us_per_message_mean": 50.0,
        "response_us": {"p50": 1_000.0, "p99": 1_000 * p99_ms, "max": 20_000.0},
    }  # fmt: skip
    origin_ns = 10**12 + crc32(folder.name.encode())
    phases = [{"phase": "measure", "t0_ns": origin_ns, "t1_ns": origin_ns + 10 * 10**9}]
    of_run = {"run_id": folder.name, "origin_ns": origin_ns, "phases": phases}
    about = {**MANIFEST, **of_run, "headline": headline, **(manifest or {})}
    _write_records(
        folder.name, folder / "raw" / "h", origin_ns, [1.0] * 900 + [p99_ms] * 90 + [20.0] * 10
    )
    (folder / "manifest.json").write_text(json.dumps(about))
    for name, values in (
        ("workload", {**WORKLOAD, **(workload or {})}),
        ("topology", {"name": "cells", "brokers": ["p1", "s1"], "links": [["p1", "s1"]]}),
        ("faults", {**FAULTS, **(faults or {})}),
    ):
        (folder / "spec" / f"{name}.toml").write_text(toml_text(values))
    judged = {
        **({"verdict": verdict} if verdict else {}),
        "counts": {"owed": 100, "delivered": 100}, "exercised": {"resent_publications": 7},
        "recoveries": [{"at_risk": 3, "recovered_after_ns": 2_000_000_000}],
    }  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps(judged))
    seal(folder)
    return folder


@pytest.mark.parametrize(
    "file, change, words",
    [
        ("manifest.json", ("10000.0", "5000.0"), "manifest.json has changed"),
        ("spec/workload.toml", ("25/s", "26/s"), "spec/workload.toml has changed"),
        ("verdict.json", ("2000000000", "1000000000"), "verdict.json has changed"),
        ("SHA256SUMS", None, "no SHA256SUMS"),
    ],
)
def test_a_run_with_changed_files_is_not_compared(
    tmp_path: Path, file: str, change: tuple[str, str] | None, words: str
) -> None:
    runs = [written(tmp_path / name) for name in ("a", "b")]
    path = runs[1] / file
    if change is None:
        path.unlink()
    else:
        text = path.read_text()
        assert change[0] in text
        path.write_text(text.replace(*change))
    groups = [Group(run.name, (run,)) for run in runs]
    with pytest.raises(IntegrityError, match=words):
        compare(groups)


def test_runs_of_different_protocols_are_compared_with_their_differences(tmp_path: Path) -> None:
    other = {"protocol": "delta_tree"}
    slow = [written(tmp_path / f"slow{n}", p99_ms=20 + n / 10) for n in range(3)]
    fast = [
        written(tmp_path / f"fast{n}", p99_ms=10 + n / 10, manifest=other, workload=other)
        for n in range(3)
    ]
    found = compare([Group("slow", tuple(slow)), Group("fast", tuple(fast))])
    assert found.differing == {"protocol": ["gryphon", "delta_tree"]}
    verdicts = {row.number.name: row.verdict for row in found.rows}
    assert verdicts["latency_p99_ms"] == "faster"
    assert {verdicts.pop("latency_p99_ms"), *verdicts.values()} == {"faster", "same"}
    values = {row.number.name: row.first.mean for row in found.rows}
    assert (values["resent_bytes"], values["recovery_s"]) == (700, 2)
    (row,) = [row for row in found.rows if row.number.name == "latency_p99_ms"]
    assert row.difference.ratio == pytest.approx(0.5, rel=0.01)
    backwards = compare([Group("fast", tuple(fast)), Group("slow", tuple(slow))])
    assert {row.verdict for row in backwards.rows} == {"slower", "same"}


def system_run(folder: Path, **publishers: Any) -> Path:
    """Write a run of one server, to which all publishers and subscribers attach."""
    of = WORKLOAD["publishers"][0] | {"at": ["n1"]} | publishers
    subscribers = [WORKLOAD["subscribers"][0] | {"at": ["n1"]}]
    return written(
        folder,
        manifest={
            "system": {"title": "toy"}, "protocol": "toy",
            "roles": {"n1": {"role": "broker", "host": "local"}},
            "clock": {"clock_ids": {"local": "boot 7"}},
        },
        workload={
            "publishers": [of], "subscribers": subscribers, "protocol": "toy",
            "guarantee": {"delivery": "at-least-once"},
        },
        faults={"step": [FAULTS["step"][0] | {"on": "n1"}]},
    )  # fmt: skip


def test_a_foreign_broker_is_compared_by_its_number_of_servers(tmp_path: Path) -> None:
    clocks = {"clock": {"clock_ids": {"h": "boot 7"}}}
    steps = {"step": [FAULTS["step"][0] | {"on": "p1"}]}
    ours = written(tmp_path / "ours", manifest=clocks, faults=steps)
    theirs = system_run(tmp_path / "theirs")
    found = compare([Group(run.name, (run,)) for run in (ours, theirs)])
    assert found.differing["brokers"] == [2, 1]
    assert found.differing["promised"] == [
        {"delivery": "exactly-once"}, {"delivery": "at-least-once"},
    ]  # fmt: skip
    faster = system_run(tmp_path / "faster", rate="50/s")
    steps = {"step": [{"on": "s1", "do": "kill"}]}
    elsewhere = written(tmp_path / "elsewhere", manifest=clocks, faults=steps)
    far = written(tmp_path / "far", manifest={"clock": {"clock_ids": {"h": "a", "i": "b"}}})
    told = (
        (faster, r"publishers\[0\].rate"), (elsewhere, "faults"), (far, "machines: 1 and 2"),
    )  # fmt: skip
    for other, reason in told:
        with pytest.raises(NotComparable, match=reason):
            compare([Group(run.name, (run,)) for run in (theirs, other)])


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"manifest": {"cpu": "slow"}}, "hardware: cpu = fast and cpu = slow"),
        ({"manifest": {"cores": 64}}, "hardware: cores = 2 and cores = 64"),
        ({"manifest": {"without_fsync": ["h"]}}, "fsync policy: [] and ['h']"),
        ({"manifest": {"transport": "TLS"}}, "transport: plaintext and TLS"),
        (
            {"workload": {"publishers": [{"at": ["p1"], "count": 4, "rate": "50/s"}]}},
            "load: publishers[0].rate = 25/s and publishers[0].rate = 50/s",
        ),
        (
            {"workload": {"subscribers": [{"at": ["s1"], "count": 9, "filter": "true"}]}},
            "scale: subscribers[0].count = 1 and subscribers[0].count = 9",
        ),
        ({"workload": {"seed": 4}}, "workload: seed = 3 and seed = 4"),
        ({"faults": {"seed": 8}}, "faults: seed = 7 and seed = 8"),
        ({"manifest": {"state": "partial", "reasons": ["killed"]}}, "the run is partial: killed"),
        ({"manifest": {"loadgen_saturated": True}}, "its load generators were the limit"),
    ],
)
def test_incomparable_runs_are_refused_with_the_reason(
    tmp_path: Path, change: Mapping[str, Any], reason: str
) -> None:
    runs = [written(tmp_path / "one"), written(tmp_path / "other", **change)]
    with pytest.raises(NotComparable) as caught:
        compare([Group(run.name, (run,)) for run in runs])
    assert reason in str(caught.value)


def test_corrected_p_values_are_those_of_holms_definition() -> None:
    """The expected values follow Holm's definition, step by step, on drawn values."""
    random = Random(20261128)
    for _ in range(200):
        values = [random.choice([None, random.random() ** 3]) for _ in range(random.randint(1, 12))]
        known = sorted(value for value in values if value is not None)
        for value, corrected in zip(values, holm(values), strict=True):
            if value is None:
                assert corrected is None
                continue
            steps = [
                min(1.0, (len(known) - rank) * each)
                for rank, each in enumerate(known[: known.index(value) + 1])
            ]
            assert corrected == pytest.approx(max(steps))


def test_a_table_without_differences_rarely_reports_one(tmp_path: Path) -> None:
    """Without the correction, a third of all tables of nine independent numbers name one."""
    random = Random(7)
    false_tables = {"plain": 0, "corrected": 0}
    for _ in range(400):
        found = [
            difference_of(*([random.lognormvariate(0, 0.1) for _ in range(5)] for _ in "ab"))
            for _ in range(9)
        ]
        p = [each.p for each in found]
        false_tables["plain"] += any(value is not None and value < 0.05 for value in p)
        false_tables["corrected"] += any(value is not None and value < 0.05 for value in holm(p))
    assert false_tables["plain"] > 100
    assert false_tables["corrected"] <= 30


def test_one_large_difference_among_many_numbers_is_still_reported() -> None:
    random = Random(8)
    seen = 0
    for _ in range(100):
        found = [
            difference_of(*([random.lognormvariate(0, 0.05) for _ in range(5)] for _ in "ab"))
            for _ in range(8)
        ]
        first = [random.lognormvariate(0, 0.05) for _ in range(5)]
        second = [1.3 * random.lognormvariate(0, 0.05) for _ in range(5)]
        found.append(difference_of(first, second))
        corrected = holm([each.p for each in found])[-1]
        seen += corrected is not None and corrected < 0.05
    assert seen >= 95


def test_the_p_value_agrees_with_the_interval() -> None:
    random = Random(9)
    for _ in range(300):
        first = [random.lognormvariate(0, 0.1) for _ in range(random.randint(2, 6))]
        second = [random.lognormvariate(0.1, 0.1) for _ in range(random.randint(2, 6))]
        found = difference_of(first, second)
        assert found.p is not None
        assert found.low is not None
        assert found.high is not None
        assert (found.p < 0.05) == (found.low > 1 or found.high < 1)


def test_a_headline_that_was_changed_and_sealed_again_changes_no_comparison(
    tmp_path: Path,
) -> None:
    runs = [written(tmp_path / str(number)) for number in range(3)]
    halved = [written(tmp_path / f"halved-{number}") for number in range(3)]
    for run in halved:
        about = json.loads((run / "manifest.json").read_text())
        about["headline"]["response_us"] = {"p50": 500.0, "p99": 5_000.0, "max": 10_000.0}
        about["headline"]["delivered_per_s"] = 200.0
        (run / "manifest.json").write_text(json.dumps(about))
        seal(run)
    assert [numbers_of(run) for run in halved] == [numbers_of(run) for run in runs]
    assert numbers_of(runs[0])["latency_p99_ms"] == 10.0


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_numbers_that_include_zero_differ_in_the_same_words_as_all_others(number: Number) -> None:
    """There is no ratio to a zero, only a difference."""
    zeros, few, many = [0.0, 0.0, 0.1], [1.0, 1.1, 1.2], [5.0, 6.0, 7.0]
    for low in (zeros, few):
        more, less = difference_of(low, many), difference_of(many, low)
        words = [_verdict(number, each, each.p) for each in (more, less)]
        assert words == [words_of(number, 2.0), words_of(number, 0.5)]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_rounded_values_do_not_differ_by_chance(n: int) -> None:
    """A table compares nine equal numbers of few processor ticks."""
    random, wrong = Random(n), 0
    for _ in range(60):
        p_values = [
            difference_of(*([float(round(random.gauss(7, 0.5))) for _ in range(n)] for _ in "ab")).p
            for _ in range(9)
        ]
        wrong += any(p is not None and p <= 0.05 for p in holm(p_values))
    assert wrong <= 60 * 0.15
