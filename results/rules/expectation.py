"""The expected content of a run, recomputed from the workload and the seed, without any log.

The module defines the content of publication n of a publisher, the matching predicates, and the
digest of a delivery. No code is shared with the brokers, not even the parser of predicates, so that
the checker does not repeat a mistake of the brokers.
"""

import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

Scalar = str | int | float | bool
AttributeSet = Mapping[str, Scalar]

PAYLOADS_PER_TABLE = 64
FENCE_ATTRIBUTE = "fence"

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB
TABLE_STRIDE = 1_000_003
ATTRIBUTE_STREAM = 0xA5A5
PAYLOAD_STREAM = 0x5A5A

_SIZE_UNITS = {"B": 1, "kB": 1_000, "KiB": 1 << 10, "MB": 1_000_000, "MiB": 1 << 20}


class ExpectationError(Exception):
    """A predicate or workload that cannot be read; names the text; the user's fault."""

    exit_status = 2


def splitmix64(number: int) -> int:
    """Return a step of splitmix64, a mixing of 64-bit numbers."""
    number = (number + GOLDEN) & WORD
    number = (number ^ number >> 30) * MIX_A & WORD
    number = (number ^ number >> 27) * MIX_B & WORD
    return number ^ number >> 31


# --- Contents -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpectedPublisher:
    """A publisher of the workload.

    Attributes:
        name: name of the client, for example "p1-pub-2".
        broker: the access broker.
        index: number in the formula that chooses contents.
        size_bytes: size of each payload.
    """

    name: str
    broker: str
    index: int
    size_bytes: int


