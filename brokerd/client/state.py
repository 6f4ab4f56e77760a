"""The state of a client that must survive a restart."""

from dataclasses import dataclass

from brokerd.model.identity import ClientId, SourceId, StreamId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun


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


class Revision:
    """The versions of the state.

    `current` increases with each change, `saved` is the last durable one.
    """

    __slots__ = ("current", "saved")

    def __init__(self) -> None:
        self.current = self.saved = 0
