"""Stories about the collection of a run's records on a machine without room for them."""

import errno
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from bench.run.collection import (
    UNCOLLECTED,
    RecordFolder,
    RunEnd,
    collect_later,
    collect_records,
    is_uncollected,
    read_uncollected,
    write_uncollected,
)
from bench.run.run_directory import RunDirectory
from bench.run.testbed import HostFiles
from brokerd.errors import ControlError
from pubsubctl.runs import experiment
from pubsubctl.runs.experiment import RecordsLeft, open_testbed

RUN_ID = "20261130T000000Z-abcdef"
FOLDERS = [
    RecordFolder("h1", "b1", "/r/run/b1"),
    RecordFolder("h1", "b1", None, ("stderr.log",)),
    RecordFolder("h2", "load", "/r/run/load"),
]
ON_HOSTS = {
    "/r/run/b1": {"events.jsonl": b"e\n"},
    "/r/log/b1": {"stderr.log": b"", "other.log": b"o"},
    "/r/run/load": {"deliveries.rec": b"d" * 9, "deliveries.rec.json": b"{}"},
}


class Disk:
    """Hosts with files, and a disk of this machine with room for so many bytes."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self.files_there = HostFiles({"h1": cast("Any", self), "h2": cast("Any", self)}, self.fetch)

    async def files(self, process: str, folder: str) -> dict[str, Any]:
        where = folder or f"/r/log/{process}"
        rows = [
            {"name": name, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in ON_HOSTS[where].items()
        ]
        return {"folder": where, "files": rows}

    async def fetch(self, host: str, source: str, target: Path, most_bytes: int) -> None:
        folder, _, name = source.rpartition("/")
        data = ON_HOSTS[folder][name]
        target.write_bytes(data[: self.room_bytes])
        if len(data) > self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        self.room_bytes -= len(data)


def begun(folder: Path) -> RunDirectory:
    """Return the folder of a run that has reached its end."""
    directory = RunDirectory(folder / "runs" / "tried" / RUN_ID)
    directory.begin("tried", {"protocol": "delta_tree", "phases": []})
    end = RunEnd(
        state="complete",
        reasons=[],
        manifest=directory.manifest,
        journal_bytes=directory.journal_bytes,
        waited_share={"b1": 0.5},
        down=["b1"],
    )
    write_uncollected(directory.path, FOLDERS, end)
    return directory


def journal_of(run: Path) -> list[str]:
    return [json.loads(line)["what"] for line in (run / "log.jsonl").read_text().splitlines()]


def test_records_without_room_stay_on_their_hosts_and_are_collected_later(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    run = directory.path
    disk = Disk(5)
    with pytest.raises(OSError, match="No space left"):
        trio.run(collect_records, disk.files_there, directory, FOLDERS)
    directory.log("a line of a collection that had no room")
    directory.leave()
    assert is_uncollected(run)
    assert {each.host for each in read_uncollected(run)[0]} == {"h1", "h2"}
    here = {path.name for path in run.glob("raw/*/*/*")}
    assert here == {"events.jsonl", "stderr.log"}  # no part of a file, and no file of another run

    with pytest.raises(OSError, match="No space left"):
        trio.run(collect_later, run, disk.files_there)
    assert is_uncollected(run)
    outcome = trio.run(collect_later, run, Disk(100).files_there)
    assert (outcome.state, outcome.reasons) == ("complete", ())
    assert (outcome.waited_share, outcome.down) == ({"b1": 0.5}, ("b1",))
    assert not is_uncollected(run)
    assert journal_of(run) == ["collected", "end"]
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["state"] == "complete"
    sums = (run / "SHA256SUMS").read_text()
    assert "raw/h2/load/deliveries.rec\n" in sums
    assert UNCOLLECTED not in sums


def test_a_run_without_room_for_its_end_is_partial_later(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    run = directory.path
    write_uncollected(run, FOLDERS)
    directory.log("phase")
    directory.leave()
    with (run / "log.jsonl").open("a") as journal:
        journal.write('{"what": "pha')
    outcome = trio.run(collect_later, run, Disk(100).files_there)
    assert outcome.state == "partial"
    assert "no room for the end" in outcome.reasons[0]
    assert journal_of(run) == ["phase", "collected", "end"]


def test_a_file_that_no_run_wrote_leads_to_no_other_folder(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    directory.leave()
    path = directory.path / UNCOLLECTED
    good = path.read_text()
    for text in ("", "[]", '{"folders": [7]}', '{"folders": [], "end": {}}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match="damaged"):
            read_uncollected(directory.path)
    for place in ("host", "process"):
        path.write_text(good.replace(f'"{place}": "', f'"{place}": "../'))
        with pytest.raises(ValueError, match="is no name of a host or process"):
            read_uncollected(directory.path)


def test_a_host_that_does_not_answer_leaves_one_problem(tmp_path: Path) -> None:
    class Silent(Disk):
        async def files(self, process: str, folder: str) -> dict[str, Any]:
            raise ControlError("closed", "no answer")

    directory = begun(tmp_path)
    problems = trio.run(collect_records, Silent(0).files_there, directory, FOLDERS)
    assert problems == [
        "files of b1 on h1 could not be fetched: no answer",
        "files of load on h2 could not be fetched: no answer",
    ]
    directory.leave()


@pytest.mark.parametrize("left", [True, False])
def test_a_temporary_deployment_with_the_only_records_is_not_taken_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left: bool
) -> None:
    done: list[str] = []

    class Deployment:
        async def hold(self, lease_ms: int) -> None:
            done.append(f"hold {lease_ms}")

    @asynccontextmanager
    async def run_deployment(*_: Any, **__: Any) -> AsyncIterator[Deployment]:
        yield Deployment()

    async def take_down(*_: Any, **__: Any) -> None:
        done.append("take down")

    async def testbed(_: Any) -> Any:
        return None

    async def observe() -> list[Mapping[str, Any]]:
        return []

    monkeypatch.setattr(experiment, "run_deployment", run_deployment)
    monkeypatch.setattr(experiment, "take_down", take_down)
    monkeypatch.setattr(experiment, "as_testbed", testbed)
    monkeypatch.setattr(experiment, "replace", lambda bed, **_: bed)
    monkeypatch.setattr(experiment, "_renew", lambda *_: trio.sleep_forever())

    async def story() -> None:
        lab: Any = SimpleNamespace(observe=observe)
        wanted: Any = SimpleNamespace(placement=SimpleNamespace(brokers=()))
        quiet: Any = None
        lab.inventory = SimpleNamespace(path=tmp_path / "lab.toml")
        error = RecordsLeft.of(tmp_path / RUN_ID, lab) if left else OSError("another error")
        with pytest.RaisesGroup(type(error), flatten_subgroups=True):
            async with open_testbed(lab, wanted, quiet, quiet, "bench", teardown=True):
                raise error

    trio.run(story)
    assert done == (["hold 0"] if left else ["take down"])
