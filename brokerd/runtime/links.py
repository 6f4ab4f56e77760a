"""The links of one broker: incoming connections, dialled connections, and their faults.

The session table decides on sessions; the core receives exactly one SessionLost per
SessionEstablished, and nothing of a session after its SessionLost.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

import trio

from brokerd.config import SessionParameters
from brokerd.errors import RemoteProtocolError, reason_of
from brokerd.model.client_messages import Detach, Publish
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import (
    LossReason,
    MessageReceived,
    OpenFailed,
    SessionEstablished,
    SessionLost,
)
from brokerd.runtime.admission_control import (
    AdmissionControl,
    AdmittedConnection,
    PublishingRate,
    RefusalLog,
)
from brokerd.runtime.connection import Connection, Post, clock_ns
from brokerd.runtime.impairments import Impairments
from brokerd.runtime.streams import (
    Dial,
    accept_next,
    close_stream,
    dial_tcp,
    drop_stream,
    first_message,
    peer_address,
)
from brokerd.runtime.tls import TlsError, identity_of
from brokerd.sessions.failure_detector import FaultBackoff, check_interval_ns
from brokerd.sessions.messages import Farewell, Hello, StateAdvanced, StateMark
from brokerd.sessions.session import DEPARTED, Accepted, Session, SessionState, SessionTable
from brokerd.sessions.state_marks import StateWitness
from brokerd.units import MILLISECOND_NS, SECOND_NS
from brokerd.wire.codec import encode
from brokerd.wire.fast_path import StraightReader

HANDSHAKE_S: Final = 5.0
STUCK_REMEMBERED: Final = 1_000
STUCK = "slow consumer: it took nothing of what waited for it, so its subscriptions have ended"
SHORTEST_PAUSE_NS: Final = 5 * MILLISECOND_NS
CLIENT_STATE_NS: Final = 5 * SECOND_NS
"""Interval of state marks to clients: there may be thousands of them."""

RecordEvent = Callable[[str, dict[str, Any]], None]
Welcome = Callable[[trio.abc.Stream], Awaitable[trio.abc.Stream]]
"""Secures an accepted stream, or closes the stream and raises the reason."""

PAUSES: Final = "a pause after protocol errors"
"""Reason of a refusal: earlier sessions of the peer ended with protocol errors."""


class Links:
    """All connections of one broker.

    Messages go to `post` directly, and a driver writes to connections by itself, except while
    faults are active or a publishing rate is limited.

    Attributes:
        connections: by peer; messages of the core are sent on these.
        counters: sessions and bytes, for statistics.
        obstacles: by broker without a session, the reason of the latest failed attempt, unless no
            connection was made.
        faults: faults added by `fault_apply`; `faults_changed` must follow each change.
        reached_by: called with the broker that has opened a session, or has probed this broker.
        count_writes: counts the durable writes of this broker so far, before its state is marked.
        on_loss: ends this broker, with the cause and the highest recorded incarnation, if a
            neighbour proves that it lost state.
        keep_witness: stores the changed marks of neighbours.
    """

    def __init__(
        self,
        table: SessionTable,
        parameters: SessionParameters,
        addresses: Mapping[BrokerNumber, str],
        post: Post,
        record: RecordEvent,
        *,
        is_recovering: Callable[[], bool] = lambda: False,
        clients_behind: Callable[[], Collection[str]] = tuple,
        dial: Dial = dial_tcp,
        welcome: Welcome | None = None,
        descriptors: int | None = None,
    ) -> None:
        self._impairments = Impairments()
        self.faults = self._impairments.faults
        self.counters = {
            "sessions_established": 0,
            "sessions_lost": 0,
            "broker_sessions_lost": 0,
            "sessions_silent": 0,
            "connections_refused": 0,
            "outbox_overflows": 0,
            "slow_consumers": 0,
            "publishers_slowed": 0,
        }
        self._table = table
        self._parameters = parameters
        self._addresses = addresses
        self._post = post
        self._record = record
        self._is_recovering = is_recovering
        self._clients_behind = clients_behind
        self._dial_stream = dial
        self._secure = welcome
        self._admission = AdmissionControl(parameters, descriptors)
        per_second = parameters.client_publications_per_second
        self._publishing = PublishingRate(per_second) if per_second else None
        self._stuck: dict[str, None] = {}
        self._refusals = RefusalLog()
        self.reached_by: Callable[[BrokerNumber], None] = lambda _peer: None
        self.count_writes: Callable[[], None] = lambda: None
        self.on_loss: Callable[[str, int], None] = lambda _cause, _incarnation: None
        self.keep_witness: Callable[[], None] = lambda: None
        self._marked: dict[Connection, tuple[StateMark, StateMark | None]] = {}
        self._backoff = FaultBackoff()
        self.connections: dict[Peer, Connection] = {}
        self.obstacles: dict[BrokerNumber, str] = {}
        self._attempts: dict[BrokerNumber, trio.CancelScope] = {}
        self._open_streams = 0
        self._stopping = False
        self._nursery: trio.Nursery

    # ------------------------------------------------------------ life

    async def run(
        self,
        listeners: list[trio.abc.Listener[Any]],
        on_fault_expired: Callable[[str], None] = lambda _: None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; started once connections can be opened."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._maintain_sessions, on_fault_expired)
            for listener in listeners:
                self._nursery.start_soon(self._accept, listener)
            task_status.started()

    async def stop(self) -> None:
        """End all sessions and refuse new connections; waits a moment for last words."""
        self._stopping = True
        for scope in list(self._attempts.values()):
            scope.cancel()
        for connection in list(self.connections.values()):
            connection.end("closed_by_us", Farewell("stopping", "the broker is being stopped"))
        with trio.move_on_after(2.0):
            while self._open_streams:
                await trio.sleep(0.01)

    # ------------------------------------------------------------ requests of the core

    def open(self, peer: BrokerNumber) -> None:
        """Try once to open a session; no effect if there is a session or an attempt."""
        attempt = None if self._stopping else self._table.open(peer)
        if attempt is not None:
            # Registered now, because the attempt may be cancelled before its task has run at all.
            self._attempts[peer] = scope = trio.CancelScope()
            self._nursery.start_soon(self._dial, attempt, scope)

    def close(self, peer: Peer, reason: str) -> None:
        """End the peer's session or attempt; no effect if there is neither."""
        connection = self.connections.get(peer)
        if connection is not None:
            connection.end("closed_by_us", Farewell("stopping", reason[:300]))
        elif peer in self._attempts:
            assert isinstance(peer, int), f"an attempt to open a session with {peer!r}"
            self._attempts[peer].cancel()

    def forget(self, peer: BrokerNumber) -> None:
        """Remove a broker that has left the tree.

        Its session, its attempt, and all records of either.
        """
        self.close(peer, DEPARTED)
        self._table.forget(peer)
        self._backoff.forget(peer)

    def refuse(self, peer: Peer, session: int, reason: str) -> None:
        """End a session after a protocol error of the peer."""
        self._record("protocol_error", {"peer": self._name(peer), "reason": reason})
        connection = self.connections.get(peer)
        if connection is not None and connection.session.number == session:
            connection.end("protocol_error", Farewell("fault", reason))

    # ------------------------------------------------------------ queries

    def addresses_of(self, brokers: Sequence[BrokerNumber]) -> tuple[str, ...]:
        """Return the listening addresses of these brokers, in order, without unknown ones."""
        return tuple(self._addresses[each] for each in brokers if each in self._addresses)

    def waiting_bytes(self) -> int:
        """Return the number of bytes queued for all peers."""
        return sum(each.outbox.waiting_bytes for each in self.connections.values())

    @property
    def witness(self) -> StateWitness:
        """The newest state mark of each neighbour."""
        return self._table.witness

    def session_peers(self) -> list[Peer]:
        return list(self.connections)

    def can_exchange(self, peer: Peer) -> bool:
        """Return True if a peer has a session that is no black hole in either direction."""
        connection = self.connections.get(peer)
        return connection is not None and not (
            connection.inward.blackholed or connection.outward.blackholed
        )

    async def probe(self, peer: BrokerNumber) -> str | None:
        """Return None if a session with a broker would be possible, or the obstacle."""
        with trio.move_on_after(self._parameters.connect_timeout_ns / SECOND_NS):
            try:
                await self._impairments.wait_passable(peer)
                stream = await self._dial_stream(self._address(peer))
                async with stream:
                    if (impostor := self._table.impostor(peer, identity_of(stream))) is not None:
                        return impostor
                    await stream.send_all(b"".join(encode(self._table.probe_hello())))
                    answer = await first_message(stream, StraightReader())
            except (OSError, trio.BrokenResourceError, RemoteProtocolError) as error:
                return reason_of(error)
            if isinstance(answer, Farewell):
                self._table.on_refusal(peer, answer)
                self._end_on_loss()
                return answer.reason
            return self._table.on_probe_answer(peer, answer)
        return "no answer in time"

    # ------------------------------------------------------------ faults

    def faults_changed(self) -> None:
        """Apply the active faults to sessions, attempts and held messages."""
        for connection in list(self.connections.values()):
            self._impair(connection)
            if connection.inward.cut:
                self._record("link_cut", {"peer": self._name(connection.peer)})
                connection.end("closed_by_peer")
        for broker, scope in list(self._attempts.items()):
            if self.faults.treatment(broker, "out").cut:
                scope.cancel()
        released = self._impairments.release()
        if released:
            self._post(released)
        for connection in self.connections.values():
            connection.wake()
        for stream in self._impairments.unpark():
            self._close_soon(stream)

    def _impair(self, connection: Connection) -> None:
        """Apply the active faults to a connection, and bypass this object if there is none."""
        self._impairments.act_on(connection)
        impaired = len(self.faults) > 0
        is_limited = self._publishing is not None and isinstance(connection.peer, str)
        connection.post = None if impaired or is_limited else self._post
        connection.on_sent = self._impairments.count_outgoing if impaired else None

    # ------------------------------------------------------------ events of connections

    def received(
        self, connection: Connection, events: list[MessageReceived], size_bytes: int
    ) -> None:
        if len(self.faults):
            self._impairments.count_incoming(connection, events, size_bytes)
        if self._publishing is not None and isinstance(connection.peer, str):
            self._count_published(self._publishing, connection.peer, events)
        if not connection.inward.absorbs:
            self._post(events)
            return
        if self._impairments.absorb(connection, events, size_bytes):
            held_bytes = self._impairments.absorbed.held_bytes
            self._record("absorb_full", {"held_bytes": held_bytes})

    def refill(self, connection: Connection) -> None:
        """See connection.Owner: the core has queued all messages already."""

    def can_read(self, connection: Connection) -> bool:
        peer, publishing = connection.peer, self._publishing
        if publishing is not None and isinstance(peer, str):
            may_publish = not publishing.has_to_wait(peer, clock_ns())
        else:
            may_publish = True
        return may_publish and not (connection.inward.absorbs and self._impairments.is_full)

    def _count_published(
        self, publishing: PublishingRate, client: str, events: list[MessageReceived]
    ) -> None:
        runs = [each.message.run for each in events if isinstance(each.message, Publish)]
        now_ns = clock_ns()
        did_wait = publishing.has_to_wait(client, now_ns)
        publishing.sent(client, sum(map(len, runs)), now_ns)
        if publishing.has_to_wait(client, now_ns) and not did_wait:
            self.counters["publishers_slowed"] += 1
            self._record_refusal("publisher_slowed", {"client": client})

    def on_ended(self, connection: Connection, reason: LossReason) -> None:
        peer, session = connection.peer, connection.session
        del self.connections[peer]
        self._marked.pop(connection, None)
        farewell = connection.farewell
        is_fault = farewell is not None and farewell.kind == "fault"
        if isinstance(peer, int) and (reason == "protocol_error" or is_fault):
            self._backoff.note(peer, clock_ns())
        if session.state is not SessionState.CLOSED:
            self._table.close(session)
        self._impairments.absorbed.take(lambda owner: owner is connection)
        self.counters["sessions_lost"] += 1
        self.counters["broker_sessions_lost"] += isinstance(peer, int)
        self.counters["sessions_silent"] += reason == "silent"
        self.counters["outbox_overflows"] += reason == "overflow"
        if len(self.faults):
            self._impairments.count_ended(connection)
        self._record(
            "session_lost",
            {"peer": self._name(peer), "session": session.number, "reason": reason},
        )
        lost = SessionLost(peer, session.number, reason)
        if not connection.is_stuck:
            self._post([lost])
            return
        assert isinstance(peer, str), f"broker {peer} is not evicted for being slow"
        self.counters["slow_consumers"] += 1
        self._record("slow_consumer_put_out", {"peer": peer, "session": session.number})
        self._stuck[peer] = None
        if len(self._stuck) > STUCK_REMEMBERED:
            del self._stuck[next(iter(self._stuck))]
        # Subscriptions kept for its return would hold up the publications of all other clients.
        leaves = Detach(drain=False, done_through=0)
        self._post([MessageReceived(peer, session.number, leaves), lost])

    # ------------------------------------------------------------ sessions

    async def _serve(
        self,
        session: Session,
        stream: trio.abc.Stream,
        decoder: StraightReader,
        answer: Hello | None,
    ) -> None:
        """Serve an established session to its end, and close its stream."""
        connection = Connection(stream, session, decoder, self._parameters, self)
        peer = session.peer
        assert peer not in self.connections, f"two sessions with {peer!r}"
        if answer is not None:
            connection.outbox.greet()
            connection.send(answer)
        if isinstance(peer, int):
            connection.on_state_advanced = self._state_advanced
        self.connections[peer] = connection
        if isinstance(peer, int):
            self._note_obstacle(peer, "")
        self._impair(connection)
        self.counters["sessions_established"] += 1
        self._record(
            "session_established",
            {
                "peer": self._name(peer),
                "session": session.number,
                "incarnation": session.incarnation,
                "opened": answer is None,
            },
        )
        self._post([SessionEstablished(peer, session.number, session.incarnation)])
        try:
            await connection.serve()
        finally:
            if connection.outward.blackholed:
                self._park(peer, stream)
            else:
                await close_stream(stream)

    async def _dial(self, attempt: Session, scope: trio.CancelScope) -> None:
        """Carry out an attempt; serves the resulting session."""
        peer = attempt.peer
        assert isinstance(peer, int), f"an attempt to open a session with {peer!r}"
        pause_s = self._backoff.remaining_ns(peer, clock_ns()) / SECOND_NS
        timeout_s = self._parameters.connect_timeout_ns / SECOND_NS
        scope.deadline = trio.current_time() + pause_s + timeout_s
        stream: trio.abc.Stream | None = None
        decoder = StraightReader()
        reason: str | None = "no answer in time"
        is_down = False
        with scope:
            await trio.sleep(pause_s)
            try:
                await self._impairments.wait_passable(peer)
                stream = await self._dial_stream(self._address(peer))
                self._open_streams += 1
                # An attempt that was cancelled while connecting is closed, and must not send a
                # Hello.
                await trio.lowlevel.checkpoint_if_cancelled()
                reason = await self._shake_hands(attempt, stream, decoder)
            except (OSError, trio.BrokenResourceError, RemoteProtocolError) as error:
                reason = reason_of(error)
                is_down = not isinstance(error, TlsError | RemoteProtocolError)
        if self._attempts.get(peer) is scope:
            del self._attempts[peer]
        try:
            if attempt.state is SessionState.ESTABLISHED and stream is not None:
                await self._serve(attempt, stream, decoder, None)
                return
            if attempt.state is not SessionState.CLOSED:
                self._table.close(attempt)
                self._post([OpenFailed(peer, reason or "cancelled")])
                self._note_obstacle(peer, "" if is_down else reason or "")
            if stream is not None:
                await trio.aclose_forcefully(stream)
        finally:
            self._open_streams -= stream is not None

    def _note_obstacle(self, peer: BrokerNumber, reason: str) -> None:
        """Record the reason for which the latest attempt failed; "" for none to report."""
        if reason:
            self.obstacles[peer] = reason
        else:
            self.obstacles.pop(peer, None)

    def _address(self, peer: BrokerNumber) -> str:
        """Return the listening address of a broker.

        Raises:
            ConnectionRefusedError: the broker has left the tree since the attempt began.
        """
        address = self._addresses.get(peer)
        if address is None:
            raise ConnectionRefusedError(DEPARTED)
        return address

    async def _shake_hands(
        self, attempt: Session, stream: trio.abc.Stream, decoder: StraightReader
    ) -> str | None:
        """Send a Hello and establish the attempt by the answer; return the obstacle, or None."""
        assert isinstance(attempt.peer, int), f"an attempt to open a session with {attempt.peer!r}"
        impostor = self._table.impostor(attempt.peer, identity_of(stream))
        if impostor is not None:
            return impostor
        self._table.own.recovering = self._is_recovering()
        self.count_writes()
        await stream.send_all(b"".join(encode(self._table.hello(attempt))))
        answer = await first_message(stream, decoder)
        await self._impairments.wait_passable(attempt.peer)
        if isinstance(answer, Farewell) and answer.kind == "crossed":
            # The other end's own attempt resolves this one, or the timeout does.
            await trio.sleep_forever()
        if isinstance(answer, Farewell):
            self._table.on_refusal(attempt.peer, answer)
            self._end_on_loss()
            return answer.reason
        if attempt.state is SessionState.CLOSED:
            return None
        refusal = self._table.on_answer(attempt, answer)
        if refusal is None:
            return None
        self._record_refusal("hello_refused", {"name": answer.name[:100], "reason": refusal.reason})
        await stream.send_all(b"".join(encode(refusal)))
        self._end_on_loss()
        return refusal.reason

    async def _accept(self, listener: trio.abc.Listener[Any]) -> None:
        async with listener:
            while True:
                stream = await accept_next(listener.accept, self._record_accept_failure)
                patience = trio.CancelScope()
                admitted = None
                if not self._stopping:
                    admitted = self._admission.admit(peer_address(stream), patience.cancel)
                if admitted is None:
                    self.counters["connections_refused"] += 1
                    await drop_stream(stream)
                else:
                    self._nursery.start_soon(self._welcome, stream, admitted, patience)

    async def _welcome(
        self, stream: trio.abc.Stream, admitted: AdmittedConnection, patience: trio.CancelScope
    ) -> None:
        """Handle the handshake of an incoming connection; serves the resulting session."""
        self._open_streams += 1
        decoder = StraightReader()
        hello: Any = None
        try:
            patience.deadline = trio.current_time() + HANDSHAKE_S
            try:
                with patience:
                    if self._secure is not None:
                        stream = await self._secure(stream)
                    hello = await first_message(stream, decoder)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the other end closed before its Hello
            except TlsError as error:
                self._record_refusal("stranger_refused", {"reason": str(error)})
            except RemoteProtocolError as error:
                self._record_refusal("stranger_refused", {"reason": error.reason})
            finally:
                admitted.on_handshake_end()
            has_place = isinstance(hello, Hello) and self._admission.can_stay(
                hello.role != "client"
            )
            if has_place:
                await self._decide(hello, stream, decoder)
            else:
                self.counters["connections_refused"] += 1
                await drop_stream(stream)
        except trio.Cancelled:
            await trio.aclose_forcefully(stream)
            raise
        finally:
            admitted.left()
            self._open_streams -= 1

    def _record_accept_failure(self, error: OSError) -> None:
        self._record_refusal("accept_failed", {"reason": str(error)})

    def _record_refusal(self, event: str, details: dict[str, Any]) -> None:
        recorded = self._refusals.extend(details, int(trio.current_time()))
        if recorded is not None:
            self._record(event, recorded)

    async def _decide(self, hello: Hello, stream: trio.abc.Stream, decoder: StraightReader) -> None:
        claimed: Peer = hello.name if hello.role == "client" else hello.number
        if self._impairments.is_blackholed(claimed):
            self._park(claimed, stream)
            return
        if self._stopping or self.faults.treatment(claimed, "in").cut:
            self.faults.count(claimed, "both", refused_connections=1)
            await trio.aclose_forcefully(stream)
            return
        self._table.own.recovering = self._is_recovering()
        self.count_writes()
        if hello.role == "broker" and self._backoff.remaining_ns(hello.number, clock_ns()):
            decision: Accepted | Farewell = Farewell("refused", PAUSES)
        else:
            decision = self._table.accept(hello, identity_of(stream))
        stuck = hello.role == "client" and hello.name in self._stuck
        if stuck and isinstance(decision, Accepted) and decision.session is not None:
            # The client must be notified once: its subscriptions cannot simply continue behind a
            # gap.
            del self._stuck[hello.name]
            self._table.close(decision.session)
            decision = Farewell("refused", STUCK)
        if isinstance(decision, Accepted) and hello.role != "client":
            self.reached_by(hello.number)
        if isinstance(decision, Accepted) and decision.session is not None:
            self._end_replaced(decision)
            await self._serve(decision.session, stream, decoder, decision.answer)
            return
        if isinstance(decision, Farewell):
            self.counters["connections_refused"] += 1
            if decision.kind != "crossed":
                details = {"name": hello.name[:100], "reason": decision.reason}
                self._record_refusal("hello_refused", details)
        answer = decision.answer if isinstance(decision, Accepted) else decision
        with trio.move_on_after(HANDSHAKE_S):
            try:
                await stream.send_all(b"".join(encode(answer)))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # it did not wait for the answer
        self._end_on_loss()
        await close_stream(stream)

    # ------------------------------------------------------------ durable state

    def _end_on_loss(self) -> None:
        """End this broker if a neighbour has proved that it lost durable state."""
        if self._table.loss:
            self.on_loss(self._table.loss, self._table.lost_incarnation)

    def _state_advanced(self, peer: Peer, message: StateAdvanced) -> str | None:
        """Take the durable state that a neighbour reports.

        Return the fault in the report, or None.
        """
        fault = self._table.on_state_advance(peer, message.mark, message.witnessed)
        self._end_on_loss()
        return fault

    def _send_state(self, connection: Connection) -> None:
        """Send the marks of this broker and of the neighbour, if changed; a client has none."""
        ledger, peer = self._table.own.ledger, connection.peer
        if ledger is None:
            return
        known = self._table.witness.marks.get(peer) if isinstance(peer, int) else None
        marks = ledger.mark(), known
        if self._marked.get(connection) != marks:
            self._marked[connection] = marks
            connection.send(StateAdvanced(*marks))

    def _park(self, peer: Peer, stream: trio.abc.Stream) -> None:
        oldest = self._impairments.park(peer, stream)
        if oldest is not None:
            self._close_soon(oldest)

    def _close_soon(self, stream: trio.abc.Stream) -> None:
        self._nursery.start_soon(trio.aclose_forcefully, stream)

    def _end_replaced(self, decision: Accepted) -> None:
        """End the session and the attempt that a newly accepted session replaces."""
        if decision.abandons is not None:
            peer = decision.abandons.peer
            assert isinstance(peer, int), f"an attempt to open a session with {peer!r}"
            # The new session resolves the attempt.
            scope = self._attempts.pop(peer, None)
            if scope is not None:
                scope.cancel()
        if decision.replaces is not None:
            old = self.connections[decision.replaces.peer]
            if isinstance(old.peer, str):
                old.end("closed_by_us", Farewell("superseded", "a newer session of this name"))
            else:
                old.end("closed_by_peer")

    async def _maintain_sessions(self, on_fault_expired: Callable[[str], None]) -> None:
        """Send heartbeats, detect silence, end faults with an expired lease."""
        tick_ns = check_interval_ns(self._parameters)
        next_beat_ns = clock_ns()
        waited_since_ns = clock_ns()
        clients_due_ns = 0
        while True:
            now_ns = clock_ns()
            due_ns = [each.detector.due_ns for each in self.connections.values()]
            wake_ns = min([now_ns + tick_ns, *due_ns])
            await trio.sleep_until(max(wake_ns, now_ns + SHORTEST_PAUSE_NS) / SECOND_NS)
            now_ns = clock_ns()
            beats = now_ns + tick_ns // 2 >= next_beat_ns
            if beats:
                next_beat_ns = now_ns + self._parameters.heartbeat_ns
                # Time in which this process was stopped is not charged to any client.
                waited_ns = min(now_ns - waited_since_ns, 2 * self._parameters.heartbeat_ns)
                waited_since_ns = now_ns
                for name in self._clients_behind():
                    if name in self.connections:
                        self.connections[name].wait_for_progress(waited_ns)
                self.count_writes()
                self.keep_witness()
            marks_clients = beats and now_ns >= clients_due_ns
            if marks_clients:
                clients_due_ns = now_ns + CLIENT_STATE_NS
            for connection in list(self.connections.values()):
                if beats:
                    if marks_clients or isinstance(connection.peer, int):
                        self._send_state(connection)
                    connection.beat()
                connection.check(now_ns)
            for name in self._publishing.clients_within_rate(now_ns) if self._publishing else ():
                if name in self.connections:
                    self.connections[name].wake()
            for fault_id in self.faults.list_expired(now_ns):
                on_fault_expired(fault_id)

    def _name(self, peer: Peer) -> str:
        return peer if isinstance(peer, str) else self._table.own.names.get(peer, f"#{peer}")
