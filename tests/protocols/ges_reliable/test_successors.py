"""Stories of one access broker, or one storage, and a successor storage in the same tree."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Deliveries,
    Detach,
    Refused,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.predicate import EVERYTHING
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.protocols.ges_reliable.clients import RoamingClients
from brokerd.protocols.ges_reliable.fetches import RECEIPT, EpochFetches, stream_of
from brokerd.protocols.ges_reliable.handover import Handovers
from brokerd.protocols.ges_reliable.messages import (
    Changed,
    Events,
    Fetch,
    Fetched,
    Key,
    LossProof,
    RequestAnswer,
    Store,
    SubscriptionRequest,
)
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.reconnection import StorageSearches
from brokerd.protocols.ges_reliable.requests import PublishRequests
from brokerd.protocols.ges_reliable.state import Answer
from brokerd.protocols.interface import (
    Append,
    CloseSession,
    Commit,
    Deliver,
    LogEnds,
    Send,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.wire.attributes import decode_attribute_table
from tests.protocols.ges_reliable.test_parts import (
    BLOB,
    HOME,
    KEY,
    P,
    Paper,
    StorageAlone,
    run,
)

FINER, ROOT = 4, 5
JOINED = 6
"""A storage that the access broker has not received yet."""
STAY = 3


class Told:
    """The requests of an access broker to storages, until the test answers them."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, SubscriptionRequest, Any]] = []
        self.clients: RoamingClients

    def add(self, storage: int, wish: SubscriptionRequest, step: Any, _now_ns: int) -> tuple[()]:
        self.requests.append((storage, wish, step))
        return ()

    def answer(
        self, storage: int, after: int | None, successor: int | None = None, **more: Any
    ) -> SubscriptionRequest:
        """Answer the oldest pending request, which must be for this storage."""
        assert self.requests, f"{storage} is told nothing"
        to, wish, step = self.requests.pop(0)
        assert to == storage, f"{wish} was told {to}"
        if step is not None:
            self.clients.take([Answer(RequestAnswer(wish.key, after, successor, **more), step)])
        return wish


class HomeOfTwo:
    """An access broker in the unit of a finer storage, with a client that its root stored for."""

    def __init__(
        self,
        *brought: tuple[int, int],
        roots: Mapping[int, int] | None = None,
        changes_root: bool = True,
    ) -> None:
        self.paper, self.machine, self.told = Paper(), EventMachine(), Told()
        parameters = GesReliableParameters(changes_root=changes_root)
        timers = DeadlineQueue[Any]()
        counters = {"publications_delivered": 0}
        handovers = Handovers(FINER, roots or {FINER: ROOT, ROOT: ROOT}, timers, parameters)
        self.fetches = EpochFetches(HOME, timers, parameters, self.paper)
        self.fetches.start(1)
        requests: Any = self.told
        publishes = PublishRequests(HOME, timers, parameters, self.paper, ROOT)
        self.clients = self.told.clients = RoamingClients(
            HOME,
            self.machine,
            timers,
            parameters,
            decode_attribute_table,
            counters,
            names=[f"n{number}" for number in range(10)],
            forwarding=self.paper,
            requests=requests,
            publishes=publishes,
            fetches=self.fetches,
            handovers=handovers,
            searches=StorageSearches((FINER, ROOT), handovers),
        )
        self.clients.table.start(1, {})
        resume = tuple((stream_of(storage), had) for storage, had in brought)
        self.resume = ((1, resume),) if resume else ()
        self.connect(1)
        self.clients.on_subscribe("c", Subscribe(1, EVERYTHING))

    def connect(self, session: int) -> None:
        """Connect the client with its positions."""
        self.clients.table.open_session("c", session)
        admission = self.clients.on_connect("c", Connect(False, STAY, 1, 0, self.resume))
        assert admission is not None
        assert self.clients.enter(admission)

    def subscribe_again(self) -> None:
        """Lose the client's session, reconnect, and repeat the request."""
        self.clients.on_lost("c", 1)
        self.connect(2)
        self.clients.on_subscribe("c", Subscribe(1, EVERYTHING))

    def requested_ends(self) -> list[int]:
        """Return the storages with an unanswered request to end a subscription."""
        return [storage for storage, wish, _ in self.told.requests if wish.predicate is None]

    def gives(self, storage: int, after: int, first: int, last: int) -> None:
        """Let a storage answer the last fetch with epochs `first` to `last`."""
        asked = [each for each in self.paper.sent if type(each) is Fetch and each.target == storage]
        stream, numbers = stream_of(storage), range(first, last + 1)
        origins = (OriginRun(P, numbers),)
        count = len(numbers)
        events = PublicationRun(stream, numbers, (BLOB,), bytes(count), 0, (), origins)
        self.receives_from(Events(HOME, 0, storage, 1, asked[-1].number, after, events))

    def receives_from(self, message: Any) -> None:
        """Receive an answer of a storage."""
        self.clients.message_handlers()[type(message)](message.storage, message)

    def receipt_due(self, storage: int) -> None:
        self.clients.due(RECEIPT, storage)

    def given(self) -> list[tuple[int, int, int]]:
        """Return the deliveries to the client as (storage, first epoch, last epoch)."""
        sent = [each.item for each in self.machine.effects if type(each) is Deliver]
        runs = [each.run for each in sent if type(each) is Deliveries]
        return [(each.source.broker, each.first, each.last) for each in runs]

    def answers(self, kind: type) -> list[Any]:
        """Return the messages of a kind that were sent to the client."""
        sent = [each.message for each in self.machine.effects if type(each) is Send]
        return [each for each in sent if type(each) is kind]

    def done(self, storage: int, first: int, last: int) -> None:
        """Let the client acknowledge a range."""
        self.clients.on_acknowledge("c", Acknowledge(stream_of(storage), first, last))

    def fetched_behind(self, storage: int) -> list[int]:
        return [
            each.after for each in self.paper.sent if type(each) is Fetch and each.target == storage
        ]


