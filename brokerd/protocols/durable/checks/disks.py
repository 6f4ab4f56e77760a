"""What is on a broker's disk, held against what it says of it."""

from collections.abc import Sequence

from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.hosted_streams import DELIVERED, key_of
from brokerd.protocols.durable.hosting import ACKNOWLEDGED
from brokerd.protocols.durable.messages import Released
from brokerd.protocols.gryphon.checks.steps import GryphonChecks
from brokerd.protocols.interface import Effect, Event, Send
from brokerd.simulator.checks.oracle import InvariantViolated
from brokerd.simulator.world.views import BrokerView


class DurableChecks(GryphonChecks):
    """See ProtocolChecks; rules are those of the core, and of the protocol's document.

    - released early: no broker says that more is released than its disk says (J1);
    - order of marks: what is released was delivered, and that was handed out (J1).
    """

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        """See ProtocolChecks."""
        found = super().step(broker, event, effects)
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Released:
                self._check_released(broker, effect.message)
        return found

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """See ProtocolChecks."""
        super().look_into(broker, brokers)
        core = broker.core
        assert isinstance(core, Durable), f"{core} is no core of durable"
        for hosted in () if core.is_reading else core.hosted():
            if not hosted.log.last_tick <= hosted.position >= hosted.delivered:
                raise InvariantViolated(
                    "order of marks",
                    f"{broker.name}, {tuple(hosted.identity)}: written to {hosted.log.last_tick}, "
                    f"committed to {hosted.delivered}, handed out to {hosted.position}",
                )

    def _check_released(self, broker: BrokerView, message: Released) -> None:
        rows = broker.on_disk()
        subscriptions = [row[0] for row in rows.get("subscriptions", {}).values()]
        if not subscriptions:
            return
        for stream, through in message.through:
            key = key_of(stream)
            durable = [rows.get(DELIVERED, {}).get(key, 0)]
            acknowledged = rows.get(ACKNOWLEDGED, {})
            durable += [acknowledged.get(f"{each}/{key}", 0) for each in subscriptions]
            if through > min(durable):
                what = f"{broker.name} releases {through} of {tuple(stream)}"
                raise InvariantViolated("released early", f"{what}, and has {durable} on disk")
