"""Stories about deployments of other inventories, which errors name with their commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from brokerd.agent.host import server
from pubsubctl.deployment.deployment import OtherDeployment, describe_ports
from pubsubctl.errors import PreflightFailed
from tests.pubsubctl.conftest import Call

RECORD = {
    "deployment_id": "20261129T042331Z-d577d2",
    "topology": {"name": "tree-9"},
    "inventory": "mylab",
}


def _record_elsewhere(project: Path, **more: Any) -> None:
    """Record a deployment of another inventory in the user's state folder."""
    folder = project.parent / "state" / "pubsubctl" / "mylab" / "m1"
    folder.mkdir(parents=True)
    (folder / "deployment.json").write_text(json.dumps({**RECORD, **more}))


@pytest.mark.parametrize(
    "line, status, verb",
    [
        (("status",), 0, "status"),
        (("inject", "freeze", "b1", "--for", "1s"), 4, "status"),
        (("publish", "news"), 4, "status"),
        (("logs",), 4, "logs"),
        (("clock", "sample"), 4, "status"),
        (("certificate", "till"), 4, "status"),
        (("decommission", "b1", "--yes"), 4, "status"),
        (("replace", "b1", "--on", "h1"), 4, "status"),
    ],
)
def test_a_command_without_a_deployment_names_those_of_other_inventories(
    call: Call, project: Path, line: tuple[str, ...], status: int, verb: str
) -> None:
    path = project / "inventories" / "my lab.toml"
    _record_elsewhere(project, inventory_file=str(path))
    answer = call(*line)
    assert answer.status == status, answer.err
    text = answer.out + answer.err
    assert "nothing is deployed by inventory test; deployment 20261129T042331Z-d577d2" in text
    assert f"`pubsubctl -i 'inventories/my lab.toml' {verb}`" in text


def test_a_record_that_cannot_be_read_is_no_deployment_of_another_inventory(
    call: Call, project: Path
) -> None:
    _record_elsewhere(project)
    (project.parent / "state/pubsubctl/mylab/m1/deployment.json").write_text("[" * 100_000)
    assert call("status").out == "nothing is deployed by inventory test\n"


def test_ports_of_another_deployment_are_one_line_with_the_command_that_ends_it() -> None:
    other = OtherDeployment.from_mapping({**RECORD, "inventory_file": "/srv/labs/umlaut.toml"})
    needed = {23000: "b1", 23001: "b3", 23002: "b5"}
    assert describe_ports("m1", needed, dict.fromkeys(needed, other)) == [
        "host m1: ports 23000 to 23002 are in use by deployment 20261129T042331Z-d577d2 of "
        "tree-9, inventory 'mylab'; b1, b3, b5 need them; "
        "`pubsubctl -i /srv/labs/umlaut.toml down` ends it"
    ]
    [line] = describe_ports("m1", needed, {23001: other})
    assert "port 23001 is in use by" in line
    assert "; b3 needs it; " in line


def test_a_process_of_an_agent_belongs_to_the_deployment_in_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deployment.json").write_text(json.dumps({**RECORD, "inventory_file": "a.toml"}))
    lines = {
        7: ["python", "-m", "agent", "--root", str(tmp_path)],
        8: ["nginx"],
        9: ["a", "--root"],
    }

    class Process:
        def __init__(self, pid: int) -> None:
            self.pid = pid

        def cmdline(self) -> list[str]:
            return lines[self.pid]

    monkeypatch.setattr(server.psutil, "Process", Process)
    found = {pid: server._deployment_of(pid) for pid in (None, *lines)}
    assert found[7] == {**RECORD, "topology": "tree-9", "inventory_file": "a.toml"}
    assert [found[None], found[8], found[9]] == [None, None, None]


def test_a_dry_run_beside_another_deployment_shows_load_doubts_and_time(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise PreflightFailed("host t1: port 23500 is in use")

    monkeypatch.setattr("pubsubctl.deployment.deploy.plan_deployment", refuse)
    answer = call("bench", "chain3", "--dry-run")
    assert answer.status == 0, answer.err
    assert "warning: a run would be refused now: host t1: port 23500 is in use" in answer.err
    assert "load 1 publisher, 1 subscriber, " in answer.out
    assert "takes about" in answer.out
    document = call("bench", "chain3", "--dry-run", "--json").document
    assert document["obstacles"] == ["host t1: port 23500 is in use"]
    assert document["deploy"] == []
