"""Tests of the plain judge's reader of histories, at and beside the bounds of single values."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.reference import history_reader, stretches
from results.reference.announcements import _is_of, _parse_range
from results.reference.broker_events import accepted_losses_of
from results.reference.files import NOTICE, STRETCH, FileRefusal, Records, StreamSelection
from results.reference.history import PublicationRow, PublisherLog
from results.reference.history_reader import _Folder
from results.rules.terms import STATE_LOST

HONEST = Path(__file__).parent / "witnessed_run"
PUBLISHERS, SUBSCRIBERS = HONEST / "raw/local1/load-pub", HONEST / "raw/local1/load-sub"
SOURCE, CLIENT = "c1/1", "c1-pub-1"
ALL, SOME = "c3-sub-1/1", "c3-sub-2/1"
LINE = {"sub_id": ALL, "source": SOURCE, "incarnation": 1, "first": 1, "last": 2, "place": 0}


@pytest.fixture
def folder() -> _Folder:
    return _Folder(HONEST)


def _changed(
    folder: _Folder, monkeypatch: pytest.MonkeyPatch, **changes: Callable[[Records], Any]
) -> None:
    """Change the records of some layouts while they are read."""
    read = folder._read

    def reading(process: Path, layout: str) -> Records | None:
        records = read(process, layout)
        change = changes.get(layout)
        return records if records is None or change is None else change(records)

    monkeypatch.setattr(folder, "_read", reading)


# --- Lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, allowed, refused",
    [
        ("incarnation", (0, (1 << 16) - 1), (-1, 1 << 16, "1", True)),
        ("first", (1, 2), (0, 3)),
        ("last", (1, (1 << 47) - 1), (0, 1 << 47)),
        ("place", (0, 1), (-1, None)),
    ],
)
def test_a_range_of_publications_is_within_its_bounds(
    name: str, allowed: tuple[Any, ...], refused: tuple[Any, ...]
) -> None:
    for value in allowed:
        _parse_range(HONEST, {**LINE, name: value})
    for value in refused:
        with pytest.raises(FileRefusal):
            _parse_range(HONEST, {**LINE, name: value})


def test_a_stream_that_began_with_a_loss_has_larger_numbers_than_a_publisher() -> None:
    lost = {**LINE, "source": "stream", "reason": STATE_LOST}
    large = {"incarnation": (1 << 32) - 1, "last": (1 << 63) - 1}
    _parse_range(HONEST, lost | large, {SOURCE})
    for changes in ({"incarnation": 1 << 32}, {"last": 1 << 63}, {"reason": "silence"}):
        with pytest.raises(FileRefusal):
            _parse_range(HONEST, lost | large | changes, {SOURCE})
    for publishers in (None, {"stream"}):
        with pytest.raises(FileRefusal):
            _parse_range(HONEST, lost | large, publishers)


@pytest.mark.parametrize("name", ["sub_id", "source", "reason"])
def test_each_text_of_a_line_is_a_text(name: str) -> None:
    line = {**LINE, "reason": STATE_LOST}
    assert _is_of(HONEST, line, ALL, "reason")
    assert not _is_of(HONEST, line, SOME, "reason")
    with pytest.raises(FileRefusal, match="texts"):
        _is_of(HONEST, {**line, name: 7}, ALL, "reason")


SUBSCRIPTION = {
    "sub_id": ALL, "subscriber": "c3-sub-1", "broker": "c3", "predicate": "true",
    "t_issued_ns": 1, "t_accepted_ns": None,
}  # fmt: skip


@pytest.mark.parametrize("name", [*SUBSCRIPTION])
def test_each_value_of_a_subscription_has_its_type(folder: _Folder, name: str) -> None:
    assert folder._verify(SUBSCRIBERS, SUBSCRIPTION) == ALL
    assert folder.doubts == []
    with pytest.raises(FileRefusal, match=r"no subscription|no times"):
        folder._verify(SUBSCRIBERS, {**SUBSCRIPTION, name: [1]})


@pytest.mark.parametrize(
    "changes",
    [
        {"subscriber": "c3-sub-2"},
        {"subscriber": "x", "sub_id": "x/1"},
        {"broker": "c1"},
        {"predicate": "price <= 60"},
    ],
)
def test_a_subscription_that_the_workload_does_not_have_is_a_doubt(
    folder: _Folder, changes: dict[str, str]
) -> None:
    folder._verify(SUBSCRIBERS, {**SUBSCRIPTION, **changes})
    assert len(folder.doubts) == 1


@pytest.mark.parametrize("missing, more", [(3, ""), (4, " and 1 more")])
def test_three_missing_logs_have_names_and_more_have_a_number(
    folder: _Folder, missing: int, more: str
) -> None:
    names = [f"c{number}" for number in range(missing)]
    folder._miss("publisher", names, [])
    assert f"c0, c1, c2{more}" in folder.doubts[0]
    assert (" more" in folder.doubts[0]) == bool(more)
    folder._miss("publisher", names, names)
    assert len(folder.doubts) == 1


# --- The manifest and its times ---------------------------------------------------------------


def _with_manifest(path: Path, **changes: Any) -> Path:
    """Write a run folder that has only the manifest and the specification of the honest run."""
    shutil.copytree(HONEST / "spec", path / "spec")
    manifest = json.loads((HONEST / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | changes))
    return path


def test_a_run_without_an_origin_begins_with_its_first_phase(tmp_path: Path) -> None:
    phases = [{"phase": "warmup", "t0_ns": 5, "t1_ns": 7}, {"phase": "x", "t0_ns": 7, "t1_ns": 8}]
    read = _Folder(_with_manifest(tmp_path, origin_ns=None, phases=phases))
    assert read.origin_ns == 5
    assert read.phases == {"warmup": (0, 2), "x": (2, 3)}
    assert any("measure" in each or "origin" in each for each in read.doubts), read.doubts


@pytest.mark.parametrize("ends", [(1, "2"), ("1", 2)])
def test_each_end_of_a_phase_is_a_number(tmp_path: Path, ends: tuple[Any, Any]) -> None:
    phase = {"phase": "measure", "t0_ns": ends[0], "t1_ns": ends[1]}
    with pytest.raises(FileRefusal, match="measure was from"):
        _Folder(_with_manifest(tmp_path, phases=[phase]))


def test_losses_are_accepted_from_the_first_signed_act_on(tmp_path: Path) -> None:
    process = _with_manifest(tmp_path) / "raw/local1/c1"
    process.mkdir(parents=True)
    read = _Folder(tmp_path)

    def accepted(*times: Any, signature: str = 128 * "a", loss: Any = 1) -> int | None:
        act = {"event": "loss_accepted", "signature": signature, "loss": loss}
        lines = [json.dumps(act | {"t_ns": read.origin_ns + at_ns}) for at_ns in times]
        (process / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        losses = accepted_losses_of(tmp_path, read.to_timeline)
        return min((loss.lost_ns for loss in losses), default=None)

    assert accepted() is None
    offset_ns = read.clocks.offset_ns("local1", read.origin_ns)
    assert accepted(9, 5, 7) == 5 - offset_ns
    assert accepted(9, signature=127 * "a") is None
    assert accepted(9, signature=128 * "g") is None
    assert accepted(9, loss="1") is None


@pytest.mark.parametrize("absorbed, doubts", [(1, 1), (2, 0), (3, 0)])
def test_as_many_absorbed_publications_as_required_are_enough(
    folder: _Folder, absorbed: int, doubts: int
) -> None:
    class Log:
        faults = (type("Fault", (), {"absorbed": absorbed}),)

    assert folder._list_requirements()["absorbed_msgs_min"] == 2
    assert len([*folder._check_exercise(Log())]) == doubts  # type: ignore[arg-type]


# --- Publishers -------------------------------------------------------------------------------


def _doubts_of_publishers(
    folder: _Folder, monkeypatch: pytest.MonkeyPatch, **changes: Callable[[Records], Any]
) -> list[str]:
    _changed(folder, monkeypatch, **changes)
    logs = [*folder._publishers(PUBLISHERS, [])]
    assert {log.source for log in logs} == {SOURCE, "c1/0"}
    return folder.doubts


def test_attribute_sets_have_the_types_of_the_workload(
    folder: _Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_is_a_float(records: Records) -> Records:
        first, *others = records.tables["attribute_sets"]
        sets = [{name: float(value) for name, value in first.items()}, *others]
        return replace(records, tables={**records.tables, "attribute_sets": sets})

    doubts = _doubts_of_publishers(folder, monkeypatch, publications=first_is_a_float)
    assert doubts == ["local1/load-pub/publications.rec: other attribute sets than the seed's"]


@pytest.mark.parametrize("most, doubts", [(76, 2), (77, 0), (78, 0)])
def test_all_numbers_up_to_the_highest_were_reserved(
    folder: _Folder, monkeypatch: pytest.MonkeyPatch, most: int, doubts: int
) -> None:
    """The highest number of both sources is 77; reservations are in several parts."""

    def reserved_up_to(records: Records) -> Records:
        rows = [
            {**records.rows[0], "publisher": publisher, "first": first, "last": last}
            for publisher in (0, 1)
            for first, last in ((2, most), (1, 1))
        ]
        return replace(records, rows=rows)

    assert len(_doubts_of_publishers(folder, monkeypatch, intents=reserved_up_to)) == doubts


def test_a_source_without_publications_needs_no_reservation(
    folder: _Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = {name: lambda each: replace(each, rows=[]) for name in ("publications", "intents")}
    assert _doubts_of_publishers(folder, monkeypatch, **empty) == []


# --- Subscribers ------------------------------------------------------------------------------


def test_subscriptions_of_records_of_another_run_are_not_listed(
    folder: _Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that has several doubts is of another run if one of them says so."""
    doubts = ("x is of run y", "x was not closed")
    _changed(
        folder,
        monkeypatch,
        deliveries=lambda each: replace(each, rows=[], doubts=doubts, whole=False),
    )
    monkeypatch.setattr(history_reader, "read_lines", lambda _: [])
    assert [*folder._subscriptions(SUBSCRIBERS, [])] == []


