"""Brokers as the ends of a fault, reached through the agents of their machines."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import trio

from brokerd.agent.client import AgentClient
from brokerd.errors import ControlError
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import CoreStatus
from fault_injection.apply.injector import Evidence, Fault

_T = TypeVar("_T")


class Place(Protocol):
    """The place of a broker: host, process name at the agent of that host, and listen address."""

    @property
    def host(self) -> str: ...

    @property
    def process(self) -> str: ...

    @property
    def address(self) -> str: ...


class Deployment(Protocol):
    """A deployment with running brokers, and the agents of its hosts."""

    @property
    def agents(self) -> Mapping[str, AgentClient]: ...

    @property
    def brokers(self) -> Mapping[str, Place]: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def protocol(self) -> str: ...

    @property
    def protected_ports(self) -> Sequence[int]: ...


class End:
    """The share of one process in a fault: the broker, or one end of a link.

    Attributes:
        host: the host of the broker.
        peer: the other end of a link; "" for any other target.
        across: brokers that a partition keeps from this broker.
        inside: the other brokers around this broker, which remain reachable.
    """

    def __init__(
        self,
        deployment: Deployment,
        fault: Fault,
        broker: str,
        peer: str = "",
        *,
        is_one_of_many: bool = False,
    ) -> None:
        place = deployment.brokers[broker]
        self.broker = broker
        self.peer = peer
        self.host = place.host
        self.process = place.process
        self.agent = deployment.agents[place.host]
        shared = peer or is_one_of_many
        self.fault_id = f"{fault.fault_id}@{broker}" if shared else fault.fault_id
        self.across: tuple[str, ...] = ()
        self.inside: tuple[str, ...] = ()

    async def command(
        self, command: str, arguments: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a command to the broker, and return the answer."""
        return await self.agent.broker(self.process, command, arguments)

    async def row(self) -> Mapping[str, Any]:
        """Return the row of the process in the status of its agent."""
        row = (await self.agent.status(self.process))["processes"][self.process]
        assert isinstance(row, dict), row
        return row


async def on_all(ends: Sequence[End], act: Callable[[End], Awaitable[_T]]) -> list[_T]:
    """Run `act` at every end at once. All ends finish before an error is raised."""
    results: dict[int, _T] = {}
    errors: dict[int, ControlError] = {}

    async def turn(place: int, end: End) -> None:
        try:
            results[place] = await act(end)
        except ControlError as error:
            errors[place] = error

    async with trio.open_nursery() as nursery:
        for place, end in enumerate(ends):
            nursery.start_soon(turn, place, end)
    if errors:
        raise errors[min(errors)]
    return [results[place] for place in range(len(ends))]


def direct_sessions(status: Evidence) -> list[str]:
    """Return the peers with a session over a link of the broker, not through a third broker."""
    ready = CoreStatus.from_mapping(status).ready
    return [name for name in ready if name in status["sessions"]]
