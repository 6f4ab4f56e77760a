"""The outcome of a run in numbers, computed from the collected record files.

The command line shows these numbers at once; `results` makes verdicts and figures from the same
files. Counts are exact. Latencies are exact up to 200,000 deliveries, and of every k-th delivery
beyond. If deliveries are recorded as stretches, latencies are of the sample with times.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.run.limits import UseProbe, limit_of
from bench.run.recovery import Recovery, Trigger, recovery_after, trigger_of
from bench.run.run_directory import RunState
from bench.run.run_statistics import (
    Around,
    Memory,
    acknowledgements,
    around_faults,
    fault_edges,
    rows_of,
    statistics_of,
    transpose,
)
from bench.spec.values import Segment
from brokerd.history.records import APPLICATION, DATA, ROW_BYTES, STRETCH
from brokerd.quantiles import percentiles_us
from fault_injection.apply.injector import Injection

LARGEST_SAMPLE = 200_000


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The outcome of a run.

    Attributes:
        run_directory, state, reasons: folder of the run, its state, and reasons why the state is
            not complete.
        published, delivered: data publications sent, and deliveries made, in the measure phase.
        delivered_per_s: deliveries per second of that phase, by time of receipt.
        delivered_earlier: deliveries of the phase with publications that were due before the phase.
        delivered_new_per_s: deliveries per second without delivered_earlier.
        response_us: percentiles of received minus intended, of publications intended in that phase.
        service_us: percentiles of received minus sent, of the same publications.
        acknowledged_us: percentiles of acknowledged minus intended.
        around_faults: deliveries of each subscription before, during and after the faults, for runs
            with faults and few subscriptions.
        recovery: recovery after the faults, or after a burst of the load; None if there was
            neither, or the phase is too short.
        limited_by: the limit of the run; empty without a measurement of the limit.
        is_load_generator_limit: True if a load generator was the limit, so that the run is no
            result for a figure of throughput.
        broker_cpu_us_per_message: by broker, processor time per delivery of that phase.
        load_cpu_us_per_message: by load generator, processor time per delivery of that phase.
        memory_bytes: by process, resident memory: first, largest and last.
        sessions_lost: number of lost sessions between brokers, over all brokers.
        resent_publications, duplicates_received: the last totals of all brokers' counters.
        broker_core_share: by broker, processor time per time of that phase.
        waited_share: by process that ran all the time, the share of the measure phase in which the
            process waited for a processor.
        ready_after_s: time until the brokers were ready, if the run deployed brokers.
        lateness_p99_us: lateness of the load generators.
        saturated: True if the load generators were too late for evidence about the brokers.
        online: sums of the counts of the online checkers.
        not_healed: faults that may still be active; the lab is dirty until their leases end.
        down: brokers that were ended by a fault and not started again.
    """

    run_directory: Path
    state: RunState
    reasons: tuple[str, ...] = ()
    published: int = 0
    delivered: int = 0
    delivered_per_s: float = 0.0
    delivered_earlier: int = 0
    delivered_new_per_s: float = 0.0
    response_us: Mapping[str, float] = field(default_factory=dict)
    service_us: Mapping[str, float] = field(default_factory=dict)
    acknowledged_us: Mapping[str, float] = field(default_factory=dict)
    around_faults: Around = field(default_factory=dict)
    recovery: Recovery | None = None
    limited_by: str = ""
    is_load_generator_limit: bool = False
    broker_cpu_us_per_message: Mapping[str, float] = field(default_factory=dict)
    load_cpu_us_per_message: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: Mapping[str, Memory] = field(default_factory=dict)
    sessions_lost: int = 0
    resent_publications: int = 0
    duplicates_received: int = 0
    broker_core_share: Mapping[str, float] = field(default_factory=dict)
    waited_share: Mapping[str, float] = field(default_factory=dict)
    ready_after_s: float | None = None
    lateness_p99_us: float = 0.0
    saturated: bool = False
    online: Mapping[str, int] = field(default_factory=dict)
    not_healed: tuple[str, ...] = ()
    down: tuple[str, ...] = ()

    @property
    def broker_cpu_us_per_message_mean(self) -> float:
        """The mean over all brokers; 0 without a measurement."""
        costs = self.broker_cpu_us_per_message.values()
        return sum(costs) / len(costs) if costs else 0.0

    def headline(self) -> dict[str, Any]:
        """Return the numbers for the index of all runs."""
        values = asdict(self)
        left_out = (
            *("broker_cpu_us_per_message", "load_cpu_us_per_message", "memory_bytes"),
            *("around_faults", "broker_core_share", "waited_share", "ready_after_s"),
        )
        for name in ("run_directory", "state", "reasons", *left_out):
            del values[name]
        private = [memory.get("private", 0) for memory in self.memory_bytes.values()]
        shares = self.broker_core_share.values()
        return {
            **values,
            "broker_cpu_us_per_message_mean": self.broker_cpu_us_per_message_mean,
            "broker_private_bytes_max": max(private, default=0) or None,
            "broker_core_share_mean": sum(shares) / len(shares) if shares else None,
            "ready_after_us": None if self.ready_after_s is None else self.ready_after_s * 1e6,
        }


