"""Tests of workers whose controller is killed."""

import operator
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from brokerd.simulator.search.workers import map_in_workers
from tests.helpers.patience import PATIENCE_S

POOL = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from brokerd.simulator.search.workers import begin_worker

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, initializer=begin_worker)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600).result()
"""
MAP = """
import operator, os, time
from brokerd.simulator.search.workers import map_in_workers

if __name__ == "__main__":
    for result in map_in_workers(operator.call, [(os.getpid,), (time.sleep, 600)], 2):
        print(result, flush=True)
"""
FORK = """
import multiprocessing, os, time
from brokerd.simulator.search.workers import begin_worker, end_with_controller

def work(connection):
    begin_worker()
    if not os.fork():
        end_with_controller()
        connection.send(os.getpid())
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    context.Process(target=work, args=(there,)).start()
    print(here.recv(), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("program", [POOL, MAP, FORK], ids=["executor", "map", "fork"])
def test_workers_end_when_their_controller_is_killed(program: str, tmp_path: Path) -> None:
    script = tmp_path / "controller.py"
    script.write_text(program)
    controller = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    worker = int(controller.stdout.readline())
    family = psutil.Process(controller.pid).children(recursive=True)
    try:
        assert worker in [process.pid for process in family]
        controller.kill()
        controller.wait()
        _, left = psutil.wait_procs(family, PATIENCE_S)
        assert left == []
    finally:
        controller.stdout.close()
        for process in family:
            if process.is_running():
                process.kill()


def test_results_are_returned_in_the_order_of_the_jobs() -> None:
    jobs = [(number, 2) for number in range(20)]
    expected = [number**2 for number in range(20)]
    assert [*map_in_workers(operator.pow, jobs, 2, at_once=3)] == expected
    assert [*map_in_workers(operator.pow, jobs, 1)] == expected


def test_a_single_worker_runs_in_the_calling_process() -> None:
    assert [*map_in_workers(operator.call, [(os.getpid,)] * 2, 1)] == [os.getpid()] * 2
