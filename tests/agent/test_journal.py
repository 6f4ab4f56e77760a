"""Tests of the agent's journal: written lines survive a power failure."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.agent.journal import Journal, Recollection, read_journal, recall
from brokerd.errors import StorageCorrupt
from tests.helpers.lossy_disk import LossyDisk
from tests.helpers.small_disk import limit_writes


def test_an_entry_survives_a_power_failure_once_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(tmp_path, monkeypatch)
    journal = Journal(tmp_path / "journal")
    trio.run(journal.write, "start")
    trio.run(journal.note, "told")
    journal.close()
    disk.crash()
    assert [entry["entry"] for entry in read_journal(tmp_path / "journal")] == ["start"]


@pytest.mark.parametrize("room_bytes", [0, 20])
def test_a_full_disk_spoils_no_line_and_delays_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    trio.run(journal.write, "start")
    with monkeypatch.context() as patches:
        limit_writes(patches, room_bytes)
        trio.run(journal.note, "exited")
        with pytest.raises(OSError, match="No space left"):
            trio.run(journal.write, "fault")
        trio.run(journal.note, "hold")
        assert [entry["entry"] for entry in read_journal(path)] == ["start"]
    trio.run(journal.write, "end")
    trio.run(journal.note, "agent")
    journal.close()
    entries = [entry["entry"] for entry in read_journal(path)]
    assert entries == ["start", "exited", "hold", "end", "agent"]


def test_a_journal_that_is_closed_writes_the_notes_that_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    with monkeypatch.context() as patches:
        limit_writes(patches, 0)
        trio.run(journal.note, "exited")
    journal.close()
    assert [entry["entry"] for entry in read_journal(tmp_path / "journal")] == ["exited"]


@pytest.mark.parametrize("content", ["", "{}\n", '{"entry": "a"}\n{"entry": "b"}\n'])
@pytest.mark.parametrize("torn", ["", '{"ent', '{"entry": "c"}'])
def test_a_restarted_agent_continues_behind_the_last_whole_line(
    tmp_path: Path, content: str, torn: str
) -> None:
    path = tmp_path / "journal"
    path.write_text(content + torn)
    for _ in range(2):
        Journal(path).close()
        assert path.read_text() == content


EPISODE = (
    {"entry": "start", "process": "n1", "argv": ["brokerd"]},
    {"entry": "started", "process": "n1", "pid": 7, "start_time": 9},
    {"entry": "exited", "process": "n1", "status": 0},
    {"entry": "fault", "fault_id": "f1", "verb": "freeze", "deadline_ns": 5},
    {"entry": "fault_state", "fault_id": "f1", "state": "applied", "deadline_ns": 6},
    {"entry": "hold", "deadline_ns": 8},
    {"entry": "metrics", "port": 9_100},
)
AGENT = {"entry": "agent", "deployment": "d1", "boot_id": "b1"}
END = {"entry": "end", "why": "request"}


def test_a_deployment_that_has_ended_leaves_nothing_to_the_next_agent() -> None:
    new = recall([AGENT])
    before_its_end = recall([AGENT, *EPISODE])
    for field in fields(Recollection):
        if field.name not in ("deployment", "boot"):
            left, nothing = getattr(before_its_end, field.name), getattr(new, field.name)
            assert left != nothing, f"the episode leaves no {field.name}; add an entry of it"
    assert recall([AGENT, *EPISODE, END]) == new
    assert recall([AGENT, *EPISODE, END, AGENT, *EPISODE, END]) == new


@pytest.mark.parametrize(
    "entry", EPISODE[:1] + EPISODE[3:4] + EPISODE[5:], ids=lambda each: each["entry"]
)
def test_a_second_deployment_is_recalled_like_a_first_one(entry: dict[str, Any]) -> None:
    assert recall([AGENT, *EPISODE, END, AGENT, entry]) == recall([AGENT, entry])


def test_each_process_and_fault_is_recalled_with_its_latest_entries() -> None:
    restarted = {"entry": "start", "process": "n1", "argv": ["brokerd", "2"]}
    ended = {**EPISODE[0], "identity": (7, 9), "exit": EPISODE[2]}
    fault = {**EPISODE[3], "state": "applied", "deadline_ns": 6}
    expected = Recollection("d1", "b1", {"n1": ended}, {"f1": fault}, 8, 9_100)
    assert recall([AGENT, *map(dict, EPISODE)]) == expected
    assert recall([AGENT, *map(dict, EPISODE), restarted]).starts == {"n1": restarted}


@pytest.mark.parametrize("line", ["[]", "5", "{}", '{"entry": 5}', '{"entry"', ""])
@pytest.mark.parametrize("before", [0, 2])
def test_a_line_that_is_no_entry_is_named_unless_a_crash_cut_it_off(
    tmp_path: Path, line: str, before: int
) -> None:
    path = tmp_path / "journal"
    path.write_text('{"entry": "a"}\n' * before + line)
    assert [entry["entry"] for entry in read_journal(path)] == before * ["a"]
    path.write_text('{"entry": "a"}\n' * before + line + "\n")
    with pytest.raises(StorageCorrupt, match=f"journal:{before + 1}: not an entry"):
        list(read_journal(path))
