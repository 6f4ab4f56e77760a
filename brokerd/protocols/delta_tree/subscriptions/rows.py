"""Routing-table rows as plain lists for the meta store."""

from collections.abc import Mapping
from typing import Any

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import SubscriptionId
from brokerd.model.predicate import Predicate, PredicateError
from brokerd.protocols.delta_tree.broker.state import Path
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate

ROUTING = "routing"

Rows = Mapping[str, Mapping[str, Any]]


def routing_change(subscription: SubscriptionId, predicate: Predicate, path: Path) -> Change:
    """Return the row of a subscription of another broker's client; `path`: home … here."""
    key = f"{subscription.home}.{subscription.incarnation}.{subscription.number}"
    return Change(ROUTING, key, [predicate_row(predicate), list(path)])


def routing_removal(subscription: SubscriptionId) -> Change:
    """Return the removal of that row."""
    key = f"{subscription.home}.{subscription.incarnation}.{subscription.number}"
    return Change(ROUTING, key, None)


def read_routing(recovered: Rows) -> list[tuple[SubscriptionId, Predicate, Path]]:
    """Return the rows of other brokers' subscriptions.

    Raises:
        StorageCorrupt: a row is not one that this broker writes.
    """
    found: list[tuple[SubscriptionId, Predicate, Path]] = []
    key = ""
    try:
        for key, (predicate, path) in recovered.get(ROUTING, {}).items():
            home, incarnation, number = [int(part) for part in key.split(".")]
            subscription = SubscriptionId(home, incarnation, number)
            found.append((subscription, read_predicate(predicate), tuple(path)))
    except (TypeError, ValueError, PredicateError) as error:
        raise StorageCorrupt(f"table {ROUTING}, row {key!r}: {error}") from error
    return found
