"""Stories about faults below the brokers: private tables, and SSH without interference."""

import inspect
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.agent import nft
from brokerd.errors import ControlError
from tests.helpers.agents import Lab, make_lab, run, until
from tests.helpers.namespaces import HERE, THERE, Namespace, own_namespace

OWN, PEER, SSH = f"{HERE}:7001", f"{THERE}:7002", f"{HERE}:22"
NFT: dict[str, Any] = {"backend": "nft", "own": OWN, "peers": [PEER]}
LONG_MS = 60_000


# ---------------------------------------------------------------- input of nft


def test_the_module_touches_the_rules_of_its_fault_only() -> None:
    source = inspect.getsource(nft)
    for word in ("flush", "delete rule", "insert rule", "iptables", "add table", "destroy"):
        assert f'"{word}' not in source
        assert f" {word} " not in source.replace("never flush", "")
    for line in source.splitlines():
        if "delete table" in line or "delete chain" in line or "create table" in line:
            assert "inet {table.name}" in line or "undo" in line, line


@given(fault_id=st.text(max_size=50), root=st.text(max_size=50))
def test_a_table_is_named_after_its_fault_and_nothing_else(fault_id: str, root: str) -> None:
    table = nft.Table.of(root, fault_id)
    assert table == nft.Table.of(root, fault_id)
    assert table != nft.Table.of(root + "x", fault_id)
    assert table.name.startswith("pubsubctl_")
    assert len(table.name) == len("pubsubctl_") + 8


@given(
    peers=st.lists(st.integers(1024, 65_535), min_size=1, max_size=5),
    direction=st.sampled_from(["in", "out", "both"]),
    verb=st.sampled_from(["blackhole", "cut"]),
)
def test_ssh_is_let_through_before_anything_is_stopped(
    peers: list[int], direction: str, verb: str
) -> None:
    parameters = {**NFT, "peers": [f"{THERE}:{port}" for port in peers]}
    rules = list(nft.Separation.read(verb, direction, parameters).rules())
    for chain, way in (("outgoing", "out"), ("incoming", "in")):
        own = [rule for name, rule in rules if name == chain]
        assert own[:2] == ["tcp sport { 22 } accept", "tcp dport { 22 } accept"]
        stopping = [rule for rule in own[2:] if not rule.startswith("tcp flags & rst")]
        assert bool(stopping) == (direction in ("both", way))
        assert all(THERE in rule and "accept" not in rule for rule in stopping)


@pytest.mark.parametrize("host, family", [(THERE, "ip"), ("[fd00::7]", "ip6")])
@pytest.mark.parametrize(
    "verb, mode",
    [("blackhole", ""), ("cut", ""), ("partition", "blackhole"), ("partition", "cut")],
)
@pytest.mark.parametrize("direction", ["in", "out", "both"])
def test_all_packets_between_two_brokers_are_stopped_and_counted(
    host: str, family: str, verb: str, mode: str, direction: str
) -> None:
    """A connection has the port of the broker that accepted it, at either end."""
    parameters = {**NFT, "peers": [f"{host}:7002"], **({"mode": mode} if mode else {})}
    rules = [*nft.Separation.read(verb, direction, parameters).rules()]
    peer, is_cut = host.strip("[]"), "cut" in (verb, mode)
    let_pass = [rule for _, rule in rules if rule.endswith("accept")]
    assert let_pass.count("tcp flags & rst == rst accept") == 2 * is_cut
    end = "counter reject with tcp reset" if is_cut else "counter drop"
    stopped = [(chain, rule) for chain, rule in rules if not rule.endswith("accept")]
    assert sorted(stopped) == sorted(
        (chain, f"{family} {address} {peer} tcp {port} {end}")
        for way, chain, address, port in (
            ("out", "outgoing", "daddr", "dport 7002"),
            ("out", "outgoing", "daddr", "sport 7001"),
            ("in", "incoming", "saddr", "sport 7002"),
            ("in", "incoming", "saddr", "dport 7001"),
        )
        if direction in (way, "both")
    )


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"peers": [f"{THERE}:0"]}, "no such port"),
        ({"peers": [f"{THERE}:65536"]}, "no such port"),
        ({"peers": f"{THERE}:7002"}, "nft needs `peers`"),
        ({"protect": 7002}, "protect is a list of ports"),
        ({"peers": [f"{THERE}:22"]}, "port 22 leads to the machine itself"),
        ({"own": f"{HERE}:22"}, "port 22 leads to the machine itself"),
        ({"peers": [PEER], "protect": [7002]}, "port 7002 leads to the machine itself"),
        ({"peers": []}, "nft needs `peers`"),
        ({"peers": ["b1:7002"]}, "'b1:7002' is no address with a port"),
        ({"peers": [f"{THERE}:70002"]}, "no such port"),
        ({"peers": [f"{THERE}:7002; flush ruleset"]}, "is no address with a port"),
        ({"own": ""}, "'' is no address with a port"),
        ({"protect": ["22"]}, "protect is a list of ports"),
    ],
)
def test_a_separation_beyond_broker_ports_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ControlError, match=why) as caught:
        nft.Separation.read("cut", "both", {**NFT, **changes})
    assert caught.value.kind == "user"


