"""Tests of reading run directories: refusals, doubts and omissions."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.history import records
from brokerd.history.records import ACKS, ROW_BYTES
from brokerd.history.writer import RecordWriter
from results.rules.log_doubts import doubts_about_file
from results.tables.json_files import IntegrityError, ResultsError, read_json_lines
from results.tables.logs import read_logs
from results.tables.manifest import read_run
from results.tables.record_files import RECORD_BYTES, RECORDS, read_record_file
from results.tables.seals import seal, verify_seal
from tests.helpers.runs import write_demo_run

DELIVERIES = "raw/local2/load-local2/deliveries.rec"
PUBLICATIONS = "raw/local1/load-publishers/publications.rec"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / template.name))


def change_sidecar(path: Path, **changes: object) -> None:
    sidecar = path.with_name(path.name + ".json")
    sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), **changes}))


def rehash(path: Path) -> None:
    """Make a sidecar fit a changed record file."""
    data = path.read_bytes()
    change_sidecar(path, blake2b=hashlib.blake2b(data).hexdigest(), rows=len(data) // 32)


def test_records_are_read_as_they_are_written() -> None:
    assert RECORD_BYTES == ROW_BYTES
    layouts = [each for each in vars(records).values() if isinstance(each, records.Layout)]
    assert len(layouts) == len(RECORDS)
    for layout in layouts:
        values = tuple(range(1, len(layout.columns) + 1))
        dtype = RECORDS[layout.name]
        import numpy as np

        (row,) = np.frombuffer(layout.row.pack(*values), dtype)
        named = {n: int(row[n]) for n in dtype.names if dtype[n].kind != "V"}
        assert named == dict(zip(layout.columns, values, strict=True))


def test_a_file_of_the_brokers_own_writer_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "host" / "process"
    folder.mkdir(parents=True)
    writer = RecordWriter(folder, ACKS, "run-1")
    writer.append(ACKS.row.pack(1, 5, 77, 0, 0, 1))
    writer.flush()
    file = read_record_file(folder / "acks.rec", "run-1")
    assert (file.is_whole, file.rows) == (False, 0)
    writer.close({"publishers": ["p1/0"]})
    file = read_record_file(folder / "acks.rec", "run-1")
    assert (file.is_whole, file.rows, [*doubts_about_file(file)]) == (True, 1, [])


def test_a_whole_run_leaves_nothing_in_doubt(run: Path) -> None:
    found = read_run(run)
    logs = read_logs(found)
    assert (found.doubts, logs.doubts) == ((), [])
    assert [source.pubend for source in logs.sources] == ["p1/0", "p1/1", "p1/2", "p1/3"]
    assert logs.sources[0].name == "p1-pub-1"
    assert sorted(s.sub_id for s in logs.subscriptions) == [f"s{n}-sub-1/1" for n in range(1, 6)]
    assert all(s.closed and s.accepted_ns < 0 for s in logs.subscriptions)
    verify_seal(run)


# --- Changed files: integrity errors ----------------------------------------------------------


def flip_a_byte(run: Path) -> None:
    path = run / DELIVERIES
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)


def cut_off_records(run: Path) -> None:
    path = run / DELIVERIES
    path.write_bytes(path.read_bytes()[:-64])


def lose_a_record_in_the_middle(run: Path) -> None:
    path = run / DELIVERIES
    data = path.read_bytes()
    path.write_bytes(data[:320] + data[352:] + data[-32:])


def point_out_of_the_table(run: Path) -> None:
    path = run / DELIVERIES
    data = bytearray(path.read_bytes())
    data[20:24] = (99).to_bytes(4, "little")
    path.write_bytes(data)
    rehash(path)


def unknown_kind(run: Path) -> None:
    path = run / DELIVERIES
    data = bytearray(path.read_bytes())
    data[28] = 9
    path.write_bytes(data)
    rehash(path)


def remove_a_sidecar(run: Path) -> None:
    (run / (DELIVERIES + ".json")).unlink()


def other_width(run: Path) -> None:
    change_sidecar(run / DELIVERIES, width=40)


def break_a_json_line(run: Path) -> None:
    path = run / "raw/local2/load-local2/subscriptions.jsonl"
    path.write_text("{" + path.read_text())


@pytest.mark.parametrize("change", [
    flip_a_byte, cut_off_records, lose_a_record_in_the_middle, point_out_of_the_table, unknown_kind,
    remove_a_sidecar, other_width, break_a_json_line,
])  # fmt: skip
def test_a_changed_log_is_refused(run: Path, change: Callable[[Path], None]) -> None:
    """The seal shows the change, and so does the sidecar of a folder without a seal."""
    change(run)
    with pytest.raises(IntegrityError, match="local2/load-local2"):
        read_run(run)
    seal(run)
    with pytest.raises(IntegrityError, match="local2/load-local2") as caught:
        read_logs(read_run(run))
    assert caught.value.exit_status == 8


def test_a_seal_reports_changed_files_and_allows_derived_files(run: Path) -> None:
    (run / "verdict.json").write_text("{}")
    verify_seal(run)
    (run / "spec" / "workload.toml").write_text("seed = 1\n")
    with pytest.raises(IntegrityError, match=r"spec/workload\.toml has changed"):
        verify_seal(run)
    (run / "raw" / "stranger.txt").write_text("hello")
    (run / PUBLICATIONS).unlink()
    with pytest.raises(IntegrityError) as caught:
        verify_seal(run)
    assert f"{PUBLICATIONS} is missing" in str(caught.value)
    assert "raw/stranger.txt is not in" in str(caught.value)
    seal(run)
    verify_seal(run)


# --- Records that are incomplete: doubts ------------------------------------------------------


def test_a_log_that_was_never_closed_is_doubted(run: Path) -> None:
    path = run / DELIVERIES
    path.write_bytes(path.read_bytes()[:-7])
    change_sidecar(path, closed=False, rows=None, blake2b=None)
    seal(run)
    logs = read_logs(read_run(run))
    assert [*logs.doubts] == [
        "local2/load-local2/deliveries.rec was not closed, 25 bytes of a torn record left out"
    ]
    assert {s.broker: s.closed for s in logs.subscriptions} == {
        "s1": False, "s2": False, "s3": True, "s4": True, "s5": True,
    }  # fmt: skip


def test_a_log_without_tables_has_no_rows(run: Path) -> None:
    change_sidecar(run / PUBLICATIONS, closed=False, rows=None, blake2b=None, tables={})
    seal(run)
    logs = read_logs(read_run(run))
    assert logs.doubts[0] == "local1/load-publishers/publications.rec was not closed"
    assert logs.doubts[-1] == "there is no log of publisher p1-pub-1, p1-pub-2, p1-pub-3 and 1 more"
    assert logs.sources == []


def test_records_of_another_run_are_set_aside(run: Path) -> None:
    change_sidecar(run / DELIVERIES, run_id="run-0")
    seal(run)
    logs = read_logs(read_run(run))
    assert logs.doubts == ["local2/load-local2/deliveries.rec is of run run-0"]
    assert [file.path.parent.name for file in logs.files("deliveries")] == ["load-local3"]
    assert not any(s.closed for s in logs.subscriptions if s.broker in ("s1", "s2"))


def test_missing_clients_are_missed(run: Path) -> None:
    shutil.rmtree(run / "raw" / "local3" / "load-local3")
    seal(run)
    logs = read_logs(read_run(run))
    assert logs.doubts == ["there is no log of subscriber s3-sub-1, s4-sub-1, s5-sub-1"]


def test_numbers_used_twice_are_noticed(run: Path) -> None:
    path = run / PUBLICATIONS
    run_id = read_run(run).run_id
    assert read_record_file(path, run_id).scan.rising
    data = path.read_bytes()
    path.write_bytes(data + data[-32:])
    rehash(path)
    assert not read_record_file(path, run_id).scan.rising


def test_other_attribute_sets_than_the_seeds_are_doubted(run: Path) -> None:
    path = run / PUBLICATIONS
    tables = json.loads(path.with_name(path.name + ".json").read_text())["tables"]
    tables["attribute_sets"][3]["price"] += 1
    change_sidecar(path, tables=tables)
    seal(run)
    assert read_logs(read_run(run)).doubts == [
        "local1/load-publishers used other attribute sets than the seed's"
    ]


def test_attribute_sets_that_python_considers_equal_differ_by_type(run: Path) -> None:
    path = run / PUBLICATIONS
    tables = json.loads(path.with_name(path.name + ".json").read_text())["tables"]
    price = tables["attribute_sets"][3]["price"]
    tables["attribute_sets"][3]["price"] = float(price)
    assert tables["attribute_sets"][3]["price"] == price
    change_sidecar(path, tables=tables)
    seal(run)
    assert read_logs(read_run(run)).doubts == [
        "local1/load-publishers used other attribute sets than the seed's"
    ]


def change_manifest(run: Path, **changes: object) -> None:
    path = run / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    seal(run)


def test_an_incomplete_run_reports_its_reasons(run: Path) -> None:
    change_manifest(run, state="aborted", reasons=["interrupted"], origin_ns=None)
    assert read_run(run).doubts == (
        "the run is aborted: interrupted", "the run never reached its measure phase",
    )  # fmt: skip


def test_a_fault_that_is_not_in_the_log_is_missed(run: Path) -> None:
    path = run / "faults" / "faults.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["state"] = "failed"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    seal(run)
    assert read_run(run).doubts == (
        "fault restart-b1 was planned and is not in the fault log",
        'fault kill-b1 (kill b1) failed: {"exit_signal": 9}',
    )


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="holds no run"):
        read_run(tmp_path)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": ')
    assert [*read_json_lines(path)] == [{"a": 1}, {"a": 2}]
    path.write_text("[1]\n")
    with pytest.raises(IntegrityError, match="line 1: not a JSON object"):
        [*read_json_lines(path)]
