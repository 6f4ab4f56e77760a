"""Stories about the host checks of `doctor`, on correct and on faulty hosts."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from brokerd.agent.host import probe as host_probe
from pubsubctl.deployment.placement import cores_of
from pubsubctl.deployment.plan import ObservedState, Stray
from pubsubctl.doctor.host_checks import (
    FOR_ALL,
    HOST_CHECKS,
    check_host,
    check_together,
    kernel_fits,
)
from pubsubctl.doctor.host_facts import HostFacts
from pubsubctl.errors import HostError
from pubsubctl.hosts.connectors.base import PortInUse
from pubsubctl.hosts.ssh.errors import LoginRefused, UnknownHostKey
from pubsubctl.inventory.inventory import Host, load_inventory
from pubsubctl.inventory.inventory_schema import Expect
from tests.pubsubctl.conftest import Call

INVENTORY = """\
schema = "pubsubctl/inventory/1"
name = "lab"
[[hosts]]
name = "n[1:2]"
address = "10.0.0.[1:2]"
[hosts.vars]
user = "bench"
jump = "gw"
cores_reserved = [0]
ports = "21000-21999"
bench_nic = "eno2"
mem_per_broker = "500MiB"
[expect]
cores_min = 4
kernel = ">=5.15"
governor = "performance"
link_gbps_min = 10
clock_error_max = "5ms"
[gateways.gw]
address = "gw.lab.example"
[[hosts]]
name = "n3"
address = "n3.lab.example"
[[hosts]]
name = "here"
connector = "local"
"""
WELL: dict[str, Any] = {
    "user": "bench",
    "boot_id": "b1",
    "machine": "x86_64",
    "python": [3, 12, 1],
    "executable": "/usr/bin/python3",
    "has_venv": True,
    "cores": [0, 1, 2, 3],
    "cpu_quota": None,
    "governor": "performance",
    "load_1min": 0.3,
    "memory_available_bytes": 8 << 30,
    "folder": "/home/bench",
    "data_folder": "/home/bench",
    "folder_writable": True,
    "folder_noexec": False,
    "disk_free_bytes": 50 << 30,
    "fsync_ns": [1_000_000] * 20,
    "descriptors": 4096,
    "descriptors_hard": 65536,
    "ephemeral_ports": [32768, 60999],
    "receive_buffer_bytes": [4096, 131072, 6 << 20],
    "send_buffer_bytes": [4096, 16384, 4 << 20],
    "ports_taken": [],
    "address_problem": None,
    "clocksource": "tsc",
    "clock_resolution_ns": 1.0,
    "kernel": "6.1.0-9-amd64",
    "core_threads": ["0,2", "1,3"],
    "numa_nodes": {"0": "0,2", "1": "1,3"},
    "clock_sync": {"synchronised": True, "error_ns": 900_000},
    "nics": [
        {"name": "eno1", "address": "10.9.0.1", "mtu": 1500, "speed_mbps": 1000, "state": "up"},
        {"name": "eno2", "address": "10.0.0.1", "mtu": 9000, "speed_mbps": 25000, "state": "up"},
    ],
    "peers": {"10.0.0.2": {"rtt_ns": 120_000, "mtu_bytes": 9000}},
    "nft": "/usr/sbin/nft",
    "ip": "/usr/sbin/ip",
    "may_change_network": True,
}
NIC = WELL["nics"][1]
UNKEPT = {"synchronised": False, "error_ns": 16_000_000_000}
NOW = datetime.now(UTC)
DEPLOYMENT = {"placement": {"brokers": [{"broker": each, "host": "n1"} for each in ("b1", "b2")]}}
EXPECT = Expect(
    cores_min=4,
    kernel=">=5.15",
    governor="performance",
    link_gbps_min=10.0,
    clock_error_max=5_000_000,
)
RUNNING = {"deployment_id": "d1"}


@pytest.fixture
def hosts(tmp_path: Path) -> dict[str, Host]:
    (tmp_path / "lab.toml").write_text(INVENTORY)
    return {host.name: host for host in load_inventory(tmp_path / "lab.toml").hosts}


def looked(host: Host, changed: Mapping[str, Any] | None = None, **seen: Any) -> HostFacts:
    look = HostFacts(host, {**WELL, **(changed or {})}, observed=ObservedState(host.name))
    look.expect = EXPECT
    look.certificates_end = {"b1": NOW + timedelta(days=29)}
    look.socket_folder = Path("/run/user/1000/pubsubctl-1000-0123456789")
    return replace(look, **seen)


def test_a_host_that_is_well_is_well_in_every_check(hosts: dict[str, Host]) -> None:
    for name in HOST_CHECKS:
        rows = list(check_host(looked(hosts["n1"]), name))
        assert [(severity, remedy) for severity, _, remedy in rows] == [("ok", "")], name
        assert rows[0][1].startswith("n1: ")


@pytest.mark.parametrize(
    "check, changed, severity, said",
    [
        ("python", {"python": [3, 9, 2]}, "fail", "3.9.2 at /usr/bin/python3; 3.11 or newer"),
        ("python", {"has_venv": False}, "fail", "has no venv module"),
        ("cores", {"cpu_quota": 1.5}, "warn", "limited to 1.5 by a cgroup"),
        ("cores", {"cores": [0]}, "fail", "none is left for brokers"),
        ("governor", {"governor": "powersave"}, "warn", "governor is powersave"),
        ("memory", {"memory_available_bytes": 1 << 29}, "warn", "0.5 GiB of memory"),
        ("load", {"load_1min": 9.5}, "warn", "load average 9.5 on 4 cores"),
        ("disk", {"disk_free_bytes": 1 << 28}, "fail", "0.2 GiB free in /home/bench"),
        ("disk", {"disk_free_bytes": None}, "fail", "data_dir /home/bench is no folder"),
        ("root", {"folder_writable": False}, "fail", "/home/bench cannot be written"),
        ("root", {"folder_noexec": True}, "fail", "mounted noexec"),
        ("clock", {"clocksource": "hpet"}, "warn", "clocksource hpet"),
        ("limits", {"descriptors": 256}, "warn", "ulimit -n is 256 (at most 65536)"),
        ("address", {"address_problem": "Cannot assign"}, "fail", "10.0.0.1: Cannot assign"),
        ("memory", {"memory_available_bytes": 400 << 20}, "fail", "room for 0 brokers of 500MiB"),
        ("clock-sync", {"clock_sync": UNKEPT}, "warn", "nothing keeps its wall clock right"),
        ("nic", {"nics": WELL["nics"][:1]}, "fail", "no interface eno2"),
        ("nic", {"nics": [{**NIC, "address": "10.7.7.7"}]}, "fail", "does not have 10.0.0.1"),
        ("nic", {"nics": [{**NIC, "state": "down"}]}, "fail", "is down"),
        ("rtt", {"peers": {"10.0.0.2": {"problem": "timed out"}}}, "fail", "10.0.0.2 cannot be"),
        ("rtt", {"peers": {"10.0.0.2": {"rtt_ns": 9_000_000}}}, "warn", "9.00 ms"),
        ("mtu", {"peers": {"10.0.0.2": {"rtt_ns": 1, "mtu_bytes": 1500}}}, "warn", "1500, 9000"),
        ("expect", {"cores": [0, 1]}, "fail", "2 cores of 4 wanted"),
        ("expect", {"kernel": "5.10.0-8"}, "fail", "kernel 5.10.0-8, >=5.15 wanted"),
        ("expect", {"governor": "powersave"}, "fail", "governor powersave, performance"),
        ("expect", {"nics": [{**NIC, "speed_mbps": 1000}]}, "fail", "1 Gbit/s, 10 wanted"),
        ("expect", {"clock_sync": UNKEPT}, "fail", "clock error unknown, 5ms wanted"),
        ("fsync", {"fsync_ns": [30_000_000] * 20}, "warn", "fsync takes 30 ms"),
        ("ports", {"ports_taken": [21003]}, "fail", "port 21003 is in use"),
        ("ports", {"ephemeral_ports": [21500, 60999]}, "warn", "(21500-60999)"),
    ],
)
def test_problems_of_a_machine_are_reported_with_a_remedy(
    hosts: dict[str, Host], check: str, changed: dict[str, Any], severity: str, said: str
) -> None:
    rows = list(check_host(looked(hosts["n1"], changed), check))
    (bad,) = [row for row in rows if row[0] != "ok"]
    assert bad[0] == severity
    assert said in bad[1]
    assert bad[2]


@pytest.mark.parametrize(
    "check, seen, severity, said",
    [
        ("ports", {"ports": [PortInUse(21001, 7, "nginx")]}, "fail", "21001 is in use by pid 7"),
        ("sockets", {"socket_folder": Path("/x" * 50)}, "fail", "the kernel takes 107"),
        (
            "leftovers",
            {"observed": ObservedState("n1", strays=(Stray(9, "b1"),))},
            "fail",
            "pid 9 (b1)",
        ),
        ("leftovers", {"observed": ObservedState("n1", files=True)}, "warn", "files of an earlier"),
        (
            "leftovers",
            {"observed": ObservedState("n1", "d1", {"b1": "running"}, DEPLOYMENT)},
            "warn",
            "deployment d1 runs, 1 process, without b2",
        ),
        ("leftovers", {"observed": None, "observing_problem": "torn"}, "fail", "n1: torn"),
        (
            "certificates",
            {"certificates_end": {"b1": NOW + timedelta(days=3), "b2": NOW + timedelta(days=29)}},
            "warn",
            "of b1 ends soon",
        ),
        ("certificates", {"certificates_end": {"b1": NOW}}, "fail", "of b1 has ended"),
        ("lock", {"holder": "eve@lab since 9:00 for `bench x`"}, "warn", "for `bench x`"),
        (
            "lock",
            {"interrupted": "`bench x` of eve@lab", "observed": ObservedState("n1", files=True)},
            "warn",
            "`bench x` of eve@lab, was interrupted",
        ),
        (
            "reach",
            {"probe": {}, "problem": LoginRefused("n1", "no key is taken", "ssh-add")},
            "fail",
            "no key is taken",
        ),
        ("reach", {"probe": {}, "problem": HostError("no python")}, "fail", "no python"),
        (
            "host-key",
            {"probe": {}, "problem": UnknownHostKey("n1", "shows SHA256:x", "trust it", "x")},
            "fail",
            "SHA256:x",
        ),
    ],
)
def test_problems_of_a_deployment_or_connection_are_reported_with_a_remedy(
    hosts: dict[str, Host], check: str, seen: dict[str, Any], severity: str, said: str
) -> None:
    ((found, text, remedy),) = check_host(looked(hosts["n1"], **seen), check)
    assert found == severity
    assert said in text
    assert remedy


@pytest.mark.parametrize(
    "check, seen, said",
    [
        (
            "leftovers",
            {
                "observed": ObservedState("n1", "d1", {"b1": "running"}, DEPLOYMENT),
                "holder": "eve@lab since 9:00 for `deploy`",
            },
            "deployment d1 runs, 1 process",
        ),
        (
            "leftovers",
            {"observed": ObservedState("n1", "d1", {"b1": "running", "b2": "running"}, DEPLOYMENT)},
            "deployment d1 runs, 2 processes",
        ),
        (
            "lock",
            {"interrupted": "`bench x` of eve@lab", "observed": ObservedState("n1")},
            "`bench x` of eve@lab, was interrupted, and nothing of it is left",
        ),
    ],
)
def test_a_command_at_work_or_without_remains_needs_no_remedy(
    hosts: dict[str, Host], check: str, seen: dict[str, Any], said: str
) -> None:
    assert list(check_host(looked(hosts["n1"], **seen), check)) == [("ok", f"n1: {said}", "")]


def test_expectations_are_read_from_the_inventory(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(INVENTORY)
    assert load_inventory(tmp_path / "lab.toml").expect == EXPECT


@pytest.mark.parametrize(
    "release, wanted, fits",
    [
        ("5.15.0-91-generic", ">=5.15", True),
        ("6.1.0", ">=5.15", True),
        ("5.4.0", ">=5.15", False),
        ("6.1.55-1", "6.1", True),
        ("6.10.2", "6.1", False),
    ],
)
def test_kernels_are_compared_by_number(release: str, wanted: str, fits: bool) -> None:
    assert kernel_fits(release, wanted) is fits


@pytest.mark.parametrize(
    "smt, numa, cores",
    [
        ("allow", "", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("avoid", "", [0, 1, 2, 3]),
        ("allow", "fill", [0, 2, 4, 6, 1, 3, 5, 7]),
        ("avoid", "fill", [0, 2, 1, 3]),
        ("avoid", "interleave", [0, 1, 2, 3]),
        ("allow", "pin:1", [1, 3, 5, 7]),
        ("allow", "pin:9", []),
    ],
)
def test_cores_are_assigned_by_the_settings_of_the_inventory(
    hosts: dict[str, Host], smt: Any, numa: str, cores: list[int]
) -> None:
    machine = {
        "cores": [*range(8)],
        "core_threads": ["0,4", "1,5", "2,6", "3,7"],
        "numa_nodes": {"0": "0,2,4,6", "1": "1,3,5,7"},
    }
    assert cores_of(replace(hosts["n1"], smt=smt, numa=numa), machine) == cores
    unknown = {"cores": [*range(8)], "core_threads": "torn", "numa_nodes": None}
    if not numa.startswith("pin"):
        assert cores_of(replace(hosts["n1"], smt=smt, numa=numa), unknown) == [*range(8)]


def test_a_deployment_may_use_its_own_ports(hosts: dict[str, Host]) -> None:
    ours = ObservedState(
        "n1", agent="d1", processes={"b1": "running"}, deployment=RUNNING, files=True
    )
    look = looked(hosts["n1"], observed=ours, ports=[PortInUse(21000, 5, "b1")])
    assert [row[0] for row in check_host(look, "ports")] == ["ok"]
    assert list(check_host(look, "leftovers")) == [("ok", "n1: deployment d1 runs, 1 process", "")]


def test_an_unreachable_host_is_reported_by_one_finding(hosts: dict[str, Host]) -> None:
    look = HostFacts(hosts["n2"], problem=LoginRefused("n2", "no key is taken"))
    rows = [row for name in HOST_CHECKS for row in check_host(look, name)]
    assert [row[1] for row in rows] == ["n2: no key is taken"]


def test_a_host_with_only_a_name_needs_a_bench_address(hosts: dict[str, Host]) -> None:
    ((severity, text, remedy),) = check_host(looked(hosts["n3"]), "address")
    assert (severity, remedy) == ("fail", "give it a bench_address, an IP")
    assert "n3.lab.example is a name" in text


def test_a_local_host_is_examined_only_by_the_checks_for_all_hosts(hosts: dict[str, Host]) -> None:
    said = {name for name in HOST_CHECKS if list(check_host(looked(hosts["here"]), name))}
    assert said == set(FOR_ALL)


def test_hosts_that_are_one_machine_or_differ_are_seen_together(hosts: dict[str, Host]) -> None:
    n1, n2 = looked(hosts["n1"]), looked(hosts["n2"], {"python": [3, 11, 0]})
    found = dict(check_together([n1, n2]))
    assert found["machines"][0] == "warn"
    assert "n1, n2 are one machine" in found["machines"][1]
    assert "3.12 on x86_64: n1; 3.11 on x86_64: n2" in found["alike"][1]
    apart = dict(check_together([n1, looked(hosts["n2"], {"boot_id": "b2"})]))
    assert list(apart) == ["alike"]
    assert apart["alike"][0] == "ok"


def test_the_probe_runs_on_any_python_without_us_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-",
            str(tmp_path / "not" / "there"),
            "",
            "127.0.0.1",
            "23500",
            "23510",
        ],
        input=Path(host_probe.__file__).read_bytes(),
        capture_output=True,
        check=True,
        cwd="/",
    )
    found = json.loads(done.stdout)
    assert set(WELL) <= set(found)
    assert found["folder"] == str(tmp_path)
    assert len(found["fsync_ns"]) == host_probe.FSYNCS
    assert list(tmp_path.iterdir()) == []
    elsewhere = host_probe.probe(str(tmp_path), "", "192.0.2.1", 23500, 23500)
    assert elsewhere["address_problem"] == "Cannot assign requested address"


def test_facts_are_collected_once_and_again_with_refresh(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    probe = host_probe.probe

    def noted(root: str, *details: Any) -> dict[str, Any]:
        asked.append(Path(root).name)
        return {**probe(root, *details), "cpu_model": "Abacus"}

    monkeypatch.setattr(host_probe, "probe", noted)
    first = call("inventory", "facts")
    assert first.status == 0
    assert first.out.count("Abacus") == 2
    assert sorted(asked) == ["t1", "t2"]
    again = call("inventory", "facts", "-j")
    assert [row["name"] for row in again.document["hosts"]] == ["t1", "t2"]
    assert len(asked) == 2
    call("-l", "t2", "inventory", "facts", "--refresh")
    assert asked[2:] == ["t2"]


def test_doctor_reports_an_invalid_inventory_for_any_selection(call: Call, project: Path) -> None:
    (project / "inventories" / "local.toml").write_text("nonsense")
    answer = call("doctor", "--only", "ports,lock")
    assert answer.status == 4
    assert "not TOML" in answer.out
