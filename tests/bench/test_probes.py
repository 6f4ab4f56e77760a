"""Tests of the processor time of real processes, restarts included and others excluded."""

import os
import subprocess
import sys

from bench.run.run_statistics import ProcessorTime
from brokerd.agent.processes import ProcessIdentity


def test_the_time_of_this_process_equals_that_of_the_kernel() -> None:
    own = ProcessIdentity.of(os.getpid())
    used = os.times()
    found = own.processor_s()
    assert found is not None
    assert abs(found - used.user - used.system) <= 0.05


def test_a_pid_that_is_used_again_is_another_process() -> None:
    own = ProcessIdentity.of(os.getpid())
    assert ProcessIdentity(own.pid, own.start_time + 1).processor_s() is None


def test_processor_time_of_a_process_stays_counted_after_its_restart() -> None:
    account = ProcessorTime()
    burn = "import sys\nfor n in range(2_000_000): pass\nprint(1, flush=True)\nsys.stdin.read()"
    for expected in (1, 2):
        process = subprocess.Popen(
            [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        identity = ProcessIdentity.of(process.pid)
        row = {"pid": identity.pid, "start_time": identity.start_time}
        account.sample({"c1": {**row, "processor_s": identity.processor_s()}})
        process.communicate()
        account.sample({"c1": {**row, "processor_s": None}})  # gone: nothing is forgotten
        assert account.totals_s()["c1"] >= 0.01 * expected
    assert list(account.totals_s()) == ["c1"]
