"""The client library on trio: `async with connect(address, name) as client`.

It reconnects by itself, sends again what was not done, and gives each publication once. What
the application hands over while a write is in flight goes out with the next one, as one run;
nothing ever waits for company. It can end subscriptions, move to another broker, and leave for
good without leaving anything behind. It takes a list of brokers, and a store to start again from.
"""

import contextlib
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
from brokerd.client.beginning import core_of, resumed_core
from brokerd.client.brokers import Brokers
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
from brokerd.client.keeper import Keeper
from brokerd.client.kept import write_token
from brokerd.client.line import Line
from brokerd.client.moving import abandon, hand_over, wait_attached
from brokerd.client.singles import PublicationIterator
from brokerd.client.store import Store
from brokerd.client.subscription import Subscription
from brokerd.client.tokens import Tokens
from brokerd.client.transactions import DurableSubscription
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
"""How long a call waits for a broker that cannot be reached."""

_INSTANCE_BYTES: Final = 8

_CHECKPOINT_EVERY: Final = 64
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
    """A client called `name` of the broker at "host:port"; it connects in the background.

    With a list of brokers, they are tried in the order given, again and again; the first one that
    takes the client is its broker. When the connection to it breaks and it cannot be reached
    again at once, or when it refuses the client, the client goes on at the next one, if that
    costs nothing that the protocol promises:

    - all that the client has published is done; from then on it publishes as another source,
      numbered from 1, as after `move`;
    - and it has no subscription that has started, unless the protocol may lose publications
      anyway: what its broker still has for one, no other broker would deliver. Where
      subscriptions go on elsewhere (`Promises.resumes_elsewhere`) the next broker does deliver
      it, from where the client has come to; and only an end must be confirmed first.

    Else it tries its broker until that is back, and nothing is lost or given twice. `move` is for
    those who would rather go on without what an unreachable broker has. A broker of a list has
    to be of the same deployment as the one before.

    A broker may tell a client that another one would rather have it. Where that one is in the
    list, or in `elsewhere`, the client goes there by itself: it ends its session first, and comes
    as who it was. A publisher does so only where it stays the same source (`leaves_freely`), a
    subscriber only where its subscriptions go on elsewhere or the protocol loses publications
    anyway; some of those are missing then. For 30 s it goes nowhere else because of being told to.

    Args:
        address: of its broker, or of several brokers of one deployment.
        publishes: whether it will publish.
        incarnation: the incarnation that its source must have; a broker that has given this one
            or a later one to the name refuses the client. By default the broker gives one that
            has never been used, so a publisher may be started again under its name.
        deployment_id: refuse a broker of another deployment; empty for any.
        window: how many publications may be outstanding before `publish` waits.
        parameters: of sessions; those of the brokers, where their topology file sets any.
        tls: its certificate and the authority it trusts; needed wherever the broker is not on
            this machine.
        dial: opens a connection in another way than by TCP and `tls`.
        gate: cuts the client off for as long as it is shut, to see what becomes of it.
        store: where it keeps what it must know after a restart, see below.
        automatic_commit: whether asking for more says that the application is done with what it
            was given. Without, `Subscription.commit` says that, and until then the broker keeps
            it: a broker has little patience with clients that commit nothing.
        tokens: where its application keeps how far it is done with its one durable subscription:
            see `Client.resume`. With them nothing else is received or committed, there is no
            store, and it does not `move`. With `BrokerTokens` its broker keeps that: see
            `Client.consume`.
        elsewhere: brokers of the same deployment that it goes to only if its broker tells it to.
        unreachable_after_s: how long `subscribe`, `flush` and other calls that need an answer
            wait for a broker that cannot be reached; `math.inf` to wait for ever. The client keeps
            on trying either way, and the call may be repeated.

    With a store, a process that starts again with the same name and store goes on where the last
    one was, however that ended: it has the same `subscriptions`, sends again what it had
    published and was not told is done, and counts on (`incarnation` is of no matter then).
    `publish` returns when the publication is in the store, and `receive` when what it returns is
    noted as given. What was given and not committed is given again, marked as redelivered, where
    the protocol redelivers (`Promises.redelivers`); elsewhere it counts as committed.
    The broker keeps the subscriptions for its `client_linger_ns` only. Each save
    writes all that is not done, so hand over many publications at once, or make `window` small.
    A client with a store does not `move`.

    What is raised inside the `async with` comes out as it is. On leaving it, what the broker
    still has to be told is written, but nothing is waited for: `flush` does that. The broker
    keeps the client's subscriptions for a while, as for one that comes back; `detach` first
    says that it does not.

    Raises:
        ClientError: from any method, once the broker has refused the client for good.
        BrokerUnreachable: from methods that need an answer, after `unreachable_after_s`.
        ConfigError: `tls` cannot be used, there is no address, an argument cannot be (says which,
            and what is valid), the store is of another client or deployment, or tokens cannot be
            kept where they are to be.
        StorageCorrupt, ResumeTokenRefused: what is in the store, or the token, is damaged, or of
            another protocol, client or deployment; it stays as it is.
        OSError: the store cannot be read, or has failed: what it has by then nobody knows, so
            the process had better end.
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
        raise ConfigError(f"client {name}: a store, and tokens: one of them says where it was")
    generation = 0
    instance = secrets.token_bytes(_INSTANCE_BYTES)
    if tokens is not None:
        core, generation = resumed_core(name, publishes, instance, deployment_id, tokens)
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
        name: at its broker.
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
        self._unreachable_after_s = unreachable_after_s
        self._has_warned = False
        self._deployment_id = deployment_id
        self._window = window
        self._parameters = parameters
        self._callbacks = callbacks
        self._dial = dial
        self._nursery = nursery
        self._blobs = AttributeBlobs()
        self._inbox = Inbox(callbacks.on_notice, callbacks.on_gap)
        self._handed_on = 0
        self._busy = ""
        self._over = False
        self._detached: dict[Line, None] = {}
        self._changed = trio.Event()
        self._arrived = trio.Event()
        self._was_at = ""
        self._keeper: Keeper | None = None
        self._tokens = tokens
        self._generation = generation
        self._line = self._new_line(core, brokers)

        if store is not None:
            self._keeper = Keeper(store, core, self._on_saved)
            nursery.start_soon(self._keeper.run, nursery.cancel_scope.cancel)

    def _new_line(self, core: ClientCore, brokers: Brokers) -> Line:
        line = Line(core, brokers, self._deployment_id, self._parameters, self._dial, self)
        self._nursery.start_soon(line.run)
        return line

    @property
    def _core(self) -> ClientCore:
        return self._line.core

    # ------------------------------------------------------------ state

    @property
    def store_failure(self) -> OSError | None:
        """Why its store keeps nothing more; None while all is well."""
        return self._keeper.failure if self._keeper is not None else None

    @property
    def subscriptions(self) -> Mapping[int, Predicate]:
        """What its subscriptions ask for, by number; those of before a restart too."""
        return self._core.predicates

    @property
    def attached(self) -> bool:
        """Whether what is handed over now can be sent at once; not while it moves."""
        return self._core.attached and not self._busy

    @property
    def source(self) -> SourceId | None:
        """Under which source its publications go; None before the first attach."""
        return self._core.source

    @property
    def next_sequence(self) -> int:
        """The number of the next publication."""
        return self._core.next_sequence

    @property
    def outstanding(self) -> int:
        """How many publications are not known to be done."""
        return self._core.outstanding

    @property
    def duplicates(self) -> int:
        """How many publications were kept from the application because it had them."""
        return self._core.duplicates

    @property
    def waiting_bytes(self) -> int:
        """How much has come that `receive` has not given yet."""
        return self._inbox.waiting_bytes

    @property
    def resubmitted(self) -> int:
        """How many publications were sent again."""
        return self._core.resubmitted

    async def wait_attached(self) -> None:
        """Wait until the broker knows this client."""
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
        """Hand over consecutive publications whatever the window says; returns their numbers.

        Args:
            attribute_table: distinct encoded attribute maps; not all need be used.
            attribute_index: per publication, its place in the table; `bytes` is the fast kind.
            payload_lengths: of each payload, or one for all.
            payload: all payloads, one after the other; must not change afterwards.

        Raises:
            ValueError: a publication is larger than a frame, a blob is no encoded attribute map,
                or the parts do not fit together. Nothing is handed over then.
            ClientError: the client was not opened to publish.
        """
        self._check_free()
        self._check_publishes()
        payload = payload_of(payload)
        self._blobs.check(attribute_table)
        check_publications(attribute_index, payload_lengths, payload)
        longest = payload_lengths if isinstance(payload_lengths, int) else max(payload_lengths)
        self._check_size(longest + max(map(len, attribute_table)))
        numbers = self._core.publish_many(
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
        """As `publish_many_nowait`, once the window has room for one of them."""
        await self._wait_for_room()
        numbers = self.publish_many_nowait(
            attribute_table, attribute_index, payload_lengths, payload
        )
        await self.wait_saved()
        return numbers

    async def publish(self, attributes: Mapping[str, Scalar] | bytes, payload: bytes) -> int:
        """Hand over one publication; returns its number.

        `attributes` may be encoded already (`encode_attributes`), which is much faster where
        they repeat.

        Raises:
            ValueError: no publication can have such attributes or such a payload.
        """
        blob = self._blobs.encoded(attributes)
        content = payload if type(payload) is bytes else bytes(payload_of(payload))
        self._check_size(len(blob) + len(content))
        await self._wait_for_room()
        number = self._core.publish(blob, content)
        self._line.nudge()
        await self.wait_saved()
        return number

    async def wait_saved(self) -> None:
        """Wait until the store, if there is one, has all that has happened so far.

        Raises:
            OSError: the store has failed.
        """
        if self._keeper is not None:
            await self._keeper.wait_saved()

    async def flush(self) -> None:
        """Wait until everything published is done, in the sense of the protocol's promise."""
        await self._flush()

    async def _flush(self) -> None:
        while self._core.outstanding:
            await self._wait_changed()

    async def _wait_for_room(self) -> None:
        self._check_free()
        self._check_publishes()
        if self._core.outstanding < self._window:
            await trio.lowlevel.checkpoint()
        while self._core.outstanding >= self._window:
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
        """Ask for publications, from now on and after each reconnect; returns a number.

        Raises:
            PredicateError: the predicate cannot be read.
        """
        self._check_free()
        self._check_without_tokens("subscribe")
        return self._subscribe(predicate)

    def _subscribe(self, predicate: str | Predicate) -> int:
        number = self._core.subscribe(predicate_of(predicate))
        self._line.nudge()
        return number

    async def subscribe(self, predicate: str | Predicate) -> int:
        """As `subscribe_nowait`, and wait until the subscription has started."""
        number = self.subscribe_nowait(predicate)
        await self.wait_started(number)
        await self.wait_saved()
        return number

    async def wait_started(self, number: int) -> None:
        """Wait until every broker routes by this subscription.

        Raises:
            ClientError: the broker will not have it.
        """
        await self._wait_started(self._line, number)

    async def _wait_started(self, line: Line, number: int) -> None:
        warning_s = trio.current_time() + self._unreachable_after_s
        while line.states.get(number) != "started":
            if number in line.refusals:
                raise ClientError(f"subscription {number} was refused: {line.refusals[number]}")
            with trio.move_on_at(warning_s) as scope:
                await self._wait_changed(line)
            if scope.cancelled_caught:
                warning_s = math.inf
                text = "client %s: subscription %d is %s after %g s: not all brokers confirm it"
                state = line.states.get(number, "unanswered")
                logger.warning(text, self.name, number, state, self._unreachable_after_s)

    async def resume(self, predicate: str | Predicate) -> DurableSubscription:
        """The durable subscription of this client: the one that its token is of, or a new one.

        For a client with `tokens`: `DurableSubscription.transaction` then gives each event
        exactly once to the application's own database, across any number of restarts. A new
        subscription has started when this returns, and its first token is kept.

        Raises:
            ClientError: the client has no tokens, its subscription asks for something else, or
                the broker will not have it.
            PredicateError: the predicate cannot be read.
        """
        self._check_free()
        if self._tokens is None or isinstance(self._tokens, BrokerTokens):
            raise ClientError(f"client {self.name} has no tokens to resume by")
        predicate = predicate_of(predicate)
        if any(known != predicate for known in self._core.predicates.values()):
            text = f"client {self.name} has a subscription that asks for something else"
            raise ClientError(f"{text}; `detach` ends it")
        number = next(iter(self._core.predicates), 0) or self._subscribe(predicate)
        await self.wait_started(number)
        subscription = DurableSubscription(
            self, self._line, self._inbox, self._tokens, self._generation, number
        )
        subscription.keep_beginning()
        return subscription

    async def consume(
        self, predicate: str | Predicate, acknowledge: Acknowledge = "auto", most: int = 1_000
    ) -> Consumer:
        """The durable subscription of this client, whose broker keeps how far it is committed.

        For a client with `tokens=BrokerTokens()`: its process keeps nothing, and one that starts
        again goes on behind what was committed last. A commit returns when it is on the broker's
        disk. A new subscription has started when this returns.

        Args:
            acknowledge: "auto" commits each publication when the next is asked for; "transacted"
                commits in `Consumer.transaction`.
            most: how many publications a transaction may have.

        Raises:
            ClientError: the client keeps its tokens itself or consumes already, or the broker will
                not have it: its protocol may not keep tokens, the client's subscription may be
                for something else.
            PredicateError: the predicate cannot be read.
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
        if self._core.is_committed(number, request):
            await trio.lowlevel.checkpoint()
        while not self._core.is_committed(number, request):
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
        """End a subscription: `receive` gives nothing more of it, what has come included.

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
        """As `unsubscribe_nowait`, and wait until the broker has it on disk.

        Nobody else is waited for; what is on its way to this client is dropped when it comes.
        """
        self.unsubscribe_nowait(number)
        while number in self._core.ending:
            await self._wait_changed()

    def __aiter__(self) -> "Client":
        return self

    async def __anext__(self) -> Deliveries:
        """The next run of publications, with the numbers of the subscriptions it is for.

        Asking for it says that the application has the one before, for good.
        """
        return (await self.receive(1))[0]

    async def receive(self, limit: int = 1_000) -> list[Deliveries]:
        """What has come, at least one run and up to about `limit`; asking again acknowledges."""
        self._check_without_tokens("receive")
        self._inbox.acknowledge_taken()
        await self._wait_arrived(self._inbox.announce_leading)
        taken = self._inbox.take(limit)
        self._line.read_on()
        await self.wait_saved()
        return taken

    async def wait_arrived(self) -> None:
        """See transactions.Shell."""
        await self._wait_arrived(lambda: None)

    async def _wait_arrived(self, before: Callable[[], None]) -> None:
        """Wait until the application can take something; others get their turn now and then."""
        self._handed_on += 1
        before()
        if self._inbox and self._handed_on % _CHECKPOINT_EVERY:
            self._check_alive()
        else:
            await trio.lowlevel.checkpoint()
        while not self._inbox:
            self._check_alive()
            if self._over:
                raise ClientError(f"client {self.name} {self._busy}")
            self._arrived = trio.Event()
            await self._arrived.wait()
            before()

    def publications(self) -> "PublicationIterator":
        """Single publications with decoded attributes: convenient, and not the fast way."""
        return PublicationIterator(self)

    def subscription(self, number: int) -> Subscription:
        """One of its subscriptions, to say what the application is done with.

        Raises:
            ClientError: there is no such subscription, or not any more.
        """
        if number not in self.subscriptions:
            raise ClientError(f"client {self.name} has no subscription {number}")
        return Subscription(self, number, self.subscriptions[number])

    async def commit(self, number: int, source: SourceId, last: int) -> None:
        """See Subscription.commit, which says it in other words."""
        self._check_without_tokens("commit")
        if self._core.commits_by_itself:
            raise ClientError(f"client {self.name} commits by itself: automatic_commit = True")
        if not self._core.commit(number, source, last):
            raise ClientError(f"subscription {number} was not given {last} of {source}")
        self._line.acknowledge()
        await self.wait_saved()

    def token_of(self, number: int) -> bytes:
        """See Subscription.token."""
        return write_token(self._core.home, self._core.committed(number))

    # ------------------------------------------------------------ leaving and moving

    async def detach(self, *, drain: bool = True) -> None:
        """Leave for good: the broker ends all subscriptions, everywhere, and keeps nothing.

        Returns when the broker has it on disk; the client is of no use afterwards. What has
        been delivered and not received by the application is dropped.

        Args:
            drain: wait first until everything published is done, as `flush` does. Without,
                what is not done may or may not arrive.

        Raises:
            ClientError: the broker has refused the client, or it is moving.
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
        self._over = True
        await self._line.leave()
        self._line.scope.cancel()
        self._arrived.set()

    @property
    def leaves_freely(self) -> bool:
        """Whether it goes on at another broker as who it is, as a publisher too."""
        return self._core.leaves_freely

    async def move(self, address: str) -> None:
        """Go on at another broker of the same deployment; returns when that is done.

        Where brokers keep nothing of clients (`Promises.leaves_freely`) the client ends its
        session and comes to the other one as who it was, source and all; one that refuses it
        for good ends it there. Elsewhere:

        Subscriptions keep their numbers: they are made at the new broker first, and ended at the
        old one when it has delivered all that was published before they had started at the new
        one. What both deliver is given once, in order, without gap, if no broker or link fails
        meanwhile and the new broker hears all sources. If the old broker cannot be reached, what
        it has not delivered by then is not delivered. Keep receiving while this waits.

        What is published from then on belongs to a new source, numbered from 1; that waits until
        everything published before is done.

        Raises:
            ClientError: the new broker refuses the client or a subscription, or the client has
                a store; it then stays where it is.
        """
        self._check_free()
        if self._keeper is not None:
            raise ClientError(f"client {self.name} has a store, and does not move")
        self._check_without_tokens("move")
        check_address(f"client {self.name}: address", address, is_dialled=self._dials_tcp)
        old = self._line
        new: Line | None = None
        if address == old.address:
            return
        self._busy = "is moving"
        old.brokers.pinned = True
        if old.core.leaves_freely:
            await self._go_on_at(old.brokers.beginning_with(address))
            return
        try:
            await self._flush()
            brokers = old.brokers.beginning_with(address)
            brokers.pinned = True
            new = self._new_line(old.core.successor(), brokers)
            await wait_attached(new, lambda: self._wait_changed(new))
            for number in new.core.subscriptions:
                await self._wait_started(new, number)
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

    async def _go_on_at(self, brokers: Brokers) -> None:
        """End the session, and come to another broker with all there is; or else to the old one."""
        line, before = self._line, self._line.brokers
        brokers.pinned = True
        try:
            await line.go_to(brokers)
            await wait_attached(line, self._wait_changed)
            for number in line.core.subscriptions:
                await self._wait_started(line, number)
        except BaseException:
            with trio.CancelScope(shield=True):
                await line.go_to(before)
            raise
        finally:
            self._busy = ""
            before.pinned = brokers.pinned = False

    async def _settle_at(self, new: Line, old: Line) -> None:
        """Leave the old broker and give on what the new one has sent."""
        await old.leave()
        old.scope.cancel()
        self._line = new
        self._was_at = new.address
        new.brokers.pinned = False
        self._busy = ""
        details = {"source": new.core.source, "broker_incarnation": 0, "address": new.address}
        self._callbacks.on_session("moved", details)
        self.happened(new, new.core.take_over(old.core))
        new.nudge()
        self._announce()

    # ------------------------------------------------------------ what lines tell

    def happened(self, line: Line, events: list[ClientEvent]) -> None:
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
                    self._happened(event)
                changed = True
        if changed:
            self._announce()
        if arrived:
            self._arrived.set()

    def fetched(self, line: Line) -> None:
        """See line.Listener."""
        if self._keeper is not None:
            self._keeper.look()

    def _on_saved(self) -> None:
        self._line.nudge()
        self._announce()

    def may_read(self, line: Line) -> bool:
        """See line.Listener."""
        return not self._inbox.is_full

    def session_changed(self, line: Line, what: str, details: Mapping[str, Any]) -> None:
        """See line.Listener."""
        if line is self._line:
            self._warn_if_unreachable(line)
            self._callbacks.on_session(what, details)
        self._announce()

    def failed(self, line: Line) -> None:
        """See line.Listener."""
        self._announce()
        self._arrived.set()

    def _happened(self, event: object) -> None:
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
        with contextlib.suppress(OSError):  # it is `store_failure`, and comes out of `connect`
            await self.wait_saved()
        await self._line.leave()
        if self._keeper is not None:
            self._keeper.stop()

    # ------------------------------------------------------------ waiting

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _wait_changed(self, line: Line | None = None) -> None:
        """Wait until something has changed.

        Raises:
            ClientError: the client cannot go on.
            BrokerUnreachable: the broker of `line`, or of the client, has not been reachable for
                too long.
        """
        self._check_alive()
        line = line or self._line
        since_s = line.unattached_since_s
        if since_s is None:
            await self._changed.wait()
        else:
            with trio.move_on_at(since_s + self._unreachable_after_s) as scope:
                await self._changed.wait()
            if scope.cancelled_caught and line.unattached_since_s is not None:
                line.unattached_since_s = trio.current_time()
                raise BrokerUnreachable(self._why_unreachable(line))
        self._check_alive()

    def _why_unreachable(self, line: Line) -> str:
        failure = line.last_failure or f"{line.address}: no answer"
        return (
            f"client {self.name} has reached no broker for {self._unreachable_after_s:g} s "
            f"({failure}); it keeps on trying, and the call may be repeated"
        )

    def _warn_if_unreachable(self, line: Line) -> None:
        """Write one line to the log per outage, for applications that only receive."""
        since_s = line.unattached_since_s
        if since_s is None:
            self._has_warned = False
        elif trio.current_time() - since_s >= self._unreachable_after_s and not self._has_warned:
            self._has_warned = True
            logger.warning("%s", self._why_unreachable(line))

    def _check_free(self) -> None:
        self._check_alive()
        if self._busy:
            raise ClientError(f"client {self.name} {self._busy}")

    def _check_alive(self) -> None:
        if self._line.failure is not None:
            raise ClientError(f"client {self.name}: {self._line.failure}")
