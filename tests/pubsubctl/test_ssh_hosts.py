"""Stories about hosts with nothing but Python, and a whole deployment on such hosts.

The connections lead to processes of this machine. Tests of the transport and of the lab show that
real connections behave alike.
"""

import re
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from textwrap import dedent

import pytest
import trio

from brokerd.agent.host.server import HostSide
from brokerd.overlay.topology import Topology
from pubsubctl.console.console import Console, Progress
from pubsubctl.console.interruption import Interruption
from pubsubctl.deployment import bundle as bundles
from pubsubctl.deployment.deploy import (
    choose_deployment,
    plan_deployment,
    run_deployment,
    take_down,
)
from pubsubctl.deployment.placement_choice import PlacementChoice
from pubsubctl.errors import HostError, IntegrityError, PreflightFailed, Unreachable
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.connectors.ssh import SshTransport, ssh_connector
from pubsubctl.hosts.hosts import Lab
from pubsubctl.inventory.inventory import load_inventory
from pubsubctl.state import lab_state
from tests.helpers.nearby_hosts import NearbyConnections

pytestmark = [pytest.mark.slow]

PORTS = "26000-26099"
PAIR = Topology.from_mapping(
    {
        "schema": "pubsubctl/topology/2",
        "name": "pair",
        "kind": "tree",
        "tree": {"delta": 1},
        "brokers": ["a", "b"],
        "links": [["a", "b"]],
    },
    "pair",
)


