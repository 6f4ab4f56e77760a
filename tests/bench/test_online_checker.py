"""Tests of the online checker: it finds all planted mistakes, and none in complete histories.

The reference checker, which stores all rows, must agree on every history.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.content import ContentTables, SourceContent, content_digest, draw_attribute_sets
from bench.load.expected_content import ContentCheck, MatchingSequences, MatchTables, RunContent
from bench.load.online_checker import OnlineChecker
from bench.load.stream_progress import HOLES_KEPT, Holes, StreamProgress
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from results.reference.history import (
    ACKNOWLEDGED,
    DATA,
    FENCE,
    DeliveryRow,
    History,
    PublicationRow,
    PublisherLog,
    SubscriptionLog,
)
from results.reference.rule import check
from results.rules.expectation import ExpectedContent, encode_attributes, parse_predicate

SEED = 21
RUN_ID = "20300101T000000Z-abcdef"
FENCE_BLOB = encode_attributes({"fence": RUN_ID})
ATTRIBUTES = {"symbol": {"choose": 5}, "price": {"uniform": [1, 100]}}
SETS = draw_attribute_sets(SEED, ATTRIBUTES, 40)
TABLES = ContentTables.build(SEED, SETS, 20, encode_attributes)
SOURCE, PUBLISHER = SourceId(0, 1, 1), "p1/1"
LAST = 400
EXPECTED = ExpectedContent.from_workload(
    {
        "seed": SEED,
        "attributes": {"sets": 40, **ATTRIBUTES},
        "publishers": [{"at": "p1", "count": 1, "size": "20B"}],
    },
    RUN_ID,
)
EVERYTHING, SOME, RARE = "true", "symbol in ('SYMBOL001', 'SYMBOL003')", "price > 93"


class World:
    """One subscriber with one predicate, and one source that published LAST times."""

    def __init__(self, predicate: str) -> None:
        self.predicate = predicate
        self.table = MatchTables(SETS).table(parse_predicate(predicate))
        self.content = SourceContent(TABLES, SEED, 0, 1, block_size=64)
        self.check = ContentCheck(TABLES.blobs, FENCE_BLOB)
        self.checker = OnlineChecker(
            {"s": self.table},
            lambda name, incarnation: self.content if name == PUBLISHER else None,
        )
        self.owed = [
            sequence
            for sequence in range(1, LAST + 1)
            if self.is_fence(sequence) or self.table[self.content.choice(sequence)[0]]
        ]

    @staticmethod
    def is_fence(sequence: int) -> bool:
        return sequence in (1, LAST)

    def run(self, sequences: Sequence[int]) -> PublicationRun:
        """Return a run of rising sequence numbers with the publisher's contents."""
        blobs, payloads = [], []
        for sequence in sequences:
            attribute_set, payload = self.content.choice(sequence)
            blobs.append(FENCE_BLOB if self.is_fence(sequence) else TABLES.blobs[attribute_set])
            payloads.append(TABLES.payloads[payload])
        table = tuple(dict.fromkeys(blobs))
        numbers: range | tuple[int, ...] = tuple(sequences)
        if numbers[-1] - numbers[0] + 1 == len(numbers):
            numbers = range(numbers[0], numbers[-1] + 1)
        index = bytes(table.index(blob) for blob in blobs)
        return PublicationRun(SOURCE, numbers, table, index, 20, (b"".join(payloads),))

    def deliver(self, sequences: Sequence[int], random: Random) -> None:
        """Deliver the sequence numbers in this order, divided into runs of random length."""
        start = 0
        for end in range(1, len(sequences) + 1):
            rising = end < len(sequences) and sequences[end] > sequences[end - 1]
            if not rising or random.random() < 0.02:
                self.take(self.run(sequences[start:end]))
                start = end

    def take(self, run: PublicationRun) -> None:
        lane = self.checker.progress_of("s", PUBLISHER, 1)
        assert lane is not None
        lane.take(run.sequences, self.check.examine(run, self.content))

    def totals(self) -> dict[str, int]:
        """Return all counts above zero, after the publishers have reported their fences."""
        for fence in (1, LAST):
            self.checker.add_fence(PUBLISHER, 1, fence)
        counts: dict[str, int] = self.checker.report()["totals"]
        return {name: value for name, value in counts.items() if value}

    def by_reference(self, sequences: Sequence[int]) -> dict[str, int]:
        """Return the counts of the reference checker for this history, owed deliveries included."""
        rows = []
        for sequence in sequences:
            _, blob, payload = next(iter(self.run([sequence]).publications()))
            kind = FENCE if self.is_fence(sequence) else DATA
            rows.append(DeliveryRow(PUBLISHER, 1, sequence, 0, content_digest(blob, payload), kind))
        published = [
            PublicationRow(1, n, len(SETS) if self.is_fence(n) else self.content.choice(n)[0], 0)
            for n in range(1, LAST + 1)
        ]
        judgement = check(
            History(
                EXPECTED,
                [PublisherLog(PUBLISHER, "p1-pub-1", published, [(1, 1, LAST, ACKNOWLEDGED)])],
                [SubscriptionLog("s", "p1", self.predicate, rows)],
                links=(),
                calm=True,
            )
        )
        counts = judgement.counts
        summed = {"owed": counts.owed, "delivered": counts.delivered}
        return {**{name: n for name, n in summed.items() if n}, **counts.violations}


