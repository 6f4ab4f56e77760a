"""Stories about the lists and ends of durable subscriptions at the command line."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from brokerd.errors import ControlError
from pubsubctl.commands import subscriptions
from pubsubctl.commands.subscriptions import (
    add_retained,
    collect,
    collect_retained,
    describe,
    describe_retained,
    describe_silence,
    end_at_brokers,
)
from pubsubctl.console.console import Console
from pubsubctl.errors import HostError, PreflightFailed
from tests.pubsubctl.conftest import Call


def row(client: str, broker: str, **more: Any) -> dict[str, Any]:
    """Return a listed subscription."""
    found = {
        "client": client,
        "number": 1,
        "predicate": "true",
        "mode": "away",
        "away_ms": 7_200_000,
        "behind_ms": {},
        "behind_events": {},
        "acknowledged": {},
        "holds": [],
    }
    return {**found, **more, "broker": broker}


RETAINED = {
    "stream": "p1.0",
    "events": 5,
    "bytes": 5_000,
    "after": [[100, 5, 5_000], [200, 2, 1_500]],
    "brokers": ["s1"],
    "moved": [],
}


class Lab:
    """A host with two brokers; broker s2 does not answer, and s3 was decommissioned.

    Attributes:
        asked: the requests to brokers.
    """

    def __init__(self) -> None:
        placed = [{"broker": name, "host": "h1"} for name in ("s1", "s2", "s3")]
        self.record: Mapping[str, Any] | None = {
            "placement": {"brokers": placed},
            "decommissioned": ["s3"],
        }
        self.asked: list[tuple[str, str, Mapping[str, Any]]] = []
        self.host = SimpleNamespace(name="h1")
        self.connectors = (self,)

    async def read_deployment(self) -> Mapping[str, Any] | None:
        return self.record

    @asynccontextmanager
    async def open_agent(self) -> AsyncIterator[Any]:
        async def broker(name: str, command: str, arguments: Any = None) -> dict[str, Any]:
            self.asked.append((name, command, arguments or {}))
            if name == "s2":
                raise ControlError("user", "it is down")
            if command == "retained":
                return {"retained": [RETAINED, {**RETAINED, "stream": "p1.1", "events": 0}]}
            return {"subscriptions": [row("c1", "s1")]}

        yield SimpleNamespace(broker=broker)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        yield

    async def on_all(self, act: Callable[[Any], Awaitable[None]]) -> None:
        await act(self)


def test_a_list_has_the_subscriptions_of_all_brokers_and_names_silent_ones() -> None:
    lab: Any = Lab()
    found, silent = trio.run(collect, lab)
    assert found == [row("c1", "s1")]
    assert silent == ["s2 lists no subscriptions: it is down"]
    assert describe_silence(["c1", "c2"], "ges keeps no list") == (
        "c1, c2 list no subscriptions: ges keeps no list"
    )
    lab.record = None
    with pytest.raises(PreflightFailed, match="nothing is deployed"):
        trio.run(collect, lab)


def test_an_end_goes_to_all_brokers_that_have_the_subscription() -> None:
    lab: Any = Lab()

    async def end(*brokers: str) -> None:
        await end_at_brokers(lab, [row("c1", each) for each in brokers], force=True)

    trio.run(end, "s1")
    arguments = {"client": "c1", "number": 1, "force": True}
    assert lab.asked == [("s1", "end_subscription", arguments)]
    with pytest.raises(HostError, match="s2 has not ended it: it is down"):
        trio.run(end, "s1", "s2")


def test_a_table_has_a_row_per_subscription_with_short_texts() -> None:
    call: Any = SimpleNamespace(console=Console())
    rows = [
        row("c1", "s1", behind_ms={"p1.0": 90_000, "p1.1": 5}, holds=["p1.0"], predicate="n" * 99),
        row("c2", "s1", mode="live", away_ms=None),
    ]
    head, first, second = describe(call, rows).splitlines()
    assert head.split()[:3] == ["CLIENT", "NUMBER", "BROKER"]
    assert "2 h 00 min" in first
    assert "90 s" in first
    assert first.endswith("n" * 57 + "...")
    assert second.split() == ["c2", "1", "s1", "live", "0", "s", "true"]
    assert describe(call, []) == "no subscriptions"


def test_a_list_names_the_subscription_that_holds_back_a_stream_and_its_bytes() -> None:
    lab: Any = Lab()
    call: Any = SimpleNamespace(console=Console())
    behind = {"holds": ["p1.0"], "behind_events": {"p1.0": 1_234, "p1.1": None}}
    rows = [
        row("c1", "s1", acknowledged={"p1.0": 200, "p1.1": 7}, **behind),
        row("c2", "s4", acknowledged={"p1.0": 100}, **behind),
        row("c3", "s1", mode="live"),
    ]
    retained, silent = trio.run(collect_retained, lab, rows)
    assert lab.asked[0] == ("s1", "retained", {"after": {"p1.0": [200, 100], "p1.1": [7]}})
    assert silent == ["s2 lists no subscriptions: it is down"]
    add_retained(rows, retained)
    assert [each["retained_bytes"] for each in rows] == [{"p1.0": 1_500}, {"p1.0": 5_000}, {}]
    assert retained == [
        {"stream": "p1.0", "events": 5, "bytes": 5_000, "held_by": ["c2/1 at s4"]},
    ]
    assert "1,234+" in describe(call, rows).splitlines()[1]
    assert describe_retained(call, retained).endswith("c2/1 at s4")
    assert describe_retained(call, []) == ""


@pytest.mark.parametrize(
    "more, held_by",
    [
        ({"moved": [["c1", 2]]}, ["c1/2, which has moved"]),
        ({"brokers": ["b1", "b2"]}, ["broker b1", "broker b2"]),
    ],
)
def test_a_hold_or_a_broker_holds_back_a_stream_without_such_a_subscription(
    more: dict[str, Any], held_by: list[str]
) -> None:
    retained: list[dict[str, Any]] = [{**RETAINED, **more}]
    add_retained([row("c1", "s1", acknowledged={"p1.0": 200})], retained)
    assert retained[0]["held_by"] == held_by


@pytest.mark.parametrize(
    "arguments, more, status, said",
    [
        (["c1", "1"], {}, 2, "nothing was done; with --yes it is"),
        (["c1", "1", "--yes"], {}, 0, "subscription 1 of c1 is ended"),
        (["c1", "1", "--yes"], {"away_ms": None}, 2, "--force ends it anyway"),
        (["c1", "1", "--yes", "--force"], {"away_ms": None}, 0, "is ended"),
        (["c1", "2", "--yes"], {}, 2, "no broker has subscription 2"),
    ],
)
def test_an_end_needs_consent_and_force_while_the_client_is_connected(
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    more: dict[str, Any],
    status: int,
    said: str,
) -> None:
    ended: list[bool] = []

    async def listed(_lab: Any) -> tuple[list[dict[str, Any]], list[str]]:
        return [row("c1", "s1", **more)], []

    async def end(_lab: Any, rows: list[dict[str, Any]], *, force: bool) -> None:
        ended.append(force)

    monkeypatch.setattr(subscriptions, "collect", listed)
    monkeypatch.setattr(subscriptions, "end_at_brokers", end)
    answer = call("subscriptions", "end", *arguments)
    assert answer.status == status
    assert said in answer.out + answer.err
    assert ended == ([] if status else ["--force" in arguments])
