"""Which server owns each topic, as one home knows it, and what waits until it does.

What a home was told once stays true: no topic changes its owner. Where it does, there are others
(`moving_owners.py`, `paper.py`). Where owners follow from a hash
all are known from the start, and nobody is asked.

Paper: [MP22] §3. Deviates: the home asks, through a proxy, and keeps the answer; the paper's
proxies keep it, and guess what they do not know.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.messages import Locate, Located, Owner


class Answered(Protocol):
    """Told that a server has answered requests of one type, and whether all of it."""

    def __call__(self, server: BrokerNumber, kind: type, *, wholly: bool) -> None: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    """Something that needs the owners of these topics."""

    topics: tuple[int, ...]
    then: Callable[[], None]


class Owners:
    """The owners that one home knows; none ever changes.

    Args:
        arbiters: per topic the server that decides who owns it.
        known: what is known from the start.
        send: sends a request, if there is a way.
        on_known: told of topics whose owners were not known before.
        answered: a server has answered something that was waited for.

    Attributes:
        may_change: a topic may come to have another owner.
        are_in_turn: it has one owner at a time.
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
        answered: Answered,
    ) -> None:
        self._broker = broker
        self._arbiters = arbiters
        self._known = dict(known)
        self._send = send
        self._on_known = on_known
        self._answered = answered
        self._sought: dict[BrokerNumber, dict[int, None]] = {}
        self._waiting: list[_Waiting] = []

    def of(self, topic: int) -> BrokerNumber | None:
        """The server that owns a topic; None while that is not known, or there is no such topic."""
        return self._known.get(topic)

    def owned_by(self, server: BrokerNumber, topics: Sequence[int]) -> tuple[int, ...]:
        """Those of some topics that a server owns."""
        return tuple(topic for topic in topics if self._known.get(topic) == server)

    def when_known(self, topics: Sequence[int], then: Callable[[], None]) -> None:
        """Do `then` once the owners of all these topics are known: at once where they are."""
        unknown = [topic for topic in topics if topic not in self._known]
        if not unknown:
            then()
            return
        self._waiting.append(_Waiting(tuple(topics), then))
        self.seek(unknown)

    def seek(self, topics: Sequence[int]) -> None:
        """Ask who owns these topics, where that is not known or being asked already."""
        for arbiter, new in self._by_arbiter(topics):
            self._sought.setdefault(arbiter, {}).update(dict.fromkeys(new))
            self._send(Locate(arbiter, self._broker, new))

    def _by_arbiter(self, topics: Sequence[int]) -> Iterator[tuple[BrokerNumber, tuple[int, ...]]]:
        found: dict[BrokerNumber, list[int]] = {}
        for topic in topics:
            arbiter = self._arbiters[topic]
            if topic not in self._known and topic not in self._sought.get(arbiter, ()):
                found.setdefault(arbiter, []).append(topic)
        return iter([(arbiter, tuple(new)) for arbiter, new in found.items()])

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what an earlier incarnation had on disk of owners."""

    def ways_changed(self, first: BrokerNumber | None) -> None:
        """Servers are reached over other proxies; the first of them in this home's order."""

    def remember(self, owners: Sequence[Owner]) -> None:
        """Owners that this home knew before a crash; an earlier row may ask for them already."""
        self._known.update((owner.topic, owner.server) for owner in owners)
        sought = {topic for asked in self._sought.values() for topic in asked}
        self._found([owner.topic for owner in owners if owner.topic in sought])

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """Somebody says who owns these topics.

        Raises:
            RemoteProtocolError: it was told otherwise before, or there is no such topic.
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
            self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if all(topic in self._known for topic in each.topics):
                each.then()
            else:
                self._waiting.append(each)

    def waited_for(self) -> tuple[int, ...]:
        """Topics whose owner something waits for."""
        return tuple({topic: None for each in self._waiting for topic in each.topics})

    def on_located(self, peer: Peer, message: Located) -> None:
        """An arbiter says who owns topics."""
        before = self.awaits(message.server)
        self.learn(peer, message.owners)
        if before:
            self._answered(message.server, Locate, wholly=not self.awaits(message.server))

    def awaits(self, server: BrokerNumber) -> bool:
        """Whether a server has yet to say who owns something."""
        return bool(self._sought.get(server))

    def resend(self, server: BrokerNumber) -> None:
        """Ask all again that a server has not said."""
        if self.awaits(server):
            self._send(Locate(server, self._broker, tuple(self._sought[server])))

    def sought(self) -> int:
        """Of how many topics the owner is asked for."""
        return sum(map(len, self._sought.values()))
