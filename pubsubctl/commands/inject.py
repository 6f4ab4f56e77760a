"""`inject`: inject faults into a deployment, by a schedule or by a single verb."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokerd.text import counted
from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import PubsubctlError, UserError

if TYPE_CHECKING:
    from brokerd.overlay.topology import Topology
    from fault_injection.schedule.schedule import FaultSchedule
    from pubsubctl.deployment.placement import Placement

_verb_option = options_in("Verb")
_check_option = options_in("Check")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbOptions:
    """Options of a single verb on the command line."""

    lasts: Annotated[
        str | None,
        _verb_option("--for", metavar="TIME", help="End the fault after 2.5s, or 2s..3s."),
    ] = None
    stall: Annotated[
        str | None,
        _verb_option("--stall", metavar="TIME", help="Absorb for this time before a crash."),
    ] = None
    down: Annotated[
        str | None,
        _verb_option("--down", metavar="TIME", help="Restart after this time, in a crash."),
    ] = None
    sig: Annotated[
        str | None,
        _verb_option(
            "--signal", metavar="NAME", show_default="KILL", help="Kill with this signal."
        ),
    ] = None
    latency: Annotated[
        str | None,
        _verb_option("--latency", metavar="TIME", help="Add this time to messages or fsyncs."),
    ] = None
    bytes_per_second: Annotated[
        int | None,
        _verb_option(
            "--bytes-per-second",
            metavar="N",
            min=1,
            help="Let N bytes per second pass, in bandwidth.",
        ),
    ] = None
    free_bytes: Annotated[
        int | None,
        _verb_option("--free-bytes", metavar="N", min=0, help="Leave N bytes free, in disk-full."),
    ] = None
    share: Annotated[
        str | None,
        _verb_option(
            "--share", metavar="SHARE", help="Run for this share of the time, in cpu-share: 25%."
        ),
    ] = None
    mode: Annotated[
        str | None, _verb_option("--mode", metavar="blackhole|cut", help="Partition in this way.")
    ] = None
    backend: Annotated[
        str | None,
        _verb_option(
            "--backend",
            metavar="broker|nft",
            help="Apply blackhole, cut and partition by this backend.",
        ),
    ] = None
    damage: Annotated[
        str | None,
        _verb_option("--damage", metavar="bit|tail", help="Flip a bit, or cut off, in corrupt."),
    ] = None
    file: Annotated[
        str | None,
        _verb_option("--file", metavar="PATTERN", help="Only in files such as 'log/*'."),
    ] = None
    pick: Annotated[
        str | None,
        _verb_option(
            "--pick",
            metavar="N|SHARE",
            help="Draw 2 targets, or 17%, out of TARGET (b1,b2), or out of all.",
        ),
    ] = None
    chains: Annotated[
        str | None,
        _verb_option(
            "--chains",
            metavar="LIMIT",
            help="Draw at most delta in a row (<=delta), or one longer chain (>delta). Requires "
            "--pick.",
        ),
    ] = None

    def step_options(self) -> dict[str, Any]:
        """Return the options of a step by key; None for options that are not given."""
        return {
            "for": self.lasts,
            "stall": self.stall,
            "down": self.down,
            "signal": self.sig,
            "latency": self.latency,
            "bytes_per_second": self.bytes_per_second,
            "free_bytes": self.free_bytes,
            "share": self.share,
            "mode": self.mode,
            "backend": self.backend,
            "damage": self.damage,
            "file": self.file,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Options that check a schedule without faults."""

    topology: Annotated[
        str | None,
        _check_option(
            "--topology", metavar="NAME", help="Check on this topology, not on the deployed one."
        ),
    ] = None
    protocol: Annotated[
        str | None,
        _check_option(
            "--protocol",
            metavar="NAME",
            help="Check for this protocol. Requires --topology.",
            autocompletion=names.protocols,
        ),
    ] = None
    lint: Annotated[bool, _check_option("--lint", help="Check only. Needs no host.")] = False
    preview: Annotated[
        bool,
        _check_option(
            "--preview", help="Print the steps with drawn values, and the pairs that are cut off."
        ),
    ] = False


def inject(
    context: typer.Context,
    verb: VerbOptions,
    check: CheckOptions,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCHEDULE | VERB TARGET",
            help="The file of a schedule, or one verb.",
            autocompletion=names.faults,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Draw from this seed.")
    ] = None,
    selftest: Annotated[
        bool,
        typer.Option("--selftest", help="Try every verb for brokers briefly on the deployment."),
    ] = False,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the verbs with their effects, and the schedules.")
    ] = False,
) -> Result:
    """Inject faults into the deployment, and heal them.

    Ends after all faults are healed and all brokers have recovered.
    """
    call = invocation(context)
    if list_all:
        return _list_verbs(call)
    if selftest:
        if what:
            raise UserError("inject --selftest tries every verb; it takes no other")
        from pubsubctl.injection.selftest import selftest_now

        return selftest_now(call)
    if check.protocol is not None and check.topology is None:
        raise UserError(
            f"--protocol {check.protocol}: only with --topology; a deployment has its own"
        )
    schedule = _schedule_of(call, what or [], verb)
    if check.lint or check.preview or call.dry_run:
        return _preview(call, schedule, seed, check)
    from pubsubctl.injection.faults import check_by_hand
    from pubsubctl.injection.injection import inject_now

    def settle(
        known: "Topology", placement: "Placement | None", protocol: str | None
    ) -> "FaultSchedule":
        return _settle(call, schedule, seed, known, placement, protocol)[0]

    check_by_hand(schedule)
    if check.topology is not None:
        settle(*_topology(call, check.topology, check.protocol))
    return inject_now(call, schedule, settle)


