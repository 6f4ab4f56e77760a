"""What becomes of workers when their controller is killed."""

import subprocess
import sys

import psutil

CONTROLLER = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from bench.workers import begin_worker

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, initializer=begin_worker)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600).result()
"""


def test_workers_end_when_their_controller_is_killed(tmp_path) -> None:
    script = tmp_path / "controller.py"
    script.write_text(CONTROLLER)
    controller = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    worker = psutil.Process(int(controller.stdout.readline()))
    try:
        assert worker.is_running()
        controller.kill()
        controller.wait()
        worker.wait(60)
        assert not worker.is_running()
    finally:
        controller.stdout.close()
        if worker.is_running():
            worker.kill()
