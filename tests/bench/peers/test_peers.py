"""Tests of the comparison with other brokers: servers, table and missing programs."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench.peers import __main__ as peers
from bench.peers import ours
from bench.peers.__main__ import SYSTEMS, Promises, table
from bench.peers.measure import measure
from bench.peers.system import (
    Figures,
    PackagesMissing,
    PeerFailed,
    System,
    limit_of,
    program_of,
    run_chain,
)
from bench.systems import boundary
from tests.helpers.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]


def installed(name: str) -> System:
    """Return a system with an installed program."""
    system = next(each for each in SYSTEMS if each.name == name)
    if program_of(system) is None:
        pytest.skip(str(PackagesMissing([system])))
    return system


def is_over(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    "name, brokers", [("nats", 3), ("nats-jetstream", 1), ("mosquitto-qos2", 3)]
)
def test_a_measured_peer_delivers_all_publications_and_leaves_no_process(
    name: str, brokers: int
) -> None:
    system = installed(name)
    before = {*psutil.Process().children(recursive=True)}
    paced = measure(system, brokers, rate=500, warmup_s=0.0, measure_s=0.3)
    assert paced.lost == 0
    assert 0 < paced.service_us["p50"] <= paced.service_us["p99"]
    assert {*paced.cpu_us} >= {f"broker {brokers}", "publisher", "subscriber"}
    left = {*psutil.Process().children(recursive=True)} - before
    assert all(map(is_over, left)), left


def test_servers_end_with_the_process_that_started_them_however_that_ends(tmp_path: Path) -> None:
    installed("nats")
    code = (
        "from bench.peers import nats, system\n"
        "with system.run_chain(nats.SYSTEMS[0], 2) as found:\n"
        "    print(*found.pids, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        started = [psutil.Process(int(word)) for word in process.stdout.readline().split()]
        assert len(started) == 2
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while not all(map(is_over, started)):
        assert time.monotonic() < deadline, started
        time.sleep(0.02)


def misconfigured(program: str, chain: Sequence[boundary.Server]) -> list[boundary.Start]:
    file = str(chain[0].folder / "nats.conf")
    return [boundary.Start((program, "-c", file), {"nats.conf": "listen: {"})]


def test_a_server_that_does_not_start_is_reported_with_its_output() -> None:
    broken = replace(installed("nats"), start=misconfigured)
    with pytest.raises(PeerFailed, match=r"ended: .*Parse error"):
        run_chain(broken, 1).__enter__()


def test_a_missing_peer_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(boundary, "_MORE_FOLDERS", ())
    assert peers.main(["--rounds", "1"]) == 4
    assert "apt-get install mosquitto nats-server" in capsys.readouterr().err
    assert peers.main(["--systems", "natz"]) == 2
    assert "no system 'natz'" in capsys.readouterr().err
    assert peers.main(["--rounds", "0"]) == 2


def figures(system: str, rate: int, delivered_per_s: float, lost: int) -> Figures:
    return Figures(
        system=system,
        brokers=3,
        rate=rate,
        delivered_per_s=delivered_per_s,
        cpu_us={"broker 1": 1.0, "broker 2": 3.0, "publisher": 0.5},
        service_us={"p50": 200.0, "p99": 900.0} if rate else {},
        lost=lost,
        limited_by="publisher",
    )


def test_the_table_has_medians_ratios_within_rounds_and_losses() -> None:
    ours = [figures("pubsubctl", 0, rate, 0) for rate in (100_000.0, 50_000.0, 200_000.0)]
    theirs = [figures("other", 0, rate, 1) for rate in (50_000.0, 100_000.0, 150_000.0)]
    paced = figures("other", 1_000, 1_000.0, 0)
    text = table(
        [(ours[0], theirs[0], paced), (ours[1], theirs[1]), (ours[2], theirs[2])],
        {"pubsubctl": Promises("all", "disk"), "other": Promises("none", "no")},
    )
    title, heads, first, second = text.split("\n\n")[0].split("\n")
    assert title == "3 brokers in a row"
    assert heads.startswith("system")
    assert first.split()[:7] == ["pubsubctl", "all", "100,000", "50,000", "to", "200,000", "1.00"]
    # 0.5, 2 and 0.75 of ours in the same rounds: the ratio of the medians would be 1.
    assert second.split()[2:8] == ["100,000", "50,000", "to", "150,000", "0.75", "2.00"]
    assert second.split()[8:] == ["0.50", "200", "900", "2", "3", "publisher"]


def test_the_limit_is_the_busiest_process_or_all_cores_or_other_work() -> None:
    assert limit_of({"broker 1": 0.95, "publisher": 0.5}, 1.5, cores=2) == "broker 1"
    assert limit_of({"broker 1": 0.8, "publisher": 0.6, "subscriber": 0.5}, 2.0, 2) == "cores"
    assert limit_of({"broker 1": 0.3, "publisher": 0.2}, 1.95, cores=2) == "other work"
    assert limit_of({"broker 1": 0.3, "publisher": 0.2}, 0.6, cores=2) == "window"


def test_our_brokers_receive_unused_ports() -> None:
    first, last = ours.free_ports()
    with socket.create_server(("127.0.0.1", first + 3)):
        another, _ = ours.free_ports()
    assert another > last
