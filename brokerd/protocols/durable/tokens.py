"""What clients say that they have, held against what there can be.

A token may be ahead of its broker, which may have crashed since it gave that. It is never ahead of
its pubend, so that is asked; who says that it has what nobody has published is refused, for else
it would not be given that when it is.

Paper: [DS03] §2 (checkpoint tokens).
"""

from collections.abc import Iterable, Mapping, Sequence

from brokerd.model.client_messages import Refused
from brokerd.model.identity import StreamId
from brokerd.protocols.durable.catching_up import Fetch
from brokerd.protocols.durable.hosted_streams import HostedStream
from brokerd.protocols.durable.lanes import DurableSubscription
from brokerd.protocols.gryphon.intervals import Range
from brokerd.protocols.parts.event_machine import EventMachine


class PresentedTokens:
    """The tokens that clients of one broker have come with.

    Args:
        fetch: have a pubend asked what is in these ranges.
    """

    def __init__(
        self, machine: EventMachine, hosted: Mapping[StreamId, HostedStream], fetch: Fetch
    ) -> None:
        self._machine = machine
        self._hosted = hosted
        self._fetch = fetch

    def accept(self, local: DurableSubscription) -> bool:
        """Whether a token is one that some pubends could have given; refused where not."""
        for stream, last in local.presented.items():
            if stream not in self._hosted:
                self._refuse(local, f"its token is of {tuple(stream)}, a pubend that is not there")
                return False
            if last < 0:
                self._refuse(local, f"its token is of tick {last} of {tuple(stream)}")
                return False
        return True

    def prove(self, local: DurableSubscription) -> None:
        """Ask about what of a token is ahead of this broker."""
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
        """Nobody has these ticks; returns those who said so, and are refused."""
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
