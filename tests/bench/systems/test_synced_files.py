"""Tests of a program's files after a loss of power: only synced data remain."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.systems.synced_files import is_possible, lose_unsynced
from tests.helpers.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(not is_possible(), reason="Linux on x86_64 only")

STARTED = """
import sys
from bench.systems.program import run_program
program, folder, kept = sys.argv[1:]
run_program({"command": [sys.executable, "-c", program], "folder": folder, "kept": kept})
"""
WRITES = """
import os, signal

def write(name, text, synced=False, how=os.O_CREAT | os.O_WRONLY | os.O_APPEND):
    descriptor = os.open(name, how)
    os.write(descriptor, text)
    if synced:
        os.fsync(descriptor)
    os.close(descriptor)

os.mkdir("in")
write("in/synced", b"one", synced=True)
write("in/synced", b"two")
write("unsynced", b"lost")
write("c.new", b"renamed", synced=True)
os.rename("c.new", "c")
write("d", b"removed", synced=True)
os.unlink("d")
write("through", b"each", how=os.O_CREAT | os.O_WRONLY | os.O_DSYNC)
write("e.new", b"through, then renamed", how=os.O_CREAT | os.O_WRONLY | os.O_DSYNC)
os.rename("e.new", "e")
write("f", b"through, then removed", how=os.O_CREAT | os.O_WRONLY | os.O_DSYNC)
os.unlink("f")
write("f", b"another, unsynced")
os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by(program: str, folder: Path, kept: Path) -> int:
    """Run a program and record its syncs; return its exit status."""
    command = [sys.executable, "-c", STARTED, program, str(folder), str(kept)]
    # Its keeper has the other end of the pipe, which so closes when that has ended too.
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], check=False, stdout=subprocess.PIPE,
        timeout=PATIENCE_S,
    )  # fmt: skip
    return done.returncode


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_killed_server_retains_only_its_synced_data(tmp_path: Path) -> None:
    folder, kept = tmp_path / "data", tmp_path / "kept"
    folder.mkdir()
    (folder / "conf").write_bytes(b"set")
    assert left_by(WRITES, folder, kept) == -9
    before = contents(folder)
    assert (before["in/synced"], before["unsynced"]) == (b"onetwo", b"lost")
    lose_unsynced(folder, kept)
    assert contents(folder) == {
        "conf": b"set", "in/synced": b"one", "c": b"renamed", "through": b"each",
        "e": b"through, then renamed",
    }  # fmt: skip


def test_a_program_that_syncs_everything_loses_nothing(tmp_path: Path) -> None:
    folder, kept = tmp_path / "data", tmp_path / "kept"
    folder.mkdir()
    assert left_by(f"{WRITES.replace('os.kill', 'os.sync(); os.kill')}", folder, kept) == -9
    before = contents(folder)
    lose_unsynced(folder, kept)
    assert contents(folder) == before
    assert os.listdir(folder)


def test_a_copy_that_was_not_completed_is_no_kept_file(tmp_path: Path) -> None:
    folder, kept = tmp_path / "data", tmp_path / "kept"
    for path in (folder, kept / "in"):
        path.mkdir(parents=True)
    (folder / "a").write_bytes(b"unsynced")
    for name in ("a", ".a.new", "in/b", "in/.b.new"):
        (kept / name).write_bytes(name.encode())
    lose_unsynced(folder, kept)
    assert contents(folder) == {"a": b"a", "in/b": b"in/b"}