def outcome_of(
    run_directory: Path,
    state: RunState,
    reasons: Sequence[str],
    measured: tuple[int, int] | None,
    finished: Sequence[Mapping[str, Any]],
    lateness_limit_ns: float,
    cpu_s: tuple[Mapping[str, float], Mapping[str, float]],
    injection: Injection | None,
    probe: UseProbe | None = None,
    *,
    has_rate: bool = False,
    ready_after_s: float | None = None,
    shapes: Sequence[Sequence[Segment]] = (),
) -> RunOutcome:
    """Return the outcome of a run, from the final reports of its load generators and its records.

    Args:
        state, reasons: state and reasons so far; a complete run becomes partial if its load
            generators were too slow or had problems.
        measured: the measure phase; None if the run never reached the phase.
        finished: the final answer of each load generator.
        cpu_s: by broker, processor time at the beginning and at the end of the measure phase.
        injection: result of the fault schedule, if there was a schedule.
        probe: processor times in the measure phase.
        has_rate: True if every publisher had a rate.
        ready_after_s: see RunOutcome.
        shapes: see `recovery.trigger_of`.
    """
    reasons = [*reasons]
    lateness_ns = max((each["late_p99_ns"] for each in finished), default=0)
    saturated = lateness_ns >= lateness_limit_ns
    if saturated:
        reasons.append(
            f"the load generators could not hold their rate: a hundredth of what was due was "
            f"more than {lateness_ns / 1e6:.1f} ms late (limit {lateness_limit_ns / 1e6:g} ms)"
        )
    problems = [text for each in finished for text in each["problems"]]
    if state == "complete" and (reasons or problems):
        state = "partial"
    values: dict[str, Any] = {}
    if measured is not None:
        rows = injection.rows if injection else ()
        found = measure(
            run_directory / "raw",
            *measured,
            fault_edges(rows, measured) if injection else None,
            trigger_of(rows, shapes, measured),
        )
        duration_ns = measured[1] - measured[0]
        values = {
            **_delivery_values(found, duration_ns),
            **_processor_values(found, duration_ns, cpu_s),
            **_limit_values(found, probe, has_rate=has_rate),
        }
    statistics = statistics_of(run_directory / "raw")
    return RunOutcome(
        run_directory=run_directory,
        state=state,
        reasons=(*reasons, *problems),
        lateness_p99_us=lateness_ns / 1000,
        saturated=saturated,
        online=_sum_online(finished),
        memory_bytes=statistics.memory_bytes,
        sessions_lost=statistics.sessions_lost,
        resent_publications=statistics.resent_publications,
        duplicates_received=statistics.duplicates_received,
        ready_after_s=ready_after_s,
        not_healed=injection.not_healed if injection else (),
        down=injection.down if injection else (),
        **values,
    )


