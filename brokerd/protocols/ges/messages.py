"""What brokers of a hierarchy say to each other."""

from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.overlay.hierarchy import Address
from brokerd.protocols.ges.router import Target
from brokerd.protocols.ges.units import Unit
from brokerd.protocols.ges.versions import Version
from brokerd.protocols.ges.view import Statement

Entry = tuple[SubscriptionId, Predicate]


@record
class GraphStated:
    """Connections, as their ends say and as the receiver sees them.

    Paper: [GES] §3 (dissemination of connections).
    """

    statements: tuple[Statement, ...]


@record
class ProfileStated:
    """All that the clients of one broker want.

    Attributes:
        origin: the broker.
        place: it, or the unit that it is in, as far as the receiver is told.
        version: the origin's, of whatever it last was.
        predicates: all of them.
    """

    origin: BrokerNumber
    place: Unit
    version: Version
    predicates: tuple[Entry, ...]


@record
class ProfileChanged:
    """How a profile of the version before becomes that of this one.

    Paper: [GES] §3 (profile changes, each with an id).
    """

    origin: BrokerNumber
    place: Unit
    version: Version
    added: tuple[Entry, ...]
    removed: tuple[SubscriptionId, ...]


@record
class ProfileReached:
    """Every broker on the sender's side has a profile in this version."""

    origin: BrokerNumber
    version: Version


@record
class LoadProbe:
    """The sender wants to know how long an answer takes.

    Paper: [GES] §3 (link costs are updated for overload).
    """


@record
class LoadAnswered:
    """The answer, at once."""


@record
class ClientsCounted:
    """So many clients are at the sender, or were when it last said so, give or take a few.

    Paper: [GES] §1 (induced roaming). Deviates: it does not say how brokers know of each other.
    """

    clients: int


@record
class AddressStated:
    """The sender has another address than the topology gives it; nothing was said before.

    Paper: [GES] §4. Deviates: it does not say what becomes of a unit that is apart.
    """

    address: Address


@record
class AddressTaken:
    """The receiver's address is known, and this is the sender's; all that follows is by both."""

    address: Address


@record
class RoutedPublications:
    """Publications on their way; nobody answers.

    Attributes:
        targets: where they go from the receiver.
        hops: over how many links they have come.
    """

    run: PublicationRun
    targets: tuple[Target, ...]
    hops: int


def route_of(message: RoutedPublications) -> object:
    """What must be equal for two of them to be joined."""
    return message.targets, message.hops
