"""Commands on a machine of the testbed: `python -m bench.run.machine agent`, `attach` and `host`.

The agent forks brokers and load generators from the image of this process, and so imports all of
their modules once. `attach` and `host` start for every command, and import little.
"""

import argparse
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def _roles() -> Mapping[str, Callable[[dict[str, Any]], None]]:
    from bench.load.load_generator import run_load
    from bench.systems.load import run_system_load
    from bench.systems.program import run_program
    from bench.systems.relay import run_relay
    from brokerd.protocols.registry import import_cores
    from brokerd.runtime.process import run_broker

    import_cores()
    return {
        "broker": run_broker,
        "load": run_load,
        "program": run_program,
        "relay": run_relay,
        "system-load": run_system_load,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.run.machine", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    agent = commands.add_parser("agent", help="start the agent of a root, in the background")
    agent.add_argument("--root", type=Path, required=True, help="absolute path of its folder")
    agent.add_argument("--name", required=True, help="of this (logical) host")
    agent.add_argument("--deployment", required=True, help="id that its processes belong to")
    agent.add_argument("--lease-ms", type=int, default=0, help="end all after this time; 0: never")
    agent.add_argument("--foreground", action="store_true", help="stay, for a supervisor")
    joined = commands.add_parser("attach", help="join stdin and stdout to a root's agent")
    joined.add_argument("--root", type=Path, required=True)
    host = commands.add_parser("host", help="answer host commands on stdin and stdout")
    host.add_argument("--root", type=Path, required=True)
    host.add_argument("--name", required=True)
    chosen = parser.parse_args(arguments)
    if chosen.command == "host":
        from brokerd.agent.host.server import serve_host

        return serve_host(chosen.root, chosen.name)
    if chosen.command == "attach":
        from brokerd.agent.attach import attach

        return attach(chosen.root)
    gc.disable()  # imports create no garbage
    from brokerd.agent.daemon import run_agent, start_daemon

    roles = _roles()
    gc.enable()
    run = run_agent if chosen.foreground else start_daemon
    return run(chosen.root, chosen.name, chosen.deployment, roles, lease_ms=chosen.lease_ms)


if __name__ == "__main__":
    sys.exit(main())
