"""A protocol of a third party needs a folder and a registry line for all tools.

The folder is `tests/foreign/ring_flood`, which floods a ring of four brokers; a ring is not a tree.
The project's packages are copied, the folder is added to the protocols, and the command runs from
the copy. Shared code that requires a tree or a protocol's name fails here.
"""

import difflib
import filecmp
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.architecture.layers import LAYERS
from tests.architecture.purity import ALLOWED_NAMES, PURE, REFUSED_CALLS, REFUSED_MODULES
from tests.foreign.tree import FILES, FOLDER, PACKAGES, REGISTRY, ROOT, make_tree
from tests.helpers.architecture import find_forbidden_imports, find_impurities, read_modules
from tests.helpers.patience import PATIENCE_S

PROTOCOL = "ring_flood"
SEEDS = "1..8"

CRASH = """\
schema = "pubsubctl/faults/1"
name = "crash"
[[step]]
id = "crash"
at = "1s"
do = "crash"
on = "r2"
stall = "300ms"
down = "700ms"
"""


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """Yield a copy of the project with the protocol."""
    with TemporaryDirectory(prefix="foreign-") as folder:
        yield make_tree(Path(folder) / "project")


def simulate(tree: Path, *arguments: str) -> tuple[int, Any]:
    """Run `pubsubctl simulate` in a project; return the exit code and the report."""
    answer = subprocess.run(
        [sys.executable, "-m", "pubsubctl", "simulate", *arguments, "--json"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert answer.stdout, answer.stderr
    return answer.returncode, json.loads(answer.stdout)


def test_a_folder_and_a_line_in_the_registry_are_all_of_it(tree: Path) -> None:
    differing = [
        str(path.relative_to(tree))
        for package in PACKAGES
        for path in sorted((tree / package).rglob("*.py"))
        if not (ROOT / path.relative_to(tree)).is_file()
        or not filecmp.cmp(path, ROOT / path.relative_to(tree), shallow=False)
    ]
    brought = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*.py"))
    assert differing == [
        REGISTRY,
        *(f"brokerd/protocols/{PROTOCOL}/{path}" for path in map(str, brought)),
    ]
    before, after = (
        (root / REGISTRY).read_text(encoding="utf-8").splitlines() for root in (ROOT, tree)
    )
    lines = [line for line in difflib.ndiff(before, after) if line[0] == "+"]
    assert len(lines) == 1, lines


def test_a_foreign_protocol_keeps_to_the_layers(tree: Path) -> None:
    modules = read_modules(tree, PACKAGES)
    assert f"brokerd.protocols.{PROTOCOL}.core" in modules
    assert not [*map(str, find_forbidden_imports(modules, LAYERS, PACKAGES))]
    impure = find_impurities(modules, PURE, REFUSED_MODULES, REFUSED_CALLS, ALLOWED_NAMES)
    assert not [*map(str, impure)]


def test_it_keeps_its_promises_in_simulation(tree: Path) -> None:
    status, found = simulate(tree, "swarm", "--protocol", PROTOCOL, "--seeds", SEEDS)
    assert status == 0, [row["violations"] for row in found["seeds"]]
    assert found["total"]["at_risk"] > 0
    assert found["total"]["seeds_with_links_broken_for_ever"] > 0


def test_a_simulated_experiment_reports_at_risk_publications(tree: Path, tmp_path: Path) -> None:
    for name in FILES:
        shutil.copy(FOLDER.parent / name, tmp_path / name)
    (tmp_path / "crash.toml").write_text(CRASH)
    files = [str(tmp_path / name) for name in ("flood.toml", "crash.toml")]
    status, found = simulate(tree, "run", files[0], "--faults", files[1])
    assert status == 0, found
    assert found["counters"]["at_risk"] == found["counters"]["recovered"] > 0


def test_it_keeps_its_promises_without_a_clock(tree: Path) -> None:
    status, found = simulate(tree, "adversary", "--protocol", PROTOCOL, "--seeds", SEEDS)
    assert status == 0, found


@pytest.mark.parametrize(
    "bug, seed, rule",
    [
        ("ring-forgets-who-was-away", 30, "liveness"),
        ("ring-lets-go-early", 1, "RemoteProtocolError"),
    ],
)
def test_a_bug_planted_in_it_is_seen(tree: Path, bug: str, seed: int, rule: str) -> None:
    arguments = ("--protocol", PROTOCOL, "--seeds", f"{seed}..{seed}", "--mutant", bug)
    status, found = simulate(tree, "swarm", *arguments)
    assert status == 1
    assert found["seeds"][0]["rule"] == rule
