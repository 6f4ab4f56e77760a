"""Tests of the disk usage of a process."""

from pathlib import Path

from brokerd.agent.facts import disk_bytes_of


def test_all_files_of_a_process_count_with_the_room_that_they_take(tmp_path: Path) -> None:
    folder = tmp_path / "b1"
    (folder / "log").mkdir(parents=True)
    (folder / "small").write_bytes(b"x")
    (folder / "log" / "large").write_bytes(bytes(100_000))
    for key in ("state_folder", "folder"):
        found = disk_bytes_of({key: str(folder)})
        assert found is not None
        assert 100_001 < found < 200_000
    (folder / "log" / "large").unlink()
    assert (disk_bytes_of({"folder": str(folder)}) or 0) <= 65_536
    assert disk_bytes_of({"folder": str(tmp_path / "gone")}) == 0
    assert disk_bytes_of({"log_folder": str(folder)}) is None
