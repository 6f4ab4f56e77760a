"""`inject`: inject faults into a deployment, by a schedule or by a single verb."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands import names
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import PubsubctlError, UserError

if TYPE_CHECKING:
    from brokerd.overlay.topology import Topology
    from fault_injection.schedule.schedule import FaultSchedule
    from pubsubctl.deploying.placement import Placement


def inject(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCHEDULE | VERB TARGET",
            help="A schedule's file, or one verb.",
            autocompletion=names.faults,
        ),
    ] = None,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long: 2.5s, or 2s..3s.")
    ] = None,
    stall: Annotated[
        str | None,
        typer.Option("--stall", metavar="TIME", help="With crash: absorb for so long first."),
    ] = None,
    down: Annotated[
        str | None,
        typer.Option("--down", metavar="TIME", help="With crash: restart so long after the kill."),
    ] = None,
    sig: Annotated[
        str | None,
        typer.Option("--signal", metavar="NAME", help="With kill: which signal; KILL by default."),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            "--latency", metavar="TIME", help="With delay and slow-fsync: how much later."
        ),
    ] = None,
    bytes_per_second: Annotated[
        int | None,
        typer.Option("--bytes-per-second", min=1, help="With bandwidth: how many may pass."),
    ] = None,
    free_bytes: Annotated[
        int | None,
        typer.Option("--free-bytes", min=0, help="With disk-full: how much may still be written."),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            "--share", metavar="SHARE", help="With cpu-share: how much of the time it runs: 25%."
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", help="With partition: blackhole or cut.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", help="With blackhole, cut, partition: broker or nft."),
    ] = None,
    pick: Annotated[
        str | None,
        typer.Option(
            "--pick",
            metavar="N|SHARE",
            help="Draw so many targets: 2 or 17%, out of TARGET (b1,b2) or all.",
        ),
    ] = None,
    chains: Annotated[
        str | None,
        typer.Option(
            "--chains",
            help="With --pick: at most delta in a row (<=delta), or one longer chain (>delta).",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="What is random is drawn from it.")
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option("--topology", help="Check against this topology, not the deployed one."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", help="With --topology: what is to run on it."),
    ] = None,
    only_lint: Annotated[bool, typer.Option("--lint", help="Check only; needs no lab.")] = False,
    preview: Annotated[
        bool,
        typer.Option(
            "--preview",
            help="Print what would happen, with drawn values, and who would be cut off from whom.",
        ),
    ] = False,
    selftest: Annotated[
        bool,
        typer.Option(
            "--selftest", help="Try every verb for brokers on what is deployed, for a moment each."
        ),
    ] = False,
    list_all: Annotated[
        bool,
        typer.Option(
            "--list", help="List verbs (what they need and how they are seen) and schedules."
        ),
    ] = False,
) -> Result:
    """Break brokers and links that are deployed.

    Ends when everything is healed and has recovered.
    """
    call = invocation(context)
    if list_all:
        return _listing(call)
    if selftest:
        if what:
            raise UserError("inject --selftest tries every verb; it takes no other")
        from pubsubctl.injecting.selftest import selftest_now

        return selftest_now(call)
    options = {
        "for": lasts,
        "stall": stall,
        "down": down,
        "signal": sig,
        "latency": latency,
        "bytes_per_second": bytes_per_second,
        "free_bytes": free_bytes,
        "share": share,
        "mode": mode,
        "backend": backend,
    }
    if protocol is not None and topology is None:
        raise UserError(
            f"--protocol {protocol}: only with --topology; what is deployed has its own"
        )
    schedule = _asked_for(call, what or [], options, pick, chains)
    if only_lint or preview or call.dry_run:
        return _preview(call, schedule, seed, topology, protocol, only_lint=only_lint)
    from pubsubctl.injecting.faults import check_by_hand
    from pubsubctl.injecting.injection import inject_now

    def settle(
        known: "Topology", placement: "Placement | None", protocol: str | None
    ) -> "FaultSchedule":
        return _settled(call, schedule, seed, known, placement, protocol)[0]

    check_by_hand(schedule)
    if topology is not None:
        settle(*_topology(call, topology, protocol))
    return inject_now(call, schedule, settle)


def _asked_for(
    call: Invocation,
    words: list[str],
    options: dict[str, Any],
    pick: str | None,
    chains: str | None,
) -> "FaultSchedule":
    """Return the named schedule, or the schedule of a single step on the command line."""
    from brokerd.model.fault_verbs import VERBS
    from pubsubctl.injecting import faults

    if pick is None and chains is not None:
        raise UserError(f"--chains {chains}: only with --pick")
    if pick is not None:
        if words and words[0] in VERBS:
            picked = {**options, "pick": _pick(words, pick, chains)}
            return faults.one_step(words[0], "", picked)
        raise UserError(f"--pick {pick}: only with a VERB; a schedule says it itself")
    if len(words) == 2:
        return faults.one_step(words[0], words[1], options)
    if len(words) != 1:
        raise UserError("inject: name a SCHEDULE, or a VERB and its TARGET; see --list")
    given = [f"--{key.replace('_', '-')}" for key, v in options.items() if v is not None]
    if given:
        raise UserError(f"{', '.join(given)}: only with VERB TARGET; a schedule says it itself")
    return faults.schedule_of(call.project, words[0])


def _settled(
    call: Invocation,
    schedule: "FaultSchedule",
    seed: int | None,
    known: "Topology",
    placement: "Placement | None",
    protocol: str | None,
) -> "tuple[FaultSchedule, list[str]]":
    """Return the schedule with its targets drawn and checked, and the warnings."""
    from pubsubctl.injecting import faults

    settled = faults.settled(schedule, known, seed, placement, protocol)
    warnings = [*faults.checked(settled, known, placement=placement, protocol=protocol)]
    for warning in warnings:
        call.console.warn(warning)
    return settled, warnings


def _preview(
    call: Invocation,
    schedule: "FaultSchedule",
    seed: int | None,
    topology: str | None,
    protocol: str | None,
    *,
    only_lint: bool,
) -> Result:
    """Return the effects of a schedule, without faults."""
    from brokerd.protocols.registry import protocol_on
    from fault_injection.schedule.lint import targets_of
    from fault_injection.schedule.plan import expand
    from pubsubctl.deploying.preview import windows as preview_windows

    known, placement, protocol = _topology(call, topology, protocol)
    settled, warnings = _settled(call, schedule, seed, known, placement, protocol)
    steps = expand(settled)
    machines = placement.machines() if placement else None
    seen = protocol_on(known, protocol)
    targets = targets_of(settled, seen.topology, machines)
    windows = [] if only_lint else preview_windows(steps, targets, seen)
    shown = [*map(str, steps), *(window.text() for window in windows)]
    lines = [f"{schedule.source}: ok, {len(steps)} steps"] if only_lint else shown
    return Result(
        document={
            "schema": "pubsubctl/inject-preview/1",
            "schedule": settled.to_mapping(),
            "seed": settled.seed,
            "steps": [str(step) for step in steps],
            "windows": [window.document() for window in windows],
            "warnings": warnings,
        },
        text="\n".join(lines),
    )


def _pick(words: list[str], count: str, chains: str | None) -> dict[str, Any]:
    """Return the value of `pick` for a schedule."""
    chosen: dict[str, Any] = {"count": int(count) if count.isdecimal() else count}
    if len(words) == 2:
        chosen["from"] = words[1] if words[1] in ("brokers", "links") else words[1].split(",")
    if chains is not None:
        chosen["chains"] = chains
    return chosen


def _topology(
    call: Invocation, name: str | None, protocol: str | None
) -> "tuple[Topology, Placement | None, str | None]":
    """Return the topology to check, with placement and protocol if available.

    The topology is the named topology, or else the deployment's.
    """
    import trio

    from brokerd.overlay.topology import Topology
    from pubsubctl.deploying.placement import Placement
    from pubsubctl.deploying.placing import would_be_placed
    from pubsubctl.deploying.topologies import load_topology
    from pubsubctl.hosts.hosts import Lab, reached
    from pubsubctl.state import recorded_deployment

    if name is not None:
        named = load_topology(call.project.find("topology", name), protocol)
        try:
            inventory = call.inventory()
            return named, would_be_placed(named, inventory, call.hosts(inventory)), protocol
        except PubsubctlError:
            return named, None, protocol
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    record = trio.run(reached, lab, lambda: recorded_deployment(lab))
    if record is None:
        raise UserError("nothing is deployed; name the topology to check against: --topology NAME")
    topology = Topology.from_mapping(record["topology"], "deployment.json")
    return topology, Placement.from_mapping(record["placement"]), record["protocol"]


def _listing(call: Invocation) -> Result:
    from brokerd.model.fault_verbs import VERB_TABLE

    schedules = call.project.names("schedule")
    rows = [
        (
            verb.name,
            " or ".join(verb.on),
            " ".join(["--for TIME"] * verb.lasts + [f"--{_shown(key)}" for key in verb.options]),
        )
        for verb in VERB_TABLE.values()
    ]
    lines = [call.console.table(("VERB", "ON", "OPTIONS"), rows), ""]
    for verb in VERB_TABLE.values():
        lines.append(f"{verb.name}: {verb.effect}")
        lines += [f"  needs: {verb.needs}", f"  seen by: {verb.seen_by}"]
        lines += [f"  undone by: {verb.undone_by}"] * bool(verb.undone_by)
    lines += ["", f"schedules: {', '.join(schedules)}"]
    return Result(
        document={
            "schema": "pubsubctl/inject-list/1",
            "verbs": [
                {
                    "verb": verb.name,
                    "on": " or ".join(verb.on),
                    "lasts": verb.lasts,
                    "options": list(verb.option_names),
                    "effect": verb.effect,
                    "needs": verb.needs,
                    "seen_by": verb.seen_by,
                    "undone_by": verb.undone_by,
                }
                for verb in VERB_TABLE.values()
            ],
            "schedules": schedules,
        },
        text="\n".join(lines),
    )


def _shown(option: str) -> str:
    """Return an option in command line notation; "!" marks required options of a verb."""
    return option.replace("_", "-")
