"""Shrinking: from a failing plan or history to a small one that fails for the same reason."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, TypeVar

from brokerd.overlay.topology import TREE, Topology
from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.checks.protocol_checks import planning_of, with_bugs
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.client_moves import PublicationRun, SubscriptionRequest
from brokerd.simulator.search.move import Move, client_at_neighbour
from brokerd.simulator.search.moves import MOVES, BrokerJoin, FaultInjection, LaneChoice
from brokerd.simulator.search.plan import Plan, make_topology, with_settings, write_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.world.actions import ActedCluster, Action, Scene, describe_action
from brokerd.simulator.world.client_mobility import home_of
from brokerd.simulator.world.sessions import NetworkParameters

MOST_RUNS = 4_000
MOST_STEPS = 1_000_000
"""Limit of brokers' steps over all runs: about a minute."""

SMALL_FAULTS, SMALL_BROKERS, SMALL_PUBLICATIONS = 3, 5, 20
"""Largest sizes of a good counter-example."""

_ROUNDS = (1, 3, 10)
"""Number of seeds of chance per candidate, by round."""

Item = TypeVar("Item")

MOST_ACTIONS = 1_000_000
"""Limit over all candidates: less than a minute."""


@dataclass(frozen=True, slots=True)
class ShrunkPlan:
    """A small failing plan.

    Attributes:
        report: report of its run.
        runs: number of runs of the search.
    """

    plan: Plan
    report: SeedReport
    runs: int

    def is_small(self) -> bool:
        """Return True if a person can be expected to follow the plan."""
        return (
            self.plan.faults <= SMALL_FAULTS
            and len(self.plan.topology.brokers) <= SMALL_BROKERS
            and self.plan.publications <= SMALL_PUBLICATIONS
        )

    def describe(self, origin: str) -> str:
        """Return the plan as text, below the violations."""
        story = [f"{origin}, cut down to {self.plan.size()}.", *self.report.violations]
        return write_plan(self.plan, story)


def shrink(
    plan: Plan,
    *,
    settings: Iterable[str] = (),
    most_runs: int = MOST_RUNS,
) -> ShrunkPlan | None:
    """Return a small plan that fails like the given plan; None if the given plan does not fail.

    Args:
        settings: parameters of the protocol, as `name=value`, that the small plan keeps.
    """
    search = _Search(plan, most_runs, tuple(settings))
    if not search.begin():
        return None
    try:
        search.run()
    except _BudgetSpent:
        pass  # the smallest plan so far is also a counter-example
    assert search.report is not None, "a search that has begun has a report"
    return ShrunkPlan(search.best, search.report, search.runs)


class _BudgetSpent(Exception):
    """The limit of runs or steps is reached."""


