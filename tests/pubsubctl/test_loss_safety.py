"""Stories about placements that survive the loss of a machine, checked by brute force."""

import itertools
import random
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import bench
from brokerd.overlay.generate import chain, generate_balanced_tree, random_tree, star
from brokerd.overlay.outage import longest_lost
from brokerd.overlay.routes import FailedElements
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.registry import protocol_on, read_topology
from pubsubctl.deployment.loss_safety import (
    NO_HOME_LEFT,
    LossUnit,
    _Search,
    counter_example,
    loss_units,
    safe_assignment,
)
from pubsubctl.deployment.updates import batches
from pubsubctl.inventory.inventory import Host

SEED = 20260814


def host(name: str, domain: str = "", address: str = "") -> Host:
    return Host(
        name=name,
        connector="ssh",
        groups=(),
        ports=range(21000, 22000),
        cores="share",
        cores_reserved=(),
        root=None,
        origins={},
        address=address or f"{name}.lab.example",
        bench_address="10.0.0.1",
        failure_domain=domain or name,
    )


def worst_row_by_brute_force(topology: Topology, lost: set[str]) -> int:
    """Return the most consecutive lost brokers on any primary path, over all paths."""
    tree = PrimaryTree(topology)
    worst = 0
    for start, end in itertools.product(range(len(topology.brokers)), repeat=2):
        row = 0
        for number in tree.path(start, end):
            row = row + 1 if topology.brokers[number] in lost else 0
            worst = max(worst, row)
    return worst


def is_safe_by_brute_force(
    topology: Topology, host_of: Mapping[str, str], units: Sequence[LossUnit]
) -> bool:
    lost = [{broker for broker, name in host_of.items() if name in unit.hosts} for unit in units]
    return all(
        len(each) < len(topology.brokers)
        and worst_row_by_brute_force(topology, each) <= topology.delta
        for each in lost
    )


def random_lab(chance: random.Random, most_brokers: int) -> tuple[Topology, list[Host]]:
    brokers = chance.randint(2, most_brokers)
    delta = chance.randint(1, 3)
    kind = chance.choice(["chain", "star", "tree", "random"])
    topology = {
        "chain": lambda: chain(brokers, delta),
        "star": lambda: star(brokers, delta),
        "tree": lambda: generate_balanced_tree(brokers, 3, delta),
        "random": lambda: random_tree(brokers, delta, chance.randrange),
    }[kind]()
    count = chance.randint(1, 5)
    domains = [f"d{chance.randint(0, count - 1)}" for _ in range(count)]
    machines = [f"10.0.0.{chance.randint(1, 2 * count)}" for _ in range(count)]
    hosts = [host(f"n{at}", domains[at], machines[at]) for at in range(count)]
    return topology, hosts


def test_the_safety_proof_agrees_with_brute_force() -> None:
    chance = random.Random(SEED)
    verdicts = {True: 0, False: 0}
    for _ in range(300):
        topology, hosts = random_lab(chance, 10)
        units = loss_units(hosts)
        host_of = {broker: chance.choice(hosts).name for broker in topology.brokers}
        found = counter_example(protocol_on(topology), host_of, units)
        safe = is_safe_by_brute_force(topology, host_of, units)
        assert (found is None) == safe, (SEED, topology, host_of)
        verdicts[safe] += 1
        if found is None:
            continue
        smaller = [unit for unit in units if len(unit.hosts) < len(found.unit.hosts)]
        assert is_safe_by_brute_force(topology, host_of, smaller)
        assert all(host_of[name] in found.unit.hosts for name in found.brokers)
        if found.reason == NO_HOME_LEFT:
            assert sorted(found.brokers) == sorted(topology.brokers)
            continue
        # The example is one: consecutive brokers of a path, all in the unit, one too many.
        numbers = [topology.number_of(name) for name in found.brokers]
        assert PrimaryTree(topology).path(numbers[0], numbers[-1]) == tuple(numbers)
        assert len(found.brokers) == topology.delta + 1
    assert min(verdicts.values()) > 30


def test_the_longest_lost_row_is_the_one_that_brute_force_finds() -> None:
    chance = random.Random(SEED + 1)
    for _ in range(200):
        topology, _ = random_lab(chance, 12)
        lost = [number for number in range(len(topology.brokers)) if chance.random() < 0.6]
        row = longest_lost(topology, lost)
        names = {topology.brokers[number] for number in lost}
        assert len(row) == worst_row_by_brute_force(topology, names), SEED
        assert set(row) <= set(lost)


def test_a_safe_placement_is_found_whenever_there_is_one() -> None:
    """The search is compared with all placements of small trees on few hosts."""
    chance = random.Random(SEED + 2)
    verdicts = {True: 0, False: 0}
    for _ in range(120):
        topology, hosts = random_lab(chance, 6)
        hosts = hosts[:3]
        units = loss_units(hosts)
        names = [row.name for row in hosts]
        room = {name: chance.randint(1, 6) for name in names}
        exists = any(
            all(placed.count(name) <= room[name] for name in names)
            and is_safe_by_brute_force(
                topology, dict(zip(topology.brokers, placed, strict=True)), units
            )
            for placed in itertools.product(names, repeat=len(topology.brokers))
        )
        found = safe_assignment(protocol_on(topology), hosts, room)
        assert (found is not None) == exists, (SEED, topology, hosts, room)
        verdicts[exists] += 1
        if found is not None:
            assert is_safe_by_brute_force(topology, found, units)
            assert list(found) == list(topology.brokers)
            assert all(list(found.values()).count(name) <= room[name] for name in names)
    assert min(verdicts.values()) > 10


