"""The rows on a broker's disk, compared with its messages; its passed events, with pubends' logs.

Paper: [DS03] §1.1, §3 (intermediate brokers cache events).
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from brokerd.model.client_messages import CommitConsumed, ConsumedCommitted, Gap
from brokerd.model.identity import BrokerNumber, ClientId, Peer, StreamId
from brokerd.model.losses import STATE_LOST
from brokerd.model.publication import PublicationRun
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.protocols.durable.checks.feeding import FeedingChecks
from brokerd.protocols.durable.checks.matches import MatchChecks
from brokerd.protocols.durable.checks.steps import AcknowledgementChecks, QuestionChecks
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.definition import key_of
from brokerd.protocols.durable.messages import LOST, Fetched, NothingFetched, Released
from brokerd.protocols.durable.state import (
    ACKNOWLEDGED,
    ARRIVING,
    DELIVERED,
    HOLDS,
    RETENTION,
    Mode,
)
from brokerd.protocols.gryphon import EVENT_BYTES, ticks_in
from brokerd.protocols.gryphon.checks.ghosts import GhostChecks
from brokerd.protocols.gryphon.checks.steps import GryphonChecks
from brokerd.protocols.interface import (
    RETENTION_CHANGED,
    Deliver,
    Effect,
    Event,
    MessageReceived,
    Record,
    Send,
)
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks, message_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


class StoredChecks(ProtocolChecks):
    """See ProtocolChecks.

    - other event: a stored event is equal to the event on its pubend's disk (J14);
    - stored before a loss: a stored event is behind all loss markers of its stream here (J14);
    - stored too much: a store is within its limit (J14).

    Args:
        ghosts: the disks of all pubends.
    """

    def __init__(self, world: CheckedWorld, ghosts: GhostChecks) -> None:
        super().__init__(world)
        self._limit_bytes: int = world.parameters.passed_limit_bytes
        self._ghosts = ghosts
        self._seen: dict[tuple[BrokerNumber, StreamId], list[PublicationRun]] = {}

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """See ProtocolChecks; a run is compared once."""
        core = broker.protocol
        assert isinstance(core, Durable), f"{core} is no core of durable"
        if core.passed.stored_bytes > self._limit_bytes:
            subject = f"{broker.name} stores {core.passed.stored_bytes} B"
            raise InvariantViolated("stored too much", f"{subject}, at most {self._limit_bytes}")
        for identity, runs in core.passed.runs():
            subject = f"{broker.name}, store of {tuple(identity)}"
            self._check_losses(subject, core, identity, runs)
            key = broker.number, identity
            compared = {run.first: run for run in self._seen.get(key, ())}
            for run in runs:
                if compared.get(run.first) is not run:
                    self._ghosts.check_events(subject, identity, run)
            self._seen[key] = runs

    def _check_losses(
        self, subject: str, core: Durable, identity: StreamId, runs: Sequence[PublicationRun]
    ) -> None:
        """Check that no loss marker has passed a broker since it has stored these runs."""
        through = core.passed.through(identity)
        passed = [tick for tick in self._ghosts.markers(identity) if tick <= through]
        if passed and runs[0].first <= passed[-1]:
            raise InvariantViolated(
                "stored before a loss", f"{subject}: {runs[0].first}, and a loss at {passed[-1]}"
            )


_Request = tuple[int, tuple[tuple[StreamId, int], ...]]
"""The last commit request of a client: the request, and the positions."""

_Hold = tuple[ClientId, int, BrokerNumber, int]
"""A moved subscription, its broker, and the generation of its client."""

_ANSWERS = (Fetched, NothingFetched)


class DurableChecks(GryphonChecks):
    """See ProtocolChecks; rules are those of the core, and of the protocol's document.

    - released early: no broker announces a higher released tick than its disk has (J1);
    - order of positions: released ticks were delivered, and delivered ticks were handed out (J1);
    - released as it was: the cached released tick of a stream equals the recomputed one (J1, J12);
    - lost early: a pubend releases only ticks that all have released, or that are old (J3, J10);
    - gap to live subscription: only subscribers in catch-up receive gaps, but for lost state (J4);
    - policy in force: a changed policy of early release is durable before it is in force;
    - policy recorded: a pubend releases by the policy that its broker has recorded last;
    - hold passed: no pubend releases events that it holds for a moved subscription (J13);
    - committed early: a commit is durable before its client is notified (J9);
    - silence of others: only a pubend announces silence, and other brokers forward it; brokers with
      a durable decommission state the silence of the removed pubends. A publication that a
      subscription lacks from there is missing to the oracle;
    - the rules of feeding (J2, J7, J8, J12), see FeedingChecks; of logged matches (J5), see
      MatchChecks; of clients' positions (J9), see AcknowledgementChecks; of the rate of requests
      (J11), see QuestionChecks; of stored events (J14), see StoredChecks.
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._feeding = FeedingChecks(world)
        self._acknowledgements = AcknowledgementChecks(world)
        self._others = (
            self._feeding,
            self._acknowledgements,
            MatchChecks(world, self.ghosts, _released_tick),
            QuestionChecks(world),
        )
        self._stored = StoredChecks(world, self.ghosts)
        self._final: dict[tuple[BrokerNumber, int, StreamId], int] = {}
        self._announced: dict[tuple[BrokerNumber, StreamId], int] = {}
        self._requested: dict[tuple[BrokerNumber, ClientId, int], _Request] = {}
        self._held: dict[tuple[BrokerNumber, int, StreamId], tuple[int, dict[_Hold, int]]] = {}
        self._policies: dict[tuple[BrokerNumber, int], RetentionPolicy] = {}
        self._former: dict[tuple[BrokerNumber, int, StreamId], RetentionPolicy] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        found = super().step(broker, event, effects)
        for client, number in self.lingering.ended:
            if not self._is_kept_at(self.world.oracle.homes.get(client), client, number):
                self.world.oracle.lives.excuse_absence(client, number)
        for checks in self._others:
            checks.step(broker, event, effects)
        if type(message := message_of(broker, event)) is CommitConsumed:
            assert isinstance(event, MessageReceived), f"{message} by {event}"
            assert isinstance(event.peer, str), f"{event} of a broker"
            self._requested[broker.number, event.peer, message.number] = (
                message.request,
                message.positions,
            )
        for effect in effects:
            if type(effect) is Send and type(effect.message) is ConsumedCommitted:
                self._check_committed(broker, effect.peer, effect.message)
            if type(effect) is Send and type(effect.message) is Released:
                self._check_released(broker, effect.message)
            elif type(effect) is Record and effect.event == RETENTION_CHANGED:
                self._check_retention(broker, effect.details)
            elif type(effect) is Deliver and type(effect.item) is Gap:
                _check_gap(broker, effect.client, effect.item)
            elif type(effect) is Send and type(effect.message) in (Fetched, NothingFetched):
                _check_silence(broker, event, effect.message)
        return found

    def _check_retention(self, broker: BrokerView, stated: Mapping[str, Any]) -> None:
        """Check a policy in force against the disk, and judge gaps by the disk's policy."""
        pubend, parameters = stated["pubend"], self.world.parameters
        row = broker.rows_of(RETENTION).get(str(pubend))
        where = f"{broker.name}, pubend {pubend}"
        default = parameters.policies[pubend]
        durable = default if row is None else RetentionPolicy.parse(row, where)
        if stated["policy"] != str(durable):
            subject = f"{where}: {stated['policy']} is in force"
            raise InvariantViolated("policy in force", f"{subject}, and {durable} on disk")
        key = broker.number, broker.incarnation, StreamId(broker.number, pubend, 0)
        before = self._policies.get((broker.number, pubend), default)
        if before != durable:
            self._former[key] = _join(self._former.get(key), before)
        self._policies[broker.number, pubend] = durable
        age_ns = parameters.gap_age_with(durable)
        self.world.oracle.on_retention(broker.number, pubend, parameters.pubends, LOST, age_ns)

    def _check_recorded(self, broker: BrokerView, core: Durable, stream: StreamId) -> None:
        """Check that the policy by which a pubend releases is the last recorded one."""
        pubend, policy = stream.publisher, core.retention.policy(stream)
        default = self.world.parameters.policies[pubend]
        recorded = self._policies.get((broker.number, pubend), default)
        if recorded != policy:
            subject = f"{broker.name}, pubend {pubend}: {policy} is in force"
            raise InvariantViolated("policy recorded", f"{subject}, and {recorded} is recorded")

    def _is_kept_at(self, broker: BrokerNumber | None, client: ClientId, number: int) -> bool:
        """Return True if a broker has a subscription, and everything that it lacks is held."""
        for there in self.world.brokers():
            if there.number == broker and there.alive:
                core = there.protocol
                assert isinstance(core, Durable), f"{core} is no core of durable"
                return core.arrivals.is_safe((client, number))
        return False

    def _check_committed(self, broker: BrokerView, client: Peer, answer: ConsumedCommitted) -> None:
        assert isinstance(client, str), f"{answer} to a broker"
        request, positions = self._requested[broker.number, client, answer.number]
        if request > answer.request:
            return  # the client has asked for more meanwhile
        identity = broker.rows_of("subscriptions")[f"{client}/{answer.number}"][0]
        acknowledged = broker.rows_of(ACKNOWLEDGED)
        for stream, last in positions:
            durable = acknowledged.get(f"{identity}/{key_of(stream)}", 0)
            if durable < last:
                subject = f"{broker.name} announces {last} as committed to {client}"
                raise InvariantViolated("committed early", f"{subject}, and has {durable} on disk")

    def list_rest(self, brokers: Sequence[BrokerView]) -> list[str]:
        """See ProtocolChecks: rows about moves are removed when the moves are complete.

        A move to a broker that has restored its subscription completes when that subscription ends.
        """
        alive = [each for each in brokers if each.alive]  # a decommissioned one never speaks again
        restored = {key for each in alive for key in self._list_restored(each)}
        found = []
        for broker in alive:
            for table, parts in ((ARRIVING, 1), (HOLDS, 2)):
                rows = broker.rows_of(table)
                left = [key for key in rows if key.rsplit("/", parts - 1)[0] not in restored]
                if left:
                    found.append(f"{broker.name} has {len(left)} rows of {table}")
        return found + self._feeding.list_rest(brokers)

    def aftermath(self, broker: BrokerView) -> Sequence[str]:
        """See ProtocolChecks: `list_rest` finds moves that nothing excuses on the disks."""
        lines = super().aftermath(broker)
        if not any(self._list_restored(each) for each in self.world.brokers() if each.alive):
            return lines
        return [each for each in lines if not each.endswith((" that just arrived", " holds"))]

    def restored(self, broker: BrokerView) -> int:
        return len(self._list_restored(broker))

    def _list_restored(self, broker: BrokerView) -> list[str]:
        """Return the restored subscriptions of a broker, as in its rows."""
        core, register = broker.protocol, self.world.oracle.register
        assert isinstance(core, Durable), f"{core} is no core of durable"
        oracle = self.world.oracle
        if not oracle.losses.are_accepted:
            return []
        is_lossy = oracle.losses.is_lossy(broker.number)
        return [
            local.row
            for local in core.registered.present.values()
            if (local.client, local.number) not in register.subscriptions
            and (
                oracle.homes[local.client] != broker.number  # the new broker was to notify this one
                or (is_lossy and self.is_undecided(broker, local))
            )
        ]

    def list_pending(self, brokers: Sequence[BrokerView]) -> list[str]:
        """See ProtocolChecks: silence; matches stay for subscribers that are behind."""
        return self._feeding.list_pending(brokers)

    def examine(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        super().examine(broker, brokers)
        core = broker.protocol
        assert isinstance(core, Durable), f"{core} is no core of durable"
        # A core whose state is being restored from replicas has not begun.
        if core.gryphon.is_reading or not core._clients.table.incarnation:
            return
        self._feeding.look_into(broker, brokers)
        self._acknowledgements.look_into(broker, brokers)
        self._stored.look_into(broker, brokers)
        self._check_lost(broker, core)
        for identity, kept, now in core.commits.recount_released():
            if kept != now:
                subject = f"{broker.name} has released {kept} of {tuple(identity)}"
                raise InvariantViolated(
                    "released as it was", f"{subject}, as it keeps it; it is {now}"
                )
        for stream in core.gryphon.streams.own():
            self._check_held(broker, core, stream.identity)
        for hosted in core.hosted.values():
            if not hosted.log.last_tick <= hosted.position >= hosted.delivered:
                raise InvariantViolated(
                    "order of positions",
                    f"{broker.name}, {tuple(hosted.identity)}: written to {hosted.log.last_tick}, "
                    f"committed to {hosted.delivered}, handed out to {hosted.position}",
                )

    def _check_lost(self, broker: BrokerView, core: Durable) -> None:
        for stream in core.gryphon.streams.own():
            key = broker.number, broker.incarnation, stream.identity
            final = stream.knowledge.final
            former = self._former.pop(key, None)
            if final <= self._final.setdefault(key, final):
                continue
            self._final[key] = final
            self._check_recorded(broker, core, stream.identity)
            expired = core.retention.expired_tick(stream)
            announced = [
                self._announced.get((each, stream.identity), 0) for each in self._list_hosts(core)
            ]
            released = min(
                [_released_tick(broker, stream.identity, with_arrivals=False), *announced]
            )
            kept = stream.knowledge.events
            bound = core.retention.policy(stream.identity).most_bytes
            kept_bytes = kept.payload_bytes + EVENT_BYTES * kept.events
            is_excess = 0 < bound <= kept_bytes or (former is not None and former.most_bytes > 0)
            if former is not None and former.age_ns:
                now = core.gryphon.pubends.tick(core.gryphon.now_ns)
                expired = max(expired, now - ticks_in(former.age_ns))
            if final > max(released, expired) and not is_excess:
                subject = f"{broker.name} has lost {tuple(stream.identity)} up to {final}"
                raise InvariantViolated("lost early", f"{subject}, released is {released}")

    def _list_hosts(self, core: Durable) -> list[BrokerNumber]:
        """Return the brokers whose subscriptions hold back the release of streams here.

        A linked broker also announces the releases of the brokers behind it. Behind a neighbouring
        cell of several brokers, each broker with clients counts.
        """
        routes = core.gryphon._routes
        found = [*core.gryphon.neighbours.wanted()]
        if routes.is_plain:
            return found
        wide = 0
        for each in found:
            wide |= routes.behind[routes.cell_of(each)] if each not in routes.hosts else 0
        behind = [each for each in routes.hosts if wide >> routes.cell_of(each) & 1]
        linked = [each for each in found if each in routes.hosts]
        return [each for each in (*linked, *behind) if each not in core._decommissioning]

    def _check_held(self, broker: BrokerView, core: Durable, stream: StreamId) -> None:
        key, released = (broker.number, broker.incarnation, stream), core.release.through(stream)
        holds = core.holds.of(stream)
        before, holds_before = self._held.get(key, (0, {}))
        self._held[key] = released, holds
        kept = [tick for holder, tick in holds.items() if holds_before.get(holder) == tick]
        if kept and released > max(before, min(kept)):
            subject = f"{broker.name} releases {released} of {tuple(stream)}"
            raise InvariantViolated(
                "hold passed", f"{subject}, and holds what is behind {min(kept)}"
            )

    def _check_released(self, broker: BrokerView, message: Released) -> None:
        for stream, through in message.through:
            durable = _released_tick(broker, stream)
            if through > durable:
                subject = f"{broker.name} releases {through} of {tuple(stream)}"
                raise InvariantViolated("released early", f"{subject}, and has {durable} on disk")
            key = broker.number, stream
            self._announced[key] = max(through, self._announced.get(key, 0))


def _join(one: RetentionPolicy | None, other: RetentionPolicy) -> RetentionPolicy:
    """Return a policy with the release of two policies."""
    if one is None:
        return other
    ages_ns = [each.age_ns for each in (one, other) if each.age_ns]
    return RetentionPolicy(min(ages_ns, default=0), max(one.most_bytes, other.most_bytes))


def _released_tick(broker: BrokerView, stream: StreamId, *, with_arrivals: bool = True) -> float:
    """Return the tick that all subscribers at a broker have released, from its disk.

    Args:
        with_arrivals: include subscriptions that arrived with less than was released here before.
    """
    key = key_of(stream)
    subscriptions = [
        identity
        for identity, _, _, unmatched, *_ in broker.rows_of("subscriptions").values()
        if with_arrivals or key not in [each for each, *_ in unmatched]
    ]
    if not subscriptions:
        return inf
    acknowledged = broker.rows_of(ACKNOWLEDGED)
    least = min(acknowledged.get(f"{each}/{key}", 0) for each in subscriptions)
    return float(min(broker.rows_of(DELIVERED).get(key, 0), least))


def _check_gap(broker: BrokerView, client: ClientId, gap: Gap) -> None:
    core = broker.protocol
    assert isinstance(core, Durable), f"{core} is no core of durable"
    if gap.reason == STATE_LOST:
        return  # it stands for an event of the stream
    theirs = [each for each in core.registered.present.values() if each.client == client]
    for lane in [each.lane(gap.stream) for each in theirs]:
        is_live = lane.mode is Mode.LIVE and lane.floor < gap.last
        if lane.subscription.number in gap.subscriptions and is_live:
            subject = (
                f"{broker.name} announces {gap} to {client}, which is live from {lane.floor} on"
            )
            raise InvariantViolated("gap to live subscription", subject)


def _check_silence(broker: BrokerView, event: Event, answer: Fetched | NothingFetched) -> None:
    stream = answer.run.source if isinstance(answer, Fetched) else answer.stream
    ticks = len(answer.run) if isinstance(answer, Fetched) else 0
    is_passed_on = isinstance(event, MessageReceived) and type(event.message) in _ANSWERS
    core = broker.protocol
    assert isinstance(core, Durable), f"{core} is no core of durable"
    if stream.broker == broker.number or is_passed_on or stream.broker in core._decommissioning:
        return
    if sum(end - start for start, end in answer.ranges) > ticks:
        subject = f"{broker.name} answers for {answer.ranges} of {tuple(stream)} by itself"
        raise InvariantViolated("silence of others", f"{subject}, with {ticks} events")
