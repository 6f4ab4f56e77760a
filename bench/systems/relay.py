"""A relay on the links of a system under test: forwards bytes, subject to faults.

Clients reach every server through a port of the relay, and so does every server that dials another
server. The relay does not interpret the bytes. Commands on the control socket:

    status          `faults` in force, and number of connections per link
    fault_apply     cut, blackhole, delay or bandwidth on a link, one way or both
    fault_renew, fault_heal, fault_counters    also available
    probe           time of a byte over a link in each direction, on the path of all bytes

A link is called "n1" between server n1 and its clients, "n1-n2" between two servers; "out" is from
the first named. Held bytes stay in order, and continue when the fault is healed.
"""

import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import trio

from brokerd.errors import ControlError
from brokerd.model.fault_verbs import RELAY_VERBS
from brokerd.runtime.control import serve_control
from brokerd.sessions.link_faults import Direction, LinkFault, LinkFaults, read_fault
from brokerd.units import MILLISECOND_NS

_CHUNK_BYTES: Final = 1 << 16
_WAITING_CHUNKS: Final = 256
_PARTS_PER_S: Final = 50
_LEASES_LOOKED_AT_S: Final = 0.05
_OTHER: Final[Mapping[Direction, Direction]] = {"out": "in", "in": "out"}
_RESET: Final = struct.pack("ii", 1, 0)

Dial = Callable[[], Awaitable[trio.SocketStream]]


