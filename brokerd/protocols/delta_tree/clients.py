"""The clients of a broker: attachment, publishing, subscribing, and state after their departure.

Paper: none; [DFT11] does not cover clients.
"""

from collections.abc import Mapping
from functools import partial

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Acknowledge,
    CommitConsumed,
    Connect,
    Consume,
    Detach,
    Publish,
    Subscribe,
    Unsubscribe,
)
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.losses import is_stream_marker, stream_marker
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.definition import LOG
from brokerd.protocols.delta_tree.forwarding import Publications
from brokerd.protocols.delta_tree.home_subscriptions import Client, HomeSubscriptions
from brokerd.protocols.delta_tree.publication_log import PublicationLog
from brokerd.protocols.delta_tree.regions import raise_cut
from brokerd.protocols.delta_tree.state import (
    ATTACHED,
    LocalSubscription,
    Phase,
    Rows,
    State,
    former_change,
    read_home_table,
    subscription_change,
)
from brokerd.protocols.delta_tree.subscriptions import Subscriptions
from brokerd.protocols.interface import Change, Commit, LogEnds, RecordsRead
from brokerd.protocols.parts.clients.lost_state import gaps_of_older_copy
from brokerd.protocols.parts.clients.progress import list_unstated
from brokerd.protocols.parts.clients.table import Admission
from brokerd.protocols.parts.event_machine import MessageHandler
from brokerd.protocols.parts.selection import match_run


