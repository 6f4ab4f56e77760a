"""Moves of a plan: one class per verb of the lines `at WHEN VERB …`, and the table of all classes.

The classes of brokers, faults and lanes are here, the classes of clients in `client_moves`. Plans,
swarms and the shrinking of plans use the table only.

    at 0.2 publish p0-b1 a,10,3 b,40,0   two publications in one run: kind, price, payload bytes;
                                         a kind other than letters is in JSON: true, 1, "1"
    at 0.25 subscribe s1-b3 kind = 'a'
    at 0.28 unsubscribe s1-b3 1          the client's first subscription
    at 0.29 detach s1-b3                 the client detaches for good
    at 0.29 forget s2-b3 1               the process restarts without memory, and repeats the
                                         request for its first subscription only
    at 0.3 reattach s2-b3 b1             the client attaches to another broker without a move
    at 0.3 move s1-b3 b1                 the client moves to another broker, in the plan as s1-b3
    at 0.3 join n1 b3                    a new broker, a leaf behind b3
    at 0.4 depart n1                     the broker departs; no effect with clients
    at 0.4 role b2 publisher             the broker's role in the overlay changes
    at 0.4 retain b1 2 age=60ms          a pubend's policy changes; `topology`: to the parameters'
    at 0.3 fault kill b2 then 0.41       the further stages, if before healing
    at 0.3 fault restored b2 copy then 0.5 0.6
                                         the present disk is restored (`empty`: an empty disk); a
                                         proved loss is accepted, or refused if it must be
    at 17 take b1>b2                     an adversary's choice
"""

from dataclasses import dataclass, replace
from typing import Final, Self

from brokerd.model.retention_policy import RetentionPolicy
from brokerd.protocols.interface import RetentionChanged
from brokerd.simulator.search.client_moves import (
    Detachment,
    MemoryLoss,
    PublicationRun,
    Reattachment,
    Relocation,
    SubscriptionEnd,
    SubscriptionRequest,
)
from brokerd.simulator.search.move import (
    Move,
    MoveContext,
    PlanError,
    PlanScope,
    client_at_neighbour,
)
from brokerd.simulator.world.client_mobility import home_of
from brokerd.simulator.world.clock import AdversarialSchedule
from brokerd.simulator.world.faults import (
    BROKER_KINDS,
    CLIENT_KINDS,
    FREE_KINDS,
    KILL_FOR_GOOD,
    LINK_KINDS,
    LOST,
    PARTITION,
    RESTORED,
)

_OF_PLAN: Final = "topology"
"""The word for the policy in the parameters of a plan."""


@dataclass(frozen=True, slots=True)
class BrokerJoin(Move):
    """The join of a new broker: in a tree as a leaf, in a hierarchy with one or more links."""

    verb = "join"
    broker: str
    at: str
    further: tuple[str, ...] = ()

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        broker, *near = text.split()
        at, *further = map(scope.broker, near)
        return cls(when, broker, at, tuple(further))

    def write(self, scope: PlanScope) -> str:
        return f"{self.broker} {' '.join(self.near)}"

    def apply(self, context: MoveContext) -> None:
        context.mobility.join(self.broker, self.near, self.when, context.at)

    @property
    def near(self) -> tuple[str, ...]:
        """The neighbours of the new broker."""
        return (self.at, *self.further)

    @property
    def brokers(self) -> set[str]:
        return {*self.near}

    def without_broker(self, name: str, neighbour: str) -> Self | None:
        if name not in self.near:
            return self
        if not neighbour:
            return None
        at, *further = dict.fromkeys(neighbour if each == name else each for each in self.near)
        return replace(self, at=at, further=tuple(further))


@dataclass(frozen=True, slots=True)
class BrokerDeparture(Move):
    """The departure of a joined broker; no effect if absent or with clients."""

    verb = "depart"
    broker: str

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        return cls(when, scope.broker(text.split()[0]))

    def write(self, scope: PlanScope) -> str:
        return self.broker

    def apply(self, context: MoveContext) -> None:
        context.mobility.depart(self.broker, self.when, context.at)

    @property
    def brokers(self) -> set[str]:
        return {self.broker}

    def without_broker(self, name: str, neighbour: str) -> Self | None:
        return None if name == self.broker else self


@dataclass(frozen=True, slots=True)
class RoleChange(Move):
    """The change of a broker's role in the overlay; no effect if impossible."""

    verb = "role"
    counter = "roles_changed"
    broker: str
    role: str

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        if not scope.promises.roles_may_change:
            raise PlanError(f"no broker changes where the protocol is {scope.protocol}")
        words = text.split()
        return cls(when, scope.broker(words[0]), words[1])

    def write(self, scope: PlanScope) -> str:
        return f"{self.broker} {self.role}"

    def apply(self, context: MoveContext) -> None:
        membership = context.cluster.membership
        context.counts[self.counter] += membership.change_role(self.broker, self.role)

    @property
    def brokers(self) -> set[str]:
        return {self.broker}

    def without_broker(self, name: str, neighbour: str) -> Self | None:
        return None if name == self.broker else self


