"""Tests of the driver: events in turn, effects in order, deadlines on time."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio

from brokerd.errors import BrokerMustEnd, RemoteProtocolError
from brokerd.model.client_messages import Redirect
from brokerd.protocols.interface import (
    Change,
    CloseSession,
    Commit,
    DeadlineReached,
    Deliver,
    Effect,
    Event,
    Instant,
    MessageReceived,
    OpenSession,
    Persisted,
    Record,
    RedirectClient,
    Send,
    SessionLost,
    Shutdown,
)
from brokerd.runtime.driver import Driver
from tests.helpers.virtual_time import in_virtual_time


class ScriptedCore:
    """A core that answers events by a script, and records events and times."""

    def __init__(
        self, script: Mapping[type, list[Effect]], deadlines: list[int] | None = None
    ) -> None:
        self.told: list[tuple[Event, Instant]] = []
        self._script = script
        self._deadlines = deadlines or []

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        self.told.append((event, now_ns))
        if isinstance(event, MessageReceived) and event.message == "nonsense":
            raise RemoteProtocolError(event.peer, "nonsense")
        if isinstance(event, DeadlineReached):
            self._deadlines.pop(0)
        return self._script.get(type(event), [])

    def next_deadline(self) -> Instant | None:
        return self._deadlines[0] if self._deadlines else None

    def statistics(self) -> Mapping[str, int]:
        return {}

    def status(self) -> Mapping[str, Any]:
        return {}


class NotingConnection:
    """A connection that records messages and deadlines."""

    def __init__(self, done: list[tuple[Any, ...]], peer: int | str) -> None:
        self._done, self._peer = done, peer

    def send(self, message: Any) -> None:
        self._done.append(("send", self._peer, message))

    def flush(self, now_ns: int) -> None:
        self._done.append(("flush", self._peer))


class Surroundings:
    """Links with connections, disk and log in one; requests are recorded in order."""

    def __init__(self, core: ScriptedCore) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.connections = {peer: NotingConnection(self.done, peer) for peer in (1, 2, "c")}
        self.driver = Driver(core, lambda *entry: self.done.append(("record", *entry)))
        self.driver.connect_to(self, self)  # type: ignore[arg-type]

    def open(self, *what: Any) -> None:
        self.done.append(("open", *what))

    def close(self, peer: int, reason: str) -> None:
        self.done.append(("close", peer, reason))
        self.driver.post([SessionLost(peer, 7, "closed_by_us")])

    def addresses_of(self, brokers: Sequence[int]) -> tuple[str, ...]:
        return tuple(f"host:{broker}" for broker in brokers if broker < 7)

    def refuse(self, *what: Any) -> None:
        self.done.append(("refuse", *what))

    def commit(self, commit: Commit) -> None:
        self.done.append(("commit", commit.token))
        self.driver.post([Persisted(commit.token or 0)])


@in_virtual_time
async def test_effects_are_carried_out_in_order_before_the_events_that_they_cause() -> None:
    commit = Commit((Change("t", "k", 1),), 3)
    script: dict[type, list[Effect]] = {
        MessageReceived: [
            Send(1, "a"),
            CloseSession(2, "why"),
            commit,
            Deliver("c", "item"),  # type: ignore[arg-type]
            RedirectClient("c", (5, 7, 4)),
            RedirectClient("c", (8,)),
            OpenSession(2),
            Record("happened", {"x": 1}),
        ],
        Persisted: [Send(1, "durable")],
    }
    core = ScriptedCore(script)
    around = Surroundings(core)
    assert around.driver.post([MessageReceived(1, 5, "m")]) == len({1, "c"})
    assert around.done == [
        ("send", 1, "a"),
        ("close", 2, "why"),
        ("commit", 3),
        ("send", "c", "item"),
        ("send", "c", Redirect(("host:5", "host:4"))),
        ("open", 2),
        ("record", "happened", {"x": 1}),
        ("send", 1, "durable"),
        ("flush", 1),
        ("flush", "c"),
    ]
    assert [type(event) for event, _ in core.told] == [MessageReceived, SessionLost, Persisted]


@in_virtual_time
async def test_messages_behind_a_protocol_violation_in_a_session_are_discarded() -> None:
    core = ScriptedCore({})
    around = Surroundings(core)
    bad, behind, other = (
        MessageReceived(1, 5, "nonsense"),
        MessageReceived(1, 5, "behind it"),
        MessageReceived(2, 6, "of somebody else"),
    )
    around.driver.post([bad, behind, other])
    assert around.done[0] == ("refuse", 1, 5, "nonsense")
    lost, again = SessionLost(1, 5, "protocol_error"), MessageReceived(1, 6, "of a new session")
    around.driver.post([behind, lost, again])
    assert [event for event, _ in core.told] == [bad, other, lost, again]
    assert not around.driver._refused, "nothing is kept of a session that has ended"


@in_virtual_time
async def test_a_core_that_must_end_is_recorded_with_its_reason_before_the_end() -> None:
    script: dict[type, list[Effect]] = {
        MessageReceived: [Send(1, "before"), Shutdown("slow for long"), Send(1, "after")]
    }
    around = Surroundings(ScriptedCore(script))
    with pytest.raises(BrokerMustEnd, match="slow for long"):
        around.driver.post([MessageReceived(1, 5, "m")])
    assert around.done == [
        ("send", 1, "before"),
        ("record", "shut_down", {"reason": "slow for long"}),
    ]


@in_virtual_time
async def test_deadlines_fire_on_time_even_if_they_move() -> None:
    second = 1_000_000_000
    start = round(trio.current_time() * second)
    core = ScriptedCore({}, [start + 2 * second, start + 3 * second, start + 3 * second])
    around = Surroundings(core)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(around.driver.run)
        around.driver.post([MessageReceived(1, 5, "m")])
        await trio.sleep(1)
        core._deadlines.insert(0, start + second + 1)
        around.driver.post([MessageReceived(1, 5, "m")])
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    due = [now - start for event, now in core.told if isinstance(event, DeadlineReached)]
    assert due == [second + 1, 2 * second, 3 * second, 3 * second]
