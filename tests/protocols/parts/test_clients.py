"""Client handling of all protocols: admission, limits, linger and windows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Deliveries,
    Detach,
    Gap,
    Publish,
    Refused,
    Silence,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.predicate import NOTHING, Predicate
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.protocols.interface import Commit, Deliver, Effect, Send
from brokerd.protocols.parts.clients.table import (
    LINGER,
    Admission,
    ClientTable,
    HostedClient,
)
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, EventMachine
from brokerd.protocols.parts.neighbours import next_wait_ns

SOURCE = SourceId(3, 0, 1)
READER = Connect(False, 0, 1, 0, ())
PUBLISHER = Connect(True, 1, 1, 0, (), instance=b"first")
ANYTHING = Predicate(())


@dataclass(frozen=True)
class Limits:
    client_linger_ns: int = 100
    client_subscriptions: int = 2
    retry_first_ns: int = 5
    retry_limit_ns: int = 30


@dataclass(eq=False)
class Asked:
    client: ClientId
    number: int
    predicate: Predicate = ANYTHING
    is_over: bool = False
    begins_after: dict[SourceId, int] = field(default_factory=dict)
    acknowledged: dict[SourceId, int] = field(default_factory=dict)


class Plain:
    """A client table that keeps subscriptions without further action.

    `durable` has the last durable publication of every source, if publications are stored.
    """

    def __init__(
        self, disk: Durability, deadlines: DeadlineQueue[tuple[str, int | str]], pubends: int = 0
    ) -> None:
        kind = HostedClient[Asked]
        self.table = ClientTable(3, disk.machine, deadlines, Limits(), kind, pubends=pubends)
        self.disk = disk
        self.durable: dict[SourceId, int] | None = None
        self.markers: list[PublicationRun] = []

    def handlers(self) -> dict[type, Callable[[Any, Any], object]]:
        return {
            Connect: self.on_connect,
            Subscribe: self._on_subscribe,
            Unsubscribe: self._on_unsubscribe,
            Detach: lambda name, _message: self.table.check_detach(name),
            Publish: self._on_publish,
            Acknowledge: self.table.check_acknowledge,
        }

    def on_lost(self, name: ClientId, session: int) -> None:
        client, _ = self.table.close_session(name, session)
        self.table.keep(client)

    def on_connect(self, name: ClientId, message: Connect) -> None:
        durable = self._durable_of(message.source)
        client = self.table.check_connect(name, message, durable or 0, durable)
        if client is not None:
            admission = self.table.assign_source(client, message)
            self.disk.commit(admission.changes, partial(self._admit, admission))

    def _on_publish(self, name: ClientId, message: Publish) -> None:
        self.table.check_publish(name, message)
        self.table.record_published(name, message.run.source, message.run.last)

    def _durable_of(self, source: SourceId | None) -> int | None:
        if source is None or self.durable is None:
            return None
        return self.durable.get(source, 0)

    def _admit(self, admission: Admission[HostedClient[Asked]]) -> None:
        if admission.is_current():
            message = admission.message
            lost = self.table.lost_publications(message, self._durable_of(message.source))
            if lost is not None:
                self.markers.append(lost)
            self.table.enter(admission.client)
            self.table.welcome(admission.client)

    def _on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        client = self.table.requester(name, "Subscribe")
        if self.table.is_permitted(client, message):
            client.subscriptions[message.number] = Asked(name, message.number, message.predicate)

    def _on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        client = self.table.check_unsubscribe(name, message)
        client.subscriptions.pop(message.number, None)
        self.table.report_end(client, client.session, message.number)


class World:
    """A client service without a core, and its effects."""

    def __init__(
        self, recovered: Mapping[str, Mapping[str, Any]] | None = None, pubends: int = 0
    ) -> None:
        self.machine = EventMachine()
        self.disk = Durability(self.machine)
        self.deadlines: DeadlineQueue[tuple[str, int | str]] = DeadlineQueue()
        self.clients = Plain(self.disk, self.deadlines, pubends)
        self.clients.table.start(7, recovered or {})
        self._recovered = recovered or {}
        self._sessions = 100
        self._committed: list[Commit] = []

    def effects(self) -> list[Effect]:
        effects, self.machine.effects = self.machine.effects, []
        return effects

    def connect(self, client: ClientId, connect: Connect) -> list[Any]:
        """Return the answers to a client on a new session, with all writes completed."""
        if self.clients.table.session_of(client):
            self.clients.on_lost(client, self.clients.table.session_of(client))
        self._sessions += 1
        self.clients.table.open_session(client, self._sessions)
        self.clients.on_connect(client, connect)
        answers: list[Effect] = []
        for effect in (effects := self.effects()):
            if isinstance(effect, Commit) and effect.token is not None:
                self._committed.append(effect)
                self.disk.on_persisted(effect.token)
                answers += self.effects()
        answers += effects
        return [each.message for each in answers if isinstance(each, Send)]

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the rows on disk after a restart."""
        rows = {table: dict(values) for table, values in self._recovered.items()}
        for change in (change for commit in self._committed for change in commit.changes):
            rows.setdefault(change.table, {})[change.key] = list(change.value)
        return rows

    def say(self, client: ClientId, *messages: object) -> list[object]:
        """Return the broker's answers to messages, handled by type."""
        for message in messages:
            self.clients.handlers()[type(message)](client, message)
        return [effect.message for effect in self.effects() if isinstance(effect, Send)]