VIOLATIONS = (
    *("missing", "fence_missing", "duplicate", "reordered", "wrong_match", "corrupted", "phantom"),
)


def test_owed_counts_are_consistent_before_the_closing_fence_arrives() -> None:
    world = World(EVERYTHING)
    lost = {20, 21, 30}
    world.deliver([n for n in world.owed if n not in lost and n <= 40], Random(1))
    world.checker.add_fence(PUBLISHER, 1, 1)
    totals = world.checker.report()["totals"]
    owed = sum(1 < n <= 40 for n in world.owed)
    assert (totals["owed"], totals["delivered"]) == (owed, owed - len(lost))
    assert totals["missing"] == len(lost)


def judged(totals: dict[str, int]) -> dict[str, int]:
    """Return the counts, on which both checkers agree."""
    parts = totals.get("delivered", 0) + totals.get("missing", 0)
    assert totals.get("owed", 0) == parts, totals
    return {name: totals[name] for name in ("owed", "delivered", *VIOLATIONS) if name in totals}


@pytest.mark.parametrize("predicate", [EVERYTHING, SOME, RARE])
@pytest.mark.parametrize("seed", range(4))
def test_a_whole_history_has_no_anomaly(predicate: str, seed: int) -> None:
    world = World(predicate)
    world.deliver(world.owed, Random(seed))
    owed = len(world.owed) - 2
    assert world.totals() == {"owed": owed, "delivered": owed, "deliveries": owed, "fences": 2}
    assert world.by_reference(world.owed) == {"owed": owed, "delivered": owed}


MUTATIONS = {
    "drop one": lambda owed, at: owed[:at] + owed[at + 1 :],
    "drop many": lambda owed, at: owed[:at] + owed[at + 7 :],
    "drop the head": lambda owed, at: owed[1:],
    "drop the tail": lambda owed, at: owed[:-1],
    "repeat": lambda owed, at: [*owed[: at + 1], *owed[at:]],
    "repeat far off": lambda owed, at: [*owed, owed[at]],
    "swap": lambda owed, at: [*owed[:at], owed[at + 1], owed[at], *owed[at + 2 :]],
    "late": lambda owed, at: [*owed[: at - 3], *owed[at:], *owed[at - 3 : at]],
    "late and reversed": lambda owed, at: [*owed[: at - 3], *owed[at:], *owed[at - 3 : at][::-1]],
    "stutter": lambda owed, at: [*owed[: at + 2], owed[at], owed[at + 1], *owed[at + 2 :]],
    "drop one, repeat another": lambda owed, at: [*owed[:5], owed[4], *owed[5:at], *owed[at + 1 :]],
    "only the head": lambda owed, at: owed[:1],
}


@pytest.mark.parametrize("predicate", [EVERYTHING, SOME, RARE])
@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_a_mutated_history_is_found_out(predicate: str, mutation: str, seed: int) -> None:
    world = World(predicate)
    at = Random(seed).randrange(6, len(world.owed) - 8)
    history = MUTATIONS[mutation](world.owed, at)
    world.deliver(history, Random(seed))
    totals = judged(world.totals())
    assert totals == world.by_reference(history)
    assert totals.keys() & {*VIOLATIONS}, totals


def test_a_publication_that_does_not_match_is_named() -> None:
    world = World(SOME)
    stranger = next(n for n in range(100, LAST) if n not in world.owed)
    history = sorted([*world.owed, stranger])
    world.deliver(history, Random(1))
    assert judged(world.totals()) == world.by_reference(history)
    assert world.totals()["wrong_match"] == 1


