"""The positions of clients at brokers, compared with the clients' acknowledgements.

Paper: [DS03] §2 (checkpoint tokens), §4.1 (released(s, p)).
"""

from collections.abc import Sequence

from brokerd.model.client_messages import Acknowledge, CommitConsumed, Connect
from brokerd.model.identity import BrokerNumber, ClientId, Peer, StreamId
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.interface import Effect, Event, MessageReceived
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_Lane = tuple[int, ClientId, int, StreamId]
"""The identity of a subscription, its client, its number there, and a stream."""


class AcknowledgementChecks(ProtocolChecks):
    """See ProtocolChecks.

    - acknowledged by nobody: a position here is no higher than the client's acknowledgements here
      (J9).
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._acknowledged: dict[tuple[BrokerNumber, Peer, StreamId], int] = {}
        self._begun: dict[BrokerNumber, tuple[int, dict[_Lane, int]]] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        """See ProtocolChecks."""
        if type(event) is not MessageReceived:
            return ()
        message = event.message
        if type(message) is Acknowledge:
            self._note(broker, event.peer, message.stream, message.last)
        elif type(message) is CommitConsumed:
            for stream, last in message.positions:
                self._note(broker, event.peer, stream, last)
        elif type(message) is Connect:
            for _, seen in message.resume:
                for stream, last in seen:
                    self._note(broker, event.peer, stream, last)
        return ()

    def _note(self, broker: BrokerView, client: Peer, stream: StreamId, last: int) -> None:
        key = broker.number, client, stream
        self._acknowledged[key] = max(last, self._acknowledged.get(key, 0))

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """See ProtocolChecks; the first observed position of a subscription is always valid."""
        core = broker.core
        assert isinstance(core, Durable), f"{core} is no core of durable"
        incarnation, before = self._begun.get(broker.number, (0, {}))
        if incarnation != broker.incarnation:
            before = {}
        begun: dict[_Lane, int] = {}
        self._begun[broker.number] = broker.incarnation, begun
        for local in core.registered.present.values():
            for stream, lane in local.lanes.items():
                acknowledged = lane.acknowledged
                key = local.identity, local.client, local.number, stream
                begun[key] = before.get(key, acknowledged)
                if acknowledged <= begun[key]:
                    continue
                last_stated = self._acknowledged.get((broker.number, local.client, stream), 0)
                if acknowledged > last_stated:
                    subject = f"{broker.name}: {local.client}/{local.number} in {tuple(stream)} has"
                    raise InvariantViolated(
                        "acknowledged by nobody",
                        f"{subject} {acknowledged}, but announces {last_stated}",
                    )
