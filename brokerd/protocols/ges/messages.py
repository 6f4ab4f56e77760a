"""The messages between brokers of a hierarchy."""

from typing import Final

from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.model.message_kind import MessageKind, run_kind
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.overlay.hierarchy import Address
from brokerd.protocols.ges.units import Unit, Version

Entry = tuple[SubscriptionId, Predicate]
DOWN = 0
SYSTEM: Unit = ()
Path = tuple[Unit, ...]
"""Both ends included."""


@record
class Statement:
    """A statement of one end about a connection.

    Attributes:
        low, high: the connected brokers, the smaller number first.
        by: the author of the two.
        version: a later one replaces it.
        low_end, high_end: the two, or their units in the receiver's outline.
        factor: multiplies the cost; DOWN without a connection.
    """

    low: BrokerNumber
    high: BrokerNumber
    by: BrokerNumber
    version: Version
    low_end: Unit
    high_end: Unit
    factor: int


@record
class Target:
    """A destination of a packet, or a gatekeeper that decides on further destinations.

    Attributes:
        level: 0: all interested brokers in `unit`, but `skip`; otherwise a gatekeeper of this
            level in `unit`, which is of this level, decides which siblings receive the packet.
        unit: see there.
        skip: a unit inside that has the packet already; SYSTEM for none.
        frames: the remaining parts of chosen paths, the innermost last, from the place of the
            packet.
        reroutes: the number of abandoned paths.
    """

    level: int
    unit: Unit
    skip: Unit
    frames: tuple[Path, ...]
    reroutes: int


@record
class GraphStated:
    """Connections, as stated by their ends and as seen by the receiver.

    Paper: [GES] §3 (dissemination of connections).
    """

    statements: tuple[Statement, ...]


@record
class ProfileStated:
    """The whole profile of a broker.

    Attributes:
        origin: the broker.
        place: the broker, or the unit around the broker in the receiver's outline.
        version: the latest version of the profile.
        predicates: all predicates.
    """

    origin: BrokerNumber
    place: Unit
    version: Version
    predicates: tuple[Entry, ...]


@record
class ProfileChanged:
    """The change of a profile from the previous version to this version.

    Paper: [GES] §3 (profile changes, with an id per change).
    """

    origin: BrokerNumber
    place: Unit
    version: Version
    added: tuple[Entry, ...]
    removed: tuple[SubscriptionId, ...]


@record
class ProfileReached:
    """A confirmation that every broker on the sender's side has these versions of a profile.

    Attributes:
        after: the confirmed versions are later than this one.
        through: the last confirmed version.
        is_complete: False if the sender's side stopped waiting for a broker, or a broker restarted
            meanwhile: brokers behind may lack the version although they have other paths.
    """

    origin: BrokerNumber
    after: Version
    through: Version
    is_complete: bool


@record
class DutyStated:
    """The level of the unit around the sender whose profiles the sender keeps.

    A neighbour that receives it sends all of these profiles that the sender may lack, and attests
    the units of which they are all.

    Attributes:
        level: 0 for the sender's own clients.
        is_chosen: True if the sender chooses this link for profiles. Of several links between two
            units, profiles use those that one end chooses.
        number: of the statement, in ascending order.

    Paper: [GES] §3 (profiles at gatekeepers).
    """

    level: int
    is_chosen: bool
    number: int


@record
class UnitsAttested:
    """Units of which the sender has sent all profiles.

    Attributes:
        units: brokers, and units in the receiver's outline.
        number: of the receiver's last statement of its duty here.

    Paper: [GES] §3 (a gateway snapshots the profiles of the brokers in its unit).
    """

    units: tuple[Unit, ...]
    number: int


@record
class LoadProbe:
    """A request for an answer, to measure the round trip.

    Paper: [GES] §3 (link costs are updated for overload).
    """


@record
class LoadAnswered:
    """The immediate answer to a probe."""


@record
class ClientsCounted:
    """The number of clients at the sender, accurate to a step.

    Paper: [GES] §1 (induced roaming). Deviates: the paper defines no exchange between brokers.
    """

    clients: int


@record
class AddressStated:
    """The first message of a sender with another address than the topology gives to it.

    Paper: [GES] §4. Deviates: the paper leaves open the state of a partitioned unit.
    """

    address: Address


@record
class AddressTaken:
    """A confirmation of the receiver's address, with the sender's; later messages use both."""

    address: Address


@record
class RoutedPublications:
    """Publications on their route, without acknowledgement.

    Attributes:
        targets: the destinations from the receiver.
        hops: the number of links crossed.
    """

    run: PublicationRun
    targets: tuple[Target, ...]
    hops: int


def route_of(message: RoutedPublications) -> object:
    """Return the fields in which two messages must be equal to be joined."""
    return message.targets, message.hops


KINDS: Final = (
    MessageKind(112, GraphStated),
    MessageKind(113, ProfileStated),
    MessageKind(114, ProfileChanged),
    MessageKind(115, ProfileReached),
    run_kind(116, RoutedPublications, beside=route_of),
    MessageKind(135, LoadProbe),
    MessageKind(136, LoadAnswered),
    MessageKind(137, ClientsCounted),
    MessageKind(138, AddressStated),
    MessageKind(139, AddressTaken),
    MessageKind(140, DutyStated),
    MessageKind(141, UnitsAttested),
)
