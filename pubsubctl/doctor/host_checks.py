"""Checks of `doctor` on each host of an inventory, with remedies for the findings.

Pure: facts about a host result in findings. Checks that an ssh host shares with this machine have
the same id.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from brokerd.runtime.control_socket import MAXIMUM_PATH_BYTES
from brokerd.runtime.program import read_own_program
from brokerd.text import counted, format_number
from brokerd.units import format_duration, format_size
from pubsubctl.deployment.certificates import warn_of_expiry
from pubsubctl.deployment.placement import cores_of
from pubsubctl.deployment.plan import ObservedState
from pubsubctl.doctor.host_facts import HostFacts
from pubsubctl.errors import PubsubctlError
from pubsubctl.hosts.ssh.errors import ConnectionFailed, HostKeyRefused

Severity = Literal["ok", "warn", "fail"]
Row = tuple[Severity, str, str]

LONGEST_SOCKET_NAME = "brokers-load-generator-0.sock"
OLDEST_PYTHON = [3, 11]
DESCRIPTORS_WANTED = 1024
FREE_BYTES_WANTED = 1 << 30
MEMORY_BYTES_WANTED = 1 << 30
SLOW_FSYNC_NS = 20_000_000
SLOW_RTT_NS = 5_000_000
CLOCK_STEADY = ("tsc", "kvm-clock", "arch_sys_counter", "xen", "hyperv_clocksource_tsc_page")


def _reach(look: HostFacts) -> Iterator[Row]:
    if look.host.connector == "local":
        return
    way = f"{look.host.user or 'you'}@{look.host.address}:{look.host.port}"
    way += f" through {', '.join(look.host.jump)}" if look.host.jump else ""
    if look.problem is None:
        yield "ok", f"answers as {look.probe['user']} ({way})", ""
    elif not isinstance(look.problem, HostKeyRefused):
        yield "fail", *_explain(look.problem, "pubsubctl help ssh")


def _host_key(look: HostFacts) -> Iterator[Row]:
    if look.host.connector == "local":
        return
    if isinstance(look.problem, HostKeyRefused):
        yield "fail", *_explain(look.problem, f"pubsubctl inventory trust {look.host.name}")
    elif look.problem is None:
        yield "ok", "its host key, and those of gateways on the route, are in known_hosts", ""


def _python(look: HostFacts) -> Iterator[Row]:
    version = ".".join(map(str, look.probe["python"]))
    text = f"Python {version} at {look.probe['executable']}"
    if look.probe["python"] < OLDEST_PYTHON:
        yield "fail", f"{text}; 3.11 or newer is needed", 'python = "python3.11" in the inventory'
    elif not look.probe["has_venv"]:
        yield "fail", f"{text} has no venv module", "Debian: apt-get install python3-venv"
    else:
        yield "ok", text, ""


def _root(look: HostFacts) -> Iterator[Row]:
    folder = look.probe["folder"]
    if not look.probe["folder_writable"]:
        yield "fail", f"{folder} cannot be written", "another root in the inventory"
    elif look.probe["folder_noexec"]:
        yield "fail", f"{folder} is mounted noexec, Python cannot run from it", "another root"
    else:
        yield "ok", f"{folder} can be written", ""


def _disk(look: HostFacts) -> Iterator[Row]:
    free = look.probe["disk_free_bytes"]
    if free is None:
        text = f"data_dir {look.probe['data_folder']} is no folder there"
        yield "fail", text, "make it, or another data_dir in the inventory"
        return
    text = f"{free / 2**30:.1f} GiB free in {look.probe['data_folder']}"
    if free < FREE_BYTES_WANTED:
        yield "fail", text, "free 1 GiB, or another root in the inventory"
    else:
        yield "ok", text, ""


def _fsync(look: HostFacts) -> Iterator[Row]:
    took = look.probe["fsync_ns"]
    if not took:
        return
    median, worst = took[len(took) // 2], took[-1]
    most = format_number(worst / 1e6, 2)
    text = f"fsync takes {format_number(median / 1e6, 2)} ms, at most {most} ms of {len(took)}"
    if median > SLOW_FSYNC_NS:
        yield "warn", text, "persistence waits for it; a faster disk, or data_dir on one"
    else:
        yield "ok", text, ""


def _cores(look: HostFacts) -> Iterator[Row]:
    cores, quota = look.probe["cores"], look.probe["cpu_quota"]
    given = cores_of(look.host, look.probe)
    usable = [core for core in given if core not in look.host.cores_reserved]
    text = counted(len(cores), "core") + (f", limited to {quota:g} by a cgroup" if quota else "")
    text += f", {len(cores) - len(usable)} reserved" if len(usable) < len(cores) else ""
    if not given:
        remedy = f"its nodes are {', '.join(look.probe.get('numa_nodes') or {}) or 'unknown'}"
        yield "fail", f"{text}: none is on numa = {look.host.numa!r}", remedy
    elif not usable:
        yield "fail", f"{text}: none is left for brokers", "fewer cores_reserved"
    elif quota and quota < len(usable):
        yield "warn", text, "brokers with a core of their own will not have all of it"
    else:
        yield "ok", text, ""


def _governor(look: HostFacts) -> Iterator[Row]:
    governor = look.probe["governor"]
    if governor not in (None, "performance"):
        text = f"CPU governor is {governor}"
        yield "warn", text, "cpupower frequency-set -g performance, for steady latencies"
    elif governor:
        yield "ok", f"CPU governor is {governor}", ""


def _memory(look: HostFacts) -> Iterator[Row]:
    available = look.probe["memory_available_bytes"]
    if available is None:
        return
    text = f"{available / 2**30:.1f} GiB of memory available"
    if each := look.host.mem_per_broker_bytes:
        text += f", room for {counted(available // each, 'broker')} of {format_size(each)}"
    if each and not available // each:
        yield "fail", text, "less mem_per_broker, or a larger machine"
    elif available < MEMORY_BYTES_WANTED:
        yield "warn", text, "ten brokers need 1 GiB; close other programs, or use fewer brokers"
    else:
        yield "ok", text, ""


def _load(look: HostFacts) -> Iterator[Row]:
    load, cores = look.probe["load_1min"], len(look.probe["cores"])
    text = f"load average {load:.1f} on {counted(cores, 'core')}"
    if load > cores / 2:
        yield "warn", text, "latencies will be noisy; wait, or use another host"
    else:
        yield "ok", text, ""


def _limits(look: HostFacts) -> Iterator[Row]:
    soft, hard = look.probe["descriptors"], look.probe["descriptors_hard"]
    text = f"ulimit -n is {soft} (at most {hard})"
    if soft < DESCRIPTORS_WANTED:
        yield "warn", text, "raise nofile in /etc/security/limits.conf"
    else:
        yield "ok", text, ""


def _clock(look: HostFacts) -> Iterator[Row]:
    source = look.probe["clocksource"]
    text = f"clocksource {source}, resolution {look.probe['clock_resolution_ns']:g} ns"
    if source is not None and source not in CLOCK_STEADY:
        yield "warn", text, "reading the time is slow or coarse there; tsc is better"
    else:
        yield "ok", text, ""


def _ports(look: HostFacts) -> Iterator[Row]:
    ports = look.host.ports
    text = f"ports {ports.start}-{ports.stop - 1}"
    ours = look.observed is not None and look.observed.deployment is not None
    taken = [str(row) for row in look.ports]
    if not taken:  # where nothing of ours is installed, the probe has tried
        taken = [f"port {port} is in use" for port in look.probe.get("ports_taken", [])]
    if taken and not ours:
        for row in taken:
            yield "fail", row, "end it, or use other ports"
    else:
        yield "ok", text + (", some used by the deployment" if taken else " are free"), ""
    span = look.probe.get("ephemeral_ports")
    if span and ports.start <= span[1] and span[0] < ports.stop:
        text = f"ports overlap with the ephemeral range of the kernel ({span[0]}-{span[1]})"
        yield "warn", text, "take ports below or above that range"


def _address(look: HostFacts) -> Iterator[Row]:
    if look.host.connector == "local":
        return
    if not look.host.bench_address:
        text = f"{look.host.address} is a name: the address that brokers listen on is unknown"
        yield "fail", text, "give it a bench_address, an IP"
    elif look.probe["address_problem"]:
        text = f"{look.host.bench_address}: {look.probe['address_problem']}"
        yield "fail", text, "bench_address is an address of that very machine"
    else:
        yield "ok", f"brokers can listen on {look.host.bench_address}", ""


def _buffers(look: HostFacts) -> Iterator[Row]:
    receive, send = look.probe["receive_buffer_bytes"], look.probe["send_buffer_bytes"]
    if receive and send:
        most = (receive[-1] + send[-1]) / 2**20
        yield "ok", f"TCP buffers of a link hold up to {most:.1f} MiB of what `freeze` stops", ""


def _sockets(look: HostFacts) -> Iterator[Row]:
    if look.socket_folder is None:
        return
    length = len(os.fsencode(look.socket_folder / LONGEST_SOCKET_NAME))
    text = f"sockets have paths of up to {length} bytes"
    if length > MAXIMUM_PATH_BYTES:
        yield "fail", f"{text}; the kernel takes {MAXIMUM_PATH_BYTES}", "unset XDG_RUNTIME_DIR"
    else:
        yield "ok", text, ""


def _leftovers(look: HostFacts) -> Iterator[Row]:
    found = look.observed
    if found is None:
        if look.observing_problem:
            yield "fail", look.observing_problem, "pubsubctl down"
    elif found.strays:
        strays = ", ".join(map(str, found.strays))
        yield "fail", f"{strays} of an earlier deployment still runs", "pubsubctl down"
    elif found.agent is not None:
        text = f"deployment {found.agent} runs, {counted(len(_running(found)), 'process')}"
        stopped = [name for name in _placed(found) if name not in _running(found)]
        if stopped and not look.holder:  # a command at work may start or stop them
            remedy = "`pubsubctl status` shows the cause; `pubsubctl deploy` starts them again"
            yield "warn", f"{text}, without {', '.join(stopped)}", remedy
        else:
            yield "ok", text, ""
    elif found.files:
        yield "warn", "files of an earlier deployment are there", "pubsubctl down"
    else:
        yield "ok", "nothing is left of earlier deployments", ""


def _running(found: ObservedState) -> list[str]:
    return [name for name, state in (found.processes or {}).items() if state == "running"]


def _has_remains(found: ObservedState) -> bool:
    return bool(found.agent or found.strays or found.files)


def _placed(found: ObservedState) -> list[str]:
    """Return the brokers that the record of a deployment places on the host."""
    rows = (found.deployment or {}).get("placement", {}).get("brokers", [])
    return [row["broker"] for row in rows if row["host"] == found.host]


def _programs(look: HostFacts) -> Iterator[Row]:
    """Check that agents and brokers run the program that operates the agents and brokers."""
    if look.differing is None:
        if look.observed is not None:
            yield "ok", "no agent or broker runs", ""
        return
    for note in look.differing:
        program, _, remedy = note.rpartition("; ")
        yield "warn", program.removeprefix(f"host {look.host.name}: "), remedy
    if not look.differing:
        yield "ok", f"its agent and brokers run {read_own_program()}", ""


def _lock(look: HostFacts) -> Iterator[Row]:
    if look.observed is None:
        return
    if look.holder:
        yield "warn", f"locked by {look.holder}", "wait for its end, or contact the holder"
    elif look.interrupted and _has_remains(look.observed):
        remedy = "`pubsubctl status` shows what runs; repeat the command, or `pubsubctl down`"
        yield "warn", f"{look.interrupted}, was interrupted", remedy
    elif look.interrupted:
        yield "ok", f"{look.interrupted}, was interrupted, and nothing of it is left", ""
    else:
        yield "ok", "no other operator", ""


def _certificates(look: HostFacts) -> Iterator[Row]:
    ends = look.certificates_end
    if not ends:
        return
    if soon := warn_of_expiry(ends):
        severity: Severity = "fail" if min(ends.values()) <= datetime.now(UTC) else "warn"
        yield severity, soon, "pubsubctl certificate renew"
    else:
        first = min(ends.values())
        yield "ok", f"certificates of brokers are good until {first:%Y-%m-%d %H:%M} UTC", ""


def _faults(look: HostFacts) -> Iterator[Row]:
    needs = {"nft": look.probe["nft"], "ip": look.probe["ip"]}
    missing = [name for name, path in needs.items() if not path]
    if missing or not look.probe["may_change_network"]:
        why = f"no {', '.join(missing)}" if missing else "no right to change the network"
        text = f"{why}: backend nft cannot be used, every verb works without it"
    else:
        text = "backend nft can be used, besides the brokers' own"
    yield "ok", text, ""


def _clock_sync(look: HostFacts) -> Iterator[Row]:
    stated = look.probe.get("clock_sync")
    if stated is None:
        return
    if not stated["synchronised"]:
        text = "nothing keeps its wall clock right"
        yield "warn", text, "start chronyd or systemd-timesyncd; logs and certificates need it"
    else:
        yield "ok", f"its wall clock is right within {stated['error_ns'] / 1e6:.1f} ms", ""


def _nic(look: HostFacts) -> Iterator[Row]:
    if look.host.connector == "local":
        return
    nics = {nic["name"]: nic for nic in look.probe.get("nics", [])}
    wanted = look.host.bench_nic
    if wanted and wanted not in nics:
        yield "fail", f"it has no interface {wanted}", f"bench_nic is one of {', '.join(nics)}"
        return
    nic = nics[wanted] if wanted else _nic_of(look)
    if nic is None:
        return
    address = look.host.bench_address
    text = f"{nic['name']} ({nic['address']}), MTU {nic['mtu']}"
    text += f", {nic['speed_mbps'] / 1000:g} Gbit/s" if nic["speed_mbps"] else ""
    if wanted and ":" not in address and nic["address"] != address:
        yield "fail", f"{text} does not have {address}", "bench_address is the one of bench_nic"
    elif nic["state"] == "down":
        yield "fail", f"{text} is down", f"ip link set {nic['name']} up"
    else:
        yield "ok", f"data uses {text}", ""


def _nic_of(look: HostFacts) -> dict[str, Any] | None:
    """Return the interface for brokers' connections, if it can be determined."""
    found = [
        nic
        for nic in look.probe.get("nics", [])
        if nic["name"] == look.host.bench_nic
        or (not look.host.bench_nic and nic["address"] == look.host.bench_address)
    ]
    return found[0] if found else None


