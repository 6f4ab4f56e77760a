"""Compound faults: moves that meet at one broker, or between the same two units.

Other draws choose the target of each move independently, so some pairs of moves almost never meet.
A broker with an accepted loss is lost, decommissioned, or departs; a joined broker fails, is lost,
and departs thereafter; a broker fails before its loss; a broker joins beside a departure; the
clients of a decommissioned broker are absent, and its publishers have left; all links between two
units fail while other routes are slow.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from random import Random
from typing import Final

from brokerd.overlay.topology import TREE
from brokerd.protocols.definition import ProtocolDefinition
from brokerd.simulator.checks.marks import units_between
from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.search.client_moves import (
    Contents,
    Detachment,
    MemoryLoss,
    PublicationRun,
    SubscriptionEnd,
    SubscriptionRequest,
)
from brokerd.simulator.search.move import Move
from brokerd.simulator.search.moves import BrokerDeparture, BrokerJoin, FaultInjection
from brokerd.simulator.search.planning.draft import Draft
from brokerd.simulator.search.planning.workload import PREDICATES, clients_at
from brokerd.simulator.world.client_mobility import home_of
from brokerd.simulator.world.faults import (
    BROKER_KINDS,
    COPY,
    EMPTY,
    KILL_FOR_GOOD,
    LINK_KINDS,
    LOST,
    PARTITION,
    RESTORED,
    STAGES,
)
from brokerd.units import MILLISECOND_NS

COMPOUNDS: Final = 0.4
"""Share of plans with compound faults, among those that are not simple."""

BEFORE_COMPOUNDS: Final = 200
"""The last seed whose history is older than compound faults."""

_SLOW_MS: Final = 150
"""The delay of other routes while links between two units are down."""


def draw_compounds(
    seed: int,
    definition: ProtocolDefinition,
    planning: ProtocolPlanning,
    draft: Draft,
    heal: int,
    moves: Sequence[Move],
    leaving: Sequence[str],
) -> list[Move]:
    """Draw compound faults in COMPOUNDS of the plans.

    Args:
        moves: the moves drawn so far.
        leaving: brokers without publishers that can be decommissioned.
    """
    random = Random(f"compounds {seed}")
    if seed <= BEFORE_COMPOUNDS or random.random() >= COMPOUNDS:
        return []
    found = [*_Compounds(random, definition, planning, draft, heal).draw(moves, leaving)]
    joins = {move.broker: move for move in (*moves, *found) if type(move) is BrokerJoin}
    departing = _Compounds(Random(f"departing {seed}"), definition, planning, draft, heal)
    for move in (*moves, *found):
        if type(move) is BrokerDeparture and move.broker in joins:
            found += departing.draw_departing(joins[move.broker], move.when)
    beside = _Compounds(Random(f"beside losses {seed}"), definition, planning, draft, heal)
    found += beside.draw_around_losses([*moves, *found])
    return found


class _Compounds:
    """The draws of one plan."""

    def __init__(
        self,
        random: Random,
        definition: ProtocolDefinition,
        planning: ProtocolPlanning,
        draft: Draft,
        heal: int,
    ) -> None:
        self._random = random
        self._definition = definition
        self._planning = planning
        self._draft = draft
        self._heal = heal

    def draw(self, moves: Sequence[Move], leaving: Sequence[str]) -> Iterator[Move]:
        """Yield all compound faults of the plan."""
        lost = [move for move in moves if type(move) is FaultInjection and move.kind == LOST]
        if self._definition.promises.members_may_change:
            joins = [move for move in moves if type(move) is BrokerJoin]
            departs = {move.broker: move.when for move in moves if type(move) is BrokerDeparture}
            more = [*self._draw_joins(lost)]
            yield from more
            joins += [move for move in more if type(move) is BrokerJoin]
            departs |= {move.broker: move.when for move in more if type(move) is BrokerDeparture}
            for join in joins:
                until = departs.get(join.broker, self._heal)
                yield from self._fail_joined(join, until)
        for loss in lost:
            yield from self._precede(loss.on[0], loss.when)
        if leaving:
            yield from self._draw_decommissions(leaving)
        if self._planning.draws_restored and self._random.random() < 0.5:
            yield from self._restore_again()
        yield from self._cut_parallel_links()

    # ------------------------------------------------------------ joins

    def _draw_joins(self, lost: Sequence[FaultInjection]) -> Iterator[Move]:
        """Yield the join and departure of a broker, and a join behind it or beside a loss."""
        random, heal = self._random, self._heal
        gone = [name for loss in lost for name in loss.on]
        staying = [name for name in self._draft.topology.brokers if name not in gone]
        if not staying:
            return
        is_tree = self._definition.kind == TREE
        first, second = ("n8", "n9") if is_tree else ("m8", "m9")
        when, leaves = sorted(random.randrange(heal) for _ in range(2))
        at = random.choice(staying)
        yield BrokerJoin(when, first, at)
        if random.random() < 0.6:
            yield BrokerDeparture(leaves, first)
            if random.random() < 0.6:
                yield from self._visit(first, when, leaves)
        else:
            yield from clients_at(random, 8, first, when, heal)
        if random.random() < 0.5:
            return
        beside = random.choice((leaves, *(loss.when for loss in lost)))
        begin = min(heal - 1, max(when, beside + random.choice((-1, 1)) * self._draw_gap()))
        near: tuple[str, ...] = (at,) if is_tree else (at, *random.sample([*gone, first], 1))
        if is_tree and random.random() < 0.5:
            near = (first,)
        yield BrokerJoin(begin, second, near[0], near[1:])
        yield from clients_at(random, 9, second, begin, heal)

    def _visit(self, broker: str, when: int, leaves: int) -> Iterator[Move]:
        """Yield a client of a departing broker that detaches in time."""
        random, client = self._random, f"t{broker[1:]}-{broker}"
        since = random.randrange(when, leaves + 1)
        detaches = random.randrange(since, leaves + 1)
        yield SubscriptionRequest(since, client, random.choice(PREDICATES))
        if random.random() < 0.3:
            yield FaultInjection(since, "slow_client", (client, "50"), (detaches,))
        if random.random() < 0.5:
            yield SubscriptionEnd(detaches, client, 1)
        yield Detachment(detaches, client)

    def draw_departing(self, join: BrokerJoin, leaves: int) -> Iterator[Move]:
        """Yield clients of a departing broker that detach in time, and faults while they do."""
        random, broker = self._random, join.broker
        if join.when >= leaves:
            return
        subscriber, publisher = f"t7-{broker}", f"q7-{broker}"
        detaches = random.randrange(join.when + 1, leaves + 1)
        if random.random() < 0.6:
            for _ in range(random.randrange(1, 4)):
                contents = (Contents(random.choice("abcd"), random.choice((10, 40, 60, 90)), 3),)
                yield PublicationRun(random.randrange(join.when, detaches), publisher, contents)
            yield from (Detachment(when, publisher) for when in (detaches, leaves))
        since = random.randrange(join.when, detaches)
        yield SubscriptionRequest(since, subscriber, random.choice(PREDICATES))
        yield Detachment(detaches, subscriber)
        kinds = ["suspect", "client_drop", "slow_client", *BROKER_KINDS, *LINK_KINDS]
        if self._definition.promises.exactly_once:
            kinds += ["client_away", "forget", PARTITION]
        for kind in random.sample(kinds, 3):
            begin = random.randrange(since, leaves)
            if kind == "forget":
                yield MemoryLoss(begin, subscriber, 97)
                continue
            on: tuple[str, ...] = (broker,)
            if kind in (*LINK_KINDS, "suspect", PARTITION):
                on = random.choice([(join.at, broker), (broker, join.at)])
            elif kind.startswith("client"):
                on = (subscriber, "near") if kind == "client_drop" else (subscriber,)
            elif kind == "slow_client":
                on = (subscriber, "50")
            yield FaultInjection(begin, kind, on, self._draw_stages(begin, STAGES[kind] - 1))

    def _fail_joined(self, join: BrokerJoin, until: int) -> Iterator[Move]:
        """Yield faults of a joined broker and its link before its departure."""
        random, begin = self._random, join.when
        kinds = [*BROKER_KINDS, *LINK_KINDS, "suspect", "delay", "client_drop"]
        if self._planning.draws_restored:
            kinds += [RESTORED] * 3
        if self._definition.promises.exactly_once:
            kinds += ["client_away", PARTITION]
        for _ in range(random.randrange(3)):
            if begin >= until:
                return
            begin = random.randrange(begin, until)
            kind = random.choice(kinds)
            on: tuple[str, ...] = (join.broker,)
            client = f"t{join.broker[1:]}-{join.broker}"
            if kind in (*LINK_KINDS, "suspect", "delay", PARTITION):
                on = (join.at, join.broker) if random.random() < 0.5 else (join.broker, join.at)
                on = (*on, "200") if kind == "delay" else on
            elif kind == RESTORED:
                on = (join.broker, random.choice((COPY, EMPTY)))
            elif kind == "client_away":
                on = (client,)
            elif kind == "client_drop":
                on = (client, random.choice(("near", "far")))
            stages = self._draw_stages(begin, STAGES[kind] - 1)
            yield FaultInjection(begin, kind, on, stages)
            begin = max((begin, *stages)) + 1

    # ------------------------------------------------------------ losses

    def _precede(self, broker: str, when: int) -> Iterator[Move]:
        """Yield the moves of a broker and its clients that precede its loss."""
        random = self._random
        early = 2 * when // 3
        if self._planning.draws_restored and early > 3 and random.random() < 0.85:
            copied, killed, restored = sorted(random.sample(range(early), 3))
            how = random.choice((COPY, EMPTY))
            yield FaultInjection(copied, RESTORED, (broker, how), (killed, restored))
        here = [name for name, since in self._draft.clients.items() if since < when]
        for client in here if self._definition.promises.exactly_once else ():
            if home_of(client) != broker or client in self._draft.publishers:
                continue
            if random.random() < 0.6:
                begin = max(0, when - self._draw_gap())
                stages = self._draw_stages(when, 1)
                yield FaultInjection(begin, "client_away", (client,), stages)
            if random.random() < 0.2:
                yield MemoryLoss(max(0, when - self._draw_gap()), client, 99)

    def draw_around_losses(self, moves: Sequence[Move]) -> Iterator[Move]:
        """Yield faults of brokers before their loss, and losses of joined brokers.

        The publishers of decommissioned brokers leave before, if others store their publications.
        """
        random = self._random
        faults = [move for move in moves if type(move) is FaultInjection]
        lost = [move for move in faults if move.kind == LOST]
        for loss in lost:
            for broker in loss.on:
                yield from self._fail_before(broker, loss.when)
        members_change = self._definition.promises.members_may_change
        for join in moves if lost and members_change else ():
            if type(join) is BrokerJoin and join.when < self._heal - 1 and random.random() < 0.5:
                when = random.randrange(join.when + 1, self._heal)
                yield FaultInjection(when, LOST, (join.broker,))
                if random.random() < 0.6:
                    yield BrokerDeparture(random.randrange(when, self._heal), join.broker)
        if self._planning.stores_elsewhere:
            for place, move in enumerate(faults):
                if move.kind == KILL_FOR_GOOD and move.when > 1:
                    yield from self._publish_before(f"q{70 + place}-{move.on[0]}", move.when)

    def _fail_before(self, broker: str, when: int) -> Iterator[Move]:
        """Yield faults of a broker that end before its loss."""
        for kind in self._random.sample(BROKER_KINDS, 3):
            if when >= STAGES[kind] and self._random.random() < 0.7:
                begin, *stages = sorted(self._random.sample(range(when), STAGES[kind]))
                yield FaultInjection(begin, kind, (broker,), tuple(stages))

    def _publish_before(self, client: str, when: int) -> Iterator[Move]:
        """Yield publications of a client that leaves its broker before an instant."""
        random = self._random
        detaches = random.randrange(1, when)
        for _ in range(random.randrange(1, 4)):
            contents = (Contents(random.choice("abcd"), random.choice((10, 40, 60, 90)), 3),)
            yield PublicationRun(random.randrange(detaches), client, contents)
        yield from (Detachment(at, client) for at in (detaches, when - 1))

    def _restore_again(self) -> Iterator[Move]:
        """Yield crashes of a restored broker before its clients return, and further restores.

        The next restored broker is mostly the same one or a neighbour.
        """
        random, draft, heal = self._random, self._draft, self._heal
        broker, begin = random.choice(draft.homes), random.randrange(1 + heal // 2)
        for _ in range(random.choice((1, 2, 2, 3))):
            killed, restored = self._draw_times(begin, 2)
            stages = tuple(at for at in (killed, restored) if at < heal)
            how = random.choice((COPY, EMPTY))
            yield FaultInjection(begin, RESTORED, (broker, how), stages)
            crashed, started, returns = self._draw_times(restored, 3)
            for client, since in draft.clients.items():
                if home_of(client) != broker or since > begin or random.random() < 0.3:
                    continue
                away = (returns,) if returns < heal else ()
                yield FaultInjection(begin, "client_away", (client,), away)
            if crashed < heal and random.random() < 0.7:
                yield FaultInjection(
                    crashed, "kill", (broker,), (started,) if started < heal else ()
                )
            begin = random.choice((crashed, returns)) + self._draw_gap() // 4
            if begin >= heal:
                return
            number = draft.topology.number_of(broker)
            near = [draft.topology.brokers[each] for each in draft.graph.near(number)]
            broker = random.choice((broker, broker, *near))

    def _draw_decommissions(self, leaving: Sequence[str]) -> Iterator[Move]:
        """Yield the decommissions of one or two brokers, with absent clients."""
        random, heal = self._random, self._heal
        chosen = random.sample(leaving, min(len(leaving), random.choice((1, 1, 2))))
        hosts = self._definition.homes(self._draft.topology)
        for place, broker in enumerate(chosen):
            when = random.randrange(heal // 3, heal)
            if broker in hosts and random.random() < 0.7:
                client = f"s{80 + place}-{broker}"
                since = random.randrange(1 + when // 2)
                self._draft.clients[client] = since
                yield SubscriptionRequest(since, client, random.choice(PREDICATES))
            yield from self._precede(broker, when)
            stages = self._draw_stages(when, STAGES[KILL_FOR_GOOD] - 1)
            yield FaultInjection(when, KILL_FOR_GOOD, (broker,), stages)

    # ------------------------------------------------------------ links

    def _cut_parallel_links(self) -> Iterator[Move]:
        """Yield cuts of all links between two units at once, and slow links elsewhere."""
        random, topology = self._random, self._draft.topology
        by_units: dict[object, list[tuple[int, int]]] = {}
        for link in topology.links:
            units = units_between(topology, *link)
            if units is not None:
                by_units.setdefault(units, []).append(link)
        parallel = [links for links in by_units.values() if len(links) > 1]
        if not parallel or random.random() < 0.2:
            return
        links = random.choice(parallel)
        begin = random.randrange(self._heal)
        for a, b in random.sample([*combinations(links, 2)], 1)[0]:
            when = min(self._heal - 1, begin + self._draw_gap() // 8)
            kind = random.choice(("cut", "cut", "blackhole", "cut_one_way"))
            ends = topology.brokers[a], topology.brokers[b]
            yield FaultInjection(when, kind, ends, self._draw_stages(begin, 1))
        others = [link for link in topology.links if link not in links]
        for a, b in others:
            if random.random() < 0.6:
                ends = topology.brokers[a], topology.brokers[b]
                until = self._draw_stages(begin, 1)
                yield FaultInjection(begin, "delay", (*ends, str(_SLOW_MS)), until)

    # ------------------------------------------------------------ times

    def _draw_stages(self, begin: int, count: int) -> tuple[int, ...]:
        """Return the instants of further stages before the end of all faults."""
        return tuple(at for at in self._draw_times(begin, count) if at < self._heal)

    def _draw_times(self, begin: int, count: int) -> list[int]:
        """Return increasing instants after the beginning, also after the end of all faults."""
        times = []
        for _ in range(count):
            begin += 1 + self._draw_gap()
            times.append(begin)
        return times

    def _draw_gap(self) -> int:
        """Return a time between two stages."""
        draft = self._draft
        mean = 60 if draft.adversarial else (8_000 if draft.long else 300) * MILLISECOND_NS
        return int(self._random.expovariate(1 / mean))
