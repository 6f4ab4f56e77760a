"""Lies in records of publications, acknowledgements and deliveries."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.helpers.false_witnesses.lies import (
    AWAY,
    FREEZE,
    PUBLISHERS,
    SECOND,
    SUBSCRIBERS,
    Change,
    add_lie,
    register_lie,
    renew_digests,
)
from tests.helpers.forged_folders import RunFolder

# --- Sources and fences --------------------------------------------------------------------------


def _fence_set(rows: Any) -> int:
    return len(rows.sidecar["tables"]["attribute_sets"]) - 1


def _log_as_fence(run: RunFolder, number: int) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        mask = rows.of(publisher=0, sequence=number)
        rows.all["attribute_set"][mask] = _fence_set(rows)


@register_lie("the fences of source")
def the_opening_fence_is_logged_later(run: RunFolder) -> None:
    _log_as_fence(run, 20)
    with run.records(PUBLISHERS, "publications") as rows:
        rows.all["attribute_set"][rows.of(publisher=0, sequence=1)] = 0


@register_lie("the fences of source")
def the_closing_fence_is_logged_earlier(run: RunFolder) -> None:
    _log_as_fence(run, 30)


@register_lie("the fences of source")
def a_fence_is_missing(run: RunFolder) -> None:
    with run.records(PUBLISHERS, "publications") as rows:
        fences = rows.places(publisher=1, attribute_set=_fence_set(rows))
        rows.all["attribute_set"][fences[-1]] = 0


@register_lie("began incarnation")
def a_source_has_a_second_incarnation(run: RunFolder) -> None:
    for layout, number in (("publications", "sequence"), ("acks", "first")):
        with run.records(PUBLISHERS, layout) as rows:
            mask = rows.of(publisher=0) & (rows.all[number] > 40)
            rows.all["incarnation"][mask] += 1
            for column in ("sequence", "first", "last"):
                if column in rows.all.dtype.names:
                    rows.all[column][mask] -= 40


def _in_records(process: str, layout: str, change: Callable[[Any], None]) -> Change:
    def both(run: RunFolder) -> None:
        with run.records(process, layout) as rows:
            change(rows)
        renew_digests(run)

    return both


def _shift_fence(rows: Any) -> None:
    rows.all["intended_ns"][rows.all["attribute_set"] == _fence_set(rows)] -= 5 * SECOND


def _name_partition(rows: Any) -> None:
    rows.sidecar["tables"]["partitions"] = [
        {"detector": "c3", "incarnation": 1, "number": number, "nodes": ["c2"]} for number in (1, 2)
    ]
    rows.all["partition"][5] = 1


def _reserve_less(rows: Any) -> None:
    rows.all["last"][0] -= 1


for _name, _change, _says in (
    ("a_fence_was_meant_for_earlier", _in_records(PUBLISHERS, "publications", _shift_fence),
     "fences with another intended time"),
    ("a_delivery_names_a_partition", _in_records(SUBSCRIBERS, "deliveries", _name_partition),
     "deliveries that name a partition"),
    ("fewer_numbers_than_a_block_were_reserved", _in_records(
        PUBLISHERS, "intents", _reserve_less), "reservations of less than a block"),
    ("numbers_were_reserved_twice", _in_records(
        PUBLISHERS, "intents", lambda rows: rows.insert(1, rows.all[0])),
     "reservations of less than a block"),
):  # fmt: skip
    add_lie(_name, _change, _says)

# --- Passage -------------------------------------------------------------------------------------


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


@register_lie("let nothing pass")
def a_frozen_broker_delivers(run: RunFolder) -> None:
    for subscription in (0, 1):
        _arrive_at_once(run, subscription, FREEZE)


@register_lie("let nothing pass")
def an_absent_subscriber_receives(run: RunFolder) -> None:
    with run.records(SUBSCRIBERS, "deliveries") as rows:
        names = rows.sidecar["tables"]["subscriptions"]
    _arrive_at_once(run, names.index("c3-sub-2/1"), AWAY)


@register_lie("acknowledgements are from a broker")
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
