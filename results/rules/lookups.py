"""The facts of all runs beside their bulk tables, as small tables for joins in Spark."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from results.rules.expectation import ExpectedContent, parse_predicate
from results.rules.facts import RunFacts
from results.tables.frames import small_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_TRIED = 1 << 18
"""Limit of predicates times attribute sets that this process tries itself."""

Predicate = tuple[str, int, str]
"""Run, number and text of a predicate."""


class Lookups:
    """Small tables by run.

    Attributes:
        subscriptions: with the numbers of the predicate and of a fence's attributes.
        started: numbers of the predicates of subscriptions that started.
        sources: sources, with True for logs that were closed in order.
        matches: the attribute sets that match each predicate.
        has_computed: `matches` is computed, and not to be kept for repeated use.
        topics: a number for the topic of each attribute set, for runs with order by topic.
    """

    def __init__(self, spark: "SparkSession", facts: Mapping[str, RunFacts]) -> None:
        subscriptions, sources = [], []
        predicates: list[Predicate] = []
        for run_id, of_run in facts.items():
            ids = {text: number for number, text in enumerate(of_run.predicates)}
            # A publisher without a log sent publications that no log has.
            logged = {source.name for source in of_run.sources}
            all_closed = {*of_run.content.publishers} <= logged and all(
                source.closed for source in of_run.sources
            )
            subscriptions += [
                (run_id, s.sub_id, ids[s.predicate], all_closed, of_run.content.fence_set)
                for s in of_run.subscriptions
            ]
            sources += [(run_id, source.pubend, source.closed) for source in of_run.sources]
            predicates += [(run_id, number, text) for text, number in ids.items()]
        self.subscriptions = small_frame(
            spark,
            subscriptions,
            "run_id STRING, sub_id STRING, predicate_id INT, all_closed BOOLEAN, fence_set INT",
        )
        started = {
            (run_id, of_run.predicates.index(s.predicate))
            for run_id, of_run in facts.items()
            for s in of_run.subscriptions
            if s.started
        }
        self.started = small_frame(spark, sorted(started), "run_id STRING, predicate_id INT")
        self.sources = small_frame(
            spark, sources, "run_id STRING, pubend STRING, source_closed BOOLEAN"
        )
        topics = [
            (run_id, number, topic)
            for run_id, of_run in facts.items()
            if of_run.lane == "topic"
            for number, topic in enumerate(_topics(of_run))
        ]
        self.topics = (
            small_frame(spark, topics, "run_id STRING, attrs_expected INT, lane INT")
            if topics
            else None
        )
        contents = {run_id: of_run.content for run_id, of_run in facts.items()}
        self.matches, self.has_computed = _match_table(spark, predicates, contents)


def _topics(facts: RunFacts) -> Iterator[int]:
    """Yield a number for the topic of every attribute set, and a further number for fences."""
    numbers: dict[tuple[type, Any], int] = {}
    for attributes in facts.content.attribute_sets:
        value = attributes.get(facts.topic)
        yield numbers.setdefault((type(value), value), len(numbers))
    yield -1


def _match_table(
    spark: "SparkSession", predicates: Sequence[Predicate], contents: Mapping[str, ExpectedContent]
) -> tuple["DataFrame", bool]:
    """Return the attribute sets that match each predicate, and whether they are computed already.

    Fences match all predicates. Spark's workers try many predicates; for few, their start would
    take longer.
    """
    tried = sum(len(contents[run_id].attribute_sets) for run_id, _, _ in predicates)
    ddl = "run_id STRING, predicate_id INT, attrs_expected INT, matches_fence BOOLEAN"
    if tried <= MOST_TRIED:
        return small_frame(spark, [*_matching(predicates, contents)], ddl), True

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [(row["run_id"], row["predicate_id"], row["text"]) for row in batch.to_pylist()]
            columns: list[Any] = [*zip(*_matching(rows, contents), strict=True)] or [[], [], [], []]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(columns[0], pa.string()),
                    pa.array(columns[1], pa.int32()),
                    pa.array(columns[2], pa.int32()),
                    pa.array(columns[3], pa.bool_()),
                ],
                names=["run_id", "predicate_id", "attrs_expected", "matches_fence"],
            )

    table = small_frame(spark, predicates, "run_id STRING, predicate_id INT, text STRING")
    return table.mapInArrow(match, ddl), False


def _matching(
    predicates: Iterable[Predicate], contents: Mapping[str, ExpectedContent]
) -> Iterator[tuple[str, int, int, bool]]:
    """Yield run, predicate, matching attribute set, and whether it is that of fences."""
    for run_id, predicate_id, text in predicates:
        content = contents[run_id]
        predicate = parse_predicate(text)
        for number, attributes in enumerate(content.attribute_sets):
            if predicate.holds(attributes):
                yield run_id, predicate_id, number, number == content.fence_set
        yield run_id, predicate_id, content.fence_set, True