def test_the_ssh_port_of_the_operator_is_protected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 40000 10.0.0.1 2222")
    with pytest.raises(ControlError, match="port 2222 leads to the machine itself"):
        nft.Separation.read("cut", "both", {**NFT, "own": f"{HERE}:2222"})
    assert nft.Separation.read("cut", "both", NFT).protected == (22, 2222)
    more = {**NFT, "protect": [80, 22, 81]}
    assert nft.Separation.read("cut", "both", more).protected == (22, 80, 81, 2222)
    for unusable in ("", "10.0.0.9 40000 10.0.0.1", "10.0.0.9 40000 10.0.0.1 ssh", "a b c 1 2"):
        monkeypatch.setenv("SSH_CONNECTION", unusable)
        assert nft.Separation.read("cut", "both", NFT).protected == (22,)


# ---------------------------------------------------------------- in a namespace


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with own_namespace() as made:
        made.serve(OWN, PEER, SSH)
        yield made


@pytest.fixture
def lab(namespace: Namespace) -> Iterator[Lab]:
    with make_lab() as made:
        made.prefix = namespace.prefix
        yield made


@pytest.mark.lab
@pytest.mark.parametrize("verb, said", [("blackhole", "silence"), ("cut", "refused")])
def test_a_link_is_broken_seen_to_be_healed_and_leaves_no_table(
    namespace: Namespace, lab: Lab, verb: str, said: str
) -> None:
    async def story() -> None:
        lab.start_agent()
        before = namespace.tables()
        async with lab.client() as client:
            await lab.start(client, "b1")
            assert namespace.connect(f"{HERE}:0", PEER) == "greeted"
            row = await client.fault_apply(
                "f", verb, "b1", peer="b2", lease_ms=LONG_MS, parameters=NFT
            )
            assert row["result"]["table"] in namespace.tables()
            assert namespace.connect(f"{HERE}:0", PEER) == said
            assert namespace.connect(f"{THERE}:0", OWN) == said, "whoever dials"
            looked = await client.fault_look("f")
            assert looked["present"]
            assert looked["stopped_packets"] > 0
            await client.fault_heal("f")
            assert not (await client.fault_look("f"))["present"]
            assert namespace.connect(f"{HERE}:0", PEER) == "greeted"
            assert namespace.tables() == before
            assert (await client.fault_heal("f"))["state"] == "healed"

    run(story)


