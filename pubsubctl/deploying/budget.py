"""Resource estimates for a workload: time, disk and connections, before the start."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from bench.spec.spec import ExperimentSpec
from brokerd.history.records import ROW_BYTES
from brokerd.protocols.registry import protocol_on
from brokerd.units import SECOND_NS

FASTEST_PER_S = 200_000
"""The assumed rate of a publisher without a configured rate, per second."""
SPARE = 1.2
DESCRIPTORS_OF_A_PROCESS = 64

Row = tuple[Literal["ok", "warn", "fail"], str, str]


def budget(spec: ExperimentSpec, free_bytes: int) -> Iterator[Row]:
    """Yield the duration of a run, and a failure if the records exceed `free_bytes`."""
    phases = spec.workload.phases
    measured_s = (phases.warmup + phases.measure) / SECOND_NS
    drain_s = phases.drain / SECOND_NS
    text = f"{spec.workload.name} takes {_time(measured_s)}, at most {_time(measured_s + drain_s)}"
    text += ", deployment and judgement beside"
    records = most_record_bytes(spec)
    text += f"; at most {records / 2**20:,.0f} MiB of records"
    if records > free_bytes:
        text += f", and {free_bytes / 2**20:,.0f} MiB are free for results"
        yield "fail", text, "a lower rate, a shorter measure phase, or PUBSUBCTL_RESULTS elsewhere"
    else:
        yield "ok", text, ""


def most_record_bytes(spec: ExperimentSpec) -> int:
    """Return the bytes of all records if every subscription matches everything."""
    seconds = (spec.workload.phases.warmup + spec.workload.phases.measure) / SECOND_NS
    per_second = sum(
        float(FASTEST_PER_S if plan.entry.rate.per_second is None else plan.entry.rate.per_second)
        for plan in spec.publisher_plans()
    )
    rows = 2 + len(spec.subscriber_plans())  # published, acknowledged, and each delivery
    return round(per_second * seconds * rows * ROW_BYTES)


def connections(spec: ExperimentSpec, descriptors: int) -> Iterator[Row]:
    """Check that the limit of open files suffices for brokers and load generators."""
    known = protocol_on(spec.topology, spec.protocol)
    clients = Counter(plan.broker for plan in spec.publisher_plans())
    clients.update(plan.broker for plan in spec.subscriber_plans())
    of_broker = {name: clients[name] + len(known.around(name)) for name in spec.topology.present()}
    busiest = max(of_broker, key=lambda name: of_broker[name])
    needed = max(sum(clients.values()), of_broker[busiest])
    wanted = round(needed * SPARE) + DESCRIPTORS_OF_A_PROCESS
    text = f"{busiest} has up to {of_broker[busiest]} connections, load generators "
    text += f"{sum(clients.values())}; a process may have {descriptors} files open"
    if wanted > descriptors:
        yield "fail", text, f"ulimit -Hn {wanted}, or fewer clients"
    else:
        yield "ok", text, ""


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
