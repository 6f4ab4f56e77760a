"""Retention policies: the bounds beyond which a broker releases events that subscribers lack.

A policy is written as `age=60s,bytes=1MB`: events older than the age may be lost to subscribers
that are away, and so may events whose newer ones have that many bytes. `never` has no bound.
Policies of several streams are written as `0:age=60s;3:never`.

Paper: [DS03] §3 (early release, maxRetain of each pubend).
"""

from dataclasses import dataclass
from typing import Final, Self

from brokerd.errors import ConfigError
from brokerd.units import (
    MILLISECOND_NS,
    format_duration,
    format_size,
    parse_duration_ns,
    parse_size_bytes,
)

LEAST_AGE_NS: Final = MILLISECOND_NS
_NEVER: Final = "never"
_KEYS: Final = ("age", "bytes")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Bounds of the retained events of one stream.

    Attributes:
        age_ns: older events may be lost; 0: none for its age.
        most_bytes: events may be lost whose newer ones have as many bytes, payload and overhead; 0:
            none for their bytes.
    """

    age_ns: int = 0
    most_bytes: int = 0

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Return the policy that a text states.

        Raises:
            ConfigError: an unknown key, or an invalid value; names it and the nearest valid one.
        """
        if text.strip() == _NEVER:
            return cls()
        found: dict[str, int] = {}
        for part in text.split(","):
            key, equals, value = (word.strip() for word in part.partition("="))
            if key not in _KEYS or not equals:
                raise ConfigError(
                    f"{where}: {part.strip()[:60]!r}: a policy is age=DURATION, bytes=SIZE, both "
                    f"with a comma between, or {_NEVER}"
                )
            if key in found:
                raise ConfigError(f"{where}: {key} = {value[:60]!r}: the key is there twice")
            found[key] = _parse_bound(key, value, where)
        return cls(found.get("age", 0), found.get("bytes", 0))

    def __str__(self) -> str:
        """Return the policy as `parse` reads it."""
        parts = [f"age={format_duration(self.age_ns)}"] if self.age_ns else []
        parts += [f"bytes={format_size(self.most_bytes)}"] if self.most_bytes else []
        return ",".join(parts) or _NEVER

    @property
    def gap_age_ns(self) -> int | None:
        """The least age of an event that may be lost, 0 for any age; None if none may be."""
        return 0 if self.most_bytes else self.age_ns or None


def _parse_bound(key: str, text: str, where: str) -> int:
    try:
        value = parse_duration_ns(text) if key == "age" else parse_size_bytes(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {key} = {text[:60]!r}: {error}") from None
    least = LEAST_AGE_NS if key == "age" else 1
    if value < least:
        nearest = format_duration(least) if key == "age" else format_size(least)
        raise ConfigError(
            f"{where}: {key} = {text[:60]!r}; at least {nearest}, and no bound without {key}"
        )
    return value


def parse_policies(
    text: str, default: RetentionPolicy, streams: int, where: str
) -> tuple[RetentionPolicy, ...]:
    """Return the policy of each stream of a broker; `default` for streams without one in the text.

    Raises:
        ConfigError: the text names a stream that does not exist, or twice, or states no policy.
    """
    found: dict[int, RetentionPolicy] = {}
    for part in text.split(";") if text.strip() else ():
        word, colon, policy = part.partition(":")
        number = read_stream_number(word.strip(), streams, where)
        if not colon:
            raise ConfigError(f"{where}: {part.strip()[:60]!r}: NUMBER:POLICY, as in 0:age=60s")
        if number in found:
            raise ConfigError(f"{where}: {number} is there twice")
        found[number] = RetentionPolicy.parse(policy, f"{where}: {number}")
    return tuple(found.get(number, default) for number in range(streams))


def read_stream_number(text: str, streams: int, where: str) -> int:
    """Return the number of a stream of a broker.

    Raises:
        ConfigError: there is no such stream.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) >= streams:
        raise ConfigError(f"{where}: {text[:60]!r} is no stream; 0 to {streams - 1}")
    return int(text)
