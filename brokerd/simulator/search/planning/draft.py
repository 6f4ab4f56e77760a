"""What is drawn of a plan before its moves are, and the moves as they are drawn."""

from dataclasses import dataclass, field
from random import Random

from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.topology import Topology
from brokerd.simulator.search.plan import Move
from brokerd.simulator.world.faults import Link


@dataclass(slots=True)
class Draft:
    """What is drawn before the moves are.

    `flaps`: sessions break all the time under many new subscriptions, and nothing else fails;
    what a subscription is owed from where on is then asked for most often.
    `homes`: the brokers that clients may be at.
    `tolerated`: failures at once that the protocol promises to bear.
    `minutes`: how long it is, with the timeouts of a deployment, and faults that last; 0: seconds.
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
        """Whether it lasts for minutes."""
        return self.minutes > 0

    @property
    def hours(self) -> bool:
        """Whether it lasts for hours; nothing that may be drawn is left out then."""
        return self.minutes > 60
