"""The killers of mutants: stories of the suite, seeds of a swarm, and all states of a small world.

An attempt runs in a process that is forked from this process, after the tests were collected, with
the code of one function exchanged. The process ends at the first detection. A process in which a
story or seed needs ten times the usual processor time is killed, which counts as a detection.

First, stories and seeds run once without a mutant, and record the executed blocks of statements.
Only stories and seeds that run the block of a mutant can detect the mutant.
"""

import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

from brokerd.simulator.search.exploration.exploration import Exploration
from brokerd.simulator.search.exploration.small_world import SmallWorld
from brokerd.simulator.search.swarm import SwarmOptions, run_seed
from tests.mutation.children import Children
from tests.mutation.mutants import Block, Mutant, Swap, swaps_of_mutant, swaps_with_records

WAITS_S: Final = 60
"""Limit of the waiting time of a story or seed, whatever the processor time."""
UNMARKED: Final = "not (spark or end_to_end or lab or report or slow or drawn)"
OF_PROCESSES: Final = "not (spark or lab or report or slow or drawn)"

PROMISES_NOTHING: Final = ("best_effort",)
"""Protocols that lose publications by design if there are faults: their runs have none."""

Report = Callable[..., None]
Job = Callable[[Report], None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the effort.

    Attributes:
        story_s: longest story or seed that takes part, in seconds of processor time.
        mutant_s: seconds of processor time of the stories for one mutant, and of the seeds.
        seeds: number of swarm seeds of each protocol.
        explore_s: seconds of processor time of one exploration; 0 for none.
    """

    story_s: float = 1.0
    mutant_s: float = 10.0
    seeds: int = 6
    explore_s: float = 6.0


@dataclass(slots=True)
class Trial:
    """A story or seed with the usual processor time and the executed blocks.

    Attributes:
        fault: words of a failure without any mutant; "" for a usable trial.
        patience: multiple of the longest processor time of a story.
    """

    name: str
    job: Job
    patience: int = 1
    cpu_s: float = 0.0
    blocks: set[tuple[str, Block]] = field(default_factory=set)
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fate of a mutant.

    Attributes:
        killer: "stories", "swarm", "explore"; "" for a survivor.
        by: the detecting story, seed or world.
        is_timeout: the mutant was killed because of the time limit.
        trials: number of stories and seeds that run the block.
    """

    killer: str
    by: str = ""
    is_timeout: bool = False
    trials: int = 0


class Killers:
    """All killers of the mutants of some modules.

    Args:
        modules: paths of the modules whose blocks are recorded.
        protocols: the protocols whose seeds and worlds are tried.
        children: changes the modules of processes that stories start, too; None for no process.
    """

    def __init__(
        self,
        modules: Sequence[str],
        protocols: Sequence[str],
        bounds: Bounds,
        first_seed: int,
        children: Children | None = None,
    ) -> None:
        self._children = children
        self._modules = modules
        self._records = [swap for module in modules for swap in swaps_with_records(module)]
        self._bounds = bounds
        self._protocols = protocols
        self.stories: list[Trial] = []
        self.seeds = [
            Trial(f"{protocol}, seed {seed}", _seed_job(protocol, seed), 10)
            for seed in range(first_seed, first_seed + bounds.seeds)
            for protocol in protocols
        ]

    def record(self) -> None:
        """Run all stories and seeds once, and record the executed blocks."""
        waiting = [*self.stories, *self.seeds]
        while waiting:
            found, ended = in_fork(partial(self._record, waiting))
            done = [row for row in found if "cpu_s" in row]
            for trial, row in zip(waiting, done, strict=False):
                trial.cpu_s, trial.fault = row["cpu_s"], row["fault"]
                trial.blocks = {(module, (line, column)) for module, line, column in row["blocks"]}
            waiting = waiting[len(done) :]
            if waiting:  # the first of them ended the process
                waiting.pop(0).fault = ended or "no record"

    def _record(self, trials: list[Trial], report: Report) -> None:
        _exchange(self._records)
        if self._children is not None:
            self._children.record([*self._modules])
        reached = {module: vars(_loaded(module))["__reached__"] for module in self._modules}
        for trial in trials:
            limit(self._bounds.story_s * trial.patience)
            for each in reached.values():
                each.clear()
            began_s, fault = _cpu_s(), ""
            try:
                trial.job(report)
            except Detected as detected:
                fault = str(detected)
            blocks = [(module, *block) for module, some in reached.items() for block in some]
            if self._children is not None:
                blocks += [(module, *block) for module, block in self._children.take_reached()]
            report(cpu_s=_cpu_s() - began_s, fault=fault, blocks=blocks)

    def judge(self, mutant: Mutant) -> Verdict | None:
        """Return the fate of a mutant; None if the function cannot be changed."""
        swaps = swaps_of_mutant(mutant)
        if not swaps:
            return None
        place = (mutant.module, mutant.block)
        tried = 0
        for killer, trials in (("stories", self.stories), ("swarm", self.seeds)):
            chosen = [each for each in trials if not each.fault and place in each.blocks]
            chosen = _within(sorted(chosen, key=lambda each: each.cpu_s), self._bounds.mutant_s)
            tried += len(chosen)
            plant = partial(self._plant, mutant, swaps)
            if chosen and (verdict := _try(killer, plant, chosen, tried)):
                return verdict
        if self._bounds.explore_s:
            worlds = [
                Trial(f"world of {each}", _world_job(each, self._bounds.explore_s))
                for each in self._protocols
            ]
            plant = partial(self._plant, mutant, swaps)
            if verdict := _try("explore", plant, worlds, tried, self._bounds.explore_s):
                return verdict
        return Verdict("", trials=tried)

    def _plant(self, mutant: Mutant, swaps: list[Swap]) -> None:
        _exchange(swaps)
        if self._children is not None:
            self._children.plant(mutant)


def _within(trials: list[Trial], most_s: float) -> list[Trial]:
    """Return the first trials that need no more than a time together; at least the first."""
    spent = 0.0
    chosen: list[Trial] = []
    for trial in trials:
        spent += trial.cpu_s
        if chosen and spent > most_s:
            break
        chosen.append(trial)
    return chosen


def _try(
    killer: str,
    plant: Callable[[], None],
    trials: list[Trial],
    tried: int,
    more_s: float = 0.0,
) -> Verdict | None:
    def run(report: Report) -> None:
        plant()
        for trial in trials:
            report(begins=trial.name)
            limit(2 + 10 * trial.cpu_s + 3 * more_s)
            try:
                trial.job(report)
            except Detected:
                report(seen=trial.name)
                return
        report(seen="")

    found, ended = in_fork(run)
    last = found[-1] if found else {}
    if "seen" in last:
        return Verdict(killer, last["seen"], False, tried) if last["seen"] else None
    return Verdict(killer, last.get("begins", ended), "SIG" in ended, tried)


# ---------------------------------------------------------------- jobs


class Detected(Exception):
    """A story failed, or a seed or world has a violation."""


def story_job(session: pytest.Session, item: pytest.Item) -> Job:
    """Return the job that runs a test of a collected session."""

    def run(_: Report) -> None:
        for phase in runtestprotocol(item, log=False, nextitem=None):
            if phase.failed:
                raise Detected(phase.longreprtext[-300:])

    del session
    return run


def _seed_job(protocol: str, seed: int) -> Job:
    def run(_: Report) -> None:
        found = run_seed(seed, protocol, SwarmOptions(faults=protocol not in PROMISES_NOTHING))
        if found.violations:
            raise Detected(found.violations[0])

    return run


def _world_job(protocol: str, most_s: float) -> Job:
    def run(_: Report) -> None:
        faults = int(protocol not in PROMISES_NOTHING)
        world = SmallWorld(protocol=protocol, brokers=2, publications=1, faults=faults)
        exploration = Exploration(world)
        began_s = _cpu_s()
        for progress in exploration.run():
            if progress.finding is not None or _cpu_s() - began_s > most_s:
                break
        if (finding := exploration.progress.finding) is not None:
            raise Detected(finding.violation)

    return run


# ---------------------------------------------------------------- processes


def in_fork(job: Job) -> tuple[list[dict[str, Any]], str]:
    """Run a job in a forked process; return the reports, and the signal or status of the end."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        _run_child(job, writing)
    os.close(writing)
    rows = [json.loads(line) for line in _lines(reading)]
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return rows, signal.Signals(-code).name if code < 0 else f"status {code}" if code else ""


def _run_child(job: Job, writing: int) -> None:
    status = 70
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)

        def report(**row: object) -> None:
            os.write(writing, (json.dumps(row) + "\n").encode())

        job(report)
        status = 0
    finally:
        os._exit(status)


def _lines(reading: int) -> Iterator[str]:
    """Yield the lines of a pipe; a process that outlives the parent does not keep the pipe open."""
    content = b""
    while select.select([reading], [], [], 4 * WAITS_S)[0] and (more := os.read(reading, 1 << 16)):
        content += more
    os.close(reading)
    yield from content.decode().splitlines()


def limit(cpu_s: float) -> None:
    """End this process by a signal after a processor time, and after a longer time anyway."""
    for number, timer, after_s in (
        (signal.SIGPROF, signal.ITIMER_PROF, cpu_s),
        (signal.SIGALRM, signal.ITIMER_REAL, cpu_s + WAITS_S),
    ):
        signal.signal(number, signal.SIG_DFL)
        signal.setitimer(timer, after_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _exchange(swaps: Iterable[Swap]) -> None:
    for function, code in swaps:
        function.__code__ = code


def _loaded(module: str) -> Any:
    return import_module(module.removesuffix(".py").replace("/", "."))
