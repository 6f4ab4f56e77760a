"""Breadth-first search over all states of a small world.

Every state is expanded once: the search restores the state, performs one enabled action, and
compares the fingerprint of the result with all known fingerprints. The first violation therefore
has a short history. A world is complete if the search has expanded every state.

`reduction` chooses the actions of each state, and sleep sets leave out one order of two deliveries
at different brokers. A known state is expanded again for actions that slept before, and not now.
Every step of every broker is still reached, and so is every final state; some states between are
not, so that a check that compares two brokers sees fewer moments. If no chosen action leads to a
deeper state, the search performs all actions: otherwise an action could wait in a circle forever.

A path of states with a single chosen action each is one transition between two stored states. The
search checks every state of a path, but restores and stores none.

With a delay bound, deliveries follow the order of creation of their lanes, and every skipped lane
costs one delay. Then the search covers all histories within the bound, and states with different
orders of their lanes are different states.

Without lag, clients and disks act at once, except at the process of the next fault. Then the search
covers these histories only. `Exploration.ends` without lag are a part of the ends with lag.

Paper: Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems" (1996), §5
(sleep sets); Emmi, Qadeer and Rakamaric, "Delay-bounded scheduling" (POPL 2011).
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from brokerd.errors import ConfigError
from brokerd.simulator.checks.marks import ADVANCED_AGAIN
from brokerd.simulator.checks.protocol_checks import marks_of, simulation_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.exploration.fingerprint import Fingerprints
from brokerd.simulator.search.exploration.reduction import choose, is_independent
from brokerd.simulator.search.exploration.small_world import SmallWorld, WorldState
from brokerd.simulator.search.exploration.snapshots import Snapshot, Snapshots
from brokerd.simulator.world.actions import Action, is_lane

HELD_BYTES: Final = 2 << 30
"""Limit of the snapshots of states that wait for their expansion; other states are replayed."""

_LONGEST_PATH: Final = 400
"""Limit of the actions between two states."""

_NESTING: Final = 20_000
"""Limit of nested calls, which a snapshot needs for long chains of objects."""

Sleep = frozenset[Action]


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation with a short history.

    Attributes:
        rule: the broken rule, or the name of the error of a core.
        violation: the violation, in words.
        actions: the history, from the settled start of the world.
    """

    rule: str
    violation: str
    actions: tuple[Action, ...]


