"""Stories about a broker that continues on another host."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import trio

from brokerd.errors import ControlError
from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from pubsubctl.deployment.deployment import Deployment
from pubsubctl.deployment.placement import Placement
from pubsubctl.deployment.placement_choice import PlacementChoice, choose_placement
from pubsubctl.deployment.plan import ObservedState, Step, deploy_plan
from pubsubctl.deployment.records import write_record
from pubsubctl.deployment.replacement import (
    choose_replacement,
    find_replacement,
    record_replacement,
)
from pubsubctl.errors import PreflightFailed, Unreachable, UserError

HOSTS: Final = ("h1", "h2", "h3", "h4", "h5")
TOPOLOGY: Final = tree_of_cells(
    ("p1", "b1", "b2", "s1"), [("p1", "cell"), ("cell", "s1")], {"cell": ["b1", "b2"]}
)


def record(replicas: int = 3, protocol: str = "gryphon", **more: Any) -> dict[str, Any]:
    """Return the record of a deployment with each broker on a host of its own."""
    settings = ((protocol, (("replicas", replicas),)),) if replicas else ()
    placed = [
        {"broker": name, "host": host, "ip": "127.0.0.1", "port": 1000 + place, "core": -1}
        for place, (name, host) in enumerate(zip(TOPOLOGY.brokers, HOSTS, strict=False))
    ]
    return {
        "deployment_id": "d1",
        "protocol": protocol,
        "digest": "",
        "topology": replace(TOPOLOGY, settings=settings).to_mapping(),
        "placement": {"schema": "", "clients_host": "h1", "brokers": placed},
        **more,
    }


class Machine:
    """A host with an agent, or without one, and its record.

    Attributes:
        running: brokers with a process.
        stopped: brokers that were stopped.
        aside: brokers with a state folder that was renamed, and the recorded place at that time.
    """

    def __init__(self, name: str, running: str, content: dict[str, Any] | None) -> None:
        self.host: Any = SimpleNamespace(
            name=name, broker_ports=range(2000, 2002), bench_address="127.0.0.1"
        )
        self.transport = SimpleNamespace(program=self.program)
        self.running = {running}
        self.record = content
        self.has_agent = True
        self.stopped: list[str] = []
        self.aside: list[tuple[str, bool]] = []

    async def set_state_aside(self, broker: str) -> None:
        self.aside.append((broker, self.record is not None))

    async def program(self) -> str:
        return "program"

    async def read_deployment(self) -> Mapping[str, Any] | None:
        return self.record

    async def write_deployment(self, content: dict[str, Any], _topology: str) -> None:
        self.record = content

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator[Any]:
        if not self.has_agent:
            raise ControlError("closed", "no agent")

        async def status() -> dict[str, Any]:
            return {"processes": {name: {"state": "running"} for name in self.running}}

        async def stop(name: str) -> None:
            self.stopped.append(name)

        yield SimpleNamespace(status=status, stop=stop)


class Lab:
    """Five hosts; p1, b1, b2 and s1 are on the first four."""

    def __init__(self) -> None:
        self.inventory: Any = SimpleNamespace(name="five")
        names = (*TOPOLOGY.brokers, "")
        self.connectors = tuple(
            Machine(host, name, record() if name else None)
            for host, name in zip(HOSTS, names, strict=True)
        )
        self.of = {each.host.name: each for each in self.connectors}

    def connector(self, host: str) -> Machine:
        return self.of[host]

    def without(self, *hosts: str) -> "Lab":
        """Return this lab after hosts that cannot be reached were dropped."""
        self.connectors = tuple(each for each in self.connectors if each.host.name not in hosts)
        return self

    async def on_all(
        self, act: Callable[[Any], Awaitable[None]], connectors: Sequence[Any] | None = None
    ) -> None:
        for connector in self.connectors if connectors is None else connectors:
            await act(connector)


def test_a_replaced_broker_keeps_its_name_and_has_a_free_port_of_the_host() -> None:
    lab = Lab()
    hosts = [each.host for each in lab.connectors]
    found = choose_replacement(record(), "p1", "h5", hosts)
    assert (found.placed.address, found.former) == ("127.0.0.1:2000", "h1")
    before = Placement.from_mapping(record()["placement"]).brokers
    assert found.wanted.placement.brokers == (found.placed, *before[1:])
    assert choose_replacement(found.record, "p1", "h5", hosts) == replace(found, former="h5")
    both = choose_replacement(found.record, "s1", "h5", hosts)
    assert both.placed.port == 2001
    hosts[4].broker_ports = range(2000, 2001)
    with pytest.raises(UserError, match="host h5: no port is left for s1"):
        choose_replacement(found.record, "s1", "h5", hosts)


@pytest.mark.parametrize(
    "content, broker, on, reason",
    [
        (record(), "p2", "h5", "no broker called 'p2'; did you mean 'p1'"),
        (record(), "p1", "h6", "--on 'h6': no such host; did you mean 'h5'"),
        (record(), "b1", "h5", "b1 has no clients, so it has no replicas"),
        (record(1), "p1", "h5", "replicas = 1: no other broker has the state of p1"),
        (record(decommissioned=["p1"]), "p1", "h5", "p1 was decommissioned"),
    ],
)
def test_a_replacement_without_copies_or_place_is_refused_with_the_reason(
    content: dict[str, Any], broker: str, on: str, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        choose_replacement(content, broker, on, [each.host for each in Lab().connectors])


def test_a_broker_that_runs_is_not_replaced() -> None:
    lab: Any = Lab()
    with pytest.raises(PreflightFailed, match="p1 runs on host h1; end it first"):
        trio.run(find_replacement, lab, "p1", "h5")
    lab.of["h1"].has_agent = False
    assert trio.run(find_replacement, lab, "p1", "h5").placed.host == "h5"
    lab.of["h3"].has_agent = False
    with pytest.raises(PreflightFailed, match="host h3 has b2 and does not answer"):
        trio.run(find_replacement, lab, "p1", "h5")


def test_all_records_have_the_new_place_and_a_late_process_is_stopped() -> None:
    """The former host answers again after the replacement, and still runs its process."""
    lab: Any = Lab()
    former = lab.of["h1"]
    former.has_agent = False
    found = trio.run(find_replacement, lab, "p1", "h5")
    trio.run(record_replacement, lab, found)
    former.record, former.has_agent = record(), True  # the place before is not written back
    again = trio.run(find_replacement, lab, "p1", "h5")
    trio.run(record_replacement, lab, again)
    assert again.placed == found.placed
    assert former.stopped == ["p1"]
    for machine in lab.connectors:
        assert machine.record["placement"] == found.record["placement"]
        assert machine.record["replacements"] == 1
    assert lab.of["h5"].record["host"] == "h5"
    assert lab.of["h5"].aside == [("p1", False)], "before the record, and not when repeated"


def test_load_generators_continue_with_the_broker_if_their_host_is_lost() -> None:
    """Every host of a placement is reached; the first host has p1 and the load generators."""
    lab: Any = Lab().without("h1")
    found = trio.run(find_replacement, lab, "p1", "h5")
    assert found.wanted.placement.hosts == ("h5", "h2", "h3", "h4")
    trio.run(record_replacement, lab, found)
    again = trio.run(find_replacement, lab, "p1", "h5")
    assert again.wanted.placement == found.wanted.placement
    lost = [Unreachable("host h1: no route")]
    with pytest.raises(PreflightFailed, match="'h1': no such host can be reached\nhost h1: no ro"):
        trio.run(find_replacement, lab, "p1", "h1", lost)


def test_hosts_of_two_deployments_are_refused_before_any_record_is_changed() -> None:
    """A host that was away has the record of an earlier deployment, with more replacements."""
    lab: Any = Lab()
    lab.of["h1"].has_agent = False
    lab.of["h5"].record = record(deployment_id="d0", replacements=3)
    with pytest.raises(PreflightFailed, match=r"several deployments: d1 on h1, .* d0 on h5; "):
        trio.run(find_replacement, lab, "p1", "h5")


@pytest.mark.parametrize("returned", [("h1",), ("h1", "h4"), ()])
def test_a_host_with_the_former_place_of_a_broker_is_named_with_the_command(
    returned: tuple[str, ...],
) -> None:
    lab: Any = Lab()
    lab.of["h1"].has_agent = False
    found = trio.run(find_replacement, lab, "p1", "h5")
    trio.run(record_replacement, lab, found)
    for host in returned:
        lab.of[host].record = record()
    seen = [
        ObservedState(host, "d1", {}, machine.record)
        for host, machine in lab.of.items()
        if machine.record is not None
    ]

    async def observe() -> list[ObservedState]:
        return seen

    async def cores(_: Any) -> dict[str, list[int]]:
        return {}

    lab.observe, lab.cores = observe, cores
    for machine in lab.connectors:
        vars(machine.host).update(groups=("brokers",), cores="share", machine=machine.host.name)
    topology = found.wanted.topology
    placement = trio.run(choose_placement, lab, topology, "gryphon", PlacementChoice())
    assert placement == found.wanted.placement
    if not returned:
        plan = replace(deploy_plan(found.wanted, seen), steps=(Step("change-record", "h2"),))
        lab.inventory = SimpleNamespace(name="five", path=Path("five.toml"), uses_tls=False)
        trio.run(write_record, Deployment("d1", found.wanted, lab, plan), "deploy", "change-record")
        assert lab.of["h2"].record["replacements"] == 1
        return
    with pytest.raises(PreflightFailed) as refused:
        deploy_plan(found.wanted, seen)
    assert refused.value.problems == tuple(
        f"host {host}: p1 was replaced, and its former place is recorded here; "
        "`pubsubctl replace p1 --on h5` records the present one"
        for host in returned
    )