def test_a_number_far_beyond_all_sent_numbers_costs_no_time() -> None:
    world = World(SOME)
    matching = next(
        n for n in range(1 << 60, (1 << 60) + 99) if world.table[world.content.choice(n)[0]]
    )
    world.deliver([1, matching], Random(1))
    assert world.totals()["wrong_match"] == 1


@pytest.mark.parametrize("predicate", [EVERYTHING, SOME])
@pytest.mark.parametrize(
    "at, numbers, off",
    [(7, 1, 9_000), (60, 1, 2_000), (-1, 1, 99_000), (40, 5, 9_000), (9, 2, 2_000)],
)
def test_an_unpublished_delivery_is_a_phantom_and_nothing_else(
    predicate: str, at: int, numbers: int, off: int
) -> None:
    """A phantom with a distant number makes no skipped publication missing."""
    world = World(predicate)
    strangers = [n for n in range(off, off + 999) if world.table[world.content.choice(n)[0]]]
    history = [*world.owed[:at], *strangers[:numbers], *world.owed[at:]]
    world.deliver(history, Random(1))
    found = judged(world.totals())
    assert found == world.by_reference(history)
    assert found["phantom"] == numbers
    assert found.keys() == {"owed", "delivered", "phantom"}
    lane = world.checker.progress_of("s", PUBLISHER, 1)
    assert lane is not None
    assert (lane.compute_counts().low, lane.compute_counts().high) == (min(history), LAST)


def test_a_step_back_behind_a_phantom_is_still_one() -> None:
    world = World(EVERYTHING)
    history = [*world.owed[:20], 99_366, world.owed[21], world.owed[20], *world.owed[22:]]
    world.deliver(history, Random(1))
    assert judged(world.totals()) == world.by_reference(history)
    assert (world.totals()["phantom"], world.totals()["reordered"]) == (1, 1)
    history = [*world.owed[:20], 99_366, world.owed[18], *world.owed[20:]]
    world = World(EVERYTHING)
    world.deliver(history, Random(1))
    assert judged(world.totals()) == world.by_reference(history)


def test_each_late_publication_is_reordered_whatever_arrived_between() -> None:
    world = World(EVERYTHING)
    parts = [range(1, 5), range(8, 11), (5,), range(11, 21), (7,), range(21, 30), (6,)]
    for part in (*parts, range(30, LAST + 1)):
        world.take(world.run(part))
    history = [sequence for part in parts for sequence in part]
    assert judged(world.totals()) == world.by_reference([*history, *range(30, LAST + 1)])
    assert world.totals()["reordered"] == 3


@pytest.mark.parametrize("fences", [(), (0,), (2,), (0, 2)], ids=str)
def test_a_publisher_that_never_was_in_an_incarnation_sent_nothing_in_it(
    fences: tuple[int, ...],
) -> None:
    world = World(EVERYTHING)
    world.deliver(world.owed, Random(1))
    lane = world.checker.progress_of("s", PUBLISHER, 7)
    assert lane is not None
    lane.take([500, 501, 502], RunContent(array("I", [0, 0, 0]), fences=fences))
    totals = world.totals()
    assert totals["phantom"] == 3
    assert "missing" not in totals


def test_a_repeated_report_counts_each_delivery_once() -> None:
    world = World(EVERYTHING)
    world.deliver([*world.owed[:9], 99_366, *world.owed[10:]], Random(1))
    assert world.totals() == world.totals()
    assert world.checker.report() == world.checker.report()


def lane_of(holes_kept: int) -> StreamProgress:
    """Return a lane that is owed all publications and has received the opening fence."""
    world = World(EVERYTHING)
    lane = StreamProgress(MatchingSequences(world.content, world.table), holes_kept)
    lane.take([1], RunContent(array("I", [0]), fences=(0,)))
    return lane


def take(lane: StreamProgress, sequences: Sequence[int]) -> None:
    for sequence in sequences:
        lane.take([sequence], RunContent(array("I", [0])))


def test_a_later_announcement_of_earlier_numbers_leaves_the_highest() -> None:
    lane = lane_of(HOLES_KEPT)
    lane.withhold(2, 9, "late#1.2:b-a", 1)
    lane.withhold(4, 6, "early#1.2:b-a", 2)
    assert lane.last_accounted() == 9


def test_the_next_number_counts_as_withheld_if_it_was_announced() -> None:
    lane = lane_of(HOLES_KEPT)
    lane.withhold(2, 4, "d#1.2:b-a", 1)
    assert [lane.take([n], RunContent(array("I", [0]))) for n in range(2, 7)] == [
        *[False] * 3,
        *[True] * 2,
    ]
    assert lane.compute_counts().withheld_delivered == 3


