"""Tests of a server: messages wait for durable writes, and later requests replace earlier."""

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import SourceId
from brokerd.model.losses import marker
from brokerd.model.operator_acts import DECOMMISSION
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import (
    LOSS_PROVED,
    Append,
    BrokerDecommissioned,
    Chop,
    Commit,
    DeadlineReached,
    DeliveryProtocol,
    LogEnds,
    MessageReceived,
    Persisted,
    Read,
    Record,
    RecordsRead,
    Send,
    SessionEstablished,
    Started,
)
from brokerd.protocols.multi_proxy.messages import (
    Answered,
    Follow,
    Followed,
    Following,
    Get,
    Messages,
    Put,
    Stored,
    Wanted,
)
from brokerd.protocols.multi_proxy.parameters import RENDEZVOUS, MultiProxyParameters
from brokerd.protocols.multi_proxy.state import LOG
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.broker_factory import AUTHORITY, make_signature
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.helpers.proxy_stories import sides

MUTANTS = bugs_of("multi_proxy")

PROXY, SERVER, HOME = 0, 1, 2
TOPIC = 3


class Disk:
    """The core of a server with a disk that writes under the test's control.

    Attributes:
        proofs: causes of losses of state that requests have proved.
    """

    def __init__(
        self,
        ownership: str = RENDEZVOUS,
        servers: int = 1,
        topic_window: int = 2_048,
        number: int = SERVER,
        max_retain_ns: int = 0,
        lineage: int = 0,
        get_wait_ns: int = 0,
    ) -> None:
        self._number = number
        self._lineage = lineage
        self._max_retain_ns = max_retain_ns
        self._get_wait_ns = get_wait_ns
        self._ownership, self._servers = ownership, servers
        self._topic_window = topic_window
        self.waiting: list[Commit | Append] = []
        self.said: list[Any] = []
        self.proofs: list[str] = []
        self._rows: dict[str, dict[str, Any]] = {}
        self._records: list[bytes] = []
        self._first = 1
        self.is_chopped = True
        self.now_ns = 0
        self.start(1)

    @property
    def logged(self) -> int:
        """Return the number of records in the log."""
        return len(self._records)

    def start(self, incarnation: int) -> None:
        """Start the broker with the contents of its disk."""
        self.waiting.clear()
        self.core: DeliveryProtocol = make_protocol(
            "multi_proxy",
            self._number,
            sides(proxies=1, servers=self._servers, edges=2),
            MultiProxyParameters(
                ownership=self._ownership,
                topics=8,
                topic_attribute="kind",
                topic_window=self._topic_window,
                max_retain_ns=self._max_retain_ns,
                get_wait_ns=self._get_wait_ns,
            ),
            decode_attribute_table,
            AUTHORITY,
        )
        ends = LogEnds(self._first, self._first + len(self._records))
        is_restart = incarnation > 1
        self._do(Started(incarnation, is_restart, self._rows, {LOG: ends}, lineage=self._lineage))
        self._do(SessionEstablished(PROXY, 7, 1))

    def _do(self, event: Any) -> None:
        for effect in self.core.handle(event, self.now_ns):
            if isinstance(effect, Send):
                self.said.append(effect.message)
            elif isinstance(effect, Record) and effect.event == LOSS_PROVED:
                self.proofs.append(effect.details["cause"])
            elif isinstance(effect, Commit | Append):
                self.waiting.append(effect)
            elif isinstance(effect, Read):
                self._do(RecordsRead(LOG, effect.first, tuple(self._records)))
            elif isinstance(effect, Chop) and self.is_chopped:
                self._records = self._records[effect.first - self._first :]
                self._first = effect.first

    def _write(self, effect: Commit | Append) -> None:
        if isinstance(effect, Append):
            self._records += [b"".join(map(bytes, record)) for record in effect.records]
        else:
            for change in effect.changes:
                table = self._rows.setdefault(change.table, {})
                if change.value is None:
                    table.pop(change.key, None)
                else:
                    table[change.key] = change.value
        if effect.token is not None:
            self._do(Persisted(effect.token))

    def request(self, message: Any, *writes: type) -> list[Any]:
        """Return the messages after a request, with these kinds of writes completed."""
        self.said.clear()
        return self._happens(MessageReceived(PROXY, 7, message), *writes)

    def tick(self) -> list[Any]:
        """Return the messages after the next deadline, with all writes completed."""
        self.said.clear()
        return self._happens(DeadlineReached(), Commit, Append)

    def due(self) -> list[Any]:
        """Return the messages after the next deadline, without further writes."""
        self.said.clear()
        return self._happens(DeadlineReached())

    def give_up(self, broker: int) -> None:
        """Decommission a broker, with all writes completed."""
        name = sides(proxies=1, servers=self._servers, edges=2).brokers[broker]
        signature = make_signature(DECOMMISSION, name)
        self._happens(BrokerDecommissioned(broker, signature), Commit, Append)

    def _happens(self, event: Any, *writes: type) -> list[Any]:
        self._do(event)
        while ready := [each for each in self.waiting if isinstance(each, writes)]:
            self.waiting.remove(ready[0])
            self._write(ready[0])
        return list(self.said)

    def tell(self, message: Any) -> list[Any]:
        """Return the messages after a request, with all writes completed."""
        return self.request(message, Commit, Append)