class _Search:
    """The smallest failing plan so far, and the steps to a smaller plan."""

    def __init__(self, plan: Plan, most_runs: int, kept: tuple[str, ...]) -> None:
        self.best = plan
        self._kept = kept
        self.report: SeedReport | None = None
        self.runs = 0
        self._position = 0
        self._steps = 0
        self._most_runs = most_runs
        self._chances = 1
        self._rule = ""
        self._harmless: set[Plan] = set()

    def begin(self) -> bool:
        """Run the plan unchanged; return True if the plan fails."""
        return self._fails(self.best)

    def run(self) -> None:
        """Shrink until no step helps any more or the limit is reached."""
        self._truncate()
        self._limits()
        for chances in _ROUNDS:
            self._chances = chances
            before = None
            while before != self.best.size():
                before = self.best.size()
                self._is_broken()
                self._faults()
                self._publications()
                self._subscriptions()
                self._publishers()
                self._brokers()
                self._truncate()
        self._settings()
        self._choices()

    # ------------------------------------------------------------ candidates

    def _fails(self, plan: Plan) -> bool:
        """Return True if a plan fails with its own chance or a few others; keep a failing plan."""
        for number in range(self._chances):
            candidate = plan
            if number:
                candidate = replace(plan, chance=(plan.chance + 7919 * number) % 2**48)
            if self._try(candidate):
                return True
        return False

    def _try(self, plan: Plan) -> bool:
        """Run a plan; return True and keep the plan if it fails. No plan runs twice."""
        if plan in self._harmless:
            return False
        if self.runs >= self._most_runs or self._steps >= MOST_STEPS:
            raise _BudgetSpent
        run = PlanRun(plan, check_purity=self._rule in ("", "purity"))
        report = run.report(-1, "")
        self.runs += 1
        self._steps += report.counters["broker_events"]
        if not report.violations or not self._is_like(report.rule):
            self._harmless.add(plan)
            return False
        if not self._rule:
            self._rule = report.rule
        self.best, self.report, self._position = plan, report, run.position
        return True

    def _is_like(self, rule: str) -> bool:
        """Return True if a rule may replace the first rule: any rule except a mere stall."""
        return rule != "liveness" or self._rule in ("", "liveness")

    def _leave_out(self, items: Sequence[Item], build: Callable[[list[Item]], Plan]) -> None:
        """Leave out all items, then halves, quarters, … single items, while the plan fails."""
        left = list(items)
        size = len(left)
        while size and left:
            place = 0
            while place < len(left):
                fewer = left[:place] + left[place + size :]
                if self._fails(build(fewer)):
                    left = fewer
                else:
                    place += size
            size = min(size // 2, len(left))

    # ------------------------------------------------------------ omissions

    def _truncate(self) -> None:
        """Leave out all moves after the violation, which cannot be a cause."""
        plan, until = self.best, self._position + 1
        if until < plan.heal:
            moves = [move for move in plan.moves if move.when < until]
            self._fails(replace(plan, heal=until, end=until, broken=()).with_moves(moves))

    def _is_broken(self) -> None:
        self._leave_out(
            self.best.broken,
            lambda broken: replace(
                self.best, broken=tuple(broken), end=self.best.end if broken else self.best.heal
            ).with_moves(move for move in self.best.moves if broken or move.when < self.best.heal),
        )

    def _faults(self) -> None:
        self._leave_out_moves(FaultInjection)
        for place, move in enumerate(self.best.moves):
            if type(move) is FaultInjection and move.stages:
                self._fails(self._with_move(place, replace(move, stages=())))

    def _publications(self) -> None:
        self._leave_out_moves(PublicationRun)
        for place in range(len(self.best.moves)):
            move = self.best.moves[place]
            if type(move) is PublicationRun and len(move.contents) > 1:
                self._leave_out_contents(place, move)

    def _leave_out_contents(self, place: int, move: PublicationRun) -> None:
        def build(contents: list[Any]) -> Plan:
            kept = tuple(contents) or move.contents[:1]
            return self._with_move(place, replace(move, contents=kept))

        self._leave_out(move.contents, build)

    def _subscriptions(self) -> None:
        in_other_steps = (FaultInjection, PublicationRun, SubscriptionRequest, LaneChoice)
        for kind in reversed(MOVES.values()):
            if kind not in in_other_steps:
                self._leave_out_moves(kind)
        self._leave_out_moves(SubscriptionRequest)

    def _leave_out_moves(self, kind: type) -> None:
        others = [move for move in self.best.moves if type(move) is not kind]
        self._leave_out(
            [move for move in self.best.moves if type(move) is kind],
            lambda kept: _drop_unknown_brokers(self.best.with_moves([*others, *kept])),
        )

    def _publishers(self) -> None:
        def build(publishers: list[str]) -> Plan:
            moves = [
                move
                for move in self.best.moves
                if type(move) is not PublicationRun or move.client in publishers
            ]
            return replace(self.best, publishers=tuple(publishers)).with_moves(moves)

        self._leave_out(self.best.publishers, build)

    def _brokers(self) -> None:
        for name in self.best.topology.brokers:
            for candidate in _without_broker(self.best, name):
                if self._fails(candidate):
                    break
        if self.best.topology.kind == TREE and self.best.topology.delta > 1:
            topology = self.best.topology.with_delta(1)
            parameters = self._planning.parameters(1, asdict(self.best.parameters))
            self._fails(replace(self.best, topology=topology, parameters=parameters))

    @property
    def _planning(self) -> ProtocolPlanning:
        return planning_of(self.best.protocol)

    def _limits(self) -> None:
        """Leave out the low limits that the failure does not need."""
        if self._fails(replace(self.best, limits=())):
            return
        for limit in self.best.limits:
            rest = tuple(each for each in self.best.limits if each != limit)
            self._fails(replace(self.best, limits=rest))

    def _settings(self) -> None:
        """Reset the settings that need not differ from the defaults."""
        tolerated = self._planning.count_tolerated(self.best.topology)
        plain = self._planning.plain(self.best.parameters, tolerated)
        self._fails(with_settings(replace(self.best, parameters=plain), self._kept))
        self._fails(replace(self.best, network=replace(NetworkParameters(), jitter_ns=1)))
        self._fails(replace(self.best, network=replace(self.best.network, encode=False)))
        self._fails(replace(self.best, network=replace(self.best.network, keep_old_messages=False)))

    # ------------------------------------------------------------ choices of an adversary

    def _choices(self) -> None:
        """Record an adversary's choices as moves, and leave out unnecessary choices.

        The adversary's messages are then delivered one by one, each by its own line.
        """
        if not self.best.adversarial or not self.best.drawn:
            return
        run = PlanRun(self.best, check_purity=False, record=True)
        run.report(-1, "")
        self._chances = 1
        spoken = replace(self.best, drawn=False).with_moves((*self.best.moves, *run.taken))
        if self._fails(spoken):
            self._leave_out_moves(LaneChoice)
            self._truncate()
            self._fails(_with_steps_renumbered(self.best))

    def _with_move(self, place: int, move: Move) -> Plan:
        moves = list(self.best.moves)
        moves[place] = move
        return replace(self.best, moves=tuple(moves))


# ---------------------------------------------------------------- fewer brokers


def _without_broker(plan: Plan, name: str) -> Iterator[Plan]:
    """Yield the plan without a broker: without its clients, or with its clients at a neighbour.

    Only for trees. The brokers behind the removed broker are then linked to one of its neighbours.
    """
    topology = plan.topology
    number = topology.number_of(name)
    if topology.kind != TREE or len(topology.brokers) == 1:
        return
    neighbours = [
        topology.brokers[a if b == number else b]
        for a, b in topology.links
        if number in (a, b)
    ]  # fmt: skip
    neighbour = neighbours[0]
    smaller = _contract(topology, name, neighbour)
    yield _rename(plan, smaller, name, "")
    yield _rename(plan, smaller, name, neighbour)


def _contract(topology: Topology, name: str, neighbour: str) -> Topology:
    names = topology.brokers
    links = []
    for pair in topology.links:
        a, b = (neighbour if names[end] == name else names[end] for end in pair)
        if a != b:
            links.append((a, b))
    brokers = [broker for broker in names if broker != name]
    return make_topology(brokers, links, topology.delta)


def _rename(plan: Plan, topology: Topology, name: str, neighbour: str) -> Plan:
    """Return the plan on the smaller topology; without a neighbour, without the broker's moves."""
    renamed = (move.without_broker(name, neighbour) for move in plan.moves)
    moves = [move for move in renamed if move is not None]
    broken = tuple(
        item if name not in (item.a, item.b) else replace(
            item,
            a=neighbour if item.a == name else item.a,
            b=neighbour if item.b == name else item.b,
        )
        for item in plan.broken
        if name not in (item.a, item.b) or (neighbour and neighbour not in (item.a, item.b))
    )  # fmt: skip
    publishers = tuple(
        client_at_neighbour(publisher, name, neighbour)
        for publisher in plan.publishers
        if home_of(publisher) != name or neighbour
    )  # fmt: skip
    consumers = tuple(
        (client_at_neighbour(consumer, name, neighbour), uncommitted)
        for consumer, uncommitted in plan.consumers
        if home_of(consumer) != name or neighbour
    )
    smaller = replace(
        plan,
        topology=topology,
        publishers=publishers,
        consumers=consumers,
        broken=broken,
        end=plan.end if broken else plan.heal,
    )
    kept = smaller.with_moves(move for move in moves if broken or move.when < plan.heal)
    return _drop_unknown_brokers(kept)


def _drop_unknown_brokers(plan: Plan) -> Plan:
    """Return the plan without moves that need a broker that no longer joins."""
    joining = {move.broker for move in plan.moves if type(move) is BrokerJoin}
    known = joining | set(plan.topology.brokers)
    return plan.with_moves(move for move in plan.moves if move.brokers <= known)


def _with_steps_renumbered(plan: Plan) -> Plan:
    """Return the plan with the remaining steps renumbered from 0; stages keep their order."""
    whens = sorted(
        {move.when for move in plan.moves}
        | {stage for move in plan.moves if type(move) is FaultInjection for stage in move.stages}
        | {plan.heal}
    )
    number = {when: place for place, when in enumerate(whens)}
    moves: list[Move] = []
    for move in plan.moves:
        if type(move) is FaultInjection:
            stages = tuple(number[stage] for stage in move.stages)
            moves.append(replace(move, when=number[move.when], stages=stages))
        else:
            moves.append(replace(move, when=number[move.when]))
    heal = number[plan.heal]
    return replace(plan, heal=heal, end=heal + plan.end - plan.heal).with_moves(moves)


@dataclass(frozen=True, slots=True)
class ShortHistory:
    """A shrunk history.

    Attributes:
        scene: the state before the actions.
        actions: the remaining actions, each necessary as far as tried.
        violation: the violation, in words.
        tried: number of played candidates.
    """

    scene: Scene
    actions: tuple[Action, ...]
    violation: str
    tried: int

    def describe(self) -> str:
        """Return the brokers and clients, the actions, and the violation, in words."""
        topology = self.scene.topology
        brokers = ", ".join(f"{number} = {name}" for number, name in enumerate(topology.brokers))
        links = ", ".join(f"{a}-{b}" for a, b in topology.links)
        publishers = ", ".join(f"{name} at {broker}" for name, broker in self.scene.publishers)
        lines = [
            f"{len(self.actions)} actions are left ({self.tried} histories tried)",
            f"brokers: {brokers}; links: {links}; publishers: {publishers}",
            *(f"  {describe_action(action)}" for action in self.actions),
            self.violation,
        ]
        return "\n".join(lines)


_AT_THE_END = ("", "liveness", "incomplete")
"""Rules that only show after the healing of all faults."""


def failure_of(
    scene: Scene, actions: Sequence[Action], *, to_the_end: bool
) -> tuple[str, str, ActedCluster]:
    """Play actions, without impossible ones; then, if requested, heal, settle and judge.

    Returns:
        The rule that was broken first ("" for none), the violation in words, and the cluster.
    """
    with with_bugs(scene.mutants, scene.protocol):
        cluster = ActedCluster(scene)
        return *_play(cluster, actions, to_the_end), cluster


def _play(cluster: ActedCluster, actions: Sequence[Action], to_the_end: bool) -> tuple[str, str]:
    cluster.start()
    try:
        for action in actions:
            cluster.perform(action)
        if to_the_end:
            cluster.heal_all()
            cluster.settle(Random(0))
            cluster.oracle.judge_end()
    except InvariantViolated as violation:
        return violation.rule, str(violation)
    except Exception as error:
        # Any failure of a core is a finding; the caller compares its name.
        return type(error).__name__, str(error)
    return "", ""


def shrink_history(scene: Scene, actions: Sequence[Action], rule: str) -> ShortHistory:
    """Leave out as many actions as possible at once, then fewer, until no omission is possible."""
    budget = MOST_ACTIONS
    tried = 0
    kept = list(actions)
    to_the_end = rule in _AT_THE_END
    found, violation, cluster = failure_of(scene, kept, to_the_end=to_the_end)
    assert found == rule, f"played again, the actions break {found!r}, not {rule!r}"
    size = max(1, len(kept) // 2)
    while budget > 0:
        before = len(kept)
        place = len(kept)
        while place > 0 and budget > 0:
            candidate = [*kept[: max(0, place - size)], *kept[place:]]
            found, words, cluster = failure_of(scene, candidate, to_the_end=to_the_end)
            tried += 1
            budget -= len(cluster.actions)
            if found == rule:
                kept = candidate
                violation = words
            place -= size
        if size == 1 and len(kept) == before:
            break
        size = max(1, size // 2)
    return ShortHistory(scene, tuple(kept), violation, tried)
