"""Experiments in virtual time, and their run folders.

The same workload and fault files run on simulated brokers, without processes. The run folder has
the records of real load generators and of the injector, with stamps of the virtual clock, for the
usual verdicts and figures. No record comes from the brokers or from the oracle of the simulator.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.load.content import FENCE, ContentTables, SourceContent, content_digest
from bench.load.pacing import offsets_of
from bench.load.records import notice_rows
from bench.run.run_directory import OVERLAY_FILE, RunDirectory, overlay_document
from bench.spec.spec import ExperimentSpec, PublisherPlan
from bench.spec.validation import SpecError
from bench.spec.values import FASTEST_SIMULATED
from brokerd.history.records import (
    ACKNOWLEDGED,
    ACKS,
    APPLICATION,
    DATA,
    DELIVERIES,
    PUBLICATIONS,
    ROW_BYTES,
)
from brokerd.history.records import FENCE as FENCE_KIND
from brokerd.history.writer import LineWriter, RecordWriter
from brokerd.model.client_messages import Notice
from brokerd.model.fault_verbs import SIMULATED_VERBS
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.publication import Buffer
from brokerd.protocols.interface import Instant
from brokerd.protocols.registry import protocol_on
from brokerd.simulator.experiment import (
    SimulatedPublisher,
    SimulatedStep,
    SimulatedSubscriber,
    SimulatedVerdict,
    simulate_schedule,
)
from brokerd.text import toml_text
from brokerd.wire.attributes import encode_attributes
from fault_injection.apply.log import FaultLog
from fault_injection.schedule.plan import PlannedStep, expand
from fault_injection.schedule.schedule import FaultSchedule, Problem, ScheduleError
from fault_injection.schedule.step import END
from fault_injection.schedule.targets import explain_unsimulated, read_target
from results.rules.terms import Partition

HOST = "simulated"
PUBLISHING, SUBSCRIBING = "load-publishers", "load-subscribers"

_DAY_NS = 86_400 * 1_000_000_000
"""Initial time of the virtual clock, because 0 means "never" in records."""


class SimulatedRun:
    """An ExperimentRecorder that writes a run folder during the experiment.

    Attributes:
        directory: the folder of the run.
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        schedule: FaultSchedule | None,
        steps: Sequence[PlannedStep],
        directory: RunDirectory,
    ) -> None:
        self.directory = directory
        self._spec = spec
        self._now: Callable[[], Instant] = lambda: 0
        self._tables: dict[int, ContentTables] = {}
        self._fence_blob = encode_attributes({FENCE: directory.run_id})
        self._plans = {plan.name: plan for plan in spec.publisher_plans()}
        self._subscribers = {plan.name: plan for plan in spec.subscriber_plans()}
        self._numbers = {name: number for number, name in enumerate(self._subscribers)}
        self._issued: dict[ClientId, int] = {}
        self._started: set[ClientId] = set()
        self._sources: dict[ClientId, SourceId] = {}
        self._identities: list[str] = []
        self._contents: dict[ClientId, SourceContent] = {}
        self._seen: list[str] = []
        self._partitions: list[Partition] = []
        self._begin(schedule)
        folder = directory.raw_folder(HOST, PUBLISHING)
        self._publications = RecordWriter(folder, PUBLICATIONS, directory.run_id)
        self._acks = RecordWriter(folder, ACKS, directory.run_id)
        folder = directory.raw_folder(HOST, SUBSCRIBING)
        self._deliveries = RecordWriter(folder, DELIVERIES, directory.run_id)
        self._subscriptions = LineWriter(folder / "subscriptions.jsonl")
        self._gaps: LineWriter | None = None
        self._gaps_path = folder / "gaps.jsonl"
        self._absences: LineWriter | None = None
        self._absences_path = folder / "absences.jsonl"
        self._rows = 0
        self._faults: FaultLog | None = None
        if schedule is not None:
            self._faults = FaultLog(directory.path / "faults")
            self._faults.plan(steps, "")

    def _begin(self, schedule: FaultSchedule | None) -> None:
        spec, directory = self._spec, self.directory
        directory.begin(
            spec.name,
            {
                "protocol": spec.protocol,
                "promises": protocol_on(spec.topology, spec.protocol).promises().as_mapping(),
                "protocol_words": protocol_on(spec.topology, spec.protocol).words(),
                "seed": spec.seed,
                "workload": spec.workload.name,
                "topology": spec.topology.name,
                "joined": [row.name for row in spec.topology.joined],
                "schedule": schedule.name if schedule else None,
                "labels": {**spec.labels, "brokers": "simulated"},
                "phases": [],
                "clock": {"host_id": HOST, "boot_id": directory.run_id},
            },
        )
        directory.write_spec("workload.toml", spec.workload_toml())
        directory.write_spec("topology.toml", spec.topology_toml())
        origins = [plan.broker for plan in spec.publisher_plans()]
        if overlay := overlay_document(spec.topology, spec.protocol, origins):
            directory.write_spec(OVERLAY_FILE, overlay)
        directory.write_spec("cli.json", {"overrides": dict(spec.overrides), "file": spec.source})
        if schedule is not None:
            directory.write_spec("faults.toml", toml_text(schedule.to_mapping()))
        directory.close_specification()

    # ------------------------------------------------------------ events of the experiment

    def began(self, now: Callable[[], Instant]) -> None:
        self._now = lambda: now() + _DAY_NS

    def phase(self, name: str) -> None:
        now_ns, phases = self._now(), self.directory.manifest["phases"]
        if phases:
            phases[-1]["t1_ns"] = now_ns
        if name == "measure":
            self.directory.manifest["origin_ns"] = now_ns
        if name == "end":
            self._close()
        else:
            phases.append({"phase": name, "t0_ns": now_ns, "t1_ns": None})

    def on_subscribing(self, client: ClientId) -> None:
        self._issued[client] = self._now()

    def fence(self, client: ClientId, sequence: int) -> tuple[bytes, bytes]:
        tables = self._tables_of(self._plans[client])
        _, payload = self._content(client).choice(sequence)
        return self._fence_blob, tables.payloads[payload]

    def published(
        self, client: ClientId, sequence: int, intended_ns: Instant, *, fence: bool
    ) -> None:
        source = self._sources[client]
        chosen, _ = self._content(client).choice(sequence)
        if fence:
            chosen = self._spec.workload.sets
        self._publications.append(
            PUBLICATIONS.row.pack(
                sequence, intended_ns + _DAY_NS, self._now(),
                self._identities.index(self._identity(source)), source.incarnation, chosen,
            )
        )  # fmt: skip

    def absence(self, client: ClientId, left_ns: Instant) -> None:
        if self._absences is None:
            self._absences = LineWriter(self._absences_path)
        self._absences.write(
            {"subscriber": client, "t_left_ns": left_ns + _DAY_NS, "t_back_ns": self._now()}
        )

    def fault(self, step: str, stage: str) -> None:
        assert self._faults is not None, f"{step} is in no schedule"
        now_ns = self._now()
        if stage == "applied":
            self._faults.note(step, "requested", now_ns)
            self._faults.note(step, "applied", now_ns)
            self._faults.note(step, "observed", now_ns, {"by": "simulator"})
        elif stage == "healed":
            self._faults.note(step, "healed", now_ns, healed_by="schedule")
        elif stage == "recovered":
            self._faults.note(step, "recovered", now_ns)

    # ------------------------------------------------------------ events of clients

    def on_connected(self, client: ClientId, source: SourceId | None) -> None:
        if source is not None and client not in self._sources:
            self._sources[client] = source
            self._identities.append(self._identity(source))

    def on_started(self, client: ClientId, number: int) -> None:
        if client in self._started:
            return
        self._started.add(client)
        plan = self._subscribers[client]
        self._subscriptions.write(
            {
                "sub_id": f"{client}/{number}",
                "subscriber": client,
                "broker": plan.broker,
                "predicate": plan.entry.predicate,
                "t_issued_ns": self._issued[client],
                "t_accepted_ns": self._now(),
            }
        )

    def on_delivered(
        self,
        client: ClientId,
        number: int,
        source: SourceId,
        sequence: int,
        blob: bytes,
        payload: Buffer,
    ) -> None:
        kind = FENCE_KIND if blob == self._fence_blob else DATA
        self._rows += 1
        self._deliveries.append(
            DELIVERIES.row.pack(
                sequence, self._now(), content_digest(blob, payload), self._numbers[client],
                self._note_number(source), source.incarnation, kind, APPLICATION, 0,
            )
        )  # fmt: skip

    def on_withheld(self, client: ClientId, notice: Notice) -> None:
        brokers = self._spec.topology.brokers
        partition = Partition(
            brokers[notice.partition.detector],
            notice.partition.incarnation,
            notice.partition.number,
            tuple(brokers[node] for node in notice.partition.nodes),
        )
        if partition not in self._partitions:
            self._partitions.append(partition)
        rows = notice_rows(
            notice.ranges, self._now(), self._numbers[client],
            self._note_number(notice.source), notice.source.incarnation,
            self._partitions.index(partition),
        )  # fmt: skip
        self._deliveries.append(rows)
        self._rows += len(rows) // ROW_BYTES

    def on_gap(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int, reason: str
    ) -> None:
        if self._gaps is None:
            self._gaps = LineWriter(self._gaps_path)
        self._gaps.write(
            {
                "t_ns": self._now(),
                "sub_id": f"{client}/{number}",
                "source": self._identity(source),
                "incarnation": source.incarnation,
                "first": first,
                "last": last,
                "place": self._rows,
                "reason": reason,
            }
        )

    def on_acknowledged(self, client: ClientId, sequence: int) -> None:
        source = self._sources[client]
        number = self._identities.index(self._identity(source))
        row = (sequence, sequence, self._now(), number, source.incarnation, ACKNOWLEDGED)
        self._acks.append(ACKS.row.pack(*row))

    # ------------------------------------------------------------ internals

    def _identity(self, source: SourceId) -> str:
        return f"{self._spec.topology.brokers[source.broker]}/{source.publisher}"

    def _note_number(self, source: SourceId) -> int:
        identity = self._identity(source)
        if identity not in self._seen:
            self._seen.append(identity)
        return self._seen.index(identity)

    def _tables_of(self, plan: PublisherPlan) -> ContentTables:
        if plan.entry.size_bytes not in self._tables:
            spec = self._spec
            self._tables[plan.entry.size_bytes] = ContentTables.build(
                spec.seed,
                spec.attribute_sets(),
                plan.entry.size_bytes,
                encode_attributes,
                spec.workload.attributes,
            )
        return self._tables[plan.entry.size_bytes]

    def _content(self, client: ClientId) -> SourceContent:
        if client not in self._contents:
            plan = self._plans[client]
            incarnation = self._sources[client].incarnation
            self._contents[client] = SourceContent(
                self._tables_of(plan), self._spec.seed, plan.index, incarnation
            )
        return self._contents[client]

    def _close(self) -> None:
        sets: list[Mapping[str, Any]] = [*self._spec.attribute_sets()]
        tables = {
            "publishers": self._identities,
            "publisher_names": {
                self._identity(source): name for name, source in self._sources.items()
            },
            "attribute_sets": [*sets, {FENCE: self.directory.run_id}],
        }
        self._publications.close(tables)
        self._acks.close(tables)
        self._deliveries.close(
            {
                "publishers": self._seen,
                "subscriptions": [f"{name}/1" for name in self._subscribers],
                "partitions": [asdict(partition) for partition in self._partitions],
            }
        )
        self._subscriptions.close()
        for lines in (self._gaps, self._absences):
            if lines is not None:
                lines.close()
        if self._faults is not None:
            self._faults.close()
        self.directory.end("complete")


