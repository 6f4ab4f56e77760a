"""Requests of clients whose subscriptions are matched at this broker.

A method checks a request, changes the state of the client, and returns the facts that the protocol
acts on. The protocol commits the changes of an `Admission` and the end of an `EndRequest`, and then
calls `enter` or `answer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from brokerd.model.client_messages import Connect, Unsubscribe
from brokerd.model.identity import ClientId
from brokerd.protocols.parts.clients.own_subscriptions import (
    DETACHED,
    Entry,
    Local,
    OwnClient,
    OwnSubscriptions,
)
from brokerd.protocols.parts.clients.table import Admission, ClientTable

Owner = TypeVar("Owner", bound=OwnClient[Any])


@dataclass(frozen=True, slots=True)
class EndRequest(Generic[Owner, Local]):
    """Subscriptions of a client that end.

    Attributes:
        session: the client's session at the request; no later session receives the answer.
        number: the number in the answer; None without an answer.
        drain: the client still receives the deliveries of subscriptions requested on its session.
    """

    client: Owner
    over: Sequence[Local]
    session: int = 0
    number: int | None = None
    drain: bool = False


class ClientRequests(Generic[Owner, Local, Entry]):
    """The requests of this broker's clients.

    Args:
        table: the clients.
        own: their subscriptions.
    """

    def __init__(self, table: ClientTable[Owner], own: OwnSubscriptions[Local, Entry]) -> None:
        self._table = table
        self._own = own

    # ------------------------------------------------------------ sessions

    def connect(
        self, name: ClientId, message: Connect, durable: int | None = None
    ) -> Admission[Owner] | None:
        """Return the admission of a client; None after a refusal.

        Args:
            durable: see `ClientTable.check_connect`.
        """
        client = self._table.check_connect(name, message, durable or 0, durable)
        return self._table.assign_source(client, message) if client is not None else None

    def recall_lost(self, client: Owner, message: Connect) -> None:
        """Recall the stated positions of subscriptions of which this broker has lost a part."""
        whole = [each.number for each in client.subscriptions.values() if each.is_whole]
        self._table.recall_lost(client, message, whole)

    def enter(self, client: Owner) -> None:
        """Admit and notify a client; subscriptions without a request end after a while."""
        self._table.enter(client)
        self._table.welcome(client)
        if client.subscriptions:
            self._table.linger(client.name)

    def forget(self, name: ClientId) -> None:
        """Remove an absent client without remaining state."""
        self._table.forget(name)
        self._own.windows.forget(name)

    # ------------------------------------------------------------ ends

    def unrequested(self, client: Owner) -> EndRequest[Owner, Local]:
        """Return the end of the subscriptions that a client has not requested in time."""
        return EndRequest(client, self._own.unrequested(client))

    def unsubscribe(self, name: ClientId, message: Unsubscribe) -> EndRequest[Owner, Local]:
        """Return the end of a subscription; empty if the subscription has ended before."""
        client = self._table.check_unsubscribe(name, message)
        found = client.subscriptions.get(message.number)
        over = [found] if found is not None else []
        return EndRequest(client, over, client.session, message.number)

    @staticmethod
    def detach(client: Owner, *, drain: bool) -> EndRequest[Owner, Local]:
        """Return the end of all subscriptions of a client."""
        over = [*client.subscriptions.values()]
        return EndRequest(client, over, client.session, DETACHED, drain)

    def answer(self, request: EndRequest[Owner, Local]) -> None:
        """Report a durable end; a Detach is answered after the last acknowledgement."""
        client, session = request.client, request.session
        if request.number == DETACHED:
            client.drains = client.session == session
            self._own.answer_detach(client)
        elif request.number is not None:
            self._table.report_end(client, session, request.number)
