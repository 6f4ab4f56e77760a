"""A storage: the log of a unit, and answers to the fetches of its followers.

A root receives the publications of its unit; a finer storage takes those of interest to its unit
from its parent, and begins no new subscription before the parent has registered its predicate.
Unanswered requests are repeated. While a storage reads its log after a restart, all requests are
dropped.

Paper: [GES] §4 (stable storage; storage trees; epochs; reconnecting clients).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.ges_reliable.carriage import Carriage
from brokerd.protocols.ges_reliable.epochs import EpochLog, Event
from brokerd.protocols.ges_reliable.messages import (
    Begun,
    Change,
    Changed,
    Events,
    Fetch,
    Fetched,
    Store,
    Stored,
    Wish,
)
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.requests import SubscriptionRequests
from brokerd.protocols.ges_reliable.storage_tree import (
    INTAKE,
    PROFILE,
    StorageFeeds,
    StoragePlace,
    UnitProfile,
)
from brokerd.protocols.ges_reliable.subscriptions import DependentStorages, Registrations
from brokerd.protocols.interface import Change as Row
from brokerd.protocols.interface import Commit, LogEnds, RecordsRead
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler
from brokerd.protocols.parts.selection import RunSelection

WAITING: Final = "waiting"
"""Purpose of the deadline at which a fetch is answered without publications."""
OTHER_WAITING: Final = "other storage waiting"
"""The same for a fetch of another storage."""
HOMES: Final = "homes"
"""Per access broker, and per child, the incarnation and the number of the last Change."""

_Asker = tuple[BrokerNumber, bool]
"""An access broker, or a storage."""


@dataclass(slots=True)
class Follower:
    """A broker that follows this storage, as an access broker or as a storage.

    Attributes:
        latest: incarnation and number of the last fetch.
        waits: that fetch, while not answered.
    """

    latest: tuple[int, int] = (0, 0)
    waits: Fetch | None = None


class Storage:
    """The role of a broker as a storage."""

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        carriage: Carriage,
        place: StoragePlace,
    ) -> None:
        is_root = place.parent is None
        self.log = EpochLog(broker, disk, parameters.held_limit, self._on_durable, is_root=is_root)
        self.registrations = Registrations(decode_attributes, is_root=is_root)
        self.others = DependentStorages(broker, place, decode_attributes)
        self.intake = StorageFeeds(
            broker,
            place,
            self.log,
            disk.machine,
            deadlines,
            parameters,
            carriage,
            self.registrations.match,
        )
        self.profile: UnitProfile | None = None
        if place.parent is not None:
            changes = SubscriptionRequests(
                broker,
                disk.machine,
                deadlines,
                parameters,
                carriage,
                purpose=PROFILE,
                stores=True,
            )
            self.profile = UnitProfile(place.parent, disk.machine, changes, self._on_begun)
        self._broker = broker
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._counters = counters
        self._carriage = carriage
        self._homes: dict[_Asker, tuple[int, int]] = {}
        self._followers: dict[_Asker, Follower] = {}
        self._waiting: dict[_Asker, Change] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of requests."""
        return {Store: self._on_store, Change: self._on_change, Fetch: self._on_fetch}

    def answer_handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of other storages' answers."""
        found: dict[type, MessageHandler] = {
            Events: self.intake.on_events,
            Fetched: self.intake.on_fetched,
        }
        if self.profile is not None:
            found[Changed] = self.profile.changes.on_changed
        return found

    def recover(
        self, recovered: Mapping[str, Mapping[str, Any]], ends: LogEnds, incarnation: int = 0
    ) -> None:
        """Restore the state of an earlier incarnation from disk."""
        self.intake.start(incarnation)
        self.log.recover(recovered, ends)
        self.registrations.recover(recovered, self.log.released)
        self.others.recover(recovered, self.log.released)
        for text, (last, number) in recovered.get(HOMES, {}).items():
            broker, _, stores = text.partition(" ")
            self._homes[int(broker), bool(stores)] = last, number
        if self.profile is not None:
            self.profile.changes.start(incarnation)
            self.profile.recover(recovered)
        if self.log.is_read:
            self.intake.begin()

    def on_records(self, event: RecordsRead) -> None:
        """Take a page of the log."""
        self.log.on_records(event)
        if self.log.is_read:
            self.intake.begin()

    def change(self, place: StoragePlace) -> None:
        """Take storages that were added or retired."""
        self.others.change(place)

    def latest(self, home: BrokerNumber, *, stores: bool = False) -> tuple[int, int]:
        """Return incarnation and number of the last change of an access broker, or of a child."""
        return self._homes.get((home, stores), (0, 0))

    def due(self, follower: BrokerNumber, *, stores: bool = False) -> None:
        """Answer a fetch that has waited long enough."""
        if self._followers[follower, stores].waits is not None:
            self._answer((follower, stores))

    def other_due(self, purpose: str, storage: BrokerNumber) -> None:
        """Answer another storage's fetch, or repeat a request to another storage."""
        if purpose == OTHER_WAITING:
            self.due(storage, stores=True)
        elif purpose == INTAKE:
            self.intake.due(storage)
        else:
            assert self.profile is not None, f"{self._broker} has no parent, and waits for it"
            self.profile.changes.due(storage)

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
        self._counters["publications_received"] += len(run)
        self.log.store(run, self._broker)
        source, home = run.source, message.home
        if self.log.stored(source) >= run.last:
            self._tell_stored(home, run)
        else:
            self.log.sync(partial(self._tell_stored, home, run))

    def _tell_stored(self, home: BrokerNumber, run: PublicationRun) -> None:
        through = self.log.stored(run.source)
        target = self._carriage.to(home)
        self._carriage.send(Stored(target, 0, self._broker, run.source, through))

    def _on_durable(self, event: Event) -> None:
        wanted: dict[_Asker, None] = {}
        for homes in self.registrations.match(event.run):
            wanted |= dict.fromkeys((home, False) for home in homes)
        for storages in self.others.match(event):
            wanted |= dict.fromkeys((storage, True) for storage in storages)
        for asker in wanted:
            follower = self._followers.get(asker)
            if follower is not None and follower.waits is not None:
                self._answer(asker)
        self._release()

    # ------------------------------------------------------------ subscriptions

    def _on_change(self, peer: Peer, message: Change) -> None:
        home, number = message.home, (message.incarnation, message.number)
        asker = home, message.stores
        if message.stores and not self.others.is_child(home):
            return  # it knows before this one that it is
        latest = self.latest(home, stores=message.stores)
        if not self.log.is_read or number < latest:
            return
        if self.profile is not None and any(wish.looks for wish in message.wishes):
            raise RemoteProtocolError(peer, f"asks {self._broker} how far it is, which is no root")
        rows: list[Row] = []
        begun: list[Begun] = []
        if number == latest:
            known = self.others.begun if message.stores else self.registrations.begun
            begun = [self._look(wish) or known(wish, home) for wish in message.wishes]
        elif not self._may_begin(message):
            self._waiting[asker] = message
            return
        else:
            self._homes[asker] = number
            rows.append(Row(HOMES, f"{home} stores" if message.stores else str(home), [*number]))
            take = self.others.take if message.stores else self.registrations.take
            for wish in message.wishes:
                if (looked := self._look(wish)) is not None:
                    begun.append(looked)
                    continue
                begins, changed = take(wish, home, self._head(wish))
                begun.append(begins)
                rows += changed
        target, stores = self._carriage.to(home), message.stores
        answer = Changed(target, 0, self._broker, *number, tuple(begun), stores)
        ends = self.registrations.ends

        def written() -> None:
            self.registrations.ended(ends)
            self._carriage.send(answer)
            self._let_go()

        def write() -> None:
            if rows:
                self._disk.commit(rows, written)
            else:
                self._disk.when_written(written)

        # A crash could give a later epoch to another publication: none is written, or sent.
        self.log.sync(write)
        self._let_go()

    def _let_go(self) -> None:
        """Release publications, and predicates of this unit, that are not needed any more."""
        self._release()
        if self.profile is not None:
            self._keep_profile(self.profile)

    def _look(self, wish: Wish) -> Begun | None:
        """Return the position of this root for a `looks` request; it is sent once durable."""
        if not wish.looks:
            return None
        return Begun(wish.key, self.log.assigned, had_of=self.log.reached())

    def _may_begin(self, message: Change) -> bool:
        """Return True if the parent sends everything that begins here; request the rest.

        Paper: [GES] §4 (all storages up to the root have a profile change before its epoch is
        announced).
        """
        if self.profile is None:
            return True
        wanted = [
            wish.predicate
            for wish in message.wishes
            if wish.predicate is not None and not wish.claims
        ]
        for predicate in wanted:
            self.profile.ask(predicate)
        return all(self.profile.begins(predicate) is not None for predicate in wanted)

    def _head(self, wish: Wish) -> int:
        """Return the epoch after which a new subscription begins."""
        begins = None
        if self.profile is not None and wish.predicate is not None:
            begins = self.profile.begins(wish.predicate)
        return max(self.log.assigned, begins or 0)

    def _on_begun(self) -> None:
        """Begin the subscriptions that have waited for the parent."""
        for asker in [*self._waiting]:
            message = self._waiting.pop(asker)
            self._on_change(message.home, message)

    def _keep_profile(self, profile: UnitProfile) -> None:
        """Reduce the parent's predicates to those that are needed."""
        waiting = (wish.predicate for each in self._waiting.values() for wish in each.wishes)
        known = (each.predicate for each in self.registrations.kept())
        wanted = (*known, *self.others.predicates(), *waiting)
        profile.keep(each for each in wanted if each is not None)

    # ------------------------------------------------------------ following

    def _on_fetch(self, peer: Peer, message: Fetch) -> None:
        if not self.log.is_read:
            return
        # A finer storage has not written down how far it had read its parent's log.
        if self.profile is None and max(message.after, message.through) > self.log.durable:
            raise RemoteProtocolError(
                peer, f"broker {message.follower} has {message.after} of {self.log.durable}"
            )
        if message.stores and message.follower not in self.others:
            return
        asker = message.follower, message.stores
        follower = self._followers.setdefault(asker, Follower())
        latest = message.incarnation, message.number
        if latest <= follower.latest:
            return
        follower.latest = latest
        self._take_receipts(message)
        follower.waits = message
        if self._find(message)[0]:
            self._answer(asker)
        else:
            due_ns = self._machine.now_ns + self._parameters.fetch_wait_ns
            self._deadlines.set(_waiting(asker), due_ns)

    def _take_receipts(self, message: Fetch) -> None:
        if message.stores:
            if self.others.reach(message.follower, message.through):
                self._release()
            return
        rows = [
            row
            for key, generation in message.done
            for row in self.registrations.receive(
                key, generation, message.follower, message.through
            )
        ]
        if rows:
            self._machine.emit(Commit(tuple(rows), None))
            self._release()

    def _find(self, fetch: Fetch) -> tuple[list[PublicationRun], int]:
        """Return the publications for a follower after an epoch, and the epoch of completeness.

        Publications through the last durable epoch that the log lacks had no interest here.
        """
        found: list[PublicationRun] = []
        through, count = fetch.after, 0
        for event in self.log.after(fetch.after):
            if fetch.stores:
                found_for = self.others.match(event)
            else:
                found_for = self.registrations.match(event.run)
            places = [place for place, those in enumerate(found_for) if fetch.follower in those]
            if places:
                run = RunSelection(event.run).having(places)
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
        self._deadlines.cancel(_waiting(asker))
        found, through = self._find(fetch)
        target, after = self._carriage.to(fetch.follower), fetch.after
        about = self._broker, fetch.incarnation, fetch.number
        if found:
            run = merge_runs(found)
            self._counters["publications_forwarded"] += len(run)
            self._carriage.send(Events(target, 0, *about, after, run, fetch.stores))
            after = run.last
        self._carriage.send(Fetched(target, 0, *about, after, through, fetch.stores))

    def _release(self) -> None:
        """Release publications that all followers have acknowledged."""
        durable = self.log.durable
        through = min(self.registrations.lowest(durable), self.others.lowest(durable), durable)
        if through > self.log.released:
            self.log.release(through)


def _waiting(asker: _Asker) -> tuple[str, BrokerNumber]:
    broker, stores = asker
    return (OTHER_WAITING if stores else WAITING), broker
