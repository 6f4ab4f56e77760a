"""`doctor`: checks before a deployment, estimates for a workload, and the output.

Each check is a small function with an id, and changes nothing. This module checks this machine;
`host_checks` checks each host, under the same id if the check is the same. A finding has a remedy.
The estimates are time, disk and connections of a workload, before its start. In the output, similar
hosts share a line, and problems are never hidden.
"""

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from bench.spec.spec import ExperimentSpec
from bench.systems.boundary import WrongSettings
from bench.systems.configuration import NotInstalled, load_configuration
from brokerd.agent.host import probe as host_probe
from brokerd.history.records import ROW_BYTES
from brokerd.model.fault_verbs import CLIENT_VERBS, LINK_VERBS, VERBS
from brokerd.protocols.registry import protocol_on
from brokerd.runtime.admission_control import descriptors_for
from brokerd.text import counted, nearest
from brokerd.units import SECOND_NS
from pubsubctl.doctor.host_checks import FOR_ALL, HOST_CHECKS, Severity, check_host, check_together
from pubsubctl.doctor.host_facts import HostFacts, gather_host_facts
from pubsubctl.errors import PubsubctlError, UserError
from pubsubctl.inventory.inventory import Host, Inventory
from pubsubctl.inventory.inventory_model import format_ranges
from pubsubctl.project import Project, xdg_folder

FASTEST_PER_S = 200_000
"""The assumed rate of a publisher without a configured rate, per second."""
SPARE = 1.2
DESCRIPTORS_OF_A_PROCESS = 64
"""File descriptors of a load generator beyond its connections."""

Row = tuple[Literal["ok", "warn", "fail"], str, str]


def budget(spec: ExperimentSpec, free_bytes: int) -> Iterator[Row]:
    """Yield the duration of a run, and a failure if the records exceed `free_bytes`."""
    phases = spec.workload.phases
    measured_s = (phases.warmup + phases.measure) / SECOND_NS
    drain_s = phases.drain / SECOND_NS
    text = f"{spec.workload.name} takes {_time(measured_s)}, at most {_time(measured_s + drain_s)}"
    text += ", deployment and verdict"
    records = most_record_bytes(spec)
    text += f"; at most {records / 2**20:,.0f} MiB of records"
    if records > free_bytes:
        text += f", and {free_bytes / 2**20:,.0f} MiB are free for results"
        yield "fail", text, "a lower rate, a shorter measure phase, or PUBSUBCTL_RESULTS elsewhere"
    else:
        yield "ok", text, ""


def most_record_bytes(spec: ExperimentSpec) -> int:
    """Return the bytes of all records if every subscription matches everything."""
    seconds = (spec.workload.phases.warmup + spec.workload.phases.measure) / SECOND_NS
    per_second = sum(
        float(FASTEST_PER_S if plan.entry.rate.per_second is None else plan.entry.rate.per_second)
        for plan in spec.publisher_plans()
    )
    rows = 2 + len(spec.subscriber_plans())  # published, acknowledged, and each delivery
    return round(per_second * seconds * rows * ROW_BYTES)


def connections(spec: ExperimentSpec, descriptors: int) -> Iterator[Row]:
    """Check that the limit of open files suffices for brokers and load generators."""
    known = protocol_on(spec.topology, spec.protocol)
    clients = Counter(plan.broker for plan in spec.publisher_plans())
    clients.update(plan.broker for plan in spec.subscriber_plans())
    of_broker = {
        name: clients[name] + len(known.possible_peers(name)) for name in spec.topology.present()
    }
    busiest = max(of_broker, key=lambda name: of_broker[name])
    wanted = max(
        round(sum(clients.values()) * SPARE) + DESCRIPTORS_OF_A_PROCESS,
        descriptors_for(round(of_broker[busiest] * SPARE)),
    )
    text = f"{busiest} has up to {of_broker[busiest]} connections, load generators "
    text += f"{sum(clients.values())}; a process may have {descriptors} files open"
    if wanted > descriptors:
        yield "fail", text, f"ulimit -Hn {wanted}, or fewer clients"
    else:
        yield "ok", text, ""


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


