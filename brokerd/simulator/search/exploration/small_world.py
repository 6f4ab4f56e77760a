"""Small worlds: a few brokers and clients, with bounds on everything that may happen.

In a small world every choice is an action: the head of a lane, a deadline, a request of a client,
or a fault. Nothing is left to chance, so the same actions always lead to the same state.

Time passes once nothing is in flight, every request was made, every failure is mended, and
something owed is missing: then all clocks advance to the first deadline of a broker. Any other
deadline is early, and a world bounds the number of early deadlines and of faults. A fault that
fails a broker or a link has an action that mends the failure, at any later moment.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.model.identity import Peer
from brokerd.overlay.generate import bipartite, cells, chain, hierarchy
from brokerd.overlay.topology import Topology, nearest
from brokerd.protocols.registry import DEFAULT, definition_of
from brokerd.simulator.checks.protocol_checks import planning_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.plan import set_parameters
from brokerd.simulator.world.actions import (
    BLOBS,
    ActedCluster,
    Action,
    Scene,
    describe_action,
    is_lane,
    is_local,
    peer_of,
    processes_of,
)
from brokerd.simulator.world.clock import NEVER_NS, PATIENCE_NS
from brokerd.simulator.world.disk import SimulatedDisk
from brokerd.simulator.world.network import Network
from brokerd.simulator.world.sessions import Transmission
from brokerd.text import counted
from brokerd.units import SECOND_NS

FAULT_KINDS: Final = {
    "crash": "A broker loses its memory, with none or all of its unconfirmed writes on disk.",
    "fail": "A broker crashes, and its messages in flight are lost.",
    "cut": "Nothing passes from one broker to a neighbour, until it is healed.",
    "suspect": "A broker suspects a neighbour that is alive.",
    "leave": "A client loses its session, and returns.",
}
"""The kinds of faults, each with its meaning."""

MOST_BROKERS, MOST_PUBLICATIONS, MOST_SUBSCRIPTIONS, MOST_FAULTS = 6, 8, 4, 4

CLOCK_NS: Final = 2_000_000 * NEVER_NS
"""The time of every broker's clock at its first start, which makes instants recognisable."""

PUBLISHER: Final = "p1"

WAIT: Final[Action] = ("wait", "all")
"""Time passes at all brokers, until the first of them has a deadline."""

LINKS: Final = "links"
"""The plan of a fault that concerns several processes at once."""

_LONGEST_START: Final = 5_000
"""Limit of the actions until all sessions are ready."""

_KEPT: Final = 99
"""More unconfirmed writes than a broker has."""