def handing_over() -> HomeOfTwo:
    """Start a handover; the root delivered up to 12, of which the client acknowledged 4."""
    home = HomeOfTwo((ROOT, 2))
    assert home.told.answer(ROOT, 2).had == 2
    home.gives(ROOT, 2, 3, 12)
    home.done(ROOT, 3, 4)
    assert home.told.answer(ROOT, 4, FINER).successor == FINER
    return home


def events_of_the_root_are_not_delivered_by_the_successor() -> None:
    home = handing_over()
    home.told.answer(FINER, 9)
    home.done(ROOT, 5, 12)
    assert home.fetched_behind(FINER) == [12]


def later_events_are_delivered_by_the_successor_only() -> None:
    home = handing_over()
    home.told.answer(FINER, 14)
    home.gives(ROOT, 12, 13, 16)
    assert home.given() == [(ROOT, 3, 12), (ROOT, 13, 14)]
    home.done(ROOT, 5, 14)
    home.gives(FINER, 14, 15, 16)
    assert home.given()[2:] == [(FINER, 15, 16)]


def acknowledgements_reach_the_successor_too() -> None:
    """The old storage, which another subscription still follows, answers after the handover."""
    home = HomeOfTwo((ROOT, 2))
    home.told.answer(ROOT, 2)
    home.clients.on_subscribe("c", Subscribe(2, EVERYTHING))
    home.told.answer(ROOT, 2, FINER)
    home.told.answer(FINER, None)
    home.told.answer(ROOT, 2)
    home.gives(ROOT, 2, 3, 12)
    home.done(ROOT, 3, 12)
    home.machine.now_ns = 10**9
    home.receipt_due(ROOT)
    asked = home.paper.sent[-1]
    assert (asked.target, asked.through, len(asked.done)) == (ROOT, 12, 2)
    home.told.answer(FINER, 9)
    assert home.fetched_behind(FINER) == [12]
    home.receives_from(Fetched(HOME, 0, ROOT, 1, asked.number, 12, 12))
    home.machine.now_ns = 2 * 10**9
    home.receipt_due(FINER)
    asked = home.paper.sent[-1]
    assert (asked.target, asked.through, asked.done) == (FINER, 12, ((KEY, STAY, 0),))


def a_storage_serves_until_the_last_acknowledgement() -> None:
    """The process may die before, and continue elsewhere from the root's state."""
    home = handing_over()
    home.told.answer(FINER, 9)
    assert not home.told.requests
    home.done(ROOT, 5, 12)
    ((storage, wish, _),) = home.told.requests
    assert (storage, wish) == (ROOT, SubscriptionRequest(KEY, STAY, None, successor=FINER))


