"""Tests of a client's line on objects: the ends of sessions, and the requests that follow."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from brokerd.client.broker_choice import AllRefused, Attempt, Brokers
from brokerd.client.broker_connection import BrokerConnection
from brokerd.client.events import (
    Attached,
    Redirected,
    RequestRefused,
    RetryLater,
    SubscriptionAnswered,
    SubscriptionEnded,
)
from brokerd.config import SessionParameters
from brokerd.model.client_messages import Refused
from brokerd.sessions.messages import Farewell
from tests.helpers.virtual_time import in_virtual_time


class Fakes:
    """A core and a listener that record their calls, and a line between them."""

    def __init__(self, *addresses: str, can_leave: bool = True) -> None:
        self.calls: list[Any] = []
        core: Any = SimpleNamespace(
            can_leave=can_leave,
            can_follow_redirect=True,
            attachment=SimpleNamespace(home=None),
            on_lost=lambda: self.calls.append("lost"),
            leave=lambda: self.calls.append("leave"),
        )
        listener: Any = SimpleNamespace(
            session_changed=lambda _, what, details: self.calls.append((what, details["reason"])),
            failed=lambda _: self.calls.append("failed"),
        )
        dial: Any = None
        brokers = Brokers(addresses or ("a", "b"))
        self.line = BrokerConnection(core, brokers, "d", SessionParameters(), dial, listener)

    def end(self, reason: Any, farewell: Farewell | None = None) -> None:
        connection: Any = SimpleNamespace(farewell=farewell)
        self.line.connection = connection
        self.line.on_ended(connection, reason)


@pytest.mark.parametrize(
    "kind, fails, is_refused",
    [
        (None, False, False),
        ("stopping", False, False),
        ("silence", False, False),
        ("refused", False, True),
        ("superseded", True, False),
        ("fault", True, False),
    ],
)
@in_virtual_time
async def test_the_kind_of_a_farewell_decides_on_further_sessions(
    kind: str | None, fails: bool, is_refused: bool
) -> None:
    fakes = Fakes()
    why = "connection_lost" if kind is None else f"{kind}: because"
    fakes.end("connection_lost", Farewell(kind, "because") if kind is not None else None)  # type: ignore[arg-type]
    assert fakes.calls == ["lost", ("lost", why), *(["failed"] * fails)]
    assert fakes.line.connection is None
    assert fakes.line.failure == (why if fails else None)
    assert fakes.line.last_failure == f"a: {why}"
    fakes.line._next_step(None)
    assert fakes.line.brokers._refusals == ({"a": why} if is_refused else {})


@in_virtual_time
async def test_an_end_of_our_own_is_no_failure_of_the_broker() -> None:
    fakes = Fakes()
    fakes.end("closed_by_us", Farewell("stopping", "the client leaves"))
    assert (fakes.line.last_failure, fakes.line.failure) == ("", None)


@in_virtual_time
async def test_the_time_without_a_broker_begins_with_the_first_end() -> None:
    fakes = Fakes()
    await trio.sleep(3)
    assert fakes.line.unattached_since_s == trio.current_time() - 3
    fakes.line._note(Attached(None, 1))
    assert fakes.line.unattached_since_s is None
    await trio.sleep(2)
    fakes.end("connection_lost")
    began_s = trio.current_time()
    await trio.sleep(2)
    fakes.end("connection_lost")
    assert fakes.line.unattached_since_s == began_s


@in_virtual_time
async def test_the_next_step_depends_on_what_ended_the_session() -> None:
    fakes = Fakes()
    line = fakes.line
    assert line._next_step("no answer") == Attempt("b", 0.0)
    line._note(Attached(None, 1))
    step = line._next_step(None)
    assert isinstance(step, Attempt)
    assert (step.address, step.pause_s > 0) == ("b", True)
    stays = Fakes(can_leave=False)
    stays.line._refusal = "no"
    assert stays.line._next_step(None) == AllRefused("no")
    stays.line._refusal = ""
    assert stays.line._next_step("no answer") == Attempt("b", 0.0), "its broker may be there"
    stays.line._refusal = "another broker"
    assert isinstance(stays.line._next_step(None), Attempt)
    stays.line._note(Attached(None, 1))
    assert not stays.line._seeks_home


@pytest.mark.parametrize("can_leave", [True, False])
@in_virtual_time
async def test_a_client_that_leaves_a_broker_forgets_its_answers(can_leave: bool) -> None:
    fakes = Fakes(can_leave=can_leave)
    line = fakes.line
    assert line._note(SubscriptionAnswered(1, "started", 7))
    assert line._note(RetryLater(Refused("subscribe", 2, "busy", True)))
    assert line._note(RequestRefused(Refused("subscribe", 3, "no", False)))
    assert (line.last_failure, line.failure) == ("a: busy", None)
    line._leave_broker()
    assert bool(line.states) == bool(line.path_ages_ns) == (not can_leave)
    assert bool(line.refusals) == bool(line._retries) == (not can_leave)
    assert fakes.calls == ["leave"] * can_leave


@in_virtual_time
async def test_an_ended_subscription_has_no_state_and_others_keep_theirs() -> None:
    line = Fakes().line
    for number in (1, 2):
        line._note(SubscriptionAnswered(number, "started", 10 * number))
    line._note(SubscriptionEnded(1))
    assert (line.states, line.path_ages_ns) == ({2: "started"}, {2: 20})
    line._note(SubscriptionEnded(1))


@in_virtual_time
async def test_a_refused_attachment_ends_the_line_for_the_first_reason() -> None:
    fakes = Fakes()
    for reason in ("first", "second"):
        fakes.line._note(RequestRefused(Refused("connect", 0, reason, False)))
    assert fakes.line.failure == "connect was refused: first"
    assert fakes.calls == ["failed", "failed"]


@in_virtual_time
async def test_a_redirect_is_followed_once() -> None:
    fakes = Fakes()
    ends: list[str] = []
    connection: Any = SimpleNamespace(end=lambda reason, _: ends.append(reason))
    assert fakes.line._note(Redirected(("b",)))
    fakes.line._follow_redirect(connection)
    assert (ends, fakes.line.address, fakes.line._redirect) == (["closed_by_us"], "b", ())
    fakes.line._follow_redirect(connection)
    assert ends == ["closed_by_us"]


@pytest.mark.parametrize("numbers, again", [([1, 2], [1, 2]), ([1, 0], [])])
@in_virtual_time
async def test_refused_requests_are_repeated_once(numbers: list[int], again: list[int]) -> None:
    fakes = Fakes()
    done: list[Any] = []
    line: Any = fakes.line
    line.core.subscribe_again = done.append
    connection: Any = SimpleNamespace(
        end=lambda reason, _: done.append(reason), flush=lambda *_, hurried: done.append(hurried)
    )
    line._retries = numbers
    line._retry(connection)
    assert done == ([*again, True] if again else ["closed_by_us"])
    assert line._retries == []


@in_virtual_time
async def test_a_refusal_counts_for_the_attempt_that_received_it() -> None:
    """One broker refuses, and the other one does not answer at first."""
    fakes = Fakes()
    line = fakes.line
    tried: list[str] = []

    async def attach() -> str:
        tried.append(line.address)
        if len(tried) == 1:
            line._refusal = "refused: no"
            return "no"
        if len(tried) == 5:
            line.failure = "the test ends"
        return "no answer in time"

    stub: Any = attach
    line._attach_once = stub  # type: ignore[method-assign]
    await line.run()
    assert len(tried) == 5
    assert line.failure == "the test ends"
