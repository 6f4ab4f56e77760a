"""How the controller talks to an agent: one method per command."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import trio

from brokerd.agent.paths import announced_agent
from brokerd.errors import ControlError
from brokerd.runtime.control import Happening, open_control
from brokerd.runtime.program import Program, own_program


class Control(Protocol):
    """What an agent's client needs of its connection."""

    async def request(self, command: str, /, **arguments: Any) -> dict[str, Any]: ...

    async def listen(self) -> trio.MemoryReceiveChannel[Happening]: ...


class AgentClient:
    """One connection to an agent.

    Every method raises ControlError: `user` for what cannot be asked for, `busy` for what
    somebody else has or does not come in time, `internal` for faults over there, `closed` when
    the agent or the connection to it is gone (then it is not known what was done; ask `status`).
    """

    def __init__(self, control: Control) -> None:
        self.control = control

    async def hello(self) -> Program | None:
        """Exchange programs; return the agent's, or None if its release reports none."""
        try:
            answer = await self.control.request("hello", program=own_program().to_mapping())
        except ControlError as error:
            if error.kind != "user":
                raise
            return None
        return Program.from_mapping(answer.get("program"))

    async def facts(self) -> dict[str, Any]:
        """What machine it is on."""
        return await self.control.request("facts")

    async def clock(self) -> dict[str, Any]:
        """What its clocks say: monotonic_ns, wall_ns, clock_id and how well they are kept."""
        return await self.control.request("clock")

    async def start(
        self, process: str, role: str, config: dict[str, Any], control_socket: str
    ) -> dict[str, Any]:
        """Start a process: {pid, start_time}. Nothing happens if it runs with this config."""
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
        """Send a signal to a running process. To freeze, use a fault: that one heals."""
        return await self.control.request("signal", process=process, signal=signal)

    async def status(self, process: str = "") -> dict[str, Any]:
        """Processes (only this one, where one is named), faults and lease."""
        named = {"process": process} if process else {}
        return await self.control.request("status", **named)

    async def disk(self) -> dict[str, Any]:
        """`disk_bytes` by process: what the files of those with a folder of their own take."""
        return await self.control.request("disk")

    async def broker(
        self,
        process: str,
        command: str,
        arguments: dict[str, Any] | None = None,
        timeout_ms: int = 10_000,
    ) -> dict[str, Any]:
        """What a process (broker or load generator) answers to a command of its own."""
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
        """Do a fault: its row, with `t_applied_ns` and what came of it in `result`."""
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
        """Undo a fault: its row; one that is over, or never was, changes nothing."""
        return await self.control.request("fault_heal", fault_id=fault_id)

    async def fault_renew(self, fault_id: str, lease_ms: int) -> dict[str, Any]:
        """Let an active fault last `lease_ms` from now unless it is renewed again."""
        return await self.control.request("fault_renew", fault_id=fault_id, lease_ms=lease_ms)

    async def fault_look(self, fault_id: str) -> dict[str, Any]:
        """What the machine shows of a fault: `present`, and for nft `stopped_packets`."""
        return await self.control.request("fault_look", fault_id=fault_id)

    async def fault_heal_all(self) -> dict[str, Any]:
        """Undo every fault there, whoever did it: rows `healed`, and in words what is `left`."""
        return await self.control.request("fault_heal_all")

    async def files(self, process: str, folder: str = "") -> dict[str, Any]:
        """`folder` and `files` (name, size_bytes, sha256) of a process's logs.

        With `folder`, of that folder below the agent's root instead.
        """
        return await self.control.request("files", process=process, folder=folder)

    async def tail(
        self, process: str, after: dict[str, int], folder: str = "", last_bytes: int = 65_536
    ) -> dict[str, Any]:
        """What a process's logs hold from given places on.

        Args:
            process: "" for none, where `folder` is one below the agent's root.
            after: by file name, how much of it is known; of others, only the end is given.
            last_bytes: how long that end is.

        Returns:
            files (name, offset, data, size_bytes), the host's clocks, utc_offset_s.
        """
        return await self.control.request(
            "tail", process=process, after=after, folder=folder, last_bytes=last_bytes
        )

    async def hold(self, lease_ms: int) -> dict[str, Any]:
        """Let the deployment end `lease_ms` from now unless renewed; 0 for no such lease."""
        return await self.control.request("hold", lease_ms=lease_ms)

    async def metrics(self, port: int) -> dict[str, Any]:
        """Serve numbers at `port` of the host's loopback address from now on; 0 for nowhere."""
        return await self.control.request("metrics", port=port)

    async def shutdown(self, timeout_ms: int = 10_000) -> dict[str, Any]:
        """End every process and the agent: `processes`, as they ended."""
        return await self.control.request("shutdown", timeout_ms=timeout_ms)

    async def listen(self) -> trio.MemoryReceiveChannel[Happening]:
        """What happens from now on: process_started, process_exited, fault_applied, …"""
        return await self.control.listen()


@asynccontextmanager
async def open_agent(target: str | Path | trio.abc.Stream) -> AsyncIterator[AgentClient]:
    """A client of the agent at a socket path, or at the other end of a stream (`attach`)."""
    async with open_control(target) as control:
        yield AgentClient(control)


@asynccontextmanager
async def open_agent_of(root: Path) -> AsyncIterator[AgentClient]:
    """A client of the agent that serves `root` on this machine.

    Raises:
        ControlError: `closed`, there is none.
    """
    announced = announced_agent(root)
    if announced is None:
        raise ControlError("closed", f"{root}: no agent runs here")
    async with open_agent(announced["socket"]) as agent:
        yield agent
