"""The logs of a run's processes: inventory and completeness.

Record files are checked by `record_files` and read by `load` in parallel. JSON lines arrive at a
few per second and are read at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from results.rules.log_doubts import (
    doubts_about_clock,
    doubts_about_file,
    doubts_about_numbers,
    doubts_about_subscription,
)
from results.rules.terms import STATE_LOST, Commit, Gap, Notice, Partition, doubt
from results.tables.json_files import IntegrityError, read_json_lines
from results.tables.manifest import Run
from results.tables.record_files import LARGEST_SEQUENCE, RECORDS, RecordFile, read_record_file

_LATEST_LOSS: Final = (1 << 32) - 1
"""The highest incarnation of a stream that begins with a loss: a time in seconds, to 2106."""

_LAST_POSITION: Final = (1 << 63) - 1


@dataclass(frozen=True)
class Process:
    """A process of a run and the folder of its files."""

    host: str
    name: str
    folder: Path
    records: Mapping[str, RecordFile]

    @property
    def role(self) -> str:
        """Return the role of the process, inferred from its files."""
        if "publications" in self.records:
            return "publisher"
        return "subscriber" if "deliveries" in self.records else "broker"

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the JSON lines of a file of the process; empty without a file."""
        return [*read_json_lines(self.folder / name, missing_ok=True)]


def read_processes(run: Run) -> list[Process]:
    """Return every process of a run, with checked record files; witnesses doubt unknown files.

    Raises:
        IntegrityError: a record file does not fit its sidecar.
    """
    folders = sorted(path for path in run.folder.glob("raw/*/*") if path.is_dir())
    paths = [
        path for folder in folders for path in sorted(folder.glob("*.rec")) if path.stem in RECORDS
    ]
    # Hashing releases the interpreter's lock, so threads are enough.
    with ThreadPoolExecutor() as pool:
        files = [*pool.map(lambda path: read_record_file(path, run.run_id), paths)]
    return [
        Process(
            folder.parent.name,
            folder.name,
            folder,
            {file.layout: file for file in files if file.path.parent == folder},
        )
        for folder in folders
    ]


# --- Conclusions from all logs together -----------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A publisher as found in the logs."""

    pubend: str
    name: str
    closed: bool

    @property
    def broker(self) -> str:
        return self.pubend.rpartition("/")[0]


@dataclass(frozen=True)
class Subscription:
    """A subscription as found in the logs; stamps are on the run's time line.

    Attributes:
        started: True if a broker accepted the subscription; otherwise no delivery is owed.
        issued_ns, accepted_ns: None for unknown.
    """

    sub_id: str
    subscriber: str
    broker: str
    predicate: str
    issued_ns: int | None
    accepted_ns: int | None
    closed: bool
    started: bool = True


@dataclass(frozen=True)
class Logs:
    """All logs of a run, with the doubts that the logs leave."""

    processes: Sequence[Process]
    sources: Sequence[Source]
    subscriptions: Sequence[Subscription]
    doubts: Sequence[str]

    @property
    def rows(self) -> int:
        """Return the number of messages that the records of all files represent."""
        return sum(file.places for process in self.processes for file in process.records.values())

    def hosts_of(self, table: str) -> dict[str, str]:
        """Return the host of each publisher or subscription with logs."""
        layout = "publications" if table == "publishers" else "deliveries"
        return {
            name: file.host for file in self.files(layout) for name in file.tables.get(table, ())
        }

    def files(self, layout: str) -> Iterator[RecordFile]:
        """Yield the record files of this layout that belong to this run."""
        for process in self.processes:
            file = process.records.get(layout)
            if file is not None and not file.foreign_run:
                yield file


def read_logs(run: Run) -> Logs:
    """Find and check all logs of a run.

    Raises:
        IntegrityError: a log has changed.
    """
    processes = read_processes(run)
    doubts: list[str] = []
    for process in processes:
        for file in process.records.values():
            doubts += doubts_about_file(file)
            doubts += doubts_about_clock(file.name, file.scan)
    sources = [*_sources(processes, run, doubts)]
    subscriptions = [*_subscriptions(processes, run, doubts)]
    _miss(doubts, "publisher", run.content.publishers, [source.name for source in sources])
    _miss(doubts, "subscriber", run.subscribers(), [s.subscriber for s in subscriptions])
    return Logs(processes, sources, subscriptions, doubts)


