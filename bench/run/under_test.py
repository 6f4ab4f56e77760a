"""What a run is about: where brokers of ours and those of others differ for who runs it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Protocol

from bench.run.overlay import overlay_document
from bench.run.testbed import Testbed
from bench.spec.spec import ExperimentSpec
from brokerd.protocols.registry import protocol_on
from fault_injection.apply.deployed import DeployedBackend
from fault_injection.apply.injector import FaultBackend
from fault_injection.schedule.schedule import FaultSchedule

BEGIN_TIMEOUT_MS: Final = 60_000


class UnderTest(Protocol):
    """The brokers of a run.

    Attributes:
        load_role: of its load generators, as agents know it.
    """

    load_role: str

    def facts(self, spec: ExperimentSpec) -> dict[str, Any]:
        """What they promise and are called, for the manifest: `promises`, `protocol_words`, and of
        brokers of ours `parameters`, which `topology_digest` is made of."""

    def overlay(self, spec: ExperimentSpec) -> Mapping[str, Any] | None:
        """The run's overlay document; None where its topology is a tree of brokers."""

    def order(self, spec: ExperimentSpec) -> str:
        """The order that is promised."""

    def load_setting(self, spec: ExperimentSpec) -> Mapping[str, Any]:
        """What load generators are told besides what all are told."""

    async def begin_run(self, testbed: Testbed, broker: str, run_id: str) -> None:
        """Tell a broker which run begins."""

    async def end_run(self, testbed: Testbed, broker: str) -> None:
        """Tell it that the run is over."""

    async def settled(self, schedule: FaultSchedule) -> FaultSchedule:
        """The schedule, with targets that only they can name now."""

    def backend(self, testbed: Testbed, ahead_ns: Mapping[str, int]) -> FaultBackend:
        """What breaks them, and looks at them."""


class OurBrokers:
    """An UnderTest: brokers of this project, with the protocol that the experiment names."""

    load_role = "load"

    def facts(self, spec: ExperimentSpec) -> dict[str, Any]:
        running = protocol_on(spec.topology, spec.protocol)
        return {
            "promises": running.promises().as_mapping(),
            "protocol_words": running.words(),
            "parameters": asdict(running.parameters),
        }

    def overlay(self, spec: ExperimentSpec) -> Mapping[str, Any] | None:
        origins = [plan.broker for plan in spec.publisher_plans()]
        return overlay_document(spec.topology, spec.protocol, origins)

    def order(self, spec: ExperimentSpec) -> str:
        return str(protocol_on(spec.topology, spec.protocol).promises().order)

    def load_setting(self, spec: ExperimentSpec) -> Mapping[str, Any]:
        return {}

    async def begin_run(self, testbed: Testbed, broker: str, run_id: str) -> None:
        place = testbed.brokers[broker]
        folder = testbed.run_folder(place.host, run_id, place.process)
        await testbed.broker_command(
            broker, "begin_run", BEGIN_TIMEOUT_MS, run_id=run_id, folder=str(folder)
        )

    async def end_run(self, testbed: Testbed, broker: str) -> None:
        await testbed.broker_command(broker, "end_run")

    async def settled(self, schedule: FaultSchedule) -> FaultSchedule:
        return schedule

    def backend(self, testbed: Testbed, ahead_ns: Mapping[str, int]) -> FaultBackend:
        return DeployedBackend(testbed, ahead_ns=ahead_ns)
