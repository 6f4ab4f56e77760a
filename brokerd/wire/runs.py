"""The codec of publication runs, which are one flat CBOR array.

[broker, publisher, incarnation, first, count, steps, payload lengths, attribute index, number of
attribute blobs, blob…]: steps only for a run with gaps, the index only if it is not plain, else
null; one length stands for all equal lengths. Only a run of a stream that is no source has more:
per origin [broker, publisher, incarnation, first, count, steps]. Steps, lengths and index are one
item each, bytes or an array.

A received run keeps these bytes, so that a broker that passes the run on does not encode it again.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from typing import Any, Final

from brokerd.model.identity import SourceId
from brokerd.model.losses import has_marker, is_malformed
from brokerd.model.publication import Buffer, OriginRun, PublicationRun
from brokerd.wire.attributes import MAXIMUM_BLOB_BYTES
from brokerd.wire.strict_cbor import (
    ARRAYS,
    INTEGER_LIMIT,
    INTEGERS,
    NULL,
    OCTETS,
    Misfit,
    check_integer,
    check_integers,
    numbers,
)

MAXIMUM_RUN_PUBLICATIONS: Final = 1 << 14

# A short payload that stays a slice would keep the whole receive buffer alive for as long as
# its publication is queued.
SLICE_SHARE: Final = 4
_FIXED: Final = 9
_PER_ORIGIN: Final = 6
_IDENTITY: Final = bytes(range(256))
ONE: Final = bytes(1)
"""The index of a run of one publication."""


def encode_run(run: PublicationRun) -> bytes:
    """Return the run's header: everything but the payload."""
    if run.header:
        return run.header
    sequences, table = run.sequences, run.attribute_table
    count = len(sequences)
    lengths = run.payload_lengths
    if not isinstance(lengths, int) and lengths.count(lengths[0]) == count:
        lengths = lengths[0]
    items = [
        *[INTEGERS[part] for part in run.source],
        INTEGERS[sequences[0]],
        INTEGERS[count],
        numbers(_steps(sequences)),
        INTEGERS[lengths] if isinstance(lengths, int) else numbers(lengths),
        NULL if len(table) == 1 else numbers(_index(run)),
        INTEGERS[len(table)],
        *[OCTETS[len(blob)] + blob for blob in table],
    ]
    for source, own in run.origins:
        items += [INTEGERS[part] for part in (*source, own[0], len(own))]
        items.append(numbers(_steps(own)))
    return ARRAYS[len(items)] + b"".join(items)


def begin_one(source: SourceId, origins: int) -> bytes:
    """Return the header of a run of one publication, up to its sequence number."""
    items = _FIXED + 1 + _PER_ORIGIN * origins
    return ARRAYS[items] + b"".join([INTEGERS[part] for part in source])


def one_origin(source: SourceId) -> bytes:
    """Return the encoded origin of one publication in a run header, up to the sequence number."""
    return b"".join([INTEGERS[part] for part in source])


def _steps(sequences: range | tuple[int, ...]) -> bytes | list[int] | None:
    """Return the differences of adjacent sequence numbers; None if all are consecutive."""
    if sequences[-1] - sequences[0] + 1 == len(sequences):
        return None
    steps = list(map(sub, sequences[1:], sequences))
    return bytes(steps) if max(steps) < 256 else steps


def _index(run: PublicationRun) -> bytes | Sequence[int] | None:
    """Return the attribute index per publication.

    None if every publication has its own entry in order.
    """
    index, places = run.attribute_index, len(run.attribute_table)
    if places == len(run) and list(index) == list(range(places)):
        return None
    return bytes(index) if places <= 256 else index


