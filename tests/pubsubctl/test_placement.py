"""Stories about placement: policies, cores, addresses, and `topology place`."""

import json
from pathlib import Path

import pytest

from brokerd.overlay.generate import chain, generate_balanced_tree
from pubsubctl.deployment.placement import Placement, place
from pubsubctl.doctor.host_facts import cached_cores, cached_facts, remember_facts
from pubsubctl.errors import PreflightFailed, UserError
from pubsubctl.inventory.inventory import Inventory, load_inventory
from tests.pubsubctl.conftest import Call

LAB = """\
schema = "pubsubctl/inventory/1"
name = "lab"
[[hosts]]
name = "n[1:4]"
address = "10.0.0.[1:4]"
groups = ["brokers"]
vars = { ports = "22000-22099", cores_reserved = [0] }
[[hosts]]
name = "m1"
address = "fd00::1"
groups = ["clients"]
[groups.left]
hosts = ["n1", "n2"]
vars = { failure_domain = "left" }
[groups.right]
hosts = ["n3", "n4"]
vars = { failure_domain = "right" }
"""
CORES = {name: [0, 1, 2] for name in ("n1", "n2", "n3", "n4")}


@pytest.fixture
def lab(tmp_path: Path) -> Inventory:
    (tmp_path / "lab.toml").write_text(LAB)
    return load_inventory(tmp_path / "lab.toml")


def loads(placement: Placement) -> dict[str, int]:
    return {host: len(placement.on(host)) for host in ("n1", "n2", "n3", "n4")}


def test_spread_deals_brokers_out_in_turn_and_they_listen_on_the_hosts_addresses(
    lab: Inventory,
) -> None:
    placement = place(chain(6, 1), lab.hosts, {})
    assert [(row.host, row.address) for row in placement.brokers] == [
        ("n1", "10.0.0.1:22000"),
        ("n2", "10.0.0.2:22000"),
        ("n3", "10.0.0.3:22000"),
        ("n4", "10.0.0.4:22000"),
        ("n1", "10.0.0.1:22001"),
        ("n2", "10.0.0.2:22001"),
    ]
    assert placement.clients_host == "m1"
    assert Placement.from_mapping(placement.to_mapping()) == placement


def test_an_address_of_ip_6_is_written_in_brackets(lab: Inventory) -> None:
    (broker, _) = place(chain(2, 1), [lab.host("m1")], {}).brokers
    assert broker.address == "[fd00::1]:21000"


def test_pack_uses_as_few_hosts_as_have_cores_and_keeps_neighbours_together(
    lab: Inventory,
) -> None:
    tree = generate_balanced_tree(4, 3, 1)
    placement = place(tree, lab.hosts, CORES, "pack")
    assert loads(placement) == {"n1": 2, "n2": 2, "n3": 0, "n4": 0}
    assert loads(place(chain(14, 1), lab.hosts, CORES, "pack")) == {
        "n1": 4,
        "n2": 4,
        "n3": 4,
        "n4": 2,
    }


def test_pin_assigns_each_broker_an_unreserved_core_of_its_own(
    lab: Inventory,
) -> None:
    placement = place(chain(8, 1), lab.hosts, CORES, "pin")
    assert sorted((row.host, row.core) for row in placement.brokers) == [
        (host, core) for host in CORES for core in (1, 2)
    ]
    with pytest.raises(PreflightFailed, match="there are 8 cores for 9 brokers"):
        place(chain(9, 1), lab.hosts, CORES, "pin")


def test_hosts_behind_one_address_share_their_cores(tmp_path: Path) -> None:
    text = '[[hosts]]\nname = "a[1:2]"\naddress = "10.0.0.[7:7]"\n'
    two = text.replace("a[1:2]", "a1").replace("[7:7]", "7")
    two += two.replace("a1", "a2") + '[hosts.vars]\nports = "23000-23001"\n'
    path = tmp_path / "two.toml"
    path.write_text('schema = "pubsubctl/inventory/1"\nname = "two"\n' + two)
    hosts = load_inventory(path).hosts
    cores = {"a1": [0, 1], "a2": [0, 1]}
    assert sorted(row.core for row in place(chain(2, 1), hosts, cores, "pin").brokers) == [0, 1]
    with pytest.raises(PreflightFailed, match="there are 2 cores for 3 brokers"):
        place(chain(3, 1), hosts, cores, "pin")


def test_a_host_with_only_a_name_needs_a_bench_address(
    tmp_path: Path,
) -> None:
    path = tmp_path / "named.toml"
    path.write_text(LAB.replace('"10.0.0.[1:4]"', '"n[1:4].lab.example"'))
    with pytest.raises(UserError, match=r"n1.*n1\.lab\.example is a name.*bench_address"):
        place(chain(3, 1), load_inventory(path).hosts, {})


def test_facts_are_kept_for_the_way_that_a_host_was_reached(
    lab: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remember_facts(lab, {"n1": {"cores": [0, 1, 2]}, "n2": {"cores": [4, "x", -1]}})
    remember_facts(lab, {"n3": {"cores": "all"}})
    assert cached_cores(lab, lab.hosts) == {
        "n1": [0, 1, 2],
        "n2": [4],
        "n3": [],
        "n4": [],
        "m1": [],
    }
    lab.path.write_text(LAB.replace("10.0.0.[1:4]", "10.0.9.[1:4]"))
    assert cached_facts(load_inventory(lab.path)) == {}
    for torn in ("", "[]", '{"schema": 1}', '{"schema": "pubsubctl/facts/1", "hosts": {"n1": 1}}'):
        next((tmp_path / "cache").rglob("lab-*.json")).write_text(torn)
        assert cached_facts(lab) == {}


def test_place_prints_a_placement_and_whether_a_lost_machine_breaks_the_promise(
    call: Call, project: Path
) -> None:
    (project / "inventories" / "lab.toml").write_text(LAB)
    plain = call("-i", "lab", "topology", "place", "demo")
    assert plain.status == 0
    assert (
        "not safe with delta_tree (delta 1): the loss of machine n2 takes b1-s1: 2 cons"
        in plain.out
    )
    safe = call("-i", "lab", "topology", "place", "demo", "--delta-safe", "-o", "p.json")
    assert safe.status == 0
    assert (
        "safe with delta_tree (delta 1): it tolerates the loss of any one machine or failure"
        in safe.out
    )
    written = json.loads((project / "p.json").read_text())
    assert written["delta_safe"] is True
    assert len(Placement.from_mapping(written).brokers) == 10
    assert call("-i", "lab", "topology", "place", "demo", "-o", "p.json").status == 2


def test_the_smallest_counter_example_is_named_if_no_placement_is_safe(call: Call) -> None:
    answer = call("-l", "t1", "topology", "place", "chain3", "--delta-safe")
    assert answer.status == 4
    assert "the loss of machine t1 takes c1-c2: 2 consecutive brokers" in answer.err
    assert call("topology", "place", "chain3", "--policy", "spred").status == 2
