"""The fault log: ground truth of all stages of all faults, with their times."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from fault_injection.schedule.plan import PlannedStep

HostStamps = Mapping[str, int]
"""Times of one moment by the clocks of hosts."""

Stage = Literal[
    "planned", "requested", "applied", "observed", "heal_requested", "healed", "recovered", "failed"
]
HealedBy = Literal["schedule", "lease", "user", "process-death"]

STAGES: Final[tuple[Stage, ...]] = (
    *("planned", "requested", "applied", "observed"),
    *("heal_requested", "healed", "recovered"),
)
LEARNED: Final = "learned"
"""Stage of the last lines of `log.jsonl`: facts about a fault beside its stages."""

_ABSORBED: Final = {"absorbed_publications": "absorbed_msgs", "absorbed_bytes": "absorbed_bytes"}
_PROGRESS: Final = ("planned", "requested", "applied", "observed", "healed", "recovered")


class FaultLog:
    """The fault log of one run: `plan.jsonl`, `log.jsonl` and at the end `faults.jsonl`.

    A line is flushed before the next action. Times are nanoseconds of the injector's clock. Stages
    that hosts stamp also have times of the hosts' clocks, because clock offsets are more exact
    after the run than during the run.

    Args:
        folder: folder of the files; None to keep all lines in memory only.
        announce: callback that receives every line, to show progress.
    """

    def __init__(
        self,
        folder: Path | None = None,
        announce: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.lines: list[dict[str, Any]] = []
        self._rows: dict[str, dict[str, Any]] = {}
        self._folder = folder
        self._announce = announce
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(folder / "log.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def plan(self, steps: Iterable[PlannedStep], prefix: str) -> None:
        """Write the plan with every drawn value, and add a row per step."""
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
        """Record a stage of a fault; the evidence of `failed` contains the reason."""
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
            # The fault was applied, but its effect or its planned end was not observed.
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
        if self._announce is not None:
            self._announce(line)

    def learn(self, fault_id: str, evidence: Mapping[str, Any]) -> None:
        """Record a larger number of absorbed messages than at the first observation."""
        row = self._rows[fault_id]
        for key, column in _ABSORBED.items():
            if key in evidence:
                row[column] = max(row[column] or 0, evidence[key])

    def find_stage_time(self, fault_id: str, stage: Stage) -> int | None:
        """Return the time at which a fault reached a stage, or None."""
        stamp = self._rows[fault_id][f"t_{stage}_ns"]
        assert stamp is None or isinstance(stamp, int), stamp
        return stamp

    def has_failed(self, fault_id: str) -> bool:
        """Return True if a fault failed, or its effect was not observed."""
        return self._rows[fault_id]["state"] in ("failed", "unknown")

    def host_stamps(self, fault_id: str, stage: Stage) -> HostStamps:
        """Return the host times of a stage of a fault; empty if no host has stamped the stage."""
        stamps: HostStamps = self._rows[fault_id]["host_stamps"].get(stage, {})
        return stamps

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per fault, in the columns of the `faults` table."""
        return [dict(row) for row in self._rows.values()]

    def close(self) -> None:
        """Write the rows and close the files."""
        if self._folder is not None:
            _write_lines(self._folder / "faults.jsonl", self.rows())
        if self._file is not None:
            self._file.writelines(json.dumps(line) + "\n" for line in self._describe_absorbed())
            self._file.close()

    def _describe_absorbed(self) -> Iterator[dict[str, Any]]:
        """Yield a line for each fault with absorbed messages.

        The line stands in `log.jsonl` only, behind all stages, as a witness of the row.
        """
        for row in self._rows.values():
            if row["absorbed_msgs"] is not None or row["absorbed_bytes"] is not None:
                evidence = {key: row[column] for key, column in _ABSORBED.items()}
                names = {key: row[key] for key in ("fault_id", "step", "verb", "target", "params")}
                yield {**names, "stage": LEARNED, "evidence": evidence}


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
