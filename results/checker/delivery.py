"""The delivery check on Spark: the rank rule for many runs at once, without moving bulk data.

A subscription that received from a source only owed publications, in rising order, and as many as
were owed, received exactly the owed publications. So the usual pair of subscription and source
needs no rank and no join with its publications: one pass over deliveries in log order and one count
suffice. Only pairs that fail this test are examined publication by publication, and every wrong row
is its own evidence.

This module decides no verdict; `results.checker.checks` does.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from results.rules.announcements import Announcements, StreamLosses
from results.rules.exposure import look_at_risks
from results.rules.facts import RunFacts
from results.rules.findings import Findings, PairSummary, SourceSummary
from results.rules.lookups import Lookups
from results.rules.pairs import BadPair, Names, Pair, Span, Walked, join_counts, pairs_of
from results.rules.places import Places
from results.rules.promises import LANE, REDELIVERED, PromisedDeliveries
from results.rules.violations import BadWalks, find_reused_numbers, objections
from results.tables.frames import (
    FIRST_KEY,
    LAST_KEY,
    PAIR,
    PUBLICATION,
    key_column,
    make_owed_column,
    small_frame,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PUBLICATION_COLUMNS = (
    "run_id", "pubend", "incarnation", "seq", "attrs_ref", "attrs_expected", "is_fence",
    "t_sent_ns", "outcome", "phase",
)  # fmt: skip
DELIVERY_COLUMNS = (
    "run_id", "sub_id", "pubend", "incarnation", "seq", "kind", "layer", "order_idx", "t_recv_ns",
    "t_sent_ns", "lat_err_us", "attrs_expected", "outcome", "digest_ok",
)  # fmt: skip

# One pair's deliveries are walked in parallel stretches of 2 ** STRETCH_BITS places.
STRETCH_BITS = 20


class DeliveryCheck:
    """The check of some runs; `findings` are complete, and `violations` can be read.

    Args:
        facts: facts of every run in the tables, by run id.
        publications: table with PUBLICATION_COLUMNS.
        deliveries: table with DELIVERY_COLUMNS.
        small: the tables fit into memory easily.
        positions: table with POSITION_COLUMNS, of the runs with places; None without places.

    Attributes:
        findings: findings by run id.
        violations: one row per violation: run_id, kind, sub_id, pubend, incarnation, seq,
            order_idx, t_ns, owed. None without violations.
    """

    def __init__(
        self,
        spark: "SparkSession",
        facts: Mapping[str, RunFacts],
        publications: "DataFrame",
        deliveries: "DataFrame",
        *,
        small: bool = False,
        positions: "DataFrame | None" = None,
    ) -> None:
        from pyspark.sql import functions as F

        self._spark = spark
        self._facts = facts
        self._is_small = small
        self._lookups = Lookups(spark, facts)
        self.findings = {run_id: Findings() for run_id in facts}
        self._kept: list[DataFrame] = []
        self._may_be_undone = False
        self._arrived_in_spite: dict[Names, int] = {}
        self._redelivered: dict[Names, tuple[int, int]] = {}
        self._promised = PromisedDeliveries(spark, facts)
        matches = self._lookups.matches
        self._matches = matches if self._lookups.has_computed else self._keep(matches)
        # In a large run, a second read costs less than keeping the rows.
        keep = self._keep if small else (lambda frame: frame)
        judged = keep(self._judge(deliveries))
        self._publications = keep(self._with_fate(publications, judged))
        self._summarise_sources()
        pairs = self._walk(judged)
        first_places = {names: row["first_place"] for names, row in pairs.items()}
        lost = StreamLosses(facts).list_by_pair(spark, self._publications)
        self._announced = Announcements(spark, facts, first_places, lost)
        self._wanted = self._publications.join(
            F.broadcast(self._matches), ["run_id", "attrs_expected"]
        )
        self._find_missed()
        counted = self._count_spans(pairs)
        self._places = Places(spark, facts, judged, positions)
        for run_id, sub_id, n in self._places.find_unplaced():
            self.findings[run_id].unplaced[sub_id] = n
        bad = self._compare(pairs, counted)
        self._has_objections = any(row["objections"] for row in pairs.values())
        self.violations = self._explain(judged, bad)
        self._count_violations(bad)
        look_at_risks(
            spark,
            facts,
            self.findings,
            self._wanted,
            judged,
            self._fence_table(),
            self._announced,
            self._keep,
        )

    def close(self) -> None:
        """Release the kept tables; `violations` cannot be read afterwards."""
        for frame in self._kept:
            frame.unpersist()

    def _keep(self, frame: "DataFrame") -> "DataFrame":
        """Return the same rows, computed once; a checkpoint also drops the plan."""
        self._kept.append(frame.localCheckpoint() if self._is_small else frame.persist())
        return self._kept[-1]

    # --- Single rows --------------------------------------------------------------------------

    def _judge(self, deliveries: "DataFrame") -> "DataFrame":
        """Return deliveries to applications with violations of single rows."""
        from pyspark.sql import functions as F

        rows = (
            deliveries.where(F.col("layer") == "application")
            .join(F.broadcast(self._lookups.subscriptions), ["run_id", "sub_id"])
            .join(F.broadcast(self._lookups.sources), ["run_id", "pubend"], "left")
            .join(
                F.broadcast(self._matches),
                ["run_id", "predicate_id", "attrs_expected"],
                "left",
            )
        )
        if self._lookups.topics is not None:
            topics = F.broadcast(self._lookups.topics)
            rows = rows.join(topics, ["run_id", "attrs_expected"], "left")
        published = F.col("outcome").isNotNull()
        objection = (
            F.when(
                F.col("source_closed").isNull(),
                F.when(F.col("all_closed"), F.lit("phantom")),
            )
            .when(F.col("kind") == "gap", F.lit("gap_not_permitted"))
            .when(~published, F.when(F.col("source_closed"), F.lit("phantom")))
            .when(F.col("outcome") == "rejected", F.lit("rejected"))
            .when(F.col("matches_fence").isNull(), F.lit("wrong_match"))
            .when(~F.col("digest_ok"), F.lit("corrupted"))
        )
        wanted = published & F.col("matches_fence").isNotNull() & (F.col("outcome") != "rejected")
        is_delivery = published & (F.col("kind") != "gap")
        is_fence = F.col("attrs_expected") == F.col("fence_set")
        # Without a comparison of clocks, the earliest time is unknown.
        earliest_ns = F.col("t_sent_ns") - 1000 * F.col("lat_err_us")
        return rows.select(
            *PAIR,
            "predicate_id",
            "incarnation",
            "seq",
            "order_idx",
            "t_recv_ns",
            "outcome",
            "kind",
            objection.alias("objection"),
            (wanted & (F.col("kind") != "gap")).alias("is_wanted"),
            "matches_fence",
            (
                is_delivery
                & (F.col("kind") != REDELIVERED)
                & ((F.col("kind") == "fence") != is_fence)
            ).alias("is_of_other_kind"),
            (is_delivery & (F.col("t_recv_ns") < earliest_ns)).alias("came_too_soon"),
            _lane(self._lookups.topics).alias(LANE),
            key_column().alias("key"),
        )

    def _with_fate(self, publications: "DataFrame", judged: "DataFrame") -> "DataFrame":
        """Return publications that happened: acknowledged, or of unknown fate and received."""
        from pyspark.sql import functions as F

        rows = publications.select(*PUBLICATION_COLUMNS)
        self._reused = None
        if not all(facts.numbers_used_once for facts in self._facts.values()):
            others = [name for name in PUBLICATION_COLUMNS if name not in PUBLICATION]
            rows = rows.groupBy(*PUBLICATION).agg(
                F.count("*").alias("times"), *[F.min(name).alias(name) for name in others]
            )
            self._reused = rows.where("times > 1")
        seen = (
            judged.where(
                (F.col("outcome") == "unknown")
                & ~F.col("objection").eqNullSafe("gap_not_permitted")
            )
            .groupBy(*PUBLICATION)
            .agg(F.lit(True).alias("seen"))
        )
        happened = (F.col("outcome") == "acked") | F.col("seen")
        return (
            rows.join(seen, [*PUBLICATION], "left")
            .withColumn("happened", F.coalesce(happened, F.lit(False)))
            .withColumn("key", key_column())
        )

    # --- Sources and pairs ------------------------------------------------------------------

    def _summarise_sources(self) -> None:
        from pyspark.sql import functions as F

        fence = F.when(F.col("is_fence") & F.col("happened"), F.col("key"))
        measured = ~F.col("is_fence") & (F.col("phase") == "measure")
        rows = self._publications.groupBy("run_id", "pubend").agg(
            F.min(fence).alias("opening"),
            F.max(fence).alias("closing"),
            F.count_if(measured).alias("measured"),
            F.count_if(F.col("attrs_ref") != F.col("attrs_expected")).alias("other_content"),
            F.min_by("t_sent_ns", fence).alias("opened_ns"),
            F.max_by("t_sent_ns", fence).alias("closed_ns"),
            F.count_if(~F.col("is_fence") & ~F.col("happened")).alias("not_happened"),
        )
        for row in rows.toArrow().to_pylist():
            self._may_be_undone |= bool(row["not_happened"])
            both = row["opening"] is not None and row["opening"] < row["closing"]
            self.findings[row["run_id"]].sources[row["pubend"]] = SourceSummary(
                row["opening"] if both else None,
                row["closing"] if both else None,
                row["measured"],
                row["other_content"],
                row["opened_ns"] if both else None,
                row["closed_ns"] if both else None,
            )
        for run_id, facts in self._facts.items():
            for source in facts.sources:  # a source without publications has no rows
                self.findings[run_id].sources.setdefault(
                    source.pubend, SourceSummary(None, None, 0, 0)
                )

    def _find_missed(self) -> None:
        """Record matching publications that never happened before later publications.

        A client completes its publications in their order; only at its end may the last
        publications stay incomplete.
        """
        from pyspark.sql import functions as F

        if not self._may_be_undone:
            return
        of_incarnation = ["run_id", "pubend", "incarnation"]
        last_done = (
            self._publications.where("happened")
            .groupBy(*of_incarnation)
            .agg(F.max("seq").alias("last_done"))
        )
        rows = (
            self._wanted.where(~F.col("happened") & ~F.col("is_fence") & ~F.col("matches_fence"))
            .join(F.broadcast(self._lookups.started), ["run_id", "predicate_id"])
            .join(F.broadcast(self._fence_table()), ["run_id", "pubend"])
            .join(last_done, of_incarnation)
            .where(make_owed_column() & (F.col("seq") < F.col("last_done")))
            .groupBy(*of_incarnation)
            .agg(F.count_distinct("seq").alias("n"), F.min("seq").alias("first"))
        )
        found = sorted(rows.toArrow().to_pylist(), key=lambda row: row["incarnation"])
        for row in found:
            sources = self.findings[row["run_id"]].sources
            source = sources[row["pubend"]]
            undone = {**source.undone, row["incarnation"]: (row["n"], row["first"])}
            sources[row["pubend"]] = replace(source, undone=undone)

    def _walk(self, judged: "DataFrame") -> dict[Names, Walked]:
        """Walk through each pair's deliveries in the order of its log."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        fences = F.broadcast(self._fence_table())
        rows = judged.join(fences, ["run_id", "pubend"], "left").withColumn(
            "stretch", F.shiftright("order_idx", STRETCH_BITS)
        )
        in_order = Window.partitionBy(*PAIR, "stretch", "is_wanted").orderBy("order_idx")
        wanted_key = F.when(F.col("is_wanted"), F.col("key"))
        is_owed = F.col("is_wanted") & ~F.col("matches_fence") & make_owed_column()
        stretches = (
            rows.withColumn("before", F.lag("key").over(in_order))
            .groupBy(*PAIR, "stretch")
            .agg(
                F.count_if("is_wanted").alias("walked"),
                F.count_if(F.col("is_wanted") & (F.col("before") >= F.col("key"))).alias("back"),
                F.count_if(F.col("objection").isNotNull()).alias("objections"),
                F.count("*").alias("received"),
                F.count_if(is_owed).alias("delivered"),
                F.count_if("is_of_other_kind").alias("other_kind"),
                F.count_if("came_too_soon").alias("too_soon"),
                F.min(wanted_key).alias("lowest"),
                F.max(wanted_key).alias("highest"),
                F.min_by("key", F.when(F.col("is_wanted"), F.col("order_idx"))).alias("first"),
                F.max_by("key", F.when(F.col("is_wanted"), F.col("order_idx"))).alias("last"),
                F.min(F.when(F.col("is_wanted"), F.col("order_idx"))).alias("first_place"),
                F.min("seq").alias("first_seq"),
                F.max("seq").alias("last_seq"),
                F.min("t_recv_ns").alias("first_ns"),
                F.max("t_recv_ns").alias("last_ns"),
                F.bit_xor(F.xxhash64("incarnation", "seq")).alias("xor_hash"),
            )
        )
        pairs: dict[Names, Walked] = {}
        ordered = sorted(stretches.toArrow().to_pylist(), key=lambda row: row["stretch"])
        for row in ordered:
            pair = row["run_id"], row["sub_id"], row["pubend"]
            pairs[pair] = join_counts(pairs[pair], row) if pair in pairs else row
            self.findings[row["run_id"]].other_kind += row["other_kind"]
            self.findings[row["run_id"]].too_soon += row["too_soon"]
        return pairs

    def _fence_table(self) -> "DataFrame":
        """Return the keys of the first and last data publication that may be owed, by source."""
        rows = []
        for run_id, findings in self.findings.items():
            for pubend, source in findings.sources.items():
                opening = FIRST_KEY - 1 if source.opening is None else source.opening
                closing = LAST_KEY if source.closing is None else source.closing
                rows.append((run_id, pubend, opening + 1, closing - 1))
        return small_frame(
            self._spark,
            rows,
            "run_id STRING, pubend STRING, after_opening BIGINT, before_closing BIGINT",
        )

    def _count_spans(self, walked: Mapping[Names, Walked]) -> dict[Span, tuple[int, int]]:
        """Count the publications that match each predicate in each relevant span of keys.

        Most pairs share spans: from the opening fence to the closing fence.
        """
        from pyspark.sql import functions as F

        spans: dict[Span, None] = {}
        for run_id, facts in self._facts.items():
            for pair in pairs_of(facts, self.findings[run_id].sources):
                whole, owed = (
                    pair.span_to_walk(walked.get(pair.names, {})),
                    pair.compute_owed_span(),
                )
                spans[whole] = None
                spans[owed] = None
                for announced in self._announced.of(pair.names):
                    spans[announced.within(whole)] = None
                    spans[announced.within(owed)] = None
        ddl = "run_id STRING, predicate_id INT, pubend STRING, first BIGINT, last BIGINT"
        table = small_frame(self._spark, [span for span in spans if span[3] <= span[4]], ddl)
        rows = (
            self._wanted.where("happened")
            .join(F.broadcast(table), ["run_id", "predicate_id", "pubend"])
            .where(F.col("key").between(F.col("first"), F.col("last")))
            .groupBy("run_id", "predicate_id", "pubend", "first", "last")
            .agg(F.count("*").alias("all"), F.count_if(~F.col("is_fence")).alias("data"))
        )
        return {
            (row["run_id"], row["predicate_id"], row["pubend"], row["first"], row["last"]): (
                row["all"],
                row["data"],
            )
            for row in rows.toArrow().to_pylist()
        }

    def _compare(
        self, walked: Mapping[Names, Walked], counted: Mapping[Span, tuple[int, int]]
    ) -> list[BadPair]:
        """Record the deliveries of each pair; return the pairs with a wrong walk."""
        bad = []
        for run_id, facts in self._facts.items():
            findings = self.findings[run_id]
            for pair in pairs_of(facts, findings.sources):
                found = walked.get(pair.names, {})
                span = pair.span_to_walk(found)
                must, _ = counted.get(span, (0, 0))
                for announced in self._announced.of(pair.names):
                    must -= counted.get(announced.within(span), (0, 0))[0]
                summary = self._summary(pair, found, counted)
                # A delivery in spite of a notice could hide a missing delivery in the count.
                in_spite = self._announced.is_contradicted(pair.names, found.get("lowest"))
                if found.get("back", 0) or found.get("walked", 0) != must or in_spite:
                    bad.append(BadPair(pair, len(findings.pairs), span, in_spite))
                findings.pairs.append(summary)
        return bad

    def _summary(
        self, pair: Pair, found: Walked, counted: Mapping[Span, tuple[int, int]]
    ) -> PairSummary:
        """Return a pair's summary under a correct walk; record withheld publications."""
        findings = self.findings[pair.run_id]
        _, owed = counted.get(pair.compute_owed_span(), (0, 0))
        withheld = 0
        for announced in self._announced.of(pair.names):
            _, kept = counted.get(announced.within(pair.compute_owed_span()), (0, 0))
            of_run, name = _counter_of(findings, announced.partition, announced.reason)
            of_run[name] = of_run.get(name, 0) + kept
            withheld += kept
        return PairSummary(
            pair.sub_id,
            pair.pubend,
            found.get("first_seq"),
            found.get("last_seq"),
            found.get("received", 0),
            0,
            0,
            owed - withheld,
            found.get("delivered", 0) if pair.started else 0,
            0,
            found.get("first_ns"),
            found.get("last_ns"),
            found.get("xor_hash") or 0,
            withheld,
            pair.started,
        )

    # --- Violations ---------------------------------------------------------------------------

    def _explain(self, judged: "DataFrame", bad: Sequence[BadPair]) -> "DataFrame | None":
        """Return one row per violation; None without violations."""
        happened = self._wanted.where("happened")
        parts = [objections(judged)] if self._has_objections else []
        if self._reused is not None:
            parts.append(find_reused_numbers(self._reused))
        if bad:
            walks = BadWalks(
                self._spark, judged, happened, self._announced, self._promised, bad,
                self._lookups.topics,
            )  # fmt: skip
            for run_id, n in walks.outstanding().items():
                self.findings[run_id].outstanding = n
            self._redelivered = walks.redelivered()
            started = {item.pair.names for item in bad if item.in_spite and item.pair.started}
            for (names, partition, reason), n in walks.count_arrived_announced().items():
                if names in started:
                    of_run, name = _counter_of(self.findings[names[0]], partition, reason)
                    of_run[name] -= n
                    self._arrived_in_spite[names] = self._arrived_in_spite.get(names, 0) + n
            parts += walks.rows()
        parts += self._announced.violations(happened)
        parts += self._promised.find_unpromised_gaps()
        parts += self._promised.differences(judged)
        parts += self._places.violations()
        if not parts:
            return None
        return reduce(lambda left, right: left.unionByName(right), parts)

    def _count_violations(self, bad: Sequence[BadPair]) -> None:
        from pyspark.sql import functions as F

        if self.violations is None:
            return
        self.violations = self._keep(self.violations)
        rows = (
            self.violations.groupBy("run_id", "kind", "sub_id", "pubend")
            .agg(F.count("*").alias("n"), F.count_if("owed").alias("owed"))
            .toArrow()
            .to_pylist()
        )
        of_pair: dict[Names, dict[str, int]] = defaultdict(dict)
        for row in rows:
            violations = self.findings[row["run_id"]].violations
            violations[row["kind"]] = violations.get(row["kind"], 0) + row["n"]
            names = row["run_id"], row["sub_id"], row["pubend"]
            of_pair[names][row["kind"]] = row["n"]
            of_names = self.findings[row["run_id"]].violations_of.setdefault(names[1:], {})
            of_names[row["kind"]] = row["n"]
            if row["kind"] == "duplicate":
                of_pair[names]["owed duplicates"] = row["owed"]
        for item in bad:
            counts = of_pair[item.pair.names]
            findings = self.findings[item.pair.run_id]
            summary = findings.pairs[item.place]
            in_spite = self._arrived_in_spite.get(item.pair.names, 0)
            again, owed_again = self._redelivered.get(item.pair.names, (0, 0))
            findings.redelivered += again if item.pair.started else 0
            owed_again = owed_again if item.pair.started else 0
            findings.pairs[item.place] = replace(
                summary,
                owed=summary.owed + in_spite,
                withheld=summary.withheld - in_spite,
                duplicates=counts.get("duplicate", 0),
                reordered=counts.get("reordered", 0),
                missing=counts.get("missing", 0),
                delivered=summary.delivered - counts.get("owed duplicates", 0) - owed_again,
            )


def _lane(topics: "DataFrame | None") -> "Column":
    """Return the lane of a delivery; 0 if a source has a single lane."""
    from pyspark.sql import functions as F

    return F.lit(0) if topics is None else F.coalesce(F.col(LANE), F.lit(0))


def _counter_of(findings: Findings, partition: str, reason: str) -> tuple[dict[str, int], str]:
    """Return the counter and key of an announcement: a gap's reason, or a partition."""
    return (findings.announced, reason) if reason else (findings.withheld, partition)
