"""Tests of judging by guarantees: order within topics and streams, and unpromised orders."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from results.reference.history import FENCE, REDELIVERED, DeliveryRow, History
from results.reference.rule import check
from results.rules.terms import Guarantee, Promises
from results.rules.verdict_text import describe_absent
from tests.helpers.history_tables import judge_on_spark
from tests.helpers.promised_histories import promised_history, with_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = range(6)
TOPIC = Promises(order="topic", topic="symbol")
STREAM = Promises(order="stream", topic="symbol")
PUBLISHER = Promises()
TOTAL = Promises(order="total")


def topic_of(history: History, row: DeliveryRow) -> str:
    """Return the topic of a delivery; fences have a topic of their own."""
    if row.kind == FENCE:
        return "fences"
    (log,) = (log for log in history.publishers if log.source == row.source)
    index = history.content.publishers[log.name].index
    chosen, _ = history.content.choice(index, *row.key)
    return str(history.content.attributes(chosen)["symbol"])


def topics_history(rng: Random, promises: Promises, *, placed: bool = True) -> History:
    """Return a legal history: topics overtake each other, and each topic has one order for all."""
    history = replace(promised_history(rng, promises), topic=promises.topic, placed=placed)
    whole = history.subscriptions[0].delivered  # it wants everything
    positions: dict[tuple[str, int, int], tuple[str, int]] = {}
    counts: dict[str, int] = {}
    for row in whole:
        topic = topic_of(history, row)
        counts[topic] = counts.get(topic, 0) + 3
        positions[row.source, *row.key] = f"0/{topic}", counts[topic]
    for number, log in enumerate(history.subscriptions):
        lanes: dict[str, list[DeliveryRow]] = {}
        for row in log.delivered:
            stream, position = positions[row.source, *row.key]
            told = replace(row, stream=stream, position=position) if placed else row
            lanes.setdefault(topic_of(history, row), []).append(told)
        rows = []
        while waiting := [lane for lane in lanes.values() if lane]:
            rows.append(rng.choice(waiting).pop(0))
        history = with_log(history, number, delivered=rows)
    return history


Change = Callable[[History, Random], History]


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        guarantee: the guarantee that the workload requests.
        kinds: the kinds of violations found; some histories have all, and none has others.
        verdict: the verdict of all these histories.
    """

    promises: Promises
    guarantee: Guarantee
    change: Change
    verdict: str
    kinds: frozenset[str]
    doubt: str = ""
    placed: bool = True


CASES: dict[str, Case] = {}


def _case(
    promises: Promises, order: str, verdict: str, *kinds: str, doubt: str = "", placed: bool = True
) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        CASES[change.__name__] = Case(
            promises, Guarantee(order=order), change, verdict, frozenset(kinds), doubt, placed
        )
        return change

    return register


def _same(history: History, found: Sequence[int]) -> list[tuple[int, int]]:
    """Return neighbouring places of `found` of equal topic and source, at one subscription."""
    rows = history.subscriptions[0].delivered
    last: dict[tuple[str, str], int] = {}
    pairs = []
    for n in found:
        lane = rows[n].source, topic_of(history, rows[n])
        if lane in last:
            pairs.append((last[lane], n))
        last[lane] = n
    return pairs


def _data(history: History) -> list[int]:
    rows = history.subscriptions[0].delivered
    return [n for n, row in enumerate(rows) if row.kind not in (FENCE, REDELIVERED)]


def _swapped(history: History, rng: Random, *, with_places: bool) -> History:
    """Swap two deliveries of one topic and source in a log, with or without the positions."""
    rows = [*history.subscriptions[0].delivered]
    a, b = rng.choice(_same(history, _data(history)))
    first, second = rows[a], rows[b]
    rows[a], rows[b] = second, first
    if with_places:
        rows[a] = replace(second, position=first.position)
        rows[b] = replace(first, position=second.position)
    return with_log(history, 0, delivered=rows)


@_case(TOPIC, "promised", "VALID")
def topics_overtake_each_other(history: History, rng: Random) -> History:
    return history


@_case(TOPIC, "topic", "VALID")
def topics_overtake_each_other_as_asked(history: History, rng: Random) -> History:
    return history


@_case(STREAM, "promised", "VALID")
def streams_overtake_each_other(history: History, rng: Random) -> History:
    return history


@_case(TOPIC, "publisher", "INVALID", "reordered")
def more_is_asked_for_than_promised(history: History, rng: Random) -> History:
    return history


@_case(TOPIC, "total", "INVALID", "reordered", "order_differs")
def most_is_asked_for(history: History, rng: Random) -> History:
    return history


@_case(TOPIC, "none", "VALID")
def no_order_is_asked_for(history: History, rng: Random) -> History:
    return _swapped(history, rng, with_places=False)


@_case(TOPIC, "promised", "VALID", placed=False)
def a_simulated_run_writes_no_places(history: History, rng: Random) -> History:
    return history


@_case(TOPIC, "promised", "INVALID", "reordered", placed=False)
def a_topic_is_disordered_in_a_simulated_run(history: History, rng: Random) -> History:
    return _swapped(history, rng, with_places=False)


@_case(TOPIC, "promised", "INVALID", "reordered", "place_back")
def a_topic_is_disordered(history: History, rng: Random) -> History:
    return _swapped(history, rng, with_places=False)


@_case(STREAM, "promised", "INVALID", "place_back")
def a_stream_is_disordered(history: History, rng: Random) -> History:
    return _swapped(history, rng, with_places=False)


@_case(TOPIC, "promised", "INVALID", "reordered", "place_taken", "place_order")
def a_topic_is_disordered_with_its_places(history: History, rng: Random) -> History:
    return _swapped(history, rng, with_places=True)


