"""The delivery check on Spark: the rank rule for many runs at once, without moving bulk data.

A subscription that received of a source only what it was owed, in rising order, and as many as
it was owed, received exactly that. So the usual pair of subscription and source needs no rank
and no join with its publications: one pass over deliveries in log order and one count. Only
pairs for which this fails are looked at publication by publication, and every row that is wrong
is its own evidence.

Nothing here decides a verdict; `results.checks` does.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from results.announced import Announcements
from results.exposure import look_at_risks
from results.facts import RunFacts
from results.findings import Findings, PairSummary, SourceSummary
from results.frames import (
    EVIDENCE,
    FIRST_KEY,
    LAST_KEY,
    PAIR,
    PUBLICATION,
    key_column,
    owed_column,
    small_frame,
)
from results.lookups import Lookups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUBLICATION_COLUMNS = (
    "run_id", "pubend", "incarnation", "seq", "attrs_ref", "attrs_expected", "is_fence",
    "t_sent_ns", "outcome", "phase",
)  # fmt: skip
DELIVERY_COLUMNS = (
    "run_id", "sub_id", "pubend", "incarnation", "seq", "kind", "layer", "order_idx", "t_recv_ns",
    "attrs_expected", "outcome", "digest_ok",
)  # fmt: skip

# One pair's deliveries are walked in stretches of so many places, side by side.
STRETCH_BITS = 20


class DeliveryCheck:
    """The check of some runs; `findings` are complete, `violations` are there for reading.

    Args:
        facts: of every run in the tables, by run id.
        publications: with PUBLICATION_COLUMNS.
        deliveries: with DELIVERY_COLUMNS.
        small: whether the tables fit into memory easily.

    Attributes:
        findings: by run id.
        violations: one row per violation: run_id, kind, sub_id, pubend, incarnation, seq,
            order_idx, t_ns, owed. None where there are none.
    """

    def __init__(
        self,
        spark: "SparkSession",
        facts: Mapping[str, RunFacts],
        publications: "DataFrame",
        deliveries: "DataFrame",
        *,
        small: bool = False,
    ) -> None:
        from pyspark.sql import functions as F

        self._spark = spark
        self._facts = facts
        self._is_small = small
        self._lookups = Lookups(spark, facts)
        self.findings = {run_id: Findings() for run_id in facts}
        self._kept: list[DataFrame] = []
        self._arrived_in_spite: dict[tuple[str, str, str], int] = {}
        self._matches = self._keep(self._lookups.matches)
        # Of a large run, reading twice what is needed twice costs less than keeping it.
        keep = self._keep if small else (lambda frame: frame)
        judged = keep(self._judged(deliveries))
        self._publications = keep(self._with_fate(publications, judged))
        self._summarise_sources()
        pairs = self._walk(judged)
        first_places = {names: row["first_place"] for names, row in pairs.items()}
        self._announced = Announcements(spark, facts, first_places)
        self._wanted = self._publications.join(
            F.broadcast(self._matches), ["run_id", "attrs_expected"]
        )
        counted = self._count_spans(pairs)
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
        """Let go of what was kept for looking at it twice; `violations` are gone as well."""
        for frame in self._kept:
            frame.unpersist()

    def _keep(self, frame: "DataFrame") -> "DataFrame":
        """The same rows, computed once; a checkpoint also forgets how, which plans faster."""
        self._kept.append(frame.localCheckpoint() if self._is_small else frame.persist())
        return self._kept[-1]

    # --- Rows one by one --------------------------------------------------------------------

    def _judged(self, deliveries: "DataFrame") -> "DataFrame":
        """Deliveries to applications, each with what is wrong with it whatever came before."""
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
            key_column().alias("key"),
        )

    def _with_fate(self, publications: "DataFrame", judged: "DataFrame") -> "DataFrame":
        """Publications that happened: acknowledged, or of unknown fate and seen by somebody."""
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
        )
        for row in rows.toArrow().to_pylist():
            both = row["opening"] is not None and row["opening"] < row["closing"]
            self.findings[row["run_id"]].sources[row["pubend"]] = SourceSummary(
                row["opening"] if both else None,
                row["closing"] if both else None,
                row["measured"],
                row["other_content"],
            )
        for run_id, facts in self._facts.items():
            for source in facts.sources:  # of one that published nothing there are no rows
                self.findings[run_id].sources.setdefault(
                    source.pubend, SourceSummary(None, None, 0, 0)
                )

    def _walk(self, judged: "DataFrame") -> dict[tuple[str, str, str], dict[str, Any]]:
        """Walk through each pair's deliveries in the order of its log."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        fences = F.broadcast(self._fence_table())
        rows = judged.join(fences, ["run_id", "pubend"], "left").withColumn(
            "stretch", F.shiftright("order_idx", STRETCH_BITS)
        )
        in_order = Window.partitionBy(*PAIR, "stretch", "is_wanted").orderBy("order_idx")
        wanted_key = F.when(F.col("is_wanted"), F.col("key"))
        is_owed = F.col("is_wanted") & ~F.col("matches_fence") & owed_column()
        stretches = (
            rows.withColumn("before", F.lag("key").over(in_order))
            .groupBy(*PAIR, "stretch")
            .agg(
                F.count_if("is_wanted").alias("walked"),
                F.count_if(F.col("is_wanted") & (F.col("before") >= F.col("key"))).alias("back"),
                F.count_if(F.col("objection").isNotNull()).alias("objections"),
                F.count("*").alias("received"),
                F.count_if(is_owed).alias("delivered"),
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
        pairs: dict[tuple[str, str, str], dict[str, Any]] = {}
        ordered = sorted(stretches.toArrow().to_pylist(), key=lambda row: row["stretch"])
        for row in ordered:
            pair = row["run_id"], row["sub_id"], row["pubend"]
            pairs[pair] = _joined(pairs[pair], row) if pair in pairs else row
        return pairs

    def _fence_table(self) -> "DataFrame":
        """Per source, the keys of the first and last data publication that may be owed."""
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

    def _count_spans(
        self, pairs: Mapping[tuple[str, str, str], Mapping[str, Any]]
    ) -> dict[tuple[Any, ...], tuple[int, int]]:
        """How many publications match each predicate in each span of keys that matters.

        Pairs share spans, mostly: from the opening fence to the closing one.
        """
        from pyspark.sql import functions as F

        spans: dict[tuple[Any, ...], None] = {}
        for run_id, facts in self._facts.items():
            for pair in self._pairs_of(run_id, facts):
                whole, owed = self._span(pair, pairs), self._owed_span(pair)
                spans[whole] = None
                spans[owed] = None
                for told in self._announced.of(pair.names):
                    spans[told.within(whole)] = None
                    spans[told.within(owed)] = None
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

    def _pairs_of(self, run_id: str, facts: RunFacts) -> Iterator["_Pair"]:
        predicate_ids = {text: number for number, text in enumerate(facts.predicates)}
        for subscription in facts.subscriptions:
            for source in facts.sources:
                yield _Pair(
                    run_id,
                    subscription.sub_id,
                    source.pubend,
                    predicate_ids[subscription.predicate],
                    subscription.closed,
                    self.findings[run_id].sources[source.pubend],
                )

    @staticmethod
    def _span(
        pair: "_Pair", pairs: Mapping[tuple[str, str, str], Mapping[str, Any]]
    ) -> tuple[Any, ...]:
        """The keys this pair must have walked through, given where it began and ended."""
        walked = pairs.get(pair.names, {})
        lowest, highest = walked.get("lowest"), walked.get("highest")
        first, last = [lowest], [highest]
        if pair.closed or lowest is not None:
            first.append(pair.source.opening)
        if pair.closed:
            last.append(pair.source.closing)
        known_first = [key for key in first if key is not None]
        known_last = [key for key in last if key is not None]
        if not known_first or not known_last:
            return pair.span(LAST_KEY, FIRST_KEY)
        return pair.span(min(known_first), max(known_last))

    @staticmethod
    def _owed_span(pair: "_Pair") -> tuple[Any, ...]:
        opening, closing = pair.source.opening, pair.source.closing
        return pair.span(
            FIRST_KEY if opening is None else opening + 1,
            LAST_KEY if closing is None else closing - 1,
        )

    def _compare(
        self,
        pairs: Mapping[tuple[str, str, str], Mapping[str, Any]],
        counted: Mapping[tuple[Any, ...], tuple[int, int]],
    ) -> list["_BadPair"]:
        """Note what each pair received; returns those that did not walk just what they must."""
        bad = []
        for run_id, facts in self._facts.items():
            for pair in self._pairs_of(run_id, facts):
                walked = pairs.get(pair.names, {})
                span = self._span(pair, pairs)
                must, _ = counted.get(span, (0, 0))
                _, owed = counted.get(self._owed_span(pair), (0, 0))
                place = len(self.findings[run_id].pairs)
                withheld = 0
                for told in self._announced.of(pair.names):
                    must -= counted.get(told.within(span), (0, 0))[0]
                    _, kept = counted.get(told.within(self._owed_span(pair)), (0, 0))
                    of_run = self.findings[run_id].withheld
                    of_run[told.partition] = of_run.get(told.partition, 0) + kept
                    withheld += kept
                self.findings[run_id].pairs.append(
                    PairSummary(
                        pair.sub_id,
                        pair.pubend,
                        walked.get("first_seq"),
                        walked.get("last_seq"),
                        walked.get("received", 0),
                        0,
                        0,
                        owed - withheld,
                        walked.get("delivered", 0),
                        0,
                        walked.get("first_ns"),
                        walked.get("last_ns"),
                        walked.get("xor_hash") or 0,
                        withheld,
                    )
                )
                # What was delivered in spite of a notice would make up for what is missing.
                in_spite = self._announced.is_contradicted(pair.names, walked.get("lowest"))
                if walked.get("back", 0) or walked.get("walked", 0) != must or in_spite:
                    bad.append(_BadPair(pair, place, span[3], span[4], in_spite))
        return bad

    # --- Violations -------------------------------------------------------------------------

    def _explain(self, judged: "DataFrame", bad: Sequence["_BadPair"]) -> "DataFrame | None":
        """One row per violation."""
        from pyspark.sql import functions as F

        parts = []
        if self._has_objections:
            parts.append(
                judged.where(F.col("objection").isNotNull()).select(
                    F.col("objection").alias("kind"), *EVIDENCE, F.col("t_recv_ns").alias("t_ns"),
                    F.lit(False).alias("owed"),
                )
            )  # fmt: skip
        if self._reused is not None:
            parts.append(
                self._reused.select(
                    F.lit("sequence_reuse").alias("kind"), "run_id", F.lit("").alias("sub_id"),
                    "pubend", "incarnation", "seq", F.lit(None).cast("BIGINT").alias("order_idx"),
                    F.col("t_sent_ns").alias("t_ns"), F.lit(False).alias("owed"),
                )
            )  # fmt: skip
        if bad:
            parts += self._explain_pairs(judged, bad)
        parts += self._announced.violations(self._wanted.where("happened"))
        if not parts:
            return None
        violations = parts[0]
        for part in parts[1:]:
            violations = violations.unionByName(part)
        return violations

    def _explain_pairs(self, judged: "DataFrame", bad: Sequence["_BadPair"]) -> list["DataFrame"]:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        table = small_frame(
            self._spark,
            [
                (b.pair.run_id, b.pair.sub_id, b.pair.pubend, b.pair.predicate_id, b.first, b.last,
                 *self._owed_span(b.pair)[3:])
                for b in bad
            ],
            "run_id STRING, sub_id STRING, pubend STRING, predicate_id INT, first BIGINT, "
            "last BIGINT, after_opening BIGINT, before_closing BIGINT",
        )  # fmt: skip
        owed = ~F.col("matches_fence") & owed_column()
        of_publication = Window.partitionBy(*PAIR, "key").orderBy("order_idx")
        in_order = Window.partitionBy(*PAIR).orderBy("order_idx")
        walked = (
            judged.where("is_wanted")
            .join(F.broadcast(table.drop("predicate_id")), [*PAIR])
            .withColumn("time", F.row_number().over(of_publication))
        )
        again = walked.where("time > 1").select(
            F.lit("duplicate").alias("kind"), *EVIDENCE, F.col("t_recv_ns").alias("t_ns"),
            owed.alias("owed"),
        )  # fmt: skip
        firsts = walked.where("time = 1")
        back = (
            firsts.withColumn("before", F.lag("key").over(in_order))
            .where("before > key")
            .select(
                F.lit("reordered").alias("kind"), *EVIDENCE, F.col("t_recv_ns").alias("t_ns"),
                owed.alias("owed"),
            )
        )  # fmt: skip
        missing = (
            self._announced.spared(
                self._wanted.where("happened")
                .join(F.broadcast(table), ["run_id", "pubend", "predicate_id"])
                .where(F.col("key").between(F.col("first"), F.col("last")))
                .join(firsts.select(*PAIR, "key"), [*PAIR, "key"], "left_anti")
            )
            .select(
                F.lit("missing").alias("kind"), "run_id", "sub_id", "pubend", "incarnation", "seq",
                F.lit(None).cast("BIGINT").alias("order_idx"), F.col("t_sent_ns").alias("t_ns"),
                owed.alias("owed"),
            )
        )  # fmt: skip
        contradicted = [b.pair.names for b in bad if b.in_spite]
        if contradicted:
            for (names, partition), n in self._announced.arrived(firsts, owed).items():
                self.findings[names[0]].withheld[partition] -= n
                self._arrived_in_spite[names] = self._arrived_in_spite.get(names, 0) + n
        in_spite = self._announced.deliveries_in_spite(firsts, contradicted)
        return [again, back, missing, *in_spite]

    def _count_violations(self, bad: Sequence["_BadPair"]) -> None:
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
        of_pair: dict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
        for row in rows:
            violations = self.findings[row["run_id"]].violations
            violations[row["kind"]] = violations.get(row["kind"], 0) + row["n"]
            names = row["run_id"], row["sub_id"], row["pubend"]
            of_pair[names][row["kind"]] = row["n"]
            if row["kind"] == "duplicate":
                of_pair[names]["owed duplicates"] = row["owed"]
        for item in bad:
            counts = of_pair[item.pair.names]
            findings = self.findings[item.pair.run_id]
            summary = findings.pairs[item.place]
            in_spite = self._arrived_in_spite.get(item.pair.names, 0)
            findings.pairs[item.place] = replace(
                summary,
                owed=summary.owed + in_spite,
                withheld=summary.withheld - in_spite,
                duplicates=counts.get("duplicate", 0),
                reordered=counts.get("reordered", 0),
                missing=counts.get("missing", 0),
                delivered=summary.delivered - counts.get("owed duplicates", 0),
            )


@dataclass(frozen=True)
class _Pair:
    """A subscription and a source of one run."""

    run_id: str
    sub_id: str
    pubend: str
    predicate_id: int
    closed: bool
    source: SourceSummary

    @property
    def names(self) -> tuple[str, str, str]:
        return self.run_id, self.sub_id, self.pubend

    def span(self, first: int, last: int) -> tuple[Any, ...]:
        return self.run_id, self.predicate_id, self.pubend, first, last


@dataclass(frozen=True)
class _BadPair:
    """A pair that did not walk what it had to.

    Attributes:
        place: of its summary.
        in_spite: whether it may have received what it was told it would not.
    """

    pair: _Pair
    place: int
    first: int
    last: int
    in_spite: bool


def _joined(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Two stretches of one pair's deliveries, one behind the other."""
    steps_back = earlier["last"] is not None and later["first"] is not None
    steps_back = steps_back and later["first"] <= earlier["last"]
    added = ("walked", "objections", "received", "delivered")
    row = {name: earlier[name] + later[name] for name in added}
    row["back"] = earlier["back"] + later["back"] + int(steps_back)
    for name, choose in (("lowest", min), ("highest", max), ("first_seq", min), ("last_seq", max),
                         ("first_ns", min), ("last_ns", max)):  # fmt: skip
        known = [value for value in (earlier[name], later[name]) if value is not None]
        row[name] = choose(known) if known else None
    row["first"] = earlier["first"] if earlier["first"] is not None else later["first"]
    row["last"] = later["last"] if later["last"] is not None else earlier["last"]
    row["xor_hash"] = earlier["xor_hash"] ^ later["xor_hash"]
    places = earlier["first_place"], later["first_place"]
    row["first_place"] = places[0] if places[0] is not None else places[1]
    return row
