"""The access broker: the part of a broker for its own clients, as a client of all servers.

Paper: [MP22] §2. Deviates: the paper's client is one user; an access broker serves all its
clients.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.model.predicate import DecodeAttributes
from brokerd.protocols.multi_proxy.arbiter_transfers import GivenOwners
from brokerd.protocols.multi_proxy.causal_ownership import CausalOwners
from brokerd.protocols.multi_proxy.clients import Clients
from brokerd.protocols.multi_proxy.fetches import Fetches
from brokerd.protocols.multi_proxy.messages import (
    Answered,
    Following,
    Located,
    Lost,
    Merged,
    Messages,
    Request,
    Stored,
)
from brokerd.protocols.multi_proxy.owners import Owners
from brokerd.protocols.multi_proxy.parameters import (
    CAUSAL,
    PAPER,
    RENDEZVOUS,
    MultiProxyParameters,
)
from brokerd.protocols.multi_proxy.proxy_ownership import PaperOwners
from brokerd.protocols.multi_proxy.proxy_routes import ServerRoutes
from brokerd.protocols.multi_proxy.publishes import Publishes
from brokerd.protocols.multi_proxy.roles import Places
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.protocols.multi_proxy.transfer_owners import MovingOwners
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler


class AccessBroker:
    """The parts of an access broker, and their connections.

    Args:
        pass_on: takes a request if the access broker is the proxy itself.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        places: Places,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        pass_on: Callable[[Request], None],
    ) -> None:
        self.routes = ServerRoutes(
            broker,
            disk.machine,
            places.proxies_of(broker),
            places.servers,
            deadlines,
            parameters,
            pass_on=pass_on,
            resend=self._resend,
            awaits=self._awaits,
            puts_since=lambda server: self.publishes.waits_since(server),
        )
        self._disk = disk
        self.owners = self._make_owners(broker, places, parameters.ownership)
        self.publishes = Publishes(
            broker,
            disk.machine,
            self.owners,
            send=self.routes.send,
            on_stored=lambda source: self.clients.tell_stored(source),
            answered=self.routes.on_answer,
        )
        self.fetches = Fetches(
            broker,
            places.servers,
            self.owners,
            parameters.home_window,
            send=self.routes.send,
            hand_out=lambda run, handed: self.clients.own.hand_out(run, handed),
            tell_lost=lambda message, handed: self.clients.deliver_gaps(message, handed),
            check_run=lambda run, peer: self.clients.own.check_run(run, peer),
            answered=self.routes.on_answer,
        )
        self.clients = Clients(
            broker,
            disk,
            deadlines,
            parameters,
            decode_attributes,
            counters,
            topics=Topics(parameters, decode_attributes),
            owners=self.owners,
            puts=self.publishes,
            gets=self.fetches,
        )

    def _make_owners(self, broker: BrokerNumber, places: Places, ownership: str) -> Owners:
        """Return the owners at this broker, by the topology's `ownership`."""
        send, answered, arbiters = self.routes.send, self.routes.on_answer, places.arbiters

        def on_known(topics: Sequence[int]) -> None:
            self.publishes.on_owners(topics)

        def on_gone(gone: Mapping[int, BrokerNumber]) -> Sequence[int]:
            return self.publishes.forget_owners(gone)

        if ownership == PAPER:
            return PaperOwners(
                broker, arbiters, send=send, on_known=on_known, answered=answered, on_gone=on_gone
            )
        if ownership == RENDEZVOUS:
            known = dict(enumerate(arbiters))
            return Owners(broker, arbiters, known, send=send, on_known=on_known, answered=answered)
        kind: Callable[..., MovingOwners] = GivenOwners
        if ownership == CAUSAL:
            kind = partial(CausalOwners, carrier=self.routes.first_server)
        return kind(
            broker,
            arbiters,
            dict(places.servers_by_name),
            self._disk,
            send=send,
            on_known=on_known,
            answered=answered,
            on_gone=on_gone,
            on_moved=lambda topic, before, server: self.fetches.move(topic, before, server),
            on_merged=lambda topic, server: self.fetches.ask_again(topic, server),
        )

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of servers' answers."""
        return {
            Stored: self.publishes.on_stored,
            Following: self.fetches.on_following,
            Messages: self.fetches.on_messages,
            Lost: self.fetches.on_lost,
            Answered: self.fetches.on_answered,
            Located: self.owners.on_located,
            Merged: self._on_merged,
        }

    def _on_merged(self, peer: Any, message: Merged) -> None:
        """Take other owners of topics; without any, a server lost which topics are followed."""
        if not message.owners:
            self.fetches.restate()
        elif isinstance(self.owners, MovingOwners):
            self.owners.on_merged(peer, message)
        else:
            self.fetches.on_merged(peer, message)

    def _awaits(self, server: BrokerNumber) -> bool:
        return (
            self.publishes.unanswered(server)
            or self.fetches.awaits_follow(server)
            or self.fetches.awaits_get(server)
            or self.owners.awaits(server)
        )

    def _resend(self, server: BrokerNumber) -> None:
        self.owners.resend(server)
        self.publishes.resend(server)
        self.fetches.resend(server)
