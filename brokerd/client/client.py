"""The client library on trio: `async with connect(address, name) as client`.

The client reconnects by itself, retransmits unacknowledged publications, and delivers each
publication once. Publications that are handed over while a write is in flight are sent with the
next write, as one run; no publication is ever delayed to gather more. The client can end
subscriptions, move to another broker, and detach without leaving state behind. It accepts a list of
brokers, and a store for restarts.
"""

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from brokerd.client.arguments import (
    AttributeBlobs,
    check_address,
    check_duration,
    check_integer,
    check_name,
    check_publications,
    check_text,
    payload_of,
    predicate_of,
)
from brokerd.client.broker_choice import Brokers
from brokerd.client.broker_connection import BrokerConnection
from brokerd.client.callbacks import BrokerUnreachable as BrokerUnreachable
from brokerd.client.callbacks import Callbacks as Callbacks
from brokerd.client.callbacks import ClientError as ClientError
from brokerd.client.consumer import Acknowledge, BrokerTokens, Consumer
from brokerd.client.core import ClientCore
from brokerd.client.events import (
    Attached,
    ClientEvent,
    Detached,
    PublicationsDone,
    RequestRefused,
    SubscriptionAnswered,
    Withheld,
)
from brokerd.client.gate import Gate
from brokerd.client.inbox import Arrival, Inbox
from brokerd.client.initial_state import core_of, resume_core
from brokerd.client.mobility import abandon, hand_over, wait_attached
from brokerd.client.single_publications import PublicationIterator
from brokerd.client.state_encoding import write_token
from brokerd.client.state_writer import StateWriter
from brokerd.client.store import Store
from brokerd.client.subscription import Subscription
from brokerd.client.tokens import Tokens
from brokerd.client.transactions import DurableSubscription
from brokerd.client.waits import Arrivals, Changes, check_alive
from brokerd.config import SessionParameters, TlsFiles
from brokerd.errors import ConfigError
from brokerd.model.client_messages import MOST_INCARNATION, Deliveries
from brokerd.model.identity import SourceId
from brokerd.model.predicate import Predicate, Scalar
from brokerd.model.publication import Buffer
from brokerd.runtime.connection import CLIENT_MARGIN_BYTES
from brokerd.runtime.streams import Dial, dial_tcp, dial_tls
from brokerd.runtime.tls import credentials_of
from brokerd.sessions.messages import Farewell

WINDOW_PUBLICATIONS: Final = 65_536

UNREACHABLE_AFTER_S: Final = 30.0
"""Time for which a call waits for an unreachable broker."""

_INSTANCE_BYTES: Final = 8

_MOST_UNCOMMITTED: Final = 1 << 31

logger = logging.getLogger(__name__)


