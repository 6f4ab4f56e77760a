"""The move of a client.

Earlier publications from the old broker, later ones from the new broker.
"""

from collections.abc import Awaitable, Callable

from brokerd.client.broker_connection import BrokerConnection
from brokerd.client.callbacks import ClientError

WaitChanged = Callable[[], Awaitable[None]]
"""Waits until some state has changed; raises if the client cannot continue."""


async def wait_attached(line: BrokerConnection, wait_changed: WaitChanged) -> None:
    """Wait until the client is attached to the broker at the other end.

    Raises:
        ClientError: the broker refuses the client.
    """
    while not line.core.attached:
        if line.failure is not None:
            raise ClientError(f"client {line.core.name}: {line.failure}")
        await wait_changed()


async def hand_over(
    old: BrokerConnection, is_detached: Callable[[], bool], wait_changed: WaitChanged
) -> None:
    """Have the old broker deliver all earlier publications, and end the subscriptions there.

    The last subscription has started when every source has confirmed it, behind all earlier
    publications.
    """
    if not is_attached(old):
        return
    if old.core.subscriptions:
        mark = old.core.mark()
        old.nudge()
        try:
            while old.states.get(mark) != "started":
                if mark in old.refusals:
                    raise ClientError(f"client {old.core.name}: {old.refusals.pop(mark)}")
                await wait_changed()
                if not is_attached(old):
                    return
        except BaseException:
            old.core.unsubscribe(mark)
            raise
    old.core.detach(drain=True)
    old.nudge()
    while not is_detached() and is_attached(old):
        await wait_changed()


async def abandon(line: BrokerConnection | None) -> None:
    """Undo the steps at a broker that the client does not move to."""
    if line is None:
        return
    if line.core.attached:
        line.core.detach(drain=False)
    await line.leave()
    line.scope.cancel()


def is_attached(line: BrokerConnection) -> bool:
    """Return True if the client is attached to the broker at the other end."""
    return line.core.attached
