"""The online checker finds what was done to a history, and nothing in one that is whole.

Every history is also judged by a dumb twin that keeps everything and sorts it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.content import ContentTables, SourceContent, content_digest, draw_attribute_sets
from bench.online_checker import ContentCheck, OnlineChecker, match_table
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from results.expectation import encode_attributes, parse_predicate

SEED = 21
RUN_ID = "20300101T000000Z-abcdef"
FENCE_BLOB = encode_attributes({"fence": RUN_ID})
SETS = draw_attribute_sets(SEED, {"symbol": {"choose": 5}, "price": {"uniform": [1, 100]}}, 40)
TABLES = ContentTables.build(SEED, SETS, 20, encode_attributes)
SOURCE, PUBLISHER = SourceId(0, 1, 1), "p1/1"
LAST = 3000
EVERYTHING, SOME, RARE = "true", "symbol in ('SYMBOL001', 'SYMBOL003')", "price > 97"


class World:
    """One subscriber with one predicate and one source of 3,000 publications between fences."""

    def __init__(self, predicate: str) -> None:
        node = parse_predicate(predicate)
        self.table = match_table(node.holds, SETS)
        self.content = SourceContent(TABLES, SEED, 0, 1)
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
        """A run of rising sequence numbers with the contents the publisher gave them."""
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
        """The sequence numbers in this order, cut into runs wherever they must be, or may."""
        start = 0
        for end in range(1, len(sequences) + 1):
            rising = end < len(sequences) and sequences[end] > sequences[end - 1]
            if not rising or random.random() < 0.02:
                self.take(self.run(sequences[start:end]))
                start = end

    def take(self, run: PublicationRun) -> None:
        content = self.check.examine(run, self.content)
        self.checker.take("s", PUBLISHER, 1, run.sequences, content)

    def totals(self) -> dict[str, int]:
        for fence in (1, LAST):
            self.checker.know_fence(PUBLISHER, 1, fence)
        counts: dict[str, int] = self.checker.report()["totals"]
        return {name: value for name, value in counts.items() if value}

    def dumb_twin(self, sequences: Sequence[int]) -> dict[str, int]:
        """Ranks looked up in the full list of what is owed."""
        rank = {sequence: place for place, sequence in enumerate(self.owed)}
        known = [sequence for sequence in sequences if sequence in rank]
        deltas = [rank[b] - rank[a] for a, b in pairwise(known)]
        closed = known and min(known) == 1 and max(known) == LAST
        counts = {
            "deliveries": sum(not self.is_fence(sequence) for sequence in sequences),
            "fences": sum(self.is_fence(sequence) for sequence in sequences),
            "duplicates": sum(delta == 0 for delta in deltas),
            "reordered": sum(delta < 0 for delta in deltas),
            "gaps": sum(delta > 1 for delta in deltas),
            "missing": sum(delta - 1 for delta in deltas if delta > 1),
            "unexpected": len(sequences) - len(known),
            "unclosed": int(not closed),
        }
        return {name: value for name, value in counts.items() if value}


@pytest.mark.parametrize("predicate", [EVERYTHING, SOME, RARE])
@pytest.mark.parametrize("seed", range(4))
def test_a_whole_history_has_no_anomaly(predicate: str, seed: int) -> None:
    world = World(predicate)
    world.deliver(world.owed, Random(seed))
    assert world.totals() == {"deliveries": len(world.owed) - 2, "fences": 2}
    lane = world.checker.report()["lanes"][0]
    assert lane["owed"] == lane["deliveries"] == len(world.owed) - 2
    assert lane["closed"]


MUTATIONS = {
    "drop one": lambda owed, at: owed[:at] + owed[at + 1 :],
    "drop many": lambda owed, at: owed[:at] + owed[at + 17 :],
    "drop the head": lambda owed, at: owed[1:],
    "drop the tail": lambda owed, at: owed[:-1],
    "repeat": lambda owed, at: [*owed[:at], owed[at], *owed[at:]],
    "repeat far off": lambda owed, at: [*owed, owed[at]],
    "swap": lambda owed, at: [*owed[:at], owed[at + 1], owed[at], *owed[at + 2 :]],
    "stutter": lambda owed, at: [*owed[:at], owed[at + 1], owed[at], owed[at + 1], *owed[at + 2 :]],
    "drop one, repeat another": lambda owed, at: [*owed[:5], owed[4], *owed[5:at], *owed[at + 1 :]],
    "nothing": lambda owed, at: owed[:1],
}


@pytest.mark.parametrize("predicate", [EVERYTHING, SOME, RARE])
@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_mutated_history_is_found_out(predicate: str, mutation: str, seed: int) -> None:
    world = World(predicate)
    at = Random(seed).randrange(10, len(world.owed) - 20)
    history = MUTATIONS[mutation](world.owed, at)
    world.deliver(history, Random(seed))
    totals = world.totals()
    assert totals == world.dumb_twin(history)
    assert totals.keys() & {"missing", "duplicates", "reordered", "unclosed"}, totals


def test_a_publication_that_does_not_match_is_unexpected() -> None:
    world = World(SOME)
    stranger = next(n for n in range(100, LAST) if n not in world.owed)
    history = sorted([*world.owed, stranger])
    world.deliver(history, Random(1))
    assert world.totals() == {"deliveries": len(history) - 2, "fences": 2, "unexpected": 1}


@pytest.mark.parametrize("what", ["payload", "attributes", "length"])
def test_corrupted_content_is_counted_and_its_digest_is_that_of_what_came(what: str) -> None:
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


def test_a_fence_of_another_run_is_a_corrupted_publication() -> None:
    world = World(EVERYTHING)
    blob = encode_attributes({"fence": "another run"})
    run = replace(world.run([2]), attribute_table=(blob,))
    assert world.check.examine(run, world.content).corrupted == (0,)


def test_a_source_of_nobody_here_is_foreign() -> None:
    world = World(EVERYTHING)
    run = world.run([2, 3])
    world.checker.take("s", "p9/4", 1, run.sequences, world.check.examine(run, world.content))
    assert world.totals() == {"foreign": 2, "unclosed": 1}


def test_digests_do_not_depend_on_how_a_run_was_cut() -> None:
    """Across block ends, with holes, and in payload pieces of any size."""
    world = World(EVERYTHING)
    random = Random(5)
    for sequences in (range(2, 2990), sorted(random.sample(range(2, 2990), 700))):
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
    st.lists(st.integers(1, 60), min_size=1, max_size=60),
    st.sampled_from([EVERYTHING, SOME, RARE]),
    st.integers(0, 5),
)
def test_any_order_of_deliveries_is_judged_as_the_dumb_twin_does(
    history: list[int], predicate: str, seed: int
) -> None:
    world = World(predicate)
    world.deliver(history, Random(seed))
    twin = world.dumb_twin(history)
    totals = world.totals()
    assert totals == twin


def test_the_fences_that_are_still_out_are_counted() -> None:
    world = World(SOME)
    fences = [(PUBLISHER, 1, 1), (PUBLISHER, 1, LAST)]
    assert world.checker.fences_missing(fences) == 2
    world.deliver(world.owed[:40], Random(1))
    assert world.checker.fences_missing(fences) == 1
    world.deliver(world.owed[40:], Random(1))
    assert world.checker.fences_missing(fences) == 0
