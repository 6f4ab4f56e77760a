"""Invariants of ges_reliable in every step and at rest, and brokers that reach each other.

The places that check the invariants of the protocol's design, by the names of the rules:

    2, 3, 4, 7, 9  graphs and paths         ges: own checks; here as parts of the core
    10   acks only after durable            here: epoch reused; oracle: `judge_end` over crashes
    11   contiguous, once                   here: stored twice, storage order
    12   epochs only grow, and stay         here: epoch reused, in all logs below one root
    13   counts, collected only at 0        here: released early; `test_trees.py`: intake
    14   exactly once over all roams        deliveries: `judge`; oracle: `judge_end`
    15   nothing before or after            deliveries: `judge` (ended)
    17   a single successor, without one    here: successors
    19   all arrives, all is released       plan_run: liveness, queued publications
    18   one storage, one parent            `test_trees.py`: of every broker
    20   brokers store nothing              here: stateless
    21   started means registered           here: started early

1, 6, 8 and 16 have no subject: addresses are given, and profiles do not spread.
"""

from collections.abc import Sequence
from typing import Any

from brokerd.model.client_messages import Subscribed
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.losses import is_behind_loss, last_lost_position
from brokerd.overlay.hierarchy import Address
from brokerd.overlay.section_checks import find_unconnected
from brokerd.protocols.ges.checks.steps import check_client_counts
from brokerd.protocols.ges.units import hierarchy_from
from brokerd.protocols.ges_reliable.definition import root_of
from brokerd.protocols.ges_reliable.epochs import EpochLog, read_record
from brokerd.protocols.ges_reliable.messages import Events
from brokerd.protocols.ges_reliable.state import REGISTERED, SUCCESSORS
from brokerd.protocols.interface import (
    Append,
    Chop,
    Commit,
    Effect,
    Event,
    LogEffect,
    Send,
    Started,
)
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks, Reach
from brokerd.simulator.checks.recounts import Recount
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_Origin = tuple[SourceId, int]


class GesReliableChecks(ProtocolChecks):
    """See ProtocolChecks."""

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._announced: dict[tuple[int, int], _Origin] = {}
        self._epochs: dict[tuple[int, _Origin], int] = {}
        self._stored: dict[_Origin, tuple[BrokerNumber, int]] = {}
        self._lineages: dict[BrokerNumber, int] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[ClientId, int]]:
        core: Any = broker.core
        if type(event) is Started and event.lineage and _has_lost_epochs(core):
            self._lineages[broker.number] = event.lineage
        for effect in effects:
            if type(effect) is Append:
                self._note_stored(broker, effect)
            if core.storage is None:
                _check_kept(broker, effect)
            elif type(effect) is Chop:
                _check_released(broker, core.storage)
            message = effect.message if type(effect) is Send else None
            if type(message) is Subscribed and message.state == "started":
                assert isinstance(effect, Send), f"{effect} reports {message}"
                self._check_started(broker, effect.peer, message)
            if type(message) is Events and message.storage == broker.number:
                self._check_announced(broker, message)
        return ()

    def keeper_of(self, source: SourceId, sequence: int, home: BrokerNumber) -> BrokerNumber:
        """See ProtocolChecks: the root of the publisher's unit."""
        return root_of(hierarchy_from(self.world.graph.overlay), home)

    def has_lost(self, source: SourceId, sequence: int) -> bool:
        """See ProtocolChecks: no epoch behind the loss has it; the copy may have it."""
        storage, epoch = self._stored.get((source, sequence), (-1, 1))
        return epoch <= last_lost_position(self._lineages.get(storage, 0))

    def _note_stored(self, broker: BrokerView, effect: Append) -> None:
        """Note the epochs of records; a crash may lose them."""
        for record in effect.records:
            _, epochs, run = read_record(b"".join(record))
            for sequence, epoch in zip(run.sequences, epochs, strict=True):
                self._stored[run.source, sequence] = broker.number, epoch

    def stores_for(self, broker: BrokerNumber, home: BrokerNumber) -> bool:
        """See ProtocolChecks; only a single storage accepts a loss."""
        storages = hierarchy_from(self.world.graph.overlay).all_storages
        return any(broker == storage for storage, _ in storages)

    def restored(self, broker: BrokerView) -> int:
        """See ProtocolChecks: subscriptions that have ended since the copy of the disk."""
        core: Any = broker.core
        oracle = self.world.oracle
        if core.storage is None or not oracle.losses.is_lossy(broker.number):
            return 0
        known = oracle.register.subscriptions
        return sum(tuple(key) not in known for key in core.storage.registrations.subscriptions())

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        core: Any = broker.core
        if core.storage is not None and core.storage.log.is_read:
            _check_released(broker, core.storage)
            _check_successors(broker, brokers)

    def check_settled(self, brokers: Sequence[BrokerView]) -> None:
        check_client_counts(brokers)

    def _check_started(self, broker: BrokerView, client: Peer, message: Subscribed) -> None:
        """Check that a storage has the subscription or its successor on disk."""
        key = f"{client}/{message.number}"
        for storage in self.world.brokers():
            rows = storage.on_disk()
            if key in rows.get(REGISTERED, {}) or key in rows.get(SUCCESSORS, {}):
                return
            if self._awaits_restatement(broker, storage.number):
                return
        subject = f"{broker.name} reports {key} as started, and no storage has it"
        raise InvariantViolated("started early", subject)

    def _awaits_restatement(self, home: BrokerView, storage: BrokerNumber) -> bool:
        """Return True if a storage has lost state, and a broker has no later epoch of the storage.

        The answer is from before the loss. The broker states its subscriptions again once it
        receives an epoch behind the loss.
        """
        core: Any = home.core
        following = core.access.fetches._storages.get(storage)
        known = following.latest if following is not None else 0
        return known < last_lost_position(self._lineages.get(storage, 0))

    def _check_announced(self, broker: BrokerView, message: Events) -> None:
        """Check that an epoch is one publication for ever, which has no other, in source order.

        Before a loss is proved, a storage may assign lost epochs again. An access broker discards a
        message with epochs on both sides of the loss, and states its subscriptions again.
        """
        run, last = message.run, dict[SourceId, int]()
        origins = [(each.source, n) for each in run.origins for n in each.sequences]
        is_lossy = self.world.oracle.losses.is_lossy(message.storage)
        for epoch, origin in zip(run.sequences, origins, strict=True):
            if is_lossy and is_behind_loss(epoch, run.last):
                continue
            subject = f"{broker.name}: {origin} at {epoch}"
            root = root_of(hierarchy_from(self.world.graph.overlay), message.storage)
            first_origin = self._announced.setdefault((root, epoch), origin)
            if first_origin != origin:
                raise InvariantViolated("epoch reused", f"{subject}, where {first_origin} was")
            before = self._epochs.setdefault((root, origin), epoch)
            is_republished = is_lossy and is_behind_loss(before, epoch)
            if before != epoch and not is_republished:
                raise InvariantViolated("stored twice", subject)
            source, number = origin
            if number <= last.get(source, 0) and not is_republished:
                raise InvariantViolated("storage order", f"{subject}, behind {last[source]}")
            last[source] = number


