"""Checks that the sections of a topology file share; each error names the remedy."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link
from brokerd.text import nearest as nearest


def table(value: Any, where: str, keys: Sequence[str] | None = None) -> Mapping[str, Any]:
    """Return a value that must be a table, with no other keys than `keys`.

    Raises:
        ConfigError: the value is no table, or has another key; names `where`.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a table, got {value!r}")
    for key in value:
        if keys is not None and key not in keys:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, keys)}")
    return value


def broker_number(name: Any, brokers: Sequence[str], where: str) -> BrokerNumber:
    """Return the number of a broker that a file names.

    Raises:
        ConfigError: no broker has this name; names `where` and the nearest valid name.
    """
    if name not in brokers:
        raise ConfigError(f"{where}: no broker called {name!r}{nearest(name, brokers)}")
    return brokers.index(name)


def broker_numbers(names: Any, brokers: Sequence[str], where: str) -> tuple[BrokerNumber, ...]:
    """Return the numbers of a list of brokers without repetitions.

    Raises:
        ConfigError: the value is no list, names no broker, or repeats a name; names `where`.
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


def pairs(links: Any, names: Sequence[str], where: str, noun: str = "broker") -> tuple[Link, ...]:
    """Return pairs of names as pairs of their places, the smaller first, in the given order.

    Args:
        noun: noun for the named things.

    Raises:
        ConfigError: no pair, an unknown name, a name linked to itself, or a repeated pair.
    """
    if not isinstance(links, list | tuple):
        raise ConfigError(f"{where}: expected a list of pairs, got {links!r}")
    numbers = {name: number for number, name in enumerate(names)}
    found: dict[Link, None] = {}
    for place, link in enumerate(links):
        if not isinstance(link, list | tuple) or len(link) != 2:
            raise ConfigError(f"{where}[{place}] = {link!r} is not a pair of {noun}s")
        for name in link:
            if not isinstance(name, str) or name not in numbers:
                raise ConfigError(
                    f"{where}[{place}]: no {noun} called {name!r}{nearest(name, names)}"
                )
        if link[0] == link[1]:
            raise ConfigError(f"{where}[{place}]: {link[0]!r} is linked to itself")
        pair = (numbers[link[0]], numbers[link[1]])
        pair = (min(pair), max(pair))
        if pair in found:
            raise ConfigError(f"{where}[{place}]: {link[0]}-{link[1]} stands there twice")
        found[pair] = None
    return tuple(found)


def check_no_cycle(links: Iterable[Link], names: Sequence[str], where: str, noun: str) -> None:
    """Check that links form a tree of all named nodes.

    Raises:
        ConfigError: a link closes a cycle, or a node is not connected; names `where`.
    """
    leader = list(range(len(names)))
    for a, b in links:
        if _leader(leader, a) == _leader(leader, b):
            raise ConfigError(f"{where}: {names[a]}-{names[b]} closes a cycle; {noun} has none")
        leader[_leader(leader, a)] = _leader(leader, b)
    apart = [name for n, name in enumerate(names) if _leader(leader, n) != _leader(leader, 0)]
    if apart:
        raise ConfigError(f"{where}: {', '.join(apart[:8])} not connected to {names[0]}")


def find_unconnected(
    links: Iterable[Link], brokers: Sequence[BrokerNumber]
) -> tuple[BrokerNumber, ...]:
    """Return the brokers that are not connected with the first one by links among `brokers`."""
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
    """Return the other ends of a broker's links, in link order."""
    return tuple(b if a == broker else a for a, b in links if broker in (a, b))
