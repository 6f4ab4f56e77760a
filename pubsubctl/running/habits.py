"""Settings of the runs of a series that do not change what is measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bench.spec.experiment import Point

_Point = TypeVar("_Point", bound=Point)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Labels of runs, and the acts after the last run.

    Attributes:
        labels: labels of each run, beside those of the series.
        check: True to judge all runs after the last one.
        teardown: False to keep the brokers of the last run, if it deployed them.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    check: bool = True
    teardown: bool = True

    def labelled(self, point: _Point) -> _Point:
        """Return a point with these labels; labels of the point win."""
        labels = {**self.labels, **point.spec.labels}
        return replace(point, spec=replace(point.spec, labels=labels))