@dataclass(slots=True)
class Progress:
    """The extent of a search so far.

    Attributes:
        states: number of different states.
        transitions: number of performed actions.
        depth: maximum number of actions to a state, by the first found history of each state.
        finals: number of states in which everything owed has arrived and nothing is left to do.
        waiting: number of states that are not expanded.
        marks: the marks of the protocol that an action reached.
        finding: the first violation.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    finals: int = 0
    waiting: int = 0
    marks: dict[str, None] = field(default_factory=dict)
    finding: Finding | None = None

    @property
    def is_complete(self) -> bool:
        """True if every state was expanded without a violation."""
        return not self.waiting and self.finding is None

    def unreached(self, protocol: str) -> list[str]:
        """Return the marks of a protocol that no action reached."""
        return [mark.name for mark in marks_of(protocol) if mark.name not in self.marks]


@dataclass(frozen=True, slots=True)
class _Task:
    """A state to expand.

    Attributes:
        only: the actions to perform; None for all enabled actions.
        delays: remaining delays.
    """

    number: int
    snapshot: Snapshot | None
    sleep: Sleep
    only: Sleep | None
    delays: int


class Exploration:
    """The search through one world.

    Args:
        delay_bound: maximum number of delays of a history; None for no bound.
        is_reduced: persistent sets leave out states, and sleep sets leave out transitions; has no
            effect with a delay bound.

    Attributes:
        progress: the extent of the search so far.
        ends: the fingerprints of all states in which only time may pass, without plans of faults.
    """

    def __init__(
        self, world: SmallWorld, *, delay_bound: int | None = None, is_reduced: bool = True
    ) -> None:
        world.check()
        self.world = world
        self.progress = Progress()
        self._bounded = delay_bound is not None
        self._reduced = is_reduced and not self._bounded
        self._follows = self._reduced or (is_reduced and not world.has_lag)
        self._delays = delay_bound or 0
        self._static = (type(world.scene().parameters),)
        self._snapshots: Snapshots
        self._first: Snapshot
        self._fingerprints: Fingerprints
        self._numbers: dict[bytes, int] = {}
        self._parents: list[tuple[int, Sequence[Action]]] = []
        self._depths: list[int] = []
        self._sleeps: list[Sleep] = []
        self._left: list[int] = []
        self._plans: list[str] = []
        self._whole: dict[int, None] = {}
        self.ends: dict[bytes, None] = {}
        self._tasks: deque[_Task] = deque()
        self._held = 0
        self._forgiven = simulation_of(world.protocol).forgiven

    @property
    def fingerprints(self) -> frozenset[bytes]:
        """The fingerprints of all states so far."""
        return frozenset(self._numbers)

    def run(self) -> Iterator[Progress]:
        """Expand state after state; yield the progress before each state."""
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _NESTING))
        try:
            self._begin()
            while self._tasks and self.progress.finding is None:
                self.progress.waiting = len(self._tasks)
                yield self.progress
                task = self._tasks.popleft()
                self._held -= task.snapshot.size if task.snapshot is not None else 0
                self._expand(task)
            self.progress.waiting = len(self._tasks)
        finally:
            sys.setrecursionlimit(limit)

    def play(self, actions: Sequence[Action]) -> Finding | None:
        """Perform the actions of one history, with all checks; return the first violation.

        Raises:
            ConfigError: an action is impossible in its state.
        """
        state = WorldState.begin(self.world)
        for place, action in enumerate(actions):
            found = self._perform(state, action) or self._fault_of(state)
            if found is not None:
                return Finding(*found, tuple(actions[: place + 1]))
        return None

    # ------------------------------------------------------------ expansion

    def _begin(self) -> None:
        try:
            state = WorldState.begin(self.world)
        except InvariantViolated as violation:
            self.progress.finding = Finding(violation.rule, str(violation), ())
            return
        self._snapshots = Snapshots(state, self._static)
        self._fingerprints = Fingerprints(self._static, self._snapshots)
        self._first = self._snapshots.take()
        self._add_each(state, -1, (), frozenset(), self._delays)

    def _expand(self, task: _Task) -> None:
        state = self._restore(task)
        enabled = state.enabled()
        if not self._reduced or task.number in self._whole:
            self._expand_by(task, enabled, enabled)
            return
        chosen = choose(state, enabled)
        is_ahead = self._expand_by(task, enabled, chosen)
        if len(chosen) < len(enabled) and not is_ahead and self.progress.finding is None:
            # Every circle has an edge without progress, where no action may be left out.
            self._whole[task.number] = None
            rest = [action for action in enabled if action not in chosen]
            self._expand_by(task, enabled, rest, chosen)

    def _expand_by(
        self,
        task: _Task,
        enabled: Sequence[Action],
        actions: Sequence[Action],
        before: Sequence[Action] = (),
    ) -> bool:
        """Perform actions of a state, after others; return True if one leads to a deeper state."""
        state = self._restore(task)
        lanes = [action for action in enabled if is_lane(action)]
        chosen = [
            action
            for action in actions
            if action not in task.sleep and (task.only is None or action in task.only)
        ]
        commutes = self._reduced and not state.acted.link_faults.cut_directions()
        asleep = dict.fromkeys(action for action in enabled if action in task.sleep)
        asleep |= dict.fromkeys(before)
        depth, is_ahead, restored = self._depths[task.number], False, True
        for action in chosen:
            delays = task.delays
            if self._bounded and is_lane(action):
                delays -= lanes.index(action)
                if delays < 0:
                    continue
            if not restored:
                state = self._restore(task)
            restored = False
            path, sleep = [action], frozenset[Action]()
            if commutes:
                sleep = frozenset(each for each in asleep if is_independent(each, action))
                asleep[action] = None
            finding = self._perform(state, action)
            if finding is None and self._follows:
                finding, sleep = self._follow(state, path, sleep)
            if finding is not None:
                history = self._history(task.number)
                self.progress.finding = Finding(*finding, (*history, *path))
                return True
            for number in self._add_each(state, task.number, path, sleep, delays):
                is_ahead |= self._depths[number] > depth
            if self.progress.finding is not None:
                return True
        return is_ahead

    def _follow(
        self, state: WorldState, path: list[Action], sleep: Sleep
    ) -> tuple[tuple[str, str] | None, Sleep]:
        """Perform actions as long as each is the only chosen action of its state.

        Return the rule and the words of a violation, and the remaining sleep set.
        """
        while len(path) < _LONGEST_PATH and not state.is_late() and not self._list_plans(state):
            enabled = state.enabled()
            sleep = frozenset(each for each in sleep if each in enabled)
            chosen = choose(state, enabled) if self._reduced else enabled
            if len(chosen) != 1 or chosen[0] in sleep:
                break
            action = chosen[0]
            path.append(action)
            if state.acted.link_faults.cut_directions():
                sleep = frozenset()
            sleep = frozenset(each for each in sleep if is_independent(each, action))
            found = self._perform(state, action)
            if found is not None:
                return found, sleep
        return None, sleep

    def _list_plans(self, state: WorldState) -> list[str]:
        """Return the plans of the next fault among which the search must choose now."""
        is_planned = self._reduced or not self.world.has_lag
        return state.list_plans() if is_planned and not state.spent.planned else []

    def _perform(self, state: WorldState, action: Action) -> tuple[str, str] | None:
        """Perform an action; return the rule and the words of a violation."""
        self.progress.transitions += 1
        try:
            state.perform(action)
            self._judge_step(state)
        except InvariantViolated as violation:
            return violation.rule, str(violation)
        except ConfigError:
            raise
        except Exception as error:
            # A core that fails is a finding like any other; the history repeats the failure.
            return type(error).__name__, f"{type(error).__name__}: {error}"
        return None

    def _judge_step(self, state: WorldState) -> None:
        checker, oracle = state.acted.cluster.checker, state.acted.oracle
        if checker.marks is not None:
            self.progress.marks.update(
                (name, None) for name, count in checker.marks.counts.items() if count
            )
        if checker.positions.advanced_again:
            self.progress.marks[ADVANCED_AGAIN.name] = None
        for rule in oracle.violations:
            if rule not in self._forgiven:
                raise InvariantViolated(rule, oracle.first_violations[0])

    def _add_each(
        self, state: WorldState, parent: int, path: Sequence[Action], sleep: Sleep, delays: int
    ) -> list[int]:
        """Add the result of a path, once for each plan of the next fault."""
        plans = self._list_plans(state)
        found: list[int] = []
        for plan in plans or (state.spent.planned,):
            if self.progress.finding is None:
                state.plan(plan)
                found.append(self._add(state, parent, path, sleep, delays))
        return found

    def _add(
        self, state: WorldState, parent: int, path: Sequence[Action], sleep: Sleep, delays: int
    ) -> int:
        """Schedule the expansion of the result of a path; return the number of the state."""
        plain = fingerprint = self._fingerprints.of(state)
        if self._bounded:
            fingerprint += state.digest_order()
        number = self._numbers.get(fingerprint)
        if number is not None:
            self._revisit(number, sleep, delays)
            return number
        number = self._numbers[fingerprint] = len(self._parents)
        depth = self._depths[parent] + len(path) if parent >= 0 else 0
        self._parents.append((parent, path))
        self._depths.append(depth)
        self._sleeps.append(sleep)
        self._left.append(delays)
        self._plans.append(state.spent.planned)
        self.progress.states += 1
        self.progress.depth = max(self.progress.depth, depth)
        self._schedule(_Task(number, None, sleep, None, delays))
        if state.is_late():
            self._add_end(state, plain)
        found = self._fault_of(state)
        if found is not None:
            self.progress.finding = Finding(*found, self._history(number))
        return number

    def _add_end(self, state: WorldState, fingerprint: bytes) -> None:
        if state.spent.planned:
            plan = state.spent.planned
            state.plan("")
            fingerprint = self._fingerprints.of(state)
            state.plan(plan)
        self.ends[fingerprint] = None

    def _revisit(self, number: int, sleep: Sleep, delays: int) -> None:
        """Expand a known state again for actions that slept, or with more delays."""
        missing = self._sleeps[number] - sleep
        if missing:
            sleep = self._sleeps[number] = self._sleeps[number] & sleep
            self._schedule(_Task(number, None, sleep, missing, delays))
        if delays > self._left[number]:
            self._left[number] = delays
            self._schedule(_Task(number, None, frozenset(), None, delays))

    def _fault_of(self, state: WorldState) -> tuple[str, str] | None:
        """Judge a state; return the rule and the words of a violation."""
        try:
            self._judge_state(state)
        except InvariantViolated as violation:
            return violation.rule, str(violation)
        return None

    def _judge_state(self, state: WorldState) -> None:
        """Check that everything owed has arrived, or arrives with time; only in a late state."""
        cluster = state.acted.cluster
        if not state.is_late():
            return
        state.touch_all()
        if state.acted.has_converged():
            self.progress.finals += 1
            cluster.inspection.recount()
            if self.world.is_strict:
                cluster.oracle.judge_end()
            return
        state.acted.settle(Random(0))

    # ------------------------------------------------------------ states

    def _schedule(self, task: _Task) -> None:
        snapshot = None
        if self._held < HELD_BYTES:
            snapshot = self._snapshots.take()
            self._held += snapshot.size
        self._tasks.append(_Task(task.number, snapshot, task.sleep, task.only, task.delays))

    def _restore(self, task: _Task) -> WorldState:
        if task.snapshot is not None:
            return self._snapshots.restore(task.snapshot)
        state = self._snapshots.restore(self._first)
        for action in self._history(task.number):
            state.perform(action)
        state.plan(self._plans[task.number])
        return state

    def _history(self, number: int) -> tuple[Action, ...]:
        """Return the actions from the start to a state."""
        actions: list[Action] = []
        while (parent := self._parents[number])[0] >= 0:
            number = parent[0]
            actions.extend(reversed(parent[1]))
        return tuple(reversed(actions))
