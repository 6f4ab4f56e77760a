"""The validation of resume tokens that clients present.

A token may be ahead of its broker, which may have crashed after the delivery. A token is never
ahead of its pubend, so the pubend is asked; a token of a tick that was never published is refused,
because its client would not receive that tick later.

Paper: [DS03] §2 (checkpoint tokens).
"""

from collections.abc import Iterable, Mapping, Sequence

from brokerd.model.client_messages import Refused
from brokerd.model.identity import StreamId
from brokerd.protocols.durable.catching_up import Fetch
from brokerd.protocols.durable.hosted_streams import HostedStream
from brokerd.protocols.durable.lanes import DurableSubscription
from brokerd.protocols.gryphon import Range
from brokerd.protocols.parts.event_machine import EventMachine


class PresentedTokens:
    """The tokens that clients of a broker have presented.

    Args:
        fetch: asks a pubend for ranges.
    """

    def __init__(
        self, machine: EventMachine, hosted: Mapping[StreamId, HostedStream], fetch: Fetch
    ) -> None:
        self._machine = machine
        self._hosted = hosted
        self._fetch = fetch

    def accept(self, local: DurableSubscription) -> bool:
        """Return True if a token is of existing pubends and ticks; else refuse it."""
        for stream, last in local.presented.items():
            if stream not in self._hosted:
                self._refuse(local, f"its token is of {tuple(stream)}, a pubend that is not there")
                return False
            if last < 0:
                self._refuse(local, f"its token is of tick {last} of {tuple(stream)}")
                return False
        return True

    def prove(self, local: DurableSubscription) -> None:
        """Ask the pubend about token positions ahead of this broker."""
        for lane in [*local.lanes.values()]:
            if local.is_attached and lane.floor > self._hosted[lane.stream].position:
                self._fetch(lane.stream, [(lane.floor, lane.floor + 1)])

    def beyond(
        self,
        subscriptions: Iterable[DurableSubscription],
        stream: StreamId,
        highest: int,
        ranges: Sequence[Range],
    ) -> list[DurableSubscription]:
        """Refuse and return the subscriptions with tokens of ticks that were never published."""
        refused = []
        for local in subscriptions:
            floor = local.lane(stream).floor
            if local.is_attached and any(start <= floor < end for start, end in ranges):
                text = f"its token is of tick {floor} of {tuple(stream)}, which ends at {highest}"
                self._refuse(local, text)
                refused.append(local)
        return refused

    def _refuse(self, local: DurableSubscription, reason: str) -> None:
        self._machine.send(local.client, Refused("subscribe", local.number, reason, False))
