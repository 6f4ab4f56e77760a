"""The options of `simulate` by subject of the simulation; other options are refused."""

import typer

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

FIGURE = "a figure"
FILE = "a scenario or plan"
WORKLOAD = "a workload"

_OF_SEEDS = ("--protocol", "--mutant", "--campaign", "--profile", "--set", "--moves")
"""Options that a seed of the swarm does not decide."""

TAKEN: dict[str, tuple[str, ...]] = {
    "swarm": (*_OF_SEEDS, "--seeds", "--ledger", "--verify-determinism"),
    "adversary": ("--protocol", "--seeds", "--mutant", "--set", "--setting", "--shrink"),
    "campaign": ("--runs", "--ledger"),
    "mutants": ("--runs", "--ledger"),
    "shrink": (*_OF_SEEDS, "--output"),
    "dedupe": ("--schedules",),
    "stalls": ("--seeds",),
    "routing": ("--seeds",),
    "speed": (),
    FIGURE: ("--full", "--output-dir"),
    FILE: (),
    WORKLOAD: ("--protocol", "--faults", "--seed", "--mutant", "--record", "--output-dir"),
}
"""Subject of the simulation → its options, besides the options of all subjects."""

_OF_ALL = ("--processes", "--help")


def check_options(context: typer.Context, what: str, kind: str) -> None:
    """Refuse options without an effect on the simulation.

    Args:
        what: the typed subject of the simulation.
        kind: a key of `TAKEN`.

    Raises:
        UserError: names the option and the subjects that take it.
    """
    for parameter in context.command.params:
        option = max(parameter.opts, key=len)
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if not given or parameter.param_type_name != "option" or option in _OF_ALL:
            continue
        if option not in TAKEN[kind]:
            meant = " or ".join(each for each, options in TAKEN.items() if option in options)
            raise UserError(f"{option} is for {meant}, not for {shown(what)}")
