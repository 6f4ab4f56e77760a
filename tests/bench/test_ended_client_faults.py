"""Stories of the end of a client's fault: the first end counts, a refused request leaves none."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bench.load.client_faults import ClientFaults
from bench.load.load_clients import LoadClient
from brokerd.client.application import ClientError
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import DISCONNECT, ROAM
from brokerd.runtime.streams import Gate
from tests.helpers.memory_links import nursery_of_the_test
from tests.helpers.virtual_time import in_virtual_time

LEASE_MS = 1_000


def present_client(name: str = "s1") -> Any:
    """Return a client with a session, as far as a fault looks at it."""
    return SimpleNamespace(
        name=name, broker="b1", session=1, is_known=True, processed=0, gate=Gate(),
        attached_ns=1, lost_ns=0, lost_because="", waiting_bytes=0,
    )  # fmt: skip


def faults_of(*clients: Any, nursery: trio.Nursery) -> ClientFaults:
    def start(task: Callable[..., Any], *arguments: Any) -> None:
        nursery.start_soon(task, *arguments)

    return ClientFaults({each.name: each for each in clients}, start, pytest.fail)


async def apply(
    faults: ClientFaults, fault_id: str, lease_ms: Any = LEASE_MS, client: str = "s1"
) -> None:
    request = {"fault_id": fault_id, "verb": DISCONNECT, "client": client, "lease_ms": lease_ms}
    await faults.on_apply(request)


async def end_by(faults: ClientFaults, way: str) -> None:
    """End fault `f` by a request, or wait until its lease has expired."""
    if way == "request":
        await faults.on_heal({"fault_id": "f"})
    await trio.sleep(2 * LEASE_MS / 1_000 if way == "lease" else 0.001)


@pytest.mark.parametrize("first", ["request", "lease"])
@pytest.mark.parametrize("second", ["request", "lease"])
@in_virtual_time
async def test_a_fault_ends_once_however_often_its_end_is_asked_for(
    first: str, second: str
) -> None:
    client = present_client()
    async with nursery_of_the_test() as nursery:
        faults = faults_of(client, nursery=nursery)
        await apply(faults, "f")
        assert client.gate.is_shut
        client.processed = 3
        await end_by(faults, first)
        ended = await faults.on_look({"fault_id": "f"})
        assert (ended["active"], ended["healed_by"]) == (False, first)
        await apply(faults, "g", 10 * LEASE_MS)
        client.processed = 7
        await end_by(faults, second)
        now = await faults.on_look({"fault_id": "f"})
        assert (ended["taken"], ended["taken_since_end"]) == (3, 0)
        assert now == {**ended, "taken": 7, "taken_since_end": 4}, "counted from the first end"
        assert client.gate.is_shut, "the later fault is not ended with the earlier one"
        assert faults.active == ["g"]


@pytest.mark.parametrize("lease_ms", [0, -1, True, 1.5, "1"])
@in_virtual_time
async def test_a_refused_fault_leaves_its_client_and_its_name_free(lease_ms: Any) -> None:
    client = present_client()
    async with nursery_of_the_test() as nursery:
        faults = faults_of(client, nursery=nursery)
        with pytest.raises(ControlError, match="lease_ms"):
            await apply(faults, "f", lease_ms)
        assert faults.active == []
        assert not client.gate.is_shut
        await apply(faults, "f")
        assert faults.active == ["f"]


@in_virtual_time
async def test_a_renewed_fault_lasts_from_the_renewal() -> None:
    client = present_client()
    async with nursery_of_the_test() as nursery:
        faults = faults_of(client, nursery=nursery)
        await apply(faults, "f")
        for _ in range(3):
            await trio.sleep(0.8)
            await faults.on_renew({"fault_id": "f", "lease_ms": LEASE_MS})
        assert faults.active == ["f"]
        await trio.sleep(1.1)
        assert faults.active == []
        with pytest.raises(ControlError, match="is over: lease"):
            await faults.on_renew({"fault_id": "f", "lease_ms": LEASE_MS})


@in_virtual_time
async def test_faults_of_two_clients_begin_and_end_apart_and_a_name_is_used_once() -> None:
    one, other = present_client("s1"), present_client("s2")
    async with nursery_of_the_test() as nursery:
        faults = faults_of(one, other, nursery=nursery)
        await apply(faults, "f")
        with pytest.raises(ControlError, match="s1 is under fault f"):
            await apply(faults, "g")
        with pytest.raises(ControlError, match="has been a fault f already"):
            await apply(faults, "f", client="s2")
        await apply(faults, "g", 3 * LEASE_MS, client="s2")
        assert faults.active == ["f", "g"]
        await end_by(faults, "lease")
        assert (one.gate.is_shut, other.gate.is_shut) == (False, True)
        await apply(faults, "h")
        assert faults.active == ["g", "h"]


@pytest.mark.parametrize("error", ["", "refused move"])
@in_virtual_time
async def test_a_roam_ends_with_its_move_also_if_the_move_fails(error: str) -> None:
    moves: list[tuple[str, str]] = []
    problems: list[str] = []

    class Roamer(LoadClient):
        is_known = leaves_freely = True
        waiting_bytes = 0

        def __init__(self) -> None:
            given = {**vars(present_client())}
            self.__dict__.update({key: given[key] for key in given if not hasattr(self, key)})

        async def move(self, broker: str, address: str) -> None:
            moves.append((broker, address))
            await trio.sleep(1)
            if error:
                raise ClientError(error)

    async with nursery_of_the_test() as nursery:
        faults = ClientFaults(
            {"s1": Roamer()}, lambda task, *rest: nursery.start_soon(task, *rest), problems.append
        )
        for fault_id in ("f", "g"):
            request = {"fault_id": fault_id, "verb": ROAM, "client": "s1", "address": "b2:1"}
            with pytest.raises(ControlError, match="is at b1 already"):
                await faults.on_apply({**request, "to": "b1"})
            await faults.on_apply({**request, "to": "b2"})
            await faults.on_heal({"fault_id": fault_id})
            assert faults.active == [fault_id], "a roam cannot be undone"
            await trio.sleep(1.1)
            row = await faults.on_look({"fault_id": fault_id})
            assert (row["active"], row["healed_by"]) == (False, "done")
            assert row["t_healed_ns"] is not None
    assert moves == 2 * [("b2", "b2:1")]
    assert problems == (2 * [f"s1 could not move to b2: {error}"] if error else [])