def _sum_online(finished: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the counts of the load generators' own checks, summed by name."""
    online: dict[str, int] = {}
    for each in finished:
        for name, value in each["online"].items():
            online[name] = online.get(name, 0) + value
    return online


@dataclass(frozen=True)
class PhaseRecords:
    """The contents of the record files for one stretch of time.

    Attributes:
        earlier: deliveries of publications that were due before, such as the backlog of the
            warm-up. A stretch of deliveries counts by the last number.
        kept_up: True if all publications were acknowledged by the end, apart from the usual few in
            flight.
    """

    published: int
    delivered: int
    response_us: Mapping[str, float]
    service_us: Mapping[str, float]
    acknowledged_us: Mapping[str, float]
    kept_up: bool
    around_faults: Around
    earlier: int = 0
    recovery: Recovery | None = None


def measure(
    raw: Path,
    from_ns: int,
    to_ns: int,
    edges: tuple[int, int, int, int] | None = None,
    trigger: Trigger | None = None,
) -> PhaseRecords:
    """Evaluate the record files below `raw` for publications intended in [`from_ns`, `to_ns`).

    Deliveries are counted by time of receipt, because this is throughput. Deliveries of
    publications that were due before are counted separately: a backlog adds to the throughput.
    """
    times = _publication_times(sorted(raw.glob("*/*/publications.rec")))
    published = 0
    for intended, _ in times.values():
        published += sum(from_ns <= at < to_ns for at in intended if at)
    delivered = earlier = 0
    first = {source: bisect_left(due, from_ns) for source, (due, _) in _fill_times(times).items()}
    response: list[int] = []
    service: list[int] = []
    for path in sorted(raw.glob("*/*/deliveries.rec")):
        rows, tables = rows_of(path)
        if not tables.get("publishers"):
            continue  # the file was never closed, and lacks the names of publishers
        sample = tables.get("sample")
        received = rows.cast("q")[1::4]
        start, end = bisect_left(received, from_ns), len(received)
        stop = bisect_left(received, to_ns)
        delivered += _count_data(rows, start, stop)
        earlier += _count_earlier(rows, start, stop, tables["publishers"], first)
        # Publications that were intended in the phase may arrive after its end.
        for sequence, at, source in _sample(rows, start, end, tables["publishers"]):
            if sample and sequence // sample["block"] % sample["one_in"]:
                continue
            intended, sent = times.get(source, _NOTHING)
            if 0 < sequence < len(intended) and from_ns <= intended[sequence] < to_ns:
                response.append(at - intended[sequence])
                service.append(at - sent[sequence])
    acknowledged = acknowledgements(raw, times, from_ns, to_ns)
    return PhaseRecords(
        published, delivered, percentiles_us(response), percentiles_us(service),
        percentiles_us(acknowledged.waits_ns), acknowledged.has_kept_up,
        around_faults(raw, times, edges) if edges else {}, earlier,
        recovery_after(raw, times, trigger) if trigger else None,
    )  # fmt: skip


_Source = tuple[str, int]
_NOTHING: tuple["array[int]", "array[int]"] = (array("q"), array("q"))


def _publication_times(
    paths: Sequence[Path],
) -> dict[_Source, tuple["array[int]", "array[int]"]]:
    """Return per source intended and sent times by sequence number; 0 for an unused number.

    Fences have no intended time here, because their latency is not measured.
    """
    times: dict[_Source, tuple[array[int], array[int]]] = {}
    for path in paths:
        rows, tables = rows_of(path)
        if not tables.get("publishers"):
            continue
        fence = len(tables["attribute_sets"]) - 1
        words, halves = rows.cast("q"), rows.cast("I")
        columns = (words[0::4], words[1::4], words[2::4], halves[6::8], halves[7::8])
        known: dict[int, tuple[array[int], array[int]]] = {}
        for sequence, intended, sent, source, chosen in transpose(columns):
            of_source = known.get(source)
            if of_source is None:
                key = (tables["publishers"][source & 0xFFFF], source >> 16)
                of_source = known[source] = times.setdefault(key, (array("q"), array("q")))
            missing = sequence + 1 - len(of_source[0])
            if missing > 0:
                for column in of_source:
                    column.extend([0] * missing)
            if chosen != fence:
                of_source[0][sequence], of_source[1][sequence] = intended, sent
    return times


def _count_data(rows: memoryview, start: int, end: int) -> int:
    """Return the number of data publications in these rows that the application received."""
    kinds = rows[28::ROW_BYTES][start:end].tobytes()
    layers = rows[29::ROW_BYTES][start:end].tobytes()
    in_stretches = 0
    if STRETCH in kinds:
        counts = rows.cast("I")[4::8][start:end]
        in_stretches = sum(
            count for kind, count in zip(kinds, counts, strict=True) if kind == STRETCH
        )
    if layers.count(APPLICATION) == len(layers):
        return in_stretches + kinds.count(DATA)
    return in_stretches + sum(
        kind == DATA and layer == APPLICATION for kind, layer in zip(kinds, layers, strict=True)
    )


def _fill_times(
    times: Mapping[_Source, tuple["array[int]", "array[int]"]],
) -> dict[_Source, tuple["array[int]", "array[int]"]]:
    """Return intended times that never fall: an unused number has the time of its predecessor."""
    found = {}
    for source, (due, sent) in times.items():
        rising, latest = array("q"), 0
        for at in due:
            latest = max(latest, at)
            rising.append(latest)
        found[source] = rising, sent
    return found


def _count_earlier(
    rows: memoryview,
    start: int,
    end: int,
    publishers: Sequence[str],
    first: Mapping[_Source, int],
) -> int:
    """Count the data publications of some rows with a number below the first of their source.

    Args:
        first: by source, the first number that was due in the phase.
    """
    words, halves = rows.cast("q"), rows.cast("I")
    columns = (
        words[0::4][start:end], halves[4::8][start:end],
        halves[6::8][start:end], halves[7::8][start:end],
    )  # fmt: skip
    limits: dict[int, int] = {}
    found = 0
    for sequence, count, source, flags in transpose(columns):
        limit = limits.get(source)
        if limit is None:
            key = (publishers[source & 0xFFFF], source >> 16)
            limit = limits[source] = first.get(key, 0)
        if sequence < limit and flags >> 8 & 0xFF == APPLICATION:
            kind = flags & 0xFF
            found += count if kind == STRETCH else kind == DATA
    return found


def _sample(
    rows: memoryview, start: int, end: int, publishers: Sequence[str]
) -> Iterator[tuple[int, int, _Source]]:
    """Yield (sequence, received, source) of data rows; an evenly spread sample of many rows."""
    step = max(1, -(-(end - start) // LARGEST_SAMPLE))
    words, halves = rows.cast("q"), rows.cast("I")
    columns = (
        words[0::4][start:end:step], words[1::4][start:end:step],
        halves[6::8][start:end:step], halves[7::8][start:end:step],
    )  # fmt: skip
    for sequence, received, source, flags in transpose(columns):
        if flags & 0xFF == DATA and flags >> 8 & 0xFF == APPLICATION:
            yield sequence, received, (publishers[source & 0xFFFF], source >> 16)


def _delivery_values(found: PhaseRecords, duration_ns: int) -> dict[str, Any]:
    """Return counts, rates and latencies of the measure phase."""
    return {
        "published": found.published,
        "delivered": found.delivered,
        "delivered_per_s": found.delivered * 1e9 / duration_ns,
        "delivered_earlier": found.earlier,
        "delivered_new_per_s": (found.delivered - found.earlier) * 1e9 / duration_ns,
        "response_us": found.response_us,
        "service_us": found.service_us,
        "acknowledged_us": found.acknowledged_us,
        "around_faults": found.around_faults,
        "recovery": found.recovery,
    }


def _processor_values(
    found: PhaseRecords, duration_ns: int, cpu_s: tuple[Mapping[str, float], Mapping[str, float]]
) -> dict[str, Any]:
    """Return the processor time of each broker: share of a core, and per delivery."""
    before, after = cpu_s
    used_s = {broker: end_s - before.get(broker, 0.0) for broker, end_s in after.items()}
    return {
        "broker_core_share": {broker: s * 1e9 / duration_ns for broker, s in used_s.items()},
        "broker_cpu_us_per_message": {
            broker: s * 1e6 / found.delivered for broker, s in used_s.items() if found.delivered
        },
    }


def _limit_values(found: PhaseRecords, probe: UseProbe | None, *, has_rate: bool) -> dict[str, Any]:
    """Return the limit of a run, and the use of processors by load generators."""
    if probe is None:
        return {
            "limited_by": "",
            "load_cpu_us_per_message": {},
            "waited_share": {},
            "is_load_generator_limit": False,
        }
    uses = probe.uses()
    limit = limit_of(uses, probe.machines(), is_rate_met=has_rate and found.kept_up)
    return {
        "limited_by": limit.text if limit else "",
        "load_cpu_us_per_message": {
            use.name: use.ran_s * 1e6 / found.delivered
            for use in uses
            if found.delivered and use.kind == "load generator"
        },
        "waited_share": probe.compute_wait_shares(),
        "is_load_generator_limit": limit is not None and limit.is_of_load_generator,
    }
