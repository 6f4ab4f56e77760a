"""A storage: stores what is published in its unit, and tells whoever follows it what is for them.

It answers requests and asks nobody: whoever has got no answer asks again. While its log is read
after a restart it lets all requests go.

Paper: [GES] §4 (stable storage; epochs; reconnecting clients).
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
from brokerd.protocols.ges_reliable.epoch_log import EpochLog, Event
from brokerd.protocols.ges_reliable.messages import (
    Begun,
    Change,
    Changed,
    Events,
    Fetch,
    Fetched,
    Store,
    Stored,
)
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.registrations import Registrations
from brokerd.protocols.interface import Change as Row
from brokerd.protocols.interface import Commit, LogEnds, RecordsRead
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.event_machine import MessageHandler
from brokerd.protocols.parts.selection import RunSelection

WAITING: Final = "waiting"
"""Purpose of the deadline at which a fetch is answered although there is nothing."""
HOMES: Final = "homes"
"""Per home, its incarnation and the number of its last Change."""


@dataclass(slots=True)
class Follower:
    """A broker that follows this storage.

    Attributes:
        latest: incarnation and number of its last fetch.
        waits: that one, while it is not answered.
    """

    latest: tuple[int, int] = (0, 0)
    waits: Fetch | None = None


class Storage:
    """What a broker does as a storage."""

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        carriage: Carriage,
    ) -> None:
        self.log = EpochLog(broker, disk, parameters.held_limit, self._on_durable)
        self.registrations = Registrations(decode_attributes)
        self._broker = broker
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._counters = counters
        self._carriage = carriage
        self._homes: dict[BrokerNumber, tuple[int, int]] = {}
        self._followers: dict[BrokerNumber, Follower] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        """Who takes which request."""
        return {Store: self._on_store, Change: self._on_change, Fetch: self._on_fetch}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]], ends: LogEnds) -> None:
        """Take over what an earlier incarnation had on disk."""
        self.log.recover(recovered, ends)
        self.registrations.recover(recovered, self.log.released)
        for home, (incarnation, number) in recovered.get(HOMES, {}).items():
            self._homes[int(home)] = incarnation, number

    def on_records(self, event: RecordsRead) -> None:
        """Take a page of the log."""
        self.log.on_records(event)

    def latest(self, home: BrokerNumber) -> tuple[int, int]:
        """The last change of a home, by its incarnation and number."""
        return self._homes.get(home, (0, 0))

    def due(self, follower: BrokerNumber) -> None:
        """A fetch has waited long enough."""
        if self._followers[follower].waits is not None:
            self._answer(follower)

    # ------------------------------------------------------------ publications

    def _on_store(self, peer: Peer, message: Store) -> None:
        run = message.run
        if not self.log.is_read:
            return
        if run.origins:
            raise RemoteProtocolError(peer, f"stores what is in {run.source} already")
        self.registrations.match(run)  # what nobody can read is not stored
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
        wanted: dict[BrokerNumber, None] = {}
        for homes in self.registrations.match(event.run):
            wanted |= dict.fromkeys(homes)
        for home in wanted:
            follower = self._followers.get(home)
            if follower is not None and follower.waits is not None:
                self._answer(home)
        self._release()

    # ------------------------------------------------------------ subscriptions

    def _on_change(self, peer: Peer, message: Change) -> None:
        home, number = message.home, (message.incarnation, message.number)
        latest = self.latest(home)
        if not self.log.is_read or number < latest:
            return
        rows: list[Row] = []
        begun: list[Begun] = []
        if number == latest:
            begun = [self.registrations.begun(wish, home) for wish in message.wishes]
        else:
            self._homes[home] = number
            rows.append(Row(HOMES, str(home), list(number)))
            for wish in message.wishes:
                begins, changed = self.registrations.take(wish, home, self.log.assigned)
                begun.append(begins)
                rows += changed
        answer = Changed(self._carriage.to(home), 0, self._broker, *number, tuple(begun))

        def written() -> None:
            # An epoch that a crash could give to another publication must not be told.
            self.log.sync(partial(self._carriage.send, answer))

        if rows:
            self._disk.commit(rows, written)
        else:
            self._disk.when_written(written)
        self._release()

    # ------------------------------------------------------------ following

    def _on_fetch(self, peer: Peer, message: Fetch) -> None:
        if not self.log.is_read:
            return
        if max(message.after, message.through) > self.log.durable:
            raise RemoteProtocolError(
                peer, f"broker {message.follower} has {message.after} of {self.log.durable}"
            )
        follower = self._followers.setdefault(message.follower, Follower())
        latest = message.incarnation, message.number
        if latest <= follower.latest:
            return
        follower.latest = latest
        self._take_receipts(message)
        follower.waits = message
        if self._find(message)[0]:
            self._answer(message.follower)
        else:
            due_ns = self._machine.now_ns + self._parameters.fetch_wait_ns
            self._deadlines.set((WAITING, message.follower), due_ns)

    def _take_receipts(self, message: Fetch) -> None:
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
        """What is for a follower behind an epoch, and how far that is all."""
        found: list[PublicationRun] = []
        through, count = fetch.after, 0
        for event in self.log.after(fetch.after):
            homes = self.registrations.match(event.run)
            places = [place for place, those in enumerate(homes) if fetch.follower in those]
            if places:
                run = RunSelection(event.run).having(places)
                if found and count + len(run) > fetch.most:
                    return found, through
                found.append(run)
                count += len(run)
            through = event.run.last
        return found, through

    def _answer(self, follower: BrokerNumber) -> None:
        """Answer a fetch with what there is."""
        fetch = self._followers[follower].waits
        assert fetch is not None, f"broker {follower} has not fetched anything"
        self._followers[follower].waits = None
        self._deadlines.cancel((WAITING, follower))
        found, through = self._find(fetch)
        target, after = self._carriage.to(follower), fetch.after
        about = self._broker, fetch.incarnation, fetch.number
        if found:
            run = merge_runs(found)
            self._counters["publications_forwarded"] += len(run)
            self._carriage.send(Events(target, 0, *about, after, run))
            after = run.last
        self._carriage.send(Fetched(target, 0, *about, after, through))

    def _release(self) -> None:
        """Let go of what everybody is done with."""
        through = min(self.registrations.lowest(self.log.durable), self.log.durable)
        if through > self.log.released:
            self.log.release(through)
