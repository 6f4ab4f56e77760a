"""The streams that feed subscriptions, compared with the state of their clients.

Paper: [DS03] §3 (catchup(s, p)), §4.1 (catch-up stream, switch-over).
"""

from collections.abc import Iterator, Mapping, Sequence

from brokerd.model.client_messages import Connect, Deliveries, Gap
from brokerd.model.identity import BrokerNumber, Peer, StreamId
from brokerd.protocols.durable.consolidated_stream import HostedStream
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.state import Lane, Mode
from brokerd.protocols.interface import Deliver, Effect, Event, MessageReceived
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks, message_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_Had = dict[tuple[int, StreamId], int]
"""By subscription number and stream: the tick through which a client has everything."""


class FeedingChecks(ProtocolChecks):
    """See ProtocolChecks.

    - delivered to client again: on a session nothing is delivered, or reported lost, that the
      client has (J2);
    - fed by another: an attached subscription has one stream, its own or the common one, and
      others have none (J7);
    - live early: a subscription that becomes live has all that the others have (J8).

    At the end no subscription catches up, and everything is durable (J12).
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._had: dict[tuple[BrokerNumber, Peer], _Had] = {}
        self._behind: dict[tuple[BrokerNumber, int, int, StreamId], int] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        if type(message := message_of(broker, event)) is Connect:
            assert isinstance(event, MessageReceived), f"{message} by {event}"
            self._had[broker.number, event.peer] = {
                (number, stream): tick for number, seen in message.resume for stream, tick in seen
            }
        for effect in effects:
            if type(effect) is Deliver and isinstance(effect.item, Deliveries | Gap):
                had = self._had[broker.number, effect.client]
                _check_given(f"{broker.name} to {effect.client}", effect.item, had)
        return ()

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        core = broker.protocol
        assert isinstance(core, Durable), f"{core} is no core of durable"
        away, catching_up, behind = Mode.AWAY, Mode.CATCHING_UP, self._behind
        hosted: Mapping[StreamId, HostedStream] = {}
        for local in core.registered.present.values():
            is_attached = local.is_attached
            for stream, lane in local.lanes.items():
                mode = lane.mode
                is_behind = mode is catching_up
                if (
                    (mode is away) == is_attached
                    or is_behind != (lane.catchup is not None)
                    or (mode is away and lane.out)
                ):
                    raise _fed_by_another(broker, lane)
                if not is_behind and not behind:
                    continue
                key = broker.number, broker.incarnation, local.identity, stream
                if is_behind:
                    hosted = hosted or {each.identity: each for each in core.hosted.values()}
                    behind[key] = hosted[stream].position
                elif (then := behind.pop(key, 0)) > lane.floor and mode is Mode.LIVE:
                    subject = f"{_lane_name(broker, lane)} is live behind {lane.floor}"
                    raise InvariantViolated("live early", f"{subject}, the others had {then}")

    def list_pending(self, brokers: Sequence[BrokerView]) -> list[str]:
        """See ProtocolChecks: a live client without events receives the position of a stream."""
        found = []
        for broker, core in _alive(brokers):
            positions = {hosted.identity: hosted.position for hosted in core.hosted.values()}
            found += [
                f"{_lane_name(broker, lane)} has not received silence"
                for local in core.registered.present.values()
                if local.is_attached
                for lane in local.lanes.values()
                if lane.mode is Mode.LIVE and lane.acknowledged < positions[lane.stream]
            ]
        return found

    def list_rest(self, brokers: Sequence[BrokerView]) -> list[str]:
        found = []
        for broker, core in _alive(brokers):
            lanes = [
                lane for local in core.registered.present.values() for lane in local.lanes.values()
            ]
            found += [
                f"{_lane_name(broker, lane)} catches up"
                for lane in lanes
                if lane.mode is Mode.CATCHING_UP
            ]
            found += [
                f"{broker.name} has handed out {hosted.position} of {tuple(hosted.identity)}, and "
                f"{hosted.delivered} is on disk"
                for hosted in core.hosted.values()
                if hosted.is_ahead
            ]
        return found


def _alive(brokers: Sequence[BrokerView]) -> Iterator[tuple[BrokerView, Durable]]:
    for broker in brokers:
        core = broker.protocol
        assert isinstance(core, Durable), f"{core} is no core of durable"
        if broker.alive:
            yield broker, core


def _lane_name(broker: BrokerView, lane: Lane) -> str:
    local = lane.subscription
    return f"{broker.name}: {local.client}/{local.number} in {tuple(lane.stream)}"


def _check_given(subject: str, item: Deliveries | Gap, had: _Had) -> None:
    if isinstance(item, Gap):
        stream, first, last = item.stream, item.first, item.last
    else:
        stream, first, last = item.run.source, item.run.first, item.run.last
    for number in item.subscriptions:
        before = had.get((number, stream), 0)
        if first <= before:
            raise InvariantViolated(
                "delivered to client again",
                f"{subject}/{number}: {first} of {tuple(stream)}, which has {before}",
            )
        had[number, stream] = last


def _fed_by_another(broker: BrokerView, lane: Lane) -> InvariantViolated:
    is_its = "a catch-up stream" if lane.catchup is not None else "no catch-up stream"
    mode = lane.mode.name
    subject = f"{_lane_name(broker, lane)} is {mode}, with {is_its}, {len(lane.out)} runs out"
    attached = lane.subscription.is_attached
    return InvariantViolated("fed by another", f"{subject}; attached: {attached}")