def of_two_storages_with_a_subscription_the_successor_is_second() -> None:
    """A client without memory continues at the older storage, or it would miss earlier events."""
    home = HomeOfTwo()
    home.told.answer(FINER, 9)
    home.told.answer(ROOT, 4, FINER)
    assert home.fetched_behind(ROOT) == [4]
    assert home.told.answer(FINER, 9) == SubscriptionRequest(KEY, STAY, EVERYTHING, before=ROOT)


def a_broker_that_learns_of_a_successor_queries_it() -> None:
    home = HomeOfTwo((ROOT, 7))
    home.told.answer(ROOT, None, FINER)
    assert home.told.answer(FINER, 7).had == 7
    assert home.fetched_behind(FINER) == [7]


def a_returning_client_continues_in_between() -> None:
    """The subscription is on its way back, and the client's token names only the root."""
    home = HomeOfTwo((ROOT, 7))
    assert not home.told.answer(ROOT, 12).claims
    assert home.told.answer(FINER, 5, ROOT).claims
    assert home.told.answer(ROOT, 12).claims
    assert home.fetched_behind(FINER) == [7]


def a_position_at_the_successor_covers_the_previous_storage() -> None:
    home = HomeOfTwo((ROOT, 7), (FINER, 12))
    assert home.told.answer(ROOT, 12, FINER).had == 12


def an_end_reaches_all_possible_storages() -> None:
    home = handing_over()
    home.told.answer(FINER, 9)
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    ends = [(storage, wish.predicate) for storage, wish, _ in home.told.requests]
    assert ends == [(ROOT, None), (FINER, None)]


def an_end_follows_the_subscription_to_its_successor() -> None:
    """The client unsubscribes before its broker is notified of the successor."""
    home = HomeOfTwo((ROOT, 7))
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    home.told.answer(ROOT, None, FINER)
    assert home.told.answer(FINER, 9).claims
    ends = [(storage, wish.predicate) for storage, wish, _ in home.told.requests]
    assert ends == [(FINER, None), (ROOT, None)]
    assert not home.answers(Unsubscribed)
    home.told.answer(FINER, None)
    assert home.answers(Unsubscribed)


def a_late_answer_does_not_end_a_new_subscription() -> None:
    """The storage has both requests before its client ends the first (seed 82099)."""
    home = HomeOfTwo((ROOT, 7))
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    home.subscribe_again()
    home.told.answer(ROOT, 7)
    assert not home.requested_ends()
    home.told.answer(ROOT, 7)
    assert [each.state for each in home.answers(Subscribed)][-1] == "started"
    assert not home.requested_ends()


def a_late_answer_of_a_successor_does_not_end_a_new_subscription() -> None:
    home = HomeOfTwo((ROOT, 7))
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    home.told.answer(ROOT, None, FINER)
    home.subscribe_again()
    assert home.told.answer(FINER, 9).claims
    assert not home.requested_ends()
    home.told.answer(ROOT, None, FINER)
    home.told.answer(FINER, 7)
    assert [each.state for each in home.answers(Subscribed)][-1] == "started"
    assert not home.requested_ends()


def a_late_answer_does_not_end_a_subscription_that_was_lost_since() -> None:
    """The client has restarted and is at another broker when the answer arrives."""
    home = HomeOfTwo((ROOT, 7))
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    home.subscribe_again()
    home.clients.on_lost("c", 2)
    home.told.answer(ROOT, 7)
    home.told.answer(ROOT, 7)
    assert not home.told.requests


def an_end_in_the_same_session_is_answered_though_its_number_is_used_again() -> None:
    home = HomeOfTwo((ROOT, 7))
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    home.clients.on_subscribe("c", Subscribe(1, EVERYTHING))
    home.told.answer(ROOT, 7)
    assert home.answers(Unsubscribed)
    assert not home.requested_ends()


def a_second_end_is_requested_like_the_first() -> None:
    home = HomeOfTwo((ROOT, 7))
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    home.subscribe_again()
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    home.told.answer(ROOT, 7)
    assert not home.requested_ends()
    home.told.answer(ROOT, 7)
    assert home.requested_ends() == [ROOT]
    home.told.answer(ROOT, None)
    assert home.answers(Unsubscribed)


