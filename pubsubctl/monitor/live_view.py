"""The view of `status --watch`: computes numbers from samples of a lab, one sample per second.

Pure: equal samples produce an equal view. `polling` requests the samples from hosts; `view_text`
renders the view.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.quantiles import quantile
from pubsubctl.state import BrokerState, describe_missing

HISTORY = 40
MEETING_NS = 60_000_000_000
Mark = tuple[str, int, int]
"""A sampled publication: source, sequence number, time stamp."""


@dataclass(frozen=True, kw_only=True)
class BrokerSample:
    """A broker at a moment.

    Attributes:
        state: the state in the notation of `status`.
        t_ns: the time of reading `counters`, on the host's clock; 0 without counters.
        counters: the answer to the command `statistics`.
        run_id: the run to which the broker records, or "".
    """

    state: BrokerState
    t_ns: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    run_id: str = ""


@dataclass(frozen=True, kw_only=True)
class LoadSample:
    """A load generator at a moment; counts are since the start of the generator.

    Attributes:
        sent_marks, received_marks: a sample of the publications since the last look, with the due
            time, and the receive time.
    """

    process: str
    t_ns: int
    sent: int
    backlog: int
    open: int
    delivered: int
    sent_marks: tuple[Mark, ...] = ()
    received_marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """A host at a moment.

    Attributes:
        deployment: the recorded deployment, or None.
        lease_ms: the rest of the deployment's lease; None without a lease.
        unreachable: the reason for a missing answer, or "".
        is_awaited: the host has not answered yet.
    """

    host: str
    deployment: Mapping[str, Any] | None = None
    brokers: tuple[BrokerSample, ...] = ()
    loads: tuple[LoadSample, ...] = ()
    faults: tuple[Mapping[str, Any], ...] = ()
    lease_ms: int | None = None
    unreachable: str = ""
    is_awaited: bool = False


@dataclass(frozen=True, kw_only=True)
class BrokerRow:
    """A broker in the view; rates are per second, None without an earlier sample."""

    name: str
    host: str
    state: str
    is_healthy: bool
    sessions: tuple[int, int]
    cpu: float | None = None
    received: float | None = None
    forwarded: float | None = None
    delivered: float | None = None
    queue: int = 0


@dataclass(frozen=True, kw_only=True)
class FaultRow:
    """A fault in effect, with the rest of the lease."""

    verb: str
    target: str
    host: str
    fault_id: str
    left_ms: int | None


@dataclass(frozen=True, kw_only=True)
class LatencyView:
    """The latency since the due time of sampled publications received in the last second."""

    p50_us: float
    p99_us: float
    max_us: float
    count: int


@dataclass(frozen=True, kw_only=True)
class View:
    """The numbers of a lab at a moment.

    Attributes:
        clock: time of day.
        deployment: None without a deployment.
        published: per second, by load generators; None without load generators.
        delivered: per second: by load generators, or else by brokers to clients.
        unsent, open: publications that were due and not sent; sent and not acknowledged.
        queued: publications in the queues of brokers, counted per broker.
        outbox_bytes: waiting to be written to sockets.
        cpu: the number of processors in use by all brokers.
        leases_ms: by host, the time until the deployment stops without renewal.
        awaited: hosts that have not answered yet.
    """

    clock: str
    deployment: Mapping[str, Any] | None = None
    run_id: str = ""
    hosts: int = 0
    published: float | None = None
    delivered: float | None = None
    published_total: int = 0
    delivered_total: int = 0
    unsent: int = 0
    open: int = 0
    queued: int = 0
    outbox_bytes: int = 0
    latency: LatencyView | None = None
    cpu: float | None = None
    sessions: tuple[int, int] = (0, 0)
    brokers: tuple[BrokerRow, ...] = ()
    faults: tuple[FaultRow, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)
    leases_ms: Mapping[str, int] = field(default_factory=dict)
    awaited: tuple[str, ...] = ()
    published_history: tuple[float, ...] = ()
    delivered_history: tuple[float, ...] = ()

    def document(self) -> dict[str, Any]:
        about = self.deployment
        latency = self.latency
        return {
            "schema": "pubsubctl/watch/1",
            "clock": self.clock,
            "deployment": about and about["deployment_id"],
            "topology": about and about["topology"]["name"],
            "protocol": about and about["protocol"],
            "run_id": self.run_id or None,
            "published_per_s": _round(self.published),
            "delivered_per_s": _round(self.delivered),
            "published": self.published_total,
            "delivered": self.delivered_total,
            "unsent": self.unsent,
            "open": self.open,
            "queued": self.queued,
            "outbox_bytes": self.outbox_bytes,
            "latency_us": latency
            and {
                "p50": latency.p50_us,
                "p99": latency.p99_us,
                "max": latency.max_us,
                "sampled": latency.count,
            },
            "cpu_cores": _round(self.cpu, 3),
            "sessions_ready": self.sessions[0],
            "sessions_wanted": self.sessions[1],
            "brokers": [
                {
                    "broker": row.name,
                    "host": row.host,
                    "state": row.state,
                    "healthy": row.is_healthy,
                    "sessions_ready": row.sessions[0],
                    "sessions_wanted": row.sessions[1],
                    "cpu": _round(row.cpu, 3),
                    "received_per_s": _round(row.received),
                    "forwarded_per_s": _round(row.forwarded),
                    "delivered_per_s": _round(row.delivered),
                    "queue": row.queue,
                }
                for row in self.brokers
            ],
            "faults": [
                {
                    "fault_id": row.fault_id,
                    "verb": row.verb,
                    "target": row.target,
                    "host": row.host,
                    "lease_left_ms": row.left_ms,
                }
                for row in self.faults
            ],
            "leases_ms": dict(self.leases_ms),
            "unreachable": dict(self.unreachable),
            "awaited": list(self.awaited),
        }


class Watch:
    """A computation of views from successive samples."""

    def __init__(self) -> None:
        self._identity = ""
        self._before: dict[str, BrokerSample] = {}
        self._loads: dict[tuple[str, str], LoadSample] = {}
        self._due: dict[tuple[str, str, int], int] = {}
        self._published: deque[float] = deque(maxlen=HISTORY)
        self._delivered: deque[float] = deque(maxlen=HISTORY)

    def take(self, hosts: Sequence[HostSample], clock: str) -> View:
        """Return the view of this moment."""
        deployment = next((host.deployment for host in hosts if host.deployment), None)
        looks = {look.state.broker: look for host in hosts for look in host.brokers}
        identity = str(deployment["deployment_id"]) if deployment else ""
        if identity != self._identity:
            self._identity = identity
            self._published.clear()
            self._delivered.clear()
        placement = deployment["placement"]["brokers"] if deployment else []
        placed = {row["broker"]: row["host"] for row in placement}
        looks = {name: looks[name] for name in placed if name in looks}
        lost = {host.host: host.unreachable for host in hosts if host.unreachable}
        rows = [
            self._row(looks[name]) if name in looks else _make_lost_row(name, host)
            for name, host in placed.items()
            if name in looks or host in lost
        ]
        there = {row.host for row in rows} | {host.host for host in hosts if host.deployment}
        published, delivered, loads = self._load_rates(hosts)
        if not loads:
            delivered = _sum(row.delivered for row in rows)
        latency = self._latency(hosts)
        self._before = looks
        if published is not None or delivered is not None:
            self._published.append(published or 0.0)
            self._delivered.append(delivered or 0.0)
        counters = [look.counters for look in looks.values()]
        return View(
            clock=clock,
            deployment=deployment,
            run_id=next((look.run_id for look in looks.values() if look.run_id), ""),
            hosts=len(there),
            published=published,
            delivered=delivered,
            published_total=sum(load.sent for load in loads),
            delivered_total=sum(load.delivered for load in loads),
            unsent=sum(load.backlog for load in loads),
            open=sum(load.open for load in loads),
            queued=sum(row.queue for row in rows),
            outbox_bytes=int(sum(each.get("outbox_bytes", 0) for each in counters)),
            latency=latency,
            cpu=_sum(row.cpu for row in rows),
            sessions=(sum(row.sessions[0] for row in rows), sum(row.sessions[1] for row in rows)),
            brokers=tuple(rows),
            faults=tuple(_fault(row, host.host) for host in hosts for row in host.faults),
            unreachable=lost,
            leases_ms={host.host: host.lease_ms for host in hosts if host.lease_ms is not None},
            awaited=tuple(host.host for host in hosts if host.is_awaited),
            published_history=tuple(self._published),
            delivered_history=tuple(self._delivered),
        )

    def _row(self, look: BrokerSample) -> BrokerRow:
        state = look.state
        ready, missing = set(state.ready), [n for n in state.wanted if n not in state.ready]
        text = state.state
        if state.state == "silent":
            text = "does not answer"
        elif state.exit and state.state != "stopped":
            text = state.exit if state.state == "exited" else f"{state.state} {state.exit}"
        elif state.state == "running" and missing:
            text = describe_missing(missing, state.obstacles)
        per_second = self._rates(look)
        return BrokerRow(
            name=state.broker,
            host=state.host,
            state=text,
            is_healthy=state.state == "running" and not missing,
            sessions=(len(ready & set(state.wanted)), len(state.wanted)),
            cpu=per_second("cpu_s"),
            received=per_second("publications_received"),
            forwarded=per_second("publications_forwarded"),
            delivered=per_second("publications_delivered"),
            queue=int(look.counters.get("queue_publications", 0)),
        )

    def _rates(self, look: BrokerSample) -> Any:
        before = self._before.get(look.state.broker)
        same = before is not None and before.state.pid == look.state.pid

        def per_second(counter: str) -> float | None:
            if not same or before is None or look.t_ns <= before.t_ns or not before.t_ns:
                return None
            if counter not in look.counters or counter not in before.counters:
                return None
            grown = look.counters[counter] - before.counters[counter]
            return grown * 1e9 / (look.t_ns - before.t_ns)

        return per_second

    def _load_rates(
        self, hosts: Sequence[HostSample]
    ) -> tuple[float | None, float | None, list[LoadSample]]:
        """Return publications and deliveries per second, and the present load generators."""
        now = {(host.host, load.process): load for host in hosts for load in host.loads}
        published = delivered = 0.0
        compared = False
        for key, load in now.items():
            before = self._loads.get(key)
            if before is None or load.t_ns <= before.t_ns or load.sent < before.sent:
                continue
            compared = True
            per_ns = 1e9 / (load.t_ns - before.t_ns)
            published += (load.sent - before.sent) * per_ns
            delivered += max(0, load.delivered - before.delivered) * per_ns
        self._loads = now
        if not compared:
            return None, None, list(now.values())
        return published, delivered, list(now.values())

    def _latency(self, hosts: Sequence[HostSample]) -> LatencyView | None:
        """Return the latency of publications since the last look, from stamps of equal clocks."""
        for host in hosts:
            for load in host.loads:
                for source, sequence, due_ns in load.sent_marks:
                    self._due[host.host, source, sequence] = due_ns
        taken_ns = []
        for host in hosts:
            for load in host.loads:
                for source, sequence, received_ns in load.received_marks:
                    due_ns = self._due.get((host.host, source, sequence), 0)
                    if due_ns:
                        taken_ns.append(received_ns - due_ns)
            now_ns = max((load.t_ns for load in host.loads), default=0)
            for key in [
                key
                for key, due_ns in self._due.items()
                if key[0] == host.host and due_ns < now_ns - MEETING_NS
            ]:
                del self._due[key]
        if not taken_ns:
            return None
        taken_ns.sort()
        return LatencyView(
            p50_us=quantile(taken_ns, 0.5) / 1000,
            p99_us=quantile(taken_ns, 0.99) / 1000,
            max_us=taken_ns[-1] / 1000,
            count=len(taken_ns),
        )


def _make_lost_row(broker: str, host: str) -> BrokerRow:
    """Return the row of a broker on a lost host, which stays visible and counts as unhealthy."""
    return BrokerRow(
        name=broker, host=host, state="host does not answer", is_healthy=False, sessions=(0, 0)
    )


def _fault(row: Mapping[str, Any], host: str) -> FaultRow:
    target = str(row["process"])
    if row.get("peer"):
        arrow = {"out": "->", "in": "<-"}.get(str(row.get("direction")), "-")
        target += f"{arrow}{row['peer']}"
    left_ms = row.get("lease_left_ms")
    return FaultRow(
        verb=str(row["verb"]),
        target=target,
        host=host,
        fault_id=str(row["fault_id"]),
        left_ms=None if left_ms is None else int(left_ms),
    )


def _round(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
