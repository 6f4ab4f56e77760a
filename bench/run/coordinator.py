"""The coordinator of a deployed experiment: warm-up, measure, faults, drain, collect.

The coordinator waits for facts rather than for fixed times: attached clients, started
subscriptions, received fences. After any error, and on Ctrl-C, it heals all faults and ends the
load generators in order. It then collects the existing records, with a manifest that contains the
reason why the run is incomplete.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio

from bench.load.load_control import LoadControl
from bench.load.load_plan import RunningLoad, client_suffix, load_processes
from bench.run.clocks import record_clocks
from bench.run.collection import RecordFolder, RunEnd, collect_records, end_run, write_uncollected
from bench.run.limits import StampedStatus, UseProbe
from bench.run.outcome import RunOutcome, outcome_of
from bench.run.run_directory import CHANGES_FILE, OVERLAY_FILE, RunDirectory, RunState
from bench.run.run_statistics import ProcessorTime
from bench.run.system_under_test import OurBrokers, UnderTest
from bench.run.testbed import Progress, RunFailed, Testbed
from bench.spec.spec import ExperimentSpec
from brokerd.errors import ControlError
from brokerd.storage.files import is_no_room
from brokerd.text import toml_text
from fault_injection.apply.backends import ClientFaults, WithClients
from fault_injection.apply.injector import Injection, Injector
from fault_injection.apply.log import FaultLog
from fault_injection.schedule.schedule import FaultSchedule

OPENING_TIMEOUT_S = 120.0
"""Time limit for the opening fences. Brokers keep subscriptions of vanished clients for a minute,
so that a run after another run on the same brokers has to wait for the end of the linger."""
CLEAN_UP_TIMEOUT_S = 120.0
START_LEAD_NS = 300_000_000
SECOND_NS = 1_000_000_000

_SAMPLE_S = 1.0
_SAMPLE_SHARE = 10
"""Greatest share of time for samples of processes, as a divisor."""
_SHOW_S = 0.5
_BROKER_LOGS = ("stdout.log", "stderr.log")

logger = logging.getLogger(__name__)


async def run_experiment(
    spec: ExperimentSpec,
    testbed: Testbed,
    run_directory: Path,
    schedule: FaultSchedule | None,
    progress: Progress,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
    under_test: UnderTest | None = None,
    rolling: int = 0,
) -> RunOutcome:
    """Run an experiment on ready brokers, and collect all records.

    The `state` of the outcome is "complete", or "partial" if the load generators were too slow for
    evidence or if an error occurred after their start.

    Args:
        meanwhile: action during the measurement; the run drains when both are over.
        under_test: the brokers of the run; the project's own by default.
        rolling: the number of brokers that `meanwhile` replaces at once, until all are; 0 for none.

    Raises:
        RunFailed: a step before the load failed; the run directory contains the records so far.
        OSError: this machine has no room; the records stay on their hosts (`bench.run.collection`).
        ControlError: an agent or load generator refused a command before the load.
    """
    directory = RunDirectory(run_directory)
    under_test = under_test or OurBrokers()
    experiment = _Experiment(
        spec, testbed, directory, schedule, progress, meanwhile, under_test, rolling
    )
    return await experiment.run()


class _Experiment:
    def __init__(
        self,
        spec: ExperimentSpec,
        testbed: Testbed,
        directory: RunDirectory,
        schedule: FaultSchedule | None,
        progress: Progress,
        meanwhile: Callable[[], Awaitable[None]] | None,
        under_test: UnderTest,
        rolling: int,
    ) -> None:
        self._spec = spec
        self._under_test = under_test
        self._meanwhile = meanwhile
        self._rolling = rolling
        self._testbed = testbed
        self._directory = directory
        self._schedule = schedule
        self._progress = progress
        self._run_id = directory.run_id
        self._load = LoadControl(
            testbed, load_processes(spec, testbed, directory.run_id, under_test), progress
        )
        self._begun: list[str] = []
        self._processor_time = ProcessorTime()
        self._statuses: Mapping[str, StampedStatus] = {}
        self._broker_pids: dict[str, int] = {}
        self._exited: set[str] = set()
        self._cpu_s: tuple[dict[str, float], dict[str, float]] = ({}, {})
        self._probe = UseProbe(
            _processes_by_host(testbed),
            testbed.clients_host,
            [process.name for process in self._load.processes],
        )
        self._origin_ns = 0
        self._clocks_ahead_ns: Mapping[str, int] = {}
        self._injection: Injection | None = None
        self._notes: list[str] = []
        self._is_collecting = False

    # ------------------------------------------------------------ the whole run

    async def run(self) -> RunOutcome:
        self._write_partial_records()
        reached_measure = False
        try:
            await self._prepare()
            reached_measure = True
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sample_brokers)
                await self._load_and_break()
                nursery.cancel_scope.cancel()
            # A broker that was restarted since the last sample logs the end of the run, too.
            await self._processor_seconds()
            return await self._conclude("complete")
        except BaseException as error:
            if self._is_collecting and isinstance(error, OSError) and is_no_room(error):
                self._directory.leave()
                raise
            reason = _describe_end(error)
            logger.warning("run %s: %s", self._run_id, reason)
            outcome: RunOutcome | None = None
            limit_s = self._load.timeout_s(CLEAN_UP_TIMEOUT_S)
            with trio.CancelScope(shield=True), trio.move_on_after(limit_s):
                outcome = await self._conclude("partial" if reached_measure else "aborted", reason)
            if outcome is not None and reached_measure and _is_foreseen(error):
                return outcome  # a partial outcome is more useful than an error
            # Nurseries wrap errors in groups; the user needs the sentence of the error.
            if (cause := find_only_cause(error)) is not None:
                raise cause from error
            raise

    async def _conclude(self, state: RunState, reason: str = "") -> RunOutcome:
        """End the load generators, collect all records, close the directory.

        Raises:
            OSError: this machine has no room. The records stay on their hosts, and
                `collection.collect_later` ends the run.
        """
        self._progress.phase("collecting")
        for problem in await self._load.finish():
            self._note(problem)
        for name, answer in self._load.finished.items():
            self._log_closed(name, answer["digests"])
        await self._end_run_at_brokers()
        self._directory.manifest["disk_bytes"] = await self._disk_bytes()
        reasons = [reason] if reason else []
        self._is_collecting = True
        folders = self._record_folders()
        write_uncollected(self._directory.path, folders, self._describe_end(state, reasons))
        for problem in await collect_records(self._testbed, self._directory, folders):
            self._note(problem)
        outcome = await self._evaluate(state, reasons)
        # In a thread: hashing takes long, and the deployment's lease must be renewed meanwhile.
        await trio.to_thread.run_sync(end_run, self._directory, outcome)
        if outcome.state != "complete":
            where = outcome.run_directory
            self._progress.print(f"the run is {outcome.state}; what there is of it is in {where}")
        return outcome

    def _write_partial_records(self) -> None:
        spec, testbed, directory = self._spec, self._testbed, self._directory
        directory.begin(
            spec.name,
            {
                "protocol": spec.protocol,
                **self._under_test.facts(spec),
                "seed": spec.seed,
                "workload": spec.workload.name,
                "topology": spec.topology.name,
                "topology_digest": testbed.topology_digest,
                "joined": [row.name for row in spec.topology.joined],
                "deployment_id": testbed.deployment_id,
                "transport": testbed.transport,
                "broker_nice": dict(testbed.broker_nice),
                "without_fsync": list(testbed.without_fsync),
                "schedule": self._schedule.name if self._schedule else None,
                **({"rolling": self._rolling} if self._rolling else {}),
                "labels": dict(spec.labels),
                "payload_bytes": _find_common(
                    plan.entry.size_bytes for plan in spec.publisher_plans()
                ),
                "phases": [],
                "roles": {
                    **{
                        place.process: {"role": "broker", "host": place.host}
                        for place in testbed.brokers.values()
                    },
                    **{
                        process.name: {"role": process.role, "host": testbed.clients_host}
                        for process in self._load.processes
                    },
                },
            },
        )
        directory.write_spec("workload.toml", spec.workload_toml())
        directory.write_spec("topology.toml", spec.topology_toml())
        if spec.topology.joined or spec.topology.left:
            directory.write_spec(CHANGES_FILE, toml_text(spec.topology.to_mapping()))
        if overlay := self._under_test.overlay(spec):
            directory.write_spec(OVERLAY_FILE, overlay)
        directory.write_spec("cli.json", {"overrides": dict(spec.overrides), "file": spec.source})
        if self._schedule is not None:
            directory.write_spec("faults.toml", toml_text(self._schedule.to_mapping()))
        for name, content in testbed.documents.items():
            directory.write_spec(name, content)
        directory.close_specification()

    # ------------------------------------------------------------ before the load

    async def _prepare(self) -> None:
        """Start the load generators; return when all subscribers have received all first fences."""
        testbed, progress = self._testbed, self._progress
        status = await testbed.clients_agent.status()
        self._directory.manifest["clock"] = {
            "host_id": testbed.clients_host,
            "boot_id": status["boot_id"],
        }
        self._clocks_ahead_ns = await record_clocks(
            testbed.agents, testbed.clients_host, self._directory, "before"
        )
        self._begin_phase("deploy")
        progress.phase("preparing")
        for broker in testbed.brokers:
            await self._begin_run_at(broker)
        suffix = client_suffix(self._run_id)
        await self._load.start(
            await testbed.certificate_for_clients(suffix),
            self._directory.manifest["specification_digest"],
        )
        write_uncollected(self._directory.path, self._record_folders())
        progress.phase("attaching clients")
        await self._load.attach()
        progress.phase("subscribing")
        await self._load.subscribe()
        progress.phase("opening fences")
        await self._load.open(OPENING_TIMEOUT_S)

    async def _begin_run_at(self, broker: str) -> None:
        loss = await self._under_test.begin_run(self._testbed, broker, self._run_id)
        if loss:
            self._directory.log("loss_accepted", broker=broker, **loss)
        if broker not in self._begun:
            self._begun.append(broker)

    # ------------------------------------------------------------ under load

    async def _load_and_break(self) -> None:
        """Run warm-up, measurement with the schedule, closing fences and drain."""
        phases = self._spec.workload.phases
        t0_ns = await self._load.now_ns() + START_LEAD_NS
        self._origin_ns = t0_ns + phases.warmup
        end_ns = self._origin_ns + phases.measure
        self._directory.manifest["origin_ns"] = self._origin_ns
        for process in self._load.publisher_processes:
            await self._load.send(
                process, "start", t0_ns=t0_ns, measure_from_ns=self._origin_ns, end_ns=end_ns
            )
        for process in self._load.subscriber_processes:
            await self._load.send(process, "churn", measure_from_ns=self._origin_ns)
        self._begin_phase("warmup", t0_ns)
        self._progress.phase("warm-up", phases.warmup / SECOND_NS)
        async with trio.open_nursery() as watching:
            watching.start_soon(self._show)
            await self._sleep_until(self._origin_ns)
            async with trio.open_nursery() as nursery:
                if self._schedule is not None:
                    nursery.start_soon(self._inject, self._schedule)
                if self._meanwhile is not None:
                    nursery.start_soon(self._run_action, self._meanwhile, end_ns)
                self._begin_phase("measure", self._origin_ns)
                self._progress.phase("measure", phases.measure / SECOND_NS)
                before = await self._processor_seconds()
                self._log_processors("begun", before)
                self._probe.begin(self._statuses)
                await self._sleep_until(end_ns)
                self._cpu_s = (before, await self._processor_seconds())
                self._log_processors("ended", self._cpu_s[1])
                self._probe.end(self._statuses)
                self._begin_phase("drain", end_ns)
                self._progress.phase("drain", None)
            watching.cancel_scope.cancel()
        # Closing fences follow the last healed fault, so that all closed publications are owed.
        await self._drain(phases.drain / SECOND_NS, phases.longest_drain_ns / SECOND_NS)
        await record_clocks(
            self._testbed.agents, self._testbed.clients_host, self._directory, "after"
        )

    async def _run_action(self, meanwhile: Callable[[], Awaitable[None]], end_ns: int) -> None:
        """Run the action under load; add a note if the load ended first."""
        if self._rolling:
            self._directory.log("rolling", stage="begun", at_ns=self._now_ns())
        await meanwhile()
        if self._rolling:
            self._directory.log("rolling", stage="ended", at_ns=self._now_ns())
        late_s = (await self._load.now_ns() - end_ns) / SECOND_NS
        if late_s > 0:
            self._note(
                f"what was to be done under load took {late_s:.0f} s longer than the load; "
                "measure longer (--duration)"
            )

    async def _inject(self, schedule: FaultSchedule) -> None:
        """Carry out the schedule; heal and log every fault, whatever happens."""
        log = FaultLog(self._directory.path / "faults", self._report_fault)
        # Agents remember the ids of faults, so each run needs its own.
        prefix = f"{self._run_id.rpartition('-')[2]}-"
        injector = Injector(
            await self._under_test.settle(schedule),
            self._fault_backend(),
            log,
            prefix=prefix,
            # The origin is a time of the clients' clock, possibly of another machine.
            clock_ns=self._now_ns,
        )
        try:
            await injector.run(self._origin_ns)
        finally:
            log.close()
            self._injection = injector.outcome()
            self._notes += self._injection.problems

    def _fault_backend(self) -> WithClients:
        ahead_ns = self._lead_over_clients_ns()
        load = RunningLoad(self._testbed, self._load.processes)
        return WithClients(
            self._under_test.backend(self._testbed, ahead_ns), ClientFaults(load, ahead_ns)
        )

    def _report_fault(self, line: Mapping[str, Any]) -> None:
        self._directory.log("fault", **line)
        if line["stage"] in ("applied", "healed", "recovered", "failed"):
            at_s = (line["t_ns"] - self._origin_ns) / SECOND_NS
            why = f": {line['evidence'].get('reason', '')}" if line["stage"] == "failed" else ""
            self._progress.print(
                f"{at_s:7.2f} s  {line['verb']} {line['target']} {line['stage']}{why}"
            )

    async def _drain(self, limit_s: float, bound_s: float) -> None:
        """Wait until subscribers have the closing fences and publications are acknowledged."""
        began_ns = time.monotonic_ns()
        await self._load.send_all("stop")
        drained = await self._load.close(limit_s, bound_s)
        took_s = (time.monotonic_ns() - began_ns) / SECOND_NS
        self._directory.manifest["drain"] = {
            "ended_by": drained.ended_by,
            "took_s": took_s,
            "waiting_for": drained.waiting_for,
        }
        if drained.waiting_for:
            text = f"drain ended after {took_s:.0f} s, waiting for {drained.waiting_for}"
            self._progress.print(text)
        self._end_phase(await self._load.now_ns())

    async def _sleep_until(self, at_ns: int) -> None:
        """Sleep until the clients' clock shows `at_ns`, however busy the load generators are."""
        while (left_ns := at_ns - self._now_ns()) > 0:
            await trio.sleep(left_ns / SECOND_NS)

    async def _show(self) -> None:
        """Show the progress, and detect the end of a load generator."""
        while True:
            await trio.sleep(_SHOW_S)
            await self._load.show()

    def _now_ns(self) -> int:
        """Return the estimated time of the clients' clock."""
        return time.monotonic_ns() + self._clocks_ahead_ns.get(self._testbed.clients_host, 0)

    def _lead_over_clients_ns(self) -> dict[str, int]:
        """Return the lead of each host's clock over the clients' clock."""
        ahead_ns = self._clocks_ahead_ns
        own_ns = ahead_ns.get(self._testbed.clients_host, 0)
        return {host: ns - own_ns for host, ns in ahead_ns.items()}

    # ------------------------------------------------------------ brokers

    async def _sample_brokers(self) -> None:
        """Sample processor times, and announce the run to restarted brokers."""
        while True:
            began_s = trio.current_time()
            await self._processor_seconds()
            took_s = trio.current_time() - began_s
            await trio.sleep(max(_SAMPLE_S, _SAMPLE_SHARE * took_s))

    async def _processor_seconds(self) -> dict[str, float]:
        """Return the processor time of each broker so far, restarts included."""
        rows: dict[str, Mapping[str, Any]] = {}
        statuses: dict[str, StampedStatus] = {}
        for host, agent in self._testbed.agents.items():
            status = await agent.status()
            statuses[host] = StampedStatus(trio.current_time(), status)
            processes = status["processes"]
            for broker, place in self._testbed.brokers.items():
                if place.host == host and place.process in processes:
                    rows[broker] = processes[place.process]
        self._statuses = statuses
        self._processor_time.sample(rows)
        for broker, row in rows.items():
            known = self._broker_pids.setdefault(broker, row["pid"])
            if row["state"] != "running" or row["pid"] != known:
                self._exited.add(self._testbed.brokers[broker].process)
            if row["state"] == "running" and row["pid"] != known:
                await self._begin_run_again(broker, row["pid"])
        return self._processor_time.totals_s()

    async def _begin_run_again(self, broker: str, pid: int) -> None:
        """Announce the run to a restarted broker; the samples of two tasks may overlap here."""
        known = self._broker_pids[broker]
        self._broker_pids[broker] = pid
        is_begun = False
        try:
            await self._begin_run_at(broker)
            is_begun = True
        except ControlError as error:
            logger.info("broker %s is not ready for the run yet: %s", broker, error)
        finally:
            if not is_begun:
                self._broker_pids[broker] = known

    # ------------------------------------------------------------ the end

    async def _end_run_at_brokers(self) -> None:
        for broker in self._begun:
            try:
                digests = await self._under_test.end_run(self._testbed, broker)
                self._log_closed(self._testbed.brokers[broker].process, digests)
            except ControlError as error:
                logger.info("broker %s did not end the run: %s", broker, error)

    def _log_closed(self, process: str, digests: Mapping[str, str]) -> None:
        """Log the files that a process closed, as the process saw them itself."""
        if digests:
            self._directory.log("closed", process=process, digests=dict(digests))

    async def _disk_bytes(self) -> dict[str, int]:
        """Return the size of each broker's files at the end, for every host that answers."""
        found: dict[str, int] = {}
        for host, agent in self._testbed.agents.items():
            try:
                sizes = (await agent.disk())["disk_bytes"]
            except ControlError as error:
                logger.info("%s did not report the contents of its disk: %s", host, error)
                continue
            for broker, place in self._testbed.brokers.items():
                if place.host == host and place.process in sizes:
                    found[broker] = sizes[place.process]
        return found

    def _record_folders(self) -> list[RecordFolder]:
        """Return the folders with the files that every process writes for this run."""
        testbed, found = self._testbed, list[RecordFolder]()
        for place in testbed.brokers.values():
            folder = testbed.run_folder(place.host, self._run_id, place.process)
            found.append(RecordFolder(place.host, place.process, str(folder)))
            # The output of a broker belongs to no run, but explains failures.
            ends = ["exit.json"] if place.process in self._exited else []
            found.append(RecordFolder(place.host, place.process, None, (*_BROKER_LOGS, *ends)))
        host = testbed.clients_host
        for process in self._load.started:
            folder = testbed.run_folder(host, self._run_id, process.name)
            found.append(RecordFolder(host, process.name, str(folder)))
        return found

    def _describe_end(self, state: RunState, reasons: Sequence[str]) -> RunEnd:
        """Return the facts for the end of a run after a later collection."""
        injection, probe = self._injection, self._probe
        return RunEnd(
            state=state,
            reasons=[*reasons, *self._notes],
            manifest=self._directory.manifest,
            journal_bytes=self._directory.journal_bytes,
            measured=self._measured(),
            finished=[*self._load.finished.values()],
            lateness_limit_ns=self._spec.workload.thresholds.loadgen_lateness_p99.limit_ns,
            cpu_s=self._cpu_s,
            has_rate=self._has_rate(),
            ready_after_s=self._testbed.ready_after_s,
            waited_share=probe.compute_wait_shares() if probe.is_complete else None,
            not_healed=injection.not_healed if injection else (),
            down=injection.down if injection else (),
        )

    def _measured(self) -> tuple[int, int] | None:
        """Return the measure phase; None if the run never reached the phase."""
        if not self._origin_ns:
            return None
        return self._origin_ns, self._origin_ns + self._spec.workload.phases.measure

    def _has_rate(self) -> bool:
        return all(plan.entry.rate.per_second for plan in self._spec.publisher_plans())

    async def _evaluate(self, state: RunState, reasons: list[str]) -> RunOutcome:
        """Return the outcome of the run, as complete as the records allow."""
        return await trio.to_thread.run_sync(
            partial(
                outcome_of,
                self._directory.path,
                state,
                [*reasons, *self._notes],
                self._measured(),
                [*self._load.finished.values()],
                self._spec.workload.thresholds.loadgen_lateness_p99.limit_ns,
                self._cpu_s,
                self._injection,
                self._probe if self._probe.is_complete else None,
                has_rate=self._has_rate(),
                ready_after_s=self._testbed.ready_after_s,
                shapes=self._spec.rate_shapes(),
            )
        )

    # ------------------------------------------------------------ notes

    def _log_processors(self, stage: str, used_s: Mapping[str, float]) -> None:
        """Log the processor time of each broker, of which the headline is made."""
        self._directory.log("processors", stage=stage, seconds=dict(used_s))

    def _begin_phase(self, name: str, at_ns: int | None = None) -> None:
        at_ns = self._now_ns() if at_ns is None else at_ns
        self._end_phase(at_ns)
        how = "fixed" if name in ("warmup", "measure") else "evidence"
        phase = {"phase": name, "t0_ns": at_ns, "t1_ns": None, "how": how}
        self._directory.manifest["phases"].append(phase)
        self._directory.log("phase", phase=name, at_ns=at_ns)
        self._directory.write_manifest()

    def _end_phase(self, at_ns: int) -> None:
        phases = self._directory.manifest["phases"]
        if phases and phases[-1]["t1_ns"] is None:
            phases[-1]["t1_ns"] = at_ns

    def _note(self, text: str) -> None:
        logger.warning("%s", text)
        self._notes.append(text)


def _processes_by_host(testbed: Testbed) -> dict[str, dict[str, str]]:
    """Return by host a map from process names of the agent to brokers."""
    found: dict[str, dict[str, str]] = {host: {} for host in testbed.agents}
    for broker, place in testbed.brokers.items():
        found[place.host][place.process] = broker
    return found


def _find_common(values: Iterable[int]) -> int | None:
    """Return the common value; None if the values differ."""
    found = {*values}
    return found.pop() if len(found) == 1 else None


def find_only_cause(error: BaseException) -> Exception | None:
    """Return the only exception in nested groups; None for several exceptions or a cancellation."""
    while isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) != 1:
            return None
        error = error.exceptions[0]
        if isinstance(error, Exception) and not isinstance(error, ExceptionGroup):
            return error
    return None


def _is_foreseen(error: BaseException) -> bool:
    """Return True if every error is an expected error of a run."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_foreseen, error.exceptions))
    return isinstance(error, RunFailed | ControlError)


def _describe_end(error: BaseException) -> str:
    """Return the reason of the end of a run, for its manifest."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_describe_end(inner) for inner in error.exceptions))
    if isinstance(error, trio.Cancelled | KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, RunFailed | ControlError):
        return str(error)
    return f"{type(error).__name__}: {error}"