def simulate_experiment(
    spec: ExperimentSpec,
    schedule: FaultSchedule | None,
    *,
    mutants: frozenset[str] = frozenset(),
    directory: RunDirectory | None = None,
) -> SimulatedVerdict:
    """Run a workload with the faults of a schedule on simulated brokers, and judge the run.

    Contents, predicates and intended times equal the deployed experiment with the same seed. A
    publisher without a rate publishes 1,000 times a second, because a simulated broker has no
    highest rate.

    Args:
        mutants: named bugs of every broker.
        directory: folder of a run that can be judged from its records alone.

    Raises:
        ScheduleError, SpecError: see `count_simulated_steps`.
    """
    simulated = count_simulated_steps(spec, schedule)
    duration_ns = spec.workload.phases.measure
    steps = expand(schedule, spec.seed) if schedule is not None else ()
    recorder = None
    fence = ""
    if directory is not None:
        recorder = SimulatedRun(spec, schedule, steps, directory)
        fence = f" or fence = '{directory.run_id}'"
    return simulate_schedule(
        spec.topology,
        spec.protocol,
        [_publisher(spec, plan, duration_ns) for plan in spec.publisher_plans()],
        [
            SimulatedSubscriber(
                plan.name,
                plan.broker,
                f"({plan.entry.predicate}){fence}" if fence else plan.entry.predicate,
                plan.subscribes_ns,
                plan.absences,
            )
            for plan in spec.subscriber_plans()
        ],
        simulated,
        duration_ns=duration_ns,
        seed=spec.seed,
        calm=spec.workload.calm,
        mutants=mutants,
        recorder=recorder,
    )