def decode_run(values: Any, header: bytes, payload: memoryview) -> PublicationRun:
    """Return the run with the encoded header `header`, decoded as `values`.

    The run's payload is a slice of `payload`, or a copy if small.

    Raises:
        Misfit: the values or the payload do not form a run.
    """
    if type(values) is not list or len(values) <= _FIXED:
        raise Misfit("not a publication run")
    fixed = values[:_FIXED]
    broker, publisher, incarnation, first, count, steps, lengths, index, places = fixed
    check_integers([broker, publisher, incarnation, first, count, places])
    if not 0 < count <= MAXIMUM_RUN_PUBLICATIONS:
        raise Misfit(f"a run of {count} publications; 1 to {MAXIMUM_RUN_PUBLICATIONS}")
    if not 0 < places <= count:
        raise Misfit(f"a table of {places} attributes for {count} publications")
    size = _check_lengths(lengths, count)
    if size != len(payload):
        raise Misfit(f"payloads of {min(size, INTEGER_LIMIT)} bytes in {len(payload)}")
    end = _FIXED + places
    run = PublicationRun(
        SourceId(broker, publisher, incarnation),
        _decode_sequences(first, count, steps),
        _decode_table(values[_FIXED:end], places),
        _decode_index(index, count, places),
        tuple(lengths) if type(lengths) is list else lengths,
        _keep(payload, size),
        _decode_origins(values[end:], count) if len(values) > end else (),
    )
    if has_marker(run) and is_malformed(run):
        raise Misfit("a malformed loss marker")
    object.__setattr__(run, "header", header)
    return run


def _check_lengths(lengths: Any, count: int) -> int:
    """Return the size of all payloads together."""
    if type(lengths) is not list:
        return count * check_integer(lengths)
    check_integers(lengths)
    if len(lengths) != count or lengths.count(lengths[0]) == count:
        raise Misfit(f"{len(lengths)} payload lengths for {count} publications")
    return sum(lengths)


def _keep(payload: memoryview, size: int) -> tuple[Buffer, ...]:
    if not size:
        return ()
    whole = payload.obj
    is_slice = isinstance(whole, bytes) and size * SLICE_SHARE >= len(whole)
    return (payload if is_slice else bytes(payload),)


def _decode_sequences(first: int, count: int, steps: Any) -> range | tuple[int, ...]:
    if steps is None:
        if first + count > INTEGER_LIMIT:
            raise Misfit("sequence numbers beyond 63 bits")
        return range(first, first + count)
    if type(steps) is list:
        check_integers(steps)
    elif type(steps) is not bytes:
        raise Misfit("steps are neither bytes nor integers")
    if len(steps) != count - 1 or not steps or min(steps) < 1 or max(steps) == 1:
        raise Misfit(f"{len(steps)} steps, or steps of 0 or all of 1, for {count} publications")
    sequences = tuple(accumulate(steps, initial=first))
    if sequences[-1] >= INTEGER_LIMIT:
        raise Misfit("sequence numbers beyond 63 bits")
    return sequences


def _decode_table(table: list[Any], places: int) -> tuple[bytes, ...]:
    if len(table) != places:
        raise Misfit(f"{len(table)} attributes in a table of {places}")
    for blob in table:
        if type(blob) is not bytes or not 0 < len(blob) <= MAXIMUM_BLOB_BYTES:
            raise Misfit(f"attributes are not 1 to {MAXIMUM_BLOB_BYTES} bytes")
    if places > 1 and len(set(table)) != places:
        raise Misfit("attributes stand twice in a table")
    return tuple(table)


def _decode_index(index: Any, count: int, places: int) -> Sequence[int]:
    if index is None:
        if places == 1:
            return bytes(count)
        if places == count:
            return _IDENTITY[:count] if count <= 256 else range(count)
        raise Misfit(f"no index into a table of {places} for {count} publications")
    if places == 1:
        raise Misfit("an index into a table of one")
    if places <= 256:
        if type(index) is not bytes:
            raise Misfit("an index that is not bytes")
    elif type(index) is not list:
        raise Misfit("an index that is not an array")
    else:
        check_integers(index)
    if len(index) != count or max(index) >= places:
        raise Misfit(f"an index of {len(index)} for {count} publications, or beyond {places}")
    return index if places <= 256 else tuple(index)


def _decode_origins(values: list[Any], count: int) -> tuple[OriginRun, ...]:
    if len(values) % _PER_ORIGIN or len(values) > _PER_ORIGIN * count:
        raise Misfit(f"not the origins of {count} publications")
    origins: list[OriginRun] = []
    for start in range(0, len(values), _PER_ORIGIN):
        *fixed, steps = values[start : start + _PER_ORIGIN]
        check_integers(fixed)
        broker, publisher, incarnation, first, many = fixed
        if not 0 < many <= count:
            raise Misfit(f"an origin of {many} publications in {count}")
        sequences = _decode_sequences(first, many, steps)
        origins.append(OriginRun(SourceId(broker, publisher, incarnation), sequences))
    if sum(len(origin.sequences) for origin in origins) != count:
        raise Misfit(f"origins that are not those of {count} publications")
    return tuple(origins)
