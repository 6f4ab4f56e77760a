"""Tests of the row counts of record files: both readers agree at and near each end."""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from random import Random

import numpy as np
import pytest

from brokerd.quantiles import PERCENTILES, quantile
from results.opened_run import OpenRun
from results.reference.history_reader import count_rows
from results.repetitions.numbers import numbers_of
from results.tables.logs import read_logs
from results.tables.manifest import read_run
from results.tables.record_files import RECORDS, STRETCH
from results.tables.row_counts import rows_of
from results.tables.seals import seal
from results.witnesses.rows import Blockage
from tests.helpers.forged_folders import FAR, LAST, NEAR, PUBLISHERS, RunFolder, write_honest_run
from tests.helpers.runs import ORIGIN_NS, SECOND

EDGES_NS = (ORIGIN_NS, ORIGIN_NS + 3 * SECOND)
"""Both ends of the measure phase."""
FUNCTIONS = ("breaches", "lateness_ns", "sent_ns", "until")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_honest_run(tmp_path_factory.mktemp("counts"), "20260102T030405Z-0a1b2c")


def _edge(random: Random) -> int:
    return random.choice(EDGES_NS) + random.choice((-1, 0, 1))


def change_at_random(run: RunFolder, random: Random) -> None:
    """Make rows repeated, redelivered, withheld, rejected or unknown, or stamp them at an end."""
    for process in (NEAR, FAR):
        with run.records(process, "deliveries") as rows:
            for place in random.sample(range(len(rows.all)), 40):
                row = rows.all[place]
                what = random.randrange(6)
                if what == 0:
                    row["kind"] = random.choice((0, 1, 2, 4))
                elif what == 1:
                    row["layer"] = 0
                elif what == 2:
                    row["sequence"] += random.choice((-1, 1, 500))
                elif what == 3:
                    rows.insert(place, row.copy())
                else:
                    row["received_ns"] = _edge(random)
    with run.records(PUBLISHERS, "publications") as rows:
        for place in random.sample(range(len(rows.all)), 12):
            column = random.choice(("intended_ns", "sent_ns"))
            rows.all[column][place] = _edge(random)
        fence = len(rows.sidecar["tables"]["attribute_sets"]) - 1
        rows.all["attribute_set"][random.randrange(len(rows.all))] = fence
        for publisher in range(2):
            due = rows.all["intended_ns"][rows.of(publisher=publisher)]
            first = int(due[due > ORIGIN_NS + 1].min())
            rows.all["intended_ns"][rows.all["intended_ns"] == first] = _edge(random)
        number = random.randrange(2, 30)
        sent = {
            (int(row["publisher"]), int(row["sequence"])): int(row["sent_ns"]) for row in rows.all
        }
        sent_ns = int(rows.all["sent_ns"][rows.of(publisher=0, sequence=number + 1)][0])
    with run.records(PUBLISHERS, "acks") as rows:
        for place in random.sample(range(len(rows.all)), 12):
            row = rows.all[place]
            row["outcome"] = random.choice((1, 1, 2))
            early_ns = sent[int(row["publisher"]), int(row["last"])] - 1_000_000
            early_ns += random.choice((-1, 0, 1))
            row["acked_ns"] = random.choice((_edge(random), early_ns))
            row["first"] -= random.choice((0, 0, 1)) * (row["first"] > 1)
    with run.records(PUBLISHERS, "intents") as rows:
        rows.all["at_ns"] += random.choice((0, SECOND, SECOND + 1_000_000))
        first = rows.all[rows.of(publisher=0)][:1].copy()
        first["last"] = number
        rows.insert(0, first)
        (place,) = rows.places(publisher=0, last=4096)
        rows.all["at_ns"][place] = sent_ns + random.choice((-1, 0, 1)) + 1_000_000
        rows.all = rows.all[random.sample(range(len(rows.all)), len(rows.all))]


