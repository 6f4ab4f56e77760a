"""Stories about `doctor`: findings and advice."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brokerd.agent.host.private_files import operator_lock
from brokerd.agent.host.server import HostSide
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS
from tests.pubsubctl.conftest import Call

FAST = "python,packages,cores,memory,load,disk,state,temporary,clock,limits,loopback,inventory"


def test_each_finding_has_an_id_a_severity_and_a_remedy_where_one_is_needed(call: Call) -> None:
    answer = call("doctor", "--only", f"{FAST},ports,sockets,leftovers,lock,faults", "-j")
    findings = answer.document["findings"]
    assert {row["severity"] for row in findings} <= {"ok", "warn", "fail"}
    assert {row["id"] for row in findings} >= set(FAST.split(","))
    for row in findings:
        assert bool(row["remedy"]) == (row["severity"] != "ok")
    assert answer.status == (4 if any(row["severity"] == "fail" for row in findings) else 0)


def test_a_port_in_use_is_named_with_its_pid(call: Call, project: Path) -> None:
    inventory = project / "inventories" / "local.toml"
    own = f"{OWN_PORTS[0]}-{OWN_PORTS[-1]}"
    inventory.write_text(inventory.read_text().replace("23500-23599", own))
    with socket.create_server(("127.0.0.1", OWN_PORTS[0])):
        answer = call("doctor", "--only", "ports")
    assert answer.status == 4
    assert f"t1: port {OWN_PORTS[0]} is in use by pid {os.getpid()}" in answer.out
    assert "→ end it, or use other ports" in answer.out
    assert call("doctor", "--only", "ports").status == 0


def test_a_bad_inventory_is_a_finding_and_no_obstacle(call: Call, project: Path) -> None:
    with (project / "inventories" / "local.toml").open("a") as file:
        file.write('colour = "red"\n')
    answer = call("doctor", "--only", "inventory,python")
    assert answer.status == 4
    assert "hosts[0].vars.colour: unknown key" in answer.out
    assert "python" in answer.out


def test_another_operator_is_seen(call: Call, tmp_path: Path) -> None:
    with operator_lock(tmp_path / "state" / "pubsubctl" / "test" / "t2", "bench x"):
        answer = call("doctor", "--only", "lock")
    assert answer.status == 0
    assert "t1: no other operator" in answer.out
    assert "for `bench x`" in answer.out


def test_a_killed_deployment_is_found(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def observe(self: HostSide) -> dict[str, Any]:
        rows = [{"broker": name, "host": self.name} for name in ("b1", "b2")]
        return {
            "agent": "d1",
            "processes": {"b1": "running"},
            "strays": [],
            "files": False,
            "deployment": {"placement": {"brokers": rows}},
        }

    monkeypatch.setattr(HostSide, "observe", observe)
    for host in ("t1", "t2"):
        lock = operator_lock(tmp_path / "state" / "pubsubctl" / "test" / host, "deploy x", "me")
        lock.__enter__()
        del lock
    answer = call("doctor", "--only", "lock,leftovers")
    assert answer.status == 0
    assert "leftovers  t1, t2: deployment d1 runs, 1 process, without b2" in answer.out
    assert "lock       t1, t2: `deploy x` of me, begun 2" in answer.out
    assert "was interrupted" in answer.out
    assert "repeat the command, or `pubsubctl down`" in answer.out


def test_a_socket_path_that_the_kernel_would_refuse_is_found_beforehand(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    answer = call("doctor", "--only", "sockets")
    assert answer.status == 4
    assert "the kernel takes 107" in answer.out


def test_files_of_an_earlier_deployment_are_found_and_down_removes_them(
    call: Call, tmp_path: Path
) -> None:
    left = tmp_path / "state" / "pubsubctl" / "test" / "t1" / "run"
    left.mkdir(parents=True)
    assert "files of an earlier deployment" in call("doctor", "--only", "leftovers").out
    assert call("down", "--verify").status == 0
    assert not left.exists()
    assert "files of an earlier" not in call("doctor", "--only", "leftovers").out


def test_a_process_of_an_earlier_deployment_is_found_and_down_ends_it(
    call: Call, tmp_path: Path
) -> None:
    root = tmp_path / "state" / "pubsubctl" / "test" / "t2"
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    mark = ["bench.run.machine", "agent", "--root"]
    with (
        subprocess.Popen([*command, *mark, str(root)], stdout=subprocess.PIPE) as stray,
        subprocess.Popen([*command, *mark, f"{root}x"], stdout=subprocess.PIPE) as stranger,
    ):
        for process in (stray, stranger):
            assert process.stdout is not None
            process.stdout.readline()
        answer = call("doctor", "--only", "leftovers")
        assert answer.status == 4
        assert f"pid {stray.pid} (" in answer.out
        assert str(stranger.pid) not in answer.out
        refused = call("deploy", "chain3")
        assert refused.status == 4
        assert f"pid {stray.pid} (" in refused.err

        assert call("down", "--verify").status == 0
        assert stray.wait(PATIENCE_S) != 0
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize("verb", ["status", "down"])
def test_commands_without_a_deployment_have_nothing_to_do(call: Call, verb: str) -> None:
    answer = call(verb)
    assert answer.status == 0
    assert "nothing" in answer.out


def test_doctor_examines_everything_although_state_cannot_be_written(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/nonexistent")

    monkeypatch.setattr("pubsubctl.doctor.host_facts.remember_facts", refuse)
    answer = call("doctor")
    assert answer.status in (0, 4)
    assert "python" in answer.out
    assert "Permission denied" not in answer.err
