"""The handle of an application on its client; `connect` makes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from brokerd.client import mobility
from brokerd.client.access_broker import AccessBroker
from brokerd.client.application import ClientError, Publication, PublicationIterator, Subscription
from brokerd.client.arguments import (
    PublicationArguments,
    check_address,
    check_integer,
    predicate_of,
)
from brokerd.client.consumer import Acknowledge, BrokerTokens, Consumer, check_consumption
from brokerd.client.tokens import Tokens
from brokerd.client.transactions import DurableSubscription
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import SourceId
from brokerd.model.predicate import Predicate, Scalar
from brokerd.model.publication import Buffer
from brokerd.runtime.connection import CLIENT_MARGIN_BYTES

_ALL: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """The counters of a client.

    Attributes:
        resubmitted: number of retransmitted publications.
        duplicates: number of publications that were withheld as duplicates.
        waiting_bytes: bytes received that `receive` has not returned yet.
    """

    resubmitted: int
    duplicates: int
    waiting_bytes: int


class Client:
    """One client; made by `connect`.

    Attributes:
        name: name of the client at its broker.
    """

    def __init__(
        self, broker: AccessBroker, window: int, tokens: Tokens | None, generation: int
    ) -> None:
        self.name = broker.name
        self._broker = broker
        self._window = window
        self._tokens = tokens
        self._generation = generation
        frame_limit = broker.options.parameters.frame_limit_bytes
        self._arguments = PublicationArguments(frame_limit - 2 * CLIENT_MARGIN_BYTES)

    # ------------------------------------------------------------ state

    @property
    def subscriptions(self) -> Mapping[int, Predicate]:
        """The predicates of the subscriptions, by number.

        Including subscriptions from before a restart.
        """
        return self._broker.core.subscriptions.predicates

    @property
    def attached(self) -> bool:
        """Return True if publications can be sent at once; False during a move."""
        return self._broker.core.attached and not self._broker.occupation

    @property
    def source(self) -> SourceId | None:
        """The source of the client's publications; None before the first attachment."""
        return self._broker.core.source

    @property
    def next_sequence(self) -> int:
        """The number of the next publication."""
        return self._broker.core.outgoing.next_sequence

    @property
    def outstanding(self) -> int:
        """The number of unacknowledged publications."""
        return len(self._broker.core.outgoing)

    @property
    def statistics(self) -> ClientStatistics:
        """The present counters."""
        core = self._broker.core
        return ClientStatistics(
            core.outgoing.resubmitted, core.progress.duplicates, self._broker.inbox.waiting_bytes
        )

    @property
    def leaves_freely(self) -> bool:
        """Return True if the client keeps its identity at another broker, even as a publisher."""
        return self._broker.core.attachment.leaves_freely

    async def wait_attached(self) -> None:
        """Wait until the client is attached to its broker."""
        await self._broker.wait_attached()

    # ------------------------------------------------------------ publishing

    def publish_many_nowait(
        self,
        attribute_table: Sequence[bytes],
        attribute_index: Sequence[int],
        payload_lengths: int | tuple[int, ...],
        payload: Buffer,
    ) -> range:
        """Hand over consecutive publications regardless of the window; return their numbers.

        Args:
            attribute_table: distinct encoded attribute maps; not all need be used.
            attribute_index: per publication, its place in the table; `bytes` is the fast kind.
            payload_lengths: bytes per payload, or one length for all.
            payload: all payloads, one after the other; must not change afterwards.

        Raises:
            ValueError: a publication is larger than a frame, a blob is no encoded attribute map, or
                the parts do not fit together. Nothing is handed over then.
            ClientError: the client was not opened to publish.
        """
        self._check_publishing()
        payload = self._arguments.check_run(
            attribute_table, attribute_index, payload_lengths, payload
        )
        numbers = self._broker.core.outgoing.publish_many(
            attribute_table, attribute_index, payload_lengths, payload
        )
        self._broker.line.nudge()
        return numbers

    async def publish_many(
        self,
        attribute_table: Sequence[bytes],
        attribute_index: Sequence[int],
        payload_lengths: int | tuple[int, ...],
        payload: Buffer,
    ) -> range:
        """Publish as `publish_many_nowait`, once the window has room for a publication."""
        await self._wait_for_room()
        numbers = self.publish_many_nowait(
            attribute_table, attribute_index, payload_lengths, payload
        )
        await self._broker.wait_saved()
        return numbers

    async def publish(self, attributes: Mapping[str, Scalar] | bytes, payload: bytes) -> int:
        """Hand over one publication; return its number.

        `attributes` may be encoded already (`encode_attributes`), which is much faster for repeated
        attributes.

        Raises:
            ValueError: the attributes or the payload are invalid.
        """
        blob, content = self._arguments.encode(attributes, payload)
        await self._wait_for_room()
        number = self._broker.core.outgoing.publish(blob, content)
        self._broker.line.nudge()
        await self._broker.wait_saved()
        return number

    async def flush(self) -> None:
        """Wait until all publications are acknowledged, in the sense of the protocol's promise."""
        await self._broker.wait_acknowledged()

    async def _wait_for_room(self) -> None:
        self._check_publishing()
        if self.outstanding < self._window:
            await trio.lowlevel.checkpoint()
        while self.outstanding >= self._window:
            await self._broker.wait_changed()
        self._broker.check_free()  # the client may move or detach by now

    def _check_publishing(self) -> None:
        self._broker.check_free()
        if not self._broker.core.publishes:
            raise ClientError(
                f"client {self.name} was not opened to publish: "
                f"connect(..., {self.name!r}, publishes=True)"
            )

    # ------------------------------------------------------------ subscribing

    def subscribe_nowait(self, predicate: str | Predicate) -> int:
        """Request a subscription, now and after each reconnect; return its number.

        Raises:
            PredicateError: the predicate cannot be parsed.
        """
        self._broker.check_free()
        self._check_without_tokens("subscribe")
        return self._subscribe(predicate)

    def _subscribe(self, predicate: str | Predicate) -> int:
        number = self._broker.core.subscribe(predicate_of(predicate))
        self._broker.line.nudge()
        return number

    async def subscribe(self, predicate: str | Predicate) -> int:
        """Subscribe as `subscribe_nowait`, and wait until the subscription has started."""
        number = self.subscribe_nowait(predicate)
        await self.wait_started(number)
        await self._broker.wait_saved()
        return number

    async def wait_started(self, number: int) -> None:
        """Wait until every broker routes by this subscription.

        A protocol without a bound for the delay of messages may report a start that is not exact;
        see `Subscription.path_age_ns`.

        Raises:
            ClientError: the broker refuses the subscription, or there is none, or not any more.
        """
        check_integer("subscription", number, 1)
        await self._broker.wait_started(number)

    async def resume(self, predicate: str | Predicate) -> DurableSubscription:
        """Return the durable subscription of this client: that of its token, or a new one.

        For a client with `tokens`: `DurableSubscription.transaction` then delivers each event
        exactly once to the application's own database, across any number of restarts. A new
        subscription has started on return, and its first token is kept.

        Raises:
            ClientError: the client has no tokens, its subscription has another predicate, or the
                broker refuses the subscription.
            PredicateError: the predicate cannot be parsed.
        """
        self._broker.check_free()
        if self._tokens is None or isinstance(self._tokens, BrokerTokens):
            raise ClientError(f"client {self.name} has no tokens to resume by")
        predicate = predicate_of(predicate)
        if any(known != predicate for known in self.subscriptions.values()):
            text = f"client {self.name} has a subscription with another predicate"
            raise ClientError(f"{text}; `detach` ends it")
        number = next(iter(self.subscriptions), 0) or self._subscribe(predicate)
        await self.wait_started(number)
        subscription = DurableSubscription(self._broker, self._tokens, self._generation, number)
        subscription.keep_beginning()
        return subscription

    async def consume(
        self, predicate: str | Predicate, acknowledge: Acknowledge = "auto", most: int = 1_000
    ) -> Consumer:
        """Return the durable subscription of this client, with positions kept by the broker.

        For a client with `tokens=BrokerTokens()`: its process keeps nothing, and a restarted
        process continues behind the last commit. A commit returns when it is durable at the broker.
        A new subscription has started on return.

        Args:
            acknowledge: "auto" commits each publication when the next is requested; "transacted"
                commits in `Consumer.transaction`.
            most: largest number of publications of a transaction.

        Raises:
            ClientError: the client keeps its tokens itself or consumes already, or the broker
                refuses: the protocol may not keep tokens, or the client's subscription may have
                another predicate.
            PredicateError: the predicate cannot be parsed.
        """
        self._broker.check_free()
        if not isinstance(self._tokens, BrokerTokens) or self.subscriptions:
            raise ClientError(f"client {self.name} consumes one subscription, with BrokerTokens")
        predicate = predicate_of(predicate)
        check_consumption(self.name, acknowledge, most)
        most = 1 if acknowledge == "auto" else most
        number = self._broker.core.consume(predicate, most)
        self._broker.line.nudge()
        await self.wait_started(number)
        return Consumer(self._broker, number, acknowledge, most, self._tokens.consumed)

    def unsubscribe_nowait(self, number: int) -> None:
        """End a subscription.

        `receive` returns no more of its publications, even if already received.

        Raises:
            ClientError: there is no such subscription, or not any more.
        """
        broker = self._broker
        broker.check_free()
        self._check_subscribed(number)
        broker.core.unsubscribe(number)
        broker.line.states.pop(number, None)
        broker.inbox.forget(number)
        broker.line.nudge()
        broker.line.read_on()

    async def unsubscribe(self, number: int) -> None:
        """Unsubscribe as `unsubscribe_nowait`, and wait until the end is durable at the broker.

        Other brokers are not waited for; publications in transit to this client are dropped on
        arrival.
        """
        self.unsubscribe_nowait(number)
        while number in self._broker.core.subscriptions.ending:
            await self._broker.wait_changed()

    def subscription(self, number: int) -> Subscription:
        """Return a subscription of the client, for explicit commits.

        Raises:
            ClientError: there is no such subscription, or not any more.
        """
        self._check_subscribed(number)
        return Subscription(self._broker, number, self.subscriptions[number])

    def _check_subscribed(self, number: int) -> None:
        check_integer("subscription", number, 1)
        self._broker.check_subscribed(number)

    def _check_without_tokens(self, operation: str) -> None:
        if self._tokens is not None:
            raise ClientError(
                f"client {self.name} has tokens, and does not {operation}: it resumes"
            )

    # ------------------------------------------------------------ receiving

    def __aiter__(self) -> "Client":
        return self

    async def __anext__(self) -> Deliveries:
        """Return the next run of publications, with the numbers of the matching subscriptions.

        A call acknowledges the run before, for good.
        """
        return (await self.receive(1))[0]

    async def receive(self, limit: int = 1_000) -> list[Deliveries]:
        """Return the received runs, at least one and up to `limit`.

        A further call acknowledges.
        """
        self._check_without_tokens("receive")
        check_integer("limit", limit, 1)
        broker = self._broker
        broker.inbox.acknowledge_taken()
        await broker.wait_delivered()
        taken = broker.inbox.take(limit)
        broker.line.read_on()
        await broker.wait_saved()
        return taken

    async def receive_one(self, at_once: int = 1) -> Publication:
        """Return the next publication with decoded attributes; not the fast path.

        A further call acknowledges, once a message of the broker is received to its end.

        Args:
            at_once: with a store, the number of publications that one save records as delivered. A
                save for each costs hundreds of times as much as its receipt. If the process is
                killed, up to `at_once` - 1 publications that it has not received count as
                delivered, and are lost unless the protocol redelivers (`Promises.redelivers`).
                Without a store no save takes place.
        """
        self._check_without_tokens("receive")
        check_integer("at_once", at_once, 1)
        broker = self._broker
        broker.inbox.acknowledge_taken()
        await broker.wait_delivered()
        publication = broker.inbox.take_publication(at_once if broker.stores_state else _ALL)
        broker.line.read_on()
        await broker.wait_saved()
        return publication

    def publications(self, at_once: int = 1) -> PublicationIterator:
        """Return an iterator over single publications, as `receive_one` returns them.

        A further iterator, `receive` and `anext` continue behind the last publication.
        """
        return PublicationIterator(self, at_once)

    # ------------------------------------------------------------ leaving and moving

    async def detach(self, *, drain: bool = True) -> None:
        """Leave for good: all subscriptions end, at all brokers, and no state is kept.

        Returns when the end is durable at the broker; the client cannot be used afterwards.
        Deliveries that the application has not received are dropped.

        Args:
            drain: wait first until all publications are acknowledged, as `flush` does. Without,
                unacknowledged publications may or may not arrive.

        Raises:
            ClientError: the broker has refused the client, or the client is moving.
        """
        self._broker.check_free()
        if drain:
            await self.flush()
        await mobility.detach(self._broker)
        if self._tokens is not None:
            self._tokens.begin()
            self._tokens.commit(b"")
        await self._broker.close()

    async def move(self, address: str) -> None:
        """Continue at another broker of the same deployment; returns when the move is complete.

        If brokers keep no state of clients (`Promises.leaves_freely`), the client ends its session
        and connects to the other broker with its identity, source included; a broker that refuses
        the client for good ends the client there. In other protocols:

        Subscriptions keep their numbers: they are made at the new broker first, and ended at the
        old broker when that has delivered all publications from before the start at the new broker.
        Publications that both brokers deliver are delivered once, in order, without gap, if no
        broker or link fails meanwhile and the new broker receives from all sources. If the old
        broker cannot be reached, its undelivered publications are not delivered. Keep receiving
        while this waits.

        Later publications belong to a new source, numbered from 1; sending waits until all earlier
        publications are acknowledged.

        Raises:
            ClientError: the new broker refuses the client or a subscription, or the client has a
                store; the client then stays at its broker.
        """
        self._broker.check_free()
        if self._broker.stores_state:
            raise ClientError(f"client {self.name} has a store, and does not move")
        self._check_without_tokens("move")
        dials_tcp = self._broker.options.dials_tcp
        check_address(f"client {self.name}: address", address, is_dialled=dials_tcp)
        await mobility.move(self._broker, address)
