"""Tests of control commands at a broker that has not read its state."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from brokerd.errors import ControlError
from brokerd.model.identity import ClientId, StreamId
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.protocols.extensions import (
    ListingProtocol,
    RetainedStream,
    StreamRetention,
    SubscriptionState,
)
from brokerd.protocols.interface import (
    RETENTION_CHANGED,
    CoreStatus,
    Effect,
    Event,
    Instant,
    Record,
)
from brokerd.runtime.commands import Commands


class StoredCore:
    """A core with two publications on disk; before `is_read` its queue is empty."""

    def __init__(self) -> None:
        self.is_read = False

    def status(self) -> CoreStatus[int]:
        return CoreStatus(state="running", queued=2 if self.is_read else 0)

    def detail(self) -> dict[str, Any]:
        return {"queue": 2}


async def settled() -> None:
    """Return at once, as a disk without writes."""


def commands_of(core: StoredCore) -> Commands:
    parts: Any = SimpleNamespace(
        waiting_bytes=lambda: 0,
        session_peers=tuple,
        settle=settled,
        names={},
        name="b0",
        incarnation=2,
        protocol="gryphon",
        deployment_id="d1",
        topology_digest="",
        ledger=None,
        missing=dict,
        faults=(),
        run_id="",
        obstacles={},
        witness=SimpleNamespace(marks={}),
    )
    commands = Commands(parts, cast("Any", core), parts, parts, parts, parts, parts)
    commands.started.set()
    return commands


def test_drain_waits_for_the_state_of_the_earlier_incarnation() -> None:
    async def story() -> None:
        core = StoredCore()
        commands = commands_of(core)
        drain = commands.handlers()["drain"]
        assert await drain({"timeout_ms": 1}) == {"drained": False, "queued": 0, "outbox_bytes": 0}
        core.is_read = commands.is_started = True
        assert await drain({"timeout_ms": 1}) == {"drained": False, "queued": 2, "outbox_bytes": 0}

    trio.run(story)


def test_drain_waits_for_messages_and_for_writes_under_way() -> None:
    core = StoredCore()
    commands = commands_of(core)
    commands.is_started = True
    waiting, settled_s = [40, 40, 0], 1.0
    parts: Any = commands._links
    parts.waiting_bytes = lambda: waiting.pop(0) if len(waiting) > 1 else waiting[0]

    async def settle() -> None:
        await trio.sleep(settled_s)

    parts.settle = settle
    drain = commands.handlers()["drain"]

    async def story() -> None:
        answer = {"drained": True, "queued": 0, "outbox_bytes": 0}
        for _ in range(2):
            waiting[:0] = [40, 40]
            began_s = trio.current_time()
            assert await drain({"timeout_ms": 5_000}) == answer
            assert 1.04 - 1e-6 <= trio.current_time() - began_s < 2
        waiting[:] = [40]
        began_s = trio.current_time()
        assert await drain({"timeout_ms": 300}) == {**answer, "drained": False, "outbox_bytes": 40}
        assert trio.current_time() - began_s == pytest.approx(0.3, abs=0.01)

    trio.run(story, clock=MockClock(autojump_threshold=0))


def test_a_broker_that_waits_for_others_answers_as_busy_until_it_begins() -> None:
    async def story() -> None:
        commands = commands_of(StoredCore())
        commands.started = trio.Event()
        status = commands.handlers()["status"]
        for _ in range(2):
            with pytest.raises(ControlError, match="waits for the others") as refused:
                await status({})
            assert refused.value.kind == "busy"
        assert await commands.handlers()["begin"]({}) == {}
        assert (await status({}))["name"] == "b0"

    trio.run(story)


def test_status_reports_recovering_until_the_earlier_state_is_read() -> None:
    async def story() -> None:
        core = StoredCore()
        commands = commands_of(core)
        status = commands.handlers()["status"]
        assert (await status({}))["state"] == "recovering"
        core.is_read = commands.is_started = True
        assert [(await status({}))[key] for key in ("state", "queued")] == ["running", 2]

    trio.run(story)


class ListingCore(StoredCore):
    """A core with the subscriptions of an absent and a connected client."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True
        self.policy = RetentionPolicy()
        stream = StreamId(0, 3, 0)
        self.states = [
            SubscriptionState(
                *("s1", 1, "n = 1", "away", 7_000_000_000, {stream: 1_500}, (stream,)),
                behind_events={stream: 12},
                acknowledged={stream: 900},
            ),
            SubscriptionState("s2", 4, "true", "live", None, {}, ()),
        ]

    def list_subscriptions(self, now_ns: int) -> list[SubscriptionState]:
        return [*self.states]

    def list_retention(
        self, now_ns: int, proposed: RetentionPolicy | None = None
    ) -> list[StreamRetention]:
        """One event of 50 ms and of 200 bytes is retained."""
        policy = proposed or self.policy
        early = int(0 < policy.age_ns < 50_000_000)
        record = Record(RETENTION_CHANGED, {"policy": str(self.policy)})
        default = RetentionPolicy()
        stream = StreamId(0, 0, 0)
        found = StreamRetention(stream, self.policy, default, 1, early, 50_000_000, 200, record)
        return [found]

    def list_retained(self, after: Any) -> list[RetainedStream]:
        weights = dict.fromkeys(after.get(StreamId(0, 3, 0), ()), (2, 80))
        return [RetainedStream(StreamId(0, 3, 0), 9, 400, weights, (1,), (("s1", 1),))]

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        return []

    def next_deadline(self) -> Instant | None:
        return None

    def statistics(self) -> Mapping[str, int]:
        return {}

    def clients_behind(self) -> Collection[ClientId]:
        return ()

    def aftermath(self) -> Sequence[str]:
        return ()


