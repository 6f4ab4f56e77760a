"""The wait for a server that has answered equals the wait for a new server."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Commit, Send
from brokerd.protocols.multi_proxy.fetches import Fetches
from brokerd.protocols.multi_proxy.messages import (
    Follow,
    Followed,
    Following,
    Get,
    Locate,
    Located,
    Owner,
    Stored,
)
from brokerd.protocols.multi_proxy.owners import OwnerChanges, OwnerRequests
from brokerd.protocols.multi_proxy.ownership import AssignedOwners, PaperOwners
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.publishes import Publishes
from brokerd.protocols.multi_proxy.routes import UNANSWERED, ServerRoutes
from brokerd.protocols.multi_proxy.state import OwnerTable, PendingSubscription
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, EventMachine

HOME, SERVER, PROXIES = 5, 2, (0, 1)
TIMEOUT_NS, LIMIT_NS = 100, 1_500


class Asking:
    """An access broker that follows one topic of one server, over two proxies."""

    def __init__(self) -> None:
        self.machine = EventMachine()
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        self.is_awaited = False
        self.ways = ServerRoutes(
            HOME,
            self.machine,
            PROXIES,
            (SERVER,),
            self.deadlines,
            MultiProxyParameters(timeout_ns=TIMEOUT_NS, retry_limit_ns=LIMIT_NS),
        )
        for proxy in PROXIES:
            for _ in self.ways.reaches(proxy, (SERVER,)):
                self._send()

    def _send(self) -> None:
        if self.is_awaited:
            self.ways.send(Follow(SERVER, HOME, 1, 1, (1,)))

    def request(self) -> None:
        self.is_awaited = True
        self._send()

    def due(self) -> None:
        if self.ways.change_late(SERVER, is_awaited=self.is_awaited, puts_ns=None):
            self._send()

    def answer(self) -> None:
        self.is_awaited = False
        self.ways.on_answer(SERVER, Follow)

    def waits(self, count: int) -> list[tuple[int, int]]:
        """Return the next `count` waits for answers, with their proxies."""
        found = []
        for _ in range(count):
            (proxy,) = [effect.peer for effect in self.machine.effects[-1:] if type(effect) is Send]
            began_ns = self.machine.now_ns
            before = len(self.machine.effects)
            while len(self.machine.effects) == before:
                due_ns = self.deadlines.earliest()
                assert due_ns is not None, "a request without an answer is never repeated"
                self.machine.now_ns = due_ns
                assert self.deadlines.due(due_ns) == [(UNANSWERED, SERVER)]
                self.due()
            found.append((self.machine.now_ns - began_ns, proxy))
        return found


@pytest.mark.parametrize("silences", [(0,), (1,), (2,), (7,), (1, 4), (7, 2, 5)], ids=str)
def test_after_an_answer_the_waits_are_those_of_a_new_one(silences: tuple[int, ...]) -> None:
    asking = Asking()
    asking.request()
    for silence in silences:
        asking.waits(silence)
        asking.answer()
        asking.request()
    found = asking.waits(6)
    assert [wait_ns for wait_ns, _ in found] == [100, 200, 300, 500, 900, 1_600]
    proxies = [proxy for _, proxy in found]
    assert proxies in ([0, 1] * 3, [1, 0] * 3)


def test_a_wait_that_an_answer_has_ended_is_no_silence() -> None:
    """Answers arrive in time, with pauses without requests."""
    asking = Asking()
    for _ in range(5):
        asking.request()
        asking.machine.now_ns += TIMEOUT_NS - 1
        asking.answer()
        asking.machine.now_ns += 10 * TIMEOUT_NS
        before = len(asking.machine.effects)
        while (due_ns := asking.deadlines.earliest()) is not None:
            assert due_ns <= asking.machine.now_ns
            asking.deadlines.due(due_ns)
            asking.due()
        assert len(asking.machine.effects) == before, "nothing is repeated"
    asking.request()
    assert asking.waits(1)[0][0] == TIMEOUT_NS


class Routes:
    """The routes of an access broker, with the messages to servers."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def on_answer(self, server: int, kind: type, *, wholly: bool = True) -> None:
        pass


