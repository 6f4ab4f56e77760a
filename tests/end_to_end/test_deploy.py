"""Stories about a deployment on this machine: created once, inspected, repaired and removed."""

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import LONGEST_COMMAND_S, METRICS, Lab, wait_until
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS
from tests.helpers.small_disk import fill_disk, mounted_disk

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
RING = """\
schema = "pubsubctl/topology/2"
name = "ring"
kind = "hierarchy"
brokers = ["c1", "c2", "c3"]
[hierarchy]
links = [["c1", "c2"], ["c2", "c3"], ["c1", "c3"]]
addresses = { c1 = "0.0", c2 = "1.0", c3 = "1.1" }
"""
FREEZE = """\
schema = "pubsubctl/faults/1"
name = "freeze"
[guard]
lease = "300s"
[[step]]
id = "freeze-c2"
at = "0s"
do = "freeze"
on = "c2"
for = "300s"
"""
"""A freeze that lasts until a command heals it, on a machine of any speed."""


def test_a_deployment_is_made_once_looked_at_and_leaves_nothing(lab: Lab) -> None:
    first = lab.call("deploy", "chain3", "--json")
    assert first.status == 0, first.err
    assert first.document["changed"] is True
    assert len(lab.processes()) >= 3

    second = lab.call("deploy", "chain3", "-j")
    assert second.status == 0, second.err
    assert second.document["changed"] is False
    assert second.document["deployment_id"] == first.document["deployment_id"]
    third = lab.call("deploy", "chain3", "--expect-noop")
    assert (third.status, third.out) == (0, "nothing to do\n")

    status = lab.call("status", "-j")
    assert status.status == 0, status.err
    brokers = {row["broker"]: row for row in status.document["brokers"]}
    assert sorted(brokers) == ["c1", "c2", "c3"]
    assert {row["state"] for row in brokers.values()} == {"running"}
    assert {*brokers["c1"]["ready"]} >= {*brokers["c1"]["wanted"]}  # and perhaps a bypass
    assert "c2" in brokers["c1"]["ready"]
    text = lab.call("status").out
    assert "chain3, delta_tree" in text
    assert str(brokers["c3"]["pid"]) in text

    logs = lab.call("logs", "c2")
    assert logs.status == 0, logs.err

    for host, port in METRICS.items():
        lines = {
            f'pubsubctl_{name}{{host="{host}",process="{broker}",role="broker"}} {number}\n': (
                row["host"] == host
            )
            for broker, row in brokers.items()
            for name, number in (("process_up", 1), ("broker_subscriptions", 0))
        }
        # A broker of a busy machine may answer its agent too late for one request.
        wait_until(f"the numbers of {host}", partial(_tells, port, lines))

    down = lab.call("down", "--verify")
    assert down.status == 0, down.err
    assert "verified" in down.out
    assert lab.left_behind() == []
    again = lab.call("down", "--verify", "--purge")
    assert (again.status, "nothing was running" in again.out) == (0, True)


@pytest.mark.sampled
def test_another_protocol_or_topology_is_refused_while_one_runs(lab: Lab) -> None:
    assert lab.call("deploy", "chain3", "--protocol", "best_effort").status == 0
    other = lab.call("deploy", "chain3")
    assert other.status == 4
    assert "protocol is best_effort, wanted is delta_tree" in other.err
    assert "`pubsubctl down` first" in other.err
    assert lab.call("deploy", "chain3", "--protocol", "best_effort", "--expect-noop").status == 0


def test_a_broker_that_was_killed_is_started_again_by_the_next_deploy(lab: Lab) -> None:
    assert lab.call("deploy", "chain3").status == 0
    rows = {row["broker"]: row for row in lab.call("status", "-j").document["brokers"]}
    os.kill(rows["c2"]["pid"], signal.SIGKILL)
    wait_until("c2 is seen to have ended", lambda: _state(lab, "c2") == "exited")
    assert lab.call("deploy", "chain3", "--expect-noop").status == 4

    assert lab.call("deploy", "chain3").status == 0
    again = {row["broker"]: row for row in lab.call("status", "-j").document["brokers"]}
    assert {name: row["pid"] == rows[name]["pid"] for name, row in again.items()} == {
        "c1": True,
        "c2": False,
        "c3": True,
    }


