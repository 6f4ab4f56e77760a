"""Migrations: subscriptions that have moved here, until no other broker has anything for them.

First every pubend holds the events that the subscription lacks. Then all other brokers release the
subscription. Once this broker has released no more than the subscription has acknowledged,
whatever it announced before, nothing needs to be held. All requests are repeated until answered,
also after a restart. The messages are forwarded along the tree, and no broker on the route stores
one.

Paper: [DS03] §1 (item 5, reconnect anywhere; the paper gives no method).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Refused
from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.protocols.durable.messages import Held, Hold, LetGo, Letter, Moved
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.state import ARRIVING, DurableClient, DurableSubscription
from brokerd.protocols.gryphon import Links, Routes, check_ticks
from brokerd.protocols.interface import Change, CloseSession, Instant
from brokerd.protocols.parts.clients.table import ClientTable
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, EventMachine


class Letters:
    """Messages between any two brokers; messages for this broker go to its receivers."""

    def __init__(
        self, machine: EventMachine, broker: BrokerNumber, routes: Routes, links: Links
    ) -> None:
        self._machine = machine
        self._broker = broker
        self._routes = routes
        self._links = links
        self._receivers: Mapping[type, Callable[[Any], None]] = {}

    def receive(self, receivers: Mapping[type, Callable[[Any], None]]) -> None:
        """Set the receivers of messages for this broker, by kind."""
        self._receivers = receivers

    def send(self, letter: Letter, *, sideways: bool = True) -> None:
        """Route a message to its destination; without a route it is lost.

        Args:
            sideways: whether another member of this broker's cell may forward.
        """
        if letter.to == self._broker:
            self._receivers[type(letter)](letter)
            return
        for peer in self._links.up(_place(letter.to), None, sideways=sideways)[:1]:
            self._machine.send(peer, letter)

    def on_message(self, peer: BrokerNumber, letter: Letter) -> None:
        """Check a message from a neighbour, and send it on.

        Raises:
            RemoteProtocolError: the message is malformed; the fault of the peer.
        """
        cell, is_beside = self._routes.cell_of(peer), peer in self._routes.peers
        if self._routes.upstream(peer, _place(letter.at)) != cell and not is_beside:
            raise RemoteProtocolError(peer, f"broker {letter.at} is not there")
        if self._routes.upstream(peer, _place(letter.to)) == cell:
            raise RemoteProtocolError(peer, f"broker {letter.to} is not here")
        if letter.number < 1 or letter.generation < 0:
            raise RemoteProtocolError(peer, f"impossible numbers in {letter}"[:300])
        for stream, tick in _streams_of(letter):
            self._routes.upstream(peer, stream)
            host = letter.to if type(letter) is Hold else letter.at
            if stream.broker != host:
                raise RemoteProtocolError(peer, f"{tick} of {tuple(stream)}, not of {host}")
            check_ticks(peer, (tick,))
        self.send(letter, sideways=not is_beside)


def _place(broker: BrokerNumber) -> StreamId:
    """Return a stream of a broker: its route upstream is the route to the broker."""
    return StreamId(broker, 0, 0)


def _streams_of(letter: Letter) -> Iterator[tuple[StreamId, int]]:
    if type(letter) is Hold:
        yield from letter.behind
    elif type(letter) is Held:
        yield from letter.last


ARRIVALS: Final = "arrivals"

SubscriptionKey = tuple[ClientId, int]
"""A subscription, at any broker."""

ALL_HOLDS: Final = "", 1
"""No client's subscription: a Hold for it makes all holds for its broker doubtful."""


@dataclass(slots=True, eq=False)
class Holder:
    """The hold of a broker's pubends for a subscription.

    Attributes:
        requested_ns: the time of the first request without an answer since.
        until_ns: the time until which the hold surely lasts.
        last: the last events at the first hold; a subscription beyond them needs no hold.
        is_over: True after the request to hold nothing.
    """

    requested_ns: Instant | None = None
    until_ns: Instant = 0
    last: dict[StreamId, int] | None = None
    is_over: bool = False

    def take(self, last: Sequence[tuple[StreamId, int]], lease_ns: Instant) -> None:
        """Record a hold, with a lease from the time of the first request."""
        if self.last is None:
            self.last = dict(last)
        if self.requested_ns is not None:
            self.until_ns, self.requested_ns = self.requested_ns + lease_ns, None


