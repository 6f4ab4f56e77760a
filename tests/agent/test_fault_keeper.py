"""Tests of the fault keeper of an agent, with stub brokers and processes."""

import errno
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from brokerd.agent import nft
from brokerd.agent.fault import Fault
from brokerd.agent.faults import FaultKeeper
from brokerd.agent.fork_server import ForkServer
from brokerd.agent.journal import Journal, Recollection, read_journal, recall
from brokerd.agent.paths import AgentPaths
from brokerd.agent.processes import ProcessIdentity, boot_id
from brokerd.agent.supervisor import ManagedProcess, Supervisor
from brokerd.agent.watchdog import (
    read_heal_time,
    read_identity,
    run_share_watchdog,
    run_thaw_watchdog,
    write_lease,
)
from brokerd.errors import ControlError
from tests.helpers.agents import wait_until
from tests.helpers.lossy_disk import LossyDisk
from tests.helpers.patience import PATIENCE_S
from tests.helpers.small_disk import limit_writes


class Processes:
    """Running brokers b1 and b2 that receive no signals."""

    def __init__(self, folder: Path) -> None:
        self.processes = {
            name: ManagedProcess(name, "broker", {}, "", folder, state="running")
            for name in ("b1", "b2")
        }

    def find(self, name: str) -> ManagedProcess:
        return self.processes[name]


class World:
    """The faults of one agent, with the commands to brokers and the journal at that time."""

    def __init__(self, folder: Path) -> None:
        paths = AgentPaths(folder)
        paths.make()
        self.path = paths.journal
        self.journal = Journal(paths.journal)
        self.told: list[tuple[str, str]] = []
        self.written: list[list[str]] = []
        self.refusing: set[str] = set()
        self.published: list[str] = []
        self.failures: list[OSError] = []
        self.processes = Processes(folder)
        self.keeper = FaultKeeper(
            paths, self.journal, cast(ForkServer, None), cast(Supervisor, self.processes),
            self._call, lambda what, _: self.published.append(what),
        )  # fmt: skip

    async def _call(self, process: str, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.told.append((process, command))
        self.written.append([entry["entry"] for entry in read_journal(self.path)])
        await trio.lowlevel.checkpoint()
        if f"{command} at {process}" in self.refusing:
            raise ControlError("busy", "no answer")
        if self.failures:
            raise self.failures.pop()
        return {}

    async def apply(self, fault_id: str, process: str, lease_ms: int = 60_000) -> Fault:
        fault = Fault(fault_id, "absorb", process, lease_ms=lease_ms)
        return await self.keeper.apply(fault)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(PATIENCE_S):
            await story()

    trio.run(bounded)


def test_a_fault_is_durable_before_the_request_to_its_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AgentPaths(tmp_path).make()
    disk = LossyDisk(tmp_path, monkeypatch)
    world = World(tmp_path)
    run(lambda: world.apply("f1", "b1"))
    assert world.told == [("b1", "fault_apply")]
    assert world.written == [["fault"]]
    world.journal.close()
    disk.crash()
    assert [entry["entry"] for entry in read_journal(world.path)] == ["fault"]


def test_a_fault_that_cannot_be_applied_is_healed_and_marked_failed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.refusing.add("fault_apply at b1")

    async def story() -> None:
        with pytest.raises(ControlError, match="no answer"):
            await world.apply("f1", "b1")

    run(story)
    assert world.told == [("b1", "fault_apply"), ("b1", "fault_heal")]
    assert world.keeper.faults["f1"].state == "failed"
    assert recall(read_journal(world.path)).faults["f1"]["state"] == "failed"


def test_a_fault_that_cannot_be_recorded_is_refused_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)

    async def story() -> None:
        with monkeypatch.context() as patches:
            limit_writes(patches, 30)
            with pytest.raises(OSError, match="No space left"):
                await world.apply("f1", "b1")
        assert world.told == []
        assert world.keeper.faults == {}
        await world.apply("f1", "b1")

    run(story)
    assert recall(read_journal(world.path)).faults["f1"]["state"] == "applied"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.ENOMEM, errno.EIO])
