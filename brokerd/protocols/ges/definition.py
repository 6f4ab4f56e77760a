"""The definition of ges for the registry of protocols."""

from brokerd.protocols.definition import Acknowledgement, Promises, ProtocolDefinition
from brokerd.protocols.ges.messages import KINDS
from brokerd.protocols.ges.parameters import GesParameters
from brokerd.protocols.ges.units import KIND

GES = ProtocolDefinition(
    name="ges",
    kind=KIND,
    parameters=GesParameters,
    messages=KINDS,
    promises=Promises(exactly_once=False, members_may_change=True),
    acknowledgement=lambda parameters: Acknowledgement.HANDED_ON,
    logs=lambda parameters: (),
    bypasses_links=lambda parameters: True,
    title="GES",
    recovery=(
        "All brokers have the connections in outline, and publications take routes around "
        "failures. Publications at a failed broker or on a failed link cannot be sent again."
    ),
    keeps_loss=lambda topology, parameters, broker: "",
    core="brokerd.protocols.ges.core",
    checks="brokerd.protocols.ges.checks",
    pack_positions=lambda positions: b"",
    unpack_positions=lambda content: (),
)
