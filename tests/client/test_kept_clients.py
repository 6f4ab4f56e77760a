"""Tests of clients with a store, over memory brokers: state and duties after a restart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.client.client import Client, ClientError, connect
from brokerd.client.store import FileStore
from brokerd.errors import ConfigError, StorageCorrupt
from brokerd.model.identity import SourceId
from brokerd.model.resume_token import read_resume_token
from brokerd.protocols.registry import DEFINITIONS
from brokerd.wire.attributes import encode_attributes
from tests.client.test_client import brokers, client_of, take
from tests.client.test_failover import cluster
from tests.helpers.virtual_time import in_virtual_time

OIL = {"topic": "oil"}


class MemoryStore:
    """A store that keeps the saved content; a restarted process starts from a copy."""

    def __init__(self, content: bytes | None = None) -> None:
        self.content = content
        self.failure: OSError | None = None

    def __str__(self) -> str:
        return "memory"

    def load(self) -> bytes | None:
        return self.content

    def save(self, content: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.content = content

    def as_found_now(self) -> "MemoryStore":
        return MemoryStore(self.content)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make saves take no time: virtual time would advance while a thread works."""

    async def run(work: Callable[[], None], limiter: Any) -> None:
        await trio.lowlevel.checkpoint()
        work()

    monkeypatch.setattr("brokerd.client.store.run_in_thread", run)


@in_virtual_time
async def test_a_restarted_subscriber_resumes_at_its_position() -> None:
    async with (
        brokers(2) as (b0, b1),
        client_of(b0, "p", publishes=True) as publisher,
    ):
        store = MemoryStore()
        async with client_of(b1, "s", store=store) as subscriber:
            number = await subscriber.subscribe("topic = 'oil'")
            for _ in range(3):
                await publisher.publish(OIL, b"")
            assert await take(subscriber, 3) == [1, 2, 3]
        for _ in range(2):
            await publisher.publish(OIL, b"")
        async with client_of(b1, "s", store=store.as_found_now()) as subscriber:
            assert list(subscriber.subscriptions) == [number]
            assert await take(subscriber, 2) == [4, 5]
            assert await subscriber.subscribe("topic = 'gas'") == number + 1


@pytest.mark.parametrize(
    "is_killed, together, lost",
    [(False, 1, []), (True, 1, []), (False, 3, []), (True, 3, [3])],
)
@in_virtual_time
async def test_a_restarted_subscriber_receives_the_rest_of_a_run(
    is_killed: bool, together: int, lost: list[int]
) -> None:
    """A save for several publications records some that a killed process has not received."""
    async with (
        brokers(2) as (b0, b1),
        client_of(b0, "p", publishes=True) as publisher,
    ):
        store = MemoryStore()
        async with client_of(b1, "s", store=store) as subscriber:
            await subscriber.subscribe("topic = 'oil'")
            publisher.publish_many_nowait([encode_attributes(OIL)], bytes(4), 0, b"")
            received = [(await subscriber.receive_one(together)).sequence for _ in range(2)]
            found = store.as_found_now() if is_killed else store
        async with client_of(b1, "s", store=found) as subscriber:
            if not lost:
                received += [(await anext(subscriber.publications())).sequence]
            received += await take(subscriber, 1)
            assert received == [n for n in (1, 2, 3, 4) if n not in lost]
            with trio.move_on_after(1):
                await anext(subscriber)
            await publisher.flush()


@pytest.mark.parametrize("ends_another", [False, True])
@in_virtual_time
async def test_a_client_that_leaves_loses_no_publication_that_was_recorded_ahead(
    ends_another: bool,
) -> None:
    """One save records five publications; the end of a subscription divides their run."""
    async with (
        brokers(2) as (b0, b1),
        client_of(b0, "p", publishes=True) as publisher,
    ):
        store = MemoryStore()
        async with client_of(b1, "s", store=store) as subscriber:
            await subscriber.subscribe("topic = 'oil'")
            number = await subscriber.subscribe("topic = 'gas'")
            publisher.publish_many_nowait([encode_attributes(OIL)], bytes(6), 0, b"")
            received = [(await subscriber.receive_one(5)).sequence for _ in range(2)]
            if ends_another:
                await subscriber.unsubscribe(number)
        async with client_of(b1, "s", store=store) as subscriber:
            received += await take(subscriber, 4)
        assert received == [1, 2, 3, 4, 5, 6]


