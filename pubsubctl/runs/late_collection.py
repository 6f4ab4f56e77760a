"""The collection of a run's records after this machine had no room for them."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.run.collection import RecordFolder, collect_later, is_uncollected, read_uncollected
from bench.run.outcome import RunOutcome
from bench.run.testbed import HostFiles, copy_local_file
from bench.systems.left_records import LeftRecords, is_servers_folder
from brokerd.storage.files import is_no_room
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import IntegrityError, PreflightFailed, UserError
from pubsubctl.hosts.hosts import Lab
from pubsubctl.runs.experiment import RecordsLeft, fetch_with, lab_for, numbers_text
from pubsubctl.runs.run_changes import refresh_run_index
from pubsubctl.runs.runs import manifest

_LATER = "the records stay on their hosts; `pubsubctl results collect` continues"


def collect_run(call: Invocation, run: Path) -> Result:
    """Collect the records of a run from its hosts, and end the run.

    Raises:
        UserError: the records are here already.
        IntegrityError: the description of the records is damaged.
        PreflightFailed: the deployment of the run is not on these hosts, or there is no room; or
            the folder with the records of a run on an external broker is gone.
    """
    if not is_uncollected(run):
        raise UserError(f"{run}: all records of this run are here")
    try:
        folders, _ = read_uncollected(run)
    except ValueError as error:
        raise IntegrityError(str(error)) from None
    hosts = sorted({each.host for each in folders})
    identity = str(manifest(run).get("deployment_id"))
    is_external = is_servers_folder(identity)
    lab = None if is_external else lab_for(call)
    with call.console.progress() as progress:

        async def work(interruption: Interruption) -> RunOutcome:
            if lab is None:
                return await _collect_here(run, identity, folders, progress, interruption)
            return await _collect(lab, run, identity, hosts, progress, interruption)

        outcome = run_interruptibly(work, call.console, when_not_waiting=_LATER)
    refresh_run_index([run], call.console)
    document = {
        "schema": "pubsubctl/collected/1",
        "run_directory": str(run),
        "state": outcome.state,
        "reasons": list(outcome.reasons),
    }
    lines = [numbers_text(outcome), *outcome.reasons, str(run)]
    return Result(document=document, text="\n".join(lines))


async def _collect(
    lab: Lab,
    run: Path,
    identity: str,
    hosts: Sequence[str],
    progress: Progress,
    interruption: Interruption,
) -> RunOutcome:
    async with lab.operate("results collect", progress, interruption, only_if_used=True):
        with interruption.stoppable():
            known = {connector.host.name for connector in lab.connectors}
            records = [row.deployment for row in await lab.observe()]
            if not set(hosts) <= known or identity not in map(_identity_of, records):
                raise PreflightFailed(
                    f"{run}: the deployment {identity} with its records is not on these hosts; "
                    f"-i names another inventory. The run was on {', '.join(hosts)}"
                )
            progress.phase("collecting")
            async with AsyncExitStack() as stack:
                agents = {
                    host: await stack.enter_async_context(lab.connector(host).open_agent())
                    for host in hosts
                }
                try:
                    return await collect_later(run, HostFiles(agents, fetch_with(lab)))
                except OSError as error:
                    if not is_no_room(error):
                        raise
                    raise RecordsLeft.of(run, lab) from error


async def _collect_here(
    run: Path,
    deployment: str,
    folders: Sequence[RecordFolder],
    progress: Progress,
    interruption: Interruption,
) -> RunOutcome:
    """Collect the records of a run on an external broker, and remove their folder."""
    try:
        left = LeftRecords.find(deployment, [*folders])
    except FileNotFoundError as error:
        raise PreflightFailed(
            f"{run}: its records were left in a folder that is gone: {error}"
        ) from None
    progress.phase("collecting")
    files = HostFiles({each.host: left for each in folders}, copy_local_file)
    try:
        with interruption.stoppable():
            outcome = await collect_later(run, files)
    except OSError as error:
        if not is_no_room(error):
            raise
        raise RecordsLeft.on_this_machine(run, left.root) from error
    left.remove()
    return outcome


def _identity_of(record: Mapping[str, Any] | None) -> str:
    return str((record or {}).get("deployment_id"))
