"""The injector: runs a schedule against a backend, trusts only evidence, and heals every fault.

A fault passes the stages planned, requested, applied, observed, heal requested, healed and
recovered. A stage is recorded only when its evidence is there. For a verdict, a fault that was not
observed did not happen.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from brokerd.errors import ControlError
from brokerd.model.fault_verbs import (
    CLIENT_VERBS,
    ENDING_VERBS,
    FAILING_VERBS,
    LASTING_VERBS,
    ROAM,
    VERB_TABLE,
)
from brokerd.units import format_duration
from fault_injection.apply.interface import Evidence, Fault, FaultBackend, MissingEffect
from fault_injection.apply.log import FaultLog, HealedBy, HostStamps
from fault_injection.schedule.limits import FaultGuard, find_failed_elements
from fault_injection.schedule.plan import PlannedStep, expand
from fault_injection.schedule.schedule import FaultSchedule, Problem, ScheduleError
from fault_injection.schedule.step import END, STARTED_WITHIN_NS
from fault_injection.schedule.targets import read_target

_POLL_S: Final = 0.02
_LAST_LOOK_S: Final = 1.0
_HEAL_WITHIN_NS: Final = 10 * 10**9


@dataclass(frozen=True, slots=True)
class Injection:
    """The result of a schedule.

    Attributes:
        rows: one row per fault, in the columns of the `faults` table.
        problems: deviations from the plan, in words; a verdict must not rest on a run with
            problems.
        not_healed: faults that may still be active; the lab is dirty until their leases end.
        down: brokers that were ended and not started again.
    """

    rows: tuple[Mapping[str, Any], ...]
    problems: tuple[str, ...]
    not_healed: tuple[str, ...]
    down: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Progress:
    """The stages that a step has reached, for steps that wait for this step."""

    step: PlannedStep
    fault: Fault
    reached: dict[str, int] = field(default_factory=dict)
    is_over: bool = False
    is_active: bool = False
    observed: Evidence | None = None
    changed: trio.Event = field(default_factory=trio.Event)

    def reach(self, stage: str, t_ns: int) -> None:
        self.reached[stage] = t_ns
        self._wake()

    def deactivate(self) -> None:
        self.is_active = False
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    async def wait(self, stage: str) -> int | None:
        """Return the time at which the step reached a stage; None if the step ended before."""
        while stage not in self.reached and not self.is_over:
            await self.changed.wait()
        return self.reached.get(stage)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class Injector:
    """One run of a schedule.

    Args:
        schedule: must have passed `lint` for the backend's topology.
        log: receives every stage of every fault; closed by its creator.
        seed: replaces the schedule's own seed.
        prefix: prefix of fault ids, such as the id of the run, because agents remember fault ids.
        clock_ns: clock of all stamps and of the origin.

    Raises:
        ScheduleError: a target does not exist.
    """

    def __init__(
        self,
        schedule: FaultSchedule,
        backend: FaultBackend,
        log: FaultLog,
        *,
        seed: int | None = None,
        prefix: str = "",
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.steps = expand(schedule, seed)
        self._backend = backend
        self._log = log
        self._clock_ns = clock_ns
        self._lease_ns = schedule.guard.lease
        self._guard = FaultGuard(backend.running, schedule.guard.max_faulty_brokers)
        self._origin_ns = 0
        self._problems: list[str] = []
        self._not_healed: list[str] = []
        self._progress = {
            step.id: _Progress(step, self._fault(step, prefix, schedule.source))
            for step in self.steps
        }
        self._failed: list[_Progress] = []
        log.plan(self.steps, prefix)

    def _fault(self, step: PlannedStep, prefix: str, source: str) -> Fault:
        topology, machines = self._backend.running.topology, self._backend.machines
        try:
            target = read_target(step.on, topology, step.verb, machines)
        except ValueError as error:  # lint checks machines only by the placement of brokers
            raise ScheduleError([Problem(source, step.id, "on", step.on, str(error))]) from None
        return Fault(prefix + step.id, step.verb, target, step.signal, step.parameters)

    async def run(self, origin_ns: int | None = None) -> Injection:
        """Carry out the schedule; return when every step is over and has recovered.

        `origin_ns` is the origin of `at`, now by default. Cancellation or failure heals every
        active fault first.
        """
        self._origin_ns = self._clock_ns() if origin_ns is None else origin_ns
        try:
            async with trio.open_nursery() as nursery:
                for progress in self._progress.values():
                    nursery.start_soon(self._run_step, progress)
        finally:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    for progress in self._progress.values():
                        if progress.is_active:
                            nursery.start_soon(self._heal, progress, "user")
        return self.outcome()

    def outcome(self) -> Injection:
        """Return the result so far, also after a cancelled `run`."""
        down = [progress.step.on for progress in self._failed if progress.step.verb in ENDING_VERBS]
        rows = tuple(self._log.rows())
        return Injection(
            rows,
            tuple(dict.fromkeys(self._problems)),
            tuple(dict.fromkeys(self._not_healed)),
            tuple(down),
        )

    # ------------------------------------------------------------ one step

    async def _run_step(self, progress: _Progress) -> None:
        step, fault = progress.step, progress.fault
        try:
            planned_ns = await self._wait_planned(progress)
            self._log.note(fault.fault_id, "planned", planned_ns)
            await self._sleep_until(planned_ns)
            self._check_guard(progress)
            applied_ns = await self._apply(progress)
            if step.verb in LASTING_VERBS:
                await self._wait_duration(progress, applied_ns)
            else:
                limit_ns = step.observe_within_ns
                if step.verb in ("restart", ROAM):
                    limit_ns = max(limit_ns, STARTED_WITHIN_NS)
                await self._observe(progress, applied_ns + limit_ns)
                if progress.observed is None:
                    raise MissingEffect(f"no effect seen within {format_duration(limit_ns)}")
                _check_exit(step, progress.observed)
                if step.verb == "restart":
                    self._note_restarted(progress, applied_ns)
                    await self._recover(progress, applied_ns)
        except (MissingEffect, ControlError) as error:
            self._fail(progress, str(error))
            if progress.is_active:
                await self._heal(progress, "schedule")
            elif isinstance(error, ControlError):
                self._works_again(progress)  # the kill was refused
        finally:
            progress.end()

    async def _wait_planned(self, progress: _Progress) -> int:
        step = progress.step
        if step.after is None:
            assert step.at_ns is not None, step
            return self._origin_ns + step.at_ns
        name, stage = step.after
        reached_ns = await self._progress[name].wait(stage)
        if reached_ns is None:
            raise MissingEffect(f"never begun: {name} did not reach {stage}")
        return reached_ns + step.delay_ns

    def _check_guard(self, progress: _Progress) -> None:
        """Check the actual failures against the guard; lint checks only predictable failures."""
        if progress.step.verb not in FAILING_VERBS:
            return
        failing = [*self._failed, progress]
        elements = {element for other in failing for element in other.fault.target.failed()}
        if self._guard.exceeds(elements):
            names = sorted("-".join(sorted(element)) for element in find_failed_elements(elements))
            why = self._guard.explain(elements)
            raise MissingEffect(f"not begun: {', '.join(names)} would be failed at once; {why}")

    async def _apply(self, progress: _Progress) -> int:
        step, fault = progress.step, progress.fault
        self._log.note(fault.fault_id, "requested", self._clock_ns())
        # Set before the request: a fault may be applied even if no answer arrives.
        progress.is_active = step.verb in LASTING_VERBS
        if step.verb in FAILING_VERBS:
            self._failed.append(progress)
        try:
            evidence = await self._backend.apply(fault, self._lease_ns)
        except ControlError as error:
            # A fault of a client has one end, which applies it or refuses it. Nothing is to undo.
            if error.kind == "user" and step.verb in CLIENT_VERBS:
                progress.is_active = False
            raise
        applied_ns, stamps = self._take_stamps(evidence)
        self._log.note(fault.fault_id, "applied", applied_ns, evidence, host_stamps=stamps)
        progress.reach("applied", applied_ns)
        return applied_ns

    async def _wait_duration(self, progress: _Progress, applied_ns: int) -> None:
        step, fault = progress.step, progress.fault
        assert step.duration_ns is not None, step
        end_ns = applied_ns + step.duration_ns
        ended_ns: int | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_lease, progress)
            nursery.start_soon(self._observe, progress, end_ns)
            await self._sleep_while_active(progress, end_ns)
            if progress.is_active:
                # The last look records the amount of held messages at the end.
                with trio.move_on_after(_LAST_LOOK_S):
                    await self._look(progress)
            progress.reach(END, self._clock_ns())
            if step.ended_by:
                ended_ns = await self._progress[step.ended_by].wait("applied")
            nursery.cancel_scope.cancel()
        if not progress.is_active:
            raise MissingEffect("it ended before its time: by `heal`, or because its lease ran out")
        if ended_ns is not None:
            await self._die_with_target(progress, ended_ns)
        elif await self._heal(progress, "schedule"):
            await self._recover(progress, self._clock_ns())
        if progress.observed is None:
            hint = "; only messages show it: publish meanwhile"
            only_messages = VERB_TABLE[fault.verb].needs_messages
            raise MissingEffect(
                f"no effect seen while {fault.verb} lasted{hint if only_messages else ''}"
            )

    async def _die_with_target(self, progress: _Progress, ended_ns: int) -> None:
        """Record the end of an absorb with its broker or cut session; held messages are lost."""
        ender = self._progress[progress.step.ended_by]
        healed_by: HealedBy = "process-death"
        if ender.step.verb == "cut":
            # The broker lives, and has no held message left to release: undo the fault.
            healed_by = "schedule"
            undone, reason = await self._undo(progress.fault)
            if undone is None:
                self._not_healed.append(progress.fault.fault_id)
                self._fail(progress, f"may still be there: {reason}")
                return
        evidence = {"ended_by": ender.step.id}
        stamps = self._log.host_stamps(ender.fault.fault_id, "applied")
        self._log.note(progress.fault.fault_id, "healed", ended_ns, evidence, healed_by, stamps)
        progress.is_active = False
        self._works_again(progress)

    # ------------------------------------------------------------ observation, leases, healing

    async def _observe(self, progress: _Progress, until_ns: int) -> None:
        """Look until the effect is there or the time is over, and at least once.

        With many faults at once, an answer may arrive only when the time is over.
        """
        while True:
            requested_s = trio.current_time()
            await self._look(progress)
            if progress.observed is not None or self._clock_ns() >= until_ns:
                return
            await trio.sleep(max(_POLL_S, trio.current_time() - requested_s))

    async def _look(self, progress: _Progress) -> None:
        """Look for the effect: the first success is `observed`, later evidence adds up."""
        seen = await self._call(self._backend.verify_effect, progress.fault)
        if seen is None:
            return
        observed_ns, stamps = self._take_stamps(seen)
        if progress.observed is None:
            fault_id = progress.fault.fault_id
            self._log.note(fault_id, "observed", observed_ns, seen, host_stamps=stamps)
            progress.reach("observed", observed_ns)
        else:
            self._log.learn(progress.fault.fault_id, seen)
        progress.observed = seen

    async def _keep_lease(self, progress: _Progress) -> None:
        wait_s = self._lease_ns / 3e9
        while True:
            await trio.sleep(wait_s)
            wait_s = self._lease_ns / 3e9
            try:
                await self._backend.renew(progress.fault, self._lease_ns)
            except ControlError as error:
                if error.kind != "user":
                    wait_s = self._lease_ns / 12e9  # no answer: retry within the lease
                    continue
                if progress.is_active:
                    await self._end_everywhere(progress, error.text)
                return

    async def _end_everywhere(self, progress: _Progress, reason: str) -> None:
        """Undo a fault with an expired lease at one end, because other ends may still be broken."""
        undone, left = await self._undo(progress.fault)
        if undone is None:
            self._not_healed.append(progress.fault.fault_id)
            self._fail(progress, f"may still be there: {left}")
            return
        self._works_again(progress)
        healed_ns, stamps = self._take_stamps(undone)
        evidence = {"reason": reason, **undone}
        self._log.note(progress.fault.fault_id, "healed", healed_ns, evidence, "lease", stamps)
        progress.deactivate()

    async def _heal(self, progress: _Progress, by: HealedBy) -> bool:
        """Undo a fault until its end is observed. Return True on success."""
        fault = progress.fault
        self._log.note(fault.fault_id, "heal_requested", self._clock_ns())
        undone, reason = await self._undo(fault)
        if undone is None:
            self._not_healed.append(fault.fault_id)
            self._fail(progress, f"may still be there: {reason}")
            return False
        healed_ns, stamps = self._take_stamps(undone)
        self._log.note(fault.fault_id, "healed", healed_ns, undone, by, stamps)
        progress.is_active = False
        self._works_again(progress)
        progress.reach("healed", healed_ns)
        return True

    async def _undo(self, fault: Fault) -> tuple[Evidence | None, str]:
        """Undo a fault at all of its ends until its end is observed at every end.

        Returns:
            The evidence and "", or None and the reason.
        """
        requested_ns, reason = self._clock_ns(), ""
        undone: Evidence | None = None
        while self._clock_ns() < requested_ns + _HEAL_WITHIN_NS:
            try:
                undone = undone or await self._backend.undo(fault)
                is_undone = await self._backend.verify_undone(fault)
                if is_undone is not None:
                    return {**undone, **is_undone}, ""
            except ControlError as error:
                reason = error.text
            await trio.sleep(_POLL_S)
        return None, reason or "not verified as removed"

    async def _recover(self, progress: _Progress, since_ns: int) -> None:
        limit_ns = progress.step.recover_within_ns
        while self._clock_ns() < since_ns + limit_ns:
            seen = await self._call(self._backend.verify_recovered, progress.fault)
            if seen is not None:
                recovered_ns = int(seen.pop("t_ns", self._clock_ns()))
                self._log.note(progress.fault.fault_id, "recovered", recovered_ns, seen)
                if progress.step.verb == "restart":
                    self._note_recovered(progress, recovered_ns)
                progress.reach("recovered", recovered_ns)
                return
            await trio.sleep(_POLL_S)
        self._problems.append(
            f"{progress.step.id}: not recovered within {format_duration(limit_ns)}"
        )

    async def _call(
        self, verify: Callable[[Fault], Awaitable[Evidence | None]], fault: Fault
    ) -> Evidence | None:
        try:
            return await verify(fault)
        except ControlError:
            return None  # no answer is no evidence yet

    # ------------------------------------------------------------ ended brokers

    def _end_like(self, restart: _Progress) -> list[_Progress]:
        """Return the ends of a broker that this restart was the first to follow."""
        target = restart.fault.target
        return [
            progress
            for progress in self._failed
            if progress.step.verb in ENDING_VERBS
            and progress.fault.target == target
            and self._find_first_restart(progress) is restart
        ]

    def _find_first_restart(self, ended: _Progress) -> _Progress | None:
        """Return the first restart after the end of a broker, in order of their effects.

        A broker may be killed again before its restart is observed. A restart that failed is none.
        """
        applied_ns = {
            progress.step.id: self._log.find_stage_time(progress.fault.fault_id, "applied")
            for progress in self._progress.values()
        }
        ended_ns = applied_ns[ended.step.id]
        later = [
            (at_ns, progress)
            for progress in self._progress.values()
            if progress.step.verb == "restart"
            and progress.fault.target == ended.fault.target
            and not self._log.has_failed(progress.fault.fault_id)
            and (at_ns := applied_ns[progress.step.id]) is not None
            and ended_ns is not None
            and at_ns >= ended_ns
        ]
        return min(later, key=lambda each: each[0])[1] if later else None

    def _note_restarted(self, restart: _Progress, applied_ns: int) -> None:
        requested_ns = self._log.find_stage_time(restart.fault.fault_id, "requested") or applied_ns
        stamps = self._log.host_stamps(restart.fault.fault_id, "applied")
        for ended in self._end_like(restart):
            evidence = {"restarted_by": restart.step.id}
            self._log.note(ended.fault.fault_id, "heal_requested", requested_ns)
            self._log.note(ended.fault.fault_id, "healed", applied_ns, evidence, "schedule", stamps)

    def _note_recovered(self, restart: _Progress, recovered_ns: int) -> None:
        # Not earlier: a broker in recovery still counts as failed.
        for ended in self._end_like(restart):
            self._log.note(ended.fault.fault_id, "recovered", recovered_ns)
            self._works_again(ended)

    def _works_again(self, progress: _Progress) -> None:
        if progress in self._failed:
            self._failed.remove(progress)

    def _fail(self, progress: _Progress, reason: str) -> None:
        self._problems.append(f"{progress.step.id}: {reason}")
        self._log.note(progress.fault.fault_id, "failed", self._clock_ns(), {"reason": reason})

    def _take_stamps(self, evidence: Evidence) -> tuple[int, HostStamps]:
        """Remove time and host stamps from the evidence and return them; now without a time."""
        stamps: HostStamps = evidence.pop("host_stamps", {})
        return int(evidence.pop("t_ns", self._clock_ns())), stamps

    async def _sleep_while_active(self, progress: _Progress, instant_ns: int) -> None:
        """Sleep until an instant, or until the fault has ended, for example by `heal`."""
        with trio.move_on_after(max(0, instant_ns - self._clock_ns()) / 1e9):
            while progress.is_active:
                await progress.changed.wait()

    async def _sleep_until(self, instant_ns: int) -> None:
        await trio.sleep(max(0, instant_ns - self._clock_ns()) / 1e9)


def _check_exit(step: PlannedStep, seen: Evidence) -> None:
    if step.exit_signal is not None and seen.get("exit_signal") != step.exit_signal:
        found = seen.get("exit_signal")
        raise MissingEffect(f"ended by signal {found}, and {step.exit_signal} was expected")
