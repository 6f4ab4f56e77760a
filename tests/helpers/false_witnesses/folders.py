"""Lies of files, keys, clocks and incarnations that no process writes, with renewed digests."""

import hashlib
from collections.abc import Callable
from typing import Any

from tests.helpers.false_witnesses.lies import (
    PUBLISHERS,
    SECOND,
    SUBSCRIBERS,
    Change,
    add_lie,
    events_of,
    journal_change,
    renew_digests,
)
from tests.helpers.forged_folders import RunFolder

Rows = list[dict[str, Any]]


def _added(name: str) -> Change:
    """Return a change that adds a file, with its digest in the journal."""

    def change(run: RunFolder) -> None:
        path = run.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with run.lines("log.jsonl") as rows:
            for row in rows:
                is_digested = path.suffix in (".json", ".jsonl", ".log")
                if row["what"] == "collected" and is_digested and "/" in name:
                    row["digests"][name] = digest
                elif row["what"] == "closed" and row["process"] == path.parent.name and is_digested:
                    row["digests"][path.name] = digest

    return change


for _name, _file in (
    ("a_process_left_a_file", f"raw/{SUBSCRIBERS}/notes.json"),
    ("a_process_left_records", f"raw/{SUBSCRIBERS}/late.rec"),
    ("a_broker_left_a_file", "raw/local2/c2/other.jsonl"),
    ("a_host_left_a_file", "raw/local2/notes.txt"),
    ("the_run_has_notes", "notes.txt"),
    ("the_faults_have_notes", "faults/notes.txt"),
):
    add_lie(_name, _added(_file), f"{_file} is no file")


def _lines(name: str, change: Callable[[Rows], object]) -> Change:
    def both(run: RunFolder) -> None:
        of = events_of(run, name) if name.startswith("c") and "." not in name else name
        with run.lines(of) as rows:
            change(rows)
        renew_digests(run)

    return both


def _document(name: str, change: Callable[[dict[str, Any]], object]) -> Change:
    def both(run: RunFolder) -> None:
        with run.document(name) as document:
            change(document)
        renew_digests(run)

    return both


def _first(event: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Rows], None]:
    """Return a change of the first line of an event or a stage."""

    def of_rows(rows: Rows) -> None:
        change(next(row for row in rows if event in (row.get("event"), row.get("what"))))

    return of_rows


def _more(row: dict[str, Any]) -> None:
    row["remark"] = 1


def _without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda row: row.pop(key)


_STATISTICS = f"raw/{SUBSCRIBERS}/stats.jsonl"
_SESSIONS = f"raw/{SUBSCRIBERS}/sessions.jsonl"
_SUBSCRIPTIONS = f"raw/{SUBSCRIBERS}/subscriptions.jsonl"
_EXIT = f"raw/{SUBSCRIBERS}/exit.json"

for _name, _lie in (
    ("clocks", _lines("clock.jsonl", lambda rows: _more(rows[2]))),
    ("a_sample_of_a_load_generator", _lines(_STATISTICS, lambda rows: _more(rows[2]))),
    ("a_session_of_a_client", _lines(_SESSIONS, lambda rows: _more(rows[0]))),
    ("a_subscription", _lines(_SUBSCRIPTIONS, lambda rows: _more(rows[0]))),
    ("a_session_of_a_broker", _lines("c3", _first("session_established", _more))),
    ("the_start_of_a_run", _lines("c3", _first("run_begun", _more))),
    ("an_exit", _document(_EXIT, _more)),
    ("an_online_checker", _document(f"raw/{SUBSCRIBERS}/online.json", _more)),
    ("a_setting", _document(f"raw/{PUBLISHERS}/setting.json", _more)),
    ("a_plan", _lines("faults/plan.jsonl", lambda rows: _more(rows[0]))),
    ("a_phase", _lines("log.jsonl", _first("phase", _more))),
    ("a_manifest", journal_change(_more)),
    ("a_headline", journal_change(lambda manifest: _more(manifest["headline"]))),
):
    add_lie(f"{_name}_says_more", _lie, "'remark', which no process writes")

for _name, _key, _lie in (
    ("a_sample_of_a_load_generator", "rss_bytes",
     _lines(_STATISTICS, lambda rows: rows[2].pop("rss_bytes"))),
    ("a_session_of_a_client", "reason", _lines(_SESSIONS, lambda rows: rows[0].pop("reason"))),
    ("a_session_of_a_broker", "opened",
     _lines("c3", _first("session_established", _without("opened")))),
    ("an_absorb", "sessions_down",
     _lines("c2", _first("fault_counted", _without("sessions_down")))),
    ("an_exit", "usage", _document(_EXIT, _without("usage"))),
    ("an_usage", "system_s", _document(_EXIT, lambda exit_: exit_["usage"].pop("system_s"))),
    ("a_plan", "ended_by", _lines("faults/plan.jsonl", lambda rows: rows[1].pop("ended_by"))),
    ("a_phase", "utc", _lines("log.jsonl", _first("phase", _without("utc")))),
    ("a_collection", "t_ns", _lines("log.jsonl", _first("collected", _without("t_ns")))),
    ("a_manifest", "topology", journal_change(_without("topology"))),
    ("a_clock", "clock_ids", journal_change(lambda manifest: manifest["clock"].pop("clock_ids"))),
    ("a_headline", "delivered_new_per_s",
     journal_change(lambda manifest: manifest["headline"].pop("delivered_new_per_s"))),
):  # fmt: skip
    add_lie(f"{_name}_says_less", _lie, f"have no {_key!r}, which each process writes")

