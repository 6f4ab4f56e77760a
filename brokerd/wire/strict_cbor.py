"""Plain CBOR: the only decoder of bytes from outside, encoders of items, checks of values."""

import struct
from collections.abc import Sequence
from io import BytesIO
from math import isfinite
from typing import Any, Final, NoReturn

import cbor2

MAXIMUM_DEPTH: Final = 16

# Tags that cbor2 decodes natively; all others reach the tag hook.
_NATIVE_TAGS: Final = (
    *(0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100),
    *(256, 258, 260, 261, 1004, 43000, 55799),
)

NULL: Final = b"\xf6"
FALSE: Final = b"\xf4"
TRUE: Final = b"\xf5"

_LOOKED_UP: Final = 1_024
_WIDTHS: Final = (
    (1 << 8, 24, struct.Struct(">BB")),
    (1 << 16, 25, struct.Struct(">BH")),
    (1 << 32, 26, struct.Struct(">BI")),
    (1 << 64, 27, struct.Struct(">BQ")),
)


class Misfit(ValueError):
    """A decoded value that does not fit; the text never contains the value itself."""


INTEGER_LIMIT = 1 << 63


def check_integer(value: object) -> int:
    """Return the value, which must be an integer from 0 to 2⁶³-1.

    Raises:
        Misfit: the value is something else.
    """
    if type(value) is not int or not 0 <= value < INTEGER_LIMIT:
        raise Misfit(f"expected an integer from 0 to 2^63-1, got {type(value).__name__}")
    return value


def check_integers(values: list[object]) -> None:
    """Check that all values are integers from 0 to 2⁶³-1.

    Raises:
        Misfit: a value is something else.
    """
    for value in values:
        if type(value) is not int or not 0 <= value < INTEGER_LIMIT:
            raise Misfit(f"expected integers from 0 to 2^63-1, got {type(value).__name__}")


class StrictCborError(ValueError):
    """Bytes that are not one strict CBOR value; the text is bounded and safe to print."""


def decode_strict(data: bytes | memoryview) -> Any:
    """Return the single value that `data` contains, all of `data`.

    The value is built of None, bool, int within 65 bits, float (NaN and infinities too), str,
    bytes, list and dict with str or bytes keys, at most MAXIMUM_DEPTH deep. `undefined` and simple
    values are returned as cbor2 decodes them: the caller's check of types refuses these values. The
    size of the value is bounded by the size of `data`, at most some 16 bytes of memory per byte:
    the caller limits `data` first.

    Raises:
        StrictCborError: anything else: tags of any kind, indefinite lengths, repeated or other
            keys, too deep, cut short, or bytes behind the value.
    """
    value, end, _ = decode_strict_pair(data)
    if end != len(data):
        raise StrictCborError(f"{len(data) - end} bytes after the end of the CBOR value")
    return value


def decode_strict_pair(data: bytes | memoryview) -> tuple[Any, int, Any]:
    """Return the one or two values in `data`, all of `data`: the first, its end, the second.

    If the first value ends with `data`, the second is None. Both are as strict as in
    `decode_strict`.

    Raises:
        StrictCborError: anything else.
    """
    # A thread that decodes at the same time takes another reader.
    reader = _spare.pop() if _spare else _Reader()
    stream, decode = reader.stream, reader.decode
    stream.seek(0)
    stream.write(data)
    stream.truncate()
    stream.seek(0)
    size = len(data)
    second = None
    try:
        first = decode()
        end = stream.tell()
        if end < size:
            second = decode()
    except cbor2.CBORError as error:
        # Any state that the value has left in the reader is dropped with the reader.
        raise StrictCborError(f"not strict CBOR: {str(error)[:200]}") from None
    if stream.tell() != size:
        raise StrictCborError(f"{size - stream.tell()} bytes after the end of the CBOR value")
    if size <= _KEPT_BYTES:
        _spare.append(reader)
    return first, end, second


def check_plain(value: Any, where: str) -> None:
    """Check that `value` consists of values that text-keyed maps allow: JSON's kinds, and bytes.

    Raises:
        StrictCborError: a kind, key or number that is not allowed, with its place.
    """
    if value is None or isinstance(value, bool | str | bytes):
        return
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise StrictCborError(f"{where}: an integer beyond 64 bits")
    elif isinstance(value, float):
        if not isfinite(value):
            raise StrictCborError(f"{where}: {value} is not a number that counts")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            check_plain(item, f"{where}[{place}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise StrictCborError(f"{where}: a key of type {type(key).__name__}, not text")
            check_plain(item, f"{where}.{key[:40]}")
    else:
        raise StrictCborError(f"{where}: {type(value).__name__} is not allowed")


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("CBOR tags are not allowed")


_REFUSED_TAGS: Final = dict.fromkeys(_NATIVE_TAGS, _refuse_tag)


class _Reader:
    """A stream and its decoder; creating both costs as much as decoding a header."""

    __slots__ = ("decode", "stream")

    def __init__(self) -> None:
        self.stream = BytesIO()
        self.decode = cbor2.CBORDecoder(
            self.stream,
            tag_hook=_refuse_tag,
            semantic_decoders=_REFUSED_TAGS,
            max_depth=MAXIMUM_DEPTH,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        ).decode


_KEPT_BYTES: Final = 1 << 16
"""A reader that read more is not kept: its stream would occupy as much memory."""
_spare: Final[list[_Reader]] = []


class _Heads(dict[int, bytes]):
    """The shortest head of one major type of CBOR for each argument from 0 to 2⁶⁴-1."""

    def __init__(self, major: int) -> None:
        self._major = major << 5
        super().__init__({argument: self._head(argument) for argument in range(_LOOKED_UP)})

    def __missing__(self, argument: int) -> bytes:
        return self._head(argument)

    def _head(self, argument: int) -> bytes:
        assert argument >= 0, f"{argument} is no argument of a CBOR head"
        if argument < 24:
            return bytes((self._major | argument,))
        for limit, width, layout in _WIDTHS:
            if argument < limit:
                return layout.pack(self._major | width, argument)
        raise AssertionError(f"{argument} is no argument of a CBOR head")


INTEGERS: Final = _Heads(0)
"""An integer from 0 to 2⁶⁴-1, whole."""
OCTETS: Final = _Heads(2)
"""The head of an item of so many bytes."""
TEXTS: Final = _Heads(3)
"""The head of an item of so many bytes of UTF-8."""
ARRAYS: Final = _Heads(4)
"""The head of an array of so many items."""


def text(value: str) -> bytes:
    encoded = value.encode()
    return TEXTS[len(encoded)] + encoded


def octets(value: bytes) -> bytes:
    return OCTETS[len(value)] + value


def numbers(values: bytes | Sequence[int] | None) -> bytes:
    """Return the item for many integers: bytes if given as bytes, else an array, or null."""
    if values is None:
        return NULL
    if isinstance(values, bytes):
        return octets(values)
    if values and max(values) < _LOOKED_UP:
        return ARRAYS[len(values)] + b"".join(map(INTEGERS.__getitem__, values))
    return cbor2.dumps(list(values))
