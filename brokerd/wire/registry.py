"""The type numbers of all messages: the one table of what may stand in a frame."""

from typing import Final

from brokerd.model import client_messages
from brokerd.protocols.best_effort import messages as best_effort
from brokerd.protocols.delta_tree import messages as delta_tree
from brokerd.sessions import messages as session

# A number once used is never given to another message; a change of fields raises WIRE_VERSION.
TYPE_NUMBERS: Final[dict[int, type]] = {
    1: session.Hello,
    2: session.Heartbeat,
    3: session.Farewell,
    # clients and their broker
    16: client_messages.Connect,
    17: client_messages.Connected,
    18: client_messages.Publish,
    19: client_messages.PublishAcknowledged,
    20: client_messages.Subscribe,
    21: client_messages.Subscribed,
    22: client_messages.Deliveries,
    23: client_messages.Acknowledge,
    24: client_messages.Refused,
    25: client_messages.Notice,
    26: client_messages.Unsubscribe,
    27: client_messages.Unsubscribed,
    28: client_messages.Detach,
    # best effort
    32: best_effort.SubscriptionsOffered,
    33: best_effort.SubscriptionsReached,
    34: best_effort.SubscriptionsWithdrawn,
    35: best_effort.ForwardedPublications,
    # δ tree
    48: delta_tree.Summary,
    49: delta_tree.SyncEnd,
    50: delta_tree.RecoveryFlag,
    51: delta_tree.SubscriptionCopy,
    52: delta_tree.UpstreamCopy,
    53: delta_tree.SubscriptionConfirmation,
    54: delta_tree.PublicationCopy,
    55: delta_tree.PublicationConfirmation,
    56: delta_tree.RecoveryNotifier,
    57: delta_tree.Unsubscription,
    58: delta_tree.PartitionNew,
    59: delta_tree.PartitionGone,
    60: delta_tree.Relay,
}
