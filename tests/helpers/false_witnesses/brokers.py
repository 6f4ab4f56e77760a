"""Lies of brokers: exit records, statistics, events and sessions."""

from typing import Any

from tests.helpers.false_witnesses.lies import (
    FREEZE,
    SECOND,
    SUBSCRIBERS,
    add_lie,
    events_of,
    exit_of_broker,
    journal_change,
    register_lie,
    renew_digests,
)
from tests.helpers.forged_folders import RunFolder

# --- Brokers -------------------------------------------------------------------------------------

add_lie(
    "the_kill_left_no_exit", lambda run: run.path("raw/local2/c2/exit.json").unlink(), "exit.json"
)

add_lie("the_exit_was_planned", exit_of_broker(exit_cause="planned"), "exit.json")

add_lie("the_exit_was_of_no_fault", exit_of_broker(exit_cause="fault:other"), "exit.json")

add_lie("the_exit_was_without_signal", exit_of_broker(exit_signal=None, exit_code=0), "exit.json")

add_lie("the_exit_was_of_another_process", exit_of_broker(process="c1"), "exit.json")


@register_lie("exit.json")
def the_exit_was_later(run: RunFolder) -> None:
    with run.document("raw/local2/c2/exit.json") as told:
        told["t_exit_ns"] += 2 * SECOND


