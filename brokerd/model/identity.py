"""Identities of brokers, clients, publication sources and subscriptions.

Brokers have names for people and small numbers on the wire and in bit sets; the number is the
broker's place in the topology file. Client names are unique at their own broker only.
"""

from typing import Final, NamedTuple

BrokerNumber = int
ClientId = str
Peer = BrokerNumber | ClientId
"""The far end of a session: a broker by number, a client by name."""

INCARNATION_LEAP: Final = 1 << 16
"""Upper bound on the restarts of a broker between two statements of its incarnation."""
FIRST_INCARNATION: Final = 1 << 20
"""The highest incarnation accepted from a broker without an earlier incarnation."""


def is_incarnation_leap(earlier: int, stated: int) -> bool:
    """Return True if a broker cannot have reached an incarnation from an earlier incarnation.

    Args:
        earlier: 0 if there is none.
    """
    return stated - earlier > (INCARNATION_LEAP if earlier else FIRST_INCARNATION)


class SourceId(NamedTuple):
    """One incarnation of one publisher; publications are numbered within the incarnation.

    `broker` is the publisher's own broker, `publisher` the number that broker assigned to the
    client name (kept on disk), `incarnation` increases when the client has lost its own counter.

    Paper: [DFT11] §VII ("source sequence").
    """

    broker: BrokerNumber
    publisher: int
    incarnation: int


StreamId = SourceId
"""The identity of a stream that a subscriber follows by increasing positions.

A stream is a source with its sequence in a protocol that orders by source, else any unit of order,
acknowledgement and resumption (a pubend's ticks, a storage's epochs, a topic's numbers). Consists
of the broker that numbers the stream, the number of the stream at the broker, and a count of
restarts of the numbering.
"""


class SubscriptionId(NamedTuple):
    """The permanent identity of one subscription; never assigned twice.

    `home` is the subscriber's broker, `incarnation` the incarnation of that broker at the issue of
    the id, `number` increases within that incarnation.
    """

    home: BrokerNumber
    incarnation: int
    number: int


class PartitionId(NamedTuple):
    """A broker that another broker cannot reach, for the time of the partition; never used twice.

    `detector` cannot reach any of `nodes`, the primary path from the detector to the last node,
    which is the broker meant; `number` increases within `incarnation` of the detector.

    Paper: [DFT11] §III lines 337-346. Deviates: adds the incarnation, because else numbers repeat.
    """

    detector: BrokerNumber
    incarnation: int
    number: int
    nodes: tuple[BrokerNumber, ...]
