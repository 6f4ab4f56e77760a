"""Tests of metrics for a collector: the text, and the access control."""

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from bench.load.pacing import Histogram
from brokerd.agent.metrics import (
    PENDING_REQUESTS,
    REQUEST_S,
    RESERVED_DESCRIPTORS,
    WAITING_CONNECTIONS,
    Family,
    MetricsServer,
    exposition,
    host_families,
)
from brokerd.errors import ControlError
from tests.helpers.agents import Lab, make_lab, run
from tests.helpers.connections import many_connections
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS
from tests.helpers.virtual_time import in_virtual_time

DASHBOARD = Path(__file__).parents[2] / "inventories" / "dashboard.json"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with make_lab() as made:
        yield made


def asked(port: int, target: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    """Return status and text of the reply."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{target}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_a_family_has_its_meaning_its_kind_and_its_samples() -> None:
    label = {"broker": 'a "b"\\\n'}
    family = Family("queue_bytes", "gauge", "What\nwaits.", ((label, 3), ({}, True), ({}, 0.5)))
    assert exposition([family]).splitlines() == [
        r"# HELP queue_bytes What\nwaits.",
        "# TYPE queue_bytes gauge",
        r'queue_bytes{broker="a \"b\"\\\n"} 3',
        "queue_bytes 1",
        "queue_bytes 0.5",
    ]
    infinite = Family("x", "gauge", "", (({}, float("inf")), ({}, float("nan"))))
    assert exposition([infinite]).splitlines()[2:] == ["x +Inf", "x NaN"]


def test_the_exposition_omits_values_without_a_number_and_processes_without_a_reply() -> None:
    row = {"role": "broker", "state": "running", "frozen": False, "processor_s": 1.5}
    gone = {"role": "broker", "state": "exited", "frozen": False, "processor_s": None}
    told = {"c1": {"queue-bytes": 7, "name": "c1", "t_ns": 5, "is_idle": True}}
    text = exposition(host_families("h1", {"c1": row, "c2": gone}, ["freeze", "freeze"], told))
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    c1, c2 = (f'{{host="h1",process="{name}",role="broker"}}' for name in ("c1", "c2"))
    assert samples == [
        f"pubsubctl_process_up{c1} 1",
        f"pubsubctl_process_up{c2} 0",
        f"pubsubctl_process_frozen{c1} 0",
        f"pubsubctl_process_frozen{c2} 0",
        f"pubsubctl_process_cpu_seconds_total{c1} 1.5",
        'pubsubctl_faults_active{host="h1",verb="freeze"} 2',
        f"pubsubctl_broker_queue_bytes{c1} 7",
    ]


def test_a_histogram_has_all_that_is_within_each_bound() -> None:
    """Prometheus requires that the last bound covers all, with sum and count behind."""
    row = {"role": "load", "state": "running", "frozen": False, "processor_s": None}
    late = Histogram()
    for duration_ns, times in ((90_000, 3), (1_500_000, 2), (60_000_000_000, 1)):
        late.add(duration_ns, times)
    text = exposition(host_families("h1", {"l": row}, [], {"l": {"lateness": late.snapshot()}}))
    lines = [line for line in text.splitlines() if "lateness" in line]
    assert lines[1] == "# TYPE pubsubctl_load_lateness_seconds histogram"
    of = 'host="h1",process="l",role="load"'
    name = "pubsubctl_load_lateness_seconds"
    assert lines[2] == f'{name}_bucket{{{of},le="0.0001"}} 3'
    assert f'{name}_bucket{{{of},le="0.002"}} 5' in lines
    assert lines[-4:] == [
        f'{name}_bucket{{{of},le="5.0"}} 5',
        f'{name}_bucket{{{of},le="+Inf"}} 6',
        f"{name}_sum{{{of}}} 60.00327",
        f"{name}_count{{{of}}} 6",
    ]


def test_the_dashboard_queries_exported_metrics_only() -> None:
    """The file is for Grafana, and uses metrics of the project by name."""
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked_for = {
        name
        for panel in document["panels"]
        for target in panel["targets"]
        for name in re.findall(r"pubsubctl_\w+", target["expr"])
    }
    numbers = {
        "broker": [
            *("publications_received", "publications_forwarded", "resent_publications"),
            *("queue_publications", "sessions_active"),
        ],
        "load": ["sent", "acknowledged", "delivered", "backlog"],
    }
    rows = {
        role: {"role": role, "state": "running", "frozen": False, "processor_s": 1.0}
        for role in numbers
    }
    told = {role: dict.fromkeys(names, 1) for role, names in numbers.items()}
    told["load"]["lateness"] = Histogram().snapshot()
    text = exposition(host_families("h1", rows, ["kill"], told))
    there = set(re.findall(r"^(pubsubctl_\w+)", text, re.MULTILINE))
    assert asked_for
    assert asked_for <= there, asked_for - there


STATISTICS = {
    "broker": [
        *("broker_sessions_lost", "sessions_lost", "sessions_active", "sessions_ready", "cpu_s"),
        *("queue_bytes", "queue_publications", "outbox_bytes", "rss_bytes", "partitions"),
        *("publications_delivered", "duplicates_received", "publications_held", "recovering"),
        *("subscriptions", "subscriptions_tagged", "matching_hits", "messages_ignored"),
    ],
    "load": [
        *("offered", "sent", "acknowledged", "delivered", "backlog", "open", "rejected"),
        *("blocked_us", "late_max_us", "late_p99_us", "cpu_ratio", "rss_bytes", "skipped"),
    ],
}


def complaints(text: str) -> list[str]:
    """Return the complaints of a checker of Prometheus' conventions about an exposition."""
    found = []
    helps = dict(re.findall("^# HELP (\\S+) (.*)$", text, re.MULTILINE))
    kinds = dict(re.findall("^# TYPE (\\S+) (.*)$", text, re.MULTILINE))
    for name, kind in kinds.items():
        words = name.split("_")
        if not helps.get(name) or list(helps.values()).count(helps[name]) > 1:
            found.append(f"{name}: no meaning of its own")
        if kind not in ("counter", "gauge", "histogram"):
            found.append(f"{name}: untyped")
        if (kind == "counter") != name.endswith("_total"):
            found.append(f"{name}: counters alone end with _total")
        if words[-1] in ("bucket", "count", "sum", "info"):
            found.append(f"{name}: a suffix of histograms")
        if {*words} & {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "m", "h", "d", "ratios"}:
            found.append(f"{name}: an abbreviated unit")
        if {*words} & {"milliseconds", "microseconds", "minutes", "hours", "kilobytes", "bits"}:
            found.append(f"{name}: no base unit")
        if {*words} & {"counter", "gauge", "histogram", "summary", "untyped"}:
            found.append(f"{name}: a kind in its name")
        if any(one == other for one, other in pairwise(words)) or name != name.lower():
            found.append(f"{name}: a word twice, or capitals")
    return found


def test_names_kinds_and_meanings_follow_the_conventions_of_prometheus() -> None:
    rows = {
        role: {"role": role, "state": "running", "frozen": False, "processor_s": 1.0}
        for role in STATISTICS
    }
    told = {role: dict.fromkeys(names, 2_000_000) for role, names in STATISTICS.items()}
    told["load"]["lateness"] = Histogram().snapshot()  # type: ignore[assignment]
    text = exposition(host_families("h1", rows, ["kill"], told))
    assert complaints(text) == []
    wrong = [Family("a_a_ms", "gauge", ""), Family("b_total", "gauge", "B.")]
    assert len(complaints(exposition([*wrong, Family("c_count", "counter", "B.")]))) == 9
    load = '{host="h1",process="load",role="load"}'
    assert f"pubsubctl_load_blocked_seconds_total{load} 2.0" in text
    assert f"pubsubctl_load_late_p99_seconds{load} 2.0" in text
    assert "# TYPE pubsubctl_load_backlog gauge" in text
    assert "# TYPE pubsubctl_broker_peer_sessions_lost_total counter" in text
    assert "# HELP pubsubctl_broker_queue_bytes Queue bytes of each broker at this moment." in text


def test_the_metrics_port_stays_open_across_agents_until_disabled(lab: Lab) -> None:
    port = OWN_PORTS[1]

    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            assert (await client.status())["metrics_port"] == 0
            await client.metrics(port)
            status, text = await trio.to_thread.run_sync(asked, port)
            assert status == 200
            assert 'process="b1"' in text
        agent.kill()
        agent.wait()
        lab.start_agent()
        async with lab.client() as client:
            assert (await client.status())["metrics_port"] == port
            assert (await trio.to_thread.run_sync(asked, port))[0] == 200
            await client.metrics(0)
            with pytest.raises(urllib.error.URLError, match="refused"):
                await trio.to_thread.run_sync(asked, port)

    run(story)


def test_a_port_in_use_is_refused_and_the_previous_port_keeps_working(lab: Lab) -> None:
    port, taken = OWN_PORTS[2], OWN_PORTS[3]

    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await client.metrics(port)
            with (
                socket.create_server(("127.0.0.1", taken)),
                pytest.raises(ControlError, match=f"metrics on port {taken}: Address"),
            ):
                await client.metrics(taken)
            with pytest.raises(ControlError, match="port = 70000; 1 to 65535"):
                await client.metrics(70_000)
            assert (await client.status())["metrics_port"] == port
            assert (await trio.to_thread.run_sync(asked, port))[0] == 200

    run(story)


def test_invalid_http_requests_are_refused_and_delay_no_collector(lab: Lab) -> None:
    port = OWN_PORTS[4]

    def raw(sent: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            return connection.makefile("rb").read()

    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await client.metrics(port)
            in_thread = trio.to_thread.run_sync
            assert (await in_thread(asked, port, "/"))[0] == 404
            assert (await in_thread(asked, port, "/metrics", "POST"))[0] == 405
            assert await in_thread(asked, port, "/metrics", "HEAD") == (200, "")
            assert (await in_thread(asked, port, "/metrics?name=x"))[0] == 200
            assert (await in_thread(raw, b"hello\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
            assert await in_thread(raw, b"GET /metrics HTTP/1.1\r\n") == b""
            assert (await in_thread(raw, b"x" * 9_000)).startswith(b"HTTP/1.1 431 ")
            assert (await in_thread(asked, port, "/", "HEAD")) == (404, "")
            with socket.create_connection(("127.0.0.1", port)):
                assert (await in_thread(asked, port))[0] == 200

    run(story)


async def _nothing() -> list[Family]:
    return []


def test_silent_connections_neither_starve_the_collector_nor_exhaust_descriptors() -> None:
    async def story() -> None:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(MetricsServer(_nothing).serve, 0)
            connect = partial(trio.open_tcp_stream, "127.0.0.1", port)
            async with many_connections(4 * WAITING_CONNECTIONS, connect) as silent:
                with trio.fail_after(REQUEST_S):
                    async with await connect() as collector:
                        await collector.send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
                        answer = await collector.receive_some()
                assert answer.startswith(b"HTTP/1.1 200 ")
                with trio.fail_after(REQUEST_S / 2):
                    assert await _ends(silent[0]), "the oldest is closed"
            nursery.cancel_scope.cancel()

    run(story)


def test_readers_that_are_slow_do_not_starve_the_collector() -> None:
    name = "pubsubctl_long_total"
    families = [Family(name, "counter", "Long.", tuple(({"n": str(n)}, n) for n in range(9_000)))]

    async def collect() -> list[Family]:
        return families

    def slow(port: int) -> socket.socket:
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_024)
        reader.connect(("127.0.0.1", port))
        reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        return reader

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(MetricsServer(collect).serve, 0)
            with ExitStack() as stack:
                for _ in range(PENDING_REQUESTS - 1):
                    stack.enter_context(await trio.to_thread.run_sync(slow, port))
                status, text = await trio.to_thread.run_sync(asked, port)
            assert (status, text.count(name)) == (200, 9_002)
            nursery.cancel_scope.cancel()

    run(story)


def test_a_response_arrives_although_the_request_has_a_body() -> None:
    async def story() -> None:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(MetricsServer(_nothing).serve, 0)
            async with await trio.open_tcp_stream("127.0.0.1", port) as client:
                await client.send_all(b"POST /metrics HTTP/1.1\r\n\r\n" + bytes(100_000))
                answer = b""
                while chunk := await client.receive_some():
                    answer += chunk
            assert answer.startswith(b"HTTP/1.1 405 ")
            nursery.cancel_scope.cancel()

    run(story)


def test_requests_beyond_those_pending_are_refused_at_once() -> None:
    async def never() -> list[Family]:
        await trio.sleep_forever()
        return []

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(MetricsServer(never).serve, 0)
            connect = partial(trio.open_tcp_stream, "127.0.0.1", port)
            first, answered = trio.open_memory_channel[bytes | bytearray](PENDING_REQUESTS + 1)

            async def ask(stream: trio.SocketStream) -> None:
                await stream.send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
                first.send_nowait(await stream.receive_some())

            async with (
                many_connections(PENDING_REQUESTS + 1, connect) as asking,
                trio.open_nursery() as asked_at_once,
            ):
                for stream in asking:
                    asked_at_once.start_soon(ask, stream)
                with trio.fail_after(REQUEST_S / 2):
                    answer = await answered.receive()
                asked_at_once.cancel_scope.cancel()
            assert answer.startswith(b"HTTP/1.1 503 ")
            nursery.cancel_scope.cancel()

    run(story)


@in_virtual_time
async def test_a_connection_has_its_time_from_its_acceptance() -> None:
    """Further bytes do not extend the time."""

    async with trio.open_nursery() as nursery:
        port = await nursery.start(MetricsServer(_nothing).serve, 0)
        began_s = trio.current_time()
        async with await trio.open_tcp_stream("127.0.0.1", port) as drips:
            while trio.current_time() < began_s + REQUEST_S - 1:
                await drips.send_all(b"G")
                await trio.sleep(0.5)
            assert await _ends(drips)
            assert trio.current_time() <= began_s + REQUEST_S + 1
        nursery.cancel_scope.cancel()


async def _ends(stream: trio.SocketStream) -> bool:
    """Return true if a stream ends without data."""
    try:
        return await stream.receive_some(1) == b""
    except trio.BrokenResourceError:
        return True


def test_the_last_descriptors_are_kept_for_the_agent() -> None:
    async def story() -> None:
        async with trio.open_nursery() as nursery:
            server = MetricsServer(_nothing, descriptors=RESERVED_DESCRIPTORS)
            port = await nursery.start(server.serve, 0)
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
                assert await _ends(stream)
            nursery.cancel_scope.cancel()

    run(story)
