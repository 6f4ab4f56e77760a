"""Stories about other revisions of the program's own source."""

import subprocess
from pathlib import Path

import pytest
import trio

from bench.run.testbed import RunFailed
from pubsubctl.console.console import Console
from pubsubctl.console.interruption import Interruption
from pubsubctl.errors import UserError
from pubsubctl.runs import differences
from pubsubctl.runs.revisions import Program, check_out, commit_of, names_of_revisions
from tests.pubsubctl.conftest import Call

PROGRAM = """\
import json, sys
print(json.dumps({"run_directory": sys.argv[-1] + "/" + WHICH, "state": "complete"}))
"""


def git(source: Path, *arguments: str) -> str:
    """Return the output of git in a repository."""
    who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(source), *who, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make_package(folder: Path) -> None:
    """Make an empty `pubsubctl`; without `__init__.py` the installed one would be imported."""
    (folder / "pubsubctl").mkdir(parents=True)
    (folder / "pubsubctl" / "__init__.py").touch()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a program with two commits, each of which prints its name; the first has tag `old`."""
    folder = tmp_path / "source"
    make_package(folder)
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(folder))
    for which in ("old", "new"):
        program = f"WHICH = {which!r}\n{PROGRAM}"
        (folder / "pubsubctl" / "__main__.py").write_text(program)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", which)
        if which == "old":
            git(folder, "tag", "old")
    return folder


def run_at(folder: Path, results: Path) -> tuple[Path, str]:
    """Run the program of a folder once; return the run and the output."""

    async def main() -> tuple[Path, str]:
        program = Program("0" * 40, folder, ["bench", "demo"])
        with Console().progress() as progress:
            return await program.run(results, progress, Interruption())

    return trio.run(main)


def test_each_revision_makes_its_own_runs_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    commit = commit_of("old", source)
    assert commit == git(source, "rev-parse", "HEAD~1")
    with check_out(commit, source) as folder:
        assert run_at(folder, tmp_path) == (tmp_path / "old", "complete")
        assert run_at(source, tmp_path) == (tmp_path / "new", "complete")
    assert not folder.parent.exists()
    assert len(git(source, "worktree", "list").splitlines()) == 1


def test_a_checkout_is_removed_after_an_interrupt(source: Path) -> None:
    with pytest.raises(KeyboardInterrupt), check_out("old", source) as folder:
        raise KeyboardInterrupt
    assert not folder.parent.exists()
    assert len(git(source, "worktree", "list").splitlines()) == 1


def test_a_checkout_of_a_killed_process_is_removed_by_the_next(
    source: Path, tmp_path: Path
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = tmp_path / f"pubsubctl-revision-{ended.pid}-x" / "source"
    git(source, "worktree", "add", "--detach", "--quiet", str(left), "old")
    with check_out("old", source):
        assert not left.parent.exists()


def test_a_word_that_is_no_commit_is_none(source: Path) -> None:
    assert commit_of("olde", source) is None
    assert commit_of("--all", source) is None
    assert names_of_revisions(source) == ["main", "old"]


def test_a_repository_around_the_program_is_anothers(
    source: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "site-packages").mkdir()
    assert commit_of("old", source / "site-packages") is None
    assert names_of_revisions(source / "site-packages") == []
    monkeypatch.setattr(differences, "is_checkout", lambda: False)
    for name in ("olde", "revision=olde"):
        said = call("--dry-run", "compare", "demo", "--against", name).err
        assert said.endswith(" is no git checkout, so it has no revisions\n")


def test_a_program_that_produces_no_run_reports_the_reason(tmp_path: Path) -> None:
    make_package(tmp_path)
    (tmp_path / "pubsubctl" / "__main__.py").write_text("raise SystemExit('no such option')")
    with pytest.raises(RunFailed, match="no such option"):
        run_at(tmp_path, tmp_path)


def test_a_revision_that_cannot_be_checked_out_is_refused(source: Path) -> None:
    with pytest.raises(UserError, match="revision nowhere"), check_out("nowhere", source):
        pass


def test_a_name_of_two_things_is_refused_with_both(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "commit_of", lambda word: "0" * 40)
    result = call("--dry-run", "compare", "demo", "--against", "ges")
    assert result.status == 2
    assert "may mean protocol=ges or revision=ges; write one of these" in result.err
