"""Virtual time, and who decides what happens next.

Whatever will happen later lies on a lane. A lane is first in, first out: one direction of a
session, one broker's disk, one attempt to connect. Two schedules empty the lanes. The timed one
gives each entry an instant and takes the earliest; the adversarial one knows no durations and
takes the head of any lane, so that every order the assumptions allow can come up.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from brokerd.protocols.interface import Instant
from brokerd.units import SECOND_NS

NEVER_NS = 1_000_000 * SECOND_NS
"""A timer that is set to this does not come in any seed."""

PATIENCE_NS = 1_000 * SECOND_NS
"""Timers farther off than this are meant never to come."""

TIMER = "timer"
"""What a recorded choice calls the earliest timer."""

Action = Callable[..., None]


class Lane:
    """Things that will happen, in this order and in no other.

    Attributes:
        name: what a recorded choice calls it; lanes of one kind between the same two share it.
        holds: how many reasons there are to let nothing out at present.
    """

    __slots__ = ("_overdue", "_place", "_schedule", "holds", "last_ns", "name", "queue")

    def __init__(self, schedule: "Schedule", name: str = "") -> None:
        self._schedule = schedule
        self.name = name
        self._overdue = 0
        self._place = -1
        self.queue: deque[tuple[Action, tuple[Any, ...]]] = deque()
        self.last_ns: Instant = 0
        self.holds = 0

    def hold(self) -> None:
        """Let nothing out until as many releases as holds were asked for."""
        if not self.holds:
            self._schedule.pending -= len(self.queue)
        self.holds += 1
        self._schedule.lane_held(self)

    def release(self) -> None:
        """Take back one hold."""
        assert self.holds > 0, "a lane was released more often than held"
        self.holds -= 1
        if not self.holds:
            self._schedule.pending += len(self.queue)
            self._schedule.lane_released(self)

    def let_one_out(self) -> bool:
        """Let the first entry happen although the lane is held; False when there is none."""
        assert self.holds, f"{self.name} is not held"
        if not self.queue:
            return False
        action, arguments = self.queue.popleft()
        action(*arguments)
        return True

    def truncate(self, keep: int) -> list[tuple[Action, tuple[Any, ...]]]:
        """Drop all but the first `keep` entries and return what was dropped."""
        dropped = [self.queue.pop() for _ in range(len(self.queue) - keep)]
        dropped.reverse()
        if not self.holds:
            self._schedule.pending -= len(dropped)
        if dropped and not self.queue:
            self._schedule.lane_emptied(self)
        return dropped


class Schedule:
    """Decides what happens next; see the two kinds below.

    Attributes:
        now_ns: virtual time; never goes back.
        adversarial: whether durations mean nothing.
        pending: entries on lanes that nobody holds. Timers do not count.
    """

    adversarial = False

    def __init__(self) -> None:
        self.now_ns: Instant = 0
        self.pending = 0
        self._numbers = itertools.count()

    def post(self, lane: Lane, delay_ns: int, action: Action, *arguments: Any) -> None:
        """Let `action` happen on `lane`, not before `delay_ns` from now."""
        raise NotImplementedError

    def at(self, when_ns: Instant, action: Action, *arguments: Any) -> None:
        """Let `action` happen at an instant; for timers, which wait for nothing else."""
        raise NotImplementedError

    def lane_held(self, lane: Lane) -> None:
        """A lane lets nothing out from now on."""

    def lane_released(self, lane: Lane) -> None:
        """A lane is free again; what was due meanwhile happens now, in order."""

    def lane_emptied(self, lane: Lane) -> None:
        """What a lane held was dropped."""


class TimedSchedule(Schedule):
    """A heap of (instant, number): earliest first, and first posted first among equals."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[Instant, int, Lane | None, Any]] = []
        self._timers = 0

    def post(self, lane: Lane, delay_ns: int, action: Action, *arguments: Any) -> None:
        when_ns = self.now_ns + delay_ns
        if when_ns < lane.last_ns:
            when_ns = lane.last_ns
        lane.last_ns = when_ns
        lane.queue.append((action, arguments))
        if not lane.holds:
            self.pending += 1
        heapq.heappush(self._heap, (when_ns, next(self._numbers), lane, None))

    def at(self, when_ns: Instant, action: Action, *arguments: Any) -> None:
        when_ns = max(when_ns, self.now_ns)
        heapq.heappush(self._heap, (when_ns, next(self._numbers), None, (action, arguments)))

    def lane_released(self, lane: Lane) -> None:
        for _ in range(lane._overdue):
            heapq.heappush(self._heap, (self.now_ns, next(self._numbers), lane, None))
        lane.last_ns = max(lane.last_ns, self.now_ns) if lane._overdue else lane.last_ns
        lane._overdue = 0

    def next_ns(self) -> Instant | None:
        """When the next thing happens; None when nothing will."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """Let the next thing happen; False when there is none."""
        heap = self._heap
        if not heap:
            return False
        when_ns, _, lane, timer = heapq.heappop(heap)
        self.now_ns = when_ns
        if lane is None:
            action, arguments = timer
            action(*arguments)
        elif lane.holds:
            lane._overdue += 1
        elif lane.queue:
            self.pending -= 1
            action, arguments = lane.queue.popleft()
            action(*arguments)
        return True

    def run_until(self, until_ns: Instant) -> None:
        """Let everything happen up to and at an instant; the clock then shows it."""
        heap, step = self._heap, self.step
        while heap and heap[0][0] <= until_ns:
            step()
        self.now_ns = max(self.now_ns, until_ns)


class AdversarialSchedule(Schedule):
    """No durations: any lane's head may be next; timers fire earliest first, when asked to.

    Time goes on only with timers, so that a broker's retries cannot starve its waiting periods.

    Attributes:
        names_taken: whether to keep what was taken last in `taken`.
        taken: the lane whose head was taken last, with its number among those of the same name;
            TIMER for a timer.
        held: names of lanes of which nothing happens, whether they are there yet or not.
    """

    adversarial = True

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self.names_taken = False
        self.taken = ""
        self.held: dict[str, dict[Lane, None]] = {}
        self._ready: list[Lane] = []
        self._timers: list[tuple[Instant, int, Action, tuple[Any, ...]]] = []

    def post(self, lane: Lane, delay_ns: int, action: Action, *arguments: Any) -> None:
        lane.queue.append((action, arguments))
        if not lane.holds:
            self.pending += 1
        if lane._place < 0 and not lane.holds:
            self._add(lane)

    def at(self, when_ns: Instant, action: Action, *arguments: Any) -> None:
        when_ns = max(when_ns, self.now_ns)
        heapq.heappush(self._timers, (when_ns, next(self._numbers), action, arguments))

    def lane_held(self, lane: Lane) -> None:
        self._remove(lane)

    def lane_released(self, lane: Lane) -> None:
        if lane.queue:
            self._add(lane)

    def lane_emptied(self, lane: Lane) -> None:
        self._remove(lane)

    def step(self) -> bool:
        """Let the head of some lane happen; False when all lanes are empty or held."""
        lane = self.draw()
        if lane is None:
            return False
        self.take_head(lane)
        return True

    def draw(self) -> Lane | None:
        """Any lane on which something can happen now; None when there is none."""
        ready = self._ready
        return ready[int(self._random.random() * len(ready))] if ready else None

    def name_of(self, lane: Lane) -> str:
        """What `take` is to be given for the head of this lane, as things stand."""
        name, number = lane.name, 0
        for other in self._ready[: lane._place]:
            if other.name == name:
                number += 1
        return f"{name}#{number}" if number else name

    def hold(self, name: str) -> bool:
        """Let nothing out of lanes of this name, of later ones neither; False when held already."""
        if name in self.held:
            return False
        self.held[name] = {}
        for lane in [lane for lane in self._ready if lane.name == name]:
            self._remove(lane)
            self._add(lane)
        return True

    def release(self, name: str) -> bool:
        """Take back `hold`; False when it was not held."""
        if name not in self.held:
            return False
        for lane in self.held.pop(name):
            if lane.queue and not lane.holds:
                self._add(lane)
        return True

    def take(self, name: str) -> bool:
        """Let what a recorded choice names happen; False when there is nothing of the kind."""
        if name == TIMER:
            return self.fire()
        name, _, place = name.partition("#")
        lanes = [lane for lane in self._ready if lane.name == name]
        number = int(place or 0)
        if number >= len(lanes):
            return False
        self.take_head(lanes[number])
        return True

    def draw_anew(self, random: Random) -> None:
        """Draw from another stream from now on, however much was drawn from the first."""
        self._random = random

    def take_head(self, lane: Lane) -> None:
        """Let the head of a lane happen; there must be one, and nobody may hold it."""
        if self.names_taken:
            self.taken = self.name_of(lane)
        action, arguments = lane.queue.popleft()
        self.pending -= 1
        if not lane.queue:
            self._remove(lane)
        action(*arguments)

    def fire(self, within_ns: int = PATIENCE_NS) -> bool:
        """Let the earliest timer happen; False when there is none so soon."""
        if not self._timers or self._timers[0][0] > self.now_ns + within_ns:
            return False
        self.taken = TIMER
        when_ns, _, action, arguments = heapq.heappop(self._timers)
        self.now_ns = when_ns
        action(*arguments)
        return True

    def _add(self, lane: Lane) -> None:
        if lane._place >= 0:
            return
        if lane.name in self.held:
            self.held[lane.name][lane] = None
            return
        lane._place = len(self._ready)
        self._ready.append(lane)

    def _remove(self, lane: Lane) -> None:
        if lane._place < 0:
            return
        last = self._ready.pop()
        if last is not lane:
            self._ready[lane._place] = last
            last._place = lane._place
        lane._place = -1
