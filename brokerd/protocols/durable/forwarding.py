"""Messages to brokers that are not neighbours, forwarded along the tree.

No broker on the route stores a message. Senders repeat unanswered requests.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.durable.messages import Held, Hold, Letter
from brokerd.protocols.gryphon import Links, Routes
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler


class Forwarding:
    """The handling of messages for this broker, and the forwarding of others.

    Args:
        takers: the handlers of messages for this broker, by kind.
    """

    def __init__(
        self,
        machine: EventMachine,
        broker: BrokerNumber,
        routes: Routes,
        links: Links,
        takers: Mapping[type, Callable[[Any], None]],
    ) -> None:
        self._machine = machine
        self._broker = broker
        self._routes = routes
        self._links = links
        self._takers = takers

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of neighbours' messages."""
        return dict.fromkeys(self._takers, self._on_message)

    def send(self, letter: Letter) -> None:
        """Route a message to its destination; without a route it is lost."""
        if letter.to == self._broker:
            self._takers[type(letter)](letter)
            return
        for peer in self._links.up(_place(letter.to), None, sideways=False):
            self._machine.send(peer, letter)

    def _on_message(self, peer: BrokerNumber, letter: Letter) -> None:
        cell = self._routes.cell_of(peer)
        if self._routes.upstream(peer, _place(letter.at)) != cell:
            raise RemoteProtocolError(peer, f"broker {letter.at} is not there")
        if self._routes.upstream(peer, _place(letter.to)) == cell:
            raise RemoteProtocolError(peer, f"broker {letter.to} is not here")
        if letter.number < 1 or letter.generation < 0:
            raise RemoteProtocolError(peer, f"impossible numbers in {letter}"[:300])
        for stream, tick in _streams_of(letter):
            self._routes.upstream(peer, stream)
            host = letter.to if type(letter) is Hold else letter.at
            if stream.broker != host or tick < 0:
                raise RemoteProtocolError(peer, f"{tick} of {tuple(stream)}, not of {host}")
        self.send(letter)


def _place(broker: BrokerNumber) -> StreamId:
    """Return a stream of a broker: its route upstream is the route to the broker."""
    return StreamId(broker, 0, 0)


def _streams_of(letter: Letter) -> Iterator[tuple[StreamId, int]]:
    if type(letter) is Hold:
        yield from letter.behind
    elif type(letter) is Held:
        yield from letter.last
