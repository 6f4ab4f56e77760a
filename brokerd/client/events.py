"""Events from a client core to its shell: answers, publications, gaps."""

from dataclasses import dataclass
from typing import ClassVar

from brokerd.model.client_messages import Deliveries, Notice, Refused, SubscriptionState
from brokerd.model.identity import SourceId


class Redelivered(Deliveries):
    """Publications that were delivered to the application before its restart, and not committed."""

    __slots__ = ()
    redelivered: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Attached:
    """An attachment of the client; `source` is None for a client that only subscribes."""

    source: SourceId | None
    broker_incarnation: int


@dataclass(frozen=True, slots=True)
class SubscriptionAnswered:
    """The state of a subscription, as reported by the broker; repeated after each attachment.

    Attributes:
        path_age_ns: see Subscribed.
    """

    number: int
    state: SubscriptionState
    path_age_ns: int = 0


@dataclass(frozen=True, slots=True)
class SubscriptionEnded:
    """The end of a subscription at the broker, as requested."""

    number: int


@dataclass(frozen=True, slots=True)
class Detached:
    """The end of all state of this client at the broker; its session may be closed."""


@dataclass(frozen=True, slots=True)
class PublicationsDone:
    """The first acknowledgement of all publications numbered `first` to `last`."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Received:
    """Publications that the application has not received for the named subscriptions.

    The shell calls `take` with `serial` when the application has received the publications.
    """

    deliveries: tuple[Deliveries, ...]
    serial: int


@dataclass(frozen=True, slots=True)
class Announced:
    """Matching publications that a partition withholds from a subscription, not announced before.

    The shell calls `take` with `serial` when the application was notified.
    """

    notice: Notice
    serial: int


@dataclass(frozen=True, slots=True)
class GapAnnounced:
    """Matching publications that a subscription will never receive.

    Attributes:
        number: number of the subscription.
        first, last: both included; publications that do not match may lie between.
        reason: a reason that the protocol declares; or "lost state", if a broker lost durable state
            and its operator accepted that.
    """

    number: int
    source: SourceId
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class GapsAnnounced:
    """Gaps that the application has not been notified of.

    The shell calls `take` with `serial` when the application was notified.
    """

    gaps: tuple[GapAnnounced, ...]
    serial: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The broker's confirmation of durable commits of a subscription, up to a request."""

    number: int
    request: int


@dataclass(frozen=True, slots=True)
class Withheld:
    """Publications that the broker repeated and the application has received before."""

    deliveries: Deliveries


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The permanent refusal of a request."""

    refused: Refused


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The temporary refusal of a request.

    After a pause the shell calls `subscribe_again(refused.number)`, or, if the number is 0, ends
    the session and opens another.
    """

    refused: Refused


@dataclass(frozen=True, slots=True)
class Redirected:
    """A redirect of the client to one of these addresses, the best first.

    The shell follows if permitted, while `can_follow_redirect` is True.
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
