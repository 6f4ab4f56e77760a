"""What a client library tells the shell around it: answers, publications, what does not come."""

from dataclasses import dataclass
from typing import ClassVar

from brokerd.model.client_messages import Deliveries, Notice, Refused, SubscriptionState
from brokerd.model.identity import SourceId


class Redelivered(Deliveries):
    """Publications that the application was given before it started again, and not committed."""

    __slots__ = ()
    redelivered: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Attached:
    """The broker knows this client; `source` is None for one that only reads."""

    source: SourceId | None
    broker_incarnation: int


@dataclass(frozen=True, slots=True)
class SubscriptionAnswered:
    """The broker told the state of a subscription; said again after each attach."""

    number: int
    state: SubscriptionState


@dataclass(frozen=True, slots=True)
class SubscriptionEnded:
    """The broker has ended a subscription, as it was asked to."""

    number: int


@dataclass(frozen=True, slots=True)
class Detached:
    """The broker keeps nothing for this client any more; its session may be closed."""


@dataclass(frozen=True, slots=True)
class PublicationsDone:
    """All publications numbered `first` to `last` are done, and had not been before."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Received:
    """Publications that the application has not had for the named subscriptions.

    The shell calls `take` with `serial` when the application has them.
    """

    deliveries: tuple[Deliveries, ...]
    serial: int


@dataclass(frozen=True, slots=True)
class Announced:
    """Matching publications that a partition keeps from a subscription, not announced before.

    The shell calls `take` with `serial` when the application knows.
    """

    notice: Notice
    serial: int


@dataclass(frozen=True, slots=True)
class GapAnnounced:
    """Matching publications that a subscription does not get, now or ever.

    Attributes:
        number: of the subscription.
        first, last: both included; what does not match may lie between.
        reason: one of those that the protocol promises to have; or "lost state", if a broker lost
            durable state and its operator accepted that.
    """

    number: int
    source: SourceId
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class GapsAnnounced:
    """Gaps that the application has not been told of.

    The shell calls `take` with `serial` when the application knows.
    """

    gaps: tuple[GapAnnounced, ...]
    serial: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The broker has on disk what it was asked to commit of a subscription, up to a request."""

    number: int
    request: int


@dataclass(frozen=True, slots=True)
class Withheld:
    """Publications that the broker repeated and the application has had."""

    deliveries: Deliveries


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The broker will not do this, now or later."""

    refused: Refused


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The broker cannot do this yet.

    After a pause the shell calls `subscribe_again(refused.number)`, or, where the number is 0,
    ends the session and opens another.
    """

    refused: Refused


@dataclass(frozen=True, slots=True)
class Redirected:
    """The broker would rather have the client at one of these addresses, the best first.

    The shell goes where it may, while `may_go` says that this costs nothing.
    """

    addresses: tuple[str, ...]


ClientEvent = (
    Attached
    | SubscriptionAnswered
    | SubscriptionEnded
    | Detached
    | PublicationsDone
    | Received
    | Announced
    | GapsAnnounced
    | Committed
    | Withheld
    | RequestRefused
    | RetryLater
    | Redirected
)
