"""Limits of a run: its own rate, a broker, a load generator, or the machine.

Nearly all work of a broker or a load generator is done by one thread. The share of its available
core that this thread used shows the distance to its capacity. Time of waiting for a core, because
of other work on the machine, does not count as available. A process with a share of nearly 1 is the
limit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

LIMIT_SHARE: Final = 0.9
"""Share of the available core at which a thread hardly waits for work."""
MACHINE_SHARE: Final = 0.95

Kind = Literal["rate", "load generator", "broker", "machine", "window"]


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a run.

    Attributes:
        kind: a "window" is full although no process is busy: all processes wait for each other.
        text: the limit in words, with numbers.
    """

    kind: Kind
    text: str

    @property
    def is_of_load_generator(self) -> bool:
        """True if the run is no evidence about the speed of brokers."""
        return self.kind == "load generator"


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time of a process so far, by its busiest thread, in seconds."""

    pid: int
    start_time: int
    ran_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class Use:
    """Processor time of a process in a stretch of time, by its busiest thread.

    Attributes:
        ran_s: time for which the thread ran.
        core: share of a core.
        wanted: share of the time without waiting for a core: 1 is the maximum.
    """

    kind: Literal["load generator", "broker"]
    name: str
    ran_s: float
    core: float
    wanted: float

    def as_limit(self) -> Limit:
        """Return the limit that this process is."""
        text = f"{self.kind} {self.name}: {self.core:.0%} of a core"
        if self.wanted - self.core >= 0.05:
            text += f", {self.wanted:.0%} of what it could have"
        return Limit(self.kind, text)


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Processor time of a machine in a stretch of time.

    Attributes:
        busy: share of all cores in use, for any process.
        brokers, load_generators: shares of all cores in use for brokers and for load generators.
    """

    host: str
    cores: int
    busy: float
    brokers: float
    load_generators: float

    def as_limit(self) -> Limit:
        """Return the limit that this machine is."""
        return Limit(
            "machine",
            f"machine of {self.host}: its {self.cores} cores {self.busy:.0%} busy, "
            f"brokers {self.brokers:.0%}, load generators {self.load_generators:.0%}",
        )


class StampedStatus(NamedTuple):
    """The status of an agent, and its time."""

    at_s: float
    status: Mapping[str, Any]


@dataclass
class UseProbe:
    """A recorder of agents' statuses at the beginning and the end of a stretch of time.

    Args:
        brokers: by host, process → broker.
        load_generators: processes on the clients' host.
    """

    brokers: Mapping[str, Mapping[str, str]]
    clients_host: str
    load_generators: Collection[str]
    _first: dict[str, "_Sample"] = field(default_factory=dict)
    _last: dict[str, "_Sample"] = field(default_factory=dict)
    _has_ended: bool = False

    def begin(self, statuses: Mapping[str, "StampedStatus"]) -> None:
        """Record the statuses at the beginning of the stretch, by host."""
        self._first = _samples(statuses)

    def end(self, statuses: Mapping[str, "StampedStatus"]) -> None:
        """Record the statuses at the end of the stretch."""
        self._last = _samples(statuses)
        self._has_ended = True

    @property
    def is_complete(self) -> bool:
        """True after the end of the stretch."""
        return self._has_ended

    def uses(self) -> list[Use]:
        """Return the use of every process that ran during the whole stretch."""
        found = []
        for host, first in self._first.items():
            last = self._last.get(host)
            if last is None:
                continue
            names: list[tuple[Literal["load generator", "broker"], str, str]] = [
                ("broker", broker, process)
                for process, broker in self.brokers.get(host, {}).items()
            ]
            if host == self.clients_host:
                names += [("load generator", name, name) for name in self.load_generators]
            for kind, name, process in names:
                before, after = first.processes.get(process), last.processes.get(process)
                if before is not None and after is not None:
                    use = _use(kind, name, before, after, last.at_s - first.at_s)
                    found += [use] if use is not None else []
        return found

    def compute_wait_shares(self) -> dict[str, float]:
        """Return by process the share of the stretch that the process waited for a processor.

        Only processes that ran during the whole stretch count.
        """
        found = {}
        for host, first in self._first.items():
            last = self._last.get(host)
            names = {**self.brokers.get(host, {})}
            if host == self.clients_host:
                names |= {name: name for name in self.load_generators}
            for process, name in names.items():
                before = first.processes.get(process)
                after = last.processes.get(process) if last is not None else None
                if last is None or before is None or after is None or not _is_same(before, after):
                    continue
                took_s = max(last.at_s - first.at_s, 1e-9)
                found[name] = min(1.0, max(0.0, after.waited_s - before.waited_s) / took_s)
        return found

    def machines(self) -> list[MachineUse]:
        """Return the use of every machine; hosts on one machine are named together."""
        hosts: dict[str, list[str]] = {}
        for host, sample in self._first.items():
            if host in self._last:
                hosts.setdefault(sample.boot_id, []).append(host)
        found = []
        for names in hosts.values():
            first, last = self._first[names[0]], self._last[names[0]]
            whole_s = max(1e-9, (last.at_s - first.at_s) * first.cores)
            brokers = sum(self._ran_s(name, self.brokers.get(name, ())) for name in names)
            is_clients = self.clients_host in names
            generators = self._ran_s(self.clients_host, self.load_generators) if is_clients else 0.0
            found.append(
                MachineUse(
                    ", ".join(names), first.cores, (last.busy_s - first.busy_s) / whole_s,
                    brokers / whole_s, generators / whole_s,
                )
            )  # fmt: skip
        return found

    def _ran_s(self, host: str, processes: Collection[str]) -> float:
        """Return the processor time of processes; a restarted process counts since its restart."""
        first, last = self._first[host].processes, self._last[host].processes
        return sum(_ran_s(first.get(name), last[name]) for name in processes if name in last)


