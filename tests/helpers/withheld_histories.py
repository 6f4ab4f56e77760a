"""Histories in which a subscription started beside a barrier, and their mutations.

The tree is the chain c, d, b, a (δ = 1): the subscriber is at c, the publisher at a. The links from
d to both brokers behind it are cut during the subscription, so that no message passes b.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from results.reference.contents import Contents
from results.reference.history import (
    ACKNOWLEDGED,
    History,
    PublicationRow,
    PublisherLog,
    SubscriptionLog,
)
from results.rules.terms import Fault, Notice, Partition
from tests.helpers.histories import MILLISECOND, delivery, wants, workload

SECOND = 1000 * MILLISECOND
PUBLICATIONS = 40
BARRIER = Partition("d", 1, 2, ("b", "a"))
ISLAND = Partition("d", 1, 1, ("b",))
CUTS = (
    Fault("near", "cut", "d-b", 0, 0, 2 * SECOND),
    Fault("far", "cut", "d-a", 0, 0, 2 * SECOND),
)


def barrier_history(
    rng: Random, run_id: str = "run-1", *, predicate: str = "true", withheld: int | None = None
) -> History:
    """Return a legal history: notices announce `withheld` publications, the rest is delivered."""
    content = Contents.from_workload(
        workload(rng.getrandbits(60), [{"at": "a", "size": "12B"}]), run_id
    )
    rows = []
    for sequence in range(1, PUBLICATIONS + 1):
        fence = sequence in (1, PUBLICATIONS)
        chosen = content.fence_set if fence else content.choice(0, 0, sequence)[0]
        rows.append(PublicationRow(0, sequence, chosen, sequence * 100 * MILLISECOND))
    log = PublisherLog("a/0", "a-pub-1", rows, ((0, 1, PUBLICATIONS, ACKNOWLEDGED),))
    last = rng.randint(5, 30) if withheld is None else withheld
    ends = sorted({*rng.sample(range(1, last), min(2, last - 1)), last})
    notices = [
        Notice("a/0", 0, first + 1, end, BARRIER, 0, end * 100 * MILLISECOND + 5)
        for first, end in zip((0, *ends), ends, strict=False)
    ]
    subscription = SubscriptionLog(
        "s", "c", predicate, (), notices=notices, issued_ns=SECOND // 20, accepted_ns=SECOND // 10
    )
    told = [
        delivery(content, log, row, row.sent_ns + MILLISECOND)
        for row in rows[last:]
        if wants(content, subscription, row)
    ]
    return History(
        content,
        [log],
        [replace(subscription, delivered=told)],
        [("c", "d"), ("d", "b"), ("b", "a")],
        faults=CUTS,
        calm=True,
        deliveries_per_pair_min=0,
    )


def changed(history: History, **values: object) -> History:
    """Return the history with another subscription log."""
    (subscription,) = history.subscriptions
    return replace(history, subscriptions=[replace(subscription, **values)])


Spoil = Callable[[History, Random], History]
SPOILED: dict[str, tuple[Spoil, set[str]]] = {}


def _spoils(*kinds: str) -> Callable[[Spoil], Spoil]:
    def register(spoil: Spoil) -> Spoil:
        SPOILED[spoil.__name__] = spoil, {*kinds}
        return spoil

    return register


@_spoils("withheld_unjustified")
def no_fault_at_all(history: History, rng: Random) -> History:
    return replace(history, faults=())


@_spoils("withheld_unjustified")
def only_one_of_the_brokers_was_cut_off(history: History, rng: Random) -> History:
    return replace(history, faults=[rng.choice(CUTS)])


@_spoils("withheld_unjustified")
def the_fault_was_over_long_before(history: History, rng: Random) -> History:
    faults = [
        replace(fault, applied_ns=-90 * SECOND, observed_ns=-90 * SECOND, healed_ns=-60 * SECOND)
        for fault in CUTS
    ]
    return replace(history, faults=faults)


@_spoils("withheld_unjustified")
def the_fault_came_after_the_notice(history: History, rng: Random) -> History:
    faults = [replace(fault, applied_ns=8 * SECOND, healed_ns=9 * SECOND) for fault in CUTS]
    return replace(history, faults=faults)


@_spoils("withheld_unjustified")
def a_delay_keeps_nobody_apart(history: History, rng: Random) -> History:
    return replace(history, faults=[replace(fault, verb="delay") for fault in CUTS])


@_spoils("withheld_unjustified")
def an_island_hides_nothing_behind_it(history: History, rng: Random) -> History:
    (subscription,) = history.subscriptions
    notices = [replace(notice, partition=ISLAND) for notice in subscription.notices]
    return changed(history, notices=notices)


@_spoils("withheld_unjustified")
def a_partition_that_is_not_on_the_way(history: History, rng: Random) -> History:
    (subscription,) = history.subscriptions
    other = Partition("b", 1, 1, ("d", "c"))
    notices = [replace(notice, partition=other) for notice in subscription.notices]
    return changed(history, notices=notices)


@_spoils("missing", "fence_missing")
def a_notice_is_forgotten(history: History, rng: Random) -> History:
    (subscription,) = history.subscriptions
    notices = [*subscription.notices]
    del notices[rng.randrange(len(notices))]
    return changed(history, notices=notices)


@_spoils("missing")
def the_last_notice_ends_too_early(history: History, rng: Random) -> History:
    (subscription,) = history.subscriptions
    *before, last = subscription.notices
    shorter = [*before, replace(last, last=last.last - 1)] if last.last > last.first else before
    return changed(history, notices=shorter)


@_spoils("missing")
def a_gap_behind_the_gate(history: History, rng: Random) -> History:
    (subscription,) = history.subscriptions
    told = [*subscription.delivered]
    del told[rng.randrange(1, len(told) - 1)]
    return changed(history, delivered=told)


@_spoils("withheld_delivered")
def one_comes_in_spite_of_its_notice(history: History, rng: Random) -> History:
    """The last withheld publication is delivered first."""
    (subscription,) = history.subscriptions
    last = subscription.notices[-1].last
    (log,) = history.publishers
    row = delivery(history.content, log, log.published[last - 1], 9 * SECOND)
    return changed(history, delivered=[row, *subscription.delivered])


@_spoils("withheld_delivered", "reordered")
def one_comes_in_spite_of_its_notice_and_late(history: History, rng: Random) -> History:
    (subscription,) = history.subscriptions
    (log,) = history.publishers
    row = delivery(history.content, log, log.published[2], 9 * SECOND)
    return changed(history, delivered=[*subscription.delivered, row])


@_spoils("withheld_delivered", "missing")
def one_of_them_comes_and_another_does_not(history: History, rng: Random) -> History:
    """The number of deliveries is correct."""
    history = one_comes_in_spite_of_its_notice(history, rng)
    return a_gap_behind_the_gate(history, rng)


@_spoils("withheld_late")
def the_gate_closes_again(history: History, rng: Random) -> History:
    (subscription,) = history.subscriptions
    told = [*subscription.delivered]
    place = rng.randrange(1, len(told) - 1)
    gone = told.pop(place)
    notice = Notice("a/0", 0, gone.sequence, gone.sequence, BARRIER, place, gone.received_ns)
    return changed(history, delivered=told, notices=[*subscription.notices, notice])


@_spoils("withheld_late", "withheld_unjustified")
def the_gate_closes_again_for_no_reason(history: History, rng: Random) -> History:
    history = the_gate_closes_again(history, rng)
    (subscription,) = history.subscriptions
    *before, late = subscription.notices
    other = replace(late, partition=Partition("d", 1, 9, ("a", "b")))
    return changed(history, notices=[*before, other])


@_spoils("withheld_late")
def what_was_delivered_is_announced(history: History, rng: Random) -> History:
    (subscription,) = history.subscriptions
    told = subscription.delivered
    row = told[rng.randrange(1, len(told) - 1)]
    notice = Notice("a/0", 0, row.sequence, row.sequence, BARRIER, len(told), row.received_ns)
    return changed(history, notices=[*subscription.notices, notice])
