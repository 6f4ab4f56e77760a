"""Brokers that are installed here, each way that their drivers go: a short run is judged."""

from pathlib import Path

import pytest
import trio

from bench.run.outcome import RunOutcome
from bench.run.run_directory import new_run_directory
from bench.spec.spec import Overrides
from bench.systems.boundary import WrongSettings
from bench.systems.configuration import NotInstalled, load_configuration
from bench.systems.experiment import experiment_on, run_on_system
from bench.systems.servers import servers_running
from results.reference.reading import judge_folder
from tests.bench.systems.test_toy_broker import WORKLOAD, Quiet
from tests.bench.systems.test_toy_broker import folder as folder
from tests.helpers.patience import PATIENCE_S

pytestmark = pytest.mark.end_to_end

TRIED = ("jetstream3", "jetstream1-hardened", "mosquitto-qos0", "mosquitto-qos1", "mosquitto-qos2")


@pytest.mark.parametrize("name", TRIED)
def test_what_is_installed_keeps_its_promise_while_nothing_fails(name: str, folder: Path) -> None:
    workload = folder / "work.toml"
    workload.write_text(WORKLOAD.format(measure="400ms", drain="60s", rate="100/s"))
    try:
        configuration = load_configuration(f"external/{name}")
    except (NotInstalled, WrongSettings) as error:
        pytest.skip(str(error))
    spec = experiment_on(configuration, workload, Overrides(), {}, calm=True)

    async def work() -> RunOutcome:
        with trio.fail_after(PATIENCE_S):
            async with servers_running(configuration) as (bed, servers):
                run = new_run_directory(folder / "runs", spec.name)
                return await run_on_system(spec, bed, servers, run, None, Quiet())

    outcome = trio.run(work)
    judged = judge_folder(outcome.run_directory)
    assert judged.verdict == "VALID", judged
    assert judged.counts.owed == outcome.online["owed"] > 0
