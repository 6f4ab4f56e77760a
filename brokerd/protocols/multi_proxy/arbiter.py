"""A server that decides who owns topics, and one that is told to own some.

Each topic has one arbiter, by a hash. It gives the topic to a server that some proxy proposes, in
three steps, each on disk before the next: pending, assigned at the server, owned. Nobody is told of
an owner before the last one, so that until then another server can be taken instead.

Paper: none. [MP22] §4 leaves open that two servers own a topic, whose merging loses messages.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change, Instant
from brokerd.protocols.multi_proxy.messages import (
    Assign,
    Assigned,
    Claim,
    Generation,
    Located,
    Owned,
    Owner,
)
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.event_machine import MessageHandler

OWNERS: Final = "owners"
"""Per topic of this arbiter: its server, the generation, and whether that server has it."""
ASSIGNED: Final = "assigned"
"""Per topic that this server was told to own, in which generation."""


@dataclass(slots=True)
class Decision:
    """Who owns a topic, or may come to.

    Attributes:
        is_owner: the server has said that it has the topic, and that is on disk.
        is_kept: this decision is on disk.
        since_ns: when it was made; 0: before a crash.
        waiting: the homes that have asked, in order.
    """

    server: BrokerNumber
    generation: int
    is_owner: bool = False
    is_kept: bool = False
    since_ns: Instant = 0
    waiting: dict[BrokerNumber, None] = field(default_factory=dict)


class Arbiter:
    """Of the topics of which this server is the arbiter, who owns them.

    Args:
        retry_ns: how long a server may leave an Assign unanswered before another one is taken.
        decides: whether this is the arbiter of a topic.
        assign: tells a server that it owns topics, over a proxy.
        answer: tells a home who owns topics.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        retry_ns: int,
        *,
        decides: Callable[[int], bool],
        assign: Callable[[BrokerNumber, Assign], None],
        answer: Callable[[BrokerNumber, Located], None],
    ) -> None:
        self._broker = broker
        self._disk = disk
        self._retry_ns = retry_ns
        self._decides = decides
        self._assign = assign
        self._answer = answer
        self._decisions: dict[int, Decision] = {}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what an earlier incarnation has decided."""
        for key, (server, generation, is_owner) in recovered.get(OWNERS, {}).items():
            self._decisions[int(key)] = Decision(server, generation, bool(is_owner), is_kept=True)

    def on_claim(self, peer: BrokerNumber, message: Claim) -> None:
        """Say who owns topics, and see to it that somebody does."""
        owners: list[Owner] = []
        for topic, candidate in message.candidates:
            if not self._decides(topic):
                raise RemoteProtocolError(peer, f"broker {self._broker} decides not on {topic}")
            decision = self._decisions.get(topic)
            if decision is not None and decision.is_owner and decision.is_kept:
                owners.append(Owner(topic, decision.server))
                continue
            if decision is None:
                decision = self._decide(peer, topic, Decision(candidate, 1))
            elif decision.is_kept and decision.server != candidate and self._is_late(decision):
                waiting = decision.waiting
                decision = Decision(candidate, decision.generation + 1, waiting=waiting)
                self._decide(peer, topic, decision)
            elif decision.is_kept:
                self._tell(peer, topic, decision)
            decision.waiting[message.home] = None
        if owners:
            self._answer(message.home, Located(self._broker, message.home, tuple(owners)))

    def _is_late(self, decision: Decision) -> bool:
        return self._disk.machine.now_ns - decision.since_ns >= self._retry_ns

    def _decide(self, peer: BrokerNumber, topic: int, decision: Decision) -> Decision:
        decision.since_ns = self._disk.machine.now_ns
        self._decisions[topic] = decision

        def kept() -> None:
            decision.is_kept = True
            self._tell(peer, topic, decision)

        self._disk.commit((_row(topic, decision),), kept)
        return decision

    def _tell(self, peer: BrokerNumber, topic: int, decision: Decision) -> None:
        generation = Generation(topic, decision.generation)
        self._assign(peer, Assign(decision.server, self._broker, (generation,)))

    def on_assigned(self, peer: Peer, message: Assigned) -> None:
        """A server has topics; what it was given in an older generation is another one's now."""
        for topic, number in message.generations:
            decision = self._decisions.get(topic)
            if decision is None or number > decision.generation:
                raise RemoteProtocolError(peer, f"broker {message.server} was not given {topic}")
            if number == decision.generation and decision.is_kept and not decision.is_owner:
                self._own(topic, decision)

    def _own(self, topic: int, decision: Decision) -> None:
        decision.is_owner, decision.is_kept = True, False

        def kept() -> None:
            decision.is_kept = True
            waiting, decision.waiting = decision.waiting, {}
            for home in waiting:
                owners = (Owner(topic, decision.server),)
                self._answer(home, Located(self._broker, home, owners))

        self._disk.commit((_row(topic, decision),), kept)


