"""Tests of the edges of the profile graph, and of the destinations of publications."""

from random import Random

import pytest

from brokerd.model.identity import BrokerNumber, SourceId, SubscriptionId
from brokerd.model.predicate import Predicate
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


PLACES: tuple[Address, ...] = ((1,), (2,), (0, 1), (0, 2))
WORDS = ("n = 1", "n > 0", "n = 2", "n < 2", "m exists", "true")
OWN = 0


class PlainProfiles:
    """The same profiles as plain tables, computed anew for each question."""

    def __init__(self) -> None:
        self.place: dict[BrokerNumber, Address] = {}
        self.entries: dict[BrokerNumber, dict[SubscriptionId, str]] = {}
        self.local: dict[SubscriptionId, tuple[str, int]] = {}

    def discard(self, origin: BrokerNumber, subscriptions: list[SubscriptionId]) -> None:
        for each in subscriptions:
            if self.entries[origin].pop(each, None) is not None:
                self.local.pop(each, None)

    def counts(self) -> dict[Predicate, dict[Address, int]]:
        found: dict[Predicate, dict[Address, int]] = {}
        for origin, entries in self.entries.items():
            for words in entries.values():
                counts = found.setdefault(parse_predicate(words), {})
                counts[self.place[origin]] = counts.get(self.place[origin], 0) + 1
        return found

    def interest(self, n: int) -> tuple[tuple[Address, ...], dict[str, tuple[int, ...]]]:
        places: dict[Address, None] = {}
        clients: dict[str, list[int]] = {}
        for origin, entries in self.entries.items():
            for subscription, words in sorted(entries.items()):
                if parse_predicate(words).matches({"n": n}):
                    places[self.place[origin]] = None
                    if subscription in self.local:
                        client, number = self.local[subscription]
                        clients.setdefault(client, []).append(number)
        return tuple(sorted(places)), {name: tuple(those) for name, those in clients.items()}


@pytest.mark.parametrize("seed", range(60))
def test_a_history_of_profiles_has_the_edges_of_plain_tables(seed: int) -> None:
    """Subscriptions are stated again, removed before they exist, and return under another place."""
    random = Random(seed)
    profiles, plain = Profiles(decode_attribute_table), PlainProfiles()
    runs = {n: run_of(SourceId(1, 1, 1), 1, encode_attributes({"n": n})) for n in (0, 1, 2)}

    def drawn(origin: BrokerNumber) -> dict[SubscriptionId, str]:
        subscriptions = [SubscriptionId(origin, 1, number) for number in range(1, 5)]
        chosen = {each: random.choice(WORDS) for each in random.sample(subscriptions, 2)}
        for each in chosen:
            if origin == OWN and each not in plain.entries[OWN]:
                plain.local[each] = random.choice("cd"), each.number
                profiles.set_local(each, *plain.local[each])
        return chosen

    def entries(chosen: dict[SubscriptionId, str]) -> tuple[tuple[SubscriptionId, Predicate], ...]:
        return tuple((each, parse_predicate(words)) for each, words in chosen.items())

    profiles.replace(ProfileStated(OWN, (0, 0), (1, 0), ()))
    plain.place[OWN], plain.entries[OWN] = (0, 0), {}
    for turn in range(30):
        origin = random.randrange(4)
        match random.choice(["state", "change", "change", "remove", "move"]):
            case "state" if origin != OWN:
                chosen, place = drawn(origin), random.choice(PLACES)
                profiles.replace(ProfileStated(origin, place, (1, turn), entries(chosen)))
                plain.place[origin], plain.entries[origin] = place, chosen
            case "change" if origin in plain.place:
                removed = [SubscriptionId(origin, 1, random.randint(1, 5)) for _ in range(2)]
                removed = [*dict.fromkeys(removed)]
                profiles.change(origin, (2, turn), (), removed)
                plain.discard(origin, removed)
                added = drawn(origin)
                profiles.change(origin, (3, turn), entries(added), ())
                plain.entries[origin] = added | plain.entries[origin]
                assert profiles.version(origin) == (3, turn)
            case "remove" if origin != OWN and origin in plain.place:
                profiles.remove(origin)
                del plain.place[origin], plain.entries[origin]
            case "move" if random.random() < 0.4:
                place = random.choice(PLACES)
                profiles.restart(OWN, place)
                plain.place = {OWN: place}
                plain.entries = {OWN: plain.entries[OWN]}
        assert profiles.edges() == plain.counts()
        sizes = {each: len(found) for each, found in plain.entries.items()}
        assert {each: profiles.size(each) for each in profiles.origins()} == sizes
        assert profiles.statistics()["subscriptions"] == sum(sizes.values())
        for n, run in runs.items():
            (interest,) = profiles.match(run, 1)
            assert (interest.places, interest.clients) == plain.interest(n)
    assert {*profiles._local} == {*plain.local}, "nothing is kept of ended subscriptions"
