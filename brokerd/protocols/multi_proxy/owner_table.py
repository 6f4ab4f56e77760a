"""The server of each topic, as an access broker uses it."""

from collections.abc import Mapping, Sequence

from brokerd.model.identity import BrokerNumber


class OwnerTable:
    """The server of each topic, as far as determined.

    Attributes:
        may_change: True if a topic may get another owner.
        are_in_turn: True if a topic has one owner at a time, each in a higher generation.
        generations: of the owners, in turn.
    """

    def __init__(
        self,
        known: Mapping[int, BrokerNumber],
        *,
        may_change: bool = False,
        are_in_turn: bool = False,
    ) -> None:
        self.may_change = may_change
        self.are_in_turn = are_in_turn
        self.known = dict(known)
        self.generations: dict[int, int] = {}

    def of(self, topic: int) -> BrokerNumber | None:
        """Return the owner of a topic; None without one, or without such a topic."""
        return self.known.get(topic)

    def topics_of(self, server: BrokerNumber, topics: Sequence[int]) -> tuple[int, ...]:
        """Return the topics that a server owns."""
        return tuple(topic for topic in topics if self.known.get(topic) == server)
