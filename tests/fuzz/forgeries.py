"""Forged messages: one field of a legal message is changed, or all fields are arbitrary."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from random import Random
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from brokerd.errors import BrokerError, RemoteProtocolError
from brokerd.model.losses import MARKER
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.wire.codec import decode, encode
from tests.fuzz.values import any_run, message_of, value_of

_ADDED: Final = (-1, 1, 2, -2, 100, -100, 1 << 12, 1 << 20)
_NUMBERS: Final = (0, 1, 2, 3, 5, 1 << 16, 1 << 31, 1 << 32, (1 << 53) + 1, (1 << 63) - 1)
_SHIFTS: Final = (-1, 1, -2, 3, 100, -100, 1 << 20, 1 << 32, 1 << 62)
_SEEN: Final = 64
_NO_ENCODING: Final = (
    *(BrokerError, ValueError, IndexError, AssertionError, KeyError, TypeError, AttributeError),
)

FieldPath = tuple[str | int, ...]


def places_of(
    value: Any, annotation: Any, path: FieldPath = ()
) -> Iterator[tuple[FieldPath, Any, Any]]:
    """Yield path, annotation and value of every place of a message where a value can be forged."""
    yield path, annotation, value
    if annotation in (PublicationRun, Predicate) or value is None:
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        (kind,) = (argument for argument in arguments if argument is not NoneType)
        yield from places_of(value, kind, path)
    elif origin is tuple:
        for place, each in enumerate(value):
            kind = arguments[0] if arguments[1:] == (...,) else arguments[place]
            yield from places_of(each, kind, (*path, place))
    elif isinstance(annotation, type) and (
        issubclass(annotation, tuple) or is_dataclass(annotation)
    ):
        hints = get_type_hints(annotation)
        for name in _names_of(annotation):
            yield from places_of(getattr(value, name), hints[name], (*path, name))


def _names_of(kind: Any) -> Sequence[str]:
    if issubclass(kind, tuple):
        names: Sequence[str] = kind._fields
        return names
    return [each.name for each in fields(kind) if each.init]


def _replaced(value: Any, path: FieldPath, new: Any) -> Any:
    """Return a value with a new value at a path."""
    if not path:
        return new
    head, rest = path[0], path[1:]
    if isinstance(head, int):
        return (*value[:head], _replaced(value[head], rest, new), *value[head + 1 :])
    part = _replaced(getattr(value, head), rest, new)
    return (
        value._replace(**{head: part})
        if isinstance(value, tuple)
        else replace(value, **{head: part})
    )


def field_name(kind: type, path: FieldPath) -> str:
    """Return a field of a message in words, without the places in tuples."""
    return ".".join([kind.__name__, *(each for each in path if isinstance(each, str))])


def as_received(message: Any) -> Any | None:
    """Return a message as its receiver decodes it; None if there is no such encoding."""
    try:
        data = b"".join(encode(message))
    except _NO_ENCODING:
        return None
    end = 8 + int.from_bytes(data[4:8], "big")
    try:
        return decode(data[8:end], memoryview(data[end:]))
    except RemoteProtocolError:
        return None


@dataclass
class Forger:
    """A source of forged messages.

    Args:
        kinds: the types of messages of a protocol.

    Attributes:
        reached: how often each field of each type of message was forged.
    """

    random: Random
    kinds: Sequence[type]
    reached: Counter[str] = field(default_factory=Counter)
    _seen: deque[int] = field(default_factory=lambda: deque([0], _SEEN))

    def forge(self, message: Any) -> Any | None:
        """Return a forged message as a receiver decodes it; None if no receiver would decode it."""
        random, kind = self.random, type(message)
        path: FieldPath = ()
        if random.random() < 0.1:
            kind = random.choice(self.kinds)
            forged = message_of(kind, random)
        else:
            by_name: dict[str, list[tuple[FieldPath, Any, Any]]] = {}
            for place in [*places_of(message, kind)][1:]:
                by_name.setdefault(field_name(kind, place[0]), []).append(place)
                if type(place[2]) is int:
                    self._seen.append(place[2])
            if not by_name:
                return None
            path, annotation, value = random.choice(by_name[random.choice([*by_name])])
            forged = _replaced(message, path, self._forged(value, annotation))
        arrived = as_received(forged)
        if arrived is None or arrived == message:
            return None
        self.reached[field_name(kind, path)] += 1
        return arrived

    def _forged(self, value: Any, annotation: Any) -> Any:
        random = self.random
        if annotation is int:
            added = value + random.choice(_ADDED)
            return random.choice((added, random.choice(_NUMBERS), random.choice(self._seen)))
        if annotation is PublicationRun:
            return self._forged_run(value)
        if isinstance(value, tuple) and value and random.random() < 0.8:
            return self._forged_tuple(value, annotation)
        return value_of(annotation, random)

    def _forged_tuple(self, value: tuple[Any, ...], annotation: Any) -> Any:
        """Return a tuple with swapped, missing, repeated, reversed or added elements."""
        random = self.random
        at, to = random.randrange(len(value)), random.randrange(len(value))
        if get_args(annotation)[1:] != (...,):
            swapped = [*value]
            swapped[at], swapped[to] = swapped[to], swapped[at]
            return type(value)(*swapped) if hasattr(value, "_fields") else tuple(swapped)
        made = value_of(get_args(annotation)[0], random)
        return random.choice(
            (
                (),
                value[:at] + value[at + 1 :],
                value[: at + 1] + value[at:],
                (*value, value[at]),
                value[::-1],
                (*value, made),
                (made, *value),
            )
        )

    def _forged_run(self, run: PublicationRun) -> PublicationRun:
        random = self.random
        origins = run.origins
        match random.randrange(9):
            case 0:
                return any_run(random)
            case 1:
                return replace(run, source=self._forged_source(run.source))
            case 2:
                return replace(run, sequences=_shifted(run.sequences, random.choice(_SHIFTS)))
            case 3:
                count = random.randrange(1, len(run) + 1)
                return run.select(sorted(random.sample(range(len(run)), count)))
            case 4:
                blob = random.choice((b"\xff", b"\xa0", MARKER, run.attribute_table[0] + b"\0"))
                return replace(run, attribute_table=(blob, *run.attribute_table[1:]))
            case 5:
                payload = random.choice((b"", b"x", self._lost_range(run), self._lost_range(run)))
                return replace(
                    run.select(range(1)),
                    attribute_table=(MARKER,),
                    payload_lengths=len(payload),
                    payload=(payload,),
                )
            case 6 if origins:
                first = origins[0]._replace(source=self._forged_source(origins[0].source))
                return replace(run, origins=(first, *origins[1:]))
            case 7 if origins:
                shifted = _shifted(origins[-1].sequences, random.choice(_SHIFTS))
                return replace(
                    run, origins=(*origins[:-1], origins[-1]._replace(sequences=shifted))
                )
            case 8 if origins:
                return replace(run, origins=())
        return replace(run, sequences=_shifted(run.sequences, 1))

    def _forged_source(self, source: Any) -> Any:
        name = self.random.choice(source._fields)
        return source._replace(**{name: self._forged(getattr(source, name), int)})

    def _lost_range(self, run: PublicationRun) -> bytes:
        """Return the payload of a loss marker, with one wrong number, or a reversed range."""
        numbers = [*run.source, run.first, run.last]
        numbers[self.random.randrange(5)] = self.random.choice((*_NUMBERS, (1 << 64) - 1))
        if self.random.random() < 0.3:
            numbers[3:] = numbers[:2:-1]
        return b"".join(each.to_bytes(8, "big") for each in numbers)


def _shifted(sequences: range | tuple[int, ...], by: int) -> range | tuple[int, ...]:
    if isinstance(sequences, range):
        return range(sequences.start + by, sequences.stop + by)
    return tuple(each + by for each in sequences)
