"""Options of simulated runs: seeds, protocol, named bugs and parameters."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokerd.errors import ConfigError
from brokerd.text import nearest
from brokerd.units import SECOND_NS, parse_duration_ns
from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.console.console import Console
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

if TYPE_CHECKING:
    from brokerd.simulator.search.exploration.small_world import SmallWorld
    from brokerd.simulator.search.swarm import SwarmOptions

_seeds_option = options_in("Seeds")
_protocol_option = options_in("Protocol")
_world_option = options_in("World")
_search_option = options_in("Search")

SEEDS = "1..20"
Seeds = Annotated[str, _seeds_option("--seeds", metavar="A..B", help="Run the seeds from A to B.")]
Mutants = Annotated[
    list[str] | None,
    _protocol_option(
        "--mutant", metavar="NAME", help="Give every broker this named bug. Repeatable."
    ),
]
Parameters = Annotated[
    list[str] | None,
    _protocol_option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a parameter in every seed, also one that brokers refuse. Repeatable.",
    ),
]
SimulatedProtocol = Annotated[
    str | None,
    _protocol_option(
        "--protocol", metavar="NAME", help="Run this protocol.", autocompletion=names.protocols
    ),
]
RunsOfEach = Annotated[
    int | None, _seeds_option("--runs", metavar="N", min=1, help="Run each N times.")
]
Ledger = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        rich_help_panel="Results",
        help="Add the counts of these runs to a file.",
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        "--processes", metavar="N", min=0, help="Run N simulations at a time; 0 for one per core."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
    """Options that no seed decides."""

    protocol: SimulatedProtocol = None
    mutants: Mutants = None
    campaign: Annotated[
        str,
        _seeds_option(
            "--campaign",
            metavar="ROW",
            help="Take topology and failures of this row of the campaign.",
        ),
    ] = ""
    profile: Annotated[
        str,
        _protocol_option(
            "--profile",
            metavar="NAME",
            help="Take a profile of the protocol: robust, paper or paper-literal. The last must "
            "fail.",
        ),
    ] = ""
    settings: Parameters = None
    moves: Annotated[
        bool, _seeds_option("--moves", help="Also move clients, and let brokers join and leave.")
    ] = False

    def check(self, console: Console, *, refuses_profile: str = "") -> "SwarmOptions":
        """Return the checked options.

        Args:
            refuses_profile: an option that does not go with a profile; "" for none.

        Raises:
            UserError: a value is unknown; names the nearest.
        """
        from brokerd.simulator.search.swarm import SwarmOptions
        from pubsubctl.simulation import swarms

        protocol = protocol_of(self.protocol)
        swarms.check_rows([self.campaign] if self.campaign else [])
        chosen = tuple(self.settings or ())
        swarms.check_settings(chosen, protocol)
        if self.profile:
            _check_profile(console, self.profile, protocol, refuses_profile)
        return SwarmOptions(
            mutants=mutants_of(self.mutants),
            campaign=self.campaign,
            profile=self.profile,
            settings=chosen,
            moves=self.moves,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """Bounds of a small world and of its search."""

    protocol: SimulatedProtocol = None
    brokers: Annotated[int, _world_option("--brokers", metavar="N", help="Build N brokers.")] = 3
    publications: Annotated[
        int, _world_option("--publications", metavar="N", help="Publish N times.")
    ] = 2
    subscriptions: Annotated[
        int,
        _world_option(
            "--subscriptions", metavar="N", help="Begin N subscriptions, each at any moment."
        ),
    ] = 1
    faults: Annotated[
        int, _world_option("--faults", metavar="N", help="Inject N faults, each at any moment.")
    ] = 1
    kinds: Annotated[
        list[str] | None,
        _world_option(
            "--kind",
            metavar="KIND",
            help="Allow this kind of fault: crash, fail, cut, suspect or leave. Repeatable.",
        ),
    ] = None
    early: Annotated[
        int,
        _world_option(
            "--early", metavar="N", help="Fire N deadlines although something else can happen."
        ),
    ] = 0
    has_lag: Annotated[
        bool,
        _world_option(
            "--lag/--no-lag",
            help="Let clients and disks act at any moment, or at once; see `help simulation`.",
        ),
    ] = True
    delay_bound: Annotated[
        int | None,
        _search_option(
            "--delay-bound",
            metavar="N",
            help="Deliver oldest first, with at most N exceptions in a history.",
        ),
    ] = None
    most_states: Annotated[
        int, _search_option("--max-states", metavar="N", help="End after this number of states.")
    ] = 1_000_000
    most_time: Annotated[
        str, _search_option("--max-time", metavar="TIME", help="End after this processor time.")
    ] = "1h"

    @property
    def most_cpu_s(self) -> float:
        """The limit of the processor time, in seconds.

        Raises:
            UserError: the text is no duration, or no time.
        """
        try:
            limit_ns = parse_duration_ns(self.most_time)
        except ValueError as error:
            raise UserError(f"--max-time = {shown(self.most_time)}: {error}") from None
        if not limit_ns:
            raise UserError("--max-time = 0; a search needs a bound above 0")
        return limit_ns / SECOND_NS

    def world(self, mutants: frozenset[str], settings: tuple[str, ...]) -> "SmallWorld":
        """Return the checked world.

        Raises:
            UserError: a bound or kind is invalid; names the bound.
        """
        from brokerd.simulator.search.exploration.small_world import FAULT_KINDS, SmallWorld

        if self.most_states < 1:
            raise UserError(f"--max-states = {self.most_states}; a search needs a bound above 0")
        if self.delay_bound is not None and self.delay_bound < 0:
            raise UserError(f"--delay-bound = {self.delay_bound}; at least 0")
        world = SmallWorld(
            protocol=protocol_of(self.protocol),
            brokers=self.brokers,
            publications=self.publications,
            subscriptions=self.subscriptions,
            faults=self.faults,
            kinds=tuple(self.kinds or FAULT_KINDS),
            early=self.early,
            has_lag=self.has_lag,
            mutants=mutants,
            settings=settings,
        )
        try:
            world.check()
        except ConfigError as error:
            raise UserError(str(error)) from None
        return world


def protocol_of(name: str | None) -> str:
    """Return the protocol of a name, or the usual protocol.

    Raises:
        UserError: the protocol is unknown; names the nearest.
    """
    from brokerd.protocols.registry import DEFAULT, DEFINITIONS

    protocol = name or DEFAULT
    if protocol not in DEFINITIONS:
        raise UserError(f"no protocol called {shown(protocol)}{nearest(protocol, [*DEFINITIONS])}")
    return protocol


def mutants_of(names: list[str] | None) -> frozenset[str]:
    """Return the named bugs.

    Raises:
        UserError: a name is unknown; names the nearest.
    """
    from brokerd.simulator.checks.protocol_checks import bug_names

    for name in names or ():
        if name not in bug_names():
            raise UserError(f"no mutant called {shown(name)}{nearest(name, bug_names())}")
    return frozenset(names or ())


def seeds_of(text: str) -> tuple[int, int]:
    """Return the first and the last seed of a range.

    Raises:
        UserError: the text is no range.
    """
    found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text)
    if not found:
        raise UserError(f"--seeds = {shown(text)}; write 7 or 1..500")
    first = int(found[1])
    last = int(found[2]) if found[2] is not None else first
    if last < first:
        raise UserError(f"--seeds = {shown(text)}: runs backwards; {last}..{first}?")
    return first, last


def processes_of(number: int) -> int:
    """Return the number of simultaneous simulations; one per core for 0."""
    return number or os.cpu_count() or 1


def _check_profile(console: Console, profile: str, protocol: str, refuses: str) -> None:
    from brokerd.simulator.checks.protocol_checks import planning_of

    planning = planning_of(protocol)
    if refuses or not planning.profiles:
        raise UserError(f"--profile is not for {refuses or protocol}")
    if profile not in planning.profiles:
        known = nearest(profile, tuple(planning.profiles))
        raise UserError(f"no profile called {shown(profile)}{known}")
    for warning in planning.in_profile(planning.parameters(1, {}), profile).warnings():
        console.warn(warning)
