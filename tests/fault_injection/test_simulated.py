"""Stories about fault schedules on a simulated cluster: minutes of trouble in a moment."""

import tomllib
from pathlib import Path

import pytest

from bench.run.simulated_run import simulate_experiment
from bench.spec.spec import load_experiment
from bench.spec.validation import SpecError
from brokerd.overlay.topology import Topology
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import SECOND_NS
from fault_injection.apply.injector import Injection
from fault_injection.apply.log import FaultLog
from fault_injection.schedule.schedule import FOLDER, ScheduleError, load_schedule, read_schedule
from tests.fault_injection.test_schedule import HEAD, TOPOLOGY, step
from tests.helpers.gryphon_stories import cells
from tests.helpers.simulated_faults import play_schedule


def cluster_of(topology: Topology, protocol: str, seed: int) -> SimulatedCluster:
    print(f"seed {seed}")  # noqa: T201
    cluster = SimulatedCluster(topology, protocol, seed=seed, strict=protocol == "delta_tree")
    return cluster.start()


def publish_steadily(cluster: SimulatedCluster, broker: str, count: int, every_ns: int) -> None:
    """Publish at a fixed rate, regardless of other events."""

    def publish(number: int) -> None:
        cluster.publish(broker, n=number)

    for number in range(count):
        when_ns = cluster.schedule.now_ns + number * every_ns
        cluster.schedule.at(when_ns, publish, number)


def states_of(injection: Injection) -> dict[str, str]:
    return {row["step"]: row["state"] for row in injection.rows}


