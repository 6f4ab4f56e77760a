"""Transfers of topics between servers by decision of their arbiters (`arbiter`; MOVE).

A proxy with a server that has many more topics than another asks the arbiter of a topic to move it.
The arbiter's decision is durable before the owner is notified, which gives the topic away
(`topic_transfers.py`): no publication is accepted until everything is durable at the other server,
in the higher generation; then the old owner stores the new owner, and notifies access brokers and
the arbiter. So at any crash, at most one server accepts publications, and access brokers use the
highest generation that they have received, which is durable there.

Paper: none; [MP22] §3.1.6, §3.1.7 moves topics to other servers where two own them. A topic never
returns to a server that has given it away, so that no two servers name each other as owner.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.arbiter import Ownership
from brokerd.protocols.multi_proxy.messages import Give, Locate, Located, Merged, Owner
from brokerd.protocols.multi_proxy.server_positions import StoredPositions
from brokerd.protocols.multi_proxy.transfer_owners import CHOSEN, MovingOwners
from brokerd.protocols.multi_proxy.transfer_server import (
    SharingParameters,
    TopicTransfers,
    TransferHost,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability
from brokerd.protocols.parts.version_bounds import check_generation


class OwnerTransfers(TopicTransfers):
    """The transfers of topics from and to a server, by decision of their arbiters.

    Args:
        ownership: the topics assigned to this server.
        arbiter: returns the arbiter of a topic.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        names: Mapping[BrokerNumber, str],
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: SharingParameters,
        server: TransferHost,
        *,
        ownership: Ownership,
        arbiter: Callable[[int], BrokerNumber],
        proxies: Collection[BrokerNumber],
    ) -> None:
        alone = StoredPositions(broker, [broker], server.log)
        super().__init__(
            broker, names, disk, deadlines, parameters, server, known=alone, proxies=proxies
        )
        self._ownership = ownership
        self._arbiter = arbiter

    def begin(self, incarnation: int) -> None:
        """See Passing."""
        super().begin(incarnation)
        self._ownership.arbiter.begin()

    def period(self) -> None:
        """See Passing: continues only while access brokers have to be notified."""
        super().period()
        if any(follower.expected for _, follower in self._server.followers):
            self._schedule()

    def transfer(self, message: Give) -> None:
        """Give a topic away, or report a completed transfer again."""
        number, generation = message.topic, message.generation
        if self.moves.generations.get(number, 0) >= generation:
            if number in self.moves.moved:
                self._report_given(number)
        elif 0 < self._ownership.assignments.generation(number) < generation:
            self.moves.transfer(number, message.owner, generation)

    def _report_given(self, number: int) -> None:
        owner, generation = self.moves.moved[number], self.moves.generations[number]
        self._ownership.report_given(self._arbiter(number), number, owner, generation)

    def _is_here(self, number: int) -> Owner:
        return Owner(number, self._broker, self._ownership.assignments.generation(number))

    def _rows(self, number: int, generation: int) -> Sequence[Change]:
        return (self._ownership.assignments.row(number, generation),)

    def _on_given(self, number: int) -> None:
        super()._on_given(number)
        self._report_given(number)

    def _on_received(self, number: int, generation: int) -> None:
        self._ownership.assignments.keep(number, generation)
        super()._on_received(number, generation)
        self._ownership.announce((number,))
        if any(follower.expected for _, follower in self._server.followers):
            self._schedule()


