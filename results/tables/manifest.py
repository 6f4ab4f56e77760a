"""The self-description of a run directory: manifest, specification, faults, clocks.

All of it is small and read at once, without Spark. The logs are read by `results.tables.logs`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from brokerd.units import HOUR_NS, LONGEST_NS
from results.checker.clocks import CLOCK_FILE, Clocks
from results.rules.expectation import ExpectedContent
from results.rules.fault_log import doubts_about_fault_log, fault_rows, faults_of
from results.rules.risks import Routes
from results.rules.terms import (
    PUBLISHER_ORDER,
    WITHOUT_PROCESSES,
    Fault,
    Guarantee,
    Promises,
    doubt,
)
from results.rules.verdict_text import ProtocolWords, former_words
from results.tables.derived import find_derived_folder
from results.tables.json_files import (
    IntegrityError,
    ResultsError,
    read_json,
    read_json_lines,
    read_toml,
)
from results.tables.seals import Seal, verify_seal
from results.tables.specification import check_faults, check_topology, check_workload
from results.witnesses.promises import promises_of

OVERLAY_FILE = "overlay.json"
RUN_STATES = ("running", "complete", "partial", "aborted")


@dataclass(frozen=True)
class Phase:
    """A phase of a run, on the run's time line."""

    name: str
    from_ns: int
    to_ns: int