@_case(STREAM, "promised", "INVALID", "place_order")
def all_get_a_stream_in_which_two_were_placed_the_wrong_way(
    history: History, rng: Random
) -> History:
    """Swap two positions for all subscriptions, so that logs agree and positions rise."""
    rows = history.subscriptions[0].delivered
    a, b = (rows[n] for n in rng.choice(_same(history, _data(history))))
    other = {(a.source, *a.key): b.position, (b.source, *b.key): a.position}
    for number, log in enumerate(history.subscriptions):
        told = [
            replace(row, position=other.get((row.source, *row.key), row.position))
            for row in log.delivered
        ]
        places = {(row.stream, row.position): row for row in told}
        ordered = []
        for row in log.delivered:
            positions = sorted(p for s, p in places if s == row.stream)
            ordered.append(places.pop((row.stream, positions[0])))
        history = with_log(history, number, delivered=ordered)
    return history


@_case(TOPIC, "promised", "INVALID", "place_taken")
def two_are_at_one_place(history: History, rng: Random) -> History:
    """Place two publications at one position, at subscriptions with rising positions."""
    rows = [*history.subscriptions[0].delivered]
    moved = rng.choice(_data(history))
    rows[moved] = replace(rows[moved], position=rows[moved].position - 1)
    return with_log(history, 0, delivered=rows)


@_case(STREAM, "promised", "INVALID", "place_back", "place_taken")
def two_arrive_with_one_place(history: History, rng: Random) -> History:
    """Deliver two publications with one position, in turn, to one subscription."""
    rows = [*history.subscriptions[0].delivered]
    moved = rng.choice(
        [n for n in _data(history) if any(r.stream == rows[n].stream for r in rows[:n])]
    )
    before = next(row for row in reversed(rows[:moved]) if row.stream == rows[moved].stream)
    rows[moved] = replace(rows[moved], position=before.position)
    return with_log(history, 0, delivered=rows)


@_case(STREAM, "promised", "INVALID", "place_taken")
def one_is_in_two_streams(history: History, rng: Random) -> History:
    rows = [*history.subscriptions[0].delivered]
    moved = rng.choice(_data(history))
    rows[moved] = replace(rows[moved], stream="1/7")
    return with_log(history, 0, delivered=rows)


@_case(TOPIC, "promised", "UNKNOWN", doubt="have no place in a stream")
def a_place_is_left_out(history: History, rng: Random) -> History:
    rows = [*history.subscriptions[0].delivered]
    moved = rng.choice(_data(history))
    rows[moved] = replace(rows[moved], stream="", position=0)
    return with_log(history, 0, delivered=rows)


@_case(TOPIC, "promised", "UNKNOWN", doubt="names the topic attribute")
def nobody_says_what_a_topic_is(history: History, rng: Random) -> History:
    return replace(history, topic="")


@_case(PUBLISHER, "topic", "VALID", placed=False)
def less_is_asked_for_than_promised(history: History, rng: Random) -> History:
    return replace(history, topic="symbol")


@_case(PUBLISHER, "stream", "INVALID", "reordered", placed=False)
def a_source_is_a_stream_where_there_are_no_others(history: History, rng: Random) -> History:
    return history


@_case(TOTAL, "publisher", "VALID", placed=False)
def a_total_order_that_nobody_asks_for(history: History, rng: Random) -> History:
    """Swap two sources at one of two subscriptions."""
    history = promised_history(rng, TOTAL)
    rows = [*history.subscriptions[0].delivered]
    place = next(
        n
        for n in range(1, len(rows))
        if rows[n - 1].source != rows[n].source and FENCE not in (rows[n - 1].kind, rows[n].kind)
    )
    rows[place - 1 : place + 1] = rows[place], rows[place - 1]
    return with_log(history, 0, delivered=rows)


def histories(name: str) -> list[History]:
    case = CASES[name]
    found = []
    for seed in SEEDS:
        rng = Random(seed)
        history = topics_history(rng, case.promises, placed=case.placed)
        found.append(replace(case.change(history, rng), guarantee=case.guarantee))
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_judged_by_its_guarantee(name: str) -> None:
    case = CASES[name]
    seen: set[str] = set()
    for seed, history in enumerate(histories(name)):
        judgement = check(history)
        found = {*judgement.counts.violations}
        assert judgement.verdict == case.verdict, (seed, judgement)
        assert found <= case.kinds or case.guarantee.order == "none", (seed, found)
        assert not case.doubt or any(case.doubt in text for text in judgement.doubts)
        seen |= found
    assert seen == case.kinds


@pytest.mark.spark
def test_spark_judges_all_of_them_alike(spark: "SparkSession") -> None:
    of = {
        f"{name}-{seed}": history
        for name in CASES
        for seed, history in enumerate(histories(name)[:2])
    }
    for name, (verdict, doubts, findings) in judge_on_spark(spark, of).items():
        plain = check(of[name])
        assert (verdict, findings.counts) == (plain.verdict, plain.counts), name
        assert doubts == {*plain.doubts}, name


def test_words_name_the_order_that_was_checked() -> None:
    under = {
        (order, promises.order): str(Guarantee(order=order).with_promised_order(promises))
        for order in ("promised", "publisher", "none")
        for promises in (TOPIC, STREAM, TOTAL)
    }
    assert under["promised", "topic"] == "exactly-once, publisher order within each topic"
    assert under["promised", "stream"] == "exactly-once, publisher order within each stream"
    assert under["promised", "total"] == "exactly-once, total order"
    assert under["publisher", "topic"] == "exactly-once, publisher order"
    assert under["none", "topic"] == "exactly-once"
    assert describe_absent("none") == "nothing missing or repeated"
    assert describe_absent("topic") == "nothing missing, repeated or out of order within a topic"
