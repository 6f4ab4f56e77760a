"""The owners of topics at an access broker, and requests that wait for an owner.

An owner stays valid: no topic changes its owner. Ownerships with changes have other classes
(`transfer_owners.py`, `proxy_ownership.py`). If owners follow from a hash all are present from the
start, and none is requested.

Paper: [MP22] §3. Deviates: the access broker asks, through a proxy, and keeps the answer; the
paper's proxies keep it, and guess missing owners.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.messages import Locate, Located, Owner


class AnswerCallback(Protocol):
    """A callback for an answer of a server to requests of one type, complete or not."""

    def __call__(self, server: BrokerNumber, kind: type, *, wholly: bool) -> None: ...


@dataclass(slots=True, eq=False)
class _OwnerWait:
    """An action that needs the owners of these topics."""

    topics: tuple[int, ...]
    then: Callable[[], None]


class Owners:
    """The owners at an access broker; none ever changes.

    Args:
        arbiters: per topic the server that decides on its owner.
        known: the owners from the start.
        send: sends a request, if there is a route.
        on_known: called with topics that have a new owner.
        answered: called after an answer of a server.

    Attributes:
        may_change: True if a topic may get another owner.
        are_in_turn: True if a topic has one owner at a time.
    """

    may_change = False
    are_in_turn = False

    def __init__(
        self,
        broker: BrokerNumber,
        arbiters: Sequence[BrokerNumber],
        known: Mapping[int, BrokerNumber],
        *,
        send: Callable[[Locate], None],
        on_known: Callable[[Sequence[int]], None],
        answered: AnswerCallback,
    ) -> None:
        self._broker = broker
        self._arbiters = arbiters
        self._known = dict(known)
        self._send = send
        self._on_known = on_known
        self._answered = answered
        self._sought: dict[BrokerNumber, dict[int, None]] = {}
        self._waiting: list[_OwnerWait] = []

    def of(self, topic: int) -> BrokerNumber | None:
        """Return the owner of a topic; None without one, or without such a topic."""
        return self._known.get(topic)

    def topics_of(self, server: BrokerNumber, topics: Sequence[int]) -> tuple[int, ...]:
        """Return the topics that a server owns."""
        return tuple(topic for topic in topics if self._known.get(topic) == server)

    def call_when_known(self, topics: Sequence[int], then: Callable[[], None]) -> None:
        """Call `then` once all these topics have owners: at once if they have."""
        unknown = [topic for topic in topics if topic not in self._known]
        if not unknown:
            then()
            return
        self._waiting.append(_OwnerWait(tuple(topics), then))
        self.seek(unknown)

    def seek(self, topics: Sequence[int]) -> None:
        """Request the owners of topics, unless present or requested."""
        for arbiter, new in self._group_by_arbiter(topics):
            self._sought.setdefault(arbiter, {}).update(dict.fromkeys(new))
            self._send(Locate(arbiter, self._broker, new))

    def _group_by_arbiter(
        self, topics: Sequence[int]
    ) -> Iterator[tuple[BrokerNumber, tuple[int, ...]]]:
        found: dict[BrokerNumber, list[int]] = {}
        for topic in topics:
            arbiter = self._arbiters[topic]
            if topic not in self._known and topic not in self._sought.get(arbiter, ()):
                found.setdefault(arbiter, []).append(topic)
        return iter([(arbiter, tuple(new)) for arbiter, new in found.items()])

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the owners of an earlier incarnation."""

    def ways_changed(self, first: BrokerNumber | None) -> None:
        """Take a change of routes, with the first proxy in this broker's order."""

    def remember(self, owners: Sequence[Owner]) -> None:
        """Take owners from before a crash; an earlier row may have requested them already."""
        self._known.update((owner.topic, owner.server) for owner in owners)
        sought = {topic for asked in self._sought.values() for topic in asked}
        self._found([owner.topic for owner in owners if owner.topic in sought])

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """Take announced owners.

        Raises:
            RemoteProtocolError: another owner was announced before, or there is no such topic; the
                fault of the peer.
        """
        for topic, server, _ in owners:
            if topic >= len(self._arbiters):
                raise RemoteProtocolError(peer, f"there is no topic {topic}")
            if self._known.get(topic, server) != server:
                told = self._known[topic]
                raise RemoteProtocolError(peer, f"topic {topic} is {told}'s and not {server}'s")
        self._add(owners)

    def _add(self, owners: Sequence[Owner]) -> None:
        new = [owner for owner in owners if owner.topic not in self._known]
        self._known.update((owner.topic, owner.server) for owner in new)
        self._found([owner.topic for owner in new])

    def _found(self, topics: Sequence[int]) -> None:
        for topic in topics:
            for sought in self._sought.values():
                sought.pop(topic, None)
        if topics:
            self._on_known(topics)
            self._call_ready()

    def _call_ready(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if all(topic in self._known for topic in each.topics):
                each.then()
            else:
                self._waiting.append(each)

    def list_awaited(self) -> tuple[int, ...]:
        """Return the topics without an owner that an action waits for."""
        return tuple({topic: None for each in self._waiting for topic in each.topics})

    def on_located(self, peer: Peer, message: Located) -> None:
        """Take an arbiter's answer."""
        before = self.awaits(message.server)
        self.learn(peer, message.owners)
        if before:
            self._answered(message.server, Locate, wholly=not self.awaits(message.server))

    def awaits(self, server: BrokerNumber) -> bool:
        """Return True if a server has not answered a request for owners."""
        return bool(self._sought.get(server))

    def resend(self, server: BrokerNumber) -> None:
        """Repeat unanswered requests for owners to a server."""
        if self.awaits(server):
            self._send(Locate(server, self._broker, tuple(self._sought[server])))

    def count_doubted(self) -> int:
        """Return the number of topics whose owner an arbiter is asked to confirm."""
        return 0

    def count_requested(self) -> int:
        """Return the number of topics with a request for an owner."""
        return sum(map(len, self._sought.values()))
