"""Experiments on real brokers that are ours: figures, their files, and what is run for them."""

import pytest

from bench.spec.deployed_experiment import figures, load_deployed_experiment, points_of
from bench.spec.spec import Overrides


@pytest.mark.parametrize("figure", sorted(figures()))
def test_every_deployed_experiment_can_be_read_and_its_points_have_names_of_their_own(
    figure: str,
) -> None:
    experiment = load_deployed_experiment(figure)
    assert figure in {experiment.figure, *experiment.further_figures}
    points = list(points_of(experiment, Overrides()))
    assert {point.spec.workload.protocol for point in points} == {*experiment.protocols}
    assert len({point.name for point in points}) == len(points)
    assert len(points) == len(experiment.protocols) * max(1, len(experiment.subscribers))