def limit_of(uses: Sequence[Use], machines: Sequence[MachineUse], *, is_rate_met: bool) -> Limit:
    """Return the limit of a run.

    Args:
        is_rate_met: True if publishers had a rate, and all due publications were acknowledged in
            time.
    """
    if is_rate_met:
        return Limit("rate", "rate")
    # At equal shares the load generator comes first: it may have slowed the broker.
    order = sorted(uses, key=lambda use: (-round(use.wanted, 2), use.kind != "load generator"))
    if order and order[0].wanted >= LIMIT_SHARE:
        return order[0].as_limit()
    fullest = max(machines, key=lambda machine: machine.busy, default=None)
    if fullest is not None and fullest.busy >= MACHINE_SHARE:
        return fullest.as_limit()
    busiest = f"; the busiest is {order[0].as_limit().text}" if order else ""
    return Limit("window", f"window of the publishers{busiest}")


@dataclass(frozen=True, slots=True)
class _Sample:
    """A status of an agent."""

    at_s: float
    boot_id: str
    cores: int
    busy_s: float
    processes: Mapping[str, Usage]


def _samples(statuses: Mapping[str, StampedStatus]) -> dict[str, _Sample]:
    """Return the samples by host, without hosts that could not read their processor time."""
    return {
        host: _sample(each)
        for host, each in statuses.items()
        if each.status["machine"]["busy_s"] is not None
    }


def _sample(stamped: StampedStatus) -> _Sample:
    at_s, status = stamped
    processes = {}
    for name, row in status["processes"].items():
        # Without times of waiting, use the processor time of the whole process.
        used = row.get("busiest_thread_s") or (row.get("processor_s"), 0.0)
        if used[0] is not None and row["pid"] is not None:
            processes[name] = Usage(row["pid"], row["start_time"], used[0], used[1])
    machine = status["machine"]
    return _Sample(at_s, status["boot_id"], machine["cores"], machine["busy_s"], processes)


def _use(
    kind: Literal["load generator", "broker"],
    name: str,
    before: Usage,
    after: Usage,
    took_s: float,
) -> Use | None:
    """Return the use of a process; None if the process was restarted in between."""
    if not _is_same(before, after) or took_s <= 0:
        return None
    ran_s = after.ran_s - before.ran_s
    could_s = max(took_s - (after.waited_s - before.waited_s), ran_s, 1e-9)
    return Use(kind, name, ran_s, min(1.0, ran_s / took_s), ran_s / could_s)


def _ran_s(before: Usage | None, after: Usage) -> float:
    if before is None or not _is_same(before, after):
        return after.ran_s
    return after.ran_s - before.ran_s


def _is_same(before: Usage, after: Usage) -> bool:
    return (before.pid, before.start_time) == (after.pid, after.start_time)
