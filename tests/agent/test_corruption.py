"""Tests of damage to files, against the bytes of all files in a row."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.agent.corruption import ALL_FILES, corrupt
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import DAMAGES, MOST_DRAWN, Damage

FILES = {"log/1": b"first", "log/2": b"", "log/more/3": b"third", "meta": b"0123456789"}


def fill(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def in_a_row(folder: Path) -> bytes:
    """Return the bytes of all files, in the order of their names."""
    return b"".join((folder / name).read_bytes() for name in sorted(FILES))


@given(draw=st.integers(0, MOST_DRAWN))
def test_one_bit_at_the_drawn_place_is_flipped(
    tmp_path_factory: pytest.TempPathFactory, draw: int
) -> None:
    folder = tmp_path_factory.mktemp("data")
    fill(folder, FILES)
    before = in_a_row(folder)
    done = corrupt(folder, "bit", ALL_FILES, draw)
    place, bit = draw % len(before), draw // len(before) % 8
    changed = before[:place] + bytes([before[place] ^ 1 << bit]) + before[place + 1 :]
    assert in_a_row(folder) == changed
    assert (done.before, done.after) == (before[place], changed[place])
    assert done.size_bytes == len(FILES[done.file])
    assert done.is_on_disk(folder)


@given(draw=st.integers(0, MOST_DRAWN))
def test_a_file_without_its_tail_ends_at_the_drawn_place(
    tmp_path_factory: pytest.TempPathFactory, draw: int
) -> None:
    folder = tmp_path_factory.mktemp("data")
    fill(folder, FILES)
    done = corrupt(folder, "tail", ALL_FILES, draw)
    for name, content in FILES.items():
        kept = content[: done.offset_bytes] if name == done.file else content
        assert (folder / name).read_bytes() == kept
    assert done.after is None
    assert done.is_on_disk(folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_was_mended_or_removed_shows_no_damage(tmp_path: Path, damage: Damage) -> None:
    fill(tmp_path, FILES)
    done = corrupt(tmp_path, damage, "meta", 3)
    fill(tmp_path, FILES)
    assert not done.is_on_disk(tmp_path)
    (tmp_path / "meta").unlink()
    assert not done.is_on_disk(tmp_path)


@pytest.mark.parametrize(
    "pattern, names",
    [("meta", {"meta"}), ("log/*", {"log/1", "log/more/3"}), ("*3", {"log/more/3"})],
)
def test_only_matching_files_are_damaged(tmp_path: Path, pattern: str, names: set[str]) -> None:
    found = set()
    for draw in range(20):
        fill(tmp_path, FILES)
        found.add(corrupt(tmp_path, "bit", pattern, draw).file)
    assert found == names


@pytest.mark.parametrize("pattern", ["log/2", "nothing", "link", "pipe"])
def test_without_a_byte_to_damage_the_fault_is_refused(tmp_path: Path, pattern: str) -> None:
    """Neither links nor pipes are followed."""
    folder = tmp_path / "data"
    fill(folder, FILES)
    (tmp_path / "other").write_bytes(b"another's")
    (folder / "link").symlink_to(tmp_path / "other")
    os.mkfifo(folder / "pipe")
    with pytest.raises(ControlError, match="that has any bytes") as refused:
        corrupt(folder, "bit", pattern, 1)
    assert refused.value.kind == "user"
    assert (tmp_path / "other").read_bytes() == b"another's"
