"""Tests of program versions of agents and brokers: refusals and advice."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from brokerd.agent.client import AgentClient
from brokerd.errors import ControlError
from brokerd.runtime.program import (
    RELEASE,
    UNVERSIONED_WIRE_VERSION,
    Program,
    host_sources,
    read_own_program,
)
from pubsubctl.deployment.deployment import (
    Age,
    age_of,
    agent_note,
    broker_note,
    check_agents,
    check_wire_versions,
)
from pubsubctl.errors import PreflightFailed
from tests.helpers.agents import run

ROOT = Path(__file__).parents[2]
OWN = read_own_program()
OTHER = replace(OWN, digest="0" * 64)
EARLIER = replace(OWN, release="0.0.9", commands_version=OWN.commands_version - 1)
LATER = replace(OWN, release="9.0.0", commands_version=OWN.commands_version + 1)
WIRE = replace(OTHER, wire_version=OWN.wire_version - 1)


def test_the_release_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == RELEASE


def test_the_digest_is_that_of_the_files_on_hosts() -> None:
    inside = [path.relative_to(ROOT).as_posix() for path in host_sources(ROOT)]
    assert inside == sorted(inside)
    assert "brokerd/agent/agent.py" in inside
    assert not [path for path in inside if "/simulator/" in path or "/checks/" in path]


def test_ages_go_by_the_commands_and_not_by_the_content() -> None:
    found = [age_of(each) for each in (OWN, OTHER, EARLIER, LATER, None)]
    assert found == [Age.SAME, Age.OTHER, Age.EARLIER, Age.LATER, Age.EARLIER]


@pytest.mark.parametrize(
    "reported",
    [None, 7, {}, {"release": "1"}, {**OWN.to_mapping(), "wire_version": "27"}],
)
def test_a_report_that_is_none_is_of_a_release_without_versions(reported: object) -> None:
    assert Program.from_mapping(reported) is None


def test_a_report_is_read_with_whatever_else_is_in_it() -> None:
    assert Program.from_mapping({**OWN.to_mapping(), "more": 1}) == OWN


def test_each_agent_that_cannot_be_operated_is_named_with_a_remedy() -> None:
    check_agents({"h1": OWN, "h2": OTHER})
    with pytest.raises(PreflightFailed) as refused:
        check_agents({"h1": OWN, "h2": None, "h3": LATER, "h4": EARLIER})
    none, later, earlier = refused.value.problems
    assert none.startswith("host h2: its agent runs an earlier release, which reports no version")
    assert none.endswith("`pubsubctl deploy TOPOLOGY --rolling` replaces agents and brokers")
    assert later.startswith("host h3: its agent runs 9.0.0 (wire version ")
    assert later.endswith("use pubsubctl 9.0.0 there, or `pubsubctl down` to stop what runs")
    assert "runs 0.0.9 " in earlier


def test_an_upgrade_accepts_earlier_agents_and_refuses_later_ones() -> None:
    check_agents({"h1": None, "h2": EARLIER}, is_upgrade=True)
    with pytest.raises(PreflightFailed, match=r"use pubsubctl 9\.0\.0 there"):
        check_agents({"h1": None, "h2": LATER}, is_upgrade=True)


def test_brokers_of_two_wire_versions_are_not_replaced_one_after_the_other() -> None:
    check_wire_versions({"b1": OWN, "b2": OTHER, "b3": EARLIER}, at_once=False)
    check_wire_versions({"b1": OWN, "b2": WIRE}, at_once=True)
    with pytest.raises(PreflightFailed) as refused:
        check_wire_versions({"b1": OWN, "b2": WIRE, "b3": WIRE}, at_once=False)
    assert f"wire version {WIRE.wire_version}: b2, b3" in refused.value.problems
    assert "--rolling --at-once" in refused.value.problems[-1]


def test_a_release_without_versions_speaks_the_last_wire_version_without_them() -> None:
    if read_own_program().wire_version == UNVERSIONED_WIRE_VERSION:
        check_wire_versions({"b1": None}, at_once=False)
    else:
        with pytest.raises(PreflightFailed, match=f"wire version {UNVERSIONED_WIRE_VERSION}: b1"):
            check_wire_versions({"b1": None}, at_once=False)


def test_only_differing_programs_receive_a_note_with_a_remedy() -> None:
    assert agent_note("h1", OWN) == broker_note("b1", "h1", OWN) == ""
    assert "`pubsubctl deploy TOPOLOGY --rolling` replaces" in agent_note("h1", OTHER)
    assert "`pubsubctl deploy TOPOLOGY --rolling` replaces" in broker_note("b1", "h1", OTHER)
    assert "--rolling --at-once" in broker_note("b1", "h1", WIRE)


def _greeting(answer: dict[str, object] | ControlError) -> Program | None:
    found: list[Program | None] = []

    class Control:
        async def request(self, command: str, /, **arguments: object) -> dict[str, object]:
            assert (command, arguments) == ("hello", {"program": OWN.to_mapping()})
            if isinstance(answer, ControlError):
                raise answer
            return answer

        async def listen(self) -> None:
            raise AssertionError("nobody listens")

    async def story() -> None:
        found.append(await AgentClient(Control()).hello())  # type: ignore[arg-type]

    run(story)
    return found[0]


def test_an_agent_that_rejects_the_greeting_has_no_version() -> None:
    assert _greeting({"program": OTHER.to_mapping()}) == OTHER
    assert _greeting({}) is None
    assert _greeting(ControlError("user", "no command 'hello'")) is None
    with pytest.raises(ControlError, match="it is gone"):
        _greeting(ControlError("closed", "it is gone"))
