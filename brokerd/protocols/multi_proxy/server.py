"""A server: owner of topics, each a queue that access brokers follow at their own pace.

Paper: [MP22] §2, §4. Deviates: a get does not take a message out of a subscriber's queue; each
message is stored once, and each follower of the topic has an acknowledged position. A server that
crashes has lost the last positions, and receives them again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.losses import has_marker, split_by_markers
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import LOSS_PROVED, Change, LogEnds, RecordsRead
from brokerd.protocols.multi_proxy.assignments import Assignments
from brokerd.protocols.multi_proxy.followers import (
    HELD,
    RETAINED,
    DelayedPublishes,
    Followers,
    Restatements,
    Retention,
)
from brokerd.protocols.multi_proxy.messages import (
    Answered,
    Elsewhere,
    Follow,
    Followed,
    Following,
    Get,
    Lost,
    LostRun,
    Merged,
    Messages,
    Owner,
    Put,
    Request,
    Stored,
    Wanted,
)
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.retention import Topic, list_lost_runs
from brokerd.protocols.multi_proxy.routes import Sessions
from brokerd.protocols.multi_proxy.state import LOG, PROVED, Follower, Part, ServerState, Version
from brokerd.protocols.multi_proxy.topic_log import PlacedRun, TopicLog
from brokerd.protocols.multi_proxy.transfer_server import TransferServer
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler
from brokerd.protocols.parts.log_marks import LogMark, LogStarts

RESTATING: Final = "restating"
"""Purpose of the deadline at which access brokers are requested again to follow their topics."""

REPEATING: Final = "repeating"
"""Purpose of the deadline at which an answer is sent over another proxy too: no Get followed it."""

_TIMEOUTS_BEFORE_REPETITION: Final = 3

_PROOF: Final = "loss"
"""The only key of `PROVED`."""

WAITING: Final = "waiting"
"""Purpose of the deadline at which a get is answered without publications."""


class Server:
    """The role of a broker as owner of topics.

    Args:
        homes: all brokers, which are access brokers of their clients.
        sessions: send answers to access brokers, over any proxy.
        assignments: the topics that arbiters have given to this server, if any.

    Attributes:
        log, followers: the publications, and their followers.
        retention: releases publications by age and size.
        transfer_server: transfers of topics between servers, if enabled.
        requested: topics with requests, for which access brokers have this server as owner.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
        counters: dict[str, int],
        *,
        homes: Collection[BrokerNumber],
        sessions: Sessions,
        assignments: Assignments | None,
    ) -> None:
        self.log = TopicLog(broker, disk)
        self.retention = Retention(broker, disk.machine, deadlines, self.log, parameters)
        self._broker = broker
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._counters = counters
        self._sessions = sessions
        self._assignments = assignments
        self.requested: dict[int, None] = {}
        self.followers = Followers(broker, self.log)
        self._restatements = Restatements(homes)
        self.transfer_server: TransferServer | None = None
        self._held = DelayedPublishes(self._machine, deadlines, parameters)
        self._starts = LogStarts()
        self._has_proof_of_loss = False
        self._lineage = 0
        self._proofs: dict[str, int] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        return {Put: self._on_put, Follow: self._on_follow, Get: self._on_get}

    def due_handlers(self) -> dict[str, Callable[[Any], None]]:
        """Return the handlers of deadlines by their purposes."""
        transfer_server = self.transfer_server
        return {
            WAITING: self.on_get_due,
            REPEATING: self.repeat_answer,
            HELD: self.on_held_due,
            RESTATING: lambda _broker: self.request_restatement(),
            RETAINED: lambda _: self.retention.due(),
            **(transfer_server.due_handlers() if transfer_server is not None else {}),
        }

    def recover(self, recovered: Mapping[str, Mapping[str, Any]], ends: LogEnds) -> None:
        """Restore the state of an earlier incarnation from disk."""
        self.log.recover(recovered, ends)
        if self.transfer_server is not None:
            self.transfer_server.transfers.recover(recovered)
        self.followers.recover(recovered)
        self._restatements.recover(recovered)
        self._starts.recover(recovered)
        self._proofs = {**recovered.get(PROVED, {})}

    def on_records(self, event: RecordsRead) -> None:
        """Take a page of the log."""
        self.log.on_records(event)

    def begin(self, incarnation: int, lineage: int, start: int) -> None:
        """Begin after all rows and the log are read.

        The marks of this start wait until it is on record, so that no crash makes them proofs.
        After a loss, all positions given from now on are later than lost ones. After a loss, and in
        a new log, nothing is released before all access brokers have stated their topics: one of
        them may prove that the log is not new, and be owed all that it has. A loss that was proved
        before this start, and is not accepted, stays proved.
        """
        self._lineage = lineage
        changes = self._starts.begin(lineage, incarnation, start, self.log.records)
        self._disk.commit(changes, self._starts.confirm)
        proved_in = self._proofs.get(_PROOF)
        self._has_proof_of_loss = proved_in is not None and proved_in >= lineage
        if lineage or self._starts.is_new:
            self._restatements.begin(lineage)
        if lineage:
            for marker in self.log.announce_loss(lineage):
                self._disk.append(LOG, marker.record, partial(self._store, marker, None))
        if proved_in is not None and proved_in < lineage:
            self._repeat_publications()
        for topic in self.log:
            self.requested[topic.number] = None
        if self.transfer_server is not None:
            self.transfer_server.begin(incarnation)
        self.settle_all()

    def _repeat_publications(self) -> None:
        """Store retained publications again, behind a loss that a fetch request had proved.

        Their positions were assigned before the proof, and may be positions of lost publications.
        """
        for placed in self.log.repeat():
            self._disk.append(LOG, placed.record, partial(self._store, placed, None))
        self.log.sync(self._end_repetition)

    def _end_repetition(self) -> None:
        """Release the former positions of publications that are stored again behind a loss."""
        self._disk.commit([Change(PROVED, _PROOF, None)], lambda: None)
        for topic in self.log:
            if topic.part.server == self._broker and topic.released < self.log.lost_through:
                self.log.release(topic, self.log.lost_through)

    def settle_all(self) -> None:
        """Release publications of all topics that are not needed, or not retained any longer."""
        for topic in self.log:
            self._settle(topic)
        self.retention.on_append()

    def drop(self, home: BrokerNumber) -> None:
        """Remove a decommissioned access broker."""
        follower = self.followers.get(home)
        self._restatements.drop(home)
        self._disk.commit(self.followers.drop(home), lambda: None)
        self._deadlines.cancel((WAITING, home))
        self._deadlines.cancel((REPEATING, home))
        for part in follower.done if follower is not None else ():
            if part.server == self._broker:
                self._append_all(self._held.remove_follower(home, self.log.part(part)))
        self.settle_all()

    def count_retained(self) -> int:
        """Return the number of retained and waiting publications."""
        kept = sum(topic.count_retained() for topic in self.log)
        return kept + self._held.count()

    def retained_bytes(self) -> int:
        """Return the size of the retained payloads."""
        return sum(topic.retained_bytes for topic in self.log)

    def state(self) -> ServerState:
        """Return the state in memory, for people."""
        transfers = self.transfer_server.transfers if self.transfer_server is not None else None
        return ServerState(
            topics={f"{topic.number} of {topic.part.server}": topic.state() for topic in self.log},
            followers={
                home: tuple({part.topic: None for part in follower.done})
                for home, follower in self.followers
            },
            waiting=self._held.count(),
            awaited=tuple(self._restatements.list_awaited()),
            moving=dict(transfers.moving) if transfers is not None else {},
            moved=dict(transfers.moved) if transfers is not None else {},
            assigned=dict(self._assignments.generations) if self._assignments is not None else {},
        )

    def aftermath(self) -> Sequence[str]:
        """Return the remaining effects of failures, in words."""
        lost = sum(len(topic.lost) for topic in self.log)
        left = self.transfer_server.aftermath() if self.transfer_server is not None else ()
        left = (*left, *self._restatements.aftermath())
        words = f"{lost} records are lost, and not announced to all servers and access brokers yet"
        return (*left, words) if lost else left

    def on_get_due(self, home: BrokerNumber) -> None:
        """Answer a get that has waited long enough."""
        follower = self.followers.get(home)
        if follower is not None and follower.waits:
            self._end_get(home, follower)

    def repeat_answer(self, home: BrokerNumber) -> None:
        """Send the last answer over another proxy, once over each: no Get has followed it.

        Its proxy may be stalled. The access broker continues over the proxy of the first answer.
        """
        follower = self.followers.get(home)
        if follower is None or follower.waits:
            return
        over = self._sessions.find_proxy(home, follower.tried)
        answered = {
            part: wanted for part, wanted in follower.answered.items() if part in follower.done
        }
        if over is not None and answered:
            follower.waits, follower.over = answered, over
            self._end_get(home, follower)

    def holds(self, message: Put) -> bool:
        """Return True if a publish request waits for the followers of its topic."""
        return self._held.holds(message)

    def freeze(self, number: int) -> None:
        """Drop waiting publish requests to a topic that moves; they are repeated elsewhere."""
        self._held.drop(number)

    def on_held_due(self, number: int) -> None:
        """Process publish requests to a topic that have waited for a while."""
        topic = self.log.topic(number)
        self._append_all(self._held.list_ready(topic))
        for message in self._held.list_late(topic):
            self._report_held(message)

    def request_restatement(self) -> None:
        """Ask all access brokers for their topics that have not stated them since a loss.

        To a new server, each access broker states its topics by itself.
        """
        if not self._lineage:
            return
        for home in self._restatements.list_awaited():
            self._sessions.answer(home, Merged(home, ()))
        if self._restatements.are_awaited:
            due_ns = self._machine.now_ns + self._parameters.retry_limit_ns
            self._deadlines.set((RESTATING, self._broker), due_ns)

    # ------------------------------------------------------------ requests

    def _take_ownership(self, number: int) -> Part:
        return Part(self._broker, number)

    def merge(self, owners: Sequence[Owner]) -> None:
        """Notify followers of topics that other servers own, too."""
        for owner in owners:
            self.requested.pop(owner.topic, None)
            for home, follower in self.followers:
                if self.followers.follows(follower, owner.topic):
                    self._sessions.answer(home, Merged(home, (owner,)))

    def _request(self, topics: Sequence[int]) -> None:
        new = dict.fromkeys(topic for topic in topics if topic not in self.requested)
        if new:
            self.requested.update(new)
            if self._assignments is not None:
                self._assignments.announce(tuple(new))

    def serves(self, request: Request) -> bool:
        """Return False if this request, or an earlier one, proves a loss of state here.

        Lost positions would be assigned again. So nothing is served before the loss is accepted.
        """
        if not self._has_proof_of_loss:
            cause = self._starts.find_loss(request.mark)
            if not cause and isinstance(request, Get):
                cause = self.followers.find_loss(request)
            if cause:
                self._has_proof_of_loss = True
                self._machine.record(LOSS_PROVED, home=request.home, cause=cause)
                self._disk.commit([Change(PROVED, _PROOF, self._lineage)], lambda: None)
        return not self._has_proof_of_loss

    def _on_put(self, peer: Peer, message: Put) -> None:
        home, number, run = message.home, message.topic, message.run
        if run.source.broker != home or run.origins or has_marker(run):
            raise RemoteProtocolError(peer, f"broker {home} puts for {run.source}")
        server = self.transfer_server
        is_moving = server is not None and (server.transfers.moving or server.transfers.moved)
        if server is not None and is_moving and server.is_away(home, (number,)):
            return
        self._request((number,))
        self._counters["publications_received"] += len(run)
        if self._held.delays(self.log.topic(number), message):
            self._report_held(message)
        else:
            self._append(message)

    def _append_all(self, ready: Iterable[Put]) -> None:
        for message in ready if not self._has_proof_of_loss else ():
            self._append(message)

    def _append(self, message: Put) -> None:
        placed = self.log.put(message.topic, message.previous, message.run)
        if isinstance(placed, int):
            self._report_stored(message, placed)
        elif placed is not None:
            self._disk.append(LOG, placed.record, partial(self._store, placed, message))

    def _store(self, placed: PlacedRun, message: Put | None) -> None:
        """Accept publications, or a loss marker without a request, once the record is durable."""
        self.log.store(placed)
        if message is not None and placed.last is not None:
            self._report_stored(message, placed.last.through)
        self._on_durable(placed.topic)

    def _report_stored(self, message: Put, through: int) -> None:
        home, source = message.home, message.run.source
        answer = Stored(self._broker, home, message.topic, source, through, self._mark())
        self._sessions.answer(home, answer)

    def _report_held(self, message: Put) -> None:
        stored = self.log.topic(message.topic).stored
        self._report_stored(message, stored.get(message.run.source, 0))

    def _on_follow(self, peer: Peer, message: Follow) -> None:
        home = message.home
        version = Version(message.incarnation, message.number)
        follower = self.followers.get(home)
        if follower is not None and version < follower.version:
            return
        known: dict[Part, int] = {}
        if self.transfer_server is not None:
            if not self.transfer_server.can_follow(home, follower, message.topics):
                return
            known = self.transfer_server.positions.of(message.topics)
        is_restated = self._restatements.is_awaited(home)
        if follower is None:
            follower = self.followers.add(home, version)
        is_restarted = version.incarnation > follower.version.incarnation
        follower.version = version
        before = follower.done
        self._request(
            [topic for topic in message.topics if self._take_ownership(topic) not in before]
        )
        parts = [part for topic in message.topics for part in self.log.parts(topic)]
        heads = {part.part: part.assigned for part in parts}
        follower.done = {part: before.get(part, head) for part, head in heads.items()}
        if is_restated:
            # This server may have lost that this broker followed, and from where on.
            follower.done = {part: before.get(part, 0) for part in heads}
        changes: tuple[Change, ...] = ()
        if self.transfer_server is not None:
            self.transfer_server.keep(follower, before, message.topics, known)
        if is_restarted or before.keys() != follower.done.keys():
            changes = (self.followers.row(home),)
        if is_restated:
            changes = (self.followers.row(home), self._restatements.take(home))
        followed = tuple(Followed(*part, follower.done[part], head) for part, head in heads.items())
        elsewhere = tuple(Elsewhere(*part, through) for part, through in known.items())
        answer = Following(self._broker, home, *version, followed, elsewhere)
        self._drop_parts(home, [part for part in before if part not in follower.done])
        if is_restated:
            self.settle_all()

        def written() -> None:
            # A position that a crash could give to another publication must not be sent.
            self.log.sync(lambda: self._sessions.answer(home, replace(answer, mark=self._mark())))

        if changes:
            self._disk.commit(changes, written)
        else:
            self._disk.when_written(written)

    def _drop_parts(self, home: BrokerNumber, parts: Iterable[Part]) -> None:
        """Retain nothing for an access broker in parts that it follows no more."""
        for part in parts:
            if part.server == self._broker:
                self._append_all(self._held.remove_follower(home, self.log.part(part)))
            self._settle(self.log.part(part))

    def _on_get(self, peer: Any, message: Get) -> None:
        home = message.home
        follower = self.followers.get(home)
        version = Version(message.incarnation, message.number)
        if self._restatements.is_awaited(home):
            self._sessions.answer(home, Merged(home, ()))
            return
        if follower is None or version <= follower.got:
            return
        if message.incarnation < follower.version.incarnation:
            # The access broker has restarted since, and continues at its answer, maybe before this.
            return
        waits = {
            part: each
            for each in message.wanted
            if (part := Part(each.part, each.topic)) in follower.done
        }
        if self._has_lost_topics(follower, message.wanted):
            self._sessions.answer(home, Merged(home, ()))
        follower.got, follower.waits = version, waits
        follower.tried.clear()
        self._deadlines.cancel((REPEATING, home))
        if self.transfer_server is not None and len(waits) < len(follower.done):
            self.transfer_server.got(home, follower, message.wanted)
        for part, wanted in waits.items():
            if part.server == self._broker:
                topic = self.log.part(part)
                self._append_all(self._held.on_progress(home, topic, wanted.after))
            done = min(wanted.done, self.log.part(part).durable)
            if done > follower.done[part]:
                follower.done[part] = done
                self._settle(self.log.part(part))
        follower.over = peer
        if any(map(self._has, waits.values())):
            self._end_get(home, follower)
        elif self._parameters.get_wait_ns:
            due_ns = self._machine.now_ns + self._parameters.get_wait_ns
            self._deadlines.set((WAITING, home), due_ns)

    def _has_lost_topics(self, follower: Follower, wanted: Sequence[Wanted]) -> bool:
        """Return True if an access broker follows topics that a server with a loss does not know.

        A Follow from before the loss may have arrived in place of the repeated one.
        """
        parts = (Part(each.part, each.topic) for each in wanted)
        return self.log.lost_through > 0 and any(part not in follower.done for part in parts)

    # ------------------------------------------------------------ answers

    def _has(self, wanted: Wanted) -> bool:
        """Return True if a server has publications, or a loss to announce, for a part of a Get.

        A loss ends before the durable position.
        """
        if not wanted.most:
            return False
        return self.log.part(Part(wanted.part, wanted.topic)).durable > wanted.after

    def _has_lost(self, topic: Topic, after: int) -> bool:
        """Return True if an accepted loss took positions behind `after`."""
        return bool(self.log.lost_through) and after < topic.needed_position

    def _on_durable(self, topic: Topic) -> None:
        for home, follower in self.followers:
            wanted = follower.waits.get(topic.part)
            if wanted is not None and self._has(wanted):
                self._end_get(home, follower)
        self._settle(topic)
        self.retention.on_append()

    def _end_get(self, home: BrokerNumber, follower: Follower) -> None:
        """Answer a get with the present publications."""
        waits, follower.waits = follower.waits, {}
        self._deadlines.cancel((WAITING, home))
        for part, wanted in waits.items():
            most = min(wanted.most, self._parameters.get_publications)
            topic, after = self.log.part(part), wanted.after
            if most and self._has_lost(topic, after):
                stream, last = SourceId(*part, 0), topic.needed_position
                lacked = (LostRun(after + 1, stream, after + 1, last),)
                self._sessions.answer(home, Lost(self._broker, home, *part, lacked), follower.over)
                after = last
            for lost in self.retention.losses_after(home, topic, after) if most else ():
                self._sessions.answer(home, lost, follower.over)
                after = lost.last
            run = topic.after(after, most) if most else None
            for part_run in split_by_markers(run) if run is not None else ():
                self._answer_run(home, topic, part_run, follower.over)
        answered = Answered(self._broker, home, *follower.got, self._mark())
        self._sessions.answer(home, answered, follower.over)
        if not self._parameters.get_wait_ns and follower.over is not None:
            follower.answered = waits
            follower.tried[follower.over] = None
            wait_ns = _TIMEOUTS_BEFORE_REPETITION * self._parameters.timeout_ns
            self._deadlines.set((REPEATING, home), self._machine.now_ns + wait_ns)

    def _mark(self) -> LogMark:
        """Return the present extent of the log, for answers."""
        return self._starts.mark(self.log.records)

    def _answer_run(
        self, home: BrokerNumber, topic: Topic, run: PublicationRun, over: BrokerNumber | None
    ) -> None:
        """Send publications of a topic, or the loss that a marker stands for."""
        if has_marker(run):
            lost = Lost(self._broker, home, *topic.part, tuple(list_lost_runs(run)))
            self._sessions.answer(home, lost, over)
            return
        self._counters["publications_forwarded"] += len(run)
        self._sessions.answer(home, Messages(home, topic.number, run), over)

    def _settle(self, topic: Topic) -> None:
        """Release a topic as far as all followers have acknowledged; without one, everything."""
        if topic.is_frozen or not topic.is_here or self._restatements.are_awaited:
            return
        done = self.followers.done_with(topic)
        through = min((topic.durable, *done))
        if self.transfer_server is not None and self.transfer_server.is_shared:
            through = min(through, self.transfer_server.positions.owed_nothing_through(topic))
        if through > topic.released or len(topic.lost):
            self.log.release(topic, through)
