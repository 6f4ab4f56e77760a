"""`lab down`: removes a lab, whole or half made, and verifies that nothing is left."""

import os
import shutil
import signal
from collections.abc import Sequence

import trio

from brokerd.agent.processes import ProcessIdentity
from pubsubctl.doctor.fact_cache import facts_file
from pubsubctl.errors import HostError, LabDirty, PreflightFailed
from pubsubctl.lab.journal import Journal
from pubsubctl.lab.look import processes_in
from pubsubctl.lab.network import NAMESPACES, existing, is_our_link, tool_environment
from pubsubctl.lab.spec import Machine
from pubsubctl.lab.ssh_files import INVENTORY
from pubsubctl.project import authority_folder

_END_TIMEOUT_S = 20.0
_POLL_S = 0.01


async def remove(journal: Journal) -> None:
    """Remove the lab that a journal describes; requires `lab_lock`.

    Raises:
        PreflightFailed: this process runs on a machine of the lab.
        LabDirty: a part could not be removed; names the part.
    """
    if (spec := journal.spec) is not None:
        await _end_processes(spec.namespaces, list(journal.processes.values()))
        # The link first: the kernel removes a namespace's devices asynchronously.
        if is_our_link(spec):
            await _ip("link", "delete", "dev", spec.link)
        for namespace in spec.namespaces:
            if (NAMESPACES / namespace).exists():
                await _ip("netns", "delete", namespace)
        # The authority is stored elsewhere, and is of no use to any other inventory.
        authority = authority_folder(spec.inventory_name)
        shutil.rmtree(authority, ignore_errors=True)
        try:
            authority.parent.rmdir()
        except OSError:
            pass  # the folder never existed, or has other content
        facts_file(spec.inventory_name, journal.folder / INVENTORY).unlink(missing_ok=True)
    # The journal is removed last: nothing is left to find with the journal.
    shutil.rmtree(journal.folder)
    if spec is not None and (left := existing(spec)):
        raise LabDirty(*(f"{thing} is still there" for thing in left))


async def switch_off(journal: Journal, machines: Sequence[Machine]) -> None:
    """Kill these machines like a power failure; the files stay.

    Raises:
        PreflightFailed: this process runs on a machine of the lab.
        LabDirty: a process does not end.
    """
    first = [journal.processes[each.name] for each in machines if each.name in journal.processes]
    await _end_processes([machine.namespace for machine in machines], first)


async def _end_processes(namespaces: Sequence[str], first: Sequence[ProcessIdentity]) -> None:
    """Kill all processes in the namespaces. The kernel ends a machine with its first process."""
    with trio.move_on_after(_END_TIMEOUT_S):
        while True:
            there = processes_in(namespaces)
            there += [process for process in first if process.is_alive()]
            if any(process.pid == os.getpid() for process in there):
                raise PreflightFailed("this command runs on a machine of that lab itself")
            if not there:
                return
            for process in there:
                process.signal(signal.SIGKILL)
            await trio.sleep(_POLL_S)
    raise LabDirty(*(f"process {process.pid} does not end" for process in there))


async def _ip(*arguments: str) -> None:
    result = await trio.run_process(
        ["ip", *arguments],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=tool_environment(),
    )
    if result.returncode != 0:
        said = result.stderr.decode(errors="replace").strip()
        raise HostError(f"`ip {' '.join(arguments)}`: {said}")
