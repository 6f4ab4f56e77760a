"""`completion`: the script that lets a shell complete verbs, options and names."""

from typing import Annotated

import typer

from brokerd.overlay.topology import nearest
from pubsubctl.console import Result
from pubsubctl.errors import UserError
from pubsubctl.files import shown

SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")] = "bash",
) -> Result:
    """Print a completion script: `pubsubctl completion bash >> ~/.bashrc`."""
    if shell not in SHELLS:
        raise UserError(f"completion: no script for {shown(shell)}{nearest(shell, SHELLS)}")
    from typer import completion as scripts

    script: str = scripts.get_completion_script(  # type: ignore[attr-defined]  # not declared
        prog_name="pubsubctl", complete_var="_PUBSUBCTL_COMPLETE", shell=shell
    )
    document = {"schema": "pubsubctl/completion/1", "shell": shell, "script": script}
    return Result(document=document, text=script)
