"""The rows of a run's record files, counted by column for the witnesses.

Record files are mapped, not read: counting touches columns, with numpy. `results.witnesses`
compares the counts with other files and draws the conclusions.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from brokerd.quantiles import PERCENTILES, quantile
from results.tables.logs import Logs, Process, read_processes
from results.tables.manifest import Run
from results.tables.record_files import NOTICE, RECORDS, STRETCH, RecordFile
from results.witnesses.rows import (
    LEAST_BLOCK,
    MOST_PLACES,
    Blockage,
    Headline,
    LaneRows,
    LoggedDelivery,
    Rows,
    SourceRows,
)

_DATA, _FENCE, _AGAIN = 0, 1, 4
_ACKNOWLEDGED, _REJECTED = 1, 2
_APPLICATION = 1
_JITTER_NS = 1_000_000
_SUM_END = 1 << 63
"""Sums of positions are modulo this, so that documents need no more than 64 bits."""
_LARGEST_SAMPLE = 200_000

SourceKey = tuple[str, int]
"""Source and incarnation."""


def rows_of(run: Run, logs: Logs) -> Rows:
    """Return the counts of all record files of a run."""
    return _Columns(run, logs.processes).rows()


def headline_of(run: Run) -> Headline | None:
    """Return the figures of a run's headline, from all rows; None without a measure phase."""
    phase = next((p for p in run.phases if p.name == "measure"), None)
    if phase is None:
        return None
    columns = _Columns(run, read_processes(run))
    return columns.headline(phase.from_ns, phase.to_ns, most=1 << 62)


def list_unanswered(
    run: Run, logs: Logs, source: str, at_ns: int, error_ns: int
) -> list[tuple[int, int]]:
    """Return incarnation and number of a source's publications without an acknowledgement.

    Args:
        at_ns: the time on the run's time line; later publications do not count.
        error_ns: maximum error of this time.
    """
    found: list[tuple[int, int]] = []
    for process in logs.processes:
        published, acks = (process.records.get(layout) for layout in ("publications", "acks"))
        names = [] if published is None else [*published.tables.get("publishers", ())]
        if published is None or not published.rows or source not in names:
            continue
        stamp_ns, number = at_ns + run.origin_ns, names.index(source)
        shift_ns = run.to_timeline(stamp_ns, published.host) - stamp_ns
        rows = _map(published)
        rows = rows[rows["publisher"] == number]
        rows = rows[rows["sent_ns"] + shift_ns <= at_ns + error_ns]
        answers = np.zeros(0, RECORDS["acks"]) if acks is None or not acks.rows else _map(acks)
        answers = answers[(answers["publisher"] == number) & (answers["outcome"] == _ACKNOWLEDGED)]
        answers = answers[answers["acked_ns"] + shift_ns < at_ns - error_ns]
        for incarnation in np.unique(rows["incarnation"]).tolist():
            numbers = rows["sequence"][rows["incarnation"] == incarnation]
            of = np.sort(answers[answers["incarnation"] == incarnation], order="first")
            places = np.searchsorted(of["first"], numbers, "right") - 1
            is_answered = places >= 0
            is_answered[is_answered] = of["last"][places[is_answered]] >= numbers[is_answered]
            found += [(incarnation, each) for each in numbers[~is_answered].tolist()]
    return found


