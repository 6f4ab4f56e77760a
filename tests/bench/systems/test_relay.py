"""Tests of the relay on links: effects, reports and cleanup of every fault."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import trio
import trio.testing

from bench.spec.validation import SpecError
from bench.systems.faults import check_links, effect_seen, needs_relay, verify_undone
from bench.systems.jetstream.driver import SYSTEM as JETSTREAM
from bench.systems.rabbitmq.driver import SYSTEM as RABBITMQ
from bench.systems.relay import Relay, _pair, serve_direction
from brokerd.sessions.link_faults import LinkFault
from fault_injection.apply.interface import Fault
from fault_injection.schedule.schedule import FaultSchedule, read_schedule
from fault_injection.schedule.targets import Target
from tests.helpers.patience import PATIENCE_S
from tests.helpers.virtual_time import in_virtual_time

PROBE_MS: Final = 100
"""The wait for a byte that must not arrive; an expected byte has PATIENCE_S."""
DELAY_MS: Final = 250
"""A delay longer than a byte takes on a busy machine without a fault."""
PARAMETERS: Final[dict[str, dict[str, int]]] = {
    "delay": {"delay_ms": DELAY_MS},
    "bandwidth": {"bytes_per_second": 1_000},
}


class LeavesTheDelay(Relay):
    """A relay that forgets a healed fault but continues the delay."""

    def heal(self, fault_id: str) -> LinkFault | None:
        fault = super().heal(fault_id)
        if fault is not None:
            fault.fault_id, fault.ends_ns = "left", None
            self.faults.apply(fault)
        return fault


class LeavesItCut(Relay):
    """A relay that reports a heal without effect."""

    def heal(self, fault_id: str) -> LinkFault | None:
        return None


async def ask(relay: Relay, command: str, **arguments: Any) -> dict[str, Any]:
    return await relay.handlers()[command](arguments)


async def applied(relay: Relay, verb: str, direction: str = "both", lease_ms: int = 60_000) -> None:
    await ask(
        relay, "fault_apply", fault_id="f", verb=verb, peer="n1-n2", direction=direction,
        lease_ms=lease_ms, parameters=PARAMETERS.get(verb, {}),
    )  # fmt: skip


async def probed(relay: Relay, comes: bool = True) -> dict[str, Any]:
    within_ms = PATIENCE_S * 1000 if comes else PROBE_MS
    return await ask(relay, "probe", link="n1-n2", within_ms=within_ms)


def fault(verb: str, one_way: bool = False) -> Fault:
    target = Target(("n1", "n2"), one_way)
    return Fault("f", verb, target, parameters=PARAMETERS.get(verb, {}))


@pytest.mark.parametrize("verb", ["cut", "blackhole", "delay"])
@pytest.mark.parametrize("kind", [Relay, LeavesTheDelay, LeavesItCut])
def test_a_probe_byte_shows_the_start_and_the_end_of_a_fault(verb: str, kind: type[Relay]) -> None:
    trio.run(_see, verb, kind)


async def _see(verb: str, kind: type[Relay]) -> None:
    relay, done = kind(), fault(verb)
    nothing = dict.fromkeys(("dropped_frames", "limited_messages"), 0)
    assert effect_seen(done, nothing, await probed(relay)) is None
    assert verify_undone(done, await probed(relay)) is not None
    await applied(relay, verb)
    took = await probed(relay, comes=verb == "delay")
    counted = (await ask(relay, "fault_counters"))["f"]
    assert effect_seen(done, counted, took) is not None, (counted, took)
    assert verify_undone(done, took) is None
    await ask(relay, "fault_heal", fault_id="f")
    took = await probed(relay, comes=kind is Relay)
    assert (verify_undone(done, took) is not None) == (kind is Relay)


def test_a_one_way_fault_leaves_the_other_direction_open() -> None:
    trio.run(_one_way)


async def _one_way() -> None:
    relay = Relay()
    await applied(relay, "delay", "in")
    took = await probed(relay)
    assert took["in_us"] >= DELAY_MS * 1000
    assert took["out_us"] >= 0
    counted = (await ask(relay, "fault_counters"))["f"]
    assert counted["limited_messages"] == 1


def _run_until_idle(story: Callable[[], Awaitable[None]]) -> None:
    """Run a story; a wait is over once nothing happens any more, so a story that hangs fails."""
    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=1))


def test_a_cut_closes_connections_and_a_heal_releases_held_bytes_in_order() -> None:
    _run_until_idle(_through)


async def _through() -> None:
    relay = Relay()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            echo = await nursery.start(trio.serve_tcp, _echo, 0)
            way = {"link": "n1-n2", "towards": "out", "port": 0, "to_port": _port(echo)}
            port = _port(await nursery.start(serve_direction, relay, way))
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await applied(relay, "blackhole")
            words = b"".join(b"%d," % number for number in range(1000))
            await stream.send_all(words)
            await ask(relay, "fault_heal", fault_id="f")
            came = b""
            while len(came) < len(words):
                came += await stream.receive_some()
            assert came == words
            await applied(relay, "cut")
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
            await stream.aclose()
            await ask(relay, "fault_heal", fault_id="f")
            assert (await ask(relay, "status"))["faults"] == []
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("verb", ["blackhole", "delay", "bandwidth"])
@in_virtual_time
async def test_bytes_behind_held_bytes_stay_behind_them_after_the_heal(verb: str) -> None:
    """The first bytes are on their way, in parts or later, when the fault ends."""
    relay = Relay()
    near, ours = _pair()
    theirs, far = _pair()

    async def dial() -> trio.SocketStream:
        return theirs

    async with trio.open_nursery() as nursery:
        await applied(relay, verb, "out") if verb != "blackhole" else None
        nursery.start_soon(relay.join, "n1-n2", "out", ours, dial)
        await trio.testing.wait_all_tasks_blocked()
        await applied(relay, verb, "out") if verb == "blackhole" else None
        came = b""
        for letter in (b"a", b"b", b"c"):
            await near.send_all(letter * 90)
            await trio.testing.wait_all_tasks_blocked()
            if letter == b"a":
                await ask(relay, "fault_heal", fault_id="f")
        while len(came) < 3 * 90:
            came += await far.receive_some()
        nursery.cancel_scope.cancel()
    assert came == b"a" * 90 + b"b" * 90 + b"c" * 90
    for stream in (near, ours, theirs, far):
        stream.socket.close()


def test_a_fault_ends_with_its_lease_without_a_renewal() -> None:
    _run_until_idle(_lease)


async def _lease() -> None:
    relay = Relay()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay.keep_leases)
            await applied(relay, "blackhole", lease_ms=1)
            while (await probed(relay))["in_us"] < 0:
                pass
            nursery.cancel_scope.cancel()
    assert not len(relay.faults)


def _schedule(do: str, on: str, **more: str) -> FaultSchedule:
    step = {"at": "1s", "do": do, "on": on, "for": "1s", "id": "a", **more}
    return read_schedule({"schema": "pubsubctl/faults/1", "name": "t", "step": [step]}, "here")


def test_links_that_no_relay_can_be_on_are_refused() -> None:
    check_links(_schedule("cut", "n1-n2"), JETSTREAM)
    check_links(_schedule("cut", "n1-n2"), RABBITMQ)
    alone = replace(JETSTREAM, title="somebody's", dials=None)
    check_links(_schedule("cut", "n1"), alone)
    with pytest.raises(SpecError, match="step a: on = 'n1-n2': servers of somebody's find each"):
        check_links(_schedule("cut", "n1-n2"), alone)
    with pytest.raises(SpecError, match="step a: backend = 'nft': links of systems"):
        check_links(_schedule("cut", "n1", backend="nft"), JETSTREAM)
    assert needs_relay(_schedule("cut", "n1"))
    assert not needs_relay(_schedule("freeze", "n1"))


async def _echo(stream: trio.SocketStream) -> None:
    async for chunk in stream:
        await stream.send_all(chunk)


def _port(listeners: list[trio.SocketListener]) -> int:
    return int(listeners[0].socket.getsockname()[1])
