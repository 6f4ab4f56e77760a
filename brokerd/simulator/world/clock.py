"""Virtual time, and the order of events.

Every future event is on a lane. A lane is first in, first out: one direction of a session, one
broker's disk, one attempt to connect. Two schedules empty the lanes. The timed schedule gives each
entry an instant and takes the earliest entry. The adversarial schedule has no durations and takes
the head of any lane, so that every order allowed by the assumptions can occur.
"""

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Instant
from brokerd.units import SECOND_NS

NEVER_NS = 1_000_000 * SECOND_NS
"""An instant of timers that never fire, in any seed."""

PATIENCE_NS = 1_000 * SECOND_NS
"""The limit of the distance of timers; later timers are meant never to fire."""

TIMER = "timer"
"""The name of the earliest timer in a recorded choice."""

Action = Callable[..., None]

_EARLIEST_S = 0
_LATEST_S = 4_000_000_000
_LARGEST_STEP_NS = 3_600 * SECOND_NS


class Lane:
    """A queue of future events in a fixed order.

    Attributes:
        name: name in a recorded choice; lanes of one kind between the same two endpoints share a
            name.
        holds: number of reasons to hold the lane at present.
        serial: number among all lanes of the schedule, in order of creation.
    """

    __slots__ = ("_overdue", "_place", "_schedule", "holds", "last_ns", "name", "queue", "serial")

    def __init__(self, schedule: "Schedule", name: str = "") -> None:
        self._schedule = schedule
        self.name = name
        self.serial = schedule.next_serial()
        self._overdue = 0
        self._place = -1
        self.queue: deque[tuple[Action, tuple[Any, ...]]] = deque()
        self.last_ns: Instant = 0
        self.holds = 0

    def hold(self) -> None:
        """Hold the lane until an equal number of releases."""
        if not self.holds:
            self._schedule.pending -= len(self.queue)
        self.holds += 1
        self._schedule.lane_held(self)

    def release(self) -> None:
        """Release one hold."""
        assert self.holds > 0, "a lane was released more often than held"
        self.holds -= 1
        if not self.holds:
            self._schedule.pending += len(self.queue)
            self._schedule.lane_released(self)

    def release_one(self) -> bool:
        """Perform the first entry although the lane is held; return False if the lane is empty."""
        assert self.holds, f"{self.name} is not held"
        if not self.queue:
            return False
        action, arguments = self.queue.popleft()
        action(*arguments)
        return True

    def truncate(self, keep: int) -> list[tuple[Action, tuple[Any, ...]]]:
        """Drop all but the first `keep` entries and return the dropped entries."""
        dropped = [self.queue.pop() for _ in range(len(self.queue) - keep)]
        dropped.reverse()
        if not self.holds:
            self._schedule.pending -= len(dropped)
        if dropped and not self.queue:
            self._schedule.lane_emptied(self)
        return dropped


