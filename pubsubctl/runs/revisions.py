"""Other revisions of this program's own source: found by name, checked out, run, removed again."""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import trio

from bench.run.run_directory import run_git
from bench.run.testbed import RunFailed
from brokerd.interpreter import module_command
from pubsubctl.console.console import Progress
from pubsubctl.console.interruption import Interruption
from pubsubctl.errors import UserError

SOURCE: Final = Path(__file__).parents[2]
_STOP_PATIENCE_S: Final = 120
_OURS: Final = re.compile(r"pubsubctl-revision-(\d+)-")


def names_of_revisions(source: Path = SOURCE) -> list[str]:
    """Return branches and tags; empty if the source is no git repository."""
    done = run_git(source, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags")
    return done.stdout.split() if done.returncode == 0 else []


def is_checkout() -> bool:
    """Return True if the source is a git checkout, and git is installed."""
    return run_git(SOURCE, "rev-parse", "--git-dir").returncode == 0


def commit_of(word: str, source: Path = SOURCE) -> str | None:
    """Return the commit that a word names; None if there is none.

    Raises:
        UserError: the word begins the hashes of several commits; lists the commits.
    """
    if word.startswith("-"):
        return None
    done = run_git(
        source, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{word}^{{commit}}"
    )
    if done.returncode == 0:
        return done.stdout.split()[-1]
    if re.fullmatch(r"[0-9a-f]{4,39}", word):
        begun = run_git(source, "rev-parse", f"--disambiguate={word}").stdout.split()
        commits = [
            each for each in begun if run_git(source, "cat-file", "-t", each).stdout == "commit\n"
        ]
        if len(commits) > 1:
            raise UserError(f"{word} begins {len(commits)} commits: {', '.join(commits)}")
    return None


@contextmanager
def check_out(commit: str, source: Path = SOURCE) -> Iterator[Path]:
    """Yield a folder with the source of a commit, removed after the block in any case.

    Folders of killed processes are removed first.

    Raises:
        UserError: git refuses.
    """
    _remove_leftovers(source)
    with tempfile.TemporaryDirectory(prefix=f"pubsubctl-revision-{os.getpid()}-") as folder:
        path = Path(folder) / "source"
        try:
            # Hooks of the repository are meant for developers.
            done = run_git(
                source, "-c", "core.hooksPath=/dev/null",
                *("worktree", "add", "--detach", "--quiet", str(path), commit),
            )  # fmt: skip
            if done.returncode:
                raise UserError(f"revision {commit}: {done.stderr.strip()}")
            yield path
        finally:
            run_git(source, "worktree", "remove", "--force", str(path))


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a commit, which makes runs in a separate process.

    Attributes:
        commit: of the source.
        source: the import folder.
        arguments: of the command line, without the folder of results.
    """

    commit: str
    source: Path
    arguments: Sequence[str]

    async def run(
        self, results: Path, progress: Progress, interruption: Interruption
    ) -> tuple[Path, str]:
        """Make a run; return folder and state.

        After an interruption, let the program heal and take down its deployment.

        Raises:
            RunFailed: the program made no run; with the program's message.
        """
        environment = {**os.environ, "PYTHONPATH": str(self.source), "PYTHONSAFEPATH": "1"}
        command = [
            *module_command("pubsubctl", "--json", "--no-progress"),
            *(*self.arguments, "--output-dir", str(results.resolve())),
        ]
        with interruption.stoppable():
            done = await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False, env=environment,
                deliver_cancel=_stop, start_new_session=True,
            )  # fmt: skip
        try:
            document = json.loads(done.stdout)
            found = Path(document["run_directory"]), str(document["state"])
        except (ValueError, KeyError, TypeError):
            output = done.stderr.decode(errors="replace").strip().splitlines()[-5:]
            why = "; ".join(output) or f"status {done.returncode}"
            raise RunFailed(f"revision {self.commit[:12]}: {why}") from None
        progress.print(f"run {found[0]}")
        return found


async def _stop(process: trio.Process) -> None:
    """Terminate the process, and kill the process after a timeout."""
    process.terminate()
    await trio.sleep(_STOP_PATIENCE_S)
    process.kill()


def _remove_leftovers(source: Path) -> None:
    listed = run_git(source, "worktree", "list", "--porcelain").stdout.splitlines()
    for line in listed:
        path = line.removeprefix("worktree ")
        match = _OURS.search(path)
        if path != line and match is not None and not psutil.pid_exists(int(match[1])):
            run_git(source, "worktree", "remove", "--force", path)
            Path(path).parent.rmdir()