def test_a_fault_is_ended_once_the_machine_permits(tmp_path: Path, number: int) -> None:
    world = World(tmp_path)

    async def story() -> None:
        fault = await world.apply("f1", "b1")
        fault.deadline_ns = 1  # its lease is over
        world.failures.append(OSError(number, os.strerror(number)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.keeper.heal_by_lease)
            while world.keeper.faults["f1"].is_active:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    run(story)
    assert world.told.count(("b1", "fault_heal")) == 2
    assert world.keeper.faults["f1"].state == "healed"


def test_a_repeated_fault_request_applies_the_fault_once(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def story() -> None:
        first = await world.apply("f1", "b1")
        assert await world.apply("f1", "b1") is first
        with pytest.raises(ControlError, match="another fault already"):
            await world.apply("f1", "b2")

    run(story)
    assert world.told == [("b1", "fault_apply")]


def test_a_fault_healed_before_its_request_arrives_is_never_applied(tmp_path: Path) -> None:
    # A controller that abandons a request sends the heal on another connection meanwhile.
    world = World(tmp_path)

    async def story() -> None:
        assert await world.keeper.heal("f1") is None
        with pytest.raises(ControlError, match="to be healed before it was done"):
            await world.apply("f1", "b1")
        assert not world.keeper.faults
        await world.apply("f2", "b1")

    run(story)
    assert world.told == [("b1", "fault_apply")]


def test_an_expired_lease_heals_its_fault_despite_an_unresponsive_broker(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.refusing.add("fault_heal at b1")

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.keeper.heal_by_lease)
            await world.apply("silent", "b1", lease_ms=100)
            await world.apply("long", "b1")
            await world.apply("short", "b2", lease_ms=100)
            while "fault_healed" not in world.published:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    run(story)
    states = {fault.fault_id: fault.state for fault in world.keeper.faults.values()}
    assert states == {"silent": "applied", "long": "applied", "short": "healed"}
    assert world.keeper.faults["short"].healed_by == "lease"


def test_a_renewed_lease_is_sent_to_its_broker_and_journalled(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def story() -> None:
        fault = await world.apply("f1", "b1", lease_ms=1_000)
        before_ns = fault.deadline_ns or 0
        await world.keeper.renew("f1", 60_000)
        assert (fault.deadline_ns or 0) > before_ns + 50 * 10**9

    run(story)
    assert world.told == [("b1", "fault_apply"), ("b1", "fault_renew")]
    left = recall(read_journal(world.path)).faults["f1"]
    assert left["deadline_ns"] == world.keeper.faults["f1"].deadline_ns


def test_the_end_of_a_process_heals_its_own_faults_only(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def story() -> None:
        for process in ("b1", "b2"):
            await world.apply(f"of {process}", process)
        await world.keeper.process_ended("b1")

    run(story)
    found = {fault.fault_id: fault.healed_by for fault in world.keeper.faults.values()}
    assert found == {"of b1": "process-death", "of b2": None}


@pytest.mark.parametrize("is_same_boot", [True, False])
def test_a_new_agent_adopts_faults_of_the_current_boot_only(
    tmp_path: Path, is_same_boot: bool
) -> None:
    first = World(tmp_path)
    run(lambda: first.apply("f1", "b1"))
    first.journal.close()
    left = recall(read_journal(first.path))
    left.boot = boot_id() if is_same_boot else "another"
    second = World(tmp_path)
    run(lambda: second.keeper.adopt(left))
    fault = second.keeper.faults["f1"]
    assert (fault.state, fault.healed_by) == (
        ("applied", None) if is_same_boot else ("healed", "process-death")
    )
    assert fault.deadline_ns == first.keeper.faults["f1"].deadline_ns


def test_an_adopted_fault_that_had_ended_stays_as_it_was(tmp_path: Path) -> None:
    first = World(tmp_path)

    async def story() -> None:
        await first.apply("f1", "b1")
        await first.keeper.heal("f1")

    run(story)
    left = recall(read_journal(first.path))
    left.boot = "another"
    second = World(tmp_path)
    run(lambda: second.keeper.adopt(left))
    fault = second.keeper.faults["f1"]
    assert (fault.state, fault.healed_by) == ("healed", "request")
    assert fault.healed_ns == first.keeper.faults["f1"].healed_ns
    assert second.published == []
    assert [entry["entry"] for entry in read_journal(second.path)].count("fault_state") == 2


def test_a_second_end_and_a_refused_renewal_change_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def story() -> None:
        fault = await world.apply("f1", "b1")
        row, before = fault.to_row(), [*read_journal(world.path)]
        assert 59_000 < row["lease_left_ms"] <= 60_000
        for lease_ms in (0, 99, -5, True, 1.5, "200"):
            with pytest.raises(ControlError, match="at least 100"):
                await world.keeper.renew("f1", cast(int, lease_ms))
        assert fault.deadline_ns is not None
        assert [*read_journal(world.path)] == before
        await world.keeper.heal("f1")
        healed, after = fault.to_row(), [*read_journal(world.path)]
        assert healed["lease_left_ms"] is None
        for by in ("request", "lease"):
            assert await world.keeper.heal("f1", by) is fault
        with pytest.raises(ControlError, match="f1 is healed; there is no lease to renew"):
            await world.keeper.renew("f1", 500)
        assert fault.to_row() == healed
        assert [*read_journal(world.path)] == after

    run(story)
    assert world.told == [("b1", "fault_apply"), ("b1", "fault_heal")]
    assert world.published == ["fault_applied", "fault_healed"]


FREEZE: dict[str, Any] = {"verb": "freeze", "process": "b1", "lease_ms": 500}


@pytest.mark.parametrize(
    "about, reason",
    [
        ({"fault_id": ""}, "cannot be an id"),
        ({"fault_id": 201 * "f"}, "cannot be an id"),
        ({"fault_id": 200 * "f"}, ""),
        ({}, ""),
        ({"verb": "absorb", "peer": "b2"}, ""),
        ({"peer": "b2"}, "freeze is for processes, not for links"),
        ({"lease_ms": 99}, "lease_ms = 99; at least 100"),
        ({"lease_ms": 100}, ""),
        ({"lease_ms": True}, "lease_ms = True; at least 100"),
        ({"lease_ms": "500"}, "lease_ms = '500'; at least 100"),
        ({"verb": "kill", "lease_ms": 0}, ""),
        ({"direction": "up"}, "direction = 'up'"),
        ({"parameters": {"signal": "TERM"}}, "freeze takes no parameter 'signal'"),
        ({"parameters": {"backend": "nft"}}, "freeze is not done by nft"),
        ({"verb": "cpu-share", "parameters": {}}, "share_percent = None"),
        ({"verb": "cpu-share", "parameters": {"share_percent": True}}, "share_percent = True"),
        ({"verb": "cpu-share", "parameters": {"share_percent": 0}}, "share_percent = 0"),
        ({"verb": "cpu-share", "parameters": {"share_percent": 50}}, ""),
        ({"verb": "corrupt", "parameters": {"damage": "bits", "draw": 1}}, "damage = 'bits'"),
        ({"verb": "corrupt", "parameters": {"file": 5, "draw": 1}}, "file = 5 is no text"),
    ],
)
def test_a_fault_is_checked_before_anything_is_done(about: dict[str, Any], reason: str) -> None:
    fault = Fault(**{"fault_id": "f", **FREEZE, **about})
    if not reason:
        fault.check()
        return
    with pytest.raises(ControlError, match=re.escape(reason)) as refused:
        fault.check()
    assert refused.value.kind == "user"


def test_an_ended_deployment_leaves_nothing_to_adopt() -> None:
    entries = [
        {"entry": "agent", "deployment": "d", "boot_id": "x"},
        {"entry": "start", "process": "b1"},
        {"entry": "fault", "fault_id": "f1"},
        {"entry": "end"},
    ]
    assert recall(entries) == Recollection("d", "x")
    assert recall(entries[:3]).faults.keys() == {"f1"}


def test_the_line_that_a_crash_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"entry": "one"}\n{"entry": "tw')
    journal = Journal(path)
    trio.run(journal.note, "three")
    journal.close()
    assert [entry["entry"] for entry in read_journal(path)] == ["one", "three"]


def test_a_watchdog_thaws_its_target_only_and_records_the_time(tmp_path: Path) -> None:
    lease = tmp_path / "lease"
    write_lease(lease, time.monotonic_ns() - 10**9)
    term = signal.getsignal(signal.SIGTERM)
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            target = ProcessIdentity.of(process.pid)
            target.signal(signal.SIGSTOP)
            wait_until(target.is_stopped)
            for start_time in (target.start_time + 1, target.start_time):
                config = {"pid": target.pid, "start_time": start_time, "lease_file": str(lease)}
                run_thaw_watchdog(config)
                assert (read_heal_time(lease) is not None) == (start_time == target.start_time)
            wait_until(lambda: not target.is_stopped())
        finally:
            process.kill()
            signal.signal(signal.SIGTERM, term)


@pytest.mark.parametrize("has_begun, seen", [(True, {True, False}), (False, {False})])
def test_a_watchdog_lets_a_process_run_for_its_share_once_that_has_begun(
    tmp_path: Path, has_begun: bool, seen: set[bool]
) -> None:
    lease = tmp_path / "lease"
    write_lease(lease, time.monotonic_ns(), has_begun=has_begun)
    term = signal.getsignal(signal.SIGTERM)
    with subprocess.Popen(["sleep", "600"]) as process:
        target = ProcessIdentity.of(process.pid)
        is_over, stopped = threading.Event(), {target.is_stopped()}

        def watch() -> None:
            while not is_over.is_set():
                stopped.add(target.is_stopped())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            identity = {"pid": target.pid, "start_time": target.start_time}
            run_share_watchdog({**identity, "share_percent": 50, "lease_file": str(lease)})
            assert read_heal_time(lease) is not None
            wait_until(lambda: not target.is_stopped())
        finally:
            is_over.set()
            watcher.join()
            process.kill()
            signal.signal(signal.SIGTERM, term)
    assert stopped == seen


def test_a_process_record_of_an_earlier_boot_identifies_no_process(tmp_path: Path) -> None:
    own = ProcessIdentity.of(os.getpid())
    path = tmp_path / "b1.json"
    for boot, found in ((boot_id(), own), ("another", None)):
        path.write_text(json.dumps({"pid": own.pid, "start_time": own.start_time, "boot_id": boot}))
        assert read_identity(path) == found


@pytest.mark.parametrize("direction, chains", [("in", {"incoming"}), ("out", {"outgoing"})])
def test_the_rules_drop_packets_in_the_requested_direction_only(
    direction: str, chains: set[str]
) -> None:
    parameters = {"own": "10.0.0.1:7000", "peers": ["10.0.0.2:7001"]}
    rules = list(nft.Separation.read("blackhole", direction, parameters).rules())
    assert {chain for chain, rule in rules if rule.endswith("drop")} == chains
    for chain in ("outgoing", "incoming"):
        first, second, *_ = [rule for name, rule in rules if name == chain]
        assert (first, second) == ("tcp sport { 22 } accept", "tcp dport { 22 } accept")


def test_agents_of_two_roots_have_tables_of_their_own() -> None:
    one, other = nft.Table.of("/one", "f1"), nft.Table.of("/other", "f1")
    assert one.name != other.name
    assert one.owner != other.owner
