"""The table of all messages: messages of every deployment, and messages of single protocols."""

from typing import Final

from brokerd.model import client_messages
from brokerd.model.message_kind import MessageKind, of_numbers, of_run
from brokerd.protocols.registry import DEFINITIONS
from brokerd.sessions import messages as session

# A used number is never reassigned to another message; a change of fields raises WIRE_VERSION.
COMMON: Final = (
    MessageKind(1, session.Hello),
    MessageKind(2, session.Heartbeat),
    MessageKind(3, session.Farewell),
    MessageKind(4, session.StateAdvanced),
    # clients and their broker
    MessageKind(16, client_messages.Connect),
    MessageKind(17, client_messages.Connected),
    of_run(18, client_messages.Publish),
    of_numbers(19, client_messages.PublishAcknowledged),
    MessageKind(20, client_messages.Subscribe),
    MessageKind(21, client_messages.Subscribed),
    of_run(22, client_messages.Deliveries, beside=lambda message: message.subscriptions),
    of_numbers(23, client_messages.Acknowledge, beside=lambda message: message.stream),
    MessageKind(24, client_messages.Refused),
    MessageKind(25, client_messages.Notice),
    MessageKind(26, client_messages.Unsubscribe),
    MessageKind(27, client_messages.Unsubscribed),
    MessageKind(28, client_messages.Detach),
    MessageKind(29, client_messages.Silence),
    MessageKind(30, client_messages.Gap),
    MessageKind(12, client_messages.Consume),
    MessageKind(13, client_messages.Consuming),
    MessageKind(14, client_messages.CommitConsumed),
    MessageKind(15, client_messages.ConsumedCommitted),
    MessageKind(11, client_messages.Redirect),
)

KINDS: Final[dict[type, MessageKind]] = {
    kind.type: kind
    for kinds in (COMMON, *(definition.messages for definition in DEFINITIONS.values()))
    for kind in kinds
}
"""Every kind of message by its type."""