@pytest.mark.sampled
def test_brokers_join_and_leave_a_running_deployment_under_load(lab: Lab) -> None:
    tree = lab.folder / "project" / "tree.toml"
    tree.write_text((ROOT / "bench" / "topologies" / "chain3.toml").read_text())
    assert lab.call("deploy", "tree.toml").status == 0
    before = {row["broker"]: row["pid"] for row in lab.call("status", "-j").document["brokers"]}
    assert lab.call("topology", "join", "tree.toml", "n1", "--at", "c3").status == 0
    joined = lab.call("deploy", "tree.toml")
    assert joined.status == 0, joined.err
    after = {row["broker"]: row for row in lab.call("status", "-j").document["brokers"]}
    assert {name: after[name]["pid"] for name in before} == before
    assert after["n1"]["state"] == "running"
    assert {"c2", "n1"} <= {*after["c3"]["ready"]}
    assert lab.call("deploy", "tree.toml", "--expect-noop").status == 0

    over = lab.folder / "project" / lab.workload("chain3")
    workload = over.read_text().replace('topology = "chain3"', 'topology = "tree.toml"')
    workload = workload.replace('at = "c3"', 'at = "n1"').replace('"5s"', '"1s"')
    over.write_text(workload)
    bench = lab.call("bench", over.name, "--no-check", "-j")
    assert bench.status == 0, bench.err
    assert bench.document["delivered"] > 0
    assert bench.document["online"]["missing"] == 0
    manifest = json.loads((Path(bench.document["run_directory"]) / "manifest.json").read_text())
    assert manifest["joined"] == ["n1"], "else nobody could excuse what is withheld from there"

    assert lab.call("topology", "leave", "tree.toml", "n1").status == 0
    left = lab.call("deploy", "tree.toml")
    assert left.status == 0, left.err
    names = [row["broker"] for row in lab.call("status", "-j").document["brokers"]]
    assert names == ["c1", "c2", "c3"]
    down = lab.call("down", "--verify")
    assert down.status == 0, down.err
    assert lab.left_behind() == []


@pytest.mark.sampled
def test_one_address_is_not_assigned_to_two_brokers_by_two_topology_files(lab: Lab) -> None:
    """The second file lacks the first joined broker, and no broker receives the second file."""
    ring, copy = (lab.folder / "project" / name for name in ("ring.toml", "copy.toml"))
    ring.write_text(RING)
    copy.write_text(RING)
    assert lab.call("deploy", "ring.toml", "--protocol", "ges").status == 0
    for name, newcomer in (("ring.toml", "n1"), ("copy.toml", "n2")):
        place = "--at", "c3", "--address", "1.2"
        assert lab.call("topology", "join", name, newcomer, *place).status == 0
    joined = lab.call("deploy", "ring.toml", "--protocol", "ges")
    assert joined.status == 0, joined.err
    refused = lab.call("deploy", "copy.toml", "--protocol", "ges")
    assert refused.status == 4
    assert "topology is ring, n1 joined, wanted is ring, n2 joined" in refused.err
    names = [row["broker"] for row in lab.call("status", "-j").document["brokers"]]
    assert names == ["c1", "c2", "c3", "n1"]
    third = lab.call("topology", "join", "ring.toml", "n3", "--at", "c3", "--address", "1.2")
    assert (third.status, third.err) == (2, "error: ring.toml: n3 = '1.2': n1 has it\n")


@pytest.mark.sampled
def test_an_unsupported_topology_change_is_refused_before_any_effect(
    lab: Lab,
) -> None:
    tree = lab.folder / "project" / "tree.toml"
    tree.write_text((ROOT / "bench" / "topologies" / "chain3.toml").read_text())
    deploy = ("deploy", "tree.toml", "--protocol", "best_effort")
    assert lab.call(*deploy).status == 0
    records = sorted(lab.state.glob("*/deployment.json"))
    before = [path.read_text() for path in records]
    assert before
    for verb, broker, more in (("join", "n1", ("--at", "c3")), ("leave", "c3", ())):
        content = tree.read_text()
        assert lab.call("topology", verb, "tree.toml", broker, *more).status == 0
        refused = lab.call(*deploy)
        assert refused.status == 4
        assert f"{broker} would {verb}: with best_effort" in refused.err
        assert [path.read_text() for path in records] == before
        tree.write_text(content)
    assert lab.call(*deploy, "--expect-noop").status == 0


@pytest.mark.sampled
def test_a_full_disk_is_named_and_a_broker_that_was_killed_waits_for_room(lab: Lab) -> None:
    with mounted_disk(lab.folder / "disk", 6) as disk:
        inventory = lab.folder / "project" / "inventories" / "local.toml"
        text = inventory.read_text().replace('"e[1:2]"', '"e1"')
        inventory.write_text(f'{text}data_dir = "{disk}"\n')
        assert lab.call("deploy", "chain3").status == 0
        filler = fill_disk(disk)
        full = f"host e1: 0 bytes free in {disk}: brokers there wait until there is room"

        status = lab.call("status")
        assert (status.status, status.out.splitlines()[-1]) == (0, full)
        for command in (("bench", "chain3", "--no-check"), ("deploy", "chain3")):
            refused = lab.call(*command)
            assert refused.status == 4
            assert full in refused.err
        doctor = lab.call("doctor", "--only", "disk")
        assert doctor.status == 4
        assert f"0.0 GiB free for durable files of e1 ({disk})" in doctor.out

        rows = {row["broker"]: row for row in lab.call("status", "-j").document["brokers"]}
        os.kill(rows["c2"]["pid"], signal.SIGKILL)
        wait_until("c2 is seen to have ended", lambda: _state(lab, "c2") == "exited")
        restart = lab.start("inject", "restart", "c2")
        wait_until("c2 waits for room", lambda: _state(lab, "c2") == "no room on its disk")
        filler.unlink()
        _out, err = restart.communicate(timeout=LONGEST_COMMAND_S)
        assert restart.returncode == 0, err
        wait_until("c2 runs", lambda: _state(lab, "c2") == "running")
        assert lab.call("deploy", "chain3", "--expect-noop").status == 0
        assert lab.call("down", "--verify").status == 0


