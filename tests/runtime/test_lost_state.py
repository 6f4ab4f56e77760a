"""Tests of broker processes with old copies, clones, empty or removed state folders."""

import shutil
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.agent.corruption import corrupt
from brokerd.client.application import Callbacks, ClientError
from brokerd.client.client import Client, connect
from brokerd.client.state_encoding import read_kept, write_kept
from brokerd.client.store import FileStore
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import free_address
from tests.helpers.state_stories import (
    BROKERS,
    Chain,
    Receiver,
    chain,
    publish,
)

pytestmark = pytest.mark.end_to_end

LOGGED = ("gryphon", "durable", "ges_reliable", "multi_proxy")


def home_of_publisher(protocol: str) -> str:
    """Return the publisher's broker: servers accept no clients."""
    return "c3" if protocol == "multi_proxy" else "c1"


def reader_at(
    brokers: Chain, folder: Path, received: Receiver
) -> AbstractAsyncContextManager[Client]:
    """Return the subscriber at c3."""
    return connect(
        brokers.addresses["c3"],
        "reader",
        store=FileStore(folder / "reader"),
        callbacks=Callbacks(on_gap=received.on_gap),
    )


async def publish_more(brokers: Chain, folder: Path, numbers: range) -> None:
    """Publish more; all publications are acknowledged."""
    address = brokers.addresses[home_of_publisher(brokers.protocol)]
    async with connect(address, "shop", publishes=True, store=FileStore(folder / "shop")) as shop:
        await publish(shop, numbers)


async def before_the_loss(brokers: Chain, folder: Path, received: Receiver) -> None:
    """Publish 1 to 50 to a subscriber that then disconnects for a while."""
    brokers.start(*BROKERS)
    await brokers.wait_ready(*BROKERS)
    async with reader_at(brokers, folder, received) as reader:
        with trio.fail_after(PATIENCE_S):
            await reader.subscribe("n > 0")
        await publish_more(brokers, folder, range(1, 51))
        await received.until(reader, 50)


@pytest.mark.sampled
@pytest.mark.parametrize("protocol", [*LOGGED, "delta_tree"])
def test_an_older_copy_ends_its_broker_and_no_other(protocol: str, tmp_path: Path) -> None:
    async def story(brokers: Chain) -> None:
        received = Receiver()
        await before_the_loss(brokers, tmp_path, received)
        brokers.keep("c1")
        await publish_more(brokers, tmp_path, range(51, 101))
        await brokers.wait_witnessed("c1", by="c2")
        brokers.kill("c1")
        brokers.put_back("c1")
        brokers.start("c1")
        status, text = await brokers.wait_end("c1")
        assert status == 78, text
        assert "lost state" in text
        assert "--accept-loss c1" in text
        assert [e for e in brokers.events("c1") if e["event"] == "state_lost"]
        for name in ("c2", "c3"):
            assert brokers.processes[name].poll() is None
        brokers.start("c1")
        status, text = await brokers.wait_end("c1")
        assert status == 78, text

    with chain(tmp_path, protocol) as brokers:
        trio.run(story, brokers)


async def end_with_a_loss(brokers: Chain, name: str) -> str:
    """Wait until a broker ends because of lost state; return the output of the broker."""
    status, text = await brokers.wait_end(name)
    assert status == 78, text
    assert "lost state that was durable" in text
    return text


def stories(*names: str) -> Any:
    return pytest.mark.parametrize("protocol", names)


def announced(received: Receiver) -> set[int]:
    """Return the numbers in announced gaps, up to the last publication of a story."""
    return {n for gap in received.gaps for n in range(gap.first, min(gap.last, 151) + 1)}


