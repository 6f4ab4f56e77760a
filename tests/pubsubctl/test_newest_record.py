"""Tests of the record of a deployment after a broker was replaced: each verb uses the newest."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from brokerd.errors import ControlError
from pubsubctl.deployment import certificates
from pubsubctl.deployment.certificates import all_certificates_end, renew_certificates
from pubsubctl.deployment.membership import collect_departure_reports
from pubsubctl.deployment.newest_record import Records, read_deployment
from pubsubctl.deployment.plan import REPLACEMENTS
from pubsubctl.errors import HostError, PreflightFailed, Unreachable
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.hosts import Lab
from pubsubctl.injection.injection import read_running
from pubsubctl.monitor.live_view import HostSample
from pubsubctl.monitor.polling import _follow
from pubsubctl.state import lab_state
from tests.helpers.virtual_time import in_virtual_time

TOPOLOGY = {
    "schema": "pubsubctl/topology/2",
    "name": "pair",
    "kind": "bipartite",
    "brokers": ["e1", "x1", "v1"],
    "bipartite": {"edges": ["e1"], "proxies": ["x1"], "servers": ["v1"]},
}


def record(host_of_e1: str, replacements: int) -> dict[str, Any]:
    hosts = {"e1": host_of_e1, "x1": "h2", "v1": "h2"}
    rows = [
        {"broker": name, "host": host, "address": f"127.0.0.1:{2000 + place}", "port": 2000 + place}
        for place, (name, host) in enumerate(hosts.items())
    ]
    return {
        "deployment_id": "d",
        "protocol": "multi_proxy",
        "topology": TOPOLOGY,
        "digest": "0" * 16,
        "placement": {"clients_host": "h2", "brokers": [{**row, "core": -1} for row in rows]},
        "transport": "tls",
        REPLACEMENTS: replacements,
    }


class Machine:
    """A host with a record; its agent reports the brokers that run."""

    def __init__(self, name: str, content: Mapping[str, Any], running: Sequence[str]) -> None:
        self.host: Any = SimpleNamespace(name=name)
        self.transport = SimpleNamespace(program=self.program)
        self.content = content
        self.running = running
        self.is_up = True
        self.asked: list[str] = []

    async def program(self) -> str:
        return "program"

    async def read_deployment(self) -> Mapping[str, Any]:
        if not self.is_up:
            raise Unreachable(f"{self.host.name}: no answer")
        return self.content

    async def root(self) -> PurePosixPath:
        return PurePosixPath("/")

    async def read_text(self, path: PurePosixPath) -> str:
        self.asked.append(path.stem)
        raise HostError("no certificate")

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator[Any]:
        async def status() -> dict[str, Any]:
            running = {
                name: {"role": "broker", "state": "running", "pid": 7} for name in self.running
            }
            return {"processes": running, "faults": [], "lease": None}

        async def broker(name: str, *_: Any, **_more: Any) -> dict[str, Any]:
            self.asked.append(name)
            raise ControlError("internal", "no answer")

        yield SimpleNamespace(status=status, broker=broker)


class Labs:
    """Three hosts: e1 was replaced, from h1 to h3, while h1 did not answer."""

    def __init__(self) -> None:
        self.inventory: Any = SimpleNamespace(name="three", uses_tls=True)
        former, newest = record("h1", 0), record("h3", 1)
        self.connectors = (
            Machine("h1", former, ()),
            Machine("h2", newest, ("x1", "v1")),
            Machine("h3", newest, ("e1",)),
        )
        self.forks = 3

    async def on_all(
        self, act: Callable[[Any], Awaitable[None]], connectors: Sequence[Any] | None = None
    ) -> None:
        for connector in self.connectors if connectors is None else connectors:
            await act(connector)

    @property
    def asked(self) -> dict[str, list[str]]:
        """The brokers that each host was asked for."""
        return {each.host.name: each.asked for each in self.connectors}


def labs() -> tuple[Labs, Lab]:
    found = Labs()
    return found, cast(Lab, found)


def test_the_record_of_a_deployment_is_the_newest() -> None:
    found, lab = labs()
    assert trio.run(read_deployment, lab) == record("h3", 1)
    found.connectors[2].is_up = False
    assert trio.run(read_deployment, lab) == record("h3", 1)
    for connector in found.connectors:
        connector.is_up = False
    with pytest.raises(ExceptionGroup, match="no record of a deployment"):
        trio.run(read_deployment, lab)


def test_a_record_of_another_deployment_is_no_newer_one() -> None:
    other = {**record("h1", 0), "deployment_id": "another"}
    records = Records({"h1": other, "h2": record("h3", 1)})
    assert records.of("h1") == other
    assert records.of("h3") is None


def test_faults_are_injected_at_the_present_places() -> None:
    _, lab = labs()
    placed = trio.run(read_running, lab).placement.brokers
    assert {row.broker: row.host for row in placed}["e1"] == "h3"


def test_status_shows_the_present_places(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_complaint(_connector: object) -> str:
        return ""

    monkeypatch.setattr("pubsubctl.state.lack_of_room", no_complaint)
    _, lab = labs()
    state = trio.run(lab_state, lab)
    assert {row.broker: row.host for row in state.brokers} == {"e1": "h3", "x1": "h2", "v1": "h2"}
    assert state.deployment == record("h3", 1)


def test_a_decommission_asks_brokers_at_the_present_places() -> None:
    found, lab = labs()
    with pytest.raises(PreflightFailed, match="e1 runs on host h3"):
        trio.run(collect_departure_reports, lab, "e1")
    assert found.asked == {"h1": [], "h2": ["x1", "v1"], "h3": []}


def test_certificates_are_those_of_the_present_places(monkeypatch: pytest.MonkeyPatch) -> None:
    found, lab = labs()
    trio.run(all_certificates_end, lab)
    present = {"h1": [], "h2": ["broker-x1", "broker-v1"], "h3": ["broker-e1"]}
    assert found.asked == present


def test_certificates_are_renewed_at_the_present_places(monkeypatch: pytest.MonkeyPatch) -> None:
    issued: list[tuple[str, str]] = []

    async def issue(_lab: Lab, _identity: str, host: str, _role: str, name: str) -> Any:
        issued.append((host, name))
        return {}, SimpleNamespace(sha256="", ends=None)

    async def pass_check(_lab: Lab) -> None:
        pass

    monkeypatch.setattr(certificates, "_issue", issue)
    monkeypatch.setattr(certificates, "check_authority", pass_check)
    found, lab = labs()
    found.connectors[0].running = ("e1",)  # the former process runs again
    found.connectors[1].running = ()
    with pytest.raises(HostError):
        trio.run(renew_certificates, lab)
    assert issued == [("h3", "e1")]


@in_virtual_time
async def test_the_live_view_shows_the_present_places() -> None:
    found, _ = labs()
    records, looks = Records(), dict[str, HostSample]()
    async with trio.open_nursery() as nursery:
        for connector in found.connectors:
            nursery.start_soon(_follow, cast(Connector, connector), records, looks)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert {name: [row.state.broker for row in look.brokers] for name, look in looks.items()} == {
        "h1": [],
        "h2": ["x1", "v1"],
        "h3": ["e1"],
    }
