"""Messages as frames, and back: one generic, strict codec derived from their annotations.

A frame is u32 length of the rest, u32 header length (big-endian), header, payload. The header
is one CBOR array [type number, field…] that ends exactly there. The payload is what a message's
publication run carries, raw; the lengths in the header must add up to it. So a broker decodes
a small header per run and passes on payload bytes it never looks at.

Values: int from 0 to 2⁶³-1; text up to 1,024 bytes; tuples, named tuples and dataclasses as
arrays of their fields; a publication run as [source, first, count, steps, attribute table,
attribute index, payload lengths], where steps are given only for a run with holes, the index
only where it is not plain, and one length stands for all equal ones. Only a run of a stream that
is no source has one item more, its origins as [source, first, count, steps] each.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import accumulate, pairwise
from types import NoneType, UnionType
from typing import Any, Final, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import cbor2

from brokerd.errors import BrokerError, RemoteProtocolError
from brokerd.model.identity import SourceId
from brokerd.model.message_kind import MessageKind
from brokerd.model.predicate import Constraint
from brokerd.model.publication import Buffer, OriginRun, PublicationRun
from brokerd.wire.attributes import MAXIMUM_BLOB_BYTES
from brokerd.wire.registry import KINDS
from brokerd.wire.strict_cbor import StrictCborError, decode_strict

PREFIX: Final = struct.Struct(">II")
INTEGER_LIMIT: Final = 1 << 63
TEXT_LIMIT_BYTES: Final = 1_024
MAXIMUM_RUN_PUBLICATIONS: Final = 1 << 14

# A short payload that stays a slice would keep the whole receive buffer alive for as long as
# its publication is queued.
_SLICE_SHARE: Final = 4

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]


class _Misfit(ValueError):
    """A decoded value does not fit; its text never holds the value itself."""


def encode(message: Any) -> list[Buffer]:
    """The pieces of the frame that carries `message`; payload pieces are the run's own."""
    return _CODECS_BY_TYPE[type(message)].encode(message)


def decode(header: Buffer, payload: memoryview, peer: object = "unknown") -> Any:
    """The message in a frame; a run's payload is a slice of `payload`, or a copy if small.

    Raises:
        RemoteProtocolError: it is none of ours; says what is wrong, never more than 300
            characters of it.
    """
    try:
        values = decode_strict(header)
        if type(values) is not list or not values or type(values[0]) is not int:
            raise _Misfit("the header is not an array that starts with a type number")
        codec = _CODECS_BY_NUMBER.get(values[0])
        if codec is None:
            # A peer's integer may have millions of digits, but not within 65 bits.
            raise _Misfit(f"no message has the type number {values[0]}")
        return codec.decode(values, payload)
    except (StrictCborError, _Misfit, BrokerError) as error:
        raise RemoteProtocolError(peer, str(error)) from None


def frames(message: Any, limit_bytes: int) -> Iterator[tuple[list[Buffer], int]]:
    """The frame that carries the message, in pieces, and its size.

    Several frames with parts of its run, in order, where one would be over the limit or longer
    than any receiver takes. A message without a run goes as it is: only a trusted peer takes it
    when it is over the limit.

    Raises:
        ValueError: one publication alone is too large.
    """
    codec = _CODECS_BY_TYPE[type(message)]
    pieces = codec.encode(message)
    size = sum(map(len, pieces))
    run = getattr(message, codec.run_field) if codec.run_field else None
    if run is None or (size <= limit_bytes and len(run) <= MAXIMUM_RUN_PUBLICATIONS):
        yield pieces, size
        return
    parts = codec.split(message) if codec.split is not None else ()
    if not parts:
        raise ValueError(f"publication {run.first} of {run.source}: {size} bytes of {limit_bytes}")
    for part in parts:
        yield from frames(part, limit_bytes)


