"""Scenarios of the best-effort baseline."""

from pathlib import Path

import pytest

from tests.helpers.scenario import play, scenario_files


@pytest.mark.parametrize("path", scenario_files(__file__), ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    """Play a scenario; --rewrite-scenarios records today's behaviour for review."""
    play(path, rewrite=request.config.getoption("--rewrite-scenarios"))
