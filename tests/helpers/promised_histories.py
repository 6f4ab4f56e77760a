"""Histories of protocols with more or fewer promises than publisher order, and their mutations.

Two publishers, and four subscriptions that received all matching publications in one order. Each
row of the table is a set of promises, a mutation, and the expected violations: none if the promises
permit the mutation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from results.reference.contents import Contents
from results.reference.history import (
    ACKNOWLEDGED,
    FENCE,
    REDELIVERED,
    DeliveryRow,
    History,
    PublicationRow,
    PublisherLog,
    SubscriptionLog,
)
from results.rules.terms import STATE_LOST, Commit, Gap, Guarantee, Promises, Retention
from tests.helpers.histories import CHAIN, MILLISECOND, delivery, wants, workload

PUBLICATIONS = 16
RELEASED = "released"
PLAIN = Promises()
TOTAL = Promises(order="total")
NONE = Promises(order="none")
GAPS = Promises(gaps=("full", RELEASED))
OLD = Promises(gaps=(RELEASED,), gap_age_ns=20 * MILLISECOND)
OF_FIRST_STREAM = replace(OLD, gap_ages_ns=(20 * MILLISECOND, None))
OF_SECOND_STREAM = replace(OLD, gap_ages_ns=(None, 20 * MILLISECOND))
SHRUNK = Promises(retentions=(Retention("a", 0, 3, RELEASED, 5 * MILLISECOND, 0),))
SHRUNK_FOR_OTHERS = Promises(
    retentions=(
        Retention("b", 0, 1, RELEASED, 0, 0),
        Retention("a", 1, 2, RELEASED, 0, 0),
        Retention("a", 0, 2, "full", 0, 0),
        Retention("a", 0, 2, RELEASED, None, 0),
        Retention("a", 0, 2, RELEASED, 0, 90 * MILLISECOND),
    )
)
GROWN = replace(
    OLD,
    gap_age_ns=2 * MILLISECOND,
    retentions=(Retention("a", 0, 1, RELEASED, 1_000 * MILLISECOND, 30 * MILLISECOND),),
)
LOST = Promises(losses_from_ns=100 * MILLISECOND)
LOST_AND_OLD = replace(OLD, losses_from_ns=0)
ABSENT = Promises(absence_gaps=(RELEASED,), absence_ns=20 * MILLISECOND)
ABSENT_OR_OLD = replace(ABSENT, gaps=(RELEASED,), gap_age_ns=20 * MILLISECOND)
AGAIN = Promises(redelivers=True)
ALL = Promises("total", (RELEASED,), True)
PREDICATES = ("true", "true", "price > 20", "price <= 90")


def promised_history(rng: Random, promises: Promises, run_id: str = "run-1") -> History:
    """Return a legal history in a total order, without gaps and without redeliveries."""
    places = [{"at": broker, "size": "12B"} for broker in "ab"]
    content = Contents.from_workload(workload(rng.getrandbits(60), places), run_id)
    logs = [
        _publisher_log(content, name, f"{publisher.broker}/{number}")
        for number, (name, publisher) in enumerate(content.publishers.items())
    ]
    order = _merge(rng, logs)
    subscriptions = []
    for number, predicate in enumerate(PREDICATES):
        broker = "cd"[number % 2]
        empty = SubscriptionLog(f"{broker}-sub-{number}/1", broker, predicate, ())
        rows = [
            delivery(content, log, row, place * MILLISECOND + 50 * MILLISECOND)
            for place, (log, row) in enumerate(order)
            if wants(content, empty, row)
        ]
        subscriptions.append(replace(empty, delivered=rows))
    return History(
        content, logs, subscriptions, CHAIN, calm=True, deliveries_per_pair_min=0,
        promises=promises,
    )  # fmt: skip


def _publisher_log(content: Contents, name: str, source: str) -> PublisherLog:
    index = content.publishers[name].index
    rows = []
    for sequence in range(1, PUBLICATIONS + 1):
        fence = sequence in (1, PUBLICATIONS)
        chosen = content.fence_set if fence else content.choice(index, 0, sequence)[0]
        rows.append(PublicationRow(0, sequence, chosen, sequence * MILLISECOND))
    return PublisherLog(source, name, rows, ((0, 1, PUBLICATIONS, ACKNOWLEDGED),))


def _merge(rng: Random, logs: Sequence[PublisherLog]) -> list[tuple[PublisherLog, PublicationRow]]:
    queues = [(log, [*log.published]) for log in logs]
    merged = []
    while waiting := [(log, rows) for log, rows in queues if rows]:
        log, rows = rng.choice(waiting)
        merged.append((log, rows.pop(0)))
    return merged


# --- What happens to them ---------------------------------------------------------------------

Change = Callable[[History, Random], History]


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        kinds: kinds of violations; each occurs in some histories, and no other kind occurs.
    """

    promises: Promises
    change: Change
    kinds: frozenset[str]


