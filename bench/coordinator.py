"""Carries out a deployed experiment: warm-up, measure, faults, drain, collect.

Nothing waits for a fixed time where it can wait for a fact: clients are attached, subscriptions
started, fences seen. Whatever goes wrong, and on Ctrl-C, faults are healed, load generators end
their files in order, and what there is of the run is brought home with a manifest that says why
it is not complete.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import trio

from bench.clocks import record_clocks
from bench.load_plan import LoadProcess, client_suffix, load_processes
from bench.outcome import RunOutcome, outcome_of
from bench.probes import ProcessorTime
from bench.run_directory import RunDirectory, RunState
from bench.spec import ExperimentSpec
from bench.testbed import ListingRefused, Testbed
from bench.toml_text import toml_text
from brokerd.errors import ControlError
from fault_injection.deployed import DeployedBackend
from fault_injection.injector import Injection, Injector
from fault_injection.log import FaultLog
from fault_injection.schedule import FaultSchedule

ATTACH_TIMEOUT_S = 30.0
SUBSCRIBE_TIMEOUT_S = 60.0
OPENING_TIMEOUT_S = 120.0
"""Brokers keep what vanished clients subscribed to for a minute, unconfirmed: a run that follows
another on the same brokers has to wait for that."""
FINISH_TIMEOUT_MS = 60_000
CLEAN_UP_TIMEOUT_S = 120.0
START_LEAD_NS = 300_000_000
SECOND_NS = 1_000_000_000

_POLL_S = 0.05
_SAMPLE_S = 1.0
_SHOW_S = 0.5
_PATIENCE_S = 2.0
_BROKER_LOGS = ("stdout.log", "stderr.log")

logger = logging.getLogger(__name__)


class Progress(Protocol):
    """Whom to tell how far a run has come."""

    def phase(self, name: str, expected_s: float | None = None) -> None:
        """A new phase begins, which will take about so long (None: nobody knows)."""

    def update(self, numbers: Mapping[str, Any]) -> None:
        """What is known now; later values replace earlier ones of the same name."""

    def say(self, text: str) -> None:
        """One line that stays."""


class RunFailed(Exception):
    """A run could not be carried out to its end; says what was waited for, or what failed."""

    exit_status: ClassVar[int] = 3


async def run_experiment(
    spec: ExperimentSpec,
    testbed: Testbed,
    run_directory: Path,
    schedule: FaultSchedule | None,
    progress: Progress,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> RunOutcome:
    """Run an experiment on brokers that are ready, and bring everything home.

    The outcome's `state` is "complete" unless the load generators were too slow for the run to
    prove anything ("partial", and why).

    Args:
        meanwhile: done while it measures; the run drains when both are over.

    Raises:
        RunFailed: something that had to happen did not; the run directory has what there is.
        ControlError: an agent or load generator refused something.
    """
    directory = RunDirectory(run_directory)
    experiment = _Experiment(spec, testbed, directory, schedule, progress, meanwhile)
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
    ) -> None:
        self._spec = spec
        self._meanwhile = meanwhile
        self._testbed = testbed
        self._directory = directory
        self._schedule = schedule
        self._progress = progress
        self._run_id = directory.run_id
        self._processes: list[LoadProcess] = load_processes(spec, testbed, directory.run_id)
        self._started: list[LoadProcess] = []
        self._begun: list[str] = []
        self._finished: dict[str, dict[str, Any]] = {}
        self._processor_time = ProcessorTime()
        self._broker_pids: dict[str, int] = {}
        self._exited: set[str] = set()
        self._cpu_s: tuple[dict[str, float], dict[str, float]] = ({}, {})
        self._origin_ns = 0
        self._clocks_ahead_ns: Mapping[str, int] = {}
        self._certificate: Mapping[str, str] | None = None
        self._injection: Injection | None = None
        self._notes: list[str] = []

    # ------------------------------------------------------------ the whole

    async def run(self) -> RunOutcome:
        self._write_what_is_known()
        reached_measure = False
        try:
            await self._prepare()
            reached_measure = True
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sample_brokers)
                await self._load_and_break()
                nursery.cancel_scope.cancel()
            return await self._conclude("complete")
        except BaseException as error:
            reason = _in_words(error)
            logger.warning("run %s: %s", self._run_id, reason)
            with trio.CancelScope(shield=True), trio.move_on_after(CLEAN_UP_TIMEOUT_S):
                await self._conclude("partial" if reached_measure else "aborted", reason)
            # Nurseries wrap what went wrong in groups; the person at the end wants the sentence.
            if (cause := _only_cause(error)) is not None:
                raise cause from error
            raise

    async def _conclude(self, state: RunState, reason: str = "") -> RunOutcome:
        """End the load generators, bring everything home, close the directory."""
        self._progress.phase("collecting", 2.0)
        await self._finish_load()
        await self._end_run_at_brokers()
        await self._collect()
        outcome = await self._evaluate(state, [reason] if reason else [])
        manifest = self._directory.manifest
        manifest["loadgen_saturated"] = outcome.saturated
        manifest["headline"] = outcome.headline()
        # In a thread: hashing takes long, and the deployment's lease must be renewed meanwhile.
        await trio.to_thread.run_sync(self._directory.end, outcome.state, outcome.reasons)
        self._directory.add_to_index(outcome.headline())
        return outcome

    def _write_what_is_known(self) -> None:
        spec, testbed, directory = self._spec, self._testbed, self._directory
        directory.begin(
            spec.name,
            {
                "protocol": spec.protocol,
                "seed": spec.seed,
                "workload": spec.workload.name,
                "topology": spec.topology.name,
                "topology_digest": testbed.topology_digest,
                "deployment_id": testbed.deployment_id,
                "transport": testbed.transport,
                "without_fsync": list(testbed.without_fsync),
                "schedule": self._schedule.name if self._schedule else None,
                "labels": dict(spec.labels),
                "phases": [],
                "roles": {
                    **{
                        place.process: {"role": "broker", "host": place.host}
                        for place in testbed.brokers.values()
                    },
                    **{
                        process.name: {"role": process.role, "host": testbed.clients_host}
                        for process in self._processes
                    },
                },
            },
        )
        directory.write_spec("workload.toml", spec.workload_toml())
        directory.write_spec("topology.toml", spec.topology_toml())
        directory.write_spec("cli.json", {"overrides": dict(spec.overrides), "file": spec.source})
        if self._schedule is not None:
            directory.write_spec("faults.toml", toml_text(self._schedule.to_mapping()))
        for name, content in testbed.documents.items():
            directory.write_spec(name, content)

    # ------------------------------------------------------------ before the load

    async def _prepare(self) -> None:
        """Start the load generators; return when every subscriber has seen every first fence."""
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
        progress.phase("preparing", 2.0)
        for broker in testbed.brokers:
            await self._begin_run_at(broker)
        suffix = client_suffix(self._run_id)
        self._certificate = await testbed.certificate_for_clients(suffix)
        for process in self._processes:
            await self._start_process(process)

        progress.phase("attaching clients", 1.0)
        await self._tell_all("connect")
        await self._need(ATTACH_TIMEOUT_S, self._who("not_attached", "attach"))
        publishers = await self._publishers()
        for process in self._subscribing:
            await self._tell(process, "know_publishers", publishers=publishers)

        progress.phase("subscribing", 1.0)
        await self._tell_all("subscribe")
        started = self._who("not_started", "start their subscriptions")
        await self._need(SUBSCRIBE_TIMEOUT_S, started)

        progress.phase("opening fences", 1.0)
        if waiting_for := await self._fence("opening", OPENING_TIMEOUT_S):
            raise RunFailed(f"waited {OPENING_TIMEOUT_S:g} s for {waiting_for}")

    async def _start_process(self, process: LoadProcess) -> None:
        testbed = self._testbed
        config = {**process.config, "tls": self._certificate}
        await testbed.clients_agent.start(
            process.name, "load", config, process.config["control_socket"]
        )
        self._started.append(process)
        with trio.move_on_after(ATTACH_TIMEOUT_S):
            while True:
                try:
                    await testbed.load_command(process.name, "status")
                    return
                except ControlError as error:
                    if error.kind != "busy":
                        raise
                await trio.sleep(_POLL_S)
        raise RunFailed(f"load generator {process.name} did not come up; see its stderr.log")

    async def _begin_run_at(self, broker: str) -> None:
        place = self._testbed.brokers[broker]
        folder = self._testbed.run_folder(place.host, self._run_id, place.process)
        await self._testbed.broker_command(
            broker, "begin_run", run_id=self._run_id, folder=str(folder)
        )
        if broker not in self._begun:
            self._begun.append(broker)

    # ------------------------------------------------------------ under load

    async def _load_and_break(self) -> None:
        """Warm-up, measure with the schedule, closing fences, drain."""
        phases = self._spec.workload.phases
        t0_ns = await self._clients_now_ns() + START_LEAD_NS
        self._origin_ns = t0_ns + phases.warmup
        end_ns = self._origin_ns + phases.measure
        self._directory.manifest["origin_ns"] = self._origin_ns
        for process in self._publishing:
            await self._tell(
                process, "start", t0_ns=t0_ns, measure_from_ns=self._origin_ns, end_ns=end_ns
            )
        self._begin_phase("warmup", t0_ns)
        self._progress.phase("warm-up", phases.warmup / SECOND_NS)
        await self._sleep_until(self._origin_ns)
        async with trio.open_nursery() as nursery:
            if self._schedule is not None:
                nursery.start_soon(self._inject, self._schedule)
            if self._meanwhile is not None:
                nursery.start_soon(self._do_meanwhile, self._meanwhile, end_ns)
            self._begin_phase("measure", self._origin_ns)
            self._progress.phase("measure", phases.measure / SECOND_NS)
            before = await self._processor_seconds()
            await self._sleep_until(end_ns)
            self._cpu_s = (before, await self._processor_seconds())
            self._begin_phase("drain", end_ns)
            self._progress.phase("drain", None)
        # Closing fences go out when the last fault is healed: what they close is then owed.
        await self._drain(phases.drain / SECOND_NS)
        await record_clocks(
            self._testbed.agents, self._testbed.clients_host, self._directory, "after"
        )

    async def _do_meanwhile(self, meanwhile: Callable[[], Awaitable[None]], end_ns: int) -> None:
        """Do what was asked for; a run whose load was over by then does not show what it should."""
        await meanwhile()
        late_s = (await self._clients_now_ns() - end_ns) / SECOND_NS
        if late_s > 0:
            self._note(
                f"what was to be done under load took {late_s:.0f} s longer than the load; "
                "measure longer (--duration)"
            )

    async def _inject(self, schedule: FaultSchedule) -> None:
        """Break what the schedule says; whatever happens, it is healed and in the fault log."""
        log = FaultLog(self._directory.path / "faults", self._tell_of_fault)
        # Agents remember the ids of faults, so each run needs its own.
        prefix = f"{self._run_id.rpartition('-')[2]}-"
        injector = Injector(
            schedule,
            DeployedBackend(self._testbed, ahead_ns=self._ahead_of_clients_ns()),
            log,
            prefix=prefix,
            # The origin is a time of the clients' clock, which may be another machine's.
            clock_ns=self._now_ns,
        )
        try:
            await injector.run(self._origin_ns)
        finally:
            log.close()
            self._injection = injector.outcome()
            self._notes += self._injection.problems

    def _tell_of_fault(self, line: Mapping[str, Any]) -> None:
        self._directory.log("fault", **line)
        if line["stage"] in ("applied", "healed", "recovered", "failed"):
            at_s = (line["t_ns"] - self._origin_ns) / SECOND_NS
            why = f": {line['evidence'].get('reason', '')}" if line["stage"] == "failed" else ""
            self._progress.say(
                f"{at_s:7.2f} s  {line['verb']} {line['target']} {line['stage']}{why}"
            )

    async def _drain(self, limit_s: float) -> None:
        """Wait until everybody has the closing fences and every publication is done."""
        began_ns = time.monotonic_ns()
        await self._tell_all("stop")
        waiting_for = await self._fence("closing", limit_s)
        self._directory.manifest["drain"] = {
            "ended_by": "timeout" if waiting_for else "evidence",
            "took_s": (time.monotonic_ns() - began_ns) / SECOND_NS,
            "waiting_for": waiting_for,
        }
        if waiting_for:
            self._progress.say(f"drain ended after {limit_s:g} s, waiting for {waiting_for}")
        self._end_phase(await self._clients_now_ns())

    async def _fence(self, kind: str, limit_s: float) -> str:
        """Let every publisher publish a fence; returns what is still awaited after the limit."""
        for process in self._publishing:
            await self._tell(process, "fence")
        deadline = trio.current_time() + limit_s
        unpublished = await self._wait(deadline, self._who("not_fenced", f"publish a {kind} fence"))
        for process in self._subscribing:
            await self._tell(process, "expect_fences", fences=await self._fences())
        return unpublished or await self._wait(deadline, self._unsettled)

    async def _fences(self) -> list[dict[str, Any]]:
        """Every fence that was published so far."""
        return [
            {
                "publisher": publisher["identity"],
                "incarnation": publisher["incarnation"],
                "sequence": sequence,
            }
            for publisher in await self._publishers()
            for sequence in publisher["fences"]
        ]

    # ------------------------------------------------------------ facts to wait for

    async def _wait(self, deadline: float, awaited: Callable[[], Awaitable[str]]) -> str:
        """Ask until nothing is awaited any more or the deadline is over; returns the last answer.

        At least once is asked, so a fact that holds already is never too late.
        """
        said_after = trio.current_time() + _PATIENCE_S
        while True:
            waiting_for = await awaited()
            if not waiting_for or trio.current_time() >= deadline:
                return waiting_for
            if trio.current_time() >= said_after:
                self._progress.say(f"waiting for {waiting_for}")
                said_after += 5 * _PATIENCE_S
            await trio.sleep(_POLL_S)

    async def _need(self, limit_s: float, awaited: Callable[[], Awaitable[str]]) -> None:
        """As `_wait`, and RunFailed when it was not enough."""
        waiting_for = await self._wait(trio.current_time() + limit_s, awaited)
        if waiting_for:
            raise RunFailed(f"waited {limit_s:g} s for {waiting_for}")

    def _who(self, key: str, to_do_what: str) -> Callable[[], Awaitable[str]]:
        """A fact to wait for: nobody is in the status list `key` any more."""

        async def awaited() -> str:
            statuses = await self._tell_all("status")
            names = [name for status in statuses for name in status[key]]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            return f"{', '.join(names[:3])}{more} to {to_do_what}" if names else ""

        return awaited

    async def _unsettled(self) -> str:
        """Fences that have not arrived, and publications that are not known to be done."""
        statuses = await self._tell_all("status")
        self._show(statuses)
        fences = sum(status["fences_missing"] for status in statuses)
        open_publications = sum(status["open"] for status in statuses)
        parts = [f"{fences} fences to arrive"] * bool(fences)
        parts += [f"{open_publications} publications to be acknowledged"] * bool(open_publications)
        return " and ".join(parts)

    async def _sleep_until(self, at_ns: int) -> None:
        """Return when the clients' clock shows `at_ns`, and show meanwhile how it goes."""
        while (left_ns := at_ns - await self._clients_now_ns()) > 0:
            await trio.sleep(min(left_ns / SECOND_NS, _SHOW_S))
            self._show(await self._tell_all("status"))

    async def _clients_now_ns(self) -> int:
        """The clock that all stamps of this run are of."""
        status = await self._tell(self._processes[0], "status")
        return int(status["now_ns"])

    def _now_ns(self) -> int:
        """The same, as well as it is known here."""
        return time.monotonic_ns() + self._clocks_ahead_ns.get(self._testbed.clients_host, 0)

    def _ahead_of_clients_ns(self) -> dict[str, int]:
        """By host, how much its clock is ahead of the clients'."""
        ahead_ns = self._clocks_ahead_ns
        own_ns = ahead_ns.get(self._testbed.clients_host, 0)
        return {host: ns - own_ns for host, ns in ahead_ns.items()}

    def _show(self, statuses: Iterable[Mapping[str, Any]]) -> None:
        totals: dict[str, int] = {}
        for status in statuses:
            for name in ("sent", "delivered", "backlog"):
                totals[name] = totals.get(name, 0) + status[name]
        self._progress.update(totals)

    # ------------------------------------------------------------ load generators and brokers

    @property
    def _publishing(self) -> list[LoadProcess]:
        return [process for process in self._processes if process.publishers]

    @property
    def _subscribing(self) -> list[LoadProcess]:
        return [process for process in self._processes if process.subscribers]

    async def _tell(self, process: LoadProcess, command: str, **arguments: Any) -> dict[str, Any]:
        return await self._testbed.load_command(process.name, command, **arguments)

    async def _tell_all(self, command: str) -> list[dict[str, Any]]:
        return [await self._tell(process, command) for process in self._processes]

    async def _publishers(self) -> list[dict[str, Any]]:
        answers = [await self._tell(process, "publishers") for process in self._publishing]
        return [publisher for answer in answers for publisher in answer["publishers"]]

    async def _sample_brokers(self) -> None:
        """Keep account of processor time, and tell restarted brokers which run it is."""
        while True:
            await self._processor_seconds()
            await trio.sleep(_SAMPLE_S)

    async def _processor_seconds(self) -> dict[str, float]:
        """By broker, processor time so far, restarts included."""
        rows: dict[str, Mapping[str, Any]] = {}
        for host, agent in self._testbed.agents.items():
            processes = (await agent.status())["processes"]
            for broker, place in self._testbed.brokers.items():
                if place.host == host and place.process in processes:
                    rows[broker] = processes[place.process]
        self._processor_time.sample(rows)
        for broker, row in rows.items():
            known = self._broker_pids.setdefault(broker, row["pid"])
            if row["state"] != "running" or row["pid"] != known:
                self._exited.add(self._testbed.brokers[broker].process)
            if row["state"] == "running" and row["pid"] != known:
                try:
                    await self._begin_run_at(broker)
                    self._broker_pids[broker] = row["pid"]
                except ControlError as error:
                    logger.info("broker %s is not ready for the run yet: %s", broker, error)
        return self._processor_time.totals_s()

    # ------------------------------------------------------------ the end

    async def _finish_load(self) -> None:
        """End the load generators in order; their files are whole after that."""
        async with trio.open_nursery() as nursery:
            for process in self._started:
                nursery.start_soon(self._finish_process, process)

    async def _finish_process(self, process: LoadProcess) -> None:
        agent = self._testbed.clients_agent
        try:
            self._finished[process.name] = await agent.broker(
                process.name, "finish", {}, timeout_ms=FINISH_TIMEOUT_MS
            )
        except ControlError as error:
            self._note(f"load generator {process.name} could not end in order: {error}")
        try:
            await agent.stop(process.name)
        except ControlError as error:
            self._note(f"load generator {process.name} could not be stopped: {error}")

    async def _end_run_at_brokers(self) -> None:
        for broker in self._begun:
            try:
                await self._testbed.broker_command(broker, "end_run")
            except ControlError as error:
                logger.info("broker %s did not end the run: %s", broker, error)

    async def _collect(self) -> None:
        """Bring home what every process wrote for this run."""
        testbed = self._testbed
        for place in testbed.brokers.values():
            folder = testbed.run_folder(place.host, self._run_id, place.process)
            await self._collect_folder(place.host, place.process, folder)
            # What a broker prints belongs to no run, but explains why one has failed.
            names = [*_BROKER_LOGS]
            if place.process in self._exited:
                names.append("exit.json")
            await self._collect_folder(place.host, place.process, None, names)
        host = testbed.clients_host
        for process in self._started:
            folder = testbed.run_folder(host, self._run_id, process.name)
            await self._collect_folder(host, process.name, folder)

    async def _collect_folder(
        self, host: str, process: str, folder: Path | None, names: Collection[str] | None = None
    ) -> None:
        target = self._directory.raw_folder(host, process)
        try:
            damaged = await self._testbed.collect(host, process, folder, target, names)
        except (ControlError, ListingRefused, OSError) as error:
            self._note(f"files of {process} on {host} could not be fetched: {error}")
            return
        for name in damaged:
            self._note(f"{name} is not here as its host saw it")

    async def _evaluate(self, state: RunState, reasons: list[str]) -> RunOutcome:
        """What the run came to, as complete as what is there of it allows."""
        measured: tuple[int, int] | None = None
        if self._origin_ns:
            measured = self._origin_ns, self._origin_ns + self._spec.workload.phases.measure
        return await trio.to_thread.run_sync(
            outcome_of,
            self._directory.path,
            state,
            [*reasons, *self._notes],
            measured,
            [*self._finished.values()],
            self._spec.workload.thresholds.loadgen_lateness_p99.limit_ns,
            self._cpu_s,
            self._injection,
        )

    # ------------------------------------------------------------ notes

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


def _only_cause(error: BaseException) -> Exception | None:
    """The one exception in a group of groups; None where there are several, or a cancellation."""
    while isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) != 1:
            return None
        error = error.exceptions[0]
        if isinstance(error, Exception) and not isinstance(error, ExceptionGroup):
            return error
    return None


def _in_words(error: BaseException) -> str:
    """Why a run ended, for its manifest."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_in_words(inner) for inner in error.exceptions))
    if isinstance(error, trio.Cancelled | KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, RunFailed | ControlError):
        return str(error)
    return f"{type(error).__name__}: {error}"
