"""Processor time of brokers over restarts, from the reports of their agents."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ProcessorTime:
    """Processor time of named processes, summed over their restarts.

    The processor time of a killed process after the last sample is lost: sample often.
    """

    _used_s: dict[str, dict[tuple[int, int], float]] = field(default_factory=dict)

    def sample(self, processes: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the reports of agents: name → {"pid", "start_time", "processor_s"}."""
        for name, row in processes.items():
            if (used_s := row["processor_s"]) is not None:
                used = self._used_s.setdefault(name, {})
                used[row["pid"], row["start_time"]] = used_s

    def totals_s(self) -> dict[str, float]:
        """Return the seconds by name, over all samples so far."""
        return {name: sum(used.values()) for name, used in self._used_s.items()}
