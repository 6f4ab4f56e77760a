"""The controller's client of an agent: one method per command."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from brokerd.agent.paths import read_announcement
from brokerd.errors import ControlError
from brokerd.runtime.control_socket import Happening, open_control
from brokerd.runtime.program import Program, read_own_program

FIRST_ANSWER_S: Final = 10.0
"""Time for the first answer of an agent on a new connection."""


class Control(Protocol):
    """The interface that an agent's client needs of its connection."""

    async def request(self, command: str, /, **arguments: Any) -> dict[str, Any]: ...

    async def listen(self) -> trio.MemoryReceiveChannel[Happening]: ...


class AgentClient:
    """One connection to an agent.

    Every method raises ControlError: `user` for an impossible request, `busy` for a resource that
    another process has or a timeout, `internal` for faults of the agent, `closed` if the agent or
    the connection to it is gone (then the command may or may not have been carried out; request
    `status`).
    """

    def __init__(self, control: Control) -> None:
        self.control = control

    async def hello(self) -> Program | None:
        """Exchange programs; return the agent's, or None if its release reports none."""
        try:
            answer = await self.control.request("hello", program=read_own_program().to_mapping())
        except ControlError as error:
            if error.kind != "user":
                raise
            return None
        return Program.from_mapping(answer.get("program"))

    async def facts(self) -> dict[str, Any]:
        """Return facts of the agent's machine."""
        return await self.control.request("facts")

    async def clock(self) -> dict[str, Any]:
        """Return the clocks: monotonic_ns, wall_ns, clock_id and the quality of the wall clock."""
        return await self.control.request("clock")

    async def start(
        self, process: str, role: str, config: dict[str, Any], control_socket: str
    ) -> dict[str, Any]:
        """Start a process: {pid, start_time}.

        No effect if the process runs with this configuration.
        """
        return await self.control.request(
            "start", process=process, role=role, config=config, control_socket=control_socket
        )

    async def stop(
        self, process: str, signal: str = "TERM", timeout_ms: int = 10_000
    ) -> dict[str, Any]:
        """End a process, by force after `timeout_ms`: its row of `status`, and `forced`."""
        return await self.control.request(
            "stop", process=process, signal=signal, timeout_ms=timeout_ms
        )

    async def signal(self, process: str, signal: str) -> dict[str, Any]:
        """Send a signal to a running process. To freeze, use a fault, which heals."""
        return await self.control.request("signal", process=process, signal=signal)

    async def status(self, process: str = "") -> dict[str, Any]:
        """Return processes (only `process`, if given), faults and lease."""
        named = {"process": process} if process else {}
        return await self.control.request("status", **named)

    async def disk(self) -> dict[str, Any]:
        """Return `disk_bytes` by process: the disk use of processes with a folder of their own."""
        return await self.control.request("disk")

    async def broker(
        self,
        process: str,
        command: str,
        arguments: dict[str, Any] | None = None,
        timeout_ms: int = 10_000,
    ) -> dict[str, Any]:
        """Return the answer of a process (broker or load generator) to a command of its own."""
        return await self.control.request(
            "broker",
            process=process,
            command=command,
            arguments=arguments or {},
            timeout_ms=timeout_ms,
        )

    async def fault_apply(
        self,
        fault_id: str,
        verb: str,
        process: str,
        *,
        peer: str = "",
        direction: str = "both",
        lease_ms: int = 0,
        parameters: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Apply a fault: its row, with `t_applied_ns` and the outcome in `result`."""
        return await self.control.request(
            "fault_apply",
            fault_id=fault_id,
            verb=verb,
            process=process,
            peer=peer,
            direction=direction,
            lease_ms=lease_ms,
            parameters=parameters or {},
        )

    async def fault_heal(self, fault_id: str) -> dict[str, Any]:
        """Undo a fault: its row; no effect on a healed or unknown fault."""
        return await self.control.request("fault_heal", fault_id=fault_id)

    async def fault_renew(self, fault_id: str, lease_ms: int) -> dict[str, Any]:
        """Extend an active fault to `lease_ms` from now unless renewed again."""
        return await self.control.request("fault_renew", fault_id=fault_id, lease_ms=lease_ms)

    async def fault_look(self, fault_id: str) -> dict[str, Any]:
        """Return the visible effect of a fault: `present`, and for nft `stopped_packets`."""
        return await self.control.request("fault_look", fault_id=fault_id)

    async def fault_heal_all(self) -> dict[str, Any]:
        """Undo every fault there, of any origin: rows `healed`, and in words the rest, `left`."""
        return await self.control.request("fault_heal_all")

    async def files(self, process: str, folder: str = "") -> dict[str, Any]:
        """Return `folder` and `files` (name, size_bytes, sha256) of a process's logs.

        With `folder`, of that folder below the agent's root instead.
        """
        return await self.control.request("files", process=process, folder=folder)

    async def tail(
        self, process: str, after: dict[str, int], folder: str = "", last_bytes: int = 65_536
    ) -> dict[str, Any]:
        """Return the content of a process's logs from given places on.

        Args:
            process: "" for none, if `folder` is a folder below the agent's root.
            after: by file name, the number of bytes received already; of other files, only the end
                is returned.
            last_bytes: length of that end.

        Returns:
            files (name, offset, data, size_bytes), the host's clocks, utc_offset_s.
        """
        return await self.control.request(
            "tail", process=process, after=after, folder=folder, last_bytes=last_bytes
        )

    async def hold(self, lease_ms: int) -> dict[str, Any]:
        """Set the deployment's lease to `lease_ms` from now; 0 for no lease."""
        return await self.control.request("hold", lease_ms=lease_ms)

    async def metrics(self, port: int) -> dict[str, Any]:
        """Serve metrics at `port` of the host's loopback address from now on; 0 for none."""
        return await self.control.request("metrics", port=port)

    async def shutdown(self, timeout_ms: int = 10_000) -> dict[str, Any]:
        """End every process and the agent: `processes`, with their exits."""
        return await self.control.request("shutdown", timeout_ms=timeout_ms)

    async def listen(self) -> trio.MemoryReceiveChannel[Happening]:
        """Return all events from now on: process_started, process_exited, fault_applied, …"""
        return await self.control.listen()


@asynccontextmanager
async def open_agent(target: str | Path | trio.abc.Stream) -> AsyncIterator[AgentClient]:
    """Open a client of the agent at a socket path, or at the other end of a stream (`attach`).

    Raises:
        ControlError: `closed`: there is no agent, or it does not answer, for example because it is
            stopped.
    """
    async with open_control(target) as control:
        client = AgentClient(control)
        with trio.move_on_after(FIRST_ANSWER_S) as patience:
            await client.hello()
        if patience.cancelled_caught:
            raise ControlError(
                "closed",
                f"it has accepted a connection, and has not answered for {FIRST_ANSWER_S:g} s: it "
                "is stopped (SIGSTOP), or its machine is busy",
            )
        yield client


@asynccontextmanager
async def open_agent_of(root: Path) -> AsyncIterator[AgentClient]:
    """Open a client of the agent that serves `root` on this machine.

    Raises:
        ControlError: `closed`: there is no agent.
    """
    announced = read_announcement(root)
    if announced is None:
        raise ControlError("closed", f"{root}: no agent runs here")
    async with open_agent(announced["socket"]) as agent:
        yield agent