def _rtt(look: HostFacts) -> Iterator[Row]:
    peers = look.probe.get("peers") or {}
    times = [row["rtt_ns"] for row in peers.values() if "rtt_ns" in row]
    for peer, row in peers.items():
        if "rtt_ns" not in row:
            text = f"{peer} cannot be reached from it: {row.get('problem')}"
            yield "fail", text, "open the brokers' ports between hosts, or another bench_address"
    if times:
        text = f"round trips to {counted(len(times), 'host')} take {min(times) / 1e6:.2f}"
        text += f"-{max(times) / 1e6:.2f} ms"
        if max(times) > SLOW_RTT_NS:
            yield "warn", text, "latencies will show it; another bench_nic?"
        else:
            yield "ok", text, ""


def _mtu(look: HostFacts) -> Iterator[Row]:
    peers = look.probe.get("peers") or {}
    found = {row["mtu_bytes"] for row in peers.values() if row.get("mtu_bytes")}
    nic = _nic_of(look)
    if nic is not None and nic["mtu"]:
        found.add(nic["mtu"])
    if len(found) > 1:
        text = f"MTU differs by way: {', '.join(map(str, sorted(found)))} bytes"
        yield "warn", text, "set the same value on all interfaces and switches of the data network"
    elif found:
        yield "ok", f"packets of {found.pop()} bytes to all others", ""


