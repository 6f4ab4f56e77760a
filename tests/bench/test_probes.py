"""Processor time of real processes, over restarts, and of nobody else."""

import os
import subprocess
import sys

from bench.probes import ProcessorTime, processor_seconds


def identity(pid: int) -> dict[str, int]:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    return {"pid": pid, "start_time": int(fields[19])}


def test_the_time_of_this_process_is_what_the_kernel_says() -> None:
    own = identity(os.getpid())
    used = os.times()
    found = processor_seconds(**own)
    assert found is not None
    assert abs(found - used.user - used.system) <= 0.05


def test_a_pid_that_is_used_again_is_another_process() -> None:
    own = identity(os.getpid())
    assert processor_seconds(own["pid"], own["start_time"] + 1) is None


def test_what_a_process_used_stays_counted_when_it_is_gone_and_started_again() -> None:
    account = ProcessorTime()
    burn = "import sys\nfor n in range(2_000_000): pass\nprint(1, flush=True)\nsys.stdin.read()"
    for expected in (1, 2):
        process = subprocess.Popen(
            [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        row = identity(process.pid)
        account.sample({"c1": row, "c2": {"pid": None, "start_time": None}})
        process.communicate()
        account.sample({"c1": row})  # gone: nothing is forgotten
        assert account.totals_s()["c1"] >= 0.01 * expected
    assert list(account.totals_s()) == ["c1"]