add_lie(
    "a_broker_counts_more",
    _lines("raw/local3/c3/stats.jsonl", lambda rows: rows[2].update(wonders=1)),
    "counter wonders",
)
add_lie(
    "a_broker_does_not_count",
    _lines("raw/local3/c3/stats.jsonl", lambda rows: rows[2].pop("outbox_overflows")),
    "counter outbox_overflows",
)

# --- Clocks of the controller ---------------------------------------------------------------


def _move(what: str, **by: float) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        row = next(row for row in rows if row["what"] == what)
        row["t_ns"] += int(by["s"] * SECOND)

    return change


add_lie("a_line_was_logged_earlier", _lines("log.jsonl", _move("collected", s=-3)), "the time of")
add_lie(
    "a_line_was_logged_at_another_time_of_day",
    _lines("log.jsonl", _first("closed", lambda row: row.update(utc="2026-11-28T18:49:50.000Z"))),
    "the time of day",
)
for _key in ("started_utc", "ended_utc"):
    add_lie(
        f"{_key}_was_another",
        _document("manifest.json", lambda manifest, key=_key: manifest.update(  # type: ignore[misc]
            {key: "2026-11-28T19:20:00.000Z"}
        )),
        _key,
    )  # fmt: skip


def _twice(what: str) -> Callable[[Rows], None]:
    return lambda rows: rows.insert(0, next(row for row in rows if what in row.values()))


add_lie(
    "clocks_were_compared_twice", _lines("clock.jsonl", _twice("local2")), "lines of local2 before"
)
add_lie(
    "files_were_closed_twice",
    _lines("log.jsonl", lambda rows: rows.insert(
        -2, next(row for row in rows if row["what"] == "closed")
    )),
    "lines about",
)  # fmt: skip

# --- Incarnations, ends and openers of sessions ---------------------------------------------


def _peer(peer: str, number: int, **values: Any) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        found = [
            row
            for row in rows
            if row["event"] == "session_established" and row["peer"].startswith(peer)
        ]
        found[number] |= values

    return change


add_lie("c2_returned_as_before", _lines("c3", _peer("c2", -1, incarnation=1)), "incarnation of c2")
add_lie("c2_returned_later", _lines("c1", _peer("c2", -1, incarnation=3)), "incarnation of c2")
add_lie("c3_began_anew", _lines("c1", _peer("c3", -1, incarnation=2)), "incarnation of c3")
add_lie("a_broker_opened", _lines("c3", _peer("c3-sub-1", 0, opened=True)), "opener of c3-sub-1")
add_lie("both_ends_opened", _lines("c3", _peer("c1", 0, opened=True)), "opener of a session")


def _lost(**values: Any) -> Callable[[Rows], None]:
    return _first("session_lost", lambda row: row.update(values))


add_lie("another_session_ended", _lines("c3", _lost(session=4711)), "the end of session 4711")


def _accept(rows: Rows) -> None:
    loss = {"cause": "its folder was empty", "loss": 3, "signature": "0" * 128}
    rows.insert(1, {"t_ns": rows[0]["t_ns"], "event": "loss_accepted", **loss})


def convert_to_version_6(run: RunFolder) -> None:
    """Convert to a folder of version 6, whose journal has the losses that brokers accepted."""
    journal_change(lambda manifest: manifest.update(schema="pubsubctl/manifest/6"))(run)
    for broker in ("c1", "c2", "c3"):
        with run.lines(events_of(run, broker)) as rows:
            for row in rows:
                if "schema" in row:
                    row["schema"] = "pubsubctl/events/4"
    renew_digests(run)


def accept_loss(run: RunFolder) -> None:
    """Add an accepted loss to the events of a broker, and to no other file."""
    _lines("c1", _accept)(run)


def _since_6(change: Change) -> Change:
    def both(run: RunFolder) -> None:
        convert_to_version_6(run)
        change(run)

    return both


add_lie("a_broker_accepted_a_loss", _since_6(accept_loss), "the loss that c1 accepted")
add_lie(
    "the_manifest_of_newer_events_is_older",
    _since_6(journal_change(lambda manifest: manifest.update(schema="pubsubctl/manifest/5"))),
    "disagree on schema",
)
add_lie(
    "the_controller_logged_a_loss",
    _lines("log.jsonl", lambda rows: rows.insert(1, {
        **{key: rows[0][key] for key in ("utc", "t_ns")}, "what": "loss_accepted",
        "broker": "c1", "cause": "c", "loss": 3, "signature": "0" * 128,
    })),
    "accepted loss 3",
)  # fmt: skip

# --- Faults and ends of processes -----------------------------------------------------------


def _mode(run: RunFolder) -> None:
    with run.fault(1) as row:
        row["mode"] = "cut"
    renew_digests(run)


add_lie("a_fault_had_a_mode", _mode, "mode of")
add_lie(
    "a_fault_was_to_end_by_another",
    _lines("faults/plan.jsonl", lambda rows: rows[1].update(ended_by="nothing")),
    "ended_by of",
)
add_lie(
    "another_process_was_killed",
    _document("raw/local2/c2/exit.json", lambda exit_: exit_.update(pid=exit_["pid"] + 1)),
    "pid after",
)
add_lie(
    "a_killed_process_had_an_exit_code",
    _document("raw/local2/c2/exit.json", lambda exit_: exit_.update(exit_code=1)),
    "exit_code",
)
add_lie(
    "acknowledgements_name_other_publishers",
    _document(
        f"raw/{PUBLISHERS}/acks.rec.json",
        lambda sidecar: sidecar["tables"]["publisher_names"].update({"c1/9": "c1-pub-9"}),
    ),
    "disagree on tables",
)
