"""Checks that the sections of a topology file share; each mistake is named with its cure."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link


def nearest(word: object, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the known word most like `word`, or a list of what is known."""
    # Two-letter broker names differ in half of their letters at the first slip.
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f" and {len(known) - 12} more" if len(known) > 12 else ""
    return f"; known: {', '.join(list(known)[:12])}{more}"


def table(value: Any, where: str, keys: Sequence[str] | None = None) -> Mapping[str, Any]:
    """A value that must be a table, with no other than `keys` in it.

    Raises:
        ConfigError: it is none, or has another key; names `where`.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a table, got {value!r}")
    for key in value:
        if keys is not None and key not in keys:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, keys)}")
    return value


def broker_number(name: Any, brokers: Sequence[str], where: str) -> BrokerNumber:
    """The number of a broker that a file names.

    Raises:
        ConfigError: no broker is called so; names `where` and the nearest that is.
    """
    if name not in brokers:
        raise ConfigError(f"{where}: no broker called {name!r}{nearest(name, brokers)}")
    return brokers.index(name)


def broker_numbers(names: Any, brokers: Sequence[str], where: str) -> tuple[BrokerNumber, ...]:
    """The numbers of a list of brokers, each named once.

    Raises:
        ConfigError: it is no list, names no broker, or one twice; names `where`.
    """
    if not isinstance(names, list | tuple):
        raise ConfigError(f"{where}: expected a list of names, got {names!r}")
    found: list[BrokerNumber] = []
    for place, name in enumerate(names):
        number = broker_number(name, brokers, f"{where}[{place}]")
        if number in found:
            raise ConfigError(f"{where}[{place}] = {name!r} stands there twice")
        found.append(number)
    return tuple(found)


def pairs(links: Any, names: Sequence[str], where: str, what: str = "broker") -> tuple[Link, ...]:
    """Pairs of names as pairs of their places, the smaller first, in the order given.

    Args:
        what: is called by these names.

    Raises:
        ConfigError: no pair, an unknown name, one linked to itself, or a pair twice.
    """
    if not isinstance(links, list | tuple):
        raise ConfigError(f"{where}: expected a list of pairs, got {links!r}")
    numbers = {name: number for number, name in enumerate(names)}
    found: dict[Link, None] = {}
    for place, link in enumerate(links):
        if not isinstance(link, list | tuple) or len(link) != 2:
            raise ConfigError(f"{where}[{place}] = {link!r} is not a pair of {what}s")
        for name in link:
            if not isinstance(name, str) or name not in numbers:
                raise ConfigError(
                    f"{where}[{place}]: no {what} called {name!r}{nearest(name, names)}"
                )
        if link[0] == link[1]:
            raise ConfigError(f"{where}[{place}]: {link[0]!r} is linked to itself")
        pair = (numbers[link[0]], numbers[link[1]])
        pair = (min(pair), max(pair))
        if pair in found:
            raise ConfigError(f"{where}[{place}]: {link[0]}-{link[1]} stands there twice")
        found[pair] = None
    return tuple(found)


def check_no_cycle(links: Iterable[Link], names: Sequence[str], where: str, what: str) -> None:
    """Make sure that links are a tree of everything that has a name.

    Raises:
        ConfigError: a link closes a cycle, or something is not connected; names `where`.
    """
    leader = list(range(len(names)))
    for a, b in links:
        if _leader(leader, a) == _leader(leader, b):
            raise ConfigError(f"{where}: {names[a]}-{names[b]} closes a cycle; {what} has none")
        leader[_leader(leader, a)] = _leader(leader, b)
    apart = [name for n, name in enumerate(names) if _leader(leader, n) != _leader(leader, 0)]
    if apart:
        raise ConfigError(f"{where}: {', '.join(apart[:8])} not connected to {names[0]}")


def unconnected(links: Iterable[Link], brokers: Sequence[BrokerNumber]) -> tuple[BrokerNumber, ...]:
    """Which of some brokers are not connected with the first one by links among them."""
    leader = {broker: broker for broker in brokers}
    for a, b in links:
        if a in leader and b in leader:
            leader[_leader(leader, a)] = _leader(leader, b)
    return tuple(b for b in brokers if _leader(leader, b) != _leader(leader, brokers[0]))


def _leader(leader: dict[int, int] | list[int], broker: int) -> int:
    while leader[broker] != broker:
        leader[broker] = leader[leader[broker]]
        broker = leader[broker]
    return broker


def linked(links: Iterable[Link], broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
    """The other ends of a broker's links, in link order."""
    return tuple(b if a == broker else a for a, b in links if broker in (a, b))