def _row(topic: int, decision: Decision) -> Change:
    row = [decision.server, decision.generation, decision.is_owner]
    return Change(OWNERS, str(topic), row)


class Assignments:
    """The topics that a server was told to own.

    Args:
        answer: tells an arbiter that this is on disk, over a proxy.
    """

    def __init__(self, disk: Durability, answer: Callable[[BrokerNumber, Assigned], None]) -> None:
        self._disk = disk
        self._answer = answer
        self._kept: dict[int, int] = {}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what an earlier incarnation was told."""
        self._kept = {int(key): number for key, number in recovered.get(ASSIGNED, {}).items()}

    def owns(self, topic: int) -> bool:
        """Whether this server was told to own a topic, and has that on disk."""
        return topic in self._kept

    def on_assign(self, peer: BrokerNumber, message: Assign) -> None:
        """Own these topics, unless a later attempt has given them here already."""
        new = [each for each in message.generations if each.number > self._kept.get(each.topic, 0)]

        def kept() -> None:
            for topic, number in new:
                self._kept[topic] = max(number, self._kept.get(topic, 0))
            answer = Assigned(message.server, message.arbiter, message.generations)
            self._answer(peer, answer)

        changes = [Change(ASSIGNED, str(each.topic), each.number) for each in new]
        self._disk.commit(changes, kept)


class Ownership:
    """What a server decides of owners, and what it owns.

    Args:
        decides: whether this is the arbiter of a topic.
        proxies: those with which there is a session.
        answer: tells a home who owns topics.

    Attributes:
        arbiter: for the topics that it decides on.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        retry_ns: int,
        *,
        decides: Callable[[int], bool],
        proxies: Collection[BrokerNumber],
        answer: Callable[[BrokerNumber, Located], None],
    ) -> None:
        self._broker = broker
        self._machine = disk.machine
        self._proxies = proxies
        self.arbiter = Arbiter(
            broker, disk, retry_ns, decides=decides, assign=self._assign, answer=answer
        )
        self._owned = Assignments(disk, self._assigned)

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what an earlier incarnation has decided and was told."""
        self.arbiter.recover(recovered)
        self._owned.recover(recovered)

    def handlers(self) -> dict[type, MessageHandler]:
        """Who takes what comes from other servers over a proxy."""
        return {Assign: self._on_assign, Assigned: self._on_assigned}

    def owns(self, topic: int) -> bool:
        """Whether this server was told to own a topic, and has that on disk."""
        return self._owned.owns(topic)

    def announce(self, topics: Collection[int]) -> None:
        """Homes know that these topics are this server's: all proxies may."""
        for proxy in self._proxies:
            self.tell(proxy, topics)

    def tell(self, proxy: BrokerNumber, topics: Collection[int]) -> None:
        """Tell a proxy that topics are this server's."""
        if topics:
            owners = tuple(Owner(topic, self._broker) for topic in topics)
            self._machine.send(proxy, Owned(owners))

    def _send(self, proxy: BrokerNumber, message: Assign | Assigned) -> None:
        if proxy in self._proxies:
            self._machine.send(proxy, message)

    def _assign(self, proxy: BrokerNumber, message: Assign) -> None:
        if message.server == self._broker:
            self._owned.on_assign(proxy, message)
        else:
            self._send(proxy, message)

    def _assigned(self, proxy: BrokerNumber, message: Assigned) -> None:
        if message.arbiter == self._broker:
            self.arbiter.on_assigned(proxy, message)
        else:
            self._send(proxy, message)

    def _on_assign(self, peer: Any, message: Assign) -> None:
        if message.server != self._broker:
            raise RemoteProtocolError(peer, f"assigns topics to {message.server}")
        self._owned.on_assign(peer, message)

    def _on_assigned(self, peer: Any, message: Assigned) -> None:
        if message.arbiter != self._broker:
            raise RemoteProtocolError(peer, f"{message.arbiter} has assigned that")
        self.arbiter.on_assigned(peer, message)
