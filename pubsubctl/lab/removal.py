"""`lab down`: removes a lab, whole or half made, and proves that nothing of it is left."""

import os
import shutil
import signal
from collections.abc import Sequence

import trio

from brokerd.agent.processes import ProcessIdentity
from pubsubctl.doctor.facts import facts_file
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
    """Remove what a lab's journal names; to be used inside `lab_lock`.

    Raises:
        PreflightFailed: this very process runs on one of its machines.
        LabDirty: something could not be removed; says what.
    """
    if (spec := journal.spec) is not None:
        await _end_processes(spec.namespaces, list(journal.processes.values()))
        # The link first: what goes with a namespace goes in the kernel's own time.
        if is_our_link(spec):
            await _ip("link", "delete", "dev", spec.link)
        for namespace in spec.namespaces:
            if (NAMESPACES / namespace).exists():
                await _ip("netns", "delete", namespace)
        # Kept elsewhere for what was done with it, and of no use to any other inventory.
        authority = authority_folder(spec.inventory_name)
        shutil.rmtree(authority, ignore_errors=True)
        try:
            authority.parent.rmdir()
        except OSError:
            pass  # there never was one, or there are others
        facts_file(spec.inventory_name, journal.folder / INVENTORY).unlink(missing_ok=True)
    # The journal goes with the rest: by now there is nothing that it would help to find.
    shutil.rmtree(journal.folder)
    if spec is not None and (left := existing(spec)):
        raise LabDirty(*(f"{thing} is still there" for thing in left))


async def switch_off(journal: Journal, machines: Sequence[Machine]) -> None:
    """Kill these machines as if somebody had pulled their plugs; their files stay.

    Raises:
        PreflightFailed: this very process runs on one of them.
        LabDirty: a process does not end.
    """
    first = [journal.processes[each.name] for each in machines if each.name in journal.processes]
    await _end_processes([machine.namespace for machine in machines], first)


async def _end_processes(namespaces: Sequence[str], first: Sequence[ProcessIdentity]) -> None:
    """Kill what runs there. With a machine's first process the kernel ends all others on it."""
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
