"""Tests of faults that a load generator injects into its own clients."""

from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.errors import ControlError
from brokerd.runtime.control_socket import ControlClient
from tests.bench.test_load_generator import (
    fence,
    folder,
    lines,
    reach,
    running,
)
from tests.helpers.fake_broker import FakeBroker

__all__ = ["folder"]
LEASE_MS = 600_000


async def begin(control: ControlClient, duration_ns: int = 600_000_000_000) -> None:
    """Start a load that continues until a stop command."""
    await fence(control)
    t0_ns = (await control.request("status"))["now_ns"]
    await control.request("start", t0_ns=t0_ns, measure_from_ns=t0_ns, end_ns=t0_ns + duration_ns)


async def end(control: ControlClient) -> dict[str, Any]:
    """Stop the load and wait for all owed deliveries."""
    await control.request("stop")
    await fence(control)
    await reach(control, "open", 0)
    await reach(control, "fences_missing", 0)
    return await control.request("finish")


async def apply(
    control: ControlClient, verb: str, client: str, lease_ms: int = LEASE_MS, **more: Any
) -> dict[str, Any]:
    return await control.request(
        "fault_apply", fault_id="f", verb=verb, client=client, lease_ms=lease_ms, **more
    )


async def see(control: ControlClient, **wanted: Any) -> dict[str, Any]:
    """Wait until the row of the fault has the wanted values; return the row."""
    while True:
        row = await control.request("fault_look", fault_id="f")
        if all(row[key] == value for key, value in wanted.items()):
            return row
        await trio.sleep(0.005)


async def more_sent(control: ControlClient, count: int = 30) -> None:
    before = (await control.request("status"))["sent"]
    while (await control.request("status"))["sent"] < before + count:
        await trio.sleep(0.005)


@pytest.mark.parametrize("client", ["p1-sub-1", "p1-pub-2"])
def test_a_client_that_is_disconnected_stays_away_until_it_is_let_back(
    folder: Path, client: str
) -> None:
    broker = FakeBroker()

    async def play() -> dict[str, Any]:
        async with running(folder, broker) as control:
            await begin(control)
            await apply(control, "client-disconnect", client)
            row = await see(control, attached=False)
            assert row["t_lost_ns"] >= row["t_applied_ns"]
            assert (await control.request("status"))["not_attached"] == [client]
            assert (await control.request("status"))["faults"] == ["f"]
            await more_sent(control)
            assert f"{client}.x" not in broker.clients
            healed = await control.request("fault_heal", fault_id="f")
            assert (healed["active"], healed["healed_by"]) == (False, "request")
            row = await see(control, attached=True)
            assert row["session"] == row["session_before"] + 1
            await control.request("stop")
            return await control.request("finish")

    assert trio.run(play)["problems"] == []
    of_client = [row for row in lines(folder, "sessions.jsonl") if row["client"] == client]
    assert [row["event"] for row in of_client][:3] == ["up", "down", "up"]


def test_a_publisher_sends_all_due_publications_after_an_absence(
    folder: Path,
) -> None:
    broker = FakeBroker()

    async def play() -> dict[str, Any]:
        async with running(folder, broker) as control:
            await begin(control)
            await apply(control, "client-disconnect", "p1-pub-1")
            await see(control, attached=False)
            await more_sent(control)
            await control.request("fault_heal", fault_id="f")
            await see(control, attached=True)
            return await end(control)

    finished = trio.run(play)
    assert finished["online"]["missing"] == finished["online"]["duplicate"] == 0
    assert finished["acknowledged"] == finished["sent"] == finished["offered"] + 4


def test_a_disconnected_client_misses_publications_at_a_broker_without_storage(
    folder: Path,
) -> None:
    """The broker has no storage, so that the check of the other protocols is seen to fail."""
    broker = FakeBroker()

    async def play() -> dict[str, Any]:
        async with running(folder, broker) as control:
            await begin(control)
            await apply(control, "client-disconnect", "p1-sub-1")
            await see(control, attached=False)
            await more_sent(control)
            await control.request("fault_heal", fault_id="f")
            await see(control, attached=True)
            return await end(control)

    finished = trio.run(play)
    assert finished["online"]["missing"] >= 30


def test_a_killed_subscriber_process_returns_with_its_committed_state(folder: Path) -> None:
    """The broker has no storage, so publications of the absence are missing; none is repeated."""
    broker = FakeBroker(protocol="best_effort")

    async def play() -> dict[str, Any]:
        async with running(folder, broker, own_processes=(1,)) as control:
            await begin(control)
            await apply(control, "client-crash", "p1-sub-1", down_ms=50)
            while sum((await see(control))["crashes"].values()) < 2:
                await trio.sleep(0.05)
            await control.request("fault_heal", fault_id="f")
            row = await see(control, attached=True, active=False)
            assert row["session"] > row["session_before"]
            with pytest.raises(ControlError, match="is for subscribers that are processes"):
                await control.request(
                    "fault_apply", fault_id="g", verb="client-slow", client="p1-sub-1",
                    lease_ms=LEASE_MS,
                )  # fmt: skip
            await control.request("stop")
            return await control.request("finish")

    finished = trio.run(play)
    assert finished["problems"] == []
    assert finished["online"]["missing"] >= 1
    assert finished["online"]["duplicate"] == 0
    killed = [row["moment"] for row in lines(folder, "crashes.jsonl")]
    assert killed[:2] == ["taken", "writing"]


