"""Metrics of one host's processes for a collector: Prometheus' text format, over HTTP.

Served on the loopback address only, to any local client; read-only, with numbers and names. Remote
collectors reach the port through ssh, as any port on loopback.
"""

import logging
import math
import re
import resource
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import trio

from brokerd.runtime.streams import accept_next

LOOPBACK: Final = "127.0.0.1"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

WAITING_CONNECTIONS: Final = 32
PENDING_REQUESTS: Final = 16
RESERVED_DESCRIPTORS: Final = 64
"""For control connections, signals and journals of the agent."""

_REQUEST_BYTES: Final = 8_192
REQUEST_S: Final = 5.0
_AT_ONCE: Final = 4
_LINGER_S: Final = 1.0

logger = logging.getLogger(__name__)

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


_NO_NAME: Final = re.compile("[^a-zA-Z0-9_]")
_NOT_NUMBERS: Final = ("t_ns", "now_ns", "pid")
"""Stamps and names that are integers."""

_GAUGES: Final = re.compile(
    "backlog|open|running|recovering|catching_up|spoken_for|partitions|subscriptions.*|queue_.*"
    "|rss_bytes|private_bytes|outbox_bytes|passed_bytes|late_.*|.*_(active|ready|held|relayed|violating|ratio)"
)
"""Statistics that may fall; all others count since the start of their process."""

_UNITS: Final = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Units at the end of a statistic's name, by their number in a second."""

_Sample = tuple[Mapping[str, str], float]
_Kind = Literal["counter", "gauge", "histogram"]

_Told = Mapping[str, Any]
"""A histogram: `le_s`, bounds in seconds; `counts`, the count within each bound; `count`.

`sum_s`.
"""


@dataclass(frozen=True)
class Family:
    """All samples of one metric.

    Attributes:
        name: letters, digits and `_`; of a counter it ends with `_total`.
        samples: labels and value.
        histograms: labels and histogram, of a family of histograms.
    """

    name: str
    kind: _Kind
    meaning: str
    samples: tuple[_Sample, ...] = ()
    histograms: tuple[tuple[Mapping[str, str], _Told], ...] = ()


def exposition(families: Iterable[Family]) -> str:
    """Return the text for a collector: of each family its meaning, kind and samples."""
    lines = []
    for family in families:
        meaning = family.meaning.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {family.name} {meaning}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"{family.name}{_labels(of)} {_number(value)}" for of, value in family.samples]
        for of, histogram in family.histograms:
            lines += _histogram(family.name, of, histogram)
    return "".join(f"{line}\n" for line in lines)


def _histogram(name: str, labels: Mapping[str, str], histogram: _Told) -> list[str]:
    """Return a line per bound, with the count within it, then their sum and number."""
    bounds = [*map(_number, histogram["le_s"]), "+Inf"]
    counts = [*histogram["counts"], histogram["count"]]
    return [
        *(
            f"{name}_bucket{_labels({**labels, 'le': bound})} {_number(count)}"
            for bound, count in zip(bounds, counts, strict=True)
        ),
        f"{name}_sum{_labels(labels)} {_number(histogram['sum_s'])}",
        f"{name}_count{_labels(labels)} {_number(histogram['count'])}",
    ]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(int(value) if isinstance(value, bool) else value)


def host_families(
    host: str,
    processes: Mapping[str, Mapping[str, Any]],
    faults: Iterable[str],
    numbers: Mapping[str, Mapping[str, Any]],
) -> list[Family]:
    """Return the metrics of a host.

    Args:
        processes: by name, as in the agent's `status`.
        faults: the verbs of active faults.
        numbers: by process, its answer to the request for statistics; processes without an answer
            are missing. Values that are no numbers are left out.
    """
    labels = {
        name: {"host": host, "process": name, "role": row["role"]}
        for name, row in processes.items()
    }

    def of_all(field: str) -> tuple[_Sample, ...]:
        values = [(labels[name], row[field]) for name, row in processes.items()]
        return tuple((of, value) for of, value in values if value is not None)

    up = tuple((labels[name], row["state"] == "running") for name, row in processes.items())
    broken = tuple(({"host": host, "verb": verb}, n) for verb, n in sorted(Counter(faults).items()))
    frozen, cpu = of_all("frozen"), of_all("processor_s")
    families = [
        Family("pubsubctl_process_up", "gauge", "Whether it runs.", up),
        Family("pubsubctl_process_frozen", "gauge", "Whether a fault has stopped it.", frozen),
        Family("pubsubctl_process_cpu_seconds_total", "counter", "Its processor time.", cpu),
        Family("pubsubctl_faults_active", "gauge", "Faults in effect, by verb.", broken),
    ]
    own: dict[str, Family] = {}
    for process, row in numbers.items():
        role = processes[process]["role"]
        for name, value in row.items():
            family = None
            if type(value) in (int, float) and name not in _NOT_NUMBERS:
                family, per_second = _family_of(role, name)
                sample = (labels[process], value if per_second is None else value / per_second)
                family = replace(family, samples=(*_of(own, family).samples, sample))
            elif isinstance(value, Mapping) and "le_s" in value:
                words = name.replace("_", " ").capitalize()
                meaning = f"{words} of each {role}, as a histogram."
                family = Family(_metric(role, f"{name}_seconds"), "histogram", meaning)
                spread = (labels[process], value)
                family = replace(family, histograms=(*_of(own, family).histograms, spread))
            if family is not None:
                own[family.name] = family
    families += [own[name] for name in sorted(own)]
    return [each for each in families if each.samples or each.histograms]


