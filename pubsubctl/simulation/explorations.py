"""Exhaustive searches of small worlds for the command line: search, report, write a violation."""

import contextlib
import resource
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerd.errors import ConfigError
from brokerd.simulator.checks.protocol_checks import marks_of, with_bugs
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.exploration.exploration import Exploration, Finding, Progress
from brokerd.simulator.search.exploration.history_file import read_history, write_history
from brokerd.simulator.search.exploration.small_world import SmallWorld, WorldState
from brokerd.simulator.search.workers import with_rare_collections
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.text import counted
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.console.outputs import write_output
from pubsubctl.errors import UserError, VerdictInvalid, VerdictUnknown

_SHOWN_EVERY: Final = 50
"""Number of expanded states between two reports of the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorationRequest:
    """The options of `simulate explore`.

    Attributes:
        most_states: the search ends after this number of states.
        most_cpu_s: the search ends after this processor time.
        delay_bound: maximum number of delays of a history; None for no bound.
        output: file for the history of a violation; None for a name of the world.
    """

    world: SmallWorld
    most_states: int
    most_cpu_s: float
    delay_bound: int | None
    output: Path | None


def explore(call: Invocation, request: ExplorationRequest) -> Result:
    """Search a small world.

    Raises:
        UserError: the world is empty or cannot be bounded; names the bound.
    """
    world = request.world
    begin_s = time.process_time()
    try:
        exploration = Exploration(world, delay_bound=request.delay_bound)
        with with_rare_collections(), with_bugs(world.mutants, world.protocol):
            _search(call, exploration, request, begin_s)
    except ConfigError as error:
        raise UserError(str(error)) from None
    return _report(exploration.progress, request, time.process_time() - begin_s)


def _search(
    call: Invocation, exploration: Exploration, request: ExplorationRequest, begin_s: float
) -> None:
    with call.console.progress() as progress:
        progress.phase(f"exploring {request.world.protocol}")
        for expanded, found in enumerate(exploration.run()):
            if found.states >= request.most_states:
                return
            if time.process_time() - begin_s >= request.most_cpu_s:
                return
            if expanded % _SHOWN_EVERY == 0:
                progress.update({"states": found.states, "waiting": found.waiting})


def _report(found: Progress, request: ExplorationRequest, cpu_s: float) -> Result:
    world, finding = request.world, found.finding
    marks, unreached = [*marks_of(world.protocol)], found.unreached(world.protocol)
    per_s = found.transitions / cpu_s if cpu_s else 0.0
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    bounds = _bounds_of(request)
    extent = f"{counted(found.waiting, 'state')} not expanded"
    if found.is_complete:
        extent = f"complete only {' and '.join(bounds)}" if bounds else "complete"
    lines = [
        world.describe(),
        f"{extent}: {counted(found.states, 'state')}, {counted(found.transitions, 'transition')}, "
        f"depth {found.depth}, {counted(found.finals, 'final state')}",
        f"{len(marks) - len(unreached)} of {len(marks)} marks reached; {cpu_s:.1f} s of CPU, "
        f"{per_s:,.0f} transitions/s, {memory >> 20:,} MB",
    ]
    if found.is_complete and unreached:
        lines.append(f"marks not reached: {', '.join(unreached)}")
    path = _write(request, finding) if finding is not None else None
    if finding is not None:
        lines.append(
            f"{finding.violation}\nafter {counted(len(finding.actions), 'action')}: {path}"
        )
    return Result(
        document={
            "schema": "pubsubctl/exploration/1",
            "world": {
                "protocol": world.protocol,
                "brokers": world.brokers,
                "publications": world.publications,
                "subscriptions": world.subscriptions,
                "faults": world.faults,
                "kinds": [*world.kinds],
                "early": world.early,
                "has_lag": world.has_lag,
                "delay_bound": request.delay_bound,
                "mutants": sorted(world.mutants),
                "settings": [*world.settings],
            },
            "complete": found.is_complete and not bounds,
            "complete_within_bounds": found.is_complete,
            "bounds": bounds,
            "states": found.states,
            "transitions": found.transitions,
            "depth": found.depth,
            "finals": found.finals,
            "waiting": found.waiting,
            "marks": [mark.name for mark in marks if mark.name in found.marks],
            "unreached": unreached,
            "rule": finding.rule if finding else "",
            "violation": finding.violation if finding else "",
            "file": str(path) if path else None,
            "cpu_s": round(cpu_s, 3),
            "memory_bytes": memory,
        },
        text="\n".join(lines),
        because=_because(found, request, path),
    )


def _bounds_of(request: ExplorationRequest) -> list[str]:
    """Return the conditions under which an ended search has covered all histories."""
    found = [] if request.world.has_lag else ["without lag of clients and disks"]
    if request.delay_bound is not None:
        found.append(f"within {counted(request.delay_bound, 'delay')}")
    return found


def _because(
    found: Progress, request: ExplorationRequest, path: Path | None
) -> tuple[VerdictInvalid | VerdictUnknown, ...]:
    if found.finding is not None and path is not None:
        command = f"pubsubctl simulate run {_as_argument(path)}"
        return (VerdictInvalid(f"{request.world.protocol}: {found.finding.rule}; {command}"),)
    if not found.is_complete:
        return (
            VerdictUnknown(
                f"the search ended with {counted(found.waiting, 'state')} to expand; "
                "raise --max-states and --max-time, or bound --delay-bound"
            ),
        )
    return ()


def _write(request: ExplorationRequest, finding: Finding) -> Path:
    world = request.world
    named = "".join(f"-{mutant}" for mutant in sorted(world.mutants))
    path = request.output or Path(f"explored-{world.protocol}{named}.history")
    write_output(path, write_history(world, finding))
    return path


def _as_argument(path: Path) -> str:
    """Return a path with a folder, so that no name of a file is taken for a word or a figure."""
    return shlex.quote(str(path) if len(path.parts) > 1 else f"./{path}")


def draw_history(path: Path, text: str) -> tuple[SimulatedCluster, tuple[str, ...]]:
    """Return the cluster after the history in a file, with a trace, and the violation, if any.

    Raises:
        UserError: the file is no history, or an action is impossible.
    """
    try:
        world, actions = read_history(text)
        with with_bugs(world.mutants, world.protocol):
            finding = Exploration(world).play(actions)
            state = WorldState.begin(world, trace=True)
            with contextlib.suppress(InvariantViolated):
                for action in actions:
                    state.perform(action)
    except ConfigError as error:
        raise UserError(f"{path}: {error}") from None
    return state.acted.cluster, (finding.violation,) if finding else ()


def play_history(path: Path, text: str) -> Result:
    """Replay the history of a small world in a file.

    Raises:
        UserError: the file is no history, or an action is impossible.
    """
    try:
        world, actions = read_history(text)
        with with_bugs(world.mutants, world.protocol):
            finding = Exploration(world).play(actions)
    except ConfigError as error:
        raise UserError(f"{path}: {error}") from None
    rule = finding.rule if finding else ""
    return Result(
        document={
            "schema": "pubsubctl/history/1",
            "file": str(path),
            "actions": len(actions),
            "rule": rule,
            "violation": finding.violation if finding else "",
        },
        text=finding.violation if finding else f"{len(actions)} actions: no violation",
        because=(VerdictInvalid(f"{path}: {rule}"),) if finding else (),
    )
