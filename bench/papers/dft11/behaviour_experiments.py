"""Experiments on behaviour around a failure: draws on simulated brokers.

A broker fails silently: no peer is notified, and the neighbours detect the failure. All instants
are of the virtual clock, exact to the event.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from bench.papers.dft11.behaviour_files import (
    KINDS,
    BehaviourExperiment,
    BypassExperiment,
    ExclusionsExperiment,
    OverheadExperiment,
    QueueExperiment,
    Row,
    StartsExperiment,
    Tables,
)
from bench.papers.dft11.simulated_point import disable_garbage_collection
from bench.papers.experiments import ExperimentRecord, RunContext, draw_points
from bench.papers.experiments import Tables as AllTables
from brokerd.config import SessionParameters
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.generate import chain, generate_balanced_tree
from brokerd.overlay.topology import Topology
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import Subscription
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.units import MILLISECOND_NS, SECOND_NS
from brokerd.wire.attributes import encode_attributes

SETTLE_S = 15
"""Time after a failure until everything reachable is restored."""

PATIENCE_S = 60
"""Waiting time for an event before it counts as never."""

BEHIND, INSIDE = "behind", "inside"

_CONTENT = encode_attributes({"n": 1})


def draw(experiment: BehaviourExperiment, point: Row, run: int) -> Tables:
    """Return the rows of a draw by table, with the oracle's judgement in `judged_draws`.

    Raises:
        AssertionError: the story deviates from the course of every run.
    """
    drawn = Random(f"{experiment.seed}/{sorted(point.items())}/{run}")
    with disable_garbage_collection():
        table, rows, cluster = _STORIES[type(experiment)](experiment, point, drawn)
    judged = {
        "point": ", ".join(f"{name} = {value}" for name, value in point.items()),
        "run": run,
        "deliveries": cluster.oracle.deliveries,
        "violations": sum(cluster.oracle.violations.values()),
        "violated": sorted(cluster.oracle.violations),
    }
    return {
        table: [{**point, "run": run, **row} for row in rows],
        "judged_draws": [judged],
    }


Story = tuple[str, list[Row], SimulatedCluster]


def _bypass(experiment: BypassExperiment, point: Row, drawn: Random) -> Story:
    """Measure the time from a silent failure on a publisher's path until deliveries continue."""
    silence_ns = point["suspicion_ms"] * MILLISECOND_NS
    topology = generate_balanced_tree(experiment.brokers, experiment.fanout, point["delta"])
    session = SessionParameters(suspicion_ns=silence_ns, heartbeat_ns=silence_ns // 3)
    cluster = _cluster(topology, drawn, network=NetworkParameters(session=session))
    inner = [n for n, near in enumerate(topology.neighbours()) if len(near) > 1]
    failing = drawn.choice(inner)
    source = drawn.choice([n for n in range(len(topology.brokers)) if n != failing])
    subscriptions = {
        number: cluster.subscribe(name)
        for number, name in enumerate(topology.brokers)
        if number != failing
    }
    publisher = topology.brokers[source]
    cluster.client(f"p-{publisher}", publisher, publishes=True)
    cluster.run_until_quiet(PATIENCE_S)
    _publish_steadily(
        cluster, publisher, experiment.publish_every_ms * MILLISECOND_NS, silence_ns + 2 * SECOND_NS
    )
    cluster.run_for(0.2)
    died_ns = cluster.schedule.now_ns
    before = cluster.clients[f"p-{publisher}"].core.outgoing.next_sequence
    cluster.broker(topology.brokers[failing]).freeze()
    behind = [n for n in subscriptions if failing in cluster.tree.path(source, n)]
    waiting = {n: subscriptions[n] for n in behind}
    rows: list[Row] = []
    until_ns = died_ns + silence_ns + 2 * SECOND_NS
    while waiting and cluster.step(until_ns):
        for number in [n for n in waiting if _last_sequence(waiting[n]) >= before]:
            del waiting[number]
            rows.append(
                {"broker": number, "latency_us": (cluster.schedule.now_ns - died_ns) // 1000}
            )
    rows += [{"broker": number, "latency_us": None} for number in waiting]
    return "bypasses", rows, cluster


def _starts(experiment: StartsExperiment, point: Row, drawn: Random) -> Story:
    """Measure the time until a subscription starts, with some brokers failed for good."""
    topology = generate_balanced_tree(point["brokers"], experiment.fanout, point["delta"])
    cluster = _cluster(topology, drawn)
    numbers = range(point["brokers"])
    failed = drawn.sample(numbers, point["brokers"] * point["failed_percent"] // 100)
    for number in failed:
        cluster.broker(topology.brokers[number]).freeze()
    cluster.run_for(SETTLE_S if failed else 1)
    rows = []
    for count in range(experiment.subscriptions):
        number = drawn.choice([n for n in numbers if n not in failed])
        broker, name = topology.brokers[number], f"s{count}"
        client = cluster.client(name, broker)
        while not client.ends:
            assert cluster.step(cluster.schedule.now_ns + PATIENCE_S * SECOND_NS), f"{name} waits"
        requested_ns = cluster.schedule.now_ns
        subscription = cluster.subscribe(broker, client=name)
        until_ns = requested_ns + PATIENCE_S * SECOND_NS
        while not subscription.started and cluster.step(until_ns):
            pass
        took_us = (cluster.schedule.now_ns - requested_ns) // 1000
        rows.append(
            {
                "subscription": count,
                "broker": number,
                "latency_us": took_us if subscription.started else None,
            }
        )
    return "starts", rows, cluster


def _overhead(experiment: OverheadExperiment, point: Row, drawn: Random) -> Story:
    """Measure the cost of lossless delivery while brokers fail silently one after the other."""
    topology = generate_balanced_tree(experiment.brokers, experiment.fanout, point["delta"])
    values = {"delta": point["delta"], "assist": "off", **experiment.variants[point["variant"]]}
    cluster = _cluster(
        topology,
        drawn,
        network=NetworkParameters(encode=True),
        parameters=DeltaTreeParameters.from_mapping(values, "variant"),
    )
    failing = drawn.sample(range(experiment.brokers), point["failed"])
    live = [n for n in range(experiment.brokers) if n not in failing]
    subscriptions = [cluster.subscribe(topology.brokers[n]) for n in live]
    for number in live:
        cluster.client(f"p-{topology.brokers[number]}", topology.brokers[number], publishes=True)
    cluster.run_until_quiet(PATIENCE_S)
    schedule, window_ns = cluster.schedule, experiment.measured_s * SECOND_NS
    for number in failing:
        schedule.at(
            schedule.now_ns + int(drawn.random() * window_ns / 2),
            _fall_silent,
            cluster,
            [topology.brokers[number]],
        )
    published = experiment.publications_per_s * experiment.measured_s
    for _ in range(published):
        schedule.at(
            schedule.now_ns + int(drawn.random() * (window_ns - SECOND_NS)),
            _publish,
            cluster,
            topology.brokers[drawn.choice(live)],
            experiment.payload_bytes,
        )
    before, sent = cluster.statistics(), cluster.network.transmission.bytes_between_brokers
    cluster.run_for(experiment.measured_s)
    after = cluster.statistics()

    def counted(name: str) -> int:
        return after[name] - before[name]

    row = {
        "published": published,
        "deliveries": sum(len(subscription.received) for subscription in subscriptions),
        "duplicates": counted("duplicates_received"),
        "resent": counted("resent_publications"),
        "bytes_between_brokers": cluster.network.transmission.bytes_between_brokers - sent,
    }
    return "overheads", [row], cluster


def _exclusions(experiment: ExclusionsExperiment, point: Row, drawn: Random) -> Story:
    """Measure the exclusions of a subscription made while consecutive brokers are down.

    A publisher is beyond the failed brokers all the time. Another is at the middle failed broker,
    and publishes once the broker has restarted.
    """
    topology, down = _chain(experiment, point)
    cluster = _cluster(topology, drawn, every_step=True)
    far, near = topology.brokers[0], topology.brokers[-1]
    middle = down[len(down) // 2]
    for broker in (far, middle):
        cluster.client(f"p-{broker}", broker, publishes=True)
    cluster.run_until_quiet(PATIENCE_S)
    _fall_silent(cluster, down)
    cluster.run_for(SETTLE_S)
    subscription = cluster.subscribe(near)
    limit_ns = cluster.schedule.now_ns + PATIENCE_S * SECOND_NS
    while not subscription.started and cluster.step(limit_ns):
        pass
    assert subscription.started, f"{point}: not started past {down}"
    step_ns = SECOND_NS // experiment.publications_per_s
    lasts_ns = point["partitioned_s"] * SECOND_NS
    _publish_steadily(cluster, far, step_ns, lasts_ns + PATIENCE_S * SECOND_NS // 2)
    # Connection attempts to silent brokers recur; the heal is to meet them at any point.
    cluster.run_for(point["partitioned_s"] + 2.5 * drawn.random())
    _restart(cluster, down)
    healed_ns = cluster.schedule.now_ns
    _publish_steadily(cluster, middle, step_ns, PATIENCE_S * SECOND_NS // 2)
    numbers = {BEHIND: 0, INSIDE: topology.number_of(middle)}
    open_ns = _wait_openings(cluster, subscription, numbers, healed_ns)
    cluster.run_until_quiet(PATIENCE_S)
    rows = [
        {
            "source": where,
            **_count_exclusions(cluster, topology, subscription, number, open_ns[where]),
        }
        for where, number in numbers.items()
    ]
    return "exclusions", rows, cluster


def _wait_openings(
    cluster: SimulatedCluster,
    subscription: Subscription,
    numbers: Mapping[str, BrokerNumber],
    healed_ns: int,
) -> dict[str, int | None]:
    """Return, by place, the time from the heal to the first delivery from the broker there."""
    open_ns: dict[str, int | None] = dict.fromkeys(numbers)
    seen = 0
    until_ns = healed_ns + PATIENCE_S * SECOND_NS // 2
    while cluster.step(until_ns):
        received = subscription.client.received[subscription.number]
        for source, _ in received[seen:]:
            for where, number in numbers.items():
                if source.broker == number and open_ns[where] is None:
                    open_ns[where] = cluster.schedule.now_ns - healed_ns
        seen = len(received)
    return open_ns


def _count_exclusions(
    cluster: SimulatedCluster,
    topology: Topology,
    subscription: Subscription,
    number: BrokerNumber,
    opened_ns: int | None,
) -> Row:
    """Return publications of the publisher at a broker: delivered, withheld, or neither."""
    got = [
        sequence
        for source, sequence in subscription.client.received[subscription.number]
        if source.broker == number
    ]
    withheld = {
        sequence
        for notice in subscription.client.withheld
        if notice.source.broker == number
        for low, high in notice.ranges
        for sequence in range(low, high + 1)
    }
    publisher = cluster.clients[f"p-{topology.brokers[number]}"]
    published = publisher.core.outgoing.next_sequence - 1
    return {
        "published": published,
        "deliveries": len(got),
        "withheld": len(withheld),
        "neither": published - len({*got} | withheld),
        "open_us": None if opened_ns is None else opened_ns // 1000,
    }


def _queue(experiment: QueueExperiment, point: Row, drawn: Random) -> Story:
    """Measure the queue at the last broker before consecutive brokers that are down for a while."""
    topology, down = _chain(experiment, point)
    cluster = _cluster(topology, drawn, every_step=True)
    far, near = topology.brokers[0], topology.brokers[-1]
    cluster.client(f"p-{far}", far, publishes=True)
    subscription = cluster.subscribe(near)
    cluster.run_until_quiet(PATIENCE_S)
    edge = cluster.brokers[topology.number_of(down[0]) - 1]
    step_ns = SECOND_NS // experiment.publications_per_s
    whole_s = experiment.before_s + experiment.broken_s + experiment.after_s
    _publish_steadily(cluster, far, step_ns, whole_s * SECOND_NS)
    began_ns = cluster.schedule.now_ns
    broken_ns = began_ns + experiment.before_s * SECOND_NS
    cluster.schedule.at(broken_ns, _fall_silent, cluster, down)
    cluster.schedule.at(broken_ns + experiment.broken_s * SECOND_NS, _restart, cluster, down)
    rows = []
    for sample in range(whole_s * 1000 // experiment.sample_every_ms):
        rows.append(
            {
                "t_ms": sample * experiment.sample_every_ms - experiment.before_s * 1000,
                "queue_publications": edge.core.statistics()["queue_publications"],
                "published": cluster.clients[f"p-{far}"].core.outgoing.next_sequence - 1,
                "deliveries": len(subscription.received),
            }
        )
        cluster.run_for(experiment.sample_every_ms / 1000)
    return "queues", rows, cluster


_STORIES: Mapping[type[BehaviourExperiment], Callable[[Any, Row, Random], Story]] = {
    BypassExperiment: _bypass,
    StartsExperiment: _starts,
    OverheadExperiment: _overhead,
    ExclusionsExperiment: _exclusions,
    QueueExperiment: _queue,
}


# --- Parts of stories -----------------------------------------------------------------------


def _cluster(
    topology: Topology,
    drawn: Random,
    network: NetworkParameters | None = None,
    parameters: DeltaTreeParameters | None = None,
    *,
    every_step: bool = False,
) -> SimulatedCluster:
    """Return connected brokers in a quiet state.

    Relayed sessions are off, as in the paper, unless the parameters set them.

    Args:
        every_step: True to check every step of every broker, and to end the story at the first
            violation. Necessary if subscriptions start past failures: only then does the oracle
            determine the publications that gates may withhold.
    """
    cluster = SimulatedCluster(
        topology,
        "delta_tree",
        seed=drawn.getrandbits(32),
        network=network,
        parameters=parameters or replace(DeltaTreeParameters(delta=topology.delta), assist="off"),
        strict=every_step,
        trace=False,
    ).start()
    cluster.run_until_quiet(PATIENCE_S)
    return cluster


def _chain(
    experiment: ExclusionsExperiment | QueueExperiment, point: Row
) -> tuple[Topology, list[str]]:
    """Return a line, and the brokers in the middle that fail."""
    topology = chain(experiment.brokers, experiment.delta)
    first = (experiment.brokers - point["length"]) // 2
    return topology, list(topology.brokers[first : first + point["length"]])


def _fall_silent(cluster: SimulatedCluster, brokers: list[str]) -> None:
    for broker in brokers:
        cluster.broker(broker).freeze()


def _restart(cluster: SimulatedCluster, brokers: list[str]) -> None:
    """Restart brokers as after a restart of the machine: state that was not on disk is lost."""
    for broker in brokers:
        cluster.broker(broker).restart()


def _publish_steadily(cluster: SimulatedCluster, broker: str, every_ns: int, lasts_ns: int) -> None:
    """Schedule publications at a constant interval, from now on."""
    now_ns = cluster.schedule.now_ns
    for when_ns in range(now_ns + every_ns, now_ns + lasts_ns, every_ns):
        cluster.schedule.at(when_ns, _publish, cluster, broker, 0)


def _publish(cluster: SimulatedCluster, broker: str, payload_bytes: int) -> None:
    cluster.publish_run(broker, [(_CONTENT, bytes(payload_bytes))])


def _last_sequence(subscription: Subscription) -> int:
    received = subscription.client.received[subscription.number]
    return received[-1][1] if received else 0


def compute_rows(experiment: BehaviourExperiment, context: RunContext) -> AllTables:
    """Return the rows of every table; the same experiment gives the same rows."""
    return draw_points(experiment, draw, context)


RECORD = ExperimentRecord(KINDS, compute_rows, kind="behaviour", protocol="delta_tree")
