"""A machine module with load generators that record deliveries slowly."""

import sys
import time

from bench.load.subscribers import Receiver
from bench.run.machine import main
from brokerd.model.publication import PublicationRun

WORK_S = 0.004
"""Processor time for each publication."""

_receive = Receiver.receive


def _receive_slowly(
    self: Receiver, subscription: int, run: PublicationRun, received_ns: int
) -> None:
    until_s = time.thread_time() + WORK_S * len(run)
    while time.thread_time() < until_s:
        pass
    _receive(self, subscription, run, received_ns)


if __name__ == "__main__":
    Receiver.receive = _receive_slowly  # type: ignore[method-assign]
    sys.exit(main())
