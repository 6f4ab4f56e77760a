"""`lab up`: makes a lab, or nothing at all."""

import hashlib
import json
import os
import pwd
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from secrets import token_hex

import trio

from brokerd.agent.processes import ProcessIdentity
from pubsubctl.console.console import Progress
from pubsubctl.console.interruption import Interruption
from pubsubctl.errors import HostError, PreflightFailed
from pubsubctl.lab import machine as machine_script
from pubsubctl.lab import requirements
from pubsubctl.lab.journal import lab_lock, read_journal, write_line
from pubsubctl.lab.look import LabState, is_listening, look
from pubsubctl.lab.network import (
    NAMESPACES,
    Command,
    existing,
    free_networks,
    machine_commands,
    switch_commands,
    tool_environment,
)
from pubsubctl.lab.removal import remove
from pubsubctl.lab.spec import NETWORKS, USER, LabSpec, Machine
from pubsubctl.lab.ssh_files import (
    SERVER_FOLDER,
    Files,
    hidden_folders,
    kept_folders,
    server_program,
)
from pubsubctl.project import labs_folder

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
    requirements.check()
    with lab_lock(name, "lab up") as lock:
        folder = labs_folder() / name
        if folder.is_dir():
            journal = read_journal(folder)
            if journal.is_ready:
                return Built(_unchanged(look(journal), hosts, gateways), False)
            progress.say("removing the rest of an interrupted `lab up`")
            await remove(journal)
        digest = hashlib.blake2b(name.encode(), digest_size=2).digest()
        networks = free_networks(gateways + 1, int.from_bytes(digest) % NETWORKS)
        spec = LabSpec(name, token_hex(6), hosts, gateways, networks)
        if strangers := existing(spec):
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


def _unchanged(state: LabState, hosts: int, gateways: int) -> LabState:
    spec = state.spec
    down = f"`pubsubctl lab down --name {spec.name}`"
    if ended := [row.name for row in state.machines if not row.is_up]:
        raise PreflightFailed(
            f"lab {spec.name} was made, but {', '.join(ended)} ended since; {down} removes the rest"
        )
    if (spec.hosts, spec.gateways) != (hosts, gateways):
        raise PreflightFailed(
            f"lab {spec.name} is there with {spec.hosts} hosts and {spec.gateways} gateways, not "
            f"{hosts} and {gateways}; {down} first, or choose another --name"
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
        "own": [(str(files.own(machine, part)), at) for part, at in own.items()],
        "hidden": hidden_folders(),
        "kept": kept_folders([*own.values(), *hidden_folders()]),
        "command": [server_program(), "-D", "-e", "-f", str(SERVER_FOLDER / "sshd_config")],
        "environment": {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
    }
    script = os.path.realpath(machine_script.__file__)
    said = await _run([sys.executable, "-ISE", script], lock, json.dumps(wanted).encode())
    identity = ProcessIdentity.of(int(said))
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
        said = lines[-1] if lines else f"exit status {result.returncode}"
        raise HostError(f"`{' '.join(map(str, command))}`: {said}")
    return result.stdout
