"""Stories of slow brokers that stop, and of brokers that only look slow."""

from collections.abc import Sequence

from brokerd.protocols.ges.messages import LoadProbe
from brokerd.protocols.ges.parameters import GesParameters
from brokerd.protocols.interface import Send
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import MILLISECOND_NS, SECOND_NS
from tests.helpers.exchange import topology, with_cluster
from tests.protocols.ges.load_stories import CHECK_S, NETWORK

DELAY_NS = 500 * MILLISECOND_NS
"""The delay in one direction; a round trip has the highest cost of a link."""
SLOW_S = 30
SQUARE = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


class Suspects:
    """Brokers of a cluster; publications at b0 and at `others` match at all other brokers."""

    def __init__(
        self,
        links: Sequence[tuple[int, int]] = SQUARE,
        others: Sequence[str] = (),
        slow_broker_s: int = SLOW_S,
    ) -> None:
        self.cluster = SimulatedCluster(
            with_cluster(topology(tuple(links), 1)).restrict_to_kind("hierarchy"),
            "ges",
            strict=False,
            parameters=GesParameters(
                slow_link_ns=100 * MILLISECOND_NS, slow_broker_ns=slow_broker_s * SECOND_NS
            ),
            network=NETWORK,
            watcher=self._watch,
        )
        self.probes = 0
        self.cluster.start().run_until_quiet()
        self.names = [broker.name for broker in self.cluster.brokers]
        self.publishers = ("b0", *others)
        self.wanted = {name: self.cluster.subscribe(name) for name in self.names}
        self.cluster.run_until_quiet()
        self.published = 0

    def _watch(self, broker, event, effects) -> None:
        sent = [effect.message for effect in effects if type(effect) is Send]
        self.probes += sum(type(message) is LoadProbe for message in sent)

    def delay(self, *ends: tuple[str, str], delay_ns: int = DELAY_NS) -> None:
        """Delay these links, in each direction."""
        for low, high in ends:
            self.cluster.link(low, high).delay(delay_ns)

    def goes_on(self, seconds: float) -> None:
        """Publish once between any two checks."""
        for _ in range(round(seconds / CHECK_S)):
            for name in self.publishers:
                if self.lives(name):
                    self.cluster.publish(name, n=1)
                    self.published += 1
            self.cluster.run_for(CHECK_S)

    def lives(self, name: str) -> bool:
        """Return True if a broker is still running."""
        return self.cluster.brokers[self.names.index(name)].alive

    @property
    def living(self) -> list[str]:
        """Return the brokers that are still running."""
        return [name for name in self.names if self.lives(name)]


AROUND_B1 = (("b0", "b1"), ("b1", "b2"), ("b1", "b3"))


def a_broker_that_all_find_slow_ends() -> None:
    """Other brokers lose no publication, and clients are better served elsewhere."""
    story = Suspects()
    story.delay(*AROUND_B1)
    story.goes_on(SLOW_S)
    assert story.living == ["b0", "b1", "b2", "b3"], "not found slow for so long yet"
    story.goes_on(60)
    assert story.living == ["b0", "b2", "b3"]
    story.goes_on(30)
    assert len(story.wanted["b3"].received) == story.published


def a_broker_with_one_slow_link_stays() -> None:
    story = Suspects()
    story.delay(("b0", "b1"))
    story.goes_on(4 * SLOW_S)
    assert story.living == ["b0", "b1", "b2", "b3"]


def a_broker_that_recovers_in_time_stays() -> None:
    """All neighbours see a slow broker from the 30th second on, and a fast one from the 60th."""
    story = Suspects()
    story.delay(*AROUND_B1)
    story.goes_on(40)
    story.delay(*AROUND_B1, delay_ns=0)
    story.goes_on(60)
    assert story.living == ["b0", "b1", "b2", "b3"]


def a_broker_among_slow_ones_stays() -> None:
    """A broker with only slow links may be slow itself, so no broker is to blame."""
    story = Suspects(others=("b1", "b2", "b3"))
    story.delay(*[(f"b{low}", f"b{high}") for low, high in SQUARE])
    story.goes_on(4 * SLOW_S)
    assert story.living == ["b0", "b1", "b2", "b3"]


def a_broker_that_one_alone_can_blame_stays() -> None:
    """A neighbour of b1 has no other link, so either of the two may be the slow broker."""
    story = Suspects(((0, 3), (0, 1), (1, 2)), others=("b2",))
    story.delay(("b0", "b1"), ("b1", "b2"))
    story.goes_on(4 * SLOW_S)
    assert story.living == ["b0", "b1", "b2", "b3"]


def a_broker_with_one_neighbour_stays() -> None:
    story = Suspects(((0, 1), (0, 2), (0, 3)))
    story.delay(("b0", "b1"))
    story.goes_on(4 * SLOW_S)
    assert story.living == ["b0", "b1", "b2", "b3"]


def no_broker_ends_without_the_parameter() -> None:
    story = Suspects(slow_broker_s=0)
    story.delay(*AROUND_B1)
    story.goes_on(4 * SLOW_S)
    assert story.living == ["b0", "b1", "b2", "b3"]


def nothing_is_measured_for_a_slow_neighbour_that_is_lost() -> None:
    """The cost of the lost links stays raised, without a conclusion about other links."""
    story = Suspects()
    story.delay(("b0", "b1"))
    story.goes_on(SLOW_S)
    story.cluster.broker("b1").kill()
    story.cluster.run_for(SLOW_S)
    before = story.probes
    story.cluster.run_for(4 * SLOW_S)
    story.cluster.broker("b1").start()
    assert story.probes == before > 0


STORIES = (
    a_broker_that_all_find_slow_ends,
    a_broker_with_one_slow_link_stays,
    a_broker_that_recovers_in_time_stays,
    a_broker_among_slow_ones_stays,
    a_broker_that_one_alone_can_blame_stays,
    a_broker_with_one_neighbour_stays,
    no_broker_ends_without_the_parameter,
    nothing_is_measured_for_a_slow_neighbour_that_is_lost,
)
SEEN = {
    "lost-neighbours-are-compared": nothing_is_measured_for_a_slow_neighbour_that_is_lost,
    "slow-brokers-continue": a_broker_that_all_find_slow_ends,
    "slow-by-one-link": a_broker_with_one_slow_link_stays,
    "slow-for-good": a_broker_that_recovers_in_time_stays,
    "slow-ones-blame-others": a_broker_among_slow_ones_stays,
    "unmeasured-is-cheap": a_broker_among_slow_ones_stays,
    "one-word-is-enough": a_broker_that_one_alone_can_blame_stays,
    "slow-brokers-end-by-default": no_broker_ends_without_the_parameter,
}
"""Named bugs with the stories that they break."""
