"""Expansion of stretches in the logs of deliveries, from the content that the seed determines."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from results.rules.expectation import (
    GOLDEN,
    MIX_A,
    MIX_B,
    ExpectedContent,
    parse_predicate,
    seed_of_source,
)
from results.tables.json_files import IntegrityError
from results.tables.record_files import STRETCH, RecordFile

_LEAST_LOOKED_AT = 64


class StretchReader:
    """An expander of stretches; pickled for Spark's workers.

    A stretch of n deliveries up to a number represents the last n publications up to that number
    that match the subscription's predicate. A stretch contains no fence.

    Args:
        publishers: source → publisher.
        predicates: subscription → predicate.
    """

    def __init__(
        self,
        content: ExpectedContent,
        publishers: Mapping[str, str],
        predicates: Mapping[str, str],
    ) -> None:
        self._content = content
        self._publishers = dict(publishers)
        self._predicates = dict(predicates)
        self._tables: dict[str, Any] = {}

    def unfold(self, file: RecordFile, rows: Any) -> tuple[Any, Any, Any]:
        """Return sequence number, record and place within the record of every delivery.

        Raises:
            IntegrityError: too few publications match.
        """
        counts = np.where(rows["kind"] == STRETCH, rows["digest"], 1).astype("i8")
        spread = np.repeat(np.arange(len(rows)), counts)
        starts = np.cumsum(counts) - counts
        within = np.arange(len(spread)) - starts[spread]
        sequences = rows["sequence"][spread]
        for number in np.flatnonzero(rows["kind"] == STRETCH):
            start, count = int(starts[number]), int(counts[number])
            sequences[start : start + count] = self._numbers(file, rows[number], count)
        return sequences, spread, within

    def _numbers(self, file: RecordFile, row: Any, count: int) -> Any:
        pubend = file.tables["publishers"][row["publisher"]]
        subscription = file.tables["subscriptions"][row["subscription"]]
        publisher = self._content.publishers.get(self._publishers.get(pubend, ""))
        if publisher is None:
            raise IntegrityError(f"{file.path}: a stretch of {pubend}, which is no publisher's")
        wanted = self._wanted(subscription)
        last = int(row["sequence"])
        if wanted.all():
            return np.arange(last - count + 1, last + 1)
        seed = np.uint64(
            seed_of_source(self._content.seed, publisher.index, int(row["incarnation"]))
        )
        share = max(float(wanted.mean()), 1e-6)
        found: list[Any] = []
        missing = count
        if not wanted.any():
            last = 0
        while missing > 0 and last >= 1:
            looked_at = max(_LEAST_LOOKED_AT, int(missing / share * 1.1))
            numbers = np.arange(max(1, last - looked_at + 1), last + 1)
            mixed = splitmix64(numbers.astype("u8") + seed)
            sets = (mixed % np.uint64(self._content.fence_set)).astype("i8")
            found.insert(0, numbers[wanted[sets]])
            missing -= len(found[0])
            last = int(numbers[0]) - 1
        if missing > 0:
            raise IntegrityError(
                f"{file.path}: a stretch of {count} deliveries of {pubend} to {subscription} up to "
                f"{row['sequence']}, and only {count - missing} match"
            )
        return np.concatenate(found)[-count:]

    def _wanted(self, subscription: str) -> Any:
        """Return a mask of the attribute sets that match the subscription's predicate."""
        predicate = self._predicates.get(subscription, "true")
        table = self._tables.get(predicate)
        if table is None:
            node = parse_predicate(predicate)
            table = np.array([node.holds(each) for each in self._content.attribute_sets], "?")
            self._tables[predicate] = table
        return table


def splitmix64(numbers: Any) -> Any:
    """Return one step of splitmix64 on a column of unsigned 64-bit numbers."""
    mixed = numbers + np.uint64(GOLDEN)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(MIX_A)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(MIX_B)
    return mixed ^ mixed >> np.uint64(31)
