"""Subscriptions that are matched at their clients' access broker: requests and deliveries.

Some methods yield entries: publications whose deliveries at this broker are complete. The caller
takes all entries, and so continues the method.

A method checks a request, changes the state of the client, and returns the facts that the protocol
acts on. The protocol commits the changes of an `Admission` and the end of an `EndRequest`, and then
calls `enter` or `answer`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Gap,
    PublishAcknowledged,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.identity import ClientId, Peer, StreamId
from brokerd.model.predicate import DecodeAttributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.lost_state import gaps_of_older_copy
from brokerd.protocols.parts.clients.progress import (
    SUBSCRIBER_PROGRESS,
    list_unstated,
    read_progress,
)
from brokerd.protocols.parts.clients.table import Admission, ClientTable, HostedClient
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.records import predicate_row, read_predicate
from brokerd.protocols.parts.selection import RunSelection, match_run

SUBSCRIPTIONS: Final = "subscriptions"

DETACHED: Final = 0
"""The number in the answer to a Detach."""


class HandedOut(Protocol):
    """Publications that were delivered to clients; `open` parts have no acknowledgement yet."""

    open: int


Entry = TypeVar("Entry", bound=HandedOut)


@dataclass(slots=True, eq=False)
class OwnSubscription:
    """A subscription of a client of this broker.

    Attributes:
        claimed: the last session on which the client has requested the subscription.
        started: the subscription is on disk, and receives all later matching publications.
        begins_after: see WindowedSubscription.
        is_restarted: the client is behind the beginning, because this broker has lost state.
        acknowledged: see WindowedSubscription.
        forgotten: gaps for a client that has acknowledged more than it stated, until its request.
    """

    client: ClientId
    number: int
    predicate: Predicate
    claimed: int = 0
    started: bool = False
    is_over: bool = False
    begins_after: dict[StreamId, int] = field(default_factory=dict)
    is_restarted: bool = False
    acknowledged: dict[StreamId, int] = field(default_factory=dict)
    forgotten: tuple[Gap, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if this broker has not lost any part of a started subscription."""
        return self.started and not self.is_restarted

    @property
    def row(self) -> str:
        """The key of the subscription's rows on disk."""
        return f"{self.client}/{self.number}"


Local = TypeVar("Local", bound=OwnSubscription)


@dataclass(slots=True, eq=False)
class OwnClient(HostedClient[Local]):
    """A client of this broker.

    Attributes:
        submitted: the last sequence number that the client has published on its present session.
        acknowledged: the last sequence number acknowledged to the client.
        drains: the client's Detach is answered once all deliveries are acknowledged.
    """

    submitted: int = 0
    acknowledged: int = 0
    drains: bool = False


