"""Stories about previews: the predicted partitions equal those in the simulator."""

from random import Random

import pytest

from brokerd.overlay.generate import chain, random_tree, star
from brokerd.overlay.outage import Outage
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.registry import RunningProtocol, definition_of, protocol_on
from brokerd.simulator.world.cluster import SimulatedCluster
from fault_injection.schedule.lint import targets_of
from fault_injection.schedule.plan import expand
from fault_injection.schedule.schedule import read_schedule
from pubsubctl.injection.preview import Pair, effect_of, windows
from tests.helpers.cluster import STEADY
from tests.pubsubctl.conftest import Call

SEED = 40


def with_assist(topology: Topology, assist: str) -> RunningProtocol:
    parameters = DeltaTreeParameters(delta=topology.delta, assist=assist)
    return RunningProtocol(topology, definition_of("delta_tree"), parameters)


def delivered_in_the_simulator(topology: Topology, outage: Outage, assist: str) -> set[Pair]:
    """Return (source, subscriber) of every delivery during the outage."""
    parameters = DeltaTreeParameters(delta=topology.delta, assist=assist)
    cluster = SimulatedCluster(topology, network=STEADY, parameters=parameters).start()
    names = topology.brokers
    heard = {name: cluster.subscribe(name) for name in names}
    for name in names:
        cluster.client(f"p-{name}", name, publishes=True)
    cluster.run_until_quiet()
    for number in sorted(outage.down):
        cluster.brokers[number].kill()
    for number in sorted(outage.absorbing):
        cluster.broker(names[number]).absorb()
    for a, b in sorted(outage.cut):
        cluster.link(names[a], names[b]).cut()
    for a, b in sorted(outage.absorbed):
        cluster.link(names[a], names[b]).absorb("out")
    cluster.run_for(4)
    published = {
        number: str(cluster.publish(name, n=1))
        for number, name in enumerate(names)
        if number not in outage.down
    }
    cluster.run_for(4)
    return {
        (source, names.index(name))
        for name, subscription in heard.items()
        for source, said in published.items()
        if said in map(str, subscription.received)
    }


def drawn(chance: Random) -> tuple[Topology, Outage]:
    count, delta = chance.randint(3, 7), chance.randint(1, 2)
    topology = (
        chain(count, delta)
        if chance.random() < 0.4
        else random_tree(count, delta, chance.randrange)
    )
    down: set[int] = set()
    absorbing: set[int] = set()
    cut: set[Pair] = set()
    absorbed: set[Pair] = set()
    for _ in range(chance.randint(1, 3)):
        a, b = chance.choice(topology.links)
        verb = chance.choice(["kill", "kill", "absorb", "cut", "absorb-link"])
        if verb == "kill":
            down.add(chance.randrange(count))
        elif verb == "absorb":
            absorbing.add(chance.randrange(count))
        elif verb == "cut":
            cut.add((a, b))
        else:
            absorbed.add((b, a))
    absorbed = {pair for pair in absorbed if tuple(sorted(pair)) not in cut}
    alive = frozenset(absorbing - down)
    return topology, Outage(frozenset(down), alive, frozenset(cut), frozenset(absorbed))


@pytest.mark.parametrize("seed", range(SEED, SEED + 16))
def test_a_preview_predicts_the_deliveries_of_the_simulator(seed: int) -> None:
    topology, outage = drawn(Random(seed))
    effect = effect_of(with_assist(topology, "off"), outage)
    got = delivered_in_the_simulator(topology, outage, "off")
    pairs = {(a, b) for a in effect.live for b in effect.live if a != b}
    assert pairs - got == set(effect.cut_off), (seed, topology, outage)


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_a_preview_with_relayed_sessions_predicts_the_deliveries_of_the_simulator(
    seed: int,
) -> None:
    chance = Random(seed)
    topology = random_tree(6, 2, chance.randrange)
    outage = Outage(cut=frozenset(chance.sample(topology.links, 2)))
    effect = effect_of(with_assist(topology, "on"), outage)
    got = delivered_in_the_simulator(topology, outage, "on")
    pairs = {(a, b) for a in effect.live for b in effect.live if a != b}
    assert pairs - got == set(effect.cut_off), (seed, topology, outage)


