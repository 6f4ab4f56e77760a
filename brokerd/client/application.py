"""The parts of a client that its application sees: publications, subscriptions, callbacks, errors.

Publications one by one are convenient, and not the fast path to receive them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from brokerd.client.events import GapAnnounced
from brokerd.errors import BrokerError
from brokerd.model.client_messages import Deliveries, Notice
from brokerd.model.identity import SourceId
from brokerd.model.predicate import Predicate, Scalar
from brokerd.wire.attributes import decode_attributes


class ClientError(BrokerError):
    """The end of a client: refused, superseded by another client of its name, or at odds."""


class BrokerUnreachable(ClientError):
    """A broker that has not been reachable for `unreachable_after_s`.

    The client loses nothing and continues to try. A repeated call waits again.

    Attributes:
        cause: the client, the time, and the reason of the last failed attempt.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}; it keeps on trying, and the call may be repeated")
        self.cause = cause


def ignore(*_: Any) -> None:
    """Ignore a call."""


@dataclass(slots=True)
class Callbacks:
    """Callbacks, called at once and in order while the client works; they must return quickly.

    Attributes:
        on_acknowledged: (first, last): all publications in this range are acknowledged, each once.
        on_withheld: publications that the duplicate check kept from the application.
        on_notice: matching publications that a partition withholds from a subscription, in order
            with the results of `receive`; the source is received later, from some publication on.
        on_gap: matching publications that a subscription will never receive, with the reason; in
            order with the results of `receive`.
        on_session: (event, details): "attached" with source and broker_incarnation, "lost" with a
            reason, "failed" with the reason of a failed attempt and its address, "moved" with the
            address of the new broker and the new source, in place of "attached".
        on_subscription: (number, state).
        on_refused: (request, number, reason): the broker refuses the request for good.
    """

    on_acknowledged: Callable[[int, int], None] = ignore
    on_withheld: Callable[[Deliveries], None] = ignore
    on_notice: Callable[[Notice], None] = ignore
    on_gap: Callable[[GapAnnounced], None] = ignore
    on_session: Callable[[str, Mapping[str, Any]], None] = ignore
    on_subscription: Callable[[int, str], None] = ignore
    on_refused: Callable[[str, int, str], None] = ignore


@dataclass(frozen=True, slots=True)
class Publication:
    """One delivered publication, taken out of its run.

    Attributes:
        redelivered: True if the publication was delivered before a restart of the application, and
            not committed.
    """

    source: SourceId
    sequence: int
    attributes: Mapping[str, Scalar]
    payload: bytes
    subscriptions: tuple[int, ...]
    redelivered: bool = False


class SinglePublications(Protocol):
    """A client that returns one publication after the other."""

    async def receive_one(self, at_once: int) -> Publication:
        """Return the next publication."""
        ...


class PublicationIterator:
    """An iterator over the single publications of a client; each one is returned once."""

    def __init__(self, client: SinglePublications, at_once: int) -> None:
        self._client = client
        self._at_once = at_once

    def __aiter__(self) -> "PublicationIterator":
        return self

    async def __anext__(self) -> Publication:
        return await self._client.receive_one(self._at_once)


def publications_of(deliveries: Deliveries) -> Iterator[Publication]:
    """Yield the publications of a run, with decoded attributes."""
    run, numbers, again = deliveries.run, deliveries.subscriptions, deliveries.redelivered
    for sequence, blob, payload in run.publications():
        yield Publication(
            run.source, sequence, decode_attributes(blob), bytes(payload), numbers, again
        )


class SubscriptionBroker(Protocol):
    """The access broker, as a subscription uses it."""

    async def commit(self, number: int, source: SourceId, last: int) -> None:
        """Commit as Subscription.commit."""

    def token_of(self, number: int) -> bytes:
        """Return Subscription.token."""
        ...

    def path_age_ns(self, number: int) -> int:
        """Return Subscription.path_age_ns."""
        ...


class Subscription:
    """One subscription; made by `Client.subscription`.

    Attributes:
        number: number at the client.
        predicate: predicate of the subscription.
    """

    def __init__(self, broker: SubscriptionBroker, number: int, predicate: Predicate) -> None:
        self.number = number
        self.predicate = predicate
        self._broker = broker

    async def commit(self, up_to: Publication | Deliveries) -> None:
        """Commit all deliveries of this subscription up to the given publication or run.

        The broker may release the publications. With a store, the commit is stored on return, and
        the deliveries are not repeated after a restart.

        Raises:
            ClientError: the publication was not delivered, or the client commits by itself.
            OSError: the store has failed.
        """
        if isinstance(up_to, Publication):
            source, last = up_to.source, up_to.sequence
        else:
            source, last = up_to.run.source, up_to.run.last
        await self._broker.commit(self.number, source, last)

    @property
    def token(self) -> bytes:
        """The committed positions, as a resume token; empty if there are none.

        The content is private to the protocol; `read_resume_token` checks the owner.
        """
        return self._broker.token_of(self.number)

    @property
    def path_age_ns(self) -> int:
        """0 if the report of a started subscription is exact, as in almost every case.

        Otherwise brokers with a path to this client's broker that is younger than this, in
        nanoseconds, may not route by the subscription yet. An exact report needs a round through
        all brokers that ends in time, and messages take too long for one.
        """
        return self._broker.path_age_ns(self.number)
