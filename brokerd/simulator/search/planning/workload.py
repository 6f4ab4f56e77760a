"""Actions of clients in a plan: publish, subscribe, leave, move, and stay away for long."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.search.client_moves import (
    Contents,
    Detachment,
    MemoryLoss,
    PublicationRun,
    Reattachment,
    Relocation,
    SubscriptionEnd,
    SubscriptionRequest,
)
from brokerd.simulator.search.move import Move
from brokerd.simulator.search.moves import BrokerDeparture, BrokerJoin, FaultInjection
from brokerd.simulator.search.planning.draft import Draft
from brokerd.simulator.world.clock import NEVER_NS
from brokerd.units import MILLISECOND_NS

MOST_PUBLICATIONS = 500
"""Limit per seed; a small client window and a slow network deliver this number in time."""

LONG_MOST_PUBLICATIONS = 4_000
"""Limit for a long seed, with publications over minutes."""

PREDICATES = (
    "true",
    "kind = 'a'",
    "kind in ('b', 'c')",
    "price < 30",
    "price >= 70 or kind = 'c'",
    "kind = 'b' and price >= 50",
    "kind = 'd'",
    "price = 10 or price = 60",
)


def publish_runs(draft: Draft, whens: list[tuple[int, str]], most: int = MOST_PUBLICATIONS) -> None:
    random = draft.random
    longest = 1 if draft.flaps else random.choice((1, 3, 8))
    count = sum(len(move.contents) for move in draft.moves if type(move) is PublicationRun)
    for when, publisher in whens:
        if count >= most:
            return
        contents = tuple(
            Contents(
                random.choice(("a", "b", "c", "d")),
                random.choice((10, 40, 60, 90)),
                random.choice((0, 3, 8)),
            )
            for _ in range(random.randrange(1, longest + 1))
        )
        count += len(contents)
        draft.moves.append(PublicationRun(when, publisher, contents))


def subscribe(draft: Draft, when: int) -> None:
    """Draw a subscription, of a new client or of a client with subscriptions."""
    random = draft.random
    subscribers = [name for name in draft.clients if name.startswith("s")]
    if subscribers and random.random() < 0.25:
        client = random.choice(subscribers)
    else:
        client = f"s{len(subscribers) + 1}-{random.choice(draft.homes)}"
    draft.clients[client] = min(when, draft.clients.get(client, when))
    draft.moves.append(SubscriptionRequest(when, client, random.choice(PREDICATES)))


def draw_ends(random: Random, draft: Draft, end: int) -> list[Move]:
    """Draw ends of subscriptions, and departures of subscribers; none in half of the plans."""
    ends: list[Move] = []
    if random.random() < 0.5 and not draft.hours:
        return ends
    share = random.choice((0.2, 0.5, 0.8))
    subscribing = [move for move in draft.moves if type(move) is SubscriptionRequest]
    subscribing.sort(key=lambda move: move.when)
    numbers: dict[str, int] = {}
    for move in subscribing:
        numbers[move.client] = number = numbers.get(move.client, 0) + 1
        if random.random() < share and move.when + 1 < end:
            ends.append(SubscriptionEnd(random.randrange(move.when + 1, end), move.client, number))
    last = {move.client: move.when for move in subscribing}
    for client, when in last.items():
        if random.random() < share / 4 and when + 1 < end:
            ends.append(Detachment(random.randrange(when + 1, end), client))
    return ends


def draw_mobility(random: Random, draft: Draft, heal: int, *, members_change: bool) -> list[Move]:
    """Draw moves of clients and, if the protocol permits them, joins and departures of brokers.

    BrokerJoin brokers have clients of their own, except some brokers that depart.
    """
    moves: list[Move] = []
    brokers = list(draft.homes)
    joining = random.randrange(3) if members_change else 0
    for number in range(1, joining + 1):
        name, when = f"n{number}", random.randrange(heal)
        moves.append(BrokerJoin(when, name, random.choice(brokers)))
        if random.random() < 0.3:
            moves.append(BrokerDeparture(random.randrange(when, heal), name))
            continue
        brokers.append(name)
        moves += clients_at(random, number, name, when, heal)
    share = random.choice((0.2, 0.5, 0.9))
    for client, since in draft.clients.items():
        for _ in range(4):
            if random.random() < share and since < heal:
                since = random.randrange(since, heal)
                moves.append(Relocation(since, client, random.choice(brokers)))
    return moves


def clients_at(random: Random, number: int, name: str, when: int, heal: int) -> list[Move]:
    """Draw a subscriber and a publisher at a joining broker."""
    predicate = random.choice(PREDICATES)
    moves: list[Move] = [
        SubscriptionRequest(random.randrange(when, heal), f"t{number}-{name}", predicate)
    ]
    for _ in range(random.randrange(1, 6)):
        contents = (Contents(random.choice("abcd"), random.choice((10, 40, 60, 90)), 3),)
        moves.append(PublicationRun(random.randrange(when, heal), f"q{number}-{name}", contents))
    return moves


def draw_newcomers(
    random: Random,
    planning: ProtocolPlanning,
    draft: Draft,
    heal: int,
    lost: Sequence[str],
    *,
    clients_roam: bool,
) -> list[Move]:
    """Draw joining brokers, if the protocol's planning has some; some depart, others have clients.

    Args:
        clients_roam: clients also attach to departing brokers, and leave in time.
    """
    moves: list[Move] = []
    newcomers = planning.newcomers(random, draft.topology, lost)
    for number, (name, (at, *further)) in enumerate(newcomers, 1):
        when = random.randrange(heal)
        moves.append(BrokerJoin(when, name, at, tuple(further)))
        if random.random() < 0.5:
            moves += clients_at(random, number, name, when, heal)
            continue
        leaves = random.randrange(when, heal)
        moves.append(BrokerDeparture(leaves, name))
        if clients_roam and draft.clients and when < leaves:
            client = random.choice([*draft.clients])
            arrives = random.randrange(when, leaves)
            moves.append(Reattachment(arrives, client, name))
            moves.append(Reattachment(random.randrange(arrives, leaves), client, at))
    return moves


def draw_reattaching(random: Random, draft: Draft, heal: int) -> list[Move]:
    """Draw, in half of the plans, reattachments of subscribers, some in quick succession."""
    moves: list[Move] = []
    if random.random() < 0.5:
        return moves
    share = random.choice((0.2, 0.5, 0.8))
    soon = 30 if draft.adversarial else 50 * MILLISECOND_NS
    for client, since in draft.clients.items():
        for _ in range(4):
            if since < heal and random.random() < share:
                last = min(heal, since + soon) if random.random() < 0.3 else heal
                since = random.randrange(since, last)
                moves.append(Reattachment(since, client, random.choice(draft.homes)))
    return moves


def draw_groups(random: Random, draft: Draft, end: int) -> list[Move]:
    """Draw, in a quarter of the plans, a client with several simultaneous requests and ends."""
    if random.random() < 0.75 and not draft.hours:
        return []
    client = f"s0-{random.choice(draft.homes)}"
    begin = random.randrange(end // 2)
    count = random.randrange(3, 7)
    moves: list[Move] = [
        SubscriptionRequest(begin, client, random.choice(PREDICATES)) for _ in range(count)
    ]
    over = random.randrange(begin + 1, end)
    if random.random() < 0.5:
        return [*moves, Detachment(over, client)]
    return [*moves, *(SubscriptionEnd(over, client, number + 1) for number in range(count))]


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
