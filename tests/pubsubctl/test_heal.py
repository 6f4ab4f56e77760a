"""Tests of `heal --verify`, which checks hosts twice; a fault at the second check is an error."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pubsubctl.hosts import hosts
from tests.pubsubctl.conftest import Call

Answer = dict[str, list[Any]]
NOTHING: Answer = {"healed": [], "left": []}
ONE: Answer = {"healed": [{"fault_id": "f1"}], "left": []}
STUCK: Answer = {"healed": [], "left": ["fault f2 (cut b1) could not be undone"]}


class FakeHost:
    """A host whose agent heals the faults in its answers, one answer per request."""

    def __init__(self, name: str, *answers: Answer) -> None:
        self.host = SimpleNamespace(name=name)
        self.answers = [*answers]
        self.looks = 0

    async def read_deployment(self) -> dict[str, str]:
        return {"deployment_id": "d"}

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator["FakeHost"]:
        yield self

    async def fault_heal_all(self) -> Answer:
        self.looks += 1
        return self.answers.pop(0)


def heal(monkeypatch: pytest.MonkeyPatch, call: Call, *found: FakeHost) -> Any:
    class FakeLab:
        async def on_all(self, act: Callable[[FakeHost], Awaitable[None]]) -> None:
            for each in found:
                await act(each)

    async def reached(_: Any, act: Callable[[], Awaitable[Any]]) -> Any:
        return await act()

    monkeypatch.setattr(hosts.Lab, "of", lambda *_: FakeLab())
    monkeypatch.setattr(hosts, "run_reaching", reached)
    return call("heal", "--verify")


@pytest.mark.parametrize("again", [ONE, STUCK], ids=["comes back", "is left"])
def test_a_fault_at_the_second_look_leaves_the_lab_dirty(
    monkeypatch: pytest.MonkeyPatch, call: Call, again: Answer
) -> None:
    hosts_of_lab = FakeHost("h1", ONE, again), FakeHost("h2", ONE, NOTHING)
    answer = heal(monkeypatch, call, *hosts_of_lab)
    assert answer.status == 7
    assert "h1" in answer.err
    assert ("f1 returned" if again == ONE else "f2") in answer.err
    assert [each.looks for each in hosts_of_lab] == [2, 2]
    assert "verified: no fault is left on h2\n" in answer.out


def test_a_fault_that_the_first_look_leaves_is_no_matter_for_a_second(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    dirty, clean = FakeHost("h1", STUCK), FakeHost("h2", NOTHING, NOTHING)
    answer = heal(monkeypatch, call, dirty, clean)
    assert answer.status == 7
    assert "f2 (cut b1) could not be undone" in answer.err
    assert (dirty.looks, clean.looks) == (1, 2)


def test_two_looks_that_find_nothing_more_verify_all_hosts(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    answer = heal(monkeypatch, call, FakeHost("h1", ONE, NOTHING), FakeHost("h2", NOTHING, NOTHING))
    assert answer.status == 0, answer.err
    assert "healed f1 on h1" in answer.out
    assert "verified: no fault is left on h1, h2" in answer.out
