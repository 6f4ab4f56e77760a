"""Stories of subscriptions that continue at a storage of another root's tree."""

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.model.client_messages import Unsubscribe, Unsubscribed
from brokerd.model.predicate import EVERYTHING
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.protocols.ges_reliable.fetches import stream_of
from brokerd.protocols.ges_reliable.handover import ROOT_QUERY
from brokerd.protocols.ges_reliable.messages import (
    Changed,
    Events,
    Fetch,
    Key,
    RequestAnswer,
    Sequences,
    Store,
    SubscriptionRequest,
)
from brokerd.protocols.interface import Append, Commit, LogEnds
from tests.protocols.ges_reliable.test_parts import BLOB, HOME, KEY, P, StorageAlone, run
from tests.protocols.ges_reliable.test_successors import STAY, HomeOfTwo
from tests.protocols.ges_reliable.test_trees import Trees

NEXT, FIRST = 4, 5
ROOTS = {NEXT: NEXT, FIRST: FIRST}


class HomeBetween(HomeOfTwo):
    """An access broker in the unit of a root, with a client that another root stored for.

    The first root's epochs equal the sequence numbers of P; the next root's are 100 higher.
    """

    def __init__(self, *brought: tuple[int, int]) -> None:
        super().__init__(*brought, roots=ROOTS)

    def answer(self, storage: int, after: int | None, **more: Any) -> SubscriptionRequest:
        """Answer the oldest pending request, which must be for this storage."""
        return self.told.answer(storage, after, **more)

    def looked(self, root: int, after: int, last: int) -> None:
        """Let a root report its position, and its position in P."""
        assert self.answer(root, after, received_of=((P, last),)).is_query

    def gives_next(self, after: int, first: int, last: int) -> None:
        """Let the next root answer the last fetch with these sequence numbers of P."""
        asked = [each for each in self.paper.sent if type(each) is Fetch and each.target == NEXT]
        numbers, stream = range(first + 100, last + 101), stream_of(NEXT)
        origins = (OriginRun(P, range(first, last + 1)),)
        events = PublicationRun(stream, numbers, (BLOB,), bytes(len(numbers)), 0, (), origins)
        self.receives_from(Events(HOME, 0, NEXT, 1, asked[-1].number, after, events))


def started_at_the_successor(received_of: Sequences = ()) -> HomeBetween:
    """Start at the successor; the first root delivered up to 12, of which 4 are acknowledged."""
    home = HomeBetween((FIRST, 2))
    assert home.answer(FIRST, 2, received_of=received_of).had == 2
    home.gives(FIRST, 2, 3, 12)
    home.done(FIRST, 3, 4)
    assert home.answer(FIRST, 4, successor=NEXT).successor == NEXT
    assert home.answer(NEXT, 101).before == FIRST
    return home


def cut(until: int = 14) -> HomeBetween:
    """Start with the next root at position 11 and the first root at position `until`."""
    home = started_at_the_successor()
    home.looked(NEXT, 111, 11)
    home.looked(FIRST, until, until)
    return home


def goes_on() -> HomeBetween:
    home = cut()
    assert home.answer(NEXT, 111, received_of=((P, 14),)).received_of == ((P, 14),)
    home.answer(FIRST, 4, successor=NEXT, until=14)
    home.gives(FIRST, 12, 13, 16)
    home.done(FIRST, 5, 14)
    return home


def events_that_the_new_root_lacked_are_delivered_by_the_old_root_only() -> None:
    """The client may have received these events before (a14_ahead_client)."""
    home = goes_on()
    assert home.fetched_behind(NEXT) == [111]
    home.gives_next(111, 12, 16)
    assert home.given() == [(FIRST, 3, 12), (FIRST, 13, 14), (NEXT, 115, 116)]


def both_roots_store_the_end_before_the_new_one_delivers() -> None:
    home = cut()
    home.gives(FIRST, 12, 13, 16)
    home.done(FIRST, 5, 14)
    wish = home.answer(NEXT, 111, received_of=((P, 14),))
    assert (wish.had, wish.before, wish.received_of) == (111, FIRST, ((P, 14),))
    assert not home.fetched_behind(NEXT)
    wish = home.answer(FIRST, 14, successor=NEXT, until=14)
    assert (wish.successor, wish.until, wish.predicate) == (NEXT, 14, EVERYTHING)
    assert home.fetched_behind(NEXT) == [111]


