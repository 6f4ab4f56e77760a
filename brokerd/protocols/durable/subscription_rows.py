"""The rows of a durable subscription on its broker's disk."""

from collections.abc import Mapping
from typing import Any, Final

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.lanes import DurableSubscription, Lane
from brokerd.protocols.durable.logs import key_of
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate

ACKNOWLEDGED: Final = "acknowledged"
"""Per subscription and stream, the tick through which the client has acknowledged."""


def lane_key(lane: Lane) -> str:
    """Return a lane as a row key."""
    return f"{lane.subscription.identity}/{key_of(lane.stream)}"


def ticks_of(recovered: Mapping[str, Mapping[str, int]], table: str) -> Mapping[str, int]:
    """Return a table of ticks of an earlier incarnation."""
    return recovered.get(table, {})


def subscription_row(local: DurableSubscription) -> Change:
    """Return the row of a subscription, without its positions."""
    unmatched = [
        [key_of(lane.stream), lane.matched_after, *([lane.lost_through] * bool(lane.lost_through))]
        for lane in local.lanes.values()
        if lane.matched_after
    ]
    row = [local.identity, predicate_row(local.predicate), local.generation, unmatched]
    row += [local.uncommitted] if local.uncommitted else []
    return Change(SUBSCRIPTIONS, f"{local.client}/{local.number}", row)


def read_subscription(key: str, row: Any, streams: Mapping[str, StreamId]) -> DurableSubscription:
    """Return a subscription from its row.

    Args:
        streams: by their keys.
    """
    name, _, number = key.rpartition("/")
    identity, predicate, generation, unmatched, *uncommitted = row
    local = DurableSubscription(name, int(number), read_predicate(predicate))
    local.identity, local.accepted, local.generation = identity, True, generation
    (local.uncommitted,) = uncommitted or (0,)
    for stream, tick, *lost in unmatched:
        lane = local.lane(streams[stream])
        lane.matched_after, (lane.lost_through,) = tick, lost or (0,)
    return local
