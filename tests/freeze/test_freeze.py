"""Tests of the freeze: a change of behaviour is detected, a change of names is not."""

import json
from dataclasses import fields, make_dataclass
from typing import Any

import pytest

from brokerd.protocols.interface import DeadlineReached
from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.freeze.__main__ import TABLE
from tests.freeze.canonical import canonical
from tests.freeze.histories import History, digest_of, histories, steps_of

MUTANTS = bugs_of("gryphon")

GRYPHON = History("swarm", "gryphon", "5")


def test_a_history_has_one_digest() -> None:
    assert digest_of(GRYPHON) == digest_of(GRYPHON)


def test_a_named_bug_changes_the_digest_and_steps_show_where() -> None:
    before = steps_of(GRYPHON)
    with plant([MUTANTS["M02-silence-over-unknown"]]):
        digest, after = digest_of(GRYPHON), steps_of(GRYPHON)
    assert digest != digest_of(GRYPHON)
    first = next(
        i for i, (one, other) in enumerate(zip(before, after, strict=False)) if one != other
    )
    assert before[first][0] != after[first][0]
    assert before[first][1].startswith("broker ")


def test_no_recorded_history_breaks_a_rule() -> None:
    recorded = json.loads(TABLE.read_text("utf-8"))["digests"]
    assert {name: digest for name, digest in recorded.items() if " " in digest} == {}


def test_the_digest_of_a_history_names_the_rule_that_it_breaks() -> None:
    history = History("swarm", "ges", "2")
    assert " " not in digest_of(history)
    with plant([bugs_of("ges")["one-answer-is-enough"]]):
        assert digest_of(history).split(" ", 1)[1] == "started early"


def test_names_do_not_count() -> None:
    class Renamed:
        pass

    values: dict[str, Any] = {"one": 1, "other": (b"x", None)}
    first = make_dataclass("First", list(values))(**values)
    second = make_dataclass("Second", [f"new_{name}" for name in values])(*values.values())
    assert canonical(first) == canonical(second)
    swapped = make_dataclass("First", list(values))(values["other"], values["one"])
    assert canonical(first) != canonical(swapped)


def test_events_of_equal_fields_differ() -> None:
    assert fields(DeadlineReached) == ()
    assert canonical(DeadlineReached()) != canonical(make_dataclass("Other", [])())


def test_the_table_has_every_history() -> None:
    recorded = json.loads(TABLE.read_text("utf-8"))["digests"]
    assert [name for name in map(str, histories()) if name not in recorded] == []


@pytest.mark.parametrize("protocol", DEFINITIONS)
@pytest.mark.parametrize("kind", ["swarm", "adversary", "moves"])
def test_behaviour_is_as_recorded(kind: str, protocol: str) -> None:
    """`python -m tests.freeze record` records an intended change of behaviour."""
    recorded = json.loads(TABLE.read_text("utf-8"))["digests"]
    history = History(kind, protocol, "7")
    assert digest_of(history) == recorded[str(history)]