def the_old_root_serves_until_the_last_acknowledgement() -> None:
    home = cut()
    home.answer(NEXT, 111, received_of=((P, 14),))
    home.answer(FIRST, 4, successor=NEXT, until=14)
    home.gives(FIRST, 12, 13, 16)
    home.done(FIRST, 5, 13)
    assert not home.told.requests
    home.done(FIRST, 14, 14)
    assert home.answer(FIRST, None) == SubscriptionRequest(KEY, STAY, None, successor=NEXT)


def no_acknowledgement_beyond_the_end_reaches_the_old_root() -> None:
    """A client that connects before both roots have the end continues from there (seed 12188)."""
    home = cut()
    home.gives(FIRST, 12, 13, 16)
    home.done(FIRST, 5, 14)
    home.machine.now_ns = 10**9
    home.receipt_due(FIRST)
    told = [each for each in home.paper.sent if type(each) is Fetch and each.done]
    assert all(each.through <= 14 for each in told)


def a_handover_waits_for_an_old_root_that_is_behind() -> None:
    """The old root lacks events of the new one and delivers further arrivals (a15_behind_old)."""
    home = started_at_the_successor()
    home.looked(NEXT, 120, 20)
    home.looked(FIRST, 14, 14)
    assert not home.told.requests
    home.gives(FIRST, 12, 13, 20)
    home.clients.due(ROOT_QUERY, FIRST)
    home.looked(FIRST, 20, 20)
    assert home.answer(NEXT, 120).received_of == ()
    assert home.given() == [(FIRST, 3, 12), (FIRST, 13, 20)]


def nothing_is_delivered_beyond_the_end_that_is_reported() -> None:
    """The root reported 11, and 12 was delivered since; the root reports again first."""
    home = cut(until=11)
    home.gives(FIRST, 12, 13, 16)
    home.looked(FIRST, 15, 15)
    assert home.fetched_behind(FIRST)[-1] == 12
    home.gives(FIRST, 12, 13, 16)
    assert home.given() == [(FIRST, 3, 12), (FIRST, 13, 15)]
    assert home.answer(NEXT, 111).received_of == ((P, 15),)


def events_of_a_third_root_count_as_received() -> None:
    """The first root lacks part of these events, so the next root would deliver them again."""
    home = started_at_the_successor(received_of=((P, 50),))
    home.looked(NEXT, 140, 40)
    home.looked(FIRST, 14, 14)
    assert home.answer(NEXT, 140).received_of == ((P, 50),)


def a_handover_to_a_third_root_awaits_the_first() -> None:
    """Otherwise the next request at the first root would restart and continue at the second."""
    home = goes_on()
    home.clients.change((FIRST, NEXT), ROOTS)
    assert len(home.told.requests) == 1
    assert home.answer(FIRST, None).successor == NEXT
    assert home.answer(NEXT, 111).before == NEXT
    wish = home.answer(NEXT, 111, successor=FIRST)
    assert (wish.successor, wish.until) == (FIRST, None)


def a_settled_end_holds_for_the_next_access_broker() -> None:
    home = HomeBetween((FIRST, 12), (NEXT, 0))
    home.answer(FIRST, 12, successor=NEXT, until=14)
    home.gives(FIRST, 12, 13, 16)
    assert home.answer(NEXT, 111, before=FIRST, received_of=((P, 14),)).claims
    home.done(FIRST, 13, 14)
    home.gives_next(111, 14, 15)
    assert home.given() == [(FIRST, 13, 14), (NEXT, 115, 115)]


def positions_of_one_tree_do_not_count_in_another() -> None:
    home = HomeBetween((FIRST, 12), (NEXT, 300))
    assert home.answer(FIRST, 12, successor=NEXT, until=14).had == 12
    assert home.fetched_behind(FIRST) == [12]
    assert home.answer(NEXT, 300, before=FIRST).had == 300


def the_previous_storage_delivers_first() -> None:
    """No event was stored at the new root since the client's last visit, so it is not behind."""
    home = HomeBetween((NEXT, 120), (FIRST, 12))
    home.answer(NEXT, 120, before=FIRST)
    wish = home.answer(FIRST, 12, successor=NEXT)
    assert (wish.claims, wish.had) == (True, 12)
    assert home.fetched_behind(FIRST) == [12]
    assert not home.fetched_behind(NEXT)


