"""Neighbouring messages joined into one that says the same, so that a busy receiver works less.

A sender that is not held up writes each publication by itself. When the receiver is behind,
many of them arrive in one chunk; handled as one run they cost little more than one of them.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from brokerd.model.client_messages import Acknowledge, Deliveries, Publish, PublishAcknowledged
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.best_effort.messages import ForwardedPublications
from brokerd.protocols.delta_tree.messages import PublicationConfirmation, PublicationCopy

GATHERED_BYTES: Final = 1 << 19
GATHERED_PUBLICATIONS: Final = 8_192
GATHERED_RANGES: Final = 4_096

# What else must be equal for two messages of this type, with runs of one source, to be joined.
_BESIDE_THE_RUN: Final[dict[type, Callable[[Any], object]]] = {
    Publish: lambda message: None,
    ForwardedPublications: lambda message: None,
    PublicationCopy: lambda message: message.path,
    Deliveries: lambda message: message.subscriptions,
}


def gather(messages: Iterable[Any]) -> list[Any]:
    """The messages of one session in order, neighbours joined where that changes nothing.

    Publications keep their order, and nothing moves past a message of another kind.
    """
    gathered: list[Any] = []
    group = _Group()
    for message in messages:
        if not group.takes(message):
            gathered.extend(group.joined())
            group = _Group()
            group.takes(message)
    gathered.extend(group.joined())
    return gathered


class _Group:
    """Neighbours that can be one message."""

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._weight = 0
        self._publications = 0

    def takes(self, message: Any) -> bool:
        """Add the message if it can be joined with those before it."""
        if self._messages and not self._fits(self._messages[-1], message):
            return False
        self._messages.append(message)
        run = getattr(message, "run", None)
        if run is not None:
            self._weight += run.payload_bytes() + sum(map(len, run.attribute_table))
            self._publications += len(run)
        elif type(message) is PublicationConfirmation:
            self._publications += len(message.ranges)
        return True

    def joined(self) -> list[Any]:
        """The messages of the group as one; nothing for an empty group."""
        messages = self._messages
        if len(messages) < 2:
            return messages
        first, last = messages[0], messages[-1]
        kind = type(first)
        if kind is PublicationConfirmation:
            ranges = chain.from_iterable([message.ranges for message in messages])
            return [PublicationConfirmation(tuple(ranges))]
        if kind in (Acknowledge, PublishAcknowledged):
            return [replace(first, last=last.last)]
        return [replace(first, run=merge_runs([message.run for message in messages]))]

    def _fits(self, before: Any, message: Any) -> bool:
        kind = type(message)
        if kind is not type(before):
            return False
        if kind in _BESIDE_THE_RUN:
            beside = _BESIDE_THE_RUN[kind]
            return beside(message) == beside(before) and self._continues(before.run, message.run)
        if kind is PublicationConfirmation:
            return self._publications + len(message.ranges) <= GATHERED_RANGES
        if kind is Acknowledge:
            return message.source == before.source and bool(message.first == before.last + 1)
        return kind is PublishAcknowledged and bool(message.first == before.last + 1)

    def _continues(self, before: PublicationRun, run: PublicationRun) -> bool:
        return (
            run.source == before.source
            and run.first > before.last
            and self._weight + run.payload_bytes() <= GATHERED_BYTES
            and self._publications + len(run) <= GATHERED_PUBLICATIONS
        )
