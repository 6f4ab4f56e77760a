"""Made-up histories as the tables that the Spark check reads, many histories in one table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from results.delivery import DELIVERY_COLUMNS, PUBLICATION_COLUMNS
from results.facts import RunFacts
from results.logs import Source, Subscription
from results.reference_check import History
from results.schema import TABLES, arrow_type
from results.withheld import Notice
from tests.helpers.histories import outcome_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTCOMES = {0: "unknown", 1: "acked", 2: "rejected"}
KINDS = ("data", "fence", "gap")


def facts_of(run_id: str, history: History) -> RunFacts:
    """What a history says beside its publications and deliveries."""
    return RunFacts(
        run_id=run_id,
        content=history.content,
        sources=[Source(log.source, log.name, log.closed) for log in history.publishers],
        subscriptions=[
            Subscription(
                s.subscription, s.subscription, s.broker, s.predicate, s.issued_ns, 1, s.closed
            )
            for s in history.subscriptions
        ],
        links=history.links,
        faults=history.faults,
        guarantee=history.guarantee,
        calm=history.calm,
        deliveries_per_pair_min=history.deliveries_per_pair_min,
        doubts=history.doubts,
        delta=history.delta,
        newcomers=history.newcomers,
        notices=_notices_of(history),
    )  # fmt: skip


def _notices_of(history: History) -> dict[tuple[str, str], list[Notice]]:
    found: dict[tuple[str, str], list[Notice]] = {}
    for subscription in history.subscriptions:
        for notice in subscription.notices:
            found.setdefault((subscription.subscription, notice.source), []).append(notice)
    return found


def tables_of(
    spark: "SparkSession", histories: Mapping[str, History]
) -> tuple["DataFrame", "DataFrame"]:
    """Publications and deliveries of all these histories."""
    publications: list[dict[str, Any]] = []
    deliveries: list[dict[str, Any]] = []
    for run_id, history in histories.items():
        known = {}
        for log in history.publishers:
            for row in log.published:
                fence = row.attribute_set == history.content.fence_set
                index = history.content.publishers[log.name].index
                expected = (
                    row.attribute_set if fence else history.content.choice(index, *row.key)[0]
                )
                publication = {
                    "run_id": run_id,
                    "pubend": log.source,
                    "incarnation": row.incarnation,
                    "seq": row.sequence,
                    "attrs_ref": row.attribute_set,
                    "attrs_expected": expected,
                    "is_fence": fence,
                    "t_sent_ns": row.sent_ns,
                    "outcome": OUTCOMES[outcome_of(log, row)],
                    "phase": "measure",
                }
                publications.append(publication)
                publisher = history.content.publishers[log.name]
                digest = history.content.digest(publisher, *row.key, fence=fence)
                known[log.source, *row.key] = publication, digest
        for subscription in history.subscriptions:
            for place, told in enumerate(subscription.delivered):
                key = (told.source, told.incarnation, told.sequence)
                publication, digest = known.get(key, ({}, None))
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
                        "attrs_expected": publication.get("attrs_expected"),
                        "outcome": publication.get("outcome"),
                        "digest_ok": None if digest is None else digest == told.digest,
                    }
                )
    return (
        _frame(spark, "publications", PUBLICATION_COLUMNS, publications),
        _frame(spark, "deliveries", DELIVERY_COLUMNS, deliveries),
    )


def _frame(
    spark: "SparkSession", table: str, names: tuple[str, ...], rows: list[dict[str, Any]]
) -> "DataFrame":
    types = {column.name: column.type for column in TABLES[table].columns}
    columns = {
        name: pa.array([row[name] for row in rows], arrow_type(types[name])) for name in names
    }
    return spark.createDataFrame(pa.table(columns), ", ".join(f"{n} {types[n]}" for n in names))
