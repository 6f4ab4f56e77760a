"""Parts of access brokers and storages in isolation: late, repeated and lost messages."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.identity import SourceId
from brokerd.model.losses import last_lost_position, loss_marker, marker
from brokerd.model.predicate import EVERYTHING
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.protocols.ges.units import hierarchy_of
from brokerd.protocols.ges_reliable.core import GesReliable
from brokerd.protocols.ges_reliable.definition import StoragePlace
from brokerd.protocols.ges_reliable.epochs import EpochLog, Frontier
from brokerd.protocols.ges_reliable.fetches import EpochFetches, receipt_of
from brokerd.protocols.ges_reliable.messages import (
    KINDS,
    Change,
    Changed,
    Events,
    Fetch,
    Fetched,
    Key,
    LossProof,
    RequestAnswer,
    Store,
    Stored,
    SubscriptionRequest,
)
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.state import (
    RECEIPTS,
    REGISTERED,
    Delivery,
    LogRelease,
    StoredSubscription,
)
from brokerd.protocols.ges_reliable.storage import Storage
from brokerd.protocols.interface import Append, Commit, LogEnds, Read, RecordsRead
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, EventMachine
from brokerd.protocols.parts.records import predicate_row
from brokerd.protocols.registry import parameters_on, protocols_for, read_topology
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.protocols.ges_reliable.test_stories import TOPOLOGY

P, S, HOME = SourceId(1, 0, 1), 7, 1
BLOB = encode_attributes({"kind": "a"})
KEY = Key("c", 1)
KINDS_OF_STORE = [kind for kind in KINDS if kind.type is Store]


def run(first: int, last: int) -> PublicationRun:
    count = last - first + 1
    return PublicationRun(P, range(first, last + 1), (BLOB,), bytes(count), 0, ())


def placed(first: int, last: int) -> PublicationRun:
    count = last - first + 1
    origins = (OriginRun(P, range(first, last + 1)),)
    stream = SourceId(S, 0, 0)
    return PublicationRun(stream, range(first, last + 1), (BLOB,), bytes(count), 0, (), origins)


class Paper:
    """A forwarding part that records messages."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def to(self, broker: int) -> int:
        return broker

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def take(self, kind: type) -> list[Any]:
        found = [each for each in self.sent if type(each) is kind]
        self.sent = [each for each in self.sent if type(each) is not kind]
        return found


class StorageAlone:
    """A storage with a disk that completes writes under the test's control."""

    def __init__(self, parent: int | None = None) -> None:
        self.paper, self.machine = Paper(), EventMachine()
        self.disk = Durability(self.machine)
        place = StoragePlace(parent, (), ())
        counters = dict.fromkeys(("publications_received", "publications_forwarded"), 0)
        parameters, timers = GesReliableParameters(), DeadlineQueue()
        self.storage = Storage(
            S, self.disk, timers, parameters, decode_attribute_table, counters, self.paper, place
        )
        self.storage.recover({}, LogEnds())
        self.handlers = self.storage.handlers()

    def receives_from(self, message: Any) -> None:
        self.handlers[type(message)](HOME, message)

    def written(self, *kinds: type) -> None:
        """Complete all pending writes of these kinds, and those that follow from them."""
        while waiting := [each for each in self.machine.effects if type(each) in kinds]:
            effect = waiting[0]
            self.machine.effects.remove(effect)
            if effect.token is not None:
                self.disk.on_persisted(effect.token)

    def wishes(self, number: int, *wishes: SubscriptionRequest, home: int = HOME) -> None:
        self.receives_from(Change(S, 0, home, 1, number, wishes))


