"""The state of a broker: the tables and logs on disk, and the state in memory, for people."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.gryphon.routes import Cell
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS
from brokerd.protocols.parts.clients.progress import SUBSCRIBER_PROGRESS
from brokerd.protocols.parts.clients.restored_subscriptions import CONFIRMED
from brokerd.protocols.parts.publishers import TABLE as PUBLISHERS

RELEASED: Final = "released"
"""Per pubend, the tick through which its events may be missing in the log."""
PUBLISHED: Final = "published"
"""Per source, the last sequence number among the released events."""
RESERVED: Final = "reserved"
"""The tick through which silence may have been announced for ticks without an event."""
BEGINS: Final = "begins"
"""Per started subscription, the ticks behind which it begins in the streams of other brokers."""
RESTARTED: Final = "restarted"
"""Per subscription that this broker had lost, the ends of its gaps, until its client has them."""
NOT_BEGUN: Final[list[list[int]]] = []
"""The row of a lost subscription that has not begun again."""
FILTERED: Final = "filtered"
"""Per broker, the version of its filter that events here were matched with."""
MERGED: Final = "merged"
"""The pubends, by broker and number, for which this broker waits at every tick."""

TABLES: Final = (
    *(RELEASED, PUBLISHED, RESERVED, FILTERED, MERGED),
    *(SUBSCRIPTIONS, SUBSCRIBER_PROGRESS, BEGINS, RESTARTED, CONFIRMED, PUBLISHERS),
)
"""All tables on disk, those of clients included."""

COUNTERS: Final = (
    "publications_received",
    "publications_forwarded",
    "publications_delivered",
    "resent_publications",
    "duplicates_received",
    "messages_ignored",
    "nacks_sent",
    "nacks_received",
    "nacks_consolidated",
    "acks_expected",
)


@dataclass(frozen=True, slots=True)
class PersistentState:
    """The state on disk: the tables, and the logs.

    The tables are those of pubends, filters and total order, and those of the clients here: their
    subscriptions, with the beginnings in all streams, and the numbers of publishers.
    """

    tables: tuple[str, ...]
    logs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamState:
    """The volatile state of a stream.

    Attributes:
        upstream: the cell that the stream arrives from; None at its pubend.
        final: the last tick that all clients and cells downstream have acknowledged.
        horizon: the last tick before the first unknown one.
        highest: the last tick that is not unknown.
        delivered: the tick through which events were given to the clients here.
        events: the number of events that are kept.
        gaps: the number of gaps that clients here wait for.
        acknowledged: per cell below, the tick that it has acknowledged.
        curious: per broker, the number of ticks that it has requested and that are unknown here.
    """

    upstream: Cell | None
    final: int
    horizon: int
    highest: int
    delivered: int
    events: int
    gaps: int
    acknowledged: Mapping[Cell, int]
    curious: Mapping[BrokerNumber, int]

    @staticmethod
    def of(stream: Stream) -> "StreamState":
        knowledge, subend = stream.knowledge, stream.subend
        return StreamState(
            upstream=stream.upstream,
            final=knowledge.final,
            horizon=knowledge.horizon(knowledge.final),
            highest=knowledge.highest,
            delivered=subend.position,
            events=knowledge.events.events,
            gaps=len(subend.gaps.pieces),
            acknowledged={cell: stream.acknowledged_by(cell) for cell in stream.children},
            curious={peer: ticks.size() for peer, ticks in stream.curious.items()},
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the state with text keys, for JSON."""
        return {
            "upstream": self.upstream,
            "final": self.final,
            "horizon": self.horizon,
            "highest": self.highest,
            "delivered": self.delivered,
            "events": self.events,
            "gaps": self.gaps,
            "acknowledged": {str(cell): tick for cell, tick in self.acknowledged.items()},
            "curious": {str(peer): ticks for peer, ticks in self.curious.items()},
        }


@dataclass(frozen=True, slots=True)
class VolatileState:
    """The state in memory, for people.

    Attributes:
        streams: the streams with knowledge at this broker, by broker and pubend.
        filters: per broker, the number of its predicates; None if its filter is unknown.
        full_windows: the neighbours without room, each with True for the window of answers.
        held: the number of publications that wait for room at neighbours, or in the log.
        joining: the number of publications that wait for their pubend to join total order.
        reserved: the tick through which a restart assigns no event.
    """

    streams: Mapping[str, StreamState]
    filters: Mapping[BrokerNumber, int | None]
    full_windows: tuple[tuple[BrokerNumber, bool], ...]
    held: int
    joining: int
    reserved: int

    def to_mapping(self) -> dict[str, Any]:
        """Return the state with text keys, for JSON."""
        return {
            "streams": {name: each.to_mapping() for name, each in self.streams.items()},
            "filters": {str(broker): known for broker, known in self.filters.items()},
            "full_windows": [[*window] for window in self.full_windows],
            "held": self.held,
            "joining": self.joining,
            "reserved": self.reserved,
        }
