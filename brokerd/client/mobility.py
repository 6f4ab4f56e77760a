"""The end of a client's work at a broker: its move to another broker, or its departure.

If brokers keep no state of clients, a moving client reconnects with its whole state. Otherwise it
has two connections for a while: it makes its subscriptions at the new broker, then ends those at
the old broker once that has delivered all earlier publications.
"""

import trio

from brokerd.client.access_broker import AccessBroker
from brokerd.client.application import ClientError
from brokerd.client.broker_choice import Brokers
from brokerd.client.broker_connection import BrokerConnection


async def move(broker: AccessBroker, address: str) -> None:
    """Move a client to another broker; on failure it stays at its broker.

    Raises:
        ClientError: the new broker refuses the client or a subscription.
    """
    old = broker.line
    if address == old.address:
        return
    broker.occupation = "is moving"
    old.brokers.pinned = True
    brokers = old.brokers.starting_with(address)
    if old.core.attachment.leaves_freely:
        await _reconnect(broker, brokers)
    else:
        await _hand_over_to(broker, brokers)


async def detach(broker: AccessBroker) -> None:
    """End all state of a client at its broker; return when the end is durable."""
    line = broker.line
    broker.occupation = "has detached"
    broker.inbox.acknowledge_taken()
    broker.inbox.commit_parts()
    broker.inbox.close()
    line.core.detach(drain=False)
    line.nudge()
    line.read_on()
    while not broker.is_detached(broker.line):
        await broker.wait_changed()


async def _reconnect(broker: AccessBroker, brokers: Brokers) -> None:
    """End the session, and connect to another broker with all state."""
    line, before = broker.line, broker.line.brokers
    brokers.pinned = True
    try:
        await line.move_to(brokers)
        await broker.wait_attached()
        for number in line.core.subscriptions:
            await broker.wait_started(number)
    except BaseException:
        with trio.CancelScope(shield=True):
            await line.move_to(before)
        raise
    finally:
        broker.occupation = ""
        before.pinned = brokers.pinned = False


async def _hand_over_to(broker: AccessBroker, brokers: Brokers) -> None:
    """Subscribe at the new broker, and end the subscriptions at the old broker."""
    old = broker.line
    new: BrokerConnection | None = None
    try:
        await broker.wait_acknowledged()
        brokers.pinned = True
        new = broker.open(old.core.successor(), brokers)
        await broker.wait_attached(new)
        for number in new.core.subscriptions:
            await broker.wait_started(number, new)
        await _drain(broker, old, new)
    except BaseException:
        with trio.CancelScope(shield=True):
            if new is not None and old.core.is_detaching:
                await _settle_at(broker, new)
            else:
                broker.occupation = ""
                old.brokers.pinned = False
                await _abandon(new)
        raise
    await _settle_at(broker, new)


async def _drain(broker: AccessBroker, old: BrokerConnection, new: BrokerConnection) -> None:
    """Have the old broker deliver all earlier publications, and end the subscriptions there.

    The last subscription has started when every source has confirmed it, behind all earlier
    publications. If no source confirms subscriptions, the new broker states where its own begin.
    """
    core = old.core
    if not _is_attached(old):
        return
    if core.subscriptions:
        mark = core.mark()
        old.nudge()
        try:
            while old.states.get(mark) != "started":
                if mark in old.refusals:
                    raise ClientError(f"client {core.name}: {old.refusals.pop(mark)}")
                await broker.wait_changed()
                if not _is_attached(old):
                    return
        except BaseException:
            core.unsubscribe(mark)
            raise
    core.detach(drain=True, through=new.core.start_positions())
    old.nudge()
    while not broker.is_detached(old) and _is_attached(old):
        await broker.wait_changed()


def _is_attached(line: BrokerConnection) -> bool:
    """Return True if the client is attached to the broker at the other end."""
    return line.core.attached


async def _settle_at(broker: AccessBroker, new: BrokerConnection) -> None:
    """Leave the old broker, and use the new connection; too late to cancel."""
    with trio.CancelScope(shield=True):
        await broker.line.leave()
    broker.line.scope.cancel()
    broker.switch(new)


async def _abandon(line: BrokerConnection | None) -> None:
    """Undo the steps at a broker that the client does not move to."""
    if line is None:
        return
    if line.core.attached:
        line.core.detach(drain=False)
    await line.leave()
    line.scope.cancel()
