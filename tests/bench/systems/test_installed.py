"""Tests of installed brokers in every mode of their drivers: a short run is judged."""

from pathlib import Path
from typing import Any

import pytest
import trio

from bench.run.outcome import RunOutcome
from bench.run.run_directory import new_run_directory
from bench.spec.keys import Overrides
from bench.systems.boundary import WrongSettings
from bench.systems.configuration import NotInstalled, load_configuration
from bench.systems.experiment import experiment_on, run_on_system
from bench.systems.servers import servers_running
from bench.systems.synced_files import is_possible
from results.reference.history_reader import judge_folder
from tests.bench.systems.test_toy_broker import AWAY_AND_KILLED, WORKLOAD, Quiet, schedule
from tests.bench.systems.test_toy_broker import folder as folder
from tests.helpers.patience import PATIENCE_S

pytestmark = pytest.mark.end_to_end

TRIED = (
    *("jetstream3", "jetstream1-pull", "jetstream1-hardened"),
    *("mosquitto-qos0", "mosquitto-qos1", "mosquitto3-qos2", "rabbitmq1-quorum"),
)
AWAY: list[dict[str, Any]] = [
    {"id": f"away-{n}", "at": at, "do": "client-disconnect", "on": "n1-sub-1", "for": lasts}
    for n, at, lasts in ((1, "100ms", "300ms"), (2, "3s", "200ms"))
]


def tried(
    name: str, folder: Path, faults: list[dict[str, Any]] | None = None, *, measure: str = "400ms",
    drain: str = "60s",
) -> RunOutcome:  # fmt: skip
    """Run a configuration of the project; skip the test if its broker is not available."""
    workload = folder / "work.toml"
    workload.write_text(WORKLOAD.format(measure=measure, drain=drain, rate="100/s"))
    try:
        configuration = load_configuration(f"external/{name}")
    except (NotInstalled, WrongSettings) as error:
        pytest.skip(str(error))
    spec = experiment_on(configuration, workload, Overrides(), {}, calm=faults is None)

    async def work() -> RunOutcome:
        with trio.fail_after(PATIENCE_S):
            async with servers_running(configuration) as (bed, servers):
                run = new_run_directory(folder / "runs", spec.name)
                done = schedule(faults) if faults else None
                return await run_on_system(spec, bed, servers, run, done, Quiet())

    return trio.run(work)


@pytest.mark.parametrize("name", TRIED)
def test_an_installed_system_keeps_its_guarantee_without_faults(name: str, folder: Path) -> None:
    outcome = tried(name, folder)
    judged = judge_folder(outcome.run_directory)
    assert judged.verdict == "VALID", judged
    assert judged.counts.owed == outcome.online["owed"] > 0


@pytest.mark.parametrize("name", ["jetstream1", "mosquitto-qos2"])
def test_a_reconnected_subscriber_receives_each_publication_once(name: str, folder: Path) -> None:
    outcome = tried(name, folder, AWAY, measure="4s")
    judged = judge_folder(outcome.run_directory)
    assert judged.verdict == "VALID", judged
    assert judged.counts.at_risk == judged.counts.recovered > 0


@pytest.mark.skipif(not is_possible(), reason="Linux on x86_64 only")
@pytest.mark.parametrize(
    "name, loses, drain",
    [
        ("jetstream1-power-loss", True, "2s"),
        ("jetstream1-hardened-power-loss", False, "60s"),
    ],
)
def test_jetstream_loses_acknowledged_publications_unless_it_always_syncs(
    name: str, loses: bool, drain: str, folder: Path
) -> None:
    """Confirmed acknowledgements are written later, so a delivery may be repeated."""
    outcome = tried(name, folder, AWAY_AND_KILLED, measure="1500ms", drain=drain)
    judged = judge_folder(outcome.run_directory)
    assert judged.counts.at_risk > 0
    assert bool(judged.counts.violations.get("missing")) == loses, judged
    assert judged.verdict == "INVALID" or not loses
