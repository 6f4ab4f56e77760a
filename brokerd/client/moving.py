"""How a client moves: the old broker gives what came before, and the new one what comes after."""

from collections.abc import Awaitable, Callable

from brokerd.client.callbacks import ClientError
from brokerd.client.line import Line

WaitChanged = Callable[[], Awaitable[None]]
"""Wait until something has changed; raises when the client cannot go on."""


async def wait_attached(line: Line, wait_changed: WaitChanged) -> None:
    """Wait until the broker at the other end knows the client.

    Raises:
        ClientError: it will not have it.
    """
    while not line.core.attached:
        if line.failure is not None:
            raise ClientError(f"client {line.core.name}: {line.failure}")
        await wait_changed()


async def hand_over(old: Line, is_detached: Callable[[], bool], wait_changed: WaitChanged) -> None:
    """Have the old broker deliver what was published before now, and end there.

    The last is started when every source has confirmed it, behind all that went before.
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


async def abandon(line: Line | None) -> None:
    """Take back what was begun at a broker that is not moved to."""
    if line is None:
        return
    if line.core.attached:
        line.core.detach(drain=False)
    await line.leave()
    line.scope.cancel()


def is_attached(line: Line) -> bool:
    """Whether the broker at the other end knows the client, by now."""
    return line.core.attached
