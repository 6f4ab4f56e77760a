"""A server that decides who owns topics, and one that is told to own some.

Each topic has one arbiter, by a hash. It gives the topic to a server that some proxy proposes, in
three steps, each on disk before the next: pending, assigned at the server, owned. Nobody is told of
an owner before the last one, so that until then another server can be taken instead.

A topic that has an owner may move to another server (MOVE), in a higher generation: that it is to
is on disk before its owner hears of it, which gives it away (`giving.py`) and says when the other
one has all of it.

Paper: none. [MP22] §4 leaves open that two servers own a topic, whose merging loses messages.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change, Instant
from brokerd.protocols.multi_proxy.messages import (
    Assign,
    Assigned,
    Claim,
    Generation,
    Give,
    Located,
    Move,
    Owned,
    Owner,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.event_machine import MessageHandler
from brokerd.protocols.parts.leaps import check_generation

GIVING: Final = "giving"
"""Purpose of the deadline at which owners are told again to give topics away."""
OWNERS: Final = "owners"
"""Per topic of this arbiter: its server, the generation, and whether that server has it; where it
has moved, also to whom it is to, and who has had it."""
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
        to: whom it is to give the topic to; None: it keeps it.
        had: who has given it away.
    """

    server: BrokerNumber
    generation: int
    is_owner: bool = False
    is_kept: bool = False
    since_ns: Instant = 0
    waiting: dict[BrokerNumber, None] = field(default_factory=dict)
    to: BrokerNumber | None = None
    had: tuple[BrokerNumber, ...] = ()


class Arbiter:
    """Of the topics of which this server is the arbiter, who owns them.

    Args:
        retry_ns: how long a server may leave an Assign unanswered before another one is taken.
        decides: whether this is the arbiter of a topic.
        assign: tells a server that it owns topics, over a proxy.
        give: tells a server to give a topic away, over any proxy.
        answer: tells a home who owns topics.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        retry_ns: int,
        *,
        decides: Callable[[int], bool],
        assign: Callable[[BrokerNumber, Assign], None],
        give: Callable[[Give], None],
        answer: Callable[[BrokerNumber, Located], None],
    ) -> None:
        self._broker = broker
        self._disk = disk
        self._deadlines = deadlines
        self._retry_ns = retry_ns
        self._decides = decides
        self._assign = assign
        self._give = give
        self._answer = answer
        self._decisions: dict[int, Decision] = {}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what an earlier incarnation has decided."""
        for key, (server, generation, is_owner, *moves) in recovered.get(OWNERS, {}).items():
            decision = Decision(server, generation, bool(is_owner), is_kept=True)
            if moves:
                decision.to, decision.had = next(iter(moves[0]), None), (*moves[1],)
            self._decisions[int(key)] = decision

    def on_claim(self, peer: BrokerNumber, message: Claim) -> None:
        """Say who owns topics, and see to it that somebody does."""
        owners: list[Owner] = []
        for topic, candidate, _ in message.candidates:
            if not self._decides(topic):
                raise RemoteProtocolError(peer, f"broker {self._broker} decides not on {topic}")
            decision = self._decisions.get(topic)
            if decision is not None and decision.is_owner and decision.is_kept:
                owners.append(Owner(topic, decision.server, decision.generation))
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
            last = decision.generation + (decision.to is not None) if decision is not None else 0
            if decision is None or number > last:
                raise RemoteProtocolError(peer, f"broker {message.server} was not given {topic}")
            if number > decision.generation:
                self._move(topic, decision, message.server)
            elif number == decision.generation and decision.is_kept and not decision.is_owner:
                self._own(topic, decision)

    def _own(self, topic: int, decision: Decision) -> None:
        decision.is_owner, decision.is_kept = True, False

        def kept() -> None:
            decision.is_kept = True
            waiting, decision.waiting = decision.waiting, {}
            for home in waiting:
                owners = (Owner(topic, decision.server, decision.generation),)
                self._answer(home, Located(self._broker, home, owners))

        self._disk.commit((_row(topic, decision),), kept)

    # ------------------------------------------------------------ topics that move

    def begin(self) -> None:
        """All that was on disk is known: go on with what was not answered."""
        self._give_all()

    def on_move(self, peer: Peer, message: Move) -> None:
        """A proxy would have other servers own topics; none that has had one gets it again."""
        for topic, server, _ in message.owners:
            if not self._decides(topic):
                raise RemoteProtocolError(peer, f"broker {self._broker} decides not on {topic}")
            decision = self._decisions.get(topic)
            if decision is None or not (decision.is_owner and decision.is_kept):
                continue
            if decision.to is None and server not in (decision.server, *decision.had):
                decision.to = server
                tell = partial(self._give_one, topic, decision)
                self._disk.commit((_row(topic, decision),), tell)

    def _give_one(self, topic: int, decision: Decision) -> None:
        if decision.to is None or self._decisions[topic] is not decision:
            return
        self._deadlines.set((GIVING, self._broker), self._disk.machine.now_ns + self._retry_ns)
        generation = decision.generation + 1
        self._give(Give(decision.server, self._broker, topic, decision.to, generation))

    def _give_all(self) -> None:
        for topic, decision in self._decisions.items():
            self._give_one(topic, decision)

    def due(self) -> None:
        """Servers that were to give topics away have not said that they have."""
        self._give_all()

    def _move(self, topic: int, decision: Decision, server: BrokerNumber) -> None:
        """Whoever was to have a topic has it, says the server that has given it away."""
        if server != decision.to:
            return
        generation, had = decision.generation + 1, (*decision.had, decision.server)
        moved = Decision(server, generation, is_owner=True, is_kept=True, had=had)

        def kept() -> None:
            if self._decisions[topic] is decision:
                self._decisions[topic] = moved

        self._disk.commit((_row(topic, moved),), kept)


