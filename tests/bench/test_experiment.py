"""Tests of whole experiments with real brokers, load generators and agents of this machine."""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.run.coordinator import run_experiment
from bench.run.outcome import RunOutcome
from bench.run.run_directory import new_run_directory
from bench.run.testbed import Testbed
from bench.spec.spec import ExperimentSpec, load_experiment
from fault_injection.schedule.schedule import FaultSchedule, read_schedule
from results.reference.history_reader import judge_folder
from tests.helpers.patience import PATIENCE_S
from tests.helpers.small_testbed import lab_folder, small_testbed

pytestmark = pytest.mark.end_to_end

WORKLOAD = """
schema = "pubsubctl/workload/1"
name = "tried"
topology = "chain3"
protocol = "{protocol}"
seed = 5
calm = {calm}
[bars]
deliveries_per_pair_min = 10
[phases]
warmup = "200ms"
measure = "{measure}"
drain = "120s"
[thresholds]
"loadgen.lateness_p99" = "{lateness}"
[load]
{load}
[attributes]
sets = 40
symbol = {{ choose = 4 }}
[[publishers]]
at = "c1"
count = 2
rate = "{rate}"
window = {window}
[[subscribers]]
at = "c3"
filter = "true"
[[subscribers]]
at = "c2"
filter = "symbol = 'SYMBOL002'"
"""


class Quiet:
    """A progress display that records phases and messages."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.said: list[str] = []
        self.reached = trio.Event()
        self.awaited = ""

    def phase(self, name: str, expected_s: float | None = None) -> None:
        self.phases.append(name)
        if name == self.awaited:
            self.reached.set()

    def update(self, numbers: Mapping[str, Any]) -> None:
        pass

    def print(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of a test; no process may remain in the folder."""
    with lab_folder() as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(path / "run"))
        yield path


