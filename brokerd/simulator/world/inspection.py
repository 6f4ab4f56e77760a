"""Checks of a whole simulated cluster, on request: purity, counters, and internal state."""

from brokerd.model.identity import BrokerNumber
from brokerd.simulator.checks.protocol_checks import simulation_of
from brokerd.simulator.checks.recounts import check_recounts
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.broker_factory import BrokerFactory
from brokerd.simulator.world.state import ClusterState


class Inspection:
    """The inspector of the brokers and clients of a cluster.

    Every check raises InvariantViolated for a broken rule.
    """

    def __init__(self, state: ClusterState, factory: BrokerFactory) -> None:
        self._state = state
        self._factory = factory

    def repeat_events(self, number: BrokerNumber) -> None:
        """Check I17: the kept events of a broker give a fresh core the same effects."""
        broker = self._state.brokers[number]
        core = self._factory.make_equal_core(number)
        for event, now_ns, effects in broker.history or ():
            again = core.handle(event, now_ns)
            core.next_deadline()
            if again != effects:
                raise InvariantViolated(
                    "purity", f"{broker.name} on {event}: first {effects}, then {again}"
                )

    def recount(self) -> int:
        """Recompute the counters of brokers and clients; the cluster must be at rest.

        Returns:
            The number of recomputed counters.
        """
        recounts = simulation_of(self._state.protocol).recounts
        living = [broker for broker in self._state.staying if broker.alive]
        counted = sum(check_recounts(each.name, each.core, recounts) for each in living)
        clients = self._state.clients.values()
        return counted + sum(check_recounts(each.name, each.core, ()) for each in clients)

    def check_internals(self) -> None:
        """Check the internal state of every broker after random steps."""
        self._state.checker.look_into(self._state.brokers)

    @property
    def broker_events(self) -> int:
        """The number of events that the cores of all brokers have handled."""
        return sum(broker.events for broker in self._state.brokers)
