"""Tests of the path of a publication through a broker's objects, against brokerd/README.md."""

import os
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

from brokerd.client.client import connect
from brokerd.overlay.topology import Topology
from brokerd.protocols.parts.clients.progress import WRITE_INTERVAL_NS
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes
from tests.helpers.gryphon_stories import cells
from tests.helpers.memory_broker import MemoryBroker, chain
from tests.helpers.memory_links import MemoryNet
from tests.helpers.proxy_stories import sides
from tests.helpers.virtual_time import in_virtual_time
from tests.protocols.ges_reliable.test_trees import TREES

ROOT = Path(__file__).parents[2]
BROKERD = str(ROOT / "brokerd") + "/"
MOST_FILES, MOST_CROSSINGS = 10, 3
MOST_FILES_IN_ALL_ROLES = 16
"""The limit for a ges_reliable core that is publisher's broker, root and subscriber's broker."""
PAUSE_S = 0.02
"""A pause longer than any batching delay, so that publications travel singly."""
WARM_UP = 4
FOLLOWED_S = 0.9
"""Shorter than the interval of progress."""
OIL = encode_attributes({"topic": "oil"})


class SocketNet(MemoryNet):
    """A net of real sockets: deployed brokers write to real sockets without waking a task."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[socket.socket] = []

    async def dial(self, address: str) -> trio.abc.Stream:
        await trio.sleep(self.latency_s)
        if address not in self.listeners:
            raise ConnectionRefusedError(f"nobody listens on {address}")
        with socket.create_server(("127.0.0.1", 0)) as server:
            near_end = socket.create_connection(server.getsockname())
            ends = near_end, server.accept()[0]
        self.ends.extend(ends)
        near, far = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in ends)
        self.listeners[address].dialled.send_nowait(far)
        return near


@dataclass
class Way:
    """The code that a broker runs while it handles a publication.

    Attributes:
        files: the project's files, in order of the first visit.
        crossings: calls from one package of `brokerd` into another, in order, up to the write.
    """

    broker: MemoryBroker
    files: dict[str, None] = field(default_factory=dict)
    crossings: list[tuple[str, str]] = field(default_factory=list)
    _is_written: bool = False

    async def follow(self, act: Callable[[], Awaitable[object]]) -> None:
        """Record the code that runs for connections of the broker until `act` has finished."""
        sys.setprofile(self._note)
        try:
            await act()
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, function: Any) -> None:
        path = frame.f_code.co_filename
        is_write = event == "c_call" and function is os.write
        if not (event == "call" or is_write) or not path.startswith(BROKERD):
            return
        callers = _ours_below(frame)
        outermost = callers[-1] if callers else frame
        if outermost.f_locals.get("self") not in self.broker.links.connections.values():
            return  # another broker's, or a client's
        self.files[path.removeprefix(f"{ROOT}/")] = None
        self._is_written = self._is_written or is_write
        if self._is_written:
            return  # only when to look again is left
        if callers and (here := _wing(frame)) != (before := _wing(callers[0])):
            self.crossings.append((before, here))

    @property
    def ways(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return the crossings up to the decision, and the later crossings."""
        decided = max(place for place, each in enumerate(self.crossings) if "protocols" in each)
        return self.crossings[: decided + 1], self.crossings[decided + 1 :]


def _ours_below(frame: FrameType) -> list[FrameType]:
    """Return the callers of a frame in this project, nearest first."""
    found: list[FrameType] = []
    caller = frame.f_back
    while caller is not None:
        if caller.f_code.co_filename.startswith(BROKERD):
            found.append(caller)
        caller = caller.f_back
    return found