def test_subscriptions_are_listed_with_the_names_of_streams() -> None:
    async def story() -> None:
        core = ListingCore()
        assert isinstance(core, ListingProtocol)
        commands = commands_of(core)
        commands.broker_names = lambda: ("p1", "b0")  # the broker has no session with either
        ask = commands.handlers()["subscriptions"]
        with pytest.raises(ControlError, match="earlier incarnation"):
            await ask({})
        commands.is_started = True
        away, live = (await ask({}))["subscriptions"]
        assert away == {
            "client": "s1",
            "number": 1,
            "predicate": "n = 1",
            "mode": "away",
            "away_ms": 7_000,
            "behind_ms": {"p1.3": 1},
            "behind_events": {"p1.3": 12},
            "acknowledged": {"p1.3": 900},
            "holds": ["p1.3"],
        }
        assert (live["away_ms"], live["behind_ms"], live["holds"]) == (None, {}, [])

    trio.run(story)


def test_retained_events_are_listed_behind_the_ticks_of_a_request() -> None:
    async def story() -> None:
        commands = commands_of(ListingCore())
        commands.broker_names = lambda: ("p1", "b0")
        commands.is_started = True
        ask = commands.handlers()["retained"]
        (found,) = (await ask({"after": {"p1.3": [900]}}))["retained"]
        assert found == {
            "stream": "p1.3",
            "events": 9,
            "bytes": 400,
            "after": [[900, 2, 80]],
            "brokers": ["b0"],
            "moved": [["s1", 1]],
        }
        for wrong in ({"p1": [1]}, {"p2.0": [1]}, {"p1.3": 1}, {"p1.3": ["1"]}, {"p1.x": []}):
            with pytest.raises(ControlError, match="is no stream with ticks"):
                await ask({"after": wrong})

    trio.run(story)


def test_a_protocol_without_a_list_refuses() -> None:
    commands = commands_of(StoredCore())
    with pytest.raises(ControlError, match="gryphon keeps no list; durable does"):
        trio.run(commands.handlers()["subscriptions"], {})


