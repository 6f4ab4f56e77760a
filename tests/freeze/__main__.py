"""Record the freeze, compare a tree with it, or print the steps of one history."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.freeze.histories import History, digest_of, histories, steps_of

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).parent / "digests.json"
SCHEMA = "pubsubctl/freeze/1"


def main(arguments: Sequence[str]) -> int:
    """Carry out a command; return 0 if nothing differs, 1 if something does."""
    parser = argparse.ArgumentParser(prog="python -m tests.freeze", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "compare"):
        command = commands.add_parser(name)
        command.add_argument("--protocol", default="", help="only the histories of this protocol")
        command.add_argument("--kind", default="", help="swarm, adversary, moves, scenario, figure")
        command.add_argument("--processes", type=int, default=2)
    steps = commands.add_parser("steps")
    for name in ("kind", "protocol", "which"):
        steps.add_argument(name)
    chosen = parser.parse_args(arguments)
    if chosen.command == "steps":
        for digest, words in steps_of(History(chosen.kind, chosen.protocol, chosen.which)):
            print(digest, words)
        return 0
    wanted = [
        history
        for history in histories()
        if chosen.protocol in ("", history.protocol) and chosen.kind in ("", history.kind)
    ]
    found = dict(zip(map(str, wanted), _digests(wanted, chosen.processes), strict=True))
    if not chosen.protocol and chosen.kind in ("", "figure"):
        found |= _figures()
    if chosen.command == "record":
        return _record(found)
    return _compare({str(history): history for history in wanted}, found)


def _digests(wanted: Sequence[History], processes: int) -> Iterator[str]:
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(digest_of, wanted, chunksize=8)


def _figures() -> dict[str, str]:
    from results.checker.spark import spark_session
    from tests.freeze.figures import figure_digests

    with spark_session("freeze", master="local[2]") as spark:
        return dict(figure_digests(spark))


def _record(found: dict[str, str]) -> int:
    if _git("status", "--porcelain", "--", "brokerd"):
        sys.exit("error: brokerd has changes that are not committed; commit first")
    broken = [f"{name}: {digest}" for name, digest in found.items() if " " in digest]
    if broken:
        sys.exit("\n".join(["error: histories that break a rule:", *broken]))
    kept = _table()["digests"] if TABLE.exists() else {}
    document = {
        "schema": SCHEMA,
        "commit": _git("rev-parse", "HEAD"),
        "digests": {**kept, **found},
    }
    TABLE.write_text(json.dumps(document, indent=0) + "\n", encoding="utf-8")
    print(f"{len(found):,} histories recorded in {TABLE.relative_to(ROOT)}")
    return 0


def _compare(wanted: Mapping[str, History], found: Mapping[str, str]) -> int:
    table = _table()
    recorded: Mapping[str, str] = table["digests"]
    missing = [name for name in found if name not in recorded]
    differing = [name for name in found if name in recorded and recorded[name] != found[name]]
    equal = len(found) - len(differing) - len(missing)
    print(f"{equal:,} equal, {len(differing):,} differ, {len(missing):,} are not recorded")
    for name in (*differing[:20], *missing[:20]):
        print(f"  {name}")
    first = next((wanted[name] for name in differing if name in wanted), None)
    if first is not None:
        print(_first_difference(first, table["commit"]))
    return 1 if differing or missing else 0


def _first_difference(history: History, commit: str) -> str:
    """Return the first step in which this tree and the recorded commit differ."""
    arguments = [history.kind, history.protocol, history.which]
    with tempfile.TemporaryDirectory() as folder:
        _git("worktree", "add", "--detach", folder, commit)
        try:
            before = _steps(Path(folder), arguments)
        finally:
            _git("worktree", "remove", "--force", folder)
    now = _steps(ROOT, arguments)
    for number, (one, other) in enumerate(zip(before, now, strict=False), 1):
        if one.split(" ", 1)[0] != other.split(" ", 1)[0]:
            old, new = (line.split(" ", 1)[1] for line in (one, other))
            return f"{history}, step {number}:\n  {commit[:8]}: {old}\n  this tree: {new}"
    return f"{history}: {len(before):,} steps at {commit[:8]}, {len(now):,} in this tree"


def _steps(root: Path, arguments: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "tests.freeze", "steps", *arguments]
    run = subprocess.run(command, cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True)
    if run.returncode:
        sys.exit(f"error: {' '.join(command)} in {root}: {run.stderr.decode()[-2000:]}")
    return run.stdout.decode().splitlines()


def _table() -> dict[str, Any]:
    if not TABLE.exists():
        sys.exit(f"error: no {TABLE.relative_to(ROOT)}; run `python -m tests.freeze record`")
    document: dict[str, Any] = json.loads(TABLE.read_text("utf-8"))
    return document


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
