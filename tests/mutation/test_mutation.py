"""Stories of mutants: their generation, the recorded blocks, and the killers."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from brokerd.protocols.parts import bounds
from tests.mutation import killers, mutants
from tests.mutation.children import Children
from tests.mutation.killers import Bounds, Killers, Trial, in_fork
from tests.mutation.mutants import KINDS, mutants_of, swaps_of_mutant, swaps_with_records
from tests.mutation.parts import PARTS, equivalents, modules_of, part_of

MODULE = "brokerd/protocols/parts/bounds.py"
SAMPLE = '''
def f(self, a, b):
    """A sample."""
    assert a < b
    if a < b and b:
        self.count += 1
    else:
        self.first = self.last = None
    if not a:
        return
    for each in b:
        if each:
            continue
        self.items.clear()
    del self.items[a]
    self.items = {}
    self.state = min(a + 1, b) if b else replace(self.state, a=a, b=b)
    raise ValueError(f"{a < b}")
'''
EXPECTED = {
    ("operand", "a < b and b", "b"),
    ("operand", "a < b and b", "a < b"),
    ("boundary", "a < b", "a <= b"),
    ("statement", "self.count += 1", ""),
    ("reset", "self.first = self.last = None", ""),
    ("field", "self.first", ""),
    ("field", "self.last", ""),
    ("statement", "if not a: ⏎ return", ""),
    ("statement", "continue", ""),
    ("statement", "if each: ⏎ continue", ""),
    ("reset", "self.items.clear()", ""),
    ("reset", "del self.items[a]", ""),
    ("reset", "self.items = {}", ""),
    ("min and max", "min(a + 1, b)", "max(a + 1, b)"),
    ("off by one", "a + 1", "a"),
    ("field", "replace(self.state, a=a, b=b)", "replace(self.state, b=b)"),
    ("field", "replace(self.state, a=a, b=b)", "replace(self.state, a=a)"),
}


def test_each_kind_of_mistake_is_generated_and_assertions_and_errors_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = mutants.Source("sample.py", SAMPLE)
    monkeypatch.setattr(mutants, "read_source", lambda _: source)
    found = mutants_of("sample.py")
    shown = {(each.kind, each.before, each.after) for each in found}
    assert shown >= EXPECTED
    others = {kind for kind, _, _ in shown - EXPECTED}
    assert others == {"branches", "statement"}  # of whole statements, as text of several lines
    assert {each.kind for each in found} | {"condition"} == {*KINDS}
    assert not any("assert" in each.before or "raise" in each.before for each in found)


def test_each_mutant_changes_its_function_and_no_file() -> None:
    sound = mutants.read_source(MODULE)
    found = mutants_of(MODULE)
    assert found
    for mutant in found:
        (function, code), *more = swaps_of_mutant(mutant)
        assert more == []
        assert function.__module__ == bounds.__name__
        assert (code.co_code, code.co_consts) != (
            function.__code__.co_code,
            function.__code__.co_consts,
        )
    assert ast.dump(mutants.read_source(MODULE).tree) == ast.dump(sound.tree)


def test_recorded_blocks_are_those_of_the_mutants() -> None:
    recorded = {
        constant
        for _, code in swaps_with_records(MODULE)
        for constant in code.co_consts
        if isinstance(constant, tuple)
    }
    assert {mutant.block for mutant in mutants_of(MODULE)} <= recorded


def _killers(job: Any) -> Killers:
    found = Killers([MODULE], (), Bounds(seeds=0, explore_s=0), 1)
    found.stories = [Trial("a story", job)]
    found.record()
    return found


def _bound_of_nothing(_: object) -> None:
    killers.in_fork(lambda _: None)


def test_a_story_that_fails_without_a_mutant_takes_no_part() -> None:
    def fail(_: object) -> None:
        raise killers.Detected("it fails")

    assert [each.fault for each in _killers(fail).stories] == ["it fails"]


def test_a_mutant_whose_block_no_story_runs_survives_without_an_attempt() -> None:
    verdict = _killers(_bound_of_nothing).judge(mutants_of(MODULE)[0])
    assert verdict is not None
    assert (verdict.killer, verdict.trials) == ("", 0)


def test_a_process_that_hangs_ends_by_a_signal_and_its_reports_are_kept() -> None:
    def hang(report: killers.Report) -> None:
        report(begins="a story")
        killers.limit(0.05)
        while True:
            pass

    assert in_fork(hang) == ([{"begins": "a story"}], "SIGPROF")


def test_a_process_that_fails_has_a_status() -> None:
    def fail(_: killers.Report) -> None:
        raise SystemExit

    assert in_fork(fail) == ([], "status 70")


QUANTILE = """
import sys
from brokerd.quantiles import quantile
sys.exit(quantile([1, 2], 1.0))
"""


def test_processes_that_a_story_starts_run_the_mutant_and_record_its_block(
    tmp_path: Path,
) -> None:
    module = "brokerd/quantiles.py"
    command = [sys.executable, "-P", "-c", QUANTILE]

    def run(_: object) -> None:
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if ended.returncode != 2:
            raise killers.Detected(f"the largest of two is {ended.returncode} {ended.stderr}")

    found = Killers([module], (), Bounds(seeds=0, explore_s=0), 1, Children(tmp_path))
    found.stories = [Trial("a story", run)]
    found.record()
    assert [each.fault for each in found.stories] == [""]
    here = [each for each in mutants_of(module) if each.function == "quantile"]
    verdicts = {each.before: found.judge(each) for each in here}
    assert {verdict and verdict.trials for verdict in verdicts.values()} == {1}
    dropped = verdicts["math.ceil(share * len(ordered)) - 1"]
    assert dropped is not None
    assert (dropped.killer, dropped.by) == ("stories", "a story")


def test_each_part_has_its_tests_and_modules() -> None:
    for part, row in PARTS.items():
        assert part_of(modules_of(part)[0]) == part
        for path in row.tests:
            assert (mutants.ROOT / path).exists(), path


def test_each_equivalent_is_a_mutant_of_its_module_and_has_a_reason() -> None:
    modules = {key.partition(" ")[0] for key in equivalents()}
    keys = Counter(mutant.key for module in modules for mutant in mutants_of(module))
    lost = [key for key in equivalents() if not keys[key]]
    assert lost == [], "these are no mutants any more"
    assert all(reason and reason[0].islower() for reason in equivalents().values())
