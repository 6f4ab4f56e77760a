"""Runs of a series on simulated brokers: the same workload and faults, on a virtual clock."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from bench.spec.spec import ExperimentSpec
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Progress
from pubsubctl.console.interruption import Interruption


@dataclass(frozen=True, slots=True)
class SimulatedRuns:
    """A maker of simulated runs of a point.

    Attributes:
        schedule: the faults; None for none.
    """

    spec: ExperimentSpec
    schedule: FaultSchedule | None

    async def run(
        self, results: Path, progress: Progress, interruption: Interruption
    ) -> tuple[Path, str]:
        """Make a run; return folder and state.

        Raises:
            Interrupted, Terminated: a signal arrived; the partial records stay.
            SpecError, ScheduleError: the run cannot be simulated; with the reason.
        """
        from bench.run.run_directory import RunDirectory, new_run_directory
        from bench.run.simulated import simulate_experiment

        directory = RunDirectory(new_run_directory(results, self.spec.name))
        progress.phase(f"simulating {self.spec.name}")
        simulate = partial(simulate_experiment, self.spec, self.schedule, directory=directory)
        with interruption.stoppable():
            # The simulation never waits, so only a thread lets signals through.
            await trio.to_thread.run_sync(simulate, abandon_on_cancel=True)
        progress.say(f"run {directory.path}")
        return directory.path, str(directory.manifest["state"])
