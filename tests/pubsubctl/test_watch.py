"""Stories about `status --watch`, which shows samples of a lab as numbers on a screen."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from brokerd.agent.client import AgentClient
from brokerd.errors import ControlError
from brokerd.protocols.interface import CoreStatus
from pubsubctl.deployment.newest_record import Records
from pubsubctl.monitor.live_view import BrokerSample, HostSample, LoadSample, View, Watch
from pubsubctl.monitor.polling import RECORD_EVERY_LOOKS, _follow, sample_host
from pubsubctl.monitor.view_text import line_text, one_line, screen_lines
from pubsubctl.state import BrokerState
from tests.helpers.virtual_time import in_virtual_time

SECOND_NS = 1_000_000_000


def deployment(brokers: Mapping[str, str]) -> dict[str, Any]:
    """Return the record of a deployment: broker → host."""
    return {
        "deployment_id": "20261121T100000Z-abcdef",
        "topology": {"name": "demo", "parameters": {}},
        "protocol": "delta_tree",
        "placement": {
            "brokers": [
                {"broker": name, "host": host, "port": 1, "core": -1}
                for name, host in brokers.items()
            ]
        },
    }


def broker(
    name: str, host: str, at_s: float, *, received: int, cpu_s: float, **changed: Any
) -> BrokerSample:
    """Return a sample of a running broker with one session, unless changed."""
    state = BrokerState(name, host, 1, 7, "running", wanted=("b2",), ready=("b2",))
    return BrokerSample(
        state=replace(state, **changed),
        t_ns=int(at_s * SECOND_NS),
        run_id="20261121T100000Z-123456",
        counters={
            "publications_received": received,
            "publications_forwarded": 2 * received,
            "publications_delivered": 0,
            "queue_publications": 3,
            "outbox_bytes": 2048,
            "cpu_s": cpu_s,
        },
    )


def publishing(at_s: float, sent: int, due_ms: Mapping[int, float]) -> LoadSample:
    """Return a sample of publishers, with due times of some publications."""
    return LoadSample(
        process="load-pub",
        t_ns=int(at_s * SECOND_NS),
        sent=sent,
        backlog=4,
        open=11,
        delivered=0,
        sent_marks=tuple(("p1/0/1", n, int(ms * 1e6)) for n, ms in due_ms.items()),
    )


def subscribing(at_s: float, delivered: int, received_ms: Mapping[int, float]) -> LoadSample:
    """Return a sample of subscribers, with receive times of some publications."""
    return LoadSample(
        process="load-sub",
        t_ns=int(at_s * SECOND_NS),
        sent=0,
        backlog=0,
        open=0,
        delivered=delivered,
        received_marks=tuple(("p1/0/1", n, int(ms * 1e6)) for n, ms in received_ms.items()),
    )


def two_seconds_of_two_brokers() -> tuple[Watch, View]:
    """Return two samples: b1 forwards 100 per second and is absorbed; b2 dies."""
    about = deployment({"b1": "h1", "b2": "h2"})
    watch = Watch()
    first = [
        HostSample(
            host="h1",
            deployment=about,
            brokers=(broker("b1", "h1", 10, received=1000, cpu_s=5.0),),
            loads=(publishing(10, 400, {4: 9_990}), subscribing(10, 800, {})),
        ),
        HostSample(
            host="h2",
            deployment=about,
            brokers=(broker("b2", "h2", 50, received=10, cpu_s=1.0),),
        ),
    ]
    watch.take(first, "10:00:10")
    fault = {"fault_id": "f1", "verb": "absorb", "process": "b1", "peer": ""}
    second = [
        HostSample(
            host="h1",
            deployment=about,
            brokers=(broker("b1", "h1", 11, received=1100, cpu_s=5.25, ready=(), faults=("f1",)),),
            loads=(
                publishing(11, 500, {8: 10_100, 12: 10_200}),
                subscribing(11, 1000, {4: 10_010, 8: 10_101, 12: 10_203}),
            ),
            faults=({**fault, "lease_left_ms": 12_400},),
            lease_ms=9_000,
        ),
        HostSample(
            host="h2",
            deployment=about,
            brokers=(
                BrokerSample(state=BrokerState("b2", "h2", 1, None, "exited", exit="SIGKILL by f")),
            ),
        ),
    ]
    return watch, watch.take(second, "10:00:11")


GOLDEN = """\
demo · delta_tree · 2 brokers on 2 hosts                                10:00:11
run 20261121T100000Z-123456
published      100/s  █                                              500
delivered      200/s  █                                            1,000
backlog          4 unsent  11 unacknowledged  3 queued  2 KiB in outboxes
latency   p50   3.00 ms  p99  20.00 ms  max 20.00 ms (3 sampled)
sessions  0/1 ready   brokers 0/2 healthy   processors 0.25
! absorb b1, heals within 12 s  on h1, f1
kept up by the command that deployed it; stops within 9 s of its end

  BROKER HOST STATE                   SESS  CPU%    IN/s   OUT/s DELIV/s  QUEUE