def test_a_thousand_brokers_on_sixteen_machines_in_two_racks_are_spread_evenly() -> None:
    hosts = [host(f"n{at}", f"rack-{at % 2}") for at in range(16)]
    topology = generate_balanced_tree(1000, 3, 1)
    found = safe_assignment(protocol_on(topology), hosts, {row.name: 1000 for row in hosts})
    assert found is not None
    assert counter_example(protocol_on(topology), found, loss_units(hosts)) is None
    loads = [list(found.values()).count(row.name) for row in hosts]
    assert max(loads) <= 2 * 1000 / 16


def test_machines_behind_one_address_and_racks_are_lost_together() -> None:
    hosts = [
        host("a1", "rack-1", "10.0.0.1"),
        host("a2", "rack-1", "10.0.0.1"),
        host("b", "rack-1", "10.0.0.2"),
        host("c", "rack-2", "10.0.0.3"),
    ]
    assert [str(unit) for unit in loss_units(hosts)] == [
        "machine 10.0.0.1 (a1, a2)",
        "machine b",
        "machine c",
        "failure domain rack-1 (a1, a2, b)",
    ]


@pytest.mark.parametrize("delta, safe", [(1, False), (2, True)])
def test_a_chain_on_pairs_of_hosts_survives_the_losses_within_delta(delta: int, safe: bool) -> None:
    topology = chain(6, delta)
    host_of = dict(zip(topology.brokers, ["a", "a", "b", "b", "c", "c"], strict=True))
    found = counter_example(
        protocol_on(topology), host_of, loss_units([host("a"), host("b"), host("c")])
    )
    assert (found is None) == safe
    if found is not None:
        names = "-".join(topology.brokers[:2])
        assert str(found) == (
            f"the loss of machine a takes {names}: 2 consecutive brokers of a primary path, "
            "and delta is 1"
        )


@pytest.mark.parametrize(
    "file, protocol",
    [
        ("chain3", "delta_tree"),
        ("chain3", "best_effort"),
        ("x10", "gryphon"),
        ("x10-paths", "gryphon"),
        ("durable", "durable"),
        ("t22-hi", "ges"),
        ("t22-stored", "ges_reliable"),
        ("proxies", "multi_proxy"),
    ],
)
def test_no_placement_on_one_machine_is_safe(file: str, protocol: str) -> None:
    path = Path(bench.__file__).parent / "topologies" / f"{file}.toml"
    topology = read_topology(tomllib.loads(path.read_text(encoding="utf-8")), file)
    tolerance = protocol_on(topology, protocol)
    hosts = [host("n1")]
    host_of = dict.fromkeys(topology.present(), "n1")
    found = counter_example(tolerance, host_of, loss_units(hosts))
    assert found is not None
    assert str(found).startswith("the loss of machine n1 takes ")
    assert safe_assignment(tolerance, hosts, {"n1": len(topology.brokers)}) is None


def test_a_placement_with_all_access_brokers_on_one_machine_is_not_safe() -> None:
    path = Path(bench.__file__).parent / "topologies" / "x10.toml"
    topology = read_topology(tomllib.loads(path.read_text(encoding="utf-8")), "x10")
    tolerance = protocol_on(topology, "gryphon")
    homes = tolerance.homes()
    assert set(homes) < set(topology.brokers)
    host_of = {name: "n1" if name in homes else "n2" for name in topology.brokers}
    found = counter_example(tolerance, host_of, [LossUnit("machine", "n1", ("n1",))])
    assert found is not None
    assert set(found.brokers) <= set(homes)


def test_a_later_search_finds_what_a_first_one_finds() -> None:
    chance = random.Random(SEED + 3)
    found = 0
    for _ in range(60):
        topology, hosts = random_lab(chance, 8)
        protocol, units = protocol_on(topology), loss_units(hosts)
        search = _Search(protocol, hosts, units)
        for _ in range(4):
            rooms = {host.name: chance.randint(1, 6) for host in hosts}
            placement = search.run(rooms)
            assert placement == _Search(protocol, hosts, units).run(rooms), (SEED, topology)
            found += placement is not None
    assert found > 40


@pytest.mark.parametrize("delta", [1, 3])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_no_more_brokers_are_replaced_at_once_than_asked_for_and_tolerated(
    delta: int, most: int
) -> None:
    known = protocol_on(chain(7, delta), "delta_tree")
    found = [*batches(known, known.topology.brokers, most)]
    assert sorted(itertools.chain(*found)) == sorted(known.topology.brokers)
    assert max(map(len, found)) <= most
    for batch in found:
        away = tuple(sorted(map(known.topology.number_of, batch)))
        assert len(batch) == 1 or known.tolerates(FailedElements(away))
    assert most == 1 or len(found) < 7
