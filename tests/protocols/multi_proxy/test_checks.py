"""Checks of multi_proxy detect a wrong message for every rule."""

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.model.identity import SourceId, StreamId
from brokerd.model.losses import last_lost_position
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.interface import Append, DeadlineReached, Send
from brokerd.protocols.multi_proxy.checks.steps import MultiProxyChecks, MultiProxyReach
from brokerd.protocols.multi_proxy.messages import (
    Follow,
    Get,
    Lost,
    LostRun,
    Messages,
    Stored,
    Wanted,
)
from brokerd.protocols.multi_proxy.parameters import (
    ARBITER,
    CAUSAL,
    PAPER,
    RENDEZVOUS,
    MultiProxyParameters,
)
from brokerd.protocols.parts.records import pack_run
from brokerd.protocols.registry import definition_of, read_topology
from brokerd.simulator.checks.oracle import Oracle
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.clock import Schedule

PROXY, SERVER, OTHER, HOME = 0, 1, 2, 3
TOPIC = 1
SOURCE = SourceId(HOME, 0, 1)


def check(*said: tuple[int, Any], ownership: str = "arbiter", spread_topics: int = 0) -> None:
    """Check a sequence of messages from brokers."""
    parameters = MultiProxyParameters(ownership=ownership, spread_topics=spread_topics)
    oracle = Oracle(lambda _: {}, True, definition_of("multi_proxy").promises)
    world: Any = SimpleNamespace(parameters=parameters, schedule=Schedule(), oracle=oracle)
    checks = MultiProxyChecks(world)
    for number, message in said:
        follows = type(message) is not Follow or TOPIC in message.topics
        core = SimpleNamespace(follows=lambda topic, follows=follows: follows)
        broker: Any = SimpleNamespace(number=number, name=f"b{number}", core=core)
        checks.step(broker, DeadlineReached(), [Send(PROXY, message)])


def given(first: int, sequences: Sequence[int], server: int = SERVER) -> tuple[int, Messages]:
    """Return a server's message with these publications, at positions from `first`."""
    count = len(sequences)
    run = PublicationRun(
        StreamId(server, TOPIC, 0),
        range(first, first + count),
        (b"",),
        bytes(count),
        0,
        (),
        tuple(OriginRun(SOURCE, (sequence,)) for sequence in sequences),
    )
    return server, Messages(HOME, TOPIC, run)


def stored(through: int, server: int = SERVER) -> tuple[int, Stored]:
    return server, Stored(server, HOME, TOPIC, SOURCE, through)


def lost(first: int, low: int, high: int) -> tuple[int, Lost]:
    return SERVER, Lost(SERVER, HOME, SERVER, TOPIC, (LostRun(first, SOURCE, low, high),))


def get(done: int, after: int, incarnation: int = 1) -> tuple[int, Get]:
    return HOME, Get(SERVER, HOME, incarnation, 1, (Wanted(SERVER, TOPIC, done, after, 9),))


def follow(*topics: int) -> tuple[int, Follow]:
    return HOME, Follow(SERVER, HOME, 1, 1, topics)


def test_correct_messages_pass_all_checks() -> None:
    check(given(1, [5, 6, 9]), given(2, [6, 9, 12]), lost(2, 6, 6), lost(5, 13, 14), given(6, [14]))
    check(get(0, 4), get(3, 4), get(3, 9), get(0, 0, incarnation=2))
    check(get(3, 4), follow(), follow(TOPIC), get(2, 4))
    check(given(1, [5]), given(1, [5], server=OTHER), ownership=PAPER)
    check(given(1, [5]), given(1, [6], server=OTHER), ownership=CAUSAL)
    check(given(1, [5]), given(1, [6], server=OTHER), spread_topics=2)
    check(stored(5), stored(6), stored(7, server=OTHER))
    check(stored(5), stored(6, server=OTHER), stored(7), ownership=CAUSAL)