def _wing(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(BROKERD).split("/")[0]


def listed(broker: str) -> set[str]:
    """Return the files that the architecture lists for a kind of broker."""
    text = (ROOT / "brokerd/README.md").read_text(encoding="utf-8")
    section = text.split("## One publication", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([\w/]+\.py)` \| ([^|]*) \|", section, re.MULTILINE)
    return {f"brokerd/{path}" for path, brokers in rows if brokers in ("all", broker)}


async def way_of_one(subscribes_at: int) -> Way:
    """Return the path through the middle broker of three, for a publication like earlier ones."""
    net = SocketNet()
    running = [MemoryBroker(net, chain(3), f"b{number}") for number in range(3)]
    way = Way(running[1])
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        for broker in running:
            await nursery.start(broker.run)
        publisher, subscriber = [
            await stack.enter_async_context(connect(at, name, dial=net.dial, publishes=publishes))
            for at, name, publishes in (("b0", "p", True), (f"b{subscribes_at}", "s", False))
        ]
        await subscriber.subscribe("true")
        await publisher.wait_attached()

        async def send_one(follows: bool) -> None:
            came = trio.Event()

            async def take_one() -> None:
                await anext(subscriber)
                came.set()

            async with trio.open_nursery() as inner:
                inner.start_soon(take_one)
                await trio.sleep(PAUSE_S)  # what was taken before is acknowledged
                if follows:
                    await way.follow(lambda: publish_and_wait(came))
                else:
                    await publish_and_wait(came)

        async def publish_and_wait(came: trio.Event) -> None:
            await publisher.publish(OIL, bytes(250))
            await came.wait()

        for sent in range(WARM_UP + 1):
            await send_one(sent == WARM_UP)
        nursery.cancel_scope.cancel()
    for end in net.ends:
        end.close()
    return way


@pytest.mark.parametrize("broker, subscribes_at", [("forwarding", 2), ("home", 1)])
@in_virtual_time
async def test_a_publication_visits_the_files_that_are_listed_and_few(
    broker: str, subscribes_at: int
) -> None:
    way = await way_of_one(subscribes_at)
    assert set(way.files) == listed(broker), "brokerd/README.md, One publication"
    assert len(way.files) <= MOST_FILES
    way_in, way_out = way.ways
    assert len(way_in) <= MOST_CROSSINGS, way_in
    assert len(way_out) <= MOST_CROSSINGS, way_out


class CoreVisits:
    """The protocol files that every simulated broker's core visits."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.files: dict[str, dict[str, None]] = {}
        self._names = {id(each.core): each.name for each in cluster.brokers}

    @contextmanager
    def followed(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{BROKERD}protocols/"):
            for each in (frame, *_ours_below(frame)):
                name = self._names.get(id(each.f_locals.get("self")))
                if name is not None and each.f_code.co_name == "handle":
                    self.files.setdefault(name, {})[path.removeprefix(BROKERD)] = None


def core_visits(
    protocol: str, publisher: str, subscriber: str, topology: Topology = TREES
) -> dict[str, dict[str, None]]:
    """Return the files that one publication visits per broker, until all brokers are at rest.

    The brokers have handled similar publications, and the subscriber acknowledges this one. The
    progress of clients, which is written once for all publications of an interval, is not followed.
    """
    cluster = SimulatedCluster(topology, protocol, strict=False)
    cluster.start().run_until_quiet()
    found = cluster.subscribe(subscriber, "kind = 'a'")
    cluster.run_for(5)
    visits = CoreVisits(cluster)
    for publication in range(WARM_UP):
        visits.files.clear()
        with visits.followed():
            cluster.publish(publisher, kind="a")
            cluster.run_for(FOLLOWED_S)
        cluster.run_for(WRITE_INTERVAL_NS / SECOND_NS)
        assert len(found.received) == publication + 1
    return visits.files


@pytest.mark.parametrize("protocol", ["ges", "ges_reliable"])
def test_a_publication_visits_few_files_of_each_core(protocol: str) -> None:
    """z publishes at the root q; x is in the unit of the storage f, below the root r.

    A keeper of ges that delivers, too, also looks for units that lack an attestation.
    """
    visits = core_visits(protocol, publisher="z", subscriber="x")
    assert {"z", "q", "x"} <= {*visits}
    assert all(f"protocols/{protocol}/core.py" in files for files in visits.values())
    most = MOST_FILES + (protocol == "ges")
    many = {broker: [*files] for broker, files in visits.items() if len(files) > most}
    assert many == {}


def test_a_broker_with_all_roles_visits_the_files_of_three_brokers() -> None:
    visits = core_visits("ges_reliable", publisher="q", subscriber="q")
    assert len(visits["q"]) <= MOST_FILES_IN_ALL_ROLES, [*visits["q"]]


@pytest.mark.parametrize(
    "broker, most",
    [("on the way", MOST_FILES), ("publisher", MOST_FILES + 5), ("subscriber", MOST_FILES + 2)],
)
def test_a_publication_visits_few_files_of_gryphon(broker: str, most: int) -> None:
    """Brokers of clients also visit the client service, and a publisher's broker its log."""
    names = {"publisher": "p", "on the way": "m", "subscriber": "s"}
    visits = core_visits("gryphon", "p", "s", cells("p-m", "m-s"))
    assert visits.keys() == {*names.values()}
    files = visits[names[broker]]
    assert "protocols/gryphon/core.py" in files
    assert len(files) <= most, [*files]


@pytest.mark.parametrize(
    "broker, own, most",
    [("on the way", 7, MOST_FILES + 7), ("publisher", 8, 22), ("subscriber", 10, 21)],
)
def test_a_publication_visits_few_files_of_durable(broker: str, own: int, most: int) -> None:
    """The gryphon core visits most of the other files; every broker commits and releases."""
    names = {"publisher": "p", "on the way": "m", "subscriber": "s"}
    visits = core_visits("durable", "p", "s", cells("p-m", "m-s"))
    files = visits[names[broker]]
    assert "protocols/durable/core.py" in files
    assert len([each for each in files if "/durable/" in each]) <= own, [*files]
    assert len(files) <= most, [*files]


def test_a_broker_with_all_roles_of_gryphon_visits_few_files() -> None:
    visits = core_visits("gryphon", "p", "p", cells("p-m", "m-s"))
    assert len(visits["p"]) <= MOST_FILES_IN_ALL_ROLES, [*visits["p"]]


@pytest.mark.parametrize(
    "broker, most",
    [
        ("server", MOST_FILES),
        ("proxy", MOST_FILES),
        ("publisher", MOST_FILES + 6),
        ("subscriber", MOST_FILES + 3),
    ],
)
def test_a_publication_visits_few_files_of_multi_proxy(broker: str, most: int) -> None:
    """Brokers have one role; the access brokers also visit the client service."""
    names = {"publisher": "e1", "proxy": "x1", "server": "v1", "subscriber": "e2"}
    topology = sides(proxies=1, servers=1, edges=2)
    visits = core_visits("multi_proxy", names["publisher"], names["subscriber"], topology)
    assert visits.keys() == {*names.values()}
    files = visits[names[broker]]
    own = [file for file in files if file.startswith("protocols/multi_proxy/")]
    assert "protocols/multi_proxy/core.py" in own
    assert len(own) <= MOST_FILES, own
    assert len(files) <= most, [*files]


def test_a_server_with_clients_visits_the_files_of_two_roles() -> None:
    """The reports of acknowledgements follow, after a deadline."""
    topology = sides(proxies=1, servers=1, edges=1)
    visits = core_visits("multi_proxy", "v1", "v1", topology)
    assert len(visits["v1"]) <= 2 * MOST_FILES + 2, [*visits["v1"]]
