"""The small files of a run folder, as far as they can be read.

Every file is read once and never trusted. A missing file reads as empty. A file that cannot be
parsed is listed in `RunFolder.unreadable`. Big record files are not read here; each judge
counts their rows itself (`results.witnesses.rows`).
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from brokerd.model.fault_verbs import SESSION_ENDING_VERBS
from brokerd.protocols.registry import DEFINITIONS
from brokerd.text import parse_json
from results.rules.terms import NEVER_NS, WITHOUT_PROCESSES, doubt

Line = Mapping[str, Any]

JOURNAL = "log.jsonl"
MANIFEST = "manifest.json"
FAULTS = "faults/faults.jsonl"
FAULT_JOURNAL = "faults/log.jsonl"
PLAN = "faults/plan.jsonl"
SCHEDULE = "spec/faults.toml"
TOPOLOGY = "spec/topology.toml"
CHANGES = "spec/changes.toml"
"""The topology with its changes at run time, if any broker has joined or left."""
WORKLOAD = "spec/workload.toml"
SYSTEM = "spec/system.json"

WITNESSED_SCHEMA = "pubsubctl/manifest/2"
"""The first manifest schema with a journal that repeats the manifest."""

COUNTED_SCHEMA = "pubsubctl/manifest/3"
"""The first manifest schema with events of brokers about absorbed publications."""

SET_SCHEMA = "pubsubctl/manifest/4"
"""The first manifest schema with `setting.json` of load generators."""

CLOSED_SCHEMA = "pubsubctl/manifest/5"
"""The first manifest schema with digests of closed files in the journal."""

LOGGED_SCHEMA = "pubsubctl/manifest/6"
"""The first manifest schema with a journal that always has the losses that brokers accepted."""

CLOSED_SCHEMAS = (CLOSED_SCHEMA, LOGGED_SCHEMA)
SET_SCHEMAS = (SET_SCHEMA, *CLOSED_SCHEMAS)
COUNTED_SCHEMAS = (COUNTED_SCHEMA, *SET_SCHEMAS)
WITNESSED_SCHEMAS = (WITNESSED_SCHEMA, *COUNTED_SCHEMAS)

SETTING = "setting.json"
"""The file of a load generator with its settings."""

WITNESSED_ONLINE = "pubsubctl/online/2"
"""The schema of `online.json` that only folders since WITNESSED_SCHEMA have."""

CLOSED_EVENTS = "pubsubctl/events/3"
"""The schema of `events.jsonl` that only folders since CLOSED_SCHEMA have."""

LOGGED_EVENTS = "pubsubctl/events/4"
"""The schema of `events.jsonl` that only folders since LOGGED_SCHEMA have."""

COUNTED_EVENTS = ("pubsubctl/events/2", CLOSED_EVENTS, LOGGED_EVENTS)
"""The schemas of `events.jsonl` that only folders since COUNTED_SCHEMA have."""

CLOSED, COLLECTED, PROCESSORS = "closed", "collected", "processors"
"""Lines of the journal that only folders since CLOSED_SCHEMA have."""

_REAL_FILES = ("exit.json", SETTING, "stdout.log", "stderr.log")
"""Files that only processes leave."""
_REAL_KEYS = ("deployment_id", "transport", "roles", "headline")
"""Keys of the manifest that only runs of processes have."""

SIMULATED_HOST = "simulated"


class Timeline(Protocol):
    """The clocks of a run's hosts, as one judge computed them."""

    def to_timeline(self, stamp_ns: int, host: str) -> int:
        """Return a stamp of a host's clock on the run's time line."""

    def error_ns(self, a: str, b: str) -> int | None:
        """Return how far stamps of two hosts may be apart; None if nothing bounds it."""


@dataclass(frozen=True)
class ProcessFolder:
    """The files of one process: `raw/<host>/<name>/`."""

    run: "RunFolder"
    host: str
    name: str
    path: Path

    @cached_property
    def place(self) -> str:
        """The folder's name from the run's folder."""
        return f"raw/{self.host}/{self.name}"

    def has(self, name: str) -> bool:
        """Return whether the process left this file."""
        return self.run.has(f"{self.place}/{name}")

    def lines(self, name: str) -> tuple[Line, ...]:
        """Return the JSON lines of one file."""
        return self.run.lines(f"{self.place}/{name}")

    def document(self, name: str) -> Line:
        """Return the JSON object in one file."""
        return self.run.document(f"{self.place}/{name}")

    @property
    def has_ended_early(self) -> bool:
        """True if the run broke off, and the process had ended without a command."""
        is_whole = self.run.manifest.get("state") == "complete"
        return not is_whole and self.document("exit.json").get("state") == "exited"

    @property
    def is_uncollected(self) -> bool:
        """True if the run broke off, and no file of the process was fetched from its host."""
        is_whole = self.run.manifest.get("state") == "complete"
        return not is_whole and not any(self.path.iterdir())

    @property
    def is_publisher(self) -> bool:
        return self.has("publications.rec")

    @property
    def is_subscriber(self) -> bool:
        return self.has("deliveries.rec")

    @property
    def is_load(self) -> bool:
        return self.is_publisher or self.is_subscriber


