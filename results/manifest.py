"""What a run directory says about itself: manifest, specification, faults, checksums.

All of it is small and read at once, without Spark. The logs are read by `results.logs`.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from results.clocks import CLOCK_FILE, Clocks
from results.expectation import ExpectedContent
from results.risks import VERBS, Fault, parts_of
from results.verdicts import Guarantee

CHECKSUMS = "SHA256SUMS"
RUN_STATES = ("running", "complete", "partial", "aborted")

# Made anew from the rest at any time, and not the same bytes twice.
NOT_SEALED = ("tables",)
DERIVED = ("verdict.json", "report.html", "evidence", "figures", *NOT_SEALED)

FAULT_STAGES = (
    "planned", "requested", "applied", "observed", "heal_requested", "healed", "recovered",
)  # fmt: skip
FAULT_STAMPS = tuple(f"t_{stage}_ns" for stage in FAULT_STAGES)


class ResultsError(Exception):
    """A run that cannot be worked on because of what the user asked for."""

    exit_status = 2


class IntegrityError(Exception):
    """A file of a run is not what was written when the run ended; says which, and how.

    Neither the tool nor the brokers are to blame: somebody or something changed the files.
    """

    exit_status = 8


@dataclass(frozen=True)
class Phase:
    """One phase of a run, on its own time line."""

    name: str
    from_ns: int
    to_ns: int


@dataclass(frozen=True)
class Run:
    """The small facts of one run, with all times moved to the run's own time line.

    Attributes:
        folder: of the run.
        origin_ns: what the hosts' monotonic clock said at the start of the measure phase.
        fault_rows: rows of the `faults` table, each with its `parts` (`results.risks.parts_of`).
        doubts: what is missing from these facts themselves.
        clocks: how far the clocks of its hosts are apart.
    """

    folder: Path
    manifest: Mapping[str, Any]
    workload: Mapping[str, Any]
    topology: Mapping[str, Any]
    origin_ns: int
    phases: tuple[Phase, ...]
    fault_rows: tuple[Mapping[str, Any], ...]
    doubts: tuple[str, ...]
    clocks: Clocks = field(default_factory=lambda: Clocks(""))

    @property
    def run_id(self) -> str:
        return str(self.manifest["run_id"])

    @property
    def protocol(self) -> str:
        return str(self.manifest.get("protocol") or self.workload.get("protocol", ""))

    @property
    def content(self) -> ExpectedContent:
        """What publications must have held."""
        return ExpectedContent.of_workload(self.workload, self.run_id)

    @property
    def guarantee(self) -> Guarantee:
        """What the run is judged against."""
        return Guarantee(**self.workload.get("guarantee", {}))

    @property
    def links(self) -> list[tuple[str, str]]:
        return [(a, b) for a, b in self.topology["links"]]

    @property
    def delta(self) -> int:
        """How many brokers in a row the tree is wired to get around."""
        return int(self.topology.get("parameters", {}).get("delta", 1))

    @property
    def newcomers(self) -> tuple[str, ...]:
        """The brokers of the tree that had joined it since it was deployed."""
        return tuple(map(str, self.manifest.get("joined", ())))

    @property
    def faults(self) -> list[Fault]:
        """The faults as the checkers need them."""
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
            )
            for row in self.fault_rows
        ]

    def moved(self, stamp_ns: int, host: str) -> int:
        """A stamp of a host's clock on the run's time line."""
        return stamp_ns - self.clocks.offset_ns(host, stamp_ns) - self.origin_ns

    def phase(self, name: str) -> Phase:
        """The phase of this name; one without length at the origin where there was none."""
        found = [phase for phase in self.phases if phase.name == name]
        return found[0] if found else Phase(name, 0, 0)

    def subscribers(self) -> list[str]:
        """Client names that the workload asks for."""
        names = []
        at_broker: dict[str, int] = {}
        for entry in self.workload.get("subscribers", ()):
            places = [entry["at"]] if isinstance(entry["at"], str) else entry["at"]
            for broker in (broker for broker in places for _ in range(entry.get("count", 1))):
                at_broker[broker] = at_broker.get(broker, 0) + 1
                names.append(f"{broker}-sub-{at_broker[broker]}")
        return names


def read_run(folder: Path) -> Run:
    """The small facts of the run in `folder`.

    Raises:
        ResultsError: there is no run.
        IntegrityError: what is there cannot be a run's.
    """
    folder = Path(folder).resolve()
    if not (folder / "manifest.json").is_file():
        raise ResultsError(f"{folder} holds no run: it has no manifest.json")
    manifest = read_json(folder / "manifest.json")
    for key in ("run_id", "state"):
        if not isinstance(manifest.get(key), str):
            raise IntegrityError(f"{folder / 'manifest.json'}: {key} is missing")
    if manifest["state"] not in RUN_STATES:
        raise IntegrityError(f"{folder / 'manifest.json'}: state {manifest['state']!r} is unknown")

    doubts = []
    if manifest["state"] != "complete":
        reasons = "; ".join(str(reason) for reason in manifest.get("reasons") or ())
        doubts.append(f"the run is {manifest['state']}" + (f": {reasons}" if reasons else ""))
    origin_ns = manifest.get("origin_ns")
    if not isinstance(origin_ns, int):
        doubts.append("the run never came to its measure phase")
        origin_ns = min((phase["t0_ns"] for phase in manifest.get("phases") or ()), default=0)
    run = Run(
        folder=folder,
        manifest=manifest,
        workload=read_toml(folder / "spec" / "workload.toml"),
        topology=read_toml(folder / "spec" / "topology.toml"),
        origin_ns=origin_ns,
        phases=tuple(
            Phase(phase["phase"], phase["t0_ns"] - origin_ns, phase["t1_ns"] - origin_ns)
            for phase in manifest.get("phases") or ()
            if phase.get("t1_ns") is not None
        ),
        fault_rows=(),
        doubts=(),
        clocks=Clocks.of_rows(
            str((manifest.get("clock") or {}).get("host_id", "")),
            read_json_lines(folder / CLOCK_FILE, missing_ok=True),
        ),
    )
    fault_rows = tuple(_fault_rows(run))
    doubts += _doubts_about_fault_log(folder, fault_rows)
    return replace(run, fault_rows=fault_rows, doubts=tuple(doubts))


def _fault_rows(run: Run) -> Iterator[dict[str, Any]]:
    """The rows of the fault log on the run's time line.

    What a host's own clock said is moved by that clock's offset; of a fault at several hosts
    the last one counts, as when it was applied.
    """
    path = run.folder / "faults" / "faults.jsonl"
    machines = _machines(run)
    publishing = [run.clocks.reference, *_hosts_of_load(run)]
    until_ns = run.origin_ns + run.phase("measure").to_ns
    for row in read_json_lines(path, missing_ok=True):
        if row["verb"] not in VERBS:
            raise IntegrityError(f"{path}: verb {row['verb']!r} is unknown")
        moved = dict(row)
        of_hosts = moved.pop("host_stamps", {})
        for stage in FAULT_STAGES:
            if (stamps := of_hosts.get(stage)) is not None:
                moved[f"t_{stage}_ns"] = max(run.moved(ns, host) for host, ns in stamps.items())
            elif moved.get(f"t_{stage}_ns") is not None:
                moved[f"t_{stage}_ns"] -= run.origin_ns
        hosts = {host for stamps in of_hosts.values() for host in stamps}
        moved["err_ns"] = _worst(
            run.clocks.error_between_ns(host, other, until_ns)
            for host in sorted(hosts)
            for other in publishing
        )
        moved["parts"] = [
            *parts_of(row["verb"], row["target"], run.topology["brokers"], run.links, machines)
        ]
        yield moved


def _worst(errors: Iterable[int | None]) -> int | None:
    """The largest; None if any is unknown."""
    worst = 0
    for error in errors:
        if error is None:
            return None
        worst = max(worst, error)
    return worst


def _machines(run: Run) -> dict[str, list[str]]:
    """The brokers on each machine; none of a run that was not placed."""
    path = run.folder / "spec" / "placement.json"
    machines: dict[str, list[str]] = {}
    for row in read_json(path).get("brokers", ()) if path.is_file() else ():
        machines.setdefault(str(row["host"]), []).append(str(row["broker"]))
    return machines


def _hosts_of_load(run: Run) -> list[str]:
    """Where publishers and subscribers were."""
    roles = (run.manifest.get("roles") or {}).values()
    return sorted({role["host"] for role in roles if role["role"] != "broker"})


def _doubts_about_fault_log(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    logged = {row["fault_id"] for row in rows}
    for planned in read_json_lines(folder / "faults" / "plan.jsonl", missing_ok=True):
        if planned.get("fault_id") not in logged:
            yield f"fault {planned.get('fault_id')} was planned and is not in the fault log"
    for row in rows:
        if row.get("state") in ("failed", "unknown"):
            what = f"fault {row['fault_id']} ({row['verb']} {row['target']})"
            yield f"{what} went wrong: {row.get('evidence')}"
    if (folder / "spec" / "faults.toml").is_file() and not rows:
        yield "the run had a fault schedule and its fault log is empty"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file.

    Raises:
        IntegrityError: the file is missing or holds something else.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise IntegrityError(f"{path} is missing") from None
    except ValueError as error:
        raise IntegrityError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise IntegrityError(f"{path}: not a JSON object")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML document in a file.

    Raises:
        IntegrityError: the file is missing or cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IntegrityError(f"{path} is missing") from None
    except ValueError as error:
        raise IntegrityError(f"{path}: {error}") from None


def read_json_lines(path: Path, *, missing_ok: bool = False) -> Iterator[dict[str, Any]]:
    """The JSON objects in a file, one a line; a line torn off at the end is left out.

    Raises:
        IntegrityError: the file is missing, or a line before the last cannot be read.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if missing_ok:
            return
        raise IntegrityError(f"{path} is missing") from None
    whole, _, _torn = text.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise IntegrityError(f"{path}, line {number}: {error}") from None
        if not isinstance(value, dict):
            raise IntegrityError(f"{path}, line {number}: not a JSON object")
        yield value


