"""Named bugs: what a mistake in a rule of the δ tree, of sessions or of moving clients looks like.

Each row leaves one rule out. `pubsubctl simulate mutants` runs them, `tests/` says what sees which.

Paper: [DFT11] §V-§VIII, rule by rule.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from brokerd.named_bugs import Edit, NamedBug, planted


class Mutant(StrEnum):
    """The names; those of the design's tables where it has one."""

    START_BEFORE_CONFIRMED = "M14"
    NO_UPSTREAM_COPY_ON_ACTIVATION = "M15"
    EDGE_FORGETS = "M20"
    CONFIRM_ON_RECEIPT = "M21"
    NO_RESEND_ON_ACTIVATION = "M22"
    RESEND_AFTER_NEWER = "M23"
    DROP_UNREACHABLE_DESTINATIONS = "M24"
    SUMMARY_MISSES_PENDING = "M25"
    RESTARTED_IS_EDGE = "M27"
    FULL_QUEUE_DROPS_OLDEST = "M38"
    HALF_A_FRAME = "M39"
    HEARTBEATS_IN_QUEUE = "M40"
    OLD_SESSION_FRAMES = "M41"
    CONFIRM_COVERS_PENDING = "confirm-covers-pending"
    NO_CUT = "no-cut"
    NO_UPSTREAM_COPY = "no-upstream-copy"
    NO_TAGS_UNREACHABLE_DONE = "no-tags"
    NO_LAST_IN_CUT = "no-last-in-cut"
    TAGS_DROPPED_FROM_CONFIRMATION = "M16"
    NOTIFIER_BEFORE_TABLES = "M26"
    NO_NOTIFIERS = "no-notifiers"
    TAGS_MAY_GROW = "tags-may-grow"
    RECEIVER_TAKES_ANY_TAGS = "receiver-takes-any-tags"
    HALF_AN_INTERSECTION = "half-an-intersection"
    ISLANDS_AS_BARRIERS = "islands-as-barriers"
    NEWCOMER_IS_COMPLETE = "newcomer-is-complete"
    NEWCOMERS_ARE_HEARD = "newcomers-are-heard"
    ACKNOWLEDGED_BEFORE_DURABLE = "acknowledged-before-durable"
    LOG_RELEASED_ON_APPEND = "log-released-on-append"
    CLIENTS_BEFORE_LOG = "clients-before-log"
    RECOVERED_BEFORE_LOG = "recovered-before-log"
    EVERY_PARTITION_TAGGED = "every-partition-tagged"
    PARTITIONS_SPREAD_DELTA = "M17"
    GONE_EARLY = "gone-early"
    SHORT_VECTORS = "M19"
    HOLD_OUT_OF_ORDER = "hold-out-of-order"
    DRAIN_COMPARES_PEERS = "drain-compares-peers"
    NO_TOMBSTONES = "no-tombstones"
    TOMBSTONES_VOLATILE = "tombstones-volatile"
    NO_HOME_AUTHORITY = "no-home-authority"
    RELAYED_OUTLIVES_LEG = "relayed-outlives-leg"
    RELAY_RESUMES = "relay-resumes"
    SWITCHED_UNTOLD = "switched-untold"
    NO_LATERAL_SYNC = "no-lateral-sync"
    PENDING_NOT_REISSUED = "pending-not-reissued"
    SYNC_END_BEFORE_PENDING = "sync-end-before-pending"
    SYNC_END_FROM_INACTIVE = "sync-end-from-inactive"
    CONFIRMED_BEFORE_DURABLE = "confirmed-before-durable"
    NOTIFIER_DONE_BEFORE_DURABLE = "notifier-done-before-durable"
    ROWS_STAY_ON_DISK = "rows-stay-on-disk"
    RECOVERING_PUBLISHES = "recovering-publishes"
    MISSING_PUBLISHERS_IGNORED = "missing-publishers-ignored"
    MOVE_WITHOUT_MARK = "move-without-mark"
    MOVE_BEFORE_START = "move-before-start"
    MOVE_FORGETS_POSITIONS = "move-forgets-positions"
    TRANSIT_NOT_APPLIED = "transit-not-applied"
    ANSWER_FORGETS_CUT = "answer-forgets-cut"
    POSITION_GOES_BACK = "position-goes-back"


