"""Tests of crash files: only the user may read arguments and values, even in an existing file."""

import errno
import os
import stat
from pathlib import Path

import pytest

from pubsubctl.commands import failures
from pubsubctl.commands.app import run
from pubsubctl.commands.failures import errors_of
from pubsubctl.console.invocation import Invocation


def _crash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Make a command fail with a bug of the program; return the path of the crash file."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("an internal error")

    monkeypatch.setattr("pubsubctl.project.Project.__init__", broken)
    capsys.readouterr()
    assert run(["inventory", "list"]) == 70
    return Path(capsys.readouterr().err.split("see ")[1].strip())


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_crash_file_is_private_in_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    (state / "pubsubctl/crashes").mkdir(mode=0o755, parents=True)  # of an earlier version
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    path = _crash(monkeypatch, capsys)
    assert path.parent == state / "pubsubctl/crashes"
    assert (_mode(path.parent), _mode(path)) == (0o700, 0o600)
    assert "an internal error" in path.read_text()


def test_a_crash_file_is_written_elsewhere_if_its_folder_is_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, elsewhere = tmp_path / "state/pubsubctl", tmp_path / "elsewhere"
    state.mkdir(parents=True)
    elsewhere.mkdir()
    (state / "crashes").symlink_to(elsewhere)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    path = _crash(monkeypatch, capsys)
    assert not [*elsewhere.iterdir()]
    assert path.is_relative_to(tmp_path)
    assert (_mode(path.parent), _mode(path)) == (0o700, 0o600)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), ImportError("libarrow.so: failed to map segment from shared object")],
    ids=["object", "library"],
)
def test_a_lack_of_memory_is_no_bug(error: Exception) -> None:
    (found,) = errors_of(Invocation(), error)
    assert (found.exit_status, "ulimit -v" in str(found)) == (4, True)


def test_an_error_without_a_text_has_a_crash_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's errors read their texts from Java, which has ended by then."""

    class OfSpark(Exception):
        def __str__(self) -> str:
            raise AssertionError("Java has ended")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (found,) = errors_of(Invocation(), OfSpark())
    assert str(found).startswith("internal error: OfSpark")
    (path,) = tmp_path.rglob("crash-*.txt")
    assert "OfSpark" in path.read_text()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
    ],
    ids=["thread", "process"],
)
def test_a_limit_of_processes_is_no_bug(error: Exception) -> None:
    (found,) = errors_of(Invocation(), error)
    assert (found.exit_status, "ulimit -u" in str(found)) == (4, True)


def test_a_file_beyond_the_limit_of_the_account_is_no_bug() -> None:
    (found,) = errors_of(Invocation(), OSError(errno.EFBIG, "File too large"))
    assert (found.exit_status, "ulimit -f" in str(found)) == (4, True)


@pytest.mark.parametrize("code, limit", [(errno.EMFILE, "ulimit -Hn"), (errno.ENFILE, "sysctl")])
def test_too_many_open_files_are_no_bug(code: int, limit: str) -> None:
    (found,) = errors_of(Invocation(), OSError(code, "Too many open files"))
    assert (found.exit_status, limit in str(found)) == (4, True)


def test_a_folder_of_ours_that_cannot_be_written_is_named_with_its_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for name, variable in (("/home/u/.local", "STATE"), ("/home/u/.cache/pubsubctl/x", "CACHE")):
        (found,) = errors_of(Invocation(), OSError(errno.EROFS, "Read-only file system", name))
        remedy = f"set XDG_{variable}_HOME to a folder that can be written"
        assert str(found) == f"{name}: read-only file system; {remedy}"
    (other,) = errors_of(Invocation(), OSError(errno.EROFS, "Read-only file system", "/data/x"))
    assert str(other) == "/data/x: read-only file system"


def test_a_bug_without_room_for_its_report_keeps_its_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(path: Path, content: bytes) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(failures, "write_private", fail)
    (found,) = errors_of(Invocation(), ZeroDivisionError("by zero"))
    assert found.exit_status == 70
    assert "internal error: ZeroDivisionError: by zero" in str(found)