@pytest.mark.sampled
@pytest.mark.parametrize("protocol, loss", [
    *((protocol, loss) for loss in ("older copy", "empty disk")
      for protocol in (*LOGGED, "delta_tree")),
    ("gryphon", "flipped bit"),
])  # fmt: skip
def test_an_accepted_loss_is_announced_and_the_stream_continues(
    protocol: str, loss: str, tmp_path: Path
) -> None:
    """Missing deliveries lie in announced gaps, and the links stay up."""

    async def story(brokers: Chain) -> None:
        received = Receiver()
        await before_the_loss(brokers, tmp_path, received)
        brokers.keep("c1")
        await publish_more(brokers, tmp_path, range(51, 101))
        await brokers.wait_witnessed("c1", by="c2")
        brokers.kill("c1")
        if loss == "older copy":
            brokers.put_back("c1")
        elif loss == "empty disk":
            shutil.rmtree(brokers.state("c1"))
        else:
            corrupt(brokers.state("c1") / "logs", "bit", "*.log", 5_000)
        brokers.start("c1")
        await end_with_a_loss(brokers, "c1")
        brokers.start("c1", accept_loss=True)
        await brokers.wait_ready(*BROKERS)
        await publish_more(brokers, tmp_path, range(101, 151))
        async with reader_at(brokers, tmp_path, received) as reader:
            with trio.fail_after(PATIENCE_S):
                await reader.wait_started(1)
            await publish_more(brokers, tmp_path, range(151, 152))
            await received.until(reader, 151)
            missing = {*range(1, 152)} - {*received.numbers}
            with trio.fail_after(PATIENCE_S):
                while not missing <= announced(received):
                    await trio.sleep(0.02)
        assert len(received.numbers) == 151 - len(missing)
        assert {gap.reason for gap in received.gaps} <= {"lost state"}
        assert protocol == "delta_tree" or received.gaps
        events = [each["event"] for each in brokers.events("c1")]
        assert "loss_accepted" in events
        (accepted,) = [e for e in brokers.events("c1") if e["event"] == "loss_accepted"]
        assert accepted["loss"], accepted["signature"]
        assert "protocol_error" not in events

    with chain(tmp_path, protocol) as brokers:
        trio.run(story, brokers)


@pytest.mark.sampled
@stories("gryphon", "delta_tree")
def test_a_subscription_that_its_broker_lost_gets_a_gap(protocol: str, tmp_path: Path) -> None:
    async def story(brokers: Chain) -> None:
        received = Receiver()
        await before_the_loss(brokers, tmp_path, received)
        await publish_more(brokers, tmp_path, range(51, 101))
        await brokers.wait_witnessed("c3", by="c2")
        brokers.kill("c3")
        shutil.rmtree(brokers.state("c3"))
        brokers.start("c3")
        await end_with_a_loss(brokers, "c3")
        brokers.start("c3", accept_loss=True)
        await brokers.wait_ready(*BROKERS)
        async with reader_at(brokers, tmp_path, received) as reader:
            with trio.fail_after(PATIENCE_S):
                await reader.wait_started(1)
            await publish_more(brokers, tmp_path, range(101, 121))
            await received.until(reader, 120)
        assert received.numbers == [*range(1, 51), *range(101, 121)]
        assert [gap.reason for gap in received.gaps if gap.source.broker == 0]

    with chain(tmp_path, protocol) as brokers:
        trio.run(story, brokers)


def test_a_loss_that_cannot_be_announced_is_not_accepted(tmp_path: Path) -> None:
    async def story(brokers: Chain) -> None:
        await before_the_loss(brokers, tmp_path, Receiver())
        await brokers.wait_witnessed("c1", by="c2")
        brokers.kill("c1")
        shutil.rmtree(brokers.state("c1"))
        brokers.start("c1")
        text = await end_with_a_loss(brokers, "c1")
        assert "other brokers have withheld events" in text
        assert "`pubsubctl down` and `pubsubctl deploy`" in text
        assert "--accept-loss" not in text
        brokers.start("c1", accept_loss=True)
        assert "cannot be accepted" in await end_with_a_loss(brokers, "c1")

    with chain(tmp_path, "durable") as brokers:
        with open(tmp_path / "topology.toml", "a") as topology:
            filtered = "filters = true\ndelay_curiosity_ns = 100_000_000\n"
            topology.write(f"[parameters.durable]\n{filtered}")
        trio.run(story, brokers)


