"""Publications and positions that an older copy of a client's or a broker's state does not have."""

from collections.abc import Iterable, Mapping
from typing import Final

from brokerd.model.client_messages import Gap
from brokerd.model.identity import ClientId, StreamId
from brokerd.model.losses import OLDER_COPY

_NOWHERE: Final[Mapping[StreamId, int]] = {}


def older_copy(name: ClientId, highest: int, received: int) -> str:
    """Return the refusal of a publisher that continues from an older copy of its state.

    Args:
        highest: the last number that the publisher has assigned.
        received: the last number of its source that brokers have.
    """
    return (
        f"publisher {name!r} continues behind {highest}, and has published up to {received}: its "
        "store is an older copy; start it without the store"
    )


def gaps_of_older_copy(
    number: int,
    acknowledged: Mapping[StreamId, int],
    stated: Iterable[tuple[StreamId, int]],
    begins_after: Mapping[StreamId, int] = _NOWHERE,
) -> tuple[Gap, ...]:
    """Return the gaps of a subscription whose client has acknowledged more than it states.

    The client's state is an older copy, and no broker keeps acknowledged publications.

    Args:
        acknowledged: by stream, the last acknowledged position.
        stated: the positions that the client states.
        begins_after: by stream, the position behind which the subscription began, if the client
            does not state it.
    """
    had = {**begins_after, **dict(stated)}
    return tuple(
        Gap((number,), stream, had.get(stream, 0) + 1, last, OLDER_COPY)
        for stream, last in acknowledged.items()
        if had.get(stream, 0) < last
    )


def lost_range(durable: int | None, next_sequence: int) -> range | None:
    """Return the publications of a source that were acknowledged and are not on disk, if any.

    All numbers below `next_sequence` were acknowledged, as the publisher states when it connects.
    """
    if durable is None or next_sequence <= durable + 1:
        return None
    return range(durable + 1, next_sequence)
