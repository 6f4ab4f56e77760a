"""The state of a client that must survive a restart, and its versions."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from brokerd.model.client_messages import ClientMessage
from brokerd.model.identity import ClientId, SourceId, StreamId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.sessions.messages import StateMark


@dataclass(frozen=True, slots=True)
class Home:
    """The access broker of a client.

    Attributes:
        broker, deployment, protocol: names that the broker announces.
        may_lose: True if the protocol loses publications after failures.
        redelivers: True if the protocol delivers uncommitted publications again after a restart of
            a subscriber.
        resumes_elsewhere: True if a subscription resumes at other brokers, too, from its positions.
        leaves_freely: True if unanswered requests to one broker may be repeated to another, and
            publications there have the same source.
    """

    broker: str
    deployment: str
    protocol: str
    may_lose: bool
    redelivers: bool = False
    resumes_elsewhere: bool = False
    leaves_freely: bool = False


Positions = tuple[tuple[StreamId, int], ...]
"""Stream and the last position in it that counts as received."""


@dataclass(frozen=True, slots=True)
class KeptSubscription:
    """The state of a subscription that must survive a restart.

    Attributes:
        is_started: True if the broker has reported the start.
        committed: committed positions, per stream.
        given: delivered positions, per stream.
    """

    number: int
    predicate: Predicate
    is_started: bool
    committed: Positions
    given: Positions


@dataclass(frozen=True, slots=True)
class ClientState:
    """The state of a client that must survive a restart.

    Attributes:
        incarnation, next_sequence: state of the publication counter.
        home: the last access broker; None before the first.
        source: source of the client's publications there; None before the broker assigned it.
        runs: unacknowledged publications.
        last_number: highest number of all subscriptions ever made.
        ending: subscriptions with an end that the broker has not confirmed.
        witnessed: see Attachment.
    """

    name: ClientId
    publishes: bool
    incarnation: int
    next_sequence: int
    home: Home | None
    source: SourceId | None
    runs: tuple[PublicationRun, ...]
    last_number: int
    subscriptions: tuple[KeptSubscription, ...]
    ending: tuple[int, ...]
    witnessed: StateMark | None = None


def read_mark(values: Sequence[Any] | None) -> StateMark | None:
    """Return the state mark with the stored values; None without values."""
    return None if values is None else StateMark(*values)


class Revision:
    """The versions of a client's state, and the messages that wait until theirs is saved.

    Args:
        is_kept: True if the state must survive a restart; otherwise every version counts as saved.

    Attributes:
        current: the present version, increased with each change.
        saved: the last version that is durable.
    """

    __slots__ = ("_unsaved", "current", "is_kept", "saved")

    def __init__(self, *, is_kept: bool) -> None:
        self.is_kept = is_kept
        self.current = self.saved = 0
        self._unsaved: deque[tuple[int, ClientMessage]] = deque()

    @property
    def needs_saving(self) -> bool:
        """Return True if state has changed that must survive a restart."""
        return self.is_kept and self.saved < self.current

    def is_saved(self, version: int) -> bool:
        """Return True if this version of the state, or a later version, is durable."""
        return self.saved >= version or not self.is_kept

    def on_saved(self, version: int) -> None:
        """Record that this version of the state is durable."""
        self.saved = max(self.saved, version)

    def release(self, messages: list[ClientMessage]) -> list[ClientMessage]:
        """Return the messages whose state is saved, in order; later messages wait.

        Args:
            messages: new messages, which depend on the present version.
        """
        if not self.is_kept:
            return messages
        self._unsaved.extend((self.current, message) for message in messages)
        released: list[ClientMessage] = []
        while self._unsaved and self._unsaved[0][0] <= self.saved:
            released.append(self._unsaved.popleft()[1])
        return released

    def drop_messages(self) -> None:
        """Drop the messages that wait; their session has ended."""
        self._unsaved.clear()