@dataclass(frozen=True)
class Run:
    """The small facts of a run, with all times converted to the run's time line.

    Attributes:
        folder: of the run.
        origin_ns: the hosts' monotonic clock at the start of the measure phase.
        fault_rows: rows of the `faults` table, each with its `parts` (`risks.parts_of`).
        doubts: missing facts.
        seal: the verified seal of the files.
        clocks: the differences of the hosts' clocks.
        promises: the protocol's promises about deliveries.
        overlay: an overlay that is no tree: links, routes, and each broker's surroundings.
    """

    folder: Path
    manifest: Mapping[str, Any]
    workload: Mapping[str, Any]
    topology: Mapping[str, Any]
    origin_ns: int
    phases: tuple[Phase, ...]
    fault_rows: tuple[Mapping[str, Any], ...]
    doubts: tuple[str, ...]
    seal: Seal
    clocks: Clocks = field(default_factory=lambda: Clocks(""))
    promises: Promises = PUBLISHER_ORDER
    overlay: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def derived(self) -> Path:
        """Return the folder of derived files: tables, verdict, evidence, figures, report."""
        return find_derived_folder(self.folder, self.seal)

    @property
    def run_id(self) -> str:
        return str(self.manifest["run_id"])

    @property
    def protocol(self) -> str:
        return str(self.manifest.get("protocol") or self.workload.get("protocol", ""))

    @property
    def content(self) -> ExpectedContent:
        return ExpectedContent.from_workload(self.workload, self.run_id)

    @property
    def guarantee(self) -> Guarantee:
        """Return the guarantee by which the run is judged."""
        return Guarantee(**self.workload.get("guarantee", {}))

    @property
    def words(self) -> ProtocolWords:
        """Return the protocol's names for people, and its means of recovery."""
        stated = self.manifest.get("protocol_words")
        return (
            ProtocolWords.from_mapping(stated)
            if stated
            else former_words(self.protocol, self.delta)
        )

    @property
    def links(self) -> list[tuple[str, str]]:
        return [(a, b) for a, b in (self.overlay or self.topology)["links"]]

    @property
    def routes(self) -> Routes | None:
        """Return the routes between brokers; None for the unique paths in the tree of links."""
        return Routes.from_rows(self.overlay["routes"]) if self.overlay else None

    @property
    def delta(self) -> int | None:
        """Return the tolerated number of adjacent failed brokers in a tree; None without a tree."""
        if self.overlay:
            return None
        # Before topology/2, the value was in one table with the protocol's parameters.
        section = self.topology.get("tree")
        return int((section or self.topology.get("parameters") or {}).get("delta", 1))

    @property
    def newcomers(self) -> tuple[str, ...]:
        """Return the brokers of the tree that had joined since the deployment."""
        return tuple(map(str, self.manifest.get("joined", ())))

    @property
    def faults(self) -> list[Fault]:
        """Return the faults in the form for checkers."""
        return faults_of(self.fault_rows)

    @property
    def hosts_of_load(self) -> list[str]:
        """Return the hosts of publishers and subscribers."""
        roles = (self.manifest.get("roles") or {}).values()
        return sorted({role["host"] for role in roles if role["role"] != "broker"})

    @property
    def is_cut_short(self) -> bool:
        """Return True if deliveries were still arriving when the drain or the run ended.

        A run that ended early has no record of its drain.
        """
        drain = self.manifest.get("drain")
        if not isinstance(drain, dict):
            return bool(self.manifest["state"] != "complete")
        return drain.get("ended_by") == "bound"

    @property
    def is_simulated(self) -> bool:
        """Return True if the run's brokers were simulated."""
        return (self.manifest.get("labels") or {}).get("brokers") == "simulated"

    @property
    def brokers_label(self) -> str:
        """Return the mark of a run without processes of brokers; "" for a run with processes."""
        label = str((self.manifest.get("labels") or {}).get("brokers"))
        return label if label in WITHOUT_PROCESSES else ""

    def to_timeline(self, stamp_ns: int, host: str) -> int:
        """Return a stamp of a host's clock on the run's time line."""
        return stamp_ns - self.clocks.offset_ns(host, stamp_ns) - self.origin_ns

    def clock_error_ns(self, a: str, b: str) -> int | None:
        """Return the largest difference of two hosts' stamps on the time line; None if unknown."""
        until_ns = self.origin_ns + self.phase("measure").to_ns
        return self.clocks.error_between_ns(a, b, until_ns)

    def error_ns(self, a: str, b: str) -> int | None:
        return self.clock_error_ns(a, b)

    @property
    def has_measured(self) -> bool:
        """Return True if the measure phase was completed."""
        return any(phase.name == "measure" for phase in self.phases)

    def phase(self, name: str) -> Phase:
        """Return the phase of this name; an empty phase at the origin if missing."""
        found = [phase for phase in self.phases if phase.name == name]
        return found[0] if found else Phase(name, 0, 0)

    def subscribers(self) -> dict[str, tuple[str, str]]:
        """Return broker and predicate of each subscriber in the workload, by client name."""
        found = {}
        at_broker: dict[str, int] = {}
        for entry in self.workload.get("subscribers", ()):
            places = [entry["at"]] if isinstance(entry["at"], str) else entry["at"]
            for broker in (broker for broker in places for _ in range(entry.get("count", 1))):
                at_broker[broker] = at_broker.get(broker, 0) + 1
                name = f"{broker}-sub-{at_broker[broker]}"
                found[name] = broker, str(entry.get("filter", "true"))
        return found


def read_run(folder: Path) -> Run:
    """Return the small facts of the run in `folder`, after verification of its files.

    Raises:
        ResultsError: there is no run.
        IntegrityError: a file has changed since the run's end, or the content is not a run's.
    """
    folder = Path(folder).resolve()
    if not (folder / "manifest.json").is_file():
        raise ResultsError(f"{folder} holds no run: it has no manifest.json")
    seal = verify_seal(folder)
    try:
        return _read_run(folder, seal)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # Sealed or not: its shape is none that any version of ours has written.
        reason = f"{type(error).__name__}: {error}"
        raise IntegrityError(f"{folder} does not hold what a run does: {reason}") from error


