"""Statements that a neighbour forges, with storages that keep publications."""

from tests.protocols.ges.forged_stories import forged_connections, forged_profiles


def test_forged_profiles_are_refused_or_outbid() -> None:
    forged_profiles("ges_reliable")


def test_forged_connections_are_refused_or_outbid() -> None:
    forged_connections("ges_reliable")
