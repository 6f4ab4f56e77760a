"""Silence: subscribers without events of a stream receive its position.

Paper: [DS03] §4.1 (silence messages).
"""

from collections.abc import Mapping
from typing import Any, Final

from brokerd.model.client_messages import Silence
from brokerd.model.identity import StreamId
from brokerd.protocols.durable.hosted_streams import HostedStream
from brokerd.protocols.durable.lanes import DurableSubscription, Mode
from brokerd.protocols.durable.windows import DurableWindows
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

SILENCE: Final = "silence"


class Silences:
    """The silence messages to live subscribers.

    Args:
        hosted: the streams, a live view.
        subscriptions: all subscriptions here, a live view.
    """

    def __init__(
        self,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        interval_ns: Instant,
        hosted: Mapping[StreamId, HostedStream],
        subscriptions: Mapping[int, DurableSubscription],
        windows: DurableWindows,
    ) -> None:
        self._machine = machine
        self._deadlines = deadlines
        self._interval_ns = interval_ns
        self._hosted = hosted
        self._subscriptions = subscriptions
        self._windows = windows

    def schedule(self) -> None:
        """Schedule silence messages."""
        if (SILENCE, None) not in self._deadlines:
            self._deadlines.set((SILENCE, None), self._machine.now_ns + self._interval_ns)

    def say(self) -> None:
        """Send the positions of streams to clients without events.

        Nothing is sent below a position that a client claims: events below were not given to it.
        """
        is_behind = False
        for local in self._subscriptions.values():
            for lane in local.lanes.values() if local.is_attached else ():
                position = self._hosted[lane.stream].position
                if lane.acknowledged >= position:
                    continue
                is_behind = True
                if lane.mode is Mode.LIVE and not lane.out and lane.floor <= position:
                    first = lane.acknowledged + 1
                    silence = Silence((local.number,), lane.stream, first, position)
                    self._windows.say(lane, position, silence)
        if is_behind:
            self.schedule()
