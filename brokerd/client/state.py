"""What a client must still know after a restart."""

from dataclasses import dataclass

from brokerd.model.identity import ClientId, SourceId, StreamId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun


@dataclass(frozen=True, slots=True)
class Home:
    """The broker that a client has gone to.

    Attributes:
        broker, deployment, protocol: what it calls itself, its deployment and what it runs.
        may_lose: the protocol loses publications when something fails.
        redelivers: it gives again what was not committed when a subscriber started again.
        resumes_elsewhere: a subscription goes on at other brokers, too, from where it has come to.
        leaves_freely: what it has asked of one broker and not been answered it may ask of another,
            and what it publishes there is of the same source.
    """

    broker: str
    deployment: str
    protocol: str
    may_lose: bool
    redelivers: bool = False
    resumes_elsewhere: bool = False
    leaves_freely: bool = False


Positions = tuple[tuple[StreamId, int], ...]
"""Stream and the last position in it that counts as had."""


@dataclass(frozen=True, slots=True)
class KeptSubscription:
    """What a client must still know of a subscription after a restart.

    Attributes:
        is_started: its broker has said so.
        committed: how far the application is done with it, per stream.
        given: how far the application was given it.
    """

    number: int
    predicate: Predicate
    is_started: bool
    committed: Positions
    given: Positions


@dataclass(frozen=True, slots=True)
class ClientState:
    """What a client must still know after a restart.

    Attributes:
        incarnation, next_sequence: of its publication counter.
        home: the last broker it went to; None before the first.
        source: under which its publications go there; None before it was told.
        runs: what it has published and not been told is done.
        last_number: of all subscriptions that it has made.
        ending: subscriptions whose end its broker has not confirmed.
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
    """Of the state: `current` goes up with each change, `saved` is the last that is safe."""

    __slots__ = ("current", "saved")

    def __init__(self) -> None:
        self.current = self.saved = 0