class HomeAlone:
    """An access broker that follows a storage, with a subscription from the start."""

    def __init__(self) -> None:
        self.paper, self.now_ns = Paper(), 10**9
        self.handed: list[tuple[int, int, Any]] = []
        self.fetches = EpochFetches(HOME, DeadlineQueue(), GesReliableParameters(), self.paper)
        self.fetches.start(1)
        self.begins("c", 0)

    def take(self, outcomes: Iterable[Any]) -> None:
        for each in outcomes:
            if type(each) is not Delivery:
                self.paper.send(each)
                continue
            each.delivered.open += 1
            self.handed.append((each.run.first, each.run.last, each.delivered))

    def done(self, delivered: Any) -> None:
        self.take(self.fetches.done(delivered, self.now_ns))

    def due(self) -> None:
        self.take(self.fetches.due(S, self.now_ns))

    def receipt_due(self) -> None:
        self.take(self.fetches.receipt_due(S, self.now_ns))

    def begins(self, client: str, after: int) -> None:
        local = StoredSubscription(client, 1, EVERYTHING)
        local.storage, local.generation = S, 1
        self.paper.send(self.fetches.begin(local, after, self.now_ns))

    def asked(self) -> Fetch:
        return self.paper.take(Fetch)[-1]

    def events(self, asked: Fetch, after: int, first: int, last: int) -> None:
        about = S, asked.incarnation, asked.number
        self.take(self.fetches.on_events(Events(HOME, 0, *about, after, placed(first, last))))

    def fetched(self, asked: Fetch, after: int, through: int) -> None:
        about = S, asked.incarnation, asked.number
        self.take(self.fetches.on_fetched(Fetched(HOME, 0, *about, after, through), self.now_ns))

    def ranges(self) -> list[tuple[int, int]]:
        return [(first, last) for first, last, _ in self.handed]


def publications_behind_a_gap_are_not_stored() -> None:
    alone = StorageAlone()
    alone.receives_from(Store(S, 0, HOME, run(3, 4)))
    alone.written(Append)
    assert [each.through for each in alone.paper.take(Stored)] == [0]
    alone.receives_from(Store(S, 0, HOME, run(1, 2)))
    assert not alone.paper.take(Stored)
    alone.written(Append)
    assert alone.storage.log.stored(P) == 4


def a_subscription_is_durable_before_it_is_confirmed() -> None:
    alone = StorageAlone()
    alone.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING))
    alone.written(Append)
    assert not alone.paper.take(Changed)
    alone.written(Commit, Append)
    assert [each.answers for each in alone.paper.take(Changed)] == [(RequestAnswer(KEY, 0),)]


def a_finer_storage_starts_once_its_parent_delivers() -> None:
    """The parent has registered the finer storage up to the root, and reports the first epoch."""
    finer = StorageAlone(parent=5)
    finer.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING))
    finer.written(Commit, Append)
    ((parent, asked),) = [(each.target, each) for each in finer.paper.take(Change)]
    assert (parent, asked.stores) == (5, True)
    assert not finer.paper.take(Changed)
    begun = tuple(RequestAnswer(wish.key, 9) for wish in asked.requests)
    finer.storage.answer_handlers()[Changed](
        5, Changed(S, 0, 5, asked.incarnation, asked.number, begun, True)
    )
    finer.written(Commit, Append)
    assert [each.answers for each in finer.paper.take(Changed)] == [(RequestAnswer(KEY, 9),)]


def events_are_kept_until_an_end_is_durable() -> None:
    """A crash restores the subscription, and its client may need all later events (seed 41760)."""
    alone = StorageAlone()
    alone.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING))
    alone.written(Commit)
    alone.receives_from(Store(S, 0, HOME, run(1, 3)))
    alone.written(Append)
    alone.wishes(2, SubscriptionRequest(KEY, 1, None, successor=9))
    alone.receives_from(Store(S, 0, HOME, run(4, 5)))
    alone.written(Append)
    assert alone.storage.log.released == 0
    alone.written(Commit)
    assert alone.storage.log.released == 5


def events_are_requested_from_the_parent_until_an_end_is_durable() -> None:
    """Otherwise a restored subscription would lack events that the parent sent to no storage."""
    finer = StorageAlone(parent=5)
    finer.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING))
    (asked,) = finer.paper.take(Change)
    begun = (RequestAnswer(asked.requests[0].key, 9),)
    changed = Changed(S, 0, 5, asked.incarnation, asked.number, begun, True)
    finer.storage.answer_handlers()[Changed](5, changed)
    finer.written(Commit, Append)
    finer.wishes(2, SubscriptionRequest(KEY, 1, None, successor=5))
    assert not finer.paper.take(Change)
    finer.written(Commit, Append)
    ((over,),) = [each.requests for each in finer.paper.take(Change)]
    assert over.predicate is None


def an_older_change_does_not_restore_an_ended_subscription() -> None:
    alone = StorageAlone()
    alone.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING))
    alone.wishes(2, SubscriptionRequest(KEY, 1, None))
    alone.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING))
    assert not alone.storage.registrations.subscriptions()