def _row(topic: int, decision: Decision) -> Change:
    row: list[Any] = [decision.server, decision.generation, decision.is_owner]
    if decision.to is not None or decision.had:
        row += [[decision.to] if decision.to is not None else [], [*decision.had]]
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

    def generation(self, topic: int) -> int:
        """In which this server was told to own a topic, which is on disk; 0: it was not."""
        return self._kept.get(topic, 0)

    def row(self, topic: int, number: int) -> Change:
        """What is to be on disk of a topic that another server gives to this one."""
        return Change(ASSIGNED, str(topic), number)

    def keep(self, topic: int, number: int) -> None:
        """A topic is this server's in a generation, which is on disk."""
        self._kept[topic] = max(number, self._kept.get(topic, 0))

    def on_assign(self, peer: BrokerNumber, message: Assign) -> None:
        """Own these topics, unless a later attempt has given them here already."""
        for topic, number in message.generations:
            check_generation(peer, topic, self._kept.get(topic, 0), number)
        new = [each for each in message.generations if each.number > self._kept.get(each.topic, 0)]

        def kept() -> None:
            for topic, number in new:
                self.keep(topic, number)
            answer = Assigned(message.server, message.arbiter, message.generations)
            self._answer(peer, answer)

        changes = [self.row(*each) for each in new]
        self._disk.commit(changes, kept)


class Ownership:
    """What a server decides of owners, and what it owns.

    Args:
        decides: whether this is the arbiter of a topic.
        proxies: those with which there is a session.
        answer: tells a home who owns topics.

    Attributes:
        arbiter: for the topics that it decides on.
        assignments: what it was told to own.
        give: gives a topic away.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        retry_ns: int,
        *,
        decides: Callable[[int], bool],
        proxies: Collection[BrokerNumber],
        answer: Callable[[BrokerNumber, Located], None],
    ) -> None:
        self._broker = broker
        self._machine = disk.machine
        self._proxies = proxies
        self._turn = 0
        self.give: Callable[[Give], None] = lambda _message: None
        self.arbiter = Arbiter(
            broker,
            disk,
            deadlines,
            retry_ns,
            decides=decides,
            assign=self._assign,
            give=self._give,
            answer=answer,
        )
        self.assignments = Assignments(disk, self._assigned)

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what an earlier incarnation has decided and was told."""
        self.arbiter.recover(recovered)
        self.assignments.recover(recovered)

    def handlers(self) -> dict[type, MessageHandler]:
        """Who takes what comes from other servers over a proxy."""
        return {Assign: self._on_assign, Assigned: self._on_assigned, Give: self._on_give}

    def owns(self, topic: int) -> bool:
        """Whether this server was told to own a topic, and has that on disk."""
        return self.assignments.generation(topic) > 0

    def announce(self, topics: Collection[int]) -> None:
        """Homes know that these topics are this server's: all proxies may."""
        for proxy in self._proxies:
            self.tell(proxy, topics)

    def tell(self, proxy: BrokerNumber, topics: Collection[int]) -> None:
        """Tell a proxy that topics are this server's, but for those that only began to be."""
        generation = self.assignments.generation
        owners = tuple(
            Owner(topic, self._broker, generation(topic)) for topic in topics if self.owns(topic)
        )
        self._machine.send(proxy, Owned(owners))

    def _send(self, proxy: BrokerNumber, message: Assign | Assigned) -> None:
        if proxy in self._proxies:
            self._machine.send(proxy, message)

    def _assign(self, proxy: BrokerNumber, message: Assign) -> None:
        if message.server == self._broker:
            self.assignments.on_assign(proxy, message)
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
        self.assignments.on_assign(peer, message)

    def _on_assigned(self, peer: Any, message: Assigned) -> None:
        if message.arbiter != self._broker:
            raise RemoteProtocolError(peer, f"{message.arbiter} has assigned that")
        self.arbiter.on_assigned(peer, message)

    # ------------------------------------------------------------ topics that move

    def given(self, arbiter: BrokerNumber, topic: int, owner: BrokerNumber, number: int) -> None:
        """Tell an arbiter that another server has a topic which this one has given to it."""
        self._over_any(arbiter, Assigned(owner, arbiter, (Generation(topic, number),)))

    def _give(self, message: Give) -> None:
        self._over_any(message.server, message)

    def _over_any(self, server: BrokerNumber, message: Give | Assigned) -> None:
        """Tell a server something, over one proxy after the other; it may be this one."""
        proxies = [*self._proxies]
        if server == self._broker:
            if isinstance(message, Give):
                self.give(message)
            else:
                self.arbiter.on_assigned(server, message)
        elif proxies:
            self._turn += 1
            self._machine.send(proxies[self._turn % len(proxies)], message)

    def _on_give(self, peer: Any, message: Give) -> None:
        if message.server != self._broker or message.owner == self._broker:
            reason = f"broker {message.server} is to give topic {message.topic} away"
            raise RemoteProtocolError(peer, reason)
        self.give(message)
