"""What must hold in every state of a simulated cluster, whatever fails.

The oracle judges from outside what subscribers see. The checks here look at single steps: what a
broker confirms must be true, and what a driver is asked for must make sense.

Where each invariant of the δ tree's design is checked:

    I1   exactly once          oracle: `delivered` (duplicate)
    I2   order                 oracle: `delivered` (order)
    I3   no gap                oracle: `delivered` (gap), `_check_first` (gap, silent)
    I4   complete after heal   oracle: `judge_end`; swarm: `_has_converged`, `_left_over` (queues,
                               tags, partition tables empty, nobody recovering; nothing routed
                               by, or on disk, that is over)
    I5   not before the start  oracle: early, closed gate, gap; here: `_check_delivery`
    I6   duplicates are such   first_copies: `_check_delivery`, `_check_disagreement`; here:
                               `_check_confirmation` (what was wrongly taken for one is confirmed
                               and has not arrived)
    I7   confirmations true    here: `_check_confirmation`, `_check_acknowledgement`
    I8   hops are aware        awareness: `_check_handed_over`
    I9   gates only open       here: `_note_gates`; oracle: `gates`; separation: `judge` (closed at
                               the start is what was cut off, and nothing else)
    I10  sources are aware     awareness: `_on_commit`; durability: `_faults` (who recovers
                               publishes nothing)
    I11  active sessions       internals: `_check_sessions`
    I12  queues in order       internals: `_check_queue`
    I13  own partitions        internals: `_check_partitions`
    I14  partition tables      internals: `_check_partitions`
    I15  legitimacy            where publications are held: the core counts what is not legitimate
    I16  subscription first    awareness: `_check_handed_over`
    I17  purity                swarm: `_repeat_events`; determinism: whole seeds
    I18  summaries are true    internals: `_check_known`

And of every protocol that promises reliability:

    I1   no phantom            oracle: `delivered` (phantom)
    I2   matches               oracle: `delivered` (unwanted)
    I3   exactly once          as I1 above
    I4   order per source      as I2 above
    I5   gapless               as I3 above
    I6   acknowledged arrives  here: `_check_acknowledgement`; oracle: `judge_end`
    I7   all or none           oracle: `judge_end` (all: nothing is rejected in a simulation)
    I8   liveness              swarm: `_give_up` after 30 s; liveness, while links are broken
    I9   bounded memory        growth: `check_growth`, at the end of each seed; a client's window
                               bounds the queues before
    I10  honesty               oracle: `withheld`, `_check_first` (silent)
    I11  locality              no subject: there is no processor time to lose in a simulation
    I12  no residue            as I4 above; what faults do to hosts: tests/fault_injection

And what delta_tree adds to them, so that no crash makes untrue what has been said:

    nobody is given up too soon
                               lingering: `_check`
    on disk before it is said, and nothing published or confirmed by who does not know enough yet
                               durability: `_faults`

Paper: [DFT11] §I (reliability), §V-VI (awareness before delivery).
"""

from collections.abc import Callable, Sequence
from typing import Any

