"""Swaps of operators in the judges, and the swaps that no test detects.

    python -m tests.helpers.swapped_comparisons [MODULE ...]

prints the undetected swaps of `<` and `<=`, `>` and `>=`, `min` and `max`, `any` and `all`, `+ 1`
and `- 1`. Each swap runs in a process that runs the tests without Spark. No file on disk is
changed. Equivalent swaps are in EQUIVALENT, with the reason;
`tests/results/test_swapped_comparisons.py` tries a drawn sample.
"""

import ast
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]
MODULES: Final = (
    *("results.reference.rule", "results.reference.source", "results.reference.pair"),
    *("results.reference.risk", "results.reference.withholding"),
    *("results.reference.verdict", "results.rules.risks"),
    *("results.rules.withholding", "results.rules.fault_log", "results.rules.verdicts"),
    *("results.reference.times", "results.reference.row_counts", "results.reference.fault_log"),
    *("results.reference.times", "results.reference.withholding", "results.reference.busyness"),
    *("results.reference.streams", "results.rules.timing"),
    *("results.rules.busyness", "results.rules.absences", "results.rules.doubts"),
    *("results.rules.expectation", "results.rules.fault_log", "results.rules.findings"),
    *("results.rules.log_doubts", "results.rules.losses"),
    *("results.rules.pairs", "results.rules.verdict_text", "results.rules.specification"),
    *("results.rules.terms", "results.rules.verdict_text", "results.reference.predicates"),
    *("results.reference.specification", "results.reference.files"),
    *("results.reference.contents", "results.reference.history_reader"),
    "results.reference.broker_events",
)
TESTS: Final = (
    *("coinciding_ends", "promises", "reference_check", "risks", "both_judges", "withholding"),
    *("churn", "expectation", "newcomers", "positions", "clocks", "fault_logs", "row_counts"),
    *("times", "witnesses", "streams", "stretches", "rule_bounds", "busy_machine"),
    *("reference_bounds", "history_reader"),
)
PROCESSES: Final = 2
EQUIVALENT: Final[Mapping[str, str]] = {
    "results.reference.risk: _find_time(other) > _find_time(fault)  ->  "
    "_find_time(other) >= _find_time(fault)": (
        "only a fault itself has the same time and name, and was left out before"
    ),
    "results.reference.streams: there[after] < there[before]  ->  there[after] <= there[before]": (
        "two publications never have one place in a log"
    ),
    "results.reference.withholding: at_ns > gap.received_ns  ->  at_ns >= gap.received_ns": (
        "an absence that begins or ends with the gap's announcement is as long as its last instant"
    ),
    "results.reference.row_counts: rows_seen <= _SAMPLE  ->  rows_seen < _SAMPLE": (
        "a bound of memory: one row of 200,000 has no percentiles"
    ),
    "results.reference.row_counts: numbers <= _SAMPLE  ->  numbers < _SAMPLE": (
        "a bound of memory: one row of 200,000 has no percentiles"
    ),
    "results.reference.times: at < whole  ->  at <= whole": (
        "a part of a load without length has no due times, and is the last"
    ),
    "results.reference.times: lasted > 101000000  ->  lasted >= 101000000": (
        "an arrival 102 ms after the beginning of a stretch of 101 ms is behind its end"
    ),
    "results.rules.timing: lasted_ns > RESOLUTION_NS + 1000000  ->  "
    "lasted_ns >= RESOLUTION_NS + 1000000": (
        "an arrival 102 ms after the beginning of a stretch of 101 ms is behind its end"
    ),
    "results.reference.times: at >= length_ns  ->  at > length_ns": (
        "a drawn time has fractions of a nanosecond, and a length has none"
    ),
    "results.reference.predicates: end >= len(rest)  ->  end > len(rest)": (
        "a quote that is not closed is found one step later"
    ),
    "results.rules.expectation: len(parts) > 1  ->  len(parts) >= 1": (
        "a conjunction or alternative of one part is that part"
    ),
    "results.rules.timing: at_ns >= length_ns  ->  at_ns > length_ns": (
        "a part of a load without length has no due times, and is the last"
    ),
    "results.rules.timing: at >= length_ns  ->  at > length_ns": (
        "a drawn time has fractions of a nanosecond, and a length has none"
    ),
    "results.rules.withholding: first_place < notice.place  ->  first_place <= notice.place": (
        "a delivery and a notice never have one place in a log"
    ),
}
"""Swaps that no test can detect, without their lines, each with the reason."""
_SWAPPED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt
}  # fmt: skip
_CALLED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_STEPPED: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


