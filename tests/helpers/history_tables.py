"""Synthetic histories as the tables of the Spark check, many histories in one table."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from results.checker.delivery import DELIVERY_COLUMNS, PUBLICATION_COLUMNS, DeliveryCheck
from results.checker.spark import plan_for
from results.checker.verdict_document import decide_verdict
from results.reference.history import History, PublisherLog, SubscriptionLog
from results.rules.expectation import ExpectedContent
from results.rules.facts import RunFacts
from results.rules.findings import Findings
from results.rules.log_doubts import doubts_about_clock, doubts_about_numbers
from results.rules.places import POSITION_COLUMNS
from results.rules.terms import Notice, VerdictName, doubt
from results.tables.logs import Source, Subscription
from results.tables.record_files import RECORDS, RecordFile, Scan
from results.tables.schema import TABLES, arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTCOMES = {0: "unknown", 1: "acked", 2: "rejected"}
KINDS = ("data", "fence", "gap", "notice", "redelivered")


def judge_on_spark(
    spark: "SparkSession", of: Mapping[str, History]
) -> dict[str, tuple[VerdictName, set[str], Findings]]:
    """Return the verdict, all doubts and all findings of each history, from shared Spark jobs."""
    facts = {name: facts_of(name, history) for name, history in of.items()}
    found = {}
    for name, findings in find_on_spark(spark, of, facts).items():
        verdict, _, doubts = decide_verdict(facts[name], findings)
        found[name] = verdict, {*doubts}, findings
    return found


def find_on_spark(
    spark: "SparkSession", of: Mapping[str, History], facts: Mapping[str, RunFacts]
) -> Mapping[str, Findings]:
    """Return the findings of the Spark check in these histories, from shared jobs."""
    publications, deliveries = tables_of(spark, of)
    with plan_for(spark, 0):
        check = DeliveryCheck(
            spark, facts, publications, deliveries, small=True, positions=positions_of(spark, of)
        )
        check.close()
    return check.findings


def facts_of(run_id: str, history: History) -> RunFacts:
    """Return the facts of a history beside its publications and deliveries."""
    return RunFacts(
        run_id=run_id,
        content=expected_content(history),
        sources=[Source(log.source, log.name, log.closed) for log in history.publishers],
        subscriptions=[
            Subscription(
                s.subscription, s.subscriber, s.broker, s.predicate, s.issued_ns, s.accepted_ns,
                s.closed, s.started,
            )
            for s in history.subscriptions
        ],
        links=history.links,
        faults=history.faults,
        guarantee=history.guarantee,
        calm=history.calm,
        deliveries_per_pair_min=history.deliveries_per_pair_min,
        doubts=(*history.doubts, *_doubts_about_logs(history)),
        delta=history.delta,
        newcomers=history.newcomers,
        notices=notices_of(history),
        clock_errors=history.clock_errors,
        timeline_errors=history.timeline_errors,
        measured_until_ns=history.measured_until_ns,
        promises=history.promises,
        gaps=_by_pair(history, "gaps"),
        commits=_by_pair(history, "commits"),
        topic=history.topic,
        topic_counts="sequence" in history.content.workload["attributes"].get(history.topic, {}),
        placed=history.placed,
        busy=history.busy,
        sent_again={log.source: log.sent_again for log in history.publishers if log.sent_again},
    )  # fmt: skip


def expected_content(history: History) -> ExpectedContent:
    """Return the contents as the Spark check computes them."""
    return ExpectedContent.from_workload(history.content.workload, history.content.run_id)


def _doubts_about_logs(history: History) -> Iterator[str]:
    """Yield the doubts that a reader of these logs would report."""
    for log in history.publishers:
        if not log.closed:
            yield doubt("open_log", who=f"publisher {log.name}")
        files = _files_of(log)
        yield from doubts_about_clock(f"publisher {log.name}", files["publications"].scan)
        if log.closed:
            yield from doubts_about_numbers(files)
    for subscription in history.subscriptions:
        if not subscription.started:
            yield doubt("never_started", who=subscription.subscription)
        if not subscription.closed:
            yield doubt("open_log", who=f"subscription {subscription.subscription}")
        who = f"subscription {subscription.subscription}"
        yield from doubts_about_clock(who, _scan_of(subscription))


def _files_of(log: PublisherLog) -> dict[str, RecordFile]:
    published = np.zeros(len(log.published), RECORDS["publications"])
    for place, row in enumerate(log.published):
        published[place]["sequence"] = row.sequence
        published[place]["incarnation"] = row.incarnation
        published[place]["sent_ns"] = row.sent_ns + _LONG_AGO_NS
    acks = np.zeros(len(log.answers), RECORDS["acks"])
    for place, (incarnation, first, last, outcome) in enumerate(log.answers):
        acks[place] = (first, last, 1, 0, incarnation, outcome, b"")
    tables = {"publishers": [log.source]}
    return {
        layout: RecordFile(
            Path("/"), layout, "", "", len(rows), 0, True, "", tables, {}, _scan(layout, rows)
        )
        for layout, rows in (("publications", published), ("acks", acks))
    }


def _scan_of(log: SubscriptionLog) -> Scan:
    rows = np.zeros(len(log.delivered), RECORDS["deliveries"])
    rows["received_ns"] = [row.received_ns + _LONG_AGO_NS for row in log.delivered]
    return _scan("deliveries", rows)


_LONG_AGO_NS = 1 << 50  # stamps of made-up histories may be negative, those of logs are not


def _scan(layout: str, records: Any) -> Scan:
    scan = Scan(layout)
    if len(records):
        scan.add(records)
    if not scan.rising:
        scan.count_again(records)
    return scan


def notices_of(history: History) -> dict[tuple[str, str], list[Notice]]:
    """Return the notices as facts, with places that fit these tables."""
    found: dict[tuple[str, str], list[Notice]] = {}
    for subscription in history.subscriptions:
        for notice in subscription.notices:
            found.setdefault((subscription.subscription, notice.source), []).append(notice)
    return found


def _by_pair(history: History, name: str) -> dict[tuple[str, str], list[Any]]:
    """Return gaps or commits by pair."""
    found: dict[tuple[str, str], list[Any]] = {}
    for subscription in history.subscriptions:
        for said in getattr(subscription, name):
            found.setdefault((subscription.subscription, said.source), []).append(said)
    return found


def tables_of(
    spark: "SparkSession", histories: Mapping[str, History]
) -> tuple["DataFrame", "DataFrame"]:
    """Return the publications and deliveries of all these histories."""
    publications: list[dict[str, Any]] = []
    deliveries: list[dict[str, Any]] = []
    for run_id, history in histories.items():
        content = expected_content(history)
        known = {}
        for log in history.publishers:
            publisher = content.publishers[log.name]
            for row in log.published:
                fence = row.attribute_set == content.fence_set
                chosen, _ = content.choice(publisher.index, *row.key)
                publication = {
                    "run_id": run_id,
                    "pubend": log.source,
                    "incarnation": row.incarnation,
                    "seq": row.sequence,
                    "attrs_ref": row.attribute_set,
                    "attrs_expected": row.attribute_set if fence else chosen,
                    "is_fence": fence,
                    "t_sent_ns": row.sent_ns,
                    "outcome": OUTCOMES[_strongest_answer(log, row.key)],
                    "phase": "measure",
                }
                publications.append(publication)
                digest = content.digest(publisher, *row.key, fence=fence)
                known.setdefault((log.source, *row.key), (publication, digest))
        for subscription in history.subscriptions:
            for place, told in enumerate(subscription.delivered):
                key = (told.source, told.incarnation, told.sequence)
                publication, digest = known.get(key, ({}, None))
                error_ns = history.clock_errors.get((subscription.subscription, told.source), 0)
                deliveries.append(
                    {
                        "run_id": run_id,
                        "sub_id": subscription.subscription,
                        "pubend": told.source,
                        "incarnation": told.incarnation,
                        "seq": told.sequence,
                        "kind": KINDS[told.kind],
                        "layer": "application",
                        "order_idx": place,
                        "t_recv_ns": told.received_ns,
                        "t_sent_ns": publication.get("t_sent_ns"),
                        "lat_err_us": None
                        if error_ns is None
                        else -(-(error_ns + told.late_ns) // 1000),
                        "attrs_expected": publication.get("attrs_expected"),
                        "outcome": publication.get("outcome"),
                        "digest_ok": None if digest is None else digest == told.digest,
                    }
                )
    return (
        _frame(spark, "publications", PUBLICATION_COLUMNS, publications),
        _frame(spark, "deliveries", DELIVERY_COLUMNS, deliveries),
    )


def positions_of(spark: "SparkSession", histories: Mapping[str, History]) -> "DataFrame | None":
    """Return the places of deliveries in streams, or None if no history has any."""
    rows = [
        {
            "run_id": run_id,
            "sub_id": subscription.subscription,
            "stream": told.stream,
            "position": told.position,
            "order_idx": place,
        }
        for run_id, history in histories.items()
        for subscription in history.subscriptions
        for place, told in enumerate(subscription.delivered)
        if told.stream
    ]
    return _frame(spark, "positions", POSITION_COLUMNS, rows) if rows else None


def _strongest_answer(log: PublisherLog, key: tuple[int, int]) -> int:
    given = [
        outcome
        for incarnation, first, last, outcome in log.answers
        if incarnation == key[0] and first <= key[1] <= last
    ]
    return min(given, default=0)


def _frame(
    spark: "SparkSession", table: str, names: tuple[str, ...], rows: list[dict[str, Any]]
) -> "DataFrame":
    types = {column.name: column.type for column in TABLES[table].columns}
    columns = {
        name: pa.array([row[name] for row in rows], arrow_type(types[name])) for name in names
    }
    return spark.createDataFrame(pa.table(columns), ", ".join(f"{n} {types[n]}" for n in names))
