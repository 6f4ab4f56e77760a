"""What `status --watch` shows: looks at a lab, one a second, become numbers and lines.

Pure: the same looks give the same lines. Whoever asks the hosts is in `pubsubctl.watcher`.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pubsubctl.state import BrokerState

HISTORY = 40
MEETING_NS = 60_000_000_000
BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"

Style = Literal["", "good", "bad", "doubtful", "dim", "bold"]
Line = tuple[tuple[str, Style], ...]
Mark = tuple[str, int, int]
"""A publication that was seen: its source, its sequence number, a stamp."""


@dataclass(frozen=True, kw_only=True)
class BrokerLook:
    """One broker at one moment.

    Attributes:
        state: as `status` shows it.
        t_ns: by its host's clock, when `counters` were read; 0 when they were not.
        counters: what its command `statistics` answered.
        run_id: of the run it writes for, or "".
    """

    state: BrokerState
    t_ns: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    run_id: str = ""


@dataclass(frozen=True, kw_only=True)
class LoadLook:
    """One load generator at one moment; counts are since its start.

    Attributes:
        sent_marks, received_marks: a sample of what passed since the last look, with the time
            it was due, and received.
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
class HostLook:
    """One host at one moment.

    Attributes:
        deployment: what is recorded there, or None.
        lease_ms: what is left of the deployment's lease; None when it has none.
        unreachable: why it does not answer, or "".
        is_awaited: nothing was heard of it yet.
    """

    host: str
    deployment: Mapping[str, Any] | None = None
    brokers: tuple[BrokerLook, ...] = ()
    loads: tuple[LoadLook, ...] = ()
    faults: tuple[Mapping[str, Any], ...] = ()
    lease_ms: int | None = None
    unreachable: str = ""
    is_awaited: bool = False


@dataclass(frozen=True, kw_only=True)
class BrokerRow:
    """One broker in the view; rates are per second, None while there is nothing to compare."""

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
    """A fault in effect, and what is left of its lease."""

    verb: str
    target: str
    host: str
    fault_id: str
    left_ms: int | None


@dataclass(frozen=True, kw_only=True)
class LatencyView:
    """How long the sampled publications took that arrived in the last second, since due."""

    p50_us: float
    p99_us: float
    max_us: float
    count: int


