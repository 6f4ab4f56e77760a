"""The registry of lies, and changes that several kinds of lies share."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.run.run_directory import specification_digest
from tests.helpers.forged_folders import RunFolder

PUBLISHERS: Final = "local1/load-pub"
SUBSCRIBERS: Final = "local1/load-sub"
SECOND: Final = 10**9
AWAY, FREEZE, ABSORB, KILL, RESTART = range(5)
"""Indices of faults in the fault log."""

Change = Callable[[RunFolder], None]


@dataclass(frozen=True)
class Lie:
    """A lie in one file.

    Attributes:
        change: the lie.
        says: a piece of the doubt or the refusal that names the lie; "" for a violation.
    """

    name: str
    change: Change
    says: str


LIES: dict[str, Lie] = {}


def register_lie(says: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        LIES[change.__name__] = Lie(change.__name__, change, says)
        return change

    return register


def add_lie(name: str, change: Change, says: str) -> None:
    assert name not in LIES, name
    LIES[name] = Lie(name, change, says)


def exit_of_broker(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.document("raw/local2/c2/exit.json") as told:
            told |= values

    return change


def journal_change(change: Callable[[dict[str, Any]], None]) -> Change:
    """Return a change of the manifest that the journal repeats."""

    def both(run: RunFolder) -> None:
        with run.document("manifest.json") as manifest:
            change(manifest)
        with run.lines("log.jsonl") as rows:
            change(rows[-1]["manifest"])

    return both


def with_digests(change: Change) -> Change:
    """Return a change of the specification, with the digest in manifest and journal."""

    def both(run: RunFolder) -> None:
        change(run)
        digest = specification_digest(run.path("spec"))
        journal_change(lambda manifest: manifest.update(specification_digest=digest))(run)
        with run.lines("log.jsonl") as rows:
            next(row for row in rows if row["what"] == "specification")["digest"] = digest

    return both


def of_manifest(**values: Any) -> Change:
    return journal_change(lambda manifest: manifest.update(values))


def events_of(run: RunFolder, broker: str) -> str:
    (path,) = run.folder.glob(f"raw/*/{broker}/events.jsonl")
    return path.relative_to(run.folder).as_posix()


def in_fault_journals(change: Callable[[dict[str, Any]], None]) -> Change:
    """Return a change of each line of both fault journals."""

    def both(run: RunFolder) -> None:
        for name in ("faults/log.jsonl", "log.jsonl"):
            with run.lines(name) as rows:
                for row in rows:
                    change(row)

    return both


def clocks(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.document("manifest.json") as manifest:
            reference = manifest["clock"]["host_id"]
        with run.lines("clock.jsonl") as rows:
            for row in rows:
                if row["host_id"] != reference:
                    row |= {name: value for name, value in values.items() if name != "clock_id"}
                    row["same_clock"], row["clock_id"] = False, f"other/{row['host_id']}"

        def named(manifest: dict[str, Any]) -> None:
            ids = manifest["clock"]["clock_ids"]
            ids |= {host: f"other/{host}" for host in ids if host != reference}

        journal_change(named)(run)

    return change


def renew_digests(run: RunFolder) -> None:
    """Update the digests of all files in the journal."""

    def digest_of(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    with run.lines("log.jsonl") as rows:
        for row in rows:
            if row["what"] == "closed":
                paths = [*run.folder.glob(f"raw/*/{row['process']}/*")]
                there = {path.name: path for path in paths}
            elif row["what"] == "collected":
                paths = [path for path in run.folder.rglob("*") if path.is_file()]
                there = {path.relative_to(run.folder).as_posix(): path for path in paths}
            else:
                continue
            row["digests"] = {
                name: digest_of(there[name]) for name in row["digests"] if name in there
            }
