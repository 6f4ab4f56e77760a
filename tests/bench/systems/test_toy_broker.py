"""Tests of a toy broker behind the driver boundary: servers, load, faults and verdict.

`tests/foreign/toy_system` is the code that a reader of README's "Test your own broker" writes.
"""

import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
import trio

from bench.load import load_control
from bench.run import coordinator
from bench.run.outcome import RunOutcome
from bench.run.run_directory import new_run_directory
from bench.run.testbed import RunFailed
from bench.spec.keys import Overrides
from bench.systems import servers
from bench.systems.configuration import load_configuration
from bench.systems.experiment import experiment_on, run_on_system
from bench.systems.faults import needs_disk
from bench.systems.servers import ServerFailed, servers_running
from bench.systems.synced_files import is_possible
from fault_injection.schedule.schedule import FaultSchedule, read_schedule
from results.reference.history_reader import judge_folder
from tests.helpers.patience import PATIENCE_S
from tests.helpers.small_testbed import lab_folder

pytestmark = pytest.mark.end_to_end

TOY = Path(__file__).parents[2] / "foreign" / "toy_system"
LONGEST_DRIVER = 150
WORKLOAD = """
schema = "pubsubctl/workload/1"
name = "tried"
topology = "single"
protocol = "best_effort"
topic = "symbol"
seed = 5
[bars]
deliveries_per_pair_min = 10
[phases]
warmup = "100ms"
measure = "{measure}"
drain = "{drain}"
[thresholds]
"loadgen.lateness_p99" = "< 60s"
[attributes]
symbol = {{ choose = 3 }}
[[publishers]]
at = "c1"
count = 2
rate = "{rate}"
[[subscribers]]
at = "c1"
filter = "true"
[[subscribers]]
at = "c1"
filter = "symbol = 'SYMBOL002'"
"""
FROZEN_AND_KILLED: list[dict[str, Any]] = [
    {"id": "freeze", "at": "300ms", "do": "freeze", "on": "n1", "for": "200ms"},
    {"id": "kill", "after": "freeze", "do": "kill", "on": "n1"},
    {"id": "restart", "after": "kill.applied", "delay": "100ms", "do": "restart", "on": "n1"},
]
AWAY_AND_KILLED: list[dict[str, Any]] = [
    {"id": "away", "at": "200ms", "do": "client-disconnect", "on": "n1-sub-1", "for": "1s"},
    {"id": "kill", "at": "600ms", "do": "kill", "on": "n1"},
    {"id": "restart", "after": "kill.applied", "delay": "100ms", "do": "restart", "on": "n1"},
]


