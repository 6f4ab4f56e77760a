"""Tests of messages in the language of scenarios."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench.spec.spec import load_topology
from brokerd.model.identity import SubscriptionId
from brokerd.protocols.ges import messages
from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.checks.protocol_checks import simulation_of
from brokerd.simulator.checks.step_text import Wording

WORLD: Any = SimpleNamespace(topology=load_topology("t22-hi"), clients={})


def test_a_message_without_words_of_its_own_is_its_name_and_its_fields() -> None:
    words = Wording(WORLD)
    removed = (SubscriptionId(0, 1, 1), SubscriptionId(1, 2, 1))
    changed = messages.ProfileChanged(0, (1,), (3, 1), (), removed)
    assert words.message(changed).startswith("profile changed: origin 0, place")
    assert words.message(changed).endswith("added none, removed n1#1 n2#1@2")

    assert words.message(messages.LoadProbe()) == "load probe"


@pytest.mark.parametrize("protocol", ["ges", "ges_reliable"])
def test_a_protocol_words_the_messages_that_it_shares_with_another(protocol: str) -> None:
    words = simulation_of(protocol).make_wording(WORLD)
    for kind in DEFINITIONS["ges"].messages:
        if kind.type in (messages.LoadProbe, messages.LoadAnswered):
            assert words.message(kind.type())
    assert words.message(messages.AddressTaken((1, 2)))
