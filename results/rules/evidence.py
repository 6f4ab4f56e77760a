"""The earliest violations of each kind, with all known context.

The context of a publication with a violation at a subscription: the times at which the publication
was intended, sent and acknowledged, the content, the other receivers, the subscription's deliveries
before and after, the path, and the active faults on the path at the time.
"""

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from results.checker.delivery import DeliveryCheck
from results.rules.facts import RunFacts
from results.rules.fault_log import FaultSpan, fault_spans
from results.rules.risks import Tree, client_part
from results.rules.terms import NEVER_NS, VIOLATIONS
from results.tables.frames import SEQUENCE_BITS
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
PUBLICATION = ("pubend", "incarnation", "seq")


def evidence_rows(
    spark: "SparkSession",
    loaded: LoadedRun,
    facts: RunFacts,
    check: DeliveryCheck,
    per_kind: int,
) -> list[Row]:
    """Return the earliest `per_kind` violations of each kind, in order of time within a kind."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if check.violations is None or not check.findings[facts.run_id].violations:
        return []
    order = ("t_ns", "pubend", "incarnation", "seq", "sub_id", "order_idx")
    earliest = Window.partitionBy("kind").orderBy(*order)
    violations = (
        check.violations.where(F.col("run_id") == facts.run_id)
        .withColumn("nth", F.row_number().over(earliest))
        .where(F.col("nth") <= per_kind)
        .toArrow()
        .to_pylist()
    )
    kinds = [*VIOLATIONS]
    violations.sort(key=lambda row: (kinds.index(row["kind"]), row["nth"]))
    context = _Context(spark, loaded, facts, violations)
    return [context.explain(row) for row in violations]


class _Context:
    """The context of some violations."""

    def __init__(
        self, spark: "SparkSession", loaded: LoadedRun, facts: RunFacts, violations: list[Row]
    ) -> None:
        from pyspark.sql import functions as F

        self._facts = facts
        self._tree = Tree(facts.links)
        self._spans = fault_spans(loaded.run.fault_rows, NEVER_NS)
        self._clients = {s.sub_id: s.subscriber for s in facts.subscriptions}
        self._brokers = {s.sub_id: s.broker for s in facts.subscriptions}
        self._predicates = {s.sub_id: s.predicate for s in facts.subscriptions}
        # Spark reads only the row groups that may contain these few literals.
        sources = [*dict.fromkeys(row["pubend"] for row in violations)]
        numbers = [*dict.fromkeys(row["seq"] for row in violations)]
        wanted = F.col("pubend").isin(sources) & F.col("seq").isin(numbers)
        sent = loaded.table(spark, "publications").where(wanted).toArrow().to_pylist()
        rows = loaded.table(spark, "deliveries").where(wanted).toArrow().to_pylist()
        self._sent = {tuple(row[name] for name in PUBLICATION): row for row in sent}
        self._announced: dict[Any, list[Row]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row["t_recv_ns"], row["sub_id"])):
            self._announced[tuple(row[name] for name in PUBLICATION)].append(row)
        self._neighbours = _neighbours(spark, loaded, violations)

    def explain(self, violation: Row) -> Row:
        """Return a line of evidence."""
        publication = tuple(violation[name] for name in PUBLICATION)
        sent = self._sent.get(publication)
        sub_id = violation["sub_id"]
        announced = self._announced[publication]
        start = violation["pubend"].rpartition("/")[0]
        way = self._tree.path(start, self._brokers.get(sub_id, start))
        before, after = self._neighbours.get((sub_id, *publication), (None, None))
        return {
            "kind": violation["kind"],
            "meaning": VIOLATIONS[violation["kind"]],
            "subscription": sub_id,
            "predicate": self._predicates.get(sub_id),
            "source": violation["pubend"],
            "incarnation": violation["incarnation"],
            "sequence": violation["seq"],
            "t_ns": violation["t_ns"],
            "place_in_log": violation["order_idx"],
            "publication": None if sent is None else self._life(sent),
            "received_here": [r["t_recv_ns"] for r in announced if r["sub_id"] == sub_id],
            "received_by_others": {
                r["sub_id"]: r["t_recv_ns"] for r in announced if r["sub_id"] != sub_id
            },
            "received_before": before,
            "received_after": after,
            "path": [*way],
            "active_faults": [
                f"{span.verb} {span.target}"
                for span in self._find_active(violation["t_ns"], way, self._clients.get(sub_id, ""))
            ],
            "again": f"pubsubctl check {self._facts.run_id}",
        }

    def _life(self, sent: Row) -> Row:
        names = ("publisher", "t_intended_ns", "t_sent_ns", "t_acked_ns", "outcome", "phase")
        attributes = self._facts.content.attributes(sent["attrs_expected"])
        return {**{name: sent[name] for name in names}, "attributes": dict(attributes)}

    def _find_active(self, t_ns: int | None, way: tuple[str, ...], client: str) -> list[FaultSpan]:
        """Return the active faults on a path, or of the client at its end, at a time."""
        return [
            span
            for span in self._spans
            if t_ns is not None
            and span.from_ns <= t_ns <= span.to_ns
            and way
            and (
                client_part(client) in span.parts or self._tree.passes(span.parts, way[0], way[-1])
            )
        ]


def _neighbours(
    spark: "SparkSession", loaded: LoadedRun, violations: list[Row]
) -> dict[Any, tuple[int | None, int | None]]:
    """Return the nearest lower and higher number that the subscription received, by violation."""
    from pyspark.sql import functions as F

    keys = {
        (row["sub_id"], row["pubend"], row["incarnation"], row["seq"])
        for row in violations
        if row["incarnation"] < 1 << 16 and 0 <= row["seq"] < 1 << SEQUENCE_BITS
    }
    if not keys:
        return {}
    ddl = "sub_id STRING, pubend STRING, incarnation INT, wrong BIGINT"
    wanted = F.broadcast(spark.createDataFrame(sorted(keys), ddl))
    rows = (
        loaded.table(spark, "deliveries")
        .where((F.col("layer") == "application") & F.col("outcome").isNotNull())
        .join(wanted, ["sub_id", "pubend", "incarnation"])
        .groupBy("sub_id", "pubend", "incarnation", "wrong")
        .agg(
            F.max(F.when(F.col("seq") < F.col("wrong"), F.col("seq"))).alias("before"),
            F.min(F.when(F.col("seq") > F.col("wrong"), F.col("seq"))).alias("after"),
        )
        .toArrow()
        .to_pylist()
    )
    return {
        (row["sub_id"], row["pubend"], row["incarnation"], row["wrong"]): (
            row["before"],
            row["after"],
        )
        for row in rows
    }