def a_lost_session_ends_nothing_at_an_unknown_successor() -> None:
    """The client has not unsubscribed; its next broker finds the subscription there."""
    home = HomeOfTwo()
    home.clients.on_lost("c", 1)
    home.told.answer(FINER, None)
    home.told.answer(ROOT, None, JOINED)
    assert not home.told.requests


def an_end_follows_the_subscription_to_an_unknown_successor() -> None:
    home = HomeOfTwo()
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    home.told.answer(FINER, None)
    home.told.answer(ROOT, None, JOINED)
    assert home.requested_ends() == [FINER, ROOT, JOINED]
    home.told.answer(FINER, None)
    home.told.answer(ROOT, None)
    assert home.answers(Unsubscribed)
    assert home.told.answer(JOINED, 9).claims
    assert home.requested_ends() == [JOINED]


def a_new_subscription_is_not_ended_at_an_unknown_successor() -> None:
    home = HomeOfTwo()
    home.clients.on_unsubscribe("c", Unsubscribe(1))
    home.subscribe_again()
    home.told.answer(FINER, None)
    home.told.answer(ROOT, None, JOINED)
    assert JOINED not in home.requested_ends()


def a_successor_names_the_previous_storage_until_that_confirms() -> None:
    """The successor also reports, to later requests, the storage at which the old one ended."""
    alone = StorageAlone()
    alone.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING, before=ROOT))
    alone.wishes(2, SubscriptionRequest(KEY, 2, EVERYTHING, had=0))
    alone.wishes(3, SubscriptionRequest(KEY, 2, EVERYTHING, claims=True, before=FINER))
    alone.wishes(4, SubscriptionRequest(KEY, 3, EVERYTHING, claims=True))
    alone.wishes(5, SubscriptionRequest(KEY, 3, EVERYTHING, successor=ROOT))
    alone.written(Append, Commit)
    told = [begun.before for each in alone.paper.take(Changed) for begun in each.answers]
    assert told == [ROOT, ROOT, FINER, FINER, None]


def a_client_at_its_successor_first_queries_the_previous_storage() -> None:
    """The client has all earlier events, but the subscription at the first storage must end."""
    home = HomeOfTwo((FINER, 12))
    home.told.answer(FINER, 12, before=ROOT)
    assert home.told.answer(ROOT, 12, FINER).claims
    assert home.told.answer(FINER, 12).before == ROOT
    assert home.told.answer(ROOT, None) == SubscriptionRequest(KEY, STAY, None, successor=FINER)
    assert home.told.answer(FINER, 12) == SubscriptionRequest(
        KEY, STAY, EVERYTHING, claims=True, before=FINER
    )
    assert home.fetched_behind(FINER) == [12]


def a_storage_that_ended_a_subscription_is_not_queried() -> None:
    """No storage has earlier events, although the client has fewer: none of them matched."""
    home = HomeOfTwo((FINER, 7))
    home.told.answer(FINER, 12, before=FINER)
    assert not home.told.requests
    assert home.fetched_behind(FINER) == [12]


def a_client_that_moved_restarts_at_no_earlier_broker() -> None:
    """The broker has not received the departure, but one of the storages has (seed 51844)."""
    alone = StorageAlone()
    alone.wishes(1, SubscriptionRequest(KEY, 2, EVERYTHING), home=9)
    alone.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING, claims=True))
    alone.written(Append, Commit)
    alone.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING, claims=True))
    alone.written(Append, Commit)
    told = [begun for each in alone.paper.take(Changed) for begun in each.answers]
    assert [begun.later_generation for begun in told] == [None, 2, 2]

    home = HomeOfTwo((ROOT, 7))
    home.told.answer(ROOT, 12)
    assert home.told.answer(FINER, None).claims
    assert home.told.answer(ROOT, None, later_generation=STAY + 3).claims
    assert not home.told.requests
    assert [each.retry for each in home.answers(Refused)] == [True]


