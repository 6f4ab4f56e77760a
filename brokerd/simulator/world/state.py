"""The state that the parts of a simulated cluster share, and its waits for sessions and answers."""

from collections.abc import Callable, Collection, Mapping, Sequence
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
        return definition_of(self.protocol)

    @property
    def staying(self) -> list[SimulatedBroker]:
        """The brokers that have neither left nor were decommissioned."""
        present = [self.brokers[number] for number in self.graph.present]
        return [each for each in present if each.number not in self.removed]

    def broker(self, name: str) -> SimulatedBroker:
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


class Waits:
    """The waits of a cluster.

    Args:
        removed: brokers that were decommissioned, or are lost.
    """

    def __init__(
        self,
        brokers: Sequence[SimulatedBroker],
        clients: Mapping[ClientId, SimulatedClient],
        network: Network,
        graph: OverlayGraph,
        removed: Collection[BrokerNumber],
    ) -> None:
        self._brokers = brokers
        self._clients = clients
        self._network = network
        self._graph = graph
        self._removed = removed

    def describe_unsettled(
        self,
        *,
        all_attempts: bool = True,
        may_request: Callable[[BrokerNumber], bool] = lambda broker: True,
        may_drain: Callable[[BrokerNumber], bool] = lambda broker: True,
        may_start: Callable[[BrokerNumber], bool] = lambda broker: True,
    ) -> list[str]:
        """Return the waits for possible sessions or answers, in words.

        Args:
            all_attempts: True to count an attempt that cannot succeed, until its failure. A
                repeated attempt after a wait never counts.
            may_request: returns True if clients of a broker can receive an answer to the end of a
                subscription.
            may_drain: returns True if a broker can deliver everything to a client that moves away.
            may_start: returns True if a subscription can start at a broker; without the start no
                commit of a consumer is answered.
        """
        lines = []
        for broker in self._brokers:
            if not broker.alive or broker.frozen:
                continue
            if broker.number in self._removed:
                near = self._graph.near(broker.number)
                if any(self._network.is_open(broker.number, peer) for peer in near):
                    lines.append(f"{broker.name} runs, and was decommissioned")
                continue
            attempts = [
                peer
                for peer, attempt in broker.attempts.items()
                if (all_attempts and not attempt.again)
                or self._network.is_open(broker.number, peer)
            ]
            if attempts:
                lines.append(f"{broker.name} dials {attempts}")
            status = broker.core.status()
            waiting = [
                peer
                for peer in status.wanted
                if peer not in status.ready or peer not in broker.ends
            ]
            if not broker.absorbing:
                reachable = [
                    peer for peer in waiting
                    if self._network.is_open(broker.number, peer)
                    and not self._brokers[peer].absorbing
                ]  # fmt: skip
                if reachable:
                    lines.append(f"{broker.name} waits for sessions with {reachable}")
        for client in self._clients.values():
            if client.detached:
                continue
            if not client.ends and self._network.is_open(client.name, client.broker):
                lines.append(f"{client.name} is not connected")
            may_end = may_request(client.broker) and (not client.drains or may_drain(client.broker))
            if client.is_committing and not client.started_numbers:
                may_end = may_end and may_start(client.broker)
            if client.ends and client.waits and may_end:
                lines.append(f"{client.name} waits for {client.waits}")
            if client.repeated_requests:
                lines.append(f"{client.name} received a retry request")
        return lines
