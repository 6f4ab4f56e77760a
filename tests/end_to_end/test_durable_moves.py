"""Stories about a subscriber that moves between deployed brokers; one broker never returns."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio

from brokerd.client.client import Client, connect
from brokerd.client.tokens import SqliteTokens
from tests.end_to_end.conftest import Lab

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


class Subscriber:
    """A process with a database: received publications and the position."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def take(self, addresses: list[str], count: int) -> None:
        """Restart at the first broker of a list that replies; receive until `count` are stored."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("CREATE TABLE IF NOT EXISTS got (n INTEGER)")
            async with connect(addresses, "s", tokens=SqliteTokens(database)) as client:
                subscription = await client.resume("true")
                while len(self.got) < count:
                    async with subscription.transaction() as transaction:
                        events = await transaction.receive()
                        numbers = [(event.attributes["n"],) for event in events]
                        database.executemany("INSERT INTO got VALUES (?)", numbers)

    @property
    def got(self) -> list[int]:
        """Return the received publications in order of arrival."""
        with closing(sqlite3.connect(self._path)) as database:
            return [n for (n,) in database.execute("SELECT n FROM got ORDER BY rowid")]


async def publish(publisher: Client, first: int, last: int) -> None:
    for n in range(first, last):
        await publisher.publish({"n": n}, b"x")
    await publisher.flush()


def test_a_subscriber_loses_nothing_in_moves_from_live_dead_and_cancelled_brokers(lab: Lab) -> None:
    assert lab.call("deploy", "durable", "--protocol", "durable").status == 0
    brokers = {row["broker"]: row for row in lab.call("status", "-j").document["brokers"]}
    c1, c2, c3 = (f"127.0.0.1:{brokers[name]['port']}" for name in ("c1", "c2", "c3"))
    subscriber = Subscriber(lab.folder / "got.db")

    async def go_from_broker_to_broker() -> None:
        async with connect(c1, "p", publishes=True) as publisher:
            await subscriber.take([c3], 0)
            await publish(publisher, 0, 20)
            await subscriber.take([c2], 20)
            await publish(publisher, 20, 40)
            await subscriber.take([c3], 40)
            await publish(publisher, 40, 50)
            os.kill(brokers["c3"]["pid"], signal.SIGKILL)
            await publish(publisher, 50, 60)
            await subscriber.take([c3, c2], 60)

    async def go_on() -> None:
        async with connect(c1, "p", publishes=True) as publisher:
            await publish(publisher, 60, 70)
            await subscriber.take([c3, c2], 70)

    trio.run(go_from_broker_to_broker)
    assert subscriber.got == list(range(60))

    nobody = lab.call("decommission", "c33")
    assert nobody.status == 2
    assert "no broker called 'c33'; did you mean" in nobody.err, nobody.err
    asked = lab.call("decommission", "c3", "-j")
    while asked.status == 4:  # what has come from there is not held yet
        asked = lab.call("decommission", "c3", "-j")
    assert asked.status == 2, asked.err
    assert "nothing was done" in asked.err
    assert asked.document["decommissioned"] is False
    done = lab.call("decommission", "c3", "--yes")
    assert done.status == 0, done.err
    assert "c3 is decommissioned; recorded on the disks of c1, c2" in done.out
    assert lab.call("decommission", "c3", "--yes").status == 0

    again = lab.call("deploy", "durable", "--protocol", "durable")
    assert again.status == 0, again.err
    assert "2 brokers on" in again.out
    assert "c3 was decommissioned and is not started" in again.out
    trio.run(go_on)
    assert subscriber.got == list(range(70))

    (row,) = lab.call("subscriptions", "list", "-j").document["subscriptions"]
    assert (row["client"], row["broker"], row["mode"]) == ("s", "c2", "away")
    ended = lab.call("subscriptions", "end", "s", str(row["number"]), "--yes")
    assert ended.status == 0, ended.err
    listed = lab.call("subscriptions", "list").out
    while "HELD BACK BY" in listed:  # until the brokers have acknowledged and released the events
        listed = lab.call("subscriptions", "list").out
    assert listed == "no subscriptions\n"