class Relay:
    """All links, with their faults."""

    def __init__(self) -> None:
        self.faults = LinkFaults()
        self._healed: dict[str, LinkFault] = {}
        self._changed = trio.Event()
        self._connections: dict[str, dict[int, trio.CancelScope]] = {}
        self._number = 0

    def handlers(self) -> dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]]:
        """Return the commands of the control socket."""
        return {
            "status": self._on_status,
            "fault_apply": self._on_apply,
            "fault_renew": self._on_renew,
            "fault_heal": self._on_heal,
            "fault_counters": self._on_counters,
            "probe": self._on_probe,
        }

    # ------------------------------------------------------------ connections

    async def join(
        self, link: str, towards: Direction, stream: trio.SocketStream, dial: Dial
    ) -> None:
        """Connect an accepted stream with the dialled stream, and forward bytes until the end."""
        if self.faults.treatment(link, "both").cut:
            self.faults.count(link, "both", refused_connections=1)
            _reset(stream)
            return
        self._number += 1
        number = self._number
        try:
            with trio.CancelScope() as scope:
                self._connections.setdefault(link, {})[number] = scope
                await self._passable(link, towards)
                far = await dial()
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._pump, link, towards, stream, far, scope)
                        nursery.start_soon(self._pump, link, _OTHER[towards], far, stream, scope)
                finally:
                    _reset(far) if scope.cancel_called else far.socket.close()
        except OSError:
            scope.cancel()  # the far end refuses connections
        finally:
            self._connections[link].pop(number)
            _reset(stream) if scope.cancel_called else stream.socket.close()

    async def _pump(
        self,
        link: str,
        direction: Direction,
        source: trio.SocketStream,
        target: trio.SocketStream,
        scope: trio.CancelScope,
    ) -> None:
        waiting, taken = trio.open_memory_channel[tuple[float, bytes]](_WAITING_CHUNKS)
        late = 0

        async def pass_late() -> None:
            nonlocal late
            async for came_s, chunk in taken:
                await self._pass(link, direction, came_s, chunk, target)
                late -= 1

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pass_late)
                async with waiting:
                    while chunk := await source.receive_some(_CHUNK_BYTES):
                        if late or len(self.faults):
                            late += 1
                            await waiting.send((trio.current_time(), bytes(chunk)))
                        else:
                            await target.send_all(chunk)
            await target.send_eof()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()

    async def _pass(
        self, link: str, direction: Direction, came_s: float, chunk: bytes, to: trio.SocketStream
    ) -> None:
        is_counted = False
        while chunk:
            changed, way = self._changed, self.faults.treatment(link, direction)
            wait_s = came_s + way.delay_ns / 1e9 - trio.current_time()
            if not is_counted and way.blackholed:
                self.faults.count(link, direction, dropped_frames=1, absorbed_bytes=len(chunk))
            elif not is_counted and way.is_limited:
                self.faults.count(link, direction, limited_messages=1)
            is_counted = is_counted or way.blackholed or way.is_limited
            if way.blackholed:
                await changed.wait()
            elif wait_s > 0:
                with trio.move_on_after(wait_s):
                    await changed.wait()
            elif way.bytes_per_second:
                size = max(1, way.bytes_per_second // _PARTS_PER_S)
                part, chunk = chunk[:size], chunk[size:]
                await to.send_all(part)
                await trio.sleep(len(part) / way.bytes_per_second)
            else:
                await to.send_all(chunk)
                return

    async def _passable(self, link: str, direction: Direction) -> None:
        while self.faults.treatment(link, direction).blackholed:
            self.faults.count(link, direction, dropped_frames=1)
            await self._changed.wait()

    # ------------------------------------------------------------ faults

    def change(self) -> None:
        """Wake waiting tasks after a change of faults, and close the connections of cut links."""
        self._changed.set()
        self._changed = trio.Event()
        for link, scopes in self._connections.items():
            if self.faults.treatment(link, "both").cut:
                for scope in scopes.values():
                    scope.cancel()
                    self.faults.count(link, "both", sessions_down=1)

    def heal(self, fault_id: str) -> LinkFault | None:
        """End a fault and return it; None if the fault is not in force."""
        fault = self.faults.heal(fault_id)
        if fault is not None:
            self._healed[fault_id] = fault
            self.change()
        return fault

    async def keep_leases(self) -> None:
        """End each fault with an expired lease."""
        while True:
            if not len(self.faults):
                await self._changed.wait()
            for fault_id in self.faults.list_expired(time.monotonic_ns()):
                self.heal(fault_id)
            await trio.sleep(_LEASES_LOOKED_AT_S)

    async def _on_status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            "faults": [fault.fault_id for fault in self.faults],
            "connections": {link: len(scopes) for link, scopes in self._connections.items()},
        }

    async def _on_apply(self, arguments: dict[str, Any]) -> dict[str, Any]:
        verb = arguments["verb"]
        if verb not in RELAY_VERBS:
            raise ControlError("user", f"a relay does {', '.join(RELAY_VERBS)}, not {verb[:40]!r}")
        fault = read_fault(
            arguments["fault_id"], verb, arguments["peer"], arguments["direction"],
            arguments.get("parameters", {}), _end_of(arguments["lease_ms"]),
        )  # fmt: skip
        self.faults.apply(fault)
        self.change()
        return {"t_applied_ns": time.monotonic_ns()}

    async def _on_renew(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if not self.faults.renew(arguments["fault_id"], _end_of(arguments["lease_ms"])):
            raise ControlError("user", f"no fault {arguments['fault_id'][:100]!r} is in force")
        return {}

    async def _on_heal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.heal(arguments["fault_id"])
        return {"t_healed_ns": time.monotonic_ns()}

    async def _on_counters(self, arguments: dict[str, Any]) -> dict[str, Any]:
        known = [*self._healed.values(), *self.faults]
        return {fault.fault_id: {**fault.counters} for fault in known}

    async def _on_probe(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return `out_us` and `in_us` of a byte over a link; -1 without arrival in `within_ms`."""
        link, within_s = arguments["link"], arguments["within_ms"] / 1e3
        near, ours = _pair()
        theirs, far = _pair()

        async def dial() -> trio.SocketStream:
            return theirs

        found: dict[str, Any] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.join, link, "out", ours, dial)
            for name, source, target in (("out_us", near, far), ("in_us", far, near)):
                found[name] = await _measure_us(source, target, within_s)
            nursery.cancel_scope.cancel()
        for stream in (near, far, ours, theirs):
            stream.socket.close()
        return found


async def _measure_us(source: trio.SocketStream, target: trio.SocketStream, within_s: float) -> int:
    began_ns = time.monotonic_ns()
    with trio.move_on_after(within_s):
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            await source.send_all(b"x")
            if await target.receive_some(1):
                return (time.monotonic_ns() - began_ns) // 1000
    return -1


def _pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    ours, theirs = socket.socketpair()
    return (
        trio.SocketStream(trio.socket.from_stdlib_socket(ours)),
        trio.SocketStream(trio.socket.from_stdlib_socket(theirs)),
    )


def _reset(stream: trio.SocketStream) -> None:
    """Close a connection with a reset, so that the other end notices at once."""
    with suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    stream.socket.close()


def _end_of(lease_ms: int) -> int:
    return time.monotonic_ns() + lease_ms * MILLISECOND_NS


def run_relay(config: dict[str, Any]) -> None:
    """Run a relay until SIGTERM (role "relay" of the agent).

    `ways` has a row for each port: the `link`, the end of the link `towards` which ("out" or "in")
    bytes to the port are sent, the `port` on loopback, and the `to_port` behind.
    """
    trio.run(_run, config)


async def _run(config: dict[str, Any]) -> None:
    relay = Relay()
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            for way in config["ways"]:
                await nursery.start(serve_direction, relay, way)
            nursery.start_soon(relay.keep_leases)
            await nursery.start(serve_control, config["control_socket"], relay.handlers())
            async for _ in signals:
                break
        nursery.cancel_scope.cancel()


async def serve_direction(
    relay: Relay,
    way: Mapping[str, Any],
    *,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections to one port of the relay."""

    async def dial() -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", way["to_port"])

    async def join(stream: trio.SocketStream) -> None:
        await relay.join(way["link"], way["towards"], stream, dial)

    await trio.serve_tcp(join, way["port"], host="127.0.0.1", task_status=task_status)
