"""The one way bytes from outside become Python values: CBOR without its surprises.

Plain CBOR lets a sender build shared and cyclic references, compiled patterns, megabyte
integers and maps with colliding keys in a few bytes. Every decoder of this project goes
through `decode_strict`, which knows none of that.
"""

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


class StrictCborError(ValueError):
    """The bytes are not one strict CBOR value; its text is bounded and safe to print."""


def decode_strict(data: bytes | memoryview) -> Any:
    """The one value that `data` holds, all of `data`.

    The value is built of None, bool, int within 65 bits, float (NaN and infinities too), str,
    bytes, list and dict with str or bytes keys, at most MAXIMUM_DEPTH deep. `undefined` and
    simple values come back as what cbor2 makes of them: the caller's check of types refuses
    them. How large the value gets is bounded by how large `data` is, at most some 16 bytes of
    memory for each: the caller limits that first.

    Raises:
        StrictCborError: anything else: tags of any kind, indefinite lengths, repeated or
            other keys, too deep, cut short, or bytes behind the value.
    """
    value, end, _ = decode_strict_pair(data)
    if end != len(data):
        raise StrictCborError(f"{len(data) - end} bytes behind the CBOR value")
    return value


def decode_strict_pair(data: bytes | memoryview) -> tuple[Any, int, Any]:
    """The one or two values that `data` holds, all of it: the first, where it ends, the second.

    Where the first one ends with `data`, there is no second: it is None. Both are as strict as
    those of `decode_strict`.

    Raises:
        StrictCborError: anything else.
    """
    # Whoever else decodes meanwhile, in another thread, takes another one.
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
        # Whatever the value has left behind in the reader goes with it.
        raise StrictCborError(f"not strict CBOR: {str(error)[:200]}") from None
    if stream.tell() != size:
        raise StrictCborError(f"{size - stream.tell()} bytes behind the CBOR value")
    if size <= _KEPT_BYTES:
        _spare.append(reader)
    return first, end, second


def check_plain(value: Any, where: str = "value") -> None:
    """Check that `value` is what text-keyed maps hold: JSON's kinds, and bytes.

    Raises:
        StrictCborError: a kind, key or number that is not allowed, and where it stands.
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
    """A stream and its decoder: making them costs as much as decoding a header."""

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
"""A reader that took more is not kept: its stream would keep as much memory."""
_spare: Final[list[_Reader]] = []
