"""A protocol is registered once: what it shares with another one by mistake is named at import."""

from dataclasses import dataclass, replace

import pytest

from brokerd.errors import ConfigError
from brokerd.model.message_kind import MessageKind
from brokerd.protocols.best_effort.definition import BEST_EFFORT
from brokerd.protocols.delta_tree.definition import DELTA_TREE
from brokerd.protocols.registry import DEFINITIONS, by_name, definition_of


@dataclass(frozen=True, slots=True)
class Rumour:
    """A message of a protocol of somebody's own."""

    age: int


def test_each_is_found_by_its_name() -> None:
    assert {name: definition_of(name) for name in DEFINITIONS} == DEFINITIONS
    with pytest.raises(ConfigError, match="protocol = 'delta_tre'; did you mean 'delta_tree'"):
        definition_of("delta_tre")


def test_a_duplicate_name_is_refused_and_both_protocols_are_named() -> None:
    second = replace(DELTA_TREE, name="best_effort", messages=())
    with pytest.raises(ImportError, match=r"best_effort\.core and .*delta_tree\."):
        by_name([BEST_EFFORT, second])


@pytest.mark.parametrize(
    "number, why",
    [
        (48, "delta_tree: Summary and gossip: Rumour both have 48"),
        (31, "gossip: Rumour has the number 31, which no protocol may"),
    ],
)
def test_a_message_number_that_is_not_free_is_refused(number: int, why: str) -> None:
    gossip = replace(BEST_EFFORT, name="gossip", messages=(MessageKind(number, Rumour),))
    with pytest.raises(ImportError, match=why):
        by_name([DELTA_TREE, gossip])
    free = replace(gossip, messages=(MessageKind(240, Rumour),))
    assert [*by_name([DELTA_TREE, free])] == ["delta_tree", "gossip"]
