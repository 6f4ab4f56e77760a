"""The run of a plan on a simulated cluster, judged by the oracle and by the protocol's checks."""

from collections.abc import Callable
from random import Random
from typing import Any, NoReturn

from brokerd.model.identity import BrokerNumber
from brokerd.model.losses import STATE_LOST
from brokerd.protocols.registry import definition_of
from brokerd.simulator.checks.growth import LiveState, check_growth, with_limits
from brokerd.simulator.checks.invariants import Watcher
from brokerd.simulator.checks.liveness import WhileBroken, bounds_of
from brokerd.simulator.checks.marks import ADVANCED_AGAIN, as_counters
from brokerd.simulator.checks.protocol_checks import (
    COMMON_COUNTERS,
    planning_of,
    simulation_of,
    with_bugs,
)
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.move import MoveContext
from brokerd.simulator.search.moves import LaneChoice, make_counts
from brokerd.simulator.search.plan import Plan
from brokerd.simulator.search.seed_report import SeedReport, play_and_judge
from brokerd.simulator.search.workers import with_rare_collections
from brokerd.simulator.world.client_mobility import ClientMobility, home_of
from brokerd.simulator.world.clock import NEVER_NS, AdversarialSchedule, TimedSchedule
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.faults import OLD_MESSAGE, Faults
from brokerd.simulator.world.network import WhichWay
from brokerd.units import MILLISECOND_NS, SECOND_NS

UNTIMED_CONVERGENCE_NS = 30 * SECOND_NS
"""Limit of the time under an adversary until every owed delivery has arrived. On a clock the plan's
own delays determine the limit; see `bounds_of`."""

ENDLESS = 100_000
"""The number of an adversary's steps after healing that proves an endless run."""

FIRES = 0.02
"""Share of the steps in which an adversary fires a timer although other events are possible."""


