"""Fixtures and hooks of the whole suite: order of tests, workers, Spark, and Hypothesis."""

import gc
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from pubsubctl.lab import network
from tests.helpers.workers import BY_FILE, FilesOfWorkers, begins_with, describe_shares

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadline: other work of the machine determines the duration of an example.
# The examples are the same on every run, so that failures are reproducible; `make explore` draws
# new examples.
settings.register_profile(
    "house", deadline=None, print_blob=True, derandomize=True, max_examples=40
)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))

# Imports modules of tests, which must be decorated under the profile.
from tests.helpers import drawn  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed of the named bugs, for all workers alike.

    Restore the default reaction to Ctrl-C, because background processes ignore the signal.

    Disable the garbage collector: the objects of a collection stay, and a search for garbage takes
    half of the time.
    """
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        config.option.draw_bugs, config.option.draw_bugs_changed = config.workerinput["draw_bugs"]
    elif config.option.keyword:
        config.option.draw_bugs = drawn.ALL
    elif config.option.draw_bugs != drawn.ALL:
        config.option.draw_bugs_changed = drawn.changes(drawn.all_edits())
        if config.option.draw_bugs == drawn.NEW:
            config.option.draw_bugs = drawn.new_seed()


@pytest.hookimpl(optionalhook=True)  # not without xdist
def pytest_configure_node(node: Any) -> None:
    """Send every worker the same seed and the same changes."""
    option = node.config.option
    node.workerinput["draw_bugs"] = option.draw_bugs, getattr(option, "draw_bugs_changed", None)


def pytest_report_header(config: pytest.Config) -> str:
    """Print the seed of the named bugs."""
    return f"named bugs: --draw-bugs={config.option.draw_bugs}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the measurements of the tests: the recorded properties called `measured`.

    Also print the shares of the workers, and the times at which the workers ended.
    """
    found = [each for some in terminalreporter.stats.values() for each in some]
    for line in describe_shares(each for each in found if isinstance(each, pytest.TestReport)):
        terminalreporter.write_line(line)
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "measured" and report.when == "teardown":
                    terminalreporter.write_line(str(value))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the project."""
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write what the simulator does today into the scenario files, for review as a diff",
    )
    parser.addoption(
        "--lab-long", action="store_true", help="every moment and the full times, of lab tests"
    )
    parser.addoption(
        "--draw-bugs",
        default=drawn.ALL,
        metavar="SEED",
        help="plant a third of the named bugs, and all that changed: 'new' for a new seed; "
        "'all' (default) for all",
    )
    parser.addoption("--lab-seed", type=int, help="which moments the lab tests take")


@pytest.hookimpl(optionalhook=True)  # not without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesOfWorkers | None:
    """Return a scheduler with one file per worker; all tests with Spark count as one file."""
    return FilesOfWorkers(config, log) if config.getvalue("dist") == BY_FILE else None


@pytest.fixture(scope="session")
def is_drawn(request: pytest.FixtureRequest) -> Callable[[str], bool]:
    """Return the choice of cases of a long test by the seed of this run."""
    return partial(drawn.is_drawn, seed=request.config.option.draw_bugs)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Yield the Spark session of all tests; its start and its first jobs are slow.

    Commands that tests of the same process run afterwards use this session too.
    """
    from results.checker.spark import SMALL_PLANS, spark_session

    with (
        spark_session("tests", master="local[2]") as session,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("results.checker.spark.spark_session", lambda *_, **__: nullcontext(session))
        # Also outside of `plan_for`: all tables of tests are small.
        for name, value in SMALL_PLANS.items():
            session.conf.set(name, value)
        # Java has it. Later tests of this process start modules of tests from the current folder.
        patch.delenv("PYTHONSAFEPATH")
        yield session


@pytest.fixture
def closed_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the SQLite connections of a test at its end.

    A test leaves a connection open where a process fails. Python 3.13 warns of each such connection
    when the garbage collector finds it, which may be in another test.
    """
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_and_keep(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_and_keep)
    yield
    for connection in opened:
        connection.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put quick and telling tests first: units, simulator, Spark, then whole clusters.

    If workers share the tests, the slowest files start first instead. Tests of labs are skipped if
    no lab is possible, with the reason in the output.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    if config.option.draw_bugs != drawn.ALL:
        _draw_bugs(config, items)
    # A stable sort, so that equal items keep the order of files.
    items.sort(key=begins_with if hasattr(config, "workerinput") else _phase)
    if problems := network.list_missing():
        skip = pytest.mark.skip(reason=f"test hosts: {'; '.join(problems)}")
        for item in items:
            if any(item.iter_markers("lab")):
                item.add_marker(skip)


def _draw_bugs(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the rows of named bugs that this run does not plant, and cases of sampled tests."""
    tests: dict[str, dict[str, set[str]]] = {}
    for item in items:
        for mark in item.iter_markers("drawn"):
            assert isinstance(item, pytest.Function)
            values = item.callspec.params.values()
            about = {each for value in values for each in drawn.depends_on(value, *mark.args)}
            tests.setdefault(item.nodeid.partition("[")[0], {})[item.nodeid] = about
    seed, changed = config.option.draw_bugs, config.option.draw_bugs_changed
    taken = {row for rows in tests.values() for row in drawn.drawn_rows(rows, seed, changed)}
    left = {item for item in items if any(item.iter_markers("drawn")) and item.nodeid not in taken}
    sampled = [item for item in items if any(item.iter_markers("sampled"))]
    cases = drawn.drawn_cases([item.nodeid for item in sampled], seed)
    left |= {item for item in sampled if item.nodeid not in cases}
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    """Exempt lasting objects from garbage collection, which saves a tenth of the time."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def _phase(item: pytest.Item) -> int:
    if item.path.parent.name == "architecture":
        return 0
    if any(item.iter_markers("end_to_end")) or any(item.iter_markers("lab")):
        return 5 if any(item.iter_markers("slow")) else 6
    if any(item.iter_markers("spark")):
        return 4
    if any(item.iter_markers("slow")):
        return 3
    return 2 if "simulator" in item.path.parts else 1