@dataclass(slots=True, eq=False)
class Arrival:
    """A subscription that has moved here.

    Attributes:
        local: None once the subscription has ended here.
        holders: the brokers with pubends that hold, or may hold, something.
        unconfirmed: the brokers that have not confirmed the release of the subscription.
        stay: the number of this arrival since this broker has started.
        is_doubtful: after an accepted loss, other brokers may have the subscription; `generation`
            is the one before its own.
        is_new: the subscription has begun since that loss, so its client is here.
    """

    generation: int
    local: DurableSubscription | None
    holders: dict[BrokerNumber, Holder]
    unconfirmed: dict[BrokerNumber, None]
    stay: int
    wait_ns: int = field(default=0)
    is_doubtful: bool = False
    is_new: bool = False


class Arrivals:
    """All arrivals at a broker.

    Args:
        all_streams: of all pubends; every broker with pubends may have had subscribers.
        letters: sends messages to other brokers.
        table: the clients of this broker.

    Attributes:
        pending: the arrivals with requests that are not answered, or holds.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: DurableParameters,
        all_streams: Sequence[StreamId],
        letters: Letters,
        table: ClientTable[DurableClient],
    ) -> None:
        self._broker = broker
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._streams: dict[BrokerNumber, list[StreamId]] = {}
        for stream in all_streams:
            self._streams.setdefault(stream.broker, []).append(stream)
        self._letters = letters
        self._table = table
        self._incarnation = 0
        self.pending: dict[SubscriptionKey, Arrival] = {}
        self._unbegun: dict[SubscriptionKey, DurableSubscription] = {}
        self._stays = 0

    def __len__(self) -> int:
        return len(self.pending)

    # ------------------------------------------------------------ events here

    def row(self, local: DurableSubscription) -> Change:
        """Return the row that stays on disk until nothing is left or held elsewhere.

        The attachment begins once the row is durable.
        """
        key = local.client, local.number
        self._unbegun[key] = local
        return Change(ARRIVING, _row_key(key), local.generation)

    def begin(self, local: DurableSubscription, *, lacks: bool) -> None:
        """Begin an arrival with a durable row; other brokers may have the subscription.

        Args:
            lacks: True if this broker may have released events without the subscription's
                acknowledgement.
        """
        key = local.client, local.number
        self._send_due(key, self._begin(key, local.generation, local, lacks=lacks))

    def start(self, incarnation: int) -> None:
        """Start an incarnation; requests of earlier incarnations are repeated if still needed."""
        self._incarnation = incarnation

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Repeat all requests of an earlier incarnation."""
        for key, generation in recovered.get(ARRIVING, {}).items():
            client, _, number = key.rpartition("/")
            row_key = client, int(number)
            self._send_due(
                row_key, self._begin(row_key, generation, self._find(row_key), lacks=True)
            )

    def doubt(self, local: DurableSubscription, *, is_new: bool = False) -> None:
        """Ask all other brokers for a subscription, after a loss.

        Earlier attachments end there. A later one ends the subscription here, unless `is_new`.
        """
        key = local.client, local.number
        if key in self.pending or not local.generation:
            return
        arrival = self._begin(key, local.generation - 1, local, lacks=False)
        arrival.is_doubtful, arrival.is_new = True, is_new
        self._send_due(key, arrival)

    def question_holds(self) -> None:
        """Have all pubends question the holds for this broker, after a loss.

        The broker may have lost arrivals whose subscriptions have ended, or moved, since.
        """
        arrival = self._begin(ALL_HOLDS, 0, None, lacks=True)
        arrival.unconfirmed.clear()
        self._send_due(ALL_HOLDS, arrival)

    def on_ended(self, local: DurableSubscription) -> None:
        """End a subscription here, with all holds for it."""
        key = local.client, local.number
        arrival = self.pending.get(key)
        if arrival is not None and arrival.local is local:
            arrival.local, arrival.wait_ns = None, 0
            self._send_due(key, arrival)

    def on_progress(self) -> None:
        """Reduce holds after acknowledgements have become durable."""
        for key, arrival in list(self.pending.items()):
            for broker, holder in list(arrival.holders.items()):
                if not holder.is_over and self._is_over(arrival, holder):
                    arrival.wait_ns = 0
                    self._request_holds(key, arrival, broker, holder)
            self._settle(key, arrival)

    def due(self, key: SubscriptionKey) -> None:
        """Repeat unanswered requests, and renew holds."""
        self._send_due(key, self.pending[key])

    def drop(self, broker: BrokerNumber) -> None:
        """Remove a decommissioned broker, which has nothing and holds nothing."""
        del self._streams[broker]
        for key, arrival in list(self.pending.items()):
            arrival.holders.pop(broker, None)
            arrival.unconfirmed.pop(broker, None)
            self._send_due(key, arrival)

    def unheld(self, without: BrokerNumber) -> int:
        """Return the number of arrivals that may lose something without a broker's holds."""
        return sum(not self._is_held(arrival, without) for arrival in self.pending.values())

    def is_safe(self, key: SubscriptionKey) -> bool:
        """Return True if a subscription is here, and everything that it lacks is held."""
        local, arrival = self._find(key), self.pending.get(key)
        if local is None or local.is_over or key in self._unbegun:
            return False
        return arrival is None or self._is_held(arrival)

    # ------------------------------------------------------------ other brokers' messages

    def on_held(self, message: Held) -> None:
        """Take the answer to a request for a hold, or a question from no incarnation."""
        if not message.requested_in:
            self._on_doubt(message)
            return
        if message.requested_in != self._incarnation:
            return  # a hold of an earlier incarnation may have ended since
        key, arrival = self._on_answer(message)
        if arrival is None or message.stay != arrival.stay:
            return
        holder = arrival.holders.get(message.at)
        if holder is None:
            return
        was_held = self._is_held(arrival)
        if message.last:
            holder.take(message.last, self._parameters.hold_lease_ns)
        elif self._is_over(arrival, holder):
            del arrival.holders[message.at]
        if self._is_held(arrival) and not was_held:
            self._announce(key, arrival)
        self._settle(key, arrival)

    def _on_doubt(self, message: Held) -> None:
        """Answer a broker that may have an ended hold on its disk, after a loss."""
        key = message.client, message.number
        arrival = self.pending.get(key)
        holder = arrival.holders.get(message.at) if arrival is not None else None
        if arrival is not None and holder is not None:
            self._request_holds(key, arrival, message.at, holder)
        elif key not in self._unbegun:
            # The removal follows all arrivals so far, and none that is to come.
            question, generation = (self._incarnation, self._stays), message.generation
            self._stays += 1
            self._letters.send(Hold(message.at, self._broker, *key, generation, (), *question))

    def on_let_go(self, message: LetGo) -> None:
        """Record that a broker has released a subscription, or never had it."""
        key, arrival = self._on_answer(message)
        if arrival is not None:
            arrival.unconfirmed.pop(message.at, None)
            self._settle(key, arrival)

    def on_hold(self, message: Hold) -> None:
        """Close the session of a client that is at another broker; keep its state for now."""
        local = self._find((message.client, message.number))
        if local is not None and local.generation < message.generation:
            self.cut(message.client, message.generation)

    def cut(self, name: ClientId, generation: int) -> None:
        """Close the session of a client with a later attachment to another broker.

        A client that connects again is here all the same: it returned to an older copy of its
        state, and exceeds the later generation. If that attachment returns, too, the client is
        refused, with the cause. A session without Connect is no attachment yet.
        """
        client = self._table.clients[name]
        if not client.connect_seen or client.generation >= generation:
            return
        if client.was_cut:
            reason = f"{name} is attached to another broker, too: another process has its state"
            self._machine.send(name, Refused("connect", 0, reason, False))
            return
        client.was_cut, client.later = True, generation
        self._machine.emit(CloseSession(name, "it is at another broker"))

    def on_moved(self, message: Moved) -> DurableSubscription | None:
        """Return the subscription with an earlier attachment that ends here; `confirm` follows.

        If the attachment here is later, send its generation to the sender instead.
        """
        key = message.client, message.number
        local, arrival = self._find(key), self.pending.get(key)
        if local is not None and local.generation > message.generation:
            if arrival is None:
                self._letters.send(Moved(message.at, self._broker, *key, local.generation))
            return None  # that broker is notified when it may release
        if arrival is not None:
            is_equal = local is not None and local.generation == message.generation
            if arrival.is_doubtful and (arrival.is_new or is_equal):
                arrival.unconfirmed.pop(message.at, None)
                self._settle(key, arrival)
                return None
            if (message.generation, message.at) < (arrival.generation, self._broker):
                return None
            # What was asked for here is the other's concern now.
            arrival.local, arrival.wait_ns = None, 0
            arrival.unconfirmed.clear()
            self._send_due(key, arrival)
        if local is None:
            self._disk.when_written(partial(self.confirm, message))
        return local

    def confirm(self, message: Moved) -> None:
        """Confirm that a subscription is released here, durably."""
        key = message.client, message.number
        self._letters.send(LetGo(message.at, self._broker, *key, message.generation))

    # ------------------------------------------------------------ inside

    def _find(self, key: SubscriptionKey) -> DurableSubscription | None:
        client, number = key
        hosted = self._table.clients.get(client)
        return hosted.subscriptions.get(number) if hosted is not None else None

    def _begin(
        self,
        key: SubscriptionKey,
        generation: int,
        local: DurableSubscription | None,
        *,
        lacks: bool,
    ) -> Arrival:
        if self._unbegun.get(key) is local:  # else the row of a new subscription is not durable
            self._unbegun.pop(key, None)
        lacks = lacks or key in self.pending  # holds for an earlier attachment
        holders = {each: Holder() for each in self._streams} if lacks else {}
        unannounced = dict.fromkeys(each for each in self._streams if each != self._broker)
        arrival = self.pending[key] = Arrival(generation, local, holders, unannounced, self._stays)
        self._stays += 1
        return arrival

    def _on_answer(self, message: Held | LetGo) -> tuple[SubscriptionKey, Arrival | None]:
        key = message.client, message.number
        arrival = self.pending.get(key)
        if arrival is None or arrival.generation != message.generation:
            return key, None
        arrival.wait_ns = 0
        return key, arrival

    def _send_due(self, key: SubscriptionKey, arrival: Arrival) -> None:
        """Send all requests that are due, and repeat them until answered."""
        is_held = self._is_held(arrival)
        for broker, holder in list(arrival.holders.items()):
            if self._is_over(arrival, holder) or self._is_stale(holder):
                self._request_holds(key, arrival, broker, holder)
        if is_held:
            self._announce(key, arrival)
        self._settle(key, arrival)

    def _request_holds(
        self, key: SubscriptionKey, arrival: Arrival, broker: BrokerNumber, holder: Holder
    ) -> None:
        behind: tuple[tuple[StreamId, int], ...] = ()
        holder.is_over = self._is_over(arrival, holder)
        if not holder.is_over:
            local = arrival.local
            assert local is not None, f"{key} ended"
            behind = tuple((each, local.lane(each).committed) for each in self._streams[broker])
        if holder.requested_ns is None:
            holder.requested_ns = self._machine.now_ns
        question = self._incarnation, arrival.stay
        self._letters.send(Hold(broker, self._broker, *key, arrival.generation, behind, *question))

    def _announce(self, key: SubscriptionKey, arrival: Arrival) -> None:
        """Ask other brokers to release a subscription; all that it lacks is held."""
        for broker in arrival.unconfirmed:
            self._letters.send(Moved(broker, self._broker, *key, arrival.generation))

    def _settle(self, key: SubscriptionKey, arrival: Arrival) -> None:
        """Remove a completed arrival, or set the time of the next request."""
        if self.pending.get(key) is not arrival:
            return
        lease_ns = self._parameters.hold_lease_ns
        if not arrival.holders and not arrival.unconfirmed:
            del self.pending[key]
            self._deadlines.cancel((ARRIVALS, key))
            if key not in self._unbegun:  # else the row is a later stay's
                self._disk.commit((Change(ARRIVING, _row_key(key), None),), lambda: None)
        elif not arrival.unconfirmed and not any(
            self._is_stale(each) or self._is_over(arrival, each)
            for each in arrival.holders.values()
        ):
            self._deadlines.set((ARRIVALS, key), self._machine.now_ns + lease_ns // 4)
        elif not arrival.wait_ns or (ARRIVALS, key) not in self._deadlines:
            first_ns = self._parameters.nack_repetition_ns
            limit_ns = min(self._parameters.nack_repetition_limit_ns, lease_ns // 4)
            arrival.wait_ns = min(max(2 * arrival.wait_ns, first_ns), limit_ns)
            self._deadlines.set((ARRIVALS, key), self._machine.now_ns + arrival.wait_ns)

    def _is_over(self, arrival: Arrival, holder: Holder) -> bool:
        """Return True if this broker releases no more than the subscription has, from now on."""
        local, last = arrival.local, holder.last
        if local is None or last is None:
            return local is None
        return all(local.lane(stream).committed >= tick for stream, tick in last.items())

    def _is_stale(self, holder: Holder) -> bool:
        """Return True if a hold has to be renewed."""
        return holder.until_ns - self._machine.now_ns < self._parameters.hold_lease_ns * 4 // 5

    def _is_held(self, arrival: Arrival, without: BrokerNumber | None = None) -> bool:
        """Return True if everything that a subscription lacks is held, but for a broker's holds."""
        return all(
            holder.until_ns > self._machine.now_ns or self._is_over(arrival, holder)
            for broker, holder in arrival.holders.items()
            if broker != without
        )


def _row_key(key: SubscriptionKey) -> str:
    client, number = key
    return f"{client}/{number}"