@in_virtual_time
async def test_a_client_that_leaves_returns_no_publication_to_another_task() -> None:
    """A publication that the task received during the last save was on no record."""
    async with (
        brokers(2) as (b0, b1),
        client_of(b0, "p", publishes=True) as publisher,
        trio.open_nursery() as nursery,
    ):
        store = MemoryStore()
        received: list[int] = []
        refused: list[str] = []

        async def receive_another(subscriber: Client) -> None:
            try:
                received.append((await subscriber.receive_one(5)).sequence)
            except ClientError as error:
                refused.append(str(error))

        async with client_of(b1, "s", store=store) as subscriber:
            await subscriber.subscribe("topic = 'oil'")
            publisher.publish_many_nowait([encode_attributes(OIL)], bytes(6), 0, b"")
            received += [(await subscriber.receive_one(5)).sequence for _ in range(2)]
            nursery.start_soon(receive_another, subscriber)
        async with client_of(b1, "s", store=store) as subscriber:
            received += await take(subscriber, 4)
        assert received == [1, 2, 3, 4, 5, 6]
        assert ["is closed" in each for each in refused] == [True]


@in_virtual_time
async def test_delta_tree_delivers_nothing_twice_to_a_killed_subscriber() -> None:
    """2 and 3 were not committed, but delta_tree never redelivers, so they count as committed."""
    async with (
        brokers(2) as (b0, b1),
        client_of(b0, "p", publishes=True) as publisher,
    ):
        store = MemoryStore()
        async with client_of(b1, "s", store=store, automatic_commit=False) as subscriber:
            number = await subscriber.subscribe("topic = 'oil'")
            await publisher.publish(OIL, b"")
            (first,) = await subscriber.receive()
            await subscriber.subscription(number).commit(first)
            for _ in range(2):
                await publisher.publish(OIL, b"")
            assert await take(subscriber, 2) == [2, 3]
            found = store.as_found_now()
            await publisher.publish(OIL, b"")
        async with client_of(b1, "s", store=found) as subscriber:
            deliveries = await anext(subscriber)
            assert (list(deliveries.run.sequences), deliveries.redelivered) == ([4], False)
            with trio.move_on_after(1):
                await anext(subscriber)
            await publisher.flush()


@in_virtual_time
async def test_a_killed_publisher_resends_unacknowledged_publications() -> None:
    async with (
        brokers(2) as (b0, b1),
        client_of(b1, "s") as subscriber,
    ):
        await subscriber.subscribe("topic = 'oil'")
        store = MemoryStore()
        async with client_of(b0, "p", publishes=True, store=store) as publisher:
            await publisher.wait_attached()
            for number in (1, 2, 3):
                assert await publisher.publish(OIL, bytes([number])) == number
            found = store.as_found_now()
        got = await take(subscriber, 3)
        async with client_of(b0, "p", publishes=True, store=found) as publisher:
            assert publisher.outstanding == 3
            assert await publisher.publish(OIL, b"") == 4
            got += await take(subscriber, 1)
            with trio.move_on_after(1):
                await anext(subscriber)
            await publisher.flush()
            assert publisher.statistics.resubmitted == 3
        assert got == [1, 2, 3, 4]


@in_virtual_time
async def test_publications_without_a_broker_survive_a_restart_of_the_client() -> None:
    async with brokers(1) as (b0,), client_of(b0, "s") as subscriber:
        await subscriber.subscribe("topic = 'oil'")
        store = MemoryStore()
        async with connect("nowhere", "p", publishes=True, store=store, dial=b0._net.dial) as lost:
            await lost.publish(OIL, b"kept")
        async with client_of(b0, "p", publishes=True, store=store):
            assert await take(subscriber, 1) == [1]


@in_virtual_time
async def test_a_publication_is_not_sent_before_its_save() -> None:
    async with brokers(1) as (b0,), client_of(b0, "s") as subscriber:
        await subscriber.subscribe("topic = 'oil'")
        store = MemoryStore()

        async def publish() -> None:
            async with client_of(b0, "p", publishes=True, store=store) as publisher:
                await publisher.wait_attached()
                await publisher.publish(OIL, b"saved")
                assert await take(subscriber, 1) == [1]
                store.failure = OSError("the disk is gone")
                publisher.publish_many_nowait([b"\xa0"], b"\0", 0, b"")
                await publisher.publish(OIL, b"not saved")

        with pytest.raises(OSError, match="the disk is gone"):
            await publish()
        await trio.sleep(1)
        assert b0.driver.core.statistics()["publications_received"] == 1