def put(first: int, last: int, previous: int = 0, home: int = HOME, server: int = SERVER) -> Put:
    blob = encode_attributes({"kind": "a"})
    count = last - first + 1
    source = SourceId(home, 0, 1)
    run = PublicationRun(source, range(first, last + 1), (blob,), bytes(count), 0, ())
    return Put(server, home, TOPIC, previous, run)


def follow(number: int, *topics: int, home: int = HOME, incarnation: int = 1) -> Follow:
    return Follow(SERVER, home, incarnation, number, topics)


def get(number: int, done: int, after: int, most: int = 100) -> Get:
    return Get(SERVER, HOME, 1, number, (Wanted(SERVER, TOPIC, done, after, most),))


def stored(through: int) -> Stored:
    return Stored(SERVER, HOME, TOPIC, SourceId(HOME, 0, 1), through)


def a_put_is_acknowledged_once_durable() -> bool:
    disk = Disk()
    return disk.request(put(1, 3)) == [] and disk.tell(put(1, 3)) == [stored(3)]


def a_stored_put_is_not_stored_again() -> bool:
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 3))
    again = disk.tell(put(2, 5))
    messages, answered = disk.tell(get(1, 0, 0))
    sequences = [list(each.sequences) for each in messages.run.origins]
    return (again, sequences, answered) == (
        [stored(5)],
        [[1, 2, 3, 4, 5]],
        Answered(SERVER, HOME, 1, 1),
    )


def a_put_ahead_of_its_previous_one_is_dropped() -> bool:
    disk = Disk()
    return (
        disk.tell(put(6, 9, previous=5)) == []
        and disk.tell(put(1, 5)) == [stored(5)]
        and disk.tell(put(6, 9, previous=5)) == [stored(9)]
    )


def head(disk: Disk) -> int:
    """Return the last position that the topic has assigned."""
    (followed,) = disk.tell(follow(9, TOPIC))[-1].topics
    return int(followed.head)


def a_stored_put_is_recognised_after_truncation() -> bool:
    """Return True if a stored publication is recognised after its log record was truncated.

    No broker follows the topic, so the log is truncated.
    """
    disk = Disk()
    disk.tell(put(1, 3))
    disk.start(2)
    again = disk.tell(put(2, 3))
    return again == [stored(3)] and head(disk) == 3


def the_rest_of_a_truncated_log_is_released_after_a_crash() -> bool:
    disk = Disk()
    disk.is_chopped = False
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 9))
    disk.tell(get(1, 9, 9))
    disk.is_chopped = True
    left = disk.logged
    disk.start(2)
    disk.tell(get(2, 9, 9))
    return (left, disk.logged) == (1, 0) and head(disk) == 9


def positions_go_on_after_a_restart() -> bool:
    disk = Disk()
    disk.tell(put(1, 3))
    disk.start(2)
    return disk.tell(follow(1, TOPIC))[-1].topics == (Followed(SERVER, TOPIC, 3, 3),)


def a_follow_is_answered_when_it_is_on_disk() -> bool:
    disk = Disk()
    return not disk.request(follow(1, TOPIC), Append)


def a_position_is_announced_once_durable() -> bool:
    """Return True if a position is announced only when it is on disk.

    A crash could assign a position that is not on disk to another publication.
    """
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.request(put(1, 3))
    early = disk.request(follow(2, TOPIC), Commit)
    told = disk.tell(follow(2, TOPIC))
    return not early and told[-1].topics == (Followed(SERVER, TOPIC, 0, 3),)