def _has_lost_epochs(core: Any) -> bool:
    """Return True for a root; the broker of a finer storage was no storage at its loss."""
    return core.storage is not None and core.storage.profile is None


def _check_kept(broker: BrokerView, effect: Effect) -> None:
    rows = effect.changes if isinstance(effect, Commit) else ()
    if isinstance(effect, LogEffect) or any(row.table != "publishers" for row in rows):
        raise InvariantViolated("stateless", f"{broker.name} keeps {effect}"[:300])


def _check_successors(broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
    """Check that a subscription has at most one successor, which has no successor itself.

    Except if one of the two has it from an earlier attachment, and was to hand it over to the
    other.
    """
    cores: dict[BrokerNumber, Any] = {each.number: each.core for each in brokers if each.alive}
    storages = {number: core.storage for number, core in cores.items()}
    for key, known in storages[broker.number].registrations.subscriptions().items():
        successor = storages.get(known.successor)
        at_successor = (
            successor.registrations.subscriptions().get(key) if successor is not None else None
        )
        if at_successor is None or at_successor.successor is None:
            continue
        if at_successor.successor != broker.number or at_successor.generation == known.generation:
            subject = (
                f"{key}, about to resume at {known.successor}, resumes at {at_successor.successor}"
            )
            raise InvariantViolated("successors", f"{broker.name}: {subject}")


def _check_released(broker: BrokerView, storage: Any) -> None:
    """Check, by a recount, that no publication without a client's receipt was released."""
    for key, known in storage.registrations.subscriptions().items():
        if known.received < storage.log.released:
            subject = f"{key} acknowledged {known.received} of {storage.log.released}"
            raise InvariantViolated("released early", f"{broker.name}: {subject}")


RECOUNTS = (
    Recount(EpochLog, "in_flight", lambda log: log._in_flight, lambda *_: 0),
    Recount(EpochLog, "durable", lambda log: log.durable, lambda log, _: log.assigned),
    Recount(
        EpochLog,
        "retained_bytes",
        lambda log: log.retained_bytes,
        lambda log, _: sum(event.run.payload_bytes() for event in log._events),
    ),
)


class GesReliableReach(Reach):
    """See Reach: demands need a path to every storage, as any storage may receive requests."""

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        return self.starts(source) and self.starts(home)

    def starts(self, home: BrokerNumber) -> bool:
        """See Reach: partitioned units are not tolerated."""
        if not self._is_whole():
            return False
        storages = [broker for broker, _ in hierarchy_from(self._graph.overlay).all_storages]
        return all(super(GesReliableReach, self).reaches(home, each) for each in storages)

    def ends(self, home: BrokerNumber) -> bool:
        """See Reach: ends are durable at a storage."""
        return self.starts(home)

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """See Reach: publications on a storage's disk are acknowledged, whatever the reach."""
        return self.starts(source)

    def _is_whole(self) -> bool:
        """Return True if every unit is connected by the remaining links and brokers inside."""
        hierarchy = hierarchy_from(self._graph.overlay)
        left = [link for link in hierarchy.links if (min(link), max(link)) not in self._broken]
        units: dict[Address, list[BrokerNumber]] = {}
        for broker, address in enumerate(hierarchy.addresses):
            if broker in self._removed:
                continue
            for length in range(len(address)):
                units.setdefault(address[:length], []).append(broker)
        return not any(find_unconnected(left, members) for members in units.values())
