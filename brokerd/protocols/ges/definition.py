"""ges, as everybody else sees it."""

from brokerd.model.message_kind import MessageKind, of_run
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.reading import linked
from brokerd.protocols.definition import (
    Acknowledgement,
    CoreContext,
    Promises,
    ProtocolDefinition,
)
from brokerd.protocols.ges import messages
from brokerd.protocols.ges.core import Ges
from brokerd.protocols.ges.parameters import GesParameters

KIND = "hierarchy"


def _make_core(context: CoreContext) -> Ges:
    hierarchy = context.topology.overlay(KIND)
    assert isinstance(hierarchy, Hierarchy), f"{context.topology.name} has no hierarchy"
    neighbours = sorted(linked(hierarchy.links, context.broker))
    return Ges(
        context.broker,
        hierarchy.addresses[context.broker],
        {neighbour: hierarchy.addresses[neighbour] for neighbour in neighbours},
        context.parameters,
        context.decode_attributes,
    )


GES = ProtocolDefinition(
    name="ges",
    kind=KIND,
    parameters=GesParameters,
    messages=(
        MessageKind(112, messages.GraphStated),
        MessageKind(113, messages.ProfileStated),
        MessageKind(114, messages.ProfileChanged),
        MessageKind(115, messages.ProfileReached),
        of_run(116, messages.RoutedPublications, beside=messages.route_of),
    ),
    promises=Promises(exactly_once=False, members_may_change=False),
    acknowledgement=lambda parameters: Acknowledgement.HANDED_ON,
    logs=lambda parameters: (),
    bypasses_links=lambda parameters: True,
    title="GES",
    recovery=(
        "Connections are known everywhere, in outline, and publications go around what has failed. "
        "What a broker holds when it dies, and what is sent into a failure, nobody can send again."
    ),
    make_core=_make_core,
    checks="brokerd.protocols.ges.checks",
    pack_positions=lambda positions: b"",
    unpack_positions=lambda content: (),
)
