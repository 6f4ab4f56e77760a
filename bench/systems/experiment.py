"""Experiments on a system under test: a workload with topics, judged by the promise."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from bench.run.coordinator import run_experiment
from bench.run.outcome import RunOutcome
from bench.run.testbed import Progress, RunFailed, Testbed
from bench.spec.keys import Overrides
from bench.spec.spec import ExperimentSpec, load_experiment
from bench.spec.validation import SpecError
from bench.spec.values import topic_names, topics_of
from bench.spec.workload_model import Guarantee, Publishers, Subscribers, Workload
from bench.systems.boundary import Settings
from bench.systems.configuration import Configuration, Promise, systems
from bench.systems.faults import SystemBackend, aim_at, names_leader
from bench.systems.load import ONE_TOPIC
from bench.systems.servers import SystemServers, topology_of
from brokerd.text import shown
from fault_injection.apply.interface import FaultBackend
from fault_injection.schedule.schedule import FaultSchedule

LOAD_ROLE: Final = "system-load"


def experiment_on(
    configuration: Configuration,
    workload: str | Path,
    overrides: Overrides,
    labels: Mapping[str, str],
    *,
    calm: bool,
) -> ExperimentSpec:
    """Return a workload for the servers of a configuration, with the promise as its guarantee.

    Brokers of the workload become servers in their order, in rotation.

    Args:
        calm: True for a run without faults.

    Raises:
        SpecError: the system does not support the workload; names the reason and valid values.
    """
    read = load_experiment(workload, overrides, labels)
    _check_failover(read)
    _check_filters(read, configuration)
    _check_window(read.workload, configuration)
    if (records := read.workload.load.records) != "full":
        raise SpecError(
            f'{configuration.source}: load.records = {records!r}: only "full" here: a delivery '
            "is written down before it is acknowledged"
        )
    places = _places(read.workload, configuration.servers)
    changes: dict[str, Any] = {
        "name": configuration.name,
        "protocol": configuration.name,
        "topology": configuration.name,
        "calm": calm,
        "guarantee": guarantee_of(configuration.promise),
    }
    for key, entries in (
        ("publishers", read.workload.publishers),
        ("subscribers", read.workload.subscribers),
    ):
        changes[key] = [_move(entry, places) for entry in entries]
    return ExperimentSpec(
        read.workload.model_copy(update=changes), topology_of(configuration), read.overrides,
        read.source, read.labels,
    )  # fmt: skip


def guarantee_of(promise: Promise) -> Guarantee:
    """Return the guarantee for the verdict of a run."""
    return Guarantee(
        delivery=promise.delivery,
        order=promise.order,
        gapless=promise.delivery != "at-most-once",
    )


def _check_failover(spec: ExperimentSpec) -> None:
    groups: tuple[tuple[str, Sequence[Publishers | Subscribers]], ...] = (
        ("publishers", spec.workload.publishers),
        ("subscribers", spec.workload.subscribers),
    )
    for group, entries in groups:
        for number, entry in enumerate(entries):
            if entry.failover:
                raise SpecError(
                    f"{spec.source}: {group}[{number}].failover: clients of other systems stay "
                    "where they are"
                )


def _move(entry: Publishers | Subscribers, places: Mapping[str, str]) -> Publishers | Subscribers:
    return entry.model_copy(update={"at": [places[name] for name in entry.at]})


def _places(workload: Workload, servers: tuple[str, ...]) -> dict[str, str]:
    named = [name for entry in workload.publishers for name in entry.at]
    named += [name for entry in workload.subscribers for name in entry.at]
    return {name: servers[place % len(servers)] for place, name in enumerate(dict.fromkeys(named))}


def _check_filters(spec: ExperimentSpec, configuration: Configuration) -> None:
    workload = spec.workload
    for entry in workload.subscribers:
        where = f"{spec.source}: subscribers[{entry.place}]"
        if entry.own_process:
            raise SpecError(f"{where}.own_process: clients of other systems share a process")
        wanted: tuple[str, ...] | None
        if workload.topic is None:
            wanted = () if entry.predicate.strip() == "true" else None
        else:
            names = topic_names(workload.topic, workload.attributes[workload.topic])
            wanted = topics_of(entry.predicate, workload.topic, names)
        if wanted is None and not configuration.system.filters:
            topics = f"{workload.topic!r}" if workload.topic else "none (key `topic`)"
            without = ", ".join(system.title for system in systems() if not system.filters)
            raise SpecError(
                f"{where}.filter = {shown(entry.predicate)}: {configuration.system.title} has "
                f"topics (here {topics}) and no filters on contents; {without} have none, brokers "
                "of ours have: `pubsubctl bench` with a workload"
            )


def _check_window(workload: Workload, configuration: Configuration) -> None:
    window_ns, phases = configuration.promise.window, workload.phases
    longest_ns = phases.warmup + phases.measure + phases.drain
    if window_ns is not None and longest_ns >= window_ns:
        raise SpecError(
            f"{configuration.source}: promise.window = {window_ns / 1e9:g} s: a run of "
            f"{longest_ns / 1e9:g} s with its drain may publish again after the window, for "
            "which nothing is promised; shorten the run with --duration"
        )


class SystemUnderTest:
    """An UnderTest: the servers of a system, in one configuration."""

    load_role = LOAD_ROLE

    def __init__(self, servers: SystemServers) -> None:
        self._servers = servers
        self._configuration = servers.configuration

    def facts(self, spec: ExperimentSpec) -> dict[str, Any]:
        """Return the facts of UnderTest, with `system` for every setting."""
        of = self._configuration
        promised = of.promise.delivery == "exactly-once"
        return {
            "promises": {
                "exactly_once": promised, "order": of.promise.order, "gaps": [],
                "redelivers": False,
            },
            "protocol_words": {
                "title": of.system.title,
                "recovery": f"It promises: {of.promise.describe()}.",
                "wiring": _describe(of.changed),
            },
            "system": self._servers.facts(),
        }  # fmt: skip

    def overlay(self, spec: ExperimentSpec) -> Mapping[str, Any] | None:
        """Return an overlay in which publications may pass all servers; None for one server."""
        names = self._configuration.servers
        if len(names) == 1:
            return None
        links = [[a, b] for place, a in enumerate(names) for b in names[place + 1 :]]
        over = [*names, *(f"{a}->{b}" for a in names for b in names if a != b)]
        origins = dict.fromkeys(plan.broker for plan in spec.publisher_plans())
        return {
            "schema": "pubsubctl/overlay/1",
            "kind": "all linked",
            "links": links,
            "known": {name: [other for other in names if other != name] for name in names},
            "routes": [{"from": a, "to": b, "over": over} for a in origins for b in names],
        }

    def order(self, spec: ExperimentSpec) -> str:
        return self._configuration.promise.order

    def load_setting(self, spec: ExperimentSpec) -> Mapping[str, Any]:
        """Return the settings of `SystemLoad`."""
        of, workload = self._configuration, spec.workload
        topics: tuple[str, ...] = (ONE_TOPIC,)
        if workload.topic is not None:
            topics = topic_names(workload.topic, workload.attributes[workload.topic])
        about = {
            "driver": of.driver,
            "source": str(of.source.resolve()),
            "settings": dict(of.settings),
            "addresses": dict(self._servers.addresses),
            "topic": workload.topic,
            "topics": list(topics),
        }
        return {"system": about}

    async def begin_run(
        self, testbed: Testbed, broker: str, run_id: str
    ) -> Mapping[str, Any] | None:
        """Do nothing, because servers need no announcement of a run."""
        return None

    async def end_run(self, testbed: Testbed, broker: str) -> Mapping[str, str]:
        """Return nothing, because servers need no announcement of the end."""
        return {}

    async def settle(self, schedule: FaultSchedule) -> FaultSchedule:
        """Return the schedule with the present leader as a target."""
        if not names_leader(schedule):
            return schedule
        leader = await trio.to_thread.run_sync(self._servers.leader)
        if leader not in self._configuration.servers:
            raise RunFailed(f"{self._configuration.name}: no server reports that it is the leader")
        return aim_at(schedule, leader)

    def backend(self, testbed: Testbed, ahead_ns: Mapping[str, int]) -> FaultBackend:
        return SystemBackend(testbed, self._servers, dict(ahead_ns))


def _describe(settings: Settings) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


async def run_on_system(
    spec: ExperimentSpec,
    testbed: Testbed,
    servers: SystemServers,
    run: Path,
    schedule: FaultSchedule | None,
    progress: Progress,
) -> RunOutcome:
    """Run an experiment on running servers, and collect all records."""
    return await run_experiment(
        spec, testbed, run, schedule, progress, under_test=SystemUnderTest(servers)
    )
