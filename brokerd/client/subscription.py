"""A subscription of a client, for an application that commits explicitly."""

from typing import Protocol

from brokerd.client.single_publications import Publication
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import SourceId
from brokerd.model.predicate import Predicate


class Commits(Protocol):
    """An object that commits subscriptions."""

    async def commit(self, number: int, source: SourceId, last: int) -> None:
        """See Subscription.commit."""
        ...

    def token_of(self, number: int) -> bytes:
        """See Subscription.token."""
        ...


class Subscription:
    """One subscription; made by `Client.subscription`.

    Attributes:
        number: number at the client.
        predicate: predicate of the subscription.
    """

    def __init__(self, client: Commits, number: int, predicate: Predicate) -> None:
        self.number = number
        self.predicate = predicate
        self._client = client

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
        await self._client.commit(self.number, source, last)

    @property
    def token(self) -> bytes:
        """The committed positions, as a resume token; empty if there are none.

        The content is private to the protocol; `read_resume_token` checks the owner.
        """
        return self._client.token_of(self.number)