@dataclass(frozen=True)
class ExpectedContent:
    """All contents that a workload, a seed and a run id determine.

    Attributes:
        attribute_sets: the table; a fence is the set behind the last set.
        publishers: publishers by client name.
        numbered: the attribute that counts a source's publications, if any, with the value of the
            first publication; the attribute sets have this value.
    """

    run_id: str
    seed: int
    attribute_sets: Sequence[AttributeSet]
    publishers: Mapping[str, ExpectedPublisher]
    numbered: tuple[str, int] | None = None
    _digests: dict[int, list[list[int]]] = field(default_factory=dict, repr=False, compare=False)
    _payloads: dict[int, Sequence[bytes]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_workload(cls, workload: Mapping[str, Any], run_id: str) -> "ExpectedContent":
        """Return the contents that a resolved workload file prescribes.

        Raises:
            ExpectationError: a value of the workload cannot be read.
        """
        definitions = dict(workload.get("attributes", {}))
        count = definitions.pop("sets", 100)
        seed = int(workload.get("seed", 1))
        publishers: dict[str, ExpectedPublisher] = {}
        at_broker: dict[str, int] = {}
        for entry in workload.get("publishers", ()):
            places = [entry["at"]] if isinstance(entry["at"], str) else entry["at"]
            for broker in (broker for broker in places for _ in range(entry.get("count", 1))):
                at_broker[broker] = at_broker.get(broker, 0) + 1
                name = f"{broker}-pub-{at_broker[broker]}"
                size_bytes = read_size_bytes(entry.get("size", "100B"))
                publishers[name] = ExpectedPublisher(name, broker, len(publishers), size_bytes)
        counting = [
            (name, how["sequence"]) for name, how in definitions.items() if "sequence" in how
        ]
        numbered = counting[0] if counting else None
        table = attribute_table(seed, definitions, count)
        return cls(run_id, seed, table, publishers, numbered)

    @property
    def fence_set(self) -> int:
        """The number of a fence among the attribute sets."""
        return len(self.attribute_sets)

    def attributes(self, attribute_set: int) -> AttributeSet:
        """Return the attributes of an attribute set, or of a fence."""
        if attribute_set == self.fence_set:
            return {FENCE_ATTRIBUTE: self.run_id}
        return self.attribute_sets[attribute_set]

    def choice(self, publisher_index: int, incarnation: int, sequence: int) -> tuple[int, int]:
        """Return attribute set and payload of a publication that is no fence."""
        start = seed_of_source(self.seed, publisher_index, incarnation)
        mixed = splitmix64(start + sequence & WORD)
        return mixed % len(self.attribute_sets), (mixed >> 32) % PAYLOADS_PER_TABLE

    def digest(
        self, publisher: ExpectedPublisher, incarnation: int, sequence: int, *, fence: bool
    ) -> int:
        """Return the digest that every subscriber must compute for this publication."""
        attribute_set, payload = self.choice(publisher.index, incarnation, sequence)
        if self.numbered is not None and not fence:
            name, start = self.numbered
            attributes = {**self.attribute_sets[attribute_set], name: start + sequence - 1}
            payloads = self._payloads_of(publisher.size_bytes)
            return zlib.crc32(payloads[payload], zlib.crc32(encode_attributes(attributes)))
        row = self.fence_set if fence else attribute_set
        return self.digest_table(publisher.size_bytes)[row][payload]

    def _payloads_of(self, size_bytes: int) -> Sequence[bytes]:
        if size_bytes not in self._payloads:
            self._payloads[size_bytes] = payload_table(self.seed, size_bytes)
        return self._payloads[size_bytes]

    def digest_table(self, size_bytes: int) -> list[list[int]]:
        """Return digests by attribute set (the fence last) and payload, for this size."""
        if size_bytes not in self._digests:
            payloads = self._payloads_of(size_bytes)
            blobs = [encode_attributes(self.attributes(n)) for n in range(self.fence_set + 1)]
            self._digests[size_bytes] = [
                [zlib.crc32(payload, zlib.crc32(blob)) for payload in payloads] for blob in blobs
            ]
        return self._digests[size_bytes]


def seed_of_source(seed: int, publisher_index: int, incarnation: int) -> int:
    """Return the summand of a sequence number before mixing, different for each source."""
    return (seed + GOLDEN * (publisher_index + 1) + MIX_A * (incarnation + 1)) & WORD


def attribute_table(
    seed: int, definitions: Mapping[str, Mapping[str, Any]], count: int
) -> tuple[AttributeSet, ...]:
    """Return the `count` attribute sets that the seed draws from a workload's definitions."""
    start = splitmix64(seed ^ ATTRIBUTE_STREAM)
    rows = []
    for row in range(count):
        attributes: dict[str, Scalar] = {}
        for column, (name, definition) in enumerate(definitions.items()):
            drawn = splitmix64(start + row * TABLE_STRIDE + column & WORD)
            attributes[name] = _draw_value(name, definition, row, drawn)
        rows.append(attributes)
    return tuple(rows)


def _draw_value(name: str, definition: Mapping[str, Any], row: int, drawn: int) -> Scalar:
    match definition:
        case {"sequence": int(first)}:
            return first
        case {"cycle": int(among)}:
            return f"{name.upper()}{row % among:03d}"
        case {"choose": int(among)}:
            return f"{name.upper()}{drawn % among:03d}"
        case {"choose": list(among)}:
            chosen: Scalar = among[drawn % len(among)]
            return chosen
        case {"uniform": [int(low), int(high)]}:
            return int(low + drawn % (high - low + 1))
        case {"uniform": [low, high]}:
            return round(float(low + (high - low) * (drawn >> 11) / 2**53), 2)
    raise ExpectationError(f"attribute {name!r}: no way to draw {definition!r} is known")


def payload_table(seed: int, size_bytes: int) -> tuple[bytes, ...]:
    """Return the payloads of this size."""
    start = splitmix64(seed ^ PAYLOAD_STREAM)
    words = (size_bytes + 7) // 8
    return tuple(
        b"".join(
            struct.pack("<Q", splitmix64(start + number * TABLE_STRIDE + word & WORD))
            for word in range(words)
        )[:size_bytes]
        for number in range(PAYLOADS_PER_TABLE)
    )


def read_size_bytes(size: object) -> int:
    """Return the bytes of a size in the syntax of workload files, for example "100B" or "4KiB"."""
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", str(size))
    if found is None or found[2] not in _SIZE_UNITS:
        raise ExpectationError(f"{size!r} is no size; one looks like 100B or 4KiB")
    return round(float(found[1]) * _SIZE_UNITS[found[2]])


def encode_attributes(attributes: AttributeSet) -> bytes:
    """Return the only CBOR encoding of an attribute set: keys sorted by bytes, shortest numbers."""
    pairs = sorted((_encode(name), _encode(value)) for name, value in attributes.items())
    return _head(5, len(pairs)) + b"".join(name + value for name, value in pairs)


def _encode(value: Scalar) -> bytes:
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, str):
        text = value.encode()
        return _head(3, len(text)) + text
    for head, code in ((0xF9, ">e"), (0xFA, ">f"), (0xFB, ">d")):
        try:
            packed = struct.pack(code, value)
        except OverflowError:
            continue
        if struct.unpack(code, packed)[0] == value:
            return bytes([head]) + packed
    raise ExpectationError(f"{value!r} cannot be an attribute's value")


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major << 5 | argument])
    for extra, code in ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q")):
        try:
            return bytes([major << 5 | extra]) + struct.pack(code, argument)
        except struct.error:
            continue
    raise ExpectationError(f"{argument} needs more than 64 bits")


