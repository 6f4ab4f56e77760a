"""Faults of a swarm: kinds, stages, and the limit of simultaneous failures.

A fault has stages (absorb, kill, start) and one element, a broker or a link. The element counts as
failed from the first stage to the end of the last stage and, for a restarted broker, until its
recovery.

Paper: [DFT11] abstract, §II (at most δ concurrent failures).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.sessions.messages import StateMark
from brokerd.simulator.checks.marks import (
    ABSENT_CLIENT_REMOVED,
    COMPOUNDS,
    JOINED_BESIDE_REMOVAL,
    JOINED_FAILED,
    PARALLEL_LINKS_FAILED,
    RESTORED_THEN_REMOVED,
    units_between,
)
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import MILLISECOND_NS

Link = tuple[BrokerNumber, BrokerNumber]
Stage = Callable[[], object]

BROKER_KINDS = (
    "kill",
    "kill_twice",
    "absorb_then_kill",
    "absorb_then_release",
    "freeze_then_thaw",
    "freeze_then_kill",
)
LINK_KINDS = ("cut", "cut_one_way", "blackhole", "absorb_link_then_cut", "absorb_link_then_heal")
FREE_KINDS = ("suspect", "delay", "client_drop", "slow_client")
"""Disturbances that fail no element."""

CLIENT_KINDS = ("client_drop", "slow_client", "client_away")
"""Faults of one client: its session ends, it takes slowly, it cannot reach its broker."""

KILL_FOR_GOOD = "kill_for_good"
"""A leaf crashes, and the others continue without this broker if possible; it restarts later."""

LOST = "lost"
"""Brokers crash at the same moment, and never return."""

RESTORED = "restored"
"""A broker crashes and starts on an older copy of its disk, or on an empty disk. If neighbours
prove a loss, the broker refuses to serve until the operator accepts the loss, or puts the newest
disk back if the protocol cannot announce the loss."""

COPY, EMPTY = "copy", "empty"
"""The kinds of restored disks."""

PARTITION = "partition"
"""No session passes from one side of a link to the other, also beyond the ends of the link."""

OLD_MESSAGE = "old_message"
"""A message of a closed session reaches a core, as from an incorrect driver."""

_OF_TWO = (*LINK_KINDS, *FREE_KINDS, PARTITION)
"""Faults with two brokers as the first arguments."""

STAGES = {
    "kill": 2,
    "kill_twice": 4,
    "absorb_then_kill": 3,
    "absorb_then_release": 2,
    "freeze_then_thaw": 2,
    "freeze_then_kill": 3,
    "cut": 2,
    "cut_one_way": 2,
    "blackhole": 2,
    "absorb_link_then_cut": 3,
    "absorb_link_then_heal": 2,
    "suspect": 1,
    "delay": 2,
    "client_drop": 1,
    "slow_client": 2,
    "client_away": 2,
    KILL_FOR_GOOD: 3,
    LOST: 1,
    RESTORED: 3,
    PARTITION: 2,
    OLD_MESSAGE: 1,
}
"""Number of stages by kind, with the first stage."""


class Fault:
    """One fault with its remaining stages.

    Attributes:
        kind: name in the ledger.
        element: the failed broker or link; None for a disturbance without a failure.
    """

    def __init__(self, kind: str, element: BrokerNumber | Link | None, stages: list[Stage]) -> None:
        self.kind = kind
        self.element = element
        self._stages = stages

    @property
    def stages_left(self) -> int:
        """The number of remaining stages."""
        return len(self._stages)

    def advance(self) -> None:
        """Perform the next stage."""
        self._stages.pop(0)()

    def touches(self, path: tuple[BrokerNumber, ...]) -> bool:
        """Return True if a path contains the failed element."""
        if isinstance(self.element, tuple):
            a, b = self.element
            return any(pair in ((a, b), (b, a)) for pair in pairwise(path))
        return self.element in path


class Faults:
    """The faults of a run, within the limits of simultaneous failures.

    Args:
        failures_at_once: maximum number of failed elements.
        links_at_once: maximum number of failed links while no broker has failed; failures of links
            alone must not break safety, in any number.

    Attributes:
        active: faults that have begun and not ended.
        landed: number of begun faults by kind.
        at_crash: sums of the counters of crashed brokers.
        lost: number of brokers that never return.
        restarted: number of brokers that shut down by themselves and were started again.
        compounds: number of compound faults by mark; see `checks.marks`.
    """

    def __init__(
        self, cluster: SimulatedCluster, failures_at_once: int, links_at_once: int
    ) -> None:
        self._cluster = cluster
        self._failures_at_once = failures_at_once
        self._links_at_once = links_at_once
        self.active: list[Fault] = []
        self.landed: dict[str, int] = {}
        self.at_crash: dict[str, int] = {}
        self.lost = self.restarted = 0
        self.compounds = dict.fromkeys(COMPOUNDS, 0)
        self._planned = len(cluster.brokers)
        self._absent: dict[str, None] = {}
        self._is_spared = False

    def begin(self, kind: str, on: tuple[str, ...]) -> Fault | None:
        """Begin a fault with its first stage; return None if not allowed or impossible.

        Args:
            on: the broker, or the lost brokers; or the two ends of a link, and for a delay its
                milliseconds; or a client, with the end of the drop (near, far) or milliseconds; or
                the number of an old message.
        """
        self._drop_finished()
        fault = self._make(kind, on)
        if fault is None:
            return None
        self.landed[kind] = self.landed.get(kind, 0) + 1
        self._count_compound(fault)
        self.active.append(fault)
        fault.advance()
        return fault

    def advance(self, fault: Fault) -> None:
        """Perform the next stage, if any."""
        if fault.stages_left:
            fault.advance()

    def count_removal(self, broker: SimulatedBroker) -> None:
        """Count the compound faults of a broker that is lost, decommissioned, or departs."""
        cluster = self._cluster
        if cluster.oracle.losses.is_lossy(broker.number):
            self.compounds[RESTORED_THEN_REMOVED] += 1
        if any(client.broker == broker.number for client in map(self._client, self._absent)):
            self.compounds[ABSENT_CLIENT_REMOVED] += 1
        present = cluster.topology.present()
        if any(each.name in present for each in cluster.brokers[self._planned :] if each != broker):
            self.compounds[JOINED_BESIDE_REMOVAL] += 1

    def count_join(self) -> None:
        """Count the join of a broker after the removal of another broker."""
        cluster = self._cluster
        if cluster.removed or len(cluster.topology.present()) < len(cluster.brokers):
            self.compounds[JOINED_BESIDE_REMOVAL] += 1

    def start_ended(self) -> None:
        """Start the brokers that shut down by themselves, as an operator does."""
        for broker in self._cluster.state.staying:
            if broker.has_ended:
                self._cluster.broker(broker.name).start()
                self.restarted += 1

    def is_any_active(self) -> bool:
        """Return True if a fault has begun and not ended."""
        self._drop_finished()
        return bool(self.active)

    def heal_all(self) -> None:
        """Perform all remaining stages."""
        for fault in self.active:
            while fault.stages_left:
                fault.advance()

    # ------------------------------------------------------------ kinds

    def _make(self, kind: str, on: tuple[str, ...]) -> Fault | None:
        if kind == OLD_MESSAGE:
            return self._old_message(int(on[0]))
        if kind in CLIENT_KINDS:
            return self._client_fault(kind, *on)
        if not self._are_present(kind, on):
            return None
        if kind in FREE_KINDS:
            return self._disturbance(kind, *on)
        if kind == PARTITION:
            return self._partition(*on)
        if kind in BROKER_KINDS:
            return self._broker_fault(kind, *on)
        if kind == KILL_FOR_GOOD:
            return self._loss(*on)
        if kind == LOST:
            return self._lose(*on)
        if kind == RESTORED:
            return self._restore(*on)
        assert kind in LINK_KINDS, f"no fault is called {kind}"
        return self._link_fault(kind, *on)

    def _broker_fault(self, kind: str, name: str) -> Fault | None:
        failed = self._list_failed()
        number = self._cluster.topology.number_of(name)
        if len(failed) >= self._failures_at_once or number in failed:
            return None
        do = self._cluster.broker(name)
        if number in self._cluster.removed or do.broker.has_ended:
            return None

        def kill() -> None:
            if not do.broker.has_ended and self._is_present(name):
                self._remember(do.broker)
                do.kill()

        def start() -> None:
            if not do.broker.alive and self._is_present(name):
                do.start()

        stages: dict[str, list[Stage]] = {
            "kill": [kill, start],
            "kill_twice": [kill, start, kill, start],
            "absorb_then_kill": [do.absorb, kill, start],
            "absorb_then_release": [do.absorb, do.release],
            "freeze_then_thaw": [do.freeze, do.thaw],
            "freeze_then_kill": [do.freeze, kill, start],
        }
        return Fault(kind, number, stages[kind])

    def _loss(self, name: str) -> Fault | None:
        """Decommission a crashed broker, or restart the broker if the decommission is refused."""
        cluster, fault = self._cluster, self._broker_fault("kill", name)
        if fault is None:
            return None
        do = cluster.broker(name)

        def give_up() -> None:
            can_decommission = self._can_decommission(do.broker.number)
            if not can_decommission or cluster.membership.decommission(name):
                do.start()
            else:
                self.count_removal(do.broker)

        def come_back() -> None:
            if do.broker.number in cluster.removed:
                do.start()

        return Fault(KILL_FOR_GOOD, do.broker.number, [fault.advance, give_up, come_back])

    def _lose(self, *names: str) -> Fault | None:
        """Lose brokers without notice, unless one of the brokers has failed already.

        After a refusal no brokers are lost any more: together with the brokers that stayed, the
        remaining overlay may be in parts.
        """
        cluster, failed = self._cluster, self._list_failed()
        brokers = [cluster.broker(name) for name in names]
        if any(do.broker.number in (*failed, *cluster.removed) for do in brokers):
            self._is_spared = True
        if self._is_spared:
            return None

        def lose() -> None:
            for do in brokers:
                self._remember(do.broker)
                if do.broker.alive:
                    do.kill()
                cluster.removed[do.broker.number] = None
                self.lost += 1
                self.count_removal(do.broker)
            if cluster.transfers.are_free:
                self._move_away([do.broker.number for do in brokers])

        return Fault(LOST, None, [lose])

    def _restore(self, name: str, how: str) -> Fault | None:
        """Crash a broker with a copy of its disk, or an empty disk, and restore this disk later."""
        fault = self._broker_fault("kill", name)
        if fault is None:
            return None
        do = self._cluster.broker(name)
        copies: list[tuple[Any, ...] | None] = []
        marks: list[tuple[BrokerNumber, StateMark] | None] = []

        def copy() -> None:
            copies.append(do.copy(is_empty=how == EMPTY))

        def kill() -> None:
            marks.append(do.broker.witnessed_mark() if do.broker.alive else None)
            fault.advance()

        def put_back() -> None:
            if not do.broker.alive and self._is_present(name):
                do.restore(copies[0], marks[0])

        return Fault(RESTORED, do.broker.number, [copy, kill, put_back])

    def _move_away(self, lost: list[BrokerNumber]) -> None:
        """Attach the clients of lost brokers to other brokers, each to the next broker."""
        cluster = self._cluster
        left = [each.number for each in cluster.state.staying]
        for client in list(cluster.clients.values()):
            if client.broker in lost and not client.detached:
                after = [number for number in left if number > client.broker]
                cluster.transfers.reattach(client.name, cluster.brokers[(after or left)[0]].name)

    def _can_decommission(self, number: BrokerNumber) -> bool:
        """Return True if a broker has no publisher, and no client is in transit."""
        cluster = self._cluster
        clients = [each for each in cluster.clients.values() if not each.detached]
        return not any(
            (each.publishes and each.broker == number)
            or each.core.is_detaching
            or each.is_moving
            or any(requested not in each.started_numbers for requested in each.core.subscriptions)
            for each in clients
        ) and not any(
            each.core.status().own_subscriptions
            > cluster.oracle.register.count_live_at(each.number)
            for each in cluster.brokers
            if each.number != number and each.number not in cluster.removed
        )

    def _link_fault(self, kind: str, a: str, b: str) -> Fault | None:
        failed = self._list_failed()
        only_links = all(isinstance(element, tuple) for element in failed)
        limit = self._failures_at_once
        if only_links:
            limit = max(limit, self._links_at_once)
        ends = sorted(map(self._cluster.topology.number_of, (a, b)))
        element = (ends[0], ends[1])
        if len(failed) >= limit or element in failed:
            return None
        link = self._cluster.link(a, b)
        stages: dict[str, list[Stage]] = {
            "cut": [link.cut, link.heal],
            "cut_one_way": [lambda: link.cut("out"), link.heal],
            "blackhole": [link.blackhole, link.heal],
            "absorb_link_then_cut": [link.absorb, link.cut, link.heal],
            "absorb_link_then_heal": [link.absorb, link.heal],
        }
        return Fault(kind, element, stages[kind])

    def _partition(self, a: str, b: str) -> Fault | None:
        """Cut all sessions across a link.

        Failures of links alone do not break safety, in any number, so no limit applies. All brokers
        with a possible session across this link lose the session.
        """
        cluster, number = self._cluster, self._cluster.topology.number_of
        here, there = number(a), number(b)
        links = [
            cluster.link(cluster.topology.brokers[near], cluster.topology.brokers[far])
            for near, far in cluster.graph.pairs_across(here, there)
        ]

        def cut() -> None:
            for link in links:
                link.cut()

        def heal() -> None:
            for link in links:
                link.heal()

        return Fault(PARTITION, (min(here, there), max(here, there)), [cut, heal])

    def _disturbance(self, kind: str, a: str, b: str, delay_ms: str = "0") -> Fault:
        link = self._cluster.link(a, b)
        if kind == "suspect":
            return Fault(kind, None, [link.suspect])
        delay_ns = int(delay_ms) * MILLISECOND_NS
        return Fault(kind, None, [lambda: link.delay(delay_ns), lambda: link.delay(0)])

    def _client_fault(self, kind: str, name: str, how: str = "") -> Fault | None:
        cluster = self._cluster
        client = cluster.clients.get(name)
        if client is None:
            return None
        if kind == "client_away":
            line = cluster.link(name, cluster.brokers[client.broker].name)

            def leave() -> None:
                self._absent[name] = None
                line.cut()

            def come_back() -> None:
                self._absent.pop(name, None)
                line.heal()

            return Fault(kind, None, [leave, come_back])
        if kind == "slow_client":
            slow_ns = int(how) * MILLISECOND_NS

            def take_after(delay_ns: int) -> None:
                client.take_after_ns = delay_ns

            return Fault(kind, None, [lambda: take_after(slow_ns), lambda: take_after(0)])

        def drop() -> None:
            cluster.state.note(f"drop {name}")
            end = client.ends.get(client.broker)
            if end is not None:
                cluster.network.suspect(end if how == "near" else end.other)

        return Fault(kind, None, [drop])

    def _old_message(self, place: int) -> Fault | None:
        """Deliver a message of a closed session, as an incorrect driver would."""
        old = self._cluster.network.transmission.old_messages
        if not old:
            return None
        message = old.pop(place % len(old))
        key = message.endpoint.key
        receiver = self._cluster.brokers[key] if isinstance(key, int) else None
        if receiver is None or receiver.frozen or receiver.absorbing:
            return None
        return Fault(OLD_MESSAGE, None, [lambda: receiver.receive_old(message)])

    # ------------------------------------------------------------ compound faults

    def _count_compound(self, fault: Fault) -> None:
        """Count the failure of a joined broker, and that of a parallel link of failed links."""
        element, topology = fault.element, self._cluster.topology
        if isinstance(element, int):
            self.compounds[JOINED_FAILED] += element >= self._planned
        elif element is not None:
            units = units_between(topology, *element)
            others = [each for each in self._list_failed() if isinstance(each, tuple)]
            is_parallel = any(units_between(topology, *each) == units for each in others)
            self.compounds[PARALLEL_LINKS_FAILED] += units is not None and is_parallel

    def _client(self, name: str) -> SimulatedClient:
        return self._cluster.clients[name]

    # ------------------------------------------------------------ failed elements

    def _are_present(self, kind: str, on: tuple[str, ...]) -> bool:
        """Return True if all brokers of a fault have joined and have not departed."""
        names = on if kind == LOST else on[:2] if kind in _OF_TWO else on[:1]
        return all(map(self._is_present, names))

    def _is_present(self, name: str) -> bool:
        return name in self._cluster.topology.present()

    def _list_failed(self) -> list[BrokerNumber | Link]:
        return [fault.element for fault in self.active if fault.element is not None]

    def _drop_finished(self) -> None:
        self.active = [
            fault for fault in self.active if fault.stages_left or not self._has_recovered(fault)
        ]

    def _has_recovered(self, fault: Fault) -> bool:
        if not isinstance(fault.element, int):
            return True
        broker = self._cluster.brokers[fault.element]
        if not self._is_present(broker.name):
            return True
        return bool(broker.core.status().state == "running")

    def _remember(self, broker: SimulatedBroker) -> None:
        """Add the counters of a broker that crashes."""
        for name, value in broker.core.statistics().items():
            self.at_crash[name] = self.at_crash.get(name, 0) + value
