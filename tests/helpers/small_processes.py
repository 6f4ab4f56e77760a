"""Small real processes for an agent, and an agent that can run them.

`python -m tests.helpers.small_processes agent ROOT DEPLOYMENT SOCKET READY` runs the agent in the
foreground, which writes its identity to the file READY once clients can connect. `daemon ROOT
DEPLOYMENT` starts an agent in the background, `attach ROOT` connects standard input and output to
the agent.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import trio

from brokerd.agent.attach import attach
from brokerd.agent.daemon import run_agent, start_daemon
from brokerd.agent.fork_server import Role
from brokerd.errors import ConfigError, ControlError
from brokerd.protocols.interface import CoreStatus
from brokerd.runtime.control import serve_control


def run_sleeper(config: dict[str, Any]) -> None:
    """Answer on the control socket as a broker with sessions does; end on SIGTERM.

    The sessions (`peers`) are ready unless a cut applies; the counters of faults grow with time.
    """
    trio.run(_Sleeper(config).live)


class _Sleeper:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.peers: list[str] = config.get("peers", [])
        self.faults: dict[str, dict[str, Any]] = {}
        self.applied: list[str] = []

    async def live(self) -> None:
        handlers = {
            "status": self.status,
            "exit": self.exit,
            "fault_apply": self.fault_apply,
            "fault_heal": self.fault_heal,
            "fault_renew": self.fault_renew,
            "fault_counters": self.fault_counters,
            "probe": self.probe,
            "probe_disk": self.probe_disk,
        }
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(signal.SIGTERM) as received:
                await nursery.start(serve_control, self.config["control_socket"], handlers)
                print("ready")  # noqa: T201
                async for _ in received:
                    if self.config.get("stubborn"):
                        continue
                    nursery.cancel_scope.cancel()

    async def status(self, _: dict[str, Any]) -> dict[str, Any]:
        ready = [peer for peer in self.peers if not self.is_cut(peer)]
        core: CoreStatus[str] = CoreStatus(
            state="running", wanted=tuple(self.peers), ready=tuple(ready)
        )
        return {
            **core.to_mapping({peer: peer for peer in self.peers}),
            "sessions": ready,
            "name": self.config["name"],
            "pid": os.getpid(),
            "session_id": os.getsid(0),
            "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
            "sigint": callable(signal.getsignal(signal.SIGINT)),
            "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "cores": sorted(os.sched_getaffinity(0)),
            "umask": _umask(),
            "parent": os.getppid(),
            "faults": sorted(self.faults),
            "applied": self.applied,
            "incarnation": os.getpid(),
        }

    def is_cut(self, peer: str) -> bool:
        return any(f["verb"] == "cut" and f["peer"] in ("", peer) for f in self.faults.values())

    def parameter(self, verb: str, name: str) -> Any:
        """Return a parameter of the fault of this verb in force, or None without such a fault."""
        found = (f for f in self.faults.values() if f["verb"] == verb)
        return next((fault["parameters"].get(name, 0) for fault in found), None)

    async def probe(self, arguments: dict[str, Any]) -> dict[str, Any]:
        missing = self.parameter("partition", "peers") or []
        took_us = 1_000 * (self.parameter("delay", "delay_ms") or 0) + 100
        return {
            "reached": [peer for peer in arguments["peers"] if peer not in missing],
            "missing": {peer: "no answer" for peer in arguments["peers"] if peer in missing},
            "took_us": dict.fromkeys(arguments["peers"], took_us),
        }

    async def probe_disk(self, _: dict[str, Any]) -> dict[str, Any]:
        took_us = 1_000 * (self.parameter("slow-fsync", "delay_ms") or 0) + 100
        return {"written": self.parameter("disk-full", "") is None, "took_us": took_us}

    async def fault_counters(self, _: dict[str, Any]) -> dict[str, Any]:
        now_ns = time.monotonic_ns()
        found = {}
        for fault_id, fault in self.faults.items():
            passed_ms = (now_ns - fault["since_ns"]) // 1_000_000
            idle = self.config.get("idle", False)
            holds = fault["verb"] in ("absorb", "send-omission")
            absorbed = 0 if idle or not holds else passed_ms
            found[fault_id] = {
                "absorbed_messages": absorbed,
                "absorbed_publications": absorbed,
                "absorbed_bytes": 100 * absorbed,
                "dropped_frames": 0,
                "refused_connections": 0,
                "forwarded_since_applied": 1 if self.config.get("leaks") else 0,
                "limited_messages": 0 if idle or fault["verb"] != "bandwidth" else passed_ms,
                "sessions_down": int(fault["verb"] in ("cut", "blackhole") and passed_ms > 50),
            }
        return found

    async def exit(self, arguments: dict[str, Any]) -> dict[str, Any]:
        os._exit(arguments["status"])

    async def fault_apply(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["peer"] == "nobody":
            raise ControlError("user", "no peer called 'nobody'")
        now_ns = time.monotonic_ns()
        self.faults[arguments["fault_id"]] = {**arguments, "since_ns": now_ns}
        self.applied.append(arguments["fault_id"])
        return {"t_applied_ns": now_ns}

    async def fault_heal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.faults.pop(arguments["fault_id"], None)
        return {}

    async def fault_renew(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.faults[arguments["fault_id"]]["lease_ms"] = arguments["lease_ms"]
        return {}


def run_failing(config: dict[str, Any]) -> None:
    """Fail as the configuration demands."""
    if config["how"] == "config":
        raise ConfigError("x.toml: speed = 0")
    if config["how"] == "return":
        return
    if config["how"] == "child":
        # A child of its own that ignores hanging up, and would outlive it.
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)
        Path(config["child_file"]).write_text(str(pid))
        os.kill(os.getpid(), signal.SIGKILL)
    raise ZeroDivisionError("too round")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


ROLES: dict[str, Role] = {
    "sleeper": run_sleeper,
    "broker": run_sleeper,
    "failing": run_failing,
}


def main() -> int:
    command, root = sys.argv[1], Path(sys.argv[2])
    if command == "attach":
        return attach(root)
    if command == "daemon":
        return start_daemon(root, "here", sys.argv[3], ROLES)
    deployment, socket_path, ready_file = sys.argv[3:]
    ready = os.open(ready_file, os.O_WRONLY)
    return run_agent(root, "here", deployment, ROLES, Path(socket_path), ready)


if __name__ == "__main__":
    sys.exit(main())
