"""Lies of clients: the online checker, sessions, exit records and gaps."""

from typing import Any

from tests.helpers.false_witnesses.lies import (
    PUBLISHERS,
    SECOND,
    SUBSCRIBERS,
    Change,
    add_lie,
    register_lie,
    renew_digests,
)
from tests.helpers.forged_folders import RunFolder


@register_lie("duplicate")
def the_online_checker_saw_a_duplicate(run: RunFolder) -> None:
    with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
        online["lanes"][0]["duplicate"] += 1
        online["totals"]["duplicate"] += 1


def _online(name: str, by: int) -> Change:
    def change(run: RunFolder) -> None:
        with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
            online["lanes"][0][name] += by

    return change


for _name in ("deliveries", "fences", "owed", "delivered", "missing", "low", "high", "corrupted"):
    add_lie(f"the_online_checker_counts_other_{_name}", _online(_name, 1), "online.json")


def _found(kind: str) -> Change:
    """Return a change that adds an anomaly to the online checker's report and the manifest."""

    def change(run: RunFolder) -> None:
        with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
            online["lanes"][0][kind] += 1
            online["totals"][kind] += 1
        with run.document("manifest.json") as manifest:
            manifest["headline"]["online"][kind] += 1
        with run.lines("log.jsonl") as rows:
            rows[-1]["manifest"]["headline"]["online"][kind] += 1

    return change


@register_lie("disagree on exact of")
def the_online_checker_forgot_what_it_saw(run: RunFolder) -> None:
    with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
        for lane in online["lanes"]:
            lane["exact"] = False
    renew_digests(run)


for _name in ("corrupted", "reordered", "wrong_match"):
    add_lie(f"the_records_are_not_{_name}_any_more", _found(_name), f"disagree on {_name}")


@register_lie("online.json")
def the_online_checker_left_nothing(run: RunFolder) -> None:
    run.path(f"raw/{SUBSCRIBERS}/online.json").unlink()


@register_lie("online.json")
def a_lane_is_missing(run: RunFolder) -> None:
    with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
        del online["lanes"][0]


@register_lie("online.json")
def deliveries_and_their_publications_are_missing(run: RunFolder) -> None:
    """Remove one sequence number of a source from all records."""
    with run.records(PUBLISHERS, "publications") as rows:
        source = rows.sidecar["tables"]["publishers"][0]
        last = int(rows.all["sequence"][rows.of(publisher=0)].max())
        rows.drop(rows.of(publisher=0, sequence=last - 1))
        rows.all["sequence"][rows.of(publisher=0, sequence=last)] = last - 1
    with run.records(PUBLISHERS, "acks") as rows:
        rows.drop(rows.of(publisher=0, last=last))
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        of = rows.sidecar["tables"]["publishers"].index(source)
        rows.drop(rows.of(publisher=of, sequence=last - 1))
        mask = rows.of(publisher=of, sequence=last)
        rows.all["sequence"][mask] = last - 1


@register_lie("sessions.jsonl")
def a_client_has_no_sessions(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/sessions.jsonl") as rows:
        rows[:] = [row for row in rows if row["client"] != "c3-sub-1"]


@register_lie("sessions.jsonl")
def a_session_was_elsewhere(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/sessions.jsonl") as rows:
        rows[0]["broker"] = "c2"


@register_lie("sessions.jsonl")
def a_session_never_ended(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/sessions.jsonl") as rows:
        del rows[-1]


@register_lie("sessions.jsonl")
def publications_were_sent_before_any_session(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/sessions.jsonl") as rows:
        for row in rows:
            row["t_ns"] += 4 * SECOND if row["event"] == "up" else 0


for _column in ("sent", "acknowledged", "rejected"):

    def _more(run: RunFolder, column: str = _column) -> None:
        with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
            rows[-1][column] += 1

    add_lie(f"a_load_generator_{_column}_more", _more, _column)


@register_lie("deliveries.rec")
def a_load_generator_received_more(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/stats.jsonl") as rows:
        rows[-1]["delivered"] += 1


def _load_exit(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.document(f"raw/{PUBLISHERS}/exit.json") as told:
            told |= values

    return change


add_lie("a_load_generator_crashed", _load_exit(exit_code=1, exit_cause="unexpected"), "exit.json")

add_lie("a_load_generator_was_killed", _load_exit(exit_signal=9), "exit.json")

add_lie("a_load_generator_ended_early", _load_exit(t_exit_ns=1), "exit.json")


def _gap(first: int, last: int, after_s: float) -> Change:
    def change(run: RunFolder) -> None:
        with run.lines(f"raw/{SUBSCRIBERS}/subscriptions.jsonl") as rows:
            sub_id = "c3-sub-1/1"
            at_ns = rows[0]["t_accepted_ns"] + round(after_s * SECOND)
        line = {
            "t_ns": at_ns, "sub_id": sub_id, "source": "c1/0", "incarnation": 1, "first": first,
            "last": last, "place": 10, "reason": "early release",
        }  # fmt: skip
        run.path(f"raw/{SUBSCRIBERS}/gaps.jsonl").write_text("")
        with run.lines(f"raw/{SUBSCRIBERS}/gaps.jsonl") as rows:
            rows.append(line)

    return change


add_lie("a_gap_has_a_fence_in_it", _gap(1, 5, 3.0), "")

add_lie("a_gap_is_of_nothing", _gap(10_000, 10_001, 3.0), "")

add_lie("a_gap_without_absence", _gap(3, 4, 0.9), "")
