"""Tests of faults with several ends: apply, observe, renew and undo at all ends in any order.

Stub agents answer in turn, and an agent may lose a request, a reply or a lease. No fault may count
as undone while an end is still broken.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from brokerd.errors import ControlError
from fault_injection.apply.backends import DeployedBackend
from fault_injection.apply.injector import Injection, Injector
from fault_injection.apply.interface import Fault, MissingEffect
from fault_injection.apply.log import FaultLog
from fault_injection.schedule.schedule import read_schedule
from fault_injection.schedule.targets import read_target
from tests.fault_injection.test_deployed import TOPOLOGY, Deployment, Place
from tests.fault_injection.test_healing import OPTIONS, clock_ns

HOSTS = {"c1": "near", "c2": "far", "c3": "far"}
VERBS = {
    "absorb": "c1-c2",
    "blackhole": "c1-c2",
    "cut": "c1-c2",
    "delay": "c1-c2",
    "bandwidth": "c1-c2",
    "partition": "c1|c2,c3",
}
"""All lasting verbs with more than one end, with their targets."""
LEASE_S = 4.0


@dataclass
class FakeAgent:
    """The agent of a host with brokers, as far as faults are concerned.

    Attributes:
        pause_s: the delay before a reply.
        broken: the active faults, with the ends of the leases.
        fails: by command, the errors of the next calls; None for success.
        after: true if a failing call is executed, so that only the reply is lost.
        core: by process, other values of its status.
        row: other values of each process.
        requests: the ends of all fault requests.
    """

    pause_s: float
    broken: dict[str, float] = field(default_factory=dict)
    fails: dict[str, list[str | None]] = field(default_factory=dict)
    after: bool = False
    is_slow: bool = False
    core: dict[str, dict[str, Any]] = field(default_factory=dict)
    row: dict[str, Any] = field(default_factory=dict)
    requests: list[tuple[str, str, str, str, dict[str, Any]]] = field(default_factory=list)

    def in_force(self) -> list[str]:
        now_s = trio.current_time()
        self.broken = {name: end_s for name, end_s in self.broken.items() if end_s > now_s}
        return [*self.broken]

    async def _call(self, command: str, act: Any = None) -> Any:
        await trio.sleep(self.pause_s)
        self.in_force()
        waiting = self.fails.get(command, [])
        kind = waiting.pop(0) if waiting else None
        if kind is None:
            return act() if act is not None else None
        if self.after and act is not None:
            act()
        raise ControlError(kind, f"{command} fails")

    async def fault_apply(
        self, fault_id: str, verb: str, process: str, *, lease_ms: int, **about: Any
    ) -> Any:
        peer, direction = about["peer"], about["direction"]
        self.requests.append((fault_id, process, peer, direction, about["parameters"]))

        def apply() -> dict[str, Any]:
            self.is_slow = verb == "delay"
            self.broken[fault_id] = trio.current_time() + lease_ms / 1e3
            return {"result": {}, "t_applied_ns": clock_ns()}

        return await self._call("apply", apply)

    async def fault_renew(self, fault_id: str, lease_ms: int) -> None:
        def renew() -> None:
            if fault_id not in self.broken:
                raise ControlError("user", f"{fault_id} is over")
            self.broken[fault_id] = trio.current_time() + lease_ms / 1e3

        await self._call("renew", renew)

    async def fault_heal(self, fault_id: str) -> Any:
        def heal() -> dict[str, Any]:
            self.broken.pop(fault_id, None)
            return {"state": "healed", "t_healed_ns": clock_ns()}

        return await self._call("heal", heal)

    async def status(self, process: str = "") -> Any:
        row = {"state": "running", "frozen": False, "pid": 1, **self.row}
        return await self._call("status", lambda: {"processes": {process: row}, "faults": []})

    async def broker(self, process: str, command: str, arguments: Any = None) -> Any:
        def answer() -> Mapping[str, Any]:
            found = self.in_force()
            if command == "fault_counters":
                names = ("absorbed_publications", "absorbed_bytes", "sessions_down")
                counters = dict.fromkeys((*names, "forwarded_since_applied"), 0)
                counts = dict.fromkeys(("absorbed_messages", "dropped_frames"), 1)
                return {each: {**counters, **counts, "limited_messages": 1} for each in found}
            if command == "probe":
                mine = [each for each in found if each.endswith(process)]
                away = arguments["peers"] if mine else []
                others = [name for name in away if HOSTS[name] != HOSTS[process]]
                reached = [name for name in arguments["peers"] if name not in others]
                slow = self.is_slow and bool(found)
                took_us = dict.fromkeys(arguments["peers"], 60000 if slow else 1)
                if slow:
                    others, reached = [], arguments["peers"]
                return {"missing": others, "reached": reached, "took_us": took_us}
            ready = () if found else ("c1", "c2", "c3")
            return {
                "state": "running",
                "queued": 0,
                "subscriptions": 0,
                "own_subscriptions": 0,
                "wanted": [],
                "ready": ready,
                "idle_reasons": [],
                "detail": {},
                "sessions": ready,
                "faults": found,
                **self.core.get(process, {}),
            }

        return await self._call(command, answer)


class Ends:
    """Two hosts; the second replies a second later than the first."""

    def __init__(self, slow: str = "far") -> None:
        self.agents = {name: FakeAgent(1.0 if name == slow else 0.001) for name in ("near", "far")}
        places = {name: Place(host, name, f"{host}:1") for name, host in HOSTS.items()}
        agents: Any = self.agents
        self.backend = DeployedBackend(Deployment(agents, places, TOPOLOGY))
        self.log = FaultLog()
        self.broken_when_healed: list[str] = []
        noted = self.log.note

        def note(fault_id: str, stage: Any, *about: Any, **more: Any) -> Any:
            if stage == "healed":
                self.broken_when_healed += self.broken()
            return noted(fault_id, stage, *about, **more)

        self.log.note = note  # type: ignore[method-assign]

    def broken(self) -> list[str]:
        return [each for agent in self.agents.values() for each in agent.in_force()]


def inject(ends: Ends, verb: str, lasts_s: int = 9) -> Injection:
    """Inject a fault, and continue until the lease has ended in any case."""
    machines = {"near": ("c1",), "far": ("c2", "c3")}
    assert read_target(VERBS[verb], TOPOLOGY, verb, machines)
    step = {"id": "f", "at": "0s", "do": verb, "on": VERBS[verb], "for": f"{lasts_s}s"}
    more = {key: value for key, value in OPTIONS.items() if (verb, key) in NEEDED}
    guard = {"lease": f"{LEASE_S:.0f}s", "max_faulty_brokers": 9}
    document = {"schema": "pubsubctl/faults/1", "name": "s", "guard": guard, "step": [step | more]}
    schedule = read_schedule(document, "story.toml")
    made: list[Injection] = []

    async def live() -> None:
        injector = Injector(schedule, ends.backend, ends.log, clock_ns=clock_ns)
        made.append(await injector.run())
        assert ends.broken() == [], "all ends are whole when the injector is done"

    trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0))
    return made[0]


NEEDED = {("delay", "latency"), ("bandwidth", "bytes_per_second")}


def stages(ends: Ends) -> list[str]:
    return [line["stage"] for line in ends.log.lines]


@pytest.mark.parametrize("slow", ["near", "far"])
@pytest.mark.parametrize("verb", VERBS)
def test_all_ends_have_a_fault_when_it_is_seen_and_none_when_it_is_healed(
    verb: str, slow: str
) -> None:
    ends = Ends(slow)
    injection = inject(ends, verb)
    assert (injection.problems, injection.not_healed) == ((), ())
    assert stages(ends)[:4] == ["planned", "requested", "applied", "observed"]
    assert not ends.broken_when_healed


@pytest.mark.parametrize("host", ["near", "far"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("after", [False, True])
def test_an_unresponsive_end_receives_the_heal_request_again(
    verb: str, host: str, after: bool
) -> None:
    """The request is lost, or only the reply."""
    ends = Ends()
    ends.agents[host].fails["heal"] = ["closed", "closed"]
    ends.agents[host].after = after
    injection = inject(ends, verb)
    assert injection.not_healed == ()
    assert not ends.broken_when_healed


def whose_lease_ends_at_one_end(verb: str, host: str) -> Ends:
    """Return two hosts after one has ended the fault itself and has reported this at a renewal."""
    ends = Ends()
    ends.agents[host].fails["renew"] = ["user"]
    injection = inject(ends, verb)
    assert injection.not_healed == ()
    healed = [line["healed_by"] for line in ends.log.lines if line["stage"] == "healed"]
    assert healed == ["lease"]
    return ends


@pytest.mark.parametrize("host", ["near", "far"])
@pytest.mark.parametrize("verb", VERBS)
def test_an_expired_lease_at_one_end_heals_the_fault_at_all_ends(verb: str, host: str) -> None:
    assert not whose_lease_ends_at_one_end(verb, host).broken_when_healed


@pytest.mark.parametrize("kind", ["user", "closed"])
@pytest.mark.parametrize("host", ["near", "far"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_fault_that_one_end_refuses_is_undone_at_the_other(
    verb: str, host: str, kind: str
) -> None:
    ends = Ends()
    ends.agents[host].fails["apply"] = [kind] * 3
    ends.agents[host].after = kind == "closed"
    injection = inject(ends, verb)
    assert injection.problems
    assert injection.not_healed == ()
    assert "observed" not in stages(ends)


@pytest.mark.parametrize("verb", ["absorb", "blackhole", "bandwidth"])
def test_an_effect_at_one_end_alone_is_not_seen(verb: str) -> None:
    ends = Ends()
    fault = Fault(f"f-{verb}", verb, read_target(VERBS[verb], TOPOLOGY, verb, {}))

    async def look() -> None:
        await ends.backend.apply(fault, 10**10)
        assert await ends.backend.verify_effect(fault) is not None
        for agent in ends.agents.values():
            broken, agent.broken = agent.broken, {}
            assert await ends.backend.verify_effect(fault) is None
            assert await ends.backend.verify_undone(fault) is None
            agent.broken = broken
        for agent in ends.agents.values():
            agent.broken.clear()
        assert await ends.backend.verify_undone(fault) is not None

    trio.run(look, clock=trio.testing.MockClock(autojump_threshold=0))


BETWEEN = ("c1", "c2", "c3")


@pytest.mark.parametrize(
    "status, is_recovered",
    [
        ({}, True),
        ({"wanted": [*BETWEEN]}, True),
        ({"state": "recovering"}, False),
        ({"wanted": ["c1", "c9"]}, False),
        ({"wanted": ["c1"], "ready": ["c2"], "sessions": ["c1", "c2"]}, False),
        ({"wanted": ["c1"], "ready": ["c1"], "sessions": ["c2"]}, False),
    ],
    ids=("nothing wanted", "all", "recovering", "no session", "not ready", "relayed"),
)
@pytest.mark.parametrize("place", ["c1", "c2"])
@pytest.mark.parametrize("on", ["c1-c2", "c1->c2"])
def test_a_link_has_recovered_when_both_ends_have_all_their_sessions(
    on: str, place: str, status: dict[str, Any], is_recovered: bool
) -> None:
    ends = Ends()
    ends.agents[HOSTS[place]].core[place] = status
    fault = Fault("f", "blackhole", read_target(on, TOPOLOGY, "blackhole", {}))

    async def look() -> None:
        seen = await ends.backend.verify_recovered(fault)
        assert (seen is not None) == is_recovered
        assert seen is None or {*seen} == {"c1", "c2"}

    trio.run(look, clock=trio.testing.MockClock(autojump_threshold=0))


@dataclass
class PacketFilter(FakeAgent):
    """An agent with rules of nftables, by fault; a fault of another agent is unknown to it."""

    rules: dict[str, bool] = field(default_factory=dict)

    async def status(self, process: str = "") -> Any:
        status = await super().status(process)
        return {**status, "faults": [{"fault_id": each} for each in ("other", *self.rules)]}

    async def fault_look(self, fault_id: str) -> Any:
        return {"present": self.rules[fault_id], "stopped_packets": 3 * self.rules[fault_id]}


@pytest.mark.parametrize("near", [True, False, None])
@pytest.mark.parametrize("far", [True, False, None])
def test_rules_of_packets_are_gone_when_no_agent_has_them(
    near: bool | None, far: bool | None
) -> None:
    """An agent that has restarted since does not know the fault any more."""
    ends = Ends()
    agents: Any = {"near": PacketFilter(1.0), "far": PacketFilter(0.001)}
    for host, present, name in (("near", near, "c1"), ("far", far, "c2")):
        if present is not None:
            agents[host].rules[f"f@{name}"] = present
    ends.agents.update(agents)
    target = read_target("c1-c2", TOPOLOGY, "blackhole", {})
    fault = Fault("f", "blackhole", target, parameters={"backend": "nft"})

    async def look() -> None:
        undone = await ends.backend.verify_undone(fault)
        assert undone == (None if near or far else {"gone": True})
        if None not in (near, far):
            seen = await ends.backend.verify_effect(fault)
            assert (seen is not None) == (near or far)

    trio.run(look, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_brokers_of_each_machine_are_those_of_the_deployment() -> None:
    assert Ends().backend.machines == {"near": ["c1"], "far": ["c2", "c3"]}


@pytest.mark.parametrize("silent", ["near", "far"])
@pytest.mark.parametrize("verb", VERBS)
def test_an_end_that_never_answers_keeps_no_other_end_waiting(verb: str, silent: str) -> None:
    """The other end receives a longer lease and is healed, while the silent end never replies."""
    ends = Ends()
    fault = Fault(f"f-{verb}", verb, read_target(VERBS[verb], TOPOLOGY, verb, {}))
    (other,) = (agent for host, agent in ends.agents.items() if host != silent)

    async def live() -> None:
        await ends.backend.apply(fault, 10 * 10**9)
        assert all(agent.in_force() for agent in ends.agents.values())
        ends.agents[silent].pause_s = 10**6
        with trio.move_on_after(5):
            await ends.backend.renew(fault, 60 * 10**9)
        left_s = [end_s - trio.current_time() for end_s in other.broken.values()]
        assert left_s
        assert min(left_s) > 50
        with trio.move_on_after(5):
            await ends.backend.undo(fault)
        assert other.in_force() == []

    trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    "verb, on, requests",
    [
        ("absorb", "c1-c2", ["f@c1 c1 c2 out", "f@c2 c2 c1 out"]),
        ("absorb", "c1->c2", ["f@c1 c1 c2 out"]),
        ("absorb", "c2->c1", ["f@c2 c2 c1 out"]),
        ("absorb", "c2", ["f c2  both"]),
        ("kill", "c2", ["f c2  both signal=TERM"]),
        (
            *("partition", "c1|c2,c3"),
            [
                "f@c1 c1  both peers=['c2', 'c3']",
                "f@c2 c2  both peers=['c1']",
                "f@c3 c3  both peers=['c1']",
            ],
        ),
    ],
)
def test_each_end_of_a_fault_stops_its_own_output_and_a_broker_both_directions(
    verb: str, on: str, requests: list[str]
) -> None:
    ends = Ends()
    fault = Fault("f", verb, read_target(on, TOPOLOGY, verb, {}), "TERM")
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(ends.backend.apply, fault, 10**9, clock=clock)
    made = [each for agent in ends.agents.values() for each in agent.requests]
    assert sorted(
        " ".join([*about, *(f"{key}={value}" for key, value in parameters.items())])
        for *about, parameters in made
    ) == sorted(requests), "the ends are requested at once, in any order"


@pytest.mark.parametrize(
    "row, recovers",
    [
        ({}, True),
        ({"state": "exited", "exit_cause": "fault:later"}, False),
        ({"state": "exited", "exit_cause": "fault:f"}, None),
        ({"state": "exited", "exit_cause": "unexpected"}, None),
        ({"exit_cause": "fault:later"}, True),
    ],
)
def test_a_restarted_broker_recovers_unless_it_has_ended(
    row: dict[str, Any], recovers: bool | None
) -> None:
    """A kill of the schedule may follow the restart; another end is a failure of the restart."""
    ends = Ends()
    ends.agents["far"].row = {"exit_cause": None, "exit_code": 1, "exit_signal": None} | row
    ends.agents["far"].row["exit_text"] = "no such file"
    fault = Fault("f", "restart", read_target("c2", TOPOLOGY, "restart", {}))

    async def look() -> None:
        with (
            pytest.raises(MissingEffect, match="no such file")
            if recovers is None
            else (nullcontext())
        ):
            assert (await ends.backend.verify_recovered(fault) is not None) == recovers

    trio.run(look, clock=trio.testing.MockClock(autojump_threshold=0))