def _expect(look: HostFacts) -> Iterator[Row]:
    """Check the inventory's [expect]: the required properties of the lab."""
    expect, probe = look.expect, look.probe
    remedy = "mend the host, or [expect] of the inventory"
    met: list[str] = []
    broken: list[str] = []

    def judge(holds: bool, text: str) -> None:
        (met if holds else broken).append(text)

    if expect.cores_min is not None:
        count = len(probe["cores"])
        judge(count >= expect.cores_min, f"{count} cores of {expect.cores_min}")
    if expect.kernel is not None:
        release = str(probe.get("kernel"))
        judge(kernel_fits(release, expect.kernel), f"kernel {release}, {expect.kernel}")
    if expect.governor is not None:
        governor = probe["governor"]
        judge(governor == expect.governor, f"governor {governor}, {expect.governor}")
    if expect.link_gbps_min is not None:
        nic = _nic_of(look)
        speed = (nic or {}).get("speed_mbps")
        is_there = speed is not None and speed >= expect.link_gbps_min * 1000
        speed_text = f"{speed / 1000:g}" if speed is not None else "unknown"
        judge(is_there, f"link of {speed_text} Gbit/s, {expect.link_gbps_min:g}")
    if expect.clock_error_max is not None:
        stated = probe.get("clock_sync") or {"synchronised": False, "error_ns": 0}
        fits = stated["synchronised"] and stated["error_ns"] <= expect.clock_error_max
        speed_text = f"{stated['error_ns'] / 1e6:.1f} ms" if stated["synchronised"] else "unknown"
        judge(fits, f"clock error {speed_text}, {format_duration(expect.clock_error_max)}")
    for text in broken:
        yield "fail", f"not as expected: {text} wanted", remedy
    if met and not broken:
        yield "ok", f"as expected: {'; '.join(met)} wanted", ""


