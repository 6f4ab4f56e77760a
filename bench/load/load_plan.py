"""The load generators of a run, and their settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.run.system_under_test import UnderTest
from bench.run.testbed import Testbed
from bench.spec.spec import ExperimentSpec, PublisherPlan, SubscriberPlan

PUBLISHERS, SUBSCRIBERS = "load-pub", "load-sub"

_Plan = TypeVar("_Plan", PublisherPlan, SubscriberPlan)


@dataclass(frozen=True)
class LoadProcess:
    """A load generator.

    Attributes:
        name: name of the process.
        role: publisher or subscriber.
        program: program for the agent to start.
        config: settings of the process.
        publishers, subscribers: the clients of the process.
    """

    name: str
    role: str
    program: str
    config: dict[str, Any]
    publishers: Sequence[PublisherPlan] = ()
    subscribers: Sequence[SubscriberPlan] = ()


def load_processes(
    spec: ExperimentSpec, testbed: Testbed, run_id: str, under_test: UnderTest
) -> list[LoadProcess]:
    """Return the load generators, with separate processes for publishers and subscribers.

    So neither delays the other. The workload sets both numbers. Neighbours in the workload belong
    to different processes.
    """
    load, program = spec.workload.load, under_test.load_role
    common = {**_order(spec, under_test), **under_test.load_setting(spec)}
    processes = []
    for name, publishers in _distribute(
        PUBLISHERS, spec.publisher_plans(), load.publisher_processes
    ):
        config = {**_config(name, spec, testbed, run_id, publishers, ()), **common}
        processes.append(LoadProcess(name, "publisher", program, config, publishers=publishers))
    for name, subscribers in _distribute(
        SUBSCRIBERS, spec.subscriber_plans(), load.subscriber_processes
    ):
        config = {**_config(name, spec, testbed, run_id, (), subscribers), **common}
        processes.append(LoadProcess(name, "subscriber", program, config, subscribers=subscribers))
    return processes


def _distribute(name: str, plans: Sequence[_Plan], count: int) -> list[tuple[str, Sequence[_Plan]]]:
    """Return the plans by process; names have a number if there are several processes."""
    if count == 1:
        return [(name, plans)]
    return [(f"{name}-{place + 1}", plans[place::count]) for place in range(count)]


@dataclass(frozen=True)
class RunningLoad:
    """The load generators of a run, as an interface for faults on clients."""

    testbed: Testbed
    load: Sequence[LoadProcess]

    @property
    def clients_host(self) -> str:
        """The host with the clock of all stamps."""
        return self.testbed.clients_host

    @property
    def processes(self) -> Mapping[str, str]:
        """Client → the load generator that runs the client."""
        found: dict[str, str] = {}
        for process in self.load:
            found.update({plan.name: process.name for plan in process.publishers})
            found.update({plan.name: process.name for plan in process.subscribers})
        return found

    @property
    def addresses(self) -> Mapping[str, str]:
        """Broker → the address for clients."""
        return {name: place.address for name, place in self.testbed.brokers.items()}

    async def load_command(self, process: str, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to a load generator, and return the answer."""
        return await self.testbed.load_command(process, command, **arguments)


def client_suffix(run_id: str) -> str:
    """Return the suffix of the names of all clients of a run, behind a dot.

    Brokers keep numbers and positions of clients by name, so a run on brokers with earlier clients
    needs new names.
    """
    return run_id.rpartition("-")[2]


def _config(
    name: str,
    spec: ExperimentSpec,
    testbed: Testbed,
    run_id: str,
    publishers: Sequence[PublisherPlan],
    subscribers: Sequence[SubscriberPlan],
) -> dict[str, Any]:
    """Return the mapping for `bench.load.load_files.LoadSetting`."""
    suffix, workload = client_suffix(run_id), spec.workload_mapping()
    return {
        "process": name,
        "log_folder": str(testbed.run_folder(testbed.clients_host, run_id, name)),
        "control_socket": str(testbed.client_socket(name)),
        "run_id": run_id,
        "seed": spec.seed,
        "brokers": list(spec.topology.brokers),
        "addresses": {place.address: name for name, place in testbed.brokers.items()},
        "attributes": [[key, value] for key, value in spec.workload.attributes.items()],
        "sets": spec.workload.sets,
        "protocol": spec.protocol,
        "deployment_id": testbed.deployment_id,
        "topology_digest": testbed.topology_digest,
        "session": dict(spec.topology.session),
        "records": spec.workload.load.records,
        "judged": {key: workload[key] for key in ("calm", "guarantee", "bars")},
        "lateness_limit_ns": spec.workload.thresholds.loadgen_lateness_p99.limit_ns,
        "publishers": [
            {
                "index": plan.index,
                "name": plan.name,
                "client": f"{plan.name}.{suffix}",
                "broker": plan.broker,
                "address": testbed.brokers[plan.broker].address,
                "failover": _addresses(testbed, plan.entry.failover),
                **plan.entry.load_keys(),
                **_shape(spec, plan),
            }
            for plan in publishers
        ],
        "subscribers": [
            {
                "name": plan.name,
                "client": f"{plan.name}.{suffix}",
                "broker": plan.broker,
                "address": testbed.brokers[plan.broker].address,
                "absences": [list(absence) for absence in plan.absences],
                "failover": _addresses(testbed, plan.entry.failover),
                **plan.entry.load_keys(),
            }
            for plan in subscribers
        ],
    }


def _shape(spec: ExperimentSpec, plan: PublisherPlan) -> dict[str, Any]:
    phases = spec.workload.phases
    segments = plan.entry.rate.segments(phases.warmup, phases.measure)
    return {"shape": [list(each) for each in segments]} if segments else {}


def _order(spec: ExperimentSpec, under_test: UnderTest) -> dict[str, Any]:
    """Return the order of deliveries to compare with, and whether a fence may be early.

    A fence ends a wait by the promise of the brokers, not by the guarantee of the workload. Where
    publications may be lost, a fence ends the wait in any case.
    """
    guarantee, promised = spec.workload.guarantee, under_test.order(spec)
    may_overtake = promised not in ("publisher", "total")
    return {
        "order": promised if guarantee.order == "promised" else guarantee.order,
        "may_overtake": may_overtake and guarantee.delivery != "at-most-once",
    }


def _addresses(testbed: Testbed, brokers: Sequence[str] | None) -> list[str]:
    return [testbed.brokers[name].address for name in brokers or ()]
