"""Tests of brokers' state, which is proportional to live objects, not to past events."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.protocols.delta_tree.checks.steps import KEPT
from brokerd.protocols.delta_tree.home_subscriptions import WithholdingWindows
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.partition_tags import Notifiers
from brokerd.protocols.durable.checks import SIMULATED as DURABLE
from brokerd.protocols.durable.filtering_subsystem import FilterLog
from brokerd.protocols.gryphon.checks import SIMULATED as GRYPHON
from brokerd.protocols.parts.clients.progress import WRITE_INTERVAL_NS
from brokerd.simulator.checks.growth import LiveState, check_growth, sizes_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import SECOND_NS
from tests.helpers.cluster import STEADY, chain

FEW, MANY = 6, 18


def _restart_in_the_middle(cluster: SimulatedCluster, number: int) -> None:
    cluster.broker("b3").kill()
    cluster.run_for(2)
    cluster.broker("b3").start()
    cluster.run_until_quiet()
    cluster.publish("b1", n=1)


def _come_and_go(cluster: SimulatedCluster, number: int) -> None:
    """Attach a client with two subscriptions, end one of them, and detach the client."""
    name = f"t{number}-b3"
    cluster.subscribe("b3", client=name)
    cluster.subscribe("b3", "n = 1", client=name)
    cluster.run_until_quiet()
    cluster.publish("b1", n=1)
    cluster.run_until_quiet()
    cluster.unsubscribe(name, 1)
    cluster.run_until_quiet()
    cluster.population.detach(name)


def _open_a_gate(cluster: SimulatedCluster, number: int) -> None:
    """Send a notifier of b5's return from b4; then restart b4."""
    name = f"u{number}-b1"
    cluster.broker("b5").kill()
    cluster.run_for(2)
    cluster.subscribe("b1", client=name)
    cluster.run_for(1)
    cluster.broker("b5").start()
    cluster.run_until_quiet()
    cluster.publish("b5", n=1)
    cluster.run_until_quiet()
    cluster.population.detach(name)
    cluster.broker("b4").restart()


def _cut_a_link(cluster: SimulatedCluster, number: int) -> None:
    cluster.link("b2", "b3").cut()
    cluster.run_for(2)
    cluster.link("b2", "b3").heal()
    cluster.run_for(3)


def _vanish(cluster: SimulatedCluster, number: int) -> None:
    """Let a client disappear without a message, and expire."""
    name = f"w{number}-b2"
    cluster.subscribe("b2", client=name)
    cluster.run_until_quiet()
    cluster.clients[name].leave()
    cluster.oracle.on_unsubscribed(name, 1)
    cluster.run_for(3)


Cycle = Callable[[SimulatedCluster, int], None]
CYCLES: list[Cycle] = [_restart_in_the_middle, _come_and_go, _open_a_gate, _cut_a_link, _vanish]


def _kept(cluster: SimulatedCluster) -> dict[str, int]:
    """Return sizes by broker and name, in memory and on disk."""
    kept: dict[str, int] = {}
    for broker in cluster.brokers:
        for name, size in sizes_of(broker.core).items():
            kept[f"{broker.name} {name}"] = size
        for table, rows in broker.on_disk().items():
            kept[f"{broker.name} {table}"] = len(rows)
            kept[f"{broker.name} {table} in characters"] = len(repr(list(rows.values()))) // 100
    return kept


def _more_after_many(cycle: Cycle) -> dict[str, tuple[int, int]]:
    """Return the sizes that are greater after MANY cycles than after FEW."""
    cluster = SimulatedCluster(
        chain("b1", "b2", "b3", "b4", "b5"),
        network=STEADY,
        parameters=DeltaTreeParameters(delta=1, client_linger_ns=SECOND_NS),
    ).start()
    for home in ("b1", "b3", "b5"):
        cluster.subscribe(home)
        cluster.publish(home, n=1)
    cluster.run_until_quiet()
    few: dict[str, int] = {}
    for number in range(MANY):
        cycle(cluster, number)
        cluster.run_until_quiet()
        if number + 1 == FEW:
            cluster.run_for(WRITE_INTERVAL_NS / SECOND_NS)
            few = _kept(cluster)
    cluster.oracle.judge_end()
    cluster.run_for(WRITE_INTERVAL_NS / SECOND_NS)
    many = _kept(cluster)
    return {name: (few.get(name, 0), many[name]) for name in many if many[name] > few[name] + 2}


@pytest.mark.parametrize("cycle", CYCLES)
def test_three_times_as_many_leave_no_more(cycle: Cycle) -> None:
    assert _more_after_many(cycle) == {}


def test_a_number_kept_of_each_client_that_ever_was_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WithholdingWindows, "forget", lambda self, client: None)
    assert set(_more_after_many(_come_and_go)) == {"b3 WithholdingWindows._outlets"}


def test_a_number_kept_of_each_restart_of_a_neighbour_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Notifiers, "_forget_earlier", lambda self, source: None)
    assert "b1 Notifiers._received" in _more_after_many(_open_a_gate)


def test_a_seed_ends_only_if_nothing_waits_and_nothing_has_grown() -> None:
    cluster = SimulatedCluster(chain("b1", "b2"), network=STEADY).start()
    cluster.subscribe("b1")
    cluster.run_until_quiet()
    (b1, _), alive = cluster.brokers, LiveState(2, 1, 1, 1)
    check_growth(b1, alive, KEPT)
    b1.protocol._state._when_durable[99] = lambda: None
    with pytest.raises(InvariantViolated, match=r"b1 keeps 1 in State._when_durable"):
        check_growth(b1, alive, KEPT)
    b1.protocol._state._when_durable.clear()
    b1.protocol._state._checked_paths.update(dict.fromkeys([(n,) for n in range(500)]))
    with pytest.raises(InvariantViolated, match=r"b1 keeps 50\d in State._checked_paths"):
        check_growth(b1, alive, KEPT)


def test_a_row_of_positions_grows_with_the_streams_and_only_with_these() -> None:
    """Four brokers have sixteen pubends each, and an older copy restored a subscription."""
    alive = LiveState(4, 15, 2, 11, 17)
    streams = [[broker, pubend, 0, 1] for broker in range(4) for pubend in range(16)]
    disk = {"restarted": {"s1-b3/1": streams}}
    broker: Any = SimpleNamespace(name="b3", core=None, on_disk=lambda: disk)
    check_growth(broker, alive, GRYPHON.kept)
    disk["restarted"]["s1-b3/1"] = [*streams, *streams]
    with pytest.raises(InvariantViolated, match="b3 keeps 512 in a row of restarted"):
        check_growth(broker, alive, GRYPHON.kept)


def test_logs_of_matches_grow_with_subscriptions_and_streams_together() -> None:
    """A loss marker in each stream matches all subscriptions."""
    alive = LiveState(brokers=5, subscriptions=8, sources=4, clients=12, streams=17)
    broker: Any = SimpleNamespace(name="b1", core=[], on_disk=dict)

    def match_all(subscriptions: int) -> None:
        broker.core = [FilterLog(f"matches.{stream}") for stream in range(80)]
        for log in broker.core:
            log.write([7], range(1, subscriptions + 1))
        check_growth(broker, alive, DURABLE.kept)

    match_all(8)
    with pytest.raises(InvariantViolated, match="b1 keeps 1360 in FilterLog"):
        match_all(17)