@pytest.mark.lab
def test_ssh_keeps_working_through_a_blackholed_port(namespace: Namespace, lab: Lab) -> None:
    """Without the rules for SSH, the connection of the test would be lost."""

    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            everything = {**NFT, "peers": [f"{THERE}:{port}" for port in range(7002, 7100)]}
            await client.fault_apply(
                "f", "blackhole", "b1", lease_ms=LONG_MS, parameters=everything
            )
            assert namespace.connect(f"{THERE}:7050", SSH) == "greeted"
            assert namespace.connect(f"{THERE}:7050", OWN) == "silence"
            await client.fault_heal("f")

    run(story)


@pytest.mark.lab
def test_a_one_way_blackhole_drops_packets_in_its_direction_only(
    namespace: Namespace, lab: Lab
) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            for direction, other in (("out", "incoming"), ("in", "outgoing")):
                row = await client.fault_apply(
                    *("f" + direction, "blackhole", "b1"),
                    direction=direction,
                    lease_ms=LONG_MS,
                    parameters=NFT,
                )
                table = namespace.call(
                    "nft", "list", "chain", "inet", row["result"]["table"], other
                )
                assert "drop" not in table
                assert namespace.connect(f"{HERE}:0", PEER) == "silence"
                await client.fault_heal("f" + direction)

    run(story)


@pytest.mark.lab
def test_a_foreign_table_of_this_name_is_neither_used_nor_deleted(
    namespace: Namespace, lab: Lab
) -> None:
    async def story() -> None:
        lab.start_agent()
        name = nft.Table.of(str(lab.root), "f").name
        namespace.call("nft", "add", "table", "inet", name)
        namespace.call("nft", "add", "table", "inet", "precious")
        before = namespace.tables()
        async with lab.client() as client:
            await lab.start(client, "b1")
            with pytest.raises(ControlError, match="already, and it is not this fault's"):
                await client.fault_apply("f", "cut", "b1", lease_ms=LONG_MS, parameters=NFT)
            assert (await client.status())["faults"][0]["state"] == "failed"
            assert namespace.connect(f"{HERE}:0", PEER) == "greeted"
            await client.fault_heal_all()
        assert namespace.tables() == before
        assert lab.called("pubsub:nft") == []

    run(story)


@pytest.mark.lab
def test_a_table_is_deleted_although_the_agent_was_killed(namespace: Namespace, lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            await client.fault_apply("f", "blackhole", "b1", lease_ms=5_000, parameters=NFT)
            agent.kill()
            agent.wait()
        assert "pubsubctl_" in namespace.tables()
        await until(lambda: "pubsubctl_" not in namespace.tables(), "deleted by the watchdog")
        assert namespace.connect(f"{HERE}:0", PEER) == "greeted"
        lab.start_agent()
        async with lab.client() as client:
            fault = (await client.status())["faults"][0]
            assert (fault["state"], fault["healed_by"]) == ("healed", "lease")

    run(story)


@pytest.mark.lab
def test_a_watchdog_deletes_its_table_on_sigterm(namespace: Namespace, lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            await client.fault_apply("f", "blackhole", "b1", lease_ms=LONG_MS, parameters=NFT)
            agent.kill()
            agent.wait()
        (watchdog,) = lab.called("pubsub:nft")
        watchdog.signal(signal.SIGTERM)
        await until(lambda: "pubsubctl_" not in namespace.tables(), "long before its lease")

    run(story)


@pytest.mark.lab
def test_the_journal_holds_the_undo_command_before_the_table_exists(
    namespace: Namespace, lab: Lab
) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            row = await client.fault_apply("f", "cut", "b1", lease_ms=LONG_MS, parameters=NFT)
            entries = [json.loads(line) for line in lab.paths.journal.read_text().splitlines()]
            (written,) = [entry for entry in entries if entry["entry"] == "fault"]
            assert written["undo"] == f"nft delete table inet {row['result']['table']}"
            assert written["t_ns"] < row["t_applied_ns"]
            (watched,) = [e for e in entries if e.get("state") == "requested" and e.get("watchdog")]
            assert watched["t_ns"] < row["t_applied_ns"]
            await client.fault_heal("f")

    run(story)
