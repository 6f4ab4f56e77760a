"""The arbiter of topics, which decides on their owners.

A topic has one arbiter, by a hash. The arbiter gives the topic to a server that a proxy proposes,
in three steps, each durable before the next: pending, assigned at the server, owned. No broker is
notified of an owner before the last step, so that until then another server can be chosen.

A topic with an owner may move to another server (MOVE), in a higher generation: the decision is
durable before the owner is notified; the owner gives the topic away (`transfer_server.py`) and
reports when the other server has all of it.

Paper: none. [MP22] §4 leaves open that two servers own a topic, whose merging loses messages.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.assignments import Assignments
from brokerd.protocols.multi_proxy.messages import (
    Assign,
    Assigned,
    Claim,
    Generation,
    Give,
    Located,
    Move,
    Owner,
)
from brokerd.protocols.multi_proxy.routes import Sessions
from brokerd.protocols.multi_proxy.state import OWNERS, Decision
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler

GIVING: Final = "giving"
"""Purpose of the deadline at which owners are requested again to transfer topics."""


class GivingServer(Protocol):
    """The transfers of topics from a server."""

    def give(self, message: Give) -> None:
        """Give a topic away, or report a completed transfer again."""


class Arbiter:
    """The decisions on owners of the topics of this arbiter.

    Args:
        retry_ns: how long a server may leave an Assign unanswered before another server is chosen.
        arbiters: per topic the server that decides on its owner.
        servers: all servers.
        sessions: with proxies, which forward messages to servers and access brokers.
        assignments: the topics assigned to this server.

    Attributes:
        transfer_server: transfers topics from this server; None until the core sets it.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        retry_ns: int,
        *,
        arbiters: Sequence[BrokerNumber],
        servers: Collection[BrokerNumber],
        sessions: Sessions,
        assignments: Assignments,
    ) -> None:
        self.transfer_server: GivingServer | None = None
        self._broker = broker
        self._disk = disk
        self._deadlines = deadlines
        self._retry_ns = retry_ns
        self._arbiters = arbiters
        self._servers = tuple(servers)
        self._sessions = sessions
        self._assignments = assignments
        self._turn = 0
        self._decisions: dict[int, Decision] = {}
        self._has_lost = False

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the decisions of an earlier incarnation."""
        for key, (server, generation, is_owner, *moves) in recovered.get(OWNERS, {}).items():
            decision = Decision(server, generation, bool(is_owner), is_kept=True)
            if moves:
                decision.to, decision.had = next(iter(moves[0]), None), (*moves[1],)
            self._decisions[int(key)] = decision

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of messages from other servers over a proxy."""
        return {Assign: self._on_assign, Assigned: self._on_assigned, Give: self._on_give}

    def _decides(self, topic: int) -> bool:
        return topic < len(self._arbiters) and self._arbiters[topic] == self._broker

    def on_claim(self, peer: BrokerNumber, message: Claim) -> None:
        """Answer with the owners of topics, and decide on those without an owner.

        Raises:
            RemoteProtocolError: this is not the arbiter of a topic, or a candidate is no server;
                the fault of the peer.
        """
        owners: list[Owner] = []
        is_pending = False
        self._check(peer, message.candidates)
        for topic, candidate, _ in message.candidates:
            decision = self._decisions.get(topic)
            if decision is None and self._has_lost:
                decision = self._question(topic)
                is_pending = True
            if decision is not None and decision.unqueried:
                decision.waiting[message.home] = None
                continue
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
                self._send(peer, topic, decision)
            decision.waiting[message.home] = None
        if is_pending:
            self._query_servers()
        if owners:
            self._sessions.answer(message.home, Located(self._broker, message.home, tuple(owners)))

    def _check(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """Check that this broker is the arbiter of topics, and that their owners are servers."""
        for topic, server, _ in owners:
            if not self._decides(topic):
                raise RemoteProtocolError(peer, f"broker {self._broker} decides not on {topic}")
            if server not in self._servers:
                raise RemoteProtocolError(peer, f"topic {topic} for {server}, which is no server")

    def _is_late(self, decision: Decision) -> bool:
        return self._disk.machine.now_ns - decision.since_ns >= self._retry_ns

    def _decide(self, peer: BrokerNumber, topic: int, decision: Decision) -> Decision:
        decision.since_ns = self._disk.machine.now_ns
        self._decisions[topic] = decision

        def kept() -> None:
            decision.is_kept = True
            self._send(peer, topic, decision)

        self._disk.commit((_row(topic, decision),), kept)
        return decision

    def _send(self, peer: BrokerNumber, topic: int, decision: Decision) -> None:
        generation = Generation(topic, decision.generation)
        message = Assign(decision.server, self._broker, (generation,))
        if decision.server == self._broker:
            self._take_assignment(peer, message)
        else:
            self._send_over(peer, message)

    def on_assigned(self, peer: Peer, message: Assigned) -> None:
        """Take the confirmation of a server; an older generation is another server's now.

        Raises:
            RemoteProtocolError: the server was not given a topic; the fault of the peer.
        """
        for topic, number in message.generations:
            if not self._was_given(topic, number):
                raise RemoteProtocolError(peer, f"broker {message.server} was not given {topic}")
        for topic, number in message.generations:
            decision = self._decisions.get(topic)
            if decision is not None and decision.unqueried:
                self._on_query(topic, decision, message.server, number)
                continue
            if decision is None or (self._has_lost and not number):
                continue
            pending = number == decision.generation and decision.is_kept and not decision.is_owner
            if number > decision.generation:
                self._move(topic, decision, message.server)
            elif pending and message.server == decision.server:
                self._assign_owner(topic, decision)

    def _was_given(self, topic: int, number: int) -> bool:
        """Return True if a topic was given to a server in a generation, or may have been."""
        decision = self._decisions.get(topic)
        if decision is not None and decision.unqueried:
            return True
        if self._has_lost and not number:
            return True
        last = decision.generation + (decision.to is not None) if decision is not None else 0
        return decision is not None and number <= last

    def _assign_owner(self, topic: int, decision: Decision) -> None:
        decision.is_owner, decision.is_kept = True, False

        def kept() -> None:
            decision.is_kept = True
            waiting, decision.waiting = decision.waiting, {}
            for home in waiting:
                owners = (Owner(topic, decision.server, decision.generation),)
                self._sessions.answer(home, Located(self._broker, home, owners))

        self._disk.commit((_row(topic, decision),), kept)

    # ------------------------------------------------------------ topics that move

    def order_again(self) -> None:
        """Repeat unanswered requests after all rows and the log are read."""
        self._order_transfers()

    # ------------------------------------------------------------ lost decisions

    def begin(self, lineage: int) -> None:
        """Forget decisions that an accepted loss may have overtaken; owners never change."""
        if not lineage:
            return
        self._has_lost = True
        owned = {topic: each for topic, each in self._decisions.items() if each.is_owner}
        self._decisions = owned

    def _question(self, topic: int) -> Decision:
        """Request the owner of a topic that this arbiter may have assigned before a loss."""
        others = (server for server in self._servers if server != self._broker)
        decision = Decision(self._broker, 0, unqueried=dict.fromkeys(others))
        self._decisions[topic] = decision
        if not decision.unqueried:
            self._conclude(topic, decision)
        return decision

    def _query_servers(self) -> None:
        """Ask the servers that have not answered, and again later."""
        requested: dict[BrokerNumber, list[Generation]] = {}
        for topic, decision in self._decisions.items():
            for server in decision.unqueried:
                requested.setdefault(server, []).append(Generation(topic, 0))
        for server, generations in requested.items():
            self._send_over_any(server, Assign(server, self._broker, tuple(generations)))
        if requested:
            due_ns = self._disk.machine.now_ns + self._retry_ns
            self._deadlines.set((GIVING, self._broker), due_ns)

    def _on_query(self, topic: int, decision: Decision, server: BrokerNumber, number: int) -> None:
        """Take a server's answer; the latest assignment counts, and none is this server's own."""
        if server not in decision.unqueried:
            return
        del decision.unqueried[server]
        if number > decision.generation:
            decision.server, decision.generation = server, number
        if not decision.unqueried:
            self._conclude(topic, decision)

    def _conclude(self, topic: int, decision: Decision) -> None:
        if decision.generation:
            self._assign_owner(topic, decision)
            return
        decision.generation = 1
        self._decide(self._broker, topic, decision)

    def on_move(self, peer: Peer, message: Move) -> None:
        """Take a proxy's proposal to move topics; no past owner becomes owner again.

        Raises:
            RemoteProtocolError: see `on_claim`; the fault of the peer.
        """
        self._check(peer, message.owners)
        for topic, server, _ in message.owners:
            decision = self._decisions.get(topic)
            if decision is None or not (decision.is_owner and decision.is_kept):
                continue
            if decision.to is None and server not in (decision.server, *decision.had):
                decision.to = server
                order = partial(self._order_transfer, topic, decision)
                self._disk.commit((_row(topic, decision),), order)

    def _order_transfer(self, topic: int, decision: Decision) -> None:
        if decision.to is None or self._decisions[topic] is not decision:
            return
        self._deadlines.set((GIVING, self._broker), self._disk.machine.now_ns + self._retry_ns)
        generation = decision.generation + 1
        self._send_over_any(
            decision.server, Give(decision.server, self._broker, topic, decision.to, generation)
        )

    def _order_transfers(self) -> None:
        for topic, decision in self._decisions.items():
            self._order_transfer(topic, decision)

    def on_due(self, _broker: BrokerNumber) -> None:
        """Repeat requests to give topics away, and questions for owners."""
        self._order_transfers()
        self._query_servers()

    def _move(self, topic: int, decision: Decision, server: BrokerNumber) -> None:
        """Record the new owner that the giving server reports."""
        if server != decision.to:
            return
        generation, had = decision.generation + 1, (*decision.had, decision.server)
        moved = Decision(server, generation, is_owner=True, is_kept=True, had=had)

        def kept() -> None:
            if self._decisions[topic] is decision:
                self._decisions[topic] = moved

        self._disk.commit((_row(topic, moved),), kept)

    # ------------------------------------------------------------ messages between servers

    def _on_assign(self, peer: Any, message: Assign) -> None:
        if message.server != self._broker:
            raise RemoteProtocolError(peer, f"assigns topics to {message.server}")
        for topic, _ in message.generations:
            if topic >= len(self._arbiters) or self._arbiters[topic] != message.arbiter:
                reason = f"broker {message.arbiter} assigns topic {topic}, and is not its arbiter"
                raise RemoteProtocolError(peer, reason)
        self._take_assignment(peer, message)

    def _take_assignment(self, peer: BrokerNumber, message: Assign) -> None:
        def confirm(generations: tuple[Generation, ...]) -> None:
            answer = Assigned(message.server, message.arbiter, generations)
            if message.arbiter == self._broker:
                self.on_assigned(peer, answer)
            else:
                self._send_over(peer, answer)

        self._assignments.take(peer, message, confirm)

    def _on_assigned(self, peer: Any, message: Assigned) -> None:
        if message.arbiter != self._broker:
            raise RemoteProtocolError(peer, f"{message.arbiter} has assigned that")
        self.on_assigned(peer, message)

    def _on_give(self, peer: Any, message: Give) -> None:
        if message.server != self._broker or message.owner == self._broker:
            reason = f"broker {message.server} has to transfer topic {message.topic}"
            raise RemoteProtocolError(peer, reason)
        self._give(message)

    def _give(self, message: Give) -> None:
        if self.transfer_server is not None:
            self.transfer_server.give(message)

    def report_given(self, topic: int, owner: BrokerNumber, number: int) -> None:
        """Report to its arbiter that another server has a topic that this server gave away."""
        arbiter = self._arbiters[topic]
        self._send_over_any(arbiter, Assigned(owner, arbiter, (Generation(topic, number),)))

    def _send_over(self, proxy: BrokerNumber, message: Assign | Assigned) -> None:
        if proxy in self._sessions.sessions:
            self._disk.machine.send(proxy, message)

    def _send_over_any(self, server: BrokerNumber, message: Give | Assigned | Assign) -> None:
        """Send a message to a server, over one proxy after the other; it may be this server."""
        proxies = [*self._sessions.sessions]
        if server == self._broker:
            if isinstance(message, Give):
                self._give(message)
            elif isinstance(message, Assigned):
                self.on_assigned(server, message)
        elif proxies:
            self._turn += 1
            self._disk.machine.send(proxies[self._turn % len(proxies)], message)


def _row(topic: int, decision: Decision) -> Change:
    row: list[Any] = [decision.server, decision.generation, decision.is_owner]
    if decision.to is not None or decision.had:
        row += [[decision.to] if decision.to is not None else [], [*decision.had]]
    return Change(OWNERS, str(topic), row)