def test_dead_brokers_cut_off_exactly_the_brokers_behind_more_than_delta_in_a_row() -> None:
    for seed in range(100):
        chance = Random(f"{SEED} {seed}")
        topology = random_tree(chance.randint(2, 12), chance.randint(1, 3), chance.randrange)
        count = len(topology.brokers)
        dead = {number for number in range(count) if chance.random() < 0.4}
        tree = PrimaryTree(topology)
        expected = set()
        for a in range(count):
            for b in range(count):
                text = "".join(".X"[number in dead] for number in tree.path(a, b))
                if a != b and not {a, b} & dead and "X" * (topology.delta + 1) in text:
                    expected.add((a, b))
        effect = effect_of(with_assist(topology, "off"), Outage(down=frozenset(dead)))
        assert set(effect.cut_off) == expected, (seed, topology, dead)
        assert sorted(sum(effect.islands, ())) == [n for n in range(count) if n not in dead]
        apart = {
            (a, b)
            for one in effect.islands
            for other in effect.islands
            for a in one
            for b in other
            if one != other
        }
        assert apart <= expected


def test_a_star_falls_into_single_islands_without_bypasses_and_holds_with_them() -> None:
    topology = star(5, 1)
    hub = max(range(5), key=lambda number: len(topology.neighbours()[number]))
    outage = Outage(down=frozenset({hub}))
    assert len(effect_of(with_assist(topology, "off"), outage).islands) == 1
    alone = effect_of(protocol_on(topology, "best_effort"), outage)
    assert [len(island) for island in alone.islands] == [1, 1, 1, 1]
    assert len(alone.cut_off) == 12


def test_a_schedule_is_described_as_time_windows() -> None:
    document = {
        "schema": "pubsubctl/faults/1",
        "name": "two",
        "step": [
            {"id": "one", "at": "2s", "do": "kill", "on": "b2"},
            {"id": "two", "after": "one.applied", "delay": "1s", "do": "freeze", "on": "b3"}
            | {"for": "4s"},
            {"id": "back", "after": "two", "delay": "1s", "do": "restart", "on": "b2"},
            {"id": "slow", "at": "9s", "do": "absorb", "on": "b4->b5", "for": "1s"},
        ],
    }
    topology = chain(5, 1)
    renamed = topology.to_mapping()
    schedule = read_schedule(document, "two.toml")
    names = {old: f"b{place + 1}" for place, old in enumerate(topology.brokers)}
    renamed["brokers"] = list(names.values())
    renamed["links"] = [[names[a], names[b]] for a, b in renamed["links"]]
    topology = Topology.from_mapping(renamed, "chain")
    found = windows(expand(schedule), targets_of(schedule, topology), protocol_on(topology))
    assert "\n".join(window.text() for window in found).splitlines() == [
        "2s to 3s: kill b2",
        "  no pair is cut off: all 12 pairs of 4 live brokers communicate",
        "3s to 7s: kill b2, freeze b3",
        "  4 of 6 pairs (source, subscriber) of 3 live brokers are cut off while it lasts",
        "  islands: b4,b5 | b1",
        "  from b1 to b4,b5",
        "  from b4,b5 to b1",
        "7s to 8s: kill b2",
        "  no pair is cut off: all 12 pairs of 4 live brokers communicate",
        "9s to 10s: absorb b4->b5",
        "  4 of 20 pairs (source, subscriber) of 5 live brokers are cut off while it lasts",
        "  islands: b1,b2,b3,b4 | b5",
        "  from b1,b2,b3,b4 to b5",
    ]


def test_a_preview_names_cut_off_brokers_and_changes_nothing(call: Call) -> None:
    answer = call("inject", "--preview", "kill", "b1", "--topology", "demo")
    assert answer.status == 0
    assert "0s to the end: kill b1" in answer.out
    assert "no pair is cut off: all 72 pairs of 9 live brokers communicate" in answer.out
    relayed = call("inject", "--preview", "cut", "b3-s3", "--for", "5s", "--topology", "demo")
    assert "no pair is cut off: all 90 pairs" in relayed.out  # p1 relays for the two
    lost = call("inject", "--preview", "absorb", "b3-s3", "--for", "5s", "--topology", "demo", "-j")
    (window,) = lost.document["windows"]
    assert ["p1", "s3"] in window["cut_off"]
    assert window["begin_ns"] == 0
    assert window["end_ns"] == 5_000_000_000
    assert ["s3"] in window["islands"]


def test_a_partition_and_a_lost_machine_are_previewed_as_well(call: Call) -> None:
    for_5_s = ("--for", "5s", "--topology", "chain3")
    answer = call("inject", "--preview", "partition", "c1|c3", *for_5_s)
    assert "no pair is cut off" in answer.out  # c2 hands on between them
    lost = call("inject", "--preview", "host-loss", "t1", *for_5_s)
    assert lost.status == 0, lost.err
    assert "0s to 5s: host-loss t1" in lost.out
    assert "all 0 pairs of 1 live brokers" in lost.out
    alone = call("inject", "--preview", "partition", "c2", *for_5_s)
    assert "islands: c1,c3 | c2" in alone.out
