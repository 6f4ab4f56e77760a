"""Changes of a hierarchy at run time: added and retired storages, joined and departed brokers.

Each function returns the hierarchy after one change, or refuses a change that would leave a unit
unconnected, without its root storage, or with two storages. `deployed` of the result is the
hierarchy of the first start.

Paper: [GES] §2 (contexts), §4 (replication granularity). Changes at run time are ours.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import (
    BLOCK_LIMIT,
    RETIRED,
    Address,
    Hierarchy,
    check_connected,
    check_max_links,
    format_address,
    group_by_unit,
    name_group,
    name_unit,
    parse_address,
)
from brokerd.overlay.section_checks import broker_number


def read_changes(hierarchy: Hierarchy, section: Any, where: str) -> Hierarchy:
    """Return the hierarchy with the added and retired storages of a topology file's `[hierarchy]`.

    Raises:
        ConfigError: an impossible change; names `where`.
    """
    where = f"{where}: hierarchy.changes"
    changes = section.get("changes", ())
    if not isinstance(changes, list | tuple):
        raise ConfigError(f"{where}: expected a list, got {changes!r}")
    for place, row in enumerate(changes):
        hierarchy = _change(hierarchy, row, f"{where}[{place}]")
    return hierarchy


def _change(hierarchy: Hierarchy, row: Any, where: str) -> Hierarchy:
    if not isinstance(row, list | tuple) or len(row) != 2:
        raise ConfigError(f"{where}: {row!r} is not [broker, level] or [broker, {RETIRED!r}]")
    name, level = row
    broker_number(name, hierarchy.brokers, where)
    if level == RETIRED:
        return without_storage(hierarchy, name, where)
    return with_storage(hierarchy, name, level, where)


def with_storage(hierarchy: Hierarchy, name: str, level: Any, where: str) -> Hierarchy:
    """Return the hierarchy with one more storage, added at run time.

    Raises:
        ConfigError: no such broker or level, the broker is or was a storage, its unit has a
            storage, or there are no roots yet; names `where`.
    """
    broker = broker_number(name, hierarchy.brokers, where)
    if not hierarchy.storages:
        raise ConfigError(f"{where}: there is no root storage that {name} could take from")
    if type(level) is not int or not 0 <= level < hierarchy.top:
        raise ConfigError(
            f"{where}: {name} = {level!r}; a level from 0 to {hierarchy.top - 1}, since units of "
            f"level {hierarchy.top} have their roots"
        )
    if broker in hierarchy.left:
        raise ConfigError(f"{where}: {name} has left")
    if broker in dict(hierarchy.all_storages):
        raise ConfigError(f"{where}: {name} is or was a storage; another broker of its unit can be")
    parts = hierarchy.top + 1 - level
    unit = hierarchy.addresses[broker][:parts]
    for other, its_level in hierarchy.all_storages:
        is_there = other not in hierarchy.retired and its_level == level
        if is_there and hierarchy.addresses[other][:parts] == unit:
            there = hierarchy.brokers[other]
            raise ConfigError(f"{where}: {there} stores for {name_unit(unit, level)} already")
    return replace(hierarchy, changes=(*hierarchy.changes, (broker, level)))


def without_storage(hierarchy: Hierarchy, name: str, where: str) -> Hierarchy:
    """Return the hierarchy with a storage retired, which accepts nothing new from then on.

    Raises:
        ConfigError: no such broker, the broker is no storage or a retired storage, or a root; names
            `where`.
    """
    broker = broker_number(name, hierarchy.brokers, where)
    levels = dict(hierarchy.all_storages)
    if broker not in levels or broker in hierarchy.retired:
        storages = [hierarchy.brokers[n] for n in levels if n not in hierarchy.retired]
        known = f"those are {', '.join(storages)}" if storages else "there is none"
        raise ConfigError(f"{where}: {name} is no storage; {known}")
    if levels[broker] == hierarchy.top:
        raise ConfigError(f"{where}: {name} is the root storage of its unit, which has to have one")
    return replace(hierarchy, changes=(*hierarchy.changes, (broker, None)))


def with_broker(
    hierarchy: Hierarchy, name: str, near: Sequence[BrokerNumber], text: str, where: str
) -> Hierarchy:
    """Return the hierarchy with one more broker, which joins at run time.

    Args:
        near: brokers that the new broker is linked to; it joins the first one's cluster, unless
            `text` names another.
        text: address of the new broker; "" for the smallest free number in that cluster.

    Raises:
        ConfigError: an address that is invalid, or is or was another broker's, or is in a unit
            without its root storage; no free address; a unit that would not be connected inside, or
            a broker with too many links; names `where`.

    Paper: [GES] §2; the smallest free number is our reading.
    """
    cluster = hierarchy.addresses[near[0]][:-1]
    address = parse_address(text, f"{where}: {name} = {text!r}") if text else None
    address = address or _next_free_address(hierarchy, cluster, f"{where}: {name}")
    if len(address) != hierarchy.top + 1:
        raise ConfigError(
            f"{where}: {name} = {text!r} has {len(address)} parts, all others have "
            f"{hierarchy.top + 1}"
        )
    if address in hierarchy.addresses:
        other = hierarchy.addresses.index(address)
        had = (
            "had this address and left; choose one that was never used"
            if other in hierarchy.left
            else "has it"
        )
        raise ConfigError(
            f"{where}: {name} = {format_address(address)!r}: {hierarchy.brokers[other]} {had}"
        )
    if hierarchy.storages and address[:1] not in group_by_unit(hierarchy, 1):
        unit = name_unit(address[:1], hierarchy.top)
        raise ConfigError(
            f"{where}: {name} = {format_address(address)!r}: {unit} is new, and has no root "
            "storage; units that have one cannot join"
        )
    number = len(hierarchy.brokers)
    grown = replace(
        hierarchy,
        brokers=(*hierarchy.brokers, name),
        addresses=(*hierarchy.addresses, address),
        links=(*hierarchy.links, *((other, number) for other in near)),
        deployed=hierarchy.deployed or hierarchy.as_deployed(),
    )
    check_connected(grown, f"{where}: {name} = {format_address(address)!r}")
    check_max_links(grown, f"{where}: {name} = {format_address(address)!r}")
    return grown


def without_broker(hierarchy: Hierarchy, name: str, where: str) -> Hierarchy:
    """Return the hierarchy after a broker has left at run time.

    Raises:
        ConfigError: the broker is or was a storage, or is the last of a unit, or a unit would not
            be connected inside; names `where`.
    """
    broker = broker_number(name, hierarchy.brokers, where)
    if broker in dict(hierarchy.all_storages):
        is_one = "was" if broker in hierarchy.retired else "is"
        raise ConfigError(
            f"{where}: {name} {is_one} a storage, and has what others may not be done with; "
            "storages cannot leave"
        )
    cluster = hierarchy.addresses[broker][:-1]
    if group_by_unit(hierarchy, hierarchy.top)[cluster] == [broker]:
        raise ConfigError(f"{where}: {name} is the last broker of {name_group(cluster)}")
    shrunk = replace(
        hierarchy,
        links=tuple(link for link in hierarchy.links if broker not in link),
        left=(*hierarchy.left, broker),
        links_of_left=(
            *hierarchy.links_of_left,
            *(link for link in hierarchy.links if broker in link),
        ),
        deployed=hierarchy.deployed or hierarchy.as_deployed(),
    )
    check_connected(shrunk, f"{where}: without {name}")
    return shrunk


def _next_free_address(hierarchy: Hierarchy, cluster: Address, where: str) -> Address:
    for number in range(BLOCK_LIMIT):
        address = *cluster, number
        if address not in hierarchy.addresses:
            return address
    raise ConfigError(
        f"{where}: none of the {BLOCK_LIMIT} numbers in {name_group(cluster)} is free, and those "
        "of brokers that have left stay theirs; give an address in another unit"
    )