def a_client_exceeds_the_latest_attachment_of_all_storages() -> None:
    for at_finer, at_root in ((3, 5), (5, 3), (4, 4)):
        home = HomeOfTwo((ROOT, 7))
        home.told.answer(ROOT, 12)
        assert home.told.answer(FINER, None, later_generation=STAY + at_finer).claims
        home.told.answer(ROOT, None, later_generation=STAY + at_root)
        latest = STAY + max(at_finer, at_root)
        assert home.clients.table.clients["c"].generation == latest + 1


def a_handover_that_a_storage_ignores_ends_the_session() -> None:
    """A delayed request of another broker has displaced the attachment meanwhile."""
    home = HomeOfTwo((ROOT, 2))
    home.told.answer(ROOT, 2)
    home.told.answer(ROOT, None, later_generation=STAY + 3)
    closed = [each for each in home.machine.effects if type(each) is CloseSession]
    assert [each.peer for each in closed] == ["c"]


def an_end_that_a_storage_ignores_ends_the_session() -> None:
    """The client requests the end again; its subscription would stay at the storage otherwise."""
    for starts, requests_all in ((True, False), (False, False), (True, True)):
        home = HomeOfTwo((FINER, 2))
        if starts:
            home.told.answer(FINER, 2)
        if requests_all:
            home.clients.handlers()[Detach]("c", Detach(drain=False, done_through=0))
        else:
            home.clients.on_unsubscribe("c", Unsubscribe(1))
        if not starts:
            home.told.answer(FINER, None, later_generation=STAY + 3)
        for storage in home.requested_ends():
            home.told.answer(storage, None, later_generation=STAY + 3)
        assert not home.answers(Unsubscribed)
        closed = [each.peer for each in home.machine.effects if type(each) is CloseSession]
        assert "c" in closed, f"started: {starts}, all: {requests_all}"


def a_late_report_of_a_displacement_ends_no_later_attachment() -> None:
    home = HomeOfTwo((ROOT, 2))
    home.told.answer(ROOT, 2)
    for generation, ended in ((STAY - 1, 0), (STAY, 1)):
        asked = [each for each in home.paper.sent if type(each) is Fetch][-1]
        late = (("c", generation),)
        home.receives_from(Fetched(HOME, 0, ROOT, 1, asked.number, 2, 2, displaced=late))
        closed = [each for each in home.machine.effects if type(each) is CloseSession]
        assert len(closed) == ended


def requests_of_one_broker_count_in_their_order() -> None:
    """A client that returns to its broker may have a lower generation than the one used there."""
    alone = StorageAlone()
    alone.wishes(1, SubscriptionRequest(KEY, 3, EVERYTHING), home=9)
    alone.written(Append, Commit)
    alone.wishes(2, SubscriptionRequest(KEY, 1, EVERYTHING, claims=True), home=9)
    alone.written(Append, Commit)
    alone.wishes(1, SubscriptionRequest(KEY, 3, EVERYTHING, claims=True))
    alone.written(Append, Commit)
    told = [begun for each in alone.paper.take(Changed) for begun in each.answers]
    assert [each.later_generation for each in told] == [None, None, 3]


def successors_survive_a_restart() -> None:
    """Requests for a moved subscription are answered with the successor, even after a restart."""
    alone = StorageAlone()
    for number, wish in enumerate(
        (
            SubscriptionRequest(KEY, 1, EVERYTHING),
            SubscriptionRequest(KEY, 1, EVERYTHING, successor=FINER),
            SubscriptionRequest(Key("d", 1), 1, EVERYTHING),
            SubscriptionRequest(Key("d", 1), 1, EVERYTHING, successor=FINER),
            SubscriptionRequest(Key("d", 1), 1, None, successor=FINER),
        ),
        start=1,
    ):
        alone.wishes(number, wish)
    tables: dict[str, dict[str, Any]] = {}
    while waiting := [each for each in alone.machine.effects if type(each) in (Append, Commit)]:
        for row in getattr(waiting[0], "changes", ()):
            tables.setdefault(row.table, {})[row.key] = row.value
        alone.machine.effects.remove(waiting[0])
        if waiting[0].token is not None:
            alone.disk.on_persisted(waiting[0].token)
    later = StorageAlone()
    kept = {
        table: {key: row for key, row in rows.items() if row is not None}
        for table, rows in tables.items()
    }
    later.storage.recover(kept, LogEnds())
    for each in (alone, later):
        each.paper.take(Changed)
        for number, key in ((6, KEY), (7, Key("d", 1))):
            each.wishes(number, SubscriptionRequest(key, 2, EVERYTHING, had=0), home=9)
        each.written(Append, Commit)
        told = [begun for answer in each.paper.take(Changed) for begun in answer.answers]
        assert told == [RequestAnswer(KEY, 0, FINER), RequestAnswer(Key("d", 1), None, FINER)]