def notices_of(logs: Logs, moved: Callable[[int, str], int]) -> dict[tuple[str, str], list[Notice]]:
    """Return the notices of withheld publications for each subscription and source, in order.

    Args:
        moved: converts a stamp of a host's clock to the run's time line.
    """
    found: dict[tuple[str, str], list[Notice]] = {}
    for file in logs.files("deliveries"):
        tables = file.tables
        partitions = [Partition.from_mapping(values) for values in tables.get("partitions", ())]
        for place, row in file.scan.notices:
            pair = (
                tables["subscriptions"][row["subscription"]],
                tables["publishers"][row["publisher"]],
            )
            first = int(row["sequence"])
            notice = Notice(
                source=pair[1],
                incarnation=int(row["incarnation"]),
                first=first,
                last=first + int(row["digest"]) - 1,
                partition=partitions[row["partition"]],
                place=place,
                received_ns=moved(int(row["received_ns"]), file.host),
            )
            found.setdefault(pair, []).append(notice)
    return found


def gaps_of(logs: Logs, moved: Callable[[int, str], int]) -> dict[tuple[str, str], list[Gap]]:
    """Return the announced gaps for each subscription and source, in order.

    Args:
        moved: converts a stamp of a host's clock to the run's time line.

    Raises:
        IntegrityError: a line is malformed.
    """
    found: dict[tuple[str, str], list[Gap]] = {}
    publishers = {source.pubend for source in logs.sources}
    for host, path, line in _lines(logs, "gaps.jsonl"):
        names = _names_in(path, line, "sub_id", "source", "reason")
        if type(line.get("t_ns")) is not int:
            raise IntegrityError(f"{path}: {line} has no time")
        announced_ns = moved(line["t_ns"], host)
        is_of_stream = names["reason"] == STATE_LOST and names["source"] not in publishers
        stated = _range_in(path, line, *((_LATEST_LOSS, _LAST_POSITION) if is_of_stream else ()))
        gap = Gap(names["source"], *stated, names["reason"], line["place"], announced_ns)
        found.setdefault((names["sub_id"], gap.source), []).append(gap)
    return found


def commits_of(logs: Logs) -> dict[tuple[str, str], list[Commit]]:
    """Return the application's commits for each subscription and source, in order.

    Raises:
        IntegrityError: a line is malformed.
    """
    found: dict[tuple[str, str], list[Commit]] = {}
    for _, path, line in _lines(logs, "commits.jsonl"):
        names = _names_in(path, line, "sub_id", "source")
        commit = Commit(names["source"], *_range_in(path, line), line["place"])
        found.setdefault((names["sub_id"], commit.source), []).append(commit)
    return found


def _lines(logs: Logs, name: str) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    for process in logs.processes:
        for line in process.lines(name):
            yield process.host, process.folder / name, line


def _names_in(path: Path, line: Mapping[str, Any], *names: str) -> dict[str, str]:
    for name in names:
        if not isinstance(line.get(name), str):
            raise IntegrityError(f"{path}: {name} = {line.get(name)!r} is no text")
    return {name: line[name] for name in names}


def _range_in(
    path: Path,
    line: Mapping[str, Any],
    most: int = (1 << 16) - 1,
    largest: int = LARGEST_SEQUENCE,
) -> tuple[int, int, int]:
    """Return incarnation, first and last sequence number; checks that `place` is a number, too.

    Args:
        most: the highest incarnation.
        largest: the largest sequence number.
    """
    numbers = [line.get(name) for name in ("incarnation", "first", "last", "place")]
    if not all(type(number) is int for number in numbers):
        raise IntegrityError(f"{path}: {numbers} are no numbers")
    incarnation, first, last, place = (int(number or 0) for number in numbers)
    if not (0 <= incarnation <= most and 1 <= first <= last <= largest and place >= 0):
        raise IntegrityError(f"{path}: {numbers} are no publications")
    return incarnation, first, last


def _miss(doubts: list[str], role: str, wanted: Any, found: Sequence[str]) -> None:
    if lost := [name for name in wanted if name not in set(found)]:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        doubts.append(doubt("no_log", who=f"{role} {', '.join(lost[:3])}{more}"))


