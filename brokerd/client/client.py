"""The client library on trio: `async with connect(address, name) as client`.

The client reconnects by itself, retransmits unacknowledged publications, and delivers each
publication once. Publications that are handed over while a write is in flight are sent with the
next write, as one run; no publication is ever delayed to gather more. The client can end
subscriptions, move to another broker, and detach without leaving state behind. It accepts a list of
brokers, and a store for restarts.
"""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from brokerd.client.access_broker import AccessBroker, ConnectionOptions
from brokerd.client.application import BrokerUnreachable as BrokerUnreachable
from brokerd.client.application import Callbacks as Callbacks
from brokerd.client.application import ClientError as ClientError
from brokerd.client.arguments import (
    check_address,
    check_duration,
    check_integer,
    check_name,
    check_text,
    list_addresses,
)
from brokerd.client.broker_choice import Brokers
from brokerd.client.handle import Client as Client
from brokerd.client.store import Store, core_of
from brokerd.client.tokens import Tokens, core_of_token
from brokerd.config import SessionParameters, TlsFiles
from brokerd.errors import ConfigError
from brokerd.model.client_messages import MOST_INCARNATION, MOST_PUBEND
from brokerd.runtime.streams import Dial, dial_tcp, dial_tls
from brokerd.runtime.streams import Gate as Gate
from brokerd.runtime.tls import credentials_of

WINDOW_PUBLICATIONS: Final = 65_536

UNREACHABLE_AFTER_S: Final = 30.0
"""Time for which a call waits for an unreachable broker."""

_INSTANCE_BYTES: Final = 8


@asynccontextmanager
async def connect(
    address: str | Sequence[str],
    name: str,
    *,
    publishes: bool = False,
    pubend: int | None = None,
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
) -> AsyncIterator[Client]:
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

    Otherwise the client tries its broker until that is back, at any of the addresses, and nothing
    is lost or delivered twice. `move` is for applications that prefer to continue without the
    publications of an unreachable broker. A broker of a list must be of the same deployment as the
    broker before.

    A broker may redirect a client to another broker. If that broker is in the list, or in
    `elsewhere`, the client moves by itself: it ends its session first, and keeps its identity. A
    publisher does so only if its source stays the same (`leaves_freely`), a subscriber only if its
    subscriptions resume elsewhere or the protocol loses publications anyway; some publications are
    missing then. For 30 s the client follows no other redirect.

    Args:
        address: address of the broker, or of several brokers of one deployment.
        publishes: True if the client will publish.
        pubend: the number of the pubend that a publisher is at, at each broker; a broker refuses a
            number that it has not, and another one than before. By default the broker chooses.
            Pubends may retain for different times. Some protocols have none, and refuse.
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
        ClientError: from any method, once the broker has refused the client for good. So have, at
            the first contact, all brokers whose certificate the client refuses, or that refuse its.
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
    if pubend is not None:
        check_integer("pubend", pubend, 0, MOST_PUBEND)
        if not publishes:
            raise ConfigError(f"client {name}: pubend = {pubend} of a client that does not publish")
    check_integer("window", window, 1)
    addresses = list_addresses(f"client {name}: address", address)
    elsewhere = list_addresses(f"client {name}: elsewhere", elsewhere)
    if not addresses or addresses == [""]:
        raise ConfigError(f'client {name}: address = {address!r}; at least one "host:port"')
    dials_tcp = dial is None
    for each in (*addresses, *elsewhere):
        check_address(f"client {name}: address", each, is_dialled=dials_tcp)
    brokers = Brokers(addresses, elsewhere)
    if dial is None and tls is not None:
        credentials = credentials_of(tls)
        credentials.check("client", name, deployment_id)
        dial = dial_tls(credentials)
    elif dial is None:
        dial = dial_tcp
    if gate is not None:
        dial = gate.before(dial)
    if tokens is not None and store is not None:
        raise ConfigError(
            f"client {name}: give either a store or tokens, not both: each holds the positions"
        )
    generation = 0
    instance = secrets.token_bytes(_INSTANCE_BYTES)
    if tokens is not None:
        core, generation = core_of_token(name, publishes, instance, deployment_id, tokens)
    else:
        core = core_of(
            name, publishes, incarnation, instance, deployment_id, store, automatic_commit
        )
    core.attachment.pubend = pubend
    options = ConnectionOptions(
        deployment_id, parameters or SessionParameters(), dial, dials_tcp, unreachable_after_s
    )
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        broker = AccessBroker(core, brokers, options, callbacks or Callbacks(), nursery, store)
        try:
            yield Client(broker, window, tokens, generation)
        except BaseException as error:
            failure = error
        with trio.CancelScope(shield=True):
            await broker.leave()
        nursery.cancel_scope.cancel()
    if broker.store_failure is not None:
        raise broker.store_failure
    if failure is not None:
        raise failure
