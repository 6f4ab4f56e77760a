"""Tests of healing: within a lease every fault heals, whatever happens to the injector.

All verbs run on a clock that jumps. Faults end by schedule, by Ctrl-C, with the controller, or with
the controller's network, which may recover.
"""

from dataclasses import dataclass
from typing import Any

import trio
import trio.testing
from hypothesis import event, given, settings
from hypothesis import strategies as st

from brokerd.errors import ControlError
from brokerd.model.fault_verbs import LASTING_VERBS, VERB_TABLE
from brokerd.protocols.registry import protocol_on
from fault_injection.apply.injector import Injection, Injector
from fault_injection.apply.interface import Evidence, Fault
from fault_injection.apply.log import STAGES, FaultLog
from fault_injection.schedule.schedule import read_schedule
from tests.fault_injection.test_schedule import TOPOLOGY

MACHINES = {"n01": ("b1",), "n02": ("b3", "b4")}
ON = {
    "broker": "b1",
    "link": "b1-s1",
    "sets": "b1|b3",
    "machine": "n01",
    "client": "s1-sub-1",
    "subscriber": "s1-sub-1",
    "own-process subscriber": "s1-sub-1",
}
OPTIONS: dict[str, Any] = {"latency": "50ms", "bytes_per_second": 1000, "share": "25%"}
END_S = 200.0


def clock_ns() -> int:
    return round(trio.current_time() * 1e9)


class Machine:
    """A machine that applies faults, and heals every fault at the end of the lease.

    Attributes:
        away: the interval in which the machine is unreachable.
        broken: fault → end of the lease.
    """

    def __init__(self, away: tuple[float, float]) -> None:
        self.running = protocol_on(TOPOLOGY)
        self.machines = MACHINES
        self.away = away
        self.broken: dict[str, float] = {}
        self.ever: list[str] = []

    def is_broken(self) -> bool:
        now = trio.current_time()
        self.broken = {name: end for name, end in self.broken.items() if end > now}
        return bool(self.broken)

    async def _call(self) -> None:
        await trio.sleep(0.001)
        if self.away[0] <= trio.current_time() < self.away[1]:
            raise ControlError("closed", "no route")
        self.is_broken()

    async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
        await self._call()
        self.broken[fault.fault_id] = trio.current_time() + lease_ns / 1e9
        self.ever.append(fault.fault_id)
        await self._call()  # the answer, which may be lost although it was done
        return {"t_ns": clock_ns()}

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        await self._call()
        return {"seen": True} if fault.fault_id in self.broken else None

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        await self._call()
        if fault.fault_id not in self.broken:
            raise ControlError("user", "no lease to renew")
        self.broken[fault.fault_id] = trio.current_time() + lease_ns / 1e9

    async def undo(self, fault: Fault) -> Evidence:
        await self._call()
        self.broken.pop(fault.fault_id, None)
        return {"t_ns": clock_ns()}

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        await self._call()
        return None if fault.fault_id in self.broken else {"gone": True}

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        await self._call()
        return {"state": "running"}


@dataclass(frozen=True)
class Story:
    verb: str
    on: str
    lasts_s: int
    lease_s: int
    ends: str
    at_s: float
    back_s: float


def stories() -> st.SearchStrategy[Story]:
    targets = [(verb, ON[kind]) for verb in LASTING_VERBS for kind in VERB_TABLE[verb].on]
    return st.builds(
        lambda target, *rest: Story(*target, *rest),
        st.sampled_from(targets),
        st.integers(1, 40),
        st.integers(1, 15),
        st.sampled_from(["schedule", "ctrl-c", "controller dies", "network is lost"]),
        st.floats(0, 45),
        st.floats(0.1, 60),
    )


@settings(max_examples=60)
@given(story=stories())
def test_within_a_lease_of_whatever_happens_nothing_is_broken(story: Story) -> None:
    event(story.ends)
    event(story.verb)
    machine, log, outcome = play(story)
    assert machine.broken == {}, "within the lease"
    if story.ends in ("schedule", "ctrl-c"):
        assert outcome.not_healed == ()
    for line, following in zip(log.lines, log.lines[1:], strict=False):
        if "failed" not in (line["stage"], following["stage"]):
            assert STAGES.index(line["stage"]) < STAGES.index(following["stage"])
    stages = [line["stage"] for line in log.lines]
    if machine.ever and story.ends == "schedule":
        assert stages == list(STAGES)
    if "healed" in stages:
        healed = next(line for line in log.lines if line["stage"] == "healed")
        assert healed["healed_by"] in ("schedule", "user", "lease")
    elif machine.ever and "applied" in stages:
        assert outcome.not_healed, "what was not seen to be healed is said"


def play(story: Story) -> tuple[Machine, FaultLog, Injection]:
    log, made = FaultLog(), []
    step = {
        "id": "f",
        "at": "0s",
        "do": story.verb,
        "on": story.on,
        "for": f"{story.lasts_s}s",
        **{key: OPTIONS[key] for key in VERB_TABLE[story.verb].required},
    }
    document = {
        "schema": "pubsubctl/faults/1",
        "name": "story",
        "guard": {"lease": f"{story.lease_s}s", "max_faulty_brokers": 9},
        "step": [step],
    }
    schedule = read_schedule(document, "story.toml")

    async def live() -> None:
        away = (END_S * 2, END_S * 2)
        if story.ends == "controller dies":
            away = (story.at_s, END_S * 2)
        elif story.ends == "network is lost":
            away = (story.at_s, story.at_s + story.back_s)
        machine = Machine((away[0] + trio.current_time(), away[1] + trio.current_time()))
        injector = Injector(schedule, machine, log, clock_ns=clock_ns)
        until_s = story.at_s if story.ends in ("ctrl-c", "controller dies") else END_S
        began = trio.current_time()
        with trio.move_on_after(until_s):
            await injector.run()
        # A fault lasts at most one lease after the last message of its controller.
        heard_s = {
            "schedule": story.lasts_s,
            "ctrl-c": min(story.at_s, story.lasts_s) - story.lease_s,
            "controller dies": min(story.at_s, story.lasts_s),
            "network is lost": story.lasts_s,
        }[story.ends]
        latest = began + heard_s + story.lease_s
        await trio.sleep(max(0.0, latest + 0.1 - trio.current_time()))
        machine.is_broken()
        made.append((machine, injector.outcome()))

    trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0))
    machine, outcome = made[0]
    return machine, log, outcome


def test_the_stories_can_fail() -> None:
    """A machine that forgets leases stays broken after the death of its controller."""
    story = Story("cut", "b1-s1", 30, 5, "controller dies", 3.0, 1.0)
    assert play(story)[0].broken == {}
    forgetful = Machine.is_broken
    Machine.is_broken = lambda self: bool(self.broken)  # type: ignore[method-assign]
    try:
        assert play(story)[0].broken != {}
    finally:
        Machine.is_broken = forgetful  # type: ignore[method-assign]
