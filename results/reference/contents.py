"""The content of every publication of a run: the tables and choices that a seed determines.

Attribute set r has, for the workload's attributes in their order, value c drawn by mix(mix(seed ^
0xA5A5) + 1000003 r + c), or by r itself for values that take turns (cycle), or the start of an
attribute that counts (sequence): publication n has start + n - 1 for this attribute. Payload r
consists of the little-endian words mix(mix(seed ^ 0x5A5A) + 1000003 r + w), cut to its size.
Publication n of incarnation i of publisher p takes set m mod (number of sets) and payload (m >> 32)
mod 64, where m = mix(seed + G (p + 1) + A (i + 1) + n); all modulo 2⁶⁴, mix being splitmix64 with
its G and A. A fence is the attribute `fence` with the run id, and the payload of its number.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Value = str | int | float | bool
Attributes = Mapping[str, Value]

_G, _A, _B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "KiB": 2**10, "MiB": 2**20}


def mix(number: int) -> int:
    """Return the next output of splitmix64 for a state."""
    state = (number + _G) % 2**64
    state = (state ^ (state >> 30)) * _A % 2**64
    state = (state ^ (state >> 27)) * _B % 2**64
    return state ^ (state >> 31)


@dataclass(frozen=True)
class Publisher:
    """A publisher of the workload; `index` is the number in the formula."""

    name: str
    broker: str
    index: int
    size_bytes: int


@dataclass(frozen=True)
class Contents:
    """All contents that a workload, its seed and a run id determine.

    Attributes:
        workload: source of all contents.
        attribute_sets: the sets in their order; the number behind the last set is the number of a
            fence.
        publishers: publishers by client name.
    """

    run_id: str
    seed: int
    attribute_sets: Sequence[Attributes]
    publishers: Mapping[str, Publisher]
    workload: Mapping[str, Any] = field(default_factory=dict)
    _blobs: dict[int, bytes] = field(default_factory=dict, repr=False, compare=False)
    _payloads: dict[int, list[bytes]] = field(default_factory=dict, repr=False, compare=False)
    _choices: dict[tuple[int, int, int], tuple[int, int]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def from_workload(cls, workload: Mapping[str, Any], run_id: str) -> "Contents":
        """Return the contents that a resolved workload file prescribes.

        Raises:
            ValueError: a value of the workload cannot be read.
        """
        seed = int(workload.get("seed", 1))
        attributes = {**workload.get("attributes", {})}
        rows = attributes.pop("sets", 100)
        start = mix(seed ^ 0xA5A5)
        table = [
            {
                name: _draw(name, how, row, mix(start + 1_000_003 * row + column))
                for column, (name, how) in enumerate(attributes.items())
            }
            for row in range(rows)
        ]
        publishers: list[Publisher] = []
        for name, broker, entry in clients_of(workload, "publishers", "pub"):
            size = _bytes_in(entry.get("size", "100B"))
            publishers.append(Publisher(name, broker, len(publishers), size))
        return cls(run_id, seed, table, {one.name: one for one in publishers}, workload)

    @cached_property
    def fence_set(self) -> int:
        """The number of a fence in place of an attribute set: one above the last set."""
        return len(self.attribute_sets)

    def attributes(self, attribute_set: int) -> Attributes:
        """Return the attributes of an attribute set, or of a fence."""
        if attribute_set == self.fence_set:
            return {"fence": self.run_id}
        return self.attribute_sets[attribute_set]

    def choice(self, publisher_index: int, incarnation: int, sequence: int) -> tuple[int, int]:
        """Return attribute set and payload of a publication that is no fence."""
        known = publisher_index, incarnation, sequence
        found = self._choices.get(known)
        if found is None:
            drawn = mix(self.seed + _G * (publisher_index + 1) + _A * (incarnation + 1) + sequence)
            found = self._choices[known] = drawn % len(self.attribute_sets), (drawn >> 32) % 64
        return found

    def digest(self, publisher: Publisher, incarnation: int, sequence: int, *, fence: bool) -> int:
        """Return the CRC-32 of a publication's attributes as sent, continued over its payload."""
        attribute_set, payload = self.choice(publisher.index, incarnation, sequence)
        number = self.fence_set if fence else attribute_set
        counting = {} if fence else self._list_counting(sequence)
        if counting:
            blob = encode({**self.attributes(number), **counting})
        else:
            if number not in self._blobs:
                self._blobs[number] = encode(self.attributes(number))
            blob = self._blobs[number]
        return zlib.crc32(self._payloads_of(publisher.size_bytes)[payload], zlib.crc32(blob))

    def _list_counting(self, sequence: int) -> Attributes:
        """Return the attributes that count publications, for a sequence number."""
        return {
            name: how["sequence"] + sequence - 1
            for name, how in self.workload.get("attributes", {}).items()
            if name != "sets" and "sequence" in how
        }

    def _payloads_of(self, size_bytes: int) -> list[bytes]:
        if size_bytes not in self._payloads:
            start = mix(self.seed ^ 0x5A5A)
            words = -(-size_bytes // 8)
            self._payloads[size_bytes] = [
                b"".join(
                    mix(start + 1_000_003 * row + word).to_bytes(8, "little")
                    for word in range(words)
                )[:size_bytes]
                for row in range(64)
            ]
        return self._payloads[size_bytes]


def clients_of(
    workload: Mapping[str, Any], section: str, role: str
) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return name, broker and entry of each client of a workload, numbered at each broker."""
    found = []
    numbers: dict[str, int] = {}
    for entry in workload.get(section, ()):
        brokers = entry["at"] if isinstance(entry["at"], list) else [entry["at"]]
        for broker in brokers:
            for _ in range(entry.get("count", 1)):
                numbers[broker] = numbers.get(broker, 0) + 1
                found.append((f"{broker}-{role}-{numbers[broker]}", broker, entry))
    return found


def _draw(name: str, how: Mapping[str, Any], row: int, drawn: int) -> Value:
    if "sequence" in how:
        start: int = how["sequence"]
        return start
    if "cycle" in how:
        return f"{name.upper()}{row % how['cycle']:03}"
    if "uniform" in how:
        low, high = how["uniform"]
        if type(low) is int and type(high) is int:
            return low + drawn % (high - low + 1)
        return round(float(low + (high - low) * (drawn >> 11) / 2**53), 2)
    among = how.get("choose")
    if type(among) is int:
        return f"{name.upper()}{drawn % among:03}"
    if not isinstance(among, list):
        raise ValueError(f"attribute {name}: {how!r} does not state how to draw it")
    chosen: Value = among[drawn % len(among)]
    return chosen


def _bytes_in(size: Any) -> int:
    if type(size) is int:
        return size
    digits = str(size).rstrip("kKMiB ")
    return round(float(digits) * _UNITS[str(size)[len(digits) :].strip()])


def encode(attributes: Attributes) -> bytes:
    """Return attributes as sent: a CBOR map in its shortest form, keys in the order of bytes."""
    items = sorted((_cbor(name), _cbor(value)) for name, value in attributes.items())
    return _number(0xA0, len(items)) + b"".join(key + value for key, value in items)


def _cbor(value: Value) -> bytes:
    if value is True or value is False:
        return bytes([0xF4 + value])
    if isinstance(value, str):
        return _number(0x60, len(value.encode())) + value.encode()
    if isinstance(value, int):
        return _number(0x00, value) if value >= 0 else _number(0x20, -1 - value)
    for kind, form in ((0xF9, ">e"), (0xFA, ">f")):
        try:
            if struct.unpack(form, struct.pack(form, value)) == (value,):
                return bytes([kind]) + struct.pack(form, value)
        except OverflowError:
            pass
    return b"\xfb" + struct.pack(">d", value)


def _number(kind: int, number: int) -> bytes:
    if number < 24:
        return bytes([kind + number])
    length = next(n for n in range(4) if number < 256**2**n)
    return bytes([kind + 24 + length]) + number.to_bytes(2**length, "big")
