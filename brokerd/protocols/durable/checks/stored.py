"""The stores of passed events, compared with the pubends' logs.

Paper: [DS03] §1.1, §3 (intermediate brokers cache events).
"""

from collections.abc import Sequence

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.gryphon.checks.ghosts import GhostChecks
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


class StoredChecks(ProtocolChecks):
    """See ProtocolChecks.

    - other event: a stored event is equal to the event on its pubend's disk (J14);
    - stored before a loss: a stored event is behind all loss markers of its stream here (J14);
    - stored too much: a store is within its limit (J14).

    Args:
        ghosts: the disks of all pubends.
    """

    def __init__(self, world: CheckedWorld, ghosts: GhostChecks) -> None:
        super().__init__(world)
        self._limit_bytes: int = world.parameters.passed_limit_bytes
        self._ghosts = ghosts
        self._seen: dict[tuple[BrokerNumber, StreamId], list[PublicationRun]] = {}

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """See ProtocolChecks; a run is compared once."""
        core = broker.core
        assert isinstance(core, Durable), f"{core} is no core of durable"
        if core.passed.stored_bytes > self._limit_bytes:
            subject = f"{broker.name} stores {core.passed.stored_bytes} B"
            raise InvariantViolated("stored too much", f"{subject}, at most {self._limit_bytes}")
        for identity, runs in core.passed.runs():
            subject = f"{broker.name}, store of {tuple(identity)}"
            self._check_losses(subject, core, identity, runs)
            key = broker.number, identity
            compared = {run.first: run for run in self._seen.get(key, ())}
            for run in runs:
                if compared.get(run.first) is not run:
                    self._ghosts.check_events(subject, identity, run)
            self._seen[key] = runs

    def _check_losses(
        self, subject: str, core: Durable, identity: StreamId, runs: Sequence[PublicationRun]
    ) -> None:
        """Check that no loss marker has passed a broker since it has stored these runs."""
        through = core.passed.through(identity)
        passed = [tick for tick in self._ghosts.markers(identity) if tick <= through]
        if passed and runs[0].first <= passed[-1]:
            raise InvariantViolated(
                "stored before a loss", f"{subject}: {runs[0].first}, and a loss at {passed[-1]}"
            )