def a_follower_continues_after_earlier_puts() -> bool:
    disk = Disk()
    disk.tell(put(1, 3))
    return disk.tell(follow(1, TOPIC))[-1].topics == (Followed(SERVER, TOPIC, 3, 3),)


def a_later_follow_wins() -> bool:
    disk = Disk()
    disk.tell(follow(2, TOPIC))
    stale = disk.tell(follow(1))
    disk.tell(put(1, 3))
    return not stale and disk.core.status().queued == 3


def late_requests_of_an_earlier_incarnation_have_no_effect() -> bool:
    """Return True if late requests of an earlier incarnation have no effect.

    The access broker was ahead of the server, over a slow proxy, and now follows the server's
    position. The server may have restarted since.
    """
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 9))
    (told,) = disk.tell(follow(1, TOPIC, incarnation=2))
    disk.tell(get(1, 9, 9))
    kept = disk.core.status().queued
    disk.start(2)
    disk.tell(get(2, 9, 9))
    return told.topics == (Followed(SERVER, TOPIC, 0, 9),) and (
        (kept, disk.core.status().queued) == (9, 9)
    )


def events_are_kept_until_all_followers_have_acknowledged() -> bool:
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(follow(1, TOPIC, home=3))
    disk.tell(put(1, 9))
    disk.tell(get(1, 9, 9))
    kept = disk.core.status().queued
    disk.tell(follow(2, home=3))
    return (kept, disk.core.status().queued) == (9, 0)


def an_answer_begins_after_the_acknowledged_position() -> bool:
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 9))
    messages, _ = disk.tell(get(1, 0, 4))
    return list(messages.run.sequences) == [5, 6, 7, 8, 9]


def crowded(disk: Disk) -> list[Any]:
    """Return the answer to a request beyond the window of five, with one of ten events taken."""
    disk.tell(follow(1, TOPIC))
    disk.tell(get(1, 0, 0))
    disk.tell(put(1, 1))
    disk.tell(get(2, 1, 1, most=0))
    disk.tell(put(2, 10))
    return disk.tell(put(11, 12))


def a_put_without_room_waits() -> bool:
    disk = Disk(topic_window=5)
    return crowded(disk) == [stored(10)] and head(disk) == 10


def a_waiting_put_is_stored_once_there_is_room() -> bool:
    disk = Disk(topic_window=5)
    crowded(disk)
    return stored(12) in disk.tell(get(3, 1, 9)) and head(disk) == 12


def a_follower_without_progress_is_not_awaited() -> bool:
    disk = Disk(topic_window=5)
    crowded(disk)
    disk.now_ns = 3_000_000_000
    return stored(12) in disk.tick()


RULES: dict[str, Callable[[], bool]] = {
    "puts-without-room": a_put_without_room_waits,
    "held-for-ever": a_waiting_put_is_stored_once_there_is_room,
    "waits-for-the-dead": a_follower_without_progress_is_not_awaited,
    "stored-before-it-is-written": a_put_is_acknowledged_once_durable,
    "puts-twice": a_stored_put_is_not_stored_again,
    "put-before-the-one-before": a_put_ahead_of_its_previous_one_is_dropped,
    "chopped-with-its-sources": a_stored_put_is_recognised_after_truncation,
    "chopped-log-kept": the_rest_of_a_truncated_log_is_released_after_a_crash,
    "positions-begin-anew": positions_go_on_after_a_restart,
    "followed-before-it-is-written": a_follow_is_answered_when_it_is_on_disk,
    "head-before-it-is-written": a_position_is_announced_once_durable,
    "follows-one-too-late": a_follower_continues_after_earlier_puts,
    "older-follow-kept": a_later_follow_wins,
    "gets-of-the-dead": late_requests_of_an_earlier_incarnation_have_no_effect,
    "restart-dropped": late_requests_of_an_earlier_incarnation_have_no_effect,
    "released-by-the-first-follower": events_are_kept_until_all_followers_have_acknowledged,
    "never-released": events_are_kept_until_all_followers_have_acknowledged,
    "get-is-answered-with-old-publications": an_answer_begins_after_the_acknowledged_position,
}


@pytest.mark.parametrize("bug", RULES)
def test_a_rule_holds_and_its_bug_is_seen(bug: str) -> None:
    assert RULES[bug]()
    with plant([MUTANTS[bug]]):
        assert not RULES[bug]()


