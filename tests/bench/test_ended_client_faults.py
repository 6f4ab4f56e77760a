"""Stories of the end of a client's fault: the first end counts, a refused request leaves none."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bench.load.client_faults import ClientFaults
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import DISCONNECT
from brokerd.runtime.streams import Gate
from tests.helpers.memory_links import nursery_of_the_test
from tests.helpers.virtual_time import in_virtual_time

LEASE_MS = 1_000


def present_client() -> Any:
    """Return a client with a session, as far as a fault looks at it."""
    return SimpleNamespace(
        name="s1", broker="b1", session=1, is_known=True, processed=0, gate=Gate(),
        attached_ns=1, lost_ns=0, lost_because="", waiting_bytes=0,
    )  # fmt: skip


def faults_of(client: Any, nursery: trio.Nursery) -> ClientFaults:
    def start(task: Callable[..., Any], *arguments: Any) -> None:
        nursery.start_soon(task, *arguments)

    return ClientFaults({client.name: client}, start, pytest.fail)


async def apply(faults: ClientFaults, fault_id: str, lease_ms: Any = LEASE_MS) -> None:
    request = {"fault_id": fault_id, "verb": DISCONNECT, "client": "s1", "lease_ms": lease_ms}
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
        faults = faults_of(client, nursery)
        await apply(faults, "f")
        assert client.gate.is_shut
        await end_by(faults, first)
        ended = await faults.on_look({"fault_id": "f"})
        assert (ended["active"], ended["healed_by"]) == (False, first)
        await apply(faults, "g", 10 * LEASE_MS)
        client.processed = 7
        await end_by(faults, second)
        now = await faults.on_look({"fault_id": "f"})
        assert {**now, "taken": 0, "taken_since_end": 7} == {**ended, "taken_since_end": 7}
        assert now["taken_since_end"] == 7, "counted from the first end"
        assert client.gate.is_shut, "the later fault is not ended with the earlier one"
        assert faults.active == ["g"]


@pytest.mark.parametrize("lease_ms", [0, -1, True, 1.5, "1"])
@in_virtual_time
async def test_a_refused_fault_leaves_its_client_and_its_name_free(lease_ms: Any) -> None:
    client = present_client()
    async with nursery_of_the_test() as nursery:
        faults = faults_of(client, nursery)
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
        faults = faults_of(client, nursery)
        await apply(faults, "f")
        for _ in range(3):
            await trio.sleep(0.8)
            await faults.on_renew({"fault_id": "f", "lease_ms": LEASE_MS})
        assert faults.active == ["f"]
        await trio.sleep(1.1)
        assert faults.active == []
        with pytest.raises(ControlError, match="is over: lease"):
            await faults.on_renew({"fault_id": "f", "lease_ms": LEASE_MS})