_WAITS: Final = ("client_linger_ns", "cold_start_after_ns", "hold_lease_ns")
"""Parameters whose deadlines never fire in a small world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallWorld:
    """The bounds of a world.

    Attributes:
        subscriptions: number of subscribers, each with one subscription to everything.
        faults: number of faults in one history.
        kinds: the kinds of faults that may happen.
        early: number of deadlines that fire although another action is possible.
        has_lag: clients and disks act at any moment. Without lag they act at once, in the order of
            the names of their lanes; only at the process of the next fault they act at any moment.
        settings: parameters of the protocol, as `name=value`.
    """

    protocol: str = DEFAULT
    brokers: int = 3
    publications: int = 2
    subscriptions: int = 1
    faults: int = 1
    kinds: tuple[str, ...] = tuple(FAULT_KINDS)
    early: int = 0
    has_lag: bool = True
    mutants: frozenset[str] = frozenset()
    settings: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse a world that is empty or cannot be bounded.

        Raises:
            ConfigError: names the bound.
        """
        for name, least, most in (
            ("brokers", 2, MOST_BROKERS),
            ("publications", 1, MOST_PUBLICATIONS),
            ("subscriptions", 1, MOST_SUBSCRIPTIONS),
            ("faults", 0, MOST_FAULTS),
            ("early", 0, MOST_FAULTS),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} = {value}; from {least} to {most}")
        for kind in self.kinds:
            if kind not in FAULT_KINDS:
                raise ConfigError(f"no kind of fault {kind!r}{nearest(kind, [*FAULT_KINDS])}")
        parameters = self.scene().parameters
        for item in fields(parameters):
            value = getattr(parameters, item.name)
            if item.name.endswith("_ns") and item.name not in _WAITS and value >= PATIENCE_NS:
                raise ConfigError(
                    f"{item.name} = {value}: the world cannot be bounded, because a deadline "
                    f"after {PATIENCE_NS // SECOND_NS} s or more never fires"
                )

    def scene(self) -> Scene:
        """Return the state before the first action."""
        definition = definition_of(self.protocol)
        topology = _topology_of(definition.kind, self.brokers)
        definition.check_topology(topology, "world")
        planning = planning_of(self.protocol)
        delta = planning.count_tolerated(topology)
        values = {
            **planning.required_parameters(self.mutants),
            "assist": "off",
            "retry_first_ns": SECOND_NS,
            "retry_limit_ns": 2 * SECOND_NS,
            "topic_attribute": "kind",
            "topics": 1,
            "pubends": 1,
            **dict.fromkeys(_WAITS, NEVER_NS),
        }
        parameters = planning.parameters(delta, values)
        parameters = set_parameters(parameters, self.protocol, topology, self.settings)
        return Scene(
            protocol=self.protocol,
            topology=topology,
            parameters=parameters,
            publishers=((PUBLISHER, self._homes(topology)[0]),),
            chance=0,
            mutants=self.mutants,
            strict=self.is_strict,
            is_certain=True,
        )

    @property
    def is_strict(self) -> bool:
        """True if the protocol promises exactly once, so that everything owed must arrive."""
        return definition_of(self.protocol).promises.exactly_once

    def subscribers(self, topology: Topology) -> list[tuple[str, int]]:
        """Return the name and the broker of each subscriber, the farthest broker first."""
        homes = self._homes(topology)
        return [
            (f"s{place + 1}", homes[(len(homes) - 1 - place) % len(homes)])
            for place in range(self.subscriptions)
        ]

    def _homes(self, topology: Topology) -> list[int]:
        names = definition_of(self.protocol).homes(topology)
        return [topology.number_of(name) for name in names]

    def describe(self) -> str:
        """Return the bounds in words."""
        return (
            f"{self.protocol}, {counted(self.brokers, 'broker')}, "
            f"{counted(self.publications, 'publication')}, "
            f"{counted(self.subscriptions, 'subscription')}, "
            f"{counted(self.faults, 'fault')} ({', '.join(self.kinds)}), "
            f"{counted(self.early, 'early deadline')}"
            f"{'' if self.has_lag else ', no lag'}"
        )


def _topology_of(kind: str, brokers: int) -> Topology:
    """Return the smallest overlay of a kind in which publications are forwarded."""
    if kind == "cells":
        return cells(brokers, 1, 1)
    if kind == "hierarchy":
        return hierarchy(brokers, 2)
    if kind == "bipartite":
        return bipartite(brokers, 1)
    return chain(brokers, 1)


@dataclass(frozen=True, slots=True)
class Spent:
    """The part of the bounds that a history has used.

    Attributes:
        mends: the actions that mend the present failures, in order of the failures.
        planned: the process of the next fault, LINKS, or "" for any.
    """

    published: int = 0
    subscribed: int = 0
    faults: int = 0
    early: int = 0
    mends: tuple[Action, ...] = ()
    planned: str = ""

    def after(self, action: Action) -> "Spent":
        """Return the use after an action."""
        verb = action[0]
        if action in self.mends:
            return replace(self, mends=tuple(each for each in self.mends if each != action))
        if verb == "publish":
            return replace(self, published=self.published + 1)
        if verb == "subscribe":
            return replace(self, subscribed=self.subscribed + 1)
        if verb == "deadline":
            return replace(self, early=self.early + 1)
        if verb in ("crash", "fail"):
            return self._after_fault((("restart", action[1]),))
        if verb == "cut":
            return self._after_fault((("heal", *action[1:]),))
        if verb == "suspect":
            return self._after_fault(())
        return self

    def _after_fault(self, mends: tuple[Action, ...]) -> "Spent":
        mends = (*self.mends, *mends)
        return replace(self, faults=self.faults + 1, mends=mends, planned="")


