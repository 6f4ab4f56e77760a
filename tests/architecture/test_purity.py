"""Tests of pure packages: they depend on their arguments only."""

from pathlib import Path

import pytest

from tests.architecture.layers import OURS
from tests.architecture.purity import ALLOWED_NAMES, PURE, REFUSED_CALLS, REFUSED_MODULES
from tests.architecture.small_trees import ROOT, complain, plant
from tests.helpers.architecture import (
    find_impurities,
    read_modules,
)


def test_pure_packages_depend_on_their_arguments_only() -> None:
    modules = read_modules(ROOT, OURS)
    complain(find_impurities(modules, PURE, REFUSED_MODULES, REFUSED_CALLS, ALLOWED_NAMES))


@pytest.mark.parametrize(
    "source, what",
    [
        ("import time", "imports time"),
        ("from time import monotonic_ns", "imports time"),
        ("import random", "imports random"),
        ("from random import choice", "imports random"),
        ("import os.path", "imports os"),
        ("def late():\n    import socket", "imports socket"),
        ("import asyncio", "imports asyncio"),
        ("import trio", "imports trio"),
        ("import threading", "imports threading"),
        ("from uuid import uuid4", "imports uuid"),
        ("key = hash('x')", "calls hash()"),
        ("key = id(object())", "calls id()"),
        ("for x in {1, 2}: pass", "walks through a set"),
        ("for x in set([1, 2]): pass", "walks through a set"),
        ("y = [x for x in frozenset('ab')]", "walks through a set"),
        ("y = [x for x in {c for c in 'ab'}]", "walks through a set"),
    ],
)
def test_an_impurity_is_found(tmp_path: Path, source: str, what: str) -> None:
    assert [what in finding for finding in impurities(tmp_path, source)] == [True]


@pytest.mark.parametrize(
    "source",
    [
        "from random import Random",
        "for x in sorted({1, 2}): pass",
        "class A:\n    def __hash__(self): return 1",
        "y = x.id(1), x.hash(2)",
        "import timeit",
    ],
)
def test_pure_code_is_left_alone(tmp_path: Path, source: str) -> None:
    assert impurities(tmp_path, source) == []


def test_only_pure_packages_are_held_to_purity(tmp_path: Path) -> None:
    modules = read_modules(plant(tmp_path, {"brokerd.runtime.x": "import time"}), ["brokerd"])
    assert not find_impurities(modules, PURE, REFUSED_MODULES, REFUSED_CALLS, ALLOWED_NAMES)


def impurities(root: Path, source: str) -> list[str]:
    modules = read_modules(plant(root, {"brokerd.model.x": source}), ["brokerd"])
    findings = find_impurities(modules, PURE, REFUSED_MODULES, REFUSED_CALLS, ALLOWED_NAMES)
    return [finding.what for finding in findings]
