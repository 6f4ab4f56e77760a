"""best_effort, as everybody else sees it."""

from brokerd.model.message_kind import MessageKind, of_run
from brokerd.overlay.tree import primary_tree
from brokerd.protocols.best_effort import messages
from brokerd.protocols.best_effort.core import BestEffort
from brokerd.protocols.best_effort.parameters import BestEffortParameters
from brokerd.protocols.definition import CoreContext, Promises, ProtocolDefinition


def _make_core(context: CoreContext) -> BestEffort:
    return BestEffort(
        context.broker,
        primary_tree(context.topology).neighbours(context.broker),
        context.parameters,
        context.decode_attributes,
    )


BEST_EFFORT = ProtocolDefinition(
    name="best_effort",
    kind="tree",
    parameters=BestEffortParameters,
    messages=(
        MessageKind(32, messages.SubscriptionsOffered),
        MessageKind(33, messages.SubscriptionsReached),
        MessageKind(34, messages.SubscriptionsWithdrawn),
        of_run(35, messages.ForwardedPublications),
    ),
    promises=Promises(exactly_once=False, members_may_change=False, bypasses=False),
    keeps_log=lambda parameters: False,
    bypasses_links=lambda parameters: False,
    make_core=_make_core,
    checks="brokerd.protocols.best_effort.checks",
    pack_positions=lambda positions: b"",
    unpack_positions=lambda content: (),
)
