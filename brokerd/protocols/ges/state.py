"""The state of a broker of a hierarchy, and the facts that its parts report to the core.

A broker keeps one thing on disk: the last number of each of its publishers (`PersistentState`).
Everything else is volatile and is rebuilt from the neighbours after a restart (`VolatileState`).

A part never acts on another part. Its methods return a list of effects and facts, and the core
routes each fact to the part that it concerns, in order.

Paper: [GES] §1 (brokers keep no durable state), §3 (abbreviated system views).
"""

from collections.abc import Mapping, Sized
from dataclasses import asdict, dataclass, field
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Address
from brokerd.protocols.ges.units import Place, Version, unit_text
from brokerd.protocols.interface import Effect, Instant


@dataclass(slots=True)
class Neighbours:
    """The brokers at the other ends of this broker's links.

    Messages about connections and profiles name units as the receiver sees them. So only a
    neighbour that has a session and has acknowledged this broker's address is linked.

    Attributes:
        place: the place of this broker.
        addresses: the present addresses of the neighbours.
        linked: the neighbours that have a session and this broker's address.
        factors: the factors that this broker states for the costs of its connections; 1 if absent.
    """

    place: Place
    addresses: dict[BrokerNumber, Address]
    linked: dict[BrokerNumber, None] = field(default_factory=dict)
    factors: dict[BrokerNumber, int] = field(default_factory=dict)

    def is_in_cluster(self, peer: BrokerNumber) -> bool:
        address = self.addresses.get(peer)
        return address is not None and self.place.outermost_unit_of(address) == address

    def all_linked(self) -> list[BrokerNumber]:
        """Return the linked neighbours, in the order of `addresses`."""
        return [peer for peer in self.addresses if peer in self.linked]


# ---------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class ProfileConfirmation:
    """The end of the wait for confirmations of a version of this broker's own profile.

    Attributes:
        taken_ns: the time since the statement of the version.
        is_complete: True if all brokers confirmed that have had a path since then.
    """

    version: Version
    taken_ns: Instant
    is_complete: bool


@dataclass(frozen=True, slots=True)
class CostChange:
    """A new factor for the cost of the connection to a neighbour."""

    peer: BrokerNumber
    factor: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for which no client is admitted from now on; "" admits clients again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Separation:
    """A part of the cluster, by addresses, that becomes a unit of its own."""

    part: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Relocation:
    """The new address of this broker.

    Attributes:
        is_return: True for the return to the cluster.
    """

    address: Address
    is_return: bool = False


@dataclass(frozen=True, slots=True)
class NeighbourRelocation:
    """The new address of a linked neighbour."""

    peer: BrokerNumber
    address: Address


@dataclass(frozen=True, slots=True)
class NeighbourArrival:
    """A neighbour that has a session and this broker's address."""

    peer: BrokerNumber


Fact = (
    ProfileConfirmation
    | CostChange
    | Refusal
    | Separation
    | Relocation
    | NeighbourRelocation
    | NeighbourArrival
)
Outcome = Effect | Fact
"""An effect for the driver, or a fact for another part."""


# ---------------------------------------------------------------- printable state


@dataclass(frozen=True, slots=True)
class PersistentState:
    """The state on disk: the names of the tables with rows of this broker."""

    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VolatileState:
    """The state in memory, for people.

    Attributes:
        address: the address of this broker.
        linked: the linked neighbours.
        costs: the factors of the connections with raised costs.
        connections: the number of connections behind each edge of the connectivity graph.
        profiles: the number of subscriptions in the profile of each broker.
        unconfirmed: the number of versions of profiles that await confirmations.
        missing: brokers and units without a path, with the number of looks so far.
        is_closed: True while this part of the cluster admits no clients.
    """

    address: str
    linked: tuple[BrokerNumber, ...]
    costs: Mapping[BrokerNumber, int]
    connections: Mapping[str, int]
    profiles: Mapping[BrokerNumber, int]
    unconfirmed: int
    missing: Mapping[str, int]
    is_closed: bool

    def to_mapping(self) -> dict[str, Any]:
        """Return the state with text keys, for JSON."""
        found = asdict(self)
        for key in ("costs", "profiles"):
            found[key] = {str(broker): value for broker, value in found[key].items()}
        return {**found, "linked": list(self.linked)}


def edges_text(
    edges: Mapping[tuple[Address, Address], Sized],
) -> dict[str, int]:
    """Return the number of connections by the text of their edge."""
    return {f"{unit_text(a)} - {unit_text(b)}": len(behind) for (a, b), behind in edges.items()}