def differ(one: str, other: str, subject: str, found: object, wanted: object) -> str:
    """Return the doubt that two files of a run disagree."""
    return doubt("disagree", one=one, other=other, what=subject, found=found, wanted=wanted)


@dataclass
class RunFolder:
    """A run folder and its files beside the record files.

    Attributes:
        unreadable: the parse error of each file that cannot be parsed.
    """

    path: Path
    timeline: Timeline
    unreadable: dict[str, str] = field(default_factory=dict)
    _read: dict[str, Any] = field(default_factory=dict)
    _has: dict[str, bool] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Return whether the folder has this file."""
        found = self._has.get(name)
        if found is None:
            found = self._has[name] = (self.path / name).is_file()
        return found

    def lines(self, name: str) -> tuple[Line, ...]:
        """Return the JSON objects of a file with one object per line, without a torn last line."""
        if name not in self._read:
            self._read[name] = tuple(self._parse_lines(name))
        found: tuple[Line, ...] = self._read[name]
        return found

    def document(self, name: str) -> Line:
        """Return the JSON or TOML document in a file."""
        if name not in self._read:
            self._read[name] = self._parse_document(name)
        found: Line = self._read[name]
        return found

    def _text(self, name: str) -> str:
        path = self.path / name
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def _parse_lines(self, name: str) -> Iterable[Line]:
        try:
            whole = self._text(name).rpartition("\n")[0]
            rows = [parse_json(line) for line in whole.split("\n")] if whole else []
        except (OSError, ValueError, RecursionError) as error:
            self.unreadable[name] = str(error)
            return ()
        if not all(isinstance(row, dict) for row in rows):
            self.unreadable[name] = "a line is no object"
            return ()
        return rows

    def _parse_document(self, name: str) -> Line:
        try:
            text = self._text(name)
            parse = tomllib.loads if name.endswith(".toml") else parse_json
            value = parse(text) if text or self.has(name) else {}
        except (OSError, ValueError, RecursionError) as error:
            self.unreadable[name] = str(error)
            return {}
        if not isinstance(value, dict):
            self.unreadable[name] = "it is no object"
            return {}
        return value

    def memoize(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the value of `make` for a name, from memory after the first time."""
        if name not in self._read:
            self._read[name] = make()
        return self._read[name]

    # --- The documents ------------------------------------------------------------------------

    @property
    def manifest(self) -> Line:
        return self.document(MANIFEST)

    @property
    def workload(self) -> Line:
        return self.document(WORKLOAD)

    @property
    def topology(self) -> Line:
        return self.document(TOPOLOGY)

    @property
    def joined(self) -> list[str]:
        """The brokers that joined at run time, by the topology."""
        rows = self.topology.get("joined", ())
        return [str(row["name"] if isinstance(row, dict) else row[0]) for row in rows]

    @property
    def brokers(self) -> list[str]:
        """All brokers of the topology, with the brokers that joined."""
        return [*dict.fromkeys([*map(str, self.topology.get("brokers", ())), *self.joined])]

    @property
    def schedule(self) -> Line:
        return self.document(SCHEDULE)

    @property
    def journal(self) -> tuple[Line, ...]:
        return self.lines(JOURNAL)

    @property
    def fault_rows(self) -> tuple[Line, ...]:
        return self.lines(FAULTS)

    @cached_property
    def processes(self) -> tuple[ProcessFolder, ...]:
        """All processes that left a folder, in order."""
        return tuple(
            ProcessFolder(self, path.parent.name, path.name, path)
            for path in sorted(self.path.glob("raw/*/*"))
            if path.is_dir()
        )

    @property
    def is_witnessed(self) -> bool:
        """True if the schema of this folder demands every witness."""
        is_named = self.manifest.get("schema") in WITNESSED_SCHEMAS
        newer = self.newer_files or self.counted_files or self.setting_files
        return is_named or bool(newer or self.closed_files)

    @property
    def is_counted(self) -> bool:
        """True if the schema demands events about absorbed publications."""
        is_named = self.manifest.get("schema") in COUNTED_SCHEMAS
        return is_named or bool(self.counted_files or self.closed_files)

    @property
    def is_set(self) -> bool:
        """True if the schema demands settings of load generators."""
        is_named = self.manifest.get("schema") in SET_SCHEMAS
        return is_named or bool(self.setting_files or self.closed_files)

    @property
    def is_closed(self) -> bool:
        """True if the schema demands digests of closed files."""
        return self.manifest.get("schema") in CLOSED_SCHEMAS or bool(self.closed_files)

    @property
    def is_logged(self) -> bool:
        """True if the schema demands lines of the journal about accepted losses."""
        return self.manifest.get("schema") == LOGGED_SCHEMA or bool(self.logged_files)

    @cached_property
    def logged_files(self) -> tuple[str, ...]:
        """Files of brokers that a folder before LOGGED_SCHEMA does not have."""
        return self._find_events(lambda line: line.get("schema") == LOGGED_EVENTS)

    @cached_property
    def closed_files(self) -> tuple[str, ...]:
        """Files with content that a folder before CLOSED_SCHEMA does not have."""
        found = [JOURNAL] * any(
            line.get("what") in (CLOSED, COLLECTED, PROCESSORS) for line in self.journal
        )
        found += self._find_events(
            lambda line: (
                line.get("schema") in (CLOSED_EVENTS, LOGGED_EVENTS)
                or (line.get("event") in ("run_begun", "run_ended") and "counters" in line)
            )
        )
        return tuple(found)

    def _find_events(self, is_newer: Callable[[Line], bool]) -> tuple[str, ...]:
        """Return the event logs with a line of a newer program."""
        return tuple(
            f"{process.place}/events.jsonl"
            for process in self.processes
            if any(map(is_newer, process.lines("events.jsonl")))
        )

    @cached_property
    def setting_files(self) -> tuple[str, ...]:
        """Files of load generators that a folder before SET_SCHEMA does not have."""
        return tuple(
            f"{process.place}/{SETTING}" for process in self.processes if process.has(SETTING)
        )

    @cached_property
    def counted_files(self) -> tuple[str, ...]:
        """Files of brokers that a folder before COUNTED_SCHEMA does not have."""
        return self._find_events(
            lambda line: (
                line.get("schema") in COUNTED_EVENTS or line.get("event") == "fault_counted"
            )
        )

    @cached_property
    def newer_files(self) -> tuple[str, ...]:
        """Files that a folder before WITNESSED_SCHEMA does not have, or not with this content."""
        found = [
            f"{process.place}/online.json"
            for process in self.processes
            if process.document("online.json").get("schema") == WITNESSED_ONLINE
        ]
        if any(line.get("what") == "end" and "manifest" in line for line in self.journal):
            found.append(JOURNAL)
        return tuple(found)

    @property
    def looks_real(self) -> bool:
        """True if something is there that only runs of real processes leave."""
        if self.is_simulated:
            return False
        journal = any(line.get("what") == "phase" for line in self.journal)
        left = any(process.has(name) for process in self.processes for name in _REAL_FILES)
        placed = bool(self.document("spec/placement.json").get("brokers"))
        named = self.has("spec/cli.json") or self.has("spec/inventory.toml")
        stated = any(key in self.manifest for key in _REAL_KEYS)
        return journal or left or placed or named or stated

    @property
    def is_made_up(self) -> bool:
        """True if the folder itself states that neither processes nor a simulator wrote it."""
        label = (self.manifest.get("labels") or {}).get("brokers")
        return label in WITHOUT_PROCESSES and label != SIMULATED_HOST

    @property
    def is_of_processes(self) -> bool:
        """True if real processes of this product wrote the folder."""
        return not self.is_simulated and (self.is_witnessed or self.has("spec/cli.json"))

    @property
    def is_simulated(self) -> bool:
        """True if the run had no processes for brokers or clients."""
        hosts = {process.host for process in self.processes}
        return hosts == {SIMULATED_HOST}

    @property
    def has_due_times(self) -> bool:
        """Return True if each publication is due at some time: no publisher has rate max."""
        return all(entry.get("rate") != "max" for entry in self.workload.get("publishers", ()))

    @property
    def is_foreign(self) -> bool:
        """True if the brokers were servers of another system."""
        return self.names_system and self.workload.get("protocol") not in DEFINITIONS

    @property
    def overlay_kind(self) -> str:
        """The kind of overlay of the run's protocol; "" for another system."""
        definition = DEFINITIONS.get(str(self.workload.get("protocol")))
        return "" if definition is None else str(definition.kind)

    @property
    def names_system(self) -> bool:
        """True if the manifest or the specification names another system."""
        return "system" in self.manifest or self.has(SYSTEM)

    @cached_property
    def origin_ns(self) -> int:
        """The stamp at which the measure phase began."""
        origin_ns = self.manifest.get("origin_ns")
        return origin_ns if isinstance(origin_ns, int) else 0

    def phase_ns(self, name: str) -> tuple[int, int] | None:
        """Return the ends of a phase as stamps; None if the phase never ended."""
        for phase in self.manifest.get("phases") or ():
            if phase["phase"] == name and phase.get("t1_ns") is not None:
                return int(phase["t0_ns"]), int(phase["t1_ns"])
        return None

    @cached_property
    def rolling_ns(self) -> tuple[int, int] | None:
        """The ends of the replacement of all agents and brokers; None without a replacement."""
        stated = {
            line.get("stage"): int(line["at_ns"]) - self.origin_ns
            for line in self.journal
            if line.get("what") == "rolling"
        }
        if "begun" not in stated:
            return None
        return stated["begun"], stated.get("ended", NEVER_NS)

    @cached_property
    def clients(self) -> Mapping[str, tuple[str, str]]:
        """Role and broker of each client of the workload, by client name."""
        found: dict[str, tuple[str, str]] = {}
        for key, short, role in (
            ("publishers", "pub", "publisher"),
            ("subscribers", "sub", "subscriber"),
        ):
            counts: dict[str, int] = {}
            for entry in self.workload.get(key, ()):
                places = [entry["at"]] if isinstance(entry["at"], str) else entry["at"]
                for broker in (b for b in places for _ in range(entry.get("count", 1))):
                    counts[broker] = counts.get(broker, 0) + 1
                    found[f"{broker}-{short}-{counts[broker]}"] = role, broker
        return found

    @cached_property
    def consumers(self) -> frozenset[str]:
        """The subscribers that commit at their broker, and have no places in streams."""
        found: list[str] = []
        counts: dict[str, int] = {}
        for entry in self.workload.get("subscribers", ()):
            places = [entry["at"]] if isinstance(entry["at"], str) else entry["at"]
            for broker in (b for b in places for _ in range(entry.get("count", 1))):
                counts[broker] = counts.get(broker, 0) + 1
                found += [f"{broker}-sub-{counts[broker]}"] * bool(entry.get("acknowledge"))
        return frozenset(found)

    @cached_property
    def session_lines(self) -> Mapping[str, tuple[tuple[int, str, str], ...]]:
        """Time, event and broker of each line of `sessions.jsonl`, by client, in order."""
        found: dict[str, list[tuple[int, str, str]]] = {}
        for process in self.processes:
            for line in process.lines("sessions.jsonl"):
                at_ns = self.timeline.to_timeline(line["t_ns"], process.host)
                found.setdefault(line["client"], []).append((at_ns, line["event"], line["broker"]))
        return {client: tuple(sorted(lines)) for client, lines in found.items()}

    def absences(self, client: str) -> list[tuple[int, int]]:
        """Return the times at which, by any file, a client had no session."""
        spans: list[tuple[int, int]] = []
        down_ns: int | None = None
        for at_ns, event, _ in self.session_lines.get(client, ()):
            if event == "down" and down_ns is None:
                down_ns = at_ns
            elif event == "up" and down_ns is not None:
                spans.append((down_ns, at_ns))
                down_ns = None
        if down_ns is not None:
            spans.append((down_ns, NEVER_NS))
        for process in self.processes:
            for line in process.lines("absences.jsonl"):
                if line["subscriber"] == client:
                    left_ns, back_ns = line["t_left_ns"], line["t_back_ns"]
                    move = self.timeline.to_timeline
                    spans.append((move(left_ns, process.host), move(back_ns, process.host)))
        for row in self.fault_rows:
            if row["target"] == client and row["verb"] in SESSION_ENDING_VERBS:
                span = span_of(self, row)
                if span is not None:
                    spans.append(span)
        return spans


def stamp_of(folder: RunFolder, row: Line, stage: str, *, last: bool = True) -> int | None:
    """Return the time of a fault's stage on the time line; of several hosts, the last or first."""
    of_hosts = (row.get("host_stamps") or {}).get(stage)
    if of_hosts:
        moved = [folder.timeline.to_timeline(ns, host) for host, ns in of_hosts.items()]
        return max(moved) if last else min(moved)
    at_ns = row.get(f"t_{stage}_ns")
    return None if at_ns is None else int(at_ns) - folder.origin_ns


def span_of(folder: RunFolder, row: Line) -> tuple[int, int] | None:
    """Return the ends of the certain part of a fault; None if the fault was never applied."""
    from_ns = stamp_of(folder, row, "applied")
    if from_ns is None:
        return None
    ends = [stamp_of(folder, row, stage, last=False) for stage in ("heal_requested", "healed")]
    return from_ns, min((end for end in ends if end is not None), default=NEVER_NS)
