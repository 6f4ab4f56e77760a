"""Systems under test: differences between the project's brokers and other brokers in a run."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Protocol

from bench.run.run_directory import overlay_document
from bench.run.testbed import Testbed
from bench.spec.spec import ExperimentSpec
from brokerd.protocols.registry import protocol_on
from fault_injection.apply.backends import DeployedBackend
from fault_injection.apply.interface import FaultBackend
from fault_injection.schedule.schedule import FaultSchedule

BEGIN_TIMEOUT_MS: Final = 60_000


class UnderTest(Protocol):
    """The brokers of a run.

    Attributes:
        load_role: role of the load generators for agents.
    """

    load_role: str

    def facts(self, spec: ExperimentSpec) -> dict[str, Any]:
        """Return `promises` and `protocol_words`, and of the project's brokers also `parameters`.

        The manifest contains the result. `topology_digest` is made of `parameters`.
        """

    def overlay(self, spec: ExperimentSpec) -> Mapping[str, Any] | None:
        """Return the overlay document of the run; None for a tree of brokers."""

    def order(self, spec: ExperimentSpec) -> str:
        """Return the promised order."""

    def load_setting(self, spec: ExperimentSpec) -> Mapping[str, Any]:
        """Return the settings of load generators beyond the common settings."""

    async def begin_run(
        self, testbed: Testbed, broker: str, run_id: str
    ) -> Mapping[str, Any] | None:
        """Announce the begin of a run to a broker.

        Returns:
            The loss of state that the broker accepted at its start; None without one.
        """

    async def end_run(self, testbed: Testbed, broker: str) -> Mapping[str, str]:
        """Announce the end of the run to a broker; return digests of its files, by name."""

    async def settle(self, schedule: FaultSchedule) -> FaultSchedule:
        """Return the schedule with targets that only these brokers can name now."""

    def backend(self, testbed: Testbed, ahead_ns: Mapping[str, int]) -> FaultBackend:
        """Return the backend that applies faults to these brokers and observes them."""


class OurBrokers:
    """An UnderTest: brokers of this project, with the protocol of the experiment."""

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

    async def begin_run(
        self, testbed: Testbed, broker: str, run_id: str
    ) -> Mapping[str, Any] | None:
        place = testbed.brokers[broker]
        folder = testbed.run_folder(place.host, run_id, place.process)
        answer = await testbed.broker_command(
            broker, "begin_run", BEGIN_TIMEOUT_MS, run_id=run_id, folder=str(folder)
        )
        loss: Mapping[str, Any] | None = answer.get("accepted_loss")
        return loss

    async def end_run(self, testbed: Testbed, broker: str) -> Mapping[str, str]:
        answer = await testbed.broker_command(broker, "end_run")
        digests: Mapping[str, str] = answer.get("digests", {})
        return digests

    async def settle(self, schedule: FaultSchedule) -> FaultSchedule:
        return schedule

    def backend(self, testbed: Testbed, ahead_ns: Mapping[str, int]) -> FaultBackend:
        return DeployedBackend(testbed, ahead_ns=ahead_ns)
