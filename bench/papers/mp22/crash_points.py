"""The design's crash points, on simulated brokers: a broker dies there, and restarts later.

Two of the design's fifteen points are missing, because simulated brokers lack them: a full disk
(C8) and a torn record (C15). For moves of topics (C14), the first server starts when the other
servers own all topics. The report's three files (C7) are a single record here, of which a crash
keeps all or nothing.

Paper: [MP22] §4, §5.1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from bench.papers.mp22.proxy_world import (
    HOMES,
    SETTLING_S,
    CrashExperiment,
    Row,
    World,
    messages_of,
)
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Publish
from brokerd.protocols.interface import Append, Commit, Effect, Event, MessageReceived
from brokerd.protocols.multi_proxy.messages import (
    Assigned,
    Claim,
    Get,
    Located,
    Messages,
    Move,
    Put,
    Stored,
    Transfer,
    Transferred,
)
from brokerd.protocols.multi_proxy.state import MOVES, OWNERS
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.units import SECOND_NS

KINDS: Final = "abcdefgh"
MORE_KINDS: Final = "abcdefghijklmnopqrstuvwxyz"
MOVING: Final = "C14"
STEP_S: Final = 0.02
STEPS: Final = 5
"""Number of steps between two publications."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """A step at which a broker dies.

    Attributes:
        is_it: returns True for such a step.
        before: True for death before the effects of the step, False for death right after.
    """

    is_it: Callable[[SimulatedBroker, Event, Sequence[Effect]], bool]
    before: bool


def _gets(kind: type, field: str) -> Callable[[SimulatedBroker, Event, Sequence[Effect]], bool]:
    """Return a test for the receipt of a message addressed to the broker by `field`."""

    def is_it(broker: SimulatedBroker, event: Event, effects: Sequence[Effect]) -> bool:
        if type(event) is not MessageReceived or type(event.message) is not kind:
            return False
        holder = getattr(event.message, field) if field else broker.number
        return bool(holder == broker.number)

    return is_it


def _sends(kind: type, field: str) -> Callable[[SimulatedBroker, Event, Sequence[Effect]], bool]:
    """Return a test for the send of a message of the broker's own, after its fsync."""

    def is_it(broker: SimulatedBroker, event: Event, effects: Sequence[Effect]) -> bool:
        return type(event) is not MessageReceived and any(
            type(message) is kind and getattr(message, field) == broker.number
            for message in messages_of(effects)
        )

    return is_it


def _forwards(broker: SimulatedBroker, event: Event, effects: Sequence[Effect]) -> bool:
    return _gets(Put, "")(broker, event, effects) and any(
        type(message) is Put and message.server != broker.number for message in messages_of(effects)
    )


def _writes(
    kind: type, field: str, effect: type
) -> Callable[[SimulatedBroker, Event, Sequence[Effect]], bool]:
    def is_it(broker: SimulatedBroker, event: Event, effects: Sequence[Effect]) -> bool:
        return _gets(kind, field)(broker, event, effects) and any(
            type(each) is effect for each in effects
        )

    return is_it


def _is_given(row: Sequence[Any]) -> bool:
    _owner, is_over, *_generation = row
    return bool(is_over)


def _has_moved(row: Sequence[Any]) -> bool:
    *_first, had = row
    return isinstance(had, list) and bool(had)


def _commits(
    table: str, is_it: Callable[[Sequence[Any]], bool]
) -> Callable[[SimulatedBroker, Event, Sequence[Effect]], bool]:
    """Return a test for a write of a matching row."""

    def commits(_broker: SimulatedBroker, _event: Event, effects: Sequence[Effect]) -> bool:
        return any(
            change.table == table and is_it(change.value)
            for effect in effects
            if type(effect) is Commit
            for change in effect.changes
        )

    return commits


