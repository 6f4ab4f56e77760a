"""Transactions of a durable subscription: what was taken, and the application's change, or neither.

Paper: [DS03] §2: "the subscriber consumes an event and updates its CT in one transaction".
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from brokerd.client.events import GapAnnounced, GapsAnnounced, Received
from brokerd.client.inbox import Arrival, Inbox
from brokerd.client.line import Line
from brokerd.client.singles import Publication, publications_of
from brokerd.client.tokens import CheckpointToken, Tokens, TransactionFailed
from brokerd.errors import BrokerError
from brokerd.model.client_messages import Deliveries
from brokerd.model.predicate import Predicate


class Shell(Protocol):
    """The client that transactions are of."""

    async def wait_arrived(self) -> None:
        """Wait until something has come; raises when nothing will."""

    def failed_transaction(self, why: str) -> BrokerError:
        """Nothing may be committed any more: what to raise, now and from then on."""


class DurableSubscription:
    """A subscription that its broker keeps while its client is away; made by `Client.resume`.

    Attributes:
        number: at its client.
        predicate: what it asks for.
        generation: of the process that may commit: up by one with each that takes over.
    """

    def __init__(
        self,
        shell: Shell,
        line: Line,
        inbox: Inbox,
        tokens: Tokens,
        generation: int,
        number: int,
    ) -> None:
        self.number = number
        self.predicate: Predicate = line.core.predicates[number]
        self.generation = generation
        self._shell = shell
        self._line = line
        self._inbox = inbox
        self._tokens = tokens
        self._is_open = False

    @property
    def token(self) -> bytes:
        """How far it is committed; for an application that keeps it, see `OwnTokens`."""
        return self._token_at(0)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Transaction"]:
        """What is received inside counts as consumed if, and only if, the block is left in order.

        Then the application's change and the token are committed in one step, and only after
        that the broker is told. An exception, or a cancelled scope, undoes the application's
        change, and the next transaction receives the same again. Where the process ends, the
        next one with the same tokens does.

        With `SqliteTokens` all statements of the connection belong to the transaction; the
        application neither commits nor rolls back itself.

        Raises:
            ClientError: the client cannot go on: refused, superseded, or what was to be
                committed was not (another process has taken over, for instance).
            sqlite3.OperationalError: the file was busy for too long; nothing is committed, and
                the next transaction receives the same again.
        """
        assert not self._is_open, "one transaction at a time: what is taken is taken in order"
        transaction = Transaction(self._shell, self._line, self._inbox, self._token_at)
        self._is_open = True
        self._tokens.begin()
        try:
            yield transaction
            self._tokens.commit(transaction.token)
        except TransactionFailed as failure:
            self._undo(transaction)
            raise self._shell.failed_transaction(str(failure)) from failure
        except BaseException:
            self._undo(transaction)
            raise
        finally:
            self._is_open = False
        self._line.core.commit_through(transaction.serial)
        self._line.acknowledge()
        self._line.read_on()

    def _undo(self, transaction: "Transaction") -> None:
        self._tokens.roll_back()
        self._inbox.put_back(self._line, transaction.taken)

    def keep_beginning(self) -> None:
        """Keep the token of a subscription that has just begun."""
        self._tokens.begin()
        try:
            self._tokens.commit(self.token)
        except TransactionFailed as failure:
            raise self._shell.failed_transaction(str(failure)) from failure
        except BaseException:
            self._tokens.roll_back()
            raise

    def _token_at(self, serial: int) -> bytes:
        core = self._line.core
        assert core.home is not None, "a token is of a broker"
        return CheckpointToken(
            core.name, self.generation, core.home, self.number, self.predicate,
            core.reached(self.number, serial),
        ).to_bytes()  # fmt: skip


class Transaction:
    """One transaction, as the application sees it.

    Attributes:
        gaps: what it was told inside that does not come, now or ever, before what is received
            next.
        taken, serial: what it has received, and up to where.
    """

    def __init__(self, shell: Shell, line: Line, inbox: Inbox, at: Callable[[int], bytes]) -> None:
        self.gaps: list[GapAnnounced] = []
        self.taken: list[Arrival] = []
        self.serial = 0
        self._shell = shell
        self._line = line
        self._inbox = inbox
        self._token_at = at

    @property
    def token(self) -> bytes:
        """How far the subscription is committed when this is; for an application that keeps it."""
        return self._token_at(self.serial)

    async def receive(self, limit: int = 1_000) -> list[Publication]:
        """What has come, up to about `limit` runs of publications; waits until anything has.

        The list is empty where there are `gaps` only, or where nothing that matches has been
        published for a while: leave the block then too, so that it need not be kept any longer.

        Raises:
            ClientError: the client cannot go on.
        """
        return [each for item in await self.receive_runs(limit) for each in publications_of(item)]

    async def receive_runs(self, limit: int = 1_000) -> list[Deliveries]:
        """As `receive`, in the runs in which they came; the fast way."""
        await self._shell.wait_arrived()
        received: list[Deliveries] = []
        while self._inbox and len(received) < limit:
            if received and not isinstance(self._inbox.leading, Received):
                break
            event = self._inbox.pop()
            self.taken.append(event)
            self.serial = event.serial
            if isinstance(event, Received):
                received.extend(event.deliveries)
            elif isinstance(event, GapsAnnounced):
                self.gaps.extend(event.gaps)
            else:
                self._inbox.tell(event)
        self._line.read_on()
        return received