@dataclass(frozen=True, kw_only=True)
class View:
    """A moment of a lab in numbers.

    Attributes:
        clock: time of day.
        deployment: None when nothing is deployed.
        published: per second, by load generators; None where there are none.
        delivered: per second: by load generators, or else by brokers to their clients.
        unsent, open: publications that were due and not sent; sent and not acknowledged.
        queued: publications in the queues of brokers, counted in each.
        outbox_bytes: waiting to be written to sockets.
        cpu: processors that all brokers together used.
        leases_ms: by host, what is left until it stops by itself.
        awaited: hosts of which nothing was heard yet.
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
        """As one JSON document."""
        about = self.deployment
        latency = self.latency
        return {
            "schema": "pubsubctl/watch/1",
            "clock": self.clock,
            "deployment": about and about["deployment_id"],
            "topology": about and about["topology"]["name"],
            "protocol": about and about["protocol"],
            "run_id": self.run_id or None,
            "published_per_s": _rounded(self.published),
            "delivered_per_s": _rounded(self.delivered),
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
            "cpu_cores": _rounded(self.cpu, 3),
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
                    "cpu": _rounded(row.cpu, 3),
                    "received_per_s": _rounded(row.received),
                    "forwarded_per_s": _rounded(row.forwarded),
                    "delivered_per_s": _rounded(row.delivered),
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
    """Turns each look into a view, by what it remembers of the looks before."""

    def __init__(self) -> None:
        self._identity = ""
        self._before: dict[str, BrokerLook] = {}
        self._loads: dict[tuple[str, str], LoadLook] = {}
        self._due: dict[tuple[str, str, int], int] = {}
        self._published: deque[float] = deque(maxlen=HISTORY)
        self._delivered: deque[float] = deque(maxlen=HISTORY)

    def take(self, hosts: Sequence[HostLook], clock: str) -> View:
        """The view of this moment."""
        deployment = next((host.deployment for host in hosts if host.deployment), None)
        looks = {look.state.broker: look for host in hosts for look in host.brokers}
        identity = str(deployment["deployment_id"]) if deployment else ""
        if identity != self._identity:
            self._identity = identity
            self._published.clear()
            self._delivered.clear()
        order = [row["broker"] for row in deployment["placement"]["brokers"]] if deployment else []
        looks = {name: looks[name] for name in order if name in looks}
        rows = [self._row(look) for look in looks.values()]
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
            hosts=sum(host.deployment is not None for host in hosts),
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
            unreachable={host.host: host.unreachable for host in hosts if host.unreachable},
            leases_ms={host.host: host.lease_ms for host in hosts if host.lease_ms is not None},
            awaited=tuple(host.host for host in hosts if host.is_awaited),
            published_history=tuple(self._published),
            delivered_history=tuple(self._delivered),
        )

    def _row(self, look: BrokerLook) -> BrokerRow:
        state = look.state
        ready, missing = set(state.ready), [n for n in state.wanted if n not in state.ready]
        text = state.state
        if state.state == "silent":
            text = "does not answer"
        elif state.exit and state.state != "stopped":
            text = f"{state.state} {state.exit}"
        elif state.state == "running" and missing:
            text = f"no session to {', '.join(missing)}"
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

    def _rates(self, look: BrokerLook) -> Any:
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
        self, hosts: Sequence[HostLook]
    ) -> tuple[float | None, float | None, list[LoadLook]]:
        """Published and delivered per second, and the load generators there are."""
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

    def _latency(self, hosts: Sequence[HostLook]) -> LatencyView | None:
        """Of what was received since the last look; only stamps of the same clock are compared."""
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
            p50_us=_quantile(taken_ns, 0.5) / 1000,
            p99_us=_quantile(taken_ns, 0.99) / 1000,
            max_us=taken_ns[-1] / 1000,
            count=len(taken_ns),
        )


def one_line(view: View) -> str:
    """The view as a line for logs."""
    if view.deployment is None:
        return f"{view.clock}  {_nothing(view)}"
    healthy = sum(row.is_healthy for row in view.brokers)
    parts = [
        f"{_rate(view.published)} published/s",
        f"{_rate(view.delivered)} delivered/s",
        f"backlog {_count(view.unsent + view.open)}",
        _latency_text(view.latency),
        f"brokers {healthy}/{len(view.brokers)}",
        f"sessions {view.sessions[0]}/{view.sessions[1]}",
        f"cpu {_decimal(view.cpu, 2)}",
        *(_fault_text(row) for row in view.faults),
        *(f"{host} does not answer" for host in view.unreachable),
        *([_reaching(view)] if view.awaited else []),
    ]
    return f"{view.clock}  " + "  ".join(parts)


def screen_lines(view: View, width: int, height: int, *, plain: bool = False) -> list[Line]:
    """The view as a screen of at most so many lines, none longer than `width`.

    Args:
        plain: with characters of ASCII only.
    """
    lines = [_cut(line, width) for line in [*_head(view, width, plain), *_alarms(view)]]
    foot: Line = (("q ends this view; the lab goes on", "dim"),)
    rows = max(2, height - len(lines) - 1)
    lines += [_cut(line, width) for line in _table(view, width, rows)]
    return [*lines[: height - 1], _cut(foot, width)]


def line_text(line: Line) -> str:
    """A line without its styles."""
    return "".join(text for text, _ in line).rstrip()


def _head(view: View, width: int, plain: bool) -> Iterator[Line]:
    about = view.deployment
    if about is None:
        yield _spread("pubsubctl", view.clock, width)
        yield ((_nothing(view), "doubtful"),)
        return
    what = f"{about['topology']['name']} · {about['protocol']}"
    what += f" · {_plural(len(view.brokers), 'broker')} on {_plural(view.hosts, 'host')}"
    yield _spread(what.replace("·", "-") if plain else what, view.clock, width)
    if view.run_id:
        yield ((f"run {view.run_id}", "dim"),)
    elif not view.published_total:
        yield (("no load", "dim"),)
    bars = PLAIN_BARS if plain else BARS
    room = max(0, min(HISTORY, width - 34))
    for name, rate, history, total in (
        ("published", view.published, view.published_history, view.published_total),
        ("delivered", view.delivered, view.delivered_history, view.delivered_total),
    ):
        yield (
            (f"{name:10}", "dim"),
            (f"{_rate(rate):>8}/s", "bold"),
            (f"  {_spark(history[-room:] if room else (), bars):{room}}", ""),
            (f" {_count(total):>9}" if total else "", "dim"),
        )
    yield (
        ("backlog   ", "dim"),
        (f"{_count(view.unsent):>8} ", "doubtful" if view.unsent > 1000 else ""),
        ("unsent  ", "dim"),
        (_count(view.open), ""),
        (" unacknowledged  ", "dim"),
        (_count(view.queued), ""),
        (" queued  ", "dim"),
        (_bytes(view.outbox_bytes), ""),
        (" in outboxes", "dim"),
    )
    latency = view.latency
    if latency is None:
        yield (("latency          -   nothing arrived in the last second", "dim"),)
    else:
        p50, p99, most = map(_duration, (latency.p50_us, latency.p99_us, latency.max_us))
        yield (
            ("latency   ", "dim"),
            (f"p50 {p50:>9}  p99 {p99:>9}", "bold"),
            (f"  max {most} ({latency.count} sampled)", "dim"),
        )
    ready, wanted = view.sessions
    yield (
        ("sessions  ", "dim"),
        (f"{ready}/{wanted}", "bad" if ready < wanted else "good"),
        (" ready", "dim"),
        ("   brokers ", "dim"),
        (
            f"{sum(row.is_healthy for row in view.brokers)}/{len(view.brokers)}",
            "good" if all(row.is_healthy for row in view.brokers) else "bad",
        ),
        (" healthy", "dim"),
        ("   processors ", "dim"),
        (_decimal(view.cpu, 2), ""),
    )


def _alarms(view: View) -> Iterator[Line]:
    for host, why in view.unreachable.items():
        yield ((f"! {host} does not answer: {why}", "bad"),)
    if view.awaited and view.deployment is not None:
        yield ((_reaching(view), "doubtful"),)
    for row in view.faults[:4]:
        yield ((f"! {_fault_text(row)}", "doubtful"), (f"  on {row.host}, {row.fault_id}", "dim"))
    if len(view.faults) > 4:
        yield ((f"! and {_plural(len(view.faults) - 4, 'more fault')}", "doubtful"),)
    if view.leases_ms:
        left = min(view.leases_ms.values()) / 1000
        yield ((f"stops by itself in {left:.0f} s unless its owner renews the lease", "dim"),)


def _table(view: View, width: int, height: int) -> Iterator[Line]:
    """The brokers: all in their order where they fit, else what needs looking at first."""
    rows = list(view.brokers)
    if not rows:
        return
    yield (("", ""),)
    height -= 2
    rest: list[BrokerRow] = []
    if len(rows) > height:
        rows.sort(key=lambda row: (row.is_healthy, -(row.cpu or 0.0)))
        rest, rows = rows[max(0, height - 1) :], rows[: max(0, height - 1)]
    names = max([6, *(len(row.name) for row in view.brokers)])
    hosts = max([4, *(len(row.host) for row in view.brokers)])
    names, hosts = min(names, 14), min(hosts, 12)
    numbers = f"{'CPU%':>5} {'IN/s':>7} {'OUT/s':>7} {'DELIV/s':>7} {'QUEUE':>6}"
    state = max(7, width - names - hosts - len(numbers) - 12)
    head = f"  {'BROKER':{names}} {'HOST':{hosts}} {'STATE':{state}} {'SESS':>5} {numbers}"
    yield ((head, "dim"),)
    for row in rows:
        said = _shortened(row.state, state)
        style: Style = "" if row.is_healthy else "bad"
        yield (
            ("  " if row.is_healthy else "! ", style),
            (f"{_shortened(row.name, names):{names}} ", "bold" if row.is_healthy else "bad"),
            (f"{_shortened(row.host, hosts):{hosts}} ", "dim"),
            (f"{said:{state}} ", style),
            (f"{row.sessions[0]}/{row.sessions[1]}".rjust(5) + " ", ""),
            (_numbers(row), ""),
        )
    if rest:
        sick = sum(not row.is_healthy for row in rest)
        busy = f"cpu {_decimal((_sum(row.cpu for row in rest) or 0.0) * 100, 0)} % together"
        ready = sum(row.sessions[0] for row in rest)
        wanted = sum(row.sessions[1] for row in rest)
        said = f"{sick} of them unhealthy" if sick else "all healthy"
        text = f"  and {len(rest)} more: {said}, sessions {ready}/{wanted}, {busy}"
        yield ((text, "bad" if sick else "dim"),)


def _numbers(row: BrokerRow) -> str:
    cpu = None if row.cpu is None else row.cpu * 100
    return (
        f"{_decimal(cpu, 0):>5} {_rate(row.received):>7} {_rate(row.forwarded):>7} "
        f"{_rate(row.delivered):>7} {_count(row.queue):>6}"
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


def _fault_text(row: FaultRow) -> str:
    left = "" if row.left_ms is None else f", heals within {max(0, row.left_ms) / 1000:.0f} s"
    return f"{row.verb} {row.target}{left}"


def _nothing(view: View) -> str:
    if view.unreachable:
        return "; ".join(f"{host}: {why}" for host, why in view.unreachable.items())
    return _reaching(view) if view.awaited else "nothing is deployed; waiting"


def _reaching(view: View) -> str:
    more = f" and {len(view.awaited) - 4} more" if len(view.awaited) > 4 else ""
    return f"reaching {', '.join(view.awaited[:4])}{more}"


def _spread(left: str, right: str, width: int) -> Line:
    gap = max(2, width - len(left) - len(right))
    return ((left, "bold"), (" " * gap, ""), (right, "dim"))


def _cut(line: Line, width: int) -> Line:
    kept: list[tuple[str, Style]] = []
    for text, style in line:
        if width <= 0:
            break
        kept.append((text[:width], style))
        width -= len(text)
    return tuple(kept)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "~"


def _spark(values: Sequence[float], bars: str) -> str:
    most = max(values, default=0.0)
    if most <= 0:
        return bars[0] * len(values)
    top = len(bars) - 1
    return "".join(bars[min(top, math.ceil(value / most * top))] for value in values)


def _latency_text(latency: LatencyView | None) -> str:
    if latency is None:
        return "latency -"
    return f"p50 {_duration(latency.p50_us)}  p99 {_duration(latency.p99_us)}"


def _duration(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.0f} us"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:.2f} ms"
    return f"{microseconds / 1_000_000:.2f} s"


def _rate(value: float | None) -> str:
    return "-" if value is None else _count(round(value))


def _count(number: int) -> str:
    if abs(number) < 100_000:
        return f"{number:,}".replace(",", " ")
    if abs(number) < 10_000_000:
        return f"{number / 1000:,.0f}k".replace(",", " ")
    return f"{number / 1_000_000:,.0f}M".replace(",", " ")


def _bytes(number: int) -> str:
    for limit, unit, size in ((1024, "B", 1), (1 << 20, "KiB", 1 << 10), (1 << 30, "MiB", 1 << 20)):
        if number < limit:
            return f"{number / size:.0f} {unit}"
    return f"{number / (1 << 30):.1f} GiB"


def _decimal(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _quantile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
