"""Faults for a swarm: kinds, stages, and how many elements may fail at once.

A fault has stages (absorb, kill, start) and one element, a broker or a link, that counts as
failed from the first stage until the last one is over and, for a broker that was restarted,
until it has recovered.

Paper: [DFT11] abstract, §II (at most δ concurrent failures).
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random

from brokerd.model.identity import BrokerNumber
from brokerd.simulator.broker import SimulatedBroker
from brokerd.simulator.clock import MILLISECOND_NS
from brokerd.simulator.cluster import SimulatedCluster

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


class FaultPlan:
    """Begins, advances and ends faults, never more than allowed at once.

    Args:
        kinds: which may begin.
        links_at_once: how many links may fail together while no broker does; failures of links
            alone may not break safety, however many.
        elements_at_once: how many brokers and links together; δ where 0.

    Attributes:
        active: faults that have begun and are not over.
        landed: how often each kind has begun.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        random: Random,
        kinds: tuple[str, ...],
        links_at_once: int,
        elements_at_once: int = 0,
    ) -> None:
        self._cluster = cluster
        self._random = random
        self._kinds = kinds
        self._links_at_once = links_at_once
        self._delta = cluster.parameters.delta
        self._elements_at_once = elements_at_once or self._delta
        self.active: list[Fault] = []
        self.landed: dict[str, int] = {}
        self.at_crash: dict[str, int] = {}

    def begin(self) -> Fault | None:
        """Begin a fault of a random kind, first stage included; None where none is allowed."""
        self._drop_finished()
        kind = self._random.choice(self._kinds)
        if kind in FREE_KINDS:
            fault = self._free_fault(kind)
        elif kind in BROKER_KINDS:
            fault = self._broker_fault(kind)
        else:
            fault = self._link_fault(kind)
        if fault is not None:
            self.landed[kind] = self.landed.get(kind, 0) + 1
            self.active.append(fault)
            fault.advance()
        return fault

    def advance(self, fault: Fault) -> None:
        """Carry out the next stage, where there is one."""
        if fault.stages_left:
            fault.advance()

    def heal_all(self) -> None:
        """Carry out every stage that is left."""
        for fault in self.active:
            while fault.stages_left:
                fault.advance()

    def unfinished(self) -> Iterator[Fault]:
        """Faults with stages left."""
        return (fault for fault in self.active if fault.stages_left)

    # ------------------------------------------------------------ kinds

    def _broker_fault(self, kind: str) -> Fault | None:
        free = [broker for broker in self._cluster.brokers if not self._is_failed(broker.number)]
        if len(self._failed()) >= self._elements_at_once or not free:
            return None
        broker = self._random.choice(free)
        do = self._cluster.broker(broker.name)

        def kill() -> None:
            self._remember(broker)
            do.kill()

        stages: dict[str, list[Stage]] = {
            "kill": [kill, do.start],
            "kill_twice": [kill, do.start, kill, do.start],
            "absorb_then_kill": [do.absorb, kill, do.start],
            "absorb_then_release": [do.absorb, do.release],
            "freeze_then_thaw": [do.freeze, do.thaw],
            "freeze_then_kill": [do.freeze, kill, do.start],
        }
        return Fault(kind, broker.number, stages[kind])

    def _link_fault(self, kind: str) -> Fault | None:
        failed = self._failed()
        only_links = all(isinstance(element, tuple) for element in failed)
        limit = self._elements_at_once
        if only_links:
            limit = max(self._links_at_once, limit)
        free = [link for link in self._links() if link not in failed]
        if len(failed) >= limit or not free:
            return None
        a, b = element = self._random.choice(free)
        if self._random.random() < 0.5:
            a, b = b, a
        names = self._cluster.topology.brokers
        link = self._cluster.link(names[a], names[b])
        stages: dict[str, list[Stage]] = {
            "cut": [link.cut, link.heal],
            "cut_one_way": [lambda: link.cut("out"), link.heal],
            "blackhole": [link.blackhole, link.heal],
            "absorb_link_then_cut": [link.absorb, link.cut, link.heal],
            "absorb_link_then_heal": [link.absorb, link.heal],
        }
        return Fault(kind, element, stages[kind])

    def _free_fault(self, kind: str) -> Fault | None:
        cluster, random = self._cluster, self._random
        if kind in ("suspect", "delay"):
            a, b = random.choice(self._links())
            if random.random() < 0.5:
                a, b = b, a
            names = cluster.topology.brokers
            link = cluster.link(names[a], names[b])
            if kind == "suspect":
                return Fault(kind, None, [link.suspect])
            delay_ns = random.randrange(1, 300) * MILLISECOND_NS
            return Fault(kind, None, [lambda: link.delay(delay_ns), link.heal])
        clients = list(cluster.clients.values())
        if not clients:
            return None
        client = random.choice(clients)
        if kind == "slow_client":
            slow_ns = random.choice((50, 400)) * MILLISECOND_NS

            def take_after(delay_ns: int) -> None:
                client.take_after_ns = delay_ns

            return Fault(
                kind,
                None,
                [lambda: take_after(slow_ns), lambda: take_after(0)],
            )

        def drop() -> None:
            cluster.note(f"drop {client.name}")
            end = client.ends.get(client.broker)
            if end is not None:
                cluster.network.suspect(end if random.random() < 0.5 else end.other)

        return Fault(kind, None, [drop])

    # ------------------------------------------------------------ who is failed

    def _failed(self) -> list[BrokerNumber | Link]:
        return [fault.element for fault in self.active if fault.element is not None]

    def _is_failed(self, broker: BrokerNumber) -> bool:
        return broker in self._failed()

    def _links(self) -> list[Link]:
        """Tree links mostly, and the pairs that a bypass would use."""
        links = list(self._cluster.topology.links)
        if self._random.random() < 0.3:
            start = self._random.randrange(len(self._cluster.brokers))
            links = [
                (min(start, far), max(start, far))
                for far in self._cluster.tree.ball(start, self._delta + 1)
            ]
        return links

    def _drop_finished(self) -> None:
        self.active = [
            fault for fault in self.active if fault.stages_left or not self._has_recovered(fault)
        ]

    def _has_recovered(self, fault: Fault) -> bool:
        if not isinstance(fault.element, int):
            return True
        broker = self._cluster.brokers[fault.element]
        return bool(broker.core.status()["state"] == "running")

    def _remember(self, broker: SimulatedBroker) -> None:
        """Keep the counters that die with a broker."""
        for name, value in broker.core.statistics().items():
            self.at_crash[name] = self.at_crash.get(name, 0) + value