def _read_run(folder: Path, seal: Seal) -> Run:
    manifest = read_json(folder / "manifest.json")
    for key in ("run_id", "state"):
        if not isinstance(manifest.get(key), str):
            raise IntegrityError(f"{folder / 'manifest.json'}: {key} is missing")
    if manifest["state"] not in RUN_STATES:
        raise IntegrityError(f"{folder / 'manifest.json'}: state {manifest['state']!r} is unknown")
    for phase in manifest.get("phases") or ():
        for end in ("t0_ns", "t1_ns"):
            if not isinstance(phase.get(end), int | None):
                where = f"{folder / 'manifest.json'}: {end} of {phase['phase']}"
                raise IntegrityError(f"{where} = {phase[end]!r} is no number")
        _refuse_long(folder / "manifest.json", phase)
    origin_ns = manifest.get("origin_ns")
    if not isinstance(origin_ns, int):
        origin_ns = min((phase["t0_ns"] for phase in manifest.get("phases") or ()), default=0)
    workload, topology = (
        _read_specification(folder, name) for name in ("workload.toml", "topology.toml")
    )
    _read_specification(folder, "faults.toml", missing_ok=True)
    run = Run(
        folder=folder,
        manifest=manifest,
        workload=workload,
        topology=topology,
        origin_ns=origin_ns,
        phases=tuple(
            Phase(phase["phase"], phase["t0_ns"] - origin_ns, phase["t1_ns"] - origin_ns)
            for phase in manifest.get("phases") or ()
            if phase.get("t1_ns") is not None
        ),
        fault_rows=(),
        doubts=(),
        seal=seal,
        clocks=Clocks.from_rows(
            str((manifest.get("clock") or {}).get("host_id", "")),
            read_json_lines(folder / CLOCK_FILE, missing_ok=True),
        ),
        promises=promises_of(workload, topology),
        overlay=read_json(overlay) if (overlay := folder / "spec" / OVERLAY_FILE).is_file() else {},
    )
    rows = tuple(fault_rows(run))
    doubts = [
        *_doubts_about_manifest(run),
        *doubts_about_fault_log(folder, rows, simulated=run.is_simulated),
    ]
    return replace(run, fault_rows=rows, doubts=tuple(doubts))


def _refuse_long(path: Path, phase: Mapping[str, Any]) -> None:
    """Refuse a phase that is longer than any workload may ask for."""
    begun_ns, ended_ns = phase["t0_ns"], phase["t1_ns"]
    if begun_ns is not None and ended_ns is not None and ended_ns - begun_ns > LONGEST_PHASE_NS:
        hours = (ended_ns - begun_ns) // HOUR_NS
        raise IntegrityError(f"{path}: {phase['phase']} lasts {hours} h")


LONGEST_PHASE_NS = 12 * LONGEST_NS
"""A drain lasts up to ten times the longest duration of a workload, and little more."""

_CHECKS: Mapping[str, Callable[[Path, Mapping[str, Any]], None]] = {
    "workload.toml": check_workload,
    "topology.toml": check_topology,
    "faults.toml": check_faults,
}


def _read_specification(folder: Path, name: str, *, missing_ok: bool = False) -> dict[str, Any]:
    """Return a checked file of the specification."""
    path = folder / "spec" / name
    if missing_ok and not path.is_file():
        return {}
    document = read_toml(path)
    _CHECKS[name](path, document)
    return document


def _doubts_about_manifest(run: Run) -> Iterator[str]:
    manifest = run.manifest
    if not run.seal.is_there:
        yield doubt("unsealed")
    if manifest["state"] != "complete":
        reasons = "; ".join(str(reason) for reason in manifest.get("reasons") or ())
        yield doubt("state", state=manifest["state"]) + (f": {reasons}" if reasons else "")
    if not isinstance(manifest.get("origin_ns"), int):
        yield doubt("not_measured")
    if run.is_cut_short and isinstance(manifest.get("drain"), dict):
        yield doubt("still_arriving", s=float(manifest["drain"].get("took_s", 0.0)))
    for name, wanted in (
        ("seed", run.workload.get("seed")),
        ("workload", run.workload.get("name")),
        ("topology", run.topology.get("name")),
    ):
        if name in manifest and manifest[name] != wanted:
            yield doubt("other_spec", name=name, found=manifest[name], wanted=wanted)
