"""Faults of a swarm: kinds, stages, and how many elements may fail at once.

A fault has stages (absorb, kill, start) and one element, a broker or a link, that counts as
failed from the first stage until the last one is over and, for a broker that was restarted,
until it has recovered.

Paper: [DFT11] abstract, §II (at most δ concurrent failures).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.simulator.world.broker import SimulatedBroker
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
"""These disturb without making an element fail."""

CLIENT_KINDS = ("client_drop", "slow_client", "client_away")
"""These concern one client: its session ends, it takes slowly, it cannot reach its broker."""

KILL_FOR_GOOD = "kill_for_good"
"""A leaf dies, and the others go on without it, where they can; it comes back all the same."""

LOST = "lost"
"""Brokers die at the same moment, and never come back."""

RESTORED = "restored"
"""A broker dies and starts on an older copy of its disk, or an empty one; the loss is accepted."""

COPY, EMPTY = "copy", "empty"
"""What is put back."""

PARTITION = "partition"
"""No session passes from one side of a link to the other, past its ends either."""

OLD_MESSAGE = "old_message"
"""A message of a session that is over reaches a core, as from a careless driver."""

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
"""How many stages each kind has, the first one included."""


class Fault:
    """One fault on its way through its stages.

    Attributes:
        kind: its name in the ledger.
        element: the broker or link that fails; None for a disturbance that fails nothing.
    """

    def __init__(self, kind: str, element: BrokerNumber | Link | None, stages: list[Stage]) -> None:
        self.kind = kind
        self.element = element
        self._stages = stages

    @property
    def stages_left(self) -> int:
        """How many stages are still to come."""
        return len(self._stages)

    def advance(self) -> None:
        """Carry out the next stage."""
        self._stages.pop(0)()

    def touches(self, path: tuple[BrokerNumber, ...]) -> bool:
        """Whether a path leads through the failed element."""
        if isinstance(self.element, tuple):
            a, b = self.element
            return any(pair in ((a, b), (b, a)) for pair in pairwise(path))
        return self.element in path


class Faults:
    """Begins, advances and ends faults, never more than allowed at once.

    Args:
        failures_at_once: how many elements may be failed.
        links_at_once: how many links may fail together while no broker does; failures of links
            alone may not break safety, however many.

    Attributes:
        active: faults that have begun and are not over.
        landed: how often each kind has begun.
        at_crash: counters that died with brokers, added up.
        lost: how many brokers never come back.
        restarted: how many brokers ended by themselves and were started again.
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
        self._is_spared = False

    def begin(self, kind: str, on: tuple[str, ...]) -> Fault | None:
        """Begin a fault, first stage included; None where it may not or cannot be.

        Args:
            on: the broker, or those that are lost; or the two ends of a link, and for a delay its
                milliseconds; or a client, and how it is dropped (near, far) or its milliseconds;
                or which old message.
        """
        self._drop_finished()
        fault = self._make(kind, on)
        if fault is None:
            return None
        self.landed[kind] = self.landed.get(kind, 0) + 1
        self.active.append(fault)
        fault.advance()
        return fault

    def advance(self, fault: Fault) -> None:
        """Carry out the next stage, where there is one."""
        if fault.stages_left:
            fault.advance()

    def start_ended(self) -> None:
        """Start the brokers that have ended by themselves, as an operator does."""
        for broker in self._cluster.staying:
            if broker.has_ended:
                self._cluster.broker(broker.name).start()
                self.restarted += 1

    def any_active(self) -> bool:
        """Whether a fault has begun and is not over."""
        self._drop_finished()
        return bool(self.active)

    def heal_all(self) -> None:
        """Carry out every stage that is left."""
        for fault in self.active:
            while fault.stages_left:
                fault.advance()

    # ------------------------------------------------------------ kinds

    def _make(self, kind: str, on: tuple[str, ...]) -> Fault | None:
        if kind == OLD_MESSAGE:
            return self._old_message(int(on[0]))
        if kind in CLIENT_KINDS:
            return self._client_fault(kind, *on)
        if kind in FREE_KINDS:
            return self._disturbance(kind, *on)
        if kind == PARTITION:
            return self._partition(*on)
        if kind in BROKER_KINDS:
            return self._broker_fault(kind, *on)
        if kind == KILL_FOR_GOOD:
            return self._loss(*on)
        if kind == LOST:
            return self._lost(*on)
        if kind == RESTORED:
            return self._restored(*on)
        assert kind in LINK_KINDS, f"no fault is called {kind}"
        return self._link_fault(kind, *on)

    def _broker_fault(self, kind: str, name: str) -> Fault | None:
        failed = self._failed()
        number = self._cluster.topology.number_of(name)
        if len(failed) >= self._failures_at_once or number in failed:
            return None
        do = self._cluster.broker(name)
        if number in self._cluster.gone or do.broker.has_ended:
            return None

        def kill() -> None:
            if not do.broker.has_ended:
                self._remember(do.broker)
                do.kill()

        def start() -> None:
            if not do.broker.alive:
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
        """Who runs the brokers gives one up, unless that is refused: then it is started again."""
        cluster, fault = self._cluster, self._broker_fault("kill", name)
        if fault is None:
            return None
        do = cluster.broker(name)

        def give_up() -> None:
            if not self._may_be_given_up(do.broker.number) or cluster.decommission(name):
                do.start()

        def come_back() -> None:
            if do.broker.number in cluster.gone:
                do.start()

        return Fault(KILL_FOR_GOOD, do.broker.number, [fault.advance, give_up, come_back])

    def _lost(self, *names: str) -> Fault | None:
        """Nobody is told; who fails in another way already does not.

        Nobody does after that either: with who has stayed, what is left may be in parts.
        """
        cluster, failed = self._cluster, self._failed()
        brokers = [cluster.broker(name) for name in names]
        if any(do.broker.number in (*failed, *cluster.gone) for do in brokers):
            self._is_spared = True
        if self._is_spared:
            return None

        def lose() -> None:
            for do in brokers:
                self._remember(do.broker)
                if do.broker.alive:
                    do.kill()
                cluster.gone[do.broker.number] = None
                self.lost += 1
            if cluster.clients_leave_freely:
                self._move_away([do.broker.number for do in brokers])

        return Fault(LOST, None, [lose])

    def _restored(self, name: str, how: str) -> Fault | None:
        """Copy the disk of a broker, unless it is to be empty, and later put the copy back."""
        fault = self._broker_fault("kill", name)
        if fault is None:
            return None
        do = self._cluster.broker(name)
        copies: list[tuple[Any, ...] | None] = []

        def copy() -> None:
            copies.append(do.broker.disk.copy() if how == COPY else None)

        def put_back() -> None:
            if not do.broker.alive:
                do.put_back(copies[0])

        return Fault(RESTORED, do.broker.number, [copy, fault.advance, put_back])

    def _move_away(self, lost: list[BrokerNumber]) -> None:
        """Clients of brokers that never come back go on at others, each at the next one."""
        cluster = self._cluster
        left = [each.number for each in cluster.staying]
        for client in list(cluster.clients.values()):
            if client.broker in lost and not client.detached:
                after = [number for number in left if number > client.broker]
                cluster.reattach(client.name, cluster.brokers[(after or left)[0]].name)

    def _may_be_given_up(self, number: BrokerNumber) -> bool:
        """Whether no publisher is there, and no client, or what it has asked for, on its way."""
        cluster = self._cluster
        clients = [each for each in cluster.clients.values() if not each.detached]
        return not any(
            (each.publishes and each.broker == number)
            or each.core.is_detaching
            or any(asked not in each.started_numbers for asked in each.core.subscriptions)
            for each in clients
        ) and not any(
            each.core.status().own_subscriptions > cluster.oracle.living_at(each.number)
            for each in cluster.brokers
            if each.number != number and each.number not in cluster.gone
        )

    def _link_fault(self, kind: str, a: str, b: str) -> Fault | None:
        failed = self._failed()
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
        """Links in any number may fail without breaking safety, so none are counted here.

        All who may have a session past this link lose it.
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
            return Fault(kind, None, [line.cut, line.heal])
        if kind == "slow_client":
            slow_ns = int(how) * MILLISECOND_NS

            def take_after(delay_ns: int) -> None:
                client.take_after_ns = delay_ns

            return Fault(kind, None, [lambda: take_after(slow_ns), lambda: take_after(0)])

        def drop() -> None:
            cluster.note(f"drop {name}")
            end = client.ends.get(client.broker)
            if end is not None:
                cluster.network.suspect(end if how == "near" else end.other)

        return Fault(kind, None, [drop])

    def _old_message(self, place: int) -> Fault | None:
        """Hand over a message of a session that is over, as a careless driver would."""
        old = self._cluster.network.old_messages
        if not old:
            return None
        message = old.pop(place % len(old))
        key = message.endpoint.key
        receiver = self._cluster.brokers[key] if isinstance(key, int) else None
        if receiver is None or receiver.frozen or receiver.absorbing:
            return None
        return Fault(OLD_MESSAGE, None, [lambda: receiver.receive_old(message)])

    # ------------------------------------------------------------ who is failed

    def _failed(self) -> list[BrokerNumber | Link]:
        return [fault.element for fault in self.active if fault.element is not None]

    def _drop_finished(self) -> None:
        self.active = [
            fault for fault in self.active if fault.stages_left or not self._has_recovered(fault)
        ]

    def _has_recovered(self, fault: Fault) -> bool:
        if not isinstance(fault.element, int):
            return True
        broker = self._cluster.brokers[fault.element]
        return bool(broker.core.status().state == "running")

    def _remember(self, broker: SimulatedBroker) -> None:
        """Keep the counters that die with a broker."""
        for name, value in broker.core.statistics().items():
            self.at_crash[name] = self.at_crash.get(name, 0) + value