# A test that is impossible (the attribute is absent, or its kind is not comparable with the
# operand) is false, and its negation is false as well. So negation is not the opposite of the
# result: negation is passed down to the tests, and each test decides for itself.

_TOKENS = re.compile(
    r"\s+|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<text>'(?:[^']|'')*')"
    r"|(?P<sign><=|>=|!=|[=<>(),])|(?P<word>[^\W\d][\w.-]*)"
)
_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_WORDS = ("in", "prefix", "suffix", "contains", "exists")


@dataclass(frozen=True)
class PredicateNode:
    """A parsed predicate: `kind` is "and", "or", "not", "true" or a test's operator."""

    kind: str
    parts: tuple["PredicateNode", ...] = ()
    attribute: str = ""
    operand: Scalar | tuple[Scalar, ...] | None = None

    def attributes(self) -> Iterator[str]:
        """Yield the names of the predicate's attributes; names may repeat."""
        if self.attribute:
            yield self.attribute
        for part in self.parts:
            yield from part.attributes()

    def holds(self, attributes: AttributeSet, *, negated: bool = False) -> bool:
        """Return True if the predicate matches a publication with these attributes."""
        if self.kind == "true":
            return not negated
        if self.kind == "not":
            return self.parts[0].holds(attributes, negated=not negated)
        if self.kind in ("and", "or"):
            results = (part.holds(attributes, negated=negated) for part in self.parts)
            return all(results) if (self.kind == "and") != negated else any(results)
        if self.kind == "exists":
            return (self.attribute in attributes) != negated
        if self.attribute not in attributes:
            return False
        outcome = _test(self.kind, attributes[self.attribute], self.operand)
        return outcome is not None and outcome != negated


def _test(operator: str, value: Scalar, operand: Any) -> bool | None:
    """Return the result of a test, None for an impossible test."""
    if operator == "in":
        outcomes = [_test("=", value, item) for item in operand]
        made = [outcome for outcome in outcomes if outcome is not None]
        return any(made) if made else None
    if _kind(value) is not _kind(operand):
        return None
    if operator in ("prefix", "suffix", "contains"):
        if not isinstance(value, str):
            return None
        text = str(operand)
        if operator == "contains":
            return text in value
        return value.startswith(text) if operator == "prefix" else value.endswith(text)
    below, equal = bool(value < operand), bool(value == operand)
    return {
        "=": equal,
        "!=": not equal,
        "<": below,
        "<=": below or equal,
        ">": not below and not equal,
        ">=": not below,
    }[operator]


def _kind(value: Scalar) -> type:
    """Return the kind of a value for comparisons: int and float share a kind, all others differ."""
    if isinstance(value, bool | str):
        return type(value)
    return float


