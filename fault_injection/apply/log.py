"""Ground truth: what was planned, asked for, done, seen, undone and seen to be over, and when."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from fault_injection.schedule.plan import PlannedStep

HostStamps = Mapping[str, int]
"""What the clocks of hosts said at one moment."""

Stage = Literal[
    "planned", "requested", "applied", "observed", "heal_requested", "healed", "recovered", "failed"
]
HealedBy = Literal["schedule", "lease", "user", "process-death"]

STAGES: Final[tuple[Stage, ...]] = (
    *("planned", "requested", "applied", "observed"),
    *("heal_requested", "healed", "recovered"),
)
LEARNED: Final = "learned"
"""The last lines of `log.jsonl`: what became known of a fault beside its stages."""

_ABSORBED: Final = {"absorbed_publications": "absorbed_msgs", "absorbed_bytes": "absorbed_bytes"}
_PROGRESS: Final = ("planned", "requested", "applied", "observed", "healed", "recovered")


class FaultLog:
    """The fault log of one run: `plan.jsonl`, `log.jsonl` and at the end `faults.jsonl`.

    A line is on its way to the disk before what follows it is done. Times are nanoseconds of the
    clock that the injector goes by, and beside them, where hosts stamped a stage themselves, what
    their own clocks said: offsets are known better after the run than in it.

    Args:
        folder: where the files go; None to keep them in memory only.
        tell: is called with every line, for whoever shows progress.
    """

    def __init__(
        self,
        folder: Path | None = None,
        tell: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.lines: list[dict[str, Any]] = []
        self._rows: dict[str, dict[str, Any]] = {}
        self._folder = folder
        self._tell = tell
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(folder / "log.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def plan(self, steps: Iterable[PlannedStep], prefix: str) -> None:
        """Write down what is to happen, with every drawn value; each step becomes a row."""
        lines = []
        for step in steps:
            lines.append(
                {
                    "fault_id": prefix + step.id,
                    "step": step.id,
                    "verb": step.verb,
                    "target": step.on,
                    "at_ns": step.at_ns,
                    "after": list(step.after) if step.after else None,
                    "delay_ns": step.delay_ns,
                    "duration_ns": step.duration_ns,
                    "ended_by": step.ended_by,
                    "params": dict(step.params),
                }
            )
            self._rows[prefix + step.id] = {
                "fault_id": prefix + step.id,
                "step": step.id,
                "verb": step.verb,
                "mode": step.parameters.get("mode", ""),
                "target": step.on,
                "params": dict(step.params),
                **{f"t_{stage}_ns": None for stage in STAGES},
                "state": "planned",
                "healed_by": None,
                "evidence": "",
                "absorbed_msgs": None,
                "absorbed_bytes": None,
                "host_stamps": {},
            }
        if self._folder is not None:
            _write_lines(self._folder / "plan.jsonl", lines)

    def note(
        self,
        fault_id: str,
        stage: Stage,
        t_ns: int,
        evidence: Mapping[str, Any] | None = None,
        healed_by: HealedBy | None = None,
        host_stamps: HostStamps | None = None,
    ) -> None:
        """A fault has come to a stage; `failed` says in its evidence what has."""
        row, evidence = self._rows[fault_id], dict(evidence or {})
        line = {
            "fault_id": fault_id,
            "step": row["step"],
            "verb": row["verb"],
            "target": row["target"],
            "stage": stage,
            "t_ns": t_ns,
            "params": row["params"],
            "evidence": evidence,
            "healed_by": healed_by,
            "host_stamps": dict(host_stamps or {}),
        }
        self.lines.append(line)
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if stage == "failed":
            # Done, but not seen to have had its effect, or not ended as planned: who knows.
            row["state"] = "failed" if row["t_applied_ns"] is None else "unknown"
            row["evidence"] = json.dumps(evidence)
        else:
            row[f"t_{stage}_ns"] = t_ns
            if host_stamps:
                row["host_stamps"][stage] = dict(host_stamps)
            if row["state"] not in ("failed", "unknown") and stage in _PROGRESS:
                row["state"] = max(row["state"], stage, key=_PROGRESS.index)
            if stage == "observed":
                row["evidence"] = json.dumps(evidence)
            if healed_by is not None:
                row["healed_by"] = healed_by
        self.learn(fault_id, evidence)
        if self._tell is not None:
            self._tell(line)

    def learn(self, fault_id: str, evidence: Mapping[str, Any]) -> None:
        """More has been absorbed than was known when the effect was observed."""
        row = self._rows[fault_id]
        for key, column in _ABSORBED.items():
            if key in evidence:
                row[column] = max(row[column] or 0, evidence[key])

    def reached(self, fault_id: str, stage: Stage) -> int | None:
        """When a fault came to a stage, None when it has not."""
        stamp = self._rows[fault_id][f"t_{stage}_ns"]
        assert stamp is None or isinstance(stamp, int), stamp
        return stamp

    def host_stamps(self, fault_id: str, stage: Stage) -> HostStamps:
        """What hosts' own clocks said when a fault came to a stage; empty where none was read."""
        stamps: HostStamps = self._rows[fault_id]["host_stamps"].get(stage, {})
        return stamps

    def rows(self) -> list[dict[str, Any]]:
        """One row per fault, in the columns of the `faults` table."""
        return [dict(row) for row in self._rows.values()]

    def close(self) -> None:
        """Write the rows, and end."""
        if self._folder is not None:
            _write_lines(self._folder / "faults.jsonl", self.rows())
        if self._file is not None:
            self._file.writelines(json.dumps(line) + "\n" for line in self._learned())
            self._file.close()

    def _learned(self) -> Iterator[dict[str, Any]]:
        """Yield a line for each fault that is known to have absorbed something.

        It stands in `log.jsonl` only, behind all stages, as a witness of the row.
        """
        for row in self._rows.values():
            if row["absorbed_msgs"] is not None or row["absorbed_bytes"] is not None:
                evidence = {key: row[column] for key, column in _ABSORBED.items()}
                names = {key: row[key] for key in ("fault_id", "step", "verb", "target", "params")}
                yield {**names, "stage": LEARNED, "evidence": evidence}


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
