"""Tests of a false neighbour with 6,000 forged profiles: honest clients recover afterwards."""

from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.client.client import connect
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.ges.messages import ProfileStated
from tests.helpers.false_neighbour import false_neighbour
from tests.helpers.loose_brokers import LooseBrokers, loose_brokers
from tests.helpers.patience import PATIENCE_S

pytestmark = pytest.mark.end_to_end

PLACES = ((0, 0, 0), (0, 0), (0, 1))
"""Places of a, b and c as sent to the neighbour of b in another cluster; a is in b's cluster."""
FAR = ((1, 1 << 62), (1 << 62, 0))


def a_chain() -> Topology:
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "name": "chain",
        "kind": "hierarchy",
        "brokers": ["a", "b", "c"],
        "hierarchy": {
            "addresses": {"a": "0.0.0", "b": "0.0.1", "c": "0.1.0"},
            "links": [["a", "b"], ["b", "c"]],
            "storages": {"b": 2},
        },
        "parameters": {each: {"purge_ns": 2_000_000_000} for each in ("ges", "ges_reliable")},
    }
    return Topology.from_mapping(values, "chain")


@pytest.mark.parametrize("protocol", ["ges", "ges_reliable"])
def test_honest_clients_are_served_after_the_attack(protocol: str, tmp_path: Path) -> None:
    async def attack(brokers: LooseBrokers) -> None:
        status = await brokers.status("b", "a")
        for far in FAR:
            async with false_neighbour(brokers.addresses["b"], status, "c", 2) as false:
                await false.send(ProfileStated(0, (0, 0), far, ()))
                farewell = await false.wait_for_farewell()
            assert farewell is None or "leaps" in farewell.reason, farewell
        async with false_neighbour(brokers.addresses["b"], status, "c", 2) as false:
            await false.send(ProfileStated(3, (0, 1), (1, 2), ()))
            farewell = await false.wait_for_farewell()
            assert farewell is None or "the topology has no broker 3" in farewell.reason, farewell
        async with false_neighbour(brokers.addresses["b"], status, "c", 2) as false:
            for number in range(2_000):
                version = (2 + number % 500, 1_000 + 3 * number)
                await false.send(
                    ProfileStated(0, (0, 0, 0), version, ()),
                    ProfileStated(1, (0, 0, 1), version, ()),
                    ProfileStated(2, (0, 1), version, ()),
                )
            with trio.fail_after(PATIENCE_S):
                while not (await brokers.ask("b", "status"))["discrepancies"]:
                    await trio.sleep(0.02)

    async def story(brokers: LooseBrokers) -> None:
        brokers.start("a", "b")
        async with connect(brokers.addresses["a"], "early") as early:
            await early.subscribe("true")
            await attack(brokers)
            brokers.start("c")
            await brokers.status("c", "b")
            await brokers.status("b", "a", "c")
            async with (
                connect(brokers.addresses["c"], "p", publishes=True) as publisher,
                connect(brokers.addresses["a"], "late") as late,
            ):
                await late.subscribe("true")
                for number in range(10):
                    await publisher.publish({"n": number}, b"")
                with trio.fail_after(PATIENCE_S):
                    for client in (early, late):
                        found = client.publications()
                        got = [(await anext(found)).attributes["n"] for _ in range(10)]
                        assert got == [*range(10)]
        assert any("in its name" in each for each in (await brokers.status("b"))["discrepancies"])

    with loose_brokers(tmp_path, a_chain(), protocol) as brokers:
        trio.run(story, brokers)
