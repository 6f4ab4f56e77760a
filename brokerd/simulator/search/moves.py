"""Moves of a plan: one class per verb of the lines `at WHEN VERB …`, and the table of all classes.

A class reads its line, writes its line, and applies the move to a run. For smaller plans a class
also names the brokers that a move needs, and returns the move without a broker. Plans, swarms and
the shrinking of plans use the table only.

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

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Final, Self

from brokerd.model.predicate import Scalar
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.protocols.interface import RetentionChanged
from brokerd.simulator.search.plan_scope import PlanError, PlanScope, read_kind, write_kind
from brokerd.simulator.world.client_mobility import ClientMobility, home_of
from brokerd.simulator.world.clock import AdversarialSchedule
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.faults import (
    BROKER_KINDS,
    CLIENT_KINDS,
    FREE_KINDS,
    KILL_FOR_GOOD,
    LINK_KINDS,
    LOST,
    PARTITION,
    RESTORED,
    Faults,
)
from brokerd.wire.attributes import encode_attributes

_OF_PLAN: Final = "topology"
"""The word for the policy in the parameters of a plan."""


@dataclass(slots=True)
class MoveContext:
    """The parts of one run that moves act on.

    Attributes:
        at: schedules an action with its arguments, in the unit of the plan.
        counts: the ledger's counters of the moves, by name.
    """

    cluster: SimulatedCluster
    faults: Faults
    mobility: ClientMobility
    at: Callable[..., None]
    counts: dict[str, int] = field(
        default_factory=lambda: {kind.counter: 0 for kind in MOVES.values() if kind.counter}
    )


@dataclass(frozen=True, slots=True)
class Move(ABC):
    """One decision of a plan.

    Attributes:
        verb: the word of the line that names the class.
        counter: name of the ledger's counter that the move increments; "" without a counter.
        when: an instant in nanoseconds, or an adversary's step.
    """

    verb: ClassVar[str]
    counter: ClassVar[str] = ""
    when: int

    @classmethod
    @abstractmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        """Return the move of a line.

        Args:
            text: the line behind the verb.

        Raises:
            PlanError, ValueError, IndexError: the text is no such move.
        """

    @abstractmethod
    def write(self, scope: PlanScope) -> str:
        """Return the text behind the verb, as `read` reads the text."""

    @abstractmethod
    def apply(self, context: MoveContext) -> None:
        """Apply the move to a run; no effect if the move is impossible at present."""

    @property
    @abstractmethod
    def brokers(self) -> set[str]:
        """The brokers without which a plan cannot have the move."""

    @abstractmethod
    def without_broker(self, name: str, neighbour: str) -> Self | None:
        """Return the move in a plan without a broker; None if the move is left out.

        Args:
            name: the broker.
            neighbour: the broker that receives the clients; "" if the clients are left out.
        """


@dataclass(frozen=True, slots=True)
class ClientAction(Move):
    """A move of one client, named after its first broker."""

    client: str

    def present_name(self, context: MoveContext) -> str | None:
        """Return the client's name at present; None if the move waits for the client to arrive."""
        if context.mobility.holds(self.client, self.apply, context):
            return None
        return context.mobility.name_now(self.client)

    @property
    def brokers(self) -> set[str]:
        return {home_of(self.client)}

    def without_broker(self, name: str, neighbour: str) -> Self | None:
        if name in self.brokers and not neighbour:
            return None
        return replace(self, client=client_at_neighbour(self.client, name, neighbour))


