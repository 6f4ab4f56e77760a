"""The kinds of messages of all protocols."""

from brokerd.model.message_kind import MessageKind
from brokerd.protocols.registry import DEFINITIONS
from brokerd.wire.codec import COMMON


def all_kinds() -> dict[type, MessageKind]:
    """Return every kind by its type: common kinds first, then those of each protocol."""
    of_protocols = (kind for each in DEFINITIONS.values() for kind in each.messages)
    return {kind.type: kind for kind in (*COMMON, *of_protocols)}