def count_simulated_steps(
    spec: ExperimentSpec, schedule: FaultSchedule | None
) -> list[SimulatedStep]:
    """Return the steps on simulated brokers, without a run.

    Raises:
        ScheduleError: the schedule has verbs that simulated brokers do not support.
        SpecError: the workload has failover brokers, which simulated clients do not support.
    """
    workload = spec.workload
    if any(entry.failover for entry in workload.publishers) or any(
        entry.failover for entry in workload.subscribers
    ):
        raise SpecError(
            f"{spec.source}: failover: simulated clients stay at their brokers; those of "
            "`pubsubctl bench` go on elsewhere, and those of a swarm's plans do"
        )
    steps = expand(schedule, spec.seed) if schedule is not None else ()
    return [_step(spec, step) for step in steps]


def _publisher(spec: ExperimentSpec, plan: PublisherPlan, duration_ns: int) -> SimulatedPublisher:
    tables = ContentTables.build(
        spec.seed,
        spec.attribute_sets(),
        plan.entry.size_bytes,
        encode_attributes,
        spec.workload.attributes,
    )
    source = SourceContent(tables, spec.seed, plan.index, incarnation=1)

    def content(sequence: int) -> tuple[bytes, bytes]:
        _, payload = source.choice(sequence)
        return source.blob(sequence), tables.payloads[payload]

    offsets = _offsets(spec, plan, duration_ns)
    return SimulatedPublisher(plan.name, plan.broker, offsets, content)


def _offsets(spec: ExperimentSpec, plan: PublisherPlan, duration_ns: int) -> Iterator[int]:
    for chunk in offsets_of(
        plan.entry.rate.per_second or FASTEST_SIMULATED,
        plan.entry.rate.segments(0, duration_ns),
        arrivals=plan.entry.arrivals,
        seed=spec.seed,
        index=plan.index,
        duration_ns=duration_ns,
    ):
        yield from chunk


def _step(spec: ExperimentSpec, step: PlannedStep) -> SimulatedStep:
    target = read_target(step.on, spec.topology, step.verb)
    if why := explain_unsimulated(step.verb, target):
        text = (
            f"{why}; simulated are {', '.join(SIMULATED_VERBS)}; "
            "`simulate run --skip-unsimulated` leaves the step out"
        )
        raise ScheduleError([Problem("faults", step.id, "do", step.verb, text)])
    after = step.after
    if after is not None and after[1] == END:
        after = (after[0], "end")
    return SimulatedStep(
        step.id,
        step.verb,
        target.brokers,
        step.at_ns,
        after,
        step.delay_ns,
        step.duration_ns,
        target.one_way,
        released=not step.ended_by,
    )
