"""A move of a plan, and the scope of the plan that its line refers to.

A class of moves reads its line, writes its line, and applies the move to a run. For smaller plans a
class also names the brokers that a move needs, and returns the move without a broker.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from brokerd.errors import ConfigError
from brokerd.model.predicate import Scalar
from brokerd.overlay.topology import nearest
from brokerd.protocols.definition import Promises
from brokerd.protocols.registry import definition_of
from brokerd.simulator.world.client_mobility import ClientMobility, home_of
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.faults import Faults
from brokerd.units import SECOND_NS


class PlanError(ConfigError):
    """A plan's text that cannot be read; names the line and the valid words; the user's fault."""


@dataclass(slots=True)
class PlanScope:
    """The protocol, the unit of time and the brokers of a plan, which its lines refer to.

    Attributes:
        adversarial: instants are steps, otherwise seconds.
        brokers: names of the overlay's brokers, in the order of their numbers.
        joining: names of the brokers that join, in the order of the lines.
    """

    protocol: str
    adversarial: bool
    brokers: list[str]
    joining: list[str]

    def read_instant(self, word: str) -> int:
        """Return a step, or the nanoseconds of an instant in seconds."""
        return int(word) if self.adversarial else _read_seconds(word)

    def write_instant(self, when: int) -> str:
        """Return the word of a step, or of an instant in nanoseconds."""
        return str(when) if self.adversarial else _write_seconds(when)

    def client(self, name: str) -> str:
        """Return the name of a client, at a broker of the plan."""
        self.broker(home_of(name))
        return name

    def broker(self, name: str) -> str:
        if name not in self.brokers and name not in self.joining:
            raise PlanError(f"no broker {name!r}{nearest(name, self.brokers)}")
        return name

    @property
    def promises(self) -> Promises:
        """The promises of the plan's protocol."""
        return definition_of(self.protocol).promises

    def read_lane(self, lane: str) -> str:
        """Return a lane with numbers of brokers in place of names."""
        names = [*self.brokers, *self.joining]
        parts = re.split(r"([:>#])", lane)
        return "".join(str(names.index(part)) if part in names else part for part in parts)

    def write_lane(self, lane: str) -> str:
        """Return a lane with names of brokers in place of numbers."""
        names = [*self.brokers, *self.joining]
        return re.sub(r"(?<![^:>])\d+(?![^:>#])", lambda found: names[int(found[0])], lane)


def read_kind(word: str) -> Scalar:
    """Return the kind of a publication: plain letters, otherwise JSON."""
    if word.isalpha() and word not in ("true", "false"):
        return word
    kind: Scalar = json.loads(word)
    return kind


def write_kind(kind: Scalar) -> str:
    """Return the word of a kind, as `read_kind` reads the word."""
    plain = isinstance(kind, str) and kind.isalpha() and kind not in ("true", "false")
    return str(kind) if plain else json.dumps(kind)


def _write_seconds(ns: int) -> str:
    text = f"{ns / SECOND_NS:.9f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def _read_seconds(word: str) -> int:
    found = re.fullmatch(r"(\d+)(?:\.(\d{1,9}))?", word)
    if not found:
        raise PlanError(f"{word!r} is no instant; write seconds such as 0.25")
    return int(found[1]) * SECOND_NS + int((found[2] or "").ljust(9, "0"))


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
    counts: dict[str, int]


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


def client_at_neighbour(client: str, name: str, neighbour: str) -> str:
    """Return the name of a client, at the neighbour if the client was at the broker `name`."""
    return f"{client.partition('-')[0]}-{neighbour}" if home_of(client) == name else client
