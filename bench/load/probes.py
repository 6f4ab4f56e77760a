"""What brokers cost: their processor time, over restarts, from what their agents see."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ProcessorTime:
    """Processor time of named processes, summed over their restarts.

    What a killed process used after the last sample is lost: sample often.
    """

    _used_s: dict[str, dict[tuple[int, int], float]] = field(default_factory=dict)

    def sample(self, processes: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what agents report: name → {"pid", "start_time", "processor_s"}."""
        for name, row in processes.items():
            if (used_s := row["processor_s"]) is not None:
                used = self._used_s.setdefault(name, {})
                used[row["pid"], row["start_time"]] = used_s

    def totals_s(self) -> dict[str, float]:
        """Seconds by name, of all that was sampled so far."""
        return {name: sum(used.values()) for name, used in self._used_s.items()}
