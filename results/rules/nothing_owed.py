"""Pairs of subscription and source without an owed delivery, in words.

Texts for people name a publisher as its client is called, as all other outputs do; records and
verdicts name its source, the broker with the number of the publisher there.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from results.rules.findings import PairSummary

SHOWN: Final = 4
SOURCE: Final = re.compile(r"(?<![\w/-])[a-z][a-z0-9-]*/[0-9]+(?![\w/])")


def describe_nothing_owed(pairs: Iterable[PairSummary]) -> Iterator[str]:
    """Yield a line with the pairs that were owed nothing; a verdict says nothing about them."""
    none = [f"{pair.sub_id} of {pair.pubend}" for pair in pairs if pair.started and not pair.owed]
    if none:
        none.sort()
        more = [f"{len(none) - SHOWN:,} more"] if len(none) > SHOWN else []
        yield f"owed nothing: {', '.join([*none[:SHOWN], *more])}"


def with_publisher_names(text: str, names: Mapping[str, str]) -> str:
    """Return a text in which the names of publishers replace those of their sources."""
    return SOURCE.sub(lambda found: names.get(found[0]) or found[0], text)