class _MessageCodec:
    """Encodes and decodes one type of message."""

    def __init__(self, described: MessageKind) -> None:
        kind = described.type
        hints = get_type_hints(kind)
        names = [field.name for field in fields(kind)]
        run_fields = [name for name in names if hints[name] is PublicationRun]
        assert len(run_fields) <= 1, f"{kind.__name__} has several runs"
        assert described.split or not run_fields, f"{kind.__name__} does not say how it is split"
        self.run_field = run_fields[0] if run_fields else ""
        self.split = described.split
        self._kind = kind
        self._number = described.number
        compiled = {name: _compile(hints[name]) for name in names if name != self.run_field}
        self._fields: list[tuple[str, Encoder | None]] = [
            (name, compiled[name][0] if name in compiled else _encode_run) for name in names
        ]
        self._decoders: list[tuple[str, Decoder | None]] = [
            (name, compiled[name][1] if name in compiled else None) for name in names
        ]

    def encode(self, message: Any) -> list[Buffer]:
        values = [self._number]
        for name, encoder in self._fields:
            value = getattr(message, name)
            values.append(value if encoder is None else encoder(value))
        header = cbor2.dumps(values)
        if not self.run_field:
            return [PREFIX.pack(len(header) + 4, len(header)) + header]
        run = getattr(message, self.run_field)
        length = len(header) + 4 + run.payload_bytes()
        return [PREFIX.pack(length, len(header)) + header, *run.payload]

    def decode(self, values: list[Any], payload: memoryview) -> Any:
        if len(values) != len(self._decoders) + 1:
            raise _Misfit(f"{self._kind.__name__} with {len(values) - 1} fields")
        if payload and not self.run_field:
            raise _Misfit(f"{self._kind.__name__} with a payload")
        decoded = []
        for (name, decoder), value in zip(self._decoders, values[1:], strict=True):
            try:
                decoded.append(decoder(value) if decoder else _decode_run(value, payload))
            except _Misfit as error:
                raise _Misfit(f"{self._kind.__name__}.{name}: {error}") from None
        return self._kind(*decoded)


# ---------------------------------------------------------------- publication runs

_IDENTITY: Final = bytes(range(256))


def _encode_run(run: PublicationRun) -> list[Any]:
    sequences, table, index = run.sequences, run.attribute_table, run.attribute_index
    count = len(sequences)
    steps = None if isinstance(sequences, range) else _steps(sequences)
    plain = len(table) == 1 or (len(table) == count and list(index) == list(range(count)))
    lengths = run.payload_lengths
    if not isinstance(lengths, int) and lengths.count(lengths[0]) == count:
        lengths = lengths[0]
    places: bytes | list[int] | None = None
    if not plain:
        places = bytes(index) if len(table) <= 256 else list(index)
    values = [tuple(run.source), sequences[0], count, steps, table, places, lengths]
    if run.origins:
        values.append(
            [
                [tuple(source), numbers[0], len(numbers), _steps(numbers)]
                for source, numbers in run.origins
            ]
        )
    return values


def _steps(sequences: range | tuple[int, ...]) -> bytes | list[int] | None:
    """From each number to the next one; None where all are consecutive."""
    if sequences[-1] - sequences[0] + 1 == len(sequences):
        return None
    steps = [after - before for before, after in pairwise(sequences)]
    return bytes(steps) if max(steps) < 256 else steps


def _decode_run(value: Any, payload: memoryview) -> PublicationRun:
    if type(value) is not list or not 7 <= len(value) <= 8:
        raise _Misfit("not a publication run")
    source, first, count, steps, table, index, lengths = value[:7]
    _integer(first)
    if not 0 < _integer(count) <= MAXIMUM_RUN_PUBLICATIONS:
        raise _Misfit(f"a run of {count} publications; 1 to {MAXIMUM_RUN_PUBLICATIONS}")
    sequences = _decode_sequences(first, count, steps)
    attribute_table = _decode_table(table, count)
    attribute_index = _decode_index(index, count, len(table))
    if type(lengths) is list:
        _integers(lengths)
        if len(lengths) != count or lengths.count(lengths[0]) == count:
            raise _Misfit(f"{len(lengths)} payload lengths for {count} publications")
        size = sum(lengths)
        lengths = tuple(lengths)
    else:
        size = count * _integer(lengths)
    if size != len(payload):
        raise _Misfit(f"payloads of {min(size, INTEGER_LIMIT)} bytes in {len(payload)}")
    pieces: tuple[Buffer, ...] = ()
    if size:
        kept = isinstance(payload.obj, bytes) and size * _SLICE_SHARE >= len(payload.obj)
        pieces = (payload if kept else bytes(payload),)
    return PublicationRun(
        _decode_source(source),
        sequences,
        attribute_table,
        attribute_index,
        lengths,
        pieces,
        _decode_origins(value[7], count) if len(value) == 8 else (),
    )