@register_lie("had stopped the broker")
def a_frozen_broker_counts_on(run: RunFolder) -> None:
    with run.lines("faults/faults.jsonl") as faults:
        frozen_ns = faults[FREEZE]["t_applied_ns"]
    with run.lines("raw/local3/c3/stats.jsonl") as rows:
        place = next(n for n, row in enumerate(rows) if row["t_ns"] > frozen_ns)
        rows.insert(place, {**rows[place - 1], "t_ns": frozen_ns + SECOND // 2})


@register_lie("no fault explains it")
def a_broker_stops_counting(run: RunFolder) -> None:
    with run.lines("raw/local1/c1/stats.jsonl") as rows:
        del rows[2:-1]


@register_lie("stats.jsonl")
def a_broker_leaves_no_statistics(run: RunFolder) -> None:
    run.path("raw/local1/c1/stats.jsonl").write_text("")


@register_lie("publications_received")
def a_broker_counts_back(run: RunFolder) -> None:
    with run.lines("raw/local1/c1/stats.jsonl") as rows:
        rows[3]["publications_received"] += 10_000


@register_lie("resent_publications")
def a_broker_resent_less(run: RunFolder) -> None:
    with run.lines("raw/local1/c1/stats.jsonl") as rows:
        rows[-1]["resent_publications"] += 5


@register_lie("events.jsonl")
def a_broker_leaves_no_events(run: RunFolder) -> None:
    run.path("raw/local3/c3/events.jsonl").unlink()


@register_lie("sessions_lost up to")
def a_broker_lost_no_session(run: RunFolder) -> None:
    with run.lines("raw/local1/c1/events.jsonl") as rows:
        rows[:] = [row for row in rows if row["event"] != "session_lost" or "-" in row["peer"]]


# --- Brokers against clients and faults ----------------------------------------------------------


@register_lie("only the first has fault")
def a_broker_never_did_its_own_fault(run: RunFolder) -> None:
    with run.lines(events_of(run, "c2")) as rows:
        rows[:] = [row for row in rows if row["event"] != "fault_applied"]


@register_lie("applied of")
def a_broker_did_its_own_fault_later(run: RunFolder) -> None:
    with run.lines(events_of(run, "c2")) as rows:
        next(row for row in rows if row["event"] == "fault_applied")["t_ns"] += 2 * SECOND


@register_lie("starts of c1")
def a_broker_began_twice(run: RunFolder) -> None:
    with run.lines(events_of(run, "c1")) as rows:
        rows.insert(2, {**rows[0], "t_ns": rows[0]["t_ns"] + SECOND})


@register_lie("disagree on clients")
def a_broker_served_a_client_of_nobody(run: RunFolder) -> None:
    with run.lines(events_of(run, "c1")) as rows:
        known = next(row for row in rows if row["event"] == "session_established")
        peer = f"c1-sub-9.{rows[0]['run_id'].rpartition('-')[2]}"
        rows.insert(1, {**known, "peer": peer, "session": 99})


@register_lie("publications delivered by")
def a_broker_delivered_less(run: RunFolder) -> None:
    (path,) = run.folder.glob("raw/*/c3/stats.jsonl")
    with run.lines(path.relative_to(run.folder).as_posix()) as rows:
        for row in rows:
            row["publications_delivered"] //= 2


@register_lie("publications received once by c3")
def a_broker_received_less_than_it_delivered(run: RunFolder) -> None:
    name = events_of(run, "c3")
    with run.lines(name.replace("events", "stats")) as rows:
        for row in rows:
            row["publications_received"] = row["publications_received"] * 9 // 10
        counted = rows[-1]["publications_received"]
    with run.lines(name) as rows:
        rows[-1]["counters"]["publications_received"] = counted
    renew_digests(run)


@register_lie("disagree on partitions at")
def no_broker_detected_a_partition(run: RunFolder) -> None:
    for broker in ("c1", "c2", "c3"):
        with run.lines(events_of(run, broker)) as rows:
            rows[:] = [row for row in rows if row["event"] != "partition_new"]
    renew_digests(run)


@register_lie("disagree on partition 9 of c1")
def a_subscriber_received_a_partition_of_nobody(run: RunFolder) -> None:
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        rows.sidecar["tables"]["partitions"] = [
            {"detector": "c1", "incarnation": 1, "number": 9, "nodes": ["c2"]}
        ]
    renew_digests(run)


@register_lie("stats.jsonl and raw/")
def the_last_statistics_of_a_broker_are_cut(run: RunFolder) -> None:
    (path,) = run.folder.glob("raw/*/c1/stats.jsonl")
    with run.lines(path.relative_to(run.folder).as_posix()) as rows:
        del rows[-3:]


# --- Sessions at brokers -------------------------------------------------------------------------


@register_lie("sessions_established up to")
def a_session_was_lost_at_its_broker_alone(run: RunFolder) -> None:
    with run.lines(events_of(run, "c3")) as rows:
        place = next(n for n, row in enumerate(rows) if "c3-sub-1" in str(row.get("peer")))
        up = rows[place]
        at_ns = up["t_ns"] + 4 * SECOND
        lost = {**up, "t_ns": at_ns, "event": "session_lost", "reason": "closed_by_peer"}
        rows += [lost, {**up, "t_ns": at_ns + SECOND // 2, "session": up["session"] + 50}]
        rows.sort(key=lambda row: row["t_ns"])


@register_lie("sessions_established up to")
def a_session_at_a_broker_is_not_logged(run: RunFolder) -> None:
    with run.lines(events_of(run, "c3")) as rows:
        last = max(
            n
            for n, row in enumerate(rows)
            if row["event"] == "session_established" and "c3-sub-2" in row["peer"]
        )
        del rows[last]


@register_lie("start of a session of c3-sub-1")
def a_session_ended_without_a_start(run: RunFolder) -> None:
    run.replace("spec/faults.toml", 'on = "c3"', 'on = "c1"')
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            for row in rows:
                row |= {"target": "c1"} if row.get("target") == "c3" else {}
    with run.lines(events_of(run, "c3")) as rows:
        for row in rows:
            if "c3-sub-1" in str(row.get("peer")) and row["event"] == "session_lost":
                row["session"] += 1


@register_lie("start of the run of c1")
def the_events_of_a_broker_are_from_earlier(run: RunFolder) -> None:
    with run.lines(events_of(run, "c1")) as rows:
        for row in rows:
            row["t_ns"] -= 12 * SECOND


for _event, _details in (
    ("state_lost", {"cause": "the log ends early"}),
    ("protocol_error", {"peer": "c2", "reason": "a number went back"}),
):

    def _logs(run: RunFolder, line: dict[str, Any] = {"event": _event, **_details}) -> None:  # noqa: B006
        with run.lines(events_of(run, "c1")) as rows:
            rows.insert(2, {"t_ns": rows[1]["t_ns"] + 1_000, **line})

    add_lie(f"a_broker_logged_{_event}", _logs, f"logged {_event}")


@register_lie("no line about a replacement")
def brokers_were_replaced_and_none_began_again(run: RunFolder) -> None:
    journal_change(lambda manifest: manifest.update(rolling=1))(run)
    with run.lines("log.jsonl") as rows:
        place = next(n for n, row in enumerate(rows) if row.get("phase") == "drain")
        at_ns = rows[place]["at_ns"]
        for stage, before_ns in (("ended", SECOND), ("begun", 3 * SECOND)):
            line = {"utc": rows[place]["utc"], "t_ns": at_ns, "what": "rolling", "stage": stage}
            rows.insert(place, {**line, "at_ns": at_ns - before_ns})
