"""Stories about brokers that join and leave a deployment, and the records during the change."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from brokerd.errors import ControlError
from brokerd.model.operator_acts import is_signed
from brokerd.overlay.topology import JoinedBroker, Topology
from brokerd.overlay.tree_section import TreeSection
from brokerd.protocols.interface import CoreStatus
from brokerd.runtime.growth import topology_change
from pubsubctl.deployment.authority import OperatorKey
from pubsubctl.deployment.deploy import _roll_back
from pubsubctl.deployment.membership import change_members
from pubsubctl.deployment.plan import Plan, Step
from pubsubctl.project import authority_folder

BEFORE = Topology("three", TreeSection(1), ("a", "b", "c"), ((0, 1), (1, 2)))
AFTER = BEFORE.with_joined(JoinedBroker("d", "c", "127.0.0.1:1"), "three.toml")
JOINING = Plan(
    (
        Step("change-record", "h1"),
        Step("change-record", "h2"),
        Step("change-topology", "h1", "a"),
        Step("change-topology", "h2", "b"),
        Step("join", "h2", "d"),
        Step("start-broker", "h2", "d"),
    )
)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the authority's key in a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


class Host:
    """A host, with its records and an agent."""

    def __init__(self, name: str) -> None:
        self.host = SimpleNamespace(name=name)
        self.record: dict[str, Any] = {"deployment_id": "d1", "topology": BEFORE.to_mapping()}
        self.topology_file = ""
        self.stopped: list[str] = []
        self.is_cleared = False

    async def read_deployment(self) -> dict[str, Any]:
        return self.record

    async def write_deployment(self, content: dict[str, Any], topology: str) -> None:
        self.record, self.topology_file = content, topology

    async def stop(self, name: str) -> None:
        self.stopped.append(name)

    async def stop_strays(self) -> None:
        self.is_cleared = True

    async def remove(self, *, purge: bool) -> None:
        assert not purge

    def open_agent(self) -> Any:
        raise ControlError("user", "no agent here")


class Running:
    """A deployment on two hosts, in which a broker may refuse a request."""

    def __init__(self, plan: Plan, refuses: str = "") -> None:
        self.hosts = {name: Host(name) for name in ("h1", "h2", "h3")}
        self.lab = SimpleNamespace(
            connector=self.hosts.__getitem__,
            on_all=self.on_all,
            inventory=SimpleNamespace(name="lab"),
        )
        self.identity = "d1"
        self.wanted = SimpleNamespace(topology=AFTER)
        self.agents = self.hosts
        self.plan = plan
        self.told: list[str] = []
        self._refuses = refuses

    async def on_all(
        self, act: Callable[[Host], Awaitable[None]], hosts: Iterable[Host] | None = None
    ) -> None:
        for host in self.hosts.values() if hosts is None else hosts:
            await act(host)

    async def broker(self, name: str, command: str, signature: str) -> None:
        public = OperatorKey.find_in(authority_folder("lab")).public_hex
        act = topology_change("d1", AFTER)
        assert is_signed(bytes.fromhex(public), act.statement(), bytes.fromhex(signature))
        if name == self._refuses:
            raise ControlError("user", f"{name} refuses")
        self.told.append(name)

    async def write_record(self, **more: Any) -> None:
        for host in ("h1", "h2"):
            record = {"deployment_id": "d1", "topology": AFTER.to_mapping(), **more}
            await self.hosts[host].write_deployment(record, "after")

    def change(self) -> None:
        progress = SimpleNamespace(phase=lambda *_: None, print=lambda *_: None)
        trio.run(change_members, self, progress, self.write_record, 1.0)

    @property
    def records(self) -> list[dict[str, Any]]:
        return [self.hosts[name].record for name in ("h1", "h2")]


def test_a_refusal_of_the_first_broker_restores_the_records() -> None:
    running = Running(JOINING, refuses="a")
    with pytest.raises(ControlError, match="a refuses"):
        running.change()
    as_it_was = {"deployment_id": "d1", "topology": BEFORE.to_mapping()}
    assert running.records == [as_it_was, as_it_was]
    assert '"d"' not in running.hosts["h1"].topology_file


def test_a_refusal_of_a_later_broker_leaves_the_earlier_topology_on_record() -> None:
    running = Running(JOINING, refuses="b")
    with pytest.raises(ControlError, match="b refuses"):
        running.change()
    assert running.told == ["a"]
    for record in running.records:
        assert record["topology"] == AFTER.to_mapping()
        assert record["before"] == BEFORE.to_mapping()


LEAVING = Plan(
    (
        Step("stop-broker", "h1", "c"),
        Step("stop-broker", "h2", "d"),
        *(step for step in JOINING.steps if step.verb.startswith("change")),
    )
)


@pytest.mark.parametrize("place", range(6))
def test_a_failed_change_restores_the_records_only_if_nothing_has_happened(place: int) -> None:
    """The act of a place fails: first the writing of records, then each stop and each notice."""
    running = Running(LEAVING)
    acts: list[str] = []

    def turn(what: str) -> None:
        acts.append(what)
        if len(acts) == place + 1:
            raise ControlError("busy", "no answer")

    write, notify = running.write_record, running.broker

    async def record(**more: Any) -> None:
        await write(**more)
        turn("record")

    async def status(*_: Any) -> dict[str, Any]:
        idle: CoreStatus[str] = CoreStatus(state="running")
        return {**idle.to_mapping({}), "clients": 0}

    async def broker(name: str, command: str, signature: str) -> None:
        turn(f"notify {name}")
        await notify(name, command, signature)

    async def stop(name: str) -> None:
        turn(f"stop {name}")

    for host in running.hosts.values():
        host.stop, host.broker = stop, status  # type: ignore[method-assign, attr-defined]
    running.write_record, running.broker = record, broker  # type: ignore[method-assign]
    whole = ["record", "stop c", "stop d", "notify a", "notify b"]
    if place < len(whole):
        with pytest.raises(ControlError, match="no answer"):
            running.change()
    else:
        running.change()
    assert acts == whole[: place + 1]
    is_as_before = place <= 1
    for each in running.records:
        assert each["topology"] == (BEFORE if is_as_before else AFTER).to_mapping()
        assert each.get("before") == (None if is_as_before else BEFORE.to_mapping())


def test_a_resumed_change_keeps_the_original_topology_on_record() -> None:
    running = Running(JOINING)
    for host in running.hosts.values():
        host.record |= {"topology": AFTER.to_mapping(), "before": BEFORE.to_mapping()}
    running.change()
    assert running.told == ["a", "b"]
    assert [record["before"] for record in running.records] == [BEFORE.to_mapping()] * 2


def test_a_failed_newcomer_is_rolled_back_without_stopping_other_brokers() -> None:
    plan = Plan((Step("record", "h3"), *JOINING.steps, Step("start-broker", "h3", "e")))
    running = Running(plan)
    trio.run(_roll_back, running, SimpleNamespace(print=print))
    assert running.hosts["h2"].stopped == ["d"]
    assert [name for name, host in running.hosts.items() if host.is_cleared] == ["h3"]