PAPER_LITERAL = frozenset(
    (
        Mutant.NO_CUT,
        Mutant.NO_LAST_IN_CUT,
        Mutant.TAGS_MAY_GROW,
        Mutant.EVERY_PARTITION_TAGGED,
        Mutant.GONE_EARLY,
    )
)
"""What [DFT11] says where profile "paper" does not follow it; with that profile, the paper to the
letter. It loses publications: see PROTOCOL.md."""

_TREE: Final = "brokerd/protocols/delta_tree/"
_OUTBOX: Final = "brokerd/sessions/outbox.py"
_MOVING: Final = "brokerd/simulator/world/moving.py"


def _bug(leaves_out: str, *edits: Edit) -> tuple[str, tuple[Edit, ...]]:
    return leaves_out, edits


MUTANTS: Final[dict[Mutant, NamedBug]] = {
    mutant: NamedBug(str(mutant), *what)
    for mutant, what in {
        Mutant.START_BEFORE_CONFIRMED: _bug(
            "A subscription starts when it is confirmed.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                """\
        if complete and self._may_confirm():
""",
                """\
        if (complete or row.local is not None) and self._may_confirm():
""",
            ),
        ),
        Mutant.NO_UPSTREAM_COPY_ON_ACTIVATION: _bug(
            "A link that becomes active gets the accepted rows that it lacks.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                """\
            elif row.accepted and row.subscription not in known:
                self._upstream.send(row, node)
""",
                """\
            else:
                continue
""",
            ),
        ),
        Mutant.EDGE_FORGETS: _bug(
            "A home knows what its subscribers have when they come back.",
            Edit(
                _TREE + "clients/clients.py",
                """\
        for local in home.subscriptions:
""",
                """\
        for local in home.subscriptions:
            local.begins_after = {}
""",
            ),
            Edit(
                _TREE + "clients/clients.py",
                "for subscription, seen in message.resume:",
                "for subscription, seen in ():",
            ),
        ),
        Mutant.CONFIRM_ON_RECEIPT: _bug(
            "A publication is confirmed when all behind it have confirmed.",
            Edit(
                _TREE + "publications/arrivals.py",
                """\
        if receipt.remaining == 0:
            self.queue.confirm(receipt)""",
                """\
        if True:
            self.queue.confirm(receipt)""",
            ),
            Edit(
                _TREE + "publications/straight.py",
                """\
        receipt.remaining = 1
""",
                """\
        receipt.remaining = 1
        queue.confirm(receipt)
""",
            ),
        ),
        Mutant.NO_RESEND_ON_ACTIVATION: _bug(
            "Unconfirmed publications are sent again over a link that becomes active.",
            Edit(
                _TREE + "publications/queue.py",
                """\
        for of_source in self._by_source(transfers):
""",
                """\
        self.note_sent(hop, transfers)
        for of_source in ():
""",
            ),
        ),
        Mutant.RESEND_AFTER_NEWER: _bug(
            "Publications of a source are sent again in their order.",
            Edit(
                _TREE + "publications/queue.py",
                "for frame in pack_frames(of_source):",
                "for frame in [[transfer] for transfer in reversed(of_source)]:",
            ),
        ),
        Mutant.DROP_UNREACHABLE_DESTINATIONS: _bug(
            "What cannot be reached now is still owed.",
            Edit(
                _TREE + "publications/queue.py",
                """\
            sends.setdefault(transfer.hop, []).append(transfer)
        self._end_if_done(entry)
""",
                """\
            sends.setdefault(transfer.hop, []).append(transfer)
        for node in self._sessions.nodes.values():
            if node.partition:
                entry.unsent &= ~(1 << node.broker)
        self._end_if_done(entry)
""",
            ),
        ),
        Mutant.SUMMARY_MISSES_PENDING: _bug(
            "Recovery tells of rows that are not confirmed yet.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                """\
                self._send_copy(row, node, recovery=True)
""",
                """\
                if not row.confirmed:
                    row.sent[node.broker] = node.session
                self._send_copy(row, node, recovery=True)
""",
            ),
        ),
        Mutant.RESTARTED_IS_EDGE: _bug(
            "A restarted broker waits for the answers of its frontier.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                """\
        for broker in frontier:
            answer =""",
                """\
        if self._state.restarted:
            frontier = []
        for broker in frontier:
            answer =""",
            ),
        ),
        Mutant.FULL_QUEUE_DROPS_OLDEST: _bug(
            "A full queue refuses; it drops nothing.",
            Edit(
                _OUTBOX,
                """\
            return False
""",
                """\
            self.waiting_bytes -= self._frames.popleft()[1]
""",
            ),
        ),
        Mutant.HALF_A_FRAME: _bug(
            "A frame that is being written is written whole.",
            Edit(
                _OUTBOX,
                """\
        return b"" if self.is_writing else frame
""",
                """\
        return frame
""",
            ),
        ),
        Mutant.HEARTBEATS_IN_QUEUE: _bug(
            "Heartbeats do not wait behind frames.",
            Edit(
                _OUTBOX,
                """\
        self._heartbeats = 1
""",
                """\
        self.add((self._heartbeat,), len(self._heartbeat))
""",
            ),
        ),
        Mutant.OLD_SESSION_FRAMES: _bug(
            "Frames of an old session are ignored.",
            Edit(
                _TREE + "core.py",
                """\
        if event.session != current:
""",
                """\
        if False:
""",
            ),
            Edit(
                _TREE + "core.py",
                """\
        if isinstance(peer, int):
            self._check_ready(""",
                """\
        if isinstance(peer, int) and event.session == current:
            self._check_ready(""",
            ),
        ),
        Mutant.CONFIRM_COVERS_PENDING: _bug(
            "A confirmation waits for every branch.",
            Edit(
                _TREE + "publications/arrivals.py",
                """\
        if receipt.remaining == 0:
""",
                """\
        receipt.remaining = min(receipt.remaining, 1)
        if receipt.remaining == 0:
""",
            ),
        ),
        Mutant.NO_CUT: _bug(
            "A subscription's cut says from where it is served.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                """\
        cut = dict(row.cut)
""",
                """\
        return {}
        cut = dict(row.cut)
""",
            ),
            Edit(
                _TREE + "as_published/acceptance.py",
                "        self._raise_to_received(row, cut)\n",
                "",
            ),
        ),
        Mutant.NO_UPSTREAM_COPY: _bug(
            "The next broker towards a home is given the subscription that it lacks.",
            Edit(
                _TREE + "subscriptions/upstream_copies.py",
                """\
        if row.local is not None:
""",
                """\
        if True:
""",
            ),
        ),
        Mutant.NO_TAGS_UNREACHABLE_DONE: _bug(
            "What could not be reached is tagged.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                """\
            self.table.set_tags(row, region(tags))
""",
                "",
            ),
        ),
        Mutant.NO_LAST_IN_CUT: _bug(
            "A cut includes the last that was received of each source.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                """\
        raise_cut(cut, self._sequences.all_received().items())
""",
                "",
            ),
        ),
        Mutant.TAGS_DROPPED_FROM_CONFIRMATION: _bug(
            "A confirmation carries the tags.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                "row.subscription, row.tags, cut, tuple(paths",
                "row.subscription, (), cut, tuple(paths",
            ),
        ),
        Mutant.NOTIFIER_BEFORE_TABLES: _bug(
            "Tags are replaced when the tables of those behind are in order.",
            Edit(
                _TREE + "subscriptions/unheard.py",
                """\
        row.sent.pop(node.broker, None)
        self._ask(row, node)
""",
                """\
        early = Replacement(under(row.tags, node.broker), (), (), ())
        self._replace_and_tell(row, early)
        row.sent.pop(node.broker, None)
        self._ask(row, node)
""",
            ),
        ),
        Mutant.NO_NOTIFIERS: _bug(
            "Who comes back to a tagged place is notified of.",
            Edit(
                _TREE + "subscriptions/unheard.py",
                "        replacement = replacement_for(",
                """\
        return
        replacement = replacement_for(""",
            ),
            Edit(
                _TREE + "subscriptions/unheard.py",
                """\
        if row.tags:
            self._table.tagged[""",
                """\
        if False:
            self._table.tagged[""",
            ),
        ),
        Mutant.TAGS_MAY_GROW: _bug(
            "Replacements never widen a tag.",
            Edit(
                _TREE + "partitions/gates.py",
                """\
    if not removed:
        return None
    added = intersect(removed, message.tags, newcomers=newcomers)
    if includes(added, removed):
""",
                """\
    added = region(message.tags)
    if added == removed:
""",
            ),
            Edit(
                _TREE + "partitions/gates.py",
                """\
    kept = intersect(touched, replacement.added, newcomers=newcomers)
""",
                """\
    kept = replacement.added
""",
            ),
        ),
        Mutant.RECEIVER_TAKES_ANY_TAGS: _bug(
            "A receiver takes of a replacement only what its own tag covers.",
            Edit(
                _TREE + "partitions/gates.py",
                """\
    kept = intersect(touched, replacement.added, newcomers=newcomers)
""",
                """\
    kept = replacement.added
""",
            ),
        ),
        Mutant.HALF_AN_INTERSECTION: _bug(
            "An intersection of regions has what is kept and what is entered.",
            Edit(
                _TREE + "partitions/regions.py",
                """\
    return region([*_kept(old, new), *_entered(old, new, newcomers)])
""",
                """\
    return region(_kept(old, new))
""",
            ),
        ),
        Mutant.ISLANDS_AS_BARRIERS: _bug(
            "A broker with live neighbours behind it is no end of the path.",
            Edit(
                _TREE + "subscriptions/unheard.py",
                """\
        dead_end = len(node.path) - 1 == self._state.neighbourhood.radius
""",
                """\
        dead_end = True
""",
            ),
        ),
        Mutant.NEWCOMER_IS_COMPLETE: _bug(
            "A newcomer asks for what it does not know.",
            Edit(
                _TREE + "core.py",
                """\
        if event.recovering:
            self._state.restarted = True
""",
                """\
        if event.recovering and event.incarnation == 1:
            self._sessions_changed()
            return
        if event.recovering:
            self._state.restarted = True
""",
            ),
        ),
        Mutant.NEWCOMERS_ARE_HEARD: _bug(
            "A newcomer is not part of what was heard before it came.",
            Edit(
                _TREE + "broker/state.py",
                """\
        return self.neighbourhood.newcomers
""",
                """\
        return LARGEST_BROKER + 1
""",
            ),
        ),
        Mutant.ACKNOWLEDGED_BEFORE_DURABLE: _bug(
            "A publisher is acknowledged what is on disk.",
            Edit(
                _TREE + "storage/publication_log.py",
                "min(row.durable, done +",
                "min(row.appended, done +",
            ),
        ),
        Mutant.LOG_RELEASED_ON_APPEND: _bug(
            "A log is chopped when its publications are confirmed.",
            Edit(
                _TREE + "storage/publication_log.py",
                """\
            self._state.append(LOG, record, lambda: self._on_durable(run.source, last))
""",
                """\
            self._state.append(LOG, record, lambda: self._on_durable(run.source, last))
            self._state.machine.emit(Chop(LOG, self._ends.next))
""",
            ),
        ),
        Mutant.CLIENTS_BEFORE_LOG: _bug(
            "Clients are admitted when the log is read.",
            Edit(
                _TREE + "clients/clients.py",
                """\
        if self.log_is_read:
            super()._admit(client, message)
""",
                """\
        if True:
            super()._admit(client, message)
""",
            ),
        ),
        Mutant.RECOVERED_BEFORE_LOG: _bug(
            "Recovery ends when the log is read.",
            Edit(
                _TREE + "subscriptions/recovery.py",
                "if self._state.recovering and self._may_end() and",
                "if self._state.recovering and",
            ),
        ),
        Mutant.EVERY_PARTITION_TAGGED: _bug(
            "Only the partitions of a row's own branch are tagged.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                """\
            self.table.set_tags(row, region(tags))
""",
                """\
            from dataclasses import replace

            for node in self._sessions.nodes.values():
                if node.partition and neighbourhood.direction(node.broker) != row.towards_home:
                    tags.append(replace(self.unheard.tag(row, node), beyond=True))
            self.table.set_tags(row, region(tags))
""",
            ),
        ),
        Mutant.PARTITIONS_SPREAD_DELTA: _bug(
            "Partitions are told to all brokers within 2δ.",
            Edit(
                _TREE + "partitions/partition_table.py",
                "self.reach = 2 * state.parameters.delta",
                "self.reach = state.parameters.delta",
            ),
        ),
        Mutant.GONE_EARLY: _bug(
            "A partition that has ended stays known while a tag names it.",
            Edit(
                _TREE + "partitions/partition_table.py",
                "over = [number for number in self._ended if number not in self._holds]",
                "over = list(self._ended)",
            ),
        ),
        Mutant.SHORT_VECTORS: _bug(
            "Legitimacy vectors reach 2δ + 1 brokers back.",
            Edit(
                _TREE + "as_published/vectors.py",
                "return 2 * state.parameters.delta + 1",
                "return state.parameters.delta + 1",
            ),
        ),
        Mutant.HOLD_OUT_OF_ORDER: _bug(
            "What is held for one publication holds those behind it.",
            Edit(
                _TREE + "as_published/propagation.py",
                """\
        self._state.counters["legitimacy_held"] += entry.publications
        self._blocked[route.hop] = None
""",
                """\
        self._state.counters["legitimacy_held"] += entry.publications
""",
            ),
        ),
        Mutant.DRAIN_COMPARES_PEERS: _bug(
            "A transfer is of one session, not of a peer.",
            Edit(
                _TREE + "publications/queue.py",
                """\
            if staying.get(transfer.hop) != transfer.session:
""",
                """\
            if not self._sessions.knows(transfer.hop):
""",
            ),
        ),
        Mutant.NO_TOMBSTONES: _bug(
            "What has ended stays known as ended.",
            Edit(
                _TREE + "subscriptions/unsubscriptions.py",
                """\
            if not self._table.add(statement):
                continue
""",
                "",
            ),
            Edit(
                _TREE + "subscriptions/unsubscriptions.py",
                """\
            if dropped or told_on:
""",
                """\
            if dropped:
""",
            ),
            Edit(
                _TREE + "subscriptions/unsubscriptions.py",
                """\
            changes.append(tombstone_change(self._table.statement(statement.home)))
""",
                "",
            ),
        ),
        Mutant.TOMBSTONES_VOLATILE: _bug(
            "Tombstones are on disk.",
            Edit(
                _TREE + "subscriptions/unsubscriptions.py",
                """\
            changes.append(tombstone_change(self._table.statement(statement.home)))
""",
                "",
            ),
        ),
        Mutant.NO_HOME_AUTHORITY: _bug(
            "A home says which of its subscriptions live.",
            Edit(
                _TREE + "subscriptions/unsubscriptions.py",
                """\
        self._table.add(all_but(self._state.broker, self._state.incarnation, living))
""",
                "",
            ),
            Edit(
                _TREE + "subscriptions/unsubscriptions.py",
                "before = min([each.incarnation for each in self._living], default=current)",
                "before = 0 * current",
            ),
            Edit(
                _TREE + "subscriptions/unsubscriptions.py",
                """\
        for subscription in message.accepted:
""",
                """\
        for subscription in ():
""",
            ),
            Edit(
                _TREE + "subscriptions/unsubscriptions.py",
                """\
            if statement.home == self._state.broker and not self._table.includes(statement):
""",
                """\
            if False:
""",
            ),
        ),
        Mutant.RELAYED_OUTLIVES_LEG: _bug(
            "A relayed session ends with the session to its relay.",
            Edit(
                _TREE + "relays/assist.py",
                """\
        for relayed in ended:
""",
                """\
        for relayed in ended[:0]:
""",
            ),
        ),
        Mutant.RELAY_RESUMES: _bug(
            "A relayed session ends with the session to its target.",
            Edit(
                _TREE + "relays/passages.py",
                """\
                if passage.accepted:
                    self._end(passage, tell=asker)
""",
                "",
            ),
        ),
        Mutant.SWITCHED_UNTOLD: _bug(
            "Both ends hear that a session goes over another path.",
            Edit(
                _TREE + "relays/assist.py",
                """\
            self._step(event)
        else:
            self._end(relayed, "closed_by_us", tell=True)
            self._step(event)
""",
                """\
            self._step(event)
        else:
            self._legs[peer].known_as, relayed.over = relayed.session, True
            del self._relayed[peer]
            self._direct_again.cancel(peer)
""",
            ),
        ),
        Mutant.NO_LATERAL_SYNC: _bug(
            "Neighbours beside the path are synchronised, too.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                """\
            elif row.accepted and row.subscription not in known:
                self._upstream.send(row, node)
""",
                """\
            elif row.accepted and row.subscription not in known and node.broker in row.path:
                self._upstream.send(row, node)
""",
            ),
        ),
        Mutant.PENDING_NOT_REISSUED: _bug(
            "A subscription that a crash found unconfirmed is issued again.",
            Edit(
                _TREE + "clients/clients.py",
                """\
                self._reissue.append(local)
""",
                """\
                self._subscriptions.add_local(local, confirmed=False)
""",
            ),
            Edit(
                _TREE + "clients/clients.py",
                """\
            if local.phase is Phase.STARTED
        ]""",
                "        ]",
            ),
        ),
        Mutant.SYNC_END_BEFORE_PENDING: _bug(
            "The end of synchronisation comes behind everything synchronised.",
            Edit(
                _TREE + "core.py",
                """\
        for node in newly_active:
            self._subscriptions.synchronise(node)
        self._subscriptions.evaluate_unconfirmed()
        for node in newly_active:
            self.send(node.broker, SyncEnd(self._state.recovering))
""",
                """\
        for node in newly_active:
            self.send(node.broker, SyncEnd(self._state.recovering))
        for node in newly_active:
            self._subscriptions.synchronise(node)
        self._subscriptions.evaluate_unconfirmed()
""",
            ),
        ),
        Mutant.SYNC_END_FROM_INACTIVE: _bug(
            "Only an active link ends synchronisation.",
            Edit(
                _TREE + "core.py",
                """\
        self._partitions.synchronise(self._sessions.node(peer))
        self._sessions_changed()
""",
                """\
        self._partitions.synchronise(self._sessions.node(peer))
        self._sessions_changed()
        if not self._sessions.node(peer).active:
            self.send(peer, SyncEnd(self._state.recovering))
""",
            ),
        ),
        Mutant.CONFIRMED_BEFORE_DURABLE: _bug(
            "A row is on disk before it is confirmed.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                """\
        self._state.commit(changes, lambda: self._confirm(row))
""",
                """\
        self._state.commit(changes, lambda: None)
        self._confirm(row)
""",
            ),
        ),
        Mutant.NOTIFIER_DONE_BEFORE_DURABLE: _bug(
            "Replaced tags are on disk before that is answered.",
            Edit(
                _TREE + "subscriptions/unheard.py",
                """\
        def is_on_disk() -> None:
            self._partitions.release(touched)
            done()
""",
                """\
        done()

        def is_on_disk() -> None:
            self._partitions.release(touched)
""",
            ),
        ),
        Mutant.ROWS_STAY_ON_DISK: _bug(
            "Rows that have ended leave the disk.",
            Edit(
                _TREE + "subscriptions/unsubscriptions.py",
                """\
            changes.extend(map(routing_removal, dropped))
""",
                "",
            ),
        ),
        Mutant.RECOVERING_PUBLISHES: _bug(
            "A recovering broker holds publications.",
            Edit(
                _TREE + "clients/clients.py",
                """\
        held = self._state.recovering
""",
                """\
        held = False
""",
            ),
        ),
        Mutant.MISSING_PUBLISHERS_IGNORED: _bug(
            "A subscription is confirmed when all publishers' brokers are known.",
            Edit(
                _TREE + "clients/clients.py",
                "may_confirm=lambda: not self._missing",
                "may_confirm=lambda: True",
            ),
        ),
        Mutant.MOVE_WITHOUT_MARK: _bug(
            "Who moves marks where it left.",
            Edit(
                _MOVING,
                """\
        if old.core.subscriptions and not self._marked_by:
""",
                """\
        if False:
""",
            ),
        ),
        Mutant.MOVE_BEFORE_START: _bug(
            "A move ends when the subscriptions have started at the new broker.",
            Edit(
                _MOVING,
                """\
        subscriptions = new.core.subscriptions
""",
                """\
        subscriptions = ()
""",
            ),
        ),
        Mutant.MOVE_FORGETS_POSITIONS: _bug(
            "Who moves takes along what it has received.",
            Edit(
                _MOVING,
                """\
        new.take_over(old)
""",
                """\
        old.core._progress._received.clear()
        new.take_over(old)
""",
            ),
        ),
        Mutant.TRANSIT_NOT_APPLIED: _bug(
            "A notifier is applied at the brokers that it passes.",
            Edit(
                _TREE + "publications/notifiers.py",
                "self._unheard.on_notifier(message.subscription, replacement, lambda: None)",
                "pass",
            ),
        ),
        Mutant.POSITION_GOES_BACK: _bug(
            "A notice that is given again takes back nothing that was acknowledged.",
            Edit(
                _TREE + "publications/deliveries.py",
                "if local.advance(source, last):",
                "if local.advance(source, last) or True:",
            ),
        ),
        Mutant.ANSWER_FORGETS_CUT: _bug(
            "An answer's cut is added to a row's own.",
            Edit(
                _TREE + "subscriptions/spreading.py",
                "                raise_cut(cut, answer.cut.items())\n",
                "",
            ),
        ),
    }.items()
}
"""What each of them does to the source."""


@contextmanager
def mutated(mutants: Iterable[Mutant]) -> Iterator[None]:
    """Inside, every broker of this process has these bugs."""
    with planted([MUTANTS[mutant] for mutant in sorted(mutants)]):
        yield
