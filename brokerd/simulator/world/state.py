"""The state that the parts of a simulated cluster share."""

from dataclasses import dataclass
from random import Random
from typing import Any

from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.topology import Topology
from brokerd.protocols.definition import ProtocolDefinition
from brokerd.protocols.registry import definition_of
from brokerd.simulator.checks.invariants import StepChecker
from brokerd.simulator.checks.oracle import Oracle
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.simulator.world.clock import Schedule
from brokerd.simulator.world.network import Network
from brokerd.simulator.world.trace import Trace


@dataclass(slots=True, eq=False, kw_only=True)
class ClusterState:
    """The brokers, clients, network and checks of one simulated cluster.

    Attributes:
        graph: the overlay of the protocol.
        own_clocks: each broker has a clock of its own; see SimulatedCluster.
        brokers: brokers by number.
        clients: clients by name.
        removed: brokers that were decommissioned, and their clients with them, or are lost.
    """

    protocol: str
    parameters: Any
    topology: Topology
    graph: OverlayGraph
    own_clocks: bool
    random: Random
    schedule: Schedule
    network: Network
    oracle: Oracle
    checker: StepChecker
    trace: Trace | None
    brokers: list[SimulatedBroker]
    clients: dict[ClientId, SimulatedClient]
    removed: dict[BrokerNumber, None]

    @property
    def definition(self) -> ProtocolDefinition:
        """The definition of the protocol."""
        return definition_of(self.protocol)

    @property
    def staying(self) -> list[SimulatedBroker]:
        """The brokers that have neither left nor were decommissioned."""
        present = [self.brokers[number] for number in self.graph.present]
        return [each for each in present if each.number not in self.removed]

    def broker(self, name: str) -> SimulatedBroker:
        """Return the broker with a name."""
        return self.brokers[self.topology.number_of(name)]

    def peer(self, name: str) -> Peer:
        """Return the key of a client or a broker."""
        return name if name in self.clients else self.topology.number_of(name)

    def name_of(self, source: SourceId) -> ClientId:
        """Return the client that publishes under a source."""
        return next(name for name, each in self.clients.items() if each.core.source == source)

    def change(self, topology: Topology) -> None:
        """Replace the topology, and change the overlay."""
        self.topology = topology
        self.graph.change(topology)

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace.note(self.schedule.now_ns, text)
