"""Common parts of drivers, for optional use."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from bench.systems.boundary import Delivery, Setting, Settings, WrongSettings

ANSWER_S: Final = 2.0
"""Time limit for the answer of a running server."""
AT_ONCE: Final = 256

T = TypeVar("T")


class Arrivals:
    """A queue of received deliveries."""

    def __init__(self) -> None:
        self._came: asyncio.Queue[Delivery] = asyncio.Queue()

    def put(self, delivery: Delivery) -> None:
        """Add a delivery."""
        self._came.put_nowait(delivery)

    async def take(self) -> list[Delivery]:
        """Wait for a delivery, and return all waiting deliveries, AT_ONCE at most."""
        found = [await self._came.get()]
        while len(found) < AT_ONCE and not self._came.empty():
            found.append(self._came.get_nowait())
        return found


def settle(future: asyncio.Future[T], result: T) -> None:
    """Set the result of a future, unless the future is done."""
    if not future.done():
        future.set_result(result)


@contextmanager
def told_as(kind: type[Exception], *errors: type[BaseException]) -> Iterator[None]:
    """Raise errors of a client library as an error of the boundary, with names and texts."""
    try:
        yield
    except errors as error:
        raise kind(f"{type(error).__name__}: {error}") from error


def number_of(settings: Settings, key: str) -> int:
    """Return a setting that is a number."""
    value = settings[key]
    assert isinstance(value, int), (key, value)
    return value


def check_one_of(settings: Settings, key: str, valid: Sequence[Setting]) -> None:
    """Refuse an invalid value of a setting.

    Raises:
        WrongSettings: names key, value, and valid values.
    """
    if settings[key] not in valid:
        known = ", ".join(map(str, valid))
        raise WrongSettings(f"settings.{key} = {settings[key]!r}: expected one of {known}")


def each_other(names: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Return the pairs of dialling and dialled server if every server dials every other."""
    return [(a, b) for a in names for b in names if a != b]


def asked(port: int, path: str, headers: Mapping[str, str] | None = None) -> Any:
    """Return the JSON answer of a server at a port; None without an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None
