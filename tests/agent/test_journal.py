"""The agent's journal: what it called written is there after a power failure."""

from pathlib import Path

import pytest
import trio

from brokerd.agent.journal import Journal, read_journal
from tests.helpers.lossy_disk import LossyDisk


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
