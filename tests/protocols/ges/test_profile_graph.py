"""Tests of the edges of the profile graph, and of the destinations of publications."""

from brokerd.model.identity import BrokerNumber, SourceId, SubscriptionId
from brokerd.model.predicate_text import parse_predicate
from brokerd.overlay.hierarchy import Address
from brokerd.protocols.ges.messages import ProfileStated
from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.helpers.exchange import run_of


def _profiles(*stated: tuple[BrokerNumber, Address, str]) -> Profiles:
    """Return profiles of one subscription each."""
    profiles = Profiles(decode_attribute_table)
    for origin, place, words in stated:
        entry = SubscriptionId(origin, 1, 1), parse_predicate(words)
        profiles.replace(ProfileStated(origin, place, (1, 0), (entry,)))
    return profiles


def test_equal_predicates_share_an_edge_which_counts_them_by_unit() -> None:
    profiles = _profiles((1, (1,), "n = 1"), (2, (1,), "n = 1"), (3, (0, 1), "n = 1"))
    [(predicate, counts)] = profiles.edges().items()
    assert (predicate, counts) == (parse_predicate("n = 1"), {(1,): 2, (0, 1): 1})
    statistics = profiles.statistics()
    assert (statistics["subscriptions"], statistics["profile_edges"]) == (3, 1)


def test_values_of_different_kinds_have_edges_of_their_own() -> None:
    profiles = _profiles((1, (1,), "n = 1"), (2, (1,), "n = true"), (3, (1,), "n = '1'"))
    assert len(profiles.edges()) == 3


def test_a_unit_is_a_destination_until_its_count_is_zero() -> None:
    profiles = _profiles((1, (1,), "n = 1"), (2, (1,), "n = 1"), (3, (0, 1), "n = 1"))
    for origin, units in ((1, [(0, 1), (1,)]), (2, [(0, 1)]), (3, [])):
        profiles.remove(origin)
        assert sorted(unit for counts in profiles.edges().values() for unit in counts) == units


def test_a_publication_has_the_units_and_clients_of_all_matching_edges() -> None:
    profiles = _profiles((1, (1,), "n = 1"), (2, (0, 1), "n > 0"), (3, (2,), "n = 2"))
    for number, words in ((1, "n > 0"), (2, "n = 1"), (3, "n = 3")):
        profiles.set_local(SubscriptionId(0, 1, number), "c", number)
        entry = SubscriptionId(0, 1, number), parse_predicate(words)
        if number == 1:
            profiles.replace(ProfileStated(0, (0, 0), (1, 0), (entry,)))
        else:
            profiles.change(0, (1, number), (entry,), ())
    run = run_of(SourceId(1, 1, 1), 1, encode_attributes({"n": 1}))
    (interest,) = profiles.match(run, 1)
    assert interest.places == ((0, 0), (0, 1), (1,))
    assert interest.clients == {"c": (1, 2)}
