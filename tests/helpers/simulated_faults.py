"""The injector on a simulated cluster, in virtual time: a backend whose effects are real.

`simulate` has its own engine, deterministic to the last line. This backend tests the injector, the
fault log and the schedules with brokers that do recover, or do not.
"""

from collections.abc import Iterator

import trio
import trio.testing

from brokerd.errors import ControlError
from brokerd.model.identity import Peer
from brokerd.protocols.registry import RunningProtocol, protocol_on
from brokerd.simulator.world.clock import TimedSchedule
from brokerd.simulator.world.cluster import SimulatedCluster
from fault_injection.apply.injector import Injection, Injector
from fault_injection.apply.interface import Evidence, Fault
from fault_injection.apply.log import FaultLog
from fault_injection.schedule.schedule import FaultSchedule

_REAL = ("absorb", "send-omission", "freeze", "blackhole", "cut", "kill", "term", "restart")
_UNREAL = {
    "term": "simulated brokers know no orderly end",
    "absorb": "the simulated network absorbs a link both ways or not at all",
}


def play_schedule(
    cluster: SimulatedCluster,
    schedule: FaultSchedule,
    log: FaultLog,
    *,
    seed: int | None = None,
    prefix: str = "",
) -> Injection:
    """Carry out a schedule on a cluster from its current time on, and advance the time.

    Stamps are virtual. Exceptions of the cluster (a violated invariant) propagate, perhaps in an
    exception group.
    """
    timed = cluster.schedule
    assert isinstance(timed, TimedSchedule), "without durations no schedule can be carried out"
    clock = trio.testing.MockClock()

    async def pass_time() -> None:
        while True:
            await trio.testing.wait_all_tasks_blocked()
            seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
            assert 0 <= seconds < float("inf"), f"nobody waits for an instant: {seconds}"
            timed.run_until(timed.now_ns + max(1, round(seconds * 1e9)))
            clock.jump(seconds)

    async def story() -> Injection:
        backend = SimulatedBackend(cluster)
        injector = Injector(
            schedule, backend, log, seed=seed, prefix=prefix, clock_ns=lambda: timed.now_ns
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_time)
            injection = await injector.run()
            nursery.cancel_scope.cancel()
        return injection

    return trio.run(story, clock=clock)


class SimulatedBackend:
    """A FaultBackend on a simulated cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._active: dict[str, Fault] = {}

    @property
    def running(self) -> RunningProtocol:
        return protocol_on(self._cluster.topology, self._cluster.protocol)

    @property
    def machines(self) -> None:
        return None

    async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
        await trio.lowlevel.checkpoint()
        if fault.verb not in _REAL:
            raise ControlError("user", f"{fault.fault_id}: {fault.verb} needs real processes")
        if fault.verb == "term" or (fault.verb == "absorb" and fault.target.one_way):
            raise ControlError("user", f"{fault.fault_id}: {_UNREAL[fault.verb]}")
        if not fault.target.is_link:
            broker = self._cluster.broker(fault.target.brokers[0])
            if broker.broker.alive == (fault.verb == "restart"):
                state = "running" if broker.broker.alive else "not running"
                raise ControlError("user", f"{fault.fault_id}: {fault.target} is {state}")
        self._do(fault)
        self._active[fault.fault_id] = fault
        return {"t_ns": self._now_ns()}

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        await trio.lowlevel.checkpoint()
        brokers = [self._cluster.broker(name).broker for name in fault.target.brokers]
        match fault.verb:
            case "kill":
                return None if brokers[0].alive else {"exit_signal": 9}
            case "restart":
                alive, incarnation = brokers[0].alive, brokers[0].incarnation
                return {"incarnation": incarnation} if alive else None
            case "freeze":
                return {"frozen": True} if brokers[0].frozen else None
            case "absorb" | "send-omission":
                held = self._held(fault)
                return {"absorbed_messages": held, "forwarded_since_applied": 0} if held else None
            case _:  # cut and blackhole show when the far ends have noticed
                up = [pair for pair in self._pairs(fault) if self._has_session(*pair)]
                return None if up else {"sessions": 0}

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        await trio.lowlevel.checkpoint()  # whoever could vanish here takes the cluster with it

    async def undo(self, fault: Fault) -> Evidence:
        await trio.lowlevel.checkpoint()
        if self._active.pop(fault.fault_id, None) is not None:
            if fault.verb in ("absorb", "send-omission", "freeze") and not fault.target.is_link:
                broker = self._cluster.broker(fault.target.brokers[0])
                if broker.broker.alive:
                    broker.thaw() if fault.verb == "freeze" else broker.release()
            else:
                for a, b in self._pairs(fault):
                    self._cluster.link_faults.heal(a, b)
                # The network heals all faults of a link at once; others go on.
                for other in self._active.values():
                    if other.target.element == fault.target.element:
                        self._do(other)
        return {"t_ns": self._now_ns()}

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        await trio.lowlevel.checkpoint()
        return None if fault.fault_id in self._active else {"gone": True}

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        await trio.lowlevel.checkpoint()
        seen: Evidence = {}
        for name in fault.target.brokers:
            broker = self._cluster.broker(name)
            if not broker.broker.alive or broker.broker.frozen:
                return None
            status = broker.status()
            if status.state != "running" or status.missing:
                return None
            seen[name] = {"state": status.state, "sessions": len(status.ready)}
        return seen

    # ------------------------------------------------------------ inside

    def _do(self, fault: Fault) -> None:
        if fault.verb in ("kill", "restart", "freeze", "send-omission") or (
            fault.verb == "absorb" and not fault.target.is_link
        ):
            broker = self._cluster.broker(fault.target.brokers[0])
            verbs = {"kill": broker.kill, "restart": broker.start, "freeze": broker.freeze}
            verbs["send-omission"] = broker.omit_sends
            verbs.get(fault.verb, broker.absorb)()
            return
        link_faults = self._cluster.link_faults
        which = "out" if fault.target.one_way else "both"
        for a, b in self._pairs(fault):
            self._cluster.state.note(f"{fault.verb} {a}-{b} {which}")
            if fault.verb == "cut":
                link_faults.cut(a, b, "out" if fault.target.one_way else "both")
            elif fault.verb == "blackhole":
                link_faults.blackhole(a, b, "out" if fault.target.one_way else "both")
            else:
                link_faults.absorb(a, b)

    def _pairs(self, fault: Fault) -> Iterator[tuple[Peer, Peer]]:
        """Yield the links that a network fault affects: one link, or all links of a broker."""
        number_of = self.running.topology.number_of
        if fault.target.is_link:
            a, b = fault.target.brokers
            yield number_of(a), number_of(b)
            return
        own = number_of(fault.target.brokers[0])
        for peer in range(len(self.running.topology.brokers)):
            if peer != own:
                yield own, peer
        for name, client in self._cluster.clients.items():
            if client.broker == own:
                yield own, name

    def _held(self, fault: Fault) -> int:
        """Return the number of messages that an absorb holds."""
        if fault.target.is_link:
            return sum(
                len(end.lane.queue)
                for a, b in self._pairs(fault)
                for here, there in ((a, b), (b, a))
                for end in self._cluster.network.endpoints[here].connected
                if end.peer == there
            )
        broker = self._cluster.broker(fault.target.brokers[0]).broker
        return len(broker._absorbed) + sum(len(end.withheld_messages) for end in broker.connected)

    def _has_session(self, a: Peer, b: Peer) -> bool:
        endpoints = self._cluster.network.endpoints
        return b in endpoints[a].ends or a in endpoints[b].ends

    def _now_ns(self) -> int:
        return self._cluster.schedule.now_ns
