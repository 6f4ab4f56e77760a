"""Tests of the checklist: all rules are present, and all named tests exist."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.security.checklist import RULES, Rule, table

ROOT = Path(__file__).parents[2]

IDS = """
S-SSH-1 S-SSH-2 S-SSH-3 S-SSH-4 S-SSH-5 S-SSH-6 S-INV-1 S-INV-2 S-INV-3 S-INV-4 S-INV-5 S-SUDO-1
S-PERM-1 S-TAR-1 S-TAR-2 S-CBOR-1 S-CBOR-2 S-CBOR-3 S-CBOR-4 S-FRAME-1 S-FRAME-2 S-FLOOD-1 S-BP-1
S-WIRE-1 S-CT-1 S-TLS-1 S-TLS-2 S-TLS-3 S-TLS-4 S-AUTHZ-1 S-CTRL-1 S-PRED-1 S-PRED-2 S-SPARK-1
S-SPARK-2 S-UNIT-1 S-PIP-1 S-PIP-2 S-LOG-1
""".split()  # noqa: SIM905


@cache
def running_tests(path: str) -> frozenset[str]:
    """Return the tests of a file that run: not those skipped always or expected to fail."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any(
            ast.unparse(mark).startswith(("pytest.mark.skip(", "pytest.mark.xfail"))
            for mark in node.decorator_list
        )
    )


def test_every_rule_of_the_design_is_there_once() -> None:
    assert sorted(rule.id for rule in RULES) == sorted(IDS)


def test_how_grave_each_rule_is_stays_as_it_was_decided() -> None:
    assert Counter(rule.severity for rule in RULES) == {"A": 22, "B": 16, "C": 1}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_tests_or_states_its_gap(rule: Rule) -> None:
    assert rule.tests or rule.missing or rule.does_not_apply
    assert not (rule.does_not_apply and (rule.tests or rule.missing))
    if rule.severity == "A":
        assert rule.state == "tested", f"{rule.id} must hold before any use off this machine"
    assert len(set(rule.tests)) == len(rule.tests)
    for test in rule.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), f"{rule.id}: there is no {path}"
        assert name in running_tests(path), f"{rule.id}: {path} has no {name} that runs"


def test_the_table_has_a_row_for_each() -> None:
    rows = table().splitlines()
    assert len(rows) == len(RULES) + 2
    assert all(row.count(" | ") == 4 for row in rows[2:])
