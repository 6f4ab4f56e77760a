"""`lab`: test hosts on this machine, with a real SSH server per host."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands.options.grouping import GroupedCommand, verbs
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import PreflightFailed, UserError

if TYPE_CHECKING:
    from pubsubctl.lab.journal import Journal, LabState
    from pubsubctl.lab.spec import LabSpec

DEFAULT_NAME = "lab"

app = verbs("lab", "Create test hosts with SSH on this machine, as root.")

Name = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name the lab, if there are several.")
]


Machines = Annotated[list[str], typer.Argument(metavar="MACHINE...", help="n01, gw1, ...")]


@app.command("up", cls=GroupedCommand)
def up(
    context: typer.Context,
    hosts: Annotated[int, typer.Option("--hosts", metavar="N", help="Create N hosts.")] = 8,
    gateways: Annotated[
        int, typer.Option("--gateways", metavar="N", help="Create N jump hosts in a row.")
    ] = 0,
    name: Name = DEFAULT_NAME,
) -> Result:
    """Create test hosts, for `-i NAME`."""
    from pubsubctl.console.interruption import Interruption, run_interruptibly
    from pubsubctl.lab.lifecycle import Built, bring_up
    from pubsubctl.lab.spec import MOST_GATEWAYS, MOST_HOSTS, check_name

    call = invocation(context)
    call.refuse_dry_run("lab up")
    check_name(name)
    _check_count("--hosts", hosts, 1, MOST_HOSTS)
    _check_count("--gateways", gateways, 0, MOST_GATEWAYS)
    _refuse_hidden_name(call, name)

    async def work(interruption: Interruption) -> Built:
        with call.console.progress() as progress:
            return await bring_up(name, hosts, gateways, progress, interruption)

    built = run_interruptibly(
        work, call.console, when_not_waiting=f"`pubsubctl lab down --name {name}` removes the rest"
    )
    spec = built.state.spec
    behind = f" behind {_count(spec.gateways, 'gateway')}" if spec.gateways else ""
    is_there = "is up" if built.is_new else "is there already"
    return Result(
        document={"schema": "pubsubctl/lab-up/1", "changed": built.is_new, **_row(built.state)},
        text=f"lab {name} {is_there}: {_count(spec.hosts, 'host')}{behind}; use it with -i {name}",
    )


@app.command("down", cls=GroupedCommand)
def down(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name the lab, if there are several."),
    ] = None,
) -> Result:
    """Stop all test hosts, and remove their files."""
    from brokerd.agent.host.private_files import lock_path
    from pubsubctl.console.interruption import Interruption, run_interruptibly
    from pubsubctl.lab import network
    from pubsubctl.lab.journal import existing_lab, lab_lock
    from pubsubctl.lab.lifecycle import remove
    from pubsubctl.lab.spec import check_name
    from pubsubctl.project import labs_folder

    call = invocation(context)
    call.refuse_dry_run("lab down")
    wanted = name or DEFAULT_NAME
    check_name(wanted)
    folder = labs_folder() / wanted

    async def work(interruption: Interruption) -> bool:
        # Only a lock remains of a `lab up` that was killed before anything else.
        if not folder.is_dir() and not lock_path(folder).exists():
            if name is not None:
                existing_lab(name)
            return False
        network.check_requirements()
        with lab_lock(wanted, "lab down"):
            if folder.is_dir():
                await remove(existing_lab(wanted))
        return True

    found = run_interruptibly(
        work, call.console, when_not_waiting="`pubsubctl lab down` removes the rest"
    )
    return Result(
        document={"schema": "pubsubctl/lab-down/1", "name": wanted, "changed": found},
        text=f"lab {wanted} is removed" if found else "there is no lab",
    )


@app.command("off", cls=GroupedCommand)
def off(context: typer.Context, machines: Machines, name: Name = DEFAULT_NAME) -> Result:
    """Kill all processes of machines, and keep their files."""
    from pubsubctl.lab.lifecycle import switch_off

    async def act(journal: "Journal", spec: "LabSpec", lock: int) -> None:
        await switch_off(journal, [spec.machine(machine) for machine in machines])

    return _switch(invocation(context), name, "off", machines, act)


@app.command("on", cls=GroupedCommand)
def on(context: typer.Context, machines: Machines, name: Name = DEFAULT_NAME) -> Result:
    """Start machines that are off."""
    from pubsubctl.lab.lifecycle import start_machine
    from pubsubctl.lab.ssh_files import Files

    async def act(journal: "Journal", spec: "LabSpec", lock: int) -> None:
        for machine in [spec.machine(machine) for machine in machines]:
            process = journal.processes.get(machine.name)
            if process is None or not process.is_alive():
                await start_machine(Files(journal.folder, spec), machine, lock)

    return _switch(invocation(context), name, "on", machines, act)


@app.command("list", cls=GroupedCommand)
def list_labs(context: typer.Context) -> Result:
    """List all labs with their state."""
    from pubsubctl.lab.journal import labs, look, read_journal

    call = invocation(context)
    rows: list[dict[str, Any]] = []
    for folder in labs():
        journal = read_journal(folder)
        if journal.spec is None or not journal.is_ready:
            rows.append({"name": journal.name, "state": "half made", "folder": str(folder)})
        else:
            rows.append(_row(look(journal)))
    table = call.console.table(
        ("LAB", "STATE", "HOSTS", "GATEWAYS", "FOLDER"),
        [
            (
                row["name"],
                row["state"],
                row.get("hosts", ""),
                row.get("gateways", ""),
                row["folder"],
            )
            for row in rows
        ],
    )
    return Result(
        document={"schema": "pubsubctl/lab-list/1", "labs": rows},
        text=table if rows else "there is no lab; `pubsubctl lab up` makes one",
    )


@app.command("status", cls=GroupedCommand)
def status(context: typer.Context, name: Name = DEFAULT_NAME) -> Result:
    """List the machines of a lab."""
    from pubsubctl.lab.journal import existing_lab, look

    call = invocation(context)
    journal = existing_lab(name)
    if journal.spec is None:
        raise UserError(f"lab {name} is half made; `pubsubctl lab down --name {name}` removes it")
    state = look(journal)
    table = call.console.table(
        ("MACHINE", "ADDRESS", "STATE", "PID", "NAMESPACE"),
        [
            (
                row.name,
                row.address,
                "up" if row.is_up else "off",
                row.process.pid if row.process else "",
                row.namespace,
            )
            for row in state.machines
        ],
    )
    return Result(
        document={"schema": "pubsubctl/lab-status/1", **_row(state)},
        text=f"{table}\n\ninventory {state.folder / 'inventory.toml'}",
    )


def _switch(
    call: Invocation,
    name: str,
    verb: str,
    machines: Sequence[str],
    act: "Callable[[Journal, LabSpec, int], Awaitable[None]]",
) -> Result:
    import trio

    from pubsubctl.lab import network
    from pubsubctl.lab.journal import existing_lab, lab_lock

    call.refuse_dry_run(f"lab {verb}")
    network.check_requirements()
    existing_lab(name)
    with lab_lock(name, f"lab {verb}") as lock:
        journal = existing_lab(name)
        if journal.spec is None or not journal.is_ready:
            raise PreflightFailed(f"lab {name} is half made; `pubsubctl lab down` removes it")
        trio.run(act, journal, journal.spec, lock)
    return Result(
        document={"schema": f"pubsubctl/lab-{verb}/1", "name": name, "machines": list(machines)},
        text=f"{', '.join(machines)} {'is' if len(machines) == 1 else 'are'} {verb}",
    )


def _row(state: "LabState") -> dict[str, Any]:
    off = sum(not machine.is_up for machine in state.machines)
    return {
        "name": state.spec.name,
        "state": f"{off} of {len(state.machines)} machines off" if off else "up",
        "hosts": state.spec.hosts,
        "gateways": state.spec.gateways,
        "folder": str(state.folder),
        "inventory": str(state.folder / "inventory.toml"),
        "machines": [
            {
                "name": machine.name,
                "address": machine.address,
                "namespace": machine.namespace,
                "pid": machine.process.pid if machine.process else None,
            }
            for machine in state.machines
        ],
    }


def _check_count(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(f"{option} = {value}; from {least} to {most}")


def _refuse_hidden_name(call: Invocation, name: str) -> None:
    """Refuse a lab's name that `-i` would resolve to another inventory."""
    from pubsubctl.project import labs_folder

    if name in call.project.names("inventory"):
        found = call.project.find("inventory", name)
        if found.resolve().parent != (labs_folder() / name).resolve():
            raise UserError(f"-i {name} means {found}; choose another --name")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
