"""Waits of brokers and clients for sessions and answers: a cluster without any is quiet."""

from collections.abc import Callable, Collection, Mapping, Sequence

from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.overlay.graph import OverlayGraph
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.simulator.world.network import Network


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