DESCRIPTORS_WANTED = 1024
FREE_BYTES_WANTED = 1 << 30
MEMORY_BYTES_WANTED = 2 << 30


@dataclass(frozen=True)
class Finding:
    """A finding of a check.

    Attributes:
        id: the id of the check, as --only takes the id.
        severity: "fail" stops a deployment, "warn" may spoil a measurement.
        text: the observed state.
        remedy: the recommended action; "" if no action is needed.
        host: the only host concerned, with which `text` begins; "" for no single host.
    """

    id: str
    severity: Severity
    text: str
    remedy: str = ""
    host: str = ""


@dataclass(frozen=True)
class Subject:
    """The subject of an examination.

    Attributes:
        experiment: the planned experiment; None if unspecified.
    """

    project: Project
    inventory: Inventory | None
    hosts: tuple[Host, ...]
    inventory_problem: PubsubctlError | None
    forks: int = 16
    experiment: ExperimentSpec | None = None


Check = Callable[[Subject], Iterator[tuple[Severity, str, str]]]


def examine(subject: Subject, only: Sequence[str]) -> list[Finding]:
    """Run all checks, or the checks in `only`.

    Raises:
        UserError: no check has that id; names the nearest.
    """
    known = [*CHECKS, *(name for name in HOST_CHECKS if name not in CHECKS), *TOGETHER]
    for wanted in only:
        if wanted not in known:
            raise UserError(f"--only {wanted}: no check has this name{nearest(wanted, known)}")
    chosen = [name for name in known if not only or name in only]
    if subject.inventory_problem is not None and {*chosen} & {*HOST_CHECKS, *TOGETHER}:
        chosen += [name for name in ("inventory",) if name not in chosen]
    looks = _gather_facts(subject, chosen)
    if subject.inventory is not None:
        for look in looks:
            look.expect = subject.inventory.expect
    together = list(check_together(looks))
    found: list[Finding] = []
    for name in chosen:
        if name in CHECKS:
            found += [Finding(name, *row) for row in CHECKS[name](subject)]
        if name in HOST_CHECKS:
            for look in _hosts_by_disk(looks) if name in ("fsync", "buffers") else looks:
                found += [Finding(name, *row, look.host.name) for row in check_host(look, name)]
        found += [Finding(name, *row) for check, row in together if check == name]
    return found


def _gather_facts(subject: Subject, chosen: Sequence[str]) -> list[HostFacts]:
    """Return facts about the hosts, as far as the checks need facts."""
    if subject.inventory is None:
        return []
    wanted = {*chosen} & {*HOST_CHECKS, *TOGETHER}
    hosts = [
        host
        for host in subject.hosts
        if wanted and (host.connector == "ssh" or wanted & {*FOR_ALL})
    ]
    if not hosts:
        return []
    return gather_host_facts(
        subject.inventory, hosts, subject.forks, peers=bool(wanted & {"rtt", "mtu"})
    )


def _hosts_by_disk(looks: Sequence[HostFacts]) -> list[HostFacts]:
    """Return a host per folder of a machine: hosts of this machine often share a folder."""
    each = {(look.host.machine, look.probe.get("folder")): look for look in reversed(looks)}
    return list(reversed(each.values()))


