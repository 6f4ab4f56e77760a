"""One measurement of a peer: start, observation and end of servers and load clients."""

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple

import psutil

from bench.peers.load import SETTLE_S, Board, Load, run_publisher, run_subscriber
from bench.peers.system import (
    PERCENTILES,
    Figures,
    PeerFailed,
    Servers,
    System,
    limit_of,
    run_chain,
)
from brokerd.quantiles import percentiles_us

BEGIN_WITHIN_S: Final = 60.0
PAYLOAD_BYTES: Final = 250
_FORK: Final = multiprocessing.get_context("fork")


def measure(system: System, brokers: int, rate: int, warmup_s: float, measure_s: float) -> Figures:
    """Measure a chain of brokers with a publisher at the first and a subscriber at the last.

    The warm-up begins when a probe has passed the whole chain, and the measurement after the
    warm-up.

    Raises:
        PeerFailed: a process ended early, or nothing arrives.
    """
    with ExitStack() as everything:
        servers = everything.enter_context(run_chain(system, brokers))
        board = Board()
        load = Load(
            publish_at=servers.ports[0],
            subscribe_at=servers.ports[-1],
            size=PAYLOAD_BYTES,
            rate=rate,
            window=system.window,
            batch=system.batch,
        )
        subscriber = _start(everything, run_subscriber, system.client(True), load, board)
        _wait(lambda: board.get("subscribed") == 1, servers, (subscriber,))
        publisher = _start(everything, run_publisher, system.client(False), load, board)
        clients = (publisher, subscriber)
        _wait(lambda: board.get("loading") == 1, servers, clients)
        pids = {f"broker {number}": pid for number, pid in enumerate(servers.pids, start=1)}
        pids |= {"publisher": _pid(publisher), "subscriber": _pid(subscriber)}
        _sleep(warmup_s, servers, clients)
        before = _Snapshot.take(pids, board)
        _sleep(measure_s, servers, clients)
        after = _Snapshot.take(pids, board)
        board.set("stop", 1)
        publisher.answer()
        latencies = subscriber.answer()
        lost = board.get("sent") - board.get("received")
    return _figures(system, brokers, rate, (before, after), latencies, lost)


class _Snapshot(NamedTuple):
    """The state at one instant."""

    at_ns: int
    received: int
    cpu_s: dict[str, float]
    machine_s: float

    @classmethod
    def take(cls, pids: dict[str, int], board: Board) -> "_Snapshot":
        cpu_s = {}
        for name, pid in pids.items():
            times = psutil.Process(pid).cpu_times()
            cpu_s[name] = times.user + times.system
        machine = psutil.cpu_times()
        busy_s = sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice
        return cls(time.monotonic_ns(), board.get("received"), cpu_s, busy_s)


class _LoadClient(NamedTuple):
    """A running load client."""

    process: BaseProcess
    answers: Connection

    def answer(self) -> Any:
        """Return the final answer of the client."""
        if not self.answers.poll(2 * SETTLE_S + 5):
            raise PeerFailed(f"{self.process.name} does not end")
        reply = self.answers.recv()
        if isinstance(reply, str):
            raise PeerFailed(reply)
        return reply

    def check(self) -> None:
        """Raise PeerFailed if the client answered early or has ended."""
        if self.answers.poll():
            raise PeerFailed(f"{self.process.name}: {self.answers.recv()}")
        if not self.process.is_alive():
            raise PeerFailed(f"{self.process.name} has ended")


def _start(
    everything: ExitStack, run: Callable[..., None], client: Any, load: Load, board: Board
) -> _LoadClient:
    answers, there = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=run, args=(client, load, board, there), name=run.__name__)
    process.start()
    there.close()
    everything.callback(_end, process)
    return _LoadClient(process, answers)


def _end(process: BaseProcess) -> None:
    process.kill()
    process.join()


def _pid(running_client: _LoadClient) -> int:
    assert running_client.process.pid is not None, running_client
    return running_client.process.pid


def _wait(
    condition: Callable[[], bool], servers: Servers, clients: tuple[_LoadClient, ...]
) -> None:
    until = time.monotonic() + BEGIN_WITHIN_S
    while not condition():
        _sleep(0.02, servers, clients)
        if time.monotonic() > until:
            raise PeerFailed(f"the load has not begun within {BEGIN_WITHIN_S:g} s")


def _sleep(seconds: float, servers: Servers, clients: tuple[_LoadClient, ...]) -> None:
    time.sleep(seconds)
    servers.check()
    for each in clients:
        each.check()


def _figures(
    system: System,
    brokers: int,
    rate: int,
    looks: tuple[_Snapshot, _Snapshot],
    latencies: Any,
    lost: int,
) -> Figures:
    before, after = looks
    seconds, received = (after.at_ns - before.at_ns) / 1e9, after.received - before.received
    if received <= 0:
        raise PeerFailed(f"{system.name}: nothing was received in {seconds:.1f} s")
    used_s = {name: after.cpu_s[name] - before.cpu_s[name] for name in after.cpu_s}
    within = [
        place for place, at_ns in enumerate(latencies[0]) if before.at_ns <= at_ns < after.at_ns
    ]
    return Figures(
        system=system.name,
        brokers=brokers,
        rate=rate,
        delivered_per_s=received / seconds,
        cpu_us={name: each * 1e6 / received for name, each in used_s.items()},
        response_us=percentiles_us([latencies[1][place] for place in within], PERCENTILES),
        service_us=percentiles_us([latencies[2][place] for place in within], PERCENTILES),
        lost=lost,
        limited_by=limit_of(
            {name: each / seconds for name, each in used_s.items()},
            (after.machine_s - before.machine_s) / seconds,
            os.cpu_count() or 1,
        ),
    )
