"""Statements that brokers receive until all of them have the whole connectivity graph.

Paper: [GES] §3 (dissemination of connections).
"""

from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from bench.papers.ges.routing import flooded
from bench.papers.record import ExperimentRecord, RunContext, Tables
from bench.run.experiment_folder import ExperimentFile, Row
from brokerd.overlay.generate import hierarchy


class StatementExperiment(ExperimentFile):
    """A closed description of hierarchies.

    Attributes:
        brokers: numbers of brokers, with a hierarchy for every number.
        fanout: greatest number of members of a unit.
    """

    schema_: Annotated[Literal["pubsubctl/statement-experiment/1"], Field(alias="schema")]
    brokers: Annotated[list[Annotated[int, Field(ge=4, le=512, strict=True)]], Field(min_length=1)]
    fanout: Annotated[int, Field(ge=2, le=64, strict=True)]

    def scale(self) -> Row:
        return {"brokers": max(self.brokers), "fanout": self.fanout}


def compute_rows(experiment: StatementExperiment, context: RunContext) -> Tables:
    """Return the rows of every table; the same experiment gives the same rows."""
    return {"statements": _rows(experiment, context)}


def _rows(experiment: StatementExperiment, context: RunContext) -> Iterator[Row]:
    for brokers in experiment.brokers:
        context.progress.phase(f"{brokers} brokers")
        topology = hierarchy(brokers, experiment.fanout)
        found = flooded(topology, Random(f"{experiment.seed}/{brokers}"))
        yield {"brokers": brokers, "links": len(found.up), "statements": len(found.received)}


RECORD = ExperimentRecord({"": StatementExperiment}, compute_rows, protocol="ges")