class Quiet:
    def phase(self, name: str, expected_s: float | None = None) -> None:
        pass

    def update(self, numbers: Mapping[str, Any]) -> None:
        pass

    def print(self, text: str) -> None:
        pass


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of a test; no process of the test may remain afterwards."""
    with lab_folder() as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(path / "run"))
        monkeypatch.setattr("tempfile.tempdir", str(path))
        yield path


def schedule(steps: list[dict[str, Any]]) -> FaultSchedule:
    guard = {"max_faulty_brokers": 1}
    document = {"schema": "pubsubctl/faults/1", "name": "t", "guard": guard, "step": steps}
    return read_schedule(document, "here")


def carry_out(
    folder: Path,
    durable: str,
    promise: str,
    faults: list[dict[str, Any]] | None = None,
    *,
    measure: str = "1s",
    drain: str = "60s",
    rate: str = "100/s",
    unsynced: str = "kept",
    driver: tuple[str, str] = ("", ""),
) -> RunOutcome:
    """Return a run on the toy broker of this kind, judged by this promise."""
    mine = folder / "mine"
    shutil.copytree(TOY, mine)
    code = (mine / "toy_driver.py").read_text()
    assert driver[0] in code, driver
    (mine / "toy_driver.py").write_text(code.replace(*driver) if driver[0] else code)
    text = (mine / "toy.toml").read_text()
    text = text.replace('durable = "yes"', f'durable = "{durable}"')
    text = text.replace('servers = ["n1"]', f'servers = ["n1"]\nunsynced = "{unsynced}"')
    (mine / "toy.toml").write_text(text.replace('"exactly-once"', f'"{promise}"'))
    workload = folder / "work.toml"
    workload.write_text(WORKLOAD.format(measure=measure, drain=drain, rate=rate))
    configuration = load_configuration(str(mine / "toy.toml"))
    spec = experiment_on(configuration, workload, Overrides(), {}, calm=faults is None)

    async def work() -> RunOutcome:
        with trio.fail_after(PATIENCE_S):
            done = schedule(faults) if faults else None
            on_disks = needs_disk(done)
            async with servers_running(configuration, faulty_disks=on_disks) as (bed, running):
                run = new_run_directory(folder / "runs", spec.name)
                return await run_on_system(spec, bed, running, run, done, Quiet())

    return trio.run(work)


def test_a_killed_broker_delivers_its_stored_publications_once_and_in_order(folder: Path) -> None:
    outcome = carry_out(folder, "yes", "exactly-once", FROZEN_AND_KILLED)
    assert (outcome.state, outcome.reasons) == ("complete", ())
    judged = judge_folder(outcome.run_directory)
    assert judged.verdict == "VALID", judged
    assert judged.counts.at_risk == judged.counts.recovered > 0
    assert judged.counts.owed == outcome.online["owed"]
    assert outcome.online["missing"] == outcome.online["duplicate"] == 0
    assert not [*Path(gettempdir()).glob("pubsubctl-system-*")]


def test_a_broker_that_forgets_when_it_is_killed_breaks_its_promise(folder: Path) -> None:
    outcome = carry_out(folder, "no", "at-least-once", FROZEN_AND_KILLED, drain="2s")
    judged = judge_folder(outcome.run_directory)
    assert judged.verdict == "INVALID", judged
    assert judged.counts.violations["missing"] == outcome.online["missing"] > 0


@pytest.mark.skipif(not is_possible(), reason="Linux on x86_64 only")
@pytest.mark.parametrize(
    "durable, verdict, drain", [("yes", "INVALID", "2s"), ("synced", "VALID", "60s")]
)
def test_a_loss_of_power_shows_acknowledged_records_that_were_not_synced(
    durable: str, verdict: str, drain: str, folder: Path
) -> None:
    """The broker that only writes survives a mere kill, as the test above shows.

    A loss affects the publications acknowledged while a subscriber is disconnected.
    """
    outcome = carry_out(
        folder, durable, "exactly-once", AWAY_AND_KILLED, drain=drain, rate="50/s",
        unsynced="lost",
    )  # fmt: skip
    judged = judge_folder(outcome.run_directory)
    assert judged.verdict == verdict, judged
    assert judged.counts.at_risk > 0
    lost = {"missing", "fence_missing"} & judged.counts.violations.keys()
    assert bool(lost) == (verdict == "INVALID"), judged


@pytest.mark.parametrize(
    "promise, verdict", [("exactly-once", "INVALID"), ("at-least-once", "VALID")]
)
def test_the_promise_decides_whether_a_repetition_is_wrong(
    promise: str, verdict: str, folder: Path
) -> None:
    outcome = carry_out(folder, "repeats", promise, measure="400ms")
    judged = judge_folder(outcome.run_directory)
    assert judged.verdict == verdict, judged
    assert judged.counts.violations["duplicate"] == outcome.online["duplicate"] > 0


def test_a_broker_without_acknowledgements_is_named_and_disconnected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "OPENING_TIMEOUT_S", 1.0)
    with pytest.raises(RunFailed, match=r"for 2 publications to be acknowledged$"):
        carry_out(folder, "silent", "at-least-once")


def test_a_broker_that_ends_at_once_is_quoted_and_nothing_is_left(folder: Path) -> None:
    with pytest.raises(ServerFailed, match=r"\(n1\) has ended: toy broker: nothing works") as told:
        carry_out(folder, "dies", "at-least-once")
    assert told.value.exit_status == 4
    assert not [*folder.glob("pubsubctl-system-*")]


def test_a_broker_that_refuses_clients_is_quoted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_control, "ATTACH_TIMEOUT_S", 1.0)
    asks = "        host, _, port = self.about"
    refused = f'        raise ConnectionLost("not authorised")\n{asks}'
    with pytest.raises(RunFailed, match=r"to attach \(not authorised\)$"):
        carry_out(folder, "yes", "at-least-once", driver=(asks, refused))
    assert not [*folder.glob("pubsubctl-system-*")]


def test_a_port_in_use_is_named_and_not_mistaken_for_the_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(servers, "free_ports", lambda count: [port])
        with pytest.raises(ServerFailed, match=rf"n1: port {port} is in use"):
            carry_out(folder, "yes", "at-least-once")
    assert not [*folder.glob("pubsubctl-system-*")]


def test_data_of_another_run_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder / "left"
    (root / "servers" / "n1").mkdir(parents=True)
    monkeypatch.setattr(servers, "mkdtemp", lambda prefix: str(root))
    with pytest.raises(ServerFailed, match=r"n1: .*left/servers/n1 is there already"):
        carry_out(folder, "yes", "at-least-once")


def test_the_driver_is_no_longer_than_we_say() -> None:
    assert len((TOY / "toy_driver.py").read_text().splitlines()) <= LONGEST_DRIVER
