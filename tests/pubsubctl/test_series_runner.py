"""Tests of the runner of a series on objects: its order, its tear-downs and its announcements."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.run.series import Instance
from brokerd.units import SECOND_NS
from pubsubctl.console.waits import RunTime
from pubsubctl.runs.repetitions import Design, _Runner
from pubsubctl.runs.series import Habits
from tests.helpers.virtual_time import in_virtual_time

RUN = RunTime(0.0, 60.0, 0.0, 0.0, 0.0, is_learnt=True)


class Story:
    """A runner with three remaining runs of a minute, and its acts."""

    def __init__(self, design: Design) -> None:
        self.teardowns: list[bool] = []
        self.printed: list[str] = []
        series: Any = SimpleNamespace(
            remaining=lambda: [Instance("a", 1), Instance("b", 1), Instance("a", 2)],
            fail=lambda instance, why: None,
        )
        lab: Any = None
        times = {"a": RUN, "b": RUN}
        self.runner = _Runner(series, [], Path(), lab, design, times)

        async def run(
            instance: Instance, progress: Any, interruption: Any, *, teardown: bool
        ) -> None:
            self.teardowns.append(teardown)

        stub: Any = run
        self.runner._run = stub  # type: ignore[method-assign]

    async def run(self) -> None:
        progress: Any = SimpleNamespace(print=self.printed.append)
        interruption: Any = None
        await self.runner.run(progress, interruption)


@pytest.mark.parametrize("teardown", [True, False])
@in_virtual_time
async def test_only_the_last_deployment_of_a_series_may_stay(teardown: bool) -> None:
    story = Story(Design(instances=1, habits=Habits(teardown=teardown, check=False)))
    await story.run()
    assert story.teardowns == [True, True, teardown]


@in_virtual_time
async def test_each_run_of_a_series_says_what_is_left_with_itself() -> None:
    story = Story(Design(instances=1, habits=Habits(check=False)))
    await story.run()
    left = [text.partition("(")[2] for text in story.printed if "left)" in text]
    assert left == ["about 3 min left)", "about 2 min left)", "about 60 s left)"]


@pytest.mark.parametrize("budget_s, runs", [(None, 3), (59, 0), (62, 3)])
@in_virtual_time
async def test_no_run_begins_that_would_end_behind_the_budget(
    budget_s: int | None, runs: int
) -> None:
    """The stub takes no time, so the budget suffices for all runs or for none."""
    budget_ns = None if budget_s is None else budget_s * SECOND_NS
    story = Story(Design(instances=1, budget_ns=budget_ns, habits=Habits(check=False)))
    await story.run()
    assert len(story.teardowns) == runs
    assert any("is used" in text for text in story.printed) == (runs == 0)
