"""Broker processes whose state folders are older copies, clones, empty, or taken away."""

from pathlib import Path

import pytest
import trio

from brokerd.client.callbacks import Callbacks
from brokerd.client.client import connect
from brokerd.client.store import FileStore
from tests.helpers.patience import PATIENCE_S
from tests.helpers.state_stories import BROKERS, Chain, Receiver, chain, publish

pytestmark = pytest.mark.end_to_end

LOGGED = ("gryphon", "durable", "ges_reliable", "multi_proxy")


def home_of_publisher(protocol: str) -> str:
    """The broker that the publisher is at: no client can be at a server."""
    return "c3" if protocol == "multi_proxy" else "c1"


async def before_the_loss(brokers: Chain, folder: Path, received: Receiver) -> None:
    """Publish 1 to 50, which a subscriber receives that then leaves for a while."""
    brokers.start(*BROKERS)
    await brokers.wait_ready(*BROKERS)
    async with connect(
        brokers.addresses["c3"],
        "reader",
        store=FileStore(folder / "reader"),
        callbacks=Callbacks(on_gap=received.on_gap),
    ) as reader:
        with trio.fail_after(PATIENCE_S):
            await reader.subscribe("n > 0")
        async with connect(
            brokers.addresses[home_of_publisher(brokers.protocol)],
            "shop",
            publishes=True,
            store=FileStore(folder / "shop"),
        ) as shop:
            await publish(shop, range(1, 51))
        await received.until(reader, 50)


@pytest.mark.parametrize("protocol", [*LOGGED, "delta_tree"])
def test_an_older_copy_ends_its_broker_and_no_other(protocol: str, tmp_path: Path) -> None:
    async def story(brokers: Chain) -> None:
        received = Receiver()
        await before_the_loss(brokers, tmp_path, received)
        brokers.keep("c1")
        async with connect(
            brokers.addresses[home_of_publisher(protocol)],
            "shop",
            publishes=True,
            store=FileStore(tmp_path / "shop"),
        ) as shop:
            await publish(shop, range(51, 101))
        await trio.sleep(0.5)
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
