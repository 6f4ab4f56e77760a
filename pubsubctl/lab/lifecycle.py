"""`lab up` and `lab down`: a lab is made wholly or not at all, and removed without a trace.

`lab down` removes a whole or half made lab, and verifies that nothing is left.
"""

import hashlib
import json
import os
import pwd
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from secrets import token_hex

import trio

from brokerd.agent.processes import ProcessIdentity
from brokerd.text import counted
from pubsubctl.console.console import Progress
from pubsubctl.console.interruption import Interruption
from pubsubctl.doctor.host_facts import facts_file
from pubsubctl.errors import HostError, LabDirty, PreflightFailed
from pubsubctl.lab import machine as machine_script
from pubsubctl.lab import network
from pubsubctl.lab.journal import (
    Journal,
    LabState,
    is_listening,
    lab_lock,
    look,
    processes_in,
    read_journal,
    write_line,
)
from pubsubctl.lab.network import (
    NAMESPACES,
    Command,
    find_existing,
    free_networks,
    is_our_link,
    machine_commands,
    switch_commands,
    tool_environment,
)
from pubsubctl.lab.spec import NETWORKS, USER, LabSpec, Machine
from pubsubctl.lab.ssh_files import (
    INVENTORY,
    SERVER_FOLDER,
    Files,
    hidden_folders,
    list_kept_folders,
    server_program,
)
from pubsubctl.project import authority_folder, labs_folder

_END_TIMEOUT_S = 20.0
_END_POLL_S = 0.01


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
    if spec is not None and (left := find_existing(spec)):
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
            await trio.sleep(_END_POLL_S)
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
        output = result.stderr.decode(errors="replace").strip()
        raise HostError(f"`ip {' '.join(arguments)}`: {output}")


COMMAND_TIMEOUT_S = 30.0
SERVER_TIMEOUT_S = 20.0
_POLL_S = 0.005


@dataclass(frozen=True)
class Built:
    """A lab that is up, and whether that is our doing."""

    state: LabState
    is_new: bool


async def bring_up(
    name: str, hosts: int, gateways: int, progress: Progress, interruption: Interruption
) -> Built:
    """Create a lab; leave an existing lab unchanged.

    Every part is recorded in the journal before its creation; after any failure, Ctrl-C included,
    all parts are removed again.

    Raises:
        PreflightFailed: this machine lacks a requirement; the lab exists with other counts, or
            its machines have ended; foreign namespaces or links have the same names.
        HostError: a tool or a server failed; with its message.
    """
    network.check_requirements()
    with lab_lock(name, "lab up") as lock:
        folder = labs_folder() / name
        if folder.is_dir():
            journal = read_journal(folder)
            if journal.is_ready:
                return Built(_is_unchanged(look(journal), hosts, gateways), False)
            progress.print("removing the rest of an interrupted `lab up`")
            await remove(journal)
        digest = hashlib.blake2b(name.encode(), digest_size=2).digest()
        networks = free_networks(gateways + 1, int.from_bytes(digest) % NETWORKS)
        spec = LabSpec(name, token_hex(6), hosts, gateways, networks)
        if strangers := find_existing(spec):
            raise PreflightFailed(
                *(f"{stranger} is there already, and is not of this lab" for stranger in strangers),
                "choose another --name",
            )
        folder.mkdir(mode=0o700)
        try:
            write_line(folder, spec.to_mapping())
            with interruption.stoppable():
                await _build(Files(folder, spec), progress, lock)
            write_line(folder, {"ready": True})
        except BaseException:
            with trio.CancelScope(shield=True):
                await remove(read_journal(folder))
            raise
        return Built(look(read_journal(folder)), True)


def _is_unchanged(state: LabState, hosts: int, gateways: int) -> LabState:
    spec = state.spec
    down = f"`pubsubctl lab down --name {spec.name}`"
    if ended := [row.name for row in state.machines if not row.is_up]:
        raise PreflightFailed(
            f"lab {spec.name} was made, but {', '.join(ended)} ended since; {down} removes the rest"
        )
    if (spec.hosts, spec.gateways) != (hosts, gateways):
        raise PreflightFailed(
            f"lab {spec.name} is there with {counted(spec.hosts, 'host')} and "
            f"{counted(spec.gateways, 'gateway')}, not {hosts} and {gateways}; "
            f"{down} first, or choose another --name"
        )
    return state


async def _build(files: Files, progress: Progress, lock: int) -> None:
    spec = files.spec
    progress.phase("making the lab")
    files.write()
    await _run_all(switch_commands(spec), lock)
    up = 0

    async def start(machine: Machine) -> None:
        nonlocal up
        await _run_all(machine_commands(spec, machine), lock)
        await start_machine(files, machine, lock)
        up += 1
        progress.update({"machines": f"{up}/{len(spec.machines)}"})

    async with trio.open_nursery() as nursery:
        for machine in spec.machines:
            nursery.start_soon(start, machine)


async def start_machine(files: Files, machine: Machine, lock: int) -> None:
    """Start a machine with an existing network; return when the SSH server listens.

    Raises:
        HostError: the server does not start; with the reason.
    """
    home = pwd.getpwnam(USER).pw_dir
    own = {"ssh": str(SERVER_FOLDER), "home": home, "tmp": "/tmp"}
    wanted = {
        "name": machine.name,
        "namespace": str(NAMESPACES / machine.namespace),
        "log": str(files.log(machine)),
        "lock": lock,
        "own": [(str(files.private_folder(machine, part)), at) for part, at in own.items()],
        "hidden": hidden_folders(),
        "kept": list_kept_folders([*own.values(), *hidden_folders()]),
        "command": [server_program(), "-D", "-e", "-f", str(SERVER_FOLDER / "sshd_config")],
        "environment": {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
    }
    script = os.path.realpath(machine_script.__file__)
    output = await _run([sys.executable, "-ISE", script], lock, json.dumps(wanted).encode())
    identity = ProcessIdentity.of(int(output))
    started = {"started": machine.name, "pid": identity.pid, "start_time": identity.start_time}
    write_line(files.folder, started)
    addresses = files.spec.addresses(machine)
    with trio.move_on_after(SERVER_TIMEOUT_S):
        while not is_listening(identity, len(addresses)):
            if not identity.is_alive():
                raise HostError(f"{machine.name}: sshd ended at once: {last_line(files, machine)}")
            await trio.sleep(_POLL_S)
        return
    raise HostError(f"{machine.name}: sshd does not listen: {last_line(files, machine)}")


def last_line(files: Files, machine: Machine) -> str:
    """Return the last line of a machine's SSH server log."""
    try:
        text = files.log(machine).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    return (text.strip().splitlines() or ["nothing"])[-1]


async def _run_all(commands: Iterable[Command], lock: int) -> None:
    for command in commands:
        await _run(command, lock)


async def _run(command: Command, lock: int, given: bytes = b"") -> bytes:
    """Run a tool to the end, even if cancelled: a half-done change could not be removed."""
    with trio.CancelScope(shield=True), trio.fail_after(COMMAND_TIMEOUT_S):
        result = await trio.run_process(
            command,
            stdin=given,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=tool_environment(),
            cwd="/",
            pass_fds=(lock,),
            start_new_session=True,
        )
    await trio.lowlevel.checkpoint()
    if result.returncode != 0:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        output = lines[-1] if lines else f"exit status {result.returncode}"
        raise HostError(f"`{' '.join(map(str, command))}`: {output}")
    return result.stdout