# --- Checksums ------------------------------------------------------------------------------


def seal(folder: Path) -> None:
    """Write SHA256SUMS over all files of a run but its tables, which are made anew at will."""
    lines = [
        f"{_sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in _sealed(folder)
    ]
    _write_whole(folder / CHECKSUMS, "".join(lines))


def verify_seal(folder: Path) -> None:
    """Compare a run's files with its SHA256SUMS, where it has one.

    Files that are made from the others (verdict, evidence, figures, report) may differ.

    Raises:
        IntegrityError: a file was changed, removed or added; names the first few.
    """
    if not (folder / CHECKSUMS).is_file():
        return
    listed: dict[str, str] = {}
    for line in (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    found = {path.relative_to(folder).as_posix(): path for path in _sealed(folder)}
    problems = [f"{name} is missing" for name in listed if name not in found]
    problems += [f"{name} is not in {CHECKSUMS}" for name in found if name not in listed]
    problems += [
        f"{name} has changed"
        for name, path in found.items()
        if name in listed and not is_derived(name) and _sha256(path) != listed[name]
    ]
    problems = [text for text in problems if not is_derived(text.partition(" ")[0])]
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise IntegrityError(f"{folder}: {', '.join(problems[:4])}{more}")


def is_derived(name: str) -> bool:
    """Whether a file of a run is made from the others."""
    return name.partition("/")[0] in DERIVED


def _sealed(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and path.name != CHECKSUMS
        and path.relative_to(folder).parts[0] not in NOT_SEALED
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON document, whole or not at all, the same bytes for the same value."""
    _write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_json_lines(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Write JSON objects, one a line."""
    _write_whole(path, "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
