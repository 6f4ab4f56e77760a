"""The rows on disk about a broker's clients: subscriptions and publishers."""

from dataclasses import dataclass
from typing import Any

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import (
    BrokerNumber,
    ClientId,
    PartitionId,
    SourceId,
    SubscriptionId,
)
from brokerd.model.predicate import PredicateError
from brokerd.protocols.delta_tree.broker.state import Rows
from brokerd.protocols.delta_tree.messages import Tag
from brokerd.protocols.delta_tree.partitions.gates import Cut
from brokerd.protocols.delta_tree.partitions.regions import region
from brokerd.protocols.delta_tree.publications.deliveries import POSITIONS
from brokerd.protocols.delta_tree.subscriptions.routing_table import (
    LocalSubscription,
    Phase,
    Withheld,
)
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate

SUBSCRIPTIONS = "subscriptions"
ATTACHED = "attached_publishers"
_RESTARTED = 2
"""The start, in place of True, of a subscription that this broker had lost."""


@dataclass(slots=True)
class HomeTable:
    """The recovered rows about a restarted broker's clients.

    Attributes:
        subscriptions: of local clients; pending ones still under their old ids.
        attached: publishers that had a session when the broker ended, with their incarnation.
    """

    subscriptions: list[LocalSubscription]
    attached: dict[ClientId, int]


def subscription_change(local: LocalSubscription, *, started: bool) -> Change:
    """Return the present row of a subscription."""
    cut = [[*source, sequence] for source, sequence in local.begins_after.items()]
    late = local.late.items()
    value = [
        local.subscription.incarnation,
        local.subscription.number,
        predicate_row(local.predicate),
        _RESTARTED if started and local.is_restarted else started,
        cut if started else [],
        [_tag_row(tag) for tag in local.tags],
        [[*source, first, last, *partition] for source, (first, last, partition) in late],
    ]
    return Change(SUBSCRIPTIONS, f"{local.client}/{local.number}", value)


def read_home_table(broker: BrokerNumber, recovered: Rows) -> HomeTable:
    """Return the contents of the rows.

    Raises:
        StorageCorrupt: a row is not one that this broker writes.
    """
    table = SUBSCRIPTIONS
    key = ""
    try:
        found: dict[tuple[ClientId, int], LocalSubscription] = {}
        for key, value in recovered.get(SUBSCRIPTIONS, {}).items():
            client, _, number = key.rpartition("/")
            incarnation, serial, predicate, started, cut, tags, late = value
            local = LocalSubscription(
                client,
                int(number),
                SubscriptionId(broker, incarnation, serial),
                read_predicate(predicate),
                Phase.STARTED if started else Phase.PENDING,
                read_cut(cut),
                tags=region(_read_tag(tag) for tag in tags),
                start_cut=read_cut(cut),
                late=dict(map(_read_late, late)),
                is_restarted=started == _RESTARTED,
            )
            found[client, local.number] = local
        table = POSITIONS
        for key, last in recovered.get(POSITIONS, {}).items():
            place, _, source_text = key.rpartition("/")
            client, _, number = place.rpartition("/")
            source = SourceId(*[int(part) for part in source_text.split(".")])
            owner = found.get((client, int(number)))
            if owner is not None and owner.phase is Phase.STARTED:
                begins = owner.begins_after
                begins[source] = max(begins.get(source, 0), last)
        table, key = ATTACHED, ""
        attached = dict(recovered.get(ATTACHED, {}))
    except (TypeError, ValueError, PredicateError) as error:
        raise StorageCorrupt(f"table {table}, row {key!r}: {error}") from error
    return HomeTable(list(found.values()), attached)


def _tag_row(tag: Tag) -> list[Any]:
    return [list(tag.path), tag.detector, tag.incarnation, tag.number, tag.beyond]


def _read_tag(row: Any) -> Tag:
    path, detector, incarnation, number, beyond = row
    return Tag(tuple(path), detector, incarnation, number, beyond)


def _read_late(row: Any) -> tuple[SourceId, Withheld]:
    broker, publisher, incarnation, first, last, detector, epoch, number, nodes = row
    partition = PartitionId(detector, epoch, number, tuple(nodes))
    return SourceId(broker, publisher, incarnation), (first, last, partition)


def read_cut(row: Any) -> Cut:
    """Return the cut in a row of `subscription_change`."""
    return {
        SourceId(broker, publisher, incarnation): sequence
        for broker, publisher, incarnation, sequence in row
    }