def test_two_owners_may_not_both_have_a_publication_where_that_is_merged() -> None:
    with pytest.raises(InvariantViolated, match="put twice"):
        check(given(1, [5]), given(1, [5], server=OTHER), ownership=CAUSAL)


@pytest.mark.parametrize(
    "rule, said",
    [
        ("position reused", [given(1, [5, 6]), given(2, [7])]),
        ("position reused", [given(1, [5, 6]), lost(1, 6, 6)]),
        ("put twice", [given(1, [5]), given(4, [5])]),
        ("put twice", [lost(1, 5, 5), given(4, [5])]),
        ("topic order", [given(1, [6, 5])]),
        ("two owners", [given(1, [5]), given(1, [5], server=OTHER)]),
        ("two owners", [stored(5), stored(6, server=OTHER), stored(7)]),
        ("acknowledgement decreased", [get(3, 4), get(2, 4)]),
        ("acknowledgement decreased", [get(3, 2)]),
        ("acknowledgement decreased", [get(3, 4), follow(TOPIC), get(2, 4)]),
    ],
)
def test_a_mistake_is_seen(rule: str, said: list[tuple[int, Any]]) -> None:
    with pytest.raises(InvariantViolated) as found:
        check(*said)
    assert found.value.rule == rule


def test_a_gap_has_no_publication_that_its_server_stored_again() -> None:
    """Seed 73000119: the gap of the lost positions followed the second copy."""
    oracle = Oracle(lambda _: {}, True, definition_of("multi_proxy").promises)
    parameters = MultiProxyParameters(ownership=RENDEZVOUS)
    world: Any = SimpleNamespace(parameters=parameters, schedule=Schedule(), oracle=oracle)
    checks = MultiProxyChecks(world)
    broker: Any = SimpleNamespace(number=SERVER, name="b", core=None)
    behind = last_lost_position(1)
    for position, sequence in [(1, 5), (2, 6), (behind + 2, 6)]:
        run = PublicationRun(SOURCE, range(sequence, sequence + 1), (b"",), b"\0", 0, ())
        record = (struct.pack(">IQ", TOPIC, position), *pack_run(run))
        checks.step(broker, DeadlineReached(), [Append("log", (record,), None)])
    stream = StreamId(SERVER, TOPIC, 0)
    assert [*checks.origins_of(stream, 1, behind + 1)] == [(SOURCE, 5)]
    assert [*checks.origins_of(stream, 1, behind + 2)] == [(SOURCE, 5), (SOURCE, 6)]


@pytest.mark.parametrize(
    "broken, ownership, demanded",
    [
        ([], CAUSAL, True),
        ([("x1", "h1")], CAUSAL, True),
        ([("x1", "h1"), ("x2", "h1")], CAUSAL, False),
        ([("x2", "s1"), ("x1", "s2")], CAUSAL, False),
        ([("x2", "s1"), ("x1", "s2")], ARBITER, False),
        ([("x2", "s1"), ("x1", "s2")], RENDEZVOUS, True),
        ([("x2", "s1"), ("x2", "s2")], CAUSAL, True),
    ],
)
def test_nothing_is_demanded_where_no_proxy_reaches_two_servers(
    broken: Sequence[tuple[str, str]], ownership: str, demanded: bool
) -> None:
    """Seed 722593: a topic was in transfer, and publish requests waited for the end."""
    values = {"proxies": ["x1", "x2"], "servers": ["s1", "s2"], "edges": ["h1"]}
    names = [name for side in values.values() for name in side]
    topology = read_topology(
        {
            "schema": "pubsubctl/topology/2", "name": "story", "kind": "bipartite",
            "brokers": names, "bipartite": values,
        },
        "story",
    )  # fmt: skip
    number = topology.number_of
    reach = MultiProxyReach(
        OverlayGraph(topology),
        MultiProxyParameters(ownership=ownership),
        [(number(a), number(b)) for a, b in broken],
    )
    assert reach.acknowledges(number("h1"), []) == demanded
    assert reach.starts(number("h1")) == demanded