class Clients:
    """The clients of a broker.

    Attributes:
        table: the clients.
    """

    def __init__(
        self,
        state: State,
        home: HomeSubscriptions,
        subscriptions: Subscriptions,
        publications: Publications,
    ) -> None:
        self.table = home.clients
        self._state = state
        self._home = home
        self._windows = home.windows
        self._subscriptions = subscriptions
        self._publications = publications
        self._queue = publications.queue
        self._sequences = state.sequences
        self._log: PublicationLog | None = None
        if state.parameters.publication_log:
            self._log = PublicationLog(state, publications.queue)
        self._attached: dict[ClientId, int] = {}
        self._deferred: list[tuple[Client, int, Connect]] = []

    def handlers(self) -> dict[type, MessageHandler]:
        return {
            Connect: self._on_connect,
            Subscribe: self.on_subscribe,
            Consume: self.table.on_consume,
            CommitConsumed: self.table.on_commit_consumed,
            Unsubscribe: self._on_unsubscribe,
            Detach: self._on_detach,
            Publish: self._on_publish,
            Acknowledge: self._on_acknowledge,
        }

    def recover(self, recovered: Rows, logs: Mapping[str, LogEnds]) -> None:
        """Restore the state of an earlier incarnation.

        Started subscriptions resume at their positions. Pending ones are issued again under a new
        id after the recovery: confirmations of the old one may still be under way, with
        cuts from before the crash.
        """
        home = read_home_table(self._state.broker, recovered)
        self._attached = home.attached
        self._state.missing_publishers.update(dict.fromkeys(home.attached))
        for local in home.subscriptions:
            self.table.find(local.client).subscriptions[local.number] = local
            if local.phase is Phase.STARTED:
                self._home.open_for_departed(local)
                self._subscriptions.add_local(local, confirmed=True)
                for source, withheld in local.late.items():
                    self._windows.queue_notice(local, source, withheld)
            else:
                # An older copy may lack the start.
                local.is_restarted = bool(self.table.lineage)
                self._home.pending.append(local)
        for name in dict.fromkeys([*self.table.clients, *self._state.missing_publishers]):
            self.table.find(name)
            self.table.linger(name)
        if self._log is not None:
            self._log.recover(logs[LOG], recovered, self.table.lineage)

    def on_records(self, event: RecordsRead) -> None:
        """Restore publications of an earlier incarnation.

        Until they are complete, no client is admitted, since its new publications could not be
        distinguished, and no subscription is confirmed.
        """
        assert self._log is not None, f"{event} without a log"
        self._log.on_records(event)
        if not self._state.log_is_read:
            return
        for source, last in self._log.unfinished().items():
            self._sequences.use(source, last)
        early, self._deferred = self._deferred, []
        for client, session, message in early:
            if client.session == session:
                self._admit(client, message)
        self._subscriptions.spread_unconfirmed()

    def settle(self) -> None:
        """Acknowledge publications that became safe in an event, if a log decides that."""
        if self._log is not None:
            self._log.acknowledge()

    # ------------------------------------------------------------ sessions

    def on_established(self, name: ClientId, session: int) -> None:
        """Handle a client's new session; the first message must be Connect."""
        self.table.open_session(name, session).draining = False

    def on_lost(self, name: ClientId, session: int) -> None:
        """Handle the end of a client's session; the client's state is kept for a while."""
        client, was_admitted = self.table.close_session(name, session)
        client.draining = False
        client.held.clear()
        if self._log is not None and client.source is not None:
            self._log.on_closed(client.source)
        for local in client.subscriptions.values():
            local.claimed = False
        self._queue.finish_deliveries(self._windows.close(name))
        self._record_used(client)
        if client.source is not None and self._all_done(client, client.source):
            self._detach(name)
        if was_admitted and not client.subscriptions and name not in self._attached:
            self._forget(name)
        else:
            self.table.keep(client)

    def write_progress(self) -> None:
        for name in self.table.here:
            self._record_used(self.table.clients[name])
        self.table.write_progress()

    def _record_used(self, client: Client) -> None:
        """Record the numbers of a publisher, also of publications on the fast path."""
        if client.source is not None:
            used = self._sequences.used.get(client.source, 0)
            self.table.record_published(client.name, client.source, used)

    def _all_done(self, client: Client, source: SourceId) -> bool:
        """Return True if the publisher has no publication that it might send again."""
        known_last = max(self._sequences.received(source), client.done_before - 1)
        used = self._sequences.used.get(source, 0)
        return used <= known_last and not self._queue.has_pending(source)

    def _is_logged(self, source: SourceId) -> bool:
        """Return True if all publications of a publisher are on disk, to be sent from there."""
        used = self._sequences.used.get(source, 0)
        return self._log is not None and used <= self._log.durable().get(source, 0)

    def linger_over(self, name: ClientId) -> None:
        """Unsubscribe a client's subscriptions that it has not requested in time.

        A connected client keeps the subscriptions requested on its session.
        """
        client = self.table.clients[name]
        expired = [local for local in client.subscriptions.values() if not local.claimed]
        if expired:
            self._state.machine.record(
                "subscriptions_given_up", client=name, subscriptions=len(expired)
            )
            self._home.end(client, expired)
        if not client.session:
            self._detach(name)
            self._forget(name)

    def _forget(self, name: ClientId) -> None:
        """Remove an absent client without remaining state."""
        self.table.forget(name)
        self._windows.forget(name)
        self._stop_waiting(name)

    # ------------------------------------------------------------ requests

    def _on_connect(self, name: ClientId, message: Connect) -> None:
        source = message.source
        received = self._sequences.received(source) if source is not None else 0
        client = self.table.check_connect(name, message, received)
        if client is not None:
            self._admit(client, message)

    def _admit(self, client: Client, message: Connect) -> None:
        if not self._state.log_is_read:
            self._deferred.append((client, client.session, message))
            return
        admission = self.table.assign_source(client, message)
        changes, source = admission.changes, admission.message.source
        if source is not None and self._attached.get(client.name) != source.incarnation:
            changes.append(Change(ATTACHED, client.name, source.incarnation))
        self._state.commit(changes, partial(self._on_recorded, admission))

    def _on_recorded(self, admission: Admission[Client]) -> None:
        """Admit a client after its attachment is on disk, if the session is current."""
        client, message = admission.client, admission.message
        if message.source is not None:
            self._attached[client.name] = message.source.incarnation
        if not admission.is_current():
            return
        self._resume(client, message)
        whole = [
            number
            for number, local in client.subscriptions.items()
            if local.phase is not Phase.PENDING and not local.is_restarted
        ]
        self.table.recall_lost(client, message, whole)
        lost = self.table.lost_publications(message, self._logged(message.source))
        if lost is not None:
            assert self._log is not None, f"{lost} without a log"
            self._publish(client, Publish(lost))
            self._log.acknowledged(lost)
        self.table.enter(client)
        self.table.welcome(client)
        self._on_connected(client)

    def _logged(self, source: SourceId | None) -> int | None:
        """Return the last logged publication of a source after an accepted loss, if it matters.

        Before a loss the log drops finished sources, so it proves none. Once a loss was accepted,
        all publications without a record are announced, once. A broker that has received them drops
        the marker as a duplicate.
        """
        if self._log is None or source is None or not self.table.lineage:
            return None
        return self._log.durable().get(source, 0)

    def _resume(self, client: Client, message: Connect) -> None:
        if client.source is not None:
            client.done_before = message.next_sequence
            self._sequences.use(client.source, message.highest_sequence)
            if self._log is not None:
                self._log.on_opened(client.source, client.name)
        former = list_unstated(client.subscriptions, message.resume)
        for each in former:
            each.set_former({**each.former, **each.acknowledged})
        if former:
            rows = tuple(map(former_change, former))
            self._state.machine.emit(Commit(rows, None))
        for subscription, seen in message.resume:
            local = client.subscriptions.get(subscription)
            if local is not None and local.phase is not Phase.PENDING:
                local.forgotten = gaps_of_older_copy(
                    local.number, local.acknowledged, seen, local.start_cut
                )
                raise_cut(local.begins_after, seen)

    def _on_connected(self, client: Client) -> None:
        for local in client.subscriptions.values():
            if local.phase is Phase.STARTED:  # it may have started while the client was away
                self._home.report_state(local)
        self._stop_waiting(client.name)
        if client.subscriptions:
            self.table.linger(client.name)

    def _on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        """End a subscription, even one that is still held back."""
        client = self.table.check_unsubscribe(name, message)
        client.held = [
            each
            for each in client.held
            if not isinstance(each, Subscribe) or each.number != message.number
        ]
        found = client.subscriptions.get(message.number)
        answer = partial(self.table.report_end, client, client.session, message.number)
        self._home.end(client, [found] if found is not None else [], answer)

    def _on_detach(self, name: ClientId, message: Detach) -> None:
        """End all subscriptions of a client, and release its state."""
        client = self.table.requester(name, "Detach")
        source, done = client.source, message.done_through
        used = self._sequences.used.get(source, 0) if source is not None else 0
        if not 0 <= done <= used:
            raise RemoteProtocolError(name, f"has {done} done, {used} handed out")
        client.done_before = max(client.done_before, done + 1)
        client.leaving = True
        client.held = [each for each in client.held if isinstance(each, Publish)]
        session = client.session

        def on_disk() -> None:
            if client.session == session:
                client.draining = True
                self._leave_when_drained(client, at_once=not message.drain)

        self._home.end(client, list(client.subscriptions.values()), on_disk, message.drain)

    def _leave_when_drained(self, client: Client, *, at_once: bool = False) -> None:
        if client.draining and (at_once or self._windows.is_drained(client.name)):
            client.draining = False
            session = client.session
            done = client.source is not None and (
                self._all_done(client, client.source) or self._is_logged(client.source)
            )
            if done and self._attached.pop(client.name, None) is not None:
                # An answer before the write would make a restart wait for a departed client.
                change = Change(ATTACHED, client.name, None)
                self._state.commit([change], lambda: self.table.report_end(client, session, 0))
            else:
                self.table.report_end(client, session, 0)

    def _on_publish(self, name: ClientId, message: Publish) -> None:
        self._publish(self.table.check_publish(name, message), message)
        self.table.record_published(name, message.run.source, message.run.last)

    def _publish(self, client: Client, message: Publish) -> None:
        """Receive publications; during the recovery of this broker they wait."""
        held = self._state.recovering
        if held:
            # Malformed ones are refused now.
            match_run(self._subscriptions.table.memo, message.run, client.name)
            self._sequences.use(message.run.source, message.run.last)
            if self._log is None:
                client.held.append(message)  # gone with its session: the client has it still
        else:
            self._receive(client, message.run)
        if self._log is not None:
            self._log.take(message.run, publish_later=held)

    def _on_acknowledge(self, name: ClientId, message: Acknowledge) -> None:
        client = self.table.check_acknowledge(name, message)
        stream, first, last = message.stream, message.first, message.last
        windows = self._windows
        self._queue.finish_deliveries(windows.acknowledge(client.name, stream, first, last))
        self._leave_when_drained(client)

    def admit(self) -> None:
        """End the recovery: issue pending subscriptions again, then handle held requests."""
        pending, self._home.pending = self._home.pending, []
        for local in pending:
            local.subscription = self._home.new_id()
            self._spread(local)
        if self._log is not None:
            for run in self._log.take_unpublished():
                is_marker = is_stream_marker(run.source)
                name = "" if is_marker else self.table.publisher_of(run.source)
                self._publications.publish(run, name, 0)
            self._announce_loss(self._log)
        for client in list(self.table.clients.values()):
            held, client.held = client.held, []
            for message in held:
                if isinstance(message, Publish):
                    self._receive(client, message.run)
                elif message.number not in client.subscriptions:
                    self._make(client, message)

    def _announce_loss(self, log: PublicationLog) -> None:
        """Announce a loss of logged publications, because their publishers may never return.

        The log publishes the marker again at each start until it is done everywhere.
        """
        if self.table.lineage:
            marker = stream_marker(self._state.broker, self.table.lineage, 0, 1)
            if not log.durable().get(marker.source):
                log.take(marker, publish_later=False)
                self._publications.publish(marker, "", 0)

    # ------------------------------------------------------------ steps

    def _receive(self, client: Client, run: PublicationRun) -> None:
        self._publications.publish(run, client.name, client.session)
        fast_path = self._publications.fast_path
        if fast_path is not None and self._log is None:
            fast_path.open_to_client(client.session, client.name, run.source)

    def on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        """Create a subscription, or report its state; the same request again changes nothing."""
        client = self.table.requester(name, "Subscribe")
        held = sum(isinstance(each, Subscribe) for each in client.held)
        if not self.table.is_permitted(client, message, held):
            return
        known = client.subscriptions.get(message.number)
        if known is not None:
            self._home.claim(client, known)
        elif self._state.recovering:
            client.held.append(message)
        else:
            self._make(client, message)

    def _make(self, client: Client, message: Subscribe) -> None:
        local = LocalSubscription(
            client.name, message.number, self._home.new_id(), message.predicate
        )
        client.subscriptions[message.number] = local
        local.claimed = True
        self._queue.finish_deliveries(self._windows.claim(local))
        self._spread(local)

    def _spread(self, local: LocalSubscription) -> None:
        self._subscriptions.add_local(local, confirmed=False)
        if local.phase is Phase.PENDING:
            self._state.commit(
                [subscription_change(local, started=False)], lambda: self._home.report_state(local)
            )

    def _detach(self, name: ClientId) -> None:
        """Remove a publisher without publications under way: a restart need not wait for it."""
        if self._attached.pop(name, None) is not None:
            self._state.machine.emit(Commit((Change(ATTACHED, name, None),), None))

    def _stop_waiting(self, name: ClientId) -> None:
        """Record that a publisher from before the restart has returned, or has expired.

        Until all have, this broker confirms no subscription: it could not determine the
        publications after which the streams begin.
        """
        if name in self._state.missing_publishers:
            del self._state.missing_publishers[name]
            if not self._state.missing_publishers:
                self._subscriptions.spread_unconfirmed()
