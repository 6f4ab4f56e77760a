"""Counters of ges, and their recounted values once all is at rest."""

from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.simulator.checks.recounts import Recount

RECOUNTS = (
    Recount(
        Profiles,
        "places",
        lambda profiles: profiles._place_of,
        lambda profiles, _: {
            subscription: known.place
            for known in profiles.by_origin().values()
            for subscription in known.predicates
        },
    ),
)