class _Columns:
    def __init__(self, run: Run, processes: Sequence[Process]) -> None:
        self._run = run
        self._processes = processes
        self._ordered: dict[tuple[str, str], Any] = {}
        self._by_answer: dict[str, tuple[Any, Any]] = {}

    def _fence_set(self, file: RecordFile) -> int:
        return len(file.tables.get("attribute_sets", ())) - 1

    def rows(self) -> Rows:
        client_of: dict[str, str] = {}
        for _, file in self._select("publications"):
            names: Any = file.tables.get("publisher_names") or {}
            client_of |= names
        answers = {place: self._answers(file) for place, file in self._select("acks")}
        phase = next((p for p in self._run.phases if p.name == "measure"), None)
        displaced, scattered = self._count_displaced()
        return Rows(
            sources=self._sources(),
            lanes=self._lanes(),
            client_of=client_of,
            published={place: file.rows for place, file in self._select("publications")},
            acknowledged={place: found[0] for place, found in answers.items()},
            rejected={place: found[1] for place, found in answers.items()},
            delivered={
                place: file.places - len(file.scan.notices) - self._count_kept_back(file)
                for place, file in self._select("deliveries")
            },
            kept_back={
                place: self._count_kept_back(file) for place, file in self._select("deliveries")
            },
            whole=frozenset(
                _place(process)
                for process in self._processes
                if process.records
                and all(
                    file.is_whole
                    for layout, file in process.records.items()
                    if layout in ("publications", "deliveries", "acks")
                )
            ),
            breaches=self._breaches,
            sent_ns=self._sent_ns,
            until=self._count_until,
            lateness_ns=self._lateness_by_stamp(),
            applications={
                (place, subscription): self._list_deliveries(file, number)
                for place, file in self._select("deliveries")
                for number, subscription in enumerate(file.tables["subscriptions"])
                if _has_database(file, subscription)
            },
            early_answers={place: self._early(file) for place, file in self._select("acks")},
            repeated_answers={place: _repeated(file) for place, file in self._select("acks")},
            late_intents={place: self._count_late(file) for place, file in self._select("intents")},
            short_intents={place: _count_short(file) for place, file in self._select("intents")},
            misplaced={place: self._misplaced(place) for place, _ in self._select("positions")},
            displaced=displaced,
            scattered=scattered,
            shifted_fences={
                place: self._count_shifted(file) for place, file in self._select("publications")
            },
            partitioned={
                place: self._count_partitioned(file) for place, file in self._select("deliveries")
            },
            late_ns=self._lateness(),
            ends_ns=self._ends(),
            streams={place: _positions(file) for place, file in self._select("positions")},
            headline=None if phase is None else self.headline(phase.from_ns, phase.to_ns),
        )

    def _select(self, layout: str) -> Iterator[tuple[str, RecordFile]]:
        for process in self._processes:
            file = process.records.get(layout)
            if file is not None and not file.foreign_run and file.rows:
                yield _place(process), file

    def _count_until(self, place: str, layout: str, stamp_ns: int) -> int | None:
        if layout == "acks":
            stamps, sums = self._find_answers(place)
            return int(sums[np.searchsorted(stamps, stamp_ns, "right")])
        if (place, layout) not in self._ordered:
            columns = [np.zeros(0, "i8")]
            is_folded = False
            for _, file in ((name, file) for name, file in self._select(layout) if name == place):
                rows = _map(file)
                if layout == "deliveries":
                    is_folded |= bool((rows["kind"] == STRETCH).any())
                    rows = rows[(rows["layer"] == _APPLICATION) & (rows["kind"] != NOTICE)]
                columns.append(rows["sent_ns" if layout == "publications" else "received_ns"])
            self._ordered[place, layout] = None if is_folded else np.sort(np.concatenate(columns))
        stamps = self._ordered[place, layout]
        return None if stamps is None else int(np.searchsorted(stamps, stamp_ns, "right"))

    def _list_deliveries(self, file: RecordFile, subscription: int) -> list[LoggedDelivery]:
        log = _map(file)
        wanted = (log["subscription"] == subscription) & (log["layer"] == _APPLICATION)
        places = np.flatnonzero(wanted & np.isin(log["kind"], (_DATA, _FENCE, _AGAIN)))
        rows, sources = log[places], file.tables["publishers"]
        columns = [
            places, rows["publisher"], rows["incarnation"], rows["sequence"],
            rows["kind"] == _AGAIN, rows["received_ns"],
        ]  # fmt: skip
        return [
            LoggedDelivery(at, sources[publisher], *more)
            for at, publisher, *more in zip(*(c.tolist() for c in columns), strict=True)
        ]

    def _find_answers(self, place: str) -> tuple[Any, Any]:
        """Return the ascending times of acknowledgements, and the count of numbers before each."""
        if place not in self._by_answer:
            parts = [_map(file) for name, file in self._select("acks") if name == place]
            rows = np.concatenate([np.zeros(0, RECORDS["acks"]), *parts])
            rows = rows[rows["outcome"] == _ACKNOWLEDGED]
            rows = rows[np.argsort(rows["acked_ns"], kind="stable")]
            sums = np.concatenate([[0], np.cumsum(rows["last"] - rows["first"] + 1)])
            self._by_answer[place] = rows["acked_ns"], sums
        return self._by_answer[place]

    def _early(self, file: RecordFile) -> int:
        rows = _map(file)
        sent = self._stamps(file, rows, "last", 1)
        return int(((sent > 0) & (rows["acked_ns"] < sent - _JITTER_NS)).sum())

    def _count_late(self, file: RecordFile) -> int:
        """Count reservations with a first number that was sent before."""
        late = 0
        rows = _map(file)
        for of, mask in _group_by(rows, "publisher"):
            source = file.tables["publishers"][of[0]]
            mine = rows[mask][np.argsort(rows[mask]["at_ns"], kind="stable")]
            firsts = [1, *(mine["last"][:-1] + 1).tolist()]
            for first, at_ns in zip(firsts, mine["at_ns"].tolist(), strict=True):
                sent_ns = self._sent_ns(source, of[1], first)
                moved_ns = self._run.to_timeline(at_ns, file.host)
                late += sent_ns is not None and sent_ns < moved_ns - _JITTER_NS
        return late

    def _misplaced(self, place: str) -> int:
        placed, logged = (
            np.concatenate(
                [
                    np.zeros(0, RECORDS[layout]),
                    *(_map(file) for name, file in self._select(layout) if name == place),
                ]
            )
            for layout in ("positions", "deliveries")
        )
        wrong = (placed["row"] < 0) | (placed["row"] >= len(logged))
        there = placed[~wrong]
        wrong[~wrong] = logged["received_ns"][there["row"]] != there["received_ns"]
        wrong[1:] |= np.diff(placed["row"]) <= 0
        return int(wrong.sum())

    def _count_shifted(self, file: RecordFile) -> int:
        rows = _map(file)
        fences = rows[rows["attribute_set"] == self._fence_set(file)]
        return int((fences["intended_ns"] != fences["sent_ns"]).sum())

    def _count_partitioned(self, file: RecordFile) -> int:
        rows = _map(file)
        named = (rows["kind"] == NOTICE) | (rows["kind"] == STRETCH)
        return int((~named & (rows["partition"] != 0)).sum())

    def _count_displaced(self) -> tuple[int, int]:
        """Return the wrong places, and the further streams of publications with several."""
        logs = dict(self._select("deliveries"))
        placed = [(place, file) for place, file in self._select("positions") if place in logs]
        if sum(file.rows for _, file in placed) > MOST_PLACES:
            return 0, 0
        names: dict[str, int] = {}
        parts = [np.zeros((0, 5), "i8")]
        descents = 0
        for place, file in placed:
            log, rows = _map(logs[place]), _map(file)
            rows = rows[(rows["row"] >= 0) & (rows["row"] < len(log))]
            own = log[rows["row"]]
            wanted = (own["kind"] != _AGAIN) & (own["layer"] == _APPLICATION)
            rows, own = rows[wanted], own[wanted]
            streams, sources = (
                np.array([names.setdefault(f"{kind} {name}", len(names)) for name in table], "i8")
                for kind, table in (
                    ("stream", file.tables["streams"]),
                    ("source", logs[place].tables["publishers"]),
                )
            )
            descents += _count_descents(
                rows["position"], rows["stream"].astype("i8"), own["subscription"].astype("i8")
            )
            columns = [streams[rows["stream"]], rows["position"], sources[own["publisher"]]]
            columns += [own["incarnation"].astype("i8"), own["sequence"]]
            parts.append(np.stack(columns, axis=1))
        once = np.unique(np.concatenate(parts), axis=0)
        n_places, n_by_stream, n_publications = (
            len(np.unique(once[:, columns], axis=0))
            for columns in ([0, 1], [0, 2, 3, 4], [2, 3, 4])
        )
        several = 2 * len(once) - n_places - n_by_stream
        by_source = once[np.lexsort((once[:, 4], once[:, 3], once[:, 1], once[:, 2], once[:, 0]))]
        steps = np.diff(by_source, axis=0)
        is_same = (steps[:, 0] == 0) & (steps[:, 2] == 0)
        is_back = (steps[:, 3] < 0) | ((steps[:, 3] == 0) & (steps[:, 4] < 0))
        displaced = several + int((is_same & is_back).sum()) + descents
        return displaced, n_by_stream - n_publications

    def _count_kept_back(self, file: RecordFile) -> int:
        rows = _map(file)
        return int(((rows["layer"] != _APPLICATION) & (rows["kind"] != NOTICE)).sum())

    def _answers(self, file: RecordFile) -> tuple[int, int]:
        rows = _map(file)
        lengths = rows["last"] - rows["first"] + 1
        return (
            int(lengths[rows["outcome"] == _ACKNOWLEDGED].sum()),
            int(lengths[rows["outcome"] == _REJECTED].sum()),
        )

    def _lateness(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for place, file in self._select("publications"):
            rows = _map(file)
            rows = rows[rows["attribute_set"] != self._fence_set(file)]
            late = np.maximum(0, rows["sent_ns"] - rows["intended_ns"])
            found[place] = int(late.sum()), int(late.max(initial=0))
        return found

    def _lateness_by_stamp(self) -> dict[tuple[str, str], tuple[Any, Any]]:
        found: dict[tuple[str, str], tuple[Any, Any]] = {}
        for place, file in self._select("publications"):
            rows = _map(file)
            rows = rows[rows["attribute_set"] != self._fence_set(file)]
            for column in ("sent_ns", "intended_ns"):
                of = rows[np.argsort(rows[column], kind="stable")]
                late = np.maximum(0, of["sent_ns"] - of["intended_ns"])
                found[place, column] = of[column], late
        return found

    def _ends(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        stamps = {"publications": "sent_ns", "acks": "acked_ns", "deliveries": "received_ns"}
        for layout, column in (*stamps.items(), ("intents", "at_ns")):
            for place, file in self._select(layout):
                values = _map(file)[column]
                low, high = int(values.min()), int(values.max())
                before = found.get(place, (low, high))
                found[place] = min(before[0], low), max(before[1], high)
        return found

    def _sources(self) -> dict[SourceKey, SourceRows]:
        found: dict[SourceKey, SourceRows] = {}
        for _, file in self._select("publications"):
            rows = _map(file)
            for of, mask in _group_by(rows, "publisher"):
                key = file.tables["publishers"][of[0]], of[1]
                mine = rows[mask]
                fences = {
                    *mine["sequence"][mine["attribute_set"] == self._fence_set(file)].tolist()
                }
                first = self._run.to_timeline(int(mine["sent_ns"].min()), file.host)
                last = self._run.to_timeline(int(mine["sent_ns"].max()), file.host)
                highest = int(mine["sequence"].max())
                if (before := found.get(key)) is not None:
                    fences |= {*before.fences}
                    highest = max(highest, before.highest)
                    first, last = min(first, before.first_ns), max(last, before.last_ns)
                found[key] = SourceRows(highest, tuple(sorted(fences)), first, last)
        return found

    def _lanes(self) -> dict[tuple[str, str, int], LaneRows]:
        found: dict[tuple[str, str, int], list[Any]] = {}
        for _, file in self._select("deliveries"):
            rows = _map(file)
            rows = rows[(rows["layer"] == _APPLICATION) & (rows["kind"] != NOTICE)]
            for lane_of, mask in _group_by(rows, "publisher", "subscription"):
                source = file.tables["publishers"][lane_of[0]]
                subscription = file.tables["subscriptions"][lane_of[2]]
                found.setdefault((subscription, source, lane_of[1]), []).append(rows[mask])
        lanes = {name: _lane(np.concatenate(parts)) for name, parts in found.items()}
        return {name: lane for name, lane in lanes.items() if lane.high}

    @cached_property
    def _sent(self) -> Mapping[SourceKey, tuple[Any, Any, Any]]:
        """Return by source the ascending numbers, the send times and the intended send times."""
        found: dict[SourceKey, list[Any]] = {}
        for _, file in self._select("publications"):
            rows = _map(file)
            for of, mask in _group_by(rows, "publisher"):
                key = file.tables["publishers"][of[0]], of[1]
                mine = rows[mask]
                meant = np.where(
                    mine["attribute_set"] == self._fence_set(file), 0, mine["intended_ns"]
                )
                found.setdefault(key, []).append((mine["sequence"], mine["sent_ns"], meant))
        sent = {}
        for key, parts in found.items():
            columns = [np.concatenate([part[place] for part in parts]) for place in range(3)]
            numbers, first = np.unique(columns[0], return_index=True)
            sent[key] = numbers, columns[1][first], columns[2][first]
        return sent

    def _host_of(self, source: str) -> str:
        for _, file in self._select("publications"):
            if source in file.tables.get("publishers", ()):
                return file.host
        return ""

    def _sent_ns(self, source: str, incarnation: int, number: int) -> int | None:
        if (source, incarnation) not in self._sent:
            return None
        numbers, sent, _ = self._sent[source, incarnation]
        place = int(np.searchsorted(numbers, number))
        if place == len(numbers) or numbers[place] != number:
            return None
        return self._run.to_timeline(int(sent[place]), self._host_of(source))

    def _stamps(self, file: RecordFile, rows: Any, column: str, which: int) -> Any:
        """Return the stamp of the publication that each row names; 0 if it was never sent."""
        found = np.zeros(len(rows), "i8")
        for of, mask in _group_by(rows, "publisher"):
            known = self._sent.get((file.tables["publishers"][of[0]], of[1]))
            if known is None:
                continue
            wanted = rows[column][mask]
            places = np.minimum(np.searchsorted(known[0], wanted), len(known[0]) - 1)
            found[mask] = np.where(known[0][places] == wanted, known[which][places], 0)
        return found

    def _breaches(self, blockages: Sequence[Blockage]) -> list[tuple[int, int]]:
        return [
            (self._count_passed(blockage), self._count_answered(blockage)) for blockage in blockages
        ]

    def _select_within(
        self, file: RecordFile, rows: Any, stamp: str, number: str, blockage: Blockage
    ) -> Any:
        """Return the rows of sent publications that were written within a blockage."""
        shift = self._run.origin_ns
        rows = rows[rows[stamp] > 0]
        sent = self._stamps(file, rows, number, 1)
        rows, sent = rows[sent > 0], sent[sent > 0]
        offset = self._run.clocks.offsets_ns(file.host, rows[stamp])
        rows_in = rows[stamp] - offset - shift <= blockage.to_ns
        rows, sent = rows[rows_in], sent[rows_in]
        keep = np.zeros(len(rows), bool)
        for of, mask in _group_by(rows, "publisher"):
            host = self._host_of(file.tables["publishers"][of[0]])
            moved = sent[mask] - self._run.clocks.offsets_ns(host, sent[mask]) - shift
            keep[mask] = moved >= blockage.from_ns
        return rows[keep]

    def _count_passed(self, blockage: Blockage) -> int:
        passed = 0
        for _, file in self._select("deliveries"):
            rows = _map(file)
            rows = rows[(rows["layer"] == _APPLICATION) & (rows["kind"] != NOTICE)]
            rows = self._select_within(file, rows, "received_ns", "sequence", blockage)
            for of, mask in _group_by(rows, "publisher", "subscription"):
                source = file.tables["publishers"][of[0]]
                if blockage.separates(source, file.tables["subscriptions"][of[2]]):
                    passed += int(mask.sum())
        return passed

    def _count_answered(self, blockage: Blockage) -> int:
        answered = 0
        for _, file in self._select("acks"):
            rows = _map(file)
            rows = rows[rows["outcome"] == _ACKNOWLEDGED]
            rows = self._select_within(file, rows, "acked_ns", "last", blockage)
            for of, mask in _group_by(rows, "publisher"):
                if file.tables["publishers"][of[0]] in blockage.silent:
                    answered += int(mask.sum())
        return answered

    def headline(self, from_ns: int, to_ns: int, most: int = _LARGEST_SAMPLE) -> Headline:
        """Return the headline's figures; no percentiles of more than `most` rows."""
        from_ns, to_ns = from_ns + self._run.origin_ns, to_ns + self._run.origin_ns
        published = sum(
            int(((meant >= from_ns) & (meant < to_ns)).sum()) for _, _, meant in self._sent.values()
        )
        delivered = earlier = rows_seen = 0
        response, service = [np.zeros(0, "i8")], [np.zeros(0, "i8")]
        for _, file in self._select("deliveries"):
            rows = _map(file)
            rows = rows[rows["layer"] == _APPLICATION]
            rows_in = rows[(rows["received_ns"] >= from_ns) & (rows["received_ns"] < to_ns)]
            folded = rows_in[rows_in["kind"] == STRETCH]["digest"]
            delivered += int((rows_in["kind"] == _DATA).sum()) + int(folded.sum(dtype="i8"))
            earlier += self._earlier(file, rows_in, from_ns)
            rows = rows[rows["kind"] == _DATA]
            rows_seen += len(rows)
            sample: Any = file.tables.get("sample")
            if sample:
                rows = rows[rows["sequence"] // sample["block"] % sample["one_in"] == 0]
            rows = rows[rows["received_ns"] >= from_ns]
            meant = self._stamps(file, rows, "sequence", 2)
            sent = self._stamps(file, rows, "sequence", 1)
            wanted = (meant >= from_ns) & (meant < to_ns) & (meant > 0)
            response.append((rows["received_ns"] - meant)[wanted])
            service.append((rows["received_ns"] - sent)[wanted])
        few = rows_seen <= most
        return Headline(
            published,
            delivered,
            earlier,
            _percentiles(np.concatenate(response)) if few else None,
            _percentiles(np.concatenate(service)) if few else None,
            self._count_acknowledged(from_ns, to_ns, most),
            sum(int(((meant > 0) & (meant < to_ns)).sum()) for _, _, meant in self._sent.values()),
            sum(
                self._count_until(place, "acks", to_ns - 1) or 0
                for place, _ in self._select("acks")
            ),
        )

    def _earlier(self, file: RecordFile, rows: Any, from_ns: int) -> int:
        """Count the data publications of some rows that were due before a stamp."""
        earlier = 0
        for of, mask in _group_by(rows, "publisher"):
            known = self._sent.get((file.tables["publishers"][of[0]], of[1]))
            if known is None:
                continue
            numbers, _, meant = known
            first = int(np.searchsorted(np.maximum.accumulate(meant), from_ns))
            limit = numbers[first] if first < len(numbers) else numbers[-1] + 1
            before = rows[mask & (rows["sequence"] < limit)]
            folded = before[before["kind"] == STRETCH]["digest"]
            earlier += int((before["kind"] == _DATA).sum()) + int(folded.sum(dtype="i8"))
        return earlier

    def _count_acknowledged(self, from_ns: int, to_ns: int, most: int) -> dict[str, float] | None:
        waits = [np.zeros(0, "i8")]
        files = [(file, _map(file)) for _, file in self._select("acks")]
        files = [(file, rows[rows["outcome"] == _ACKNOWLEDGED]) for file, rows in files]
        if sum(int((rows["last"] - rows["first"] + 1).sum()) for _, rows in files) > most:
            return None
        for file, rows in files:
            lengths = rows["last"] - rows["first"] + 1
            each = np.repeat(rows, lengths)
            starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
            each["last"] = each["first"] + np.arange(len(each)) - starts
            meant = self._stamps(file, each, "last", 2)
            wanted = (meant >= from_ns) & (meant < to_ns) & (meant > 0)
            waits.append((each["acked_ns"] - meant)[wanted])
        return _percentiles(np.concatenate(waits))


def _place(process: Process) -> str:
    return f"raw/{process.host}/{process.name}"


def _repeated(file: RecordFile) -> int:
    rows, found = _map(file), 0
    for _, mask in _group_by(rows, "publisher"):
        mine = np.sort(rows[mask], order=["first", "last"])
        found += int((mine["first"][1:] <= np.maximum.accumulate(mine["last"])[:-1]).sum())
    return found


def _count_short(file: RecordFile) -> int:
    """Count reservations that end less than a block behind the one before."""
    rows, short = _map(file), 0
    for _, mask in _group_by(rows, "publisher"):
        short += int((np.diff(rows["last"][mask], prepend=0) < LEAST_BLOCK).sum())
    return short


def _positions(file: RecordFile) -> dict[str, tuple[int, int]]:
    rows, names = _map(file), file.tables["streams"]
    return {
        names[number]: (int((rows["stream"] == number).sum()),
                        sum(rows["position"][rows["stream"] == number].tolist()) % _SUM_END)
        for number in np.unique(rows["stream"])
    }  # fmt: skip


def _has_database(file: RecordFile, subscription: str) -> bool:
    """Return True if the application of a subscription left a database."""
    return file.path.with_name(f"{subscription.partition('/')[0]}.sqlite").is_file()


def _map(file: RecordFile) -> Any:
    return np.memmap(file.path, RECORDS[file.layout], "r", shape=(file.rows,)).view(np.ndarray)


def _count_descents(positions: Any, *groups: Any) -> int:
    """Count positions below the one before, of the same group, in the order of the log."""
    order = np.lexsort((np.arange(len(positions)), *groups))
    is_same = np.ones(max(len(positions) - 1, 0), bool)
    for group in groups:
        is_same &= np.diff(group[order]) == 0
    return int((is_same & (np.diff(positions[order]) < 0)).sum())


def _group_by(rows: Any, *columns: str) -> Iterator[tuple[tuple[int, int, int], Any]]:
    """Yield (publisher, incarnation, value of a second column) with the mask of matching rows."""
    code = rows["publisher"].astype("i8") << 48 | rows["incarnation"].astype("i8") << 32
    if len(columns) > 1:
        code = code | rows[columns[1]]
    for value in np.unique(code).tolist():
        yield (value >> 48 & 0xFFFF, value >> 32 & 0xFFFF, value & 0xFFFFFFFF), code == value


def _lane(rows: Any) -> LaneRows:
    kinds = rows["kind"]
    stretches = kinds == STRETCH
    rows_in = (kinds == _DATA) | (kinds == _FENCE) | (kinds == _AGAIN) | stretches
    if not rows_in.any():
        return LaneRows()
    numbers = rows["sequence"][rows_in]
    exact = not stretches.any()
    repeated = 0
    if exact:
        _seen, first = np.unique(numbers, return_index=True)
        plain = int((kinds[rows_in] != _AGAIN).sum())
        repeated = plain - int((kinds[rows_in][first] != _AGAIN).sum())
    return LaneRows(
        data=int((kinds == _DATA).sum()) + int(rows["digest"][stretches].sum(dtype="i8")),
        fences=int((kinds == _FENCE).sum()),
        again=int((kinds == _AGAIN).sum()),
        repeated=repeated,
        low=int(numbers.min()) if exact else 0,
        high=int(numbers.max()),
        exact=exact,
    )


def _percentiles(values: Any) -> dict[str, float]:
    if not len(values):
        return {}
    ordered: Any = np.sort(values)
    return {name: int(quantile(ordered, share)) / 1000 for name, share in PERCENTILES.items()}
