"""Faults of a plan, and links that stay broken for ever.

Faults are drawn as far as the plan has room. The run decides at the instant of a fault, by the
elements failed at that moment, if the fault may begin.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.search.campaign import Setting
from brokerd.simulator.search.client_moves import MemoryLoss
from brokerd.simulator.search.move import Move
from brokerd.simulator.search.moves import FaultInjection, PolicyChange, RoleChange
from brokerd.simulator.search.plan import BROKEN_FOR_EVER, BrokenLink
from brokerd.simulator.search.planning.draft import Draft
from brokerd.simulator.world.client_mobility import home_of
from brokerd.simulator.world.faults import (
    BROKER_KINDS,
    COPY,
    EMPTY,
    FREE_KINDS,
    KILL_FOR_GOOD,
    LINK_KINDS,
    LOST,
    OLD_MESSAGE,
    PARTITION,
    RESTORED,
    STAGES,
    Link,
)
from brokerd.units import MILLISECOND_NS

REPEATED: Final = 0.6
"""Share of plans with repeated faults, among those that are not simple."""

SLOWED_STEP_NS: Final = 250 * MILLISECOND_NS
SLOWED_STEP_MS: Final = 150
"""The rise of a slow broker's delays, shorter than a session's limit of silence."""

RESTORES: Final = 1 / 8
"""Share of plans with a broker that is restored from an older copy of its disk."""


def draw_kinds(random: Random, flaps: bool, setting: Setting | None) -> tuple[str, ...]:
    kinds = tuple(k for k in (*BROKER_KINDS, *LINK_KINDS, *FREE_KINDS) if random.random() < 0.5)
    if flaps:
        kinds = ("suspect", "suspect", "cut", "absorb_link_then_cut", "cut_one_way")
    if setting is not None and not setting.elements_at_once:
        kinds = tuple(kind for kind in kinds if kind not in BROKER_KINDS) or ("cut", "suspect")
    return kinds or ("cut", "kill")


def draw_broken(draft: Draft) -> tuple[BrokenLink, ...]:
    random = draft.random
    broken = {}
    for _ in range(random.randrange(1, draft.tolerated + 2)):
        a, b = _draw_link(draft)
        broken[min(a, b), max(a, b)] = BrokenLink(random.choice(BROKEN_FOR_EVER), a, b)
    return tuple(broken.values())


def draw_partitions(random: Random, draft: Draft, heal: int) -> list[Move]:
    """Draw, in a third of the plans, partitions of the overlay for a while.

    No route avoids a partition, so publications from behind stay unreachable until the end.
    """
    if random.random() < 2 / 3 and not draft.hours:
        return []
    mean = 100 if draft.adversarial else (20_000 if draft.long else 800) * MILLISECOND_NS
    partitions: list[Move] = []
    for _ in range(random.randrange(1, 4) * (20 if draft.hours else 1)):
        begin = random.randrange(heal)
        until = begin + 1 + int(random.expovariate(1 / mean))
        a, b = (draft.topology.brokers[end] for end in random.choice(draft.topology.links))
        stages = (until,) if until < heal else ()
        partitions.append(FaultInjection(begin, PARTITION, (a, b), stages))
    return partitions


def draw_loss(random: Random, leaving: Sequence[str], heal: int) -> list[Move]:
    """Draw, in a third of the plans, the loss and decommission of one of some brokers."""
    if not leaving or random.random() < 2 / 3:
        return []
    begin = random.randrange(heal)
    stages = sorted(random.randrange(begin, heal) for _ in range(2))
    return [FaultInjection(begin, KILL_FOR_GOOD, (random.choice(leaving),), tuple(stages))]


def draw_lost(random: Random, planning: ProtocolPlanning, draft: Draft, heal: int) -> list[Move]:
    """Draw, in half of the plans on a clock, lost brokers, if the protocol tolerates losses."""
    if draft.adversarial or random.random() < 0.5:
        return []
    lost = planning.draw_losses(random, draft.topology)
    return [FaultInjection(random.randrange(heal), LOST, together) for together in lost]


def draw_restored(
    random: Random, planning: ProtocolPlanning, draft: Draft, heal: int, *, simple: bool
) -> list[Move]:
    """Draw, in RESTORES of the plans, brokers that start on an older or empty disk.

    Mostly one broker. Unless the plan is simple, its clients are away meanwhile, or restart without
    memory, and the broker crashes again.
    """
    if not planning.draws_restored or random.random() >= RESTORES:
        return []
    moves: list[Move] = []
    broker = random.choice(draft.topology.brokers)
    for _ in range(2):
        how = random.choice((COPY, COPY, EMPTY))
        copied, killed = sorted(random.randrange(heal) for _ in range(2))
        restored = killed + 1 + _draw_gap(random, draft)
        stages = (killed, restored) if restored < heal else (killed,)
        moves.append(FaultInjection(copied, RESTORED, (broker, how), stages))
        if not simple and restored < heal:
            moves += _disturb_restored(random, draft, broker, copied, restored, heal)
        if simple or random.random() < 0.7:
            break
        broker = random.choice((broker, *draft.homes))
    return moves


def _draw_gap(random: Random, draft: Draft) -> int:
    """Return a time between stages of a restored disk."""
    mean = 100 if draft.adversarial else (10_000 if draft.long else 400) * MILLISECOND_NS
    return int(random.expovariate(1 / mean))


def _disturb_restored(
    random: Random, draft: Draft, broker: str, copied: int, restored: int, heal: int
) -> Iterator[Move]:
    """Yield the absences and restarts of the clients of a restored broker, and its next crash.

    A client is away from before the restore, or from after it; some are away again.
    """
    here = [name for name, since in draft.clients.items() if since <= copied]
    for client in [name for name in here if home_of(name) == broker]:
        if random.random() < 0.5:
            begin = random.choice((copied, restored)) + _draw_gap(random, draft) // 2
            for _ in range(random.choice((1, 2, 3))):
                until = max(begin, restored) + 1 + _draw_gap(random, draft)
                if begin < heal:
                    away = (until,) if until < heal else ()
                    yield FaultInjection(begin, "client_away", (client,), away)
                begin = until + _draw_gap(random, draft) // 4
        if random.random() < 0.2:
            yield MemoryLoss(random.randrange(restored, heal), client, 99)
    if random.random() < 0.5:
        crashed = restored + 1 + _draw_gap(random, draft)
        started = crashed + 1 + _draw_gap(random, draft)
        if crashed < heal:
            yield FaultInjection(crashed, "kill", (broker,), (started,) if started < heal else ())


def draw_repeats(random: Random, moves: Sequence[Move], heal: int) -> list[Move]:
    """Draw the same faults again, with the same targets.

    Remains of an episode are found when another episode of the same kind follows. Plans that are
    not simple have repeats in REPEATED of the cases, so a third of all plans has some.
    """
    if random.random() >= REPEATED:
        return []
    repeats: list[Move] = []
    for move in moves:
        if type(move) is not FaultInjection or move.kind in (LOST, OLD_MESSAGE):
            continue
        if random.random() < 0.5 or len(move.stages) < STAGES[move.kind] - 1:
            continue
        last = move.stages[-1] if move.stages else move.when
        length = max(1, last - move.when)
        begin = last
        for _ in range(random.choice((1, 1, 2))):
            begin += random.randrange(1, 2 + 3 * length)
            if begin >= heal:
                break
            later = begin - move.when
            stages = tuple(at + later for at in move.stages if at + later < heal)
            repeats.append(replace(move, when=begin, stages=stages))
            begin += length
    return repeats


def draw_slowed(random: Random, brokers: Sequence[str], draft: Draft, heal: int) -> list[Move]:
    """Draw slow brokers: delays of all their links that rise, so that no session dies of silence.

    The brokers stay slow for half of the plan at least, mostly up to its end.
    """
    moves: list[Move] = []
    for broker in brokers:
        begin = random.randrange(1 + heal // 2)
        until = random.choice((heal, heal, random.randrange(begin + heal // 2, heal + 1)))
        stages = (until,) if until < heal else ()
        number = draft.topology.number_of(broker)
        steps = random.choice((2, 3, 4))
        for a, b in draft.topology.links:
            ends = draft.topology.brokers[a], draft.topology.brokers[b]
            for step in range(steps if number in (a, b) else 0):
                when, delay_ms = begin + step * SLOWED_STEP_NS, (step + 1) * SLOWED_STEP_MS
                if when < until:
                    moves.append(FaultInjection(when, "delay", (*ends, str(delay_ms)), stages))
    return moves


def draw_roles(
    random: Random, planning: ProtocolPlanning, draft: Draft, heal: int, lost: Sequence[str]
) -> list[Move]:
    """Draw changes of roles, if the protocol permits changes; lost brokers are left out."""
    roles = planning.roles(random, draft.topology)
    times = sorted(random.randrange(heal) for _ in roles)
    return [
        RoleChange(when, broker, role)
        for when, (broker, role) in zip(times, roles, strict=True)
        if broker not in lost
    ]


def draw_policies(
    random: Random, planning: ProtocolPlanning, draft: Draft, heal: int, pubends: int
) -> list[Move]:
    """Draw changes of the policies of early release of the publishers' brokers."""
    policies = planning.policies(random)
    homes = sorted({home_of(name) for name in draft.publishers})
    times = sorted(random.randrange(heal) for _ in policies)
    return [
        PolicyChange(when, random.choice(homes), random.randrange(pubends), policy)
        for when, policy in zip(times, policies, strict=True)
    ]


