"""The numbers of names and the common clock of a run, for rows that Spark's workers read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from results.checker.clocks import Clocks
from results.tables.logs import Logs
from results.tables.manifest import Run
from results.tables.record_files import RecordFile

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OUTCOMES = ("unknown", "acked", "rejected")
KINDS = ("data", "fence", "gap", "notice", "redelivered")
LAYERS = ("wire", "application")


@dataclass(frozen=True)
class Clock:
    """A conversion from hosts' monotonic clocks to the run's time line and phases."""

    origin_ns: int
    clocks: Clocks
    until_ns: int
    phase_names: tuple[str, ...]
    phase_starts_ns: tuple[int, ...]

    def __init__(self, run: Run) -> None:
        phases = sorted(run.phases, key=lambda phase: phase.from_ns)
        object.__setattr__(self, "origin_ns", run.origin_ns)
        object.__setattr__(self, "clocks", run.clocks)
        object.__setattr__(self, "until_ns", run.origin_ns + run.phase("measure").to_ns)
        object.__setattr__(self, "phase_names", ("deploy", *(phase.name for phase in phases)))
        object.__setattr__(self, "phase_starts_ns", tuple(phase.from_ns for phase in phases))

    def to_timeline(self, stamps: Any, host: str) -> Any:
        """Return stamps of a host's clock on the run's time line."""
        if self.clocks.share(host, self.clocks.reference) or not len(stamps):
            return stamps - self.origin_ns
        return stamps - self.clocks.offsets_ns(host, stamps) - self.origin_ns

    def errors_us(self, host: str, others: Sequence[str]) -> Any:
        """Return the error of latencies from each host to this host, in µs; -1 if unknown."""
        errors = [self.clocks.error_between_ns(other, host, self.until_ns) for other in others]
        return np.array([-1 if error is None else -(-error // 1000) for error in errors], "i8")

    def phases_of(self, moved: Any) -> Any:
        """Return for each time the index of its phase in the phases' names."""
        places = np.searchsorted(np.array(self.phase_starts_ns, "i8"), moved, side="right")
        return places.astype("i4")


class Names:
    """Numbers for names in all rows of a run, common to all files.

    Each file has separate string tables; `sources_of` and `subscriptions_of` map a file's numbers
    to the run's numbers.
    """

    def __init__(self, logs: Logs, run_id: str, clock: Clock) -> None:
        files = [file for process in logs.processes for file in process.records.values()]
        self.sources = _all_names(files, "publishers")
        self.subscriptions = _all_names(files, "subscriptions")
        self.streams = _all_names(files, "streams")
        self.publishers = {source.pubend: source.name for source in logs.sources}
        brokers = {s.sub_id: s.broker for s in logs.subscriptions}
        self._source_hosts = {
            name: file.host
            for file in files
            if file.layout == "publications"
            for name in file.tables.get("publishers", ())
        }
        self._columns = {
            "pubend": ("source", self.sources),
            "publisher": ("source", [self.publishers.get(name, "") for name in self.sources]),
            "sub_id": ("subscription", self.subscriptions),
            "stream": ("stream_number", self.streams),
            "outcome": ("answer", OUTCOMES),
            "phase": ("phase_number", clock.phase_names),
            "kind": ("kind_number", KINDS),
            "layer": ("layer_number", LAYERS),
        }
        self._brokers = {
            "source": [name.rpartition("/")[0] for name in self.sources],
            "subscription": [brokers.get(name, "unknown") for name in self.subscriptions],
        }
        self._run_id = run_id

    def sources_of(self, file: RecordFile) -> Any:
        """Return the run's number for each of a file's publishers."""
        return np.array([self.sources.index(name) for name in file.tables["publishers"]], "i4")

    def hosts_of_sources(self, host: str) -> list[str]:
        """Return the host of each source's publisher; `host` for a source without publications."""
        return [self._source_hosts.get(name, host) for name in self.sources]

    def subscriptions_of(self, file: RecordFile) -> Any:
        """Return the run's number for each of a file's subscriptions."""
        names = file.tables["subscriptions"]
        return np.array([self.subscriptions.index(name) for name in names], "i4")

    def put_in(self, rows: "DataFrame") -> "DataFrame":
        """Return the rows with names added to numbers; null for null."""
        from pyspark.sql import functions as F

        of = "subscription" if "subscription" in rows.columns else "source"
        columns = {**self._columns, "broker": (of, self._brokers[of])}
        return rows.withColumns(
            {"run_id": F.lit(self._run_id)}
            | {
                name: F.element_at(_texts(names), F.col(number) + 1)
                for name, (number, names) in columns.items()
                if number in rows.columns
            }
        )

    def take_out(self, publications: "DataFrame") -> "DataFrame":
        """Return publications with numbers for the names that a join would carry along."""
        from pyspark.sql import functions as F

        return publications.withColumns(
            {
                number: (F.array_position(_texts(names), F.col(name)) - 1).cast("INT")
                for name in ("pubend", "outcome", "phase")
                for number, names in [self._columns[name]]
            }
        )


def _texts(values: Sequence[str]) -> "Column":
    """Return a constant array of texts."""
    from pyspark.sql import functions as F

    return F.array(*map(F.lit, values)).cast("ARRAY<STRING>")


def _all_names(files: Iterable[RecordFile], table: str) -> list[str]:
    return [*dict.fromkeys(name for file in files for name in file.tables.get(table, ()))]
