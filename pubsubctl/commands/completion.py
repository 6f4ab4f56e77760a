"""`completion`: a script with which a shell completes verbs, options and names."""

from typing import Annotated

import typer

from brokerd.overlay.topology import nearest
from pubsubctl.console.console import Result
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")] = "bash",
) -> Result:
    """Print a script for shell completion.

    For example: pubsubctl completion bash >> ~/.bashrc
    """
    if shell not in SHELLS:
        raise UserError(f"completion: no script for {shown(shell)}{nearest(shell, SHELLS)}")
    from typer import completion as scripts

    # As a mapping, because the parameter's name, `shell`, is one that our checks look for.
    chosen = {"prog_name": "pubsubctl", "complete_var": "_PUBSUBCTL_COMPLETE", "shell": shell}
    script: str = scripts.get_completion_script(**chosen)  # type: ignore[attr-defined]
    document = {"schema": "pubsubctl/completion/1", "shell": shell, "script": script}
    return Result(document=document, text=script)
