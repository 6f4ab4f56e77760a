"""What kept a run from being faster: its own rate, a broker, a load generator, or the machine.

Nearly all that a broker or a load generator does is done by one thread. How much of the core that
it could have had it used while the run measured says how near it was to what it can do; that it
had to wait for a core, because of other work on the machine, is left out. Whoever used nearly all
is the limit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

LIMIT_SHARE: Final = 0.9
"""A thread that used so much of the core that it could have had hardly waited for work."""
MACHINE_SHARE: Final = 0.95

Kind = Literal["rate", "load generator", "broker", "machine", "window"]


@dataclass(frozen=True, slots=True)
class Limit:
    """What kept a run from being faster.

    Attributes:
        kind: a "window" is full while nobody is busy: everybody waits for somebody.
        text: in words, with the figures.
    """

    kind: Kind
    text: str

    @property
    def is_of_load_generator(self) -> bool:
        """Whether the run says nothing about how fast brokers are."""
        return self.kind == "load generator"


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process has used so far, by its busiest thread, in seconds."""

    pid: int
    start_time: int
    ran_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class Use:
    """What one process used in a stretch of time, by its busiest thread.

    Attributes:
        ran_s: for how long it ran.
        core: share of a core.
        wanted: the same of the time in which it did not wait for one: 1 is all that can be.
    """

    kind: Literal["load generator", "broker"]
    name: str
    ran_s: float
    core: float
    wanted: float

    def as_limit(self) -> Limit:
        """That it was the limit."""
        text = f"{self.kind} {self.name}: {self.core:.0%} of a core"
        if self.wanted - self.core >= 0.05:
            text += f", {self.wanted:.0%} of what it could have"
        return Limit(self.kind, text)


@dataclass(frozen=True, slots=True)
class MachineUse:
    """What one machine used in a stretch of time.

    Attributes:
        busy: share of all its cores that worked, for whomever.
        brokers, load_generators: what was theirs of that, as shares of all cores.
    """

    host: str
    cores: int
    busy: float
    brokers: float
    load_generators: float

    def as_limit(self) -> Limit:
        """That it was the limit."""
        return Limit(
            "machine",
            f"machine of {self.host}: its {self.cores} cores {self.busy:.0%} busy, "
            f"brokers {self.brokers:.0%}, load generators {self.load_generators:.0%}",
        )


class StampedStatus(NamedTuple):
    """What an agent reported, and when."""

    at_s: float
    status: Mapping[str, Any]


@dataclass
class UseProbe:
    """Takes down what agents report, at the beginning and the end of a stretch of time.

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
        """The stretch begins; by host."""
        self._first = _samples(statuses)

    def end(self, statuses: Mapping[str, "StampedStatus"]) -> None:
        """It has ended."""
        self._last = _samples(statuses)
        self._has_ended = True

    @property
    def is_complete(self) -> bool:
        """Whether it has begun and ended."""
        return self._has_ended

    def uses(self) -> list[Use]:
        """Of every process that ran all the time."""
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

    def waited_shares(self) -> dict[str, float]:
        """By process that ran all the time, the share of it that it waited for a processor."""
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
        """Of every machine; hosts that share one are named together."""
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
        """What these processes ran; of one that was started again, what it ran since then."""
        first, last = self._first[host].processes, self._last[host].processes
        return sum(_ran_s(first.get(name), last[name]) for name in processes if name in last)


def limit_of(uses: Sequence[Use], machines: Sequence[MachineUse], *, is_rate_met: bool) -> Limit:
    """What kept a run from being faster.

    Args:
        is_rate_met: publishers had a rate, and what was due was done in time.
    """
    if is_rate_met:
        return Limit("rate", "rate")
    # Of two that are as busy, the load generator: a broker might have been faster without it.
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
    """What an agent reported."""

    at_s: float
    boot_id: str
    cores: int
    busy_s: float
    processes: Mapping[str, Usage]


def _samples(statuses: Mapping[str, StampedStatus]) -> dict[str, _Sample]:
    """Return the samples by host; a host that could not read its processor time is left out."""
    return {
        host: _sample(each)
        for host, each in statuses.items()
        if each.status["machine"]["busy_s"] is not None
    }


def _sample(stamped: StampedStatus) -> _Sample:
    at_s, status = stamped
    processes = {}
    for name, row in status["processes"].items():
        # Without accounts of waiting, what the whole process has used is what there is.
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
    """None of a process that was started again in between."""
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