def test_gaps_beyond_the_retained_number_remain_counted() -> None:
    """Every second publication is lost; evicted gaps remain in the count."""
    lane = lane_of(holes_kept=64)
    take(lane, range(3, 5000, 2))
    assert lane.compute_counts().missing == 2499
    assert not lane.exact


def test_a_late_delivery_behind_many_gaps_is_neither_missing_nor_a_duplicate() -> None:
    """Nine of ten topics of a publisher have overtaken the tenth by 2,000 publications."""
    lane = lane_of(HOLES_KEPT)
    tenth = [n for n in range(2, 20_002) if n % 10 == 0]
    take(lane, [n for n in range(2, 20_002) if n % 10])
    assert lane.compute_counts().missing == len(tenth)
    take(lane, tenth)
    counts = lane.compute_counts()
    assert (counts.missing, counts.duplicate, counts.unsure) == (0, 0, 0)
    assert lane.exact


def test_a_late_delivery_behind_evicted_gaps_is_not_a_duplicate() -> None:
    lane = lane_of(holes_kept=64)
    take(lane, range(3, 1001, 2))
    late = range(2, 1000, 2)
    take(lane, late)
    counts = lane.compute_counts()
    assert (counts.missing, counts.duplicate, counts.unsure) == (0, 0, len(late) - 64)
    assert counts.delivered == counts.owed
    take(lane, [4, 999])
    assert lane.compute_counts().duplicate == 2, "more have come than can have been owed"


def test_a_fence_stays_open_while_an_evicted_gap_is_open() -> None:
    lane = lane_of(holes_kept=64)
    take(lane, range(3, 1001, 2))
    assert lane.has_hole_below(1001)
    take(lane, range(4, 1000, 2))
    assert lane.has_hole_below(1001)
    take(lane, [2])
    assert not lane.has_hole_below(1001)


def test_a_gap_that_splits_is_evicted_as_well() -> None:
    lane = lane_of(holes_kept=64)
    take(lane, [1000, *range(3, 999, 2)])
    assert not lane.exact
    assert lane.compute_counts().missing == 500


@pytest.mark.parametrize("what", ["payload", "attributes", "length"])
def test_corrupted_content_is_counted_and_digested_as_received(what: str) -> None:
    world = World(EVERYTHING)
    run = world.run(range(2, 50))
    if what == "payload":
        flipped = bytearray(b"".join(run.payload))
        flipped[20 * 7 + 3] ^= 1
        run = replace(run, payload=(bytes(flipped),))
    elif what == "attributes":
        index = bytearray(run.attribute_index)
        index[7] = (index[7] + 1) % len(run.attribute_table)
        run = replace(run, attribute_index=bytes(index))
    else:
        lengths = [20] * 48
        lengths[7] = 19
        payload = bytearray(b"".join(run.payload))
        del payload[7 * 20]
        run = replace(run, payload_lengths=tuple(lengths), payload=(bytes(payload),))
    examined = world.check.examine(run, world.content)
    assert examined.corrupted == (7,)
    assert examined.digests.tolist() == [
        content_digest(blob, payload) for _, blob, payload in run.publications()
    ]
    world.take(run)
    assert world.totals()["corrupted"] == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_marked_repetition_counts_as_a_delivery_and_as_nothing_else(seed: int) -> None:
    """A first delivery with the mark counts as a delivery without the mark."""
    random = Random(seed)
    plain, marked = World(SOME), World(SOME)
    first = marked.owed[: random.randrange(1, len(marked.owed))]
    cut = random.randrange(len(first))
    for world in (plain, marked):
        world.take(world.run(first))
    plain.take(plain.run(plain.owed[len(first) :]))
    lane = marked.checker.progress_of("s", PUBLISHER, 1)
    assert lane is not None
    again = marked.run(marked.owed[cut:])
    corrupted = (0, len(again) - 1)
    examined = replace(marked.check.examine(again, marked.content), corrupted=corrupted)
    lane.take_marked(again.sequences, examined)
    repeated = first[cut:]
    fences = sum(map(World.is_fence, repeated))
    totals = plain.totals()
    totals["deliveries"] = totals.get("deliveries", 0) + len(repeated) - fences
    totals["fences"] = totals.get("fences", 0) + fences
    assert marked.totals() == {**totals, "corrupted": len({*corrupted})}


