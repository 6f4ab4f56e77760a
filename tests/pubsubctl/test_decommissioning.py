"""Stories about the decommission of brokers, one after the other."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bench.spec.spec import load_topology
from brokerd.protocols.extensions import Farewell
from pubsubctl.deployment.membership import (
    DecommissionCandidate,
    _record,
    collect_departure_reports,
)

TOPOLOGY = load_topology(Path(__file__).parents[2] / "bench" / "topologies" / "durable.toml")


class Lab:
    """A host with all brokers, and the record of the deployment.

    Attributes:
        asked: the brokers that received a request about a decommission.
    """

    def __init__(self, *decommissioned: str) -> None:
        self.record: dict[str, Any] = {
            "deployment_id": "d1",
            "protocol": "durable",
            "topology": TOPOLOGY.to_mapping(),
            "placement": {"brokers": [{"broker": b, "host": "h1"} for b in TOPOLOGY.brokers]},
            "decommissioned": [*decommissioned],
        }
        self.asked: list[str] = []
        self.host = SimpleNamespace(name="h1")
        self.connectors = (self,)

    async def read_deployment(self) -> Mapping[str, Any]:
        return self.record

    async def write_deployment(self, content: dict[str, Any], _topology: str) -> None:
        self.record = content

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator[Any]:
        async def status() -> dict[str, Any]:
            return {"processes": {}}

        async def broker(name: str, _command: str, _arguments: Mapping[str, str]) -> dict[str, Any]:
            self.asked.append(name)
            return {"is_known": False, "refusals": [], "losses": []}

        yield SimpleNamespace(status=status, broker=broker)

    async def on_all(self, act: Callable[[Any], Awaitable[None]]) -> None:
        await act(self)


@pytest.mark.parametrize("broker", ["c1", "c3"])
def test_a_decommission_may_be_repeated_and_follow_another(broker: str) -> None:
    lab: Any = Lab("c3")
    leaving = trio.run(collect_departure_reports, lab, broker)
    assert lab.asked == [name for name in ("c1", "c2") if name != broker]
    assert [*leaving.hosts] == [*leaving.reports] == lab.asked


def test_a_record_has_all_brokers_that_were_given_up() -> None:
    lab: Any = Lab("c3")
    for broker in ("c2", "c2", "c1"):
        trio.run(_record, broker, lab)
    assert lab.record["decommissioned"] == ["c3", "c2", "c1"]


@pytest.mark.parametrize("known, is_over", [((True, True), True), ((True, False), False)])
def test_a_decommission_ends_once_all_other_brokers_have_recorded_it(
    known: tuple[bool, bool], is_over: bool
) -> None:
    said = {name: Farewell(each, (), ()) for name, each in zip("ab", known, strict=True)}
    assert DecommissionCandidate("d1", "c", {"a": "h1", "b": "h1"}, said).is_over == is_over