def _decode_origins(value: Any, count: int) -> tuple[OriginRun, ...]:
    if type(value) is not list or not 0 < len(value) <= count:
        raise _Misfit(f"not the origins of {count} publications")
    origins: list[OriginRun] = []
    for each in value:
        if type(each) is not list or len(each) != 4:
            raise _Misfit("not an origin")
        source, first, many, steps = each
        if not 0 < _integer(many) <= count:
            raise _Misfit(f"an origin of {many} publications in {count}")
        sequences = _decode_sequences(_integer(first), many, steps)
        origins.append(OriginRun(_decode_source(source), sequences))
    if sum(len(origin.sequences) for origin in origins) != count:
        raise _Misfit(f"origins that are not those of {count} publications")
    return tuple(origins)


def _decode_sequences(first: int, count: int, steps: Any) -> range | tuple[int, ...]:
    if steps is None:
        if first + count > INTEGER_LIMIT:
            raise _Misfit("sequence numbers beyond 63 bits")
        return range(first, first + count)
    if type(steps) is list:
        _integers(steps)
    elif type(steps) is not bytes:
        raise _Misfit("steps are neither bytes nor integers")
    if len(steps) != count - 1 or not steps or min(steps) < 1 or max(steps) == 1:
        raise _Misfit(f"{len(steps)} steps, or steps of 0 or all of 1, for {count} publications")
    sequences = tuple(accumulate(steps, initial=first))
    if sequences[-1] >= INTEGER_LIMIT:
        raise _Misfit("sequence numbers beyond 63 bits")
    return sequences


def _decode_table(table: Any, count: int) -> tuple[bytes, ...]:
    if type(table) is not list or not 0 < len(table) <= count:
        raise _Misfit(f"not a table of attributes for {count} publications")
    for blob in table:
        if type(blob) is not bytes or not 0 < len(blob) <= MAXIMUM_BLOB_BYTES:
            raise _Misfit(f"attributes are not 1 to {MAXIMUM_BLOB_BYTES} bytes")
    if len(table) > 1 and len(set(table)) != len(table):
        raise _Misfit("attributes stand twice in a table")
    return tuple(table)


def _decode_index(index: Any, count: int, places: int) -> Sequence[int]:
    if index is None:
        if places == 1:
            return bytes(count)
        if places == count:
            return _IDENTITY[:count] if count <= 256 else range(count)
        raise _Misfit(f"no index into a table of {places} for {count} publications")
    if places == 1:
        raise _Misfit("an index into a table of one")
    if places <= 256:
        if type(index) is not bytes:
            raise _Misfit("an index that is not bytes")
    elif type(index) is not list:
        raise _Misfit("an index that is not an array")
    else:
        _integers(index)
    if len(index) != count or max(index) >= places:
        raise _Misfit(f"an index of {len(index)} for {count} publications, or beyond {places}")
    return index if places <= 256 else tuple(index)


# ---------------------------------------------------------------- everything else


def _compile(annotation: Any) -> tuple[Encoder | None, Decoder]:
    """How a value of this annotation is encoded (None: as it is) and decoded."""
    if annotation in _PLAIN:
        return None, _PLAIN[annotation]
    if annotation is Constraint:
        return _encode_constraint, _decode_constraint
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return None, _literal(arguments)
    if origin in (Union, UnionType):
        (kind,) = (argument for argument in arguments if argument is not NoneType)
        assert len(arguments) == 2, f"{annotation} is more than one type or None"
        return _optional(*_compile(kind))
    if origin is tuple:
        if arguments[1:] == (...,):
            return _homogeneous(*_compile(arguments[0]))
        return _heterogeneous([_compile(argument) for argument in arguments], tuple)
    hints = get_type_hints(annotation)
    if issubclass(annotation, tuple):
        kinds = [_compile(hints[name]) for name in annotation._fields]
        # cbor2 would look for what a subclass of tuple might be, at ten times the cost.
        encoder, decoder = _heterogeneous(kinds, annotation._make)
        return encoder or tuple, decoder
    assert is_dataclass(annotation), f"no codec for {annotation}"
    names = [field.name for field in fields(annotation)]
    return _nested(annotation, [(name, _compile(hints[name])) for name in names])


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value < INTEGER_LIMIT:
        _refuse(value, "an integer from 0 to 2^63-1")
    return int(value)


