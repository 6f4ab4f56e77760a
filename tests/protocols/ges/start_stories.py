"""Stories of the moment of a subscription's start, while sessions end and brokers depart.

The rule `started early` of the checks judges every report; the stories cause the reports.
"""

from itertools import combinations

from brokerd.overlay.topology import SCHEMA
from brokerd.protocols.ges.core import Ges
from brokerd.protocols.ges.parameters import EVERY_NODE, PAPER
from brokerd.protocols.registry import read_topology
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import Subscription

KEEPER_POLICY = EVERY_NODE
"""The policy of all brokers; a test sets another one."""
PURGE_S = 31
"""A little more than `purge_ns`."""
_LINKS = (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e"))
"""Two routes lead from a to d, and one from d to e."""


def _started(*links: tuple[str, str]) -> SimulatedCluster:
    """Start a cluster; with profiles at gatekeepers each of its brokers is a gatekeeper."""
    names = sorted({name for link in links for name in link})
    addresses = {name: f"0.{number}" for number, name in enumerate(names)}
    ways = [list(link) for link in links]
    if KEEPER_POLICY == PAPER:
        beyond = {f"of-{name}": f"1.{number}" for number, name in enumerate(names)}
        ways += [[name, f"of-{name}"] for name in names] + [
            [*pair] for pair in combinations(beyond, 2)
        ]
        addresses |= beyond
    hierarchy = {"addresses": addresses, "links": ways}
    overlay = {"kind": "hierarchy", "hierarchy": hierarchy, "brokers": [*addresses]}
    parameters = {"parameters": {"ges": {"keeper_policy": KEEPER_POLICY}}}
    topology = read_topology(
        {"schema": SCHEMA, "name": "starts", **overlay, **parameters}, "starts"
    )
    cluster = SimulatedCluster(topology, "ges", strict=False)
    cluster.start().run_until_quiet()
    return cluster


def _awaiting_sender(cluster: SimulatedCluster, name: str) -> str:
    """Return the neighbour that a broker must answer."""
    core = cluster.broker(name).broker.core
    assert isinstance(core, Ges), f"{core} is no broker of a hierarchy"
    pending = core.units.confirmations.pending(0)
    waiting = next(each for each in reversed(pending) if each.missing)
    assert waiting.sender is not None, f"{name} answers nobody"
    return cluster.topology.brokers[waiting.sender]


def _has(cluster: SimulatedCluster, name: str, subscriptions: int) -> bool:
    core = cluster.broker(name).broker.core
    assert isinstance(core, Ges), f"{core} is no broker of a hierarchy"
    return core.units.profiles.size(0) == subscriptions


def _cut_between(cluster: SimulatedCluster, number: int) -> None:
    """Cut the link between d and the neighbour to answer, while e is slow to take the profile."""
    cluster.broker("e").absorb()
    found = cluster.subscribe("a", "true")
    cluster.run_for(2)
    link = _awaiting_sender(cluster, "d"), "d"
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


def a_forwarder_is_cut_off_before_the_answer() -> None:
    """The cluster cuts twice; the second cut finds brokers that were separated before."""
    cluster = _started(*_LINKS)
    for number in (1, 2):
        _cut_between(cluster, number)


def a_forwarder_departs_before_the_answer() -> None:
    """Broker d must answer c, which departs; b has seen d's profile but not that e lacks it."""
    cluster = _started(*_LINKS)
    cluster.link("b", "d").delay(500_000_000)
    cluster.broker("e").absorb()
    found: Subscription = cluster.subscribe("a", "true")
    cluster.run_for(2)
    assert _awaiting_sender(cluster, "d") == "c"
    cluster.leave("c")
    cluster.run_for(PURGE_S)
    assert not found.started
    cluster.broker("e").release()
    cluster.run_for(2)
    assert found.started
    assert _has(cluster, "e", 1)


def the_first_answer_is_not_the_last() -> None:
    """Broker b answers at once, and c is slow to take the profile."""
    cluster = _started(("a", "b"), ("a", "c"))
    cluster.broker("c").absorb()
    found = cluster.subscribe("a", "true")
    cluster.run_for(2)
    assert not found.started
    cluster.broker("c").release()
    cluster.run_for(1)
    assert found.started


def a_returned_neighbour_is_awaited_again() -> None:
    """The wait for c had ended; c has returned and is slow to take the next profile."""
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


def a_forwarder_restarts_before_the_answer() -> None:
    """Broker d must answer c, which restarts and receives the profile from d, not from a."""
    cluster = _started(*_LINKS)
    cluster.link("b", "d").delay(500_000_000)
    cluster.broker("e").absorb()
    found = cluster.subscribe("a", "true")
    cluster.run_for(2)
    assert _awaiting_sender(cluster, "d") == "c"
    cluster.link("a", "c").delay(400_000_000)
    cluster.broker("c").restart()
    cluster.run_for(10)
    assert not found.started
    cluster.broker("e").release()
    cluster.run_for(5)
    assert found.started
    assert found.client.path_ages_ns[found.number] == 0
    assert _has(cluster, "e", 1)


def an_abandoned_neighbour_returns_during_the_round() -> None:
    """Broker c is back before b forwards the profile, and c must answer a; e is slow."""
    cluster = _started(("a", "b"), ("a", "c"), ("b", "c"), ("c", "e"))
    cluster.link("a", "c").cut()
    cluster.run_for(PURGE_S)
    cluster.broker("e").absorb()
    cluster.link("b", "c").delay(8_000_000_000)
    found = cluster.subscribe("a", "true")
    cluster.run_for(1)
    cluster.link("a", "c").heal()
    cluster.run_for(20)
    assert _awaiting_sender(cluster, "c") == "a"
    assert not found.started
    cluster.broker("e").release()
    cluster.run_for(20)
    assert found.started
    assert _has(cluster, "e", 1)


def the_way_of_the_answer_is_lost_again_and_again() -> None:
    """In five rounds d loses the neighbour to answer, while e is stalled."""
    cluster = _started(*_LINKS)
    cluster.broker("e").absorb()
    found = cluster.subscribe("a", "true")
    cluster.run_for(2)
    for _ in range(5):
        link = cluster.link(_awaiting_sender(cluster, "d"), "d")
        link.cut()
        cluster.run_for(PURGE_S)
        assert not found.started
        link.heal()
        cluster.run_for(5)
        assert not found.started
    cluster.broker("e").release()
    cluster.run_for(2)
    assert found.started
    assert _has(cluster, "e", 1)


def an_incomplete_answer_is_lost_in_flight() -> None:
    """Broker e restarts while d is cut off from c, which d must answer; c asks again."""
    cluster = _started(("a", "c"), ("c", "d"), ("d", "e"))
    cluster.broker("e").absorb()
    found = cluster.subscribe("a", "true")
    cluster.run_for(2)
    core = cluster.broker("a").broker.core
    assert isinstance(core, Ges), f"{core} is no broker of a hierarchy"
    stated = core.units.profiles.version(0)
    assert stated is not None
    cluster.link("c", "d").cut()
    cluster.broker("e").restart()
    cluster.run_for(3)
    assert not found.started
    cluster.link("c", "d").heal()
    cluster.run_for(5)
    assert found.started
    assert (core.units.profiles.version(0) or stated) > stated, "the first round was complete"


def all_answers_take_longer_than_anybody_is_waited_for() -> None:
    """A message takes 20 s in each direction, and an answer 40 s."""
    cluster = _started(("a", "b"))
    cluster.link("a", "b").delay(20_000_000_000)
    found = cluster.subscribe("a", "true")
    cluster.run_for(35)
    assert not found.started
    cluster.run_for(200)
    assert found.started
    assert found.client.path_ages_ns[found.number] >= 40_000_000_000


STORIES = (
    an_abandoned_neighbour_returns_during_the_round,
    a_forwarder_restarts_before_the_answer,
    the_way_of_the_answer_is_lost_again_and_again,
    an_incomplete_answer_is_lost_in_flight,
    all_answers_take_longer_than_anybody_is_waited_for,
    a_returned_neighbour_is_awaited_again,
    a_forwarder_is_cut_off_before_the_answer,
    a_forwarder_departs_before_the_answer,
    the_first_answer_is_not_the_last,
)
SEEN = {
    "back-and-not-awaited": an_abandoned_neighbour_returns_during_the_round,
    "stated-anew-for-ever": all_answers_take_longer_than_anybody_is_waited_for,
    "given-up-for-ever": a_returned_neighbour_is_awaited_again,
    "late-answers-count": all_answers_take_longer_than_anybody_is_waited_for,
    "incomplete-answers-count": a_forwarder_restarts_before_the_answer,
    "neighbours-given-up-have-answered": the_way_of_the_answer_is_lost_again_and_again,
    "restarted-neighbours-recall-their-answers": a_forwarder_restarts_before_the_answer,
    "incomplete-answers-are-dropped": an_incomplete_answer_is_lost_in_flight,
    "leaver-has-answered": a_forwarder_departs_before_the_answer,
    "one-answer-is-enough": the_first_answer_is_not_the_last,
}
