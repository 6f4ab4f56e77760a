"""The rows of a run folder's record files, counted row by row for the witnesses.

The module only counts. `results.witnesses` compares the counts with other files.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from brokerd.quantiles import percentiles_us
from results.reference.files import JITTER_NS, NOTICE, STRETCH, Records
from results.reference.history import ACKNOWLEDGED, DATA, FENCE, REDELIVERED
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

_APPLICATION = 1
_SAMPLE = 200_000
_SUM_END = 1 << 63
"""Sums of positions are modulo this, so that documents need no more than 64 bits."""

Key = tuple[str, int, int]
"""Source, incarnation and number."""


class Count:
    """All records of a run.

    Args:
        records: records by process folder and layout.
        moved: moves a stamp of a host to the time line.
        fence_set: the attribute set of fences.
        measured: both ends of the measure phase, as stamps.
    """

    def __init__(
        self,
        records: Mapping[tuple[Path, str], Records],
        moved: Any,
        fence_set: int,
        measured: tuple[int, int] | None,
    ) -> None:
        self._moved = moved
        self._fence_set = fence_set
        self._measured = measured
        self._files = sorted(records.items())
        self._sent: dict[Key, int] = {}
        self._intended: dict[Key, tuple[int, int]] = {}
        self._client_of: dict[str, str] = {}
        self._stamps: dict[tuple[str, str], list[int] | None] = {}
        self._answered: dict[str, tuple[list[int], list[int]]] = {}
        for _, file in self._select("publications"):
            self._client_of |= file.tables.get("publisher_names") or {}
            for row in file.rows:
                key = _key(file, row, row["sequence"])
                self._sent.setdefault(key, moved(row["at_ns"], file.host))
                if row["attribute_set"] != fence_set:
                    self._intended[key] = row["intended_ns"], row["at_ns"]

    def rows(self) -> Rows:
        answers = {name: Counter[int]() for name in {_place(path) for (path, _), _ in self._files}}
        for place, file in self._select("acks"):
            for row in file.rows:
                answers[place][row["outcome"]] += row["last"] - row["first"] + 1
        layouts = {"publications", "deliveries", "acks"}
        open_places = {
            _place(path)
            for (path, layout), file in self._files
            if layout in layouts and not file.whole
        }
        displaced, scattered = self._count_displaced()
        return Rows(
            sources=self._sources(),
            lanes=self._lanes(),
            client_of=self._client_of,
            published={place: len(file.rows) for place, file in self._select("publications")},
            acknowledged={place: answers[place][ACKNOWLEDGED] for place, _ in self._select("acks")},
            rejected={place: answers[place][2] for place, _ in self._select("acks")},
            delivered={
                place: sum(_places(row) for row in file.rows if row["layer"] == _APPLICATION)
                for place, file in self._select("deliveries")
            },
            kept_back={
                place: sum(_places(row) for row in file.rows if row["layer"] != _APPLICATION)
                for place, file in self._select("deliveries")
            },
            whole=frozenset(answers.keys() - open_places),
            breaches=self._breaches,
            sent_ns=lambda *key: self._sent.get(key),
            until=self._count_until,
            lateness_ns=self._lateness_by_stamp(),
            applications=self._list_applications(),
            early_answers={place: self._early(file) for place, file in self._select("acks")},
            repeated_answers={place: _count_again(file) for place, file in self._select("acks")},
            late_intents={place: self._count_late(file) for place, file in self._select("intents")},
            short_intents={place: _count_short(file) for place, file in self._select("intents")},
            misplaced=self._misplaced(),
            displaced=displaced,
            scattered=scattered,
            shifted_fences={
                place: sum(
                    row["intended_ns"] != row["at_ns"]
                    for row in file.rows
                    if row["attribute_set"] == self._fence_set
                )
                for place, file in self._select("publications")
            },
            partitioned={
                place: sum(
                    row["kind"] not in (NOTICE, STRETCH) and row["partition"] != 0
                    for row in file.rows
                )
                for place, file in self._select("deliveries")
            },
            late_ns=self._lateness(),
            ends_ns=self._ends(),
            streams={place: _positions(file) for place, file in self._select("positions")},
            headline=None if self._measured is None else self._headline(*self._measured),
        )

    def _select(self, layout: str) -> Iterator[tuple[str, Records]]:
        for (path, name), file in self._files:
            if name == layout:
                yield _place(path), file

    def _lateness(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for place, file in self._select("publications"):
            late = [
                max(0, row["at_ns"] - row["intended_ns"])
                for row in file.rows
                if row["attribute_set"] != self._fence_set
            ]
            found[place] = sum(late), max(late, default=0)
        return found

    def _lateness_by_stamp(self) -> dict[tuple[str, str], tuple[list[int], list[int]]]:
        found: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
        for place, file in self._select("publications"):
            data = [row for row in file.rows if row["attribute_set"] != self._fence_set]
            for column, name in (("sent_ns", "at_ns"), ("intended_ns", "intended_ns")):
                rows = sorted(data, key=lambda row, name=name: row[name])  # type: ignore[misc]
                late = [max(0, row["at_ns"] - row["intended_ns"]) for row in rows]
                found[place, column] = [row[name] for row in rows], late
        return found

    def _ends(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for (path, _), file in self._files:
            stamps = [row["at_ns"] for row in file.rows]
            if stamps:
                low, high = found.get(_place(path), (stamps[0], stamps[0]))
                found[_place(path)] = min(low, *stamps), max(high, *stamps)
        return found

    def _count_until(self, place: str, layout: str, stamp_ns: int) -> int | None:
        if layout == "acks":
            times, sums = self._answers_of(place)
            return sums[bisect_right(times, stamp_ns)]
        if (place, layout) not in self._stamps:
            files = [file for name, file in self._select(layout) if name == place]
            rows = [
                row
                for file in files
                for row in file.rows
                if row.get("layer", 1) == 1 and row.get("kind") != NOTICE
            ]
            is_folded = any(row.get("kind") == STRETCH for row in rows)
            self._stamps[place, layout] = (
                None if is_folded else sorted(row["at_ns"] for row in rows)
            )
        stamps = self._stamps[place, layout]
        return None if stamps is None else bisect_right(stamps, stamp_ns)

    def _list_applications(self) -> dict[tuple[str, str], list[LoggedDelivery]]:
        """Return the deliveries to the applications with databases."""
        found: dict[tuple[str, str], list[LoggedDelivery]] = {}
        for (path, layout), file in self._files:
            if layout != "deliveries":
                continue
            own = {
                name
                for name in file.tables.get("subscriptions", ())
                if (path / f"{name.partition('/')[0]}.sqlite").is_file()
            }
            for at, row in enumerate(file.rows if own else ()):
                name = file.tables["subscriptions"][row["subscription"]]
                is_logged = row["kind"] in (DATA, FENCE, REDELIVERED)
                if name in own and row["layer"] == _APPLICATION and is_logged:
                    source, incarnation, number = _key(file, row, row["sequence"])
                    found.setdefault((_place(path), name), []).append(
                        LoggedDelivery(
                            at, source, incarnation, number, row["kind"] == REDELIVERED,
                            row["at_ns"],
                        )
                    )  # fmt: skip
        return found

    def _answers_of(self, place: str) -> tuple[list[int], list[int]]:
        """Return the ascending times of acknowledgements, and the count of numbers before each."""
        if place not in self._answered:
            lengths = sorted(
                (row["at_ns"], row["last"] - row["first"] + 1)
                for name, file in self._select("acks")
                for row in file.rows
                if name == place and row["outcome"] == ACKNOWLEDGED
            )
            sums = [0, *accumulate(length for _, length in lengths)]
            self._answered[place] = [at_ns for at_ns, _ in lengths], sums
        return self._answered[place]

    def _early(self, file: Records) -> int:
        early = 0
        for row in file.rows:
            sent_ns = self._sent.get(_key(file, row, row["last"]))
            at_ns = self._moved(row["at_ns"], file.host)
            early += sent_ns is not None and at_ns < sent_ns - JITTER_NS
        return early

    def _count_late(self, file: Records) -> int:
        """Count reservations with a first number that was sent before."""
        reserved: dict[tuple[str, int], int] = {}
        late = 0
        for row in sorted(file.rows, key=lambda row: row["at_ns"]):
            source, incarnation, last = _key(file, row, row["last"])
            first = reserved.get((source, incarnation), 0) + 1
            reserved[source, incarnation] = last
            sent_ns = self._sent.get((source, incarnation, first))
            at_ns = self._moved(row["at_ns"], file.host)
            late += sent_ns is not None and sent_ns < at_ns - JITTER_NS
        return late

    def _misplaced(self) -> dict[str, int]:
        deliveries = {place: file.rows for place, file in self._select("deliveries")}
        found: dict[str, int] = {}
        for place, file in self._select("positions"):
            logged = deliveries.get(place, [])
            before = -1
            found[place] = 0
            for row in file.rows:
                own = logged[row["row"]]["at_ns"] if 0 <= row["row"] < len(logged) else None
                found[place] += row["row"] <= before or row["at_ns"] != own
                before = row["row"]
        return found

    def _count_displaced(self) -> tuple[int, int]:
        """Return the wrong places, and the further streams of publications with several."""
        deliveries = dict(self._select("deliveries"))
        placed = dict(self._select("positions"))
        if sum(len(file.rows) for file in placed.values()) > MOST_PLACES:
            return 0, 0
        at: dict[tuple[str, int], set[Key]] = {}
        of: dict[tuple[str, Key], set[int]] = {}
        descents = 0
        for place, file in placed.items():
            last: dict[tuple[int, int], int] = {}
            logged = deliveries[place].rows if place in deliveries else []
            for row in file.rows:
                own = logged[row["row"]] if 0 <= row["row"] < len(logged) else None
                if own is None or own["kind"] == REDELIVERED or own["layer"] != _APPLICATION:
                    continue
                key = _key(deliveries[place], own, own["sequence"])
                where = file.tables["streams"][row["stream"]], row["position"]
                at.setdefault(where, set()).add(key)
                of.setdefault((where[0], key), set()).add(row["position"])
                lane = own["subscription"], row["stream"]
                descents += row["position"] < last.get(lane, 0)
                last[lane] = row["position"]
        reached: dict[tuple[str, str], tuple[int, int]] = {}
        back = 0
        for (stream, _), keys in sorted(at.items()):
            for source, incarnation, number in sorted(keys):
                before = reached.get((stream, source), (0, 0))
                back += (incarnation, number) < before
                reached[stream, source] = incarnation, number
        several = sum(len(each) - 1 for each in at.values())
        several += sum(len(each) - 1 for each in of.values())
        return back + several + descents, len(of) - len({key for _, key in of})

    def _sources(self) -> dict[tuple[str, int], SourceRows]:
        numbers: dict[tuple[str, int], list[int]] = {}
        fences: dict[tuple[str, int], set[int]] = {}
        stamps: dict[tuple[str, int], list[int]] = {}
        for _, file in self._select("publications"):
            for row in file.rows:
                source, incarnation, number = _key(file, row, row["sequence"])
                of = source, incarnation
                numbers.setdefault(of, []).append(number)
                stamps.setdefault(of, []).append(self._moved(row["at_ns"], file.host))
                fences.setdefault(of, set())
                if row["attribute_set"] == self._fence_set:
                    fences[of].add(number)
        return {
            of: SourceRows(max(found), tuple(sorted(fences[of])), min(stamps[of]), max(stamps[of]))
            for of, found in numbers.items()
        }

    def _lanes(self) -> dict[tuple[str, str, int], LaneRows]:
        seen: dict[tuple[str, str, int], set[int]] = {}
        counts: dict[tuple[str, str, int], Counter[str]] = {}
        for _, file in self._select("deliveries"):
            for row in file.rows:
                if row["layer"] != _APPLICATION or row["kind"] == NOTICE:
                    continue
                source, incarnation, number = _key(file, row, row["sequence"])
                lane = file.tables["subscriptions"][row["subscription"]], source, incarnation
                if lane not in counts:
                    counts[lane], seen[lane] = Counter(), set()
                of, numbers = counts[lane], seen[lane]
                if row["kind"] == STRETCH:
                    of["data"] += row["digest"]
                    of["stretches"] += 1
                elif row["kind"] == REDELIVERED:
                    of["again"] += 1
                elif row["kind"] in (DATA, FENCE):
                    of["data" if row["kind"] == DATA else "fences"] += 1
                    of["repeated"] += number in numbers
                else:
                    continue
                numbers.add(number)
        return {
            lane: LaneRows(
                of["data"], of["fences"], of["again"],
                0 if of["stretches"] else of["repeated"],
                0 if of["stretches"] else min(seen[lane]),
                max(seen[lane]),
                not of["stretches"],
            )
            for lane, of in counts.items()
            if seen[lane]
        }  # fmt: skip

    def _breaches(self, blockages: Sequence[Blockage]) -> list[tuple[int, int]]:
        if not blockages:
            return []
        found = [[0, 0] for _ in blockages]
        for _, file in self._select("deliveries"):
            for row in file.rows:
                sent_ns = self._sent.get(_key(file, row, row["sequence"]))
                if row["kind"] == NOTICE or row["layer"] != _APPLICATION or sent_ns is None:
                    continue
                at_ns = self._moved(row["at_ns"], file.host)
                source = file.tables["publishers"][row["publisher"]]
                subscription = file.tables["subscriptions"][row["subscription"]]
                for place, blockage in enumerate(blockages):
                    if blockage.from_ns <= sent_ns and at_ns <= blockage.to_ns:
                        found[place][0] += blockage.separates(source, subscription)
        for _, file in self._select("acks"):
            for row in file.rows:
                sent_ns = self._sent.get(_key(file, row, row["last"]))
                if row["outcome"] != ACKNOWLEDGED or sent_ns is None:
                    continue
                at_ns = self._moved(row["at_ns"], file.host)
                source = file.tables["publishers"][row["publisher"]]
                for place, blockage in enumerate(blockages):
                    if blockage.from_ns <= sent_ns and at_ns <= blockage.to_ns:
                        found[place][1] += source in blockage.silent
        return [(delivered, acknowledged) for delivered, acknowledged in found]

    def _headline(self, from_ns: int, to_ns: int) -> Headline:
        published = sum(from_ns <= at_ns < to_ns for at_ns, _ in self._intended.values())
        delivered, earlier, rows_seen = 0, 0, 0
        first = self._first_due(from_ns)
        response: list[int] = []
        service: list[int] = []
        for _, file in self._select("deliveries"):
            sample = file.tables.get("sample")
            for row in file.rows:
                if row["layer"] != _APPLICATION or row["kind"] not in (DATA, STRETCH):
                    continue
                is_in = from_ns <= row["at_ns"] < to_ns
                source, incarnation, number = _key(file, row, row["sequence"])
                is_earlier = is_in and number < first.get((source, incarnation), 0)
                if row["kind"] == STRETCH:
                    delivered += row["digest"] * is_in
                    earlier += row["digest"] * is_earlier
                    continue
                delivered += is_in
                earlier += is_earlier
                rows_seen += 1
                if sample and number // sample["block"] % sample["one_in"]:
                    continue
                intended = self._intended.get(_key(file, row, number))
                if row["at_ns"] >= from_ns and intended and from_ns <= intended[0] < to_ns:
                    response.append(row["at_ns"] - intended[0])
                    service.append(row["at_ns"] - intended[1])
        waits: list[int] = []
        numbers = answered = 0
        for _, file in self._select("acks"):
            for row in file.rows:
                if row["outcome"] != ACKNOWLEDGED:
                    continue
                numbers += row["last"] - row["first"] + 1
                answered += (row["last"] - row["first"] + 1) * (row["at_ns"] < to_ns)
                for number in range(row["first"], row["last"] + 1):
                    intended = self._intended.get(_key(file, row, number))
                    if intended and from_ns <= intended[0] < to_ns:
                        waits.append(row["at_ns"] - intended[0])
        few = rows_seen <= _SAMPLE
        return Headline(
            published, delivered, earlier,
            percentiles_us(response) if few else None,
            percentiles_us(service) if few else None,
            percentiles_us(waits) if numbers <= _SAMPLE else None,
            sum(0 < at_ns < to_ns for at_ns, _ in self._intended.values()),
            answered,
        )  # fmt: skip

    def _first_due(self, from_ns: int) -> dict[tuple[str, int], int]:
        """Return the first number that was due at a stamp or later, by source and incarnation."""
        due: dict[tuple[str, int], int] = {}
        last: dict[tuple[str, int], int] = {}
        for key in sorted(self._sent):
            source, incarnation, number = key
            last[source, incarnation] = number
            intended = self._intended.get(key)
            if intended is not None and intended[0] >= from_ns:
                due.setdefault((source, incarnation), number)
        return {of: due.get(of, number + 1) for of, number in last.items()}


def _count_again(file: Records) -> int:
    """Count the acknowledgements that begin with a number that another one has."""
    reached: dict[tuple[int, int], int] = {}
    again = 0
    for row in sorted(file.rows, key=lambda row: row["first"]):
        of = row["publisher"], row["incarnation"]
        again += row["first"] <= reached.get(of, 0)
        reached[of] = max(row["last"], reached.get(of, 0))
    return again


def _count_short(file: Records) -> int:
    """Count reservations that end less than a block behind the one before."""
    reserved: dict[tuple[int, int], int] = {}
    short = 0
    for row in file.rows:
        of = row["publisher"], row["incarnation"]
        short += row["last"] - reserved.get(of, 0) < LEAST_BLOCK
        reserved[of] = row["last"]
    return short


def _positions(file: Records) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for row in file.rows:
        stream = file.tables["streams"][row["stream"]]
        count, total = found.get(stream, (0, 0))
        found[stream] = count + 1, (total + row["position"]) % _SUM_END
    return found


def _place(path: Path) -> str:
    return f"raw/{path.parent.name}/{path.name}"


def _key(file: Records, row: Mapping[str, int], number: int) -> Key:
    return file.tables["publishers"][row["publisher"]], row["incarnation"], number


def _places(row: Mapping[str, int]) -> int:
    return row["digest"] if row["kind"] == STRETCH else int(row["kind"] != NOTICE)
