"""Stretches: deliveries of consecutive matching publications, which are one row of a file."""

from collections.abc import Mapping

from results.reference.contents import Contents
from results.reference.files import FileRefusal
from results.reference.history import DATA, DeliveryRow
from results.reference.predicates import wants

_LONGEST_STRETCH = 1 << 20
"""Limit of deliveries; the tenth of a second of a stretch has room for no more."""


class Stretches:
    """The stretches of one run.

    Args:
        publisher_of: source → name of the publisher.
    """

    def __init__(self, content: Contents, publisher_of: Mapping[str, str]) -> None:
        self._content = content
        self._publisher_of = publisher_of
        self._are_any_wanted: dict[str, bool] = {}

    def unfold(
        self, source: str, predicate: str, row: Mapping[str, int], at_ns: int
    ) -> list[DeliveryRow]:
        """Return the deliveries of a stretch: the last matching publications up to its number."""
        publisher = self._content.publishers.get(self._publisher_of.get(source, ""))
        if publisher is None:
            raise FileRefusal(f"a stretch of {source}, which is no publisher's")
        incarnation, number, numbers = row["incarnation"], row["sequence"], list[int]()
        is_wanted = wants(predicate)
        if predicate not in self._are_any_wanted:
            sets = map(self._content.attributes, range(self._content.fence_set))
            self._are_any_wanted[predicate] = any(map(is_wanted, sets))
        if row["digest"] > _LONGEST_STRETCH or not self._are_any_wanted[predicate]:
            raise FileRefusal(
                f"a stretch of {row['digest']} of {source} up to {number} is too long"
            )
        while len(numbers) < row["digest"]:
            if number < 1:
                raise FileRefusal(f"a stretch of {source} up to {row['sequence']} is too long")
            chosen, _ = self._content.choice(publisher.index, incarnation, number)
            if is_wanted(self._content.attributes(chosen)):
                numbers.append(number)
            number -= 1
        late_ns = 1_000_000 * row["partition"]
        return [
            DeliveryRow(
                source, incarnation, number, at_ns - late_ns,
                self._content.digest(publisher, incarnation, number, fence=False), DATA, late_ns,
            )
            for number in reversed(numbers)
        ]  # fmt: skip
