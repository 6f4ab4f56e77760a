"""Tests of the project's experiments on real brokers: figures, files and runs."""

import pytest

from bench.spec.experiment import figures, load_deployed_experiment, points_of
from bench.spec.keys import Overrides


@pytest.mark.parametrize("figure", sorted(figures()))
def test_every_deployed_experiment_has_points_with_distinct_names(
    figure: str,
) -> None:
    experiment = load_deployed_experiment(figure)
    assert figure in {experiment.figure, *experiment.further_figures}
    points = list(points_of(experiment, Overrides()))
    assert {point.spec.workload.protocol for point in points} == {*experiment.protocols}
    assert len({point.name for point in points}) == len(points)
    churns = 2 if experiment.also_without_churn else 1
    assert len(points) == churns * len(experiment.workload) * len(experiment.protocols) * max(
        1, len(experiment.subscribers)
    )


def test_each_workload_is_run_with_churn_and_without() -> None:
    experiment = load_deployed_experiment("ds03.fig4")
    points = {point.name: point.spec for point in points_of(experiment, Overrides())}
    churning, quiet = (
        points[name] for name in ("ds03-peak4-durable-10", "ds03-peak4-durable-10-without-churn")
    )
    assert churning.workload.churn is not None
    assert (quiet.workload.churn, quiet.workload.calm) == (None, True)
    assert len(churning.subscriber_plans()) == len(quiet.subscriber_plans()) == 160
