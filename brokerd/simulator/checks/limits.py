"""Limits in the code that seeds lower, so that few events exceed a limit.

A limit is a constant of a module. No topology sets a limit, and no promise depends on its value.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import Final

from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest

LOWERED: Final = 0.4
"""Share of the seeds in which half of the limits are lower."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A constant of a module.

    Attributes:
        module: of the module that uses the constant, dotted.
        constant: the name in the module.
        values: low values.
    """

    module: str
    constant: str
    values: tuple[int, ...]

    @property
    def name(self) -> str:
        """The dotted name of the constant."""
        return f"{self.module}.{self.constant}"


SHARED: Final = (
    Limit("brokerd.matching.memo", "MEMO_LIMIT", (1, 3)),
    Limit("brokerd.matching.memo", "AT_ONCE", (1, 2)),
    Limit("brokerd.protocols.parts.deadlines", "_STALE", (0, 1)),
    Limit("brokerd.protocols.parts.selection", "_SMALL_SHARE", (1, 2)),
)
"""Limits of the parts that all protocols use."""

Chosen = tuple[tuple[str, int], ...]
"""Limits by name, with their values."""


def draw_limits(random: Random, limits: Sequence[Limit]) -> Chosen:
    """Return the low limits of a seed."""
    if random.random() >= LOWERED:
        return ()
    chosen = [each for each in limits if random.random() < 0.5]
    return tuple((each.name, random.choice(each.values)) for each in chosen)


def check_limit(name: str, limits: Sequence[Limit]) -> str:
    """Return the name of a limit.

    Raises:
        ConfigError: no limit has this name; names the nearest.
    """
    known = [each.name for each in limits]
    if name not in known:
        raise ConfigError(f"no limit {name!r}{nearest(name, known)}")
    return name


@contextmanager
def with_limits(chosen: Iterable[tuple[str, int]]) -> Iterator[None]:
    """Set limits of this process inside the block."""
    before: list[tuple[str, int]] = []
    try:
        for name, value in chosen:
            before.append((name, _set(name, value)))
        yield
    finally:
        for name, value in reversed(before):
            _set(name, value)


def _set(name: str, value: int) -> int:
    """Set a constant; return the old value."""
    module, _, constant = name.rpartition(".")
    names = vars(import_module(module))
    now: int = names[constant]
    names[constant] = value
    return now