def run(first: int, last: int, source: SourceId = SOURCE) -> PublicationRun:
    count = last - first + 1
    return PublicationRun(source, range(first, last + 1), (b"a",), bytes(count), 1, (b"x" * count,))


def test_a_publisher_is_let_in_when_its_number_is_on_disk():
    world = World()
    world.clients.table.open_session("p", 1)
    world.clients.on_connect("p", PUBLISHER)
    (commit,) = world.effects()
    assert isinstance(commit, Commit), commit
    assert commit.token is not None
    world.disk.on_persisted(commit.token)
    assert world.effects() == [Send("p", Connected(SourceId(3, 0, 1), 7))]


def test_a_publisher_with_a_lost_answer_receives_the_same_source_again():
    world = World()
    world.clients.table.open_session("p", 1)
    world.clients.on_connect("p", PUBLISHER)
    (commit,) = world.effects()
    assert isinstance(commit, Commit)
    assert commit.token is not None
    world.clients.on_lost("p", 1)
    world.disk.on_persisted(commit.token)
    assert world.effects() == []
    assert world.connect("p", PUBLISHER) == [Connected(SourceId(3, 0, 1), 7)]


def test_a_publisher_that_starts_counting_again_gets_a_source_that_is_new():
    world = World()
    world.connect("p", PUBLISHER)
    for incarnation in (2, 3):
        process = replace(PUBLISHER, instance=b"process %d" % incarnation)
        assert world.connect("p", process) == [Connected(SourceId(3, 0, incarnation), 7)]


def test_a_new_source_is_new_after_two_restarts_of_the_broker():
    world = World()
    for incarnation in (1, 2, 3):
        process = replace(PUBLISHER, instance=b"process %d" % incarnation)
        assert world.connect("p", process) == [Connected(SourceId(3, 0, incarnation), 7)]
        world = World(world.rows())
    assert world.connect("q", PUBLISHER) == [Connected(SourceId(3, 1, 1), 7)]


def test_a_publisher_continues_as_its_source_after_a_restart_of_the_broker():
    world = World()
    world.connect("p", PUBLISHER)
    again = World(world.rows())
    continuing = replace(PUBLISHER, source=SOURCE, next_sequence=21, highest_sequence=20)
    assert again.connect("p", continuing) == [Connected(SOURCE, 7)]


@pytest.mark.parametrize("source", [SourceId(3, 1, 1), SourceId(3, 0, 2), SourceId(9, 0, 1)])
def test_a_publisher_does_not_continue_as_a_source_without_a_record(source):
    world = World()
    world.connect("p", PUBLISHER)
    (refused,) = world.connect("p", replace(PUBLISHER, source=source))
    assert isinstance(refused, Refused), refused
    assert (refused.request, refused.retry) == ("connect", False)
    assert world.connect("p", replace(PUBLISHER, source=SOURCE)) == [Connected(SOURCE, 7)]


