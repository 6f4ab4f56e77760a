"""The messages between access brokers and storages, over any routes.

A message is addressed to a single broker, and brokers on the route only forward the message. Any
message may be lost, duplicated or overtaken; a request is repeated until an answer arrives.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.message_kind import MessageKind, run_kind
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.protocols.ges import Target

Sequences = tuple[tuple[SourceId, int], ...]
"""Per source, the last one of its publications."""


class Targets(Protocol):
    """The targets of messages to single brokers."""

    def to(self, broker: BrokerNumber) -> Target:
        """Return the target of messages to a broker."""


class Forwarding(Targets, Protocol):
    """The routes of messages to single brokers."""

    def send(self, message: Any) -> None:
        """Route a message; this broker takes its own messages after all other processing."""


class Key(NamedTuple):
    """A subscription, at any access broker."""

    client: ClientId
    number: int


@record
class SubscriptionRequest:
    """A request about a subscription of a client.

    Attributes:
        key: number 0: all of a client.
        generation: of the client's attachment; increases with every move to another broker.
        predicate: None: the subscription is closed.
        had: the last epoch that the client has received; None without a report.
        claims: begin only a subscription that the storage has; else record the client's present
            broker.
        successor: the successor storage: soon, or without a predicate from now on.
        until: with a successor in another tree, the last epoch that this storage sends.
        before: the storage with everything before, while this storage is a successor; this storage
            itself: none has it any more.
        received_of: per source, the number through which publications are from the previous
            storage, although their epochs here are after `had`.
        is_query: request the last epoch of a root, about no subscription.
    """

    key: Key
    generation: int
    predicate: Predicate | None
    had: int | None = None
    claims: bool = False
    successor: BrokerNumber | None = None
    until: int | None = None
    before: BrokerNumber | None = None
    received_of: Sequences | None = None
    is_query: bool = False


@record
class Change:
    """Access broker → storage: requests of clients here, and closed subscriptions.

    Attributes:
        incarnation, number: of the access broker, and of this change; the next change follows the
            answer only.
        requests: in the order in which they were made.
        stores: True from a finer storage for its unit, to its parent; keys are of no client.

    Paper: [GES] §4 (profile changes).
    """

    target: Target
    hops: int
    home: BrokerNumber
    incarnation: int
    number: int
    requests: tuple[SubscriptionRequest, ...]
    stores: bool = False


class RequestAnswer(NamedTuple):
    """The answer to a request.

    Attributes:
        after: a subscription begins after this epoch; None: closed, or the client has moved
            elsewhere since, or the successor has the subscription.
        successor: the present or future successor storage.
        until, before: as requested.
        received_of: per source, the number through which publications are from `before`; or, for
            `looks`, the frontiers of a storage, with `after` its last epoch.
        acknowledged: the last publication that the client has acknowledged.
        later_generation: the generation of the client's later attachment to another broker, if
            any.
    """

    key: Key
    after: int | None
    successor: BrokerNumber | None = None
    until: int | None = None
    before: BrokerNumber | None = None
    received_of: Sequences = ()
    acknowledged: int = 0
    later_generation: int | None = None


@record
class Changed:
    """Storage → access broker: a Change is on disk.

    Paper: [GES] §4 (notification of a profile change's epoch).
    """

    target: Target
    hops: int
    storage: BrokerNumber
    incarnation: int
    number: int
    answers: tuple[RequestAnswer, ...]
    stores: bool = False


@record
class Store:
    """Access broker → storage: publications of a client here."""

    target: Target
    hops: int
    home: BrokerNumber
    run: PublicationRun


@record
class Stored:
    """Storage → access broker: publications of a source are on disk through a number.

    Paper: [GES] §4 (the root stores what is published in its unit).
    """

    target: Target
    hops: int
    storage: BrokerNumber
    source: SourceId
    through: int


@record
class LossProof:
    """Storage → access broker: acknowledged publications of a source are not on disk here.

    Attributes:
        through: the last number on disk.
        acknowledged: the last number that was acknowledged.
    """

    target: Target
    hops: int
    storage: BrokerNumber
    source: SourceId
    through: int
    acknowledged: int


@record
class Fetch:
    """Access broker or storage → storage: a request for publications after an epoch.

    Attributes:
        follower: the requesting broker.
        incarnation, number: of the follower, and of this.
        most: publications in the answer.
        done: receipts: subscriptions that have acknowledged everything through `through`, with
            their generations, and the last publications that their clients have acknowledged.
        stores: True from a storage that has everything through `through` on disk.

    Paper: [GES] §4 (receipts; negative acknowledgements).
    """

    target: Target
    hops: int
    follower: BrokerNumber
    incarnation: int
    number: int
    after: int
    most: int
    through: int
    done: tuple[tuple[Key, int, int], ...]
    stores: bool = False


@record
class Events:
    """Storage → follower: all its publications after an epoch, through the end of the run.

    Attributes:
        after: the epoch.
    """

    target: Target
    hops: int
    storage: BrokerNumber
    incarnation: int
    number: int
    after: int
    run: PublicationRun
    stores: bool = False


@record
class Fetched:
    """Storage → follower: the end of an answer; nothing more follows between two epochs.

    Attributes:
        after: the end of the previous message; a follower that has less has missed a part.
        through: the later epoch.
        waits: the storage keeps the fetch until there are publications; not an answer.
        displaced: clients of the fetch's receipts that have attached to another broker since, with
            those generations.
    """

    target: Target
    hops: int
    storage: BrokerNumber
    incarnation: int
    number: int
    after: int
    through: int
    stores: bool = False
    waits: bool = False
    displaced: tuple[tuple[ClientId, int], ...] = ()

    @property
    def is_request(self) -> bool:
        """True for a request to fetch again: the storage has restarted."""
        return not self.number


def brokers_in(message: Any) -> Iterator[BrokerNumber]:
    """Yield the brokers that a receiver of a message may send to."""
    match message:
        case Change(home=home, requests=requests):
            yield home
            named: Sequence[Any] = requests
        case Changed(answers=answers):
            named = answers
        case Store(home=home):
            yield home
            return
        case Fetch(follower=follower):
            yield follower
            return
        case _:
            return
    for each in named:
        yield from (place for place in (each.successor, each.before) if place is not None)


def _fits_store(message: Store) -> object:
    return message.target, message.hops, message.home


def _halves(message: Events) -> Sequence[Events]:
    """Return both halves of a message; the second half follows the first."""
    run = message.run
    half = len(run) // 2
    if not half:
        return ()
    first, second = run.select(range(half)), run.select(range(half, len(run)))
    return replace(message, run=first), replace(message, run=second, after=first.last)


KINDS: Final = (
    MessageKind(118, Change),
    MessageKind(119, Changed),
    run_kind(120, Store, _fits_store),
    MessageKind(121, Stored),
    MessageKind(122, Fetch),
    MessageKind(123, Events, None, _halves),
    MessageKind(124, Fetched),
    MessageKind(125, LossProof),
)
"""With their numbers on the wire; 118 to 127 are ges_reliable's."""
