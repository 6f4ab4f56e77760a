"""Messages between brokers of the best-effort baseline."""

from typing import Final

from brokerd.model.identity import SubscriptionId
from brokerd.model.message_kind import MessageKind, run_kind
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record


@record
class SubscriptionsOffered:
    """A request for publications that match these subscriptions.

    `complete`: the first message of a session, with all subscriptions; other subscriptions from
    this peer have ended.
    """

    subscriptions: tuple[tuple[SubscriptionId, Predicate], ...]
    complete: bool


@record
class SubscriptionsReached:
    """The confirmation that every broker on the sender's side has some subscriptions."""

    subscriptions: tuple[SubscriptionId, ...]


@record
class SubscriptionsWithdrawn:
    """The end of some subscriptions."""

    subscriptions: tuple[SubscriptionId, ...]


@record
class ForwardedPublications:
    """Publications between two brokers, without an acknowledgement."""

    run: PublicationRun


KINDS: Final = (
    MessageKind(32, SubscriptionsOffered),
    MessageKind(33, SubscriptionsReached),
    MessageKind(34, SubscriptionsWithdrawn),
    run_kind(35, ForwardedPublications),
)
