"""`reproduce`: check that the results of a capsule can be reproduced."""

import re
from pathlib import Path
from typing import Annotated

import typer

from brokerd.overlay.topology import nearest
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown


def reproduce(
    context: typer.Context,
    capsule: Annotated[
        Path, typer.Argument(metavar="CAPSULE", help="What `results capsule` has made.")
    ],
    level: Annotated[
        str,
        typer.Option(
            "--level",
            metavar="figures|check|sim|local",
            help="Draw every figure again; also judge every run again from its logs; besides, do "
            "it again on simulated brokers, or on brokers of this machine.",
        ),
    ] = "figures",
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", metavar="DIR", help="Unpack it there, and leave it."),
    ] = None,
    digest: Annotated[
        str,
        typer.Option("--digest", metavar="sha256:…", help="Refuse a capsule with another digest."),
    ] = "",
    master: Annotated[str | None, typer.Option("--master", help="Where Spark runs.")] = None,
) -> Result:
    """Look whether a capsule's figures, verdicts and claims come out again.

    Nothing is needed but the capsule; --level local needs what `bench` needs. Figures have to be
    the same to the byte, and so what was simulated to begin with; of a run of brokers, its verdict
    on simulated ones. Status 1 where something came out otherwise, 3 where a new run cannot tell,
    8 where a byte of the capsule has changed.
    """
    from pubsubctl.running.reproducing import LEVELS
    from pubsubctl.running.reproducing import reproduce as reproduced

    call = invocation(context)
    call.refuse_dry_run("reproduce")
    if level not in LEVELS:
        raise UserError(f"--level = {shown(level)}{nearest(level, LEVELS)}; {', '.join(LEVELS)}")
    if digest and not re.fullmatch(r"(sha256:)?[0-9a-f]{64}", digest):
        raise UserError(f"--digest = {shown(digest)}: sha256: and 64 hexadecimal digits")
    return reproduced(call, capsule, level, output, call.master(master), digest)
