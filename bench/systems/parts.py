"""What drivers have in common; one that does it otherwise needs none of it."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from bench.systems.boundary import Delivery, Setting, Settings, WrongSettings

ANSWER_S: Final = 2.0
"""How long a server that lives may take to answer."""
AT_ONCE: Final = 256

T = TypeVar("T")


class Arrivals:
    """Deliveries that have come and were not taken yet."""

    def __init__(self) -> None:
        self._came: asyncio.Queue[Delivery] = asyncio.Queue()

    def put(self, delivery: Delivery) -> None:
        """It has come."""
        self._came.put_nowait(delivery)

    async def take(self) -> list[Delivery]:
        """What has come, AT_ONCE at most; waits for the first."""
        found = [await self._came.get()]
        while len(found) < AT_ONCE and not self._came.empty():
            found.append(self._came.get_nowait())
        return found


def settle(future: asyncio.Future[T], result: T) -> None:
    """Give a future its result, unless it has one."""
    if not future.done():
        future.set_result(result)


@contextmanager
def told_as(kind: type[Exception], *errors: type[BaseException]) -> Iterator[None]:
    """Raise a client library's errors as one of the boundary, with their names and words."""
    try:
        yield
    except errors as error:
        raise kind(f"{type(error).__name__}: {error}") from error


def number_of(settings: Settings, key: str) -> int:
    """A setting that is a number."""
    value = settings[key]
    assert isinstance(value, int), (key, value)
    return value


def check_one_of(settings: Settings, key: str, valid: Sequence[Setting]) -> None:
    """Refuse another value.

    Raises:
        WrongSettings: says key, value, and what is valid.
    """
    if settings[key] not in valid:
        known = ", ".join(map(str, valid))
        raise WrongSettings(f"settings.{key} = {settings[key]!r}: expected one of {known}")


def each_other(names: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Who dials whom where everybody dials everybody."""
    return [(a, b) for a in names for b in names if a != b]


def asked(port: int, path: str, headers: Mapping[str, str] | None = None) -> Any:
    """What a server answers at one of its ports, from JSON; None where it does not."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None
