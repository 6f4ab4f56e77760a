"""What link faults do to the connections of one broker: hang, hold, hide a close, and count it."""

from collections import deque
from typing import Any, Final

import trio

from brokerd.model.identity import Peer
from brokerd.protocols.interface import Event, MessageReceived
from brokerd.runtime.connection import Connection
from brokerd.sessions.link_faults import Absorbed, LinkFaults
from brokerd.units import SECOND_NS

MAXIMUM_PARKED: Final = 64


class Impairments:
    """The faults in force, and what they keep from the core or from peers.

    Attributes:
        faults: put there and healed by others.
        absorbed: messages that were taken in and go nowhere.
    """

    def __init__(self) -> None:
        self.faults = LinkFaults()
        self.absorbed: Absorbed[Connection, MessageReceived] = Absorbed()
        self._was_full = False
        self._parked: deque[tuple[Peer, trio.abc.Stream]] = deque()

    def act_on(self, connection: Connection) -> None:
        """Let a connection do from now on what the faults in force demand."""
        connection.inward = self.faults.way(connection.peer, "in")
        connection.outward = self.faults.way(connection.peer, "out")

    def is_blackholed(self, peer: Peer) -> bool:
        """Whether nothing passes between us and this peer, at least one way."""
        return self.faults.way(peer, "in").blackholed or self.faults.way(peer, "out").blackholed

    async def wait_passable(self, peer: Peer) -> None:
        """Return when a connection with this peer could be made; hang where it would hang.

        Raises:
            ConnectionRefusedError: the link is cut.
        """
        if self.faults.way(peer, "out").cut:
            self.faults.count(peer, "both", refused_connections=1)
            raise ConnectionRefusedError("the link is cut")
        if self.is_blackholed(peer):
            await trio.sleep_forever()
        # Whoever connects over a slow link waits for an answer first.
        delay_ns = sum(self.faults.way(peer, way).delay_ns for way in ("out", "in"))
        if delay_ns:
            await trio.sleep(delay_ns / SECOND_NS)

    # ------------------------------------------------------------ what is absorbed

    @property
    def is_full(self) -> bool:
        """Whether connections that absorb must stop reading."""
        return self.absorbed.is_full

    def absorb(
        self, connection: Connection, events: list[MessageReceived], size_bytes: int
    ) -> bool:
        """Take in what goes nowhere for now; whether this is what made it full."""
        for event in events:
            self.absorbed.hold(connection, event, size_bytes // len(events))
        was_full, self._was_full = self._was_full, self._was_full or self.is_full
        return self._was_full and not was_full

    def release(self) -> list[Event]:
        """Give back, in order, what was absorbed and is not to be absorbed any longer."""
        released = self.absorbed.take(lambda connection: not connection.inward.absorbs)
        if released:
            self._was_full = False
        return [message for connection, message in released if not connection.over]

    # ------------------------------------------------------------ what is not noticed

    def park(self, peer: Peer, stream: trio.abc.Stream) -> trio.abc.Stream | None:
        """Keep a stream open whose close must not be noticed through a blackhole.

        Returns the oldest, to be closed, when there are too many.
        """
        self._parked.append((peer, stream))
        return self._parked.popleft()[1] if len(self._parked) > MAXIMUM_PARKED else None

    def unpark(self) -> list[trio.abc.Stream]:
        """Give back the streams that no blackhole hides any longer, to be closed."""
        unhidden = [stream for peer, stream in self._parked if not self.is_blackholed(peer)]
        self._parked = deque(each for each in self._parked if self.is_blackholed(each[0]))
        return unhidden

    # ------------------------------------------------------------ what is counted

    def count_outgoing(self, connection: Connection, message: Any) -> None:
        """A message was queued for a peer."""
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
        """Messages came from a peer."""
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
        """A session is over; what waited to be written is lost with it."""
        waiting = connection.outbox.waiting_frames
        stopped = connection.outward.blackholed or connection.outward.cut
        self.faults.count(
            connection.peer, "both", sessions_down=1, dropped_frames=waiting * stopped
        )
