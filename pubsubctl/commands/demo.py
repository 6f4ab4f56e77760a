"""`demo`: the main job on this machine, end to end."""

from pathlib import Path
from typing import Annotated

import typer

from brokerd.overlay.topology import nearest
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown


def demo(
    context: typer.Context,
    protocol: Annotated[
        str | None, typer.Option("--protocol", help="Only this one, not both.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All protocols that it can show, in one report.")
    ] = False,
    no_teardown: Annotated[
        bool, typer.Option("--no-teardown", help="Leave the last deployment running.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Where runs go, if not to results/runs."),
    ] = None,
) -> Result:
    """Kill a broker under load, twice; judge both.

    Once with the usual protocol, which must lose nothing, once with one that promises nothing,
    which must lose something. Deploys, loads, breaks, takes down, checks, and writes a report.
    """
    from brokerd.protocols.registry import DEFINITIONS
    from pubsubctl.running.demo import PROTOCOLS, run_demo, that_can_be_shown

    if protocol is not None and protocol not in DEFINITIONS:
        raise UserError(f"no protocol called {shown(protocol)}{nearest(protocol, [*DEFINITIONS])}")
    if protocol is not None and every:
        raise UserError(f"--protocol {protocol} and --all: one or the other")

    call = invocation(context)
    call.refuse_dry_run("demo")
    protocols: tuple[str, ...] = PROTOCOLS if protocol is None else (protocol,)
    if every:
        protocols = that_can_be_shown(call)
    return run_demo(call, protocols, results=output, teardown=not no_teardown)
