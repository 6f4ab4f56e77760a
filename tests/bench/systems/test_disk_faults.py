"""Tests of disk faults of foreign programs, and of their effects on the programs."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.spec.validation import SpecError
from bench.systems import faults, program
from bench.systems.faults import check_verbs, needs_disk
from bench.systems.program import DiskFaults
from bench.systems.synced_files import is_possible
from brokerd.errors import ControlError
from fault_injection.schedule.schedule import FaultSchedule, read_schedule
from results.reference.history_reader import judge_folder
from tests.bench.systems.test_toy_broker import carry_out
from tests.bench.systems.test_toy_broker import folder as folder
from tests.helpers.patience import PATIENCE_S

only_there = pytest.mark.skipif(not is_possible(), reason="Linux on x86_64 only")

STARTED = """
import os, sys
from pathlib import Path
from bench.systems.program import DiskFaults
from bench.systems.synced_files import keep_synced
from brokerd.sessions.link_faults import read_fault

class Disk(DiskFaults):
    def begin(self):
        for verb, how in (("disk-full", {"free_bytes": 10}), ("slow-fsync", {"delay_ms": 30})):
            self._faults.apply(read_fault(verb, verb, None, "both", how, None))

program, folder = sys.argv[1:]
keep_synced(Path(folder), None, Disk("unused"))
os.chdir(folder)
os.execv(sys.executable, [sys.executable, "-c", program])
"""
WRITES = """
import os, time

def tried(write):
    try:
        return write()
    except OSError as error:
        return -error.errno

inside = os.open("file", os.O_CREAT | os.O_RDWR)
outside = os.open("../outside", os.O_CREAT | os.O_WRONLY)
found = [
    tried(lambda: os.write(inside, b"six by")),
    tried(lambda: os.writev(inside, [b"123", b"456"])),
    tried(lambda: os.pwritev(inside, [b"1234"], 6)),
    tried(lambda: os.pwrite(inside, b"1", 9)),
    tried(lambda: os.posix_fallocate(inside, 0, 100)),
    tried(lambda: os.write(outside, b"any")),
]
began_ns = time.monotonic_ns()
os.fsync(inside)
waited_ns = time.monotonic_ns() - began_ns
print(*found, waited_ns >= 30_000_000, os.pread(inside, 100, 0))
"""
LATE: dict[str, Any] = {"latency": "20ms"}
SLOWED_AND_KILLED: list[dict[str, Any]] = [
    {"id": "slow", "at": "200ms", "do": "slow-fsync", "on": "n1", "for": "200ms", **LATE},
    {"id": "again", "after": "slow", "do": "slow-fsync", "on": "n1", "for": "1s", **LATE},
    {"id": "kill", "after": "again.observed", "delay": "200ms", "do": "kill", "on": "n1"},
    {"id": "restart", "after": "kill.applied", "delay": "100ms", "do": "restart", "on": "n1"},
]


def planned(verb: str) -> FaultSchedule:
    step = {"id": "a", "at": "1s", "do": verb, "on": "n1", "for": "1s"}
    step |= {"latency": "10ms"} if verb == "slow-fsync" else {}
    document = {"schema": "pubsubctl/faults/1", "name": "t", "step": [step]}
    return read_schedule(document, "here")


@only_there
def test_a_disk_fault_fills_and_delays_its_own_folder_only(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", STARTED, WRITES, str(tmp_path / "data")],
        cwd=Path(__file__).parents[3], check=True, stdout=subprocess.PIPE, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    full = -errno.ENOSPC
    assert done.stdout == f"6 {full} 4 {full} {full} 3 True b'six by1234'\n"
    assert os.path.getsize(tmp_path / "data" / "file") == 10


@only_there
@pytest.mark.end_to_end
def test_a_server_with_delayed_syncs_is_detected_healed_and_judged(folder: Path) -> None:
    """The server acknowledges synced publications only, so a kill meanwhile costs nothing."""
    outcome = carry_out(
        folder, "synced", "exactly-once", SLOWED_AND_KILLED, measure="2s", rate="30/s"
    )
    assert (outcome.state, outcome.reasons) == ("complete", ())
    judged = judge_folder(outcome.run_directory)
    assert judged.verdict == "VALID", judged
    assert judged.counts.at_risk == judged.counts.recovered > 0


def test_faults_of_a_disk_are_counted_renewed_and_end() -> None:
    async def story() -> None:
        disk = DiskFaults("unused")
        ask = disk.handlers()
        about = {"fault_id": "f", "lease_ms": 60_000}
        assert (disk.takes(1 << 30), disk.sync_delay_ns()) == (True, 0)
        await ask["fault_apply"]({**about, "verb": "disk-full", "parameters": {"free_bytes": 9}})
        assert (disk.takes(9), disk.takes(1)) == (True, False)
        await ask["fault_renew"](about)
        assert (await ask["status"]({}))["faults"] == ["f"]
        await ask["fault_heal"]({"fault_id": "f"})
        assert disk.takes(1)
        assert (await ask["fault_counters"]({}))["f"]["refused_writes"] == 1
        with pytest.raises(ControlError, match="no fault 'f' is in force"):
            await ask["fault_renew"](about)
        with pytest.raises(ControlError, match="disk-full, slow-fsync, not 'cut'"):
            await ask["fault_apply"]({**about, "verb": "cut"})
        slow = {**about, "fault_id": "s", "verb": "slow-fsync", "parameters": {"delay_ms": 7}}
        await ask["fault_apply"](slow)
        assert disk.sync_delay_ns() == 7_000_000
        assert (await ask["fault_counters"]({}))["s"]["slowed_writes"] == 1

    trio.run(story)


@pytest.mark.parametrize("verb", ["disk-full", "slow-fsync"])
def test_a_disk_fault_is_refused_on_an_unsupported_host(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert needs_disk(planned(verb))
    monkeypatch.setattr(faults, "is_possible", lambda: False)
    said = f"here: step a: do = '{verb}': only Linux on x86_64 can stand between"
    with pytest.raises(SpecError, match=said):
        check_verbs(planned(verb))


def test_the_error_quotes_a_kernel_that_refuses_disk_interception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EPERM, "seccomp with a listener")

    monkeypatch.setattr(program, "keep_synced", refuse)
    config = {"folder": str(tmp_path), "command": ["/bin/true"], "control_socket": "unused"}
    with pytest.raises(SystemExit, match=r"its disk here: .*seccomp with a listener"):
        program.run_program(config)
