"""State that the parts of a δ-tree broker share: identity, parameters and the outbox."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.overlay.tree import Neighbourhood
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability

LARGEST_BROKER = (1 << 16) - 1
Path = tuple[BrokerNumber, ...]
Rows = Mapping[str, Mapping[str, Any]]
"""Recovered rows, by table and key."""

COUNTERS = (
    "publications_received",
    "publications_forwarded",
    "publications_delivered",
    "duplicates_received",
    "confirmations_sent",
    "resent_publications",
    "messages_ignored",
    "publications_withheld",
    "notifiers_sent",
    "dedupe_disagreements",
    "legitimacy_held",
    "legitimacy_violating",
    "legitimacy_violated",
    "unsubscriptions_sent",
    "tags_missing",
    "tags_extra",
)


@dataclass(slots=True)
class State(Durability):
    """The shared state of a broker.

    Attributes:
        restarted: this deployment has run on this disk before.
        recovering: restarted, and not yet brought up to date by neighbours.
        deadlines: keyed by (purpose, peer).
    """

    broker: BrokerNumber
    neighbourhood: Neighbourhood
    parameters: DeltaTreeParameters
    incarnation: int = 0
    restarted: bool = False
    recovering: bool = False
    deadlines: DeadlineQueue[tuple[str, Peer]] = field(default_factory=DeadlineQueue)
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    _checked_paths: dict[Path, None] = field(default_factory=dict)

    def change_neighbourhood(self, neighbourhood: Neighbourhood) -> None:
        """Replace the neighbourhood after a leaf has joined or left."""
        self.neighbourhood = neighbourhood
        self._checked_paths.clear()

    def has_left(self, broker: BrokerNumber) -> bool:
        """Return True if the broker has left the tree; other brokers may still mention it."""
        return broker in self.neighbourhood.left

    @property
    def newcomers(self) -> BrokerNumber:
        """The first number of brokers that joined after the deployment.

        A newcomer lacks every subscription that the brokers before it lack.
        """
        return self.neighbourhood.newcomers

    def check_path(self, path: Path, peer: Peer) -> None:
        """Check that `path` can be the primary path from its first broker to this broker.

        Only the part inside the neighbourhood is checked. The places of departed brokers are
        unknown: their publications still arrive through remaining brokers.

        Raises:
            RemoteProtocolError: the path is impossible; the fault of the peer that sent it.
        """
        if path in self._checked_paths:
            return
        left = 0
        while left < len(path) - 1 and self.has_left(path[left]):
            left += 1
        backwards = path[left:][::-1]
        near = backwards[: self.neighbourhood.radius + 1]
        known = self.neighbourhood.paths.get(near[-1]) if near else None
        if len(path) < 2 or known != near or not is_plain_path(path):
            raise RemoteProtocolError(peer, f"{path[:20]} is no path to broker {self.broker}")
        if len(self._checked_paths) >= 10_000:
            self._checked_paths.clear()
        self._checked_paths[path] = None


def is_plain_path(path: Path) -> bool:
    """Return True if the numbers can be brokers, without repetition."""
    return len(set(path)) == len(path) and all(0 <= broker <= LARGEST_BROKER for broker in path)


def join_paths(home_to_here: Path, here_to_peer: Path) -> Path:
    """Return the primary path from a home broker to a peer, given both paths through this broker.

    If both paths share links, the primary path branches off before it gets here.
    """
    shared = 0
    limit = min(len(home_to_here), len(here_to_peer))
    while shared + 1 < limit and home_to_here[-2 - shared] == here_to_peer[shared + 1]:
        shared += 1
    return home_to_here[: len(home_to_here) - shared] + here_to_peer[shared + 1 :]


def bits(brokers: Sequence[BrokerNumber]) -> int:
    """Return the bit set of these brokers."""
    found = 0
    for broker in brokers:
        found |= 1 << broker
    return found
