"""What is on a broker's disk, held against what it says of it."""

from collections.abc import Sequence
from math import inf

from brokerd.model.client_messages import Gap
from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.hosted_streams import DELIVERED, key_of
from brokerd.protocols.durable.hosting import ACKNOWLEDGED
from brokerd.protocols.durable.lanes import Mode
from brokerd.protocols.durable.messages import Released
from brokerd.protocols.gryphon.checks.steps import GryphonChecks
from brokerd.protocols.interface import Deliver, Effect, Event, Send
from brokerd.simulator.checks.oracle import InvariantViolated
from brokerd.simulator.checks.protocol_checks import CheckedWorld
from brokerd.simulator.world.views import BrokerView


class DurableChecks(GryphonChecks):
    """See ProtocolChecks; rules are those of the core, and of the protocol's document.

    - released early: no broker says that more is released than its disk says (J1);
    - order of marks: what is released was delivered, and that was handed out (J1);
    - lost early: a pubend lets go of what all have released, or is old enough, only (J3, J10);
    - gap to who is live: only who catches up is told of a gap (J4).
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._final: dict[tuple[BrokerNumber, int, StreamId], int] = {}
        self._told: dict[tuple[BrokerNumber, StreamId], int] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        """See ProtocolChecks."""
        found = super().step(broker, event, effects)
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Released:
                self._check_released(broker, effect.message)
            elif type(effect) is Deliver and type(effect.item) is Gap:
                _check_gap(broker, effect.client, effect.item)
        return found

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """See ProtocolChecks."""
        super().look_into(broker, brokers)
        core = broker.core
        assert isinstance(core, Durable), f"{core} is no core of durable"
        self._check_lost(broker, core)
        for hosted in () if core.is_reading else core.hosted():
            if not hosted.log.last_tick <= hosted.position >= hosted.delivered:
                raise InvariantViolated(
                    "order of marks",
                    f"{broker.name}, {tuple(hosted.identity)}: written to {hosted.log.last_tick}, "
                    f"committed to {hosted.delivered}, handed out to {hosted.position}",
                )

    def _check_lost(self, broker: BrokerView, core: Durable) -> None:
        expired = None
        for stream in () if core.is_reading else core.pubend_streams():
            key = broker.number, broker.incarnation, stream.identity
            final = stream.knowledge.final
            if final <= self._final.setdefault(key, final):
                continue
            self._final[key] = final
            expired = core.expired_tick() if expired is None else expired
            told = [self._told.get((each, stream.identity), 0) for each in core.status().wanted]
            released = min([_released(broker, stream.identity), *told])
            if final > max(released, expired):
                what = f"{broker.name} has lost {tuple(stream.identity)} up to {final}"
                raise InvariantViolated("lost early", f"{what}, released is {released}")

    def _check_released(self, broker: BrokerView, message: Released) -> None:
        for stream, through in message.through:
            durable = _released(broker, stream)
            if through > durable:
                what = f"{broker.name} releases {through} of {tuple(stream)}"
                raise InvariantViolated("released early", f"{what}, and has {durable} on disk")
            key = broker.number, stream
            self._told[key] = max(through, self._told.get(key, 0))


def _released(broker: BrokerView, stream: StreamId) -> float:
    """How far all who subscribe at a broker have released a stream, as its disk says."""
    rows = broker.on_disk()
    subscriptions = [row[0] for row in rows.get("subscriptions", {}).values()]
    if not subscriptions:
        return inf
    key, acknowledged = key_of(stream), rows.get(ACKNOWLEDGED, {})
    least = min(acknowledged.get(f"{each}/{key}", 0) for each in subscriptions)
    return float(min(rows.get(DELIVERED, {}).get(key, 0), least))


def _check_gap(broker: BrokerView, client: ClientId, gap: Gap) -> None:
    core = broker.core
    assert isinstance(core, Durable), f"{core} is no core of durable"
    for lane in core.lanes(client, gap.stream):
        is_live = lane.mode is Mode.LIVE and lane.floor < gap.last
        if lane.subscription.number in gap.subscriptions and is_live:
            what = f"{broker.name} tells {client} of {gap}, who is live from {lane.floor} on"
            raise InvariantViolated("gap to who is live", what)