def at(pubend: int | None, name: str = "p") -> Connect:
    """Return the request of a process to publish at a pubend."""
    return replace(PUBLISHER, pubend=pubend, instance=name.encode())


def test_a_publisher_is_at_the_pubend_that_it_requests():
    world = World(pubends=4)
    requests = (("p", 2), ("q", 2), ("r", None), ("s", 0), ("t", 3))
    sources = [world.connect(name, at(pubend, name))[0].source for name, pubend in requests]
    assert [each.publisher for each in sources] == [2, 6, 7, 8, 11]
    later = World(world.rows(), pubends=4)
    assert later.connect("u", at(1, "u")) == [Connected(SourceId(3, 13, 1), 7)]
    assert later.connect("q", at(2, "other")) == [Connected(SourceId(3, 6, 2), 7)]
    continuing = replace(at(2, "q"), source=sources[1])
    assert later.connect("q", continuing) == [Connected(SourceId(3, 6, 1), 7)]


@pytest.mark.parametrize(
    "pubends, pubend, continues, reason",
    [
        (0, 0, False, "publisher 'p' requests pubend 0, and this protocol has none"),
        (4, 4, False, "publisher 'p' requests pubend 4; 0 to 3"),
        (4, 3, False, "stays at 2, where it has published: request 2, or take another name"),
        (4, 3, True, "requests pubend 3, and stays at 2"),
    ],
)
def test_a_pubend_that_a_publisher_cannot_be_at_is_refused(pubends, pubend, continues, reason):
    world = World({"publishers": {"p": (2, 1, 1, b"")}}, pubends)
    source = SourceId(3, 2, 1) if continues else None
    (refused,) = world.connect("p", replace(at(pubend), source=source))
    assert isinstance(refused, Refused), refused
    assert reason in refused.reason
    assert not refused.retry


def test_a_broker_without_its_rows_refuses_a_publisher_that_continues():
    (refused,) = World().connect("p", replace(PUBLISHER, source=SOURCE))
    assert "no record" in refused.reason


@pytest.mark.parametrize("chosen", [1, 4])
def test_an_incarnation_that_has_been_used_is_refused_to_a_caller_that_chose_it(chosen):
    world = World()
    exact = replace(PUBLISHER, incarnation=4, exact_incarnation=True)
    assert world.connect("p", exact) == [Connected(SourceId(3, 0, 4), 7)]
    assert world.connect("p", exact) == [Connected(SourceId(3, 0, 4), 7)], "the answer was lost"
    other = replace(exact, incarnation=chosen, instance=b"other")
    (refused,) = world.connect("p", other)
    assert isinstance(refused, Refused), refused
    assert "or with 5" in refused.reason
    later = replace(other, incarnation=5)
    assert world.connect("p", later) == [Connected(SourceId(3, 0, 5), 7)]


def test_a_row_of_the_release_before_has_an_incarnation_that_was_never_given():
    world = World({"publishers": {"p": 0}})
    (connected,) = world.connect("p", PUBLISHER)
    assert connected.source.incarnation > 1 << 16
    assert world.connect("q", PUBLISHER) == [Connected(SourceId(3, 1, 1), 7)]


@pytest.mark.parametrize(
    "impossible",
    [{"incarnation": 2**62}, {"incarnation": -1}, {"instance": b"x" * 17}, {"next_sequence": 0}],
    ids=str,
)
def test_impossible_numbers_in_connect_close_the_session(impossible):
    world = World()
    world.clients.table.open_session("p", 1)
    with pytest.raises(RemoteProtocolError, match="impossible"):
        world.clients.on_connect("p", replace(PUBLISHER, **impossible))


@pytest.mark.parametrize(
    "request_",
    [Subscribe(1, ANYTHING), Unsubscribe(1), Publish(run(1, 1)), Acknowledge(SOURCE, 1, 1)],
    ids=lambda message: type(message).__name__,
)
def test_requests_before_connected_are_refused(request_):
    world = World()
    world.clients.table.open_session("c", 1)
    with pytest.raises(RemoteProtocolError, match="before Connected"):
        world.say("c", request_)