class WorldState:
    """One state of a small world, which actions change.

    Attributes:
        acted: the cluster.
        spent: the used part of the bounds.
        digests: the digests of endpoints that are unchanged since their computation.
        touched: endpoints with cores that may have changed since the last snapshot or return.
    """

    def __init__(self, world: SmallWorld, acted: ActedCluster) -> None:
        self.world = world
        self.acted = acted
        self.spent = Spent()
        self.digests: dict[Peer, bytes] = {}
        self.touched: dict[Peer, None] = {}

    @classmethod
    def begin(cls, world: SmallWorld, *, trace: bool = False) -> "WorldState":
        """Return the state before the first action: all brokers and the publisher dial."""
        acted = ActedCluster(world.scene(), trace=trace)
        for broker in acted.brokers:
            broker.set_clock(CLOCK_NS)
        acted.start()
        for name, home in world.subscribers(acted.scene.topology):
            acted.cluster.client(name, acted.brokers[home].name)
        for client in acted.clients.values():
            client.take_after_ns = 0
        state = cls(world, acted)
        state._drop_void()
        state._settle()
        return state

    def _settle(self) -> None:
        """Perform lanes and deadlines in turn until all sessions are ready."""
        for _ in range(_LONGEST_START):
            if self.is_quiescent() and self.acted.has_converged():
                self.spent = Spent()
                return
            lanes = self.acted.schedule.ready_lanes()
            if not lanes and all(each.deadline() is None for each in self.acted.brokers):
                break
            self.perform((next(iter(lanes)),) if lanes else WAIT)
        raise InvariantViolated("liveness", "the world does not settle at its start")

    def is_quiescent(self) -> bool:
        """Return True if no lane has an entry."""
        return not self.acted.schedule.pending

    def is_over(self) -> bool:
        """Return True if every request was made, and no failure is left to mend."""
        spent, world = self.spent, self.world
        return (
            spent.published == world.publications
            and spent.subscribed == world.subscriptions
            and not spent.mends
        )

    def is_late(self) -> bool:
        """Return True if only deadlines and faults are left, so that no deadline is early."""
        return self.is_quiescent() and self.is_over()

    def enabled(self) -> list[Action]:
        """Return all possible actions, lanes first, in an order that the state determines."""
        lanes: list[Action] = [(name,) for name in self.acted.schedule.ready_lanes()]
        if not self.world.has_lag and (prompt := [each for each in lanes if self._is_prompt(each)]):
            return [min(prompt)]
        ended: list[Action] = [
            ("restart", broker.number) for broker in self.acted.brokers if broker.has_ended
        ]
        mends = [*self.spent.mends, *ended]
        return [*lanes, *self._requests(), *mends, *self._deadlines(), *self._faults()]

    def _is_prompt(self, action: Action) -> bool:
        """Return True if a client or disk acts at once, because no planned fault concerns it."""
        planned = self.spent.planned
        if planned == LINKS or not is_local(action[0]):
            return False
        return all(
            process != peer_of(planned)
            and (isinstance(process, str) or self.acted.brokers[process].alive)
            for process in processes_of(action)
        )

    def _requests(self) -> Iterator[Action]:
        spent, world = self.spent, self.world
        if spent.published < world.publications:
            yield ("publish", PUBLISHER, spent.published % len(BLOBS), 1)
        if spent.subscribed < world.subscriptions:
            name, home = world.subscribers(self.acted.scene.topology)[spent.subscribed]
            yield ("subscribe", name, home, 0)

    def _deadlines(self) -> Iterator[Action]:
        waiting = [each.number for each in self.acted.brokers if each.deadline() is not None]
        if self.is_late():
            if waiting and not self.acted.has_converged():
                yield WAIT
        elif self.spent.early < self.world.early:
            for number in waiting:
                yield ("deadline", number)

    def digest_order(self) -> bytes:
        """Return a digest of the order of lanes, which decides the costs of delays."""
        acted = self.acted
        lanes = {lane.serial: name for name, lane in acted.schedule.ready_lanes().items()}
        for endpoint in acted.network.endpoints.values():
            for end in endpoint.connected:
                lanes[end.lane.serial] = end.lane.name
        for broker in acted.brokers:
            for lane in (broker.disk.lane, broker.disk.log_lane):
                lanes[lane.serial] = lane.name
        names = [lanes[serial] for serial in sorted(lanes)]
        return blake2b("\n".join(names).encode(), digest_size=8).digest()

    def list_plans(self) -> list[str]:
        """Return the possible plans of the next fault; none without another fault."""
        if self.spent.faults >= self.world.faults:
            return []
        kinds, acted = self.world.kinds, self.acted
        found = [LINKS] if "fail" in kinds or "cut" in kinds else []
        if "crash" in kinds or "suspect" in kinds:
            found += [str(broker.number) for broker in acted.brokers]
        if "leave" in kinds:
            found += acted.clients
        return found

    def plan(self, process: str) -> None:
        """Plan the process of the next fault, LINKS, or "" for any."""
        if process != self.spent.planned:
            self.spent = replace(self.spent, planned=process)
            self.touched[process] = None

    def _faults(self) -> Iterator[Action]:
        for action in self._any_faults():
            plan = LINKS if action[0] in ("fail", "cut") else str(action[1])
            if self.spent.planned in ("", plan):
                yield action

    def _any_faults(self) -> Iterator[Action]:
        acted, kinds = self.acted, self.world.kinds
        if self.spent.faults >= self.world.faults:
            return
        for broker in acted.brokers:
            if not broker.alive:
                continue
            number = broker.number
            if "crash" in kinds:
                yield ("crash", number, 0)
                if broker.disk.has_unwritten:
                    yield ("crash", number, _KEPT)
            peers = [peer for peer in broker.ends if isinstance(peer, int)]
            if "fail" in kinds and broker.ends:
                yield ("fail", number)
            for peer in sorted(peers):
                if "cut" in kinds and ("heal", number, peer) not in self.spent.mends:
                    yield ("cut", number, peer)
                if "suspect" in kinds:
                    yield ("suspect", number, peer)
        if "leave" in kinds:
            for client in acted.clients.values():
                if client.ends:
                    yield ("suspect", client.name, client.broker)

    def perform(self, action: Action) -> None:
        """Perform an action that is possible in this state, and check every broker.

        Raises:
            InvariantViolated: a rule was broken.
        """
        acted = self.acted
        acted.cluster.random.seed(0)
        spent = self.spent.after(action)
        acted.forget_actions()
        events = [broker.events for broker in acted.brokers]
        by_lane = is_lane(action)
        is_done = acted.take(action[0]) if by_lane else acted.perform(action)
        if not is_done:
            raise ConfigError(f"{describe_action(action)}: impossible in this state")
        self.spent = spent
        self._drop_void()
        for broker, before in zip(acted.brokers, events, strict=True):
            if broker.events != before:
                self._touch(broker.number)
        if action == WAIT:
            self.digests.clear()
        for word in re.split(r"[>:#]", action[0]) if by_lane else map(str, action[1:]):
            self._touch(peer_of(word))
        # Checks remember: with a check after each action, equal states have equal memories.
        acted.cluster.inspection.check_internals()

    def touch_all(self) -> None:
        """Record that any core may have changed."""
        for key in self.acted.network.endpoints:
            self._touch(key)

    def _touch(self, key: Peer) -> None:
        self.digests.pop(key, None)
        self.touched[key] = None

    def _drop_void(self) -> None:
        """Take all entries without an effect: of closed sessions, and of attempts that are over."""
        schedule = self.acted.schedule
        while True:
            void = [lane for lane in schedule.ready_lanes().values() if _is_void(*lane.queue[0])]
            if not void:
                return
            for lane in void:
                schedule.take_head(lane)


def _is_void(action: Any, arguments: tuple[Any, ...]) -> bool:
    """Return True if an entry of a lane has no effect any more."""
    owner = action.__self__
    if isinstance(owner, Transmission):
        return not arguments[0].up
    if isinstance(owner, Network):
        return owner.is_void(action, arguments)
    return isinstance(owner, SimulatedDisk) and owner.is_void(arguments)
