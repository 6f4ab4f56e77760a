"""Experiments on topics behind proxies: draws on simulated brokers, judged by the oracle."""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Final

from bench.papers.experiments import ExperimentRecord, RunContext, draw_points
from bench.papers.experiments import Tables as AllTables
from bench.papers.mp22.crash_points import crash
from bench.papers.mp22.proxy_world import (
    HOMES,
    KINDS,
    SETTLING_S,
    CrashExperiment,
    ProxyExperiment,
    Row,
    SpreadExperiment,
    StallExperiment,
    Tables,
    TimeoutExperiment,
    World,
    messages_of,
)
from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Append, Effect, Event, MessageReceived
from brokerd.protocols.multi_proxy.messages import Follow, Owned, Put
from brokerd.protocols.multi_proxy.parameters import PAPER, MultiProxyParameters
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.units import MILLISECOND_NS, SECOND_NS
from brokerd.wire.attributes import decode_attribute_table

MOST_LISTED: Final = 256
"""Greatest number of values in a predicate."""


def draw(experiment: ProxyExperiment, point: Row, run: int) -> Tables:
    seed = experiment.seed * 1_000 + run
    match experiment:
        case SpreadExperiment():
            return {"owned_topics": [*spread(experiment, point["ownership"], run, seed)]}
        case StallExperiment():
            return {"stalled_seconds": [*stall(experiment, point["ownership"], run, seed)]}
        case CrashExperiment():
            return {"crash_points": [crash(experiment, point, run, seed)]}
        case TimeoutExperiment():
            return {"asked_again": [ask_again(experiment, point, run, seed)]}
        case other:
            raise AssertionError(f"no story of {type(other).__name__}")


# ------------------------------------------------------------ spread


def values_of(parameters: MultiProxyParameters) -> dict[int, str]:
    """Return a value for each topic."""
    topics, found, number = Topics(parameters, decode_attribute_table), dict[int, str](), 0
    while len(found) < parameters.topics:
        found.setdefault(topics.topic_of_value(f"k{number}"), f"k{number}")
        number += 1
    return found