def test_after_detach_only_acknowledgements_are_taken():
    world = World()
    world.clients.table.open_session("c", 1)
    world.say("c", READER, Detach(drain=True, done_through=0))
    assert world.say("c", Acknowledge(SOURCE, 1, 2)) == []
    with pytest.raises(RemoteProtocolError, match="after Detach"):
        world.say("c", Subscribe(1, ANYTHING))


def test_a_subscription_over_the_limit_is_refused_unless_it_matches_nothing():
    world = World()
    world.clients.table.open_session("c", 1)
    world.say("c", READER, Subscribe(1, ANYTHING), Subscribe(2, ANYTHING))
    assert world.say("c", Subscribe(3, ANYTHING)) == [
        Refused("subscribe", 3, "a client has at most 2 subscriptions", False)
    ]
    assert world.say("c", Subscribe(4, NOTHING)) == []
    assert world.say("c", Unsubscribe(1), Unsubscribe(4)) == [Unsubscribed(1), Unsubscribed(4)]
    assert world.say("c", Subscribe(3, ANYTHING)) == []


def test_the_same_number_for_something_else_is_refused():
    world = World()
    world.clients.table.open_session("c", 1)
    world.say("c", READER, Subscribe(1, ANYTHING))
    (refused,) = world.say("c", Subscribe(1, NOTHING))
    assert refused.reason == "subscription 1 exists with another predicate"


def test_client_state_stays_until_its_linger_ends_or_the_client_returns():
    world = World()
    world.clients.table.open_session("c", 1)
    world.say("c", READER, Subscribe(1, ANYTHING))
    world.clients.on_lost("c", 1)
    assert world.deadlines.instant((LINGER, "c")) == 100
    world.clients.table.open_session("c", 2)
    assert (LINGER, "c") not in world.deadlines


def windows(
    window: int = 4,
) -> tuple[EventMachine, DeliveryWindows[str, Asked], dict[str, int]]:
    machine, counters = EventMachine(), {"publications_delivered": 0}
    return machine, DeliveryWindows(machine, window, counters), counters