def an_earlier_attachment_takes_nothing_from_a_later_one() -> None:
    """If a client is attached at two brokers, the later attachment counts (a24_double_attach)."""
    alone = StorageAlone()
    alone.wishes(1, SubscriptionRequest(KEY, 2, EVERYTHING), home=2)
    alone.wishes(
        1, SubscriptionRequest(KEY, 1, EVERYTHING), SubscriptionRequest(KEY, 1, None), home=HOME
    )
    known = alone.storage.registrations.subscriptions()
    assert [(key, each.home) for key, each in known.items()] == [(KEY, 2)]


def events_behind_a_gap_are_dropped() -> None:
    home = HomeAlone()
    asked = home.asked()
    home.events(asked, 5, 6, 8)
    assert home.ranges() == []
    home.events(asked, 0, 2, 5)
    home.events(asked, 5, 6, 8)
    assert home.ranges() == [(2, 5), (6, 8)]


def an_incomplete_answer_is_not_delivered() -> None:
    home = HomeAlone()
    asked = home.asked()
    home.fetched(asked, 5, 9)
    home.due()
    assert home.asked().after == 0


def an_answer_from_before_the_start_does_not_count() -> None:
    home = HomeAlone()
    early = home.asked()
    home.begins("other", 0)
    home.fetched(early, 0, 9)
    home.due()
    assert home.asked().after == 0


def repeated_events_are_not_acknowledged_early() -> None:
    home = HomeAlone()
    asked = home.asked()
    home.events(asked, 0, 5, 9)
    home.fetched(asked, 9, 9)
    home.begins("other", 2)
    home.now_ns += 10**9
    home.receipt_due()
    home.due()
    told = [
        each
        for each in home.paper.take(Fetch)
        if any(key.client == "other" for key, *_ in each.done)
    ]
    assert not told


def a_late_answer_to_an_earlier_fetch_answers_no_later_one() -> None:
    """Only the later fetch carried a receipt; its answer is lost."""
    home = HomeAlone()
    asked = home.asked()
    home.events(asked, 0, 1, 5)
    home.fetched(asked, 0, 5)
    earlier = home.asked()
    home.now_ns += 10**9
    (handed,) = [each for _, _, each in home.handed]
    home.done(handed)
    home.receipt_due()
    later = home.asked()
    assert (earlier.done, [key for key, *_ in later.done]) == ((), [KEY])
    home.fetched(earlier, 5, 5)
    assert not home.paper.take(Fetch), "the later one is still open"
    home.now_ns += 10**9
    home.due()
    again = home.asked()
    assert again.done == later.done
    home.fetched(later, 5, 5)
    assert not home.paper.take(Fetch)
    home.fetched(again, 5, 5)
    assert home.asked().done == ()


def a_message_to_the_own_broker_waits_for_the_end_of_the_event() -> None:
    """A storage that answered its own broker at once delivered to a subscription that had ended."""
    taken: list[Any] = []
    parameters, hierarchy = GesReliableParameters(), hierarchy_of(TOPOLOGY)
    core = GesReliable(0, hierarchy, parameters, decode_attribute_table)
    core._handlers[Stored] = lambda peer, each: taken.append(each)
    forwarding = core._forwarding
    first, second = (Stored(forwarding.to(0), 0, 0, P, number) for number in (1, 2))
    forwarding.send(first)
    forwarding.send(second)
    assert not taken
    core.on_event_end()
    assert taken == [first, second]


def a_publisher_roams() -> None:
    """Copies are lost on every route; publications that are not stored are sent again, in order."""
    for seed in range(100):
        assert roam(Random(seed)), f"seed {seed}"


def roam(random: Random) -> bool:
    """Return True if all events of a publisher are accepted once and in order in the end."""
    frontier, taken, published = Frontier(), list[int](), 0
    lost = False
    while published < 12 or not lost:
        published += 1
        window = [run(number, number) for number in range(frontier.reached + 1, published + 1)]
        is_missing = False
        for each in window:
            if random.random() < 0.3:
                is_missing = True
                continue
            lost = lost or is_missing
            taken += [n for part in frontier.take(each, 100) for n in part.run.sequences]
    for number in range(1, published + 1):
        taken += [n for part in frontier.take(run(number, number), 100) for n in part.run.sequences]
    return taken == [*range(1, published + 1)]