@dataclass(frozen=True, slots=True)
class BrokerSwitch(ClientAction):
    """A move of one client to another broker."""

    to: str

    def write(self, scope: PlanScope) -> str:
        return f"{self.client} {self.to}"

    @property
    def brokers(self) -> set[str]:
        return {home_of(self.client), self.to}

    def without_broker(self, name: str, neighbour: str) -> Self | None:
        if name in self.brokers and not neighbour:
            return None
        client = client_at_neighbour(self.client, name, neighbour)
        return replace(self, client=client, to=neighbour if self.to == name else self.to)


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of one publication."""

    kind: Scalar
    price: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class PublicationRun(ClientAction):
    """The publishing of a run of publications by a client."""

    verb = "publish"
    counter = "at_risk"
    contents: tuple[Contents, ...]

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        words = text.split()
        contents = [word.split(",") for word in words[1:]]
        return cls(
            when,
            scope.client(words[0]),
            tuple(
                Contents(read_kind(kind), int(price), int(size)) for kind, price, size in contents
            ),
        )

    def write(self, scope: PlanScope) -> str:
        contents = (
            f"{write_kind(item.kind)},{item.price},{item.payload_bytes}" for item in self.contents
        )
        return f"{self.client} {' '.join(contents)}"

    def apply(self, context: MoveContext) -> None:
        name = self.present_name(context)
        if name is None:
            return
        client = context.cluster.client(name, home_of(name), publishes=True)
        first = client.core.outgoing.next_sequence
        contents = [
            (_encode_content(item.kind, item.price), _make_payload(sequence, item.payload_bytes))
            for sequence, item in enumerate(self.contents, first)
        ]
        published = context.cluster.publish_run(home_of(name), contents, name)
        self._count_risk(context, name, published[-1].sequence)

    def _count_risk(self, context: MoveContext, publisher: str, sequence: int) -> None:
        """Count the subscribers of a publication that are behind a failed element."""
        failed = [fault for fault in context.faults.active if fault.element is not None]
        if not failed:
            return
        cluster = context.cluster
        start = cluster.clients[publisher].broker
        for name in cluster.oracle.obligations.list_owed_subscribers(publisher, sequence):
            path = cluster.graph.path(start, cluster.clients[name].broker)
            context.counts[self.counter] += any(fault.touches(path) for fault in failed)


@dataclass(frozen=True, slots=True)
class SubscriptionRequest(ClientAction):
    """The subscription of a client; a new client is created."""

    verb = "subscribe"
    counter = "subscriptions"
    predicate: str

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        client, predicate = text.split(None, 1)
        return cls(when, scope.client(client), predicate)

    def write(self, scope: PlanScope) -> str:
        return f"{self.client} {self.predicate}"

    def apply(self, context: MoveContext) -> None:
        name = self.present_name(context)
        if name is None:
            return
        client = context.cluster.clients.get(name)
        if client is None or not client.core.is_detaching:
            context.counts[self.counter] += 1
            context.cluster.subscribe(home_of(name), self.predicate, name)


@dataclass(frozen=True, slots=True)
class SubscriptionEnd(ClientAction):
    """The end of a client's subscription; no effect without the subscription."""

    verb = "unsubscribe"
    counter = "subscriptions_ended"
    number: int

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        words = text.split()
        return cls(when, scope.client(words[0]), int(words[1]))

    def write(self, scope: PlanScope) -> str:
        return f"{self.client} {self.number}"

    def apply(self, context: MoveContext) -> None:
        name = self.present_name(context)
        if name is None:
            return
        client = context.cluster.clients.get(name)
        if client is not None and self.number in client.core.subscriptions:
            context.counts[self.counter] += 1
            context.cluster.unsubscribe(name, self.number)


@dataclass(frozen=True, slots=True)
class Detachment(ClientAction):
    """The departure of a client for good, with no state left at its broker; once.

    No effect on a publisher with unacknowledged publications: it flushes before it leaves.
    """

    verb = "detach"
    counter = "subscribers_detached"

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        return cls(when, scope.client(text.split()[0]))

    def write(self, scope: PlanScope) -> str:
        return self.client

    def apply(self, context: MoveContext) -> None:
        name = self.present_name(context)
        if name is None:
            return
        client = context.cluster.clients.get(name)
        if client is None or client.core.is_detaching or len(client.core.outgoing):
            return
        context.counts[self.counter] += 1
        context.cluster.population.detach(name)


@dataclass(frozen=True, slots=True)
class MemoryLoss(ClientAction):
    """The loss of a client's process and memory; another process of the same name repeats requests.

    Attributes:
        keeps: number of requested subscriptions, from the first on, under their numbers.
    """

    verb = "forget"
    counter = "clients_without_memory"
    keeps: int

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        words = text.split()
        return cls(when, scope.client(words[0]), int(words[1]))

    def write(self, scope: PlanScope) -> str:
        return f"{self.client} {self.keeps}"

    def apply(self, context: MoveContext) -> None:
        name = self.present_name(context)
        if name is None:
            return
        client = context.cluster.clients.get(name)
        if client is not None and not client.core.is_detaching:
            context.counts[self.counter] += 1
            context.cluster.population.forget(name, self.keeps)


@dataclass(frozen=True, slots=True)
class Reattachment(BrokerSwitch):
    """The attachment of a subscriber to another broker, for any state of its own broker.

    No effect if the client is there, publishes, or waits for an answer that only its own broker can
    give.
    """

    verb = "reattach"

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        if not scope.promises.resumes_elsewhere:
            raise PlanError(f"no client can reattach where the protocol is {scope.protocol}")
        words = text.split()
        return cls(when, scope.client(words[0]), scope.broker(words[1]))

    def apply(self, context: MoveContext) -> None:
        context.mobility.reattach(self.client, self.to)


@dataclass(frozen=True, slots=True)
class Relocation(BrokerSwitch):
    """The move of a client to another broker; no effect if there, leaving, or moving."""

    verb = "move"

    @classmethod
    def read(cls, when: int, text: str, scope: PlanScope) -> Self:
        words = text.split()
        return cls(when, scope.client(words[0]), scope.broker(words[1]))

    def apply(self, context: MoveContext) -> None:
        context.mobility.move(self.client, self.to)


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


def client_at_neighbour(client: str, name: str, neighbour: str) -> str:
    """Return the name of a client, at the neighbour if the client was at the broker `name`."""
    return f"{client.partition('-')[0]}-{neighbour}" if home_of(client) == name else client


@lru_cache(maxsize=256, typed=True)
def _encode_content(kind: Scalar, price: int) -> bytes:
    return encode_attributes({"kind": kind, "price": price})


def _make_payload(sequence: int, length: int) -> bytes:
    """Return bytes that differ between publications, as far as the length permits."""
    word = (sequence * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8)
    return (word * (length // 8 + 1))[:length]