@in_virtual_time
async def test_a_cancelled_client_saves_its_last_change() -> None:
    async with brokers(1) as (b0,):
        store = MemoryStore()
        with trio.move_on_after(1) as scope:
            async with client_of(b0, "c", store=store) as client:
                try:
                    await trio.sleep_forever()
                finally:
                    client.subscribe_nowait("true")
        assert scope.cancelled_caught
        async with client_of(b0, "c", store=store) as client:
            assert list(client.subscriptions) == [1]


@in_virtual_time
async def test_a_store_that_breaks_down_otherwise_ends_its_client_too() -> None:
    class Broken(MemoryStore):
        def save(self, content: bytes) -> None:
            raise ZeroDivisionError

    async with brokers(1) as (b0,):
        with pytest.raises(ExceptionGroup) as told:
            async with client_of(b0, "c", store=Broken()) as client:
                await client.subscribe("true")
        assert told.group_contains(ZeroDivisionError)


@in_virtual_time
async def test_a_publisher_that_starts_again_looks_for_its_home() -> None:
    """Pending publications may have been delivered; another broker would deliver them again."""
    store = MemoryStore()
    async with cluster() as running:
        dial = running.net.dial
        async with connect("b2", "s", dial=dial) as subscriber:
            await subscriber.subscribe("topic = 'oil'")
            async with connect("b1", "p", publishes=True, dial=dial, store=store) as publisher:
                await publisher.wait_attached()
                await publisher.publish(OIL, b"")
            assert await take(subscriber, 1) == [1]
            addresses = ["nowhere", "b0", "b1"]
            async with connect(addresses, "p", publishes=True, dial=dial, store=store) as publisher:
                await publisher.wait_attached()
                assert publisher.source == SourceId(1, 0, 1)
        async with connect(["b0", "b2"], "p", publishes=True, dial=dial, store=store) as publisher:
            with pytest.raises(ClientError, match="is not b1, which has unfinished work"):
                await publisher.wait_attached()


@in_virtual_time
async def test_a_publisher_with_everything_done_may_start_again_anywhere() -> None:
    store = MemoryStore()
    async with cluster() as running:
        for broker, source in (("b1", SourceId(1, 0, 1)), ("b2", SourceId(2, 0, 2)),
                               ("b1", SourceId(1, 0, 3))):  # fmt: skip
            async with connect(
                broker, "p", publishes=True, dial=running.net.dial, store=store
            ) as publisher:
                await publisher.wait_attached()
                assert await publisher.publish(OIL, b"") == 1
                await publisher.flush()
                assert publisher.source == source