def test_a_fence_of_another_run_is_a_corrupted_publication() -> None:
    world = World(EVERYTHING)
    blob = encode_attributes({"fence": "another run"})
    run = replace(world.run([2]), attribute_table=(blob,))
    assert world.check.examine(run, world.content).corrupted == (0,)


def test_a_foreign_source_has_no_lane_and_its_content_is_never_corrupted() -> None:
    world = World(EVERYTHING)
    assert world.checker.progress_of("s", "p9/4", 1) is None
    run = world.run([2, 3])
    examined = world.check.examine(run, None)
    assert examined.digests.tolist() == [
        content_digest(blob, payload) for _, blob, payload in run.publications()
    ]
    assert not examined.corrupted


def test_digests_do_not_depend_on_how_a_run_was_cut() -> None:
    """Runs are divided at block ends and gaps, with payload pieces of any size."""
    world = World(EVERYTHING)
    random = Random(5)
    for sequences in (range(2, 390), sorted(random.sample(range(2, 390), 150))):
        run = world.run(sequences)
        payload = b"".join(run.payload)
        cuts = sorted({0, len(payload), *(20 * random.randrange(len(run)) for _ in range(5))})
        pieces = tuple(payload[a:b] for a, b in pairwise(cuts))
        run = replace(run, payload=pieces)
        examined = world.check.examine(run, world.content)
        assert not examined.corrupted
        assert not examined.fences
        assert examined.digests.tolist() == [
            content_digest(blob, payload) for _, blob, payload in run.publications()
        ]


@given(
    st.lists(st.integers(1, LAST), min_size=1, max_size=60),
    st.sampled_from([EVERYTHING, SOME, RARE]),
    st.integers(0, 5),
)
def test_any_order_of_deliveries_is_judged_as_the_reference_does(
    history: list[int], predicate: str, seed: int
) -> None:
    world = World(predicate)
    world.deliver(history, Random(seed))
    assert judged(world.totals()) == world.by_reference(history)


@given(st.randoms(use_true_random=False), st.sampled_from([EVERYTHING, SOME, RARE]))
def test_a_shuffled_stretch_is_judged_as_the_reference_does(random: Random, predicate: str) -> None:
    """The histories are mostly valid, with a stretch shuffled, repeated or thinned out."""
    world = World(predicate)
    at = random.randrange(len(world.owed))
    stretch = world.owed[at : at + random.randrange(12)]
    random.shuffle(stretch)
    changed = [n for n in stretch for _ in range(random.choice((0, 1, 1, 1, 2)))]
    history = world.owed[:at] + changed + world.owed[at + len(stretch) :]
    if not history:
        return
    world.deliver(history, random)
    assert judged(world.totals()) == world.by_reference(history)


def test_the_fences_that_are_still_out_are_counted() -> None:
    world = World(SOME)
    fences = [(PUBLISHER, 1, 1), (PUBLISHER, 1, LAST)]
    assert world.checker.fences_missing(fences) == 2
    world.deliver(world.owed[:9], Random(1))
    assert world.checker.fences_missing(fences) == 1
    world.deliver(world.owed[9:], Random(1))
    assert world.checker.fences_missing(fences) == 0


def test_a_fence_that_has_overtaken_something_is_still_out() -> None:
    """Without an order, a fence does not prove that earlier publications arrived."""
    world = World(EVERYTHING)
    fences = [(PUBLISHER, 1, LAST)]
    overtaken = OnlineChecker({"s": world.table}, lambda *_: world.content, may_overtake=True)
    for checker, awaited in ((world.checker, 0), (overtaken, 1)):
        world.checker = checker
        world.deliver([n for n in world.owed if n != 77], Random(1))
        assert checker.fences_missing(fences) == awaited
    world.deliver([77], Random(1))
    assert overtaken.fences_missing(fences) == 0


@pytest.mark.parametrize(
    "first, last, parts",
    [
        (1, 20, [(3, 5), (9, 9), (12, 14)]),
        (5, 12, [(5, 5), (9, 9), (12, 12)]),
        (4, 13, [(4, 5), (9, 9), (12, 13)]),
        (9, 9, [(9, 9)]),
        (6, 8, []),
        (14, 14, [(14, 14)]),
        (1, 2, []),
    ],
)
def test_holes_are_cut_at_both_ends_of_a_range(
    first: int, last: int, parts: list[tuple[int, int]]
) -> None:
    holes = Holes()
    for hole in ((3, 5), (9, 9), (12, 14)):
        holes.append(*hole)
    assert holes.within(first, last) == [(least, most) for least, most in parts]