@asynccontextmanager
async def connect(
    address: str | Sequence[str],
    name: str,
    *,
    publishes: bool = False,
    incarnation: int | None = None,
    deployment_id: str = "",
    window: int = WINDOW_PUBLICATIONS,
    parameters: SessionParameters | None = None,
    callbacks: Callbacks | None = None,
    tls: TlsFiles | None = None,
    dial: Dial | None = None,
    gate: Gate | None = None,
    store: Store | None = None,
    automatic_commit: bool = True,
    tokens: Tokens | None = None,
    elsewhere: Sequence[str] = (),
    unreachable_after_s: float = UNREACHABLE_AFTER_S,
) -> AsyncIterator["Client"]:
    """Open a client called `name` of the broker at "host:port"; it connects in the background.

    With a list, brokers are tried in the given order, again and again; the first that accepts the
    client is its broker. If the connection breaks and the broker cannot be reached again at once,
    or if the broker refuses the client, the client continues at the next broker, provided that this
    breaks no promise of the protocol:

    - all publications of the client are acknowledged; from then on the client publishes as another
      source, numbered from 1, as after `move`;
    - and the client has no started subscription, unless the protocol may lose publications anyway:
      no other broker would deliver the publications that the broker still has for a subscription.
      If subscriptions resume elsewhere (`Promises.resumes_elsewhere`), the next broker does deliver
      the publications, from the client's position; and only the end of a subscription must be
      confirmed first.

    Otherwise the client tries its broker until that is back, and nothing is lost or delivered
    twice. `move` is for applications that prefer to continue without the publications of an
    unreachable broker. A broker of a list must be of the same deployment as the broker before.

    A broker may redirect a client to another broker. If that broker is in the list, or in
    `elsewhere`, the client moves by itself: it ends its session first, and keeps its identity. A
    publisher does so only if its source stays the same (`leaves_freely`), a subscriber only if its
    subscriptions resume elsewhere or the protocol loses publications anyway; some publications are
    missing then. For 30 s the client follows no other redirect.

    Args:
        address: address of the broker, or of several brokers of one deployment.
        publishes: True if the client will publish.
        incarnation: the incarnation that the source must have; a broker that has assigned this or a
            later incarnation to the name refuses the client. By default the broker assigns one that
            has never been used, so a publisher may be restarted under its name.
        deployment_id: refuse a broker of another deployment; empty for any.
        window: number of unacknowledged publications at which `publish` waits.
        parameters: session parameters; those of the brokers, if their topology file sets any.
        tls: the client's certificate and the authority that it trusts; required for every broker
            that is not on this machine.
        dial: opens a connection in another way than by TCP and `tls`.
        gate: disconnects the client while shut, for tests of that case.
        store: store of the state that must survive a restart, see below.
        automatic_commit: True if a further request commits all that the application has received.
            Without, `Subscription.commit` commits, and until then the broker keeps the
            publications: a broker has little patience with clients that commit nothing.
        tokens: store of the application for the committed positions of its single durable
            subscription: see `Client.resume`. With tokens nothing else is received or committed,
            there is no store, and the client does not `move`. With `BrokerTokens` the broker keeps
            the positions: see `Client.consume`.
        elsewhere: brokers of the same deployment that are used only after a redirect.
        unreachable_after_s: time for which `subscribe`, `flush` and other calls that need an answer
            wait for an unreachable broker; `math.inf` to wait for ever. The client continues to try
            in either case, and the call may be repeated.

    With a store, a process that restarts with the same name and store continues at the state of the
    last process, after any kind of end: the client has the same `subscriptions`, retransmits
    publications without an acknowledgement, and continues its numbers (`incarnation` has no effect
    then). `publish` returns when the publication is in the store, and `receive` when its result is
    recorded as delivered. Publications that were delivered and not committed are delivered again,
    marked as redelivered, if the protocol redelivers (`Promises.redelivers`); otherwise they count
    as committed. The broker keeps the subscriptions for its `client_linger_ns` only. Each save
    writes all unacknowledged publications, so hand over many publications at once, or make `window`
    small. A client with a store does not `move`.

    An exception raised inside the `async with` propagates as is. On exit, pending messages to the
    broker are written, without waiting for answers: `flush` waits. The broker keeps the client's
    subscriptions for a while, as for a client that returns; `detach` ends the subscriptions first.

    Raises:
        ClientError: from any method, once the broker has refused the client for good.
        BrokerUnreachable: from methods that need an answer, after `unreachable_after_s`.
        ConfigError: `tls` cannot be used, there is no address, an argument is invalid (the text
            names the argument and the valid values), the store is of another client or deployment,
            or tokens cannot be kept in their store.
        StorageCorrupt, ResumeTokenRefused: the content of the store, or the token, is damaged, or
            of another protocol, client or deployment; it stays unchanged.
        OSError: the store cannot be read, or has failed: its content is unknown then, so the
            process should end.
    """
    check_name(name)
    check_text("deployment_id", deployment_id)
    if incarnation is not None:
        check_integer("incarnation", incarnation, 0, MOST_INCARNATION)
    check_duration("unreachable_after_s", unreachable_after_s)
    check_integer("window", window, 1)
    addresses = [address] if isinstance(address, str) else [*address]
    if not addresses or addresses == [""]:
        raise ConfigError(f'client {name}: address = {address!r}; at least one "host:port"')
    dials_tcp = dial is None
    for each in (*addresses, *elsewhere):
        check_address(f"client {name}: address", each, is_dialled=dials_tcp)
    brokers = Brokers(addresses, elsewhere)
    if dial is None:
        dial = dial_tcp if tls is None else dial_tls(credentials_of(tls))
    if gate is not None:
        dial = gate.before(dial)
    if tokens is not None and store is not None:
        raise ConfigError(
            f"client {name}: give either a store or tokens, not both: each holds the positions"
        )
    generation = 0
    instance = secrets.token_bytes(_INSTANCE_BYTES)
    if tokens is not None:
        core, generation = resume_core(name, publishes, instance, deployment_id, tokens)
    else:
        core = core_of(
            name, publishes, incarnation, instance, deployment_id, store, automatic_commit
        )
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        client = Client(
            core, brokers, deployment_id, window, parameters or SessionParameters(),
            callbacks or Callbacks(), dial, nursery, store, tokens, generation, unreachable_after_s,
            dials_tcp=dials_tcp,
        )  # fmt: skip
        try:
            yield client
        except BaseException as error:
            failure = error
        with trio.CancelScope(shield=True):
            await client._leave()
        nursery.cancel_scope.cancel()
    if client.store_failure is not None:
        raise client.store_failure
    if failure is not None:
        raise failure