def test_a_proxy_that_lost_its_disk_serves_again_and_nothing_is_lost(tmp_path: Path) -> None:
    async def story(brokers: Chain) -> None:
        received = Receiver()
        await before_the_loss(brokers, tmp_path, received)
        await brokers.wait_witnessed("c2", by="c1")
        brokers.kill("c2")
        shutil.rmtree(brokers.state("c2"))
        brokers.start("c2")
        assert "--accept-loss c2" in await end_with_a_loss(brokers, "c2")
        brokers.start("c2", accept_loss=True)
        await brokers.wait_ready(*BROKERS)
        await publish_more(brokers, tmp_path, range(51, 101))
        async with reader_at(brokers, tmp_path, received) as reader:
            await received.until(reader, 100)
        assert received.numbers == [*range(1, 101)]
        assert not received.gaps

    with chain(tmp_path, "multi_proxy") as brokers:
        trio.run(story, brokers)


@pytest.mark.sampled
@stories("gryphon", "ges_reliable", "multi_proxy")
def test_a_copy_that_is_put_back_again_by_a_newer_one_is_served(
    protocol: str, tmp_path: Path
) -> None:
    """The record of the loss is in the replaced folder."""

    async def story(brokers: Chain) -> None:
        received = Receiver()
        await before_the_loss(brokers, tmp_path, received)
        brokers.keep("c1")
        await publish_more(brokers, tmp_path, range(51, 101))
        await brokers.wait_witnessed("c1", by="c2")
        brokers.kill("c1")
        newest = tmp_path / "newest"
        shutil.copytree(brokers.state("c1"), newest)
        brokers.put_back("c1")
        brokers.start("c1")
        await end_with_a_loss(brokers, "c1")
        for path in newest.iterdir():  # over what is there, as people restore
            target = brokers.state("c1") / path.name
            shutil.rmtree(target, ignore_errors=True)
            if path.is_dir():
                shutil.copytree(path, target)
            else:
                shutil.copy(path, target)
        brokers.start("c1")
        await brokers.wait_ready(*BROKERS)
        await publish_more(brokers, tmp_path, range(101, 151))
        async with reader_at(brokers, tmp_path, received) as reader:
            await received.until(reader, 150)
        assert received.numbers == [*range(1, 151)]
        assert not received.gaps

    with chain(tmp_path, protocol) as brokers:
        trio.run(story, brokers)


def test_the_folder_of_another_deployment_ends_its_broker(tmp_path: Path) -> None:
    async def story(brokers: Chain) -> None:
        brokers.start("c1", deployment_id="d0")
        await brokers.status("c1")
        brokers.kill("c1")
        brokers.keep("c1")
        shutil.rmtree(brokers.state("c1"))
        await before_the_loss(brokers, tmp_path, Receiver())
        await brokers.wait_witnessed("c1", by="c2")
        brokers.kill("c1")
        brokers.put_back("c1")
        brokers.start("c1")
        status, text = await brokers.wait_end("c1")
        assert status == 78, text
        assert "this is of deployment 'd0'" in text
        brokers.start("c1", deployment_id="d0")
        assert (await brokers.status("c1"))["incarnation"] == 2

    with chain(tmp_path, "gryphon") as brokers:
        trio.run(story, brokers)


