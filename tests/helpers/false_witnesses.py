"""Run folders in which one file lies, and the files that contradict the lie.

Each lie changes one file of a real run (`tests/results/witnessed_run`) and seals the folder again.
The run has two publishers at c1 and two subscribers at c3; c3-sub-2 is disconnected for a while, c3
is frozen, c2 absorbs, is killed and restarted.
"""

import hashlib
import json
import sqlite3
import tomllib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.load.subscriber_process import TABLE
from bench.run.run_directory import specification_digest
from brokerd.protocols.registry import protocol_on, read_topology
from results.tables.record_files import RECORDS
from tests.helpers.forged_runs import RunFolder

PUBLISHERS: Final = "local1/load-pub"
SUBSCRIBERS: Final = "local1/load-sub"
SECOND: Final = 10**9
AWAY, FREEZE, ABSORB, KILL, RESTART = range(5)
"""Indices of faults in the fault log."""

Change = Callable[[RunFolder], None]


@dataclass(frozen=True)
class Lie:
    """A lie in one file.

    Attributes:
        change: the lie.
        says: a piece of the doubt or the refusal that names the lie; "" for a violation.
    """

    name: str
    change: Change
    says: str


LIES: dict[str, Lie] = {}


def _lie(says: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        LIES[change.__name__] = Lie(change.__name__, change, says)
        return change

    return register


def _add(name: str, change: Change, says: str) -> None:
    assert name not in LIES, name
    LIES[name] = Lie(name, change, says)


# --- Sources and fences ---------------------------------------------------------------------


def _fence_set(rows: Any) -> int:
    return len(rows.sidecar["tables"]["attribute_sets"]) - 1


def _log_as_fence(run: RunFolder, number: int) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        mask = rows.of(publisher=0, sequence=number)
        rows.all["attribute_set"][mask] = _fence_set(rows)


@_lie("the fences of source")
def the_opening_fence_is_logged_later(run: RunFolder) -> None:
    _log_as_fence(run, 20)
    with run.records(PUBLISHERS, "publications") as rows:
        rows.all["attribute_set"][rows.of(publisher=0, sequence=1)] = 0


@_lie("the fences of source")
def the_closing_fence_is_logged_earlier(run: RunFolder) -> None:
    _log_as_fence(run, 30)


@_lie("the fences of source")
def a_fence_is_missing(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        fences = rows.places(publisher=1, attribute_set=_fence_set(rows))
        rows.all["attribute_set"][fences[-1]] = 0


@_lie("began incarnation")
def a_source_has_a_second_incarnation(run: RunFolder) -> None:
    for layout, number in (("publications", "sequence"), ("acks", "first")):
        with run.records(PUBLISHERS, layout) as rows:
            mask = rows.of(publisher=0) & (rows.all[number] > 40)
            rows.all["incarnation"][mask] += 1
            for column in ("sequence", "first", "last"):
                if column in rows.all.dtype.names:
                    rows.all[column][mask] -= 40


# --- Faults ---------------------------------------------------------------------------------


def _shift(number: int, stage: str, by_s: float) -> Change:
    def change(run: RunFolder) -> None:
        with run.fault(number) as row:
            by_ns = round(by_s * SECOND)
            row[f"t_{stage}_ns"] += by_ns
            for host in row["host_stamps"].get(stage, {}):
                row["host_stamps"][stage][host] += by_ns

    return change


for _number, _name, _stages in (
    (AWAY, "away", ("applied", "heal_requested", "healed")),
    (FREEZE, "freeze", ("requested", "applied", "observed", "healed")),
    (ABSORB, "absorb", ("applied", "observed", "healed")),
    (KILL, "kill", ("planned", "applied", "observed", "healed", "recovered")),
    (RESTART, "restart", ("applied", "observed", "recovered")),
):
    for _stage in _stages:
        _add(f"{_name}_was_{_stage}_earlier", _shift(_number, _stage, -0.2), "faults/log.jsonl")


def _row(number: int, **values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.fault(number) as row:
            row |= values

    return change


_add("more_was_absorbed", _row(ABSORB, absorbed_msgs=500), "absorbed_msgs")
_add("more_bytes_were_absorbed", _row(ABSORB, absorbed_bytes=50_000), "absorbed_bytes")
_add("the_kill_was_another_signal", _row(KILL, params={"signal": "TERM"}), "params")
_add("a_lease_ended_the_freeze", _row(FREEZE, healed_by="lease"), "healed_by")
_add("the_freeze_was_of_another_broker", _row(FREEZE, target="c1"), "freeze-c3")
_add("the_kill_was_a_freeze", _row(KILL, verb="freeze"), "kill-c2")
_add("the_kill_has_no_evidence", _row(KILL, evidence="{}"), "evidence")
_add("the_restart_is_only_applied", _row(RESTART, state="applied"), "state")


@_lie("only the first has")
def a_fault_is_in_no_fault_log(run: RunFolder) -> None:
    for name in ("faults/faults.jsonl", "faults/plan.jsonl"):
        with run.lines(name) as rows:
            del rows[FREEZE]


@_lie("exit.json")
def the_kill_is_nowhere_but_at_its_broker(run: RunFolder) -> None:
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            rows[:] = [row for row in rows if row.get("step") not in ("kill-c2", "restart-c2")]
    text = run.path("spec/faults.toml").read_text()
    ids = ('id = "kill-c2"', 'id = "restart-c2"')
    parts = [part for part in text.split("[[step]]") if not any(each in part for each in ids)]
    run.path("spec/faults.toml").write_text("[[step]]".join(parts))


@_lie("faults/log.jsonl")
def the_fault_journal_is_gone(run: RunFolder) -> None:
    run.path("faults/log.jsonl").unlink()


@_lie("log.jsonl")
def a_stage_is_not_in_the_journal(run: RunFolder) -> None:
    with run.lines("log.jsonl") as rows:
        del rows[next(n for n, row in enumerate(rows) if row.get("stage") == "healed")]


@_lie("spec/faults.toml")
def the_schedule_has_a_step_more(run: RunFolder) -> None:
    step = '\n[[step]]\nid = "more"\ndo = "cut"\non = "c1-c2"\nat = "1s"\nfor = "1s"\n'
    run.path("spec/faults.toml").write_text(run.path("spec/faults.toml").read_text() + step)


@_lie("spec/faults.toml")
def the_schedule_freezes_for_longer(run: RunFolder) -> None:
    run.replace("spec/faults.toml", '"1.2s"', '"2.2s"')


@_lie("faults/plan.jsonl")
def the_plan_is_of_another_time(run: RunFolder) -> None:
    with run.lines("faults/plan.jsonl") as rows:
        rows[FREEZE]["at_ns"] += SECOND


# --- Brokers --------------------------------------------------------------------------------


def _exit(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.document("raw/local2/c2/exit.json") as told:
            told |= values

    return change


_add("the_kill_left_no_exit", lambda run: run.path("raw/local2/c2/exit.json").unlink(), "exit.json")
_add("the_exit_was_planned", _exit(exit_cause="planned"), "exit.json")
_add("the_exit_was_of_no_fault", _exit(exit_cause="fault:other"), "exit.json")
_add("the_exit_was_without_signal", _exit(exit_signal=None, exit_code=0), "exit.json")
_add("the_exit_was_of_another_process", _exit(process="c1"), "exit.json")


@_lie("exit.json")
def the_exit_was_later(run: RunFolder) -> None:
    with run.document("raw/local2/c2/exit.json") as told:
        told["t_exit_ns"] += 2 * SECOND


@_lie("had stopped the broker")
def a_frozen_broker_counts_on(run: RunFolder) -> None:
    with run.lines("faults/faults.jsonl") as faults:
        frozen_ns = faults[FREEZE]["t_applied_ns"]
    with run.lines("raw/local3/c3/stats.jsonl") as rows:
        place = next(n for n, row in enumerate(rows) if row["t_ns"] > frozen_ns)
        rows.insert(place, {**rows[place - 1], "t_ns": frozen_ns + SECOND // 2})


@_lie("no fault explains it")
def a_broker_stops_counting(run: RunFolder) -> None:
    with run.lines("raw/local1/c1/stats.jsonl") as rows:
        del rows[2:-1]


@_lie("stats.jsonl")
def a_broker_leaves_no_statistics(run: RunFolder) -> None:
    run.path("raw/local1/c1/stats.jsonl").write_text("")


@_lie("publications_received")
def a_broker_counts_back(run: RunFolder) -> None:
    with run.lines("raw/local1/c1/stats.jsonl") as rows:
        rows[3]["publications_received"] += 10_000


@_lie("resent_publications")
def a_broker_resent_less(run: RunFolder) -> None:
    with run.lines("raw/local1/c1/stats.jsonl") as rows:
        rows[-1]["resent_publications"] += 5


@_lie("events.jsonl")
def a_broker_leaves_no_events(run: RunFolder) -> None:
    run.path("raw/local3/c3/events.jsonl").unlink()


@_lie("sessions_lost up to")
def a_broker_lost_no_session(run: RunFolder) -> None:
    with run.lines("raw/local1/c1/events.jsonl") as rows:
        rows[:] = [row for row in rows if row["event"] != "session_lost" or "-" in row["peer"]]


# --- Passage --------------------------------------------------------------------------------


def _faults_ns(run: RunFolder, number: int) -> tuple[int, int]:
    with run.lines("faults/faults.jsonl") as rows:
        row = rows[number]
    return row["t_applied_ns"], row["t_heal_requested_ns"]


def _arrive_at_once(run: RunFolder, subscription: int, number: int) -> None:
    """Log publications sent during a fault as received a moment later."""
    from_ns, to_ns = _faults_ns(run, number)
    with run.records(PUBLISHERS, "publications") as rows:
        sent = {
            (int(row["publisher"]), int(row["sequence"])): int(row["sent_ns"]) for row in rows.all
        }
        sources = rows.sidecar["tables"]["publishers"]
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        place_of = [sources.index(name) for name in rows.sidecar["tables"]["publishers"]]
        for row in rows.all:
            at_ns = sent[place_of[int(row["publisher"])], int(row["sequence"])]
            if row["subscription"] == subscription and from_ns < at_ns < to_ns - SECOND // 10:
                row["received_ns"] = at_ns + 1_000_000
        rows.all = rows.all[np.argsort(rows.all["received_ns"], kind="stable")]


@_lie("let nothing pass")
def a_frozen_broker_delivers(run: RunFolder) -> None:
    for subscription in (0, 1):
        _arrive_at_once(run, subscription, FREEZE)


@_lie("let nothing pass")
def an_absent_subscriber_receives(run: RunFolder) -> None:
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        names = rows.sidecar["tables"]["subscriptions"]
    _arrive_at_once(run, names.index("c3-sub-2/1"), AWAY)


@_lie("acknowledgements are from a broker")
def a_frozen_broker_acknowledges(run: RunFolder) -> None:
    """Attach a publisher to the frozen broker and acknowledge a publication during the freeze."""
    from_ns, to_ns = _faults_ns(run, FREEZE)
    with run.records(PUBLISHERS, "publications") as rows:
        sent = {
            (int(row["publisher"]), int(row["sequence"])): int(row["sent_ns"]) for row in rows.all
        }
    publisher, number = next(
        key for key, at in sent.items() if from_ns < at - SECOND // 10 < to_ns - SECOND // 2
    )
    with run.records(PUBLISHERS, "acks") as rows:
        row = rows.all[:1].copy()
        row["publisher"], row["first"], row["last"] = publisher, number, number
        row["acked_ns"] = sent[publisher, number] + SECOND // 10
        place = int(np.searchsorted(rows.all["acked_ns"], row["acked_ns"][0]))
        rows.insert(place, row)
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            for row in rows:
                if row.get("target") == "c3":
                    row["target"] = "c1"
    run.replace("spec/faults.toml", 'on = "c3"', 'on = "c1"')


# --- Clients --------------------------------------------------------------------------------


@_lie("duplicate")
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
    _add(f"the_online_checker_counts_other_{_name}", _online(_name, 1), "online.json")


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


@_lie("disagree on exact of")
def the_online_checker_forgot_what_it_saw(run: RunFolder) -> None:
    with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
        for lane in online["lanes"]:
            lane["exact"] = False
    renew_digests(run)


for _name in ("corrupted", "reordered", "wrong_match"):
    _add(f"the_records_are_not_{_name}_any_more", _found(_name), f"disagree on {_name}")


@_lie("online.json")
def the_online_checker_left_nothing(run: RunFolder) -> None:
    run.path(f"raw/{SUBSCRIBERS}/online.json").unlink()


@_lie("online.json")
def a_lane_is_missing(run: RunFolder) -> None:
    with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
        del online["lanes"][0]


@_lie("online.json")
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


@_lie("sessions.jsonl")
def a_client_has_no_sessions(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/sessions.jsonl") as rows:
        rows[:] = [row for row in rows if row["client"] != "c3-sub-1"]


@_lie("sessions.jsonl")
def a_session_was_elsewhere(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/sessions.jsonl") as rows:
        rows[0]["broker"] = "c2"


@_lie("sessions.jsonl")
def a_session_never_ended(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/sessions.jsonl") as rows:
        del rows[-1]


@_lie("sessions.jsonl")
def publications_were_sent_before_any_session(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/sessions.jsonl") as rows:
        for row in rows:
            row["t_ns"] += 4 * SECOND if row["event"] == "up" else 0


for _column in ("sent", "acknowledged", "rejected"):

    def _more(run: RunFolder, column: str = _column) -> None:
        with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
            rows[-1][column] += 1

    _add(f"a_load_generator_{_column}_more", _more, _column)


@_lie("deliveries.rec")
def a_load_generator_received_more(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/stats.jsonl") as rows:
        rows[-1]["delivered"] += 1


def _load_exit(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.document(f"raw/{PUBLISHERS}/exit.json") as told:
            told |= values

    return change


_add("a_load_generator_crashed", _load_exit(exit_code=1, exit_cause="unexpected"), "exit.json")
_add("a_load_generator_was_killed", _load_exit(exit_signal=9), "exit.json")
_add("a_load_generator_ended_early", _load_exit(t_exit_ns=1), "exit.json")


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


_add("a_gap_has_a_fence_in_it", _gap(1, 5, 3.0), "")
_add("a_gap_is_of_nothing", _gap(10_000, 10_001, 3.0), "")
_add("a_gap_without_absence", _gap(3, 4, 0.9), "")

# --- The manifest ---------------------------------------------------------------------------


def _manifest(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.document("manifest.json") as manifest:
            for name, value in values.items():
                inner = manifest
                *way, last = name.split("__")
                for key in way:
                    inner = inner[key]
                inner[last] = value

    return change


for _name, _values, _says in (
    ("promises_no_order", {"promises__order": "none"}, "promises.order"),
    ("promises_gaps", {"promises__gaps": ["early release"]}, "promises.gaps"),
    ("promises_redelivery", {"promises__redelivers": True}, "promises.redelivers"),
    ("is_simulated", {"labels": {"brokers": "simulated"}}, "labels"),
    ("has_an_older_schema", {"schema": "pubsubctl/manifest/1"}, "schema"),
    ("has_another_protocol", {"protocol": "best_effort"}, "protocol"),
    ("has_a_broker_that_joined", {"joined": ["c3"]}, "joined"),
    ("has_another_topology", {"topology_digest": "0" * 32}, "topology_digest"),
    ("has_no_schedule", {"schedule": None}, "schedule"),
    ("has_another_drain", {"drain__took_s": 60.0}, "drain"),
    ("has_another_origin", {"origin_ns": 5}, "origin_ns"),
    ("has_another_role", {"roles__c2__host": "local1"}, "host of c2"),
    ("has_reasons", {"reasons": ["why"]}, "reasons"),
    ("was_saturated", {"headline__saturated": True}, "headline"),
    ("published_more", {"headline__published": 500}, "headline.published"),
    ("delivered_more", {"headline__delivered": 500}, "headline.delivered"),
    ("is_faster", {"headline__response_us__p99": 1.0}, "headline.response_us"),
    ("serves_faster", {"headline__service_us__p50": 1.0}, "headline.service_us"),
    ("acknowledges_faster", {"headline__acknowledged_us__max": 1.0}, "headline.acknowledged_us"),
    ("lost_no_session", {"headline__sessions_lost": 0}, "headline.sessions_lost"),
    ("has_other_findings", {"headline__online__owed": 1}, "headline.online"),
):
    _add(f"the_manifest_{_name}", _manifest(**_values), _says)


@_lie("spec/topology.toml")
def the_topology_bears_more(run: RunFolder) -> None:
    text = run.path("spec/topology.toml").read_text()
    run.path("spec/topology.toml").write_text(text.replace("delta = 1", "delta = 2"))


@_lie("log.jsonl")
def the_journal_has_no_end(run: RunFolder) -> None:
    with run.lines("log.jsonl") as rows:
        del rows[-1]


@_lie("log.jsonl")
def a_phase_began_at_another_time(run: RunFolder) -> None:
    with run.lines("log.jsonl") as rows:
        next(row for row in rows if row.get("phase") == "drain")["at_ns"] += SECOND


@_lie("clock.jsonl")
def a_clock_is_another(run: RunFolder) -> None:
    with run.lines("clock.jsonl") as rows:
        rows[1]["clock_id"] = "other"


@_lie("clock.jsonl")
def a_clock_was_not_compared_afterwards(run: RunFolder) -> None:
    with run.lines("clock.jsonl") as rows:
        del rows[-1]


# --- Kinds of runs --------------------------------------------------------------------------


def journal_change(change: Callable[[dict[str, Any]], None]) -> Change:
    """Return a change of the manifest that the journal repeats."""

    def both(run: RunFolder) -> None:
        with run.document("manifest.json") as manifest:
            change(manifest)
        with run.lines("log.jsonl") as rows:
            change(rows[-1]["manifest"])

    return both


def _with_digests(change: Change) -> Change:
    """Return a change of the specification, with the digest in manifest and journal."""

    def both(run: RunFolder) -> None:
        change(run)
        digest = specification_digest(run.path("spec"))
        journal_change(lambda manifest: manifest.update(specification_digest=digest))(run)
        with run.lines("log.jsonl") as rows:
            next(row for row in rows if row["what"] == "specification")["digest"] = digest

    return both


def _of_manifest(**values: Any) -> Change:
    return journal_change(lambda manifest: manifest.update(values))


def _without(name: str) -> Change:
    return journal_change(lambda manifest: manifest.pop(name))


for _name, _change, _says in (
    ("schema_is_older", _of_manifest(schema="pubsubctl/manifest/1"), "schema"),
    ("system_is_another", _of_manifest(system={"name": "mosquitto"}), "system"),
    ("run_is_a_history", _of_manifest(labels={"history": "history"}), "labels.history"),
    ("broker_joined", _of_manifest(joined=["c3"]), "disagree on joined"),
    ("boot_is_another", journal_change(lambda m: m["clock"].update(boot_id="x")), "clock.boot_id"),
    ("parameters_are_missing", _without("parameters"), "disagree on parameters"),
):
    _add(f"the_{_name}_in_manifest_and_journal", _change, _says)


@_lie("phase deploy")
def a_phase_is_missing_in_manifest_and_journal(run: RunFolder) -> None:
    journal_change(lambda manifest: manifest["phases"].pop(0))(run)
    with run.lines("log.jsonl") as rows:
        rows[:] = [row for row in rows if row.get("phase") != "deploy"]


@_lie("length of drain")
def the_drain_ended_after_the_journal(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["phases"][-1]["t1_ns"] += 20 * SECOND

    journal_change(change)(run)


@_lie("no line about promises")
def the_promises_are_missing_in_manifest_and_journal(run: RunFolder) -> None:
    _without("promises")(run)
    with run.lines("log.jsonl") as rows:
        del next(row for row in rows if row["what"] == "specification")["promises"]


for _name in ("cli.json", "placement.json"):
    _add(
        f"the_specification_has_no_{_name.partition('.')[0]}",
        _with_digests(lambda run, name=_name: run.path(f"spec/{name}").unlink()),  # type: ignore[misc]
        f"spec/{_name} is missing",
    )


# --- Brokers against clients and faults -----------------------------------------------------


def _events_of(run: RunFolder, broker: str) -> str:
    (path,) = run.folder.glob(f"raw/*/{broker}/events.jsonl")
    return path.relative_to(run.folder).as_posix()


@_lie("only the first has fault")
def a_broker_never_did_its_own_fault(run: RunFolder) -> None:
    with run.lines(_events_of(run, "c2")) as rows:
        rows[:] = [row for row in rows if row["event"] != "fault_applied"]


@_lie("applied of")
def a_broker_did_its_own_fault_later(run: RunFolder) -> None:
    with run.lines(_events_of(run, "c2")) as rows:
        next(row for row in rows if row["event"] == "fault_applied")["t_ns"] += 2 * SECOND


@_lie("starts of c1")
def a_broker_began_twice(run: RunFolder) -> None:
    with run.lines(_events_of(run, "c1")) as rows:
        rows.insert(2, {**rows[0], "t_ns": rows[0]["t_ns"] + SECOND})


@_lie("disagree on clients")
def a_broker_served_a_client_of_nobody(run: RunFolder) -> None:
    with run.lines(_events_of(run, "c1")) as rows:
        known = next(row for row in rows if row["event"] == "session_established")
        peer = f"c1-sub-9.{rows[0]['run_id'].rpartition('-')[2]}"
        rows.insert(1, {**known, "peer": peer, "session": 99})


@_lie("publications delivered by")
def a_broker_delivered_less(run: RunFolder) -> None:
    (path,) = run.folder.glob("raw/*/c3/stats.jsonl")
    with run.lines(path.relative_to(run.folder).as_posix()) as rows:
        for row in rows:
            row["publications_delivered"] //= 2


@_lie("stats.jsonl and raw/")
def the_last_statistics_of_a_broker_are_cut(run: RunFolder) -> None:
    (path,) = run.folder.glob("raw/*/c1/stats.jsonl")
    with run.lines(path.relative_to(run.folder).as_posix()) as rows:
        del rows[-3:]


# --- Load generators ------------------------------------------------------------------------


def _found_online(kind: str) -> Change:
    """Return a change that adds an online anomaly to the headline and the journal."""

    def change(run: RunFolder) -> None:
        with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
            online["totals"][kind] += 1
            online["lanes"][0][kind] += 1
            if kind == "missing":
                online["totals"]["owed"] += 1
                online["lanes"][0]["owed"] += 1
            totals = dict(online["totals"])
        journal_change(lambda manifest: manifest["headline"].update(online=totals))(run)

    return change


for _kind in ("missing", "fence_missing", "phantom", "withheld_late", "withheld_delivered"):
    _add(f"the_online_checker_found_{_kind}", _found_online(_kind), f"disagree on {_kind}")


@_lie("answers before their publication")
def acknowledgements_came_before_publications(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["acked_ns"][:20] = rows.all["acked_ns"][0] - SECOND // 10


@_lie("delivered up to")
def deliveries_were_counted_late(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/stats.jsonl") as rows:
        for row in rows[:-1]:
            row["delivered"] = 0


@_lie("sent up to")
def publications_were_counted_late(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
        for row in rows[:-1]:
            row["sent"] = 0


@_lie("loadgen_saturated")
def every_second_was_late(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
        for row in rows:
            row["saturated"] = True


@_lie("an absence of")
def somebody_was_away_without_churn(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        left_ns = manifest["origin_ns"] + SECOND
    line = {"subscriber": "c3-sub-1", "t_left_ns": left_ns, "t_back_ns": left_ns + SECOND // 50}
    run.path(f"raw/{SUBSCRIBERS}/absences.jsonl").write_text(json.dumps(line) + "\n")


@_lie("disagree on withheld")
def a_repeated_delivery_was_kept_back(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/stats.jsonl") as rows:
        rows[-1]["withheld"] = 1


# --- Two files that tell the same lie -------------------------------------------------------


def _journal(change: Callable[[dict[str, Any]], None]) -> Change:
    """Return a change of each line of both fault journals."""

    def both(run: RunFolder) -> None:
        for name in ("faults/log.jsonl", "log.jsonl"):
            with run.lines(name) as rows:
                for row in rows:
                    change(row)

    return both


@_lie("absorbed_msgs of")
def more_was_absorbed_in_all_fault_logs(run: RunFolder) -> None:
    def more(row: dict[str, Any]) -> None:
        if (row.get("evidence") or {}).get("absorbed_publications") is not None:
            row["evidence"]["absorbed_publications"] += 500

    _journal(more)(run)
    with run.fault(ABSORB) as row:
        row["absorbed_msgs"] += 500
        evidence = json.loads(row["evidence"])
        evidence["absorbed_publications"] += 500
        row["evidence"] = json.dumps(evidence)


@_lie("no line about absorbed_msgs of")
def no_broker_has_what_was_absorbed(run: RunFolder) -> None:
    with run.lines(_events_of(run, "c2")) as rows:
        rows[:] = [row for row in rows if row["event"] != "fault_counted"]


@_lie("end of a session of c3-sub-2")
def a_disconnect_is_nowhere_but_at_its_client(run: RunFolder) -> None:
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            rows[:] = [row for row in rows if row.get("step") != "away"]

    def without(run: RunFolder) -> None:
        text = run.path("spec/faults.toml").read_text()
        parts = [part for part in text.split("[[step]]") if 'id = "away"' not in part]
        run.path("spec/faults.toml").write_text("[[step]]".join(parts))

    _with_digests(without)(run)


# --- Sessions at brokers --------------------------------------------------------------------


@_lie("sessions_established up to")
def a_session_was_lost_at_its_broker_alone(run: RunFolder) -> None:
    with run.lines(_events_of(run, "c3")) as rows:
        place = next(n for n, row in enumerate(rows) if "c3-sub-1" in str(row.get("peer")))
        up = rows[place]
        at_ns = up["t_ns"] + 4 * SECOND
        lost = {**up, "t_ns": at_ns, "event": "session_lost", "reason": "closed_by_peer"}
        rows += [lost, {**up, "t_ns": at_ns + SECOND // 2, "session": up["session"] + 50}]
        rows.sort(key=lambda row: row["t_ns"])


@_lie("sessions_established up to")
def a_session_at_a_broker_is_not_logged(run: RunFolder) -> None:
    with run.lines(_events_of(run, "c3")) as rows:
        last = max(
            n
            for n, row in enumerate(rows)
            if row["event"] == "session_established" and "c3-sub-2" in row["peer"]
        )
        del rows[last]


@_lie("start of a session of c3-sub-1")
def a_session_ended_without_a_start(run: RunFolder) -> None:
    run.replace("spec/faults.toml", 'on = "c3"', 'on = "c1"')
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            for row in rows:
                row |= {"target": "c1"} if row.get("target") == "c3" else {}
    with run.lines(_events_of(run, "c3")) as rows:
        for row in rows:
            if "c3-sub-1" in str(row.get("peer")) and row["event"] == "session_lost":
                row["session"] += 1


@_lie("start of the run of c1")
def the_events_of_a_broker_are_from_earlier(run: RunFolder) -> None:
    with run.lines(_events_of(run, "c1")) as rows:
        for row in rows:
            row["t_ns"] -= 12 * SECOND


for _event, _details in (
    ("state_lost", {"cause": "the log ends early"}),
    ("protocol_error", {"peer": "c2", "reason": "a number went back"}),
):

    def _logs(run: RunFolder, line: dict[str, Any] = {"event": _event, **_details}) -> None:  # noqa: B006
        with run.lines(_events_of(run, "c1")) as rows:
            rows.insert(2, {"t_ns": rows[1]["t_ns"] + 1_000, **line})

    _add(f"a_broker_logged_{_event}", _logs, f"logged {_event}")


@_lie("no line about a replacement")
def brokers_were_replaced_and_none_began_again(run: RunFolder) -> None:
    journal_change(lambda manifest: manifest.update(rolling=1))(run)
    with run.lines("log.jsonl") as rows:
        place = next(n for n, row in enumerate(rows) if row.get("phase") == "drain")
        at_ns = rows[place]["at_ns"]
        for stage, before_ns in (("ended", SECOND), ("begun", 3 * SECOND)):
            line = {"utc": rows[place]["utc"], "t_ns": at_ns, "what": "rolling", "stage": stage}
            rows.insert(place, {**line, "at_ns": at_ns - before_ns})


# --- Counters -------------------------------------------------------------------------------


@_lie("publications received: ")
def brokers_received_nothing(run: RunFolder) -> None:
    for path in sorted(run.folder.glob("raw/*/c?/stats.jsonl")):
        with run.lines(path.relative_to(run.folder).as_posix()) as rows:
            for row in rows:
                row["publications_received"] = 0


@_lie("publications received by c1")
def the_home_of_all_publishers_received_less(run: RunFolder) -> None:
    with run.lines("raw/local1/c1/stats.jsonl") as rows:
        for row in rows:
            row["publications_received"] //= 2


@_lie("stats.jsonl and raw/local1/load-pub/publications.rec disagree: nothing was written")
def statistics_of_a_load_generator_are_cut_in_the_middle(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
        rows[:] = [*rows[:2], *rows[-2:]]


@_lie("offered up to")
def more_was_offered(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
        for row in rows:
            row["offered"] *= 3


@_lie("offered up to")
def the_last_offers_are_fewer(run: RunFolder) -> None:
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as rows:
        for row in rows[-2:]:
            row["offered"] -= 1


@_lie("reservations behind their first publication")
def numbers_were_reserved_afterwards(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as publications:
        last_ns = publications.all["sent_ns"].max()
    with run.records(PUBLISHERS, "intents") as rows:
        rows.all["at_ns"] = last_ns


@_lie("disagree on answers: ")
def acknowledgements_came_twice(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.insert(5, rows.all[4])
    with run.lines(f"raw/{PUBLISHERS}/stats.jsonl") as lines:
        lines[-1]["acknowledged"] += 1


@_lie("disagree on numbers with two answers")
def an_acknowledgement_is_of_another_source(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        rows.all["publisher"][60] ^= 1
    renew_digests(run)


@_lie("disagree on numbers with two answers")
def an_acknowledgement_is_of_the_number_before(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "acks") as rows:
        for column in ("first", "last"):
            rows.all[column][-1] -= 1
    renew_digests(run)


@_lie("before they were reserved")
def another_incarnation_reserved_the_numbers(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "intents") as rows:
        rows.all["incarnation"][0] += 1
    renew_digests(run)


def _empty(name: str) -> Change:
    def change(run: RunFolder) -> None:
        run.path(name).write_text("")
        renew_digests(run)

    return change


_add("publishers_counted_nothing", _empty(f"raw/{PUBLISHERS}/stats.jsonl"), "about any count")
_add("subscribers_counted_nothing", _empty(f"raw/{SUBSCRIBERS}/stats.jsonl"), "about any count")


def _lines_of(name: str, change: Callable[[list[dict[str, Any]]], object]) -> Change:
    def both(run: RunFolder) -> None:
        with run.lines(name) as rows:
            change(rows)
        renew_digests(run)

    return both


@_lie("and raw/local1/load-pub disagree on clients")
def the_sessions_are_in_the_file_of_the_other_process(run: RunFolder) -> None:
    paths = [run.path(f"raw/{name}/sessions.jsonl") for name in (PUBLISHERS, SUBSCRIBERS)]
    contents = [path.read_text() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_text(content)
    renew_digests(run)


def _shift_comparison(by_ns: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["t_ns"] += by_ns

    return change


for _name, _by_ns in (("after_the_load", 60 * SECOND), ("before_the_run", -60 * SECOND)):
    _add(
        f"clocks_were_compared_{_name}",
        _lines_of("clock.jsonl", _shift_comparison(_by_ns)),
        "clock.jsonl and manifest.json disagree on the time of",
    )
_add(
    "a_restarted_broker_never_began_the_run",
    _lines_of(
        "raw/local2/c2/events.jsonl",
        lambda rows: rows.remove([row for row in rows if row["event"] == "run_begun"][-1]),
    ),
    "no line about run_begun before",
)
_add(
    "a_restarted_broker_never_ended_the_run",
    _lines_of("raw/local2/c2/events.jsonl", lambda rows: rows.pop()),
    "no line about run_ended",
)
_add(
    "a_killed_broker_never_began_the_run",
    _lines_of("raw/local2/c2/events.jsonl", lambda rows: rows.pop(0)),
    "no line about run_begun before",
)


@_lie("has no line about guarantee")
def one_load_generator_repeats_no_guarantee(run: RunFolder) -> None:
    guarantee = tomllib.loads(run.path("spec/workload.toml").read_text())["guarantee"]
    with run.document(f"raw/{SUBSCRIBERS}/setting.json") as setting:
        setting["guarantee"] = guarantee
    renew_digests(run)


@_lie("has no line about parameters")
def one_broker_repeats_no_parameters(run: RunFolder) -> None:
    parameters = json.loads(run.path("manifest.json").read_text())["parameters"]
    for name in ("local1/c1", "local2/c2"):
        with run.lines(f"raw/{name}/events.jsonl") as rows:
            for row in rows:
                if row["event"] == "run_begun":
                    row["parameters"] = parameters
    renew_digests(run)


# --- Figures --------------------------------------------------------------------------------


def _headline(**values: Any) -> Change:
    return journal_change(lambda manifest: manifest["headline"].update(values))


for _name, _change, _says in (
    ("were_on_time", _headline(lateness_p99_us=1.0), "headline.lateness_p99_us"),
    ("were_late", _headline(lateness_p99_us=9e8), "headline.lateness_p99_us"),
    ("left_a_broker_down", _headline(down=["c1"]), "headline.down"),
    ("left_a_fault", _headline(not_healed=["away"]), "headline.not_healed"),
    (
        "recovered_at_once",
        _headline(recovery={"us": 0.5, "is_over": True, "limit_us": 1.0}),
        "headline.recovery",
    ),
    ("needed_less_memory", _headline(broker_private_bytes_max=1), "broker_private_bytes_max"),
    ("sent_larger_payloads", _of_manifest(payload_bytes=9_999), "payload_bytes"),
    ("did_not_wait_for_a_disk", _of_manifest(without_fsync=["local9"]), "without_fsync"),
):
    _add(f"the_processes_{_name}", _change, _says)


@_lie("headline.broker_cpu_us_per_message_mean")
def brokers_needed_less_time(run: RunFolder) -> None:
    """Lower the processor times of brokers in a run without a kill, in all files about faults."""
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            rows[:] = [row for row in rows if row.get("step") not in ("kill-c2", "restart-c2")]
    for path in sorted(run.folder.glob("raw/*/c?/stats.jsonl")):
        with run.lines(path.relative_to(run.folder).as_posix()) as rows:
            for number, row in enumerate(rows):
                row["cpu_s"] = 0.5 * number
    _headline(broker_cpu_us_per_message_mean=0.1, broker_core_share_mean=0.5)(run)


@_lie("drain.took_s")
def the_drain_was_shorter_than_it_took(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["phases"][-1]["t1_ns"] = manifest["phases"][-1]["t0_ns"] + 1_000

    journal_change(change)(run)


@_lie("stats.jsonl and spec/workload.toml disagree on protocol")
def the_run_was_of_another_protocol(run: RunFolder) -> None:
    """Change the protocol in all files that name it, but not in the names of counters."""
    name = "best_effort"
    topology = read_topology(tomllib.loads(run.path("spec/topology.toml").read_text()), "")
    promises = protocol_on(topology, name).promises().as_mapping()
    parameters = json.loads(run.path("manifest.json").read_text())["parameters"]
    digest = topology.digest(name, parameters)
    replaced = {"protocol": name, "promises": promises, "topology_digest": digest}
    _with_digests(
        lambda run: run.replace("spec/workload.toml", '"delta_tree"', f'"{name}"'),
    )(run)
    journal_change(lambda manifest: manifest.update(replaced))(run)
    specified = json.loads(run.path("manifest.json").read_text())["specification_digest"]
    for path in sorted(run.folder.glob("raw/*/*/setting.json")):
        with run.document(path.relative_to(run.folder).as_posix()) as setting:
            setting |= {"protocol": name, "topology_digest": digest}
            setting["specification_digest"] = specified
    renew_digests(run)


def _limit(text: str, *, is_load: bool = False) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        manifest["limited_by"] = manifest["headline"]["limited_by"] = text
        manifest["headline"]["is_load_generator_limit"] = is_load

    return journal_change(change)


for _name, _change, _says in (
    ("a_window", _limit("window of the publishers"), "headline.limited_by"),
    ("an_idle_broker", _limit("broker c1: 99% of a core"), "stats.jsonl disagree on headline"),
    ("a_broker_that_is_none", _limit("broker c9: 99% of a core"), "raw/ disagree on headline"),
    ("a_load_generator", _limit("rate", is_load=True), "is_load_generator_limit"),
):
    _add(f"the_rate_was_limited_by_{_name}", _change, _says)


# --- Clocks and schemas ---------------------------------------------------------------------


def _clocks(**values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.document("manifest.json") as manifest:
            reference = manifest["clock"]["host_id"]
        with run.lines("clock.jsonl") as rows:
            for row in rows:
                if row["host_id"] != reference:
                    row |= {name: value for name, value in values.items() if name != "clock_id"}
                    row["same_clock"], row["clock_id"] = False, f"other/{row['host_id']}"

        def named(manifest: dict[str, Any]) -> None:
            ids = manifest["clock"]["clock_ids"]
            ids |= {host: f"other/{host}" for host in ids if host != reference}

        journal_change(named)(run)

    return change


_add("hosts_of_one_address_have_two_clocks", _clocks(err_ns=500_000), "spec/placement.json")
_add("a_clock_is_less_certain_than_its_trips", _clocks(err_ns=10**12), "err_ns of")
_add(
    "a_trip_took_longer_than_the_run",
    _clocks(err_ns=10**12, rtt_min_ns=2 * 10**12),
    "rtt_min_ns of",
)


@_lie("older schema")
def the_brokers_are_of_an_older_schema(run: RunFolder) -> None:
    with run.lines(_events_of(run, "c1")) as rows:
        for row in rows:
            row.pop("schema", None)


def _strip_witnesses(run: RunFolder) -> None:
    """Convert to a folder of version 1: without the journal's copy and any newer schema."""

    def older(manifest: dict[str, Any]) -> None:
        manifest["schema"] = "pubsubctl/manifest/1"
        for name in ("specification_digest", "promises"):
            manifest.pop(name)

    journal_change(older)(run)
    with run.lines("log.jsonl") as rows:
        del rows[-1]["manifest"]
        rows[:] = [row for row in rows if row["what"] != "specification"]
    with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
        online["schema"] = "pubsubctl/online/1"


_add("the_folder_is_stripped_to_an_older_schema", _strip_witnesses, "disagree on schema")


def _strip_to(version: int) -> Change:
    """Return a change to a folder of an older version, without any newer records."""

    def change(run: RunFolder) -> None:
        with run.lines("log.jsonl") as rows:
            rows[:] = [row for row in rows if row["what"] not in _SINCE_5]
        if version < 4:
            for process in (PUBLISHERS, SUBSCRIBERS):
                run.path(f"raw/{process}/setting.json").unlink()
        for path in sorted(run.folder.glob("raw/*/c?/events.jsonl")):
            with run.lines(path.relative_to(run.folder).as_posix()) as rows:
                if version < 3:
                    rows[:] = [row for row in rows if row["event"] != "fault_counted"]
                for row in rows:
                    row.pop("counters", None)
                    if "schema" in row:
                        row["schema"] = f"pubsubctl/events/{1 + (version > 2)}"
        if version == 1:
            _strip_witnesses(run)
        else:
            _of_manifest(schema=f"pubsubctl/manifest/{version}")(run)

    return change


_SINCE_5 = ("closed", "collected", "processors")
for _version, _says in (
    (1, "a second witness of the manifest"),
    (2, "a second witness of what faults absorbed"),
    (3, "a second witness of the settings"),
    (4, "a second witness of the files"),
):
    _add(f"the_whole_folder_is_of_version_{_version}", _strip_to(_version), _says)


@_lie("of schema None, and folders of this schema lack")
def the_folder_has_no_schema(run: RunFolder) -> None:
    _strip_to(1)(run)
    with run.document("manifest.json") as manifest:
        del manifest["schema"]


@_lie("'pubsubctl/manifest/1', and folders of this schema lack")
def little_but_records_is_left(run: RunFolder) -> None:
    """Remove all files that name processes; only the manifest shows that the run was real."""
    _strip_to(1)(run)
    left = ("*.rec", "*.rec.json", "subscriptions.jsonl")
    for path in sorted(run.folder.glob("raw/*/*/*")):
        if not any(path.match(name) for name in left):
            path.unlink()
    for name in ("spec/cli.json", "spec/placement.json", "spec/inventory.toml", "log.jsonl"):
        run.path(name).unlink()


@_lie("a second witness of")
def only_records_and_a_specification_are_left(run: RunFolder) -> None:
    """Remove every sign of a process, and every mark of a simulator or a test."""
    little_but_records_is_left(run)
    with run.document("manifest.json") as manifest:
        for name in ("deployment_id", "transport", "roles", "headline"):
            manifest.pop(name, None)


@_lie("labels.brokers")
def a_run_says_that_it_was_made_up(run: RunFolder) -> None:
    _of_manifest(labels={"brokers": "made up"})(run)


@_lie("labels.brokers")
def an_older_run_says_that_it_was_made_up(run: RunFolder) -> None:
    _strip_to(1)(run)
    with run.document("manifest.json") as manifest:
        manifest["labels"] = {"brokers": "made up"}


# --- The ends of processes ------------------------------------------------------------------


def renew_digests(run: RunFolder) -> None:
    """Update the digests of all files in the journal."""

    def digest_of(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    with run.lines("log.jsonl") as rows:
        for row in rows:
            if row["what"] == "closed":
                folder = next(run.folder.glob(f"raw/*/{row['process']}"))
                there = {path.name: path for path in folder.iterdir()}
            elif row["what"] == "collected":
                paths = [path for path in run.folder.rglob("*") if path.is_file()]
                there = {path.relative_to(run.folder).as_posix(): path for path in paths}
            else:
                continue
            row["digests"] = {
                name: digest_of(there[name]) for name in row["digests"] if name in there
            }


def _renew(change: Change) -> Change:
    """Return a change that also updates the digests of the changed files in the journal."""

    def both(run: RunFolder) -> None:
        change(run)
        renew_digests(run)

    return both


def _find_subscriptions(run: RunFolder) -> None:
    with run.lines(f"raw/{SUBSCRIBERS}/subscriptions.jsonl") as rows:
        for row in rows:
            row["t_accepted_ns"] -= SECOND // 100


def _reserve(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "intents") as rows:
        rows.all["last"] += 5


def _without_file(name: str) -> Change:
    return lambda run: run.path(name).unlink()


def _about(what: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: row["what"] != what


def _journal_without(keeps: Callable[[dict[str, Any]], bool]) -> Change:
    def change(run: RunFolder) -> None:
        with run.lines("log.jsonl") as rows:
            rows[:] = [row for row in rows if keeps(row)]

    return change


def _use_more(run: RunFolder) -> None:
    with run.document(f"raw/{PUBLISHERS}/exit.json") as told:
        told["usage"]["user_s"] += 900


def _later(by_ns: int) -> Change:
    """Return a change that delays all receipts, in records alone."""

    def change(run: RunFolder) -> None:
        with run.records(SUBSCRIBERS, "deliveries") as rows:
            rows.all["received_ns"] += by_ns

    return change


def _cheap(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["headline"]["broker_cpu_us_per_message_mean"] *= 0.75

    journal_change(change)(run)


def _read_less(run: RunFolder) -> None:
    """Lower the processor time in the journal and the headline, but not at brokers."""
    with run.lines("log.jsonl") as rows:
        for row in rows:
            if row.get("stage") == "ended" and row["what"] == "processors":
                row["seconds"]["c1"] -= 0.1
                seconds = row["seconds"]
            elif row["what"] == "processors":
                before = row["seconds"]

    def change(manifest: dict[str, Any]) -> None:
        headline = manifest["headline"]
        used = [seconds[name] - before[name] for name in seconds]
        phase = next(each for each in manifest["phases"] if each["phase"] == "measure")
        length_s = (phase["t1_ns"] - phase["t0_ns"]) / SECOND
        mean = sum(used) / len(used)
        headline["broker_cpu_us_per_message_mean"] = mean * 1e6 / headline["delivered"]
        headline["broker_core_share_mean"] = mean / length_s

    journal_change(change)(run)


def _add_one(process: str, key: str) -> Change:
    """Return a change that adds one to a counter in a broker's statistics and the headline."""

    def change(run: RunFolder) -> None:
        with run.lines(f"raw/{process}/stats.jsonl") as rows:
            for row in rows:
                row[key] += 1
        journal_change(_more(key))(run)

    return change


def _more(key: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        if key in manifest["headline"]:
            manifest["headline"][key] += 1

    return change


for _name, _change, _says in (
    ("a_subscription_started_earlier", _find_subscriptions, "digest of the closed file"),
    ("more_numbers_were_reserved", _reserve, "digest of the closed file"),
    ("a_load_generator_used_more", _use_more, "exit.json and log.jsonl disagree on the digest of"),
    ("an_output_is_gone", _without_file("raw/local1/c1/stderr.log"), "digest of the collected"),
    ("the_clock_was_compared_longer", _clocks(n=31), "clock.jsonl and log.jsonl disagree on the"),
    ("no_process_closed_its_files", _journal_without(_about("closed")), "line about the files of"),
    ("no_files_were_collected", _journal_without(_about("collected")), "the collected files"),
    ("no_processors_were_read", _journal_without(_about("processors")), "about processor times"),
    ("all_receipts_are_later", _renew(_later(SECOND // 5)), "disagree on delivered up to"),
    ("all_receipts_are_earlier", _renew(_later(-SECOND // 5)), "disagree on delivered up to"),
    ("messages_cost_less", _cheap, "headline.broker_cpu_us_per_message_mean"),
    ("a_broker_used_less", _read_less, "disagree on processor time of c1"),
    ("a_broker_received_more", _renew(_add_one("local2/c2", "publications_received")),
     "disagree on the last publications_received"),
    ("a_broker_forwarded_more", _renew(_add_one("local1/c1", "publications_forwarded")),
     "disagree on the last publications_forwarded"),
    ("more_was_sent_again", _renew(_add_one("local1/c1", "resent_publications")),
     "disagree on the last resent_publications"),
    ("more_arrived_twice", _renew(_add_one("local3/c3", "duplicates_received")),
     "disagree on the last duplicates_received"),
    ("the_drain_was_fixed", journal_change(lambda m: m["phases"][-1].update(how="fixed")),
     "how drain ended"),
):  # fmt: skip
    _add(f"by_the_ends_{_name}", _change, _says)


@_lie("has no line about the last counters")
def a_broker_ended_without_its_counters(run: RunFolder) -> None:
    with run.lines(_events_of(run, "c1")) as rows:
        next(row for row in rows if row["event"] == "run_ended").pop("counters")
    renew_digests(run)


# --- Applications ---------------------------------------------------------------------------


@_lie("kill of c3-sub-1")
def a_process_was_killed_by_no_fault(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        at_ns = manifest["origin_ns"] + SECOND
    line = {"t_ns": at_ns, "client": "c3-sub-1", "moment": "any"}
    run.path(f"raw/{SUBSCRIBERS}/crashes.jsonl").write_text(json.dumps(line) + "\n")


@_lie("disagree on streams")
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


@_lie("deliveries.rec disagree on positions")
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


_add("positions_have_other_columns", _place(_rename_column), "disagree on columns")
_add("the_positions_are_of_each_other", _place(_exchange), "deliveries of positions")
_add("a_delivery_has_two_positions", _place(_repeat), "deliveries of positions")
_add("positions_came_later_than_deliveries", _place(_delay), "deliveries of positions")


def write_databases(run: RunFolder) -> None:
    """Split the subscribers into processes, with databases of received publications."""
    _with_digests(
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
                    )  # fmt: skip
                    database.execute(f"INSERT INTO received VALUES (NULL{', ?' * 11})", values)


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
     "incarnation, sequence, attributes, payload, stream, position, gap_last, gap_reason "
     "FROM received WHERE place = 30", "disagree on deliveries of c1/"),
    ("committed_another_number", "UPDATE received SET sequence = 900 WHERE place = 30",
     "disagree on deliveries of c1/"),
    ("committed_a_gap", "INSERT INTO received VALUES (NULL, 0, 0, 0, 1, 5, NULL, NULL, NULL, NULL, "
     "6, 'expired')", "disagree on gaps of c3-sub-1/1"),
    ("has_no_table", "DROP TABLE received", "disagree on deliveries of c1/"),
):  # fmt: skip
    _add(f"an_application_{_name}", _database(_statement), _says)


@_lie("c3-sub-1.sqlite is missing")
def an_application_left_nothing(run: RunFolder) -> None:
    write_databases(run)
    run.path(f"raw/{SUBSCRIBERS}/c3-sub-1.sqlite").unlink()


@_lie("c3-sub-1.sqlite differs from what was written")
def the_database_of_an_application_is_none(run: RunFolder) -> None:
    write_databases(run)
    run.path(f"raw/{SUBSCRIBERS}/c3-sub-1.sqlite").write_bytes(b"SQLite format 3\0" * 100)


# --- Specifications that were changed with their digests ------------------------------------


def _replace(name: str, old: str, new: str) -> Change:
    return _with_digests(lambda run: run.replace(name, old, new))


for _name, _file, _old, _new in (
    ("order_is_weaker", "workload.toml", 'order = "publisher"', 'order = "none"'),
    ("guarantee_is_weaker", "workload.toml", '"exactly-once"', '"at-least-once"'),
    ("gaps_are_allowed", "workload.toml", "gapless = true", "gapless = false"),
    ("bars_are_lower", "workload.toml", "pair_min = 10", "pair_min = 1"),
    ("drain_may_be_longer", "workload.toml", 'drain = "20s"', 'drain = "90s"'),
    ("lateness_is_unlimited", "workload.toml", '"< 1s"', '"< 20s"'),
    ("run_is_calm", "workload.toml", "calm = false", "calm = true"),
    ("window_is_another", "workload.toml", "window = 16384", "window = 99"),
    ("nothing_must_be_absorbed", "faults.toml", "msgs_min = 2", "msgs_min = 0"),
    ("guard_is_another", "faults.toml", "brokers = 1", "brokers = 2"),
    ("command_line_is_another", "cli.json", '"small.toml"', '"tiny.toml"'),
):
    _add(
        f"the_{_name}_by_the_digest",
        _replace(f"spec/{_file}", _old, _new),
        "setting.json and",
    )


def _other_deployment(run: RunFolder) -> None:
    journal_change(lambda manifest: manifest.update(deployment_id="20260101T000000Z-000000"))(run)


_add("the_run_was_on_another_deployment", _other_deployment, "disagree on deployment_id")


@_lie("disagree on topology_digest")
def the_parameters_are_others_by_the_digest(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["parameters"]["queue_limit"] = 5
        topology = read_topology(tomllib.loads(run.path("spec/topology.toml").read_text()), "")
        digest = topology.digest(manifest["protocol"], manifest["parameters"])
        manifest["topology_digest"] = digest

    journal_change(change)(run)


@_lie("setting.json is missing")
def a_load_generator_left_no_settings(run: RunFolder) -> None:
    run.path(f"raw/{PUBLISHERS}/setting.json").unlink()


@_lie("disagree on schema")
def the_schema_has_no_settings(run: RunFolder) -> None:
    _of_manifest(schema="pubsubctl/manifest/3")(run)


@_lie("disagree on seed")
def a_load_generator_had_another_seed(run: RunFolder) -> None:
    with run.document(f"raw/{SUBSCRIBERS}/setting.json") as setting:
        setting["seed"] += 1


# --- Causes and effects ---------------------------------------------------------------------


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

        _journal(moved)(run)

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
    _add(f"the_{_name}_everywhere", _change, _says)


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
    _add(f"a_broker_{_name}", _change, _says)


@_lie("has no line about the start of c3-sub-1/1")
def a_subscription_never_started(run: RunFolder) -> None:
    run.replace("spec/faults.toml", 'on = "c3"', 'on = "c1"')
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            for row in rows:
                row |= {"target": "c1"} if row.get("target") == "c3" else {}
    with run.lines(_events_of(run, "c3")) as rows:
        rows[:] = [
            row
            for row in rows
            if row["event"] != "subscription_started" or "c3-sub-1" not in row["client"]
        ]


@_lie("end of the sessions of c1-pub-")
def a_client_left_after_its_broker_lost_it(run: RunFolder) -> None:
    _shift_times(f"raw/{PUBLISHERS}/sessions.jsonl", 0.05, event="down")(run)


@_lie("disagree on the end")
def the_drain_lasted_beyond_the_journal(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["phases"][-1]["t1_ns"] += 2 * SECOND

    journal_change(change)(run)


def _life(name: str, by_s: float) -> Change:
    def change(run: RunFolder) -> None:
        with run.document(f"raw/{PUBLISHERS}/exit.json") as told:
            told[name] += round(by_s * SECOND)

    return change


_add("a_load_generator_started_early", _life("t_start_ns", -0.9), "disagree on t_start_ns")
_add("a_load_generator_started_late", _life("t_start_ns", 2), "disagree on t_start_ns")
_add("a_load_generator_ended_late", _life("t_exit_ns", 5), "disagree on t_exit_ns")
_add("the_killed_broker_was_never_reaped", _exit(state="running"), "disagree on state after")


@_lie("disagree on end by")
def the_killed_broker_ended_a_little_later(run: RunFolder) -> None:
    with run.document("raw/local2/c2/exit.json") as told:
        told["t_exit_ns"] += SECOND // 10


@_lie("exit.json disagree on the last line")
def a_broker_ended_before_its_last_line(run: RunFolder) -> None:
    with run.document(f"raw/{PUBLISHERS}/exit.json") as told:
        other = {**told, "process": "c1", "t_exit_ns": told["t_exit_ns"] - SECOND}
    run.path("raw/local1/c1/exit.json").write_text(json.dumps(other))


@_lie("starts of c2")
def a_broker_began_again_without_a_restart(run: RunFolder) -> None:
    def without(run: RunFolder) -> None:
        text = run.path("spec/faults.toml").read_text()
        parts = [part for part in text.split("[[step]]") if 'id = "restart-c2"' not in part]
        run.path("spec/faults.toml").write_text("[[step]]".join(parts))

    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            rows[:] = [row for row in rows if row.get("step") != "restart-c2"]
    without(run)


@_lie("lease of")
def a_lease_ended_the_freeze_everywhere(run: RunFolder) -> None:
    with run.fault(FREEZE) as row:
        row["healed_by"], fault = "lease", row["fault_id"]

    def change(row: dict[str, Any]) -> None:
        if row.get("fault_id") == fault and row.get("healed_by") == "schedule":
            row["healed_by"] = "lease"

    _journal(change)(run)


# --- Counts that do not add up --------------------------------------------------------------


def _statistics(process: str, change: Callable[[list[dict[str, Any]]], None]) -> Change:
    def both(run: RunFolder) -> None:
        with run.lines(f"raw/{process}/stats.jsonl") as rows:
            change(rows)

    return both


def _each(**values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row |= values

    return change


def _acknowledge_late(rows: list[dict[str, Any]]) -> None:
    for row in rows[:-1]:
        row["open"] += row["acknowledged"]
        row["acknowledged"] = 0


for _name, _change, _says in (
    ("some_were_always_open", _each(open=5), "disagree on open at"),
    ("none_was_acknowledged_for_long", _acknowledge_late, "disagree on acknowledged up to"),
    ("publishers_had_no_credit", _each(blocked_us=10**7), "disagree on blocked_us"),
    ("publishers_were_on_time", _each(late_p99_us=0, late_max_us=0), "disagree on late_max_us"),
    ("most_were_later_than_all", _each(late_p99_us=10**5), "disagree on late_p99_us"),
    ("a_second_was_too_late", lambda rows: rows[2].update(saturated=True), "on saturated at"),
):
    _add(f"by_statistics_{_name}", _statistics(PUBLISHERS, _change), _says)


@_lie("deliveries given again to")
def a_delivery_was_given_again_by_a_protocol_that_never_does(run: RunFolder) -> None:
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        rows.all["kind"][5] = 4


def _lane(**steps: int) -> Change:
    def change(run: RunFolder) -> None:
        with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
            for name, step in steps.items():
                online["lanes"][0][name] += step
                online["totals"][name] += step
            totals = dict(online["totals"])
        journal_change(lambda manifest: manifest["headline"].update(online=totals))(run)

    return change


_add("the_online_checker_was_unsure", _lane(unsure=1), "disagree on unsure of")
_add("the_online_checker_saw_a_notice", _lane(withheld=1), "disagree on withheld of")
_add("the_online_checker_owed_less", _lane(owed=-1, delivered=-1), "disagree on delivered of")


@_lie("disagree on the end: 'a traceback'")
def a_process_printed_a_traceback(run: RunFolder) -> None:
    run.path("raw/local1/c1/stderr.log").write_text("Traceback (most recent call last):\n  …\n")


@_lie("disagree on drain.ended_by: 'silence'")
def a_drain_ended_in_silence_that_waited_for_nothing(run: RunFolder) -> None:
    journal_change(lambda manifest: manifest["drain"].update(ended_by="silence"))(run)


@_lie("disagree on length of measure")
def the_measurement_was_a_little_longer(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for phase, key in (("measure", "t1_ns"), ("drain", "t0_ns")):
            next(p for p in manifest["phases"] if p["phase"] == phase)[key] += 500_000

    journal_change(change)(run)
    with run.lines("log.jsonl") as rows:
        next(row for row in rows if row.get("phase") == "drain")["at_ns"] += 500_000


@_lie("how measure ended")
def the_measurement_ended_by_evidence(run: RunFolder) -> None:
    def change(manifest: dict[str, Any]) -> None:
        next(p for p in manifest["phases"] if p["phase"] == "measure")["how"] = "evidence"

    journal_change(change)(run)