@in_virtual_time
async def test_a_store_is_refused_where_it_is_of_no_use_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "client"
    async with brokers(1) as (b0,):
        async with client_of(b0, "c", store=FileStore(path), publishes=True) as client:
            await client.wait_attached()
            await client.publish(OIL, b"")
        kept = path.read_bytes()
        for options, error, said in (
            ({"name": "other"}, ConfigError, "is of client 'c', not 'other'"),
            ({"deployment_id": "e"}, ConfigError, "is of deployment 'd', not 'e'"),
        ):
            name = options.pop("name", "c")
            with pytest.raises(error, match=f"{path}: {said}"):
                async with client_of(b0, name, store=FileStore(path), publishes=True, **options):
                    raise AssertionError("it is connected")
        assert path.read_bytes() == kept
        path.write_bytes(kept[: len(kept) // 2])
        with pytest.raises(StorageCorrupt, match="cut off"):
            async with client_of(b0, "c", store=FileStore(path), publishes=True):
                raise AssertionError("it is connected")
        assert path.read_bytes() == kept[: len(kept) // 2]


@in_virtual_time
async def test_a_store_of_another_protocol_is_refused_after_the_broker_names_its_protocol() -> None:
    store = MemoryStore()
    async with brokers(1) as (b0,), client_of(b0, "c", store=store) as client:
        await client.subscribe("true")
    kept = store.content
    async with (
        brokers(1, "best_effort") as (b0,),
        client_of(b0, "c", store=store) as client,
    ):
        with pytest.raises(ClientError, match="b0 runs 'best_effort', not 'delta_tree'"):
            await client.wait_attached()
    assert store.content == kept


@in_virtual_time
async def test_a_client_with_a_store_does_not_move() -> None:
    async with brokers(2) as (b0, _), client_of(b0, "c", store=MemoryStore()) as client:
        await client.wait_attached()
        with pytest.raises(ClientError, match="does not move"):
            await client.move("b1")


# ---------------------------------------------------------------- taken and committed


@in_virtual_time
async def test_an_uncommitted_delivery_is_not_acknowledged() -> None:
    async with (
        brokers(2) as (b0, b1),
        client_of(b0, "p", publishes=True) as publisher,
        client_of(b1, "s", automatic_commit=False) as subscriber,
    ):
        number = await subscriber.subscribe("topic = 'oil'")
        subscription = subscriber.subscription(number)
        for _ in range(3):
            await publisher.publish(OIL, b"")
        publications = subscriber.publications()
        first, second, third = [await anext(publications) for _ in range(3)]
        with trio.move_on_after(2):
            await anext(publications)
        assert publisher.outstanding == 3
        assert subscription.token == b""
        await subscription.commit(second)
        token = read_resume_token(subscription.token, protocol="delta_tree", deployment="d")
        positions = DEFINITIONS["delta_tree"].unpack_positions(token.content)
        assert positions == ((first.source, 2),)
        await subscription.commit(first)  # has been, and stays so
        await subscription.commit(third)
        await publisher.flush()


@in_virtual_time
async def test_an_undelivered_publication_cannot_be_committed() -> None:
    async with (
        brokers(1) as (b0,),
        client_of(b0, "p", publishes=True) as publisher,
        client_of(b0, "s", automatic_commit=False) as subscriber,
        client_of(b0, "t") as other,
    ):
        number = await subscriber.subscribe("topic = 'oil'")
        await other.subscribe("topic = 'oil'")
        await publisher.publish(OIL, b"")
        (deliveries,) = await other.receive()
        with pytest.raises(ClientError, match="subscription 1 has not received 1 of"):
            await subscriber.subscription(number).commit(deliveries)
        with pytest.raises(ClientError, match="commits by itself"):
            await other.subscription(1).commit(deliveries)
        with pytest.raises(ClientError, match="no subscription 2"):
            subscriber.subscription(2)


@pytest.mark.parametrize("has_store", [False, True])
@in_virtual_time
async def test_a_publication_behind_the_last_returned_one_cannot_be_committed(
    has_store: bool,
) -> None:
    """The run is taken one by one, and another client has received the rest."""
    store = MemoryStore() if has_store else None
    async with (
        brokers(1) as (b0,),
        client_of(b0, "p", publishes=True) as publisher,
        client_of(b0, "s", automatic_commit=False, store=store) as subscriber,
        client_of(b0, "t") as other,
    ):
        number = await subscriber.subscribe("topic = 'oil'")
        await other.subscribe("topic = 'oil'")
        publisher.publish_many_nowait([encode_attributes(OIL)], bytes(4), 0, b"")
        subscription = subscriber.subscription(number)
        first = await subscriber.receive_one(4)
        later = [await other.receive_one() for _ in range(3)]
        refusal = ""
        try:
            await subscription.commit(later[2])
        except ClientError as error:
            refusal = str(error)
        assert "subscription 1 has not received 3 of" in refusal
        await subscription.commit(first)


@pytest.mark.parametrize("moves", [1, 2])
@in_virtual_time
async def test_publications_of_the_broker_before_a_move_can_be_committed(moves: int) -> None:
    """The old broker cannot be reached, and the application has not received all of its inbox."""
    async with (
        brokers(4) as (b0, b1, b2, _),
        client_of(b0, "p", publishes=True) as publisher,
        client_of(b1, "s", automatic_commit=False) as subscriber,
    ):
        subscription = subscriber.subscription(await subscriber.subscribe("topic = 'oil'"))
        for _ in range(3):
            await publisher.publish(OIL, b"")
        await subscriber.receive_one()
        await trio.sleep(1)  # the others are in the inbox
        for left, address in ((b1, "b2"), (b2, "b3"))[:moves]:
            left.fault("cut", "s")
            await subscriber.move(address)
        await publisher.publish(OIL, b"")
        for sequence in (2, 3, 4):
            publication = await subscriber.receive_one()
            assert publication.sequence == sequence
            await subscription.commit(publication)
