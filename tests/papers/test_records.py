"""Tests of the records of papers' experiments: found by name, one record per kind of file."""

from pathlib import Path

import pytest

from bench.papers.experiments import (
    experiments,
    figures,
    find_experiment,
    list_measured_figures,
    records,
)
from bench.spec.validation import SpecError
from results.figures.catalogue import FIGURES


def test_every_experiment_has_a_record_or_deployed_brokers() -> None:
    found = experiments()
    assert {each.record.schema for each in found if each.record is not None} == {*records()}
    assert [each.name for each in found if each.is_deployed][:2] == ["ds03-beside", "ds03-churn"]


def test_every_figure_of_an_experiment_can_be_drawn() -> None:
    for each in experiments():
        assert {*each.figures} <= {*FIGURES}, each.path


@pytest.mark.parametrize(
    "name, path",
    [("dft11.fig10", "dft11-fig10"), ("dft11-fig10-small", "dft11-fig10-small"),
     ("ds03.fig8", "ds03-fig7"), ("control.churn", "control-churn")],
)  # fmt: skip
def test_an_experiment_is_found_by_its_figure_or_its_name(name: str, path: str) -> None:
    assert find_experiment(name).path.stem == path


def test_an_experiment_is_found_by_its_file(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(find_experiment("ges.load").path.read_text())
    found = find_experiment(own)
    assert (found.path, found.name, found.figures) == (own, "ges-load", ("ges.load",))


def test_an_unknown_experiment_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"did you mean 'dft11\.fig9'"):
        find_experiment("dft11.fgi9")
    own = tmp_path / "own.toml"
    own.write_text('schema = "pubsubctl/grap-experiment/1"\n')
    with pytest.raises(SpecError, match="did you mean 'pubsubctl/graph-experiment/1'"):
        find_experiment(own)


def test_figures_are_measured_or_simulated() -> None:
    assert list_measured_figures() == ["ds03.jms", "ds03.pfs"]
    assert "dft11.fig9" in figures()
    assert "gd02.fig6" not in figures()
