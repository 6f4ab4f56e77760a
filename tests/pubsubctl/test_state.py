"""Stories about `status`: ended brokers, states of protocols, hosts during deployment."""

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from brokerd.agent.client import AgentClient
from pubsubctl.commands.status import _result, describe_end, detail_lines
from pubsubctl.console.console import Console, Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import Unreachable
from pubsubctl.hosts.hosts import Lab
from pubsubctl.state import broker_state, lab_state
from tests.protocols.ges_reliable.test_trees import Trees

PLACED = {"broker": "b1", "host": "h1", "port": 1, "core": -1}


@pytest.mark.parametrize(
    "number, code, cause, last, loss, shown",
    [
        (9, None, "fault:f1-kill-b1", "", "", "SIGKILL by fault f1-kill-b1"),
        (11, None, "unexpected", "", "", "SIGSEGV, unexpected"),
        (None, 4, "unexpected", "", "", "status 4, unexpected"),
        (None, 0, "planned", "", "", "status 0, planned"),
        (None, None, "unknown", "", "", "unknown"),
        (None, 78, "unexpected", "b1 lost 1 to 3", "", "status 78: lost 1 to 3"),
        (None, 78, "unexpected", "b1: b1 x", "", "status 78: b1 x"),
        (None, 78, "unexpected", "b11 lost 1", "", "status 78: b11 lost 1"),
        (None, 78, "unexpected", "b1 lost 1 to 3", "1 to 3", "status 78: lost 1 to 3"),
        (
            *(None, 0, "planned", "", "1 to 3 are missing"),
            "status 0, planned; 1 to 3 are missing: see `pubsubctl help restore`",
        ),
    ],
)
def test_the_exit_of_a_broker_is_described_in_words(
    number: int | None, code: int | None, cause: str, last: str, loss: str, shown: str
) -> None:
    row: dict[str, Any] = {"state": "exited", "pid": 7, "exit_text": last, "loss": loss}
    row |= {"exit_signal": number, "exit_code": code, "exit_cause": cause}
    nobody = cast(AgentClient, None)  # of a broker that has ended nothing is asked
    assert describe_end(trio.run(broker_state, nobody, PLACED, row)) == shown


def test_the_state_of_a_protocol_is_printed_a_line_for_each_value() -> None:
    trees = Trees()
    core = trees.cluster.broker("f").broker.core
    lines = [*detail_lines("f", core.detail())]
    assert lines[:2] == ["broker f:", "  role: storage"]
    at = lines.index("  storage:")
    assert lines[at + 1] == "    parent: 0"
    assert "    subscriptions:" in lines[at:]
    assert lines[lines.index("    subscriptions:", at) + 1] == "      3: 1"
    assert "    linked: 0, 3" in lines
    assert "    costs: none" in lines


def test_a_broker_without_further_state_is_named_in_the_detail() -> None:
    assert [*detail_lines("b1", {})] == ["broker b1: no further state"]


class DeployingHost:
    """A host with a record of a deployment, whose agent another command is starting."""

    host = SimpleNamespace(name="h1")

    def __init__(self, holder: str, interrupted: str = "") -> None:
        self._holder = holder
        self._interrupted = interrupted

    async def read_deployment(self) -> dict[str, Any]:
        topology = {"name": "chain", "brokers": ["b1"], "links": [], "schema": "topology/1"}
        return {"placement": {"brokers": [PLACED]}, "topology": topology}

    async def lock_holder(self) -> str:
        return self._holder

    async def interrupted_command(self) -> str:
        return self._interrupted

    def open_agent(self) -> Any:
        raise Unreachable("h1: no agent answers")


def status_of(connector: DeployingHost, monkeypatch: pytest.MonkeyPatch) -> Result:
    async def no_complaint(connector: object) -> str:
        return ""

    async def on_all(look: Any) -> None:
        await look(connector)

    monkeypatch.setattr("pubsubctl.state.lack_of_room", no_complaint)
    monkeypatch.setattr("pubsubctl.commands.status._headline", lambda about: "chain")
    lab = cast(Lab, SimpleNamespace(connectors=[connector], on_all=on_all))
    state = trio.run(lab_state, lab)
    return _result(Invocation(console=Console()), state, "", hosts=1, detail=False)


def test_a_host_that_another_command_deploys_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for holder, errors in (("ann (pid 7) since 10:00 for `deploy chain`", 0), ("", 1)):
        result = status_of(DeployingHost(holder), monkeypatch)
        assert len(result.because) == errors
        assert (f"at work there: {holder}" in result.text) == bool(holder)
        assert result.document["busy"] == ({"h1": holder} if holder else {})


class HalfStartedHost(DeployingHost):
    """A host whose agent runs and has not started its broker."""

    transport = SimpleNamespace(program=None)

    async def status(self) -> dict[str, Any]:
        return {"lease": None, "faults": [], "processes": {}}

    @asynccontextmanager
    async def open_agent(self) -> Any:
        yield self


def test_status_names_the_command_that_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_program() -> None:
        return None

    monkeypatch.setattr(HalfStartedHost, "transport", SimpleNamespace(program=no_program))
    command = "`deploy chain` of ann@lab, begun 10:00"
    for connector in (DeployingHost("", command), HalfStartedHost("", command)):
        result = status_of(connector, monkeypatch)
        assert f"{command}, was interrupted; repeat it, or `pubsubctl down`" in result.text
        assert result.document["interrupted"] == {"h1": command}