@dataclass(frozen=True)
class Swap:
    """One place of a module, numbered as `places` yields them."""

    module: str
    place: int

    @property
    def path(self) -> Path:
        """Return the file of the module."""
        return REPOSITORY / (self.module.replace(".", "/") + ".py")

    def source(self) -> tuple[str, int, str]:
        """Return the module with the swap, its line, and the swap in words, as in EQUIVALENT."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        node, turn = [*places(tree)][self.place]
        before = ast.unparse(node)
        _swap(node, turn)
        said = f"{self.module}: {before}  ->  {ast.unparse(node)}"
        return ast.unparse(tree), node.lineno, said

    @property
    def is_equivalent(self) -> bool:
        """Return whether no test can detect the swap."""
        return self.source()[2] in EQUIVALENT


def places(tree: ast.Module) -> Iterator[tuple[ast.expr, int]]:
    """Yield each comparison and call that can be swapped, and the index of the operator."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for turn, operator in enumerate(node.ops):
                if type(operator) in _SWAPPED:
                    yield node, turn
        elif _is_called(node) or _is_stepped(node):
            assert isinstance(node, ast.Call | ast.BinOp), ast.dump(node)
            yield node, 0


def _is_called(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLED
    )


def _is_stepped(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.BinOp)
        and type(node.op) in _STEPPED
        and isinstance(node.right, ast.Constant)
        and node.right.value == 1
    )


def swaps(module: str) -> list[Swap]:
    """Return all swaps of a module."""
    tree = ast.parse(Swap(module, 0).path.read_text(encoding="utf-8"))
    return [Swap(module, place) for place, _ in enumerate(places(tree))]


def _swap(node: ast.expr, turn: int) -> None:
    if isinstance(node, ast.Compare):
        node.ops[turn] = _SWAPPED[type(node.ops[turn])]()
    elif isinstance(node, ast.BinOp):
        node.op = _STEPPED[type(node.op)]()
    else:
        assert isinstance(node, ast.Call), ast.dump(node)
        assert isinstance(node.func, ast.Name), ast.dump(node)
        node.func.id = _CALLED[node.func.id]


class _SwapImporter(MetaPathFinder, InspectLoader):
    """An importer of one module with a swap."""

    def __init__(self, swap: Swap) -> None:
        self._swap = swap

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name == self._swap.module else None

    def is_package(self, fullname: str) -> bool:
        return False

    def get_source(self, fullname: str) -> str:
        return self._swap.source()[0]


def is_seen(swap: Swap, tests: Sequence[str] = TESTS) -> bool:
    """Return whether a test fails with a swap; the process must not have imported a judge."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.meta_path.insert(0, _SwapImporter(swap))
    files = [f"tests/results/test_{name}.py" for name in tests]
    options = ["-x", "-q", "-m", "not spark", "-p", "no:cacheprovider"]
    ended = pytest.main([*options, *files])
    # The swap of a module that `conftest.py` imports may end the import.
    seen = (
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.INTERRUPTED,
        pytest.ExitCode.USAGE_ERROR,
    )
    assert all((REPOSITORY / file).is_file() for file in files), files
    assert ended in (pytest.ExitCode.OK, *seen), f"{tests}: {ended!r}"
    return ended in seen


def survivors(chosen: Sequence[Swap], tests: Sequence[str] = TESTS) -> Iterator[str]:
    """Yield the undetected swaps that are not equivalent, as text."""
    tried = [swap for swap in chosen if not swap.is_equivalent]
    for module in ("numpy", "pandas", "pyarrow", "scipy.stats"):  # once, and not in each process
        import_module(module)
    with get_context("fork").Pool(PROCESSES, maxtasksperchild=1) as pool:
        found = pool.imap(partial(is_seen, tests=tests), tried, chunksize=1)
        for swap, is_known in zip(tried, found, strict=True):
            if not is_known:
                _, line, said = swap.source()
                yield f"{said} (line {line})"


def main(arguments: list[str]) -> int:
    """Print the undetected swaps; return 1 if there are any."""
    chosen = [swap for module in arguments or MODULES for swap in swaps(module)]
    found = 0
    for text in survivors(chosen):
        found += 1
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{found} of {len(chosen)} swaps are not seen\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
