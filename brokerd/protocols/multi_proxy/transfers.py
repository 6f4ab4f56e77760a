"""Transfers of topics from and to a server (`causal`, `arbiter`).

A proxy that finds two owners of a topic asks the owner with the later name to give the topic to the
other (MERGE); or a topic's arbiter requests it from the owner (`transfer_server.py`). The giver
accepts no publications any more, durably, and sends its whole state: publications at their
positions, the numbers of sources, and followers with their positions (TRANSFER). The other server
confirms once that is durable; then access brokers are notified. Positions stay the same: a follower
does not receive a position twice, wherever it is stored. The same state is repeated until it is
answered, and repeated state is not taken again.

Paper: [MP22] §3.1.6, §3.1.7. Deviates: parts are not merged but stand side by side, so that
nothing can be lost or doubled; the numbers of sources are included, which the report's TRANSFER
lacks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.followers import Followers
from brokerd.protocols.multi_proxy.messages import (
    CarriedFollower,
    CarriedPart,
    Carry,
    Elsewhere,
    Merge,
    Merged,
    Owner,
    PutThrough,
    Transfer,
    Transferred,
)
from brokerd.protocols.multi_proxy.retention import Topic
from brokerd.protocols.multi_proxy.routes import Sessions
from brokerd.protocols.multi_proxy.state import LOG, MOVES, PARTS, Part
from brokerd.protocols.multi_proxy.topic_log import TopicLog
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability

Arrival = Callable[[int, int], None]
"""Receives a topic that has arrived, and its generation."""

MOVING: Final = "moving"
"""Purpose of the deadline at which unanswered transfers are repeated."""


class TransferHost(Protocol):
    """The parts of a server that transfers use."""

    log: TopicLog
    followers: Followers
    requested: dict[int, None]

    def freeze(self, number: int) -> None:
        """Accept no publish requests to a topic any more."""

    def settle_all(self) -> None:
        """Release publications of all topics that are not needed, or not retained any longer."""


class TopicTransfers:
    """The transfers of topics from and to a server.

    Args:
        server: accepts no publish requests to a topic that moves.
        sessions: with proxies, which forward messages to servers and access brokers.

    Attributes:
        moving: topics that are being given away, with their new owners.
        moved: topics that were given away, with their new owners.
        generations: of the new owners, from arbiters.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        retry_ns: int,
        server: TransferHost,
        sessions: Sessions,
    ) -> None:
        self.moving: dict[int, BrokerNumber] = {}
        self.moved: dict[int, BrokerNumber] = {}
        self.generations: dict[int, int] = {}
        self._broker = broker
        self._disk = disk
        self._deadlines = deadlines
        self._retry_ns = retry_ns
        self._server = server
        self._log = server.log
        self._followers = server.followers
        self._sessions = sessions
        self._unwritten: dict[int, None] = {}
        self._arriving: dict[int, BrokerNumber] = {}
        self._turn = 0

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the transfers of an earlier incarnation."""
        for key, (owner, is_over, *generation) in recovered.get(MOVES, {}).items():
            (self.moved if is_over else self.moving)[int(key)] = owner
            self.generations.update((int(key), number) for number in generation)
        for key, row in recovered.get(PARTS, {}).items():
            number, server = map(int, key.split("."))
            _giver, *age = row if isinstance(row, list) else [row]  # an older program's
            part = self._log.part(Part(server, number))
            part.is_here, part.age = True, sum(age)

    def begin(self) -> None:
        """Continue unanswered transfers after all rows and the log are read."""
        for number in self.moving:
            self._freeze(number)

    def send_all(self) -> None:
        """Send all topics that move away, and repeat unanswered requests."""
        for number in self.moving:
            if number not in self._unwritten:
                self._send_topic(number)

    def is_away(self, number: int) -> bool:
        """Return True if a topic has moved, or moves, to another server."""
        return number in self.moving or number in self.moved

    def notify_moved(self, home: BrokerNumber, topics: Sequence[int]) -> bool:
        """Notify an access broker of topics that have moved away; return True if there are any."""
        owners = tuple(
            Owner(each, self.moved[each], self.generations.get(each, 0))
            for each in topics
            if each in self.moved
        )
        if owners:
            self._sessions.answer(home, Merged(home, owners))
        return bool(owners)

    # ------------------------------------------------------------ giving

    def on_merge(self, message: Merge) -> None:
        """Give away topics that other servers own, too."""
        for number, owner, _ in message.owners:
            if not self.is_away(number):
                self.transfer(number, owner)

    def transfer(self, number: int, owner: BrokerNumber, generation: int = 0) -> None:
        """Give a topic of this server to another server."""
        self.moving[number] = owner
        if generation:
            self.generations[number] = generation
        self._unwritten[number] = None
        self._freeze(number)

        def record() -> None:
            # The transfer includes publications that are answered once the log is on disk.
            change = self._row(number, owner, is_over=False)
            self._disk.commit((change,), begin)

        def begin() -> None:
            del self._unwritten[number]
            self._send_topic(number)

        self._disk.sync(LOG, record)

    def _row(self, number: int, owner: BrokerNumber, *, is_over: bool) -> Change:
        value: list[Any] = [owner, is_over]
        if number in self.generations:
            value.append(self.generations[number])
        return Change(MOVES, str(number), value)

    def _freeze(self, number: int) -> None:
        for topic in self._log.parts(number):
            topic.is_frozen = True
        self._server.freeze(number)

    def _send_topic(self, number: int) -> None:
        """Send the whole state of a topic, over one proxy after the other."""
        self._deadlines.set((MOVING, self._broker), self._disk.machine.now_ns + self._retry_ns)
        proxies, owner = [*self._sessions.sessions], self.moving.get(number)
        if not proxies or owner is None:
            return
        self._turn += 1
        proxy, machine = proxies[self._turn % len(proxies)], self._disk.machine
        topics = self._log.parts(number)
        for topic in topics:
            for run in topic.runs:
                rest = run.after(topic.released)
                if rest is not None:
                    machine.send(proxy, Carry(owner, self._broker, number, topic.released, rest))
        sources = topics[0].put.items()
        machine.send(
            proxy,
            Transfer(
                owner,
                self._broker,
                number,
                self.generations.get(number, 0),
                tuple(map(_carry, topics)),
                tuple(PutThrough(*pair) for pair in sources),
                tuple(
                    CarriedFollower(home, tuple(Elsewhere(*part, done[part]) for part in done))
                    for home, done in self._followers.of(number)
                ),
            ),
        )

    def on_transferred(self, message: Transferred, remove: Callable[[int], None]) -> None:
        """Take the confirmation of a transfer, or the name of a further owner.

        Args:
            remove: called with the topic once it is durably away.
        """
        number = message.topic
        if message.owner != message.server:
            self.moving[number] = message.owner
            change = self._row(number, message.owner, is_over=False)
            self._disk.commit((change,), lambda: self._send_topic(number))
            return
        del self.moving[number]
        self.moved[number] = message.owner
        homes = [home for home, _ in self._followers.of(number)]

        def finish() -> None:
            remove(number)
            self.release(number)
            for home in homes:
                self.notify_moved(home, (number,))

        change = self._row(number, message.owner, is_over=True)
        self._disk.commit((change, *self._followers.leave(number)), finish)

    def release(self, number: int) -> None:
        """Release a topic that has moved away, with incomplete parts of other servers."""
        for topic in self._log.everything(number):
            topic.is_frozen = False
            self._log.release(topic, topic.durable)

    # ------------------------------------------------------------ receiving

    def on_carry(self, peer: Peer, message: Carry) -> None:
        """Take publications of a topic that moves to this server.

        Raises:
            RemoteProtocolError: the run is malformed; the fault of the peer.
        """
        run, part = message.run, Part(message.run.source.broker, message.topic)
        is_whole = run.last - run.first + 1 == len(run)
        if part.server == self._broker or part.topic != run.source.publisher or not is_whole:
            raise RemoteProtocolError(peer, f"{run.source} is carried here as topic {part.topic}")
        if not self.is_away(part.topic) and not self._log.holds(part):
            self._log.carry(part, message.released, run)

    def on_transfer(
        self, peer: BrokerNumber, message: Transfer, rows: Sequence[Change], on_arrival: Arrival
    ) -> None:
        """Take a topic, unless a part of it was lost on the route.

        Args:
            rows: further rows of a topic that arrives.
            on_arrival: called with the topic and its generation once it is durable here.
        """
        number, giver = message.topic, message.giver
        if self.is_away(number):
            owner = self.moved.get(number, self.moving.get(number, giver))
            self._answer(peer, Transferred(self._broker, giver, number, owner))
        elif self._log.holds(Part(giver, number)):
            self._answer(peer, Transferred(self._broker, giver, number, self._broker))
        elif number not in self._arriving and all(self._is_whole(number, message)):
            self._store_topic(peer, message, rows, on_arrival)

    def _is_whole(self, number: int, message: Transfer) -> list[bool]:
        """Return, per part, True if everything is durable here."""
        return [
            each.released >= each.last
            or self._needed_through(Part(each.part, number), each) >= each.last
            for each in message.parts
        ]

    def _needed_through(self, part: Part, carried: CarriedPart) -> int:
        durable = self._log.part(part).durable
        return max(durable, carried.lost[-1].end if carried.lost else 0)

    def _store_topic(
        self, peer: BrokerNumber, message: Transfer, further: Sequence[Change], on_arrival: Arrival
    ) -> None:
        number = message.topic
        self._arriving[number] = message.giver
        rows: list[Change] = []
        for age, each in enumerate(message.parts, 1):
            rows.append(Change(PARTS, f"{number}.{each.part}", [message.giver, age]))
            self._log.part(Part(each.part, number)).age = age
            rows += self._log.settle_at(Part(each.part, number), each.last)
            rows += self._log.part(Part(each.part, number)).lost.carry(each.lost)
        rows += self._log.put_through(number, dict(message.sources))
        for each_home in message.followers:
            self._followers.expect(each_home, number)
        parts = [self._log.part(Part(each.part, number)) for each in message.parts]
        rows += self._followers.take_positions(number, parts)
        rows += further

        def store() -> None:
            del self._arriving[number]
            for part in parts:
                part.is_here = True
            if self.is_away(number):
                self._freeze(number)
            for source, through in message.sources:
                self._log.topic(number).on_durable(source, through)
            on_arrival(number, message.generation)
            self._answer(peer, Transferred(self._broker, message.giver, number, self._broker))

        self._disk.commit(rows, store)

    def _answer(self, proxy: BrokerNumber, message: Transferred) -> None:
        if proxy in self._sessions.sessions:
            self._disk.machine.send(proxy, message)


def _carry(topic: Topic) -> CarriedPart:
    return CarriedPart(
        topic.part.server, topic.needed_position, topic.durable, tuple(topic.lost.after(0))
    )