def test_a_slow_subscriber_stalls_while_the_other_subscriber_proceeds(folder: Path) -> None:
    broker = FakeBroker()

    async def play() -> dict[str, Any]:
        async with running(folder, broker) as control:
            await begin(control)
            await apply(control, "client-slow", "p1-sub-1")
            while (await see(control))["waiting_bytes"] == 0:
                await more_sent(control, 5)
            before = await see(control)
            acknowledged = len([row for row in broker.acknowledged if row[0] == "p1-sub-1.x"])
            await more_sent(control)
            row = await see(control)
            assert row["taken"] == before["taken"]
            assert row["waiting_bytes"] > before["waiting_bytes"]
            assert row["attached"]
            now = [row for row in broker.acknowledged if row[0] == "p1-sub-1.x"]
            assert len(now) == acknowledged, "what was not taken in is not acknowledged"
            await control.request("fault_heal", fault_id="f")
            while not (await see(control))["taken_since_end"]:
                await trio.sleep(0.005)
            return await end(control)

    finished = trio.run(play)
    assert finished["problems"] == []
    assert finished["online"]["missing"] == finished["online"]["duplicate"] == 0


def test_a_subscriber_roams_to_another_broker_and_its_log_records_the_broker(folder: Path) -> None:
    broker, other = FakeBroker(), FakeBroker()

    async def play() -> dict[str, Any]:
        async with trio.open_nursery() as nursery:
            await nursery.start(other.serve)
            async with running(folder, broker) as control:
                await fence(control)
                await apply(control, "client-roam", "p1-sub-2", to="p2", address=other.address)
                row = await see(control, broker="p2")
                assert row["attached"]
                assert list(other.clients) == ["p1-sub-2.x"]
                while "p1-sub-2.x" in broker.clients:
                    await trio.sleep(0.005)
                finished = await control.request("finish")
            nursery.cancel_scope.cancel()
        return finished

    assert trio.run(play)["problems"] == []
    rows = [row for row in lines(folder, "sessions.jsonl") if row["client"] == "p1-sub-2"]
    assert [(row["event"], row["broker"], row["session"]) for row in rows][:3] == [
        ("up", "p1", 1),
        ("down", "p1", 1),
        ("up", "p2", 2),
    ]


def test_faults_of_clients_end_with_their_lease(folder: Path) -> None:
    broker = FakeBroker()

    async def play() -> None:
        async with running(folder, broker) as control:
            await apply(control, "client-disconnect", "p1-sub-1", lease_ms=LEASE_MS)
            await control.request("fault_renew", fault_id="f", lease_ms=300)
            row = await see(control, active=False)
            assert row["healed_by"] == "lease"
            await see(control, attached=True)
            with pytest.raises(ControlError, match="is over: lease"):
                await control.request("fault_renew", fault_id="f", lease_ms=LEASE_MS)

    trio.run(play)


@pytest.mark.parametrize(
    "verb, client, said",
    [
        ("client-disconnect", "p1-sub-3", "no client called 'p1-sub-3'; did you mean 'p1-sub-"),
        ("client-slow", "p1-pub-1", "client-slow is for subscribers; p1-pub-1 is a publisher"),
        ("client-roam", "p1-pub-1", "client-roam is for subscribers"),
        ("client-disconect", "p1-sub-1", "did you mean 'client-disconnect'"),
    ],
)
def test_an_impossible_client_fault_is_refused(
    folder: Path, verb: str, client: str, said: str
) -> None:
    broker = FakeBroker()

    async def play() -> None:
        async with running(folder, broker) as control:
            with pytest.raises(ControlError, match=said):
                await apply(control, verb, client)
            assert (await control.request("status"))["faults"] == []

    trio.run(play)


def test_a_client_has_one_fault_at_a_time(folder: Path) -> None:
    broker = FakeBroker()

    async def play() -> None:
        async with running(folder, broker) as control:
            await apply(control, "client-slow", "p1-sub-1")
            with pytest.raises(ControlError, match="p1-sub-1 is under fault f"):
                await control.request(
                    "fault_apply", fault_id="g", verb="client-disconnect", client="p1-sub-1",
                    lease_ms=LEASE_MS,
                )  # fmt: skip

    trio.run(play)
