"""The encodings of runs as log records, of predicates as lists, of positions, and of states.

Payloads are neither read nor copied.

Paper: none.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from brokerd.errors import ResumeTokenRefused
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.predicate import Constraint, Predicate
from brokerd.model.publication import Buffer, PublicationRun

_HEAD: Final = struct.Struct(">QQQQIIIB")
# source, first sequence, publications, attribute blobs, bytes per payload, flags of what follows
_STEPS, _PLACES, _LENGTHS = 1, 2, 4


def pack_run(run: PublicationRun) -> tuple[Buffer, ...]:
    """Return the pieces of a record; payload pieces are the run's own."""
    sequences, table, lengths = run.sequences, run.attribute_table, run.payload_lengths
    count = len(sequences)
    follows = 0
    parts: list[Buffer] = []
    if not isinstance(sequences, range):
        follows |= _STEPS
        parts.append(struct.pack(f">{count}Q", *sequences))
    parts.append(struct.pack(f">{len(table)}I", *map(len, table)))
    parts.extend(table)
    if len(table) > 1:
        follows |= _PLACES
        parts.append(struct.pack(f">{count}I", *run.attribute_index))
    length = 0
    if isinstance(lengths, int):
        length = lengths
    else:
        follows |= _LENGTHS
        parts.append(struct.pack(f">{count}I", *lengths))
    head = _HEAD.pack(*run.source, sequences[0], count, len(table), length, follows)
    return (b"".join((head, *parts)), *run.payload)


def unpack_run(record: Buffer, position: int = 0) -> PublicationRun:
    """Return the run from `position` to the end of the record; the payload is a slice."""
    broker, publisher, incarnation, first, count, blobs, length, follows = _HEAD.unpack_from(
        record, position
    )
    position += _HEAD.size

    def numbers(size: str, how_many: int) -> tuple[int, ...]:
        nonlocal position
        layout = struct.Struct(f">{how_many}{size}")
        found = layout.unpack_from(record, position)
        position += layout.size
        return found

    sequences: range | tuple[int, ...] = range(first, first + count)
    if follows & _STEPS:
        sequences = numbers("Q", count)
    table = []
    for size in numbers("I", blobs):
        table.append(bytes(record[position : position + size]))
        position += size
    index: Sequence[int] = bytes(count)
    if follows & _PLACES:
        places = numbers("I", count)
        index = bytes(places) if blobs <= 256 else places
    lengths: int | tuple[int, ...] = length
    if follows & _LENGTHS:
        lengths = numbers("I", count)
    payload = memoryview(record)[position:]
    run = PublicationRun(
        SourceId(broker, publisher, incarnation),
        sequences,
        tuple(table),
        index,
        lengths,
        (payload,) if payload else (),
    )
    assert run.payload_bytes() == len(payload), f"{len(payload)} bytes of payload: {run}"
    return run


def predicate_row(predicate: Predicate) -> list[list[list[Any]]]:
    """Return a predicate as plain lists; floats become text, because rows hold no floats."""
    return [
        [[test.attribute, test.operator, _plain(test.value)] for test in conjunction]
        for conjunction in predicate.any_of
    ]


def read_predicate(row: Any) -> Predicate:
    """Return the predicate in a row of `predicate_row`.

    Raises:
        TypeError, ValueError, PredicateError: the row belongs to no predicate.
    """
    return Predicate(
        tuple(
            tuple(
                Constraint(attribute, operator, _value(value))
                for attribute, operator, value in conjunction
            )
            for conjunction in row
        )
    )


def _plain(value: Any) -> list[Any]:
    if value is None:
        return ["nothing"]
    if isinstance(value, tuple):
        return ["list", *[_plain(item) for item in value]]
    if isinstance(value, float):
        return ["float", value.hex()]
    return ["plain", value]


def _value(row: list[Any]) -> Any:
    kind, *rest = row
    if kind == "nothing":
        return None
    if kind == "list":
        return tuple(_value(item) for item in rest)
    return float.fromhex(rest[0]) if kind == "float" else rest[0]


Positions = Sequence[tuple[StreamId, int]]
"""A stream and the last position in the stream that counts as received."""

_POSITION: Final = struct.Struct(">QQQQ")


def pack_positions(positions: Positions) -> bytes:
    """Return the positions as bytes; the order of the positions does not matter."""
    return b"".join(_POSITION.pack(*stream, last) for stream, last in sorted(positions))


def unpack_positions(content: bytes) -> tuple[tuple[StreamId, int], ...]:
    """Return the positions in the bytes of `pack_positions`, in order.

    Raises:
        ResumeTokenRefused: no positions give these bytes.
    """
    if len(content) % _POSITION.size:
        raise ResumeTokenRefused(f"{len(content)} bytes are no positions")
    read = [(StreamId(*values[:3]), values[3]) for values in _POSITION.iter_unpack(content)]
    streams = [stream for stream, _ in read]
    if streams != sorted(dict.fromkeys(streams)):
        raise ResumeTokenRefused("positions that are out of order, or of one stream twice")
    return tuple(read)


def json_value(value: Any) -> Any:
    """Return a value for JSON, in which all keys are texts, and all sequences lists."""
    if isinstance(value, Mapping):
        return {str(key): json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    return value
