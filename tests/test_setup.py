"""The lock files: complete, hash-checked, and silent about where packages were fetched."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ("build.lock", "requirements.lock")


def locked(lock: str) -> dict[str, list[str]]:
    """Package name to the text of its entries, of which it may have one per platform."""
    text = (ROOT / ".setup" / lock).read_text(encoding="utf-8")
    entries: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=[a-z0-9])", text):
        entries.setdefault(re.split(r"[=<>;\[ ]", entry, maxsplit=1)[0], []).append(entry)
    return entries


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_one_version_and_hashes(lock: str) -> None:
    for entries in locked(lock).values():
        for entry in entries:
            assert re.match(r"[a-z0-9-]+==\S+", entry), entry
            assert "--hash=sha256:" in entry, entry


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_says_where_packages_come_from(lock: str) -> None:
    text = (ROOT / ".setup" / lock).read_text(encoding="utf-8")
    assert not re.search(r"://|--(extra-)?index-url|--find-links| @ |file:", text)


def test_every_declared_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(name for extra in extras for name in extra)]
    names = {re.match(r"[a-z0-9-]+", requirement).group() for requirement in declared}
    assert names <= locked("requirements.lock").keys(), "run `make locks`"