def epochs_released_before_a_crash_are_truncated_after_it() -> None:
    alone = StorageAlone()
    alone.receives_from(Store(S, 0, HOME, run(1, 3)))
    (record,) = next(each.records for each in alone.machine.effects if type(each) is Append)
    log = EpochLog(S, 0)
    read = log.recover({"released": {"": 3}, "frontiers": {"1.0.1": 3}}, LogEnds(1, 2))
    assert list(read) == [Read("storage", 1, 2)]
    found = log.on_records(RecordsRead("storage", 1, (b"".join(map(bytes, record)),)))
    assert [type(each) for each in found] == [LogRelease], "nothing would ever chop it"


def acknowledgements_durable_before_a_crash_release_after_it() -> None:
    alone, later = StorageAlone(), StorageAlone()
    alone.receives_from(Store(S, 0, HOME, run(1, 3)))
    (record,) = next(each.records for each in alone.machine.effects if type(each) is Append)
    registered = {"c/1": [1, HOME, 0, predicate_row(EVERYTHING)]}
    tables = {REGISTERED: registered, RECEIPTS: {"c/1": [3, 3]}}
    later.storage.recover(tables, LogEnds(1, 2))
    later.storage.on_records(RecordsRead("storage", 1, (b"".join(map(bytes, record)),)))
    state = later.storage.state()
    assert (state.receipts, state.released, state.retained) == (3, 3, 0)


def a_session_joins_a_loss_marker_with_later_publications() -> None:
    """A storage that accepted a loss stores both; another one proves the loss to the publisher."""
    (store,) = KINDS_OF_STORE
    assert store.joining is not None
    messages = [Store(S, 0, HOME, each) for each in (marker(P, 1, 2), run(3, 4))]
    joined = store.joining.join(messages)
    accepted, whole = StorageAlone(), StorageAlone()
    accepted.storage.recover({}, LogEnds(), incarnation=2, lineage=1_700_000_000)
    for alone in (accepted, whole):
        assert not is_refused(alone, joined)
        alone.written(Append)
    assert accepted.paper.take(Stored)[-1].through == 4
    (proof,) = whole.paper.take(LossProof)
    assert (proof.through, proof.acknowledged) == (0, 2)


def is_refused(alone: StorageAlone, message: Any) -> bool:
    try:
        alone.receives_from(message)
    except RemoteProtocolError:
        return True
    return False


def a_storage_refuses_forged_runs() -> None:
    """A loss marker of another source, and another storage's publications without origins."""
    root, finer = StorageAlone(), StorageAlone(parent=5)
    finer.handlers |= finer.storage.answer_handlers()
    for foreign in (loss_marker(P, 2, SourceId(1, 0, 2), 1, 2), loss_marker(P, 2, P, 1, 3)):
        assert is_refused(root, Store(S, 0, HOME, foreign))
    list(finer.storage.feeds.begin(0))
    assert is_refused(finer, Events(S, 0, 5, 0, 1, 0, run(1, 2), stores=True))


def a_finer_storage_announces_no_loss() -> None:
    """Its broker became a storage after the loss; its epochs are those of its parent."""
    root, finer = StorageAlone(), StorageAlone(parent=5)
    for each in (root, finer):
        each.storage.recover({}, LogEnds(), incarnation=2, lineage=1_700_000_000)
        each.written(Append)
    assert root.storage.log.durable == last_lost_position(1_700_000_000)
    assert (finer.storage.log.durable, finer.paper.take(Fetch)[-1].after) == (0, 0)


def a_stopped_subscription_keeps_no_epochs() -> None:
    """Its delivery windows may keep it beyond its end."""
    fetches = EpochFetches(HOME, DeadlineQueue(), GesReliableParameters(), Paper())
    local = StoredSubscription("c", 1, EVERYTHING, storage=S)
    fetches.begin(local, 2, 0)
    local.unacknowledged.extend((4, 7, 9))
    fetches.stop(local)
    assert not local.unacknowledged