@dataclass(frozen=True, slots=True)
class PolicyChange(Move):
    """The change of a pubend's policy of early release; no effect while the broker is down.

    Attributes:
        policy: None: as in the parameters of the plan.
    """

    verb = "retain"
    broker: str
    pubend: int
    policy: RetentionPolicy | None

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        if not scope.promises.retention_may_change:
            raise PlanError(f"no retention changes where the protocol is {scope.protocol}")
        broker, pubend, policy = text.split(None, 2)
        policy = policy.strip()
        chosen = None if policy == _OF_PLAN else RetentionPolicy.parse(policy, f"retain {broker}")
        return cls(when, scope.broker(broker), int(pubend), chosen)

    def write(self, scope: PlanScope) -> str:
        return f"{self.broker} {self.pubend} {_OF_PLAN if self.policy is None else self.policy}"

    def apply(self, context: MoveContext) -> None:
        cluster = context.cluster
        broker = cluster.state.broker(self.broker)
        if broker.is_responsive and self.pubend < cluster.parameters.pubends:
            cluster.state.note(f"retain {self.write(PlanScope('', False, [], []))}")
            broker.operate(RetentionChanged(self.pubend, self.policy))

    @property
    def brokers(self) -> set[str]:
        return {self.broker}

    def without_broker(self, name: str, neighbour: str) -> Self | None:
        return None if name == self.broker else self


@dataclass(frozen=True, slots=True)
class FaultInjection(Move):
    """A fault: its first stage, and the instants of further stages; healing performs the rest.

    Attributes:
        on: arguments of the kind: brokers, a client, numbers.
    """

    verb = "fault"
    kind: str
    on: tuple[str, ...]
    stages: tuple[int, ...] = ()

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        kind, *words = text.split()
        until = words.index("then") if "then" in words else len(words)
        stages = tuple(map(scope.read_instant, words[until + 1 :]))
        return cls(when, kind, tuple(words[:until]), stages)

    def write(self, scope: PlanScope) -> str:
        then = ("then", *map(scope.write_instant, self.stages)) if self.stages else ()
        return " ".join((self.kind, *self.on, *then))

    def apply(self, context: MoveContext) -> None:
        on = tuple(map(context.mobility.name_now, self.on))
        fault = context.faults.begin(self.kind, on)
        for when in self.stages if fault is not None else ():
            context.at(when, context.faults.advance, fault)

    @property
    def brokers(self) -> set[str]:
        return set()

    def without_broker(self, name: str, neighbour: str) -> Self | None:
        on = self._elements
        if name not in on and not any(home_of(word) == name for word in on):
            return self
        if not neighbour or {name, neighbour} <= set(on):
            return None
        renamed = (
            neighbour if word == name else client_at_neighbour(word, name, neighbour) for word in on
        )
        return replace(self, on=(*renamed, *self.on[len(on) :]))

    @property
    def _elements(self) -> tuple[str, ...]:
        """The arguments that name brokers or clients."""
        if self.kind == LOST:
            return self.on
        if self.kind in (*BROKER_KINDS, *CLIENT_KINDS, KILL_FOR_GOOD, RESTORED):
            return self.on[:1]
        if self.kind in LINK_KINDS or self.kind in FREE_KINDS or self.kind == PARTITION:
            return self.on[:2]
        return ()


@dataclass(frozen=True, slots=True)
class LaneChoice(Move):
    """An adversary's choice of the head of a lane; no effect on an empty lane."""

    verb = "take"
    lane: str

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        return cls(when, scope.read_lane(text.split()[0]))

    def write(self, scope: PlanScope) -> str:
        return scope.write_lane(self.lane)

    def apply(self, context: MoveContext) -> None:
        schedule = context.cluster.schedule
        assert isinstance(schedule, AdversarialSchedule), f"{self} is not for a clock"
        schedule.take(self.lane)

    @property
    def brokers(self) -> set[str]:
        return set()

    def without_broker(self, name: str, neighbour: str) -> Self | None:
        return None  # lanes have numbers of brokers, which change


MOVES: dict[str, type[Move]] = {
    kind.verb: kind
    for kind in (
        PublicationRun,
        SubscriptionRequest,
        SubscriptionEnd,
        Detachment,
        MemoryLoss,
        Reattachment,
        Relocation,
        BrokerJoin,
        BrokerDeparture,
        RoleChange,
        PolicyChange,
        FaultInjection,
        LaneChoice,
    )
}
"""All classes of moves by verb. Shrinking leaves out the last classes first."""


def make_counts() -> dict[str, int]:
    """Return the ledger's counters of the moves by name, all 0."""
    return {kind.counter: 0 for kind in MOVES.values() if kind.counter}
