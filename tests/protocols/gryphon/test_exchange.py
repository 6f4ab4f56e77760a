"""Filters in several messages: parts of different versions and sessions are never mixed."""

from random import Random

import pytest

from brokerd.model.predicate import EVERYTHING, Predicate
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from brokerd.protocols.gryphon.filter_table import FilterTable
from brokerd.protocols.gryphon.filters import FilterExchange, FilterWrite
from brokerd.protocols.gryphon.messages import (
    Beginning,
    Beginnings,
    FilterChange,
    FilterSet,
    FilterVersion,
    FilterVersions,
    Named,
)
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Links, Routes
from brokerd.protocols.gryphon.state import FILTERED
from brokerd.protocols.gryphon.stream import Streams
from brokerd.protocols.interface import Send
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.wire.attributes import decode_attribute_table

TOPOLOGY = tree_of_cells(("b0", "b1", "b2"), [("b0", "b1"), ("b1", "b2")])


class Side:
    """The filter exchange of a broker in a chain of three."""

    def __init__(self, broker: int, **filtered: list[int]) -> None:
        routes = Routes(broker, TOPOLOGY, 1)
        self.table = FilterTable(broker, routes, decode_attribute_table, is_on=True)
        streams = Streams(broker, routes, GryphonParameters(pubends=1))
        near, links = routes.neighbours, Links(routes, routes.neighbours)
        self.exchange = FilterExchange(
            broker, routes, self.table, streams, near, links, DeadlineQueue()
        )
        recovered = {FILTERED: {name[1:]: row for name, row in filtered.items()}}
        self.exchange.begin(1, recovered)
        self.outcomes: list[object] = []

    def receives_from(self, peer: int, message: object) -> None:
        self.outcomes += self.exchange.handlers()[type(message)](peer, message, 0)

    def sets(self, to: int) -> list[FilterSet]:
        found = [
            effect.message
            for effect in self.outcomes
            if isinstance(effect, Send) and effect.peer == to
        ]
        self.outcomes.clear()
        return [message for message in found if isinstance(message, FilterSet)]


def wanted(number: int, tests: int = 1) -> Predicate:
    return parse_predicate(" or ".join(f"a = {number * 100 + each}" for each in range(tests)))


@pytest.mark.parametrize(
    "count, tests",
    [
        *((count, 1) for count in (0, 1, 255, 256, 257, 513)),
        *((count, 3) for count in (85, 86, 171)),
        *((count, 64) for count in (1, 3, 4, 5, 8, 9, 12, 13)),
    ],
)
def test_a_filter_of_any_size_is_decoded_unchanged(count: int, tests: int) -> None:
    sender, receiver = Side(2), Side(1)
    for number in range(count):
        sender.exchange.change(wanted(number, tests), ())
    sender.receives_from(1, FilterVersions((FilterVersion(2, 0, 0),), (2,)))
    parts = sender.sets(1)
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    for part in parts:
        assert sum(len(row) for _, each in part.predicates for row in each.any_of) <= 256
        receiver.receives_from(2, part)
    assert receiver.table.predicates(2) == sender.table.predicates(2)
    assert receiver.table.version(2) == sender.table.version(2)


def test_a_newer_version_takes_no_part_of_an_older_one() -> None:
    receiver = Side(1)
    old, new = FilterVersion(2, 1, 5), FilterVersion(2, 1, 7)
    receiver.receives_from(2, FilterSet(old, (Named(4, wanted(4)),), False))
    receiver.receives_from(2, FilterSet(new, (Named(7, wanted(7)),), True))
    assert receiver.table.predicates(2) == {7: wanted(7)}


