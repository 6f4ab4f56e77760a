"""Canaries of the checker: each check is tried on spoiled copies of the checked log.

A piece of one subscription's real log, at most some dozens of deliveries, is judged once unchanged
and once for each kind of spoiling: one delivery dropped, repeated, swapped with the next, altered,
and the end cut off. The cost does not grow with the run.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from results.checker.delivery import DELIVERY_COLUMNS, PUBLICATION_COLUMNS, DeliveryCheck
from results.rules.facts import RunFacts
from results.rules.findings import Findings, PairSummary
from results.rules.terms import PUBLISHER_ORDER
from results.tables.schema import TABLES, arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELIVERIES_WANTED = 40
SHORTEST_PIECE = 6
LONGEST_SPAN = 20_000
PAIRS_TRIED = 5
"""Number of pairs to try: the received count includes fences, so a short pair may have no piece
that is long enough."""

Row = dict[str, Any]


class CheckerBroken(Exception):
    """The checker missed a deliberate violation in a log; its verdicts have no value."""

    exit_status = 70


def try_checker(
    spark: "SparkSession",
    runs: Mapping[str, tuple[RunFacts, Findings]],
    publications: "DataFrame",
    deliveries: "DataFrame",
) -> dict[str, dict[str, Any]]:
    """Spoil a piece of each run's log in every way, and verify that the check finds each violation.

    Returns:
        The tried and found violations by run id, for verdict.json. A run without a piece that is
        long enough is absent.

    Raises:
        CheckerBroken: a violation was not found, or found without spoiling.
    """
    facts: dict[str, RunFacts] = {}
    sent: list[Row] = []
    results: list[Row] = []
    expected: dict[str, dict[str, int]] = {}
    tried: dict[str, dict[str, Any]] = {}
    for run_id, (of_run, findings) in runs.items():
        rng = random.Random(run_id)
        piece = _pick_piece(rng, of_run, findings, publications, deliveries)
        if piece is None:
            continue
        publications_of_piece, rows = piece
        for way, spoil in _WAYS.items():
            name = f"{run_id}, {way}"
            spoiled, expected[name] = spoil(rng, rows)
            facts[name] = _facts_of_piece(of_run, name, rows[0])
            sent += [{**row, "run_id": name} for row in publications_of_piece]
            results += [
                {**row, "run_id": name, "order_idx": place} for place, row in enumerate(spoiled)
            ]
        tried[run_id] = {
            "subscription": rows[0]["sub_id"],
            "source": rows[0]["pubend"],
            "deliveries": len(rows),
            "seen": [way for way in _WAYS if expected[f"{run_id}, {way}"]],
        }
    if not facts:
        return {}
    check = DeliveryCheck(
        spark,
        facts,
        _frame(spark, "publications", PUBLICATION_COLUMNS, sent),
        _frame(spark, "deliveries", DELIVERY_COLUMNS, results),
        small=True,
    )
    seen = {name: check.findings[name].violations for name in facts}
    check.close()
    if seen != expected:
        wrong = next(name for name in facts if seen[name] != expected[name])
        raise CheckerBroken(
            f"the check was tried on a spoiled log ({wrong}) and saw {seen[wrong]}; "
            f"there was {expected[wrong]}"
        )
    return tried


def _pick_piece(
    rng: random.Random,
    facts: RunFacts,
    findings: Findings,
    publications: "DataFrame",
    deliveries: "DataFrame",
) -> tuple[list[Row], list[Row]] | None:
    """Return publications and deliveries of a stretch of a source at a subscription."""
    known = {source.pubend for source in facts.sources}
    pairs = [
        pair for pair in findings.pairs if pair.received >= SHORTEST_PIECE and pair.pubend in known
    ]
    clean = [pair for pair in pairs if not (pair.missing or pair.duplicates or pair.reordered)]
    candidates = clean or pairs
    for _ in range(min(PAIRS_TRIED, len(candidates))):
        pair = rng.choice(candidates)
        piece = _piece_of(rng, facts, pair, publications, deliveries)
        if piece is not None:
            return piece
        candidates.remove(pair)
    return None


def _piece_of(
    rng: random.Random,
    facts: RunFacts,
    pair: PairSummary,
    publications: "DataFrame",
    deliveries: "DataFrame",
) -> tuple[list[Row], list[Row]] | None:
    """Return a stretch of the deliveries of a source to a subscription; None if too short."""
    from pyspark.sql import functions as F

    assert pair.first_seq is not None
    assert pair.last_seq is not None
    length = pair.last_seq - pair.first_seq + 1
    span = min(length, LONGEST_SPAN, -(-DELIVERIES_WANTED * length // pair.received))
    first = pair.first_seq + rng.randrange(length - span + 1)
    in_span = (F.col("run_id") == facts.run_id) & (F.col("pubend") == pair.pubend)
    in_span &= F.col("seq").between(first, first + span - 1)
    text = (
        deliveries.where(in_span & (F.col("sub_id") == pair.sub_id) & F.col("digest_ok"))
        .where((F.col("layer") == "application") & (F.col("kind") == "data"))
        # Without an acknowledgement, only deliveries show that a publication was ever published.
        .where(F.col("outcome") == "acked")
        .select(*DELIVERY_COLUMNS)
        .orderBy("order_idx")
        .toArrow()
        .to_pylist()
    )
    text = longest_rising(text)
    if len(text) < SHORTEST_PIECE:
        return None
    delivered = {(row["incarnation"], row["seq"]) for row in text}
    sent = publications.where(in_span).select(*PUBLICATION_COLUMNS).toArrow().to_pylist()
    sent = [row for row in sent if (row["incarnation"], row["seq"]) in delivered]
    # The first and last delivery act as fences, so that the ends are judged as well.
    ends = {(text[place]["incarnation"], text[place]["seq"]) for place in (0, -1)}
    for row in sent:
        row["is_fence"] = (row["incarnation"], row["seq"]) in ends
    return sent, text


def longest_rising(rows: Sequence[Row]) -> list[Row]:
    """Return the longest rising subsequence of the rows; ties go to the lowest end.

    If publications may overtake each other, the first row of a stretch is often near its end, and
    hardly any row is above.
    """
    ends: list[tuple[int, int]] = []
    places: list[int] = []
    before: list[int | None] = []
    for place, row in enumerate(rows):
        key = (row["incarnation"], row["seq"])
        length = bisect_left(ends, key)
        before.append(places[length - 1] if length else None)
        ends[length : length + 1] = [key]
        places[length : length + 1] = [place]
    found: list[Row] = []
    at = places[-1] if places else None
    while at is not None:
        found.append(rows[at])
        at = before[at]
    return found[::-1]


def _facts_of_piece(facts: RunFacts, name: str, row: Row) -> RunFacts:
    return replace(
        facts,
        run_id=name,
        sources=[replace(s, closed=True) for s in facts.sources if s.pubend == row["pubend"]],
        subscriptions=[
            replace(s, closed=True) for s in facts.subscriptions if s.sub_id == row["sub_id"]
        ],
        faults=(),
        notices={},
        guarantee=replace(facts.guarantee, order=PUBLISHER_ORDER.order),
        promises=PUBLISHER_ORDER,
        placed=False,
        gaps={},
        commits={},
        doubts=(),
    )


# --- Ways to spoil a log; each returns the rows and what the check must count -----------------

Spoiled = tuple[list[Row], dict[str, int]]


def _inner(rng: random.Random, rows: Sequence[Row]) -> int:
    """Return a place that is not first, last or second to last."""
    return rng.randrange(1, len(rows) - 2)


def _leave(rng: random.Random, rows: Sequence[Row]) -> Spoiled:
    return [*rows], {}


def _drop(rng: random.Random, rows: Sequence[Row]) -> Spoiled:
    place = _inner(rng, rows)
    return [*rows[:place], *rows[place + 1 :]], {"missing": 1}


def _repeat(rng: random.Random, rows: Sequence[Row]) -> Spoiled:
    place = _inner(rng, rows)
    return [*rows[: place + 2], rows[place], *rows[place + 2 :]], {"duplicate": 1}


def _swap(rng: random.Random, rows: Sequence[Row]) -> Spoiled:
    place = _inner(rng, rows)
    both = rows[place + 1], rows[place]
    return [*rows[:place], *both, *rows[place + 2 :]], {"reordered": 1}


def _alter(rng: random.Random, rows: Sequence[Row]) -> Spoiled:
    place = _inner(rng, rows)
    altered = {**rows[place], "digest_ok": False}
    return [*rows[:place], altered, *rows[place + 1 :]], {"corrupted": 1}


def _cut_off(rng: random.Random, rows: Sequence[Row]) -> Spoiled:
    place = _inner(rng, rows)
    # The last delivery acts as a fence.
    return [*rows[:place]], {"missing": len(rows) - place - 1, "fence_missing": 1}


_WAYS: Mapping[str, Callable[[random.Random, Sequence[Row]], Spoiled]] = {
    "as it is": _leave,
    "one dropped": _drop,
    "one repeated": _repeat,
    "two swapped": _swap,
    "one altered": _alter,
    "end cut off": _cut_off,
}


def _frame(
    spark: "SparkSession", table: str, names: Sequence[str], rows: Sequence[Row]
) -> "DataFrame":
    types = {column.name: column.type for column in TABLES[table].columns}
    columns = {
        name: pa.array([row[name] for row in rows], arrow_type(types[name])) for name in names
    }
    return spark.createDataFrame(pa.table(columns), ", ".join(f"{n} {types[n]}" for n in names))
