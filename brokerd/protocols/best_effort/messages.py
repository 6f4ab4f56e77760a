"""What brokers of the best-effort baseline say to each other."""

from brokerd.model.identity import SubscriptionId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record


@record
class SubscriptionsOffered:
    """Send me what matches these.

    `complete`: first message of a session, names everything; what was known from this peer and
    is not in it is over.
    """

    subscriptions: tuple[tuple[SubscriptionId, Predicate], ...]
    complete: bool


@record
class SubscriptionsReached:
    """These are known to every broker on the sender's side."""

    subscriptions: tuple[SubscriptionId, ...]


@record
class SubscriptionsWithdrawn:
    """These are over."""

    subscriptions: tuple[SubscriptionId, ...]


@record
class ForwardedPublications:
    """Publications on their way; nobody answers."""

    run: PublicationRun
