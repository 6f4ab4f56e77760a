"""Brokers that join or leave a simulated cluster, change their role, or are decommissioned."""

from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.model.operator_acts import DECOMMISSION
from brokerd.overlay.topology import JoinedBroker, Topology
from brokerd.protocols.extensions import DecommissioningProtocol, Farewell
from brokerd.protocols.interface import (
    BrokerDecommissioned,
    OverlayChanged,
    TopologyGrown,
    TopologyShrunk,
)
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.broker_factory import BrokerFactory, make_signature
from brokerd.simulator.world.state import ClusterState


class Membership:
    """The operator of a cluster's overlay."""

    def __init__(self, state: ClusterState, factory: BrokerFactory) -> None:
        self._state = state
        self._factory = factory

    def join(self, name: str, at: str, *further: str, place: str = "") -> None:
        """Link a new broker to `at`, without a start of the broker.

        In a tree the new broker is a leaf, and all near brokers are notified. In a hierarchy all
        brokers are notified, and the new broker may have `further` links and an address, `place`.

        Raises:
            ConfigError: the broker cannot join; the cluster is unchanged.
        """
        state, before = self._state, self._state.topology
        state.change(before.with_joined(JoinedBroker(name, at, "", place, further), "join"))
        number = self._factory.add_broker(name)
        state.note(" ".join(("join", name, "at", at, *further)))
        state.checker.on_joined(number)
        grown = TopologyGrown(number, state.topology.number_of(at))
        self._announce_change(before, grown, self._near(number))

    def leave(self, name: str) -> None:
        """Stop a broker without clients, and notify all near brokers, or all brokers.

        Raises:
            ConfigError: the broker cannot leave; the cluster is unchanged.
        """
        state, before = self._state, self._state.topology
        number = before.number_of(name)
        near = [other for other in self._near(number) if other.alive]
        topology = before.without(name, "leave")
        if state.brokers[number].alive:
            state.note(f"kill {name}")
            state.brokers[number].kill()
        state.change(topology)
        state.note(f"{name} has left")
        self._announce_change(before, TopologyShrunk(number), near)

    def change_role(self, name: str, role: str) -> bool:
        """Change the role of a broker and notify all; return False if impossible."""
        state = self._state
        try:
            topology = state.topology.with_role(name, role, "role")
            state.definition.check_topology(topology, "role")
        except ConfigError:
            return False
        state.change(topology)
        state.note(f"role {name} {role}")
        self._announce_overlay()
        return True

    def decommission(self, name: str) -> list[str]:
        """Decommission a broker that is down, for all other brokers, as an operator does.

        The clients of the broker end, because no other broker has their owed publications.

        Returns:
            Reasons against the decommission, in words; the cluster is then unchanged.
        """
        state = self._state
        number = state.topology.number_of(name)
        others = [each for each in state.brokers if each.number not in (number, *state.removed)]
        down = [each for each in others if not each.is_responsive]
        refusals = [f"{each.name} does not answer" for each in down]
        if state.brokers[number].alive:
            refusals.append(f"{name} is up")
        refusals += [
            f"{each.name}: {why}"
            for each in others
            if each not in down
            for why in _farewell(each, number).refusals
        ]
        if not refusals:
            state.note(f"decommission {name}")
            state.removed[number] = None
            self._end_clients(number)
            for each in others:
                each.operate(BrokerDecommissioned(number, make_signature(DECOMMISSION, name)))
        return refusals

    def _end_clients(self, number: BrokerNumber) -> None:
        """End the clients with their broker, without further owed publications."""
        for client in self._state.clients.values():
            if client.broker != number or client.detached:
                continue
            for subscription in client.core.subscriptions:
                self._state.oracle.on_unsubscribed(client.name, subscription)
            client.leave()
            client.detached = True

    def _near(self, number: BrokerNumber) -> list[SimulatedBroker]:
        near = map(self._state.brokers.__getitem__, self._state.graph.near(number))
        return [broker for broker in near if broker.alive]

    def _announce_change(
        self, before: Topology, links: TopologyGrown | TopologyShrunk, near: list[SimulatedBroker]
    ) -> None:
        """Notify near brokers of links, or all brokers of a section of the overlay."""
        if self._state.topology.sections != before.sections:
            self._announce_overlay()
            return
        for broker in near:
            broker.operate(links)

    def _announce_overlay(self) -> None:
        for broker in self._state.brokers:
            if broker.alive:
                broker.operate(OverlayChanged(self._state.graph.overlay))


def _farewell(broker: SimulatedBroker, leaving: BrokerNumber) -> Farewell:
    core: Any = broker.core
    protocol: DecommissioningProtocol = core
    return protocol.farewell(leaving)