@pytest.mark.parametrize("seed", range(3))
def test_the_demo_loses_nothing_on_the_delta_tree(seed: int) -> None:
    cluster = cluster_of(TOPOLOGY, "delta_tree", seed)
    subscriptions = [cluster.subscribe(broker) for broker in ("s1", "s2", "s3", "b4")]
    cluster.run_until_quiet()
    publish_steadily(cluster, "p1", 600, SECOND_NS // 10)
    log = FaultLog()
    injection = play_schedule(cluster, load_schedule("demo"), log, seed=seed)
    assert injection.problems == ()
    assert states_of(injection) == {
        "absorb-b1": "healed",
        "kill-b1": "recovered",
        "restart-b1": "recovered",
        "cut-b3-s3": "recovered",
    }
    cluster.run_for(30)
    cluster.run_until_quiet()
    for subscription in subscriptions:
        assert len(subscription.received) == 600
    cluster.oracle.judge_end()


def test_the_demo_loses_absorbed_publications_with_best_effort() -> None:
    cluster = cluster_of(TOPOLOGY, "best_effort", 1)
    through_b1, around_b1 = cluster.subscribe("s1"), cluster.subscribe("s3")
    cluster.run_until_quiet()
    publish_steadily(cluster, "p1", 600, SECOND_NS // 10)
    schedule = load_schedule("gd02-b1-crash")
    injection = play_schedule(cluster, schedule, FaultLog())
    assert injection.problems == ()
    cluster.run_for(30)
    cluster.run_until_quiet()
    assert len(around_b1.received) == 600
    assert len(through_b1.received) < 600, "else nothing was ever at risk"


@pytest.mark.parametrize(
    "verb,target",
    [
        ("freeze", "b1"),
        ("absorb", "b1"),
        ("absorb", "b1-s1"),
        ("send-omission", "b1"),
        ("blackhole", "b1-s1"),
        ("blackhole", "p1->b1"),
        ("blackhole", "b1"),
        ("cut", "p1-b1"),
        ("cut", "b1"),
    ],
)
def test_each_fault_takes_effect_and_is_healed_afterwards(verb: str, target: str) -> None:
    cluster = cluster_of(TOPOLOGY, "delta_tree", 5)
    subscription = cluster.subscribe("s1")
    cluster.run_until_quiet()
    publish_steadily(cluster, "p1", 100, SECOND_NS // 10)
    text = step(id="f", at="1s", do=verb, on=target, for_="3s")
    schedule = read_schedule(tomllib.loads(HEAD + text), "story.toml")
    injection = play_schedule(cluster, schedule, FaultLog())
    assert injection.problems == ()
    assert states_of(injection) == {"f": "recovered"}
    cluster.run_for(15)
    cluster.run_until_quiet()
    assert len(subscription.received) == 100


def test_a_stalled_link_loses_its_held_messages_at_a_cut() -> None:
    """Best effort shows the effect: absorbed messages are lost, and none is released."""
    cluster = cluster_of(TOPOLOGY, "best_effort", 3)
    behind, beside = cluster.subscribe("s1"), cluster.subscribe("s2")
    cluster.run_until_quiet()
    publish_steadily(cluster, "p1", 300, SECOND_NS // 10)
    injection = play_schedule(cluster, load_schedule("gd02-b1s1-link"), FaultLog())
    assert injection.problems == ()
    absorb, cut = injection.rows
    assert absorb["t_healed_ns"] == cut["t_applied_ns"]
    cluster.run_for(10)
    cluster.run_until_quiet()
    assert len(beside.received) == 300
    assert len(behind.received) < 300


def test_a_crashed_source_delivers_publications_logged_during_a_send_omission() -> None:
    """The log keeps the publications: all arrive after the restart, unlike with absorb."""
    cluster = cluster_of(cells("p1-b1", "b1-s1"), "gryphon", 1)
    subscription = cluster.subscribe("s1")
    cluster.run_until_quiet()
    publish_steadily(cluster, "p1", 600, SECOND_NS // 10)
    injection = play_schedule(cluster, load_schedule("gd02-p1-crash"), FaultLog())
    assert injection.problems == ()
    held, kill, _ = injection.rows
    assert (held["verb"], held["t_healed_ns"]) == ("send-omission", kill["t_applied_ns"])
    cluster.run_for(60)
    cluster.run_until_quiet()
    assert len(subscription.received) == 600


def test_the_same_seed_produces_the_same_log() -> None:
    """Log lines without an order in the story may be swapped."""

    def lines(seed: int) -> list[tuple[int, str, str]]:
        cluster = cluster_of(TOPOLOGY, "delta_tree", seed)
        cluster.subscribe("s1")
        cluster.run_until_quiet()
        publish_steadily(cluster, "p1", 100, SECOND_NS // 10)
        log = FaultLog()
        play_schedule(cluster, load_schedule("demo"), log, seed=seed)
        return sorted((line["t_ns"], line["step"], line["stage"]) for line in log.lines)

    assert lines(4) == lines(4)
    assert lines(4) != lines(5)


def test_a_fault_that_cannot_be_simulated_is_refused_by_name() -> None:
    cluster = cluster_of(TOPOLOGY, "delta_tree", 0)
    text = step(id="t", at="1s", do="term", on="b1")
    schedule = read_schedule(tomllib.loads(HEAD + text), "story.toml")
    injection = play_schedule(cluster, schedule, FaultLog())
    assert injection.problems == ("t: t: simulated brokers know no orderly end",)


@pytest.mark.parametrize(
    "keys",
    [
        {"do": "delay", "on": "b1-s1", "latency": "1s"},
        {"do": "partition", "on": "b1|b3"},
        {"do": "disk-full", "on": "b1"},
    ],
)
def test_verbs_of_real_processes_are_refused_by_both_simulations(keys: dict[str, str]) -> None:
    text = step(id="x", at="1s", for_="1s", **keys)
    schedule = read_schedule(tomllib.loads(HEAD + text), "story.toml")
    cluster = cluster_of(TOPOLOGY, "delta_tree", 0)
    injection = play_schedule(cluster, schedule, FaultLog())
    assert injection.problems == (f"x: x: {keys['do']} needs real processes",)
    spec = load_experiment(Path(FOLDER).parent / "bench" / "workloads" / "demo.toml")
    with pytest.raises(ScheduleError, match="needs real processes; simulated are absorb"):
        simulate_experiment(spec, schedule)


def test_a_workload_with_client_failover_cannot_be_simulated() -> None:
    spec = load_experiment(Path(FOLDER).parent / "bench" / "workloads" / "t22-anywhere.toml")
    with pytest.raises(SpecError, match="failover: simulated clients stay at their brokers"):
        simulate_experiment(spec, None)


@pytest.mark.parametrize(
    "verb, on, said",
    [
        ("cut", "b1", "simulated is cut on a link or direction, not on brokers"),
        ("blackhole", "b1", "simulated is blackhole on a link or direction, not on brokers"),
        ("absorb", "b1->s1", "simulated is absorb on a broker or link, not on directions"),
    ],
)
def test_targets_beyond_the_simulator_are_refused(verb: str, on: str, said: str) -> None:
    text = step(id="x", at="1s", do=verb, on=on, for_="1s")
    schedule = read_schedule(tomllib.loads(HEAD + text), "story.toml")
    spec = load_experiment(Path(FOLDER).parent / "bench" / "workloads" / "demo.toml")
    with pytest.raises(ScheduleError, match=said):
        simulate_experiment(spec, schedule)
