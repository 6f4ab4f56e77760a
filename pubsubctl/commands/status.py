"""`status`: the state of the deployment."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import HostError, PubsubctlError, Unreachable

if TYPE_CHECKING:
    from pubsubctl.state import BrokerState, LabState


def status(
    context: typer.Context,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again each second. q ends.")
    ] = False,
    detail: Annotated[
        bool, typer.Option("--detail", help="Add the state of each broker's protocol.")
    ] = False,
) -> Result | None:
    """Print the state of brokers, sessions and faults.

    With --watch, also rates, latency and load, before a deployment, too. Without a terminal,
    --watch prints a line per second; with --json, each line is a JSON document.
    """
    import trio

    from pubsubctl.hosts.hosts import Lab, run_reaching
    from pubsubctl.state import LabState, lab_state

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    if watch:
        from pubsubctl.monitor import polling

        last = polling.watch(lab, call.console, call.console.line)
        if call.console.is_screen:
            call.console.line(polling.last_words(last))
        return None

    async def look() -> tuple[LabState, str]:
        state = await lab_state(lab)
        if state.deployment is None or state.unreachable:
            return state, ""
        from pubsubctl.deployment.certificates import (
            PLAINTEXT,
            all_certificates_end,
            warn_of_expiry,
        )

        if state.deployment.get("transport", PLAINTEXT) == PLAINTEXT:
            return state, ""
        return state, warn_of_expiry(await all_certificates_end(lab))

    state, ending = trio.run(run_reaching, lab, look)
    return _result(call, state, ending, hosts=len(lab.connectors), detail=detail)


def _nothing(call: Invocation, state: "LabState") -> Result:
    """Return the result without a deployment, with the name of the inventory."""
    from pubsubctl.deployment.deployment import describe_nothing

    return Result(
        document={
            "schema": "pubsubctl/status/1",
            "deployment": None,
            "unreachable": state.unreachable,
        },
        text=describe_nothing(call.inventory(), is_sure=not state.unreachable),
        because=tuple(HostError(text) for text in state.unreachable.values()),
    )


def _result(
    call: Invocation, state: "LabState", ending: str, *, hosts: int, detail: bool
) -> Result:
    from brokerd.runtime.program import read_own_program

    if state.deployment is None:
        return _nothing(call, state)
    about = state.deployment
    lines = [
        *(_headline(about), _program(state), call.console.table(*_brokers(state))),
        *_notes(state),
        *(
            f"host {host}: the agent does not answer yet; at work there: {holder}"
            for host, holder in state.busy.items()
        ),
    ]
    if detail:
        for row in state.brokers:
            lines += detail_lines(row.broker, row.detail)
    if ending:
        lines.append(f"{ending}: `pubsubctl certificate renew`")
    kind: type[PubsubctlError] = HostError
    if len(state.unreachable) == hosts:
        kind = Unreachable
    return Result(
        document={
            "schema": "pubsubctl/status/1",
            "deployment": {key: about[key] for key in about if key not in ("topology", "host")},
            "topology": about["topology"]["name"],
            "brokers": [
                {key: value for key, value in asdict(row).items() if detail or key != "detail"}
                for row in state.brokers
            ],
            "faults": state.faults,
            "leases_ms": state.leases_ms,
            "full_disks": state.full_disks,
            "programs": {
                "this": read_own_program().to_mapping(),
                "agents": {
                    host: None if each is None else each.to_mapping()
                    for host, each in state.programs.items()
                },
            },
            "differing": state.differing,
            "unreachable": state.unreachable,
            "busy": state.busy,
            "interrupted": state.interrupted,
        },
        text="\n".join(lines),
        because=tuple(
            kind(text) for host, text in state.unreachable.items() if host not in state.busy
        ),
    )


def _headline(about: Mapping[str, Any]) -> str:
    from brokerd.overlay.topology import Topology
    from pubsubctl.deployment.topologies import parameters_in_words

    topology = Topology.from_mapping(about["topology"], "deployment.json")
    parameters = parameters_in_words(topology, about["protocol"])
    return (
        f"deployment {about['deployment_id']}: {about['topology']['name']}, "
        f"{about['protocol']}{parameters}, by {about['who']} since {about['since']}"
    )


def _program(state: "LabState") -> str:
    """Return the common program of all agents and brokers, or a complaint about differences."""
    from brokerd.runtime.program import read_own_program

    if not state.differing:
        return f"program {read_own_program()}"
    return f"not all of it runs this program, {read_own_program()}:"


def _brokers(state: "LabState") -> tuple[tuple[str, ...], list[tuple[str | int | None, ...]]]:
    """Return head and rows of the table of brokers.

    With cores if some broker has a dedicated core.
    """
    from pubsubctl.state import describe_missing

    pinned = any(row.core >= 0 for row in state.brokers)
    rows = [
        (
            row.broker,
            row.host,
            row.port,
            row.pid,
            *([_cores(row)] if pinned else []),
            row.state,
            f"{len(set(row.ready) & set(row.wanted))}/{len(row.wanted)}",
            describe_end(row)
            or ", ".join(row.faults)
            or describe_missing({*row.wanted} - {*row.ready}, row.obstacles),
        )
        for row in state.brokers
    ]
    return ("BROKER", "HOST", "PORT", "PID", *["CORE"] * pinned, "STATE", "SESSIONS", ""), rows


def _notes(state: "LabState") -> Iterator[str]:
    for rows in state.differing.values():
        yield from rows
    for row in state.faults:
        peer = row.get("peer") or ""
        yield f"fault {row['fault_id']}: {row['verb']} {row['process']} {peer}".rstrip()
    for broker in state.brokers:
        yield from (f"broker {broker.broker}: {each}" for each in broker.discrepancies)
    for host, text in state.full_disks.items():
        yield f"host {host}: {text}"
    for command in dict.fromkeys(state.interrupted.values()):
        yield f"{command}, was interrupted; repeat it, or `pubsubctl down`"
    for host, left_ms in state.leases_ms.items():
        left_s = left_ms / 1000
        yield (
            f"host {host}: kept up by the command that deployed it; when that has ended, it stops "
            f"within {left_s:.0f} s"
        )


def detail_lines(broker: str, detail: Mapping[str, Any]) -> Iterator[str]:
    """Yield the state that a broker's protocol prints, a line for each value."""
    yield f"broker {broker}:" if detail else f"broker {broker}: no further state"
    yield from _indented(detail, 1)


def _indented(values: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, value in values.items():
        start = f"{'  ' * depth}{key}:"
        if isinstance(value, Mapping) and value:
            yield start
            yield from _indented(value, depth + 1)
        elif isinstance(value, list) and value:
            yield f"{start} {', '.join(map(str, value))}"
        else:
            yield f"{start} {'none' if value in (None, [], {}, '') else value}"


def _cores(row: "BrokerState") -> str:
    """Return a broker's permitted cores in /proc, and the assigned core if different."""
    if row.cores is None:
        return ""
    seen = ",".join(map(str, row.cores))
    return seen if row.core < 0 or row.cores == (row.core,) else f"{seen}, not {row.core}"


def describe_end(row: "BrokerState") -> str:
    """Return the cause of an exit, and a loss with the command that helps; "" without both."""
    is_stated = not row.loss or row.loss in row.exit
    loss = "" if is_stated else f"{row.loss}: see `pubsubctl help restore`"
    return "; ".join(filter(None, (row.exit, loss)))
