"""Tests of operators' acts on real brokers: forged by a neighbour, wrongly signed, and signed."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.errors import ControlError
from brokerd.model.operator_acts import CHANGE_TOPOLOGY, DECOMMISSION, OperatorAct
from brokerd.overlay.topology import Topology
from brokerd.protocols.durable import messages as durable
from brokerd.protocols.multi_proxy import messages as multi_proxy
from brokerd.runtime.growth import topology_change
from pubsubctl.deployment.authority import OPERATOR_KEY_FILE, OperatorKey
from pubsubctl.errors import PreflightFailed, UserError
from tests.helpers.false_neighbour import false_neighbour
from tests.helpers.gryphon_stories import cells
from tests.helpers.loose_brokers import LooseBrokers, loose_brokers
from tests.helpers.patience import PATIENCE_S
from tests.helpers.proxy_stories import sides

processes = pytest.mark.end_to_end
CASES = {
    "durable": (cells("p1-b1", "b1-s1"), durable.Decommissioned, "b1", "p1", "s1"),
    "multi_proxy": (sides(1, 1, 1), multi_proxy.Decommissioned, "v1", "x1", "e1"),
}
"""Protocol → topology, message, the attacked broker, the false neighbour, the target."""


def of(act: str, target: str, deployment: str = "d1", version: int = 0) -> OperatorAct:
    return OperatorAct(deployment, act, target, version)


@processes
@pytest.mark.parametrize("protocol", CASES)
def test_a_neighbour_cannot_decommission_and_the_operator_can(
    protocol: str, tmp_path: Path
) -> None:
    topology, message, attacked, neighbour, target = CASES[protocol]
    topology = topology.restrict_to_kind(topology.kind)
    key, other = (OperatorKey.of(tmp_path / name) for name in ("ours", "theirs"))
    number = topology.number_of(target)
    brokers: LooseBrokers

    async def forge(at: str, signature: bytes) -> None:
        status = await brokers.status(at)
        about = neighbour, topology.number_of(neighbour)
        async with false_neighbour(brokers.addresses[at], status, *about) as false:
            await false.send(message(((number, signature),)))
            farewell = await false.wait_for_farewell()
        assert farewell is None or farewell.kind == "fault", farewell
        assert farewell is None or "has not signed" in farewell.reason, farewell
        await brokers.status(at)
        assert not (await brokers.ask(at, "farewell", broker=target))["is_known"]

    async def refused(at: str, **arguments: Any) -> str:
        with pytest.raises(ControlError) as caught:
            await brokers.ask(at, "decommission", broker=target, **arguments)
        assert caught.value.kind == "user"
        assert not (await brokers.ask(at, "farewell", broker=target))["is_known"]
        return caught.value.text

    async def story() -> None:
        brokers.start(attacked)
        wrong = {
            "unsigned": b"",
            "another key": other.sign(of(DECOMMISSION, target)),
            "another deployment": key.sign(of(DECOMMISSION, target, "d2")),
            "another broker": key.sign(of(DECOMMISSION, attacked)),
            "another act": key.sign(of(CHANGE_TOPOLOGY, target)),
            "another version": key.sign(of(DECOMMISSION, target, version=1)),
        }
        for signature in wrong.values():
            await forge(attacked, signature)
        assert "is not signed" in await refused(attacked)
        assert "not hexadecimal" in await refused(attacked, signature="xyz")
        for what, signature in wrong.items():
            if what != "unsigned":
                text = await refused(attacked, signature=signature.hex())
                assert "not of the authority of this deployment" in text
        signed = key.sign(of(DECOMMISSION, target)).hex()
        for _ in range(2):
            assert await brokers.ask(attacked, "decommission", broker=target, signature=signed)
        brokers.kill(attacked)
        brokers.start(attacked, neighbour)
        await brokers.status(neighbour, attacked)
        with trio.fail_after(PATIENCE_S):
            while not (await brokers.ask(neighbour, "farewell", broker=target))["is_known"]:
                await trio.sleep(0.02)
        brokers.start(target)
        process = brokers.processes[target]
        with trio.fail_after(PATIENCE_S):
            while process.poll() is None:
                await trio.sleep(0.02)
        assert "this broker was decommissioned" in said_by(process)

    with loose_brokers(tmp_path, topology, protocol, operator_key=key.public_hex) as brokers:
        trio.run(story)


def said_by(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.read()


@processes
def test_a_topology_is_read_again_by_a_signed_act_only(tmp_path: Path) -> None:
    topology = cells("p1-b1", "b1-s1").restrict_to_kind("cells")
    key, other = (OperatorKey.of(tmp_path / name) for name in ("ours", "theirs"))

    async def story(brokers: LooseBrokers) -> None:
        brokers.start("b1")
        await brokers.status("b1")
        act = topology_change("d1", Topology.from_mapping(topology.to_mapping(), "t"))
        for signature in ("", other.sign(act).hex()):
            with pytest.raises(ControlError, match="authority"):
                await brokers.ask("b1", "reload_topology", signature=signature)
        answer = await brokers.ask("b1", "reload_topology", signature=key.sign(act).hex())
        assert answer["changes"] == 0

    with loose_brokers(tmp_path, topology, "durable", operator_key=key.public_hex) as brokers:
        trio.run(story, brokers)


@processes
def test_a_broker_without_the_operator_key_refuses_an_act(tmp_path: Path) -> None:
    async def story(brokers: LooseBrokers) -> None:
        brokers.start("b1")
        await brokers.status("b1")
        with pytest.raises(ControlError, match="deploy --rolling"):
            await brokers.ask("b1", "decommission", broker="s1", signature=bytes(64).hex())

    with loose_brokers(tmp_path, CASES["durable"][0], "durable") as brokers:
        trio.run(story, brokers)


def test_the_key_is_for_its_owner_alone_and_stays_the_same(tmp_path: Path) -> None:
    first, again = (OperatorKey.of(tmp_path / "a") for _ in range(2))
    path = tmp_path / "a" / OPERATOR_KEY_FILE
    assert first.public_hex == again.public_hex
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == [OPERATOR_KEY_FILE]
    path.chmod(0o640)
    with pytest.raises(UserError, match="its mode must be 0600"):
        OperatorKey.of(tmp_path / "a")
    path.chmod(0o600)
    path.write_bytes(b"no key")
    with pytest.raises(UserError, match="cannot be used"):
        OperatorKey.of(tmp_path / "a")
    with pytest.raises(PreflightFailed, match="the account that deployed"):
        OperatorKey.find_in(tmp_path / "b")
