"""Parts of a run compared with the publications of the run, one by one."""

from random import Random

import pytest

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.parts.selection import RunSelection, places_by_result


def drawn_run(random: Random) -> PublicationRun:
    """Return a run with gaps, and with repeated attributes in any order."""
    places = random.randrange(1, 6)
    count = random.randrange(places, 24)
    index = [*range(places), *(random.randrange(places) for _ in range(count - places))]
    random.shuffle(index)
    sequences = tuple(sorted(random.sample(range(1, 60), count)))
    table = tuple(bytes([65 + place]) for place in range(places))
    payload = b"".join(bytes([sequence]) for sequence in sequences)
    return PublicationRun(SourceId(1, 0, 1), sequences, table, bytes(index), 1, (payload,))


def rows(run: PublicationRun) -> list[tuple[int, bytes, bytes]]:
    payload = b"".join(map(bytes, run.payload))
    return [
        (number, run.blob(place), payload[place : place + 1])
        for place, number in enumerate(run.sequences)
    ]


@pytest.mark.parametrize("are_many", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_a_part_has_just_the_publications_with_its_attributes(seed: int, are_many: bool) -> None:
    random = Random(seed)
    run = drawn_run(random)
    selection = RunSelection(run, are_many=are_many)
    table = run.attribute_table
    for _ in range(6):
        places = sorted(random.sample(range(len(table)), random.randrange(1, len(table) + 1)))
        expected = [row for row in rows(run) if row[1] in {table[place] for place in places}]
        extent = expected[0][0], expected[-1][0], len(expected)
        if random.random() < 0.5:
            assert selection.extent(places) == extent
            made = selection.find_made(places)
            assert made is None or rows(made) == expected
        part = selection.select(places)
        assert rows(part) == expected
        assert selection.extent(places) == extent
        assert selection.select(places) is part


@pytest.mark.parametrize("seed", range(50))
def test_stretches_are_the_run_cut_where_the_result_changes(seed: int) -> None:
    random = Random(seed)
    run = drawn_run(random)
    results = [random.randrange(3) for _ in run.attribute_table]
    stretches = RunSelection(run).stretches(results)
    assert [row for _, part in stretches for row in rows(part)] == rows(run)
    of_blob = dict(zip(run.attribute_table, results, strict=True))
    for (result, part), (following, _) in zip(
        stretches, [*stretches[1:], (None, run)], strict=True
    ):
        assert {of_blob[blob] for _, blob, _ in rows(part)} == {result}
        assert result != following
    grouped = places_by_result(results)
    assert sorted(place for places in grouped.values() for place in places) == [
        *range(len(results))
    ]
    assert all(results[place] == result for result, places in grouped.items() for place in places)
