"""Counters of ges, and their recounted values once all is at rest."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.simulator.checks.recounts import Recount


def _count(profiles: Profiles, _: Any) -> Mapping[Any, Mapping[Any, int]]:
    """Return the number of equal predicates in each unit, from the profiles themselves."""
    found: dict[Any, Counter[Any]] = {}
    for known in profiles.by_origin().values():
        for predicate in known.predicates.values():
            found.setdefault(predicate, Counter())[known.place] += 1
    return found


RECOUNTS = (Recount(Profiles, "edges", lambda profiles: profiles.edges(), _count),)