def kernel_fits(release: str, wanted: str) -> bool:
    """Return True if a kernel has a release, or (">=5.15") at least that release."""
    found = [int(part) for part in re.findall(r"\d+", release.partition("-")[0])]
    numbers = [int(part) for part in wanted.removeprefix(">=").split(".")]
    return found >= numbers if wanted.startswith(">=") else found[: len(numbers)] == numbers


Check = Callable[[HostFacts], Iterator[Row]]

# These checks also apply to hosts of this machine; the other checks run once per machine.
FOR_ALL: dict[str, Check] = {
    "fsync": _fsync,
    "buffers": _buffers,
    "ports": _ports,
    "sockets": _sockets,
    "leftovers": _leftovers,
    "program": _programs,
    "lock": _lock,
    "certificates": _certificates,
    "expect": _expect,
}
HOST_CHECKS: dict[str, Check] = {
    "reach": _reach,
    "host-key": _host_key,
    "python": _python,
    "cores": _cores,
    "governor": _governor,
    "memory": _memory,
    "load": _load,
    "disk": _disk,
    "root": _root,
    "clock": _clock,
    "clock-sync": _clock_sync,
    "nic": _nic,
    "rtt": _rtt,
    "mtu": _mtu,
    "limits": _limits,
    "address": _address,
    **FOR_ALL,
    "faults": _faults,
}
# Checks that need no facts about the host.
_WITHOUT_PROBE = ("reach", "host-key")


