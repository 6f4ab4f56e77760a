"""What holds for the whole suite: the order of the tests, and how Hypothesis is set."""

import os
import signal

import pytest
from hypothesis import settings

from pubsubctl.lab import requirements

# No deadline: how long an example takes says more about the machine's other work than about us.
# The same examples on every run, so that a red suite is red for everybody; `make explore` looks
# for new ones.
settings.register_profile("house", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))


def pytest_configure() -> None:
    """Let the programs under test hear Ctrl-C: what is started in the background ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the tests measured: what they recorded as a property called `measured`."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "measured" and report.when == "teardown":
                    terminalreporter.write_line(str(value))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of our own."""
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write what the simulator does today into the scenario files, for review as a diff",
    )
    parser.addoption(
        "--lab-long", action="store_true", help="every moment and the full times, of lab tests"
    )
    parser.addoption("--lab-seed", type=int, help="which moments the lab tests take")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what is quick and says most first: units, simulator, Spark, then whole clusters.

    Of those the longest begin, because others run beside them.
    Where no lab can be made, its tests are skipped, with the reason on the line that says so.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    items.sort(key=_phase)  # stable, so that each phase keeps the order of its files
    if problems := requirements.missing():
        skip = pytest.mark.skip(reason=f"test hosts: {'; '.join(problems)}")
        for item in items:
            if any(item.iter_markers("lab")):
                item.add_marker(skip)


def _phase(item: pytest.Item) -> int:
    if item.path.name == "test_architecture.py":
        return 0
    if any(item.iter_markers("end_to_end")) or any(item.iter_markers("lab")):
        return 5 if any(item.iter_markers("slow")) else 6
    if any(item.iter_markers("spark")):
        return 4
    if any(item.iter_markers("slow")):
        return 3
    return 2 if "simulator" in item.path.parts else 1
