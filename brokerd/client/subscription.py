"""One subscription of a client, for an application that says itself what it is done with."""

from typing import Protocol

from brokerd.client.singles import Publication
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import SourceId
from brokerd.model.predicate import Predicate


class Commits(Protocol):
    """Whoever can say how far a subscription is committed."""

    async def commit(self, number: int, source: SourceId, last: int) -> None:
        """See Subscription.commit."""
        ...

    def token_of(self, number: int) -> bytes:
        """See Subscription.token."""
        ...


class Subscription:
    """One subscription; made by `Client.subscription`.

    Attributes:
        number: at its client.
        predicate: what it asks for.
    """

    def __init__(self, client: Commits, number: int, predicate: Predicate) -> None:
        self.number = number
        self.predicate = predicate
        self._client = client

    async def commit(self, up_to: Publication | Deliveries) -> None:
        """The application is done with all that it was given for this subscription, up to this.

        Its broker may forget it. With a store, it is there when this returns, and is not given
        again after a restart.

        Raises:
            ClientError: it was not given that, or the client commits by itself.
            OSError: the store has failed.
        """
        if isinstance(up_to, Publication):
            source, last = up_to.source, up_to.sequence
        else:
            source, last = up_to.run.source, up_to.run.last
        await self._client.commit(self.number, source, last)

    @property
    def token(self) -> bytes:
        """How far the application has committed, as a resume token; empty for nowhere yet.

        What is in it is its protocol's business; `read_resume_token` says whose it is.
        """
        return self._client.token_of(self.number)