def _of(known: Mapping[str, Family], family: Family) -> Family:
    return known.get(family.name, family)


def _metric(role: str, name: str) -> str:
    prefix = f"{role}_"
    own_name = f"peer_{name.removeprefix(prefix)}" if name.startswith(prefix) else name
    return _NO_NAME.sub("_", f"pubsubctl_{prefix}{own_name}")


def _family_of(role: str, name: str) -> tuple[Family, float | None]:
    """Return the metric of a statistic, and the number of its units in a second, if it has one.

    Times are in seconds. The name of a counter ends with `_total`, and each meaning is distinct.
    """
    name = _NO_NAME.sub("_", name)
    stem, _, unit = name.rpartition("_")
    per_second = _UNITS.get(unit) if stem else None
    metric = _metric(role, f"{stem}_seconds" if per_second else name)
    words = (stem if per_second else name).replace("_", " ").capitalize()
    if _GAUGES.fullmatch(name):
        return Family(metric, "gauge", f"{words} of each {role} at this moment."), per_second
    meaning = f"{words} of each {role} since its start."
    return Family(f"{metric}_total", "counter", meaning), per_second


Collect = Callable[[], Awaitable[Iterable[Family]]]


class MetricsServer:
    """A server of `GET /metrics` on a port of the loopback address.

    Any local user may connect. So a connection has `REQUEST_S` from its acceptance to the end of
    the answer. The oldest of `WAITING_CONNECTIONS` is closed for a new connection: of those that
    have sent no request, or have not read the answer. The last `RESERVED_DESCRIPTORS` of the
    process are never used here: the agent needs these to end faults.

    Args:
        collect: returns the present families; called once per request.
        descriptors: limit of open descriptors of the process.
    """

    def __init__(self, collect: Collect, descriptors: int | None = None) -> None:
        self._collect = collect
        self._room = trio.CapacityLimiter(_AT_ONCE)
        self._waiting: dict[trio.CancelScope, None] = {}
        self._requests = 0
        if descriptors is None:
            descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._highest_descriptor = descriptors - RESERVED_DESCRIPTORS

    async def serve(
        self, port: int, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; the status is the port, which is assigned if `port` is 0.

        Raises:
            OSError: the port is unavailable.
        """
        (listener,) = await trio.open_tcp_listeners(port, host=LOOPBACK)
        async with listener:
            bound: int = listener.socket.getsockname()[1]
            async with trio.open_nursery() as nursery:
                task_status.started(bound)
                while True:
                    stream = await accept_next(listener.accept, _log_accept_failure)
                    if stream.socket.fileno() >= self._highest_descriptor:
                        stream.socket.close()  # the kernel gives out the lowest that is free
                    else:
                        nursery.start_soon(self._answer, stream, self._admit())

    def _admit(self) -> trio.CancelScope:
        """Return the scope of a new connection; close the oldest one of too many."""
        if len(self._waiting) >= WAITING_CONNECTIONS:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
        scope = trio.CancelScope(deadline=trio.current_time() + REQUEST_S)
        self._waiting[scope] = None
        return scope

    async def _answer(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            with scope:
                try:
                    head = await _request_head(stream)
                    self._waiting.pop(scope, None)
                    if head is not None:
                        response = await self._response_in_turn(head)
                        self._waiting[scope] = None
                        await stream.send_all(response)
                        await _end_orderly(stream)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass  # the collector has disconnected; it will retry
                except OSError as error:  # its next request may be answered
                    logger.warning("metrics: %s", error)
        finally:
            self._waiting.pop(scope, None)
            stream.socket.close()

    async def _response_in_turn(self, head: bytes) -> bytes:
        """Return the response once few others are computed; a reader that is slow delays nobody."""
        if self._requests >= PENDING_REQUESTS:
            return _BUSY
        self._requests += 1
        try:
            async with self._room:
                response = await self._response(head)
        finally:
            self._requests -= 1
        if head.startswith(b"HEAD "):
            return response[: response.index(b"\r\n\r\n") + 4]
        return response

    async def _response(self, head: bytes) -> bytes:
        if b"\r\n\r\n" not in head:
            text = f"a request has at most {_REQUEST_BYTES} bytes\n"
            return _response_of("431 Request Header Fields Too Large", text)
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response_of("400 Bad Request", "this is not a request of HTTP/1.1\n")
        method, target, _ = words
        if target.partition(b"?")[0] != b"/metrics":
            return _response_of("404 Not Found", "what there is is at /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _response_of("405 Method Not Allowed", "GET it\n", "Allow: GET, HEAD\r\n")
        return _response_of("200 OK", exposition(await self._collect()))


async def _request_head(stream: trio.SocketStream) -> bytes | None:
    """Return the request with its empty line; None if the stream ends before.

    A request that is too long has no empty line.
    """
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) > _REQUEST_BYTES:
            return head
        chunk = await stream.receive_some(_REQUEST_BYTES)
        if not chunk:
            return None
        head += chunk
    return head


async def _end_orderly(stream: trio.SocketStream) -> None:
    """Read the rest of the request; an earlier close would discard the response in transit."""
    await stream.send_eof()
    with trio.move_on_after(_LINGER_S):
        while await stream.receive_some(_REQUEST_BYTES):
            pass


def _log_accept_failure(error: OSError) -> None:
    logger.warning("metrics: %s", error.strerror)


def _response_of(status: str, text: str, more: str = "") -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body


_BUSY: Final = _response_of("503 Service Unavailable", "too many requests at once\n")
