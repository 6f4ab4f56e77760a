"""Confirmations and notifiers remove tags and never add tags."""

from brokerd.model.identity import SourceId, SubscriptionId
from brokerd.protocols.delta_tree.messages import SubscriptionConfirmation, Tag
from brokerd.protocols.delta_tree.regions import (
    Replacement,
    covers,
    refine,
    replace_tags,
    replacement_for,
)
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants

OF_3, OF_5 = SourceId(3, 0, 1), SourceId(5, 0, 1)


def path(broker):
    """Return the path from the access broker on the chain 0-1-2-…"""
    return tuple(range(broker + 1))


def tag(detector, node, beyond):
    return Tag(path(node), detector, 1, 1, beyond)


def confirmation(*tags, cut=()):
    paths = tuple(path(source.broker) for source, _ in cut)
    return SubscriptionConfirmation(SubscriptionId(0, 1, 1), tags, cut, paths)


def heard(tags, brokers=range(8)):
    return [broker for broker in brokers if not covers(tags, path(broker))]


def test_a_confirmation_removes_tags_of_a_returned_broker_and_sets_the_cut():
    held = (tag(2, 3, False), tag(2, 4, True))
    change = replacement_for(held, 3, confirmation(tag(3, 5, True), cut=((OF_3, 7),)))
    assert change is not None
    cut = {}
    left, touched = replace_tags(held, cut, change)
    assert heard(left) == [0, 1, 2, 3, 4]
    assert touched == held
    assert cut == {OF_3: 7}


def test_a_prefix_that_stays_dead_stays_tagged():
    """Broker 2 cannot reach broker 3; broker 4 is reachable again by the bypass."""
    held = (tag(2, 3, False), tag(2, 4, True))
    change = replacement_for(held, 4, confirmation())
    assert change is not None
    left, _ = replace_tags(held, {}, change)
    assert heard(left) == [0, 1, 2, 4, 5, 6, 7]


def test_a_broker_that_confirms_again_with_larger_tags_closes_nothing():
    assert replacement_for((), 3, confirmation(tag(3, 4, True))) is None


def test_an_earlier_notifier_removes_tags_that_a_stale_confirmation_names():
    """Broker 3 names 5 as unaware, although an earlier notifier from 5 reported the opposite."""
    told = Replacement((tag(4, 5, False),), (), ((OF_5, 8), (OF_3, 9)), (path(5), path(3)))
    stale = (tag(4, 5, False), tag(5, 6, False))
    answer = Replacement((tag(0, 2, True),), stale, ((OF_3, 2),), (path(3),))
    change = refine(answer, [told])
    assert change.removed == answer.removed
    assert change.added == (tag(5, 6, False),)
    assert dict(change.cut) == {OF_3: 2, OF_5: 8}
    assert sorted(change.source_paths) == [path(3), path(5)]


def test_the_cut_of_an_untagged_source_does_not_rise():
    held = (tag(4, 5, True),)
    change = Replacement((tag(2, 3, True),), (), ((OF_3, 9), (OF_5, 4)), (path(3), path(5)))
    cut = {OF_3: 2}
    left, _ = replace_tags(held, cut, change)
    assert left == ()
    assert cut == {OF_3: 2, OF_5: 4}


def stale_emitter():
    """Apply a notifier from a broker that missed the return of broker 3; only 5 is tagged."""
    held = (tag(4, 5, False),)
    stale = Replacement((tag(2, 3, True), tag(4, 5, False)), (tag(2, 3, False),), (), ())
    left, _ = replace_tags(held, {}, stale)
    return heard(left)


def test_a_stale_emitter_closes_no_open_gate():
    assert stale_emitter() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_stale_emitter_closes_a_gate_if_receivers_accept_any_tags():
    with plant_mutants([Mutant.RECEIVER_TAKES_ANY_TAGS]):
        assert stale_emitter() == [0, 1, 2, 4, 5, 6, 7]
