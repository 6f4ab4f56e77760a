"""The division of a run into parts by the matching results of its attributes."""

from collections.abc import Sequence
from itertools import chain
from typing import TypeVar

from brokerd.errors import RemoteProtocolError
from brokerd.matching.memo import MatchMemo
from brokerd.model.identity import Peer
from brokerd.model.publication import PublicationRun, RunParts

Target = TypeVar("Target")
Result = TypeVar("Result")

_SMALL_SHARE = 8
"""A part with less than this share (1/n) of a run is always stored without the whole run."""


def match_run(memo: MatchMemo[Target, Result], run: PublicationRun, peer: Peer) -> list[Result]:
    """Return the matching result of each attribute blob of a run, in the order of its table.

    Raises:
        RemoteProtocolError: a blob is malformed or used by no publication, by the fault of the peer
            that sent it.
    """
    table, index = run.attribute_table, run.attribute_index
    # A range is the index of blobs that all have one publication each.
    if len(table) > 1 and type(index) is not range and len(set(index)) < len(table):
        raise RemoteProtocolError(peer, f"attributes that no publication of {run.source} has")
    try:
        return memo.match_all(table)
    except ValueError as error:
        raise RemoteProtocolError(
            peer, f"malformed attributes from {run.source}: {error}"
        ) from None


def results_of_part(
    part: PublicationRun, run: PublicationRun, results: list[Result]
) -> list[Result]:
    """Return the matching results of a part of a run, in table order, from the run's results."""
    if part is run:
        return results
    by_blob = dict(zip(run.attribute_table, results, strict=True))
    return [by_blob[blob] for blob in part.attribute_table]


def places_by_result(results: Sequence[Result]) -> dict[Result, list[int]]:
    """Return the places in the table with each result, in the order of first use."""
    found: dict[Result, list[int]] = {result: [] for result in results}
    if len(found) == 1:
        return {results[0]: [*range(len(results))]}
    for place, result in enumerate(results):
        found[result].append(place)
    return found


class RunSelection:
    """A selection of parts of one run by places in its attribute table.

    The publications are examined once, for any number of parts; equal parts are one object.

    Args:
        are_many: whether many parts are expected, most of them small.
    """

    __slots__ = ("_parts", "_positions", "_run", "_source")

    def __init__(self, run: PublicationRun, *, are_many: bool = False) -> None:
        self._run = run
        self._source = RunParts(run) if are_many else run
        self._positions: list[list[int]] | None = None
        self._parts: dict[tuple[int, ...], PublicationRun] = {}

    def select(self, places: Sequence[int]) -> PublicationRun:
        """Return the publications with attributes at one of `places` (increasing, not empty)."""
        if len(places) == len(self._run.attribute_table):
            return self._run
        key = tuple(places)
        part = self._parts.get(key)
        if part is None:
            positions = self._positions or self._sort()
            chosen = positions[key[0]]
            if len(key) > 1:
                chosen = sorted(chain.from_iterable([positions[place] for place in key]))
            part = self._source.select(chosen)
            self._parts[key] = part
        return part

    def find_made(self, places: Sequence[int]) -> PublicationRun | None:
        """Return the part for `places` if it was made before, or is small compared with the run.

        None if the whole run is cheaper to store than a part of it.
        """
        part = self._parts.get(tuple(places))
        if part is None and _SMALL_SHARE * self.extent(places)[2] <= len(self._run):
            part = self.select(places)
        return part

    def extent(self, places: Sequence[int]) -> tuple[int, int, int]:
        """Return the first and last sequence number and the length of `having(places)`.

        The part is not made.
        """
        run = self._run
        if len(places) == len(run.attribute_table):
            return run.first, run.last, len(run)
        positions = self._positions or self._sort()
        first = min(positions[place][0] for place in places)
        last = max(positions[place][-1] for place in places)
        count = sum(len(positions[place]) for place in places)
        return run.sequences[first], run.sequences[last], count

    def stretches(self, results: Sequence[Result]) -> list[tuple[Result, PublicationRun]]:
        """Return the run cut at every change of the result (one per table place), in order."""
        run, index = self._run, self._run.attribute_index
        found: list[tuple[Result, PublicationRun]] = []
        start = 0
        for position in range(1, len(run) + 1):
            if position == len(run) or results[index[position]] != results[index[start]]:
                found.append((results[index[start]], run.select(range(start, position))))
                start = position
        return found

    def _sort(self) -> list[list[int]]:
        positions: list[list[int]] = [[] for _ in self._run.attribute_table]
        for position, place in enumerate(self._run.attribute_index):
            positions[place].append(position)
        self._positions = positions
        return positions