class PlanRun:
    """One run of a plan, from its start to its report; never raises an error for a fault of a core.

    Args:
        record: keep the choices of an adversary until healing.
        watcher: called with every step of every broker.

    Attributes:
        position: the last instant or step, in the unit of the plan.
        taken: with `record`, the moves that repeat the choices.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        check_purity: bool = True,
        record: bool = False,
        watcher: Watcher | None = None,
    ) -> None:
        self._plan = plan
        self._check_purity = check_purity
        self._record = record
        self._strict = definition_of(plan.protocol).promises.exactly_once
        self._forgiven = simulation_of(plan.protocol).forgiven
        self._random = Random(f"run {plan.chance}")
        with with_bugs(plan.mutants, plan.protocol), with_limits(plan.limits):
            self._cluster = SimulatedCluster(
                plan.topology,
                plan.protocol,
                seed=plan.chance,
                parameters=plan.parameters,
                network=plan.network,
                strict=self._strict,
                adversarial=plan.adversarial,
                watcher=watcher,
            )
        self._faults = Faults(self._cluster, plan.failures_at_once, plan.links_at_once)
        self._mobility = ClientMobility(
            self._cluster, self._faults, lambda: self._while_broken is not None
        )
        self._due: dict[int, list[tuple[Any, ...]]] = {}
        schedule = self._cluster.schedule
        at = schedule.at if isinstance(schedule, TimedSchedule) else self._schedule_step
        self._context = MoveContext(self._cluster, self._faults, self._mobility, at, make_counts())
        self._recounted = 0
        self._stalled = 0
        self._healed_ns = 0
        self._while_broken: WhileBroken | None = None
        self._bounds = bounds_of(plan)
        self._pure = self._cluster.brokers[self._random.randrange(len(self._cluster.brokers))]
        self.position = 0
        self.taken: list[LaneChoice] = []

    @property
    def cluster(self) -> SimulatedCluster:
        return self._cluster

    def report(self, seed: int, command: str) -> SeedReport:
        plan = self._plan
        with (
            with_rare_collections(),
            with_bugs(plan.mutants, plan.protocol),
            with_limits(plan.limits),
        ):
            rule, violations = play_and_judge(
                self._play, self._cluster.oracle, self._strict, self._forgiven
            )
        now_ns = self._cluster.schedule.now_ns
        violations = [f"at {now_ns / SECOND_NS:.6f} s: {violation}" for violation in violations]
        trace = self._cluster.trace
        assert trace is not None
        return SeedReport(
            seed,
            self._plan.protocol,
            trace.digest(),
            rule,
            tuple(violations),
            self._counters(),
            tuple(trace.last_steps()) if violations else (),
            command,
        )

    # ------------------------------------------------------------ course of a run

    def _play(self) -> None:
        if self._check_purity:
            self._pure.history = []
        self._cluster.population.consumers = dict(self._plan.consumers)
        self._cluster.start()
        for publisher in self._plan.publishers:
            self._cluster.client(publisher, home_of(publisher), publishes=True)
        if self._plan.adversarial:
            self._play_adversarial()
        else:
            self._play_timed()
        self._wait_forgotten()
        self._cluster.checker.own.check_settled(self._cluster.brokers)
        self._recounted = self._cluster.inspection.recount()
        self._cluster.oracle.judge_end()
        if self._strict:
            self._wait_announcements()
            self._wait_expiry()
            self._check_growth()
        if self._check_purity:
            self._cluster.inspection.repeat_events(self._pure.number)

    def _play_timed(self) -> None:
        schedule = self._cluster.schedule
        assert isinstance(schedule, TimedSchedule)
        for move in self._plan.moves:
            schedule.at(move.when, move.apply, self._context)
        self._run_clock(self._plan.heal)
        self._heal()
        self._run_clock(self._plan.end)
        self._healed_ns = schedule.now_ns
        while self._is_owed_although_broken():
            self._run_clock(schedule.now_ns + 50 * MILLISECOND_NS)
            if self._is_out_of_patience():
                self._fail_liveness()
        self._heal_broken()
        settled = False
        while not settled:
            while not self._has_converged():
                self._run_clock(schedule.now_ns + 50 * MILLISECOND_NS)
                self._check_gates()
                if self._is_out_of_patience():
                    self._fail_liveness()
            last_ns = schedule.now_ns + self._bounds.sessions_ns
            while schedule.pending and schedule.now_ns < last_ns:  # messages in flight arrive
                self._run_clock(schedule.now_ns + 10 * MILLISECOND_NS)
            # Meanwhile brokers may have detected the end of a session that had seemed alive.
            settled = self._has_converged()

    def _wait_forgotten(self) -> None:
        """Wait until lost brokers are forgotten, and no broker mentions them any more."""
        cluster = self._cluster
        waited_ns = planning_of(self._plan.protocol).forget_after_ns(self._plan.parameters)
        if isinstance(cluster.schedule, TimedSchedule) and waited_ns and cluster.removed:
            self._run_clock(cluster.schedule.now_ns + waited_ns)
            while not self._has_converged():
                self._run_clock(cluster.schedule.now_ns + 50 * MILLISECOND_NS)

    def _run_clock(self, until_ns: int) -> None:
        schedule = self._cluster.schedule
        assert isinstance(schedule, TimedSchedule)
        look_ns = max(50 * MILLISECOND_NS, self._plan.heal // 1_000)
        while schedule.now_ns < until_ns:
            schedule.run_until(min(until_ns, schedule.now_ns + look_ns))
            self.position = schedule.now_ns
            self._check_internals()

    def _play_adversarial(self) -> None:
        schedule = self._cluster.schedule
        assert isinstance(schedule, AdversarialSchedule)
        schedule.names_taken = self._record
        for move in self._plan.moves:
            if type(move) is not LaneChoice:
                self._schedule_step(move.when, move.apply, self._context)
        self._run_steps(0, self._plan.heal)
        # From here on equal, for drawn or given earlier choices.
        self._random = Random(f"heal {self._plan.chance}")
        schedule.draw_anew(Random(f"order after healing {self._plan.chance}"))
        self._heal()
        self._run_steps(self._plan.heal, self._plan.end, drawn=True)
        self._healed_ns = schedule.now_ns
        self._drain(self._is_owed_although_broken)
        self._heal_broken()
        self._drain(lambda: not self._has_converged(), until_quiet=True)

    def _schedule_step(self, step: int, action: Callable[..., None], *arguments: Any) -> None:
        """Schedule an action for an adversary's step."""
        self._due.setdefault(step, []).append((action, *arguments))

    def _run_steps(self, first: int, end: int, drawn: bool = False) -> None:
        schedule, random = self._cluster.schedule, self._random
        assert isinstance(schedule, AdversarialSchedule)
        drawn = drawn or self._plan.drawn
        choices: dict[int, list[LaneChoice]] = {}
        for move in self._plan.moves:
            if type(move) is LaneChoice:
                choices.setdefault(move.when, []).append(move)
        for step in range(first, end):
            self.position = step
            if step % 40 == 0:
                self._check_internals()
            for action, *arguments in self._due.pop(step, ()):
                action(*arguments)
            if step in choices:
                for choice in choices[step]:
                    choice.apply(self._context)
            elif drawn:
                happened = schedule.fire() if random.random() < FIRES else schedule.step()
                if happened and self._record:
                    self.taken.append(LaneChoice(step, schedule.taken))

    def _drain(self, is_owed: Callable[[], bool], *, until_quiet: bool = False) -> None:
        """Take possible events until nothing is owed.

        Args:
            until_quiet: also until nothing is in flight; messages in flight alone are no violation,
                because some brokers repeat messages for ever.
        """
        schedule, random = self._cluster.schedule, self._random
        assert isinstance(schedule, AdversarialSchedule)
        taken, idle, late = 0, False, False
        while (
            (taken % 20 and not idle and not late)
            or (until_quiet and schedule.pending)
            or is_owed()
        ):
            if idle:
                taken = ENDLESS
            taken += 1
            if random.random() < 0.01:
                before_ns = schedule.now_ns
                schedule.fire()
                self._healed_ns += schedule.now_ns - before_ns  # nothing was waiting for that
            idle = not schedule.step() and not schedule.fire()
            # The check of owed deliveries is rare; timers may fire between the last arrival and the
            # check.
            late = self._is_out_of_patience(taken)
            if late and ((taken >= ENDLESS and schedule.pending) or is_owed()):
                self._fail_liveness()

    def _heal(self) -> None:
        """End all faults, and break the plan's links that stay broken."""
        cluster = self._cluster
        cluster.state.note("heal all")
        self._faults.heal_all()
        self._faults.start_ended()
        if self._plan.broken:
            broken = []
            for item in self._plan.broken:
                link = cluster.link(item.a, item.b)
                which: WhichWay = "out" if item.kind.endswith("_one_way") else "both"
                if item.kind.startswith("cut"):
                    link.cut(which)
                else:
                    link.blackhole(which)
                number = cluster.topology.number_of
                broken.append((number(item.a), number(item.b)))
            self._while_broken = WhileBroken(cluster, broken)
        self._healed_ns = cluster.schedule.now_ns

    def _is_owed_although_broken(self) -> bool:
        return self._while_broken is not None and bool(self._while_broken.missing())

    def _heal_broken(self) -> None:
        if self._while_broken is not None:
            self._stalled = sum(
                len(missing)
                for _, _, _, lacking in self._cluster.oracle.obligations.find_lacking()
                for _, missing in lacking
            )
        self._while_broken = None
        for item in self._plan.broken:
            self._cluster.link(item.a, item.b).heal()
        self._healed_ns = self._cluster.schedule.now_ns

    def _check_internals(self) -> None:
        if self._strict:
            self._cluster.inspection.check_internals()

    # ------------------------------------------------------------ convergence

    def _has_converged(self) -> bool:
        cluster = self._cluster
        self._faults.start_ended()
        if not self._strict:
            return cluster.is_quiet()
        if self._mobility.describe_moving():
            return False
        if (
            cluster.oracle.obligations.describe_undelivered()
            or cluster.waits.describe_unsettled()
            or cluster.oracle.gates.describe_closed()
        ):
            return False
        return not self._list_rest()

    def _list_rest(self) -> list[str]:
        """Return the state that brokers still hold although nothing is owed."""
        brokers = self._cluster.state.staying
        checker = self._cluster.checker
        restored = self._restored()
        lines = checker.list_rest(brokers, may_queue=any(restored.values()))
        for broker in brokers:
            had = broker.core.status().own_subscriptions - restored[broker.number]
            live = self._cluster.oracle.register.count_live_at(broker.number)
            if had > live:
                lines.append(
                    f"{broker.name} has {had} subscriptions of its clients, which requested {live}"
                )
        return lines + checker.own.list_rest(self._cluster.brokers)

    def _restored(self) -> dict[BrokerNumber, int]:
        """Return the number of subscriptions per broker that only an older disk has."""
        own = self._cluster.checker.own
        return {each.number: own.restored(each) for each in self._cluster.state.staying}

    def _check_gates(self) -> None:
        """Check that gates open as soon as their cause has ended, without waiting for an audit."""
        closed = self._cluster.oracle.gates.describe_closed()
        if self._strict and closed and self._waited_ns() > self._bounds.gates_ns:
            raise InvariantViolated(
                "gate late", f"{self._waited_ns() / SECOND_NS:.1f} s after healing: {closed[:6]}"
            )

    def _is_out_of_patience(self, steps: int = 0) -> bool:
        if self._plan.adversarial:
            return self._waited_ns() > UNTIMED_CONVERGENCE_NS or steps >= ENDLESS
        return self._waited_ns() > self._bounds.everything_ns

    def _waited_ns(self) -> int:
        return self._cluster.schedule.now_ns - self._healed_ns

    def _fail_liveness(self) -> NoReturn:
        """Check I8: raise a violation with everything that is owed or not at rest."""
        cluster, waited_ns = self._cluster, self._waited_ns()
        if self._while_broken is not None:
            raise InvariantViolated(
                "liveness",
                f"{waited_ns / SECOND_NS:.1f} s after healing all but "
                f"{[f'{item.kind} {item.a} {item.b}' for item in self._plan.broken]}: "
                f"{'; '.join(self._while_broken.missing()[:12])}",
            )
        left = (
            cluster.waits.describe_unsettled()
            + self._mobility.describe_moving()
            + self._list_rest()
            + self._list_pending()
            + cluster.oracle.obligations.describe_undelivered()
        )
        left += cluster.oracle.gates.describe_closed()
        raise InvariantViolated(
            "liveness", f"{waited_ns / SECOND_NS:.1f} s after healing: {'; '.join(left[:12])}"
        )

    def _check_growth(self) -> None:
        """Check I9: the state of brokers is proportional to the live state."""
        cluster = self._cluster
        if any(self._restored().values()):
            return  # their publications are kept
        clients = sum(not client.detached for client in cluster.clients.values())
        oracle, kept = cluster.oracle, simulation_of(cluster.protocol).kept
        streams = 1 + getattr(cluster.parameters, kept.streams) if kept.streams else 0
        alive = LiveState(
            len(cluster.brokers), oracle.register.live, oracle.register.sources, clients, streams
        )
        for broker in cluster.state.staying:
            check_growth(broker, alive, kept)

    def _list_pending(self) -> list[str]:
        return self._cluster.checker.own.list_pending(self._cluster.brokers)

    def _wait_announcements(self) -> None:
        """Wait, within the limit, until brokers have sent their periodic announcements.

        Raises:
            InvariantViolated: a broker has not sent an announcement.
        """
        schedule = self._cluster.schedule
        self._healed_ns = schedule.now_ns

        def is_owed() -> bool:
            return bool(self._list_pending()) or not self._has_converged()

        if isinstance(schedule, AdversarialSchedule):
            if is_owed():
                self._drain(is_owed, until_quiet=True)
            return
        while is_owed():
            if self._waited_ns() > self._bounds.announcing_ns:
                text = f"{self._waited_ns() / SECOND_NS:.1f} s after all was delivered: "
                raise InvariantViolated("unannounced", text + "; ".join(self._list_pending()[:6]))
            self._run_clock(schedule.now_ns + 50 * MILLISECOND_NS)

    def _wait_expiry(self) -> None:
        """Wait, within the limit, until subscriptions that only an older disk has are expired.

        Brokers that wait for ever for clients keep them, and so does a world without a clock.

        Raises:
            InvariantViolated: a broker has not expired such a subscription.
        """
        schedule, linger_ns = self._cluster.schedule, self._plan.parameters.client_linger_ns
        if isinstance(schedule, AdversarialSchedule) or linger_ns == NEVER_NS:
            return
        self._healed_ns = schedule.now_ns
        while any(self._restored().values()) or not self._has_converged():
            if self._waited_ns() > linger_ns + self._bounds.announcing_ns:
                kept = {
                    self._cluster.brokers[number].name: count
                    for number, count in self._restored().items()
                    if count
                }
                text = f"{self._waited_ns() / SECOND_NS:.1f} s after all was announced: "
                raise InvariantViolated(
                    "kept", text + f"subscriptions of an older disk at {kept}; {self._list_rest()}"
                )
            self._run_clock(schedule.now_ns + 50 * MILLISECOND_NS)

    # ------------------------------------------------------------ ledger

    def _counters(self) -> dict[str, int]:
        cluster = self._cluster
        counters = {
            "broker_events": cluster.trace.steps if cluster.trace is not None else 0,
            "simulated_ms": cluster.schedule.now_ns // MILLISECOND_NS,
            "adversarial_seeds": int(self._plan.adversarial),
            "seeds_with_links_broken_for_ever": int(bool(self._plan.broken)),
            **planning_of(self._plan.protocol).counters(self._plan.parameters),
            "seeds_with_one_way_links_broken_for_ever": int(
                any(item.kind.endswith("_one_way") for item in self._plan.broken)
            ),
            "published": cluster.oracle.published_count,
            "deliveries": cluster.oracle.deliveries,
            "owed": cluster.oracle.owed,
            "counters_recounted": self._recounted,
            "announced": cluster.oracle.notices.announced,
            **{
                f"forgiven_{rule}": cluster.oracle.violations.get(rule, 0)
                for rule in self._forgiven
            },
            **self._context.counts,
            "stalled_by_broken_links": self._stalled,
            "clients_with_older_tokens": cluster.population.resumed,
            "seeds_with_lower_limits": int(bool(self._plan.limits)),
            "consumers": len(self._plan.consumers),
            "redelivered_to_consumers": cluster.population.redeliveries.count,
            "marked_as_redelivered": cluster.population.redeliveries.marked,
            "clients_moved": self._mobility.moved,
            "clients_moved_without_a_step": self._mobility.moved_whole,
            "clients_reattached": self._mobility.reattached,
            "brokers_ended": self._faults.restarted,
            "losses_accepted": cluster.restoration.accepted,
            "losses_refused": cluster.restoration.refused,
            "in_gaps_of_lost_state": cluster.oracle.in_gaps.get(STATE_LOST, 0),
            "brokers_joined": self._mobility.joined,
            "brokers_departed": self._mobility.departed,
            "brokers_decommissioned": len(cluster.removed) - self._faults.lost,
            "duplicates_at_clients": sum(
                c.core.progress.duplicates for c in cluster.clients.values()
            ),
            "bypass_sessions": cluster.checker.bypass_sessions,
            "old_messages": self._faults.landed.get(OLD_MESSAGE, 0),
            "encoded_seeds": int(self._plan.network.encode),
            **cluster.network.counters,
        }
        own = simulation_of(self._plan.protocol)
        summed = (*COMMON_COUNTERS, *own.counters, *own.timed_counters)
        for name, value in cluster.statistics().items():
            if name in summed:
                counters[name] = value + self._faults.at_crash.get(name, 0)
        for kind, count in self._faults.landed.items():
            counters[f"fault_{kind}"] = count
        if cluster.checker.marks is not None:
            marks = {
                **cluster.checker.marks.counts,
                "frame-split": cluster.network.counters["frames_split"],
                ADVANCED_AGAIN.name: cluster.checker.positions.advanced_again,
                **self._faults.compounds,
            }
            counters.update(as_counters(marks))
        return counters
