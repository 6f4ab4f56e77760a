"""Demanding clients: long absences, lost memory, many requests at once."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

from brokerd.simulator.search.moves import (
    Detachment,
    FaultInjection,
    MemoryLoss,
    Move,
    PublicationRun,
    Reattachment,
    SubscriptionEnd,
    SubscriptionRequest,
)
from brokerd.simulator.search.planning.draft import Draft
from brokerd.simulator.search.planning.workload import PREDICATES
from brokerd.simulator.world.clock import NEVER_NS
from brokerd.units import MILLISECOND_NS


def draw_groups(random: Random, draft: Draft, end: int) -> list[Move]:
    """Draw, in a quarter of the plans, a client with several simultaneous requests and ends."""
    if random.random() < 0.75 and not draft.hours:
        return []
    client = f"s0-{random.choice(draft.homes)}"
    begin = random.randrange(end // 2)
    count = random.randrange(3, 7)
    asked: list[Move] = [
        SubscriptionRequest(begin, client, random.choice(PREDICATES)) for _ in range(count)
    ]
    over = random.randrange(begin + 1, end)
    if random.random() < 0.5:
        return [*asked, Detachment(over, client)]
    return [*asked, *(SubscriptionEnd(over, client, number + 1) for number in range(count))]


def draw_lost_memories(random: Random, draft: Draft, heal: int, linger_ns: int) -> list[Move]:
    """Draw, in a third of the plans, restarts of clients without memory.

    Subscriptions without a repeated request end after `linger_ns`; if brokers wait for ever,
    clients repeat all requests.
    """
    if random.random() < 2 / 3 and not draft.hours:
        return []
    losses: list[Move] = []
    for client, since in draft.clients.items():
        while since < heal and random.random() < 0.4:
            since = random.randrange(since, heal)
            all_of_it = linger_ns == NEVER_NS or random.random() < 0.6
            losses.append(MemoryLoss(since, client, 99 if all_of_it else random.randrange(3)))
    return losses


def draw_absences(random: Random, draft: Draft, heal: int, linger_ns: int) -> list[Move]:
    """Draw absences of clients, shorter or longer than the linger, in a third of the plans.

    Without a clock the length has no meaning.
    """
    if random.random() < 2 / 3 and not draft.hours:
        return []
    waits_ns = 300 * MILLISECOND_NS if linger_ns == NEVER_NS else linger_ns
    absences: list[Move] = []
    for client, since in draft.clients.items():
        if since < heal and random.random() < 0.4:
            begin = random.randrange(since, heal)
            length = int(waits_ns * (0.3 + 1.7 * random.random()))
            until = begin + (random.randrange(1, 400) if draft.adversarial else length)
            stages = (until,) if until < heal else ()
            absences.append(FaultInjection(begin, "client_away", (client,), stages))
    return absences


def draw_consumers(
    random: Random, draft: Draft, heal: int
) -> tuple[list[Move], tuple[tuple[str, int], ...]]:
    """Draw, in half of the plans, consumers that crash and reattach.

    Returns:
        The moves, and the number of publications before a commit by consumer.
    """
    if random.random() < 0.5:
        return [], ()
    moves: list[Move] = []
    consumers: list[tuple[str, int]] = []
    share = random.choice((0.3, 0.7))
    home = random.choice(draft.homes)
    for number in range(1, random.randrange(2, 5)):
        if random.random() < 0.4:
            home = random.choice(draft.homes)
        client = f"c{number}-{home}"
        uncommitted = random.choice((1, 1, 3, 10))
        # On a clock an answer takes time, and a consumer of many publications exceeds the time
        # limits.
        wants = (
            PREDICATES
            if draft.adversarial or uncommitted > 3
            else ("kind = 'b' and price >= 50", "price = 60 and kind = 'a'")
        )
        consumers.append((client, uncommitted))
        since = random.randrange(heal // 2)
        predicate = (
            "true" if wants is PREDICATES and random.random() < 0.5 else random.choice(wants)
        )
        moves.append(SubscriptionRequest(since, client, predicate))
        for _ in range(6):
            if since + 1 < heal and random.random() < share:
                since = random.randrange(since + 1, heal)
                if random.random() < 0.3:
                    moves.append(Reattachment(since, client, random.choice(draft.homes)))
                else:
                    moves.append(MemoryLoss(since, client, 99))
    return moves, tuple(consumers)


def draw_short_absences(
    random: Random, draft: Draft, consumers: Iterable[tuple[str, int]], heal: int
) -> list[Move]:
    """Draw, in half of the plans, repeated short breaks of the sessions of consumers.

    Some consumers have requested a commit, and receive no answer.
    """
    if random.random() < 0.5:
        return []
    unit = 1 if draft.adversarial else MILLISECOND_NS
    absences: list[Move] = []
    for client, _ in consumers:
        for _ in range(random.choice((5, 20))):
            begin = random.randrange(heal)
            until = begin + unit * random.randrange(1, 30)
            stages = (until,) if until < heal else ()
            absences.append(FaultInjection(begin, "client_away", (client,), stages))
    return absences


def enlarge(random: Random, moves: Iterable[Move], sizes: tuple[int, ...]) -> list[Move]:
    """Return the moves with other payload sizes."""
    return [
        replace(
            move,
            contents=tuple(
                replace(item, payload_bytes=random.choice(sizes)) for item in move.contents
            ),
        )
        if type(move) is PublicationRun
        else move
        for move in moves
    ]
