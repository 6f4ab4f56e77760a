"""What a broker says to one that is no neighbour: passed on along the tree until it is there.

Nothing is kept on the way. Who wants an answer asks again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.durable.messages import Held, Hold, Letter
from brokerd.protocols.gryphon.links import Links
from brokerd.protocols.gryphon.routes import Routes
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler


class Forwarding:
    """Takes what is for this broker, and passes on the rest.

    Args:
        takers: who takes what is for this broker, by kind.
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
        """Who takes which message of a neighbour."""
        return dict.fromkeys(self._takers, self._on_message)

    def tell(self, letter: Letter) -> None:
        """Have it go where it is to; lost, where there is no way now."""
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
        self.tell(letter)


def _place(broker: BrokerNumber) -> StreamId:
    """The way to a broker is that of what is published there, back."""
    return StreamId(broker, 0, 0)


def _streams_of(letter: Letter) -> Iterator[tuple[StreamId, int]]:
    if type(letter) is Hold:
        yield from letter.behind
    elif type(letter) is Held:
        yield from letter.last
