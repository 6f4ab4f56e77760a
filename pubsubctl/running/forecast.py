"""Predictions of verdicts, as the commands announce them before a run starts."""

from collections.abc import Iterable
from typing import Any

from bench.spec.predictions import Prediction, predictions_of
from bench.spec.spec import ExperimentSpec
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.invocation import Invocation

Run = tuple[str, ExperimentSpec, FaultSchedule | None]
"""A run: its name among the runs of a command, "" for the only one; specification and faults."""


def announce(call: Invocation, runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Print the predictions of all runs, each once, and return them for a JSON document.

    Doubts are warnings. A prediction that holds for some of several runs names them.
    """
    runs = [*runs]
    found: dict[tuple[str, str], tuple[Prediction, list[str]]] = {}
    for name, spec, schedule in runs:
        for each in predictions_of(spec, schedule):
            found.setdefault((each.kind, each.text), (each, []))[1].append(name)
    rows = []
    for (kind, text), (each, names) in found.items():
        of_some = f"{', '.join(names)}: " if len(names) < len(runs) else ""
        if kind == "doubt":
            call.console.warn(f"{of_some}{text}")
        else:
            call.console.say(f"{of_some}{text}")
        rows.append({**each.row(), **({"runs": names} if len(runs) > 1 else {})})
    return rows
