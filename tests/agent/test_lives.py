"""Tests of the lives of a process under its supervisor, and of watchdogs in a stub world."""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from brokerd.agent import watchdog
from brokerd.agent.client import open_agent
from brokerd.agent.fault import Fault
from brokerd.agent.fork_server import ForkServer
from brokerd.agent.journal import Journal, Recollection
from brokerd.agent.nft import Table
from brokerd.agent.paths import AgentPaths
from brokerd.agent.processes import ProcessIdentity
from brokerd.agent.supervisor import ManagedProcess, Supervisor, make_log_folder
from brokerd.agent.watchdog import read_heal_time, run_nft_watchdog, run_share_watchdog, write_lease
from brokerd.errors import ControlError
from brokerd.runtime.state_folder import record_loss
from tests.agent.test_fault_keeper import World, run
from tests.helpers.patience import PATIENCE_S
from tests.helpers.virtual_time import in_virtual_time

ENDLESS, ENDING = "import time; time.sleep(600)", "pass"


class Spawner:
    """A fork server that spawns an interpreter with the text of the configuration."""

    pid, is_forking = 0, False

    async def fork(self, role: str, config: dict[str, Any], **options: Any) -> ProcessIdentity:
        await trio.lowlevel.checkpoint()
        arguments = [sys.executable, "-S", "-E", "-c", config["text"]]
        # A watchdog in this process may have left SIGTERM ignored.
        pid = os.posix_spawn(sys.executable, arguments, {}, setpgroup=0, setsigdef=[signal.SIGTERM])
        return ProcessIdentity.of(pid)


def supervise(folder: Path, story: Callable[[Supervisor], Awaitable[None]]) -> None:
    """Play a story with a supervisor of real processes; no process remains."""

    async def play() -> None:
        paths = AgentPaths(folder)
        paths.make()
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                supervisor = Supervisor(
                    paths, Journal(paths.journal), cast(ForkServer, Spawner()), nursery,
                    lambda what, row: None,
                )  # fmt: skip
                try:
                    await story(supervisor)
                finally:
                    for process in supervisor.processes.values():
                        supervisor.signal(process, signal.SIGKILL)

    trio.run(play)


async def start(supervisor: Supervisor, folder: Path, text: str) -> ManagedProcess:
    config = {"log_folder": str(folder / "logs"), "text": text}
    return await supervisor.start("b1", "broker", config, "")


def end_of(process: ManagedProcess) -> tuple[object, ...]:
    return process.state, process.exit_code, process.exit_signal, process.exit_cause


def test_a_later_life_of_a_process_has_nothing_of_an_earlier_end(tmp_path: Path) -> None:
    async def story(supervisor: Supervisor) -> None:
        process = await start(supervisor, tmp_path, ENDLESS)
        supervisor.signal(process, signal.SIGKILL, expected_exit="fault:f1")
        await process.ended.wait()
        assert end_of(process) == ("exited", None, 9, "fault:f1")
        await supervisor.restart("b1")
        assert end_of(process) == ("running", None, None, None)
        supervisor.signal(process, signal.SIGKILL)
        await process.ended.wait()
        assert end_of(process) == ("exited", None, 9, "unexpected")
        await supervisor.restart("b1")
        await supervisor.stop("b1", signal.SIGTERM, PATIENCE_S)
        assert end_of(process) == ("stopped", None, 15, "planned")
        await supervisor.restart("b1")
        supervisor.signal(process, signal.SIGKILL)
        await process.ended.wait()
        assert end_of(process) == ("exited", None, 9, "unexpected")

    supervise(tmp_path, story)


def test_a_process_that_ends_by_itself_was_not_stopped(tmp_path: Path) -> None:
    async def story(supervisor: Supervisor) -> None:
        process = await start(supervisor, tmp_path, ENDING)
        await process.ended.wait()
        assert end_of(process) == ("exited", 0, None, "planned")

    supervise(tmp_path, story)


def test_an_adopted_end_has_its_last_words_and_the_loss_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "stderr.log").write_text("b1 lost state\n\n")
    record_loss(tmp_path, b"", "b2 proves it")
    entry = {
        "role": "broker",
        "config": {"state_folder": str(tmp_path)},
        "control_socket": "",
        "log_folder": str(tmp_path),
        "t_ns": 1,
        "exit": {
            "state": "exited",
            "exit_code": 78,
            "exit_signal": None,
            "exit_cause": "unexpected",
            "t_ns": 2,
        },
    }

    unusable = {**entry, "config": {"state_folder": str(tmp_path / "stderr.log")}}

    async def story(supervisor: Supervisor) -> None:
        await supervisor.adopt(Recollection(starts={"b1": entry, "b2": unusable}))
        row = supervisor.find("b1").to_row()
        assert (row["exit_text"], row["loss"]) == ("b1 lost state", "b2 proves it")
        assert supervisor.find("b2").to_row()["loss"] == "", "a folder that cannot be read"

    supervise(tmp_path, story)