CRASHES: Final[Mapping[str, CrashPoint]] = {
    "C1": CrashPoint(_gets(Publish, ""), before=True),
    "C2": CrashPoint(_gets(Stored, "home"), before=True),
    "C3": CrashPoint(_gets(Messages, "home"), before=True),
    "C4": CrashPoint(_gets(Messages, "home"), before=False),
    "C5": CrashPoint(_writes(Put, "server", Append), before=True),
    "C6": CrashPoint(_sends(Stored, "server"), before=True),
    "C7": CrashPoint(_writes(Put, "server", Append), before=False),
    "C9": CrashPoint(_forwards, before=False),
    "C10": CrashPoint(_gets(Get, ""), before=True),
    "C11": CrashPoint(_gets(Transferred, "giver"), before=True),
    "C12": CrashPoint(_writes(Transfer, "server", Commit), before=False),
    "C13-pending": CrashPoint(_writes(Claim, "server", Commit), before=False),
    "C13-assigned": CrashPoint(_gets(Assigned, "arbiter"), before=True),
    "C13-owned": CrashPoint(_sends(Located, "server"), before=True),
    "C14-decided": CrashPoint(_writes(Move, "server", Commit), before=False),
    "C14-frozen": CrashPoint(_sends(Transfer, "giver"), before=True),
    "C14-taken": CrashPoint(_sends(Transferred, "server"), before=True),
    "C14-given": CrashPoint(_commits(MOVES, _is_given), before=False),
    "C14-owned": CrashPoint(_commits(OWNERS, _has_moved), before=False),
}

LATE: Final = "v1"
"""The server that starts when the other servers own all topics, in stories of moves."""
_PROXIES_ONLY: Final = frozenset({"C10"})


class Killer:
    """A watcher that kills the broker at the `nth` occurrence of a crash point, once.

    Args:
        down_s: time until the restart.
    """

    def __init__(self, name: str, nth: int, down_s: float) -> None:
        self.killed = ""
        self.world: World | None = None
        self._name = name
        self._point = CRASHES[name]
        self._left = nth
        self._down_ns = int(down_s * SECOND_NS)
        self._back_ns: int | None = None

    def watch(self, broker: SimulatedBroker, event: Event, effects: list[Effect]) -> None:
        """Kill the broker at the crash point, but not during the creation of the world."""
        if self.world is None or self.killed or not self._point.is_it(broker, event, effects):
            return
        if self._name in _PROXIES_ONLY and not broker.name.startswith("x"):
            return
        self._left -= 1
        if self._left > 0:
            return
        self.killed = broker.name
        self._back_ns = self.world.now_ns + self._down_ns
        if self._point.before:
            effects.clear()
            self._kill()
        else:
            self.world.cluster.schedule.at(self.world.now_ns, self._kill)

    def _kill(self) -> None:
        assert self.world is not None, f"{self.killed} dies in no world"
        self.world.cluster.broker(self.killed).kill()

    def pass_time(self, world: World, seconds: float) -> None:
        """Let time pass, and restart the broker after its downtime."""
        for _ in range(max(1, round(seconds / STEP_S))):
            world.cluster.run_for(STEP_S)
            if self._back_ns is not None and self._back_ns <= world.now_ns:
                self._back_ns = None
                world.cluster.broker(self.killed).start()


def crash(experiment: CrashExperiment, point: Row, run: int, seed: int) -> Row:
    """Return the result of a run in which a broker died at a crash point."""
    name = point["crash_point"]
    random = Random(f"crash {name} {seed}")
    killer = Killer(name, 1 + random.randrange(3), random.choice((0.0, 0.3, 1.5)))
    moves = name.startswith(MOVING)
    world = World(
        experiment,
        seed,
        killer.watch,
        ownership=point["ownership"],
        topics=64,
        spread_topics=2 * moves,
    )
    kinds: Sequence[str] = KINDS
    if moves:
        kinds = [kind for kind in MORE_KINDS if world.arbiter(kind) != LATE]
        world.cluster.broker(LATE).kill()
    killer.world = world
    try:
        _play(experiment, world, killer, random, kinds)
        violations = world.violations()
    except InvariantViolated as violation:
        violations = {violation.rule: 1}
    except RemoteProtocolError:
        violations = {"a broker announced a forbidden fact": 1}
    return {
        **point,
        "run": run,
        "broker": killer.killed,
        "owed": world.cluster.oracle.owed,
        "delivered": sum(map(len, world.came_ns.values())),
        "violations": sum(violations.values()),
        "rules": " ".join(sorted(violations)),
    }


def _play(
    experiment: CrashExperiment, world: World, killer: Killer, random: Random, kinds: Sequence[str]
) -> None:
    """Subscribe in sequence, so that topics receive owners, and then publish."""
    for home, wanted in zip(HOMES, (kinds, kinds[::-1]), strict=True):
        for kind in wanted:
            world.cluster.subscribe(home, f"kind = '{kind}'", client=f"s-{home}")
            killer.pass_time(world, STEP_S)
    if kinds is not KINDS:
        world.cluster.broker(LATE).start()
    for _ in range(experiment.publications):
        for home in HOMES:
            world.publish(home, random.choice(kinds))
        killer.pass_time(world, STEPS * STEP_S)
    killer.pass_time(world, SETTLING_S)
