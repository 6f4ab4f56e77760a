"""Try mutants of modules: `python -m tests.mutation MODULE ... --seed S --count N`.

Draws N mutants of every module, and prints the killer of every mutant, then the survivors and a
table. A folder stands for all of its modules. Status 1 if a mutant survives.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.children import Children
from tests.mutation.killers import (
    OF_PROCESSES,
    UNMARKED,
    Bounds,
    Killers,
    Trial,
    Verdict,
    story_job,
)
from tests.mutation.mutants import ROOT, Mutant, mutants_of
from tests.mutation.parts import NEVER, PARTS, equivalents, modules_of, part_of

KILLERS = ("stories", "swarm", "explore", "")


class Attempts:
    """A pytest plugin that tries mutants in place of running the collected tests."""

    def __init__(self, killers: Killers, chosen: Sequence[Mutant]) -> None:
        self._killers = killers
        self._chosen = chosen
        self.verdicts: list[tuple[Mutant, Verdict]] = []
        self.unusable: list[Mutant] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record the blocks of all tests and seeds, then judge the mutants."""
        killers = self._killers
        killers.stories = [Trial(item.nodeid, story_job(session, item)) for item in session.items]
        began_s = time.monotonic()
        killers.record()
        broken = [each for each in (*killers.stories, *killers.seeds) if each.fault]
        _print(
            f"{len(killers.stories)} stories and {len(killers.seeds)} seeds recorded in "
            f"{time.monotonic() - began_s:.0f} s, {len(broken)} left out (too long, or failed)"
        )
        for each in broken:
            if "SIGPROF" not in each.fault:
                _print(f"  left out: {each.name}: {each.fault[-120:]!r}")
        known = equivalents()
        for mutant in self._chosen:
            began_s = time.monotonic()
            verdict = Verdict("equivalent") if mutant.key in known else killers.judge(mutant)
            if verdict is None:
                self.unusable.append(mutant)
                continue
            self.verdicts.append((mutant, verdict))
            by = f" by {verdict.by}" if verdict.by else f", {verdict.trials} trials run it"
            late = " (timeout)" if verdict.is_timeout else ""
            _print(
                f"{verdict.killer or 'SURVIVES':9} {mutant.describe()}{by}{late} "
                f"[{time.monotonic() - began_s:.0f} s]"
            )
        return True


def main(arguments: list[str]) -> int:
    """Try the mutants of all named modules; return the status of the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="+", help="modules or folders, such as brokerd/sessions")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--count", type=int, default=20, help="mutants of each module")
    parser.add_argument("--swarm", type=int, default=6, help="seeds of each protocol")
    parser.add_argument("--explore", type=float, default=6.0, help="seconds per small world")
    parser.add_argument("--stories", type=float, default=10.0, help="seconds per mutant")
    parser.add_argument("--longest", type=float, default=1.0, help="seconds of the longest story")
    parser.add_argument("--only", nargs="*", default=[""], help="texts; mutants that one describes")
    parser.add_argument("--tests", nargs="+", help="tests in place of those of the part")
    parser.add_argument("--children", action="store_true", help="change started processes, too")
    parser.add_argument("--list", action="store_true", help="print the chosen mutants, try none")
    options = parser.parse_args(arguments)
    modules = [module for path in options.modules for module in modules_of(path)]
    _print(f"--seed {options.seed} --count {options.count} --swarm {options.swarm}")
    verdicts: list[tuple[Mutant, Verdict]] = []
    for part in dict.fromkeys(map(part_of, modules)):
        here = [module for module in modules if part_of(module) == part]
        chosen = [each for module in here for each in draw(module, options)]
        if options.list:
            _print("\n".join(each.describe() for each in chosen))
            continue
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            verdicts += _attempt(part, here, chosen, options, Path(folder))
    _print_table(modules, verdicts)
    return any(not verdict.killer for _, verdict in verdicts)


def draw(module: str, options: Any) -> list[Mutant]:
    """Return the drawn mutants of a module, in the order of the source."""
    found = [
        each for each in mutants_of(module) if any(text in each.describe() for text in options.only)
    ]
    drawn = random.Random(f"{options.seed} {module}").sample(found, min(options.count, len(found)))
    return sorted(drawn, key=lambda each: each.number)


def _attempt(
    part: str, modules: list[str], chosen: list[Mutant], options: Any, folder: Path
) -> list[tuple[Mutant, Verdict]]:
    bounds = Bounds(options.longest, options.stories, options.swarm, options.explore)
    children = Children(folder) if options.children else None
    first_seed = 1 + options.seed % 10_000 * 1_000
    killers = Killers(modules, PARTS[part].protocols, bounds, first_seed, children)
    attempts = Attempts(killers, chosen)
    paths = [str(ROOT / path) for path in options.tests or PARTS[part].tests]
    ignored = [f"--ignore-glob=*/{name}" for name in NEVER]
    options_of_tests = ["-qq", "-s", "--no-header", "--no-summary", "-p", "no:cacheprovider"]
    options_of_tests += ["-m", OF_PROCESSES if options.children else UNMARKED]
    status = pytest.main([*options_of_tests, *ignored, *paths], plugins=[attempts])
    assert status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), status
    if attempts.unusable:
        _print(f"{len(attempts.unusable)} mutants cannot be exchanged at run time")
    return attempts.verdicts


def _print_table(modules: list[str], verdicts: list[tuple[Mutant, Verdict]]) -> None:
    _print(f"\n{'module':56} mutants stories swarm explore survive equivalent  rate")
    total: Counter[str] = Counter()
    for module in [*modules, ""]:
        counts = Counter(v.killer for mutant, v in verdicts if mutant.module == module)
        total += counts
        _print(_row(module, counts) if module else _row("all", total))
    for mutant, verdict in verdicts:
        if not verdict.killer:
            _print(f"survivor: {mutant.describe()}  ({verdict.trials} trials run it)")


def _row(name: str, counts: Counter[str]) -> str:
    stories, swarm, explore, alive = (counts[each] for each in KILLERS)
    tried = stories + swarm + explore + alive
    rate = f"{100 * (tried - alive) / tried:4.0f} %" if tried else "   -"
    columns = f"{tried:7} {stories:7} {swarm:5} {explore:7} {alive:7} {counts['equivalent']:10}"
    return f"{name.removeprefix('brokerd/'):56} {columns} {rate}"


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