def sent(machine: EventMachine) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return the first and last sequence number and the subscriptions of every delivery."""
    effects, machine.effects = machine.effects, []
    items = [effect.item for effect in effects if isinstance(effect, Deliver)]
    assert all(isinstance(item, Deliveries) for item in items), items
    return [(item.run.first, item.run.last, item.subscriptions) for item in items]


def test_a_full_window_holds_back_the_rest_until_a_range_is_acknowledged():
    machine, outlets, counters = windows()
    one = Asked("c", 1)
    assert not [*outlets.claim(one)]
    for first in (1, 4, 7):
        outlets.deliver("c", run(first, first + 2), (one,), ())
    assert sent(machine) == [(1, 3, (1,)), (4, 6, (1,))]
    assert outlets.clients_behind() == ["c"]
    assert not [*outlets.acknowledge("c", SOURCE, 1, 4)]
    assert sent(machine) == [(7, 9, (1,))]
    assert counters == {"publications_delivered": 9}


def test_an_acknowledgement_beyond_the_last_sent_number_covers_sent_numbers_only():
    machine, outlets, _ = windows()
    one = Asked("c", 1)
    assert not [*outlets.claim(one)]
    for first in (1, 4, 7, 10):
        outlets.deliver("c", run(first, first + 2), (one,), ())
    assert sent(machine) == [(1, 3, (1,)), (4, 6, (1,))]
    assert not [*outlets.acknowledge("c", SourceId(5, 5, 5), 1, 100)]
    assert not [*outlets.acknowledge("c", SOURCE, 7, 1 << 62)]
    assert sent(machine) == []
    assert not [*outlets.acknowledge("c", SOURCE, 1, 1 << 62)]
    assert sent(machine) == [(7, 9, (1,)), (10, 12, (1,))]
    assert not outlets.is_drained("c")


def test_unacknowledged_deliveries_are_repeated_on_the_next_session():
    machine, outlets, _ = windows()
    one, two = Asked("c", 1), Asked("c", 2)
    assert not [*outlets.claim(one)]
    assert not [*outlets.claim(two)]
    outlets.deliver("c", run(1, 3), (one, two), ("entry",))
    assert not [*outlets.acknowledge("c", SOURCE, 1, 2)]
    assert sent(machine) == [(1, 3, (1, 2))]
    assert not [*outlets.close("c")]
    assert not [*outlets.claim(two)]
    assert not [*outlets.claim(one)]
    assert sent(machine) == [(3, 3, (2,))]
    assert not [*outlets.acknowledge("c", SOURCE, 3, 3)]
    assert sent(machine) == [(3, 3, (1,))]
    assert [*outlets.acknowledge("c", SOURCE, 3, 3)] == ["entry"]
    assert outlets.is_drained("c")


def test_silence_and_gaps_are_delivered_in_order_and_acknowledged():
    machine, outlets, counters = windows(window=2)
    one = Asked("c", 1)
    assert not [*outlets.claim(one)]
    silence, gap = Silence((1,), SOURCE, 3, 5), Gap((1,), SOURCE, 6, 8, "released")
    outlets.deliver("c", run(1, 2), (one,), ())
    outlets.announce("c", (one,), SOURCE, 5, silence)
    outlets.announce("c", (one,), SOURCE, 8, gap)
    outlets.deliver("c", run(9, 9), (one,), ())
    assert sent(machine) == [(1, 2, (1,))]
    assert not [*outlets.acknowledge("c", SOURCE, 1, 2)]
    assert machine.effects == [Deliver("c", silence), Deliver("c", gap)]
    machine.effects = []
    assert not [*outlets.close("c")]
    assert not [*outlets.claim(one)]
    assert machine.effects == [Deliver("c", silence), Deliver("c", gap)]
    machine.effects = []
    assert not [*outlets.acknowledge("c", SOURCE, 3, 8)]
    assert sent(machine) == [(9, 9, (1,))]
    assert counters == {"publications_delivered": 3}


def test_a_foreign_source_is_accepted_by_brokers_without_client_state():
    world = World()
    roaming = replace(PUBLISHER, source=SourceId(9, 4, 1))
    world.clients.table = ClientTable(
        3, world.machine, world.deadlines, Limits(), HostedClient[Asked], takes_sources=True
    )
    world.clients.table.start(7, {})
    assert world.connect("p", roaming) == [Connected(SourceId(9, 4, 1), 7)]


def test_one_client_at_a_time_continues_as_a_foreign_source():
    world = World()
    roaming = replace(PUBLISHER, source=SourceId(9, 4, 1))
    world.clients.table = ClientTable(
        3, world.machine, world.deadlines, Limits(), HostedClient[Asked], takes_sources=True
    )
    world.clients.table.start(7, {})
    for _ in range(2):
        assert world.connect("p", roaming) == [Connected(SourceId(9, 4, 1), 7)]
        (refused,) = world.connect("q", roaming)
        assert (refused.request, refused.retry) == ("connect", False)
        assert "another client" in refused.reason
    world.clients.on_lost("p", world.clients.table.session_of("p"))
    assert world.connect("q", roaming) == [Connected(SourceId(9, 4, 1), 7)]


def test_publications_with_forged_origins_are_refused():
    world = World()
    world.clients.table.open_session("p", 1)
    world.clients.on_connect("p", PUBLISHER)
    world.disk.on_persisted(1)
    forged = replace(run(1, 1), origins=(OriginRun(SourceId(0, 0, 1), range(1, 2)),))
    with pytest.raises(RemoteProtocolError, match="publishes as"):
        world.say("p", Publish(forged))


def test_waits_double_up_to_the_limit():
    waits = [next_wait_ns(0, Limits())]
    for _ in range(4):
        waits.append(next_wait_ns(waits[-1], Limits()))
    assert waits == [5, 10, 20, 30, 30]
