"""What brokers of the best-effort baseline say to each other."""

from dataclasses import dataclass

from brokerd.model.identity import SubscriptionId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun


@dataclass(frozen=True, slots=True)
class SubscriptionsOffered:
    """Send me what matches these.

    `complete`: first message of a session, names everything; what was known from this peer and
    is not in it is over.
    """

    subscriptions: tuple[tuple[SubscriptionId, Predicate], ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class SubscriptionsReached:
    """These are known to every broker on the sender's side."""

    subscriptions: tuple[SubscriptionId, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionsWithdrawn:
    """These are over."""

    subscriptions: tuple[SubscriptionId, ...]


@dataclass(frozen=True, slots=True)
class ForwardedPublications:
    """Publications on their way; nobody answers."""

    run: PublicationRun