CASES: dict[str, Case] = {}


def _case(promises: Promises, *kinds: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        CASES[change.__name__] = Case(promises, change, frozenset(kinds))
        return change

    return register


def with_log(history: History, place: int, **values: object) -> History:
    """Return the history with one subscription log changed; the clock remains monotonic."""
    logs = [*history.subscriptions]
    logs[place] = replace(logs[place], **values)  # type: ignore[arg-type]
    stamped = [
        replace(row, received_ns=n * MILLISECOND + 50 * MILLISECOND)
        for n, row in enumerate(logs[place].delivered)
    ]
    logs[place] = replace(logs[place], delivered=stamped)
    return replace(history, subscriptions=logs)


def _data(rows: Sequence[DeliveryRow], source: str) -> list[int]:
    return [n for n, row in enumerate(rows) if row.source == source and row.kind != FENCE]


def _swap_neighbours(history: History, rng: Random, *, alike: bool) -> History:
    """Swap two neighbours at one subscription that others received too, of one source or two."""
    rows = [*history.subscriptions[0].delivered]
    found = [
        n
        for n in range(1, len(rows))
        if (rows[n - 1].source == rows[n].source) == alike
        and FENCE not in (rows[n - 1].kind, rows[n].kind)
    ]
    place = rng.choice(found)
    rows[place - 1 : place + 1] = rows[place], rows[place - 1]
    return with_log(history, 0, delivered=rows)


@_case(ALL)
def nothing_happens(history: History, rng: Random) -> History:
    return history


@_case(TOTAL, "order_differs")
def two_sources_are_swapped_at_one_of_two_subscriptions(history: History, rng: Random) -> History:
    return _swap_neighbours(history, rng, alike=False)


@_case(TOTAL)
def what_is_sent_again_after_a_loss_has_another_place(history: History, rng: Random) -> History:
    return _send_again(_swap_neighbours(history, rng, alike=False))


@_case(TOTAL, "order_differs")
def others_keep_their_place_after_a_loss(history: History, rng: Random) -> History:
    """No publication of the swapped pair is sent again."""
    changed = _swap_neighbours(history, rng, alike=False)
    first, other = (each.subscriptions[0].delivered for each in (history, changed))
    swapped = {row.key for row, new in zip(first, other, strict=True) if row.source != new.source}
    return _send_again(changed, *swapped)


def _send_again(history: History, *without: tuple[int, int]) -> History:
    """Let a publisher send all publications again but some."""
    log, *others = history.publishers
    keys = frozenset(row.key for row in log.published) - {*without}
    return replace(history, publishers=[replace(log, sent_again=keys), *others])


@_case(PLAIN)
def two_sources_are_swapped_where_that_is_free(history: History, rng: Random) -> History:
    return _swap_neighbours(history, rng, alike=False)


@_case(TOTAL, "order_differs", "reordered")
def one_source_is_swapped_in_a_total_order(history: History, rng: Random) -> History:
    return _swap_neighbours(history, rng, alike=True)


@_case(NONE)
def one_source_is_swapped_without_any_order(history: History, rng: Random) -> History:
    return _swap_neighbours(history, rng, alike=True)


@_case(PLAIN, "reordered")
def one_source_is_swapped_in_publisher_order(history: History, rng: Random) -> History:
    return _swap_neighbours(history, rng, alike=True)


@_case(NONE, "missing")
def one_is_lost_without_any_order(history: History, rng: Random) -> History:
    rows = [*history.subscriptions[0].delivered]
    del rows[rng.choice(_data(rows, "a/0"))]
    return with_log(history, 0, delivered=rows)


@_case(NONE, "duplicate")
def one_comes_twice_without_any_order(history: History, rng: Random) -> History:
    rows = [*history.subscriptions[0].delivered]
    return with_log(history, 0, delivered=[*rows, rows[rng.choice(_data(rows, "a/0"))]])


def _with_gap(history: History, rng: Random, reason: str, *, shorter: int = 0) -> History:
    """Replace consecutive publications by a gap, announced in place of the first."""
    rows = [*history.subscriptions[0].delivered]
    places = _data(rows, "a/0")
    at = rng.randrange(1, len(places) - 3)
    gone = [rows[place] for place in places[at : at + 3]]
    gap = Gap("a/0", 0, gone[0].sequence, gone[-1].sequence - shorter, reason, places[at])
    return with_log(
        history, 0, delivered=[row for row in rows if row not in gone], gaps=[gap]
    )  # fmt: skip


@_case(GAPS)
def a_gap_is_announced_for_a_promised_reason(history: History, rng: Random) -> History:
    return _with_gap(history, rng, RELEASED)


def _with_aged_gap(history: History, rng: Random, *, short_of_ns: int) -> History:
    """Announce a gap when its last publication has the required age, less `short_of_ns`."""
    history = _with_gap(history, rng, RELEASED)
    (gap,) = history.subscriptions[0].gaps
    told_ns = gap.last * MILLISECOND + history.promises.gap_age_ns - short_of_ns
    return with_log(history, 0, gaps=[replace(gap, received_ns=told_ns)])


@_case(OLD)
def a_gap_has_what_is_old_enough(history: History, rng: Random) -> History:
    return _with_aged_gap(history, rng, short_of_ns=0)


@_case(OLD, "gap_early")
def a_gap_has_what_is_too_young(history: History, rng: Random) -> History:
    return _with_aged_gap(history, rng, short_of_ns=1)


def _with_gap_at(history: History, rng: Random, received_ns: int) -> History:
    history = _with_gap(history, rng, RELEASED)
    (gap,) = history.subscriptions[0].gaps
    return with_log(history, 0, gaps=[replace(gap, received_ns=received_ns)])


@_case(OF_FIRST_STREAM)
def a_gap_of_a_stream_has_what_is_old_enough(history: History, rng: Random) -> History:
    return _with_aged_gap(history, rng, short_of_ns=0)


@_case(OF_FIRST_STREAM, "gap_early")
def a_gap_of_a_stream_has_what_is_too_young(history: History, rng: Random) -> History:
    return _with_aged_gap(history, rng, short_of_ns=1)


@_case(OF_SECOND_STREAM, "gap_unpromised", "missing")
def a_gap_is_of_a_stream_that_retains_everything(history: History, rng: Random) -> History:
    return _with_aged_gap(history, rng, short_of_ns=0)


@_case(SHRUNK)
def a_gap_follows_a_shorter_retention(history: History, rng: Random) -> History:
    return _with_gap_at(history, rng, 30 * MILLISECOND)


@_case(SHRUNK, "gap_early")
def a_gap_follows_a_shorter_retention_too_early(history: History, rng: Random) -> History:
    history = _with_gap(history, rng, RELEASED)
    (gap,) = history.subscriptions[0].gaps
    return with_log(history, 0, gaps=[replace(gap, received_ns=(gap.last + 5) * MILLISECOND - 1)])


@_case(SHRUNK_FOR_OTHERS, "gap_unpromised", "missing")
def a_gap_follows_a_shorter_retention_of_other_streams(history: History, rng: Random) -> History:
    return _with_gap_at(history, rng, 80 * MILLISECOND)


@_case(GROWN)
def a_gap_has_what_was_released_before_a_longer_retention(history: History, rng: Random) -> History:
    return _with_gap_at(history, rng, 80 * MILLISECOND)


@_case(replace(GROWN, gap_age_ns=31 * MILLISECOND), "gap_early")
def a_gap_has_what_is_kept_by_a_longer_retention(history: History, rng: Random) -> History:
    return _with_gap_at(history, rng, 80 * MILLISECOND)


def _with_gap_after_absence(
    history: History, rng: Random, *, short_of_ns: int | None, reason: str = RELEASED
) -> History:
    """Announce a gap of young publications; the last was sent as the subscriber returned."""
    history = _with_gap(history, rng, reason)
    (gap,) = history.subscriptions[0].gaps
    last_ns = gap.last * MILLISECOND
    until_ns = None if short_of_ns is None else last_ns - short_of_ns
    gap = replace(gap, received_ns=last_ns + MILLISECOND, absent_until_ns=until_ns)
    return with_log(history, 0, gaps=[gap])


@_case(ABSENT)
def a_gap_follows_a_long_absence(history: History, rng: Random) -> History:
    return _with_gap_after_absence(history, rng, short_of_ns=0)


@_case(ABSENT_OR_OLD)
def a_gap_after_a_long_absence_has_what_is_young(history: History, rng: Random) -> History:
    return _with_gap_after_absence(history, rng, short_of_ns=0)


@_case(ABSENT, "gap_unpromised", "missing")
def a_gap_follows_no_long_absence(history: History, rng: Random) -> History:
    return _with_gap_after_absence(history, rng, short_of_ns=None)


@_case(ABSENT_OR_OLD, "gap_early")
def a_gap_without_a_long_absence_has_what_is_young(history: History, rng: Random) -> History:
    return _with_gap_after_absence(history, rng, short_of_ns=None)


@_case(ABSENT, "gap_early")
def a_gap_has_what_was_sent_after_an_absence(history: History, rng: Random) -> History:
    return _with_gap_after_absence(history, rng, short_of_ns=1)


@_case(ABSENT_OR_OLD, "gap_early")
def a_gap_has_what_is_young_and_was_sent_after_an_absence(history: History, rng: Random) -> History:
    return _with_gap_after_absence(history, rng, short_of_ns=1)


@_case(ABSENT, "gap_unpromised", "missing")
def a_gap_for_another_reason_follows_a_long_absence(history: History, rng: Random) -> History:
    return _with_gap_after_absence(history, rng, short_of_ns=0, reason="tired")


@_case(GAPS)
def a_gap_of_any_age_follows_an_absence(history: History, rng: Random) -> History:
    return _with_gap_after_absence(history, rng, short_of_ns=MILLISECOND)


@_case(PLAIN, "gap_unpromised", "missing")
def a_gap_follows_an_absence_where_that_is_no_reason(history: History, rng: Random) -> History:
    return _with_gap_after_absence(history, rng, short_of_ns=0)


def _with_lost_gap(history: History, rng: Random, received_ns: int) -> History:
    history = _with_gap(history, rng, STATE_LOST)
    (gap,) = history.subscriptions[0].gaps
    return with_log(history, 0, gaps=[replace(gap, received_ns=received_ns)])


@_case(LOST)
def a_gap_is_of_an_accepted_loss(history: History, rng: Random) -> History:
    return _with_lost_gap(history, rng, 100 * MILLISECOND)


@_case(LOST, "gap_unpromised", "missing")
def a_gap_of_a_loss_is_announced_before_it_is_accepted(history: History, rng: Random) -> History:
    return _with_lost_gap(history, rng, 100 * MILLISECOND - 1)


def _with_lost_positions(history: History, rng: Random, received_ns: int) -> History:
    """Announce a gap of positions in a stream that belongs to no publisher."""
    history = _with_lost_gap(history, rng, received_ns)
    (gap,) = history.subscriptions[0].gaps
    positions = replace(gap, source="s1/3/0", incarnation=0, first=gap.first, last=1 << 61)
    return with_log(history, 0, gaps=[positions])


@_case(LOST)
def a_gap_of_positions_is_of_an_accepted_loss(history: History, rng: Random) -> History:
    return _with_lost_positions(history, rng, 10_000 * MILLISECOND)


@_case(LOST, "missing")
def a_gap_of_positions_is_announced_before_publications_are_sent(
    history: History, rng: Random
) -> History:
    promises = replace(history.promises, losses_from_ns=0)
    return _with_lost_positions(replace(history, promises=promises), rng, 0)


@_case(LOST, "gap_unpromised", "missing")
def a_gap_of_positions_is_announced_before_the_loss_is_accepted(
    history: History, rng: Random
) -> History:
    return _with_lost_positions(history, rng, 100 * MILLISECOND - 1)


@_case(LOST_AND_OLD)
def a_gap_of_an_accepted_loss_has_what_is_young(history: History, rng: Random) -> History:
    return _with_lost_gap(history, rng, 0)


@_case(GAPS, "gap_unpromised", "missing")
def a_gap_of_a_loss_is_announced_where_none_is_accepted(history: History, rng: Random) -> History:
    return _with_lost_gap(history, rng, 100 * MILLISECOND)


@_case(LOST, "gap_unpromised", "missing")
def a_gap_is_announced_for_another_reason_than_a_loss(history: History, rng: Random) -> History:
    return _with_gap(history, rng, RELEASED)


@_case(PLAIN, "gap_unpromised", "missing")
def a_gap_is_announced_where_none_is_promised(history: History, rng: Random) -> History:
    return _with_gap(history, rng, RELEASED)


@_case(GAPS, "gap_unpromised", "missing")
def a_gap_is_announced_for_another_reason(history: History, rng: Random) -> History:
    return _with_gap(history, rng, "tired")


@_case(GAPS, "missing")
def a_gap_ends_before_the_last_of_what_is_gone(history: History, rng: Random) -> History:
    return _with_gap(history, rng, RELEASED, shorter=1)


@_case(GAPS, "missing")
def a_gap_of_one_source_is_told_of_another(history: History, rng: Random) -> History:
    history = _with_gap(history, rng, RELEASED)
    (gap,) = history.subscriptions[0].gaps
    rows = [row for row in history.subscriptions[0].delivered if not _is_of(row, "b/1", gap)]
    return with_log(history, 0, delivered=rows, gaps=[replace(gap, source="b/1", place=0)])


def _is_of(row: DeliveryRow, source: str, gap: Gap) -> bool:
    return row.source == source and gap.first <= row.sequence <= gap.last


@_case(GAPS, "missing")
def a_gap_is_told_to_another_subscription(history: History, rng: Random) -> History:
    """Two subscriptions lost the publications, and only one received the gap."""
    history = _with_gap(history, rng, RELEASED)
    (gap,) = history.subscriptions[0].gaps
    rows = [row for row in history.subscriptions[1].delivered if not _is_of(row, "a/0", gap)]
    history = with_log(history, 1, delivered=rows, gaps=[replace(gap, place=0)])
    return with_log(history, 0, gaps=())


@_case(GAPS)
def two_gaps_overlap(history: History, rng: Random) -> History:
    history = _with_gap(history, rng, RELEASED)
    (gap,) = history.subscriptions[0].gaps
    more = replace(gap, first=gap.last, reason="full")
    return with_log(history, 0, gaps=[gap, more])


@_case(GAPS)
def a_gap_has_a_fence_in_it(history: History, rng: Random) -> History:
    rows = [*history.subscriptions[0].delivered]
    *kept, last = [n for n, row in enumerate(rows) if row.source == "b/1"]
    first = rows[kept[-1]]
    gap = Gap("b/1", 0, first.sequence, rows[last].sequence, RELEASED, len(rows))
    left = [row for n, row in enumerate(rows) if n not in (kept[-1], last)]
    return with_log(history, 0, delivered=left, gaps=[gap])


@_case(GAPS, "gap_delivered")
def one_is_delivered_after_its_gap(history: History, rng: Random) -> History:
    rows = [*history.subscriptions[0].delivered]
    place = rng.choice(_data(rows, "a/0"))
    gap = Gap("a/0", 0, rows[place].sequence, rows[place].sequence, RELEASED, place)
    return with_log(history, 0, gaps=[gap])


@_case(GAPS, "gap_delivered")
def a_gap_is_announced_of_what_was_delivered(history: History, rng: Random) -> History:
    rows = [*history.subscriptions[0].delivered]
    place = rng.choice(_data(rows, "a/0"))
    gap = Gap("a/0", 0, rows[place].sequence, rows[place].sequence, RELEASED, place + 1)
    return with_log(history, 0, gaps=[gap])


@_case(GAPS, "gap_delivered", "missing")
def one_is_delivered_in_a_gap_and_another_is_lost(history: History, rng: Random) -> History:
    """The number of deliveries is correct."""
    rows = [*history.subscriptions[0].delivered]
    places = _data(rows, "a/0")
    first, second = sorted(rng.sample(places[:-1], 2))
    gap = Gap("a/0", 0, rows[first].sequence, rows[first].sequence, RELEASED, first)
    del rows[second]
    return with_log(history, 0, delivered=rows, gaps=[gap])


def _redeliver_last(
    history: History, rng: Random, *, marked: bool = True, committed: int = 0
) -> History:
    """Redeliver the last deliveries, of which the application had committed the first few."""
    rows = [*history.subscriptions[0].delivered]
    end = rng.choice(_data(rows, "a/0")[4:])
    again = [row for row in rows[:end] if row.source == "a/0"][-3:]
    marks = [replace(row, kind=REDELIVERED) if marked else row for row in again]
    commit = Commit("a/0", 0, 1, again[0].sequence + committed - 1, end)
    commits = [commit] if commit.last else []
    return with_log(history, 0, delivered=[*rows[:end], *marks, *rows[end:]], commits=commits)


@_case(AGAIN)
def what_was_not_committed_comes_again(history: History, rng: Random) -> History:
    return _redeliver_last(history, rng)


@_case(ALL)
def what_was_not_committed_comes_again_in_a_total_order(history: History, rng: Random) -> History:
    return _redeliver_last(history, rng)


@_case(PLAIN, "duplicate")
def what_comes_again_where_that_is_not_promised(history: History, rng: Random) -> History:
    return _redeliver_last(history, rng)


@_case(AGAIN, "duplicate")
def what_comes_again_without_a_mark(history: History, rng: Random) -> History:
    return _redeliver_last(history, rng, marked=False)


@_case(AGAIN, "duplicate")
def what_was_committed_comes_again(history: History, rng: Random) -> History:
    return _redeliver_last(history, rng, committed=rng.randint(1, 3))


@_case(AGAIN)
def what_comes_again_is_committed_later(history: History, rng: Random) -> History:
    history = _redeliver_last(history, rng)
    commit = Commit("a/0", 0, 1, PUBLICATIONS, len(history.subscriptions[0].delivered))
    return with_log(history, 0, commits=[*history.subscriptions[0].commits, commit])


@_case(AGAIN, "missing")
def one_comes_again_and_another_is_lost(history: History, rng: Random) -> History:
    """The number of rows is correct."""
    history = _redeliver_last(history, rng)
    rows = [*history.subscriptions[0].delivered]
    twice = {row.sequence for row in rows if row.kind == REDELIVERED}
    once = [n for n in _data(rows, "a/0") if rows[n].sequence not in twice]
    del rows[rng.choice(once)]
    return with_log(history, 0, delivered=rows, commits=())


@_case(ALL)
def a_gap_is_replaced_by_what_was_in_it_after_a_restart(history: History, rng: Random) -> History:
    rows = [*history.subscriptions[0].delivered]
    place = rng.choice(_data(rows, "a/0"))
    gap = Gap("a/0", 0, rows[place].sequence, rows[place].sequence, RELEASED, place)
    rows[place] = replace(rows[place], kind=REDELIVERED)
    return with_log(history, 0, delivered=rows, gaps=[gap])


@_case(ALL, "gap_delivered")
def a_gap_is_replaced_without_a_mark_in_its_own_place(history: History, rng: Random) -> History:
    rows = [*history.subscriptions[0].delivered]
    place = rng.choice(_data(rows, "a/0"))
    gap = Gap("a/0", 0, rows[place].sequence, rows[place].sequence, RELEASED, place)
    return with_log(history, 0, gaps=[gap])


@_case(ALL, "gap_delivered")
def a_gap_that_was_committed_is_replaced(history: History, rng: Random) -> History:
    history = a_gap_is_replaced_by_what_was_in_it_after_a_restart(history, rng)
    (gap,) = history.subscriptions[0].gaps
    commit = Commit("a/0", 0, gap.first, gap.last, gap.place)
    return with_log(history, 0, commits=[commit])


@_case(ALL)
def what_was_not_committed_becomes_a_gap_after_a_restart(history: History, rng: Random) -> History:
    return a_gap_is_announced_of_what_was_delivered(history, rng)


@_case(ALL, "gap_delivered")
def what_was_committed_becomes_a_gap(history: History, rng: Random) -> History:
    history = a_gap_is_announced_of_what_was_delivered(history, rng)
    (gap,) = history.subscriptions[0].gaps
    return with_log(history, 0, commits=[Commit("a/0", 0, 1, gap.last, gap.place)])


# --- Anything at all --------------------------------------------------------------------------


def with_noise(history: History, rng: Random) -> History:
    """Return the history with any promises, and gaps, commits and redeliveries anywhere."""
    promises = Promises(
        rng.choice(("publisher", "total", "total", "topic", "stream", "none")),
        rng.choice(((), (RELEASED,), ("full", RELEASED))),
        rng.random() < 0.5,
        rng.choice((0, 0, 30 * MILLISECOND)),
        rng.choice(("symbol", "flag")),
        rng.choice((None, 0, 30 * MILLISECOND)),
        rng.choice(((), (), (RELEASED,))),
        20 * MILLISECOND,
    )
    order = rng.choice((*("promised",) * 5, *("publisher", "total", "topic", "stream", "none")))
    history = replace(
        history, promises=promises, guarantee=Guarantee(order=order), topic=promises.topic,
        placed=rng.random() < 0.2,
    )  # fmt: skip
    for place in range(len(history.subscriptions)):
        rows = [*history.subscriptions[place].delivered]
        for _ in range(rng.choice((0, 0, 1, 3))):
            _disturb(rows, rng)
        said = [_random_stretch(history, rows, rng) for _ in range(rng.choice((0, 1, 4)))]
        gaps = [Gap(*what, rng.choice((RELEASED, RELEASED, "full", "tired", STATE_LOST)), at,
                    rng.randrange(60) * MILLISECOND,
                    rng.choice((None, rng.randrange(60) * MILLISECOND)))
                for *what, at in said[:2]]  # fmt: skip
        commits = [Commit(*what, at) for *what, at in said[2:]]
        for gap in gaps:
            if rng.random() < 0.6:
                rows = [row for row in rows if not _is_of(row, gap.source, gap)]
        if rng.random() < 0.7:
            rows = [*_place_at_random(rows, rng)]
        history = with_log(history, place, delivered=rows, gaps=gaps, commits=commits)
    return history


def _place_at_random(rows: Sequence[DeliveryRow], rng: Random) -> Iterator[DeliveryRow]:
    """Assign most places by number; most streams are alike for all subscriptions."""
    for row in rows:
        if rng.random() < 0.95:
            stream = f"0/{row.sequence % 3 if rng.random() < 0.97 else 9}"
            shift = rng.choice((0,) * 40 + (1,))
            yield replace(row, stream=stream, position=2 * row.sequence + shift)
        else:
            yield row


def _disturb(rows: list[DeliveryRow], rng: Random) -> None:
    if len(rows) < 2:
        return
    place = rng.randrange(1, len(rows))
    match rng.randrange(4):
        case 0:
            del rows[place]
        case 1:
            rows[place - 1 : place + 1] = rows[place], rows[place - 1]
        case 2:
            rows[place] = replace(rows[place], kind=REDELIVERED)
        case 3:
            kind = rng.choice((REDELIVERED, REDELIVERED, rows[place].kind))
            rows.insert(rng.randint(place, len(rows)), replace(rows[place], kind=kind))


def _random_stretch(
    history: History, rows: Sequence[DeliveryRow], rng: Random
) -> tuple[str, int, int, int, int]:
    log = rng.choice(history.publishers)
    incarnation, first = rng.choice(log.published).key
    last = max(row.sequence for row in log.published if row.incarnation == incarnation)
    last = min(last, first + rng.randrange(6))
    return log.source, incarnation, first, last, rng.randint(0, len(rows))
