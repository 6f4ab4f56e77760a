"""The calls of a client that wait for its broker: for any change, a start, room, an arrival."""

import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

import trio

from brokerd.client.application import BrokerUnreachable, ClientError
from brokerd.client.broker_connection import BrokerConnection
from brokerd.client.inbox import Inbox

_CHECKPOINT_EVERY: Final = 64

logger = logging.getLogger(__name__)


class Lines(Protocol):
    """The lines of a client to brokers, one at a time in use."""

    line: BrokerConnection


class Changes:
    """The changes of a client's state, for the calls that wait for an answer of the broker.

    Args:
        name: name of the client.
        unreachable_after_s: time for which a call waits for an unreachable broker.
    """

    def __init__(self, name: str, unreachable_after_s: float) -> None:
        self._name = name
        self._unreachable_after_s = unreachable_after_s
        self._changed = trio.Event()
        self._has_warned = False

    def announce(self) -> None:
        """Wake all calls that wait for a change."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, line: BrokerConnection, own: BrokerConnection) -> None:
        """Wait until some state has changed.

        Args:
            line: the line to the broker that the caller needs.
            own: the present line of the client.

        Raises:
            ClientError: the client cannot continue.
            BrokerUnreachable: the broker of `line` has not been reachable for too long.
        """
        check_alive(own)
        since_s = line.unattached_since_s
        if since_s is None:
            await self._changed.wait()
        else:
            with trio.move_on_at(since_s + self._unreachable_after_s) as scope:
                await self._changed.wait()
            if scope.cancelled_caught and line.unattached_since_s is not None:
                line.unattached_since_s = trio.current_time()
                raise BrokerUnreachable(self._cause(line))
        check_alive(own)

    async def wait_started(
        self, lines: Lines, number: int, needed: BrokerConnection | None = None
    ) -> None:
        """Wait until a subscription has started; write one line to the log if that takes long.

        Args:
            needed: the line that the caller needs; by default the line in use, even after a move.

        Raises:
            ClientError: the broker refuses the subscription.
        """
        check_alive(lines.line)
        warning_s = trio.current_time() + self._unreachable_after_s
        while (line := needed or lines.line).states.get(number) != "started":
            if number in line.refusals:
                raise ClientError(f"subscription {number} was refused: {line.refusals[number]}")
            if number not in line.core.subscriptions:
                raise ClientError(f"client {self._name} has no subscription {number!r}")
            with trio.move_on_at(warning_s) as scope:
                await self.wait(line, lines.line)
            if scope.cancelled_caught:
                warning_s = self.next_warning_s(line)
                if line.unattached_since_s is not None:
                    continue
                text = "client %s: subscription %d is %s after %g s: not all brokers confirm it"
                state = line.states.get(number, "unanswered")
                logger.warning(text, self._name, number, state, self._unreachable_after_s)

    def next_warning_s(self, line: BrokerConnection) -> float:
        """Return the time of the next line about a slow answer: one line for each call.

        An unreachable broker is not slow, and has a line of its own.
        """
        if line.unattached_since_s is None:
            return math.inf
        return trio.current_time() + max(1.0, self._unreachable_after_s)

    def warn_if_unreachable(self, line: BrokerConnection) -> None:
        """Write one line to the log per outage, for applications that only receive."""
        since_s = line.unattached_since_s
        if since_s is None:
            self._has_warned = False
        elif trio.current_time() - since_s >= self._unreachable_after_s and not self._has_warned:
            self._has_warned = True
            logger.warning("%s; it keeps on trying", self._cause(line))

    def _cause(self, line: BrokerConnection) -> str:
        failure = line.last_failure or f"{line.address}: no answer"
        return (
            f"client {self._name} has reached no broker for {self._unreachable_after_s:g} s "
            f"({failure})"
        )


class Arrivals:
    """The arrivals of a client, for the tasks of the application that wait for the next one."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._arrived: trio.Event | None = None
        self._calls = 0

    def announce(self) -> None:
        """Wake all tasks that wait."""
        if self._arrived is not None:
            self._arrived.set()
            self._arrived = None

    async def wait(self, check: Callable[[], None], before: Callable[[], None]) -> None:
        """Wait until the application can take a delivery; other tasks run now and then.

        Args:
            check: raises if nothing more can arrive.
            before: called before each look at the inbox.
        """
        self._calls += 1
        before()
        if not self._inbox or not self._calls % _CHECKPOINT_EVERY:
            await trio.lowlevel.checkpoint()
            before()  # other tasks may have changed the inbox
        check()
        while not self._inbox:
            if self._arrived is None:
                self._arrived = trio.Event()
            await self._arrived.wait()
            check()
            before()


def check_alive(line: BrokerConnection) -> None:
    """Check that the client can continue.

    Raises:
        ClientError: no further session is possible.
    """
    if line.failure is not None:
        raise ClientError(f"client {line.core.name}: {line.failure}")
