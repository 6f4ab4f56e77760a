"""Messages to a single broker by address, over any available routes.

Paper: [GES] §3 (event routing), §4 (storages are reached over the same broker network).
"""

from collections.abc import Callable, Sequence
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.overlay.hierarchy import Address
from brokerd.protocols.ges.messages import SYSTEM, Target
from brokerd.protocols.ges.router import Router
from brokerd.protocols.ges.units import Place
from brokerd.protocols.ges_reliable.messages import onward
from brokerd.protocols.parts.event_machine import EventMachine

HOPS_PER_LEVEL = 32
"""Links per level; a message that has crossed more has travelled in a circle."""


class Carriage:
    """The forwarding of addressed messages by a broker, without repetition or report of losses.

    Args:
        addresses: of all brokers, including brokers that have left.
        take: receives the messages for this broker.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        place: Place,
        router: Router,
        addresses: Sequence[Address],
        take: Callable[[Peer, Any], None],
        counters: dict[str, int],
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._place = place
        self._router = router
        self._addresses = addresses
        self._take = take
        self._counters = counters
        self._own: list[Any] = []

    def change(self, addresses: Sequence[Address]) -> None:
        """Replace the addresses after brokers have joined."""
        self._addresses = addresses

    def to(self, broker: BrokerNumber) -> Target:
        """Return the target of messages to a broker."""
        assert broker < len(self._addresses), f"broker {broker} was never announced"
        return Target(0, self._addresses[broker], SYSTEM, (), 0)

    def send(self, message: Any) -> None:
        """Route a message; a message for this broker waits for `take_own`."""
        if message.target.unit != self._place.address:
            self._pass_on(message)
            return
        self._own.append(message)

    def take_own(self) -> None:
        """Process messages from this broker to itself, while no other processing is under way."""
        while self._own:
            self._take(self._broker, self._own.pop(0))

    def on_carried(self, peer: Peer, message: Any) -> None:
        """Process or forward a message that a neighbour has forwarded.

        Raises:
            RemoteProtocolError: the target is impossible, or the message has crossed too many
                links; the fault of the neighbour.
        """
        target: Target = message.target
        empty = not all(target.frames) or not all(
            len(unit) for way in target.frames for unit in way
        )
        if empty or target.level or len(target.unit) != len(self._place.address):
            raise RemoteProtocolError(peer, f"nothing can be done for {target}"[:300])
        if message.hops > HOPS_PER_LEVEL * len(self._place.address):
            raise RemoteProtocolError(peer, f"{message} arrived over {message.hops} links"[:300])
        if target.unit == self._place.address:
            self._take(peer, message)
        else:
            self._pass_on(message)

    def _pass_on(self, message: Any) -> None:
        routed = self._router.route((message.target,), _nobody)
        self._counters["messages_without_route"] += len(routed.lost)
        for peer, targets in routed.hops.items():
            (target,) = targets
            self._counters["messages_carried"] += 1
            self._machine.send(peer, onward(message, target))


def _nobody(unit: Any) -> tuple[()]:
    return ()
