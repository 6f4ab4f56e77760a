"""Pairs of subscription and source without an owed delivery, in words."""

from collections.abc import Iterable, Iterator
from typing import Final

from results.rules.findings import PairSummary

SHOWN: Final = 4


def nothing_owed_in_words(pairs: Iterable[PairSummary]) -> Iterator[str]:
    """Yield a line with the pairs that were owed nothing; a verdict says nothing about them."""
    none = [f"{pair.sub_id} of {pair.pubend}" for pair in pairs if pair.started and not pair.owed]
    if none:
        none.sort()
        more = [f"{len(none) - SHOWN:,} more"] if len(none) > SHOWN else []
        yield f"owed nothing: {', '.join([*none[:SHOWN], *more])}"
