"""Lies about faults: the fault log, its journal, the plan and the schedule."""

import json
from typing import Any

from tests.helpers.false_witnesses.lies import (
    ABSORB,
    AWAY,
    FREEZE,
    KILL,
    RESTART,
    SECOND,
    Change,
    add_lie,
    events_of,
    in_fault_journals,
    register_lie,
    with_digests,
)
from tests.helpers.forged_folders import RunFolder

# --- Faults --------------------------------------------------------------------------------------


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
        add_lie(f"{_name}_was_{_stage}_earlier", _shift(_number, _stage, -0.2), "faults/log.jsonl")


def _row(number: int, **values: Any) -> Change:
    def change(run: RunFolder) -> None:
        with run.fault(number) as row:
            row |= values

    return change


add_lie("more_was_absorbed", _row(ABSORB, absorbed_msgs=500), "absorbed_msgs")

add_lie("more_bytes_were_absorbed", _row(ABSORB, absorbed_bytes=50_000), "absorbed_bytes")

add_lie("the_kill_was_another_signal", _row(KILL, params={"signal": "TERM"}), "params")

add_lie("a_lease_ended_the_freeze", _row(FREEZE, healed_by="lease"), "healed_by")

add_lie("the_freeze_was_of_another_broker", _row(FREEZE, target="c1"), "freeze-c3")

add_lie("the_kill_was_a_freeze", _row(KILL, verb="freeze"), "kill-c2")

add_lie("the_kill_has_no_evidence", _row(KILL, evidence="{}"), "evidence")

add_lie("the_restart_is_only_applied", _row(RESTART, state="applied"), "state")


@register_lie("only the first has")
def a_fault_is_in_no_fault_log(run: RunFolder) -> None:
    for name in ("faults/faults.jsonl", "faults/plan.jsonl"):
        with run.lines(name) as rows:
            del rows[FREEZE]


@register_lie("exit.json")
def the_kill_is_nowhere_but_at_its_broker(run: RunFolder) -> None:
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            rows[:] = [row for row in rows if row.get("step") not in ("kill-c2", "restart-c2")]
    text = run.path("spec/faults.toml").read_text()
    ids = ('id = "kill-c2"', 'id = "restart-c2"')
    parts = [part for part in text.split("[[step]]") if not any(each in part for each in ids)]
    run.path("spec/faults.toml").write_text("[[step]]".join(parts))


@register_lie("faults/log.jsonl")
def the_fault_journal_is_gone(run: RunFolder) -> None:
    run.path("faults/log.jsonl").unlink()


@register_lie("log.jsonl")
def a_stage_is_not_in_the_journal(run: RunFolder) -> None:
    with run.lines("log.jsonl") as rows:
        del rows[next(n for n, row in enumerate(rows) if row.get("stage") == "healed")]


@register_lie("spec/faults.toml")
def the_schedule_has_a_step_more(run: RunFolder) -> None:
    step = '\n[[step]]\nid = "more"\ndo = "cut"\non = "c1-c2"\nat = "1s"\nfor = "1s"\n'
    run.path("spec/faults.toml").write_text(run.path("spec/faults.toml").read_text() + step)


@register_lie("spec/faults.toml")
def the_schedule_freezes_for_longer(run: RunFolder) -> None:
    run.replace("spec/faults.toml", '"1.2s"', '"2.2s"')


@register_lie("faults/plan.jsonl")
def the_plan_is_of_another_time(run: RunFolder) -> None:
    with run.lines("faults/plan.jsonl") as rows:
        rows[FREEZE]["at_ns"] += SECOND


# --- Two files that tell the same lie ------------------------------------------------------------


@register_lie("absorbed_msgs of")
def more_was_absorbed_in_all_fault_logs(run: RunFolder) -> None:
    def more(row: dict[str, Any]) -> None:
        if (row.get("evidence") or {}).get("absorbed_publications") is not None:
            row["evidence"]["absorbed_publications"] += 500

    in_fault_journals(more)(run)
    with run.fault(ABSORB) as row:
        row["absorbed_msgs"] += 500
        evidence = json.loads(row["evidence"])
        evidence["absorbed_publications"] += 500
        row["evidence"] = json.dumps(evidence)


@register_lie("no line about absorbed_msgs of")
def no_broker_has_what_was_absorbed(run: RunFolder) -> None:
    with run.lines(events_of(run, "c2")) as rows:
        rows[:] = [row for row in rows if row["event"] != "fault_counted"]


@register_lie("end of a session of c3-sub-2")
def a_disconnect_is_nowhere_but_at_its_client(run: RunFolder) -> None:
    for name in ("faults/faults.jsonl", "faults/plan.jsonl", "faults/log.jsonl", "log.jsonl"):
        with run.lines(name) as rows:
            rows[:] = [row for row in rows if row.get("step") != "away"]

    def without(run: RunFolder) -> None:
        text = run.path("spec/faults.toml").read_text()
        parts = [part for part in text.split("[[step]]") if 'id = "away"' not in part]
        run.path("spec/faults.toml").write_text("[[step]]".join(parts))

    with_digests(without)(run)