def fail(draft: Draft, kinds: tuple[str, ...], when: int, end: int) -> None:
    """Draw a fault of some kind, if the plan has room for one."""
    random = draft.random
    kind = random.choice(kinds)
    means = (100, 2_000, 15_000) if draft.long else (5, 100, 600)
    mean = random.choice((10, 60, 300) if draft.adversarial else means)
    stages = []
    at = when
    for _ in range(STAGES[kind] - 1):
        gap = random.expovariate(1 / mean)
        at += int(gap) + 1 if draft.adversarial else int(gap * MILLISECOND_NS)
        stages.append(at)
    draft.failing = [(until, element) for until, element in draft.failing if until > when]
    failed = [element for _, element in draft.failing]
    on: tuple[str, ...] | None
    if kind in BROKER_KINDS:
        on = _draw_broker(draft, failed, at)
        if on is not None and random.random() < 0.3:
            _slow_down_a_client_of(draft, on[0], when, at)
    elif kind in LINK_KINDS:
        on = _draw_free_link(draft, failed, at)
    elif kind in ("suspect", "delay"):
        on = _draw_link(draft)
        if kind == "delay":
            on = (*on, str(random.randrange(1, 300)))
    else:
        on = _draw_client(draft, kind, when)
    if on is not None:
        draft.moves.append(FaultInjection(when, kind, on, tuple(at for at in stages if at < end)))
    if draft.keeps_old_messages and random.random() < 0.7:
        draft.moves.append(FaultInjection(when, OLD_MESSAGE, (str(random.randrange(1_000_000)),)))


