"""Lies that put an effect before its cause."""

import json
from typing import Any

from tests.helpers.false_witnesses.lies import (
    AWAY,
    FREEZE,
    KILL,
    PUBLISHERS,
    RESTART,
    SECOND,
    Change,
    add_lie,
    events_of,
    exit_of_broker,
    in_fault_journals,
    journal_change,
    register_lie,
)
from tests.helpers.forged_folders import RunFolder


def _everywhere(number: int, stages: tuple[str, ...], by_s: float) -> Change:
    """Return a change of stages in all files about faults."""

    def change(run: RunFolder) -> None:
        by_ns = round(by_s * SECOND)
        with run.lines("faults/faults.jsonl") as rows:
            fault = rows[number]["fault_id"]
            for stage in stages:
                rows[number][f"t_{stage}_ns"] += by_ns
                for host in rows[number]["host_stamps"].get(stage, {}):
                    rows[number]["host_stamps"][stage][host] += by_ns

        def moved(row: dict[str, Any]) -> None:
            if row.get("fault_id") == fault and row["stage"] in stages:
                row["t_ns"] += by_ns
                for host in row.get("host_stamps") or {}:
                    row["host_stamps"][host] += by_ns

        in_fault_journals(moved)(run)

    return change


_LIFE = ("requested", "applied", "observed")

for _name, _change, _says in (
    ("freeze_was_observed_later", _everywhere(FREEZE, ("observed",), 2), "disagree on observed"),
    ("kill_was_observed_later", _everywhere(KILL, ("observed",), 0.5), "disagree on observed"),
    ("freeze_healed_later", _everywhere(FREEZE, ("healed",), 1), "disagree on healed"),
    ("restart_recovered_later", _everywhere(RESTART, ("recovered",), 1), "recovered of"),
    ("restart_was_later", _everywhere(RESTART, (*_LIFE, "recovered"), 0.3), "on requested of"),
    ("restart_was_earlier", _everywhere(RESTART, (*_LIFE, "recovered"), -6), "on requested of"),
    ("away_recovered_earlier", _everywhere(AWAY, ("recovered",), -0.25), "before it was healed"),
    ("away_recovered_apart", _everywhere(AWAY, ("healed", "recovered"), -0.25), "recovery of"),
    ("kill_healed_earlier", _everywhere(KILL, ("healed",), -0.1), "healed of"),
    ("kill_recovered_earlier", _everywhere(KILL, ("recovered",), -0.05), "recovered of"),
    ("restart_recovered_early", _everywhere(RESTART, ("recovered",), -0.1), "before it was"),
):
    add_lie(f"the_{_name}_everywhere", _change, _says)


def _shift_times(name: str, by_s: float, **only: str) -> Change:
    def change(run: RunFolder) -> None:
        with run.lines(name) as rows:
            for row in rows:
                if all(row.get(key) == value for key, value in only.items()):
                    row["t_ns"] += round(by_s * SECOND)

    return change


for _name, _change, _says in (
    ("began_before_the_run", _shift_times("raw/local1/c1/events.jsonl", -0.5, event="run_begun"),
     "disagree on run_begun"),
    ("ended_before_the_drain", _shift_times("raw/local1/c1/events.jsonl", -1.5, event="run_ended"),
     "disagree on run_ended"),
    ("ended_after_the_journal", _shift_times("raw/local1/c1/events.jsonl", 2, event="run_ended"),
     "disagree on the last line"),
    ("counted_after_the_journal", _shift_times("raw/local3/c3/stats.jsonl", 1.5),
     "disagree on the last line"),
    ("started_subscriptions_late",
     _shift_times("raw/local3/c3/events.jsonl", 0.1, event="subscription_started"),
     "disagree on the start of c3-sub-"),
    ("started_subscriptions_early",
     _shift_times("raw/local3/c3/events.jsonl", -0.1, event="subscription_started"),
     "disagree on the start of c3-sub-"),
    ("established_sessions_late",
     _shift_times("raw/local1/c1/events.jsonl", 0.1, event="session_established"),
     "disagree on start of a session of c1-pub-"),
    ("did_its_fault_early", _shift_times("raw/local2/c2/events.jsonl", -0.3, event="fault_applied"),
     "applied of"),
):  # fmt: skip
    add_lie(f"a_broker_{_name}", _change, _says)


@register_lie("has no line about the start of c3-sub-1/1")
def a_subscription_never_started(run: RunFolder) -> None:
    run.replace("spec/faults.toml", 'on = "c3"', 'on = "c1"')
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            for row in rows:
                row |= {"target": "c1"} if row.get("target") == "c3" else {}
    with run.lines(events_of(run, "c3")) as rows:
        rows[:] = [
            row
            for row in rows
            if row["event"] != "subscription_started" or "c3-sub-1" not in row["client"]
        ]


@register_lie("end of the sessions of c1-pub-")
def a_client_left_after_its_broker_lost_it(run: RunFolder) -> None:
    _shift_times(f"raw/{PUBLISHERS}/sessions.jsonl", 0.05, event="down")(run)


@register_lie("disagree on the end")
def the_drain_lasted_beyond_the_journal(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["phases"][-1]["t1_ns"] += 2 * SECOND

    journal_change(change)(run)


def _life(name: str, by_s: float) -> Change:
    def change(run: RunFolder) -> None:
        with run.document(f"raw/{PUBLISHERS}/exit.json") as told:
            told[name] += round(by_s * SECOND)

    return change


add_lie("a_load_generator_started_early", _life("t_start_ns", -0.9), "disagree on t_start_ns")

add_lie("a_load_generator_started_late", _life("t_start_ns", 2), "disagree on t_start_ns")

add_lie("a_load_generator_ended_late", _life("t_exit_ns", 5), "disagree on t_exit_ns")

add_lie(
    "the_killed_broker_was_never_reaped", exit_of_broker(state="running"), "disagree on state after"
)


@register_lie("disagree on end by")
def the_killed_broker_ended_a_little_later(run: RunFolder) -> None:
    with run.document("raw/local2/c2/exit.json") as told:
        told["t_exit_ns"] += SECOND // 10


@register_lie("exit.json disagree on the last line")
def a_broker_ended_before_its_last_line(run: RunFolder) -> None:
    with run.document(f"raw/{PUBLISHERS}/exit.json") as told:
        other = {**told, "process": "c1", "t_exit_ns": told["t_exit_ns"] - SECOND}
    run.path("raw/local1/c1/exit.json").write_text(json.dumps(other))


@register_lie("starts of c2")
def a_broker_began_again_without_a_restart(run: RunFolder) -> None:
    def without(run: RunFolder) -> None:
        text = run.path("spec/faults.toml").read_text()
        parts = [part for part in text.split("[[step]]") if 'id = "restart-c2"' not in part]
        run.path("spec/faults.toml").write_text("[[step]]".join(parts))

    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            rows[:] = [row for row in rows if row.get("step") != "restart-c2"]
    without(run)


@register_lie("lease of")
def a_lease_ended_the_freeze_everywhere(run: RunFolder) -> None:
    with run.fault(FREEZE) as row:
        row["healed_by"], fault = "lease", row["fault_id"]

    def change(row: dict[str, Any]) -> None:
        if row.get("fault_id") == fault and row.get("healed_by") == "schedule":
            row["healed_by"] = "lease"

    in_fault_journals(change)(run)
