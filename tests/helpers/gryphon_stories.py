"""Stories of gryphon: cells of one broker, and what brokers have told each other in them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from brokerd.overlay.topology import Topology
from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.interface import Append, Effect, Event, Send
from brokerd.simulator.world.clock import MILLISECOND_NS
from brokerd.simulator.world.cluster import Published, SimulatedCluster
from tests.helpers.cluster import STEADY

Message = TypeVar("Message")


def cells(*bundles: str) -> Topology:
    """The tree of bundles like "p1-b1"; brokers are numbered as they are first named."""
    pairs = [(a, b) for a, _, b in (bundle.partition("-") for bundle in bundles)]
    return tree_of_cells(list(dict.fromkeys(name for pair in pairs for name in pair)), pairs)


def paper_cells() -> Topology:
    """The paper's ten brokers in eight cells ([GD02] Fig. 3)."""
    names = ["p1", "b1", "b2", "b3", "b4", "s1", "s2", "s3", "s4", "s5"]
    bundles = [("p1", "left"), ("p1", "right")]
    bundles += [("left", name) for name in ("s1", "s2")]
    bundles += [("right", name) for name in ("s3", "s4", "s5")]
    return tree_of_cells(names, bundles, {"left": ["b1", "b2"], "right": ["b3", "b4"]})


TWO_SUBENDS = ("p1-b1", "b1-s1", "b1-s2")
"""A publisher's broker, one on the way, and two with subscribers."""


class Story:
    """A simulated cluster that keeps what brokers say, with one millisecond per message."""

    def __init__(self, *bundles: str, topology: Topology | None = None, **parameters: Any) -> None:
        self.loggers: list[str] = []
        self.said: list[tuple[int, str, Any, Any]] = []
        self.cluster = SimulatedCluster(
            topology or cells(*(bundles or TWO_SUBENDS)),
            "gryphon",
            network=replace(STEADY, lost_on_close=True),
            parameters=GryphonParameters(**parameters),
            watcher=self._watch,
        )
        self.cluster.start()
        self.cluster.run_until_quiet()

    def _watch(self, broker: Any, event: Event, effects: list[Effect]) -> None:
        now_ms = self.cluster.schedule.now_ns // MILLISECOND_NS
        self.loggers += [broker.name for effect in effects if type(effect) is Append]
        for effect in effects:
            if type(effect) is Send:
                peer = effect.peer
                name = self.cluster.topology.brokers[peer] if isinstance(peer, int) else peer
                self.said.append((now_ms, broker.name, name, effect.message))

    def from_to(self, sender: str, receiver: str, kind: type[Message]) -> list[Message]:
        """What one broker has told another."""
        return [
            message
            for _, a, b, message in self.said
            if (a, b) == (sender, receiver) and isinstance(message, kind)
        ]

    def times_ms(self, sender: str, kind: type) -> list[int]:
        """When a broker has said something of a kind."""
        return [when for when, a, _, message in self.said if a == sender and type(message) is kind]

    def publish(self, count: int = 1, pause_s: float = 0.04, at: str = "p1") -> list[Published]:
        """So many publications, one after the other."""
        sent = []
        for _ in range(count):
            sent.append(self.cluster.publish(at, kind="a"))
            self.cluster.run_for(pause_s)
        return sent

    def settle(self, seconds: float = 15) -> None:
        """Let everything come to rest, and see that nothing is owed."""
        self.cluster.run_for(seconds)
        self.cluster.run_until_quiet()
        self.cluster.oracle.judge_end()

    def quiet_since(self) -> None:
        """Forget what was said so far."""
        self.said.clear()


def ticks_of(ranges: Sequence[tuple[int, int]]) -> int:
    """How many ticks there are in ranges."""
    return sum(end - start for start, end in ranges)
