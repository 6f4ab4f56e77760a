"""Tests of run folders with hostile numbers and deep nesting: readers refuse or judge."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.run.series import read_whole_lines
from brokerd.errors import ConfigError
from pubsubctl.errors import IntegrityError as IntegrityErrorOfCommands
from pubsubctl.runs.runs import read_json as read_for_commands
from results.reference import predicates
from results.reference.files import FileRefusal
from results.reference.files import read_json as read_plain
from results.reference.files import read_lines as read_plain_lines
from results.reference.history_reader import judge_folder
from results.rules.expectation import ExpectationError, parse_predicate
from results.tables.json_files import IntegrityError, ResultsError, read_json, read_json_lines
from results.tables.logs import commits_of, gaps_of, notices_of, read_logs
from results.tables.manifest import LONGEST_PHASE_NS, read_run
from results.tables.record_files import STRETCH
from results.tables.seals import seal
from results.tables.small_tables import small_tables
from tests.helpers.forged_folders import NEAR, RunFolder, write_honest_run
from tests.helpers.runs import write_demo_run

HOSTILE = (-1, 1 << 31, 10**9, (1 << 63) - 1, 1 << 70, float("nan"), float("inf"), 1e308, None, [])
REFUSALS = (FileRefusal, IntegrityError, ResultsError, ExpectationError)
SECONDS = 5
DEEP = 100_000


def read_for_spark(folder: Path) -> None:
    """Read a small folder completely, as `check` does before Spark starts."""
    run = read_run(folder)
    logs = read_logs(run)
    gaps_of(logs, run.to_timeline)
    commits_of(logs)
    notices_of(logs, run.to_timeline)
    small_tables(run, logs)


READERS: tuple[Callable[[Path], object], ...] = (judge_folder, read_for_spark)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_honest_run(tmp_path_factory.mktemp("honest"), "run", gated=False)


def numbers(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every number in a document; of a list, only of the first two entries."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from numbers(each, (*place, key))
    elif isinstance(value, list):
        for number, each in enumerate(value[:2]):
            yield from numbers(each, (*place, number))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


def spoilt(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = deepcopy(document)
    target = changed
    for part in place[:-1]:
        target = target[part]
    target[place[-1]] = value
    return changed


def look(folder: Path, what: object) -> None:
    """Check that both readers end in time, with a refusal or without one."""
    seal(folder)
    for read in READERS:
        began = time.process_time()  # a busy machine takes longer, and no more work
        try:
            read(folder)
        except REFUSALS:
            pass
        except Exception as error:
            raise AssertionError(f"{what}: {read.__name__}: {error!r}") from error
        assert time.process_time() - began < SECONDS, (what, read)


DOCUMENTS = (
    "manifest.json",
    "clock.jsonl",
    "faults/faults.jsonl",
    f"raw/{NEAR}/subscriptions.jsonl",
)


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "clock.jsonl"])
def test_a_number_of_a_run_folder_is_refused_or_judged(
    name: str, honest: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(honest, folder)
    path = folder / name
    text = path.read_text()
    is_lines = name.endswith(".jsonl")
    rows = [json.loads(line) for line in text.splitlines()] if is_lines else json.loads(text)
    for turn, place in enumerate(numbers(rows)):
        for value in (HOSTILE[turn % len(HOSTILE)], HOSTILE[(turn + 3) % len(HOSTILE)]):
            changed = spoilt(rows, place, value)
            lines = [json.dumps(each) for each in changed] if is_lines else [json.dumps(changed)]
            path.write_text("\n".join(lines) + "\n")
            look(folder, (name, place, value))


@pytest.mark.parametrize("name", [*DOCUMENTS, "spec/workload.toml", "spec/topology.toml"])
def test_deep_nesting_in_a_run_folder_is_refused(name: str, honest: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(honest, folder)
    with (folder / name).open("a") as file:
        deep = "[" * DEEP + "]" * DEEP
        file.write(f"\nx = {deep}\n" if name.endswith("toml") else f'{{"x": {deep}}}\n')
    seal(folder)
    for read in READERS:
        with pytest.raises(REFUSALS):
            read(folder)


@pytest.mark.parametrize("place", [("phases", 0, "t0_ns"), ("phases", 0, "t1_ns"), ("origin_ns",)])
def test_a_time_beyond_64_bits_is_refused(place: tuple[Any, ...], tmp_path: Path) -> None:
    """On the time line of the run, the least number of 64 bits is beyond 64 bits."""
    folder = write_honest_run(tmp_path, "run", gated=False)
    path = folder / "manifest.json"
    path.write_text(json.dumps(spoilt(json.loads(path.read_text()), place, -(1 << 63))))
    look(folder, place)


@pytest.mark.parametrize("count", [1 << 21, (1 << 31) - 1])
def test_a_stretch_of_impossible_length_is_refused(
    count: int, honest: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(honest, folder)
    with RunFolder(folder).records(NEAR, "deliveries") as rows:
        rows.all["kind"][3] = STRETCH
        rows.all["digest"][3] = np.uint32(count)
        rows.all["sequence"][3] = 1 << 40
        rows.all["layer"][3] = 1
    seal(folder)
    for read in READERS:
        with pytest.raises(REFUSALS):
            read(folder)


@pytest.mark.parametrize(
    "text",
    ["not " * 5_000 + "a = 1", "(" * 5_000 + "a = 1" + ")" * 5_000, "a = 1 or " * 5_000 + "a = 1"],
    ids=["not", "brackets", "long"],
)
def test_both_parsers_refuse_a_predicate_that_no_broker_accepts(text: str) -> None:
    with pytest.raises(ExpectationError):
        parse_predicate(text)
    with pytest.raises(ValueError, match=r"at most|deeper"):
        predicates.wants(text)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", str(1 << 70), str(-(1 << 63) - 1)])
def test_no_reader_accepts_a_number_beyond_64_bits(number: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(f'{{"x": [{number}]}}\n')
    refusals = (IntegrityError, FileRefusal, IntegrityErrorOfCommands, ConfigError)
    for read in (read_json, read_plain, read_for_commands):
        with pytest.raises(refusals, match=r"some\.json"):
            read(path)
    for read_all in (read_json_lines, read_plain_lines, read_whole_lines):
        with pytest.raises(refusals, match=r"some\.json"):
            [*read_all(path)]


def test_every_reader_accepts_numbers_of_64_bits(tmp_path: Path) -> None:
    rows = [{"x": (1 << 63) - 1}, {"x": -(1 << 63)}, {"x": 1e308}]
    path = tmp_path / "some.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for read_all in (read_json_lines, read_plain_lines, read_whole_lines):
        assert [*read_all(path)] == rows


@pytest.mark.parametrize("number", [float("nan"), 1 << 70])
def test_a_hostile_number_in_any_file_is_refused_or_doubted(
    number: float, honest: Path, tmp_path: Path
) -> None:
    """The manifest, the journal, sidecars of records, statistics and events."""
    folder = tmp_path / "run"
    shutil.copytree(honest, folder)
    names = ["manifest.json", "log.jsonl", *(
        path.relative_to(folder).as_posix() for path in sorted(folder.glob("raw/*/*/*.json*"))
    )]  # fmt: skip
    for turn, name in enumerate(names):
        path = folder / name
        if not path.is_file() or not (text := path.read_text()).strip():
            continue
        is_lines = name.endswith(".jsonl")
        rows = [json.loads(line) for line in text.splitlines()] if is_lines else json.loads(text)
        found = [*numbers(rows)]
        if not found:
            continue
        changed = spoilt(rows, found[turn % len(found)], number)
        lines = [json.dumps(each) for each in changed] if is_lines else [json.dumps(changed)]
        path.write_text("\n".join(lines) + "\n")
        seal(folder)
        for read in READERS:
            try:
                judged = read(folder)
            except REFUSALS:
                continue
            if read is judge_folder:
                assert judged.doubts, name  # type: ignore[attr-defined]
        path.write_text(text)


@pytest.mark.parametrize("at_ns", [1e308, None, "1"])
def test_a_statistic_without_a_time_is_refused(at_ns: object, tmp_path: Path) -> None:
    run = RunFolder(write_demo_run(tmp_path))
    (path,) = run.folder.glob("raw/*/s1/stats.jsonl")
    with run.lines(path.relative_to(run.folder).as_posix()) as rows:
        rows[0]["t_ns"] = at_ns
    seal(run.folder)
    with pytest.raises(IntegrityError, match="does not hold what a run does"):
        read_for_spark(run.folder)


def test_an_event_of_a_broker_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    run = RunFolder(write_demo_run(tmp_path))
    (name,) = (path.relative_to(run.folder).as_posix()
               for path in run.folder.glob("raw/*/s1/events.jsonl"))  # fmt: skip
    with run.lines(name) as rows:
        row = {"event": "retransmission_requested", "t_ns": 1, "peer": 0, "source": 1 << 40}
        rows.append({**row, "stream": 0, "ranges": 1, "asked_ns": 1})
    seal(run.folder)
    with pytest.raises(IntegrityError, match="does not hold what a run does"):
        read_for_spark(run.folder)


def test_a_phase_is_no_longer_than_any_workload_may_ask_for(tmp_path: Path) -> None:
    run = RunFolder(write_honest_run(tmp_path, "run", gated=False))
    with run.document("manifest.json") as manifest:
        manifest["phases"][-1]["t1_ns"] = manifest["phases"][-1]["t0_ns"] + LONGEST_PHASE_NS + 1
    seal(run.folder)
    with pytest.raises(IntegrityError, match="lasts 120000 h"):
        read_run(run.folder)
