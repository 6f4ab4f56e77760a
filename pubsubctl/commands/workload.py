"""`workload lint`: workload files, checked with their topologies before any run."""

from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import GroupedCommand, verbs
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import UserError

app = verbs("workload", "Check workload files.")


@app.command("lint", cls=GroupedCommand)
def lint(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD...",
            help="Paths, or bare names of files in bench/workloads.",
            autocompletion=names.workloads,
        ),
    ],
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            help="Check for this protocol, not the file's.",
            autocompletion=names.protocols,
        ),
    ] = None,
) -> Result:
    """Check workload files, and predict doubts about their verdicts.

    Reads the topology of each workload, too, and starts nothing.

    Status 2: a file cannot be used.
    """
    call = invocation(context)
    call.refuse_dry_run("workload lint")
    good: list[str] = []
    problems: list[str] = []
    warnings: dict[str, list[str]] = {}
    for name in files:
        try:
            line, warnings[name] = _checked(call, name, protocol)
        except UserError as error:
            problems += error.problems
        else:
            good.append(line)
            for warning in warnings[name]:
                call.console.warn(warning)
    document = {"schema": "pubsubctl/workload-lint/1", "files": files, "problems": problems}
    return Result(
        document={**document, "warnings": warnings},
        text="\n".join(good),
        because=(UserError(*problems),) if problems else (),
    )


def _checked(call: Invocation, name: str, protocol: str | None) -> tuple[str, list[str]]:
    """Return a line about a workload without mistakes, and warnings.

    Raises:
        UserError: a value is invalid; names file, key, value and the nearest valid value.
    """
    from bench.spec.keys import Overrides
    from bench.spec.lint import churn_warnings, guarantee_warnings
    from bench.spec.predictions import predictions_of
    from bench.spec.spec import load_experiment
    from brokerd.errors import ConfigError
    from pubsubctl.deployment.topologies import describe_briefly

    path = call.project.find("workload", name)
    try:
        spec = load_experiment(path, Overrides(protocol=protocol))
    except ConfigError as error:
        raise UserError(str(error)) from None
    publishers, subscribers = len(spec.publisher_plans()), len(spec.subscriber_plans())
    line = (
        f"{path}: ok, publishers: {publishers}, subscribers: {subscribers}, "
        f"{spec.protocol} on {spec.topology.name} ({describe_briefly(spec.topology)})"
    )
    doubts = [
        each.text
        for each in predictions_of(spec, None)
        if each.kind == "doubt" and "--faults" not in each.text
    ]
    return line, [*churn_warnings(spec), *guarantee_warnings(spec), *doubts]
