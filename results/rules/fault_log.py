"""The fault log of a run on the run's time line: active times, and deviations from the plan."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from brokerd.model.fault_verbs import HOLDING_VERBS, KILLING_VERBS, LIMITING_VERBS, ROAM, SLOW
from results.checker.clocks import Clocks
from results.rules.risks import BREAKING_VERBS, JUDGED_VERBS, parts_of
from results.rules.terms import NEVER_NS, Fault, doubt
from results.tables.json_files import IntegrityError, read_json, read_json_lines

FAULT_STAGES = (
    "planned", "requested", "applied", "observed", "heal_requested", "healed", "recovered",
)  # fmt: skip
FAULT_STAMPS = tuple(f"t_{stage}_ns" for stage in FAULT_STAGES)

_TEXTS = ("fault_id", "verb", "target")


class TimedRun(Protocol):
    """A run with all facts except its faults."""

    @property
    def folder(self) -> Path: ...
    @property
    def topology(self) -> Mapping[str, Any]: ...
    @property
    def links(self) -> list[tuple[str, str]]: ...
    @property
    def clocks(self) -> Clocks: ...
    @property
    def origin_ns(self) -> int: ...
    @property
    def hosts_of_load(self) -> list[str]: ...
    def to_timeline(self, stamp_ns: int, host: str) -> int: ...
    def clock_error_ns(self, a: str, b: str) -> int | None: ...


def fault_rows(run: TimedRun) -> Iterator[dict[str, Any]]:
    """Yield the rows of the fault log on the run's time line.

    Stamps of a host's own clock are moved by the clock's offset. For a fault at several hosts the
    last stamp of a stage counts.

    Raises:
        IntegrityError: a row is no fault.
    """
    path = run.folder / "faults" / "faults.jsonl"
    machines = _machines(run.folder)
    publishing = [run.clocks.reference, *run.hosts_of_load]
    for number, row in enumerate(read_json_lines(path, missing_ok=True), start=1):
        _verify(f"{path}, line {number}", row)
        moved = dict(row)
        of_hosts = moved.pop("host_stamps", None) or {}
        for stage in FAULT_STAGES:
            if (stamps := of_hosts.get(stage)) is not None:
                moved[f"t_{stage}_ns"] = max(
                    run.to_timeline(ns, host) for host, ns in stamps.items()
                )
            elif moved.get(f"t_{stage}_ns") is not None:
                moved[f"t_{stage}_ns"] -= run.origin_ns
        hosts = {host for stamps in of_hosts.values() for host in stamps}
        moved["err_ns"] = _worst(
            run.clock_error_ns(host, other) for host in sorted(hosts) for other in publishing
        )
        moved["parts"] = [
            *parts_of(row["verb"], row["target"], run.topology["brokers"], run.links, machines)
        ]
        yield moved


def _verify(where: str, row: Mapping[str, Any]) -> None:
    for name in _TEXTS:
        if not isinstance(row.get(name), str):
            raise IntegrityError(f"{where}: {name} = {row.get(name)!r} is no text")
    if row["verb"] not in JUDGED_VERBS:
        raise IntegrityError(f"{where}: verb {row['verb']!r} is unknown")
    of_hosts = row.get("host_stamps") or {}
    if not isinstance(of_hosts, dict) or not all(isinstance(t, dict) for t in of_hosts.values()):
        raise IntegrityError(f"{where}: host_stamps = {of_hosts!r} are no stamps")
    stamps = {name: row.get(name) for name in (*FAULT_STAMPS, "absorbed_msgs")}
    for stage, host_stamps in of_hosts.items():
        stamps |= {f"{stage} at {host}": ns for host, ns in host_stamps.items()}
    for name, value in stamps.items():
        if value is not None and type(value) is not int:
            raise IntegrityError(f"{where}: {name} = {value!r} is no number")


def faults_of(rows: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """Return the faults in the form of the checkers."""
    return [
        Fault(
            row["fault_id"],
            row["verb"],
            row["target"],
            row.get("t_applied_ns"),
            row.get("t_observed_ns"),
            row.get("t_healed_ns"),
            tuple(row["parts"]),
            row["err_ns"],
            str((row.get("params") or {}).get("to", "")),
            row.get("absorbed_msgs"),
        )
        for row in rows
    ]


def doubts_about_fault_log(
    folder: Path, rows: Sequence[Mapping[str, Any]], *, simulated: bool
) -> Iterator[str]:
    """Yield deviations from the plan, and missing facts.

    Args:
        simulated: no brokers could report absorbed publications.
    """
    plan = {
        str(line.get("fault_id")): line
        for line in read_json_lines(folder / "faults" / "plan.jsonl", missing_ok=True)
    }
    has_schedule = (folder / "spec" / "faults.toml").is_file()
    logged = {row["fault_id"]: row for row in rows}
    for fault_id, line in plan.items():
        if fault_id not in logged:
            yield doubt("not_logged", fault=fault_id)
        elif any(line.get(name) != logged[fault_id][name] for name in ("verb", "target")):
            yield doubt("other_fault", fault=fault_id)
    if plan or has_schedule:
        yield from (doubt("not_planned", fault=name) for name in logged if name not in plan)
    if len(logged) < len(rows):
        yield doubt("twice", what="one fault")
    for row in rows:
        names = {"fault": row["fault_id"], "verb": row["verb"], "target": row["target"]}
        if row.get("state") in ("failed", "unknown"):
            yield doubt("fault_failed", **names, why=row.get("evidence"))
        was_seen = row["verb"] in HOLDING_VERBS and row.get("t_observed_ns") is not None
        if was_seen and row.get("absorbed_msgs") is None and not simulated:
            yield doubt("absorb_silent", **names)
    if has_schedule and not rows:
        yield doubt("no_fault_log")


def _worst(errors: Iterable[int | None]) -> int | None:
    """Return the largest error; None if any error is unknown."""
    worst = 0
    for error in errors:
        if error is None:
            return None
        worst = max(worst, error)
    return worst


def _machines(folder: Path) -> dict[str, list[str]]:
    """Return the brokers on each machine; empty for a run without placement."""
    path = folder / "spec" / "placement.json"
    machines: dict[str, list[str]] = {}
    for row in read_json(path).get("brokers", ()) if path.is_file() else ():
        machines.setdefault(str(row["host"]), []).append(str(row["broker"]))
    return machines


# held: nothing passes, nothing is lost yet. down: dead. back: restarted, not ready yet.
SpanKind = Literal["held", "down", "back", "limited"]


_LIMITED = (*LIMITING_VERBS, SLOW, ROAM)
"""Verbs whose targets stay in use."""


@dataclass(frozen=True)
class FaultSpan:
    """A period in which a fault had an effect on a target.

    Attributes:
        to_ns: end of the period; the run's end for a fault without an end.
        parts: the affected brokers and links, see `results.rules.risks.parts_of`.
        is_over: the period ended before the run did.
    """

    fault_id: str
    step: str
    verb: str
    target: str
    kind: SpanKind
    from_ns: int
    to_ns: int
    parts: tuple[str, ...]
    is_over: bool


def fault_spans(rows: Iterable[Mapping[str, Any]], end_ns: int) -> list[FaultSpan]:
    """Return the periods in the rows of a fault table, in order."""
    applied = sorted(
        (row for row in rows if row.get("t_applied_ns") is not None),
        key=lambda row: (row["t_applied_ns"], row["fault_id"]),
    )
    spans = []
    for place, row in enumerate(applied):
        from_ns = row["t_applied_ns"]
        to_ns = _end_ns(row, applied[place + 1 :])
        if row["verb"] == "restart":
            kind: SpanKind = "back"
            to_ns = row.get("t_recovered_ns") or row.get("t_observed_ns") or from_ns
        elif row["verb"] in BREAKING_VERBS:
            kind = "down"
        else:
            kind = "limited" if row["verb"] in _LIMITED else "held"
        spans.append(
            FaultSpan(
                row["fault_id"],
                row.get("step") or row["fault_id"],
                row["verb"],
                row["target"],
                kind,
                from_ns,
                min(to_ns, end_ns),
                _parts(row),
                to_ns < end_ns,
            )
        )
    return spans


def _end_ns(row: Mapping[str, Any], later: Sequence[Mapping[str, Any]]) -> int:
    """Return the time of the heal, or of the next fault that replaces this fault."""
    takes_over = ("restart",) if row["verb"] in KILLING_VERBS else BREAKING_VERBS
    over = "t_observed_ns" if row["verb"] == ROAM else "t_healed_ns"
    healed_ns: int = NEVER_NS if row.get(over) is None else row[over]
    for other in later:
        if other["verb"] in takes_over and {*_parts(other)} >= {*_parts(row)}:
            return min(healed_ns, int(other["t_applied_ns"]))
    return healed_ns


def _parts(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row.get("parts") or (row["target"],))
