"""Stories of `certificate renew`, on hosts in memory."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from brokerd.errors import ControlError
from pubsubctl.deployment import certificates
from pubsubctl.deployment.certificates import renew_certificates
from pubsubctl.errors import HostError, PreflightFailed, UserError

ROWS = {"m1": ("b1", "b2"), "m2": ("b3",)}
END = datetime(2031, 1, 1, tzinfo=UTC)


class Hosts:
    """Two hosts with brokers that show the certificate they were given, or an older one.

    Attributes:
        states: state of each broker's process.
        stale: brokers that go on with their old certificate.
        refusing: brokers whose control socket refuses the command.
        issued: certificates by broker, with the host that received each.
        asked: the commands to brokers, in order.
    """

    def __init__(self, *, tls: bool = True, deployed: bool = True) -> None:
        self.inventory = SimpleNamespace(uses_tls=tls, name="test")
        self.states = dict.fromkeys(("b1", "b2", "b3"), "running")
        self.stale: set[str] = set()
        self.refusing: set[str] = set()
        self.issued: dict[str, tuple[str, str]] = {}
        self.asked: list[tuple[str, str]] = []
        self._is_deployed = deployed
        self.connectors = [self._connector(host) for host in ROWS]

    async def on_all(self, work: Callable[[Any], Awaitable[None]]) -> None:
        for connector in self.connectors:
            await work(connector)

    def _connector(self, host: str) -> Any:
        rows = [
            {"broker": name, "host": place, "port": 20_000, "core": -1, "ip": "127.0.0.1"}
            for place, names in ROWS.items()
            for name in names
        ]

        async def read_deployment() -> Mapping[str, Any] | None:
            placement = {"brokers": rows, "clients_host": "m1"}
            return {"deployment_id": "d1", "placement": placement} if self._is_deployed else None

        @asynccontextmanager
        async def open_agent() -> Any:
            yield SimpleNamespace(status=status, broker=broker)

        async def status() -> Mapping[str, Any]:
            return {"processes": {name: {"state": self.states[name]} for name in ROWS[host]}}

        async def broker(name: str, command: str) -> Mapping[str, Any]:
            self.asked.append((name, command))
            if name in self.refusing:
                raise ControlError("user", "no TLS here")
            known = "old" if name in self.stale else self.issued[name][1]
            return {"certificate_sha256": known}

        return SimpleNamespace(
            host=SimpleNamespace(name=host), read_deployment=read_deployment, open_agent=open_agent
        )


def renew(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, datetime]:
    async def issue(lab: Hosts, deployment: str, host: str, role: str, name: str) -> Any:
        assert (deployment, role) == ("d1", "broker")
        lab.issued[name] = (host, f"new of {name}")
        return {}, SimpleNamespace(sha256=f"new of {name}", ends=END)

    async def check(_lab: Hosts) -> None:
        """Accept the authority."""

    monkeypatch.setattr(certificates, "_issue", issue)
    monkeypatch.setattr(certificates, "check_authority", check)
    return trio.run(renew_certificates, hosts)


def test_each_running_broker_gets_a_certificate_on_its_own_host_and_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = Hosts()
    hosts.states["b2"] = "exited"
    assert renew(hosts, monkeypatch) == {"b1": END, "b3": END}
    assert hosts.issued == {"b1": ("m1", "new of b1"), "b3": ("m2", "new of b3")}
    assert hosts.asked == [("b1", "reload_certificate"), ("b3", "reload_certificate")]


def test_a_broker_that_goes_on_with_its_old_certificate_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = Hosts()
    hosts.stale = {"b3"}
    with pytest.raises(HostError, match="broker b3 does not show its new certificate"):
        renew(hosts, monkeypatch)


def test_a_broker_that_refuses_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts()
    hosts.refusing = {"b2"}
    with pytest.raises(HostError, match="broker b2: no TLS here"):
        renew(hosts, monkeypatch)


def test_nothing_is_renewed_without_tls_or_without_a_running_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(PreflightFailed, match="plaintext"):
        renew(Hosts(tls=False), monkeypatch)
    stopped = Hosts()
    stopped.states = dict.fromkeys(stopped.states, "exited")
    for hosts in (Hosts(deployed=False), stopped):
        with pytest.raises((PreflightFailed, UserError), match="nothing is deployed"):
            renew(hosts, monkeypatch)
        assert hosts.issued == {}