def _sources(processes: Sequence[Process], run: Run, doubts: list[str]) -> Iterator[Source]:
    content = run.content
    seen: set[str] = set()
    for process in processes:
        file = process.records.get("publications")
        if file is None or file.foreign_run:
            continue
        names: Any = file.tables.get("publisher_names") or {}
        whole = all(
            process.records[layout].is_whole
            for layout in ("publications", "acks")
            if layout in process.records
        )
        for pubend in file.tables.get("publishers", ()):
            name = names.get(pubend, "")
            if name not in content.publishers:
                doubts.append(doubt("not_in_workload", who=f"source {pubend} ({name!r})"))
                continue
            if pubend in seen or name in seen:
                doubts.append(doubt("twice", what=f"source {pubend} of publisher {name}"))
                continue
            seen |= {pubend, name}
            source = Source(pubend, name, whole)
            if source.broker != (wanted := content.publishers[name].broker):
                place = f"publisher {name}"
                doubts.append(doubt("elsewhere", who=place, found=source.broker, wanted=wanted))
            yield source
        if whole:
            doubts += doubts_about_numbers(process.records)
        # The tables of a log are written when it is closed.
        if file.closed and _find_other_attribute_sets(file, content):
            doubts.append(
                f"{process.host}/{process.name} used other attribute sets than the seed's"
            )


def _find_other_attribute_sets(file: RecordFile, content: Any) -> bool:
    sets = [*file.tables.get("attribute_sets", ())]
    wanted = [content.attributes(number) for number in range(content.fence_set + 1)]
    # Python's equality takes True for 1.
    return sets != wanted or _types(sets) != _types(wanted)


def _types(sets: Sequence[Mapping[str, Any]]) -> list[dict[str, type]]:
    return [{name: type(value) for name, value in each.items()} for each in sets]


def _subscriptions(
    processes: Sequence[Process], run: Run, doubts: list[str]
) -> Iterator[Subscription]:
    """Yield accepted subscriptions, and subscriptions that only left deliveries."""
    wanted = run.subscribers()
    seen: set[str] = set()
    logged: set[str] = set()
    for process in processes:
        file = process.records.get("deliveries")
        closed = file is not None and file.is_whole and not run.is_cut_short
        path = process.folder / "subscriptions.jsonl"
        lines = {}
        for line in process.lines(path.name):
            _need(path, line, "sub_id", "subscriber", "broker", "predicate")
            if line["sub_id"] in seen:
                doubts.append(doubt("twice", what=f"subscription {line['sub_id']}"))
                continue
            seen.add(line["sub_id"])
            lines[line["sub_id"]] = line
        is_ours = file is not None and not file.foreign_run
        names = [*file.tables.get("subscriptions", ())] if file is not None and is_ours else []
        for name in names:
            if name in logged:
                doubts.append(doubt("twice", what=f"deliveries to subscription {name}"))
            logged.add(name)
        for name, line in lines.items():
            subscription = _subscription(run, process.host, line, closed)
            if not subscription.started:
                doubts.append(doubt("never_started", who=name))
            doubts += doubts_about_subscription(subscription, wanted)
            yield subscription
        for name in names:
            if name not in seen:
                seen.add(name)
                doubts.append(doubt("never_started", who=name))
                subscriber = name.partition("/")[0]
                broker, predicate = wanted.get(subscriber, ("unknown", "true"))
                yield Subscription(
                    name, subscriber, broker, predicate, None, None, closed, started=False
                )


def _subscription(run: Run, host: str, line: Mapping[str, Any], closed: bool) -> Subscription:
    issued_ns, accepted_ns = line.get("t_issued_ns"), line.get("t_accepted_ns")
    return Subscription(
        line["sub_id"],
        line["subscriber"],
        line["broker"],
        line["predicate"],
        run.to_timeline(issued_ns, host) if issued_ns else None,
        run.to_timeline(accepted_ns, host) if accepted_ns else None,
        closed,
        started=bool(accepted_ns),
    )


def _need(path: Path, line: Mapping[str, Any], *texts: str) -> None:
    for name in texts:
        if not isinstance(line.get(name), str):
            raise IntegrityError(f"{path}: {name} = {line.get(name)!r} is no text")
    for name in ("t_issued_ns", "t_accepted_ns"):
        if not isinstance(line.get(name), int | None):
            raise IntegrityError(f"{path}: {name} = {line.get(name)!r} is no time")
