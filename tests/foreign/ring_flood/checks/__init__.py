"""Support of ring_flood in simulations: random rings and words."""

from collections.abc import Sequence
from random import Random
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.interface import Effect, Event
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS
from brokerd.protocols.ring_flood.messages import Flooded, StoredThrough
from brokerd.simulator.checks.growth import ContainerLimits
from brokerd.simulator.checks.linger import LingerChecker
from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.checks.protocol_checks import (
    CheckedWorld,
    ProtocolChecks,
    Reach,
    SimulatedProtocol,
)
from brokerd.simulator.checks.step_text import Wording
from brokerd.simulator.world.views import BrokerView


def ring(names: Sequence[str]) -> Topology:
    """Return a ring of the named brokers."""
    links = [[name, names[(place + 1) % len(names)]] for place, name in enumerate(names)]
    addresses = {name: f"0.{place}" for place, name in enumerate(names)}
    section = {"links": links, "addresses": addresses}
    return Topology.from_mapping(
        {
            "schema": SCHEMA,
            "name": "ring",
            "kind": "hierarchy",
            "hierarchy": section,
            "brokers": sorted(names),
        },
        "ring",
    )


class RingPlanning(ProtocolPlanning):
    """See ProtocolPlanning."""

    def topology(self, random: Random) -> Topology:
        """See ProtocolPlanning."""
        names = ["r1", "r2", "r3", "r4"]
        random.shuffle(names)
        return ring(names)

    def options(self, seed: int, parameters: Any, *, long: bool, simple: bool) -> Any:
        """See ProtocolPlanning."""
        copies = Random(f"copies {seed}").randrange(1, 4)
        return type(parameters)(
            copies=copies,
            retry_first_ns=parameters.retry_first_ns,
            retry_limit_ns=parameters.retry_limit_ns,
            client_window=parameters.client_window,
            client_linger_ns=parameters.client_linger_ns,
        )


class RingReach(Reach):
    """A reach in which a publisher is acknowledged once enough neighbours have a copy."""

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """See Reach."""
        near = self._graph.neighbours(source)
        whole = [
            peer for peer in near if (min(peer, source), max(peer, source)) not in self._broken
        ]
        return len(whole) + 1 >= self._parameters.copies


class RingChecks(ProtocolChecks):
    """A check of the subscriptions that brokers end for their clients' absence."""

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._lingering = LingerChecker(
            world.schedule, world.oracle, world.parameters.client_linger_ns, SUBSCRIPTIONS
        )

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        """See ProtocolChecks."""
        return self._lingering.step(broker, event, effects)


class RingWording(Wording):
    """See Wording."""

    def message(self, message: Any) -> str:
        """See Wording."""
        match message:
            case Flooded(run=run):
                return f"publication {self.run(run)}"
            case StoredThrough(through=through):
                return f"has {', '.join(f'{tuple(source)} {last}' for source, last in through)}"
        return super().message(message)


SIMULATED = SimulatedProtocol(
    kept=ContainerLimits(
        empty=(
            "Log._places",
            "Log._stored",
            "RingFlood._deferred",
            "Durability._when_durable",
            "Outlet.sent",
            "Outlet.parked",
        ),
        paired=("Subscription.begins_after",),
    ),
    make_checks=RingChecks,
    make_reach=RingReach,
    make_planning=RingPlanning,
    make_wording=RingWording,
)
