"""Stories of gryphon: cells of one broker, with a record of all messages between brokers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import Peer, SourceId
from brokerd.overlay.topology import Topology
from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from brokerd.protocols.gryphon.messages import AckExpected, Done, Events, Nack, Silent
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.interface import Append, Deliver, Effect, Event, Send
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import PublicationHandle, Subscription
from brokerd.simulator.world.network import Network
from brokerd.simulator.world.sessions import Endpoint
from brokerd.units import MILLISECOND_NS, SECOND_NS
from tests.helpers.cluster import STEADY

Message = TypeVar("Message")


def cells(*bundles: str) -> Topology:
    """Return the tree of bundles like "p1-b1"; brokers are numbered in order of first mention."""
    pairs = [(a, b) for a, _, b in (bundle.partition("-") for bundle in bundles)]
    return tree_of_cells(list(dict.fromkeys(name for pair in pairs for name in pair)), pairs)


def paper_cells() -> Topology:
    """Return the paper's ten brokers in eight cells ([GD02] Fig. 3)."""
    names = ["p1", "b1", "b2", "b3", "b4", "s1", "s2", "s3", "s4", "s5"]
    bundles = [("p1", "left"), ("p1", "right")]
    bundles += [("left", name) for name in ("s1", "s2")]
    bundles += [("right", name) for name in ("s3", "s4", "s5")]
    return tree_of_cells(names, bundles, {"left": ["b1", "b2"], "right": ["b3", "b4"]})


TWO_SUBENDS = ("p1-b1", "b1-s1", "b1-s2")
"""A publisher's broker, one intermediate broker, and two brokers with subscribers."""


_LOST_WITHOUT_NOTICE = (Events, Silent, Nack, Done, AckExpected)
"""Messages that brokers request or repeat after a loss; sessions lose no other message."""

Loss = Callable[[Peer, Peer, Any], bool]
"""A predicate (sender, receiver, message): true if the message is lost."""


class LosingNetwork(Network):
    """A network that loses single messages, as the paper's links do; sessions continue."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.losses: list[Loss] = []
        self.share: tuple[float, Random] | None = None

    def send(self, endpoint: Endpoint, peer: Peer, message: Any) -> None:
        if self.share is not None and isinstance(message, _LOST_WITHOUT_NOTICE):
            share, random = self.share
            if random.random() < share:
                return
        for loss in self.losses:
            if loss(endpoint.key, peer, message):
                self.losses.remove(loss)
                return
        super().send(endpoint, peer, message)


class Story:
    """A simulated cluster that records messages; each message takes one millisecond."""

    protocol = "gryphon"
    parameters: type[GryphonParameters] = GryphonParameters
    strict = True

    def __init__(self, *bundles: str, topology: Topology | None = None, **parameters: Any) -> None:
        self.loggers: list[str] = []
        self._handed_ms: dict[tuple[str, SourceId, int], int] = {}
        self._published_ms: dict[PublicationHandle, int] = {}
        self.said: list[tuple[int, str, Any, Any]] = []
        self.cluster = SimulatedCluster(
            topology or cells(*(bundles or TWO_SUBENDS)),
            self.protocol,
            network=replace(STEADY, lost_on_close=True),
            parameters=self.parameters(**parameters),
            make_network=LosingNetwork,
            watcher=self._watch,
            strict=self.strict,
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
            elif type(effect) is Deliver and isinstance(effect.item, Deliveries):
                for origin in effect.item.run.origins:
                    for number in origin.sequences:
                        self._handed_ms[effect.client, origin.source, number] = now_ms

    def from_to(self, sender: str, receiver: str, kind: type[Message]) -> list[Message]:
        """Return the messages of a kind that one broker has sent another."""
        return [
            message
            for _, a, b, message in self.said
            if (a, b) == (sender, receiver) and isinstance(message, kind)
        ]

    def times_ms(self, sender: str, kind: type) -> list[int]:
        """Return the times at which a broker has sent messages of a kind."""
        return [when for when, a, _, message in self.said if a == sender and type(message) is kind]

    @property
    def now_ms(self) -> int:
        """Return the current time."""
        return self.cluster.schedule.now_ns // MILLISECOND_NS

    def lose(self, sender: str, receiver: str, kind: type, *, again: bool | None = None) -> None:
        """Lose the next message of a kind between two brokers; `again` selects resent events."""
        way = tuple(map(self.cluster.topology.number_of, (sender, receiver)))
        network = self.cluster.network
        assert isinstance(network, LosingNetwork)
        network.losses.append(
            lambda a, b, message: (
                (a, b) == way
                and isinstance(message, kind)
                and again in (None, getattr(message, "again", None))
            )
        )

    def lose_some(self, share: float, seed: int = 0) -> None:
        """Lose this share of all messages between brokers from now on."""
        network = self.cluster.network
        assert isinstance(network, LosingNetwork)
        network.share = (share, Random(seed)) if share else None

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 30) -> int:
        """Run until a condition holds; return the number of milliseconds."""
        began_ms, limit_ns = self.now_ms, self.cluster.schedule.now_ns + int(limit_s * SECOND_NS)
        while not condition():
            assert self.cluster.step(limit_ns), f"not so after {limit_s} s"
        return self.now_ms - began_ms

    def publish(
        self, count: int = 1, pause_s: float = 0.04, at: str = "p1"
    ) -> list[PublicationHandle]:
        """Publish `count` publications, one after another."""
        sent = []
        for _ in range(count):
            sent.append(self.note_published(self.cluster.publish(at, kind="a")))
            self.cluster.run_for(pause_s)
        return sent

    def latencies_ms(
        self, subscriber: Subscription, sent: Iterable[PublicationHandle]
    ) -> list[int]:
        """Return the latencies from publisher to delivery by the subscriber's broker."""
        found = []
        for each in sent:
            source = self.cluster.clients[each.client].core.source
            handed_ms = self._handed_ms[subscriber.client.name, source, each.sequence]
            found.append(handed_ms - self._published_ms[each])
        return found

    def note_published(self, publication: PublicationHandle) -> PublicationHandle:
        """Record the time of a publication."""
        self._published_ms[publication] = self.now_ms
        return publication

    def alive(self) -> list[SimulatedBroker]:
        """Return the running brokers."""
        return [each for each in self.cluster.brokers if each.alive]

    def settle(self, seconds: float = 15) -> None:
        """Run until the cluster is quiet, and check that no delivery is owed."""
        self.cluster.run_for(seconds)
        self.cluster.run_until_quiet()
        self.cluster.oracle.judge_end()

    def quiet_since(self) -> None:
        """Clear the record of messages."""
        self.said.clear()