class Publisher:
    """An access broker with publications to topics whose owners change."""

    def __init__(self, table: OwnerTable) -> None:
        routes: Any = Routes()
        self.table = table
        self.publishes = Publishes(HOME, EventMachine(), self.table, routes)
        self.source = SourceId(HOME, 0, 1)
        self.publishes.add_publisher(self.source, 0)
        self.sequence = 0

    def put(self, topic: int) -> None:
        self.sequence += 1
        numbers = range(self.sequence, self.sequence + 1)
        run = PublicationRun(self.source, numbers, (b"a",), b"\0", 0, ())
        assert {*self.publishes.put(self.source, [(topic, run)])} <= {topic}

    def move(self, topic: int, server: int) -> None:
        if (before := self.table.known.pop(topic, None)) is not None:
            self.publishes.forget_owners({topic: before})
        self.table.known[topic] = server
        self.publishes.on_owners((topic,))

    def store(self, topic: int, through: int) -> None:
        if (server := self.table.of(topic)) is not None:
            message = Stored(server, HOME, topic, self.source, through)
            assert [*self.publishes.on_stored(server, message)] in ([], [self.source])

    def unanswered(self) -> dict[int, int]:
        """Count the requests that each server has not answered."""
        found = dict.fromkeys(range(3), 0)
        for topic, chain in self.publishes._sources[self.source].chains.items():
            if (server := self.table.of(topic)) is not None:
                found[server] += len(chain)
        return found


@pytest.mark.parametrize("seed", range(20))
def test_unanswered_requests_are_counted_again_after_each_change_of_owners(seed: int) -> None:
    random, home = Random(seed), Publisher(OwnerTable({}, may_change=True))
    for _ in range(60):
        topic = random.randrange(3)
        match random.randrange(4):
            case 0:
                home.move(topic, random.randrange(3))
            case 1:
                home.store(topic, random.randint(0, home.sequence))
            case _:
                home.put(topic)
        for server, count in home.unanswered().items():
            assert home.publishes._server(server).unanswered == count


def test_owners_that_a_former_proxy_was_asked_for_are_asked_of_the_next_one() -> None:
    routes: Any = Routes()
    table = OwnerTable({}, may_change=True)
    home = Publisher(table)
    requests = OwnerRequests(HOME, (0, 1), table, routes, home.publishes)
    nothing: Any = None
    owners = PaperOwners(2, table, requests, home.publishes, nothing)
    owners.on_routes(7)
    owners.seek(requests.wait([1], lambda: None))
    asked = [*routes.sent]
    assert asked == [Locate(1, HOME, (1,))]
    for times, proxy in enumerate((8, 7, 7), 1):
        owners.on_routes(proxy)
        assert routes.sent == asked * (1 + min(times, 2))


class Assigned:
    """An access broker that follows owners in generations, and a disk that is slow."""

    def __init__(self) -> None:
        routes: Any = Routes()
        self.machine = EventMachine()
        self.table = OwnerTable({0: 1}, may_change=True, are_in_turn=True)
        self.table.generations[0] = 1
        home = Publisher(self.table)
        requests = OwnerRequests(HOME, (9,), self.table, routes, home.publishes)
        fetches: Any = SimpleNamespace(move=lambda *_: None)
        names = {1: "s1", 2: "s2", 3: "s3"}
        disk = Durability(self.machine)
        changes = OwnerChanges(names, 1, disk, self.table, requests, home.publishes, fetches)
        self.owners = AssignedOwners(3, self.table, requests, changes)
        self.disk = disk

    def write(self) -> list[int]:
        """Make all commits durable in order; return the generations of their rows."""
        commits = [each for each in self.machine.effects if isinstance(each, Commit)]
        self.machine.effects.clear()
        for each in commits:
            assert each.token is not None
            self.disk.on_persisted(each.token)
        return [change.value[1] for each in commits for change in each.changes]


