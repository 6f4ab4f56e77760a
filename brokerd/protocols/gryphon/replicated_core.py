"""A core whose disk has copies at other brokers.

The wrapper numbers the writes of the core and sends the writes to the replicas. A write is reported
as durable once a majority of the disks has the write. The core has a disk that never loses anything
while the majority survives. Without replicas there is no wrapper.

Paper: none; [GD02] §4 leaves replicated logging disks to others.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.overlay.topology import Topology
from brokerd.protocols.extensions import CoreWrapper, Farewell
from brokerd.protocols.gryphon.copies import Copies
from brokerd.protocols.gryphon.definition import COPIES, LOG
from brokerd.protocols.gryphon.messages import CopyRequest, CopyState, CopyStored, CopyWrites
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.replicated_state import ReplicatedState, Restoration
from brokerd.protocols.gryphon.replication import (
    COPIES_LINEAGE,
    REPLICATION,
    replicas_of,
)
from brokerd.protocols.gryphon.routes import Routes, cells_of
from brokerd.protocols.gryphon.state import PersistentState
from brokerd.protocols.interface import (
    STATE_RESTORED,
    Append,
    BrokerDecommissioned,
    Change,
    Chop,
    CloseSession,
    Commit,
    CoreStatus,
    DeadlineReached,
    DeliveryProtocol,
    Effect,
    Event,
    Instant,
    LogEnds,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Persisted,
    Read,
    Record,
    RecordsRead,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
    Truncate,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue

LINEAGES: Final = "lineages"
"""Key of the lineage of the state folder, and the one that the core has with it."""
RESTORING: Final = "restoring"
"""Key of the mark that the disk has a part of a restored state, in place of its older state."""
_OFFSET: Final = "offset."
"""Key of the difference between the core's index of a record and the disk's, per log."""
_OWNER: Final = "owner."
"""Key of the latest incarnation of an owner that this replica has stated a copy to, per owner."""
_OWN_TOKENS: Final = 1 << 40
"""Tokens of the wrapper are higher, and the core's are lower."""


class StoringProtocol(DeliveryProtocol, Protocol):
    """A core with the names of tables and logs."""

    persistent: PersistentState


class _Session(NamedTuple):
    number: int
    incarnation: int


class _Reading(NamedTuple):
    """The purpose of a read: of the core, of the copies here, or for the copy of or at a peer."""

    purpose: str
    peer: BrokerNumber = -1