LONGEST_PREDICATE = 16_384
DEEPEST_PREDICATE = 100
"""A limit above the limit of any broker."""


@lru_cache(maxsize=4096)
def parse_predicate(text: str) -> PredicateNode:
    """Parse a predicate such as `symbol = 'IBM' and price > 100 or volume in (1, 2)`.

    Raises:
        ExpectationError: the text cannot be read; names the unexpected token.
    """
    if len(text) > LONGEST_PREDICATE:
        raise ExpectationError(
            f"a predicate of {len(text)} characters; at most {LONGEST_PREDICATE}"
        )
    reader = _Reader(text)
    node = reader.read_any_of()
    if (left := reader.peek()) is not None:
        raise reader.error(f"{left[1]!r} is not expected")
    return node


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*self._split(text)]
        self._place = 0
        self._depth = 0

    def _split(self, text: str) -> Iterator[tuple[str, str]]:
        at = 0
        while at < len(text):
            found = _TOKENS.match(text, at)
            if found is None:
                raise self.error(f"{text[at]!r} cannot be read")
            if found.lastgroup is not None:
                yield found.lastgroup, found.group()
            at = found.end()

    def error(self, problem: str) -> ExpectationError:
        return ExpectationError(f"predicate {self._text!r}: {problem}")

    def peek(self) -> tuple[str, str] | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _is(self, *texts: str) -> bool:
        """Consume the next token and return True if the token is among these signs or words."""
        token = self.peek()
        found = token is not None and token[0] in ("sign", "word") and token[1].lower() in texts
        self._place += found
        return found

    def _need(self, sign: str) -> None:
        if not self._is(sign):
            raise self.error(f"{sign!r} is missing")

    def read_any_of(self) -> PredicateNode:
        parts = [self._read_all_of()]
        while self._is("or"):
            parts.append(self._read_all_of())
        return PredicateNode("or", tuple(parts)) if len(parts) > 1 else parts[0]

    def _read_all_of(self) -> PredicateNode:
        parts = [self._read_one()]
        while self._is("and"):
            parts.append(self._read_one())
        return PredicateNode("and", tuple(parts)) if len(parts) > 1 else parts[0]

    def _read_one(self) -> PredicateNode:
        if self._depth > DEEPEST_PREDICATE:
            raise ExpectationError(f"brackets and `not` nest deeper than {DEEPEST_PREDICATE}")
        self._depth += 1
        node = self._read_factor()
        self._depth -= 1
        return node

    def _read_factor(self) -> PredicateNode:
        if self._is("not"):
            return PredicateNode("not", (self._read_one(),))
        if self._is("("):
            inside = self.read_any_of()
            self._need(")")
            return inside
        if self._is("true"):
            return PredicateNode("true")
        token = self.peek()
        if token is None or token[0] != "word":
            raise self.error("an attribute's name is missing")
        self._place += 1
        if self._is("not"):
            return PredicateNode("not", (self._read_test(token[1]),))
        return self._read_test(token[1])

    def _read_test(self, attribute: str) -> PredicateNode:
        token = self.peek()
        operator = token[1].lower() if token is not None and token[0] != "text" else ""
        if operator not in (*_COMPARISONS, *_WORDS):
            raise self.error(f"no test follows {attribute!r}")
        self._place += 1
        operand: Scalar | tuple[Scalar, ...] | None = None
        if operator == "in":
            self._need("(")
            items = [self._read_value()]
            while self._is(","):
                items.append(self._read_value())
            self._need(")")
            operand = tuple(items)
        elif operator != "exists":
            operand = self._read_value()
        return PredicateNode(operator, (), attribute, operand)

    def _read_value(self) -> Scalar:
        match self.peek():
            case ("text", quoted):
                value: Scalar = quoted[1:-1].replace("''", "'")
            case ("number", digits):
                value = float(digits) if re.search(r"[.eE]", digits) else int(digits)
            case ("word", word) if word.lower() in ("true", "false"):
                value = word.lower() == "true"
            case _:
                raise self.error("a value is missing")
        self._place += 1
        return value