def a_client_may_be_ahead_of_its_finer_storage() -> None:
    """The client has received more of the root; no client has received more than a root itself."""
    for parent, received in ((ROOT, 7), (None, 0)):
        registrations = StorageAlone(parent).storage.registrations
        for stay in (1, 2):
            registrations.take(SubscriptionRequest(KEY, stay, EVERYTHING, 7), HOME, 0)
        assert registrations.subscriptions()[KEY].received == received


def no_epoch_is_stored_that_a_crash_could_remove() -> None:
    """Another publication would get the epoch, and the subscription would lack that publication."""
    alone = StorageAlone()
    alone.receives_from(Store(7, 0, HOME, run(1, 3)))
    alone.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING))
    assert not [each for each in alone.machine.effects if type(each) is Commit]
    alone.written(Append)
    (row,) = [
        row
        for each in alone.machine.effects
        if type(each) is Commit
        for row in each.changes
        if row.table == "registered"
    ]
    assert row.value[2] == 3


def a_refused_publisher_receives_the_name_of_the_storage_or_its_number() -> None:
    """The topology of this broker may be older than the storage."""
    for storage, name in ((FINER, f"n{FINER}"), (10, "10")):
        home = HomeOfTwo()
        home.clients.table.open_session("p", 1)
        admission = home.clients.on_connect("p", Connect(True, STAY, 1, 0, ()))
        assert admission is not None
        home.clients.enter(admission)
        source = home.clients.table.clients["p"].source
        assert source is not None
        home.receives_from(LossProof(HOME, 0, storage, source, 0, 0))
        (refused,) = home.answers(Refused)
        assert f"are missing at the storage {name}: " in refused.reason


SUCCESSOR_STORIES = (
    events_of_the_root_are_not_delivered_by_the_successor,
    later_events_are_delivered_by_the_successor_only,
    acknowledgements_reach_the_successor_too,
    a_storage_serves_until_the_last_acknowledgement,
    of_two_storages_with_a_subscription_the_successor_is_second,
    a_broker_that_learns_of_a_successor_queries_it,
    a_returning_client_continues_in_between,
    a_position_at_the_successor_covers_the_previous_storage,
    an_end_reaches_all_possible_storages,
    an_end_follows_the_subscription_to_its_successor,
    a_late_answer_does_not_end_a_new_subscription,
    a_late_answer_of_a_successor_does_not_end_a_new_subscription,
    a_late_answer_does_not_end_a_subscription_that_was_lost_since,
    an_end_in_the_same_session_is_answered_though_its_number_is_used_again,
    a_second_end_is_requested_like_the_first,
    a_lost_session_ends_nothing_at_an_unknown_successor,
    an_end_follows_the_subscription_to_an_unknown_successor,
    a_new_subscription_is_not_ended_at_an_unknown_successor,
    a_successor_names_the_previous_storage_until_that_confirms,
    a_client_at_its_successor_first_queries_the_previous_storage,
    a_storage_that_ended_a_subscription_is_not_queried,
    a_client_that_moved_restarts_at_no_earlier_broker,
    a_client_exceeds_the_latest_attachment_of_all_storages,
    a_handover_that_a_storage_ignores_ends_the_session,
    an_end_that_a_storage_ignores_ends_the_session,
    a_late_report_of_a_displacement_ends_no_later_attachment,
    requests_of_one_broker_count_in_their_order,
    successors_survive_a_restart,
    a_client_may_be_ahead_of_its_finer_storage,
    no_epoch_is_stored_that_a_crash_could_remove,
    a_refused_publisher_receives_the_name_of_the_storage_or_its_number,
)


@pytest.mark.parametrize("story", SUCCESSOR_STORIES, ids=lambda story: story.__name__)
def test_story(story: Callable[[], None]) -> None:
    story()
