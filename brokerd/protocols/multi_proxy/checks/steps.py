"""Invariants of multi_proxy in every step and at rest, and brokers that reach each other.

The places that check the invariants of the protocol's design, by the names of the rules:

    1    OK means durable      here: position reused; oracle: `judge_end` over crashes
    2    never twice           deliveries: `judge` (duplicate)
    3    owed means delivered  oracle: `judge_end`
    5    nothing after the end deliveries: `judge` (ended)
    6    no answer, no loss    oracle: `judge_end`
    7    put once              here: put twice
    8    one owner             here: two owners
    9    positions stay        here: position reused
    13   positions only grow   here: acknowledgement decreased
    14   order in a topic      here: topic order
    16   started means followed here: started early (a server of each topic has it on disk, or
                                waits for the topics of the access broker after a loss)
    15   no wait is for ever   plan_run: liveness

Publications in a gap were retained for `max_retain_ns`: gaps: `judge`. Lost positions are those of
the lost publications: here, position reused. `tests/protocols/multi_proxy/test_checks.py` shows a
mistake that each rule here detects.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from brokerd.model.client_messages import Subscribed
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId, StreamId
from brokerd.model.losses import LIFE_BITS, last_lost_position
from brokerd.model.publication import PublicationRun
from brokerd.overlay.bipartite import Bipartite
from brokerd.protocols.interface import Append, Effect, Event, Send, Started
from brokerd.protocols.multi_proxy.claims import Claims
from brokerd.protocols.multi_proxy.clients import Clients
from brokerd.protocols.multi_proxy.messages import Follow, Get, Lost, Messages, Stored
from brokerd.protocols.multi_proxy.parameters import CAUSAL, PAPER, RENDEZVOUS
from brokerd.protocols.multi_proxy.publishes import Publishes
from brokerd.protocols.multi_proxy.retention import Topic
from brokerd.protocols.multi_proxy.state import FOLLOWERS, RESTATED, FollowedTopic
from brokerd.protocols.multi_proxy.topic_log import TopicLog, read_placed
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS
from brokerd.protocols.parts.log_marks import LOG_MARKS, LOG_STARTS
from brokerd.simulator.checks.linger import LingerChecker
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks, Reach
from brokerd.simulator.checks.recounts import Holdings, Recount, nonzero
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_Origin = tuple[SourceId, int]


class MultiProxyChecks(ProtocolChecks):
    """See ProtocolChecks."""

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._announced: dict[StreamId, dict[int, _Origin]] = {}
        self._owners: dict[int, BrokerNumber] = {}
        ownership = world.parameters.ownership
        self._has_one_owner = ownership not in (CAUSAL, PAPER)
        self._stays = self._has_one_owner and not world.parameters.spread_topics
        self._stored_at: dict[int, list[BrokerNumber]] = {}
        self._puts_once = ownership != PAPER
        self._assigned: dict[StreamId, dict[int, _Origin]] = {}
        self._kept_at: dict[_Origin, tuple[BrokerNumber, int]] = {}
        self._lineages: dict[BrokerNumber, int] = {}
        self._places: dict[tuple[StreamId | int, _Origin], tuple[StreamId, int]] = {}
        self._done: dict[tuple[BrokerNumber, int, BrokerNumber, int], int] = {}
        self._lingering = LingerChecker(
            world.schedule, world.oracle, world.parameters.client_linger_ns, SUBSCRIPTIONS
        )

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[ClientId, int]]:
        if type(event) is Started and event.lineage:
            self._lineages[broker.number] = event.lineage
        for effect in effects:
            if type(effect) is Append:
                for record in effect.records:
                    self._note_assigned(broker, b"".join(record))
            if type(effect) is not Send:
                continue
            message = effect.message
            if type(message) is Messages and self._is_serving(broker, message):
                run = message.run
                origins = [(each.source, n) for each in run.origins for n in each.sequences]
                self._check_announced(
                    broker, run.source, [*zip(run.sequences, origins, strict=True)]
                )
            elif type(message) is Stored and message.server == broker.number:
                self._check_turn(broker, message.topic)
            elif type(message) is Lost and message.server == broker.number:
                stream = StreamId(message.part, message.topic, 0)
                self._check_announced(broker, stream, [*_places(message)])
            elif type(message) is Get and message.home == broker.number:
                self._check_done(broker, message)
            elif type(message) is Follow and message.home == broker.number:
                self._forget_positions(broker)
            elif type(message) is Subscribed and message.state == "started":
                self._check_started(broker, effect.peer, message)
        return self._lingering.step(broker, event, effects)

    def origins_of(self, stream: StreamId, first: int, last: int) -> Iterator[_Origin]:
        """See ProtocolChecks; a publication that a server stored again is at its last position."""
        assigned = self._assigned.get(stream, {})
        for place, origin in assigned.items():
            if first <= place <= last and self._kept_at[origin] == (stream.broker, place):
                yield origin

    def _note_assigned(self, broker: BrokerView, record: bytes) -> None:
        """Note the positions of a record; a crash may lose it, and another may have them then."""
        for run in read_placed(broker.number, record):
            assigned = self._assigned.setdefault(run.source, {})
            placed = [*zip(run.sequences, _origins_in(run), strict=True)]
            assigned.update(placed)
            self._kept_at.update((origin, (broker.number, place)) for place, origin in placed)

    def keeper_of(self, source: SourceId, sequence: int, home: BrokerNumber) -> BrokerNumber:
        """See ProtocolChecks: the server that has appended it."""
        kept = self._kept_at.get((source, sequence))
        return home if kept is None else kept[0]

    def has_lost(self, source: SourceId, sequence: int) -> bool:
        """See ProtocolChecks: positions behind the loss lack the publication."""
        server, position = self._kept_at.get((source, sequence), (-1, 1))
        return position <= last_lost_position(self._lineages.get(server, 0))

    def restored(self, broker: BrokerView) -> int:
        """See ProtocolChecks: subscriptions of an older copy before their clients connect."""
        core: Any = broker.core
        oracle = self.world.oracle
        if not oracle.losses.is_lossy(broker.number):
            return 0
        return sum(
            (name, number) not in oracle.register.subscriptions and not client.connected
            for name, client in core._clients.table.clients.items()
            for number in client.subscriptions
        )

    def aftermath(self, broker: BrokerView) -> Sequence[str]:
        """See ProtocolChecks: servers keep lost records for restored subscriptions as well."""
        lines = super().aftermath(broker)
        if not any(self.restored(each) for each in self.world.brokers() if each.alive):
            return lines
        return [each for each in lines if " records are lost, " not in each]

    def _check_started(self, broker: BrokerView, client: Peer, message: Subscribed) -> None:
        """Check that no later publication is missed, whichever broker crashes next."""
        core: Any = broker.core
        local = core._clients.table.clients[client].subscriptions[message.number]
        followed: dict[int, None] = {}
        for server in self.world.brokers():
            row = server.on_disk().get(FOLLOWERS, {}).get(str(broker.number))
            if row is not None:
                followed |= dict.fromkeys(row[2])
                followed |= dict.fromkeys(row[4] if len(row) > 4 else ())
        missing = [
            topic
            for topic in core._clients._followed[local]
            if topic not in followed
            and not self._awaits_restatement(core._owners.table.of(topic), broker)
            and not self._may_prove_loss(core._owners.table.of(topic), broker)
        ]
        if missing:
            subject = f"{broker.name} reports {client}/{message.number} as started"
            raise InvariantViolated(
                "started early", f"{subject}, and no server has {missing} of it"
            )

    def _awaits_restatement(self, owner: BrokerNumber, home: BrokerView) -> bool:
        """Return True if a server with a loss keeps all until a broker states its topics again."""
        lineage = self._lineages.get(owner, 0)
        rows = self.world.brokers()[owner].on_disk().get(RESTATED, {})
        return lineage > 0 and rows.get(str(home.number)) != lineage

    def _may_prove_loss(self, owner: BrokerNumber, home: BrokerView) -> bool:
        """Return True if a broker has a mark of a log that a server has no record of.

        Marks from before an accepted loss prove nothing.
        """
        mark = home.on_disk().get(LOG_MARKS, {}).get(str(owner))
        if mark is None or mark[0] < self._lineages.get(owner, 0):
            return False
        starts = self.world.brokers()[owner].on_disk().get(LOG_STARTS, {})
        return all(mark[2] != start for start, _ in starts.values())

    def _is_serving(self, broker: BrokerView, message: Messages) -> bool:
        """Return True at the server that stores these positions, False at a proxy on the route."""
        if message.run.source.broker == broker.number:
            return True
        core: Any = broker.core
        return core.server is not None

    def _check_turn(self, broker: BrokerView, topic: int) -> None:
        """Check that nothing is stored at an earlier owner of a topic."""
        turns = self._stored_at.setdefault(topic, [broker.number])
        if turns[-1] == broker.number or not self._has_one_owner:
            return
        if broker.number in turns:
            subject = f"{broker.name} stores something in topic {topic}"
            raise InvariantViolated("two owners", f"{subject}, which is {turns[-1]}'s by now")
        turns.append(broker.number)

    def _check_announced(
        self, broker: BrokerView, stream: StreamId, places: Sequence[tuple[int, _Origin]]
    ) -> None:
        """Check that positions and publications correspond one to one for ever, in source order.

        The same holds for lost positions: a gap must name the same publications.
        """
        topic, owner = stream.publisher, stream.broker
        if self._owners.setdefault(topic, owner) != owner and self._stays:
            subject = f"{broker.name} gives out topic {topic}"
            raise InvariantViolated("two owners", f"{subject}, which is {self._owners[topic]}'s")
        origins = self._announced.setdefault(stream, {})
        last: dict[SourceId, int] = {}
        for position, origin in places:
            subject = f"{broker.name}: {origin} at {position} of topic {topic}"
            if origins.setdefault(position, origin) != origin:
                raise InvariantViolated(
                    "position reused", f"{subject}, where {origins[position]} was"
                )
            place = stream, position
            if self.world.oracle.losses.is_lossy(owner) and self._is_republished(origin, place):
                continue
            where = topic if self._puts_once else stream
            if self._places.setdefault((where, origin), place) != place:
                raise InvariantViolated("put twice", subject)
            source, number = origin
            if number <= last.get(source, 0):
                raise InvariantViolated("topic order", f"{subject}, behind {last[source]}")
            last[source] = number

    def _is_republished(self, origin: _Origin, place: tuple[StreamId, int]) -> bool:
        """Return True if a publication has a position behind one that its server lost.

        The server also lost that it had stored the publication, and the publisher sent it again.
        """
        before = self._places.get((place[0].publisher, origin), place)
        return before[0] == place[0] and before[1] >> LIFE_BITS < place[1] >> LIFE_BITS

    def _check_done(self, broker: BrokerView, message: Get) -> None:
        """Check that acknowledged positions never decrease while a broker follows the topic."""
        for wanted in message.wanted:
            key = broker.number, message.incarnation, wanted.part, wanted.topic
            before = self._done.get(key, 0)
            if wanted.done < before or wanted.after < wanted.done:
                subject = f"{broker.name} acknowledged {wanted.done} of topic {wanted.topic}"
                raise InvariantViolated("acknowledgement decreased", f"{subject}, after {before}")
            self._done[key] = wanted.done

    def _forget_positions(self, broker: BrokerView) -> None:
        """Forget positions of a topic without followers, which may restart earlier.

        A server that was given the topic meanwhile has no news of that: it uses the positions at
        the giver.
        """
        core: Any = broker.core
        for key in [key for key in self._done if key[0] == broker.number]:
            if not core.follows(key[-1]):
                del self._done[key]


def _origins_in(run: PublicationRun) -> Iterator[_Origin]:
    return ((each.source, number) for each in run.origins for number in each.sequences)


def _places(message: Lost) -> Iterator[tuple[int, _Origin]]:
    stream = SourceId(message.part, message.topic, 0)
    for run in message.runs:
        if run.source == stream:
            continue  # lost positions, of publications that the server does not know
        for sequence in range(run.first, run.last + 1):
            yield run.position + sequence - run.first, (run.source, sequence)


def _followers(topic: FollowedTopic, holdings: Holdings) -> int:
    (clients,) = holdings.of(Clients)
    return sum(topic.number in topics for topics in clients._followed.values())


def _unanswered(puts: Publishes) -> dict[object, int]:
    found: Counter[object] = Counter()
    for pending in puts._sources.values():
        for topic, chain in pending.chains.items():
            server = puts._owners.of(topic)
            if server is not None:
                found[server] += len(chain)
    return nonzero(found)


RECOUNTS = (
    Recount(
        Claims,
        "counts",
        lambda claims: nonzero(claims._counts),
        lambda claims, _: dict(Counter([*claims._owners.values(), *claims._proposed.values()])),
    ),
    Recount(
        Publishes,
        "unanswered",
        lambda puts: nonzero({key: each.unanswered for key, each in puts._servers.items()}),
        lambda puts, _: _unanswered(puts),
    ),
    Recount(FollowedTopic, "followers", lambda topic: topic.followers, _followers),
    Recount(
        Topic,
        "durable",
        lambda topic: topic.durable,
        lambda topic, _: max(topic.durable, topic.needed_position),
    ),
    Recount(
        FollowedTopic,
        "outstanding",
        lambda topic: topic.outstanding,
        lambda topic, _: sum(each.count for each in topic.in_flight),
    ),
    Recount(
        Topic,
        "retained_bytes",
        lambda topic: topic.retained_bytes,
        lambda topic, _: sum(run.payload_bytes() for run in topic.runs),
    ),
    Recount(
        TopicLog,
        "logged_bytes",
        lambda log: log.logged_bytes,
        lambda log, _: sum(each.size_bytes for each in log._logged),
    ),
    Recount(
        TopicLog,
        "durable",
        lambda log: {part: topic.durable for part, topic in log._topics.items()},
        lambda log, _: {part: topic.assigned for part, topic in log._topics.items()},
    ),
)


class MultiProxyReach(Reach):
    """See Reach: demands need a route to every server, because any may own the topic.

    Unless owners follow from names alone, servers assign topics to each other, and transfer them,
    over any proxy that reaches both. Publish requests to a topic in transfer wait at the giving
    server.
    """

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        return self.starts(source) and self.starts(home)

    def starts(self, home: BrokerNumber) -> bool:
        servers = self._servers()
        pairs = [(home, server) for server in servers]
        if self._parameters.ownership != RENDEZVOUS:
            pairs += combinations(servers, 2)
        return all(super(MultiProxyReach, self).reaches(a, b) for a, b in pairs)

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """See Reach: publications on a server's disk are acknowledged, whatever the reach."""
        return self.starts(source)

    def _servers(self) -> tuple[BrokerNumber, ...]:
        overlay = self._graph.overlay
        assert isinstance(overlay, Bipartite), f"{overlay} has no servers"
        return overlay.servers