def the_previous_storage_confirms_its_end() -> None:
    home = HomeBetween((NEXT, 120), (FIRST, 12))
    home.answer(NEXT, 130, before=FIRST, received_of=((P, 14),))
    home.answer(FIRST, None, successor=NEXT)
    assert home.fetched_behind(NEXT) == [130]
    assert home.answer(NEXT, 130).before == NEXT
    assert not home.told.requests


def an_end_reaches_the_previous_storage() -> None:
    home = HomeBetween((NEXT, 120))
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    home.answer(NEXT, 120, before=FIRST)
    ends = [(storage, wish.predicate) for storage, wish, _ in home.told.requests]
    assert ends == [(NEXT, None), (FIRST, None)]


def an_end_awaits_the_previous_storage() -> None:
    """Otherwise a later attachment could reach that storage first, and the end be lost."""
    home = goes_on()
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    assert home.answer(FIRST, None).successor == NEXT, "it went on"
    assert home.answer(NEXT, None).predicate is None
    assert not home.answers(Unsubscribed)
    assert home.answer(FIRST, None).predicate is None
    assert home.answers(Unsubscribed) == [Unsubscribed(1)]


def it_stays_where_that_is_wished() -> None:
    home = HomeOfTwo((FIRST, 2), roots=ROOTS, changes_root=False)
    home.told.answer(FIRST, 2)
    assert not home.told.requests


def kept(alone: StorageAlone) -> StorageAlone:
    """Return the same storage after a restart from its written rows."""
    tables: dict[str, dict[str, Any]] = {}
    while waiting := [each for each in alone.machine.effects if type(each) in (Append, Commit)]:
        for row in getattr(waiting[0], "changes", ()):
            tables.setdefault(row.table, {})[row.key] = row.value
        alone.machine.effects.remove(waiting[0])
        if waiting[0].token is not None:
            alone.disk.on_persisted(waiting[0].token)
    later = StorageAlone()
    later.storage.recover(tables, LogEnds())
    return later


def a_settled_handover_survives_a_crash_of_the_storages() -> None:
    """The old and the new storage keep the settled handover."""
    alone, other = StorageAlone(), Key("d", 1)
    alone.receives_from(Store(7, 0, HOME, run(1, 9)))
    for number, wish in enumerate(
        (
            SubscriptionRequest(KEY, 1, EVERYTHING, before=0),
            SubscriptionRequest(KEY, 1, EVERYTHING, had=9, before=0, received_of=((P, 14),)),
            SubscriptionRequest(other, 1, EVERYTHING, before=FIRST),
            SubscriptionRequest(other, 1, EVERYTHING, successor=NEXT),
            SubscriptionRequest(other, 1, EVERYTHING, successor=NEXT, until=9),
        ),
        start=1,
    ):
        alone.wishes(number, wish)
    later = kept(alone)
    known = later.storage.registrations.subscriptions()
    assert known[KEY].answer == RequestAnswer(KEY, 9, before=0, received_of=((P, 14),))
    assert known[other].answer == RequestAnswer(other, 9, successor=NEXT, until=9)


def the_start_at_the_successor_does_not_depend_on_a_receipt() -> None:
    """The root may be ahead of the storage, which keeps no receipt of events that it lacks."""
    alone = StorageAlone(parent=FIRST)
    registrations = alone.storage.registrations
    registrations.take(SubscriptionRequest(KEY, 1, EVERYTHING, before=FIRST), HOME, 3)
    _, rows = registrations.take(
        SubscriptionRequest(KEY, 1, EVERYTHING, had=7, before=FIRST, received_of=()), HOME, 3
    )
    assert rows[-1].value[2] == 7


def a_root_reports_the_position_before_its_first_gap() -> None:
    """Event 5 waits for 4, and no position is reported before it is on disk."""
    alone = StorageAlone()
    alone.receives_from(Store(7, 0, HOME, run(1, 3)))
    alone.receives_from(Store(7, 0, HOME, run(5, 6)))
    alone.wishes(1, SubscriptionRequest(KEY, 1, None, is_query=True))
    assert not alone.paper.take(Changed)
    alone.written(Append, Commit)
    (told,) = alone.paper.take(Changed)
    assert told.answers == (RequestAnswer(KEY, 3, received_of=((P, 3),)),)
    assert not alone.storage.registrations.subscriptions()