@pytest.mark.parametrize("seed", range(60))
def test_only_the_parts_of_one_version_make_a_filter(seed: int) -> None:
    """Sets break off when the sender's filter changes, or its session ends and restarts."""
    random, receiver = Random(seed), Side(1)
    whole: dict[int, Predicate] | None = None
    for number in range(2, 40):
        version = FilterVersion(2, 1, number)
        named = [Named(each, wanted(each)) for each in random.sample(range(1, 50), 4)]
        parts = [named[:2], named[2:3], named[3:]]
        broken_off = random.choice((3, 3, 2, 1))
        for place, part in enumerate(parts[:broken_off]):
            receiver.receives_from(2, FilterSet(version, tuple(part), place == len(parts) - 1))
        if random.random() < 0.2:
            receiver.exchange.on_session(2)
        if broken_off == len(parts):
            whole = dict(named)
        assert receiver.table.predicates(2) == whole


@pytest.mark.parametrize("number, writes", [(4, []), (5, []), (6, [FilterVersion(2, 1, 6)])])
def test_only_a_later_version_is_written_before_its_beginning(
    number: int, writes: list[FilterVersion]
) -> None:
    """The filter of version 5 was matched before a restart, and its contents are lost."""
    side = Side(1, b2=[1, 5])
    side.receives_from(2, FilterSet(FilterVersion(2, 1, number), (), True))
    found = [each for each in side.outcomes if isinstance(each, FilterWrite)]
    assert [version for write in found for version in write.versions] == writes


BEGINNING = Beginnings((Beginning(1, FilterVersion(2, 1, 5), (0,)),))


def test_a_restarted_broker_repeats_its_durable_beginnings() -> None:
    side = Side(1, b2=[1, 5])
    assert side.exchange.due() == [Send(2, BEGINNING)]


def test_a_new_session_repeats_beginnings_and_owes_no_change() -> None:
    side = Side(1, b2=[1, 5])
    side.exchange.due()
    assert side.exchange.on_links() == []
    owed = side.exchange.change_routes.owed
    owed[2] = {0: [FilterChange(FilterVersion(0, 1, 2), (), (1,))]}
    side.exchange.on_session_lost(2)
    assert side.exchange.on_links() == [Send(2, BEGINNING)]
    assert owed == {}


def test_a_restated_filter_has_the_predicates_of_the_present_one() -> None:
    side = Side(1)
    side.exchange.change(wanted(3), ())
    side.receives_from(2, FilterVersions((FilterVersion(1, 1, 50),), ()))
    stated, *_ = side.sets(2)
    assert (stated.version.number, [each.predicate for each in stated.predicates]) == (
        51,
        [wanted(3)],
    )


def test_one_write_of_versions_is_under_way_and_removals_need_none() -> None:
    side = Side(1)
    for number in (5, 6):
        side.receives_from(2, FilterSet(FilterVersion(2, 1, number), (), True))
    (write,) = [each for each in side.outcomes if isinstance(each, FilterWrite)]
    later = [*side.exchange.on_written(write, 0)]
    assert FilterWrite((FilterVersion(2, 1, 6),)) in later
    side.exchange.on_written(FilterWrite((FilterVersion(2, 1, 6),)), 0)
    side.outcomes.clear()
    side.receives_from(2, FilterChange(FilterVersion(2, 1, 7), (), (1,)))
    assert not [each for each in side.outcomes if isinstance(each, FilterWrite)]


@pytest.mark.parametrize("seed", range(8))
def test_a_filter_after_changes_equals_a_new_filter_with_the_same_predicates(seed: int) -> None:
    random, used = Random(seed), Side(0).table
    kept: dict[int, Predicate] = {}
    used.replace(FilterVersion(1, 1, 1), {})
    used.replace(FilterVersion(2, 1, 1), {})
    for version in range(2, 40):
        removed = [number for number in kept if random.random() < 0.4]
        added = {
            number: random.choice([EVERYTHING, wanted(number)])
            for number in range(4)
            if (number not in kept or number in removed) and random.random() < 0.4
        }
        kept = {number: each for number, each in kept.items() if number not in removed} | added
        used.change(FilterVersion(2, 1, version), added, removed)
        new = Side(0).table
        new.replace(FilterVersion(1, 1, 1), {})
        new.replace(FilterVersion(2, 1, version), kept)
        for cell in range(3):
            assert used.wants_all(cell) == new.wants_all(cell)
            assert used.wants_any(cell) == new.wants_any(cell)