def test_a_get_waits_until_there_is_something() -> None:
    disk = Disk()
    following = disk.tell(follow(1, TOPIC))
    assert following == [Following(SERVER, HOME, 1, 1, (Followed(SERVER, TOPIC, 0, 0),), ())]
    assert disk.tell(get(1, 0, 0)) == []
    kinds = [type(message) for message in disk.tell(put(1, 2))]
    assert sorted(kind.__name__ for kind in kinds) == ["Answered", "Messages", "Stored"]


def test_an_answer_has_no_more_than_there_is_room_for() -> None:
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 9))
    messages, _ = disk.tell(get(1, 0, 0, most=4))
    assert isinstance(messages, Messages)
    assert list(messages.run.sequences) == [1, 2, 3, 4]
    assert disk.tell(get(2, 0, 4, most=0)) == []


@pytest.mark.parametrize(
    "message",
    [
        put(1, 3, home=9),
        Put(SERVER, HOME, 99, 0, put(1, 3).run),
        Put(SERVER, HOME, TOPIC, 0, put(1, 3, home=3).run),
        Put(HOME, HOME, TOPIC, 0, put(1, 3).run),
        Put(SERVER, HOME, TOPIC, 0, marker(SourceId(HOME, 0, 1), 1, 3)),
        follow(1, 99),
        Get(SERVER, HOME, 1, 1, (Wanted(SERVER, 99, 0, 0, 1),)),
        Stored(SERVER, SERVER, 99, SourceId(SERVER, 0, 1), 3),
        Stored(SERVER, HOME, TOPIC, SourceId(HOME, 0, 1), 3),
        Following(HOME, SERVER, 1, 1, (), ()),
        Answered(HOME, SERVER, 1, 1),
        Messages(SERVER, TOPIC, put(1, 3).run),
    ],
    ids=str,
)
def test_an_invalid_proxy_message_closes_its_session(message: Any) -> None:
    disk = Disk()
    with pytest.raises(RemoteProtocolError):
        disk.tell(message)


def test_a_get_that_waited_long_enough_is_answered_once_if_it_wants_a_followed_topic() -> None:
    disk = Disk(get_wait_ns=1_000)
    disk.tell(follow(1, TOPIC))
    assert disk.tell(get(1, 0, 0)) == []
    disk.now_ns = 1_000
    assert disk.tick() == [Answered(SERVER, HOME, 1, 1)]
    disk.now_ns = 2_000
    assert disk.tick() == []
    assert disk.tell(Get(SERVER, HOME, 1, 2, (Wanted(SERVER, TOPIC + 1, 0, 0, 9),))) == []
    disk.now_ns = 9_000
    assert disk.tick() == []


def test_a_decommissioned_follower_is_waited_for_no_more_at_once() -> None:
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 3, home=HOME + 1))
    assert disk.core.status().queued == 3
    disk.give_up(HOME)
    assert disk.core.status().queued == 0


def _followed(disk: Disk, number: int) -> Followed:
    """Return the answer of a server about the topic to a repeated Follow."""
    (answer,) = (each for each in disk.tell(follow(number, TOPIC)) if isinstance(each, Following))
    (found,) = answer.topics
    return found


def test_a_follower_that_a_server_lost_begins_at_the_first_publication() -> None:
    """It may have followed before the loss, from any position on."""
    disk = Disk()
    disk.tell(follow(1, TOPIC, home=HOME + 1))
    disk.tell(put(1, 3))
    assert _followed(disk, 1).done == 3
    disk._rows.clear()
    disk._lineage = 5
    disk.start(2)
    assert _followed(disk, 1).done == 0


def test_a_get_with_an_earlier_acknowledgement_takes_none_back() -> None:
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 3))
    disk.tell(get(1, 2, 2))
    disk.tell(get(2, 1, 2))
    assert _followed(disk, 2).done == 2


def test_nothing_is_released_after_a_loss_before_all_have_restated() -> None:
    """The record of the loss itself remains last."""
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 3))
    disk._rows.clear()
    disk._lineage = 5
    disk.start(2)
    disk.tell(follow(1, TOPIC))
    disk.tell(get(1, 3, 3))
    kept = [disk.core.status().queued]
    for other in (PROXY, SERVER, HOME + 1):
        disk.tell(follow(1, home=other))
        kept.append(disk.core.status().queued)
    assert kept == [4, 4, 4, 1]


def test_the_publications_of_answers_are_counted() -> None:
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.tell(put(1, 3))
    before = disk.core.statistics()["publications_forwarded"]
    disk.tell(get(1, 0, 0))
    assert disk.core.statistics()["publications_forwarded"] == before + 3
