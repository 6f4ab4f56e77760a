"""Runs of the experiments on topics behind proxies, on simulated brokers.

Paper: [MP22] §3, §4.
"""

from collections.abc import Mapping
from pathlib import Path

from bench.papers.mp22.proxy_experiments import Progress, ProxyExperiment, Tables
from bench.papers.mp22.proxy_stories import tell
from bench.run.experiment_folder import write_experiment


def run_proxy_experiment(
    experiment: ProxyExperiment,
    runs: Path,
    progress: Progress,
    labels: Mapping[str, str] | None = None,
) -> Path:
    """Run an experiment and return the new run's folder.

    The same experiment gives the same rows.

    Args:
        runs: the folder of all runs.
    """
    return write_experiment(
        experiment,
        runs,
        "simulation",
        "multi_proxy",
        experiment.scale(),
        labels,
        {},
        lambda: draw_all(experiment, progress),
    )


def draw_all(experiment: ProxyExperiment, progress: Progress) -> Tables:
    """Return the rows of all draws by table, in the order of points and draws."""
    draws = [(point, run) for point in experiment.points() for run in range(experiment.runs)]
    progress.phase(f"simulating {experiment.figure}")
    tables: Tables = {}
    for done, (point, run) in enumerate(draws, 1):
        for name, rows in tell(experiment, point, run).items():
            tables.setdefault(name, []).extend(rows)
        progress.update({"draws": f"{done}/{len(draws)}"})
    return tables
