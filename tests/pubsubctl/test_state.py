"""Stories about `status`: how a broker's end is told."""

from typing import Any, cast

import pytest
import trio

from brokerd.agent.client import AgentClient
from pubsubctl.state import broker_state

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
