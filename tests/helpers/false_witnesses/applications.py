"""Lies about positions and about databases of applications."""

import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import numpy as np

from bench.load.subscriber_process import COMMITTED, TABLE
from results.tables.record_files import RECORDS
from tests.helpers.false_witnesses.lies import (
    SECOND,
    SUBSCRIBERS,
    Change,
    add_lie,
    journal_change,
    register_lie,
    renew_digests,
    with_digests,
)
from tests.helpers.forged_folders import RunFolder
from tests.helpers.runs import write_lines

REDELIVERED: Final = 4


@register_lie("kill of c3-sub-1")
def a_process_was_killed_by_no_fault(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        at_ns = manifest["origin_ns"] + SECOND
    line = {"t_ns": at_ns, "client": "c3-sub-1", "moment": "any"}
    run.path(f"raw/{SUBSCRIBERS}/crashes.jsonl").write_text(json.dumps(line) + "\n")


@register_lie("spec/topology.toml disagree on streams")
def a_stream_is_of_no_broker(run: RunFolder) -> None:
    with run.document(f"raw/{SUBSCRIBERS}/deliveries.rec.json") as sidecar:
        tables = {**sidecar["tables"], "streams": ["0/0/0", "7/0/0"]}
    _write_positions(run, {**sidecar, "tables": tables}, 0)


def _write_positions(run: RunFolder, sidecar: dict[str, Any], count: int) -> None:
    rows = np.zeros(count, RECORDS["positions"])
    deliveries = run.path(f"raw/{SUBSCRIBERS}/deliveries.rec").read_bytes()
    received = np.frombuffer(deliveries, RECORDS["deliveries"])["received_ns"]
    rows["row"], rows["position"] = range(count), range(1, count + 1)
    rows["received_ns"] = received[:count]
    data = rows.tobytes()
    digest = hashlib.blake2b(data).hexdigest()
    positions = {**sidecar, "layout": "positions", "rows": count, "blake2b": digest}
    run.path(f"raw/{SUBSCRIBERS}/positions.rec").write_bytes(data)
    run.path(f"raw/{SUBSCRIBERS}/positions.rec.json").write_text(json.dumps(positions))


@register_lie("deliveries.rec disagree on positions")
def a_delivery_has_no_position(run: RunFolder) -> None:
    with run.document(f"raw/{SUBSCRIBERS}/deliveries.rec.json") as sidecar:
        tables = {**sidecar["tables"], "streams": ["0/0/0"]}
        count = sidecar["rows"] - 1
    _write_positions(run, {**sidecar, "tables": tables}, count)


def _place(change: Callable[[Any], None]) -> Change:
    """Return a change of positions that one process counts and one file contradicts."""

    def both(run: RunFolder) -> None:
        with run.document(f"raw/{SUBSCRIBERS}/deliveries.rec.json") as sidecar:
            tables = {**sidecar["tables"], "streams": ["0/0/0"]}
            count = sidecar["rows"]
        _write_positions(run, {**sidecar, "tables": tables}, count)
        with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
            online["streams"] = {"0/0/0": [count, count * (count + 1) // 2]}
        with run.records(SUBSCRIBERS, "positions") as rows:
            change(rows)
        renew_digests(run)

    return both


def _exchange(rows: Any) -> None:
    rows.all["row"][[40, 90]] = rows.all["row"][[90, 40]]


def _repeat(rows: Any) -> None:
    rows.all["row"][90] = 89


def _delay(rows: Any) -> None:
    rows.all["received_ns"] += SECOND // 100


def _rename_column(rows: Any) -> None:
    rows.sidecar["columns"] = ["row", "place", "received_ns", "stream"]


add_lie("positions_have_other_columns", _place(_rename_column), "disagree on columns")

add_lie("the_positions_are_of_each_other", _place(_exchange), "deliveries of positions")

add_lie("a_delivery_has_two_positions", _place(_repeat), "deliveries of positions")

add_lie("positions_came_later_than_deliveries", _place(_delay), "deliveries of positions")


def _placed(change: Callable[[Any, Any], None]) -> Change:
    """Return a change of positions that follow the publications, with their sums renewed."""

    def both(run: RunFolder) -> None:
        _place(lambda rows: None)(run)
        with run.records(SUBSCRIBERS, "deliveries") as deliveries:
            log = deliveries.all.copy()
        with run.records(SUBSCRIBERS, "positions") as rows:
            rows.all["position"] = 2 * log["sequence"] + log["publisher"]
            change(rows, log)
            found = rows.all["position"]
        with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
            online["streams"] = {"0/0/0": [len(found), int(found.sum())]}
        renew_digests(run)

    return both


def _change_places(rows: Any, log: Any) -> None:
    one, other = np.flatnonzero(log["subscription"] == log["subscription"][20])[[20, 30]]
    rows.all["position"][[one, other]] = rows.all["position"][[other, one]]


def _change_order(rows: Any, log: Any) -> None:
    """Exchange the places of two publications of a source for all subscriptions."""
    for number, other in ((20, 30), (30, 20)):
        wanted = (log["sequence"] == number) & (log["publisher"] == 0)
        rows.all["position"][wanted] = 2 * other


def _share_places(rows: Any, log: Any) -> None:
    rows.all["position"][log["publisher"] == 1] -= 1


for _name, _move in (
    ("has_two_places", _change_places),
    ("is_placed_before_an_earlier_one", _change_order),
    ("shares_the_place_of_another", _share_places),
):
    add_lie(f"a_publication_{_name}", _placed(_move), "disagree on wrong places")


@register_lie("positions.rec disagree on streams")
def a_stream_has_no_position(run: RunFolder) -> None:
    _placed(lambda rows, log: rows.sidecar["tables"]["streams"].append("1/0/0"))(run)


def write_databases(run: RunFolder) -> None:
    """Split the subscribers into processes, with databases of received publications."""
    with_digests(
        lambda run: run.replace(
            "spec/workload.toml", 'at = ["c3"]', 'own_process = true\nat = ["c3"]'
        )
    )(run)
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        tables = rows.sidecar["tables"]
        for number, subscription in enumerate(tables["subscriptions"]):
            client = subscription.partition("/")[0]
            path = run.path(f"raw/{SUBSCRIBERS}/{client}.sqlite")
            with closing(sqlite3.connect(path)) as database, database:
                database.execute(TABLE)
                for row in rows.all[rows.all["subscription"] == number]:
                    source = tables["publishers"][int(row["publisher"])]
                    values = (
                        0, 0, int(source.rpartition("/")[2]), int(row["incarnation"]),
                        int(row["sequence"]), b"", b"", None, None, None, None,
                        int(row["kind"] == REDELIVERED),
                    )  # fmt: skip
                    database.execute(f"INSERT INTO received VALUES (NULL{', ?' * 12})", values)


MARKED: Final = 130
"""The place of a delivery after the return of c3-sub-1, which `write_consumers` marks."""


def write_consumers(run: RunFolder) -> None:
    """Let the broker keep the positions of c3-sub-1, which commits twice.

    One delivery was received by an earlier process before it wrote the delivery.
    """
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        log = np.flatnonzero(rows.all["subscription"] == 0)
        rows.all["kind"][log[MARKED]] = REDELIVERED
        tables, received = rows.sidecar["tables"], rows.all[log]
    write_databases(run)
    with_digests(
        lambda run: run.replace(
            "spec/workload.toml", "own_process = true", 'own_process = true\nacknowledge = "auto"'
        )
    )(run)
    subscription, lines = tables["subscriptions"][0], []
    path = run.path(f"raw/{SUBSCRIBERS}/{subscription.partition('/')[0]}.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(COMMITTED)
        for first, last in ((0, 10), (10, 30)):
            database.execute("INSERT INTO committed VALUES (NULL, ?, ?)", (first + 1, last))
            part = received[first:last]
            for publisher in dict.fromkeys(part["publisher"].tolist()):
                of = part[part["publisher"] == publisher]
                lines.append(
                    {
                        "t_ns": int(part["received_ns"][-1]), "sub_id": subscription,
                        "source": tables["publishers"][publisher],
                        "incarnation": int(of["incarnation"][0]),
                        "first": int(of["sequence"][0]), "last": int(of["sequence"][-1]),
                        "place": int(log[last - 1]) + 1,
                    }
                )  # fmt: skip
    name = f"raw/{SUBSCRIBERS}/commits.jsonl"
    write_lines(run.path(name), lines)
    with run.lines("log.jsonl") as rows:
        for row in rows:
            if row["what"] == "collected":
                row["digests"][name] = ""
            elif row["what"] == "closed" and row["process"] in SUBSCRIBERS:
                row["digests"]["commits.jsonl"] = ""
    journal_change(_count_one_less)(run)
    renew_digests(run)


def _count_one_less(manifest: dict[str, Any]) -> None:
    """Renew the figures of the headline: a redelivery counts as no delivery."""
    headline = manifest["headline"]
    measure = next(phase for phase in manifest["phases"] if phase["phase"] == "measure")
    length_ns = measure["t1_ns"] - measure["t0_ns"]
    headline["delivered"] -= 1
    headline["delivered_per_s"] = headline["delivered"] * 1e9 / length_ns
    new = headline["delivered"] - headline["delivered_earlier"]
    headline["delivered_new_per_s"] = new * 1e9 / length_ns
    headline["broker_cpu_us_per_message_mean"] *= 1 + 1 / headline["delivered"]


def _commits(change: Callable[[list[dict[str, Any]]], None]) -> Change:
    def both(run: RunFolder) -> None:
        write_consumers(run)
        with run.lines(f"raw/{SUBSCRIBERS}/commits.jsonl") as lines:
            change(lines)
        renew_digests(run)

    return both


for _name, _move in (
    ("is_of_more_publications", lambda lines: lines[1].update(last=lines[1]["last"] + 1)),
    ("is_of_fewer_publications", lambda lines: lines[1].update(first=lines[1]["first"] + 1)),
    ("is_later", lambda lines: lines[0].update(place=lines[0]["place"] + 5)),
    ("is_not_recorded", lambda lines: lines.pop()),
    ("is_of_another_source", lambda lines: lines[0].update(source=lines[1]["source"])),
):
    add_lie(f"a_commit_{_name}", _commits(_move), "disagree on commits of c3-sub-1/1")

for _name, _by_ns in (("sooner", -1_000_000_000), ("behind_the_next_delivery", 10**10)):
    add_lie(
        f"a_commit_came_{_name}",
        _commits(lambda lines, by_ns=_by_ns: lines[0].update(t_ns=lines[0]["t_ns"] + by_ns)),  # type: ignore[misc]
        "time of a commit of c3-sub-1/1",
    )

add_lie(
    "a_commit_has_another_key", _commits(lambda lines: lines[0].update(by="c3")), "commits.jsonl"
)


@register_lie("disagree on time of delivery 6 to c3-sub-1/1")
def a_delivery_was_written_before_it_was_received(run: RunFolder) -> None:
    write_consumers(run)
    path = run.path(f"raw/{SUBSCRIBERS}/c3-sub-1.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE received SET received_ns = ? WHERE place = 6", (1 << 60,))
    renew_digests(run)


def _marks(place: int, kind: int) -> Change:
    def both(run: RunFolder) -> None:
        write_consumers(run)
        with run.records(SUBSCRIBERS, "deliveries") as rows:
            log = np.flatnonzero(rows.all["subscription"] == 0)
            rows.all["kind"][log[place]] = kind
        renew_digests(run)

    return both


add_lie(
    "a_redelivery_has_no_mark",
    _marks(MARKED, 0),
    f"disagree on delivery {MARKED + 1} to c3-sub-1/1",
)

add_lie("a_first_delivery_is_marked", _marks(5, REDELIVERED), "on delivery 6 to c3-sub-1/1")


@register_lie("disagree on delivery")
def an_application_received_in_another_order(run: RunFolder) -> None:
    write_databases(run)
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        log = np.flatnonzero(rows.all["subscription"] == 0)
        place = next(
            place
            for place in range(20, len(log))
            if rows.all["publisher"][log[place]] != rows.all["publisher"][log[place + 1]]
        )
        pair = log[place : place + 2]
        for column in ("publisher", "sequence", "digest"):
            rows.all[column][pair] = rows.all[column][pair[::-1]]
    renew_digests(run)


def _database(statement: str) -> Change:
    def change(run: RunFolder) -> None:
        write_databases(run)
        path = run.path(f"raw/{SUBSCRIBERS}/c3-sub-1.sqlite")
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)

    return change


for _name, _statement, _says in (
    ("did_not_commit", "DELETE FROM received WHERE place = 30", "disagree on deliveries of c1/"),
    ("committed_twice", "INSERT INTO received SELECT NULL, received_ns, broker, publisher, "
     "incarnation, sequence, attributes, payload, stream, position, gap_last, gap_reason, 0 "
     "FROM received WHERE place = 30", "disagree on deliveries of c1/"),
    ("committed_another_number", "UPDATE received SET sequence = 900 WHERE place = 30",
     "disagree on deliveries of c1/"),
    ("committed_a_gap", "INSERT INTO received VALUES (NULL, 0, 0, 0, 1, 5, NULL, NULL, NULL, NULL, "
     "6, 'expired', 0)", "disagree on gaps of c3-sub-1/1"),
    ("has_no_table", "DROP TABLE received", "disagree on deliveries of c1/"),
):  # fmt: skip
    add_lie(f"an_application_{_name}", _database(_statement), _says)


@register_lie("c3-sub-1.sqlite is missing")
def an_application_left_nothing(run: RunFolder) -> None:
    write_databases(run)
    run.path(f"raw/{SUBSCRIBERS}/c3-sub-1.sqlite").unlink()


@register_lie("c3-sub-1.sqlite differs from what was written")
def the_database_of_an_application_is_none(run: RunFolder) -> None:
    write_databases(run)
    run.path(f"raw/{SUBSCRIBERS}/c3-sub-1.sqlite").write_bytes(b"SQLite format 3\0" * 100)