def test_one_of_two_brokers_on_cloned_folders_ends(tmp_path: Path) -> None:
    async def story(brokers: Chain) -> None:
        await before_the_loss(brokers, tmp_path, Receiver())
        brokers.keep("c1")
        await publish_more(brokers, tmp_path, range(51, 61))
        await brokers.wait_witnessed("c1", by="c2")
        clone = tmp_path / "elsewhere"
        (tmp_path / "c1").rename(clone)  # the running broker's folder, now at another host
        (tmp_path / "c1").mkdir(mode=0o700)
        shutil.copytree(tmp_path / "c1.copy", brokers.state("c1"))
        first = brokers.processes["c1"]
        brokers.addresses["c1"] = free_address()
        brokers.start("c1")
        await end_with_a_loss(brokers, "c1")
        first.kill()
        first.wait()

    with chain(tmp_path, "gryphon") as brokers:
        trio.run(story, brokers)


@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
def test_a_broker_acknowledges_nothing_after_its_folder_was_removed_or_replaced(
    is_replaced: bool, tmp_path: Path
) -> None:
    async def story(brokers: Chain) -> None:
        await before_the_loss(brokers, tmp_path, Receiver())
        brokers.keep("c1")
        async with connect(
            brokers.addresses["c1"], "shop", publishes=True, store=FileStore(tmp_path / "shop")
        ) as shop:
            with trio.fail_after(PATIENCE_S):
                await shop.wait_attached()
            if is_replaced:
                brokers.put_back("c1")
            else:
                shutil.rmtree(brokers.state("c1"))
            for _ in range(10):
                await shop.publish({"n": 51}, b"x")
            status, text = await brokers.wait_end("c1")
            assert shop.outstanding == 10
        assert status == 78, text
        assert "was deleted or replaced while this broker was running" in text
        assert [e for e in brokers.events("c1") if e["event"] == "state_folder_gone"]

    with chain(tmp_path, "gryphon") as brokers:
        trio.run(story, brokers)


def test_a_loss_is_accepted_only_after_one_was_detected(tmp_path: Path) -> None:
    async def story(brokers: Chain) -> None:
        await before_the_loss(brokers, tmp_path, Receiver())
        brokers.kill("c1")
        brokers.start("c1", accept_loss=True)
        status, text = await brokers.wait_end("c1")
        assert status == 78, text
        assert "no loss of its state is known" in text
        brokers.start("c1", accept_loss={"loss": 1})
        assert "no loss of its state is known" in (await brokers.wait_end("c1"))[1]
        brokers.start("c1")
        await brokers.wait_ready(*BROKERS)

    with chain(tmp_path, "gryphon") as brokers:
        trio.run(story, brokers)


def remove_state_mark(store: FileStore) -> None:
    """Remove the state mark of a broker from a publisher's store."""
    content = store.load()
    assert content is not None
    store.save(
        write_kept(replace(read_kept(content, "", "shop", "", publishes=True), witnessed=None))
    )


def test_a_publisher_proves_a_loss_that_no_neighbour_has_seen(tmp_path: Path) -> None:
    """The publisher is refused, others are served, and an operator may then accept the loss."""

    async def story(brokers: Chain) -> None:
        brokers.start("c1")
        await brokers.status("c1")
        await publish_more(brokers, tmp_path, range(1, 51))
        brokers.keep("c1")
        await publish_more(brokers, tmp_path, range(51, 101))
        remove_state_mark(FileStore(tmp_path / "shop"))  # it may be newer than the copy, or not
        brokers.kill("c1")
        brokers.put_back("c1")
        brokers.start("c1")
        with pytest.raises(ClientError, match="publications 51 to 100 of 'shop' were acknowledged"):
            await publish_more(brokers, tmp_path, range(101, 111))
        assert [e for e in brokers.events("c1") if e["event"] == "loss_proved"]
        assert "publications 51 to 100" in (await brokers.status("c1"))["loss"]
        async with connect(brokers.addresses["c1"], "other", publishes=True) as other:
            await publish(other, range(1, 3))
        brokers.kill("c1")
        brokers.start("c1", accept_loss=True)
        await publish_more(brokers, tmp_path, range(101, 111))
        assert [e for e in brokers.events("c1") if e["event"] == "loss_announced"]

    with chain(tmp_path, "gryphon") as brokers:
        trio.run(story, brokers)
