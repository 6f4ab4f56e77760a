"""The brokers of a simulated cluster, and the cores of their incarnations."""

from collections.abc import Iterable

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import DeliveryProtocol
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.world.authority import AUTHORITY
from brokerd.simulator.world.broker import Observer, OwnClock, SimulatedBroker
from brokerd.simulator.world.clock import WallClocks
from brokerd.simulator.world.state import ClusterState
from brokerd.wire.attributes import decode_attribute_table


class BrokerFactory:
    """The maker of brokers and cores.

    Args:
        observer: observes every step of the brokers; None without checks.

    Attributes:
        logs: the names of the logs on the disk of each further broker.
        wall_clocks: the wall clocks of all brokers.
    """

    def __init__(
        self,
        state: ClusterState,
        observer: Observer | None,
        logs: Iterable[str],
        wall_clocks: WallClocks,
    ) -> None:
        self._state = state
        self._observer = observer
        self.logs = logs
        self.wall_clocks = wall_clocks
        self._topologies: dict[BrokerNumber, Topology] = {}

    def add_broker(self, name: str) -> BrokerNumber:
        """Add a broker to the cluster, without a start."""
        state = self._state
        number = len(state.brokers)
        broker = SimulatedBroker(
            number,
            name,
            state.network,
            state.random,
            self.make_core,
            self._observer,
            self.logs,
            self.wall_clocks,
            OwnClock() if state.own_clocks else None,
        )
        broker.joins = number >= len(state.topology.as_deployed().brokers)
        state.brokers.append(broker)
        state.network.endpoints[number] = broker
        return number

    def make_core(self, number: BrokerNumber) -> DeliveryProtocol:
        """Return the core of a new incarnation, in the present topology."""
        self._topologies[number] = self._state.topology
        return self.make_equal_core(number)

    def make_equal_core(self, number: BrokerNumber) -> DeliveryProtocol:
        """Return a core equal to a broker's core at its start."""
        return make_protocol(
            self._state.protocol,
            number,
            self._topologies[number],
            self._state.parameters,
            decode_attribute_table,
            AUTHORITY,
        )