def check_host(look: HostFacts, name: str) -> Iterator[Row]:
    """Yield the findings of a check on a host, each beginning with the host's name."""
    if look.host.connector == "local" and name not in FOR_ALL:
        return
    if not look.probe and name not in _WITHOUT_PROBE:
        return
    for severity, text, remedy in HOST_CHECKS[name](look):
        yield severity, f"{look.host.name}: {text}", remedy


def check_together(looks: Sequence[HostFacts]) -> Iterator[tuple[str, Row]]:
    """Yield findings that concern several hosts: (id of the check, finding)."""
    machines: dict[str, list[HostFacts]] = {}
    for look in looks:
        if look.host.connector == "ssh" and look.probe.get("boot_id"):
            machines.setdefault(look.probe["boot_id"], []).append(look)
    for same in machines.values():
        names = ", ".join(look.host.name for look in same)
        if len(same) > 1:
            text = f"{names} are one machine: they share cores, disk and fate"
            yield (
                "machines",
                ("warn", text, "no measure of machines; give them the same failure_domain"),
            )
    versions: dict[tuple[Any, ...], list[str]] = {}
    for look in looks:
        if look.host.connector == "ssh" and look.probe:
            key = (tuple(look.probe["python"][:2]), look.probe["machine"])
            versions.setdefault(key, []).append(look.host.name)
    if len(versions) > 1:
        each = "; ".join(
            f"{'.'.join(map(str, version))} on {machine}: {', '.join(names)}"
            for (version, machine), names in versions.items()
        )
        yield "alike", ("warn", f"Python differs: {each}", "one of them for all, if you compare")
    elif versions:
        yield "alike", ("ok", "hosts have the same Python and architecture", "")


def _explain(problem: PubsubctlError, remedy: str) -> tuple[str, str]:
    """Return the problem and the remedy."""
    if isinstance(problem, ConnectionFailed):
        return problem.reason, problem.remedy or remedy
    return "; ".join(problem.problems), remedy
