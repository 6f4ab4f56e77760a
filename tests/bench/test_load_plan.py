"""Tests of the plan of a load: the process of each client, and the settings of each client."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.load.load_files import LoadSetting
from bench.load.load_plan import RunningLoad, load_processes
from bench.run.system_under_test import OurBrokers
from bench.spec.spec import ExperimentSpec, load_experiment
from brokerd.units import SECOND_NS

WORKLOAD = """
schema = "pubsubctl/workload/1"
name = "two"
topology = "chain3"
protocol = "best_effort"
[phases]
warmup = "1s"
measure = "2s"
[attributes]
sets = 20
symbol = {{ choose = 4 }}
[load]
publisher_processes = {publisher_processes}
subscriber_processes = {subscriber_processes}
[[publishers]]
at = "c1"
count = 5
rate = "10/s"
[[publishers]]
at = "c3"
rate = [{{ for = "500ms", at = "100/s" }}, {{ for = "500ms", at = "20/s" }}]
[[subscribers]]
at = ["c1", "c3"]
count = 3
filter = "symbol = 'SYMBOL001'"
failover = ["c2"]
"""
PLACES = {name: SimpleNamespace(address=f"{name}:1") for name in ("c1", "c2", "c3")}


def made_up_testbed() -> Any:
    return SimpleNamespace(
        clients_host="h1", brokers=PLACES, deployment_id="d1", topology_digest="t1",
        run_folder=lambda host, run_id, name: Path("/", host, run_id, name),
        client_socket=lambda name: Path("/", f"{name}.sock"),
    )  # fmt: skip


def read(tmp_path: Path, **counts: int) -> ExperimentSpec:
    path = tmp_path / "work.toml"
    path.write_text(WORKLOAD.format(**counts), encoding="utf-8")
    return load_experiment(path)


@pytest.mark.parametrize("publishing, subscribing", [(1, 1), (3, 2), (2, 4)])
def test_each_client_belongs_to_one_process_and_neighbours_to_different_ones(
    tmp_path: Path, publishing: int, subscribing: int
) -> None:
    counts = {"publisher_processes": publishing, "subscriber_processes": subscribing}
    spec, bed = read(tmp_path, **counts), made_up_testbed()
    load = load_processes(spec, bed, "20300101T000000Z-abcdef", OurBrokers())
    names = [
        *([f"load-pub-{n + 1}" for n in range(publishing)] if publishing > 1 else ["load-pub"]),
        *([f"load-sub-{n + 1}" for n in range(subscribing)] if subscribing > 1 else ["load-sub"]),
    ]
    assert [process.name for process in load] == names
    assert [process.role for process in load] == (
        publishing * ["publisher"] + subscribing * ["subscriber"]
    )
    running = RunningLoad(bed, load)
    plans = [*spec.publisher_plans(), *spec.subscriber_plans()]
    assert {*running.processes} == {plan.name for plan in plans}
    publishers = [running.processes[plan.name] for plan in spec.publisher_plans()]
    assert publishers == [names[place % publishing] for place in range(6)]
    subscribers = [running.processes[plan.name] for plan in spec.subscriber_plans()]
    assert subscribers == [names[publishing + place % subscribing] for place in range(6)]
    assert running.addresses == {"c1": "c1:1", "c2": "c2:1", "c3": "c3:1"}
    for process in load:
        told = LoadSetting.from_mapping(process.config)
        assert (told.process, told.run_id) == (process.name, "20300101T000000Z-abcdef")
        assert told.brokers == ("c1", "c2", "c3")
        assert told.log_folder == Path("/h1/20300101T000000Z-abcdef", process.name)
        own = (*told.publishers, *told.subscribers)
        assert [each.name for each in own] == [
            plan.name for plan in plans if running.processes[plan.name] == process.name
        ]
        for client in own:
            assert client.client == f"{client.name}.abcdef"
            assert client.address == f"{client.broker}:1"
            assert client.failover == (("c2:1",) if client in told.subscribers else ())
        for publisher in told.publishers:
            steps = [] if publisher.broker == "c1" else [SECOND_NS, *4 * [SECOND_NS // 2]]
            assert [length_ns for length_ns, *_ in publisher.shape] == steps