def fold_at_random(run: RunFolder, random: Random) -> None:
    """Add stretches beside single deliveries, positions, and unpaced publications."""
    with run.records(NEAR, "deliveries") as rows:
        for place in random.sample([*np.flatnonzero(rows.all["sequence"] > LAST // 2)], 5):
            rows.all["kind"][place] = STRETCH
            rows.all["digest"][place] = random.randrange(1, 4)
        sidecar = {**rows.sidecar, "layout": "positions"}
        places = np.zeros(30, RECORDS["positions"])
        places["row"] = np.arange(30)
        places["row"][random.sample(range(30), 2)] = random.randrange(len(rows.all))
        places["position"] = [random.randrange(1, 900) for _ in places]
        places["stream"] = [random.randrange(2) for _ in places]
        places["received_ns"] = rows.all["received_ns"][:30]
        places["received_ns"][random.sample(range(30), 3)] += random.choice((-1, 0, 1))
    tables = {**sidecar["tables"], "streams": ["0/0/0", "1/0/0"]}
    sidecar |= {"tables": tables, "columns": ["row", "position", "received_ns", "stream"]}
    run.path(f"raw/{NEAR}/positions.rec.json").write_text(json.dumps(sidecar))
    run.path(f"raw/{NEAR}/positions.rec").write_bytes(b"")
    with run.records(NEAR, "positions") as rows:
        rows.all = places
    with run.records(PUBLISHERS, "publications") as rows:
        unpaced, early = random.sample(range(4), 2)
        rows.all["intended_ns"][rows.places(publisher=unpaced)[3:9]] = 0
        mask = rows.of(publisher=early)
        rows.all["intended_ns"][mask] = np.minimum(rows.all["intended_ns"][mask], ORIGIN_NS - 1)


def _blockages(random: Random) -> list[Blockage]:
    ends = sorted(_edge(random) - ORIGIN_NS for _ in range(4))
    silent = frozenset({"p1/0", "p1/2"})
    return [
        Blockage(from_ns, to_ns, "", silent, lambda source, subscription: source != "p1/1")
        for from_ns in ends
        for to_ns in ends
    ]


@pytest.mark.parametrize("change", [change_at_random, fold_at_random])
@pytest.mark.parametrize("seed", range(8))
def test_both_readers_count_the_same(
    honest: Path, tmp_path: Path, seed: int, change: Callable[[RunFolder, Random], None]
) -> None:
    random = Random(seed)
    folder = shutil.copytree(honest, tmp_path / honest.name)
    change(RunFolder(folder), random)
    seal(folder)
    run = read_run(folder)
    ours = rows_of(run, read_logs(run))
    theirs = count_rows(folder)
    for each in fields(ours):
        if each.name not in FUNCTIONS:
            assert getattr(ours, each.name) == getattr(theirs, each.name), each.name
    for place, layout in ((PUBLISHERS, "publications"), (PUBLISHERS, "acks"), (NEAR, "deliveries")):
        for at_ns in (edge + by for edge in EDGES_NS for by in (-2, -1, 0, 1, 2)):
            asked = f"raw/{place}", layout, at_ns
            assert ours.until(*asked) == theirs.until(*asked), asked
    for each, (stamps, late_ns) in ours.lateness_ns.items():
        mine = sorted(zip(map(int, stamps), map(int, late_ns), strict=True))
        assert mine == sorted(zip(*theirs.lateness_ns[each], strict=True)), each
    assert ours.lateness_ns.keys() == theirs.lateness_ns.keys()
    for number in (0, 1, 2, 30, 90):
        assert ours.sent_ns("p1/0", 0, number) == theirs.sent_ns("p1/0", 0, number)
    blockages = _blockages(random)
    assert [*map(tuple, ours.breaches(blockages))] == [*map(tuple, theirs.breaches(blockages))]


@pytest.mark.parametrize("first, count", [(12, 0), (11, 1), (10, 1)])
def test_an_acknowledgement_behind_another_repeats_no_number(
    tmp_path: Path, first: int, count: int
) -> None:
    """Another incarnation has the same numbers."""
    folder = write_honest_run(tmp_path, "20260102T030405Z-0a1b2c")
    run = RunFolder(folder)
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all = rows.all[rows.of(publisher=0)][:3]
        rows.all["first"], rows.all["last"] = (first, 1, 1), (20, 11, 11)
        rows.all["incarnation"] = (1, 1, 2)
    seal(folder)
    logged = read_run(folder)
    for counted in (rows_of(logged, read_logs(logged)), count_rows(folder)):
        assert counted.repeated_answers == {f"raw/{PUBLISHERS}": count}


def test_all_deliveries_of_a_source_with_nothing_due_are_earlier_ones(tmp_path: Path) -> None:
    """A killed publisher has no closing fence, so its last number is a publication."""
    folder = write_honest_run(tmp_path, "20260102T030405Z-0a1b2c")
    with RunFolder(folder).records(PUBLISHERS, "publications") as rows:
        mask = rows.of(publisher=0)
        rows.all["intended_ns"][mask] = np.minimum(rows.all["intended_ns"][mask], ORIGIN_NS - 1)
        rows.drop(mask & (rows.all["sequence"] > LAST // 2))
    with RunFolder(folder).records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(publisher=0) & (rows.all["sequence"] > LAST // 2))
        rows.all["received_ns"][rows.of(publisher=0)] = ORIGIN_NS
    seal(folder)
    logged = read_run(folder)
    ours, theirs = rows_of(logged, read_logs(logged)).headline, count_rows(folder).headline
    assert ours == theirs


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("layout", ["publications", "acks"])
def test_a_source_in_the_files_of_two_processes_has_the_rows_of_one(
    honest: Path, tmp_path: Path, layout: str, order: int
) -> None:
    """Both readers join the files, which share no row."""
    folder = shutil.copytree(honest, tmp_path / honest.name)
    run = RunFolder(folder)
    for suffix in ("rec", "rec.json"):
        name = f"{layout}.{suffix}"
        shutil.copyfile(run.path(f"raw/{PUBLISHERS}/{name}"), run.path(f"raw/{NEAR}/{name}"))
    for process, part in ((PUBLISHERS, order), (NEAR, -order)):
        with run.records(process, layout) as rows:
            half = len(rows.all) // 2
            rows.all = rows.all[:half] if part > 0 else rows.all[half:]
    seal(folder)
    whole, divided = (
        rows_of(read_run(path), read_logs(read_run(path))) for path in (honest, folder)
    )
    assert divided.sources == whole.sources == count_rows(folder).sources
    assert divided.headline == whole.headline == count_rows(folder).headline


def test_the_plain_reader_keeps_no_times_of_very_many_answers(
    honest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.reference.row_counts._SAMPLE", 10)
    headline = count_rows(honest).headline
    assert headline is not None
    assert headline.acknowledged_us is headline.response_us is headline.service_us is None


def test_every_output_has_the_same_percentiles_of_a_run() -> None:
    """`bench` writes the manifest; both judges, `compare` and `open_run` read the records."""
    folder = Path(__file__).parent / "witnessed_run"
    manifest = json.loads((folder / "manifest.json").read_text())
    stated, run = manifest["headline"]["response_us"], read_run(folder)
    for headline in (count_rows(folder).headline, rows_of(run, read_logs(run)).headline):
        assert headline is not None
        assert headline.response_us == stated
    numbers = numbers_of(folder)
    for name in ("p50", "p99", "max"):
        assert numbers[f"latency_{name}_ms"] == stated[name] / 1000
    found = OpenRun(folder).deliveries()
    chosen = found[(found["phase"] == "measure") & (found["layer"] == "application")]
    ordered = sorted(chosen[chosen["kind"] == "data"]["lat_response_us"])
    assert {name: quantile(ordered, share) for name, share in PERCENTILES.items()} == {
        name: int(us) for name, us in stated.items()
    }
