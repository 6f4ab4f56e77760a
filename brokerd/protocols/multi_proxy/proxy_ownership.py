"""The periodic announcement of a server's topics, with the paper's ownership.

Proxies give topics to servers, and merge double owners. A proxy that has lost its memory gives a
topic that a server owns to another server, until the servers announce their topics, every
`period_ns`; then one of the two loses the topic. Publications in between are lost to subscribers at
the other server. This ownership exists to be measured.

Paper: [MP22] §3 (assignment), §3.1.5 (PERIODIC), §3.1.6 (MERGE), §4 (the loss). Deviates: a server
whose topic is merged keeps publications until its subscribers have fetched them, instead of
sending them with TRANSFER; and it notifies them to subscribe at the other server, where TRANSFER
would have made them subscribers.
"""

from collections.abc import Collection
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.multi_proxy.messages import Owned, Owner
from brokerd.protocols.multi_proxy.server import Server
from brokerd.protocols.multi_proxy.transfer_server import PERIOD
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine


class Periods:
    """The periodic announcement of a server's topics to all proxies.

    Args:
        proxies: proxies with a session.

    Paper: [MP22] §3.1.5 (PERIODIC), §5.2.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        period_ns: int,
        server: Server,
        proxies: Collection[BrokerNumber],
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._deadlines = deadlines
        self._period_ns = period_ns
        self._server = server
        self._proxies = proxies

    def announce(self) -> None:
        """Send the announcement, and schedule the next."""
        owned = Owned(tuple(Owner(topic, self._broker) for topic in self._server.requested))
        for proxy in self._proxies:
            self._machine.send(proxy, owned)
        due_ns = self._machine.now_ns + self._period_ns
        self._deadlines.set((PERIOD, self._broker), due_ns)
