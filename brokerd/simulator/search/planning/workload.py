"""Actions of clients in a plan: publish, subscribe, unsubscribe, leave, move."""

from collections.abc import Sequence
from random import Random

from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.search.moves import (
    BrokerDeparture,
    BrokerJoin,
    Contents,
    Detachment,
    Move,
    PublicationRun,
    Reattachment,
    Relocation,
    SubscriptionEnd,
    SubscriptionRequest,
)
from brokerd.simulator.search.planning.draft import Draft
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
        moves += _clients_at(random, number, name, when, heal)
    share = random.choice((0.2, 0.5, 0.9))
    for client, since in draft.clients.items():
        for _ in range(4):
            if random.random() < share and since < heal:
                since = random.randrange(since, heal)
                moves.append(Relocation(since, client, random.choice(brokers)))
    return moves


def _clients_at(random: Random, number: int, name: str, when: int, heal: int) -> list[Move]:
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
            moves += _clients_at(random, number, name, when, heal)
            continue
        leaves = random.randrange(when, heal)
        moves.append(BrokerDeparture(leaves, name))
        if clients_roam and draft.clients and when < leaves:
            client = random.choice([*draft.clients])
            comes = random.randrange(when, leaves)
            moves.append(Reattachment(comes, client, name))
            moves.append(Reattachment(random.randrange(comes, leaves), client, at))
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
