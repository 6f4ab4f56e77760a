"""A storage: the log of a unit, and answers to the fetches of its followers.

A root receives the publications of its unit; a finer storage takes those of interest to its unit
from its parent, and begins no new subscription before the parent has registered its predicate.
Unanswered requests are repeated. While a storage reads its log after a restart, all requests are
dropped.

`Storage` connects the parts of a storage: it takes the messages, effects and facts that a part
returns, in order, and routes each fact to the part that it concerns.

Paper: [GES] §4 (stable storage; storage trees; epochs; reconnecting clients).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.losses import has_marker, is_of_publisher, split_by_markers
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.ges_reliable.definition import LOG, StoragePlace
from brokerd.protocols.ges_reliable.epochs import EpochLog
from brokerd.protocols.ges_reliable.messages import (
    Change,
    Changed,
    Events,
    Fetch,
    Fetched,
    Forwarding,
    LossProof,
    RequestAnswer,
    Store,
    Stored,
    SubscriptionRequest,
)
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.requests import SubscriptionRequests
from brokerd.protocols.ges_reliable.state import (
    HOMES,
    PROFILE,
    PROVED,
    Answer,
    Event,
    LogAppend,
    LogRelease,
    PredicateStart,
    Request,
    StorageState,
)
from brokerd.protocols.ges_reliable.storage_tree import INTAKE, StorageFeeds, UnitProfile
from brokerd.protocols.ges_reliable.subscriptions import DependentStorages, Registrations
from brokerd.protocols.interface import LOSS_PROVED, Chop, Commit, LogEnds, Read, RecordsRead
from brokerd.protocols.interface import Change as Row
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler
from brokerd.protocols.parts.selection import RunSelection

WAITING: Final = "waiting"
"""Purpose of the deadline at which a fetch is answered without publications."""
OTHER_WAITING: Final = "other storage waiting"
"""The same for a fetch of another storage."""
DEADLINES: Final = (WAITING, OTHER_WAITING, INTAKE, PROFILE)
"""The purposes of the deadlines of a storage."""

_PROOF: Final = "loss"
"""The only key of `PROVED`."""

_Asker = tuple[BrokerNumber, bool]
"""An access broker, or a storage."""


@dataclass(slots=True)
class Follower:
    """A broker that follows this storage, as an access broker or as a storage.

    Attributes:
        latest: incarnation and number of the last fetch.
        waits: that fetch, while not answered.
        repeated: the message that is repeated until the next fetch.
        repeat_ns: the wait before it is repeated again.
    """

    latest: tuple[int, int] = (0, 0)
    waits: Fetch | None = None
    repeated: Fetched | None = None
    repeat_ns: int = 0


class Storage:
    """The role of a broker as a storage.

    Args:
        forwarding: the routes of messages to access brokers and other storages.

    Attributes:
        log: the publications on disk.
        registrations: the subscriptions of clients.
        dependents: the storages that take from this one.
        feeds: the storages that this one takes from.
        profile: the predicates of the unit, as requests to the parent; None at a root.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        forwarding: Forwarding,
        place: StoragePlace,
    ) -> None:
        is_root = place.parent is None
        self.log = EpochLog(broker, parameters.held_limit, is_root=is_root)
        self.registrations = Registrations(decode_attributes, is_root=is_root)
        self.dependents = DependentStorages(broker, place, decode_attributes)
        self.feeds = StorageFeeds(broker, place, self.log, deadlines, parameters, forwarding)
        self.profile = UnitProfile(place.parent) if place.parent is not None else None
        self._requests = SubscriptionRequests(
            broker, deadlines, parameters, forwarding, purpose=PROFILE, stores=True
        )
        self._parent = place.parent
        self._place = place
        self._broker = broker
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._counters = counters
        self._forwarding = forwarding
        self._lineage = 0
        self._has_proof_of_loss = False
        self._proved_in: int | None = None
        self._homes: dict[_Asker, tuple[int, int]] = {}
        self._followers: dict[_Asker, Follower] = {}
        self._waiting: dict[_Asker, Change] = {}

    def state(self) -> StorageState:
        """Return the volatile state, for people."""
        log, registrations = self.log, self.registrations
        homes = [each.home for each in registrations.subscriptions().values()]
        return StorageState(
            parent=self._parent,
            assigned=log.assigned,
            durable=log.durable,
            released=log.released,
            retained=log.retained(),
            out_of_order=log.waiting(),
            publishers=len(log.reached()),
            subscriptions=dict(sorted(Counter(homes).items())),
            receipts=registrations.lowest(log.durable),
            moved=len(registrations.successors()),
            dependents=dict(self.dependents.reached()),
            feeds=self.feeds.reached(),
        )

    # ------------------------------------------------------------ facts

    def _take(self, outcomes: Iterable[Any]) -> None:
        """Send messages, emit effects, and route facts to their parts, in order."""
        for each in outcomes:
            kind = type(each)
            if kind is LogAppend:
                self._disk.append(LOG, each.record, partial(self._on_appended, each.event))
            elif kind is LogRelease:
                self._disk.commit(each.rows, partial(self._on_released, each.first))
            elif kind is Request:
                now_ns = self._machine.now_ns
                self._take(self._requests.add(each.storage, each.request, each.step, now_ns))
            elif kind is Answer:
                assert self.profile is not None, f"{self._broker} has no parent: {each}"
                self._take(self.profile.on_answer(each.step, each.answer))
            elif kind is PredicateStart:
                self._begin_waiting()
            elif kind in (Commit, Read, Chop):
                self._machine.emit(each)
            else:
                self._forwarding.send(each)

    def _on_released(self, first: int) -> None:
        self._take(self.log.on_released(first))

    # ------------------------------------------------------------ start, messages, deadlines

    def handlers(self) -> dict[type, MessageHandler]:
        return {Store: self._on_store, Change: self._on_change, Fetch: self._on_fetch}

    def answer_handlers(self) -> dict[type, MessageHandler]:
        found: dict[type, MessageHandler] = {Events: self._on_events, Fetched: self._on_fetched}
        if self.profile is not None:
            found[Changed] = self._on_changed
        return found

    def recover(
        self,
        recovered: Mapping[str, Mapping[str, Any]],
        ends: LogEnds,
        incarnation: int = 0,
        lineage: int = 0,
    ) -> None:
        """Restore the state of an earlier incarnation from disk.

        Args:
            lineage: see Started.
        """
        self.feeds.start(incarnation)
        self._lineage = lineage
        self._proved_in = recovered.get(PROVED, {}).get(_PROOF)
        self._take(self.log.recover(recovered, ends))
        self.registrations.recover(recovered, self.log.released)
        self.dependents.recover(recovered, self.log.released)
        for text, (last, number) in recovered.get(HOMES, {}).items():
            broker, _, stores = text.partition(" ")
            self._homes[int(broker), bool(stores)] = last, number
        if self.profile is not None:
            self._requests.start(incarnation)
            self._take(self.profile.recover(recovered))
        if self.log.is_read:
            self._begin()

    def on_records(self, event: RecordsRead) -> None:
        """Take a page of the log."""
        self._take(self.log.on_records(event))
        if self.log.is_read:
            self._begin()

    def _begin(self) -> None:
        """Begin after the log is read; release what receipts on disk permit.

        A finer storage has lost nothing: its broker was no storage when the loss was accepted.
        """
        if self._lineage and self.profile is None:
            self._take(self.log.announce_loss(self._lineage))
        if self._proved_in is not None and self._proved_in < self._lineage:
            self._repeat_publications()
        elif self._proved_in is not None:
            self._has_proof_of_loss = True  # it is not accepted
        self._release()
        self._take(self.feeds.begin(self._machine.now_ns))
        if not self._parameters.fetch_wait_ns:
            self._request_fetches()

    def _repeat_publications(self) -> None:
        """Store retained publications again, behind a loss that a fetch had proved.

        Their epochs were assigned before the proof, and may be epochs of lost publications.
        """
        self._take(self.log.repeat())
        row = Row(PROVED, _PROOF, None)
        self._disk.sync(LOG, lambda: self._disk.commit([row], lambda: None))

    def _request_fetches(self) -> None:
        """Request the fetches that followers had here before a restart, and await answers to."""
        askers = [(home, False) for home in self.registrations.homes()]
        askers += [(storage, True) for storage in self.dependents.reached()]
        for asker in dict.fromkeys(askers):
            home, stores = asker
            target = self._forwarding.to(home)
            request = Fetched(target, 0, self._broker, 0, 0, 0, 0, stores)
            self._forwarding.send(request)
            self._repeat_later(asker, request, self._parameters.timeout_ns)

    def _repeat_later(self, asker: _Asker, message: Fetched, wait_ns: int) -> None:
        follower = self._followers.setdefault(asker, Follower())
        follower.repeated, follower.repeat_ns = message, wait_ns
        self._deadlines.set(_count_waiting(asker), self._machine.now_ns + wait_ns)

    def _repeat(self, asker: _Asker) -> None:
        """Repeat that there is an answer, or a restart, while the follower follows."""
        home, stores = asker
        follower = self._followers[asker]
        homes = self.registrations.homes()
        if follower.repeated is not None and (home in self.dependents if stores else home in homes):
            self._forwarding.send(follower.repeated)
            wait_ns = min(2 * follower.repeat_ns, self._parameters.retry_limit_ns)
            self._repeat_later(asker, follower.repeated, wait_ns)

    def change(self, place: StoragePlace) -> None:
        """Take storages that were added or retired."""
        self._place = place
        self.dependents.change(place)

    def latest(self, home: BrokerNumber, *, stores: bool = False) -> tuple[int, int]:
        """Return incarnation and number of the last change of an access broker, or of a child."""
        return self._homes.get((home, stores), (0, 0))

    def due(self, purpose: str, broker: BrokerNumber) -> None:
        """Answer a fetch that has waited long enough, or repeat a request to another storage."""
        now_ns = self._machine.now_ns
        if purpose in (WAITING, OTHER_WAITING):
            asker = broker, purpose == OTHER_WAITING
            if self._followers[asker].waits is not None:
                self._answer(asker)
            else:
                self._repeat(asker)
        elif purpose == INTAKE:
            self._forwarding.send(self.feeds.due(broker, now_ns))
        else:
            assert purpose == PROFILE, f"{purpose!r} of broker {broker}"
            self._take(self._requests.due(broker, now_ns))

    # ------------------------------------------------------------ publications

    def _on_store(self, peer: Peer, message: Store) -> None:
        run = message.run
        if not self.log.is_read:
            return
        if run.origins:
            raise RemoteProtocolError(peer, f"stores what is in {run.source} already")
        if self.profile is not None:
            raise RemoteProtocolError(peer, f"{run.source} is published at no root")
        self.registrations.match(run)  # malformed runs are not stored
        parts = [*split_by_markers(run)]  # the session joins a marker with later publications
        for part in parts:
            if has_marker(part) and not is_of_publisher(part):
                raise RemoteProtocolError(peer, f"the loss marker of {run.source} is of another")
        self._counters["publications_received"] += len(run)
        for part in parts:
            self._store(message.home, part)

    def _store(self, home: BrokerNumber, run: PublicationRun) -> None:
        """Store publications, unless lost epochs would be assigned again."""
        source = run.source
        if has_marker(run) and self._proves_loss(run):
            self._report_loss(home, run)
            return
        if self._has_proof_of_loss:
            return
        self._take(self.log.store(run, self._broker))
        if self.log.stored(source) >= run.last:
            self._report_stored(home, run)
        else:
            self._disk.sync(LOG, partial(self._report_stored, home, run))

    def _proves_loss(self, run: PublicationRun) -> bool:
        """Return True if acknowledged publications are missing, and no loss was accepted.

        An access broker sends a marker for acknowledged numbers only. One of several roots may have
        yet to receive what another one has acknowledged.
        """
        is_only = self.profile is None and not self._place.siblings
        return is_only and not self.log.lost_through and not self.log.has(run.source, 1, run.last)

    def _report_loss(self, home: BrokerNumber, run: PublicationRun) -> None:
        source, through = run.source, self.log.stored(run.source)
        cause = (
            f"publications {through + 1} to {run.last} of source {tuple(source)} were "
            "acknowledged, and are missing on this storage's disk"
        )
        self._machine.record(LOSS_PROVED, source=[*source], cause=cause)
        target = self._forwarding.to(home)
        self._forwarding.send(LossProof(target, 0, self._broker, source, through, run.last))

    def _report_lost_epochs(self, follower: BrokerNumber, first: int, last: int) -> None:
        """Record, once, a loss that a fetch proves: its epochs were durable when they were sent."""
        if not self._has_proof_of_loss:
            self._has_proof_of_loss = True
            cause = f"epochs {first} to {last}, which broker {follower} has, were on disk, and are"
            self._machine.record(LOSS_PROVED, follower=follower, cause=f"{cause} missing")
            self._disk.commit([Row(PROVED, _PROOF, self._lineage)], lambda: None)

    def _report_stored(self, home: BrokerNumber, run: PublicationRun) -> None:
        through = self.log.stored(run.source)
        target = self._forwarding.to(home)
        self._forwarding.send(Stored(target, 0, self._broker, run.source, through))

    def _on_appended(self, event: Event) -> None:
        """Answer the waiting fetches of followers that are interested in durable publications."""
        self.log.on_appended(event)
        wanted: dict[_Asker, None] = {}
        for homes in self.registrations.match(event.run):
            wanted |= dict.fromkeys((home, False) for home in homes)
        for storages in self.dependents.match(event):
            wanted |= dict.fromkeys((storage, True) for storage in storages)
        for asker in wanted:
            follower = self._followers.get(asker)
            if follower is not None and follower.waits is not None:
                self._answer(asker)
        if not self._parameters.fetch_wait_ns:
            self._report_progress()
        self._release()

    def _report_progress(self) -> None:
        """Report later to all followers how far the log is, and to feeds what is on disk.

        Otherwise a follower without publications would acknowledge nothing.
        """
        now_ns = self._machine.now_ns
        for asker, follower in self._followers.items():
            if follower.waits is not None and _count_waiting(asker) not in self._deadlines:
                due_ns = now_ns + self._parameters.receipt_interval_ns
                self._deadlines.set(_count_waiting(asker), due_ns)
        self.feeds.report(now_ns)

    def _on_events(self, peer: Peer, message: Events) -> None:
        """Take a part of another storage's answer.

        Raises:
            RemoteProtocolError: the run is malformed; the fault of the peer.
        """
        rest = self.feeds.rest_of(message)
        if rest is not None:
            if not rest.origins:
                raise RemoteProtocolError(peer, f"{rest.source} is of no storage")
            self.registrations.match(rest)  # malformed runs are not stored
            self._take(self.feeds.on_rest(message.storage, rest))

    def _on_fetched(self, _peer: Peer, message: Fetched) -> None:
        self._take(self.feeds.on_fetched(message, self._machine.now_ns))

    # ------------------------------------------------------------ subscriptions

    def _on_changed(self, peer: Peer, message: Changed) -> None:
        self._take(self._requests.on_changed(peer, message, self._machine.now_ns))

    def _on_change(self, peer: Peer, message: Change) -> None:
        home, number = message.home, (message.incarnation, message.number)
        asker = home, message.stores
        if message.stores and not self.dependents.is_child(home):
            return  # it received the overlay with its new parent first, and repeats the change
        latest = self.latest(home, stores=message.stores)
        if not self.log.is_read or number < latest:
            return
        if self.profile is not None and any(request.is_query for request in message.requests):
            raise RemoteProtocolError(peer, f"queries {self._broker}, which is no root")
        rows: list[Row] = []
        answers: list[RequestAnswer] = []
        if number == latest:
            known = self.dependents.answer if message.stores else self.registrations.answer
            answers = [self._look(request) or known(request, home) for request in message.requests]
        elif not self._can_begin(message):
            self._waiting[asker] = message
            return
        else:
            self._homes[asker] = number
            rows.append(Row(HOMES, f"{home} stores" if message.stores else str(home), [*number]))
            take = self.dependents.take if message.stores else self.registrations.take
            for request in message.requests:
                if (epoch := self._look(request)) is not None:
                    answers.append(epoch)
                    continue
                answer, changed = take(request, home, self._head(request))
                answers.append(answer)
                rows += changed
        target, stores = self._forwarding.to(home), message.stores
        reply = Changed(target, 0, self._broker, *number, tuple(answers), stores)
        ends = self.registrations.ends

        def send() -> None:
            self.registrations.confirm_ends(ends)
            self._forwarding.send(reply)
            self._release_unneeded()

        def write() -> None:
            if rows:
                self._disk.commit(rows, send)
            else:
                self._disk.when_written(send)

        # A crash could give a later epoch to another publication: none is written, or sent.
        self._disk.sync(LOG, write)
        self._release_unneeded()

    def _release_unneeded(self) -> None:
        """Release publications, and predicates of this unit, that are not needed any more."""
        self._release()
        if self.profile is not None:
            self._keep_profile(self.profile)

    def _look(self, request: SubscriptionRequest) -> RequestAnswer | None:
        """Return the position of this root for a `looks` request; it is sent once durable."""
        if not request.is_query:
            return None
        return RequestAnswer(request.key, self.log.assigned, received_of=self.log.reached())

    def _can_begin(self, message: Change) -> bool:
        """Return True if the parent sends everything that begins here; request the rest.

        Paper: [GES] §4 (all storages up to the root have a profile change before its epoch is
        announced).
        """
        if self.profile is None:
            return True
        wanted = [
            request.predicate
            for request in message.requests
            if request.predicate is not None and not request.claims
        ]
        for predicate in wanted:
            self._take(self.profile.request(predicate))
        return all(self.profile.starts_after(predicate) is not None for predicate in wanted)

    def _head(self, request: SubscriptionRequest) -> int:
        """Return the epoch after which a new subscription begins."""
        begins = None
        if self.profile is not None and request.predicate is not None:
            begins = self.profile.starts_after(request.predicate)
        return max(self.log.assigned, begins or 0)

    def _begin_waiting(self) -> None:
        """Begin the subscriptions that have waited for the parent."""
        for asker in [*self._waiting]:
            message = self._waiting.pop(asker)
            self._on_change(message.home, message)

    def _keep_profile(self, profile: UnitProfile) -> None:
        """Reduce the parent's predicates to those that are needed."""
        waiting = (
            request.predicate for each in self._waiting.values() for request in each.requests
        )
        known = (each.predicate for each in self.registrations.kept())
        wanted = (*known, *self.dependents.predicates(), *waiting)
        self._take(profile.keep(each for each in wanted if each is not None))

    # ------------------------------------------------------------ following

    def _on_fetch(self, peer: Peer, message: Fetch) -> None:
        if not self.log.is_read or not self.log.is_announced:
            return
        # A finer storage has not written down how far it had read its parent's log.
        received, durable = max(message.after, message.through), self.log.durable
        if self.profile is None and received > durable:
            if self._place.siblings:
                raise RemoteProtocolError(
                    peer, f"broker {message.follower} has {message.after} of {durable}"
                )
            self._report_lost_epochs(message.follower, durable + 1, received)
            return
        if message.stores and message.follower not in self.dependents:
            return
        asker = message.follower, message.stores
        follower = self._followers.setdefault(asker, Follower())
        latest = message.incarnation, message.number
        if latest <= follower.latest:
            return
        follower.latest = latest
        follower.repeated = None
        self._deadlines.cancel(_count_waiting(asker))
        self._take_receipts(message)
        follower.waits = message
        found, through = self._find(message)
        if found:
            self._answer(asker)
        elif not self._parameters.fetch_wait_ns:
            if through > message.after:
                self._answer(asker)
                return
            target, number = self._forwarding.to(message.follower), message.number
            about = self._broker, message.incarnation, number, message.after, message.after
            displaced = self._find_displaced(message)
            waiting = Fetched(target, 0, *about, message.stores, waits=True, displaced=displaced)
            self._forwarding.send(waiting)
        else:
            due_ns = self._machine.now_ns + self._parameters.fetch_wait_ns
            self._deadlines.set(_count_waiting(asker), due_ns)

    def _take_receipts(self, message: Fetch) -> None:
        if message.stores:
            if self.dependents.reach(message.follower, message.through):
                self._release()
            return
        rows = [
            row
            for key, generation, acknowledged in message.done
            for row in self.registrations.receive(
                key, generation, message.follower, message.through, acknowledged
            )
        ]
        if rows:
            self._machine.emit(Commit(tuple(rows), None))
            self._release()

    def _find_displaced(self, fetch: Fetch) -> tuple[tuple[ClientId, int], ...]:
        """Return the clients of a fetch's receipts with later attachments to other brokers.

        A receipt that is ignored is answered: the access broker may have the client all the same.
        """
        found: dict[ClientId, int] = {}
        for key, generation, _ in () if fetch.stores else fetch.done:
            later = self.registrations.later_generation(key.client, generation, fetch.follower)
            if later is not None:
                found[key.client] = later
        return tuple(found.items())

    def _find(self, fetch: Fetch) -> tuple[list[PublicationRun], int]:
        """Return the publications for a follower after an epoch, and the epoch of completeness.

        Publications through the last durable epoch that the log lacks had no interest here.
        """
        found: list[PublicationRun] = []
        through, count = fetch.after, 0
        for event in self.log.after(fetch.after):
            if fetch.stores:
                found_for = self.dependents.match(event)
            else:
                found_for = self.registrations.match(event.run)
            places = [place for place, those in enumerate(found_for) if fetch.follower in those]
            if places:
                run = RunSelection(event.run).select(places)
                if found and count + len(run) > fetch.most:
                    return found, through
                found.append(run)
                count += len(run)
            through = event.run.last
        return found, max(through, self.log.durable)

    def _answer(self, asker: _Asker) -> None:
        """Answer a fetch with the present publications."""
        fetch = self._followers[asker].waits
        assert fetch is not None, f"{asker} has not fetched anything"
        self._followers[asker].waits = None
        self._deadlines.cancel(_count_waiting(asker))
        found, through = self._find(fetch)
        target, after = self._forwarding.to(fetch.follower), fetch.after
        about = self._broker, fetch.incarnation, fetch.number
        if found:
            run = merge_runs(found)
            self._counters["publications_forwarded"] += len(run)
            self._forwarding.send(Events(target, 0, *about, after, run, fetch.stores))
            after = run.last
        displaced = self._find_displaced(fetch)
        self._forwarding.send(
            Fetched(target, 0, *about, after, through, fetch.stores, displaced=displaced)
        )
        if not self._parameters.fetch_wait_ns:  # a loss of it would stay unnoticed
            empty = Fetched(target, 0, *about, fetch.after, fetch.after, fetch.stores)
            self._repeat_later(asker, empty, self._parameters.timeout_ns)

    def _release(self) -> None:
        """Release publications that all followers have acknowledged."""
        durable = self.log.durable
        through = min(self.registrations.lowest(durable), self.dependents.lowest(durable), durable)
        if through > self.log.released:
            self._take(self.log.release(through))


def _count_waiting(asker: _Asker) -> tuple[str, BrokerNumber]:
    broker, stores = asker
    return (OTHER_WAITING if stores else WAITING), broker
