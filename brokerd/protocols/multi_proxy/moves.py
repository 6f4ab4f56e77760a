"""Topics that a server gives to another one, and those that it is given (`causal`).

A proxy that finds two owners of a topic tells the one whose name comes last to give it to the
other (MERGE). That one takes nothing for it any more, which is on disk, and sends all it has of
it: publications at their positions, how far sources have come, and who follows it from where on
(TRANSFER). The other one has that on disk before it says so; then homes hear who has the topic.
Positions stay what they were: who has had one of them does not get it again, wherever it is kept.
What is sent is the same each time until it is answered, and what has come is not taken again.

Paper: [MP22] §3.1.6, §3.1.7. Deviates: nothing is merged but side by side, so that nothing can be
lost or doubled; how far sources have come goes along, which the report's TRANSFER lacks.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.followers import Followers
from brokerd.protocols.multi_proxy.logs import LOG
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
from brokerd.protocols.multi_proxy.topic_log import Part, Topic, TopicLog
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability

MOVING: Final = "moving"
"""Purpose of the deadline at which what was not answered is sent again."""
MOVES: Final = "moves"
"""Per topic that is another server's: whose, and whether that one has said so."""
PARTS: Final = "parts"
"""Per topic and server whose positions were carried here: by whom."""


class Moves:
    """The topics of one server that it gives away or is given.

    Args:
        names: of all servers; the topic goes to the one whose name comes first.
        proxies: those with which there is a session.
        gone: told of topics that are another one's now, once nothing is put to them any more.
        came: told of topics that are here now, with all that was carried.
        tell: tells a home who has a topic.

    Attributes:
        moving: topics that are being given away, and to whom.
        moved: topics that were, and to whom.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        names: Mapping[BrokerNumber, str],
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        retry_ns: int,
        log: TopicLog,
        followers: Followers,
        *,
        proxies: Collection[BrokerNumber],
        frozen: Callable[[int], None],
        gone: Callable[[int], None],
        came: Callable[[int], None],
        tell: Callable[[BrokerNumber, Merged], None],
    ) -> None:
        self.moving: dict[int, BrokerNumber] = {}
        self.moved: dict[int, BrokerNumber] = {}
        self._broker = broker
        self._names = names
        self._disk = disk
        self._deadlines = deadlines
        self._retry_ns = retry_ns
        self._log = log
        self._followers = followers
        self._proxies = proxies
        self._frozen = frozen
        self._gone = gone
        self._came = came
        self._tell = tell
        self._coming: dict[int, BrokerNumber] = {}
        self._turn = 0

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what an earlier incarnation has given away and was given."""
        for key, (owner, is_over) in recovered.get(MOVES, {}).items():
            (self.moved if is_over else self.moving)[int(key)] = owner
        for key in recovered.get(PARTS, {}):
            number, server = map(int, key.split("."))
            self._log.part(Part(server, number)).is_here = True

    def begin(self) -> None:
        """All that was on disk is known: go on with what was not answered."""
        for number in self.moving:
            self._freeze(number)
        for number in self.moved:
            self._drop(number)
        self._send_all()

    def is_away(self, number: int) -> bool:
        """Whether a topic is another server's, or to be."""
        return number in self.moving or number in self.moved

    def tell_owner(self, home: BrokerNumber, topics: Sequence[int]) -> bool:
        """Tell a home who has those topics that this server has given away; whether there are."""
        owners = tuple(Owner(each, self.moved[each]) for each in topics if each in self.moved)
        if owners:
            self._tell(home, Merged(home, owners))
        return bool(owners)

    # ------------------------------------------------------------ giving

    def on_merge(self, peer: Peer, message: Merge) -> None:
        """Other servers own these topics too, and are to have them."""
        for number, owner in message.owners:
            if self._names[owner] >= self._names[self._broker]:
                raise RemoteProtocolError(peer, f"topic {number} is to be {owner}'s")
        for number, owner in message.owners:
            if not self.is_away(number):
                self._give(number, owner)

    def _give(self, number: int, owner: BrokerNumber) -> None:
        self.moving[number] = owner
        self._freeze(number)

        def written() -> None:
            # What was put before this, and is answered when it is on disk, goes along.
            change = Change(MOVES, str(number), [owner, False])
            self._disk.commit((change,), lambda: self._send_topic(number))

        self._disk.sync(LOG, written)

    def _freeze(self, number: int) -> None:
        for topic in self._log.parts(number):
            topic.is_frozen = True
        self._frozen(number)

    def _send_topic(self, number: int) -> None:
        """Send all there is of a topic, over one proxy after the other."""
        self._deadlines.set((MOVING, self._broker), self._disk.machine.now_ns + self._retry_ns)
        proxies, owner = [*self._proxies], self.moving.get(number)
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
                tuple(map(_carried, topics)),
                tuple(PutThrough(*pair) for pair in sources),
                tuple(
                    CarriedFollower(home, tuple(Elsewhere(*part, done[part]) for part in done))
                    for home, done in self._followers.of(number)
                ),
            ),
        )

    def _send_all(self) -> None:
        for number in self.moving:
            self._send_topic(number)

    def due(self) -> None:
        """Whoever was to take topics has not said so."""
        self._send_all()

    def on_transferred(self, peer: Peer, message: Transferred) -> None:
        """Another server has a topic, or says who has."""
        number = message.topic
        if self.moving.get(number) != message.server:
            return
        if self._names[message.owner] >= self._names[self._broker]:
            raise RemoteProtocolError(peer, f"topic {number} is {message.owner}'s")
        if message.owner != message.server:
            self.moving[number] = message.owner
            change = Change(MOVES, str(number), [message.owner, False])
            self._disk.commit((change,), lambda: self._send_topic(number))
            return
        del self.moving[number]
        self.moved[number] = message.owner
        homes = [home for home, _ in self._followers.of(number)]

        def over() -> None:
            self._drop(number)
            for home in homes:
                self.tell_owner(home, (number,))

        change = Change(MOVES, str(number), [message.owner, True])
        self._disk.commit((change, *self._followers.leave(number)), over)

    def _drop(self, number: int) -> None:
        """Let go of all of a topic, and of what came of it before it was to go on from here."""
        self._gone(number)
        for topic in self._log.everything(number):
            topic.is_frozen = False
            self._log.release(topic, topic.durable)

    # ------------------------------------------------------------ being given

    def on_carry(self, peer: Peer, message: Carry) -> None:
        """Publications come of a topic that is to be this server's."""
        run, part = message.run, Part(message.run.source.broker, message.topic)
        is_whole = run.last - run.first + 1 == len(run)
        if part.server == self._broker or part.topic != run.source.publisher or not is_whole:
            raise RemoteProtocolError(peer, f"{run.source} is carried here as topic {part.topic}")
        if not self.is_away(part.topic) and not self._log.holds(part):
            self._log.carry(part, message.released, run)

    def on_transfer(self, peer: BrokerNumber, message: Transfer) -> None:
        """All of a topic is here, unless something of it was lost on the way."""
        number, giver = message.topic, message.giver
        if self.is_away(number):
            owner = self.moved.get(number, self.moving.get(number, giver))
            self._answer(peer, Transferred(self._broker, giver, number, owner))
        elif self._log.holds(Part(giver, number)):
            self._answer(peer, Transferred(self._broker, giver, number, self._broker))
        elif number not in self._coming and all(self._is_whole(number, message)):
            self._take(peer, message)

    def _is_whole(self, number: int, message: Transfer) -> list[bool]:
        """Per part, whether all of it is on disk here."""
        return [
            each.released >= each.last
            or self._kept_through(Part(each.part, number), each) >= each.last
            for each in message.parts
        ]

    def _kept_through(self, part: Part, carried: CarriedPart) -> int:
        durable = self._log.part(part).durable
        return max(durable, carried.lost[-1].end if carried.lost else 0)

    def _take(self, peer: BrokerNumber, message: Transfer) -> None:
        number = message.topic
        self._coming[number] = message.giver
        rows: list[Change] = []
        for each in message.parts:
            rows.append(Change(PARTS, f"{number}.{each.part}", message.giver))
            rows += self._log.settle_at(Part(each.part, number), each.last)
            rows += self._log.part(Part(each.part, number)).lost.carry(each.lost)
        rows += self._log.put_through(number, dict(message.sources))
        for each_home in message.followers:
            self._followers.expect(each_home, number)
        parts = [self._log.part(Part(each.part, number)) for each in message.parts]
        rows += self._followers.carried(number, parts)

        def taken() -> None:
            del self._coming[number]
            for part in parts:
                part.is_here = True
            if self.is_away(number):
                self._freeze(number)
            for source, through in message.sources:
                self._log.topic(number).came(source, through)
            self._came(number)
            self._answer(peer, Transferred(self._broker, message.giver, number, self._broker))

        self._disk.commit(rows, taken)

    def _answer(self, proxy: BrokerNumber, message: Transferred) -> None:
        if proxy in self._proxies:
            self._disk.machine.send(proxy, message)


def _carried(topic: Topic) -> CarriedPart:
    return CarriedPart(
        topic.part.server, topic.needed_after, topic.durable, tuple(topic.lost.after(0))
    )