from brokerd.model.client_messages import Connected, PublishAcknowledged, Subscribed
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId, SubscriptionId
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.assist import FIRST_RELAYED
from brokerd.protocols.delta_tree.messages import PublicationConfirmation, PublicationCopy, Tag
from brokerd.protocols.delta_tree.regions import covers
from brokerd.protocols.interface import (
    Change,
    Commit,
    Deliver,
    Effect,
    Event,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.simulator.checks.awareness import HOME_TABLE, AwarenessChecker, read_tags
from brokerd.simulator.checks.durability import DurabilityChecker
from brokerd.simulator.checks.first_copies import FirstCopyChecker
from brokerd.simulator.checks.lingering import LingerChecker
from brokerd.simulator.checks.marks import MarkObserver
from brokerd.simulator.checks.oracle import InvariantViolated, Oracle
from brokerd.simulator.checks.separation import SeparationChecker
from brokerd.simulator.world.clock import Schedule
from brokerd.simulator.world.trace import Trace
from brokerd.simulator.world.views import BrokerView

Watcher = Callable[[Any, Event, list[Effect]], None]
"""Told of every step; the broker is of whatever kind the driver's are."""


class StepChecker:
    """Checks each step of each broker, and keeps the trace.

    With `strict` false nothing is checked, as for a protocol that promises less; the oracle is
    still told which sources are not heard.

    Attributes:
        bypass_sessions: ends of sessions established between brokers that are no neighbours.
        first_copies: judges what brokers take for duplicates.
        marks: counts what of the protocol was met, where it has marks.
    """

    def __init__(
        self,
        schedule: Schedule,
        tree: PrimaryTree,
        oracle: Oracle,
        trace: Trace | None,
        strict: bool,
        watcher: Watcher | None,
        awareness: AwarenessChecker,
        lingering: LingerChecker,
        separation: SeparationChecker,
        marks: MarkObserver | None = None,
    ) -> None:
        self._lingering = lingering
        self._separation = separation
        self.marks = marks
        self._schedule = schedule
        self._tree = tree
        self._oracle = oracle
        self._trace = trace
        self._strict = strict
        self._watcher = watcher
        self._awareness = awareness
        self.bypass_sessions = 0
        self.first_copies = FirstCopyChecker(tree, oracle)
        self._durability = DurabilityChecker()
        self._homes: dict[ClientId, int] = {}
        self._sources: dict[tuple[int, ClientId], SourceId] = {}
        self._started: dict[tuple[ClientId, int], None] = {}
        self._received: dict[tuple[int, Peer, int], dict[SourceId, list[int]]] = {}
        self._current: dict[tuple[int, Peer], int] = {}
        self._committing: dict[tuple[int, int], list[tuple[Change, ...]]] = {}
        self._tags: dict[tuple[int, str], tuple[Tag, ...]] = {}

    def left_on_disk(self, brokers: Sequence[BrokerView]) -> list[str]:
        """See DurabilityChecker."""
        return self._durability.left_on_disk(brokers)

    def joined(self, newcomer: BrokerNumber) -> None:
        """A broker is in the tree that has not been there; it has no clients yet."""
        for (home, key), tags in self._tags.items():
            if home not in self._tree.present:
                continue
            if covers(tags, self._tree.path(home, newcomer), self._tree.newcomers):
                client, _, number = key.rpartition("/")
                self._oracle.joined(client, int(number), newcomer)

    def client_added(self, client: ClientId, home: int) -> None:
        """A client lives at this broker."""
        self._homes[client] = home
        self._oracle.homes[client] = home

    def driven(self, broker: BrokerView, event: Event, effects: list[Effect]) -> None:
        """See broker.Observer."""
        if self._trace is not None:
            self._trace.step(self._schedule.now_ns, broker.name, event, effects)
        if self._watcher is not None:
            self._watcher(broker, event, effects)

    def step(self, broker: BrokerView, event: Event, effects: list[Effect]) -> None:
        """See broker.Observer."""
        if (
            self._watcher is not None
            and isinstance(event, SessionEstablished | SessionLost)
            and event.session >= FIRST_RELAYED
        ):
            self._watcher(broker, event, [])
        if self.marks is not None:
            self.marks.step(broker, event, effects)
        if self._oracle.reliable:
            for given_up in self._lingering.step(broker, event, effects):
                self._started.pop(given_up, None)
            self._separation.step(broker, event, effects)
            self._note_gates(broker.number, event, effects)
        if not self._strict:
            return
        self._note_event(broker.number, event)
        self._awareness.step(broker, event, effects)
        self._durability.step(broker, event, effects)
        if self._oracle.reliable:
            self.first_copies.step(broker, event, effects)
        for effect in effects:
            if type(effect) is Send:
                self._check_send(broker, effect)
            elif type(effect) is Deliver:
                self._check_delivery(broker, effect)

    def _note_event(self, broker: int, event: Event) -> None:
        if type(event) is MessageReceived:
            message = event.message
            current = self._current.get((broker, event.peer)) == event.session
            if type(message) is PublicationCopy and current:
                sources = self._received.setdefault((broker, event.peer, event.session), {})
                sources.setdefault(message.run.source, []).extend(message.run.sequences)
        elif type(event) is SessionEstablished:
            self._current[broker, event.peer] = event.session
            if isinstance(event.peer, int) and self._tree.distance(broker, event.peer) > 1:
                self.bypass_sessions += 1
        elif type(event) is SessionLost:
            session = self._current.pop((broker, event.peer))
            self._received.pop((broker, event.peer, session), None)
        elif type(event) is Started:
            for key in [key for key in self._current if key[0] == broker]:
                self._received.pop((*key, self._current.pop(key)), None)

    def _note_gates(self, broker: int, event: Event, effects: list[Effect]) -> None:
        """I9: what a subscription hears is what is on disk at its home, and never less."""
        if type(event) is Persisted:
            for changes in self._committing.pop((broker, event.token), []):
                self._take_over_gates(broker, [(c.key, c.value) for c in changes])
        elif type(event) is Started:
            self._committing = {k: v for k, v in self._committing.items() if k[0] != broker}
            self._take_over_gates(broker, list(event.recovered.get(HOME_TABLE, {}).items()))
        for effect in effects:
            if type(effect) is Commit and effect.token is not None:
                changes = tuple(c for c in effect.changes if c.table == HOME_TABLE and c.value)
                if changes:
                    self._committing.setdefault((broker, effect.token), []).append(changes)

    def _take_over_gates(self, broker: int, rows: list[tuple[str, Any]]) -> None:
        for key, value in rows:
            if not value[3]:
                continue
            client, _, number = key.rpartition("/")
            self._tags[broker, key] = tags = read_tags(value)
            closed = frozenset(
                other
                for other in self._tree.present
                if covers(tags, self._tree.path(broker, other), self._tree.newcomers)
            )
            subscription = SubscriptionId(broker, value[0], value[1])
            if self._strict:
                self._separation.judge(subscription, key, closed)
            self._oracle.gates(client, int(number), closed)

    def _check_send(self, broker: BrokerView, effect: Send) -> None:
        message = effect.message
        if type(message) is PublicationConfirmation:
            self._check_confirmation(broker, effect.peer, message)
        elif (
            type(message) is PublishAcknowledged
            and self._oracle.reliable
            and not self._oracle.logged
        ):
            self._check_acknowledgement(broker, effect.peer, message)
        elif type(message) is Connected and message.source is not None:
            assert isinstance(effect.peer, str), f"{message} sent to a broker"
            self._sources[broker.number, effect.peer] = message.source
        elif type(message) is Subscribed and message.state == "started":
            assert isinstance(effect.peer, str), f"{message} sent to a broker"
            self._started[effect.peer, message.number] = None

    def _check_delivery(self, broker: BrokerView, effect: Deliver) -> None:
        """I5: nothing is delivered before the subscription has started."""
        for number in effect.item.subscriptions:
            if (effect.client, number) not in self._started:
                raise InvariantViolated(
                    "delivered before start", f"{broker.name} to {effect.client}/{number}"
                )

    def _check_acknowledgement(
        self, broker: BrokerView, client: Peer, message: PublishAcknowledged
    ) -> None:
        """I7 at the source: what is called done has arrived wherever it is owed."""
        assert isinstance(client, str), f"{message} sent to a broker"
        source = self._sources[broker.number, client]
        for sequence in range(message.first, message.last + 1):
            missing = self._oracle.missing_at(source, sequence)
            if missing:
                raise InvariantViolated(
                    "acknowledged too early",
                    f"{broker.name} calls {client}'s {sequence} done; not at {missing}",
                )

    def _check_confirmation(
        self, broker: BrokerView, peer: Peer, message: PublicationConfirmation
    ) -> None:
        """I7: what is confirmed to a broker has arrived wherever it was sent that way for."""
        assert isinstance(peer, int), f"{message} sent to a client"
        session = self._current.get((broker.number, peer))
        if session is None:
            return  # the driver drops it
        received = self._received.get((broker.number, peer, session), {})
        for source, first, last in message.ranges:
            sequences = received.get(source, [])
            confirmed = [sequence for sequence in sequences if first <= sequence <= last]
            if len(confirmed) < len(sequences):
                received[source] = [seq for seq in sequences if not first <= seq <= last]
            else:
                received.pop(source, None)
            for sequence in confirmed:
                for client in self._oracle.missing_at(source, sequence):
                    path = self._tree.path(peer, self._homes[client])
                    back = self._tree.path(peer, source.broker)
                    if broker.number in path and broker.number not in back:
                        raise InvariantViolated(
                            "confirmed too early",
                            f"{broker.name} confirms {tuple(source)} {sequence} to broker {peer}; "
                            f"{client} behind it has not got it",
                        )