def _integers(values: list[Any]) -> None:
    if not all(type(value) is int and 0 <= value < INTEGER_LIMIT for value in values):
        raise _Misfit("expected integers from 0 to 2^63-1")


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > TEXT_LIMIT_BYTES:
        _refuse(value, f"text of at most {TEXT_LIMIT_BYTES} bytes")
    if not value.isascii() and len(value.encode()) > TEXT_LIMIT_BYTES:
        _refuse(value, f"text of at most {TEXT_LIMIT_BYTES} bytes")
    return str(value)


def _octets(value: Any) -> bytes:
    if type(value) is not bytes:
        _refuse(value, "bytes")
    return bytes(value)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        _refuse(value, "a boolean")
    return bool(value)


_PLAIN: Final[dict[type, Decoder]] = {
    int: _integer,
    str: _text,
    bytes: _octets,
    bool: _boolean,
}


def _refuse(value: Any, expected: str) -> NoReturn:
    raise _Misfit(f"expected {expected}, got {type(value).__name__}")


def _array(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    _refuse(value, "an array")


def _literal(words: tuple[str, ...]) -> Decoder:
    def decode_literal(value: Any) -> Any:
        if type(value) is not str or value not in words:
            raise _Misfit(f"expected one of {', '.join(words)}")
        return value

    return decode_literal


def _optional(encoder: Encoder | None, decoder: Decoder) -> tuple[Encoder | None, Decoder]:
    def encode_optional(value: Any) -> Any:
        return None if value is None or encoder is None else encoder(value)

    def decode_optional(value: Any) -> Any:
        return None if value is None else decoder(value)

    return encode_optional if encoder else None, decode_optional


def _homogeneous(encoder: Encoder | None, decoder: Decoder) -> tuple[Encoder | None, Decoder]:
    def encode_tuple(values: Any) -> Any:
        return [encoder(value) for value in values] if encoder else values

    def decode_tuple(values: Any) -> Any:
        return tuple([decoder(value) for value in _array(values)])

    return encode_tuple if encoder else None, decode_tuple


def _heterogeneous(
    kinds: list[tuple[Encoder | None, Decoder]], make: Callable[[Any], Any]
) -> tuple[Encoder | None, Decoder]:
    encoders = [encoder for encoder, _ in kinds]
    decoders = [decoder for _, decoder in kinds]

    def encode_tuple(values: Any) -> Any:
        return [
            encoder(value) if encoder else value
            for encoder, value in zip(encoders, values, strict=True)
        ]

    def decode_tuple(values: Any) -> Any:
        if len(_array(values)) != len(decoders):
            raise _Misfit(f"{len(values)} items instead of {len(decoders)}")
        return make([decoder(value) for decoder, value in zip(decoders, values, strict=True)])

    return encode_tuple if any(encoders) else None, decode_tuple


def _nested(
    kind: Any, compiled: list[tuple[str, tuple[Encoder | None, Decoder]]]
) -> tuple[Encoder, Decoder]:
    names = [name for name, _ in compiled]
    encode_fields, decode_fields = _heterogeneous([each for _, each in compiled], tuple)

    def encode_nested(value: Any) -> Any:
        values = [getattr(value, name) for name in names]
        return encode_fields(values) if encode_fields else values

    def decode_nested(values: Any) -> Any:
        return kind(*decode_fields(values))

    return encode_nested, decode_nested


def _encode_constraint(constraint: Constraint) -> list[Any]:
    return [constraint.attribute, constraint.operator, constraint.value]


def _decode_constraint(value: Any) -> Constraint:
    if len(_array(value)) != 3:
        raise _Misfit(f"a test of {len(value)} items")
    attribute, operator, reference = value
    if type(reference) is list:
        reference = tuple(reference)
    if type(operator) is not str:
        _refuse(operator, "an operator")
    return Constraint(_text(attribute), operator, reference)


_decode_source: Final = _compile(SourceId)[1]
_CODECS_BY_NUMBER: Final = {kind.number: _MessageCodec(kind) for kind in KINDS.values()}
_CODECS_BY_TYPE: Final = {kind.type: _CODECS_BY_NUMBER[kind.number] for kind in KINDS.values()}
