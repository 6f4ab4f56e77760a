"""Tests of the operations on faults, with stub processes, watchdogs and tables."""

import signal
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from brokerd.agent import fault_acts
from brokerd.agent.fault import Fault
from brokerd.agent.fault_acts import FaultActs
from brokerd.agent.fork_server import ForkServer
from brokerd.agent.paths import AgentPaths
from brokerd.agent.processes import ProcessIdentity
from brokerd.agent.supervisor import ManagedProcess, Supervisor
from brokerd.errors import ControlError

STOPS = {"freeze": {}, "cpu-share": {"share_percent": 50}}
SEVERS = {"backend": "nft", "own": "10.0.0.1:7000", "peers": ["10.0.0.2:7001"]}
LASTING = {**STOPS, "blackhole": SEVERS}
"""A verb of each kind that needs a watchdog, with its parameters."""


class StubIdentity:
    """A process that obeys signals."""

    pid, start_time = 7, 1

    def __init__(self) -> None:
        self.received: list[int] = []

    def signal(self, number: int) -> None:
        self.received.append(number)

    def is_alive(self) -> bool:
        return signal.SIGKILL not in self.received

    def is_stopped(self) -> bool:
        stops = [each for each in self.received if each in (signal.SIGSTOP, signal.SIGCONT)]
        return stops[-1:] == [signal.SIGSTOP]


class StubMachine:
    """A machine with broker b1; it is the fork server and the supervisor, too."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.identity = StubIdentity()
        self.process = ManagedProcess(
            "b1", "broker", {"state_folder": str(folder / "data")}, "", folder,
            identity=cast(ProcessIdentity, self.identity), state="running",
        )  # fmt: skip
        self.watchdogs: list[StubIdentity] = []
        self.tables: list[str] = []
        nft = fault_acts.nft
        monkeypatch.setattr(nft, "list_tables", lambda: [*self.tables])
        monkeypatch.setattr(nft, "make_table", lambda table, _: self.tables.append(table.name))
        monkeypatch.setattr(nft, "delete_table", lambda table: self.tables.remove(table.name))
        monkeypatch.setattr(nft, "count_packets", lambda table: None)
        self.paths = AgentPaths(folder)
        self.paths.make()
        self.acts = FaultActs(
            self.paths, cast(ForkServer, self), cast(Supervisor, self), self._call, self._watched
        )

    async def _call(self, process: str, command: str, arguments: Any) -> dict[str, Any]:
        raise AssertionError(f"{command} at {process}")

    async def _watched(self, fault: Fault) -> None:
        await trio.lowlevel.checkpoint()

    async def fork(self, role: str, config: dict[str, Any], *, name: str) -> StubIdentity:
        self.watchdogs.append(StubIdentity())
        if role == "share-watchdog":
            self.identity.signal(signal.SIGSTOP)
        return self.watchdogs[-1]

    def find(self, name: str) -> ManagedProcess:
        return self.process

    def signal(self, process: ManagedProcess, number: int) -> bool:
        self.identity.signal(number)
        return True

    suspend_reaping = staticmethod(nullcontext)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(60):
            await story()

    trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0.1))


@pytest.mark.parametrize("verb", LASTING)
@pytest.mark.parametrize("is_half", [False, True])
def test_the_end_of_a_fault_is_the_end_of_its_watchdog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, is_half: bool
) -> None:
    """A watchdog that stayed would thaw the process in the middle of the next fault."""
    machine = StubMachine(tmp_path, monkeypatch)

    async def story() -> None:
        for number in range(2):
            fault = Fault(f"f{number}", verb, "b1", parameters={**LASTING[verb]}, deadline_ns=1)
            await machine.acts.apply(fault, machine.process)
            if is_half:
                await machine.acts.undo_half(fault, machine.process)
            else:
                await machine.acts.undo(fault)
            assert [each.is_alive() for each in machine.watchdogs] == [False] * (number + 1)
            assert not [*machine.paths.leases.iterdir()]
            assert not machine.identity.is_stopped()
            assert not machine.tables

    run(story)


def test_files_of_a_process_that_starts_meanwhile_are_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log").write_bytes(bytes(10))
    machine = StubMachine(tmp_path, monkeypatch)
    machine.process.state = "exited"
    fault = Fault("f", "corrupt", "b1", parameters={"draw": 37})

    refused: list[ControlError] = []

    async def story() -> None:
        async def damage() -> None:
            try:
                await machine.acts.apply(fault, machine.process)
            except ControlError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery, machine.process.starting:
            nursery.start_soon(damage)
            await trio.testing.wait_all_tasks_blocked()
            machine.process.state = "running"

    run(story)
    assert [*map(str, refused)] == ["b1 was started meanwhile; kill it first"]
    assert (tmp_path / "data" / "log").read_bytes() == bytes(10)
    assert fault.applied_ns is None