class OwnSubscriptions(Generic[Local, Entry]):
    """The subscriptions of this broker's clients.

    Args:
        clients: all clients of this broker.

    Attributes:
        windows: the deliveries to clients.
        started: number of started subscriptions.
        memo: the results of matching.
    """

    def __init__(
        self,
        machine: EventMachine,
        windows: DeliveryWindows[Entry, Local],
        decode_attributes: DecodeAttributes,
        clients: Mapping[ClientId, OwnClient[Local]],
    ) -> None:
        self.windows = windows
        self.started = 0
        self._machine = machine
        self._clients = clients
        self._index: MatchingIndex[Local] = MatchingIndex()
        self.memo: MatchMemo[Local, tuple[Local, ...]] = MatchMemo(self._index, decode_attributes)

    # ------------------------------------------------------------ subscriptions

    def start(self, local: Local) -> None:
        """Match a subscription from now on."""
        local.started = True
        self.started += 1
        self._index.add(local, local.predicate)
        self.memo.forget()

    def drop_unknown_restart(self, client: OwnClient[Local], local: Local) -> bool:
        """Treat a restarted subscription as whole if its client did not state it as started.

        The client process that was owed the earlier publications has ended. Return True if the
        subscription has become whole.
        """
        if not local.is_restarted or local.number in client.stated:
            return False
        local.is_restarted = False
        return True

    def claim(
        self,
        client: OwnClient[Local],
        local: Local,
        begins_after: Iterable[tuple[StreamId, int]] = (),
        gaps: Sequence[Gap] = (),
    ) -> Iterator[Entry]:
        """Report a started subscription to the client, and send waiting deliveries.

        Args:
            begins_after: positions that the client must state when it reconnects. The client takes
                the positions of streams with a gap from the gap.
            gaps: of lost state, before all deliveries.
        """
        gaps, local.forgotten = [*gaps, *local.forgotten], ()
        gap_streams = {gap.stream for gap in gaps}
        positions = tuple(each for each in begins_after if each[0] not in gap_streams)
        self._machine.send(client.name, Subscribed(local.number, "started", positions))
        for gap in reversed(gaps):
            self.windows.announce_first(local, gap)
        yield from self.complete(self.windows.claim(local))

    def end(
        self, client: OwnClient[Local], over: Sequence[Local], *, drain: bool = False
    ) -> Iterator[Entry]:
        """End subscriptions: they are no longer matched.

        With `drain`, the client still receives the deliveries of subscriptions requested
        on the present session.
        """
        for local in over:
            del client.subscriptions[local.number]
            local.is_over = True
            self._stop(local)
            # A subscription that is not claimed on this session gets nothing more on it.
            if not (drain and local.claimed == client.session):
                yield from self.complete(self.windows.discard_unsent(local))
        self.memo.forget()

    def drop(self, client: OwnClient[Local]) -> None:
        """Drop all subscriptions of a client without a session, and their state."""
        for local in client.subscriptions.values():
            local.is_over = True
            self._stop(local)
        self.memo.forget()
        client.subscriptions.clear()

    def _stop(self, local: Local) -> None:
        if local.started:
            self.started -= 1
            self._index.remove(local)

    def unrequested(self, client: OwnClient[Local]) -> list[Local]:
        """Return the subscriptions that a client has not requested on the session."""
        return [
            local
            for local in client.subscriptions.values()
            if not client.session or local.claimed != client.session
        ]

    # ------------------------------------------------------------ sessions

    def resume(self, client: OwnClient[Local], message: Connect) -> list[Local]:
        """Record the numbers and positions of a client's Connect.

        Returns the subscriptions with acknowledged positions of an earlier process of the client.
        """
        client.submitted = client.acknowledged = message.next_sequence - 1
        former = list_unstated(client.subscriptions, message.resume)
        for each in former:
            each.acknowledged = {}
        for number, seen in message.resume:
            local = client.subscriptions.get(number)
            if local is None:
                continue
            local.forgotten = gaps_of_older_copy(number, local.acknowledged, seen)
            for stream, last in seen:
                local.begins_after[stream] = max(last, local.begins_after.get(stream, 0))
        return former

    def close(self, client: OwnClient[Local]) -> Iterator[Entry]:
        """Keep the deliveries of a client between sessions."""
        client.drains = False
        yield from self.complete(self.windows.close(client.name))

    def answer_detach(self, client: OwnClient[Local]) -> None:
        """Answer a client's Detach once it waits for nothing more."""
        if client.drains and self.windows.is_drained(client.name):
            client.drains = False
            self._machine.send(client.name, Unsubscribed(DETACHED))

    # ------------------------------------------------------------ publications

    def check_run(self, run: PublicationRun, peer: Peer) -> None:
        """Check that all attributes of a run are well formed.

        Raises:
            RemoteProtocolError: a blob is malformed.
        """
        match_run(self.memo, run, peer)

    def accept(self, client: OwnClient[Local], run: PublicationRun) -> None:
        """Record the numbers of a publisher's run.

        Raises:
            RemoteProtocolError: a blob is malformed.
        """
        match_run(self.memo, run, client.name)
        client.submitted = max(client.submitted, run.last)

    def hand_out(self, run: PublicationRun, entry: Entry) -> None:
        """Deliver publications to all matching subscriptions; count the parts in `entry`.

        Publications that a client reported as received when it connected are not delivered again.
        """
        wanted = match_run(self.memo, run, run.source.broker)
        for those, part in RunSelection(run).stretches(wanted):
            by_client: dict[tuple[ClientId, int], list[Local]] = {}
            for local in those:
                had = local.begins_after.get(run.source, 0)
                rest = had if had >= part.first else 0
                by_client.setdefault((local.client, rest), []).append(local)
            for (name, had), locals_ in by_client.items():
                lacked = part.after(had) if had else part
                if lacked is not None:
                    entry.open += 1
                    self.windows.deliver(name, lacked, tuple(locals_), (entry,))

    def acknowledge(self, name: ClientId, message: Acknowledge) -> Iterator[Entry]:
        """Take a client's acknowledgement of deliveries."""
        stream, first, last = message.stream, message.first, message.last
        yield from self.complete(self.windows.acknowledge(name, stream, first, last))

    @staticmethod
    def complete(entries: Iterable[Entry]) -> Iterator[Entry]:
        """Count completed parts of entries; yield an entry after the last part."""
        for entry in entries:
            entry.open -= 1
            if not entry.open:
                yield entry

    def acknowledge_through(self, client: OwnClient[Local], done: int) -> None:
        """Acknowledge a publisher's publications through `done`, if the publisher is connected."""
        through = min(done, client.submitted)
        if client.connected and through > client.acknowledged:
            self._machine.send(client.name, PublishAcknowledged(client.acknowledged + 1, through))
            client.acknowledged = through