class Client:
    """One client; made by `connect`.

    Attributes:
        name: name of the client at its broker.
    """

    def __init__(
        self,
        core: ClientCore,
        brokers: Brokers,
        deployment_id: str,
        window: int,
        parameters: SessionParameters,
        callbacks: Callbacks,
        dial: Dial,
        nursery: trio.Nursery,
        store: Store | None = None,
        tokens: Tokens | None = None,
        generation: int = 0,
        unreachable_after_s: float = UNREACHABLE_AFTER_S,
        *,
        dials_tcp: bool = True,
    ) -> None:
        self._dials_tcp = dials_tcp
        self.name = core.name
        self._changes = Changes(core.name, unreachable_after_s)
        self._deployment_id = deployment_id
        self._window = window
        self._parameters = parameters
        self._callbacks = callbacks
        self._dial = dial
        self._nursery = nursery
        self._blobs = AttributeBlobs()
        self._inbox = Inbox(callbacks.on_notice, callbacks.on_gap)
        self._busy = ""
        self._is_over = False
        self._detached: dict[BrokerConnection, None] = {}
        self._arrivals = Arrivals(self._inbox)
        self._was_at = ""
        self._keeper: StateWriter | None = None
        self._tokens = tokens
        self._generation = generation
        self._line = self._new_line(core, brokers)

        if store is not None:
            self._keeper = StateWriter(store, core, self._on_saved)
            nursery.start_soon(self._keeper.run, nursery.cancel_scope.cancel)

    def _new_line(self, core: ClientCore, brokers: Brokers) -> BrokerConnection:
        line = BrokerConnection(
            core, brokers, self._deployment_id, self._parameters, self._dial, self
        )
        self._nursery.start_soon(line.run)
        return line

    @property
    def _core(self) -> ClientCore:
        return self._line.core

    # ------------------------------------------------------------ state

    @property
    def store_failure(self) -> OSError | None:
        """The error after which the store keeps nothing more; None if there was none."""
        return self._keeper.failure if self._keeper is not None else None

    @property
    def subscriptions(self) -> Mapping[int, Predicate]:
        """The predicates of the subscriptions, by number.

        Including subscriptions from before a restart.
        """
        return self._core.subscriptions.predicates

    @property
    def attached(self) -> bool:
        """Return True if publications can be sent at once; False during a move."""
        return self._core.attached and not self._busy

    @property
    def source(self) -> SourceId | None:
        """The source of the client's publications; None before the first attachment."""
        return self._core.source

    @property
    def next_sequence(self) -> int:
        """The number of the next publication."""
        return self._core.outgoing.next_sequence

    @property
    def outstanding(self) -> int:
        """The number of unacknowledged publications."""
        return len(self._core.outgoing)

    @property
    def duplicates(self) -> int:
        """The number of publications that were withheld as duplicates."""
        return self._core.progress.duplicates

    @property
    def waiting_bytes(self) -> int:
        """The bytes received that `receive` has not returned yet."""
        return self._inbox.waiting_bytes

    @property
    def resubmitted(self) -> int:
        """The number of retransmitted publications."""
        return self._core.outgoing.resubmitted

    async def wait_attached(self) -> None:
        """Wait until the client is attached to its broker."""
        while not self._core.attached:
            await self._wait_changed()

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
        self._check_free()
        self._check_publishes()
        payload = payload_of(payload)
        self._blobs.check(attribute_table)
        check_publications(attribute_index, payload_lengths, payload)
        longest = payload_lengths if isinstance(payload_lengths, int) else max(payload_lengths)
        self._check_size(longest + max(map(len, attribute_table)))
        numbers = self._core.outgoing.publish_many(
            attribute_table, attribute_index, payload_lengths, payload
        )
        self._line.nudge()
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
        await self.wait_saved()
        return numbers

    async def publish(self, attributes: Mapping[str, Scalar] | bytes, payload: bytes) -> int:
        """Hand over one publication; return its number.

        `attributes` may be encoded already (`encode_attributes`), which is much faster for repeated
        attributes.

        Raises:
            ValueError: the attributes or the payload are invalid.
        """
        blob = self._blobs.encode(attributes)
        content = payload if type(payload) is bytes else bytes(payload_of(payload))
        self._check_size(len(blob) + len(content))
        await self._wait_for_room()
        number = self._core.outgoing.publish(blob, content)
        self._line.nudge()
        await self.wait_saved()
        return number

    async def wait_saved(self) -> None:
        """Wait until the store, if there is one, contains the present state.

        Raises:
            OSError: the store has failed.
        """
        if self._keeper is not None:
            await self._keeper.wait_saved()

    async def flush(self) -> None:
        """Wait until all publications are acknowledged, in the sense of the protocol's promise."""
        await self._flush()

    async def _flush(self) -> None:
        while len(self._core.outgoing):
            await self._wait_changed()

    async def _wait_for_room(self) -> None:
        self._check_free()
        self._check_publishes()
        if len(self._core.outgoing) < self._window:
            await trio.lowlevel.checkpoint()
        while len(self._core.outgoing) >= self._window:
            await self._wait_changed()

    def _check_publishes(self) -> None:
        if not self._core.publishes:
            raise ClientError(
                f"client {self.name} was not opened to publish: "
                f"connect(..., {self.name!r}, publishes=True)"
            )

    def _check_size(self, size_bytes: int) -> None:
        limit = self._parameters.frame_limit_bytes - 2 * CLIENT_MARGIN_BYTES
        if size_bytes > limit:
            raise ValueError(f"a publication of {size_bytes} bytes; at most {limit}")

    # ------------------------------------------------------------ subscribing

    def subscribe_nowait(self, predicate: str | Predicate) -> int:
        """Request a subscription, now and after each reconnect; return its number.

        Raises:
            PredicateError: the predicate cannot be parsed.
        """
        self._check_free()
        self._check_without_tokens("subscribe")
        return self._subscribe(predicate)

    def _subscribe(self, predicate: str | Predicate) -> int:
        number = self._core.subscribe(predicate_of(predicate))
        self._line.nudge()
        return number

    async def subscribe(self, predicate: str | Predicate) -> int:
        """Subscribe as `subscribe_nowait`, and wait until the subscription has started."""
        number = self.subscribe_nowait(predicate)
        await self.wait_started(number)
        await self.wait_saved()
        return number

    async def wait_started(self, number: int) -> None:
        """Wait until every broker routes by this subscription.

        A protocol without a bound for the delay of messages may report a start that is not exact;
        see `path_age_ns`.

        Raises:
            ClientError: the broker refuses the subscription.
        """
        await self._changes.wait_started(self._line, self._line, number)

    def path_age_ns(self, number: int) -> int:
        """Return 0 if the report of a started subscription is exact, as in almost every case.

        Otherwise brokers with a path to this client's broker that is younger than this, in
        nanoseconds, may not route by the subscription yet. An exact report needs a round through
        all brokers that ends in time, and messages take too long for one.
        """
        return self._line.path_ages_ns.get(number, 0)

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
        self._check_free()
        if self._tokens is None or isinstance(self._tokens, BrokerTokens):
            raise ClientError(f"client {self.name} has no tokens to resume by")
        predicate = predicate_of(predicate)
        if any(known != predicate for known in self._core.subscriptions.predicates.values()):
            text = f"client {self.name} has a subscription that asks for something else"
            raise ClientError(f"{text}; `detach` ends it")
        number = next(iter(self._core.subscriptions), 0) or self._subscribe(predicate)
        await self.wait_started(number)
        subscription = DurableSubscription(
            self, self._line, self._inbox, self._tokens, self._generation, number
        )
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
        self._check_free()
        if not isinstance(self._tokens, BrokerTokens) or self._core.subscriptions:
            raise ClientError(f"client {self.name} consumes one subscription, with BrokerTokens")
        predicate = predicate_of(predicate)
        if acknowledge not in ("auto", "transacted"):
            text = f"acknowledge = {acknowledge!r}"
            raise ClientError(f"client {self.name}: {text}; 'auto' or 'transacted'")
        if type(most) is not int or not 1 <= most <= _MOST_UNCOMMITTED:
            raise ClientError(f"client {self.name}: most = {most!r}; at least 1")
        most = 1 if acknowledge == "auto" else most
        number = self._core.consume(predicate, most)
        self._line.nudge()
        await self.wait_started(number)
        consumed = self._tokens.consumed
        return Consumer(self, self._line, self._inbox, number, acknowledge, most, consumed)

    async def wait_committed(self, number: int, request: int) -> None:
        """See consumer.Shell."""
        if self._core.subscriptions.commits.is_committed(number, request):
            await trio.lowlevel.checkpoint()
        while not self._core.subscriptions.commits.is_committed(number, request):
            await self._wait_changed()

    def failed_transaction(self, why: str) -> ClientError:
        """See transactions.Shell."""
        self._line.fail(why)
        if self._line.connection is not None:
            self._line.connection.end("closed_by_us", Farewell("stopping", why[:200]))
        return ClientError(f"client {self.name}: {why}")

    def _check_without_tokens(self, what: str) -> None:
        if self._tokens is not None:
            text = f"client {self.name} has tokens, and does not {what}: it resumes"
            raise ClientError(text)

    def unsubscribe_nowait(self, number: int) -> None:
        """End a subscription.

        `receive` returns no more of its publications, even if already received.

        Raises:
            ClientError: there is no such subscription, or not any more.
        """
        self._check_free()
        if number not in self._core.subscriptions:
            raise ClientError(f"client {self.name} has no subscription {number}")
        self._core.unsubscribe(number)
        self._line.states.pop(number, None)
        self._inbox.forget(number)
        self._line.nudge()
        self._line.read_on()

    async def unsubscribe(self, number: int) -> None:
        """Unsubscribe as `unsubscribe_nowait`, and wait until the end is durable at the broker.

        Other brokers are not waited for; publications in transit to this client are dropped on
        arrival.
        """
        self.unsubscribe_nowait(number)
        while number in self._core.subscriptions.ending:
            await self._wait_changed()

    def __aiter__(self) -> "Client":
        return self

    async def __anext__(self) -> Deliveries:
        """Return the next run of publications, with the numbers of the matching subscriptions.

        A call acknowledges the run before, for good.
        """
        return (await self.receive(1))[0]

    async def receive(self, limit: int = 1_000) -> list[Deliveries]:
        """Return the received runs, at least one and up to about `limit`.

        A further call acknowledges.
        """
        self._check_without_tokens("receive")
        self._inbox.acknowledge_taken()
        await self._arrivals.wait(self._check_arriving, self._inbox.announce_leading)
        taken = self._inbox.take(limit)
        self._line.read_on()
        await self.wait_saved()
        return taken

    async def wait_arrived(self) -> None:
        """See transactions.Shell."""
        await self._arrivals.wait(self._check_arriving, lambda: None)

    def publications(self) -> "PublicationIterator":
        """Return single publications with decoded attributes: convenient, and not the fast path."""
        return PublicationIterator(self)

    def subscription(self, number: int) -> Subscription:
        """Return a subscription of the client, for explicit commits.

        Raises:
            ClientError: there is no such subscription, or not any more.
        """
        if number not in self.subscriptions:
            raise ClientError(f"client {self.name} has no subscription {number}")
        return Subscription(self, number, self.subscriptions[number])

    async def commit(self, number: int, source: SourceId, last: int) -> None:
        """See Subscription.commit, which has other arguments."""
        self._check_without_tokens("commit")
        if self._core.progress.mode == "automatic":
            raise ClientError(f"client {self.name} commits by itself: automatic_commit = True")
        if not self._core.progress.commit(number, source, last):
            raise ClientError(f"subscription {number} was not given {last} of {source}")
        self._line.acknowledge()
        await self.wait_saved()

    def token_of(self, number: int) -> bytes:
        """See Subscription.token."""
        return write_token(
            self._core.attachment.home, self._core.progress.committed_positions(number)
        )

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
        self._check_free()
        if drain:
            await self.flush()
        self._busy = "has detached"
        self._inbox.acknowledge_taken()
        self._inbox.close()
        self._core.detach(drain=False)
        self._line.nudge()
        self._line.read_on()
        while self._line not in self._detached:
            await self._wait_changed()
        if self._tokens is not None:
            self._tokens.begin()
            self._tokens.commit(b"")
        self._is_over = True
        await self._line.leave()
        self._line.scope.cancel()
        self._arrivals.announce()

    @property
    def leaves_freely(self) -> bool:
        """Return True if the client keeps its identity at another broker, even as a publisher."""
        return self._core.attachment.leaves_freely

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
        self._check_free()
        if self._keeper is not None:
            raise ClientError(f"client {self.name} has a store, and does not move")
        self._check_without_tokens("move")
        check_address(f"client {self.name}: address", address, is_dialled=self._dials_tcp)
        old = self._line
        new: BrokerConnection | None = None
        if address == old.address:
            return
        self._busy = "is moving"
        old.brokers.pinned = True
        if old.core.attachment.leaves_freely:
            await self._move_to(old.brokers.starting_with(address))
            return
        try:
            await self._flush()
            brokers = old.brokers.starting_with(address)
            brokers.pinned = True
            new = self._new_line(old.core.successor(), brokers)
            await wait_attached(new, lambda: self._changes.wait(new, self._line))
            for number in new.core.subscriptions:
                await self._changes.wait_started(new, self._line, number)
            await hand_over(old, lambda: old in self._detached, self._wait_changed)
        except BaseException:
            with trio.CancelScope(shield=True):
                if new is not None and old.core.is_detaching:
                    await self._settle_at(new, old)
                else:
                    self._busy = ""
                    old.brokers.pinned = False
                    await abandon(new)
            raise
        await self._settle_at(new, old)

    async def _move_to(self, brokers: Brokers) -> None:
        """End the session, and connect to another broker with all state.

        On failure to the old broker.
        """
        line, before = self._line, self._line.brokers
        brokers.pinned = True
        try:
            await line.move_to(brokers)
            await wait_attached(line, self._wait_changed)
            for number in line.core.subscriptions:
                await self._changes.wait_started(line, self._line, number)
        except BaseException:
            with trio.CancelScope(shield=True):
                await line.move_to(before)
            raise
        finally:
            self._busy = ""
            before.pinned = brokers.pinned = False

    async def _settle_at(self, new: BrokerConnection, old: BrokerConnection) -> None:
        """Leave the old broker and deliver the items that the new broker has sent."""
        await old.leave()
        old.scope.cancel()
        self._line = new
        self._was_at = new.address
        new.brokers.pinned = False
        self._busy = ""
        details = {"source": new.core.source, "broker_incarnation": 0, "address": new.address}
        self._callbacks.on_session("moved", details)
        self.on_events(new, new.core.take_over(old.core))
        new.nudge()
        self._changes.announce()

    # ------------------------------------------------------------ events of lines

    def on_events(self, line: BrokerConnection, events: list[ClientEvent]) -> None:
        """See line.Listener."""
        arrived = changed = False
        for event in events:
            if isinstance(event, Arrival):
                self._inbox.put(line, event)
                arrived = True
            elif isinstance(event, Detached):
                self._detached[line] = None
                changed = True
            else:
                if line is self._line:
                    self._on_event(event)
                changed = True
        if changed:
            self._changes.announce()
        if arrived:
            self._arrivals.announce()

    def on_fetch(self, line: BrokerConnection) -> None:
        """See line.Listener."""
        if self._keeper is not None:
            self._keeper.look()

    def _on_saved(self) -> None:
        self._line.nudge()
        self._changes.announce()

    def can_read(self, line: BrokerConnection) -> bool:
        """See line.Listener."""
        return not self._inbox.is_full

    def session_changed(
        self, line: BrokerConnection, what: str, details: Mapping[str, Any]
    ) -> None:
        """See line.Listener."""
        if line is self._line:
            self._changes.warn_if_unreachable(line)
            self._callbacks.on_session(what, details)
        self._changes.announce()

    def failed(self, line: BrokerConnection) -> None:
        """See line.Listener."""
        self._changes.announce()
        self._arrivals.announce()

    def _on_event(self, event: object) -> None:
        callbacks = self._callbacks
        match event:
            case PublicationsDone(first, last):
                callbacks.on_acknowledged(first, last)
            case Attached(source, broker_incarnation):
                details = {"source": source, "broker_incarnation": broker_incarnation}
                here, before = self._line.address, self._was_at or self._line.address
                self._was_at = here
                if here == before:
                    callbacks.on_session("attached", details)
                else:
                    callbacks.on_session("moved", {**details, "address": here})
            case SubscriptionAnswered(number, state):
                callbacks.on_subscription(number, state)
            case Withheld(deliveries):
                callbacks.on_withheld(deliveries)
            case RequestRefused(refused):
                callbacks.on_refused(refused.request, refused.number, refused.reason)

    async def _leave(self) -> None:
        self._inbox.acknowledge_taken()
        with contextlib.suppress(OSError):  # it is `store_failure`, and propagates out of `connect`
            await self.wait_saved()
        await self._line.leave()
        if self._keeper is not None:
            self._keeper.stop()

    # ------------------------------------------------------------ waiting

    async def _wait_changed(self) -> None:
        await self._changes.wait(self._line, self._line)

    def _check_arriving(self) -> None:
        check_alive(self._line)
        if self._is_over:
            raise ClientError(f"client {self.name} {self._busy}")

    def _check_free(self) -> None:
        check_alive(self._line)
        if self._busy:
            raise ClientError(f"client {self.name} {self._busy}")