@pytest.mark.sampled
def test_heal_and_deploy_replace_a_killed_agent_and_its_brokers_live_on(lab: Lab) -> None:
    assert lab.call("deploy", "chain3").status == 0
    before = {row["broker"]: row for row in lab.call("status", "-j").document["brokers"]}
    host = before["c2"]["host"]
    (lab.folder / "project" / "freeze.toml").write_text(FREEZE)
    process = lab.start("inject", "freeze.toml")
    wait_until("c2 is frozen", lambda: lab.call("status", "-j").document["faults"])
    _kill_agent(lab, host)
    process.kill()
    process.communicate()
    healed = lab.call("heal", "--verify")
    assert healed.status == 0, healed.err
    assert f"started an agent on {host}" in healed.out
    assert "freeze-c2" in healed.out
    assert "verified: no fault is left on" in healed.out
    assert psutil.Process(before["c2"]["pid"]).status() != psutil.STATUS_STOPPED

    _kill_agent(lab, host)
    assert lab.call("status").status == 5
    assert f"would start an agent on {host}" in lab.call("heal", "--dry-run").out
    assert lab.call("deploy", "chain3").status == 0
    after = {row["broker"]: row for row in lab.call("status", "-j").document["brokers"]}
    assert {name: row["pid"] for name, row in after.items()} == {
        name: row["pid"] for name, row in before.items()
    }
    assert lab.call("down", "--verify").status == 0
    assert lab.left_behind() == []


@pytest.mark.sampled
def test_a_port_in_use_is_found_before_anything_is_started(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", OWN_PORTS[0])):
        answer = lab.call("deploy", "chain3")
    assert answer.status == 4
    assert f"port {OWN_PORTS[0]} is in use by pid {os.getpid()}" in answer.err
    assert "broker c1 needs it" in answer.err
    assert lab.left_behind() == []
    assert lab.call("deploy", "chain3").status == 0


@pytest.mark.sampled
def test_a_stale_process_of_an_earlier_deployment_is_named_and_left_to_down(lab: Lab) -> None:
    assert lab.call("deploy", "chain3").status == 0
    for host in ("e1", "e2"):  # as if somebody had cleaned up by hand
        (lab.state / host / "deployment.json").unlink()
        announced = (lab.state / host / "agent" / "agent.json").read_text()
        os.kill(int(announced.split('"pid": ')[1].split(",")[0]), signal.SIGKILL)
    answer = lab.call("deploy", "chain3")
    assert answer.status == 4
    assert "of an earlier deployment still runs" in answer.err
    assert f"port {OWN_PORTS[0]}" in answer.err
    assert any(f"pid {process.pid} (" in answer.err for process in lab.processes())

    assert lab.call("down", "--verify").status == 0
    assert lab.left_behind() == []


def test_ctrl_c_during_deploy_leaves_nothing(lab: Lab) -> None:
    process = lab.start("deploy", "demo")
    wait_until("something has been started", lambda: bool(lab.processes()))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (0, 130)  # 0 when it was done before the signal came
    if process.returncode == 130:
        assert "stopping in order" in err
        assert lab.left_behind() == []
    assert lab.call("deploy", "demo").status == 0


def test_a_second_operator_is_refused_by_name(lab: Lab) -> None:
    from brokerd.agent.host.private_files import operator_lock

    with operator_lock(lab.state / "e1", "bench demo"):
        for arguments in (["deploy", "chain3"], ["down"]):
            answer = lab.call(*arguments)
            assert answer.status == 4
            assert "for `bench demo`" in answer.err
    assert lab.processes() == []


def _tells(port: int, lines: Mapping[str, bool]) -> bool:
    """Return true if exactly the expected lines are in the metrics of an agent."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        told = answer.read().decode()
    return all((line in told) == is_there for line, is_there in lines.items())


def _kill_agent(lab: Lab, host: str) -> None:
    announced = json.loads((lab.state / host / "agent" / "agent.json").read_text())
    agent = psutil.Process(announced["pid"])
    agent.kill()
    psutil.wait_procs([agent], timeout=PATIENCE_S)


def _state(lab: Lab, broker: str) -> str:
    rows = lab.call("status", "-j").document["brokers"]
    return str(next(row["state"] for row in rows if row["broker"] == broker))