class GivenOwners(MovingOwners):
    """The owners of topics at an access broker, in the highest generations received.

    After a crash, subscriptions or an arbiter have the first owner of a topic; any later owner is
    durable before its use, because an older owner's answers are not valid any more.
    """

    are_in_turn = True

    def __init__(self, *arguments: Any, **callbacks: Any) -> None:
        super().__init__(*arguments, **callbacks)
        self._generations: dict[int, int] = {}
        self._doubted: dict[int, None] = {}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See Owners."""
        for key, (server, generation) in recovered.get(CHOSEN, {}).items():
            self._known[int(key)], self._generations[int(key)] = server, generation

    def remember(self, owners: Sequence[Owner]) -> None:
        """See Owners: rows of owners are newer."""
        super().remember([owner for owner in owners if owner.topic not in self._known])

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """See Owners: the highest generation counts, from any sender.

        Each server has a topic once, so no owner is as many generations later than another as there
        are servers. Of two owners in the same generation one is wrong: the arbiter decides.
        """
        self._check(peer, owners)
        for owner in owners:
            known, stated = self._generation(owner), owner.generation
            check_generation(peer, owner.topic, known, stated)
            before = self._known.get(owner.topic)
            if before is not None and known and stated >= known + len(self._names):
                reason = f"generation {stated} of {owner.topic} leaps from {known}"
                raise RemoteProtocolError(peer, reason)
        for owner in owners:
            is_other = self._known.get(owner.topic, owner.server) != owner.server
            if is_other and owner.generation == self._generation(owner):
                self._doubt(owner.topic)
        first = [owner for owner in owners if self._is_new(owner.topic)]
        self._choose([owner for owner in first if owner.generation > 1])
        self._use_owners([owner for owner in first if owner.generation <= 1])
        self._change([owner for owner in owners if self._is_later(owner)])

    def _generation(self, owner: Owner) -> int:
        return self._generations.get(owner.topic, 0)

    def _is_later(self, owner: Owner) -> bool:
        if self._known.get(owner.topic) is None or owner.topic in self._choosing:
            return False
        if self._known[owner.topic] == owner.server:
            self._generations[owner.topic] = self._generation(owner) or owner.generation
            return False
        return owner.generation > self._generation(owner)

    def _use_owners(self, owners: Sequence[Owner]) -> None:
        """See MovingOwners."""
        for owner in owners:
            self._generations[owner.topic] = owner.generation
        super()._use_owners(owners)

    def _row(self, owner: Owner) -> Change:
        return Change(CHOSEN, str(owner.topic), [owner.server, owner.generation])

    # ------------------------------------------------------------ doubts

    def _doubt(self, topic: int) -> None:
        """Ask the arbiter for the owner of a topic, and use the present owner meanwhile."""
        if topic in self._doubted or topic in self._choosing:
            return
        arbiter = self._arbiters[topic]
        self._doubted[topic] = None
        self._sought.setdefault(arbiter, {})[topic] = None
        self._send(Locate(arbiter, self._broker, (topic,)))

    def count_doubted(self) -> int:
        """See Owners."""
        return len(self._doubted)

    def on_located(self, peer: Peer, message: Located) -> None:
        """See Owners: the arbiter's owner of a topic in doubt counts in any generation.

        The generation on disk stays, since it never decreases.
        """
        self._check(peer, message.owners)
        before = self.awaits(message.server)
        settled = [owner for owner in message.owners if owner.topic in self._doubted]
        self.learn(peer, [owner for owner in message.owners if owner not in settled])
        for owner in settled:
            del self._doubted[owner.topic]
            self._sought[self._arbiters[owner.topic]].pop(owner.topic, None)
        self._change(
            [
                owner._replace(generation=max(owner.generation, self._generation(owner)))
                for owner in settled
                if self._known[owner.topic] != owner.server
            ]
        )
        if before:
            self._answered(message.server, Locate, wholly=not self.awaits(message.server))

    def on_merged(self, peer: Peer, message: Merged) -> None:
        """See MovingOwners: a server names itself in generation 0 if it does not own a topic."""
        owners = [owner for owner in message.owners if owner.generation]
        self.learn(peer, owners)
        for owner in message.owners:
            if not owner.generation and self._known.get(owner.topic) == owner.server:
                self._doubt(owner.topic)
        self._follow_again(owners)

    def _move(self, owner: Owner) -> None:
        self._generations[owner.topic] = owner.generation
        super()._move(owner)
