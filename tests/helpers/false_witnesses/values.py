"""Lies of values that no process writes, with renewed digests."""

from collections.abc import Callable
from typing import Any

from tests.helpers.false_witnesses.lies import (
    FREEZE,
    PUBLISHERS,
    SUBSCRIBERS,
    Change,
    add_lie,
    events_of,
    journal_change,
    renew_digests,
)
from tests.helpers.forged_folders import RunFolder

Rows = list[dict[str, Any]]


def _lines(name: str, change: Callable[[Rows], object]) -> Change:
    def both(run: RunFolder) -> None:
        with run.lines(name) as rows:
            change(rows)
        renew_digests(run)

    return both


def _events(broker: str, change: Callable[[Rows], object]) -> Change:
    return lambda run: _lines(events_of(run, broker), change)(run)


def _each(**values: Any) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        for row in rows:
            row |= {
                key: value(row[key]) if callable(value) else value for key, value in values.items()
            }

    return change


def _insert(**line: Any) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        rows.insert(3, {"t_ns": rows[2]["t_ns"] + 1, **line})

    return change


def _repeat(event: str) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        place = max(n for n, row in enumerate(rows) if row["event"] == event)
        rows.insert(place + 1, {**rows[place], "t_ns": rows[place]["t_ns"] + 1})

    return change


def _exit(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.document(f"raw/{SUBSCRIBERS}/exit.json") as stated:
            for key, value in values.items():
                of = stated if key in stated else stated["usage"]
                of[key] = value
        renew_digests(run)

    return change


def _fault(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.fault(FREEZE) as row:
            row |= {key: value(row[key]) for key, value in values.items()}
        renew_digests(run)

    return change


def _manifest(change: Callable[[dict[str, Any]], object]) -> Change:
    return journal_change(lambda manifest: change(manifest) and None)


_PUBLISH, _RECEIVE = f"raw/{PUBLISHERS}/stats.jsonl", f"raw/{SUBSCRIBERS}/stats.jsonl"
_BROKER = "raw/local1/c1/stats.jsonl"
for _name, _change, _says in (
    ("a_broker_counted_in_fractions", _lines(_BROKER, _each(matching_hits=2.5)), "matching_hits"),
    ("a_broker_counted_truths", _lines(_BROKER, _each(outbox_bytes=True)), "outbox_bytes at"),
    ("a_broker_counted_words", _lines(_BROKER, _each(queue_bytes="7")), "queue_bytes at"),
    ("a_broker_counted_below_zero", _lines(_BROKER, _each(queue_bytes=-5)), "queue_bytes at"),
    ("a_broker_used_no_number_of_time", _lines(_BROKER, _each(cpu_s=float("nan"))), "NaN"),
    ("subscribers_sent", _lines(_RECEIVE, lambda rows: rows[-1].update(sent=5)), "on sent: 5"),
    ("subscribers_had_open_numbers", _lines(_RECEIVE, _each(open=5)), "on open: 5"),
    ("subscribers_were_late", _lines(_RECEIVE, _each(late_max_us=10**6)), "on late_max_us"),
    ("subscribers_were_saturated", _lines(_RECEIVE, _each(saturated=True)), "on saturated: True"),
    ("publishers_kept_deliveries_back", _lines(_PUBLISH, _each(withheld=5)), "on withheld: 5"),
    ("subscribers_used_time_below_zero", _lines(_RECEIVE, _each(cpu_ratio=-1.0)), "cpu_ratio at"),
    ("a_second_was_written_twice", _lines(_PUBLISH, lambda rows: rows.insert(3, rows[3])), "t_ns"),
    ("publishers_counted_in_fractions", _lines(_PUBLISH, _each(sent=float)), "sent at"),
    ("the_usual_lateness_was_nothing", _lines(_PUBLISH, _each(late_p99_us=0)),
     "load-pub/stats.jsonl disagree on late_p99_us at"),
    ("the_usual_lateness_was_less", _lines(_PUBLISH, _each(late_p99_us=lambda us: us * 9 // 10)),
     "publications.rec disagree on late_p99_us at"),
    ("the_largest_lateness_was_less", _lines(_PUBLISH, lambda rows: rows[0].update(
        late_p99_us=2_900, late_max_us=2_900)), "publications.rec disagree on late_"),
    ("publications_waited_at_the_end", _lines(_PUBLISH, _each(
        backlog=lambda n: n + 3, offered=lambda n: n + 3, open=lambda n: n + 3)), "on backlog: 3"),
    ("a_session_began_for_a_reason", _lines(
        f"raw/{SUBSCRIBERS}/sessions.jsonl", lambda rows: rows[0].update(reason="silent")),
     "reason of a start of"),
    ("an_exit_code_was_a_truth", _exit(exit_code=False), "disagree on exit_code"),
    ("an_exit_code_was_a_fraction", _exit(exit_code=0.0), "disagree on exit_code"),
    ("a_process_had_no_number", _exit(pid=-4), "disagree on pid"),
    ("a_process_used_no_number_of_time", _exit(user_s=float("nan")), "NaN"),
    ("a_process_gave_time_back", _exit(user_s=-5.0), "disagree on user_s"),
    ("a_fault_was_applied_at_a_fraction", _fault(t_applied_ns=float), "was applied at"),
    ("a_clock_was_never_compared", _lines("clock.jsonl", _each(n=0)), "disagree on n of"),
    ("a_comparison_took_no_time", _lines("clock.jsonl", _each(rtt_min_ns=0)), "rtt_min_ns of"),
    ("a_clock_is_of_no_host", _lines(
        "clock.jsonl", lambda rows: rows.append({**rows[0], "host_id": "local9"})),
     "clock.jsonl and manifest.json disagree on clock_ids"),
    ("a_process_without_files_closed_some", _lines(
        "log.jsonl", lambda rows: rows.insert(-1, {
            **next(row for row in rows if row["what"] == "closed"), "process": "load-x"})),
     "closed files of"),
    ("the_journal_ends_twice", _lines("log.jsonl", lambda rows: rows.append(rows[-1])),
     "lines about end"),
    ("payloads_had_a_fraction", _manifest(lambda m: m.update(payload_bytes=40.0)),
     "on payload_bytes: 40.0"),
    ("a_machine_had_no_cores", _manifest(lambda m: m.update(cores=0)), "disagree on cores"),
    ("a_disk_held_less_than_nothing", _manifest(lambda m: m["disk_bytes"].update(c1=-1)),
     "disk_bytes of c1"),
    ("a_process_waited_less_than_nothing", _manifest(
        lambda m: m["waited_share"].update(c1=-0.5)), "waited_share of c1"),
    ("the_headline_has_no_lateness", _manifest(
        lambda m: m["headline"].update(lateness_p99_us=None)), "headline.lateness_p99_us"),
    ("the_headline_has_no_latency", _manifest(lambda m: m["headline"].pop("response_us")),
     "headline.response_us"),
    ("events_were_left_out", _events("c1", _insert(event="lines_left_out", lines=40)),
     "disagree on lines left out"),
    ("a_broker_stopped_and_wrote_on", _events("c1", _insert(event="stopped")), "on stops: 1"),
    ("a_run_ended_twice", _events("c1", _repeat("run_ended")), "on run_ended: 2"),
    ("a_session_was_established_twice", _events("c3", _repeat("session_established")),
     "starts of session"),
    ("a_publisher_was_slowed_and_not_counted", _events(
        "c1", _insert(event="publisher_slowed", client="c1-pub-1")), "publishers_slowed"),
):  # fmt: skip
    add_lie(f"by_values_{_name}", _change, _says)
