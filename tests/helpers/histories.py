"""Histories from a seed: small random histories, mutations, and whole runs.

A synthetic history obeys its guarantee until a mutation violates it; each mutation is one fault of
a broker, a client library or a log. Synthetic histories pass the same checkers as real runs.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from results.reference.contents import Contents
from results.reference.history import (
    ACKNOWLEDGED,
    FENCE,
    REJECTED,
    DeliveryRow,
    History,
    PublicationRow,
    PublisherLog,
    SubscriptionLog,
)
from results.reference.predicates import wants as wanted
from results.rules.risks import parts_of
from results.rules.terms import Fault

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND

PREDICATES = (
    "true",
    "price > 50",
    "not price > 50",
    "symbol in ('SYMBOL000', 'SYMBOL002') and price <= 80",
    "symbol prefix 'SYMBOL0' and not price = 3",
    "price >= 10 and price < 90",
    "flag = true",
    "flag = 1",
    "flag in ('1', false)",
)
BROKERS = ("a", "b", "c", "d")
CHAIN = (("a", "b"), ("b", "c"), ("b", "d"))
MACHINES = {"m1": ("a", "c"), "m2": ("b", "d")}


def workload(
    seed: int, publishers: Sequence[Mapping[str, Any]], *, sets: int = 12, **more: Any
) -> dict[str, Any]:
    """Return the content of a resolved workload file."""
    attributes = {
        "sets": sets,
        "symbol": {"choose": 4},
        "price": {"uniform": [1, 100]},
        "flag": {"choose": [True, 1, 1.0, "1", False, 0]},
    }
    return {"seed": seed, "attributes": attributes, "publishers": list(publishers), **more}


def random_history(rng: random.Random, run_id: str = "run-1", *, plain: bool = False) -> History:
    """Return a legal history of a few publishers, subscriptions and faults.

    A plain history has one incarnation per publisher, and all publications are acknowledged.
    """
    places = [rng.choice(BROKERS) for _ in range(rng.randint(1, 3))]
    content = Contents.from_workload(
        workload(rng.getrandbits(62), [{"at": broker, "size": "12B"} for broker in places]), run_id
    )
    publishers = [
        _publisher_log(rng, content, name, f"{publisher.broker}/{number}", plain)
        for number, (name, publisher) in enumerate(content.publishers.items())
    ]
    subscriptions = [
        _subscription_log(rng, content, publishers, number, rng.choice(BROKERS))
        for number in range(rng.randint(1, 4))
    ]
    return History(
        content=content,
        publishers=publishers,
        subscriptions=subscriptions,
        links=CHAIN,
        faults=random_faults(rng),
        calm=rng.random() < 0.3,
        deliveries_per_pair_min=rng.choice((0, 0, 0, 5)),
    )


def random_faults(rng: random.Random) -> list[Fault]:
    """Return a temporary fault somewhere in CHAIN, and the fault that ends it if no heal does."""
    verb, target = rng.choice(
        (
            *(("absorb", "b"), ("freeze", "b"), ("cut", "a-b"), ("absorb", "b->c"), ("delay", "b")),
            *(("partition", "a|c,d"), ("partition", "b"), ("host-loss", "m2")),
            *(("bandwidth", "b-d"), ("slow-fsync", "b"), ("disk-full", "b")),
            ("cpu-share", "b"),
        )
    )
    from_ns, to_ns = (ms * MILLISECOND for ms in sorted(rng.sample(range(40), 2)))
    parts = parts_of(verb, target, BROKERS, CHAIN, MACHINES)
    err_ns = rng.choice((0, 0, 3 * MILLISECOND))
    first = Fault("f1", verb, target, from_ns, from_ns, to_ns, parts, err_ns)
    if verb not in ("absorb", "delay", "disk-full"):
        return [first]
    end = "kill" if target == "b" else "cut"
    return [
        replace(first, healed_ns=None), Fault("f2", end, target, to_ns, to_ns, None, (target,))
    ]  # fmt: skip


def _publisher_log(
    rng: random.Random, content: Contents, name: str, source: str, plain: bool
) -> PublisherLog:
    publisher = content.publishers[name]
    incarnations = sorted(rng.sample(range(3), 1 if plain else rng.choice((1, 1, 2))))
    count = rng.randint(6, 24)
    rows = []
    numbers = dict.fromkeys(incarnations, 0)
    for place in range(count):
        incarnation = incarnations[place * len(incarnations) // count]
        numbers[incarnation] += 1
        sequence = numbers[incarnation]
        fence = place in (1, count - 2) or (place == 0 and rng.random() < 0.5)
        chosen, _ = content.choice(publisher.index, incarnation, sequence)
        attribute_set = content.fence_set if fence else chosen
        sent_ns = place * 40 * MILLISECOND // count + rng.randrange(MILLISECOND)
        rows.append(PublicationRow(incarnation, sequence, attribute_set, sent_ns))
    answers = []
    for row in rows:
        draw = 0.5 if plain else rng.random()
        if row.attribute_set != content.fence_set and draw < 0.1:
            answers.append((row.incarnation, row.sequence, row.sequence, REJECTED))
        elif row.attribute_set == content.fence_set or draw < 0.9:
            answers.append((row.incarnation, row.sequence, row.sequence, ACKNOWLEDGED))
    return PublisherLog(source, name, tuple(rows), tuple(answers))


def outcome_of(log: PublisherLog, row: PublicationRow) -> int:
    """Return ACKNOWLEDGED, REJECTED, or 0 for a publication without an answer."""
    for incarnation, first, last, outcome in log.answers:
        if incarnation == row.incarnation and first <= row.sequence <= last:
            return outcome
    return 0


def delivery(
    content: Contents, log: PublisherLog, row: PublicationRow, received_ns: int
) -> DeliveryRow:
    """Return the faultless delivery of a publication."""
    fence = row.attribute_set == content.fence_set
    digest = content.digest(content.publishers[log.name], *row.key, fence=fence)
    return DeliveryRow(
        log.source, row.incarnation, row.sequence, received_ns, digest, FENCE if fence else 0
    )


def wants(content: Contents, subscription: SubscriptionLog, row: PublicationRow) -> bool:
    """Return whether a subscription matches a publication."""
    return row.attribute_set == content.fence_set or wanted(subscription.predicate)(
        content.attributes(row.attribute_set)
    )


def _subscription_log(
    rng: random.Random, content: Contents, publishers: Sequence[PublisherLog],
    number: int, broker: str,
) -> SubscriptionLog:  # fmt: skip
    empty = SubscriptionLog(f"{broker}-sub-{number}/1", broker, rng.choice(PREDICATES), ())
    queues = []
    for log in publishers:
        # Publications before the opening fence are received from some point on, or not at all.
        opening = next(
            n for n, row in enumerate(log.published) if row.attribute_set == content.fence_set
        )
        start = rng.randint(0, opening)
        rows = [
            row
            for row in log.published[start:]
            if outcome_of(log, row) != REJECTED and wants(content, empty, row)
        ]
        queues.append([delivery(content, log, row, row.sent_ns + MILLISECOND) for row in rows])
    delivered: list[DeliveryRow] = []
    while any(queues):
        queue = rng.choice([queue for queue in queues if queue])
        delivered.append(queue.pop(0))
    return replace(empty, delivered=stamp_rows(delivered))


def stamp_rows(rows: Sequence[DeliveryRow]) -> tuple[DeliveryRow, ...]:
    """Return the rows with monotonic stamps, as a process that writes this order makes."""
    times = accumulate((row.received_ns for row in rows), max)
    return tuple(replace(row, received_ns=at_ns) for row, at_ns in zip(rows, times, strict=True))


# --- Mutations ------------------------------------------------------------------------------

Mutation = Callable[[History, random.Random], History | None]
MUTATIONS: dict[str, Mutation] = {}
LEGAL: dict[str, Mutation] = {}


def _register(table: dict[str, Mutation]) -> Callable[[Mutation], Mutation]:
    def register(mutation: Mutation) -> Mutation:
        table[mutation.__name__] = mutation
        return mutation

    return register


def _with_rows(history: History, place: int, rows: Sequence[DeliveryRow]) -> History:
    changed = list(history.subscriptions)
    changed[place] = replace(changed[place], delivered=tuple(rows))
    return replace(history, subscriptions=tuple(changed))


def _pick(
    history: History, rng: random.Random, *, at_least: int = 1
) -> tuple[int, list[DeliveryRow], list[int]] | None:
    """Pick a subscription; return its rows, and the places of one source's data between fences.

    Only acknowledged data: a publication that only this subscription received is not certain.
    """
    found = []
    for number, subscription in enumerate(history.subscriptions):
        rows = list(subscription.delivered)
        for log in history.publishers:
            fences = [r.key for r in log.published if r.attribute_set == history.content.fence_set]
            certain = {r.key for r in log.published if outcome_of(log, r) == ACKNOWLEDGED}
            places = [
                place
                for place, row in enumerate(rows)
                if row.source == log.source
                and row.kind != FENCE
                and (row.incarnation, row.sequence) in certain
                and fences[0] < (row.incarnation, row.sequence) < fences[-1]
            ]
            if len(places) >= at_least:
                found.append((number, rows, places))
    return rng.choice(found) if found else None


@_register(LEGAL)
def keep_all(history: History, rng: random.Random) -> History:
    return history


@_register(LEGAL)
def swap_two_sources(history: History, rng: random.Random) -> History | None:
    for number, subscription in enumerate(history.subscriptions):
        rows = list(subscription.delivered)
        for place in range(1, len(rows)):
            if rows[place - 1].source != rows[place].source:
                rows[place - 1 : place + 1] = rows[place], rows[place - 1]
                return _with_rows(history, number, stamp_rows(rows))
    return None


@_register(MUTATIONS)
def drop_in_the_middle(history: History, rng: random.Random) -> History | None:
    if (picked := _pick(history, rng)) is None:
        return None
    number, rows, places = picked
    del rows[rng.choice(places)]
    return _with_rows(history, number, rows)


@_register(MUTATIONS)
def drop_the_tail(history: History, rng: random.Random) -> History | None:
    number = rng.randrange(len(history.subscriptions))
    rows = list(history.subscriptions[number].delivered)
    fences = {log.source: log.published[-2].key for log in history.publishers}
    last = max(
        n for n, row in enumerate(rows) if fences[row.source] == (row.incarnation, row.sequence)
    )
    return _with_rows(history, number, rows[: rng.randint(max(0, last - 3), last)])


@_register(MUTATIONS)
def drop_the_first_after_accept(history: History, rng: random.Random) -> History | None:
    number = rng.randrange(len(history.subscriptions))
    rows = list(history.subscriptions[number].delivered)
    source = rng.choice(history.publishers).source
    places = [n for n, row in enumerate(rows) if row.source == source]
    gone = [n for n in places if rows[n].kind == FENCE][:2]
    first_data = next((n for n in places if rows[n].kind != FENCE and n > gone[0]), gone[-1])
    kept = [row for n, row in enumerate(rows) if n not in places or n > first_data]
    return _with_rows(history, number, kept)


@_register(MUTATIONS)
def duplicate_right_behind(history: History, rng: random.Random) -> History | None:
    if (picked := _pick(history, rng)) is None:
        return None
    number, rows, places = picked
    place = rng.choice(places)
    rows.insert(place + 1, rows[place])
    return _with_rows(history, number, rows)


@_register(MUTATIONS)
def duplicate_far_behind(history: History, rng: random.Random) -> History | None:
    if (picked := _pick(history, rng)) is None:
        return None
    number, rows, places = picked
    return _with_rows(history, number, [*rows, rows[places[0]]])


@_register(MUTATIONS)
def duplicates_after_resubscribing(history: History, rng: random.Random) -> History | None:
    if (picked := _pick(history, rng, at_least=2)) is None:
        return None
    number, rows, places = picked
    again = [rows[place] for place in places[-2:]]
    return _with_rows(history, number, [*rows[: places[-1] + 1], *again, *rows[places[-1] + 1 :]])


@_register(MUTATIONS)
def swap_two_of_one_source(history: History, rng: random.Random) -> History | None:
    if (picked := _pick(history, rng, at_least=2)) is None:
        return None
    number, rows, places = picked
    at = rng.randrange(len(places) - 1)
    a, b = places[at], places[at + 1]
    rows[a], rows[b] = rows[b], rows[a]
    return _with_rows(history, number, rows)


@_register(MUTATIONS)
def stutter(history: History, rng: random.Random) -> History | None:
    if (picked := _pick(history, rng, at_least=3)) is None:
        return None
    number, rows, (_, b, c, *_) = picked
    two, three = rows[b], rows[c]
    rows[b], rows[c] = three, two
    rows.insert(c + 1, three)
    return _with_rows(history, number, rows)


@_register(MUTATIONS)
def drop_one_and_duplicate_another(history: History, rng: random.Random) -> History | None:
    if (picked := _pick(history, rng, at_least=2)) is None:
        return None
    number, rows, places = picked
    rows[places[0]] = rows[places[1]]
    return _with_rows(history, number, rows)


@_register(MUTATIONS)
def phantom(history: History, rng: random.Random) -> History | None:
    number = rng.randrange(len(history.subscriptions))
    rows = list(history.subscriptions[number].delivered)
    log = rng.choice(history.publishers)
    source = rng.choice((log.source, "d/99"))
    return _with_rows(history, number, [*rows, DeliveryRow(source, 2, 9_999, 50 * MILLISECOND, 1)])


@_register(MUTATIONS)
def deliver_rejected_publication(history: History, rng: random.Random) -> History | None:
    for number, subscription in enumerate(history.subscriptions):
        for log in history.publishers:
            for row in log.published:
                if outcome_of(log, row) == REJECTED and wants(history.content, subscription, row):
                    told = delivery(history.content, log, row, row.sent_ns + 1)
                    return _with_rows(history, number, [*subscription.delivered, told])
    return None


@_register(MUTATIONS)
def show_unknown_to_one_only(history: History, rng: random.Random) -> History | None:
    """One of two matching subscriptions loses a publication that was never acknowledged."""
    for log_place, log in enumerate(history.publishers):
        for row in log.published[2:-2]:
            matching = [
                number
                for number, subscription in enumerate(history.subscriptions)
                if any((d.source, d.incarnation, d.sequence) == (log.source, *row.key)
                       for d in subscription.delivered)
            ]  # fmt: skip
            if len(matching) >= 2 and row.attribute_set != history.content.fence_set:
                answers = tuple(
                    answer
                    for answer in log.answers
                    if answer[:2] != (row.incarnation, row.sequence)
                )
                publishers = list(history.publishers)
                publishers[log_place] = replace(log, answers=answers)
                rows = [
                    d
                    for d in history.subscriptions[matching[0]].delivered
                    if (d.source, d.incarnation, d.sequence) != (log.source, *row.key)
                ]
                changed = replace(history, publishers=tuple(publishers))
                return _with_rows(changed, matching[0], rows)
    return None


@_register(MUTATIONS)
def lose_acknowledged(history: History, rng: random.Random) -> History | None:
    if (picked := _pick(history, rng)) is None:
        return None
    _, rows, places = picked
    lost = rows[rng.choice(places)]
    key = (lost.source, lost.incarnation, lost.sequence)
    answer = (lost.incarnation, lost.sequence, lost.sequence, ACKNOWLEDGED)
    publishers = [
        replace(log, answers=(*log.answers, answer)) if log.source == lost.source else log
        for log in history.publishers
    ]
    subscriptions = [
        replace(
            subscription,
            delivered=tuple(
                row
                for row in subscription.delivered
                if (row.source, row.incarnation, row.sequence) != key
            ),
        )
        for subscription in history.subscriptions
    ]
    return replace(history, publishers=tuple(publishers), subscriptions=tuple(subscriptions))


@_register(MUTATIONS)
def lose_unanswered(history: History, rng: random.Random) -> History | None:
    """A publication loses the acknowledgement and all deliveries."""
    if (picked := _pick(history, rng)) is None:
        return None
    _, rows, places = picked
    lost = rows[rng.choice(places)]
    publishers = [
        replace(log, answers=tuple(a for a in log.answers if a[:2] != lost.key))
        if log.source == lost.source
        else log
        for log in history.publishers
    ]
    (answers,) = (log.answers for log in publishers if log.source == lost.source)
    if not any(a[0] == lost.incarnation and a[1] > lost.sequence and a[3] == 1 for a in answers):
        return None  # the last of its incarnation may be left undone
    subscriptions = [
        replace(
            subscription,
            delivered=tuple(
                row
                for row in subscription.delivered
                if (row.source, row.key) != (lost.source, lost.key)
            ),
        )
        for subscription in history.subscriptions
    ]
    return replace(history, publishers=tuple(publishers), subscriptions=tuple(subscriptions))


@_register(MUTATIONS)
def deliver_mismatch(history: History, rng: random.Random) -> History | None:
    for number, subscription in enumerate(history.subscriptions):
        for log in history.publishers:
            for row in log.published:
                if (
                    not wants(history.content, subscription, row)
                    and outcome_of(log, row) != REJECTED
                ):
                    told = delivery(history.content, log, row, row.sent_ns + 1)
                    return _with_rows(history, number, [*subscription.delivered, told])
    return None


@_register(MUTATIONS)
def corrupt_payload(history: History, rng: random.Random) -> History | None:
    if (picked := _pick(history, rng)) is None:
        return None
    number, rows, places = picked
    place = rng.choice(places)
    rows[place] = replace(rows[place], digest=rows[place].digest ^ 1 << rng.randrange(32))
    return _with_rows(history, number, rows)


@_register(MUTATIONS)
def shift_matcher_boundary(history: History, rng: random.Random) -> History | None:
    """Publications that match only by equality with a bound are dropped."""
    if (picked := _pick(history, rng)) is None:
        return None
    number, rows, places = picked
    of = {(log.source, *row.key): row for log in history.publishers for row in log.published}
    prices = [
        history.content.attributes(of[r.source, r.incarnation, r.sequence].attribute_set)["price"]
        for r in (rows[place] for place in places)
    ]
    bound = rng.choice(prices)
    kept = [
        row for n, row in enumerate(rows) if n not in places or prices[places.index(n)] != bound
    ]
    return _with_rows(history, number, kept)


@_register(MUTATIONS)
def starve_one_subscriber(history: History, rng: random.Random) -> History | None:
    return _with_rows(history, rng.randrange(len(history.subscriptions)), ())


@_register(MUTATIONS)
def starve_all_subscribers(history: History, rng: random.Random) -> History | None:
    nothing = [replace(subscription, delivered=()) for subscription in history.subscriptions]
    return replace(history, subscriptions=tuple(nothing))


@_register(MUTATIONS)
def truncate_log(history: History, rng: random.Random) -> History | None:
    number = rng.randrange(len(history.subscriptions))
    subscriptions = list(history.subscriptions)
    rows = subscriptions[number].delivered
    kept = rows[: rng.randrange(len(rows))]
    subscriptions[number] = replace(subscriptions[number], delivered=kept, closed=False)
    return replace(history, subscriptions=tuple(subscriptions))


@_register(MUTATIONS)
def lose_publisher_log_line(history: History, rng: random.Random) -> History | None:
    number = rng.randrange(len(history.publishers))
    publishers = list(history.publishers)
    rows = publishers[number].published
    publishers[number] = replace(
        publishers[number], published=rows[: rng.randrange(len(rows))], closed=False
    )
    return replace(history, publishers=tuple(publishers))


@_register(MUTATIONS)
def use_records_of_an_old_run(history: History, rng: random.Random) -> History | None:
    """The reader sets the rows of the foreign file aside and reports a doubt."""
    number = rng.randrange(len(history.subscriptions))
    subscriptions = list(history.subscriptions)
    subscriptions[number] = replace(subscriptions[number], delivered=(), closed=False)
    doubts = ("a file is of run run-0",)
    return replace(history, subscriptions=tuple(subscriptions), doubts=doubts)


@_register(MUTATIONS)
def reuse_sequence_number(history: History, rng: random.Random) -> History | None:
    number = rng.randrange(len(history.publishers))
    publishers = list(history.publishers)
    log = publishers[number]
    again = replace(rng.choice(log.published), sent_ns=49 * MILLISECOND)
    publishers[number] = replace(log, published=(*log.published, again))
    return replace(history, publishers=tuple(publishers))


@_register(MUTATIONS)
def nothing_at_risk(history: History, rng: random.Random) -> History | None:
    return replace(history, faults=(), calm=False)
