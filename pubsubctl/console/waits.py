"""Durations of waits, measured by earlier commands on this machine.

Each command appends the durations of its waits to `index.jsonl` in the folder of runs, a line per
command. Later commands read the last lines of this machine, and so announce the time that a wait or
a run takes. A wait is a phase of the progress; runs, hosts and figures in its name do not matter.
"""

import json
import platform
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from brokerd.text import counted

INDEX: Final = "index.jsonl"
KIND: Final = "waits"
_LAST_BYTES: Final = 400_000
"""The length of the end of the index that is read."""
_MOST_SAMPLES: Final = 5
_MOST_S: Final = 86_400.0
_USUAL_S: Final[Mapping[str, float]] = {
    "reaching hosts": 0.5, "starting agents": 2.0, "starting brokers": 2.0,
    "waiting for": 3.0, "preparing": 1.0, "attaching clients": 1.0, "subscribing": 1.0,
    "opening fences": 1.0, "drain": 2.0, "collecting": 2.0, "taking down": 2.0,
    "starting Spark": 7.0, "checking": 10.0, "drawing": 4.0,
}  # fmt: skip
"""Durations in seconds for the estimate of a run without earlier commands; no wait shows them."""
DEPLOYING: Final = ("starting agents", "starting brokers", "waiting for")
LOADING: Final = ("preparing", "attaching clients", "subscribing", "opening fences", "drain")
ENDING: Final = ("collecting", "taking down")


def key_of(phase: str) -> str:
    """Return the wait of a phase: its first two words, without names of runs, hosts and figures."""
    words = [word for word in phase.split()[:2] if not re.search(r"[\d.:/_]|-\d", word)]
    return words[0] if words and words[0] in _USUAL_S else " ".join(words)


class WaitTimes:
    """Durations of waits on this machine.

    Attributes:
        learnt: the median duration of each wait in earlier commands, in seconds.
    """

    def __init__(self, learnt: Mapping[str, float] | None = None) -> None:
        self.learnt = dict(learnt or {})
        self._measured: dict[str, list[float]] = defaultdict(list)

    @classmethod
    def read(cls, results: Path) -> "WaitTimes":
        """Return the durations in the index of a folder of runs; none if it cannot be read."""
        samples: dict[str, list[float]] = defaultdict(list)
        for row in reversed(_last_rows(results / INDEX)):
            if row.get("kind") != KIND or row.get("machine") != platform.node():
                continue
            waits = row.get("waits")
            for key, value in (waits if isinstance(waits, dict) else {}).items():
                is_time = isinstance(value, int | float) and 0 <= value <= _MOST_S
                if is_time and len(samples[key]) < _MOST_SAMPLES:
                    samples[key].append(float(value))
        return cls({key: median(found) for key, found in samples.items() if found})

    def estimate_s(self, key: str) -> float:
        """Return the duration of a wait for an estimate of a run, learnt or usual."""
        return self.learnt.get(key, _USUAL_S.get(key, 0.0))

    def measure(self, key: str, duration_s: float) -> None:
        """Add a wait of this command."""
        self._measured[key].append(duration_s)

    def write(self, results: Path) -> None:
        """Append the waits of this command to the index of a folder of runs, if there is one."""
        path = results / INDEX
        if not self._measured or not path.is_file():
            return
        waits = {key: round(median(found), 2) for key, found in self._measured.items()}
        row = {"kind": KIND, "machine": platform.node(), "waits": waits}
        self._measured.clear()
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError:
            pass  # the next command expects the usual times


def _last_rows(path: Path) -> Sequence[Mapping[str, Any]]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


@dataclass(frozen=True, slots=True)
class RunTime:
    """The expected time of a run, in seconds.

    Attributes:
        is_learnt: True if earlier runs on this machine determine the time.
    """

    deploying_s: float
    loading_s: float
    ending_s: float
    starting_spark_s: float
    checking_s: float
    is_learnt: bool

    @classmethod
    def expect(cls, waits: WaitTimes, load_s: float) -> "RunTime":
        """Return the time of a run.

        Args:
            load_s: the duration of warm-up and measurement.
        """

        def total_s(keys: Sequence[str]) -> float:
            return sum(waits.estimate_s(key) for key in keys)

        return cls(
            deploying_s=total_s(DEPLOYING),
            loading_s=load_s + total_s(LOADING),
            ending_s=total_s(ENDING),
            starting_spark_s=total_s(("starting Spark",)),
            checking_s=total_s(("checking",)),
            is_learnt="collecting" in waits.learnt,
        )

    @property
    def run_s(self) -> float:
        """The time of the run without its check."""
        return self.deploying_s + self.loading_s + self.ending_s

    def describe(self, *, check: bool = True) -> str:
        """Return the time in words, with its parts."""
        parts = [
            f"deployment {self.deploying_s:.0f} s",
            f"load {self.loading_s:.0f} s",
            f"collection and teardown {self.ending_s:.0f} s",
        ]
        total_s, check_s = self.run_s, self.starting_spark_s + self.checking_s
        if check:
            total_s += check_s
            parts.append(f"check {check_s:.0f} s")
        source = "earlier commands on this machine" if self.is_learnt else "usual times"
        return f"takes about {describe_s(total_s)} ({', '.join(parts)}; from {source})"


def describe_series(times: Sequence[RunTime], *, check: bool = True) -> str:
    """Return the number of runs and their whole time in words."""
    total_s = sum(each.run_s for each in times)
    text = f"{counted(len(times), 'run')}, about {describe_s(total_s)}"
    if check and times:
        check_s = times[0].starting_spark_s + sum(each.checking_s for each in times)
        text += f", and {describe_s(check_s)} to check them"
    return text


def describe_s(duration_s: float) -> str:
    """Return a duration in words, to a second below two minutes, else to a minute."""
    if duration_s < 120:
        return f"{duration_s:.0f} s"
    minutes = round(duration_s / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