def _slow_down_a_client_of(draft: Draft, broker: str, when: int, until: int) -> None:
    """Slow down a client, so that its broker crashes with deliveries that are not yet taken."""
    clients = [name for name, since in draft.clients.items() if since <= when]
    here = [name for name in clients if name.startswith("s") and home_of(name) == broker]
    if here:
        length = 60 if draft.adversarial else 300 * MILLISECOND_NS
        before = max(0, when - draft.random.randrange(length))
        client = draft.random.choice(here)
        draft.moves.append(FaultInjection(before, "slow_client", (client, "400"), (until,)))


def _draw_broker(draft: Draft, failed: list[int | Link], until: int) -> tuple[str, ...] | None:
    brokers = draft.topology.brokers
    free = [number for number in range(len(brokers)) if number not in failed]
    if len(failed) >= draft.failures_at_once or not free:
        return None
    broker = draft.random.choice(free)
    draft.failing.append((until, broker))
    return (brokers[broker],)


def _draw_free_link(draft: Draft, failed: list[int | Link], until: int) -> tuple[str, ...] | None:
    limit = draft.failures_at_once
    if all(isinstance(element, tuple) for element in failed):
        limit = max(limit, draft.links_at_once)
    a, b = _draw_link(draft)
    number = draft.topology.number_of
    element = (min(number(a), number(b)), max(number(a), number(b)))
    if len(failed) >= limit or element in failed:
        return None
    draft.failing.append((until, element))
    return a, b


def _draw_link(draft: Draft) -> tuple[str, str]:
    """Draw a link of the overlay in most cases, otherwise a pair for a bypass."""
    random = draft.random
    links = draft.topology.links
    if random.random() < 0.3:
        start = random.randrange(len(draft.topology.brokers))
        links = tuple((start, far) for far in draft.graph.near(start))
    a, b = random.choice(links)
    if random.random() < 0.5:
        a, b = b, a
    return draft.topology.brokers[a], draft.topology.brokers[b]


def _draw_client(draft: Draft, kind: str, when: int) -> tuple[str, ...]:
    clients = [name for name, since in draft.clients.items() if since <= when]
    client = draft.random.choice(clients)
    if kind == "slow_client":
        return client, str(draft.random.choice((50, 400)))
    return client, draft.random.choice(("near", "far"))