def test_times_of_records_of_another_run_are_not_checked(
    folder: _Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = folder._read(PUBLISHERS, "publications")
    assert records is not None
    found: list[Any] = []

    class Facts:
        def __init__(self, *_: object) -> None:
            pass

        def doubts(self, ours: Any) -> list[str]:
            found.append([layout for layout, _ in ours])
            return []

    monkeypatch.setattr(history_reader, "TimeFacts", Facts)
    for doubts in ((), ("x is of run y",), ("x is of run y", "x was not closed"), ("x",)):
        folder._records = [("publications", replace(records, doubts=doubts))]
        assert [*folder._check_times()] == []
    assert found == [["publications"], [], [], ["publications"]]


@pytest.mark.parametrize("row, is_there", [(-1, False), (0, True), (2, True), (3, False)])
def test_a_position_belongs_to_a_delivery(
    folder: _Folder, monkeypatch: pytest.MonkeyPatch, row: int, is_there: bool
) -> None:
    deliveries = folder._read(SUBSCRIBERS, "deliveries")
    assert deliveries is not None
    deliveries = replace(deliveries, rows=deliveries.rows[:3])
    positions = replace(
        deliveries,
        tables={"streams": ["t"]},
        rows=[{"row": row, "stream": 0, "position": 7}],
    )
    monkeypatch.setattr(folder, "_read", lambda *_: positions)
    if is_there:
        assert folder._places(SUBSCRIBERS, deliveries) == {row: ("t", 7)}
        return
    with pytest.raises(FileRefusal, match="not there"):
        folder._places(SUBSCRIBERS, deliveries)


def test_a_notice_ends_with_the_last_of_its_publications(folder: _Folder) -> None:
    partition = {"of": "b", "kind": "x"}
    row = {
        "number": 0, "place": 0, "publisher": 0, "at_ns": folder.origin_ns, "kind": NOTICE,
        "partition": 0, "sequence": 5, "digest": 3, "incarnation": 1,
    }  # fmt: skip
    records = folder._read(SUBSCRIBERS, "deliveries")
    assert records is not None
    records = replace(records, tables={**records.tables, "partitions": [partition]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_reader.Partition, "from_mapping", lambda each: each)
        log = folder._subscription(ALL, SUBSCRIPTION, records, [row], SUBSCRIBERS, {})
    (notice,) = log.notices
    assert (notice.first, notice.last) == (5, 7)


# --- Stretches --------------------------------------------------------------------------------


def _stretch(up_to: int, length: int) -> dict[str, int]:
    return {
        "number": 0, "place": 0, "subscription": 0, "publisher": 0, "at_ns": 0, "kind": STRETCH,
        "layer": 1, "partition": 0, "sequence": up_to, "digest": length, "incarnation": 1,
    }  # fmt: skip


def _numbers(folder: _Folder, predicate: str, up_to: int, length: int) -> list[int]:
    rows = folder._stretches.unfold(SOURCE, predicate, _stretch(up_to, length), 0)
    return [row.sequence for row in rows]


def test_a_stretch_has_as_many_deliveries_as_it_says(folder: _Folder) -> None:
    assert _numbers(folder, "true", 5, 3) == [3, 4, 5]
    assert _numbers(folder, "true", 5, 5) == [1, 2, 3, 4, 5]
    with pytest.raises(FileRefusal, match="too long"):
        _numbers(folder, "true", 5, 6)


def test_a_stretch_of_a_predicate_has_the_matching_publications(folder: _Folder) -> None:
    """Three of the first seven publications have one of the prices 100, 23, and 10."""
    index = folder.content.publishers[CLIENT].index
    prices = [
        folder.content.attributes(folder.content.choice(index, 1, number)[0])["price"]
        for number in range(1, 20)
    ]
    low = [number for number, price in enumerate(prices, start=1) if price <= 60]
    assert 2 < len(low) < 19
    assert _numbers(folder, "price <= 60", 19, len(low)) == low
    with pytest.raises(FileRefusal, match="too long"):
        _numbers(folder, "price > 100", 19, 1)


def test_a_stretch_may_have_as_many_deliveries_as_its_limit(
    folder: _Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretches, "_LONGEST_STRETCH", 3)
    assert _numbers(folder, "true", 9, 3) == [7, 8, 9]
    with pytest.raises(FileRefusal, match="too long"):
        _numbers(folder, "true", 9, 4)


# --- Unanswered publications ------------------------------------------------------------------


def _received_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
    published: int,
    answers: list[tuple[int, int, int]],
    *rows: dict[str, int],
) -> set[int]:
    """Return the unanswered numbers of the source that a subscription received."""
    folder = _Folder(HONEST, StreamSelection(frozenset({SOURCE}), frozenset({ALL})))
    tables = {"publishers": [SOURCE], "subscriptions": [ALL]}
    records = Records("deliveries.rec", "local1", True, tables, [*rows], ())

    def read(process: Path, *_: object) -> Records | None:
        return records if process.name == "load-sub" else None

    monkeypatch.setattr(history_reader, "read_records", read)
    log = PublisherLog(
        SOURCE,
        CLIENT,
        [PublicationRow(1, number, 0, 0) for number in range(1, published + 1)],
        [(*each, 1) for each in answers],
    )
    found = folder._find_received_elsewhere([log])
    assert all(incarnation == 1 for incarnation, _ in found.get(SOURCE, ()))
    return {number for _, number in found.get(SOURCE, ())}


@pytest.mark.parametrize(
    "answers, open_",
    [
        ([], [1, 2, 3, 4, 5]),
        ([(1, 2, 4)], [1, 5]),
        ([(1, 1, 5)], []),
        ([(1, 2, 400)], [1]),
        ([(1, 1, 400)], []),
        ([(1, 4, 400), (1, 1, 1)], [2, 3]),
        ([(1, 5, 9)], [1, 2, 3, 4]),
        ([(2, 1, 400)], [1, 2, 3, 4, 5]),
        ([(1, 400, 900)], [1, 2, 3, 4, 5]),
    ],
)
def test_answered_publications_are_not_open(
    monkeypatch: pytest.MonkeyPatch, answers: list[tuple[int, int, int]], open_: list[int]
) -> None:
    rows = [_stretch(number, 1) | {"kind": 0} for number in range(1, 6)]
    assert _received_elsewhere(monkeypatch, 5, answers, *rows) == {*open_}


def test_ranges_that_end_at_the_last_publication_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [_stretch(number, 1) | {"kind": 0} for number in range(1, 4)]
    # Both ranges are longer than the number of open publications.
    assert _received_elsewhere(monkeypatch, 3, [(1, 0, 3)], *rows) == set()
    assert _received_elsewhere(monkeypatch, 3, [(1, 0, 2), (1, -4, 0)], *rows) == {3}


@pytest.mark.parametrize(
    "answers, stretch, found",
    [
        ([(1, 1, 3)], (4, 2), {4}),
        ([(1, 1, 3)], (3, 3), set()),
        ([(1, 1, 3)], (5, 5), {4, 5}),
        ([(1, 2, 4)], (3, 3), {1}),
    ],
)
def test_a_stretch_receives_its_open_publications(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[tuple[int, int, int]],
    stretch: tuple[int, int],
    found: set[int],
) -> None:
    assert _received_elsewhere(monkeypatch, 5, answers, _stretch(*stretch)) == found
