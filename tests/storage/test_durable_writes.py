"""Each write that is promised to be durable syncs the file, and then the folder of a new name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.run.series import append_durably
from brokerd.agent.journal import Journal
from brokerd.client.store import FileStore
from brokerd.runtime.state_folder import LOSS, forget_loss, record_loss
from brokerd.storage.files import MARK_BYTES
from brokerd.storage.log_volume import LogVolume
from pubsubctl.lab import journal as lab

Act = Callable[[Path], Any]


def write_entry(folder: Path) -> None:
    journal = Journal(folder / "journal")
    trio.run(journal.write, "started")
    trio.run(journal.note, "seen")
    journal.close()


def accept_end(folder: Path) -> None:
    volume = LogVolume(folder / "logs")
    (folder / "logs" / "synced").write_bytes(bytes(MARK_BYTES))
    volume.accept_end()
    volume.close()


def record_twice(folder: Path) -> None:
    for cause in ("first", "second"):
        record_loss(folder, b"s", cause)


def record_and_forget(folder: Path) -> None:
    record_loss(folder, b"s", "first")
    forget_loss(folder)
    assert not (folder / LOSS).exists()


def append_twice(folder: Path) -> None:
    for number in range(2):
        append_durably(folder / "series.jsonl", {"n": number})


def write_lines(folder: Path) -> None:
    for number in range(2):
        lab.write_line(folder, {"n": number})


WRITES: dict[str, tuple[Act, list[str]]] = {
    "loss": (record_twice, [LOSS, ".", LOSS, "."]),
    "forgotten loss": (record_and_forget, [LOSS, ".", "."]),
    "accepted end": (accept_end, [".", "logs"]),
    "journal": (write_entry, [".", "journal"]),
    "client": (lambda folder: FileStore(folder / "client").save(b"x"), [".client.new", "."]),
    "ledger": (append_twice, ["series.jsonl", ".", "series.jsonl"]),
    "lab": (write_lines, [lab.JOURNAL, ".", "..", lab.JOURNAL]),
}
"""Writes, with the paths that are synced, in order."""


@pytest.mark.parametrize("name", WRITES)
def test_a_durable_write_syncs_the_file_and_then_the_folder_of_a_new_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    folder = tmp_path / "here"
    folder.mkdir()

    def note(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        found.append(os.path.relpath(path, folder))

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "fdatasync", note)
    act, synced = WRITES[name]
    act(folder)
    assert found == synced
