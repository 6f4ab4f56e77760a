"""The draft of a plan: choices before its moves, and the moves drawn so far."""

from dataclasses import dataclass, field
from random import Random

from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.topology import Topology
from brokerd.simulator.search.moves import Move
from brokerd.simulator.world.faults import Link


@dataclass(slots=True)
class Draft:
    """The choices before the moves.

    `flaps`: sessions break all the time under many new subscriptions, and nothing else fails; the
    start of a subscription's owed publications is then tested most often. `homes`: the possible
    brokers of clients. `tolerated`: number of simultaneous failures that the protocol promises to
    tolerate. `minutes`: length with the timeouts of a deployment, and lasting faults; 0: seconds.
    """

    random: Random
    topology: Topology
    graph: OverlayGraph
    homes: tuple[str, ...]
    adversarial: bool
    flaps: bool
    minutes: int
    tolerated: int
    failures_at_once: int
    links_at_once: int
    keeps_old_messages: bool
    publishers: list[str]
    moves: list[Move] = field(default_factory=list)
    clients: dict[str, int] = field(default_factory=dict)
    failing: list[tuple[int, int | Link]] = field(default_factory=list)

    @property
    def long(self) -> bool:
        """True if the plan lasts for minutes."""
        return self.minutes > 0

    @property
    def hours(self) -> bool:
        """True if the plan lasts for hours; no optional part is then left out."""
        return self.minutes > 60
