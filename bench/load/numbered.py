"""Attribute blobs with a counting attribute, so that all publications of a source differ.

The attribute sets determine all other attributes, and all matches. So the table of sets stays small
for any number of publications.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from brokerd.wire.strict_cbor import INTEGERS

NUMBERED = "sequence"
"""Key of a counting attribute in a workload: { sequence = START }."""


def numbered_attribute(definitions: Mapping[str, Mapping[str, Any]]) -> tuple[str, int] | None:
    """Return the counting attribute, and its value in publication 1; None without one."""
    for name, definition in definitions.items():
        if NUMBERED in definition:
            return name, definition[NUMBERED]
    return None


class NumberedBlobs:
    """Encoded attribute sets, with places for the counting attribute.

    Args:
        start: value of the attribute in publication 1 of a source.
    """

    def __init__(
        self,
        attribute_sets: Iterable[Mapping[str, Any]],
        name: str,
        start: int,
        encode: Callable[[Mapping[str, Any]], bytes],
    ) -> None:
        self._before_first = start - 1
        self._around = [_around(attributes, name, encode) for attributes in attribute_sets]

    @classmethod
    def of_workload(
        cls,
        attribute_sets: Iterable[Mapping[str, Any]],
        definitions: Mapping[str, Mapping[str, Any]],
        encode: Callable[[Mapping[str, Any]], bytes],
    ) -> Self | None:
        """Return the blobs of a workload; None without a counting attribute."""
        found = numbered_attribute(definitions)
        return None if found is None else cls(attribute_sets, *found, encode)

    def blob(self, attribute_set: int, sequence: int) -> bytes:
        """Return the blob of a publication."""
        before, after = self._around[attribute_set]
        return before + INTEGERS[self._before_first + sequence] + after

    def blobs(self, sets: Sequence[int], first: int) -> list[bytes]:
        """Return the blobs of consecutive publications from number `first` on."""
        around = self._around
        numbers = _integers(self._before_first + first, len(sets))
        return [
            around[chosen][0] + number + around[chosen][1]
            for chosen, number in zip(sets, numbers, strict=True)
        ]


def _around(
    attributes: Mapping[str, Any], name: str, encode: Callable[[Mapping[str, Any]], bytes]
) -> tuple[bytes, bytes]:
    """Return the bytes before and after the attribute's value: the place where 0 and 1 differ."""
    zero, one = encode({**attributes, name: 0}), encode({**attributes, name: 1})
    place = next(at for at, pair in enumerate(zip(zero, one, strict=True)) if pair[0] != pair[1])
    return zero[:place], zero[place + 1 :]


def _integers(first: int, count: int) -> list[bytes]:
    """Return consecutive integers in CBOR; nearly always all of one length."""
    head, last = INTEGERS[first], INTEGERS[first + count - 1]
    size_bytes = len(head) - 1
    if not size_bytes or len(last) != len(head):
        return [INTEGERS[number] for number in range(first, first + count)]
    lead = head[:1]
    return [lead + number.to_bytes(size_bytes, "big") for number in range(first, first + count)]
