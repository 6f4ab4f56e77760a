"""Who is who: brokers, clients, publication sources and subscriptions.

Brokers have names for people and small numbers on the wire and in bit sets; the number is
the broker's place in the topology file. Clients are known by name at their own broker only.
"""

from typing import Final, NamedTuple

BrokerNumber = int
ClientId = str
Peer = BrokerNumber | ClientId
"""The far end of a session: a broker by number, a client by name."""

INCARNATION_LEAP: Final = 1 << 16
"""No broker restarts so often between two statements of its incarnation."""
FIRST_INCARNATION: Final = 1 << 20
"""The highest incarnation that is believed of a broker without an earlier incarnation."""


def is_incarnation_leap(earlier: int, stated: int) -> bool:
    """Return True if a broker cannot have reached an incarnation from an earlier incarnation.

    Args:
        earlier: 0 if there is none.
    """
    return stated - earlier > (INCARNATION_LEAP if earlier else FIRST_INCARNATION)


class SourceId(NamedTuple):
    """One incarnation of one publisher; publications are numbered within it.

    `broker` is the publisher's own broker, `publisher` the number that broker gave the client
    name (kept on disk), `incarnation` goes up when the client has lost its own counter.

    Paper: [DFT11] §VII ("source sequence").
    """

    broker: BrokerNumber
    publisher: int
    incarnation: int


StreamId = SourceId
"""What a subscriber follows by increasing positions, its place: a source with its sequence where
a protocol orders by source, else whatever it orders, acknowledges and resumes by (a pubend's ticks,
a storage's epochs, a topic's numbers). The broker that numbers it, its number there, and up by one
when the numbering began anew."""


class SubscriptionId(NamedTuple):
    """One subscription, for ever: never given out twice.

    `home` is the subscriber's broker, `incarnation` the one that broker had when it issued the
    id, `number` counts up within that incarnation.
    """

    home: BrokerNumber
    incarnation: int
    number: int


class PartitionId(NamedTuple):
    """One broker that another one cannot reach, for as long as that lasts: never used twice.

    `detector` cannot reach any of `nodes`, the primary path from it to the last of them, which
    is the one meant; `number` counts up within `incarnation` of the detector.

    Paper: [DFT11] §III lines 337-346. Deviates: the incarnation, else numbers come again.
    """

    detector: BrokerNumber
    incarnation: int
    number: int
    nodes: tuple[BrokerNumber, ...]
