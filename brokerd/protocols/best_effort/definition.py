"""Definition of best_effort."""

from brokerd.overlay.outage import find_reached_in_tree
from brokerd.overlay.routes import FailedElements
from brokerd.overlay.topology import Topology
from brokerd.protocols.best_effort.messages import KINDS
from brokerd.protocols.best_effort.parameters import BestEffortParameters
from brokerd.protocols.definition import Acknowledgement, Excess, Promises, ProtocolDefinition


def _excess(
    topology: Topology, parameters: BestEffortParameters, lost: FailedElements
) -> Excess | None:
    """Return the first lost broker: best_effort tolerates no loss of a broker.

    The fault bound of a schedule is no less than for other protocols on the tree, so that one
    schedule runs with all protocols.
    """
    if not lost.brokers:
        return None
    return Excess(lost.brokers[:1], "and best_effort routes around no broker")


BEST_EFFORT = ProtocolDefinition(
    name="best_effort",
    kind="tree",
    parameters=BestEffortParameters,
    messages=KINDS,
    promises=Promises(exactly_once=False, members_may_change=False),
    acknowledgement=lambda parameters: Acknowledgement.HANDED_ON,
    logs=lambda parameters: (),
    bypasses_links=lambda parameters: False,
    title="best effort",
    recovery=(
        "Brokers forward publications and store none. Publications at a failed broker or on a "
        "failed link cannot be sent again."
    ),
    excess=_excess,
    fault_bound=lambda topology, parameters: topology.delta,
    reaches=lambda topology, parameters, outage: find_reached_in_tree(topology, outage, radius=1),
    keeps_loss=lambda topology, parameters, broker: "",
    core="brokerd.protocols.best_effort.core",
    checks="brokerd.protocols.best_effort.checks",
    pack_positions=lambda positions: b"",
    unpack_positions=lambda content: (),
)
