"""Experiments for figures that need no testbed, by name.

There are ten kinds: the shape of a tree alone, the protocol at the papers' scale on simulated
brokers, the protocol around a failure, the links of publications, the growth of hierarchies, slow
links, topics behind proxies, the traffic of changes of subscriptions, the throughput of a disk, and
the commits of brokers on this machine. The schema of a file selects the kind.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.control_traffic.churn_experiment import SCHEMA as CHURN_SCHEMA
from bench.control_traffic.churn_experiment import ChurnExperiment, run_churn_experiment
from bench.papers.dft11.behaviour_experiments import KINDS as BEHAVIOURS
from bench.papers.dft11.behaviour_experiments import SCHEMA as BEHAVIOUR_SCHEMA
from bench.papers.dft11.behaviour_experiments import BehaviourExperiment
from bench.papers.dft11.behaviour_runs import run_behaviour_experiment
from bench.papers.dft11.graph_experiments import SCHEMA as GRAPH_SCHEMA
from bench.papers.dft11.graph_experiments import GraphExperiment, run_graph_experiment
from bench.papers.dft11.simulated_experiments import SCHEMA as SIMULATED_SCHEMA
from bench.papers.dft11.simulated_experiments import (
    Progress,
    SimulatedExperiment,
    run_simulated_experiment,
)
from bench.papers.ds03.consumer_experiments import SCHEMA as CONSUMER_SCHEMA
from bench.papers.ds03.consumer_experiments import ConsumerExperiment, run_consumer_experiment
from bench.papers.ds03.storage_experiments import SCHEMA as STORAGE_SCHEMA
from bench.papers.ds03.storage_experiments import StorageExperiment, run_storage_experiment
from bench.papers.ges.load_experiments import SCHEMA as LINK_LOAD_SCHEMA
from bench.papers.ges.load_experiments import LinkLoadExperiment, run_link_load_experiment
from bench.papers.ges.scale_experiments import SCHEMA as SCALE_SCHEMA
from bench.papers.ges.scale_experiments import ScaleExperiment, run_scale_experiment
from bench.papers.ges.transmission_experiments import SCHEMA as TRANSMISSION_SCHEMA
from bench.papers.ges.transmission_experiments import (
    TransmissionExperiment,
    run_transmission_experiment,
)
from bench.papers.mp22.proxy_experiments import KINDS as PROXY_KINDS
from bench.papers.mp22.proxy_experiments import SCHEMA as PROXY_SCHEMA
from bench.papers.mp22.proxy_experiments import ProxyExperiment
from bench.papers.mp22.proxy_runs import run_proxy_experiment
from bench.spec.spec import BENCH_FOLDER, SpecError, find_file, read_toml, validated
from brokerd.overlay.topology import nearest

Question = TypeVar("Question", BehaviourExperiment, ProxyExperiment)

EXPERIMENTS = BENCH_FOLDER / "experiments"
SIMULATED_SCHEMAS = (
    GRAPH_SCHEMA,
    SIMULATED_SCHEMA,
    BEHAVIOUR_SCHEMA,
    TRANSMISSION_SCHEMA,
    SCALE_SCHEMA,
    LINK_LOAD_SCHEMA,
    PROXY_SCHEMA,
    CHURN_SCHEMA,
)
MEASURED_SCHEMAS = (STORAGE_SCHEMA, CONSUMER_SCHEMA)
SCHEMAS = (*SIMULATED_SCHEMAS, *MEASURED_SCHEMAS)

FigureExperiment = (
    GraphExperiment
    | SimulatedExperiment
    | BehaviourExperiment
    | TransmissionExperiment
    | ScaleExperiment
    | LinkLoadExperiment
    | ProxyExperiment
    | ChurnExperiment
    | StorageExperiment
    | ConsumerExperiment
)


def figures(schemas: Sequence[str] = SIMULATED_SCHEMAS) -> list[str]:
    """Return the figures with an experiment of these kinds."""
    files = map(read_toml, EXPERIMENTS.glob("*.toml"))
    return sorted({str(each.get("figure")) for each in files if each.get("schema") in schemas})


def measured_figures() -> list[str]:
    """Return the figures with an experiment that measures this machine, without simulation."""
    return figures(MEASURED_SCHEMAS)


def is_figure_experiment(path: Path) -> bool:
    """Return True if a file is an experiment for a figure."""
    return path.is_file() and read_toml(path).get("schema") in SCHEMAS


def load_figure_experiment(name: str | Path) -> FigureExperiment:
    """Return the experiment in a file, for a figure (`dft11.fig9`), or with this bare name.

    Raises:
        SpecError: no experiment, or an invalid experiment; names file, key, value and valid values.
    """
    text = str(name)
    if "/" in text or text.endswith(".toml"):
        path = find_file(name, EXPERIMENTS, "experiment")
    else:
        path = EXPERIMENTS / f"{text.replace('.', '-')}.toml"
        if not path.is_file():
            known = [*figures(SCHEMAS), *(path.stem for path in EXPERIMENTS.glob("*.toml"))]
            raise SpecError(f"no figure or experiment called {text!r}{nearest(text, known)}")
    values = read_toml(path)
    match values.get("schema"):
        case str(schema) if schema == GRAPH_SCHEMA:
            return validated(GraphExperiment, values, str(path))
        case str(schema) if schema == SIMULATED_SCHEMA:
            return validated(SimulatedExperiment, values, str(path))
        case str(schema) if schema == BEHAVIOUR_SCHEMA:
            return validated(_asked(BEHAVIOURS, values, path), values, str(path))
        case str(schema) if schema == PROXY_SCHEMA:
            return validated(_asked(PROXY_KINDS, values, path), values, str(path))
        case str(schema) if schema == TRANSMISSION_SCHEMA:
            return validated(TransmissionExperiment, values, str(path))
        case str(schema) if schema == SCALE_SCHEMA:
            return validated(ScaleExperiment, values, str(path))
        case str(schema) if schema == LINK_LOAD_SCHEMA:
            return validated(LinkLoadExperiment, values, str(path))
        case str(schema) if schema == CHURN_SCHEMA:
            return validated(ChurnExperiment, values, str(path))
        case str(schema) if schema == STORAGE_SCHEMA:
            return validated(StorageExperiment, values, str(path))
        case str(schema) if schema == CONSUMER_SCHEMA:
            return validated(ConsumerExperiment, values, str(path))
        case other:
            raise SpecError(f"{path}: schema = {other!r}{nearest(str(other), SCHEMAS)}")


def _asked(
    kinds: Mapping[str, type[Question]], values: Mapping[str, Any], path: Path
) -> type[Question]:
    """Return the kind of experiment for the question of a file."""
    question = str(values.get("question"))
    if question not in kinds:
        raise SpecError(f"{path}: question = {question!r}{nearest(question, [*kinds])}")
    return kinds[question]


def in_full(experiment: FigureExperiment) -> FigureExperiment:
    """Return the experiment with all its draws.

    Raises:
        SpecError: the experiment has no larger size than the usual size.
    """
    if not isinstance(experiment, SimulatedExperiment):
        draws = getattr(experiment, "runs", getattr(experiment, "repetitions", 1))
        raise SpecError(f"--full: {experiment.figure} always makes all {draws} draws")
    return experiment.model_copy(update={"runs": experiment.full_runs})


def run_figure_experiment(
    experiment: FigureExperiment,
    runs: Path,
    progress: Progress,
    processes: int,
    labels: Mapping[str, str] | None = None,
) -> Path:
    """Carry out an experiment.

    Args:
        runs: folder of run folders.
        processes: number of simultaneous simulations.

    Returns:
        The folder of the new run.
    """
    if isinstance(experiment, SimulatedExperiment):
        return run_simulated_experiment(experiment, runs, progress, processes, labels)
    if isinstance(experiment, BehaviourExperiment):
        return run_behaviour_experiment(experiment, runs, progress, processes, labels)
    if isinstance(experiment, TransmissionExperiment):
        return run_transmission_experiment(experiment, runs, progress, labels)
    if isinstance(experiment, ScaleExperiment):
        return run_scale_experiment(experiment, runs, progress.phase, labels)
    if isinstance(experiment, LinkLoadExperiment):
        return run_link_load_experiment(experiment, runs, progress.phase, labels)
    if isinstance(experiment, ChurnExperiment):
        return run_churn_experiment(experiment, runs, progress.phase, labels)
    if isinstance(experiment, ProxyExperiment):
        return run_proxy_experiment(experiment, runs, progress, labels)
    if isinstance(experiment, StorageExperiment):
        return run_storage_experiment(experiment, runs, progress.phase, labels)
    if isinstance(experiment, ConsumerExperiment):
        return run_consumer_experiment(experiment, runs, progress.phase, labels)
    progress.phase(f"{experiment.figure}: {experiment.brokers} brokers")
    return run_graph_experiment(
        experiment, runs, labels, lambda done, of: progress.update({"draws": f"{done}/{of}"})
    )
