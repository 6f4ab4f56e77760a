"""The effects of link faults on the connections of one broker: hang, hold, hide a close, count."""

from collections import deque
from typing import Any, Final

import trio

from brokerd.model.identity import Peer
from brokerd.protocols.interface import Event, MessageReceived
from brokerd.runtime.connection import Connection
from brokerd.sessions.link_faults import AbsorbedMessages, LinkFaults
from brokerd.units import SECOND_NS

MAXIMUM_PARKED: Final = 64


class Impairments:
    """The active faults, and the messages and closes that faults withhold.

    Attributes:
        faults: added and healed by other code.
        absorbed: messages that were received and not passed on.
    """

    def __init__(self) -> None:
        self.faults = LinkFaults()
        self.absorbed: AbsorbedMessages[Connection, MessageReceived] = AbsorbedMessages()
        self._parked: deque[tuple[Peer, trio.abc.Stream]] = deque()

    def act_on(self, connection: Connection) -> None:
        """Apply the active faults to a connection."""
        connection.inward = self.faults.treatment(connection.peer, "in")
        connection.outward = self.faults.treatment(connection.peer, "out")

    def is_blackholed(self, peer: Peer) -> bool:
        """Return True if a blackhole affects traffic with this peer, in either direction."""
        return (
            self.faults.treatment(peer, "in").blackholed
            or self.faults.treatment(peer, "out").blackholed
        )

    async def wait_passable(self, peer: Peer) -> None:
        """Return when a connection with this peer could be made; hang while it would hang.

        Raises:
            ConnectionRefusedError: the link is cut.
        """
        if self.faults.treatment(peer, "out").cut:
            self.faults.count(peer, "both", refused_connections=1)
            raise ConnectionRefusedError("the link is cut")
        if self.is_blackholed(peer):
            await trio.sleep_forever()
        # A connection over a slow link waits for an answer first.
        delay_ns = sum(self.faults.treatment(peer, way).delay_ns for way in ("out", "in"))
        if delay_ns:
            await trio.sleep(delay_ns / SECOND_NS)

    # ------------------------------------------------------------ absorbed messages

    @property
    def is_full(self) -> bool:
        """Return True if absorbing connections must stop reading."""
        return self.absorbed.is_full

    def absorb(
        self, connection: Connection, events: list[MessageReceived], size_bytes: int
    ) -> bool:
        """Hold messages that are not passed on for now; return True if that filled the buffer."""
        was_full = self.is_full
        for event in events:
            self.absorbed.hold(connection, event, size_bytes // len(events))
        return self.is_full and not was_full

    def release(self) -> list[Event]:
        """Return, in order, the absorbed messages that are no longer to be absorbed."""
        released = self.absorbed.take(lambda connection: not connection.inward.absorbs)
        return [message for connection, message in released if not connection.is_closed]

    # ------------------------------------------------------------ hidden closes

    def park(self, peer: Peer, stream: trio.abc.Stream) -> trio.abc.Stream | None:
        """Keep a stream open while a blackhole hides its close.

        Returns the oldest parked stream, to be closed, if there are too many.
        """
        self._parked.append((peer, stream))
        return self._parked.popleft()[1] if len(self._parked) > MAXIMUM_PARKED else None

    def unpark(self) -> list[trio.abc.Stream]:
        """Return the parked streams that no blackhole hides any longer, to be closed."""
        unhidden = [stream for peer, stream in self._parked if not self.is_blackholed(peer)]
        self._parked = deque(each for each in self._parked if self.is_blackholed(each[0]))
        return unhidden

    # ------------------------------------------------------------ counters

    def count_outgoing(self, connection: Connection, message: Any) -> None:
        """Count a message that was queued for a peer."""
        run = getattr(message, "run", ())
        if connection.outward.absorbs:
            self.faults.count(
                connection.peer, "out", absorbed_messages=1, absorbed_publications=len(run)
            )
        elif not connection.outward.blackholed:
            limited = int(connection.outward.is_limited)
            self.faults.count(
                connection.peer, "out", forwarded_since_applied=1, limited_messages=limited
            )

    def count_incoming(
        self, connection: Connection, events: list[MessageReceived], size_bytes: int
    ) -> None:
        """Count messages that arrived from a peer."""
        if connection.inward.absorbs:
            self.faults.count(
                connection.peer,
                "in",
                absorbed_messages=len(events),
                absorbed_publications=sum(len(getattr(m.message, "run", ())) for m in events),
                absorbed_bytes=size_bytes,
            )
        else:
            count = len(events)
            self.faults.count(
                connection.peer,
                "in",
                forwarded_since_applied=count,
                limited_messages=count * connection.inward.is_limited,
            )

    def count_ended(self, connection: Connection) -> None:
        """Count the end of a session; frames that wait to be written are lost with it."""
        waiting = connection.outbox.waiting_frames
        stopped = connection.outward.blackholed or connection.outward.cut
        self.faults.count(
            connection.peer, "both", sessions_down=1, dropped_frames=waiting * stopped
        )