class ReplicatedCore(CoreWrapper):
    """See DeliveryProtocol: a core with replicas, and with copies of other brokers' states.

    Attributes:
        core: the protocol itself.
        copies: the copies of other brokers' states here.
        state: the writes of this broker; None at a broker without clients, which has no replicas.
        restoration: the restoration of lost state; None while there is none.
        serves: clients are served, once sessions with a majority of the disks have proved no loss.
            A broker that lost its disk would refuse a publisher for good that returns before.
            Without these replicas nothing that clients send would be acknowledged.
    """

    def __init__(
        self,
        core: StoringProtocol,
        broker: BrokerNumber,
        topology: Topology,
        parameters: GryphonParameters,
    ) -> None:
        self.core: StoringProtocol = core
        routes = Routes(broker, topology, parameters.pubends)
        graph, replicas = cells_of(topology), parameters.replicas
        self._broker = broker
        self._retry_ns = parameters.retry_first_ns
        self._replicas = replicas
        brokers = replicas_of(broker, routes.neighbours, replicas) if routes.is_host else ()
        self.state = ReplicatedState(broker, brokers, replicas) if routes.is_host else None
        self.copies = Copies(
            [
                host
                for host in routes.hosts
                if host != broker
                and broker in replicas_of(host, graph.surroundings(host), replicas)
            ]
        )
        self.restoration: Restoration | None = None
        self.serves = self.state is None
        self._now_ns: Instant = 0
        self._effects: list[Effect] = []
        self._started: Started
        self._sessions: dict[BrokerNumber, _Session] = {}
        self._deferred: list[Event] = []
        self._unread: dict[str, int] = {}
        self._stated: dict[BrokerNumber, CopyState] = {}
        self._deadlines: DeadlineQueue[BrokerNumber] = DeadlineQueue()
        self._reads: deque[_Reading] = deque()
        self._when_durable: dict[int, Callable[[], None]] = {}
        self._next_token = _OWN_TOKENS
        self._offsets: dict[str, int] = {}
        self._owners: dict[BrokerNumber, int] = {}
        self._latest_owners: dict[BrokerNumber, int] = {}
        self._has_lineage = False
        self._has_dialled = False
        self._writes_sent = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            Started: self._on_started,
            SessionEstablished: self._on_established,
            SessionLost: self._on_lost,
            OpenFailed: self._on_open_failed,
            MessageReceived: self._on_message,
            Persisted: self._on_persisted,
            RecordsRead: self._on_records,
            DeadlineReached: self._on_deadline,
            BrokerDecommissioned: self._on_decommissioned,
        }
        self._messages: dict[type, Callable[[BrokerNumber, Any], None]] = {
            CopyState: self._on_state,
            CopyWrites: self._on_writes,
            CopyStored: self._on_stored,
            CopyRequest: self._on_request,
        }

    # ------------------------------------------------------------ for the driver

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        """See DeliveryProtocol."""
        self._now_ns = now_ns
        try:
            self._handlers.get(type(event), self._step)(event)
        finally:
            effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> Instant | None:
        """See DeliveryProtocol."""
        found = self.core.next_deadline(), self._deadlines.earliest()
        return min((each for each in found if each is not None), default=None)

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol."""
        return self.core.clients_behind()

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol."""
        return self.core.aftermath()

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        return {
            **self.core.statistics(),
            "copies_whole": len(self.copies.whole),
            "replicas_whole": len(self.state.held) if self.state is not None else 0,
            "replication_lag": self.state.lag() if self.state is not None else 0,
            "copy_writes_sent": self._writes_sent,
        }

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol."""
        state = self.state
        if self.restoration is not None and state is not None:
            return CoreStatus(
                state="recovering",
                wanted=state.brokers,
                ready=tuple([each for each in state.brokers if each in self._sessions]),
                idle_reasons=(self.restoration.describe_wait(),),
            )
        status = self.core.status()
        is_waiting = state is not None and (state.lag() or self._deferred)
        waits = state.describe_wait() if state is not None and is_waiting else ""
        return replace(status, idle_reasons=(*status.idle_reasons, waits)) if waits else status

    def detail(self) -> Mapping[str, Any]:
        """See DeliveryProtocol. `replicas`: of this broker's state; `copies`: of other states."""
        replicas = self.state.describe() if self.state is not None else {}
        return {**self.core.detail(), "replicas": replicas, "copies": self.copies.describe()}

    def session_with(self, peer: BrokerNumber) -> int:
        """See CoreWrapper."""
        found = self._sessions.get(peer)
        return found.number if found is not None else 0

    def farewell(self, broker: BrokerNumber) -> Farewell:
        """See DecommissioningProtocol: a broker keeps all replicas."""
        found = super().farewell(broker)
        if found.is_known or self.state is None or broker not in self.state.brokers:
            return found
        return replace(found, refusals=(*found.refusals, "it is a replica of this broker's state"))

    # ------------------------------------------------------------ the core

    def _step(self, event: Event) -> None:
        """Pass an event to the core; queue it during a restoration, a client's before service."""
        if self.restoration is not None or (not self.serves and _is_of_client(event)):
            self._defer(event)
            return
        effects = self.core.handle(event, self._now_ns)
        if self.watch is not None:
            self.watch(event, effects)
        for each in effects:
            self._effects.append(self._on_disk(each))
            if isinstance(each, Truncate):
                self._unread.pop(each.log, None)
        if self.state is not None:
            for peer, message in self.state.on_effects(effects):
                self._send(peer, message)
        self._fill_stated()

    def _on_disk(self, effect: Effect) -> Effect:
        """Return an effect of the core with the indices of the disk."""
        if isinstance(effect, Read):
            self._reads.append(_Reading("core"))
            offset = self._offsets.get(effect.log, 0)
            return replace(effect, first=effect.first - offset, end=effect.end - offset)
        if isinstance(effect, Chop):
            return replace(effect, first=effect.first - self._offsets.get(effect.log, 0))
        if isinstance(effect, Truncate):
            return replace(effect, next=effect.next - self._offsets.get(effect.log, 0))
        self._has_dialled = self._has_dialled or isinstance(effect, OpenSession)
        return effect

    def _defer(self, event: Event) -> None:
        if isinstance(event, SessionLost):
            over = event.peer, event.session
            self._deferred = [each for each in self._deferred if _session_of(each) != over]
        elif not isinstance(event, OpenFailed | DeadlineReached):
            self._deferred.append(event)

    def _send(self, peer: BrokerNumber, message: Any) -> None:
        self._writes_sent += isinstance(message, CopyWrites)
        self._effects.append(Send(peer, message))

    def _when(self, action: Callable[[], None]) -> int:
        """Return a token; `action` is called once the write with the token is durable."""
        self._next_token += 1
        self._when_durable[self._next_token] = action
        return self._next_token

    # ------------------------------------------------------------ start

    def _on_started(self, event: Started) -> None:
        self._started = event
        rows = event.recovered.get(REPLICATION, {})
        self._owners = {
            int(key.removeprefix(_OWNER)): incarnation
            for key, incarnation in rows.items()
            if key.startswith(_OWNER)
        }
        self._latest_owners = {**self._owners}
        self._has_lineage = rows.get(COPIES_LINEAGE, 0) == event.lineage
        self._read_all(self.copies.recover(event.logs[COPIES], is_valid=self._has_lineage))
        if not self._has_lineage:
            change = Change(REPLICATION, COPIES_LINEAGE, event.lineage)
            self._effects.append(Commit((change,), self._when(self._announce_copies)))
        self._dial()
        if event.restores:
            self.restoration = Restoration(self._replicas)
            return
        self._offsets = {
            key.removeprefix(_OFFSET): offset
            for key, offset in rows.items()
            if key.startswith(_OFFSET)
        }
        folder, of_core = rows.get(LINEAGES, (0, 0))
        lineage = of_core if folder == event.lineage else event.lineage
        recovered, logs = event.recovered, _core_logs(event.logs, self._offsets)
        if RESTORING in rows:  # the operator accepts the loss, since too few replicas have answered
            recovered = {}
            logs = {name: LogEnds(ends.first, ends.first) for name, ends in logs.items()}
            self._effects += self._clear()
        self._begin(recovered, logs, lineage, recovering=event.recovering)

    def _clear(self) -> list[Effect]:
        """Return the removal of the part of a restored state."""
        tables, known = self.core.persistent.tables, self._started.recovered
        changes = [Change(table, key, None) for table in tables for key in known.get(table, {})]
        changes.append(Change(REPLICATION, RESTORING, None))
        return [Commit(tuple(changes), None), *_truncate(self._started.logs)]

    def _begin(
        self,
        rows: Mapping[str, Mapping[str, Any]],
        logs: Mapping[str, LogEnds],
        lineage: int,
        *,
        recovering: bool,
    ) -> None:
        event = self._started
        own = {table: rows[table] for table in self.core.persistent.tables if table in rows}
        if self.state is not None:
            self.state.begin(event.incarnation, lineage, own, logs)
        self._started = replace(event, recovered={})
        self._unread = {name: ends.next for name, ends in logs.items() if ends.first < ends.next}
        self._step(
            replace(
                event,
                recovering=recovering,
                recovered=own,
                logs=logs,
                lineage=lineage,
                restores=False,
            )
        )

    def _dial(self) -> None:
        """Open sessions with the replicas until the core opens sessions."""
        if self.state is None or (self._has_dialled and self.restoration is None):
            return
        for peer in self.state.brokers:
            if peer not in self._sessions and peer not in self._deadlines:
                self._effects.append(OpenSession(peer))

    def _announce_copies(self) -> None:
        """Send the owners in session the states of their copies, once all copies are read."""
        self._has_lineage = True  # copies that the disk has lost are not read
        for peer in self._sessions:
            self._announce_copy(peer)

    def _announce_copy(self, peer: BrokerNumber) -> None:
        """State its copy to an owner, once the owner's incarnation is on this disk.

        So a process that restores its state excludes an earlier one, which may run elsewhere.
        """
        session = self._sessions.get(peer)
        if session is None or self._owners.get(peer) != session.incarnation:
            return
        if self._has_lineage and self.copies.is_read:
            self._send(peer, self.copies.state_of(peer))

    # ------------------------------------------------------------ sessions

    def _on_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        self._step(event)
        if isinstance(peer, str):
            return
        session = _Session(event.session, event.incarnation)
        known = self._latest_owners.get(peer, 0)
        if session.incarnation < known:
            reason = f"incarnation {session.incarnation} of an owner, after {known}"
            self._effects.append(CloseSession(peer, reason))
            return
        if session.incarnation > known and peer in self.copies.owners:

            def written() -> None:
                self._owners[peer] = session.incarnation
                self._announce_copy(peer)

            change = Change(REPLICATION, f"{_OWNER}{peer}", session.incarnation)
            self._effects.append(Commit((change,), self._when(written)))
            self._latest_owners[peer] = session.incarnation
        self._sessions[peer] = session
        self._deadlines.cancel(peer)
        self._announce_copy(peer)
        if self.restoration is not None or self.serves or self.state is None:
            return
        self.serves = self.state.is_majority(self._sessions)
        if self.serves:
            self._pass_deferred()

    def _on_lost(self, event: SessionLost) -> None:
        peer = event.peer
        if isinstance(peer, int) and self.session_with(peer) == event.session:
            del self._sessions[peer]
            self._stated.pop(peer, None)
            if self.restoration is not None:
                self.restoration.on_session_end(peer)
                self._restore()
            elif self.state is not None:
                self.state.on_session_end(peer)
            self._retry(peer)
        self._step(event)

    def _on_open_failed(self, event: OpenFailed) -> None:
        self._retry(event.peer)
        self._step(event)

    def _retry(self, peer: Peer) -> None:
        if isinstance(peer, int) and self.state is not None and peer in self.state.brokers:
            self._deadlines.set(peer, self._now_ns + self._retry_ns)

    def _on_deadline(self, event: DeadlineReached) -> None:
        if self._deadlines.due(self._now_ns):
            self._dial()
        due = self.core.next_deadline()
        if due is not None and due <= self._now_ns:
            self._step(event)

    def _on_decommissioned(self, event: BrokerDecommissioned) -> None:
        if entries := self.copies.drop(event.broker):
            self._effects.append(Append(COPIES, tuple(entries), None))
            self._effects += self.copies.release()
        self._step(event)

    # ------------------------------------------------------------ messages

    def _on_message(self, event: MessageReceived) -> None:
        handler = self._messages.get(type(event.message))
        if handler is None:
            self._step(event)
            return
        peer = event.peer
        if isinstance(peer, str):
            raise RemoteProtocolError(peer, f"{type(event.message).__name__} is not for a client")
        if self.session_with(peer) == event.session:
            handler(peer, event.message)

    def _owned(self, peer: BrokerNumber, owner: BrokerNumber) -> ReplicatedState:
        """Return the state here that a replica's message is about.

        Raises:
            RemoteProtocolError: the peer is no replica of this broker.
        """
        if self.state is None or owner != self._broker or peer not in self.state.brokers:
            raise RemoteProtocolError(peer, f"no replica of broker {owner} here")
        return self.state

    def _on_state(self, peer: BrokerNumber, message: CopyState) -> None:
        state = self._owned(peer, message.owner)
        if self.restoration is None:
            state.check(peer, message, is_stated=peer in self._stated)
            self._stated[peer] = message
            self._fill_stated()
            return
        self.restoration.on_state(peer, message)
        self._restore()

    def _fill_stated(self) -> None:
        """Begin to fill the copies that replicas have stated, once the core has read its logs.

        The core truncates a log while it reads the log. A replica with the truncated records would
        keep them in the places of later records.
        """
        if self.state is None or not (self._unread or self._stated):
            return
        if self._unread and any(each.purpose == "core" for each in self._reads):
            return
        self._unread.clear()
        stated, self._stated = self._stated, {}
        for peer, message in stated.items():
            self._send(peer, self.state.on_state(peer, message))

    def _on_writes(self, peer: BrokerNumber, message: CopyWrites) -> None:
        if message.owner != peer:
            self._on_restored(peer, message)
            return
        self.copies.check(peer, self._sessions[peer].incarnation, message)
        entries, acknowledgement = self.copies.on_writes(peer, message)
        token = None
        if message.is_awaited:
            answer = partial(self._answer, peer, self._sessions[peer], acknowledgement.message)
            token = self._when(answer)
        if entries or token is not None:
            self._effects.append(Append(COPIES, tuple(entries), token))
        self._effects += self.copies.release()

    def _answer(self, peer: BrokerNumber, session: _Session, message: Any) -> None:
        """Send an answer, unless the session of the request has ended."""
        if self._sessions.get(peer) == session:
            self._send(peer, message)

    def _on_stored(self, peer: BrokerNumber, message: CopyStored) -> None:
        if message.owner == peer:
            self.copies.on_stored(peer)
            self._send_copy(peer)
            return
        state = self._owned(peer, message.owner)
        if state.on_stored(peer, message):
            self._fill(peer, state)
        for token in state.take_durable():
            self._step(Persisted(token))

    def _fill(self, peer: BrokerNumber, state: ReplicatedState) -> None:
        following = state.fill_next(peer)
        if isinstance(following, Read):
            offset = self._offsets.get(following.log, 0)
            self._reads.append(_Reading("fill", peer))
            self._effects.append(
                replace(following, first=following.first - offset, end=following.end - offset)
            )
        else:
            self._send(peer, following)

    def _on_request(self, peer: BrokerNumber, message: CopyRequest) -> None:
        self._send(peer, self.copies.on_request(peer, message.term))

    def _send_copy(self, peer: BrokerNumber) -> None:
        """Send the next part of a copy back to the owner."""
        following = self.copies.send_next(peer)
        if isinstance(following, Read):
            self._reads.append(_Reading("transfer", peer))
            self._effects.append(following)
        elif following is not None:
            self._send(peer, following)

    def _pass_deferred(self) -> None:
        """Pass the queued events to the core; a client's stay queued before service."""
        deferred, self._deferred = self._deferred, []
        for each in deferred:
            try:
                self._step(each)
            except RemoteProtocolError as error:
                assert isinstance(each, MessageReceived), f"{each} was refused"
                self._effects.append(CloseSession(each.peer, error.reason))

    # ------------------------------------------------------------ disk

    def _read_all(self, effects: Sequence[Effect]) -> None:
        """Emit the reads of the copies here."""
        for each in effects:
            if isinstance(each, Read):
                self._reads.append(_Reading("copies"))
            self._effects.append(each)

    def _on_records(self, event: RecordsRead) -> None:
        purpose, peer = self._reads.popleft()
        if purpose == "core":
            first = event.first + self._offsets.get(event.log, 0)
            if first + len(event.records) >= self._unread.get(event.log, first):
                self._unread.pop(event.log, None)
            self._step(replace(event, first=first))
        elif purpose == "copies":
            self._read_all(self.copies.on_page(event.first, event.records))
            self._announce_copies()
        elif purpose == "fill":
            assert self.state is not None, "a fill without a state to copy"
            first = event.first + self._offsets.get(event.log, 0)
            message = self.state.on_page(peer, event.log, first, event.records)
            if message is not None:
                self._send(peer, message)
                if self.state.can_fill(peer):
                    self._fill(peer, self.state)
        else:
            message = self.copies.on_places(peer, event.first, event.records)
            if message is not None:
                self._send(peer, message)
                self._send_copy(peer)

    def _on_persisted(self, event: Persisted) -> None:
        if event.token > _OWN_TOKENS:
            self._when_durable.pop(event.token)()
        elif self.state is None:
            self._step(event)
        else:
            for token in self.state.on_persisted(event.token):
                self._step(Persisted(token))

    # ------------------------------------------------------------ restoring lost state

    def _restore(self) -> None:
        """Request a copy of the lost state once enough replicas have answered."""
        assert self.restoration is not None, "nothing is lost"
        chosen = self.restoration.choose()
        source = self.restoration.source
        if chosen is None or source is None:
            return
        action = partial(self._request, source, self._sessions[source], chosen.term)
        change = Change(REPLICATION, RESTORING, True)
        self._effects.append(Commit((change,), self._when(action)))

    def _request(self, source: BrokerNumber, session: _Session, term: int) -> None:
        """Request a copy, once the disk is marked as incomplete."""
        if self._sessions.get(source) == session:
            self._effects += _truncate(self._started.logs)
            self._send(source, CopyRequest(term))

    def _on_restored(self, peer: BrokerNumber, message: CopyWrites) -> None:
        """Take a part of the lost state."""
        restoration = self.restoration
        if restoration is None or message.owner != self._broker or peer != restoration.source:
            raise RemoteProtocolError(peer, f"a copy of broker {message.owner} was not requested")
        try:
            self._effects += restoration.on_writes(message)
        except ValueError as error:
            raise RemoteProtocolError(peer, f"a copy of no valid content: {error}") from None
        stored = CopyStored(self._broker, message.term, message.position)
        action: Callable[[], None] = partial(self._answer, peer, self._sessions[peer], stored)
        if restoration.is_whole:
            action = self._write_restored
        self._effects.append(Append(LOG, (), self._when(action)))

    def _write_restored(self) -> None:
        """Write the restored rows in a single transaction, after the records."""
        restoration, event = self.restoration, self._started
        assert restoration is not None, "nothing was restored"
        known = event.recovered
        changes = [
            Change(table, key, None)
            for table in self.core.persistent.tables
            for key in known.get(table, {})
            if (table, key) not in restoration.rows
        ]
        changes += [Change(*place, value) for place, value in restoration.rows.items()]
        changes.append(Change(REPLICATION, RESTORING, None))
        changes.append(Change(REPLICATION, LINEAGES, [event.lineage, restoration.lineage]))
        for name, ends in event.logs.items():
            if name != COPIES:
                offset = restoration.logs.get(name, LogEnds()).first - ends.first
                self._offsets[name] = offset
                changes.append(Change(REPLICATION, f"{_OFFSET}{name}", offset))
        self._effects.append(Commit(tuple(changes), self._when(self._finish_restoration)))

    def _finish_restoration(self) -> None:
        """Start the core with the restored state, and handle the queued events."""
        restoration = self.restoration
        assert restoration is not None, "nothing was restored"
        self.restoration = None
        rows: dict[str, dict[str, Any]] = {}
        for (table, key), value in restoration.rows.items():
            rows.setdefault(table, {})[key] = value
        logs = {
            name: restoration.logs.get(name, LogEnds())
            for name in self._started.logs
            if name != COPIES
        }
        details = {"replica": restoration.source, "rows": len(restoration.rows)}
        records = sum(ends.next - ends.first for ends in logs.values())
        self._effects.append(Record(STATE_RESTORED, {**details, "records": records}))
        self.serves = True  # sessions with more replicas than a majority needs are established
        self._begin(rows, logs, restoration.lineage, recovering=True)
        self._pass_deferred()
        assert self.state is not None, "restored without a state to copy"
        self._stated |= restoration.answers
        self._fill_stated()


def _is_of_client(event: Event) -> bool:
    """Return True for an event of a session with a client."""
    if isinstance(event, SessionEstablished | MessageReceived | SessionLost):
        return isinstance(event.peer, str)
    return False


def _truncate(logs: Mapping[str, LogEnds]) -> list[Effect]:
    """Return the removal of all records of the core that the disk had at the start."""
    return [Truncate(name, ends.first) for name, ends in logs.items() if name != COPIES]


def _core_logs(logs: Mapping[str, LogEnds], offsets: Mapping[str, int]) -> dict[str, LogEnds]:
    """Return the ends of the core's logs at the start, with the core's indices."""
    found = {}
    for name, ends in logs.items():
        if name != COPIES:
            offset = offsets.get(name, 0)
            found[name] = LogEnds(ends.first + offset, ends.next + offset)
    return found


def _session_of(event: Event) -> tuple[Peer, int] | None:
    """Return the peer and session of an event; None for an event without a session."""
    if isinstance(event, SessionEstablished | MessageReceived):
        return event.peer, event.session
    return None
