"""A command that compiles the test modules as pytest does, before the workers start.

    python -m tests.helpers.compiled

pytest rewrites the assertions of a test module and caches the code. The workers begin at once, so
in a fresh clone each worker would rewrite all modules.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from os import cpu_count
from pathlib import Path

from _pytest.assertion import AssertionState, rewrite
from _pytest.config import get_config

TESTS = Path(__file__).parents[1]


def stale(folder: Path = TESTS) -> Iterator[Path]:
    """Yield the test modules below a folder without cached code, or with old cached code."""
    for path in sorted(folder.rglob("*.py")):
        is_rewritten = path.name == "conftest.py" or path.name.startswith("test_")
        if is_rewritten and rewrite._read_pyc(path, _cache_path(path)) is None:
            yield path


def compile_all(paths: Sequence[Path]) -> None:
    """Rewrite modules and cache their code."""
    config = get_config()
    state = AssertionState(config, "rewrite")
    for path in paths:
        source_hash, code = rewrite._rewrite_test(path, config)
        if rewrite.try_makedirs(_cache_path(path).parent):
            rewrite._write_pyc(state, code, source_hash, _cache_path(path))


def _cache_path(path: Path) -> Path:
    return rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"


if __name__ == "__main__":
    modules = [*stale()]
    processes = min(cpu_count() or 1, len(modules))
    if modules:
        with ProcessPoolExecutor(processes) as pool:
            list(pool.map(compile_all, [modules[n::processes] for n in range(processes)]))
