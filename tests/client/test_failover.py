"""Tests of a client with a list of brokers: permitted and forbidden moves."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from brokerd.client.client import Callbacks, Client, ClientError, connect
from brokerd.client.core import ClientCore
from brokerd.client.events import PublicationsDone
from brokerd.client.state import Home
from brokerd.config import SessionParameters
from brokerd.errors import ConfigError
from brokerd.model.client_messages import (
    Connect,
    Connected,
    Publish,
    PublishAcknowledged,
    Redirect,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from brokerd.model.identity import SourceId
from brokerd.model.predicate import EVERYTHING
from brokerd.sessions.messages import Farewell
from tests.client.test_client import ScriptedBroker
from tests.helpers.memory_broker import MemoryBroker, chain
from tests.helpers.memory_links import MemoryNet
from tests.helpers.virtual_time import in_virtual_time

OIL = {"topic": "oil"}


class Cluster:
    """Brokers of a chain that are stopped and started separately."""

    def __init__(self, nursery: trio.Nursery, protocol: str) -> None:
        self.net = MemoryNet()
        self.brokers = [MemoryBroker(self.net, chain(3), f"b{n}", protocol) for n in range(3)]
        self._nursery = nursery
        self._scopes: dict[int, trio.CancelScope] = {}

    async def start(self, number: int) -> None:
        await self._nursery.start(self._run, number)

    async def stop(self, number: int) -> None:
        self._scopes.pop(number).cancel()
        del self.net.listeners[f"b{number}"]
        await trio.testing.wait_all_tasks_blocked()

    async def _run(self, number: int, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self._scopes[number]:
            await self.brokers[number].run(task_status=task_status)


@asynccontextmanager
async def cluster(protocol: str = "delta_tree") -> AsyncIterator[Cluster]:
    async with trio.open_nursery() as nursery:
        running = Cluster(nursery, protocol)
        for number in range(3):
            await running.start(number)
        yield running
        nursery.cancel_scope.cancel()


class Told:
    """A recorder of the session callbacks of a client."""

    def __init__(self) -> None:
        self.sessions: list[tuple[str, Mapping[str, Any]]] = []
        self.callbacks = Callbacks(on_session=lambda what, how: self.sessions.append((what, how)))

    def tried(self) -> list[str]:
        return [how["address"] for what, how in self.sessions if what == "failed"]

    def moved_to(self) -> list[str]:
        return [how["address"] for what, how in self.sessions if what == "moved"]


async def numbers_from(client: Client, count: int) -> list[tuple[SourceId, int]]:
    got: list[tuple[SourceId, int]] = []
    while len(got) < count:
        deliveries = await anext(client)
        got += [(deliveries.run.source, number) for number in deliveries.run.sequences]
    return got


@in_virtual_time
async def test_the_first_broker_of_a_list_that_answers_is_taken() -> None:
    told = Told()
    async with cluster() as running:
        await running.stop(0)
        addresses = ["b0", "nowhere", "b2", "b1"]
        dial = running.net.dial
        async with connect(
            addresses, "p", publishes=True, dial=dial, callbacks=told.callbacks
        ) as client:
            await client.publish(OIL, b"handed over before there is a broker")
            await client.flush()
            assert client.source == SourceId(2, 0, 1)
            assert told.tried() == ["b0", "nowhere"]
            await running.start(0)
            await trio.sleep(60)
            assert client.source == SourceId(2, 0, 1), "it stays with the one it has"


@in_virtual_time
async def test_a_publisher_without_pending_publications_fails_over_to_the_next_broker() -> None:
    told = Told()
    async with (
        cluster() as running,
        connect("b2", "s", dial=running.net.dial) as subscriber,
        connect(
            ["b0", "b1"], "p", publishes=True, dial=running.net.dial, callbacks=told.callbacks
        ) as publisher,
    ):
        await subscriber.subscribe("topic = 'oil'")
        await publisher.publish(OIL, b"1")
        got = await numbers_from(subscriber, 1)
        with trio.move_on_after(0.5):
            await anext(subscriber)  # says that the first is safe
        await publisher.flush()
        await running.stop(0)
        await trio.sleep(5)
        assert told.moved_to() == ["b1"]
        await publisher.publish(OIL, b"2")
        got += await numbers_from(subscriber, 1)
        assert got == [(SourceId(0, 0, 1), 1), (SourceId(1, 0, 2), 1)]


@in_virtual_time
async def test_a_publisher_with_pending_publications_waits_for_its_broker() -> None:
    """The pending publications may have been delivered; another source would duplicate them.

    The broker returns at another address of the list, as `pubsubctl replace` lets it.
    """
    told = Told()
    async with (
        cluster() as running,
        connect("b2", "s", dial=running.net.dial) as subscriber,
        connect(
            ["b0", "b1", "new"], "p", publishes=True, dial=running.net.dial,
            callbacks=told.callbacks,
        ) as publisher,
    ):  # fmt: skip
        await subscriber.subscribe("topic = 'oil'")
        await publisher.publish(OIL, b"1")
        got = await numbers_from(subscriber, 1)
        await running.stop(0)
        await trio.sleep(5)
        assert set(told.tried()) == {"b0", "b1", "new"}, "it may be at any of its addresses"
        await running.start(0)
        running.net.listeners["new"] = running.net.listeners.pop("b0")
        with trio.move_on_after(20):
            got += await numbers_from(subscriber, 1)
        assert got == [(SourceId(0, 0, 1), 1)]
        assert publisher.outstanding == 0
        assert told.moved_to() == ["new"]


@in_virtual_time
async def test_a_subscriber_waits_for_its_broker_where_nothing_may_be_lost() -> None:
    told = Told()
    async with (
        cluster() as running,
        connect("b0", "p", publishes=True, dial=running.net.dial) as publisher,
        connect(["b2", "b1"], "s", dial=running.net.dial, callbacks=told.callbacks) as subscriber,
    ):
        await subscriber.subscribe("topic = 'oil'")
        await running.stop(2)
        await publisher.publish(OIL, b"while it is away")
        await trio.sleep(5)
        assert set(told.tried()) == {"b2", "b1"}, "b1 is another broker"
        await running.start(2)
        assert await numbers_from(subscriber, 1) == [(SourceId(0, 0, 1), 1)]
        assert told.moved_to() == []


@in_virtual_time
async def test_a_subscriber_fails_over_if_the_protocol_may_lose_publications() -> None:
    told = Told()
    async with (
        cluster("best_effort") as running,
        connect("b0", "p", publishes=True, dial=running.net.dial) as publisher,
        connect(["b2", "b1"], "s", dial=running.net.dial, callbacks=told.callbacks) as subscriber,
    ):
        number = await subscriber.subscribe("topic = 'oil'")
        running.brokers[2].fault("cut", "s")
        await trio.sleep(5)
        await subscriber.wait_started(number)
        assert told.moved_to() == ["b1"]
        await publisher.publish(OIL, b"")
        assert await numbers_from(subscriber, 1) == [(SourceId(0, 0, 1), 1)]


@in_virtual_time
async def test_a_moved_client_fails_over_along_its_broker_list() -> None:
    told = Told()
    async with (
        cluster() as running,
        connect(
            ["b0", "b1"], "p", publishes=True, dial=running.net.dial, callbacks=told.callbacks
        ) as client,
    ):
        await client.wait_attached()
        await client.move("b2")
        await running.stop(2)
        await trio.sleep(5)
        assert told.moved_to() == ["b2", "b0"]
        assert client.source == SourceId(0, 0, 3), "no source is used again"


@in_virtual_time
async def test_a_client_of_one_broker_that_has_moved_does_not_go_back() -> None:
    told = Told()
    async with (
        cluster() as running,
        connect("b0", "c", dial=running.net.dial, callbacks=told.callbacks) as client,
    ):
        await client.wait_attached()
        await client.move("b2")
        await running.stop(2)
        await trio.sleep(5)
        assert told.moved_to() == ["b2"]
        assert set(told.tried()) == {"b2"}


@in_virtual_time
async def test_a_client_refused_by_all_brokers_reports_each_reason() -> None:
    async with (
        cluster() as running,
        connect(["b1", "b0"], "c", deployment_id="other", dial=running.net.dial) as client,
    ):
        with pytest.raises(ClientError, match=r"b1: refused: deployment 'other'.*; b0: refused"):
            await client.wait_attached()


@in_virtual_time
async def test_a_client_skips_a_broker_that_greets_without_an_attach() -> None:
    net = MemoryNet()
    deaf, kind = net.listen("deaf"), net.listen("kind")
    async with connect(
        ["deaf", "kind"], "c", publishes=True, dial=net.dial, parameters=SessionParameters()
    ) as client:
        silent = ScriptedBroker(await deaf.accept())
        assert (await silent.greet()).incarnation == 1
        async with trio.open_nursery() as nursery:

            async def only_beat() -> None:
                with contextlib.suppress(trio.BrokenResourceError):  # it leaves
                    while True:
                        await silent.beat()
                        await trio.sleep(0.1)

            nursery.start_soon(only_beat)
            other = ScriptedBroker(await kind.accept())
            nursery.cancel_scope.cancel()
        assert (await other.greet()).incarnation == 2, "the first has heard of incarnation 1"
        await other.say(Connected(SourceId(1, 0, 2), 1))
        await client.wait_attached()


async def come_to(broker: ScriptedBroker, name: str) -> Connect:
    """Admit a client at a broker without storage for clients; return the Connect message."""
    connect = await broker.greet("ges_reliable", name)
    await broker.say(Connected(SourceId(3, 0, 1), 1))
    return replace(connect, instance=b"")


async def attach(client: Client, broker: ScriptedBroker) -> int:
    """Attach a client with one started subscription and one unacknowledged publication."""
    await come_to(broker, "x")
    await client.wait_attached()
    number = client.subscribe_nowait("true")
    assert isinstance(await broker.next(), Subscribe)
    await broker.say(Subscribed(number, "started"))
    await client.publish(OIL, b"1")
    assert isinstance(await broker.next(), Publish)
    return number


@in_virtual_time
async def test_a_client_of_stateless_brokers_detaches_first_and_keeps_its_source() -> None:
    """No second session of the client sends further requests to the old broker."""
    net, told = MemoryNet(), Told()
    x, y = net.listen("x"), net.listen("y")
    async with connect("x", "c", publishes=True, dial=net.dial, callbacks=told.callbacks) as client:
        old = ScriptedBroker(await x.accept())
        number = await attach(client, old)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.move, "y")
            assert isinstance(await old.next(), Farewell)
            new = ScriptedBroker(await y.accept())
            hello = await come_to(new, "y")
            assert hello == Connect(True, 2, 1, 1, (), SourceId(3, 0, 1))
            again = [await new.next(), await new.next()]
            assert {type(each) for each in again} == {Subscribe, Publish}
            assert told.moved_to() == ["y"]
            assert not client.attached, "it publishes when it has come with all it has"
            await new.say(Subscribed(number, "started"))
        assert client.attached
        assert client.source == SourceId(3, 0, 1)


@in_virtual_time
async def test_a_client_returns_after_a_cancelled_move_to_an_absent_broker() -> None:
    net = MemoryNet()
    x = net.listen("x")
    async with connect("x", "c", publishes=True, dial=net.dial) as client:
        old = ScriptedBroker(await x.accept())
        await attach(client, old)
        with trio.move_on_after(5) as waiting:
            await client.move("y")
        assert waiting.cancelled_caught
        back = ScriptedBroker(await x.accept())
        assert (await come_to(back, "x")).source == SourceId(3, 0, 1)
        await client.wait_attached()


@in_virtual_time
async def test_a_redirected_client_keeps_its_source_and_ignores_a_redirect_back() -> None:
    net, told = MemoryNet(), Told()
    x, y = net.listen("x"), net.listen("y")
    async with connect(
        "x", "c", publishes=True, dial=net.dial, callbacks=told.callbacks, elsewhere=["y"]
    ) as client:
        old = ScriptedBroker(await x.accept())
        number = await attach(client, old)
        await old.say(Redirect(("nowhere", "y")))
        assert isinstance(await old.next(), Farewell)
        new = ScriptedBroker(await y.accept())
        assert await come_to(new, "y") == Connect(True, 2, 1, 1, (), SourceId(3, 0, 1))
        again = [await new.next(), await new.next()]
        assert {type(each) for each in again} == {Subscribe, Publish}
        await new.say(Subscribed(number, "started"), Redirect(("x",)))
        await client.publish(OIL, b"2")
        assert isinstance(await new.next(), Publish), "it was told to go a moment ago"
        assert (told.moved_to(), client.source) == (["y"], SourceId(3, 0, 1))


@in_virtual_time
async def test_a_client_ignores_a_redirect_to_an_unlisted_broker() -> None:
    net = MemoryNet()
    x, y = net.listen("x"), net.listen("y")
    del y
    async with connect("x", "c", publishes=True, dial=net.dial) as client:
        broker = ScriptedBroker(await x.accept())
        await attach(client, broker)
        await broker.say(Redirect(("y",)))
        await trio.testing.wait_all_tasks_blocked()
        await client.publish(OIL, b"2")
        assert isinstance(await broker.next(), Publish)


@pytest.mark.parametrize("addresses", [[], [""], ""])
def test_a_client_without_an_address_is_refused(addresses: list[str] | str) -> None:
    async def connected() -> None:
        async with connect(addresses, "c"):
            raise AssertionError("there is nobody to connect to")

    with pytest.raises(ConfigError, match="at least one"):
        trio.run(connected)


# ---------------------------------------------------------------- the decision alone

HOME = Home("b0", "d", "delta_tree", may_lose=False)
LOSSY = Home("b0", "d", "best_effort", may_lose=True)
ANYWHERE = Home("b0", "d", "durable", may_lose=False, resumes_elsewhere=True)
FREE = Home("b0", "d", "ges", may_lose=False, resumes_elsewhere=True, leaves_freely=True)


def at_home(home: Home, publishes: bool = True) -> ClientCore:
    core = ClientCore("c", publishes=publishes)
    core.attachment.home = home
    core.on_established()
    core.messages_to_send()
    core.on_message(Connected(SourceId(0, 0, 1) if publishes else None, 1))
    return core


def test_a_client_may_leave_its_broker_only_after_a_lost_session() -> None:
    core = at_home(HOME)
    assert not core.can_leave
    core.on_lost()
    assert core.can_leave


def test_a_publisher_leaves_its_broker_only_after_its_confirmations() -> None:
    core = at_home(LOSSY)
    core.outgoing.publish(b"a", b"x")
    core.messages_to_send()
    core.on_lost()
    assert not core.can_leave
    core.on_established()
    core.on_message(Connected(SourceId(0, 0, 1), 1))
    assert core.on_message(PublishAcknowledged(1, 1)) == [PublicationsDone(1, 1)]
    core.on_lost()
    core.leave()
    assert (core.source, core.attachment.incarnation, core.outgoing.publish(b"a", b"y")) == (
        None,
        2,
        1,
    )


def test_a_publisher_of_stateless_brokers_moves_with_its_source() -> None:
    """Unacknowledged publications are sent again at the next broker, under the same numbers."""
    core = at_home(FREE)
    core.outgoing.publish(b"a", b"x")
    core.messages_to_send()
    assert not core.can_leave
    core.on_lost()
    core.leave()
    core.outgoing.publish(b"a", b"y")
    core.move_to(replace(FREE, broker="b1"))
    core.on_established()
    assert core.messages_to_send() == [Connect(True, 2, 1, 1, (), SourceId(0, 0, 1))]
    core.on_message(Connected(SourceId(0, 0, 1), 1))
    runs = [each.run for each in core.messages_to_send() if isinstance(each, Publish)]
    assert [(run.source, run.first, run.last) for run in runs] == [
        (SourceId(0, 0, 1), 1, 1),
        (SourceId(0, 0, 1), 2, 2),
    ]


def test_an_unanswered_unsubscription_is_repeated_at_the_next_stateless_broker() -> None:
    core = at_home(FREE, publishes=False)
    number = core.subscribe(EVERYTHING)
    core.on_message(Subscribed(number, "started"))
    core.unsubscribe(number)
    core.messages_to_send()
    core.on_lost()
    core.leave()
    core.on_established()
    core.on_message(Connected(None, 1))
    assert Unsubscribe(number) in core.messages_to_send()


@pytest.mark.parametrize("home, may_leave", [(HOME, False), (LOSSY, True), (ANYWHERE, True)])
def test_a_started_subscription_moves_only_if_the_protocol_permits(
    home: Home, may_leave: bool
) -> None:
    core = at_home(home, publishes=False)
    number = core.subscribe(EVERYTHING)
    core.on_lost()
    assert core.can_leave, "nothing is owed before it has started"
    core.on_established()
    core.on_message(Connected(None, 1))
    core.on_message(Subscribed(number, "started"))
    core.on_lost()
    assert core.can_leave is may_leave


def test_a_moved_subscription_reports_its_position_to_the_new_broker() -> None:
    core = at_home(ANYWHERE, publishes=False)
    number = core.subscribe(EVERYTHING)
    core.on_message(Subscribed(number, "started", ((SourceId(0, 0, 0), 7),)))
    core.on_lost()
    core.leave()
    core.on_established()
    (connect,) = core.messages_to_send()
    assert connect.resume == ((number, ((SourceId(0, 0, 0), 7),)),)
    assert connect.incarnation == 2, "a later stay"


def test_an_unsubscription_binds_the_client_to_the_broker_of_the_subscription() -> None:
    core = at_home(ANYWHERE, publishes=False)
    number = core.subscribe(EVERYTHING)
    core.on_message(Subscribed(number, "started"))
    core.unsubscribe(number)
    core.on_lost()
    assert not core.can_leave


@pytest.mark.parametrize(
    "home, publishes, goes",
    [
        (HOME, False, False), (LOSSY, False, True), (ANYWHERE, False, True), (FREE, False, True),
        (HOME, True, False), (LOSSY, True, False), (ANYWHERE, True, False), (FREE, True, True),
    ],
)  # fmt: skip
def test_a_client_accepts_a_redirect_only_if_the_protocol_permits(
    home: Home, publishes: bool, goes: bool
) -> None:
    core = at_home(home, publishes)
    core.subscribe(EVERYTHING)
    assert core.can_follow_redirect is goes
    core.detach(drain=True)
    assert not core.can_follow_redirect


def test_a_detaching_client_waits_for_its_broker() -> None:
    core = at_home(HOME)
    core.detach(drain=False)
    core.on_lost()
    assert not core.can_leave


def test_another_broker_in_place_of_the_one_with_the_rest_is_refused() -> None:
    core = at_home(HOME)
    core.outgoing.publish(b"a", b"x")
    core.on_lost()
    other = Home("b1", "d", "delta_tree", may_lose=False)
    assert core.objection(HOME) is None
    assert core.objection(other) == "b1 is not b0, which has unfinished work"


def test_a_broker_of_another_deployment_is_refused_though_nothing_is_left() -> None:
    core = at_home(HOME)
    core.on_lost()
    core.leave()
    assert core.objection(Home("b1", "d", "delta_tree", may_lose=False)) is None
    stranger = core.objection(Home("b1", "e", "delta_tree", may_lose=False))
    assert stranger == "b1 is of deployment 'e', not 'd'"