def spread(experiment: SpreadExperiment, ownership: str, run: int, seed: int) -> Iterator[Row]:
    """Yield the number of requested topics per server, once all proxies have all servers."""
    followed: dict[tuple[BrokerNumber, BrokerNumber], tuple[int, ...]] = {}
    stated: dict[BrokerNumber, tuple[int, ...]] = {}

    def watch(broker: SimulatedBroker, event: Event, effects: list[Effect]) -> None:
        for message in messages_of(effects):
            if type(message) is Follow and message.home == broker.number:
                followed[message.home, message.server] = message.topics
            elif type(message) is Owned and broker.name.startswith("v"):
                stated[broker.number] = tuple(owner.topic for owner in message.owners)

    world = World(experiment, seed, watch, ownership=ownership, topics=experiment.topics)
    values = values_of(world.parameters)
    random = Random(f"spread {seed}")
    asked_topics = max(1, experiment.topics * experiment.asked_percent // 100)
    for home in HOMES:
        chosen = random.sample(sorted(values.values()), asked_topics)
        for first in range(0, asked_topics, MOST_LISTED):
            listed = ", ".join(map(repr, chosen[first : first + MOST_LISTED]))
            world.cluster.subscribe(home, f"kind in ({listed})", client=f"s-{home}")
    world.cluster.run_for(SETTLING_S)
    owned: dict[BrokerNumber, set[int]] = {}
    for (_, server), topics in followed.items():
        owned.setdefault(server, set()).update(topics)
    if ownership == PAPER:  # access brokers remain at a topic's former server until it is empty
        owned = {server: set(topics) for server, topics in stated.items()}
    for server, name in enumerate(world.topology.brokers):
        if name.startswith("v"):
            count = len(owned.get(server, ()))
            yield {"ownership": ownership, "run": run, "server": name, "topics": count}


# ------------------------------------------------------------ stalled servers


def stall(experiment: StallExperiment, ownership: str, run: int, seed: int) -> Iterator[Row]:
    """Yield the latency of publications per second, and by the server of their topics."""
    stored_at: dict[tuple[BrokerNumber, int], BrokerNumber] = {}

    def watch(broker: SimulatedBroker, event: Event, effects: list[Effect]) -> None:
        for message in messages_of(effects):
            if type(message) is Put and message.home == broker.number:
                for sequence in message.run.sequences:
                    stored_at[message.home, sequence] = message.server

    world = World(experiment, seed, watch, ownership=ownership, topics=64)
    cluster = world.cluster
    kinds = [f"k{number}" for number in range(experiment.topics)]
    for home in HOMES:
        cluster.subscribe(home)
    cluster.run_for(SETTLING_S)
    parts_s = (experiment.before_s, experiment.stalled_s, experiment.down_s, experiment.after_s)
    stalls = experiment.before_s * experiment.publications_per_s
    dies = stalls + experiment.stalled_s * experiment.publications_per_s
    back = dies + experiment.down_s * experiment.publications_per_s
    acts: Mapping[int, Callable[[], Any]] = {
        stalls: lambda: cluster.broker("v1").absorb(),
        dies: lambda: cluster.broker("v1").kill(),
        back: lambda: cluster.broker("v1").start(),
    }
    began_ns = world.now_ns
    for number in range(sum(parts_s) * experiment.publications_per_s):
        acts.get(number, lambda: None)()
        world.publish(HOMES[number % 2], kinds[number % len(kinds)])
        cluster.run_for(1 / experiment.publications_per_s)
    cluster.run_for(SETTLING_S)
    violations = world.violations()
    first = world.topology.number_of("v1")
    homes = {f"p-{home}": world.topology.number_of(home) for home in HOMES}
    rows: dict[tuple[int, bool], list[tuple[int, int | None]]] = {}
    for name, sent_ns in world.sent_ns.items():
        client, _, sequence = name.partition("/")
        at_first = stored_at[homes[client], int(sequence)] == first
        came_ns = world.came_ns.get(name, [])
        all_ns = max(came_ns) if len(came_ns) == len(HOMES) else None
        rows.setdefault(((sent_ns - began_ns) // SECOND_NS, at_first), []).append((sent_ns, all_ns))
    for (second, at_first), sent in sorted(rows.items()):
        arrived = [(at_ns, all_ns) for at_ns, all_ns in sent if all_ns is not None]
        delays_ms = [(all_ns - at_ns) / MILLISECOND_NS for at_ns, all_ns in arrived]
        last_ns = max((all_ns for _, all_ns in arrived), default=began_ns)
        yield {
            "ownership": ownership,
            "run": run,
            "second": second,
            "stalled_server": at_first,
            "published": len(sent),
            "delivered": len(delays_ms),
            "slowest_ms": max(delays_ms, default=0.0),
            "last_came_s": (last_ns - began_ns) / SECOND_NS,
            "mean_ms": sum(delays_ms) / len(delays_ms) if delays_ms else 0.0,
            "violations": sum(violations.values()),
        }


# ------------------------------------------------------------ timeouts


def ask_again(experiment: TimeoutExperiment, point: Row, run: int, seed: int) -> Row:
    """Return the number of puts per publication during a stall, and of puts known to the server."""
    put: dict[int, int] = {}
    known = 0

    def watch(broker: SimulatedBroker, event: Event, effects: list[Effect]) -> None:
        nonlocal known
        for message in messages_of(effects):
            if type(message) is Put and message.home == broker.number:
                for sequence in message.run.sequences:
                    put[sequence] = put.get(sequence, 0) + 1
        if type(event) is not MessageReceived or type(event.message) is not Put:
            return
        if event.message.server == broker.number and not any(
            type(effect) is Append for effect in effects
        ):
            known += len(event.message.run)

    timeout_ns = point["timeout_ms"] * MILLISECOND_NS
    world = World(experiment, seed, watch, topics=64, timeout_ns=timeout_ns)
    cluster, pause_s = world.cluster, 1 / experiment.publications_per_s
    cluster.subscribe("e2", "kind = 'a'")
    cluster.run_for(2)
    for _ in range(experiment.publications_per_s):
        world.publish("e1", "a")
        cluster.run_for(pause_s)
    before, first_ns = len(world.sent_ns), world.now_ns
    # A frozen server does not even read; with a single server everything is stalled.
    cluster.broker("v1").freeze()
    while world.now_ns < first_ns + point["stall_ms"] * MILLISECOND_NS:
        world.publish("e1", "a")
        cluster.run_for(pause_s)
    stalled = len(world.sent_ns)
    cluster.broker("v1").thaw()
    cluster.run_for(SETTLING_S)
    violations = world.violations()
    late_ns = [max(world.came_ns[name]) - sent for name, sent in world.sent_ns.items()
               if name in world.came_ns]  # fmt: skip
    during = [put[sequence] for sequence in range(before + 1, stalled + 1)]
    return {
        **point,
        "run": run,
        "published": len(during),
        "puts_mean": sum(during) / len(during),
        "puts_most": max(during),
        "known_already": known,
        "nested_most": count_nested(point["timeout_ms"], point["stall_ms"]),
        "slowest_ms": max(late_ns) / MILLISECOND_NS,
        "undelivered": len(world.sent_ns) - len(late_ns),
        "violations": sum(violations.values()),
    }


def count_nested(timeout_ms: int, stall_ms: int) -> int:
    """Return the number of arrivals of a put at a server by the report's rules, computed.

    The client makes three tries, and for each the proxy makes three, as long as there is no answer.

    Paper: [MP22] §3 (100 ms, three times, at each hop).
    """
    tries = range(3)
    return sum((client + proxy) * timeout_ms <= stall_ms for client in tries for proxy in tries)


def compute_rows(experiment: ProxyExperiment, context: RunContext) -> AllTables:
    """Return the rows of every table; the same experiment gives the same rows."""
    return draw_points(experiment, draw, context)


RECORD = ExperimentRecord(KINDS, compute_rows, protocol="multi_proxy")
