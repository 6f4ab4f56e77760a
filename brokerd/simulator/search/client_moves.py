"""Moves of a plan's clients: publications, subscriptions, departures and other brokers."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from brokerd.model.predicate import Scalar
from brokerd.simulator.search.move import (
    BrokerSwitch,
    ClientAction,
    MoveContext,
    PlanError,
    PlanScope,
    read_kind,
    write_kind,
)
from brokerd.simulator.world.client_mobility import home_of
from brokerd.wire.attributes import encode_attributes


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


@lru_cache(maxsize=256, typed=True)
def _encode_content(kind: Scalar, price: int) -> bytes:
    return encode_attributes({"kind": kind, "price": price})


def _make_payload(sequence: int, length: int) -> bytes:
    """Return bytes that differ between publications, as far as the length permits."""
    word = (sequence * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8)
    return (word * (length // 8 + 1))[:length]
