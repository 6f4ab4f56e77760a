"""The output of `status`: exits of brokers, and the state of their protocols."""

from typing import Any, cast

import pytest
import trio

from brokerd.agent.client import AgentClient
from pubsubctl.commands.status import detail_lines
from pubsubctl.state import broker_state
from tests.protocols.ges_reliable.test_trees import Trees

PLACED = {"broker": "b1", "host": "h1", "port": 1, "core": -1}


@pytest.mark.parametrize(
    "number, code, cause, told",
    [
        (9, None, "fault:f1-kill-b1", "SIGKILL by fault f1-kill-b1"),
        (11, None, "unexpected", "SIGSEGV, unexpected"),
        (None, 4, "unexpected", "status 4, unexpected"),
        (None, 0, "planned", "status 0, planned"),
        (None, None, "unknown", "unknown"),
    ],
)
def test_the_exit_of_a_broker_is_described_in_words(
    number: int | None, code: int | None, cause: str, told: str
) -> None:
    row: dict[str, Any] = {"state": "exited", "pid": 7}
    row |= {"exit_signal": number, "exit_code": code, "exit_cause": cause}
    nobody = cast(AgentClient, None)  # of a broker that has ended nothing is asked
    assert trio.run(broker_state, nobody, PLACED, row).exit == told


def test_the_state_of_a_protocol_is_printed_a_line_for_each_value() -> None:
    trees = Trees()
    core = trees.cluster.broker("f").broker.core
    lines = [*detail_lines("f", core.status().detail)]
    assert lines[:2] == ["broker f:", "  role: storage"]
    at = lines.index("  storage:")
    assert lines[at + 1] == "    parent: 0"
    assert "    subscriptions:" in lines[at:]
    assert lines[lines.index("    subscriptions:", at) + 1] == "      3: 1"
    assert "    linked: 0, 3" in lines
    assert "    costs: none" in lines


def test_a_broker_without_further_state_is_named_in_the_detail() -> None:
    assert [*detail_lines("b1", {})] == ["broker b1: no further state"]
