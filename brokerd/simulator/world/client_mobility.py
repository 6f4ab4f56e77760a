"""Positions of a plan's clients, and joined and departed brokers, in one run of a swarm.

A client that moves has another name at each broker; the plan uses the first name. Actions of the
plan during a move are performed after the move.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import ClientId
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.faults import Faults
from brokerd.units import MILLISECOND_NS

At = Callable[..., None]


def home_of(client: ClientId) -> str:
    """Return the broker in the name of a client: `x-b1` is at b1."""
    return client.partition("-")[2]


class ClientMobility:
    """Moves of clients, joins and departures of brokers.

    Args:
        is_broken: returns True if links are broken by other causes than `faults`.

    Attributes:
        moved: number of completed moves of clients.
        moved_whole: number of moves without a failure, after which streams had to continue without
            a gap.
        reattached: number of clients that attached to another broker without a move.
        joined, departed: numbers of brokers.
    """

    def __init__(
        self, cluster: SimulatedCluster, faults: Faults, is_broken: Callable[[], bool]
    ) -> None:
        self._cluster = cluster
        self._faults = faults
        self._is_broken = is_broken
        self._names: dict[ClientId, ClientId] = {}
        unit = 1 if cluster.schedule.adversarial else MILLISECOND_NS
        self._again_after = 20 * unit  # for brokers that join and depart
        self._waiting: dict[ClientId, list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        self._reattaching: dict[ClientId, None] = {}
        self.moved = self.moved_whole = self.reattached = self.joined = self.departed = 0

    def name_now(self, client: ClientId) -> ClientId:
        """Return the present name of a client of the plan."""
        return self._names.get(client, client)

    def holds(self, client: ClientId, action: Callable[..., None], *arguments: Any) -> bool:
        """Return True if a client moves or lacks its broker, and cannot act now.

        During a move the action is postponed until the arrival.
        """
        if client in self._waiting:
            self._waiting[client].append((action, arguments))
            return True
        return self._is_without_home(self.name_now(client))

    def _is_without_home(self, name: ClientId) -> bool:
        """Return True if the present or first broker of a client has departed."""
        cluster = self._cluster
        client, home = cluster.clients.get(name), home_of(name)
        if home not in cluster.topology.present():
            return True
        return (client.broker if client else cluster.topology.number_of(home)) in cluster.removed

    def describe_moving(self) -> list[str]:
        """Return the clients with a move in progress, in words."""
        return [f"{client} is on its way" for client in self._waiting]

    def move(self, plan_name: ClientId, broker: str) -> None:
        """Move a client as the client library does; no effect during a move.

        If brokers keep no state of clients, the client attaches to the other broker under the same
        name.
        """
        if plan_name in self._waiting:
            return
        client = self._cluster.clients.get(self.name_now(plan_name))
        if self._cluster.transfers.are_free:
            if client is not None and not client.core.is_detaching:
                self._reattach_freely(client, broker)
            return
        if client is None or client.core.is_detaching or not self._can_go(client, broker):
            return
        self._waiting[plan_name] = []
        calm, disturbed = self._is_calm(), self._disturbances()

        def over(name: ClientId, all_delivered: bool) -> bool:
            quiet = calm and self._is_calm() and disturbed == self._disturbances()
            self._names[plan_name] = name
            self.moved += 1
            self.moved_whole += quiet and all_delivered
            return quiet and all_delivered

        def arrived() -> None:
            for action, arguments in self._waiting.pop(plan_name):
                action(*arguments)

        self._cluster.population.move(client.name, broker, over, arrived)

    def reattach(self, plan_name: ClientId, broker: str) -> None:
        """Attach a client to another broker without a move, also during an earlier attachment."""
        name = self.name_now(plan_name)
        client = self._cluster.clients.get(name)
        if self._cluster.transfers.are_free:
            self._reattach_freely(client, broker)
            return
        again = plan_name in self._reattaching
        if client is None or client.publishes or (plan_name in self._waiting and not again):
            return
        core = client.core
        waits = core.is_detaching or core.subscriptions.ending or client.repeated_requests
        all_started = again or all(each in client.started_numbers for each in core.subscriptions)
        if waits or not all_started or not core.subscriptions or not self._can_go(client, broker):
            return
        self._reattaching[plan_name] = None
        self._waiting.setdefault(plan_name, [])
        self.reattached += 1

        def advance() -> None:
            if all(each in client.started_numbers for each in core.subscriptions):
                client.on_change = lambda: None
                del self._reattaching[plan_name]
                for action, arguments in self._waiting.pop(plan_name):
                    action(*arguments)

        client.on_change = advance
        self._cluster.transfers.reattach(name, broker)

    def _can_go(self, client: SimulatedClient, broker: str) -> bool:
        """Return True if a broker is a possible target of a client."""
        topology, removed = self._cluster.topology, self._cluster.removed
        if broker not in topology.present():
            return False
        to = topology.number_of(broker)
        return to != client.broker and to not in removed and client.broker not in removed

    def _reattach_freely(self, client: SimulatedClient | None, broker: str) -> None:
        """Attach a client to a broker, with all its requests repeated there."""
        if broker not in self._cluster.topology.present():
            return
        to = self._cluster.topology.number_of(broker)
        if client is None or client.detached or to in (client.broker, *self._cluster.removed):
            return
        self.reattached += 1
        self._cluster.transfers.reattach(client.name, broker)

    def join(self, broker: str, near: Sequence[str], when: int, at: At) -> None:
        """Join a broker; wait until all brokers can be notified.

        No effect if the join is impossible.
        """
        later = self._again_after
        present = self._cluster.topology.present()
        if broker in present or not {*near} <= {*present}:
            return
        if any(each.frozen for each in self._cluster.brokers):
            at(when + later, self.join, broker, near, when + later, at)
            return
        with suppress(ConfigError):
            self._cluster.join(broker, *near).start()
            self._faults.count_join()
            self.joined += 1

    def depart(self, broker: str, when: int, at: At) -> None:
        """Remove a joined broker; no effect if other brokers need this broker."""
        cluster, later = self._cluster, self._again_after
        if broker not in cluster.topology.present():
            return
        number = cluster.topology.number_of(broker)
        if any(client.broker == number for client in cluster.clients.values()):
            return
        if any(each.frozen for each in cluster.brokers):
            at(when + later, self.depart, broker, when + later, at)
            return
        with suppress(ConfigError):
            cluster.leave(broker)
            self._faults.count_removal(cluster.brokers[number])
            self.departed += 1

    # ------------------------------------------------------------ calm

    def _is_calm(self) -> bool:
        """Return True if nothing has failed, and earlier failures have no aftermath."""
        cluster = self._cluster
        if self._is_broken() or self._faults.is_any_active() or cluster.waits.describe_unsettled():
            return False
        return not any(broker.core.aftermath() for broker in cluster.brokers if broker.alive)

    def _disturbances(self) -> int:
        return sum(self._faults.landed.values()) + self.joined + self.departed
