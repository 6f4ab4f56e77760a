"""What can be done with a host, whatever way it is reached."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pubsubctl.inventory import Host
from pubsubctl.plan import Observed

if TYPE_CHECKING:
    from brokerd.agent.client import AgentClient


@dataclass(frozen=True)
class PortInUse:
    """A port that cannot be listened on, and who has it as far as one can tell."""

    port: int
    pid: int | None
    owner: str

    def __str__(self) -> str:
        pid = f" by pid {self.pid}" if self.pid is not None else ""
        return f"port {self.port} is in use{pid} ({self.owner})"


class Connector(Protocol):
    """One host: what was found there, its agent, its files.

    Attributes:
        host: which.
        root: the folder on it where everything of ours is.
    """

    @property
    def host(self) -> Host: ...

    @property
    def root(self) -> Path: ...

    def lock(self, purpose: str) -> AbstractContextManager[None]:
        """Keep other operators away; PreflightFailed says who has it."""

    def cores(self) -> Sequence[int]:
        """The CPUs that processes of ours may run on."""

    async def observe(self) -> Observed:
        """What is there of ours."""

    def ports_in_use(self, ports: Sequence[int]) -> list[PortInUse]:
        """Those of the ports that nobody could listen on now."""

    def read_deployment(self) -> Mapping[str, Any] | None:
        """What was recorded of the deployment here; HostError when it cannot be read."""

    def write_deployment(self, content: Mapping[str, Any], topology: str) -> None:
        """Record what runs here, and the topology file that its brokers read."""

    def read_text(self, path: Path) -> str:
        """A text file below the root; HostError when it is elsewhere."""

    async def start_agent(self, deployment_id: str) -> None:
        """Start the agent; it outlives us. HostError when it does not come up."""

    def open_agent(self) -> "AbstractAsyncContextManager[AgentClient]":
        """The agent, to talk to; Unreachable when it does not answer."""

    async def stop_strays(self) -> None:
        """End processes of ours that no agent answers for, and an agent that does not answer."""

    def remove(self, *, purge: bool) -> None:
        """Remove our files; with `purge`, the folders that held them too."""

    def residue(self, ports: Sequence[int]) -> list[str]:
        """What is left of ours after `remove`: processes, ports, sockets, files."""
