"""The access broker of a client: the connection in use, its arrivals, and the calls that wait.

A client that moves has two connections for a while. The events of both arrive here, and are passed
on to the callbacks, the inbox and the waiting calls.
"""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio

from brokerd.client.application import Callbacks, ClientError
from brokerd.client.broker_choice import Brokers
from brokerd.client.broker_connection import BrokerConnection
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
from brokerd.client.inbox import Arrival, Inbox
from brokerd.client.state_encoding import write_token
from brokerd.client.store import StateWriter, Store
from brokerd.client.waits import Arrivals, Changes, check_alive
from brokerd.config import SessionParameters
from brokerd.model.identity import SourceId
from brokerd.runtime.streams import Dial
from brokerd.sessions.messages import Farewell
from brokerd.text import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options of a client's connections; see `connect`.

    Attributes:
        dials_tcp: True if addresses are dialled by TCP.
    """

    deployment_id: str
    parameters: SessionParameters
    dial: Dial
    dials_tcp: bool
    unreachable_after_s: float


class AccessBroker:
    """The connection of a client to its access broker, and the calls that wait for the broker.

    Implements `broker_connection.Listener` and `store.SaveListener`.

    Attributes:
        name: name of the client.
        options: options of all connections.
        line: the connection in use.
        inbox: arrivals of all connections.
        callbacks: callbacks of the application.
        occupation: reason why the client accepts no requests, such as a move; empty if it does.
    """

    def __init__(
        self,
        core: ClientCore,
        brokers: Brokers,
        options: ConnectionOptions,
        callbacks: Callbacks,
        nursery: trio.Nursery,
        store: Store | None = None,
    ) -> None:
        self.name = core.name
        self.options = options
        self.callbacks = callbacks
        self.inbox = Inbox(callbacks)
        self.occupation = ""
        self._nursery = nursery
        self._changes = Changes(core.name, options.unreachable_after_s)
        self._arrivals = Arrivals(self.inbox)
        self._detached: dict[BrokerConnection, None] = {}
        self._last_address = ""
        self.line = self.open(core, brokers)
        self._writer = StateWriter(store, core, self) if store is not None else None
        if self._writer is not None:
            nursery.start_soon(self._writer.run)

    @property
    def core(self) -> ClientCore:
        """The client core of the connection in use."""
        return self.line.core

    @property
    def stores_state(self) -> bool:
        return self._writer is not None

    @property
    def store_failure(self) -> OSError | None:
        """The error after which nothing is stored any more; None if there was none."""
        return self._writer.failure if self._writer is not None else None

    # ------------------------------------------------------------ connections

    def open(self, core: ClientCore, brokers: Brokers) -> BrokerConnection:
        """Open a connection, which is not in use yet, to the first of these brokers."""
        options = self.options
        line = BrokerConnection(
            core, brokers, options.deployment_id, options.parameters, options.dial, self
        )
        self._nursery.start_soon(line.run)
        return line

    def switch(self, new: BrokerConnection) -> None:
        """Use another connection, and deliver the items that its broker has sent."""
        old, self.line = self.line, new
        self._last_address = new.address
        new.brokers.pinned = False
        self.occupation = ""
        details = {"source": new.core.source, "broker_incarnation": 0, "address": new.address}
        self.callbacks.on_session("moved", details)
        self.on_events(new, new.core.take_over(old.core))
        new.nudge()
        self._changes.announce()

    def is_detached(self, line: BrokerConnection) -> bool:
        """Return True if the broker of a connection keeps no state of the client any more."""
        return line in self._detached

    async def close(self) -> None:
        """End the connection in use, for good."""
        await self.line.leave()
        self.line.scope.cancel()
        self.line.fail(self.occupation)

    async def leave(self) -> None:
        """Acknowledge the deliveries that were taken, save the state, and end the session."""
        self.inbox.acknowledge_taken()
        self.inbox.commit_parts()
        # No other task receives from here on: its publications would not be committed.
        self.line.fail("is closed: its `async with` has ended")
        with contextlib.suppress(OSError):  # it is `store_failure`, and propagates out of `connect`
            await self.wait_saved()
        await self.line.leave()
        if self._writer is not None:
            self._writer.stop()

    def failed_transaction(self, why: str) -> ClientError:
        """Return the error to raise, now and later, because commits are no longer permitted."""
        self.line.fail(why)
        if self.line.connection is not None:
            self.line.connection.end("closed_by_us", Farewell("stopping", why[:200]))
        return ClientError(f"client {self.name}: {why}")

    # ------------------------------------------------------------ positions

    async def commit(self, number: int, source: SourceId, last: int) -> None:
        """Commit as Subscription.commit."""
        progress = self.core.progress
        if progress.mode == "transactional":
            raise ClientError(f"client {self.name} has tokens, and does not commit: it resumes")
        if progress.mode == "automatic":
            raise ClientError(f"client {self.name} commits by itself: automatic_commit = True")
        is_waiting = self.inbox.is_waiting(number, source, last)
        if is_waiting or not progress.commit(number, source, last):
            raise ClientError(f"subscription {number} has not received {last} of {source}")
        self.line.acknowledge()
        await self.wait_saved()

    def token_of(self, number: int) -> bytes:
        """Return Subscription.token."""
        core = self.core
        return write_token(core.attachment.home, core.progress.committed_positions(number))

    def path_age_ns(self, number: int) -> int:
        """Return Subscription.path_age_ns."""
        return self.line.path_ages_ns.get(number, 0)

    # ------------------------------------------------------------ waiting

    def check_free(self) -> None:
        """Check that the client accepts requests.

        Raises:
            ClientError: the client cannot continue, moves, or has detached.
        """
        check_alive(self.line)
        if self.occupation:
            raise ClientError(f"client {self.name} {self.occupation}")

    def check_subscribed(self, number: int) -> None:
        """Check that the client has a subscription.

        Raises:
            ClientError: there is no such subscription, or not any more.
        """
        if number not in self.core.subscriptions:
            raise ClientError(f"client {self.name} has no subscription {number}")

    async def wait_changed(self, line: BrokerConnection | None = None) -> None:
        """Wait until some state has changed.

        Args:
            line: the connection that the caller needs; by default the connection in use.

        Raises:
            ClientError: the client cannot continue.
            BrokerUnreachable: the broker has not been reachable for too long.
        """
        await self._changes.wait(line or self.line, self.line)

    async def wait_attached(self, line: BrokerConnection | None = None) -> None:
        """Wait until the client is attached, by `line` or else by the connection in use.

        Raises:
            ClientError: the broker refuses the client.
        """
        check_alive(line or self.line)
        while not (line or self.line).core.attached:
            await self.wait_changed(line)

    async def wait_started(self, number: int, line: BrokerConnection | None = None) -> None:
        """Wait until a subscription has started, at `line` or else at the connection in use.

        Raises:
            ClientError: the broker refuses the subscription.
        """
        await self._changes.wait_started(self, number, line)

    async def wait_acknowledged(self) -> None:
        """Wait until all publications are acknowledged; write one line to the log if that is long.

        Raises:
            ClientError: the client cannot continue.
        """
        check_alive(self.line)
        warning_s = trio.current_time() + self.options.unreachable_after_s
        while len(self.core.outgoing):
            if self.core.is_detaching:
                raise ClientError(f"client {self.name} {self.occupation}")
            with trio.move_on_at(warning_s) as scope:
                await self.wait_changed()
            if scope.cancelled_caught:
                warning_s = self._changes.next_warning_s(self.line)
                if self.line.unattached_since_s is not None:
                    continue
                logger.warning(
                    "client %s: %s without an acknowledgement after %g s: a subscriber has not "
                    "received or not committed them; this client must receive, too, if it has "
                    "subscriptions",
                    self.name,
                    counted(len(self.core.outgoing), "publication"),
                    self.options.unreachable_after_s,
                )

    async def wait_arrived(self) -> None:
        """Wait until an arrival is in the inbox."""
        await self._arrivals.wait(self._check_alive, lambda: None)

    async def wait_delivered(self) -> None:
        """Wait until a publication is in the inbox; announce the notices and gaps before it."""
        await self._arrivals.wait(self._check_alive, self.inbox.announce_leading)

    async def wait_committed(self, number: int, request: int) -> None:
        """Wait until the broker has answered a commit request of a subscription.

        Raises:
            ClientError: the subscription has ended.
        """
        self.check_subscribed(number)
        if self.core.subscriptions.commits.is_committed(number, request):
            await trio.lowlevel.checkpoint()
            return
        while not self.core.subscriptions.commits.is_committed(number, request):
            await self.wait_changed()
            self.check_subscribed(number)

    async def wait_saved(self) -> None:
        """Wait until the store, if there is one, contains the present state.

        Raises:
            OSError: the store has failed.
        """
        if self._writer is not None:
            await self._writer.wait_saved()

    def _check_alive(self) -> None:
        check_alive(self.line)

    # ------------------------------------------------------------ events of connections

    def on_events(self, line: BrokerConnection, events: list[ClientEvent]) -> None:
        arrived = changed = False
        for event in events:
            if isinstance(event, Arrival):
                self.inbox.put(line, event)
                arrived = True
            elif isinstance(event, Detached):
                self._detached[line] = None
                changed = True
            else:
                if line is self.line:
                    self._call_back(event)
                changed = True
        if changed:
            self._changes.announce()
        if arrived:
            self._arrivals.announce()

    def on_fetch(self, line: BrokerConnection) -> None:
        if self._writer is not None:
            self._writer.look()

    def can_read(self, line: BrokerConnection) -> bool:
        return not self.inbox.is_full

    def session_changed(
        self, line: BrokerConnection, change: str, details: Mapping[str, Any]
    ) -> None:
        if line is self.line:
            self._changes.warn_if_unreachable(line)
            self.callbacks.on_session(change, details)
        self._changes.announce()

    def failed(self, line: BrokerConnection) -> None:
        self._changes.announce()
        self._arrivals.announce()

    def on_saved(self) -> None:
        self.line.nudge()
        self._changes.announce()

    def on_save_failed(self) -> None:
        self._nursery.cancel_scope.cancel()

    def _call_back(self, event: ClientEvent) -> None:
        callbacks = self.callbacks
        match event:
            case PublicationsDone(first, last):
                callbacks.on_acknowledged(first, last)
            case Attached(source, broker_incarnation):
                details = {"source": source, "broker_incarnation": broker_incarnation}
                here, before = self.line.address, self._last_address or self.line.address
                self._last_address = here
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