def experiment(
    folder: Path, *, protocol: str = "delta_tree", calm: bool = True, measure: str = "2s",
    rate: str = "100/s", window: int = 1000, lateness: str = "< 60s", load: str = "",
) -> ExperimentSpec:  # fmt: skip
    path = folder / "work.toml"
    text = WORKLOAD.format(
        protocol=protocol, calm=str(calm).lower(), measure=measure, rate=rate, window=window,
        lateness=lateness, load=load,
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")
    return load_experiment(path)


def schedule(steps: list[dict[str, Any]]) -> FaultSchedule:
    return read_schedule({"schema": "pubsubctl/faults/1", "name": "tried", "step": steps}, "here")


def brokers(
    folder: Path, spec: ExperimentSpec, machine: str = "bench.run.machine"
) -> AbstractAsyncContextManager[Testbed]:
    return small_testbed(folder, spec.topology, spec.protocol, machine)


def carry_out(
    folder: Path,
    spec: ExperimentSpec,
    faults: FaultSchedule | None = None,
    machine: str = "bench.run.machine",
) -> tuple[RunOutcome, Quiet]:
    progress = Quiet()

    async def work() -> RunOutcome:
        with trio.fail_after(PATIENCE_S):
            async with brokers(folder, spec, machine) as bed:
                run = new_run_directory(folder / "runs", spec.name)
                return await run_experiment(spec, bed, run, faults, progress)

    return trio.run(work), progress


def manifest_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return content


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def sidecars(run: Path) -> dict[str, dict[str, Any]]:
    return {
        path.name.removesuffix(".rec.json"): json.loads(path.read_text())
        for path in run.glob("raw/*/load-*/*.rec.json")
    }


@pytest.mark.sampled
def test_clients_in_several_load_generators_have_one_history(folder: Path) -> None:
    spec = experiment(
        folder, measure="1s", load="publisher_processes = 2\nsubscriber_processes = 2"
    )
    outcome, _ = carry_out(folder, spec)
    run = outcome.run_directory
    assert {path.name for path in run.glob("raw/*/load-*")} == {
        f"load-{role}-{number}" for role in ("pub", "sub") for number in (1, 2)
    }
    assert outcome.published == 200
    assert outcome.online["missing"] == 0
    judged = judge_folder(run)
    assert (judged.verdict, judged.counts.owed) == ("VALID", outcome.online["owed"])


@pytest.mark.sampled
@pytest.mark.parametrize("protocol, verdict", [("delta_tree", "VALID"), ("best_effort", "INVALID")])
def test_a_reconnecting_subscriber_receives_the_stored_publications(
    folder: Path, protocol: str, verdict: str
) -> None:
    """The run is INVALID if the broker stores nothing for disconnected clients."""
    churn = '[churn]\ndisconnected = "500ms"\nevery = "1500ms"'
    spec = experiment(folder, protocol=protocol, calm=False, measure="3s", load=churn)
    outcome, _ = carry_out(folder, spec)
    judged = judge_folder(outcome.run_directory)
    assert (outcome.state, judged.verdict) == ("complete", verdict), judged.doubts
    assert judged.counts.at_risk > 50
    assert judged.counts.missing == outcome.online["missing"]
    assert (judged.counts.recovered == judged.counts.at_risk) == (verdict == "VALID")


@pytest.mark.sampled
def test_a_load_generator_that_is_the_limit_answers_and_is_named(folder: Path) -> None:
    """The load generator is slow on purpose: the run ends, and the result excludes the brokers."""
    spec = experiment(folder, measure="500ms", rate="500/s", window=50)
    outcome, progress = carry_out(folder, spec, machine="tests.helpers.slow_machine")
    assert (outcome.state, outcome.online["missing"]) == ("complete", 0)
    assert not any("has not answered" in text for text in progress.said)
    judged = judge_folder(outcome.run_directory)
    assert (judged.verdict, judged.doubts) == ("VALID", ())  # a stamp out of order would be one
    # Where others have the machine, the machine is the limit; this one is the busiest of ours.
    is_machine = outcome.limited_by.startswith("machine of ")
    assert is_machine or "load generator load-sub: " in outcome.limited_by, outcome.limited_by
    assert outcome.is_load_generator_limit == outcome.limited_by.startswith("load generator ")
    headline = manifest_of(outcome.run_directory)["headline"]
    assert headline["limited_by"] == outcome.limited_by
    assert headline["is_load_generator_limit"] == outcome.is_load_generator_limit


def test_a_run_without_faults_completes_without_loss(folder: Path) -> None:
    outcome, progress = carry_out(folder, experiment(folder))
    assert (outcome.state, outcome.reasons) == ("complete", ())
    assert outcome.published == 400
    assert outcome.online["missing"] == outcome.online["duplicate"] == 0
    assert outcome.online["owed"] == outcome.online["deliveries"] > 400
    assert 0 < outcome.service_us["p50"] <= outcome.response_us["p50"]
    assert set(outcome.broker_cpu_us_per_message) == {"c1", "c2", "c3"}
    assert all(cost > 0 for cost in outcome.broker_cpu_us_per_message.values())
    assert progress.phases.index("measure") < progress.phases.index("drain")

    run = outcome.run_directory
    manifest = manifest_of(run)
    assert manifest["drain"]["ended_by"] == "evidence"
    promised = {"exactly_once": True, "order": "publisher", "gaps": [], "redelivers": False}
    assert manifest["promises"] == promised
    phases = {phase["phase"]: phase for phase in manifest["phases"]}
    assert [*phases] == ["deploy", "warmup", "measure", "drain"]
    assert phases["measure"]["t0_ns"] == manifest["origin_ns"]
    assert phases["measure"]["t1_ns"] - phases["measure"]["t0_ns"] == 2 * 10**9
    assert all(facts["closed"] for facts in sidecars(run).values())
    assert set(sidecars(run)) == {"publications", "acks", "intents", "deliveries"}
    for name in ("workload.toml", "topology.toml", "inventory.toml", "placement.json", "cli.json"):
        assert (run / "spec" / name).is_file()
    for broker in ("c1", "c2", "c3"):
        names = {path.name for path in (run / "raw" / "x1" / broker).iterdir()}
        assert {"events.jsonl", "stats.jsonl", "stderr.log"} <= names
    assert (run / "SHA256SUMS").is_file()
    index = lines(folder / "runs" / "index.jsonl")
    assert [line["run_id"] for line in index] == [run.name]


@pytest.mark.sampled
def test_two_runs_on_the_same_brokers_do_not_mix(folder: Path) -> None:
    """Client names differ between runs; leftovers of the first run are not delivered."""
    spec = experiment(folder, protocol="best_effort", measure="500ms")
    progress = Quiet()

    async def work() -> list[RunOutcome]:
        with trio.fail_after(PATIENCE_S):
            async with brokers(folder, spec) as bed:
                return [
                    await run_experiment(
                        spec, bed, new_run_directory(folder / "runs", spec.name), None, progress
                    )
                    for _ in range(2)
                ]

    for outcome in trio.run(work):
        assert (outcome.state, outcome.published) == ("complete", 100)
        assert outcome.online["phantom"] == outcome.online["missing"] == 0


@pytest.mark.sampled
def test_a_stall_counts_from_when_publications_were_meant_to_be_sent(folder: Path) -> None:
    """The forwarding broker is stalled for 3 s while the window is small.

    Most publications due during the stall are sent afterwards. They look fast by the time of
    sending, but waited up to 3 s by the time at which they were due.
    """
    spec = experiment(folder, calm=False, measure="6s", window=8)
    stall = [{"id": "freeze-c1", "at": "1s", "do": "freeze", "on": "c1", "for": "3s"}]
    outcome, progress = carry_out(folder, spec, schedule(stall))
    assert outcome.state == "complete", outcome.reasons
    assert outcome.published == 1200
    assert outcome.response_us["max"] >= 2_900_000
    # Half of the 6 s was stalled: a fifth of all waited over a second, by when it was meant.
    assert outcome.response_us["p90"] >= 1_000_000
    # 2 x 8 of some 1,500 deliveries were under way in the stall.
    assert outcome.service_us["p90"] <= outcome.response_us["p90"] / 4
    assert outcome.online["missing"] == 0
    assert any("freeze c1 healed" in text for text in progress.said)
    rows = lines(outcome.run_directory / "faults" / "faults.jsonl")
    assert [(row["step"], row["state"]) for row in rows] == [("freeze-c1", "recovered")]


@pytest.mark.sampled
def test_a_generator_that_is_too_late_spoils_the_run(folder: Path) -> None:
    outcome, _ = carry_out(folder, experiment(folder, measure="500ms", lateness="< 1ns"))
    assert outcome.saturated
    assert outcome.state == "partial"
    assert "could not hold their rate" in outcome.reasons[0]
    assert manifest_of(outcome.run_directory)["loadgen_saturated"] is True


def interrupted(
    folder: Path,
    spec: ExperimentSpec,
    faults: FaultSchedule | None,
    when: str,
    then: Callable[[Testbed], Awaitable[None]],
) -> Path:
    """Return the folder of a run that is cancelled a moment after the start of phase `when`."""
    progress = Quiet()
    progress.awaited = when

    async def work() -> Path:
        with trio.fail_after(PATIENCE_S):
            async with brokers(folder, spec) as bed:
                run = new_run_directory(folder / "runs", spec.name)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(run_experiment, spec, bed, run, faults, progress)
                    await progress.reached.wait()
                    await then(bed)
                    nursery.cancel_scope.cancel()
                status = await bed.clients_agent.status()
                states = {name: row["state"] for name, row in status["processes"].items()}
                assert all(states[name] != "running" for name in states if "load" in name), states
                assert not [fault for fault in status["faults"] if fault["state"] == "active"]
                return run

    return trio.run(work)


def test_an_interrupted_run_is_healed_closed_and_brought_home(folder: Path) -> None:
    spec = experiment(folder, calm=False, measure="60s")
    freeze = [{"id": "freeze-c2", "at": "0s", "do": "freeze", "on": "c2", "for": "50s"}]

    async def frozen(bed: Testbed) -> None:
        while not (await bed.agents["x1"].status())["processes"]["c2"]["frozen"]:
            await trio.sleep(0.02)

    run = interrupted(folder, spec, schedule(freeze), "measure", frozen)
    manifest = manifest_of(run)
    assert (manifest["state"], manifest["reasons"][0]) == ("partial", "interrupted")
    assert all(facts["closed"] for facts in sidecars(run).values())
    (row,) = lines(run / "faults" / "faults.jsonl")
    assert (row["healed_by"], row["t_healed_ns"] is not None) == ("user", True)
    assert (run / "SHA256SUMS").is_file()


@pytest.mark.sampled
def test_a_run_that_is_interrupted_before_it_measures_is_aborted(folder: Path) -> None:
    async def at_once(bed: Testbed) -> None:
        pass

    run = interrupted(folder, experiment(folder), None, "subscribing", at_once)
    assert manifest_of(run)["state"] == "aborted"


@pytest.mark.sampled
def test_an_unreachable_drain_is_reported_in_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load generator ends after the measure phase, and the drain cannot reach it."""
    spec = experiment(folder, measure="300ms")
    progress = Quiet()
    progress.awaited = "drain"

    async def work() -> RunOutcome:
        with trio.fail_after(PATIENCE_S):
            async with brokers(folder, spec) as bed:

                async def stopped(process: str, command: str, *rest: Any, **arguments: Any) -> Any:
                    if command == "stop":
                        await bed.clients_agent.stop("load-sub")
                    return await bed.clients_agent.broker(process, command, arguments)

                monkeypatch.setattr(Testbed, "load_command", staticmethod(stopped))
                run = new_run_directory(folder / "runs", spec.name)
                return await run_experiment(spec, bed, run, None, progress)

    outcome = trio.run(work)
    assert (outcome.state, outcome.published) == ("partial", 60)
    assert outcome.reasons[0] == "load-sub is not running (stopped)"


@pytest.mark.sampled
def test_a_load_generator_that_dies_makes_the_run_partial(folder: Path) -> None:
    """The known results are still reported."""
    spec = experiment(folder, measure="30s")
    progress = Quiet()
    progress.awaited = "measure"

    async def kill(bed: Testbed) -> None:
        await progress.reached.wait()
        await bed.clients_agent.signal("load-sub", "KILL")

    async def work() -> RunOutcome:
        with trio.fail_after(PATIENCE_S):
            async with brokers(folder, spec) as bed:
                run = new_run_directory(folder / "runs", spec.name)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(kill, bed)
                    return await run_experiment(spec, bed, run, None, progress)
        raise AssertionError("cancelled")

    outcome = trio.run(work)
    manifest = manifest_of(outcome.run_directory)
    assert (outcome.state, manifest["state"]) == ("partial", "partial")
    assert any("load-sub" in reason for reason in outcome.reasons)
    found = sidecars(outcome.run_directory)
    assert (found["deliveries"]["closed"], found["publications"]["closed"]) == (False, True)