def _schedule_of(call: Invocation, words: list[str], verb: VerbOptions) -> "FaultSchedule":
    """Return the named schedule, or the schedule of a single step on the command line."""
    from brokerd.model.fault_verbs import VERB_TABLE
    from pubsubctl.injection import faults

    options, pick, chains = verb.step_options(), verb.pick, verb.chains
    if pick is None and chains is not None:
        raise UserError(f"--chains {chains}: only with --pick")
    if pick is not None:
        if words and words[0] in VERB_TABLE:
            picked = {**options, "pick": _pick(words, pick, chains)}
            return faults.one_step(words[0], "", picked)
        raise UserError(f"--pick {pick}: only with a VERB; a schedule has its own")
    if len(words) == 2:
        return faults.one_step(words[0], words[1], options)
    if len(words) != 1:
        raise UserError("inject: name a SCHEDULE, or a VERB and its TARGET; see --list")
    if words[0] in VERB_TABLE and words[0] not in call.project.names("schedule"):
        raise UserError(
            f"inject {words[0]}: name its TARGET, a {' or '.join(VERB_TABLE[words[0]].on)}"
        )
    given = [f"--{key.replace('_', '-')}" for key, v in options.items() if v is not None]
    if given:
        raise UserError(f"{', '.join(given)}: only with VERB TARGET; a schedule has its own")
    return faults.schedule_of(call.project, words[0])


def _settle(
    call: Invocation,
    schedule: "FaultSchedule",
    seed: int | None,
    known: "Topology",
    placement: "Placement | None",
    protocol: str | None,
) -> "tuple[FaultSchedule, list[str]]":
    """Return the schedule with its targets drawn and checked, and the warnings."""
    from pubsubctl.injection import faults

    settled = faults.settle_schedule(schedule, known, seed, placement, protocol)
    warnings = [*faults.check_schedule(settled, known, placement=placement, protocol=protocol)]
    for warning in warnings:
        call.console.warn(warning)
    return settled, warnings


def _preview(
    call: Invocation, schedule: "FaultSchedule", seed: int | None, check: CheckOptions
) -> Result:
    """Return the effects of a schedule, without faults."""
    from brokerd.protocols.registry import protocol_on
    from fault_injection.schedule.lint import targets_of
    from fault_injection.schedule.plan import expand
    from pubsubctl.injection.preview import windows as preview_windows

    known, placement, protocol = _topology(call, check.topology, check.protocol)
    on = _description(known, protocol, deployed=check.topology is None)
    try:
        settled, warnings = _settle(call, schedule, seed, known, placement, protocol)
    except UserError as error:
        other = "; --topology NAME names another" if check.topology is None else ""
        raise UserError(*error.problems, f"checked on {on}{other}") from None
    steps = expand(settled)
    machines = placement.machines() if placement else None
    seen = protocol_on(known, protocol)
    targets = targets_of(settled, seen.topology, machines)
    windows = [] if check.lint else preview_windows(steps, targets, seen)
    shown = [*map(str, steps), *(window.text() for window in windows)]
    line = f"{schedule.source}: ok, {counted(len(steps), 'step')} on {on}"
    lines = [line] if check.lint else shown
    return Result(
        document={
            "schema": "pubsubctl/inject-preview/1",
            "schedule": settled.to_mapping(),
            "seed": settled.seed,
            "steps": [str(step) for step in steps],
            "windows": [window.document() for window in windows],
            "topology": known.name,
            "protocol": protocol,
            "warnings": warnings,
        },
        text="\n".join(lines),
    )


def _description(known: "Topology", protocol: str | None, *, deployed: bool) -> str:
    """Return the topology of a check, with the named protocol."""
    of = " of the deployment" if deployed else ""
    return f"{known.name}{of}" + (f", {protocol}" if protocol else "")


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
    from pubsubctl.deployment.newest_record import read_deployment
    from pubsubctl.deployment.placement import Placement
    from pubsubctl.deployment.placement_choice import predict_placement
    from pubsubctl.deployment.topologies import load_topology
    from pubsubctl.hosts.hosts import Lab, run_reaching

    if name is not None:
        named = load_topology(call.project.find("topology", name), protocol)
        try:
            inventory = call.inventory()
            return named, predict_placement(named, inventory, call.hosts(inventory)), protocol
        except PubsubctlError:
            return named, None, protocol
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    record = trio.run(run_reaching, lab, lambda: read_deployment(lab))
    if record is None:
        raise UserError("nothing is deployed; name the topology to check against: --topology NAME")
    topology = Topology.from_mapping(record["topology"], "deployment.json")
    return topology, Placement.from_mapping(record["placement"]), record["protocol"]


def _list_verbs(call: Invocation) -> Result:
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
