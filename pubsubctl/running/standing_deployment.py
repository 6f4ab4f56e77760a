"""The deployment that runs before a series: it must fit every run, or no run starts."""

from collections.abc import Iterable

from bench.spec.spec import ExperimentSpec
from pubsubctl.deploying.deploy import wanted_deployment
from pubsubctl.deploying.plan import deploy_plan
from pubsubctl.errors import PreflightFailed
from pubsubctl.hosts.hosts import Lab


async def check_deployment(lab: Lab, runs: Iterable[tuple[str, ExperimentSpec]]) -> None:
    """Check the running deployment, if there is one, against all runs.

    Requires `lab.operated`.

    Args:
        runs: names and specifications.

    Raises:
        PreflightFailed: the deployment does not fit some runs; names them and the differences.
    """
    found = await lab.observe()
    if all(row.deployment is None for row in found):
        return
    checked: set[tuple[str, str]] = set()
    problems: list[str] = []
    for name, spec in runs:
        key = spec.topology.content_digest(), spec.protocol
        if key in checked:
            continue
        checked.add(key)
        try:
            deploy_plan(await wanted_deployment(lab, spec.topology, spec.protocol), found)
        except PreflightFailed as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise PreflightFailed(
            *problems, "nothing was run; without a deployment, each run deploys its own"
        )
