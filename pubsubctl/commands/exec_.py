"""`exec`: run a command of the user on the hosts of an inventory."""

from typing import Annotated

import typer

from pubsubctl.console.console import Result, visible
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import HostError, PubsubctlError, Unreachable, UserError


def execute(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- CMD...", help="The command, word by word.")
    ],
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="D", help="How long it may take on each host.")
    ] = "60s",
) -> Result:
    """Run a command on the hosts that --limit leaves, at most --forks at a time.

    Its words reach the host as they are, without a shell; for one, say `sh -c '…'`. On a local
    host it runs in the folder of that host. Exit status 5 when it failed on some, or all.
    """
    import shlex

    import trio

    from brokerd.units import parse_duration_ns
    from pubsubctl.hosts.connectors.base import Connector, Ran
    from pubsubctl.hosts.hosts import Lab, reached

    call = invocation(context)
    try:
        timeout_s = parse_duration_ns(timeout) / 1e9
    except ValueError as error:
        raise UserError(f"--timeout: {error}") from None
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    if call.dry_run:
        hosts = ", ".join(connector.host.name for connector in lab.connectors)
        text = f"would run {shlex.join(command)} on {hosts}"
        return Result(document={"schema": "pubsubctl/exec/1", "hosts": []}, text=text)
    done: dict[str, Ran | PubsubctlError] = {}

    async def run_on(connector: Connector) -> None:
        try:
            done[connector.host.name] = await connector.run(command, timeout_s)
        except PubsubctlError as error:
            done[connector.host.name] = error

    trio.run(reached, lab, lambda: lab.on_all(run_on))
    width = max(map(len, done))
    lines: list[str] = []
    rows: list[dict[str, object]] = []
    because: list[PubsubctlError] = []
    for host in (connector.host.name for connector in lab.connectors):
        answer = done[host]
        if isinstance(answer, PubsubctlError):
            because.append(answer)
            rows.append({"host": host, "status": None, "error": str(answer)})
            continue
        out, err = (part.decode("utf-8", "replace") for part in (answer.stdout, answer.stderr))
        lines += [f"{host:{width}} | {visible(line)}" for line in out.splitlines()]
        for line in err.splitlines():
            call.console.say(f"{host:{width}} ! {visible(line)}")
        if answer.status:
            ended = "was ended by a signal" if answer.status < 0 else f"status {answer.status}"
            because.append(HostError(f"host {host}: {command[0]}: {ended}"))
        rows.append({"host": host, "status": answer.status, "stdout": out, "stderr": err})
    if not all(isinstance(error, Unreachable) for error in because) or len(because) < len(done):
        because = [
            HostError(*error.problems) if isinstance(error, Unreachable) else error
            for error in because
        ]
    return Result(
        document={"schema": "pubsubctl/exec/1", "command": command, "hosts": rows},
        text="\n".join(lines),
        because=tuple(because),
    )
