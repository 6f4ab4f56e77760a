"""Regions against plain sets of brokers: no path arithmetic, only "can it be reached without"."""

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from brokerd.overlay.generate import chain
from brokerd.overlay.primary_tree import PrimaryTree
from brokerd.protocols.delta_tree.messages import Tag
from brokerd.protocols.delta_tree.regions import Regions, region
from tests.helpers.strategies import trees


def reachable(topology, start, without):
    """Brokers that `start` is connected to when `without` is taken out of the tree."""
    links = [link for link in topology.links if without not in link]
    found, size = {start}, 0
    while size < len(found):
        size = len(found)
        found |= {end for link in links for end in link if found & {*link}}
    return found


def covered(topology, tags):
    """The set of brokers that tags stand for, by taking brokers out and looking what is lost."""
    everyone = set(range(len(topology.brokers)))
    found = set()
    for tag in tags:
        found.add(tag.node)
        if tag.beyond:
            found |= everyone - reachable(topology, tag.detector, tag.node)
    return found


@st.composite
def tagged_trees(draw):
    """A tree, a home in it, and two regions with tags that point away from the home."""
    topology = draw(trees(largest=10).filter(lambda tree: len(tree.brokers) > 1))
    tree = PrimaryTree(topology)
    brokers = st.integers(0, len(topology.brokers) - 1)
    home = draw(brokers)

    @st.composite
    def tags(draw):
        path = tree.path(home, draw(brokers.filter(lambda broker: broker != home)))
        return Tag(draw(st.sampled_from(path[:-1])), path[-1], draw(st.booleans()))

    regions = st.lists(tags(), max_size=4)
    return topology, tree, home, draw(regions), draw(regions)


@given(tagged_trees())
def test_a_region_covers_what_its_tags_cut_off(case):
    topology, tree, _, tags, _ = case
    regions = Regions(tree.path)
    everyone = range(len(topology.brokers))
    assert set(regions.coverage(tags, everyone)) == covered(topology, tags)
    assert [regions.covers(tags, broker) for broker in everyone] == [
        broker in covered(topology, tags) for broker in everyone
    ]


@given(tagged_trees())
def test_an_intersection_covers_what_both_cover(case):
    topology, tree, _, held, replacement = case
    both = Regions(tree.path).intersect(held, replacement)
    assert covered(topology, both) == covered(topology, held) & covered(topology, replacement)


@given(tagged_trees(), st.data())
def test_the_paths_from_the_home_are_all_one_needs_to_know(case, data):
    topology, tree, home, held, replacement = case
    all_knowing = Regions(tree.path)
    at_home = Regions(lambda _detector, broker: tree.path(home, broker))
    everyone = range(len(topology.brokers))
    assert at_home.coverage(held, everyone) == all_knowing.coverage(held, everyone)
    assert at_home.intersect(held, replacement) == all_knowing.intersect(held, replacement)
    assert at_home.includes(held, replacement) == all_knowing.includes(held, replacement)
    away = st.sampled_from(everyone).filter(lambda broker: broker != home)
    *_, here, broker = tree.path(home, data.draw(away))
    assert at_home.under(held, here, broker) == all_knowing.under(held, here, broker)


@given(tagged_trees(), st.data())
def test_the_tags_under_a_broker_are_those_it_stands_before(case, data):
    topology, tree, _, tags, _ = case
    brokers = st.integers(0, len(topology.brokers) - 1)
    here = data.draw(brokers, "here")
    broker = data.draw(brokers.filter(lambda other: other != here), "broker")
    behind = {broker} | (set(range(len(topology.brokers))) - reachable(topology, here, broker))
    expected = {tag for tag in tags if tag.node in behind}
    assert set(Regions(tree.path).under(tags, here, broker)) == expected


@given(tagged_trees())
def test_a_region_said_to_include_another_one_does(case):
    topology, tree, _, larger, smaller = case
    regions = Regions(tree.path)
    if regions.includes(larger, smaller):
        assert covered(topology, smaller) <= covered(topology, larger)
    assert regions.includes(larger, larger[:2])
    assert regions.includes(larger, regions.intersect(larger, smaller))


@given(tagged_trees())
def test_the_order_in_which_tags_came_does_not_show(case):
    _, tree, _, held, replacement = case
    regions = Regions(tree.path)
    assert region(held[::-1] + held) == region(held)
    forwards = regions.intersect(held, replacement)
    assert regions.intersect(held[::-1], replacement[::-1]) == forwards


class ForgetsTheSecondHalf(Regions):
    """The intersection as it was written down first: old tags are cut back, none comes in."""

    def _entered(self, old, new):
        return ()


class KeepsTheReachOfOldTags(Regions):
    """Old tags keep covering what lies beyond, although the new ones no longer do."""

    def _kept(self, old, new):
        return (tag for tag in old if self.covers(new, tag.node))


@pytest.mark.parametrize(
    "mutant, wrong_in_that",
    [
        (ForgetsTheSecondHalf, lambda found, right: found < right),
        (KeepsTheReachOfOldTags, lambda found, right: found > right),
    ],
)
def test_the_intersection_property_catches(mutant, wrong_in_that):
    """Half an intersection opens a gate too early, or keeps one closed for ever."""

    def is_caught(case):
        topology, tree, _, held, replacement = case
        found = covered(topology, mutant(tree.path).intersect(held, replacement))
        right = covered(topology, held) & covered(topology, replacement)
        return wrong_in_that(found, right)

    try:
        find(
            tagged_trees(),
            is_caught,
            settings=settings(
                max_examples=2_000,
                derandomize=True,
                database=None,
                deadline=None,
                suppress_health_check=[*HealthCheck],
            ),
        )
    except NoSuchExample:
        pytest.fail(f"{mutant.__name__} was not noticed")


def test_a_confirmation_from_behind_the_barrier_leaves_what_it_names_itself():
    """S-1-2-3-4-5-6: broker 3 was a dead end; 4 is back and has found 6 dead.

    Only 6 and what lies behind it stay withheld, and 4, which nobody has heard of yet.
    """
    regions = Regions(PrimaryTree(chain(8, 1)).path)
    held = [Tag(2, 3, True), Tag(2, 4, False)]
    assert regions.intersect(held, [Tag(5, 6, True), Tag(2, 4, False)]) == (
        Tag(2, 4, False),
        Tag(5, 6, True),
    )


def test_a_tag_within_another_one_outlives_it():
    """The nearer broker comes back, the farther one has its own tag and stays withheld."""
    regions = Regions(PrimaryTree(chain(6, 1)).path)
    tags = region([Tag(1, 2, True), Tag(3, 4, False)])
    assert tags == (Tag(1, 2, True), Tag(3, 4, False))
    left = [tag for tag in tags if tag.node != 2]
    assert regions.coverage(left, range(6)) == (4,)