class Schedule:
    """The order of events, of two kinds; see below.

    Attributes:
        now_ns: virtual time; never decreases.
        adversarial: True if durations have no meaning.
        pending: number of entries on lanes without a hold. Timers do not count.
    """

    adversarial = False

    def __init__(self) -> None:
        self.now_ns: Instant = 0
        self.pending = 0
        self._number = 0
        self._lanes = 0

    def next_serial(self) -> int:
        """Return the serial number of a new lane."""
        self._lanes += 1
        return self._lanes

    def post(self, lane: Lane, delay_ns: int, action: Action, *arguments: Any) -> None:
        """Schedule `action` on `lane`, at least `delay_ns` from now."""
        raise NotImplementedError

    def at(self, when_ns: Instant, action: Action, *arguments: Any) -> None:
        """Schedule `action` at an instant, for timers, which wait for no other event."""
        raise NotImplementedError

    def lane_held(self, lane: Lane) -> None:
        """Stop the events of a lane."""

    def lane_released(self, lane: Lane) -> None:
        """Resume the events of a lane; overdue events happen now, in order."""

    def lane_emptied(self, lane: Lane) -> None:
        """Forget a lane with dropped entries."""


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
        self._number += 1
        heapq.heappush(self._heap, (when_ns, self._number, lane, None))

    def at(self, when_ns: Instant, action: Action, *arguments: Any) -> None:
        when_ns = max(when_ns, self.now_ns)
        self._number += 1
        heapq.heappush(self._heap, (when_ns, self._number, None, (action, arguments)))

    def lane_released(self, lane: Lane) -> None:
        for _ in range(lane._overdue):
            self._number += 1
            heapq.heappush(self._heap, (self.now_ns, self._number, lane, None))
        lane.last_ns = max(lane.last_ns, self.now_ns) if lane._overdue else lane.last_ns
        lane._overdue = 0

    def next_ns(self) -> Instant | None:
        """Return the instant of the next event; None without events."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """Perform the next event; return False without events."""
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
        """Perform all events up to and at an instant; the clock then shows the instant."""
        heap, step = self._heap, self.step
        while heap and heap[0][0] <= until_ns:
            step()
        self.now_ns = max(self.now_ns, until_ns)


class AdversarialSchedule(Schedule):
    """A schedule without durations: the head of any lane may be next.

    Timers fire earliest first, on request. Time advances only with timers, so that a broker's
    retries cannot starve its waiting periods.

    Attributes:
        names_taken: True to keep the name of the last event in `taken`.
        taken: the lane of the last event, with its number among the lanes of this name; TIMER for a
            timer.
        held: names of held lanes, present or future.
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
        self._number += 1
        heapq.heappush(self._timers, (when_ns, self._number, action, arguments))

    def lane_held(self, lane: Lane) -> None:
        self._remove(lane)

    def lane_released(self, lane: Lane) -> None:
        if lane.queue:
            self._add(lane)

    def lane_emptied(self, lane: Lane) -> None:
        self._remove(lane)

    def step(self) -> bool:
        """Take the head of some lane; return False if all lanes are empty or held."""
        lane = self.draw()
        if lane is None:
            return False
        self.take_head(lane)
        return True

    def draw(self) -> Lane | None:
        """Return any lane with a possible event; None if there is none."""
        ready = self._ready
        return ready[int(self._random.random() * len(ready))] if ready else None

    def name_of(self, lane: Lane) -> str:
        """Return the present argument of `take` for the head of this lane."""
        name, number = lane.name, 0
        for other in self._ready[: lane._place]:
            if other.name == name:
                number += 1
        return f"{name}#{number}" if number else name

    def hold(self, name: str) -> bool:
        """Hold all lanes of this name, also later lanes; return False if held already."""
        if name in self.held:
            return False
        self.held[name] = {}
        for lane in [lane for lane in self._ready if lane.name == name]:
            self._remove(lane)
            self._add(lane)
        return True

    def release(self, name: str) -> bool:
        """Undo `hold`; return False if the name was not held."""
        if name not in self.held:
            return False
        for lane in self.held.pop(name):
            if lane.queue and not lane.holds:
                self._add(lane)
        return True

    def take(self, name: str) -> bool:
        """Perform the event of a recorded choice; return False if no such event is possible."""
        if name == TIMER:
            return self.fire()
        name, _, place = name.partition("#")
        lanes = [lane for lane in self._ready if lane.name == name]
        number = int(place or 0)
        if number >= len(lanes):
            return False
        self.take_head(lanes[number])
        return True

    def ready_lanes(self) -> dict[str, Lane]:
        """Return the lanes with a possible event by name, in order of creation.

        The order does not depend on earlier choices, unlike the numbers of `name_of`.
        """
        found: dict[str, Lane] = {}
        counts: dict[str, int] = {}
        for lane in sorted(self._ready, key=lambda lane: lane.serial):
            number = counts[lane.name] = counts.get(lane.name, -1) + 1
            found[f"{lane.name}#{number}" if number else lane.name] = lane
        return found

    def draw_anew(self, random: Random) -> None:
        """Draw from another random stream from now on, for any number of earlier draws."""
        self._random = random

    def take_head(self, lane: Lane) -> None:
        """Take the head of a lane; the lane must have entries and no hold."""
        if self.names_taken:
            self.taken = self.name_of(lane)
        action, arguments = lane.queue.popleft()
        self.pending -= 1
        if not lane.queue:
            self._remove(lane)
        action(*arguments)

    def fire(self) -> bool:
        """Fire the earliest timer; return False if no timer is due within PATIENCE_NS."""
        if not self._timers or self._timers[0][0] > self.now_ns + PATIENCE_NS:
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


class WallClocks:
    """Clocks with any start; between two incarnations a clock may step, also backwards.

    The clocks draw from a random stream of their own, so that no other choice depends on them.

    Attributes:
        are_steady: no clock steps between two incarnations.
    """

    def __init__(self, seed: object) -> None:
        self.are_steady = False
        self._random = Random(f"wall clocks {seed}")
        self._ahead_ns: dict[BrokerNumber, int] = {}
        self._most_ns: dict[BrokerNumber, int] = {}

    def set_ahead(self, broker: BrokerNumber) -> None:
        """Set a broker's clock ahead of all earlier times of all brokers, and of assigned ticks.

        The acceptance of a loss includes a check of the clock. A broker whose clock is behind the
        lost events would assign the same ticks again. In total order a broker assigns ticks that
        are as high as those of the broker with the fastest clock.
        """
        self._ahead_ns[broker] = max(self._most_ns.values(), default=0) + 2 * _LARGEST_STEP_NS

    def read_at_start(self, broker: BrokerNumber, now_ns: Instant) -> int:
        """Return the time of a broker's clock at the start of an incarnation, in nanoseconds."""
        ahead_ns = self._ahead_ns.get(broker)
        if ahead_ns is None:
            ahead_ns = self._random.randint(_EARLIEST_S, _LATEST_S) * SECOND_NS
        elif not self.are_steady and self._random.random() < 0.5:
            ahead_ns += self._random.randint(-_LARGEST_STEP_NS, _LARGEST_STEP_NS)
        self._ahead_ns[broker] = ahead_ns
        self._most_ns[broker] = max(ahead_ns, self._most_ns.get(broker, 0))
        return max(0, ahead_ns + now_ns)
