"""Adjacent messages joined into a single equivalent message, so that a busy receiver works less.

A sender that is not held up writes every publication by itself. If the receiver is behind, many
publications arrive in one chunk; a run of many publications costs little more than a run of one.
"""

from collections.abc import Iterable
from typing import Any

from brokerd.model.message_kind import JOINED_BYTES, Joining
from brokerd.wire.codec import KINDS


def gather(messages: Iterable[Any], most_bytes: int = JOINED_BYTES) -> list[Any]:
    """Return the messages of one session in order, neighbours joined where the meaning is the same.

    Publications keep their order, and nothing moves past a message of another kind, unless that
    kind may follow.

    Args:
        most_bytes: approximate bound on the size of a joined message.
    """
    gathered: list[Any] = []
    group = _Group(most_bytes)
    for message in messages:
        if not group.takes(message):
            gathered.extend(group.joined())
            group = _Group(most_bytes)
            group.takes(message)
    gathered.extend(group.joined())
    return gathered


class _Group:
    """Adjacent messages that can be joined into one message."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._messages: list[Any] = []
        self._following: list[Any] = []
        self._joining: Joining | None = None
        self._size_bytes = 0
        self._items = 0

    def takes(self, message: Any) -> bool:
        """Add the message if the group can join it; return False if not."""
        joining = self._joining
        if not self._messages:
            self._joining = joining = KINDS[type(message)].joining
        elif joining is None:
            return False
        elif type(message) is not type(self._messages[-1]):
            if KINDS[type(message)].may_follow:
                self._following.append(message)
                return True
            return False
        if joining is not None:
            size_bytes = self._size_bytes + joining.size_bytes(message)
            items = self._items + joining.items(message)
            if self._messages and (
                size_bytes > self._most_bytes
                or items > joining.most
                or not joining.continues(self._messages[-1], message)
            ):
                return False
            self._size_bytes, self._items = size_bytes, items
        self._messages.append(message)
        return True

    def joined(self) -> list[Any]:
        """Return the messages of the group as one, and the following messages.

        Empty for an empty group.
        """
        if len(self._messages) < 2:
            return self._messages + self._following
        assert self._joining is not None, f"{type(self._messages[0]).__name__} is never joined"
        return [self._joining.join(self._messages), *self._following]
