"""Stories about placements from files and running processes, and cores that /proc confirms."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.agent.processes import ProcessIdentity
from brokerd.overlay.generate import chain
from brokerd.protocols.registry import protocol_on
from pubsubctl.deployment.placement import PlacedBroker, Placement, check_pinning, place
from pubsubctl.deployment.placement_choice import extend_placement, judge_losses
from pubsubctl.deployment.placement_file import check_cores, read_placement
from pubsubctl.errors import HostError, UserError
from pubsubctl.inventory.inventory import Host, load_inventory
from tests.pubsubctl.conftest import Call


def two_hosts(tmp_path: Path) -> tuple[Host, ...]:
    (tmp_path / "lab.toml").write_text(
        'schema = "pubsubctl/inventory/1"\nname = "lab"\n[[hosts]]\nname = "n[1:2]"\n'
        'address = "10.0.0.[1:2]"\nvars = { ports = "22000-22003", cores_reserved = [0] }\n'
    )
    return load_inventory(tmp_path / "lab.toml").hosts


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[Host, ...]:
    return two_hosts(tmp_path)


def test_a_placement_is_read_back_as_it_was_written(
    hosts: tuple[Host, ...], tmp_path: Path
) -> None:
    topology = chain(3, 1)
    placement = place(topology, hosts, {host.name: [1, 2] for host in hosts}, "pin")
    path = tmp_path / "p.json"
    path.write_text(json.dumps(placement.to_mapping()))
    assert read_placement(path, topology, hosts) == placement


@pytest.mark.parametrize(
    "place_, key, value, said",
    [
        (0, "host", "n3", "no host called 'n3'; did you mean 'n2'?"),
        (0, "port", 23000, "port 23000 is not one of n1's ports"),
        (0, "port", True, "brokers.0.port"),
        (0, "port", "22000", "brokers.0.port"),
        (0, "ip", "0.0.0.0", "'0.0.0.0' is not n1's bench_address"),
        (0, "core", 0, "core 0 is not for brokers"),
        (0, "broker", "x;y", "'x;y': not one of"),
        (2, "broker", "b1", "is placed twice"),
        (2, "port", 22000, "b1 has port 22000 of n1"),
        (0, "command", "reboot", "brokers.0.command"),
    ],
)
def test_a_corrupted_placement_is_refused(
    hosts: tuple[Host, ...], tmp_path: Path, place_: int, key: str, value: Any, said: str
) -> None:
    topology = chain(3, 1)
    content = place(topology, hosts, {}).to_mapping()
    content["brokers"][place_][key] = value
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        read_placement(path, topology, hosts)
    assert said in str(caught.value)
    for text in ("", "[]", "{}", '{"schema": "pubsubctl/plan/1"}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(UserError, match="no placement"):
            read_placement(path, topology, hosts)


def test_cores_that_a_machine_does_not_have_are_refused_before_anything_is_started(
    hosts: tuple[Host, ...],
) -> None:
    placement = place(chain(2, 1), hosts, {"n1": [1, 2], "n2": [5]}, "pin")
    check_cores(placement, {"n1": (0, 1, 2), "n2": (5,)}, Path("p.json"))
    with pytest.raises(UserError) as caught:
        check_cores(placement, {"n1": (1,), "n2": (0, 1)}, Path("p.json"))
    assert caught.value.problems == ("p.json: broker b2: n2 has no core 5 for us, but 0, 1",)


def test_a_newcomer_receives_a_free_port_and_moves_no_other_broker(hosts: tuple[Host, ...]) -> None:
    packed = place(chain(3, 1), hosts, {"n1": [1, 2, 3], "n2": []}, "pack")
    assert {row.host for row in packed.brokers} == {"n1"}
    found = extend_placement(packed, place(chain(4, 1), hosts[:1], {}), hosts)
    assert found.brokers[:3] == packed.brokers
    assert found.brokers[3].port == 22003
    newcomer = PlacedBroker("b5", "n1", 22003, -1, "10.0.0.1")
    wanted = Placement((*found.brokers, newcomer), "n1")
    with pytest.raises(UserError, match="no port is left for b5"):
        extend_placement(found, wanted, hosts)


def test_newcomers_that_want_a_port_in_use_receive_different_ports(tmp_path: Path) -> None:
    b1, b2 = (PlacedBroker(f"b{n}", "n1", 21998 + 2 * n, -1, "10.0.0.1") for n in (1, 2))
    newcomers = (replace(b2, broker="b3"), replace(b2, broker="b4", port=22001))
    found = extend_placement(
        Placement((b1, b2), "n1"), Placement((b1, b2, *newcomers), "n1"), two_hosts(tmp_path)
    )
    assert [row.port for row in found.brokers] == [22000, 22002, 22001, 22003]


class Told:
    """An agent that reports the cores of processes."""

    def __init__(self, **cores: list[int] | None) -> None:
        self.cores = cores

    async def status(self) -> dict[str, Any]:
        return {"processes": {name: {"cores": cores} for name, cores in self.cores.items()}}


def test_a_broker_on_unassigned_cores_is_an_error() -> None:
    placement = Placement(
        (
            PlacedBroker("b1", "n1", 22000, 1),
            PlacedBroker("b2", "n1", 22001, 2),
            PlacedBroker("b3", "n2", 22000),
        ),
        "n1",
    )
    well = {"n1": Told(b1=[1], b2=[2]), "n2": Told(b3=[0, 1, 2])}
    trio.run(check_pinning, well, placement)
    wrong = {"n1": Told(b1=[0, 1, 2], b2=None), "n2": Told()}
    with pytest.raises(HostError) as caught:
        trio.run(check_pinning, wrong, placement)
    assert caught.value.problems == (
        "host n1: b1 was given core 1, and runs on cores 0,1,2",
        "host n1: b2 was given core 2, and runs on unknown cores",
    )


def test_cores_of_a_process_are_read_from_proc() -> None:
    own = ProcessIdentity.of(os.getpid())
    before = os.sched_getaffinity(0)
    one = min(before)
    try:
        os.sched_setaffinity(0, {one})
        assert own.cores() is not None
        assert one in (own.cores() or [])
    finally:
        os.sched_setaffinity(0, before)
    assert set(own.cores() or []) == before
    assert ProcessIdentity(own.pid, own.start_time + 1).cores() is None


def test_a_file_and_a_policy_do_not_go_together(call: Call) -> None:
    answer = call("deploy", "chain3", "--placement", "p.json", "--policy", "pack")
    assert answer.status == 2
    assert "leave out --policy and --safe" in answer.err
    assert call("deploy", "chain3", "--policy", "spred", "-n").status == 2
    assert call("deploy", "chain3", "--placement", "nowhere.json").status == 2


def test_a_deployment_plan_follows_its_file(call: Call, project: Path) -> None:
    assert call("topology", "place", "chain3", "--policy", "pack", "-o", "p.json").status == 0
    written = json.loads((project / "p.json").read_text())
    written["brokers"][0]["port"] = 23507
    (project / "p.json").write_text(json.dumps(written))
    answer = call("-n", "deploy", "chain3", "--placement", "p.json")
    assert "127.0.0.1:23507" in answer.out


@pytest.mark.parametrize(
    "machines, is_one", [(("",), False), (("", ""), True), (("x", "y"), False), (("", "x"), False)]
)
def test_hosts_that_share_this_machine_are_named(
    tmp_path: Path, machines: tuple[str, ...], is_one: bool
) -> None:
    """One host on this machine stands for itself."""
    used = [
        replace(host, connector="ssh" if machine else "local", address=machine)
        for host, machine in zip(two_hosts(tmp_path), machines, strict=False)
    ]
    tolerance = protocol_on(chain(4, 1), "delta_tree")
    placement = place(tolerance.topology, used, {})
    text = judge_losses(tolerance, used, placement).text()
    assert ("they share this one" in text) == is_one
