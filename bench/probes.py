"""What brokers cost: their processor time, over restarts, from what the kernel counts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int, start_time: int) -> float | None:
    """User and system time of the process that started then; None when it is gone."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the name in brackets, and may hold spaces and brackets itself.
    fields = content[content.rindex(b")") + 2 :].split()
    if int(fields[19]) != start_time:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@dataclass
class ProcessorTime:
    """Processor time of named processes, summed over their restarts.

    Only for processes of this machine. What a killed process used after the last sample is
    lost: sample often.
    """

    _used_s: dict[str, dict[tuple[int, int], float]] = field(default_factory=dict)

    def sample(self, processes: Mapping[str, Mapping[str, Any]]) -> None:
        """Look at processes now: name → {"pid", "start_time"} as agents report them."""
        for name, row in processes.items():
            pid, start_time = row.get("pid"), row.get("start_time")
            if pid is None or start_time is None:
                continue
            used_s = processor_seconds(pid, start_time)
            if used_s is not None:
                self._used_s.setdefault(name, {})[pid, start_time] = used_s

    def totals_s(self) -> dict[str, float]:
        """Seconds by name, of all that was sampled so far."""
        return {name: sum(used.values()) for name, used in self._used_s.items()}
