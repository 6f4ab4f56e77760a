"""The processes that a fault is done at: brokers, below the agents of their machines."""

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
    """Where a broker is: its host, what that host's agent calls it, and where it listens."""

    @property
    def host(self) -> str: ...

    @property
    def process(self) -> str: ...

    @property
    def address(self) -> str: ...


class Deployment(Protocol):
    """Brokers that run, and the agents of their hosts."""

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
    """One process's share of a fault: the broker, or one end of a link.

    Attributes:
        host: where it is.
        peer: the other end, "" unless it is a link's.
        across: whom a partition keeps this broker from.
        inside: whom it does not, of the brokers around.
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
        """What the broker answers."""
        return await self.agent.broker(self.process, command, arguments)

    async def row(self) -> Mapping[str, Any]:
        """The process's row in its agent's status."""
        row = (await self.agent.status(self.process))["processes"][self.process]
        assert isinstance(row, dict), row
        return row


async def on_all(ends: Sequence[End], act: Callable[[End], Awaitable[_T]]) -> list[_T]:
    """Do something at every end at once; all have had their turn before an error is raised."""
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
    """With whom a broker has a session over a link of its own, not through a third broker."""
    ready = CoreStatus.from_mapping(status).ready
    return [name for name in ready if name in status["sessions"]]
