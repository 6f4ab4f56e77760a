"""Stories about policies of early release at the command line."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from pubsubctl.commands import retention
from pubsubctl.commands.retention import collect, read_policy, select_streams, set_at_brokers
from pubsubctl.errors import HostError, UserError
from tests.pubsubctl.conftest import Call
from tests.pubsubctl.test_subscriptions import Lab


def row(stream: str = "p1.0", **more: Any) -> dict[str, Any]:
    """Return a listed stream."""
    broker, _, pubend = stream.rpartition(".")
    found = {
        "stream": stream,
        "pubend": int(pubend),
        "broker": broker,
        "policy": "age=1min",
        "topology": "never",
        "events": 3,
        "bytes": 1_500,
        "oldest_ms": 90_000,
        "early": 2,
    }
    return {**found, **more}


def test_policies_are_changed_at_the_brokers_of_their_streams() -> None:
    lab: Any = Lab()
    set_of = [row("s1.0"), row("s1.3")]

    async def change(*rows: dict[str, Any]) -> None:
        await set_at_brokers(lab, rows, "age=5s", force=True)

    trio.run(change, *set_of)
    assert lab.asked == [
        ("s1", "set_retention", {"pubend": each, "policy": "age=5s", "force": True})
        for each in (0, 3)
    ]
    with pytest.raises(HostError, match="s2: it is down"):
        trio.run(change, row("s2.0"))


def test_policies_are_listed_for_a_proposed_one() -> None:
    asked: list[Any] = []

    async def query(_lab: Any, *words: Any) -> tuple[list[Any], list[str]]:
        asked.append(words)
        return [("p1", {"retention": [row("p1.1"), row("p1.0")]})], []

    lab: Any = SimpleNamespace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "query_brokers", query)
        found, silent = trio.run(collect, lab, "age=5s")
    assert asked == [("retention", {"policy": "age=5s"}, "policies")]
    assert ([each["stream"] for each in found], silent) == (["p1.0", "p1.1"], [])


@pytest.mark.parametrize(
    "text, policy",
    [("age=60s", "age=1min"), ("bytes=1KiB, age=5s", "age=5s,bytes=1KiB"), ("topology", "")],
)
def test_a_policy_is_sent_in_its_shortest_form(text: str, policy: str) -> None:
    assert read_policy(text) == policy


def test_a_broker_stands_for_all_its_streams() -> None:
    rows = [row("p1.0"), row("p1.1"), row("p2.0")]
    assert select_streams(rows, "p1") == rows[:2]
    assert select_streams(rows, "p2.0") == rows[2:]
    with pytest.raises(UserError, match=r"no stream 'p3\.0'; did you mean"):
        select_streams(rows, "p3.0")


@pytest.mark.parametrize(
    "arguments, status, said",
    [
        (["p1.0", "age=5s"], 2, "2 retained publications are beyond it"),
        (["p1.0", "age=5s", "--yes"], 0, "1 stream: age=5s"),
        (["p1.0", "topology", "--yes", "--force"], 0, "as in the topology"),
        (["p1.0", "age=0s", "--yes"], 2, "at least 1ms"),
        (["p1.0", "bytes=-5B", "--yes"], 2, "bytes = '-5B'"),
        (["p1.0", "size=5B", "--yes"], 2, "age=DURATION, bytes=SIZE"),
    ],
)
def test_a_change_needs_consent_and_a_valid_policy(
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    said: str,
) -> None:
    changed: list[tuple[str, bool]] = []

    async def listed(_lab: Any, policy: str = "") -> tuple[list[dict[str, Any]], list[str]]:
        return [row()], []

    async def change(_lab: Any, rows: Any, policy: str, *, force: bool) -> None:
        changed.append((policy, force))

    monkeypatch.setattr(retention, "collect", listed)
    monkeypatch.setattr(retention, "set_at_brokers", change)
    answer = call("retention", "set", *arguments)
    assert answer.status == status
    assert said in answer.out + answer.err
    assert len(changed) == (not status)


def test_a_list_has_the_policies_of_all_streams(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(_lab: Any, policy: str = "") -> tuple[list[dict[str, Any]], list[str]]:
        return [row(), row("p1.1", policy="never", events=0)], []

    monkeypatch.setattr(retention, "collect", listed)
    lines = call("retention", "list").out.splitlines()
    assert lines[1].split()[:5] == ["p1.0", "age=1min", "never", "3", "1.5"]
    assert lines[2].split() == ["p1.1", "never", "0", "1.5", "kB"]