def a_client_that_moves_is_stored_for_by_the_root_of_its_unit() -> None:
    trees = Trees()
    client = trees.subscription.client
    for broker, stored in (("y", [0, 0, 1]), ("g", [1, 0, 0]), ("x", [0, 1, 0]), ("z", [0, 0, 1])):
        trees.cluster.transfers.reattach(client.name, broker)
        trees.publish("z", "a", "b", "a", seconds=0.5)
        trees.publish("g", "a", seconds=3)
        assert [trees.stored_for(name) for name in "rfq"] == stored
    trees.settle()
    assert trees.got() == 13
    trees.cluster.unsubscribe(client.name)
    trees.settle()
    assert not any(trees.stored_for(name) + trees.successors(name) for name in "rfq")


def a_client_that_roams_during_a_handover_misses_nothing() -> None:
    """Access brokers die before the first root's events are acknowledged (a16_roam_in_recovery)."""
    trees = Trees()
    client = trees.subscription.client
    client.take_after_ns = 200_000_000
    trees.publish("z", *"a" * 8, seconds=0.4)
    for broker in ("y", "g", "z", "x", "y"):
        trees.cluster.transfers.reattach(client.name, broker)
        trees.publish("z", "a", seconds=0.1)
        trees.publish("g", "a", seconds=0.5)
    trees.lose("y")
    trees.cluster.transfers.reattach(client.name, "g")
    trees.publish("z", "a")
    trees.settle(25)
    assert trees.got() == 20
    assert [trees.stored_for(name) for name in "rfq"] == [1, 0, 0]


def storages_die_during_a_handover() -> None:
    """The two storages and the old storage's root die in turn."""
    trees = Trees()
    client = trees.subscription.client
    client.take_after_ns = 100_000_000
    for dies, broker in (("f", "y"), ("q", "z"), ("r", "x"), ("q", "y")):
        trees.publish("z", "a", "a", seconds=0.1)
        trees.cluster.transfers.reattach(client.name, broker)
        trees.cluster.run_for(0.05)
        trees.cluster.broker(dies).kill()
        trees.publish("g", "a", seconds=0.4)
        trees.cluster.broker(dies).start()
        trees.publish("z", "a", seconds=0.3)
    trees.settle(25)
    assert trees.got() == 17
    assert [trees.stored_for(name) for name in "rfq"] == [0, 0, 1]


def a_client_that_loses_memory_between_roots_misses_nothing() -> None:
    trees = Trees()
    client = trees.subscription.client
    client.take_after_ns = 300_000_000
    trees.publish("z", *"a" * 8, seconds=0.05)
    trees.cluster.transfers.reattach(client.name, "y")
    while not trees.stored_for("q"):
        trees.cluster.run_for(0.002)
    again = trees.cluster.population.forget(client.name)
    trees.publish("z", "a")
    trees.settle(20)
    assert [trees.stored_for(name) for name in "rfq"] == [0, 0, 1]
    assert len(again.received[1]) >= 8


CROSSING_STORIES = (
    events_that_the_new_root_lacked_are_delivered_by_the_old_root_only,
    both_roots_store_the_end_before_the_new_one_delivers,
    the_old_root_serves_until_the_last_acknowledgement,
    no_acknowledgement_beyond_the_end_reaches_the_old_root,
    a_handover_waits_for_an_old_root_that_is_behind,
    nothing_is_delivered_beyond_the_end_that_is_reported,
    events_of_a_third_root_count_as_received,
    a_handover_to_a_third_root_awaits_the_first,
    a_settled_end_holds_for_the_next_access_broker,
    positions_of_one_tree_do_not_count_in_another,
    the_previous_storage_delivers_first,
    the_previous_storage_confirms_its_end,
    an_end_reaches_the_previous_storage,
    an_end_awaits_the_previous_storage,
    it_stays_where_that_is_wished,
    a_settled_handover_survives_a_crash_of_the_storages,
    the_start_at_the_successor_does_not_depend_on_a_receipt,
    a_root_reports_the_position_before_its_first_gap,
    a_client_that_moves_is_stored_for_by_the_root_of_its_unit,
    a_client_that_roams_during_a_handover_misses_nothing,
    storages_die_during_a_handover,
    a_client_that_loses_memory_between_roots_misses_nothing,
)


@pytest.mark.parametrize("story", CROSSING_STORIES, ids=lambda story: story.__name__)
def test_story(story: Callable[[], None]) -> None:
    story()