! b1     h1   no session to b2         0/1    25     100     200       0      3
! b2     h2   SIGKILL by f             0/0     -       -       -       -      0
q ends this view; brokers keep running
"""


def test_the_screen_shows_throughput_latency_load_and_problems() -> None:
    _, view = two_seconds_of_two_brokers()
    lines = [line_text(line) for line in screen_lines(view, 80, 24)]
    assert "\n".join(lines) + "\n" == GOLDEN


def test_without_a_terminal_a_look_is_one_line() -> None:
    _, view = two_seconds_of_two_brokers()
    assert one_line(view) == (
        "10:00:11  100 published/s  200 delivered/s  backlog 15  p50 3.00 ms  p99 20.00 ms  "
        "brokers 0/2  sessions 0/1  cpu 0.25  absorb b1, heals within 12 s"
    )


def test_as_json_nothing_of_it_is_missing() -> None:
    _, view = two_seconds_of_two_brokers()
    document = view.document()
    assert document["schema"] == "pubsubctl/watch/1"
    assert document["published_per_s"] == 100.0
    assert document["latency_us"] == {"p50": 3000.0, "p99": 20000.0, "max": 20000.0, "sampled": 3}
    assert document["faults"][0]["lease_left_ms"] == 12_400
    assert [row["healthy"] for row in document["brokers"]] == [False, False]


def test_a_restarted_broker_has_no_rates_until_it_was_seen_twice() -> None:
    about = deployment({"b1": "h1"})
    watch = Watch()
    before = broker("b1", "h1", 10, received=5000, cpu_s=9.0)
    watch.take([HostSample(host="h1", deployment=about, brokers=(before,))], "1")
    again = broker("b1", "h1", 11, received=7, cpu_s=0.1, pid=8)
    (row,) = watch.take([HostSample(host="h1", deployment=about, brokers=(again,))], "2").brokers
    assert (row.received, row.cpu) == (None, None)


def test_an_unresponsive_broker_is_shown_as_unhealthy() -> None:
    about = deployment({"b1": "h1"})
    silent = BrokerState("b1", "h1", 1, 7, "silent", exit="b1 did not answer status within 900 ms")
    look = HostSample(host="h1", deployment=about, brokers=(BrokerSample(state=silent),))
    (row,) = Watch().take([look], "1").brokers
    assert (row.state, row.is_healthy) == ("does not answer", False)


def test_stamps_of_different_hosts_are_never_compared() -> None:
    about = deployment({"b1": "h1"})
    hosts = [
        HostSample(host="h1", deployment=about, loads=(publishing(10, 1, {4: 9_000}),)),
        HostSample(host="h2", deployment=about, loads=(subscribing(10, 1, {4: 9_500}),)),
    ]
    assert Watch().take(hosts, "1").latency is None


def a_hundred_brokers(sick: str) -> View:
    """Return b000 to b099; the load increases with the number."""
    names = [f"b{number:03d}" for number in range(100)]
    about = deployment(dict.fromkeys(names, "h1"))
    watch = Watch()
    for at_s in (10, 11):
        looks = tuple(
            broker(
                name, "h1", at_s, received=0, cpu_s=at_s * number / 200,
                state="recovering" if name == sick else "running",
            )
            for number, name in enumerate(names)
        )  # fmt: skip
        view = watch.take([HostSample(host="h1", deployment=about, brokers=looks)], "1")
    return view


def test_a_long_list_shows_unhealthy_and_busy_brokers_and_a_summary() -> None:
    lines = [line_text(line) for line in screen_lines(a_hundred_brokers("b017"), 80, 24)]
    assert len(lines) == 24
    shown = [line.split()[:2] for line in lines if " h1 " in line]
    assert shown[0] == ["!", "b017"]
    assert [row[0] for row in shown[1:4]] == ["b099", "b098", "b097"]
    assert lines[-2] == (
        f"  and {100 - len(shown)} more: all healthy, "
        f"sessions {100 - len(shown)}/{100 - len(shown)}, cpu 1906 % together"
    )


def test_a_wide_screen_keeps_numbers_near_and_a_narrow_one_cuts_none() -> None:
    _, view = two_seconds_of_two_brokers()
    wide = [line_text(line) for line in screen_lines(view, 200, 60)]
    assert max(len(line) for line in wide[9:]) <= 80, "no gap between a broker and its numbers"
    narrow = [line_text(line) for line in screen_lines(view, 56, 20)]
    assert "backlog          4 unsent  11 unacknowledged  3 queued" in narrow
    assert "sessions  0/1 ready   brokers 0/2 healthy" in narrow
    assert "  BROKER HOST STATE          SESS  CPU%    IN/s   OUT/s" in narrow
    title = line_text(screen_lines(view, 20, 20)[0])
    assert (len(title), title[-1]) == (20, "~")  # a cut word is marked
    idle = Watch().take([HostSample(host="h1", deployment=deployment({"b1": "h1"}))], "1")
    text = "\n".join(line_text(line) for line in screen_lines(idle, 80, 24))
    assert "no workload runs" in text
    assert "latency          -   measured while a wor" in text


@pytest.mark.parametrize("width, height", [(80, 24), (60, 20), (40, 12), (200, 60)])
def test_the_screen_is_never_overrun(width: int, height: int) -> None:
    for view in (a_hundred_brokers("b003"), two_seconds_of_two_brokers()[1], View(clock="1")):
        lines = [line_text(line) for line in screen_lines(view, width, height)]
        assert len(lines) <= height
        assert max(map(len, lines)) <= width


def test_plain_screens_are_ascii() -> None:
    _, view = two_seconds_of_two_brokers()
    text = "\n".join(line_text(line) for line in screen_lines(view, 80, 24, plain=True))
    assert text.isascii(), text


def test_an_unresponsive_host_is_shown_without_hiding_other_hosts() -> None:
    watch, _ = two_seconds_of_two_brokers()
    about = deployment({"b1": "h1", "b2": "h2"})
    view = watch.take(
        [
            HostSample(
                host="h1",
                deployment=about,
                brokers=(broker("b1", "h1", 12, received=1200, cpu_s=5.5),),
            ),
            HostSample(host="h2", unreachable="no agent answers"),
        ],
        "10:00:12",
    )
    text = "\n".join(line_text(line) for line in screen_lines(view, 80, 24))
    assert "! h2 does not answer: no agent answers" in text
    assert "  b1 " in text


def test_the_brokers_of_a_lost_host_stay_in_sight() -> None:
    about = deployment({"b1": "h1", "b2": "h2", "b3": "h3"})
    there = (broker("b1", "h1", 12, received=1200, cpu_s=5.5),)
    looks = [
        HostSample(host="h1", deployment=about, brokers=there),
        HostSample(host="h2", unreachable="connection refused"),
        HostSample(host="h3", is_awaited=True),
    ]
    view = Watch().take(looks, "10:00:12")
    assert [(row.name, row.state, row.is_healthy) for row in view.brokers] == [
        ("b1", "running", True),
        ("b2", "host does not answer", False),
    ]
    first, *_ = (line_text(line) for line in screen_lines(view, 80, 24))
    assert first.startswith("demo · delta_tree · 2 brokers on 2 hosts")


def test_before_anything_is_deployed_the_view_waits() -> None:
    view = Watch().take([HostSample(host="h1")], "10:00:00")
    assert one_line(view) == "10:00:00  nothing is deployed; waiting"


def test_hosts_without_an_answer_yet_are_not_shown_as_empty() -> None:
    hosts = [HostSample(host="h1", is_awaited=True), HostSample(host="h2", is_awaited=True)]
    assert one_line(Watch().take(hosts, "10:00:00")) == "10:00:00  reaching h1, h2"
    about = deployment({"b1": "h1"})
    looks = (broker("b1", "h1", 10, received=1, cpu_s=1.0),)
    hosts[0] = HostSample(host="h1", deployment=about, brokers=looks)
    assert one_line(Watch().take(hosts, "10:00:01")).endswith("cpu -  reaching h2")


def test_another_deployment_begins_with_an_empty_history() -> None:
    """Load generators that report no later time add nothing."""
    watch = Watch()
    about = deployment({"b1": "h1"})
    lengths = []
    for at_s, identity in ((10, "a"), (11, "a"), (12, "a"), (12, "a"), (20, "b"), (21, "b")):
        loads = (publishing(at_s, at_s, {}), subscribing(at_s, 2 * at_s, {}))
        sample = HostSample(host="h1", deployment={**about, "deployment_id": identity}, loads=loads)
        view = watch.take([sample], "10:00:00")
        lengths.append((len(view.published_history), len(view.delivered_history)))
    assert lengths == [(0, 0), (1, 1), (2, 2), (2, 2), (1, 1), (2, 2)]


class WatchedHost:
    """A host whose record of the deployment may change; records the samples that are shown."""

    def __init__(self) -> None:
        self.host = SimpleNamespace(name="h1")
        self.record: dict[str, Any] | None = None
        self.reads = 0

    async def read_deployment(self) -> dict[str, Any] | None:
        self.reads += 1
        return self.record

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator[Any]:
        yield self

    async def status(self) -> dict[str, Any]:
        return {"processes": {}, "faults": [], "lease": None}


@in_virtual_time
async def test_the_record_that_is_shown_follows_the_host_at_each_change() -> None:
    """The topology of a deployment changes twice, then another deployment takes its place."""
    host = WatchedHost()
    looks: dict[str, HostSample] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_follow, host, Records(), looks)
        await trio.sleep(1)
        assert looks["h1"].deployment is None
        for changes in ({}, {"brokers": 4}, {"brokers": 5}, {"deployment_id": "another"}):
            host.record = {**deployment({}), **changes}
            await trio.sleep(8)
            assert looks["h1"].deployment == host.record
        before = host.reads
        await trio.sleep(100)
        assert host.reads - before <= 100 / RECORD_EVERY_LOOKS + 1, "an unchanged record"
        host.record = None
        await trio.sleep(8)
        assert looks["h1"].deployment is None
        nursery.cancel_scope.cancel()


class SampledAgent:
    """An agent with brokers and load generators that answer by name; records the queries."""

    def __init__(self) -> None:
        self.refusals: dict[str, str] = {}
        self.queries: list[tuple[str, str, int]] = []
        self.now_ns = 0
        ends = {"exit_cause": "unexpected", "exit_code": 1, "exit_signal": None}
        self.processes: dict[str, dict[str, Any]] = {
            "b1": {"role": "broker", "state": "running", "pid": 7},
            "b2": {"role": "broker", "state": "exited", "pid": None, **ends},
            "b3": {"role": "broker", "state": "running", "pid": 8},
            "load-2": {"role": "load", "state": "running"},
            "load-1": {"role": "load", "state": "running"},
            "load-0": {"role": "load", "state": "stopped"},
        }

    async def status(self) -> dict[str, Any]:
        verbs = {"f1": ("absorb", "applied"), "f2": ("absorb", "healed"), "f3": ("kill", "applied")}
        faults = [{"fault_id": name, "verb": v, "state": s} for name, (v, s) in verbs.items()]
        return {"processes": self.processes, "faults": faults, "lease": {"left_ms": 5}}

    async def broker(
        self, name: str, command: str, arguments: Any = None, timeout_ms: int = 0
    ) -> dict[str, Any]:
        assert timeout_ms > 0
        self.queries.append((name, command, (arguments or {}).get("after_ns", -1)))
        if kind := self.refusals.get(f"{name} {command}"):
            raise ControlError(kind, f"{name} does not answer")
        if command == "status":
            return {**CoreStatus(state="running").to_mapping({}), "faults": [], "run_id": "r"}
        if command == "statistics":
            return {"t_ns": self.now_ns, "received": 4, "cpu_s": 0.5, "name": name}
        marks = {"sources": ["b1/0/1"], "rows": [[0, self.now_ns, self.now_ns + 1]]}
        counts = dict.fromkeys(("sent", "backlog", "open", "delivered"), 3)
        return {"now_ns": self.now_ns, **counts, "sent_rows": marks, "received_rows": marks}

    async def sample(self, after_ns: dict[str, int]) -> HostSample:
        """Return the sample of a second later, without earlier queries."""
        self.now_ns += SECOND_NS
        self.queries.clear()
        placed = deployment({"b3": "h1", "b2": "h1", "b1": "h1", "b4": "h2"})
        return await sample_host(cast(AgentClient, self), placed, "h1", after_ns)


@in_virtual_time
async def test_a_sample_has_all_of_its_host_and_marks_later_than_the_last() -> None:
    agent, after_ns = SampledAgent(), dict[str, int]()
    for look in range(3):
        agent.refusals = {"load-1 latency_samples": "busy"} if look == 1 else {}
        seen = await agent.sample(after_ns)
        states = [(each.state.broker, each.state.state) for each in seen.brokers]
        assert states == [("b3", "running"), ("b2", "exited"), ("b1", "running")]
        running = seen.brokers[0]
        assert (running.t_ns, running.run_id) == (agent.now_ns, "r")
        assert set(running.counters) == {"t_ns", "received", "cpu_s"}
        loads = ["load-2"] if look == 1 else ["load-1", "load-2"]
        assert [each.process for each in seen.loads] == loads
        mark = ("b1/0/1", agent.now_ns, agent.now_ns + 1)
        assert {(each.t_ns, each.sent_marks, each.received_marks) for each in seen.loads} == {
            (agent.now_ns, (mark,), (mark,))
        }
        answered = {"load-1": max(0, look - look // 2), "load-2": look}
        asked = {name: after for name, command, after in agent.queries if after >= 0}
        assert asked == {name: n * SECOND_NS for name, n in answered.items()}
        assert [row["fault_id"] for row in seen.faults] == ["f1"]
        assert seen.lease_ms == 5


@pytest.mark.parametrize("command", ["b1 status", "b1 statistics", "load-1 latency_samples"])
@in_virtual_time
async def test_a_sample_fails_only_with_its_agent(command: str) -> None:
    """A broker without an answer is shown as such, and has no counters."""
    agent = SampledAgent()
    agent.refusals = {command: "busy"}
    seen = await agent.sample({})
    assert (seen.brokers[2].state.state == "silent") == (command == "b1 status")
    assert (seen.brokers[2].counters == {}) == command.startswith("b1")
    assert len(seen.loads) == 2 - (command == "load-1 latency_samples")
    agent.refusals = {command: "closed"}
    if command == "b1 status":
        return  # the next query of the sample fails
    with pytest.raises(ExceptionGroup) as failed:
        await agent.sample({})
    assert failed.group_contains(ControlError, match=f"{command.split()[0]} does not answer")
