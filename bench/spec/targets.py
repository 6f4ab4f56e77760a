"""Targets: workloads with bounds on the numbers of a run.

    schema = "pubsubctl/targets/1"
    name = "performance"

    [[targets]]
    id = "P4"
    what = "three brokers in a chain, 1,000/s"
    workload = "chain3-paced"
    expectations = { "latency.p50" = "<= 500us" }

In place of a workload, a target may have a `component`, which is measured by itself. `set` changes
any key of the workload or its topology, with keys as in `bench.spec.keys`. `faults` names a
schedule that is carried out during the run, and `inventory` the hosts. `bench.run.expectations`
describes the expectations.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from bench.run.expectations import Component, Expectation, component_of
from bench.spec.keys import Overrides
from bench.spec.spec import ExperimentSpec, load_experiment, read_toml
from bench.spec.validation import SpecError, validate
from bench.spec.workload_model import EXPERIMENT_NAME
from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest

Scalar = str | int | float | bool


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Target(_Closed):
    """The bounds for one workload, or for one component by itself.

    Attributes:
        workload: "" with a component.
        component: None with a workload.
        faults: a schedule; "" for none.
        inventory: hosts of the run unless the command line names hosts; "" for the hosts of all
            targets.
        set_: changes of the workload by dotted key.
        expectations: bound by metric; at least one.
    """

    id: Annotated[str, Field(pattern=EXPERIMENT_NAME.pattern)]
    what: Annotated[str, Field(min_length=1)]
    workload: str = ""
    component: Component | None = None
    faults: str = ""
    inventory: str = ""
    set_: Annotated[dict[str, Scalar], Field(alias="set", default_factory=dict)]
    expectations: Annotated[dict[str, str], Field(min_length=1)]

    @field_validator("expectations", mode="after")
    @classmethod
    def _can_be_judged(cls, expectations: dict[str, str]) -> dict[str, str]:
        for metric, bound in expectations.items():
            Expectation.of(metric, bound)
        return expectations

    @model_validator(mode="after")
    def _is_one_thing(self) -> "Target":
        if bool(self.workload) == bool(self.component):
            raise ValueError(f"id = {self.id!r}: one of workload and component")
        if self.component and (self.faults or self.inventory or self.set_):
            raise ValueError(f"id = {self.id!r}: faults, inventory and set are for workloads")
        for metric in self.expectations:
            if (component_of(metric) or None) != self.component:
                raise ValueError(f"id = {self.id!r}: {metric} is not measured there")
        return self

    def list_expectations(self) -> list[Expectation]:
        """Return an expectation for each line of `expectations`."""
        return [Expectation.of(metric, bound) for metric, bound in self.expectations.items()]


class Targets(_Closed):
    """All targets of one file."""

    schema_: Annotated[Literal["pubsubctl/targets/1"], Field(alias="schema")]
    name: str
    targets: Annotated[list[Target], Field(min_length=1)]

    @field_validator("targets")
    @classmethod
    def _check_ids(cls, targets: list[Target]) -> list[Target]:
        twice = [each for each, count in Counter(row.id for row in targets).items() if count > 1]
        if twice:
            raise ValueError(f"id = {twice[0]!r} stands there twice")
        return targets

    def select(self, ids: Sequence[str]) -> list[Target]:
        """Return the targets with these ids, in file order; all targets without ids.

        Raises:
            SpecError: an id is unknown; names the nearest id.
        """
        known = [row.id for row in self.targets]
        for each in ids:
            if each not in known:
                raise SpecError(f"targets {self.name}: no target {each!r}{nearest(each, known)}")
        return [row for row in self.targets if not ids or row.id in ids]


def load_targets(path: Path) -> Targets:
    """Return the targets in a file.

    Raises:
        SpecError: the file cannot be used; names file, key, value and valid values.
    """
    return validate(Targets, read_toml(path), str(path))


def experiment_of(target: Target, workload: str | Path, where: str) -> ExperimentSpec:
    """Return the experiment for a target.

    Args:
        workload: the file of the target's workload.
        where: name of the targets in errors.

    Raises:
        SpecError: the experiment is invalid; names target, key, value and valid values.
    """
    keys: dict[str, Any] = dict(target.set_)
    try:
        return load_experiment(workload, Overrides(keys=keys or None), {"target": target.id})
    except ConfigError as error:
        raise SpecError(f"{where}: target {target.id}: {error}") from None