def kept_subscription(local: OwnSubscription) -> Change:
    """Return the row of a subscription on disk."""
    return Change(SUBSCRIPTIONS, local.row, predicate_row(local.predicate))


def read_subscriptions(recovered: Mapping[str, Mapping[str, Any]]) -> Iterator[OwnSubscription]:
    """Yield the subscriptions of an earlier incarnation."""
    for key, row in recovered.get(SUBSCRIPTIONS, {}).items():
        name, _, number = key.rpartition("/")
        had = read_progress(recovered.get(SUBSCRIBER_PROGRESS, {}).get(key))
        yield OwnSubscription(name, int(number), read_predicate(row), acknowledged=had)


def new_subscription(client: OwnClient[OwnSubscription], message: Subscribe) -> OwnSubscription:
    """Return a new subscription of a client, requested on the present session."""
    local = OwnSubscription(client.name, message.number, message.predicate, client.session)
    client.subscriptions[local.number] = local
    return local


Owner = TypeVar("Owner", bound=OwnClient[Any])


@dataclass(frozen=True, slots=True)
class EndRequest(Generic[Owner, Local]):
    """Subscriptions of a client that end.

    Attributes:
        session: the client's session at the request; no later session receives the answer.
        number: the number in the answer; None without an answer.
        drain: the client still receives the deliveries of subscriptions requested on its session.
    """

    client: Owner
    over: Sequence[Local]
    session: int = 0
    number: int | None = None
    drain: bool = False


class ClientRequests(Generic[Owner, Local, Entry]):
    """The requests of this broker's clients.

    Args:
        table: the clients.
        own: their subscriptions.
    """

    def __init__(self, table: ClientTable[Owner], own: OwnSubscriptions[Local, Entry]) -> None:
        self._table = table
        self._own = own

    # ------------------------------------------------------------ sessions

    def connect(
        self, name: ClientId, message: Connect, durable: int | None = None
    ) -> Admission[Owner] | None:
        """Return the admission of a client; None after a refusal.

        Args:
            durable: see `ClientTable.check_connect`.
        """
        client = self._table.check_connect(name, message, durable or 0, durable)
        return self._table.assign_source(client, message) if client is not None else None

    def enter(self, client: Owner) -> None:
        """Admit and notify a client; subscriptions without a request end after a while."""
        self._table.enter(client)
        self._table.welcome(client)
        if client.subscriptions:
            self._table.linger(client.name)

    def forget(self, name: ClientId) -> None:
        """Remove an absent client without remaining state."""
        self._table.forget(name)
        self._own.windows.forget(name)

    # ------------------------------------------------------------ ends

    def unrequested(self, client: Owner) -> EndRequest[Owner, Local]:
        """Return the end of the subscriptions that a client has not requested in time."""
        return EndRequest(client, self._own.unrequested(client))

    def unsubscribe(self, name: ClientId, message: Unsubscribe) -> EndRequest[Owner, Local]:
        """Return the end of a subscription; empty if the subscription has ended before."""
        client = self._table.check_unsubscribe(name, message)
        found = client.subscriptions.get(message.number)
        over = [found] if found is not None else []
        return EndRequest(client, over, client.session, message.number)

    @staticmethod
    def detach(client: Owner, *, drain: bool) -> EndRequest[Owner, Local]:
        """Return the end of all subscriptions of a client."""
        over = [*client.subscriptions.values()]
        return EndRequest(client, over, client.session, DETACHED, drain)

    def answer(self, request: EndRequest[Owner, Local]) -> None:
        """Report a durable end; a Detach is answered after the last acknowledgement."""
        client, session = request.client, request.session
        if request.number == DETACHED:
            client.drains = client.session == session
            self._own.answer_detach(client)
        elif request.number is not None:
            self._table.report_end(client, session, request.number)