@in_virtual_time
async def test_an_agent_that_accepts_and_does_not_answer_is_not_waited_for() -> None:
    """A stopped process still accepts connections."""
    stream, _silent = trio.testing.memory_stream_pair()
    with pytest.raises(ControlError, match="has not answered for 10 s") as caught:
        async with open_agent(stream):
            pass
    assert caught.value.kind == "closed"
    assert trio.current_time() == pytest.approx(10)


@pytest.mark.parametrize("ending", [False, True])
def test_a_lost_broker_is_started_again_unless_its_agent_ends(tmp_path: Path, ending: bool) -> None:
    world, started = World(tmp_path), list[str]()
    process = world.processes.find("b1")
    process.state = "exited"

    async def restart(name: str) -> ManagedProcess:
        await trio.lowlevel.checkpoint()
        started.append(name)
        process.identity = ProcessIdentity.of(os.getpid())
        return process

    world.processes.restart = restart  # type: ignore[attr-defined]
    fault = Fault("f1", "host-loss", "b1", lease_ms=60_000)
    fault.state, fault.applied_ns = "applied", 1
    world.keeper.faults["f1"] = fault

    async def story() -> None:
        healed = await world.keeper.heal_all(ending=ending)
        assert [each.fault_id for each in healed] == ["f1"]

    run(story)
    assert fault.state == "healed"
    assert started == ([] if ending else ["b1"])


# --- Watchdogs ------------------------------------------------------------------------------


@pytest.fixture
def restored_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM, which a watchdog replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


class Ended:
    """A process that ends after some turns, with the times of the waits."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.seen: list[object] = []

    def poll(self, timeout_ms: int) -> bool:
        self.seen.append(timeout_ms)
        self.turns -= 1
        return self.turns == 0


@pytest.mark.usefixtures("restored_sigterm")
@pytest.mark.parametrize("share, running_ms, stopped_ms", [(20, 20, 80), (90, 90, 10)])
def test_a_process_runs_for_its_share_of_a_period_and_is_stopped_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int, running_ms: int, stopped_ms: int
) -> None:
    ended = Ended(turns=4)
    monkeypatch.setattr(watchdog, "_watch", lambda config: (7, ended))
    monkeypatch.setattr(watchdog, "_remaining_ns", lambda lease: 1)
    monkeypatch.setattr(
        watchdog.signal, "pidfd_send_signal", lambda descriptor, number: ended.seen.append(number)
    )
    lease = tmp_path / "lease"
    write_lease(lease, 1 << 62)
    run_share_watchdog({"share_percent": share, "lease_file": str(lease)})
    turn = [signal.SIGSTOP, stopped_ms, signal.SIGCONT, running_ms]
    assert ended.seen == [*turn, *turn]


@pytest.mark.usefixtures("restored_sigterm")
@pytest.mark.parametrize("failures", [0, 3, 1 << 20])
def test_a_table_that_cannot_be_deleted_is_not_reported_as_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    left, waited = [failures], list[float]()

    def delete(table: object) -> None:
        if left[0]:
            left[0] -= 1
            raise ControlError("busy", "nft does not answer")

    monkeypatch.setattr(watchdog, "delete_table", delete)
    monkeypatch.setattr(watchdog.time, "sleep", waited.append)
    lease = tmp_path / "lease"
    write_lease(lease, 0)
    table = Table.of("/root", "f1")
    config = {"table": table.name, "owner": table.owner, "lease_file": str(lease)}
    if failures < 60:
        run_nft_watchdog(config)
        assert read_heal_time(lease) is not None
        assert len(waited) == failures
    else:
        with pytest.raises(ControlError, match="nft does not answer"):
            run_nft_watchdog(config)
        assert read_heal_time(lease) is None


@pytest.mark.parametrize("is_file", [True, False], ids=["a file", "a folder of other files"])
def test_a_process_without_a_log_folder_is_refused_with_the_path(
    tmp_path: Path, is_file: bool
) -> None:
    """It ended without a word: its words go to a file of that folder."""
    folder = tmp_path / "b1"
    if is_file:
        folder.touch()
    else:
        (folder / "stderr.log").mkdir(parents=True)
    with pytest.raises(ControlError, match=r"^b1: its log folder .*b1.*: cannot be used: .*; give"):
        make_log_folder("b1", folder)
