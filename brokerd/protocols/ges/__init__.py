"""[GES]: a hierarchy of units, of which every broker has an outline.

The names below are all that another protocol may use: a broker of a hierarchy has a `UnitRouter`,
whatever it carries.
"""

from brokerd.protocols.ges.messages import SYSTEM, Target
from brokerd.protocols.ges.parameters import (
    EVERY_NODE,
    INDUCE_ROAM,
    STAY,
    check_hints,
    warn_of_hints,
)
from brokerd.protocols.ges.state import Outcome, ProfileConfirmation, Refusal
from brokerd.protocols.ges.unit_router import MESSAGES, UnitRouter
from brokerd.protocols.ges.units import KIND, hierarchy_from, hierarchy_of

__all__ = [
    "EVERY_NODE",
    "INDUCE_ROAM",
    "KIND",
    "MESSAGES",
    "STAY",
    "SYSTEM",
    "Outcome",
    "ProfileConfirmation",
    "Refusal",
    "Target",
    "UnitRouter",
    "check_hints",
    "hierarchy_from",
    "hierarchy_of",
    "warn_of_hints",
]