PARTS = (
    publications_behind_a_gap_are_not_stored,
    a_subscription_is_durable_before_it_is_confirmed,
    a_finer_storage_starts_once_its_parent_delivers,
    events_are_kept_until_an_end_is_durable,
    events_are_requested_from_the_parent_until_an_end_is_durable,
    an_older_change_does_not_restore_an_ended_subscription,
    an_earlier_attachment_takes_nothing_from_a_later_one,
    events_behind_a_gap_are_dropped,
    an_incomplete_answer_is_not_delivered,
    an_answer_from_before_the_start_does_not_count,
    repeated_events_are_not_acknowledged_early,
    a_late_answer_to_an_earlier_fetch_answers_no_later_one,
    a_message_to_the_own_broker_waits_for_the_end_of_the_event,
    a_publisher_roams,
    epochs_released_before_a_crash_are_truncated_after_it,
    acknowledgements_durable_before_a_crash_release_after_it,
    a_storage_refuses_forged_runs,
    a_finer_storage_announces_no_loss,
    a_session_joins_a_loss_marker_with_later_publications,
    a_stopped_subscription_keeps_no_epochs,
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_part(part: Callable[[], None]) -> None:
    part()


@pytest.mark.parametrize("seed", range(40))
def test_a_frontier_matches_its_naive_twin(seed: int) -> None:
    """The model keeps all received sequence numbers and searches for the next."""
    random, frontier = Random(seed), Frontier()
    came: dict[int, None] = {}
    taken: list[int] = []
    for _ in range(60):
        first = random.randrange(1, 40)
        last = first + random.randrange(0, 6)
        came |= dict.fromkeys(range(first, last + 1))
        taken += [n for part in frontier.take(run(first, last), 1_000) for n in part.run.sequences]
        reached = 0
        while reached + 1 in came:
            reached += 1
        assert taken == [*range(1, reached + 1)]
        assert frontier.reached == reached
    assert all(each.run.last > frontier.reached for each in frontier.out_of_order.values())


def test_a_full_frontier_drops_the_highest_out_of_order_publications() -> None:
    frontier = Frontier()
    for first in (9, 5, 7):
        assert frontier.take(run(first, first + 1), 4) == []
    assert sorted(frontier.out_of_order) == [5, 7]
    assert [part.run.last for part in frontier.take(run(1, 4), 4)] == [4, 6, 8]


@pytest.mark.parametrize("section", ["all", "ges_reliable"])
def test_a_topology_that_lets_subscriptions_end_is_refused(section: str) -> None:
    values = {**TOPOLOGY.to_mapping(), "parameters": {section: {"client_linger_ns": 3}}}
    topology = read_topology(values, "stored.toml")
    assert "ges_reliable" not in protocols_for(topology)
    with pytest.raises(ConfigError, match=r"stored.toml: client_linger_ns = 3: .* leave it out"):
        parameters_on(topology, "ges_reliable", "stored.toml")
    assert parameters_on(topology, "ges").client_linger_ns in (3, 30 * 10**9)


def test_a_receipt_has_no_epoch_of_another_storage() -> None:
    """The epochs of two roots are not comparable."""
    fetches = EpochFetches(HOME, DeadlineQueue(), GesReliableParameters(), Paper())
    local = StoredSubscription("c", 1, EVERYTHING, storage=S, generation=3)
    fetches.begin(local, 2, 0)
    local.unacknowledged.extend((4, 7, 9))
    assert receipt_of(local, 8) == (KEY, 3, 7)
    fetches.begin(local, 1, 0)
    assert receipt_of(local, 8) == (KEY, 3, 0)


def test_a_fetch_is_answered_once_and_its_publications_are_counted() -> None:
    alone = StorageAlone()
    alone.wishes(1, SubscriptionRequest(KEY, 1, EVERYTHING))
    alone.written(Commit, Append)
    for number, (first, last) in ((1, (1, 2)), (2, (3, 5))):
        alone.receives_from(Fetch(S, 0, HOME, 1, number, first - 1, 100, first - 1, ()))
        assert alone.paper.take(Fetched) == [], "nothing is there yet"
        alone.receives_from(Store(S, 0, HOME, run(first, last)))
        alone.written(Append)
        (answer,) = alone.paper.take(Fetched)
        assert (answer.number, answer.through) == (number, last)
        assert [each.run.last for each in alone.paper.take(Events)] == [last]
        assert alone.storage._counters["publications_forwarded"] == last
        alone.receives_from(Store(S, 0, HOME, run(first, last)))
        alone.written(Append)
        assert alone.paper.take(Fetched) == alone.paper.take(Events) == []
        assert alone.paper.take(Stored)[-1].through == last
    alone.receives_from(Store(S, 0, HOME, run(6, 6)))
    alone.written(Append)
    assert alone.paper.take(Fetched) == alone.paper.take(Events) == [], "no fetch waits"
