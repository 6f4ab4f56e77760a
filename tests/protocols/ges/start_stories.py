"""Stories about when a subscription is reported as started, while sessions end and brokers leave.

The rule `started early` of the checks judges each report; the stories make the reports happen.
"""

from brokerd.overlay.topology import SCHEMA
from brokerd.protocols.ges.core import UnitBroker
from brokerd.protocols.registry import read_topology
from brokerd.simulator.world.cluster import SimulatedCluster, Subscription

PURGE_S = 31
"""A little more than `purge_ns`."""
_LINKS = (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e"))
"""From a there are two ways to d, and one from there to e."""


def _started(*links: tuple[str, str]) -> SimulatedCluster:
    names = sorted({name for link in links for name in link})
    hierarchy = {
        "addresses": {name: f"0.{number}" for number, name in enumerate(names)},
        "links": [list(link) for link in links],
    }
    overlay = {"kind": "hierarchy", "hierarchy": hierarchy, "brokers": names}
    topology = read_topology({"schema": SCHEMA, "name": "starts", **overlay}, "starts")
    cluster = SimulatedCluster(topology, "ges", strict=False)
    cluster.start().run_until_quiet()
    return cluster


def _told_by(cluster: SimulatedCluster, name: str) -> str:
    """Return the neighbour that a broker is to answer."""
    core = cluster.broker(name).broker.core
    assert isinstance(core, UnitBroker), f"{core} is no broker of a hierarchy"
    [waiting] = core._propagation._awaited[0]
    assert waiting.told_by is not None, f"{name} answers nobody"
    return cluster.topology.brokers[waiting.told_by]


def _has(cluster: SimulatedCluster, name: str, subscriptions: int) -> bool:
    core = cluster.broker(name).broker.core
    assert isinstance(core, UnitBroker), f"{core} is no broker of a hierarchy"
    return core.profiles.size(0) == subscriptions


def _cut_between(cluster: SimulatedCluster, number: int) -> None:
    """The neighbour that d is to answer loses it for long, and e is slow to take the profile."""
    cluster.broker("e").absorb()
    found = cluster.subscribe("a", "true")
    cluster.run_for(2)
    link = _told_by(cluster, "d"), "d"
    cluster.link(*link).cut()
    cluster.run_for(PURGE_S)
    assert not found.started
    assert not _has(cluster, "e", number)
    cluster.broker("e").release()
    cluster.run_for(1)
    assert found.started
    assert _has(cluster, "e", number)
    cluster.link(*link).heal()
    cluster.run_until_quiet()


def who_passed_it_on_is_cut_off_before_the_answer() -> None:
    """Twice in one cluster: the second time brokers have been without each other before."""
    cluster = _started(*_LINKS)
    for number in (1, 2):
        _cut_between(cluster, number)


def who_passed_it_on_leaves_before_the_answer() -> None:
    """d is to answer c, which leaves; b knows that d has the profile, and not that e lacks it."""
    cluster = _started(*_LINKS)
    cluster.link("b", "d").delay(500_000_000)
    cluster.broker("e").absorb()
    found: Subscription = cluster.subscribe("a", "true")
    cluster.run_for(2)
    assert _told_by(cluster, "d") == "c"
    cluster.leave("c")
    cluster.run_for(PURGE_S)
    assert not found.started
    cluster.broker("e").release()
    cluster.run_for(2)
    assert found.started
    assert _has(cluster, "e", 1)


def the_first_answer_is_not_the_last() -> None:
    """b answers at once, and c is slow to take the profile."""
    cluster = _started(("a", "b"), ("a", "c"))
    cluster.broker("c").absorb()
    found = cluster.subscribe("a", "true")
    cluster.run_for(2)
    assert not found.started
    cluster.broker("c").release()
    cluster.run_for(1)
    assert found.started


def who_was_away_for_long_is_waited_for_again() -> None:
    """Nobody waited for c any more; it is back, and slow to take the next profile."""
    cluster = _started(("a", "b"), ("a", "c"))
    cluster.broker("c").kill()
    cluster.run_for(PURGE_S)
    cluster.broker("c").start()
    cluster.run_for(5)
    cluster.broker("c").absorb()
    found = cluster.subscribe("a", "true")
    cluster.run_for(2)
    assert not found.started
    cluster.broker("c").release()
    cluster.run_for(1)
    assert found.started


def all_answers_take_longer_than_anybody_is_waited_for() -> None:
    """Each way takes 20 s, and an answer 40 s."""
    cluster = _started(("a", "b"))
    cluster.link("a", "b").delay(20_000_000_000)
    found = cluster.subscribe("a", "true")
    cluster.run_for(35)
    assert not found.started
    cluster.run_for(200)
    assert found.started


STORIES = (
    all_answers_take_longer_than_anybody_is_waited_for,
    who_was_away_for_long_is_waited_for_again,
    who_passed_it_on_is_cut_off_before_the_answer,
    who_passed_it_on_leaves_before_the_answer,
    the_first_answer_is_not_the_last,
)
SEEN = {
    "stated-anew-for-ever": all_answers_take_longer_than_anybody_is_waited_for,
    "given-up-for-ever": who_was_away_for_long_is_waited_for_again,
    "late-answers-count": who_passed_it_on_is_cut_off_before_the_answer,
    "leaver-has-answered": who_passed_it_on_leaves_before_the_answer,
    "one-answer-is-enough": the_first_answer_is_not_the_last,
}
