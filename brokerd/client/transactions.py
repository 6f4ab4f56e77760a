"""Transactions of a durable subscription: deliveries and the application's change, or neither.

Paper: [DS03] §2: "the subscriber consumes an event and updates its CT in one transaction".
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from brokerd.client.access_broker import AccessBroker
from brokerd.client.application import ClientError, Publication, publications_of
from brokerd.client.arguments import check_integer
from brokerd.client.events import GapAnnounced, GapsAnnounced, Received
from brokerd.client.inbox import Arrival
from brokerd.client.tokens import CheckpointToken, Tokens, TransactionFailed
from brokerd.model.client_messages import Deliveries
from brokerd.model.predicate import Predicate


class DurableSubscription:
    """A subscription that the broker keeps while the client is away; made by `Client.resume`.

    Attributes:
        number: number at the client.
        predicate: predicate of the subscription.
        generation: generation of the process that may commit; increased by one at each takeover.
    """

    def __init__(self, broker: AccessBroker, tokens: Tokens, generation: int, number: int) -> None:
        self.number = number
        self.predicate: Predicate = broker.core.subscriptions.predicates[number]
        self.generation = generation
        self._broker = broker
        self._line = broker.line
        self._inbox = broker.inbox
        self._tokens = tokens
        self._is_open = False

    @property
    def token(self) -> bytes:
        """The committed positions; for an application that stores the token, see `OwnTokens`."""
        return self.token_at(0)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Transaction"]:
        """Consume the deliveries received inside if, and only if, the block is left in order.

        Then the application's change and the token are committed in one step, and only after that
        the broker is notified. An exception, or a cancelled scope, undoes the application's change,
        and the next transaction receives the same deliveries. After the end of the process, the
        next process with the same tokens does.

        With `SqliteTokens` all statements of the connection belong to the transaction; the
        application must neither commit nor roll back.

        Raises:
            ClientError: the client cannot continue: refused, superseded, or the commit failed
                (another process has taken over, for instance). Or the subscription has ended, or
                another transaction is open.
            sqlite3.OperationalError: the file was busy for too long; nothing is committed, and the
                next transaction receives the same deliveries.
        """
        if self._is_open:
            raise ClientError(f"subscription {self.number}: one transaction at a time")
        self._broker.check_subscribed(self.number)
        transaction = Transaction(self._broker, self)
        self._tokens.begin()
        self._is_open = True
        try:
            yield transaction
            self._tokens.commit(transaction.token)
        except TransactionFailed as failure:
            self._undo(transaction)
            raise self._broker.failed_transaction(str(failure)) from failure
        except BaseException:
            self._undo(transaction)
            raise
        finally:
            self._is_open = False
        self._line.core.progress.commit_through(transaction.serial)
        self._line.acknowledge()
        self._line.read_on()

    def _undo(self, transaction: "Transaction") -> None:
        self._tokens.roll_back()
        self._inbox.put_back(self._line, transaction.arrivals)

    def keep_beginning(self) -> None:
        """Store the token of a subscription that has just begun."""
        self._tokens.begin()
        try:
            self._tokens.commit(self.token)
        except TransactionFailed as failure:
            raise self._broker.failed_transaction(str(failure)) from failure
        except BaseException:
            self._tokens.roll_back()
            raise

    def token_at(self, serial: int) -> bytes:
        """Return the token after a commit of all arrivals up to this serial."""
        core = self._line.core
        assert core.attachment.home is not None, "a token is of a broker"
        return CheckpointToken(
            core.name, self.generation, core.attachment.home, self.number, self.predicate,
            core.progress.positions_at(self.number, serial),
        ).to_bytes()  # fmt: skip


class Transaction:
    """One transaction, for the application.

    Attributes:
        gaps: gaps announced inside the transaction, before the next received publication.
        arrivals, serial: the received arrivals, and the serial of the last.
    """

    def __init__(self, broker: AccessBroker, subscription: DurableSubscription) -> None:
        self.gaps: list[GapAnnounced] = []
        self.arrivals: list[Arrival] = []
        self.serial = 0
        self._broker = broker
        self._line = broker.line
        self._inbox = broker.inbox
        self._subscription = subscription

    @property
    def token(self) -> bytes:
        """The committed positions after this transaction.

        For an application that stores the token.
        """
        return self._subscription.token_at(self.serial)

    async def receive(self, limit: int = 1_000) -> list[Publication]:
        """Return the received publications, up to about `limit` runs; wait until there are any.

        The list is empty if there are only `gaps`, or if no matching publication was published for
        a while: leave the block then too, so that the broker need not keep the stream any longer.

        Raises:
            ClientError: the client cannot continue.
            ConfigError: the limit is less than 1.
        """
        return [each for item in await self.receive_runs(limit) for each in publications_of(item)]

    async def receive_runs(self, limit: int = 1_000) -> list[Deliveries]:
        """Receive as `receive`, in runs as they arrived; the fast path."""
        check_integer("limit", limit, 1)
        await self._broker.wait_arrived()
        received: list[Deliveries] = []
        while self._inbox and len(received) < limit:
            if received and not isinstance(self._inbox.first, Received):
                break
            event = self._inbox.pop()
            self.arrivals.append(event)
            self.serial = event.serial
            if isinstance(event, Received):
                received.extend(event.deliveries)
            elif isinstance(event, GapsAnnounced):
                self.gaps.extend(event.gaps)
            else:
                self._inbox.announce(event)
        self._line.read_on()
        return received