@pytest.mark.parametrize(
    "client, number, force, said",
    [
        ("s1", 2, False, "b0 has no subscription 2 of client 's1'"),
        ("s2", 4, False, "its client is connected"),
        ("s1", 1, False, ""),
        ("s2", 4, True, ""),
    ],
)
def test_a_subscription_ends_unless_its_client_is_connected(
    client: str, number: int, force: bool, said: str
) -> None:
    core, ended = ListingCore(), list[tuple[str, int]]()
    commands = commands_of(core)
    commands.is_started = True
    recorded: list[Any] = []
    commands._log.record = lambda *about: recorded.append(about)  # type: ignore[method-assign]

    def end(name: str, its: int) -> None:
        ended.append((name, its))
        core.states = [each for each in core.states if each.client != name]

    commands.end_subscription = end
    arguments = {"client": client, "number": number, "force": force}
    subject = {"client": client, "number": number}
    if said:
        with pytest.raises(ControlError, match=said):
            trio.run(commands.handlers()["end_subscription"], arguments)
    else:
        assert trio.run(commands.handlers()["end_subscription"], arguments) == subject
    assert ended == ([] if said else [(client, number)])
    assert recorded == ([] if said else [("subscription_ended", subject)])


@pytest.mark.parametrize("ends_after_s", [0.5, 1e9])
def test_the_end_of_a_subscription_is_awaited_for_a_while(ends_after_s: float) -> None:
    core, recorded = ListingCore(), list[str]()
    commands = commands_of(core)
    commands.is_started = True
    commands._log.record = lambda event, _: recorded.append(event)  # type: ignore[method-assign]
    commands.end_subscription = lambda *_: None
    arguments = {"client": "s1", "number": 1}

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forget)
            await commands.handlers()["end_subscription"](arguments)
            assert trio.current_time() >= ends_after_s

    async def forget() -> None:
        await trio.sleep(min(ends_after_s, 1_000))
        core.states.clear()

    clock = MockClock(autojump_threshold=0)
    if ends_after_s < 1:
        trio.run(story, clock=clock)
        assert recorded == ["subscription_ended"]
        return
    with pytest.raises(ExceptionGroup) as refused:
        trio.run(story, clock=clock)
    assert refused.group_contains(ControlError, match="is still there: its client has made it")
    assert recorded == []


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"pubend": 1, "policy": "age=1s"}, "b0 has no pubend 1: 0 to 0"),
        ({"pubend": 0, "policy": "age=0s"}, "age = '0s'; at least 1ms"),
        ({"pubend": 0, "policy": "age=20ms"}, r"releases 1 retained .* age=2s or bytes=200B alone"),
        ({"pubend": 0, "policy": "age=20ms", "force": True}, ""),
        ({"pubend": 0, "policy": "age=1min,bytes=1KiB"}, ""),
        ({"pubend": 0}, ""),
    ],
)
def test_a_policy_changes_unless_it_releases_what_is_retained(
    arguments: dict[str, Any], said: str
) -> None:
    core = ListingCore()
    commands = commands_of(core)
    commands.is_started = True
    commands.broker_names = lambda: ("p1", "b0")

    def change(pubend: int, policy: RetentionPolicy | None) -> None:
        core.policy = policy or RetentionPolicy()

    commands.change_retention = change
    ask = commands.handlers()["set_retention"]
    if said:
        with pytest.raises(ControlError, match=said):
            trio.run(ask, arguments)
    else:
        policy = arguments.get("policy", "never")
        answer = trio.run(ask, arguments)
        assert answer == {"pubend": 0, "policy": policy, "before": "never"}
        (row,) = trio.run(commands.handlers()["retention"], {"policy": "age=20ms"})["retention"]
        assert (row["stream"], row["policy"], row["early"]) == ("p1.0", policy, 1)


def test_the_log_of_a_run_begins_with_policies_that_are_not_the_topologys(tmp_path: Path) -> None:
    core, recorded = ListingCore(), list[str]()
    commands = commands_of(core)
    commands._log.record = lambda name, _details: recorded.append(name)  # type: ignore[method-assign]
    commands._log.begin_run = lambda *_: None  # type: ignore[method-assign]
    begin = commands.handlers()["begin_run"]
    trio.run(begin, {"run_id": "r1", "folder": str(tmp_path)})
    core.policy = RetentionPolicy(60_000_000_000)
    trio.run(begin, {"run_id": "r2", "folder": str(tmp_path)})
    assert recorded == ["run_begun", "run_begun", RETENTION_CHANGED]