class PaperStory(Story):
    """A story on the paper's ten brokers: four publishers at p1, subscribers at s1 and s2.

    There are no filters, as in the paper.
    """

    def __init__(self, at: Sequence[str] = ("s1", "s2"), **parameters: Any) -> None:
        super().__init__(topology=paper_cells(), **{"filters": False, **parameters})
        self.subscribers = [self.cluster.subscribe(name) for name in at]
        self.cluster.run_until_quiet()
        self.sent: list[PublicationHandle] = []
        self.rounds(3)
        self.quiet_since()

    def rounds(self, count: int, pause_s: float = 0.04) -> None:
        """Publish `count` publications from each publisher."""
        for _ in range(count):
            for number in range(4):
                published = self.cluster.publish("p1", client=f"c{number}", kind="a")
                self.sent.append(self.note_published(published))
            self.cluster.run_for(pause_s)

    def check(self) -> None:
        """Check that every subscriber has received all publications."""
        self.settle()
        for subscriber in self.subscribers:
            assert len(subscriber.received) == len(self.sent)
            assert {*subscriber.received} == {*self.sent}

    def fail_link(self, a: str, b: str) -> None:
        """Close a link; both ends detect the loss at once."""
        self.cluster.link(a, b).cut().suspect()
        self.cluster.link(b, a).suspect()

    def of_pubends(self, *numbers: int) -> list[PublicationHandle]:
        """Return the publications at some pubends after the warm-up."""
        return [each for each in self.sent[12:] if int(each.client[1:]) in numbers]

    def first_ways(self, sender: str, receiver: str) -> list[int]:
        """Return the pubends of the new events that a broker has sent another."""
        told = [m for m in self.from_to(sender, receiver, Events) if not m.again]
        return sorted({m.run.source.publisher for m in told})

    def requested(self, sender: str, *receivers: str) -> int:
        """Return the ticks that a broker has requested from others, in milliseconds."""
        names = receivers or ("p1", "b1", "b2", "b3", "b4")
        nacks = [m for name in names for m in self.from_to(sender, name, Nack)]
        return sum(ticks_of(m.ranges) for m in nacks) // 1_000


def ticks_of(ranges: Sequence[tuple[int, int]]) -> int:
    """Return the number of ticks in ranges."""
    return sum(end - start for start, end in ranges)
