"""Publications one by one: convenient, and not the fast path to receive them."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import SourceId
from brokerd.model.predicate import Scalar
from brokerd.wire.attributes import decode_attributes


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


class PublicationIterator:
    """An iterator over single publications; a run counts as taken when all of it was."""

    def __init__(self, client: AsyncIterator[Deliveries]) -> None:
        self._client = client
        self._rest: Iterator[Publication] = iter(())

    def __aiter__(self) -> "PublicationIterator":
        return self

    async def __anext__(self) -> Publication:
        while (publication := next(self._rest, None)) is None:
            self._rest = publications_of(await anext(self._client))
        return publication


def publications_of(deliveries: Deliveries) -> Iterator[Publication]:
    """Yield the publications of a run, with decoded attributes."""
    run, numbers, again = deliveries.run, deliveries.subscriptions, deliveries.redelivered
    for sequence, blob, payload in run.publications():
        yield Publication(
            run.source, sequence, decode_attributes(blob), bytes(payload), numbers, again
        )