class FarLab:
    """Two hosts, the folders of one project, and open labs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(mode=0o700)
        self.connections = NearbyConnections(self.home)
        self.wheelhouse = bundles.Path(bundles.sys.prefix) / bundles.WHEELHOUSE
        path = folder / "far.toml"
        path.write_text(
            dedent(f"""\
            schema = "pubsubctl/inventory/1"
            name = "far"
            [[hosts]]
            name = "n[1:2]"
            connector = "ssh"
            address = "127.0.0.[1:2]"
            groups = ["brokers", "clients"]
            [hosts.vars]
            root = "{folder}/r[1:2]"
            ports = "{PORTS}"
            """)
        )
        self.inventory = load_inventory(path)

    def lab(self) -> Lab:
        made: list[bundles.Bundle] = []

        def bundle() -> bundles.Bundle:
            if not made:
                made.append(bundles.build_bundle(self.folder / "cache", self.wheelhouse))
            return made[0]

        rows = [
            ssh_connector(self.inventory, host, self.connections, bundle)
            for host in self.inventory.hosts
        ]
        return Lab(self.inventory, tuple(rows), 8, self.connections)

    def root(self, number: int = 1) -> Path:
        return (self.folder / f"r{number}").resolve()


@pytest.fixture
def far() -> Iterator[FarLab]:
    # Not below pytest's folder: its path is too long for a socket's.
    folder = Path(mkdtemp(prefix="far-"))
    far = FarLab(folder)
    try:
        yield far
    finally:
        for number in (1, 2):
            trio.run(HostSide(far.root(number), f"n{number}").stop_strays)
            trio.run(HostSide(far.root(number), f"n{number}").remove, True)
        shutil.rmtree(folder)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(500):
            await story()

    trio.run(bounded)


def quiet() -> Progress:
    return Progress(Console(quiet=True, progress=False))


def test_a_bare_host_is_looked_at_without_leaving_anything(far: FarLab) -> None:
    async def story() -> None:
        lab = far.lab()
        async with lab.open():
            for found in await lab.observe():
                assert not found.files
                assert found.deployment is None
            plan = await plan_deployment(lab, await choose_deployment(lab, PAIR, "delta_tree"))
            assert plan.of("start-broker")
            pinned = await choose_deployment(lab, PAIR, "delta_tree", PlacementChoice("pin"))
            assert min(row.core for row in pinned.placement.brokers) >= 0

    run(story)
    assert not far.root().exists()
    assert {words[3] for _, words in far.connections.done} == {"look"}


def test_a_deployment_is_made_once_and_leaves_nothing(far: FarLab) -> None:
    async def story() -> None:
        lab = far.lab()
        progress = quiet()
        async with lab.open():
            wanted = await choose_deployment(lab, PAIR, "delta_tree")
            await plan_deployment(lab, wanted)
            dry = {c.host.name: list(c.transport.commands) for c in lab.connectors}
            promised = {c.host.name: await c.transport.list_commands() for c in lab.connectors}

        lab = far.lab()
        async with lab.open():
            await lab.install()
            async with (
                lab.lock("deploy pair"),
                run_deployment(
                    lab, wanted, progress, Interruption(), purpose="deploy pair"
                ) as deployment,
            ):
                status = await deployment.broker("a", "status")
                assert status["ready"] == ["b"]
        for connector in lab.connectors:
            name = connector.host.name
            assert list(connector.transport.commands) == dry[name] + promised[name]

        far.connections.done.clear()
        again = far.lab()
        async with again.open():
            await again.install()
            wanted = await choose_deployment(again, PAIR, "delta_tree")
            assert (await plan_deployment(again, wanted)).steps == ()
        assert not [words for _, words in far.connections.done if words[0] == "put"]

        last = far.lab()
        async with last.open(), last.lock("down"):
            await take_down(last, progress, purge=True, verify=True)

    run(story)
    assert not far.root(1).exists()
    assert not far.root(2).exists()


def test_a_byte_flipped_in_a_wheel_is_found_before_any_host_is_touched(far: FarLab) -> None:
    copy = far.folder / "wheelhouse"
    shutil.copytree(far.wheelhouse, copy)
    wheel = next(copy.glob("trio-*.whl"))
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content)
    far.wheelhouse = copy

    async def story() -> None:
        lab = far.lab()
        async with lab.open():
            with pytest.raises(ExceptionGroup) as caught:
                await lab.install()
        assert all(isinstance(error, IntegrityError) for error in caught.value.exceptions)
        assert "trio-" in str(caught.value.exceptions[0])

    run(story)
    assert far.connections.done == []


def test_a_byte_flipped_on_one_host_keeps_the_bundle_from_all(far: FarLab) -> None:
    async def story() -> None:
        lab = far.lab()
        async with lab.open():
            transports = [connector.transport for connector in lab.connectors]
            assert isinstance(transports[0], SshTransport)
            await transports[0].upload()
        blob = max((far.root() / "blobs").iterdir(), key=lambda path: path.stat().st_size)
        content = bytearray(blob.read_bytes())
        content[1000] ^= 1
        blob.write_bytes(content)
        lab = far.lab()
        async with lab.open():
            with pytest.raises(ExceptionGroup) as caught:
                await lab.install()
        (error,) = caught.value.exceptions
        assert isinstance(error, IntegrityError)
        assert re.search("host n1: .*hashes to", str(error))

        for number in (1, 2):
            assert list(far.root(number).glob("venv-*")) == []
        lab = far.lab()
        async with lab.open(), lab.lock("down"):
            await take_down(lab, quiet(), purge=True, verify=True)

    run(story)
    for number in (1, 2):
        assert not far.root(number).exists()


def test_the_second_operator_sees_the_lock_holder_and_acquires_the_released_lock(
    far: FarLab,
) -> None:
    async def story() -> None:
        first, second = far.lab(), far.lab()
        async with first.open(), second.open():
            await first.install()
            async with first.lock("bench demo"):
                with pytest.raises(PreflightFailed, match="for `bench demo`"):
                    async with second.lock("deploy"):
                        pytest.fail("two operators at once")
                assert "bench demo" in await second.connectors[1].lock_holder()
            async with second.lock("deploy"):
                pass

        third, far.connections = far.lab(), NearbyConnections(far.home)
        fourth = far.lab()
        async with third.open(), fourth.open(), third.lock("bench demo"):
            assert isinstance(third.connections, NearbyConnections)
            for process in third.connections.processes:
                process.kill()  # as when the connection is lost
                await process.wait()
            async with fourth.lock("deploy"):
                pass
            # Whoever lost the connection makes it anew, and has the lock again before all else.
            await third.connectors[0].observe()
            with pytest.raises(PreflightFailed, match="for `bench demo`"):
                async with fourth.connectors[0].lock("deploy"):
                    pytest.fail("two operators at once")

    run(story)


def test_hosts_that_cannot_be_reached_are_named_and_the_others_had_their_turn(
    far: FarLab,
) -> None:
    async def one_by_one(connector: Connector) -> None:
        await connector.observe()

    async def story() -> None:
        far.connections.down = {"n2"}
        lab = far.lab()
        async with lab.open():
            with pytest.raises(ExceptionGroup) as caught:
                await lab.on_all(one_by_one)
            (error,) = caught.value.exceptions
            assert isinstance(error, HostError)  # 5: the rest was done
            assert "n2" in str(error)
            with pytest.raises(ExceptionGroup) as caught:
                await lab.install()
            (error,) = caught.value.exceptions
            assert isinstance(error, Unreachable)  # 6: nothing was
            assert list((await lab_state(lab)).unreachable) == ["n2"]
        far.connections.down = {"n1", "n2"}
        lab = far.lab()
        async with lab.open():
            with pytest.raises(ExceptionGroup) as caught:
                await lab.observe()
        assert {type(error) for error in caught.value.exceptions} == {Unreachable}

    run(story)


def test_errors_are_reported_in_the_order_of_the_hosts(far: FarLab) -> None:
    async def story() -> None:
        lab = far.lab()
        last_is_done = trio.Event()

        async def the_last_one_first(connector: Connector) -> None:
            if connector.host.name == "n2":
                last_is_done.set()
            else:
                await last_is_done.wait()
                await trio.lowlevel.checkpoint()
            raise HostError(connector.host.name)

        with pytest.raises(ExceptionGroup) as caught:
            await lab.on_all(the_last_one_first)
        assert [str(error) for error in caught.value.exceptions] == ["n1", "n2"]

    run(story)


def test_a_python_that_is_not_there_is_a_sentence(far: FarLab) -> None:
    text = (far.folder / "far.toml").read_text()
    (far.folder / "far.toml").write_text(text.replace("[hosts.vars]", '[hosts.vars]\npython="nix"'))
    far.inventory = load_inventory(far.folder / "far.toml")

    async def story() -> None:
        lab = far.lab()
        async with lab.open():
            with pytest.raises(ExceptionGroup) as caught:
                await lab.observe()
        assert "nix cannot be run there" in str(caught.value.exceptions[0])

    run(story)
