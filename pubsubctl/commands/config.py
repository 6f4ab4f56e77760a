"""`config`: the settings that hold here."""

from typing import Annotated

import typer

from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation

app = typer.Typer(
    name="config",
    help="The settings that hold here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def group() -> None:
    """The settings that hold here."""


@app.command("show")
def show(
    context: typer.Context,
    origin: Annotated[bool, typer.Option("--origin", help="Also say where each was set.")] = False,
) -> Result:
    """Show each setting: from a flag, PUBSUBCTL_*, the project's file, the user's, or a default."""
    from pubsubctl.project import DEFAULTS

    call = invocation(context)
    flags = {"inventory": call.inventory_option, "forks": call.forks_option}
    found = {name: call.project.setting(name, flags.get(name)) for name in DEFAULTS}
    rows = [
        (name, setting.value, *([setting.origin] if origin else []))
        for name, setting in found.items()
    ]
    return Result(
        document={
            "schema": "pubsubctl/config/1",
            "settings": {
                name: {"value": setting.value, "origin": setting.origin}
                for name, setting in found.items()
            },
        },
        text=call.console.table(("SETTING", "VALUE", *(["FROM"] if origin else [])), rows),
    )
