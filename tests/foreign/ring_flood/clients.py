"""The clients of one broker of the ring: what each wants is known here and nowhere else."""

from collections.abc import Callable

from brokerd.model.client_messages import Publish
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.parts.clients.own_service import OwnClient, OwnSubscriptions
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability
from brokerd.protocols.ring_flood.log import Stored
from brokerd.protocols.ring_flood.parameters import RingFloodParameters


class Clients(OwnSubscriptions[Stored]):
    """See ClientService.

    Args:
        publish: takes what a client publishes.
        on_acknowledged: more of a source may be done.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: RingFloodParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        publish: Callable[[PublicationRun, Peer], None],
        on_acknowledged: Callable[[SourceId], None],
    ) -> None:
        super().__init__(broker, disk, deadlines, parameters, decode_attributes, counters)
        self._publish_run = publish
        self._on_more = on_acknowledged

    def tell_stored(self, source: SourceId, through: int) -> None:
        """Tell a publisher that is here what of its publications is stored as often as asked."""
        for client in self._clients.values():
            if client.source == source:
                self.acknowledge_through(client, through)

    def _publish(self, client: OwnClient, message: Publish) -> None:
        self._publish_run(message.run, client.name)
        client.submitted = max(client.submitted, message.run.last)
        self._on_more(message.run.source)

    def _on_done(self, entry: Stored) -> None:
        self._on_more(entry.run.source)