def test_an_arbiter_that_answers_late_does_not_undo_a_later_owner() -> None:
    """The answer to a doubt arrives while the later owner is on its way to the disk."""
    home = Assigned()
    home.owners.learn(2, [Owner(0, 2, 1)])
    assert home.owners.requests.doubted
    home.owners.learn(3, [Owner(0, 3, 2)])
    home.owners.on_located(9, Located(9, HOME, (Owner(0, 2, 1),)))
    assert home.write() == [2]
    assert (home.table.known, home.table.generations) == ({0: 3}, {0: 2})
    assert not home.owners.requests.doubted


def test_a_message_with_two_owners_of_a_topic_is_refused() -> None:
    home = Assigned()
    with pytest.raises(RemoteProtocolError, match="two owners"):
        home.owners.learn(3, [Owner(0, 2, 2), Owner(0, 3, 3)])
    assert home.write() == []
    assert home.table.known == {0: 1}


def test_a_message_may_repeat_the_owner_of_a_topic() -> None:
    home = Assigned()
    home.owners.learn(2, [Owner(0, 2, 2)] * 2)
    assert home.write() == [2]
    home.owners.learn(3, [Owner(0, 3, 2)])
    assert home.owners.requests.doubted
    home.owners.on_located(9, Located(9, HOME, (Owner(0, 3, 2),) * 2))
    assert home.write() == [2]
    assert (home.table.known, home.owners.requests.doubted) == ({0: 3}, {})


class FollowingBroker:
    """An access broker with the servers 2 and 3, which follows topic 1 of server 2."""

    def __init__(self) -> None:
        self.machine = EventMachine()
        deadlines: DeadlineQueue[Any] = DeadlineQueue()
        parameters = MultiProxyParameters()
        routes = ServerRoutes(HOME, self.machine, PROXIES, (2, 3), deadlines, parameters)
        for _ in routes.reaches(PROXIES[0], (2, 3)):
            pass
        self.fetches = Fetches(
            HOME, self.machine, (2, 3), OwnerTable({1: 2}), routes, deadlines, parameters
        )
        self.fetches.begin(1)
        for request in self.requests():
            self.answer(request)

    def requests(self, kind: type = Follow) -> list[Any]:
        """Return the requests of a kind since the last call."""
        sent, self.machine.effects[:] = [*self.machine.effects], []
        return [each.message for each in sent if type(each) is Send and type(each.message) is kind]

    def answer(self, request: Follow, *topics: Followed) -> list[PendingSubscription]:
        reply = Following(request.server, HOME, 1, request.number, topics, ())
        return [*self.fetches.on_following(PROXIES[0], reply)]


@pytest.mark.parametrize("is_answered", [False, True])
def test_both_servers_are_asked_at_once_when_a_topic_moves(*, is_answered: bool) -> None:
    """The former server may be down, and a late answer of it is for a former request."""
    home = FollowingBroker()
    local: Any = SimpleNamespace()
    beginning = PendingSubscription(local)
    home.fetches.follow((1,), beginning)
    (first,) = home.requests()
    if is_answered:
        assert home.answer(first, Followed(2, 1, 0, 4)) == [beginning]
        home.requests()
    home.fetches.move(1, 2, 3)
    former, later = home.requests()
    assert (former.server, former.topics, later.server, later.topics) == (2, (), 3, (1,))
    assert home.answer(first, Followed(2, 1, 0, 4)) == []
    assert home.answer(later, Followed(3, 1, 0, 5)) == ([] if is_answered else [beginning])


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_new_topic_begins_at_its_head_and_a_resumed_one_behind_its_acknowledgement(
    *, is_resumed: bool
) -> None:
    """The server may have this broker as an earlier follower of the topic."""
    home = FollowingBroker()
    local: Any = SimpleNamespace()
    home.fetches.follow((1,), None if is_resumed else PendingSubscription(local))
    (request,) = home.requests()
    home.answer(request, Followed(2, 1, 3, 7))
    (get,) = home.requests(Get)
    assert [(each.topic, each.after) for each in get.wanted] == [(1, 3 if is_resumed else 7)]