def _python(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    text = f"Python {platform.python_version()} at {sys.executable}"
    yield "ok", text, ""  # an older one could not have read this file


def _packages(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    missing = [
        name
        for name in ("pyspark", "pyarrow", "numpy", "pandas", "matplotlib")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        remedy = "make setup, or pip install 'pubsubctl[results]'"
        yield "fail", f"check, plot and report lack {', '.join(missing)}", remedy
    else:
        yield "ok", f"Spark {importlib.metadata.version('pyspark')} and its requirements", ""


def _java(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    from results.checker.java import JavaNotFound, find_java

    try:
        java = find_java()
    except JavaNotFound as error:
        yield "fail", str(error), "set JAVA_HOME, or make setup"
    else:
        yield "ok", f"Java {java.version} from {java.origin}: {java.executable}", ""


def _cores(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    usable = len(os.sched_getaffinity(0))
    quota = _cpu_quota()
    text = counted(usable, "core") + (f", limited to {quota:g} by a cgroup" if quota else "")
    if min(usable, quota or usable) < 2:
        yield "warn", text, "load generator and brokers share a core; latencies will show it"
    else:
        yield "ok", text, ""


def _memory(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    available = psutil.virtual_memory().available
    text = f"{available / 2**30:.1f} GiB of memory available"
    if available < MEMORY_BYTES_WANTED:
        yield "warn", text, "Spark and ten brokers need 2 GiB; close other programs"
    else:
        yield "ok", text, ""


def _disk(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    folders = {
        xdg_folder("state"): "state",
        subject.project.results_folder(None): "results",
    }
    for host in subject.hosts:
        if host.connector == "local" and host.data_dir:
            folders[Path(host.data_dir).expanduser()] = f"durable files of {host.name}"
    for folder, use in folders.items():
        free = shutil.disk_usage(_find_existing(folder)).free
        text = f"{free / 2**30:.1f} GiB free for {use} ({folder})"
        if free < FREE_BYTES_WANTED:
            yield "fail", text, "free 1 GiB, or set PUBSUBCTL_RESULTS, XDG_STATE_HOME, data_dir"
        else:
            yield "ok", text, ""


def _state(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    for folder in (xdg_folder("state"), subject.project.results_folder(None)):
        there = _find_existing(folder)
        if os.access(there, os.W_OK | os.X_OK):
            yield "ok", f"{folder} can be written", ""
        else:
            yield "fail", f"{there} cannot be written", "change its owner, or set XDG_STATE_HOME"


def _inventory(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    if subject.inventory_problem is not None:
        for problem in subject.inventory_problem.problems:
            yield "fail", problem, "pubsubctl help inventories"
    elif subject.inventory is not None:
        count = len(subject.hosts)
        yield "ok", f"{subject.inventory.path}: {count} host{'' if count == 1 else 's'}", ""


def _loopback(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    try:
        server = socket.create_server(("127.0.0.1", 0))
        with server, socket.create_connection(server.getsockname(), timeout=2):
            yield "ok", "127.0.0.1 can be listened on and connected to", ""
    except OSError as error:
        yield "fail", f"127.0.0.1: {error.strerror}", "bring the loopback interface up"


def _limits(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"ulimit -n is {soft} (at most {hard})"
    if soft < DESCRIPTORS_WANTED:
        yield "warn", text, f"ulimit -n {min(hard, 65536)}"
    else:
        yield "ok", text, ""


def _load(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    one_minute, _, _ = os.getloadavg()
    cores = len(os.sched_getaffinity(0))
    text = f"load average {one_minute:.1f} on {counted(cores, 'core')}"
    if one_minute > cores / 2:
        yield "warn", text, "latencies will be noisy; wait, or end other programs"
    else:
        yield "ok", text, ""


def _clock(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    resolution_ns = time.get_clock_info("monotonic").resolution * 1e9
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    name = source.read_text().strip() if source.is_file() else "unknown"
    text = f"monotonic clock: {name}, resolution {resolution_ns:g} ns"
    if resolution_ns > 1_000_000:
        yield "warn", text, "latencies below that mean nothing here"
    else:
        yield "ok", text, ""


def _clock_sync(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    stated = host_probe.clock_sync()
    if stated is not None and not stated["synchronised"]:
        text = "nothing keeps this machine's wall clock right"
        yield "warn", text, "start chronyd or systemd-timesyncd; certificates go by that clock"
    elif stated is not None:
        yield "ok", f"the wall clock is right within {stated['error_ns'] / 1e6:.1f} ms", ""


def _budget(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    if subject.experiment is not None:
        folder = _find_existing(subject.project.results_folder(None))
        yield from budget(subject.experiment, shutil.disk_usage(folder).free)


def _connections(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    if subject.experiment is not None:
        # Our processes raise the soft limit to the hard limit.
        yield from connections(subject.experiment, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _faults(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    links = ", ".join(LINK_VERBS)
    brokers = ", ".join(verb for verb in VERBS if verb not in (*LINK_VERBS, *CLIENT_VERBS))
    yield "ok", f"{links}: by the brokers themselves, without root", ""
    yield "ok", f"{brokers}: by the agent, their parent process, without root", ""
    yield "ok", f"{', '.join(CLIENT_VERBS)}: by the load generators of a bench, without root", ""


def _temporary(subject: Subject) -> Iterator[tuple[Severity, str, str]]:
    import tempfile

    folder = Path(tempfile.gettempdir())
    flags = os.statvfs(folder).f_flag
    if flags & os.ST_NOEXEC:
        yield "fail", f"{folder} is mounted noexec, so Spark cannot start from it", "set TMPDIR"
    else:
        yield "ok", f"temporary files go to {folder}", ""


CHECKS: dict[str, Check] = {
    "python": _python,
    "packages": _packages,
    "java": _java,
    "cores": _cores,
    "memory": _memory,
    "load": _load,
    "disk": _disk,
    "state": _state,
    "temporary": _temporary,
    "clock": _clock,
    "clock-sync": _clock_sync,
    "limits": _limits,
    "loopback": _loopback,
    "inventory": _inventory,
    "budget": _budget,
    "connections": _connections,
    "faults": _faults,
}
TOGETHER = ("machines", "alike")


def _find_existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _cpu_quota() -> float | None:
    """Return the number of CPUs that a cgroup grants, if fewer than the machine has."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


ID = "system"


def check_system(name: str) -> list[Finding]:
    """Check if the servers of a configuration can be started here.

    Raises:
        SpecError, WrongDriver: the configuration itself is invalid.
    """
    try:
        found = load_configuration(name)
    except NotInstalled as error:
        return [Finding(ID, "fail", error.missing, error.remedy)]
    except WrongSettings as error:
        return [Finding(ID, "fail", str(error))]
    servers = f"{len(found.servers)} server{'s' if len(found.servers) > 1 else ''}"
    settings = ", ".join(f"{key} = {value}" for key, value in found.settings.items())
    return [Finding(ID, "ok", f"{found.system.title}: {found.version}, {servers}, {settings}")]


def select_findings(findings: Sequence[Finding], *, verbose: bool, quiet: bool) -> list[Finding]:
    """Return the findings to print, in the order of the checks.

    Hosts with the same finding of a check are merged. Healthy hosts are merged as well, even if the
    texts differ, with the text of the first.

    Args:
        verbose: print every finding separately.
        quiet: print only problems.
    """
    if quiet:
        findings = [row for row in findings if row.severity != "ok"]
    if verbose:
        return list(findings)
    checks = dict.fromkeys(row.id for row in findings)
    return [row for check in checks for row in _run_check(findings, check)]


def tally(findings: Sequence[Finding]) -> str:
    """Return the number of findings per severity."""
    ok, warn, fail = (
        sum(row.severity == severity for row in findings) for severity in ("ok", "warn", "fail")
    )
    return f"{ok} ok, {warn} warn, {fail} FAIL"


def _run_check(findings: Sequence[Finding], check: str) -> Iterator[Finding]:
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for row in findings:
        if row.id == check:
            key = (row.severity, _finding_text(row), row.remedy) if row.host else (row.text,)
            alike.setdefault(key, []).append(row)
    well = [rows for rows in alike.values() if rows[0].host and rows[0].severity == "ok"]
    for rows in alike.values():
        if rows in well and len(well) > 2:
            if rows is well[0]:
                yield _together([row for each in well for row in each], "well, such as ")
        else:
            yield _together(rows)


def _together(rows: Sequence[Finding], like: str = "") -> Finding:
    """Return a single finding for all hosts, with the text of the first."""
    first = rows[0]
    if len(rows) == 1:
        return first
    text = f"{like}{first.text}" if like else _finding_text(first)
    hosts = format_ranges(dict.fromkeys(row.host for row in rows))
    return Finding(first.id, first.severity, f"{hosts}: {text}", first.remedy)


def _finding_text(row: Finding) -> str:
    return row.text.removeprefix(f"{row.host}: ")
