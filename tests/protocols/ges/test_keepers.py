"""Duties of brokers, compared with a model that has the whole hierarchy without outlines."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from random import Random
from statistics import fmean
from typing import Any

import pytest

from bench.papers.ges.scale_experiments import (
    ProfileBrokers,
    count_kept,
    deciding,
    inner_brokers,
    section_of,
)
from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.generate import hierarchy, random_hierarchy
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.routes import Link
from brokerd.protocols.ges.checks import duties as twin
from brokerd.protocols.ges.checks.duties import outline
from brokerd.protocols.ges.connectivity_graph import GraphView, Paths
from brokerd.protocols.ges.keepers import Keepers, find_duties
from brokerd.protocols.ges.messages import DutyStated, UnitsAttested
from brokerd.protocols.ges.parameters import EVERY_NODE, PAPER, GesParameters
from brokerd.protocols.ges.state import Neighbours
from brokerd.protocols.ges.units import Place, is_inside
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters

SEEDS = range(60)


def _drawn(seed: int) -> tuple[dict[BrokerNumber, Address], list[Link]]:
    """Return the addresses and sorted links of a random hierarchy."""
    random = Random(seed)
    section = section_of(random_hierarchy(random.randrange(2, 24), 1 + seed % 4, random.randrange))
    links = sorted((min(link), max(link)) for link in section.links)
    return dict(enumerate(section.addresses)), links


def _keepers_of(
    addresses: Mapping[BrokerNumber, Address],
    duties: Mapping[BrokerNumber, int],
    origin: BrokerNumber,
) -> set[BrokerNumber]:
    return {
        broker
        for broker, address in addresses.items()
        if is_inside(addresses[origin], address[: len(address) - duties[broker]])
    }


def _reached(start: BrokerNumber, links: Collection[Link], among: set[BrokerNumber]) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        for link in links:
            if here in link:
                other = link[1] if here == link[0] else link[0]
                if other in among and other not in found:
                    found.add(other)
                    waiting.append(other)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_broker_of_a_cluster_finds_the_duties_that_the_whole_system_requires(
    seed: int,
) -> None:
    """The result holds even while a tenth of the links is down."""
    addresses, links = _drawn(seed)
    random = Random(f"down {seed}")
    up = {link: 1 for link in links if random.random() < 0.9}
    required = twin.find_duties(addresses, up)
    for broker, address in addresses.items():
        found = find_duties(Place(address), outline(addresses, up, broker))
        members = [each for each in addresses if addresses[each][:-1] == address[:-1]]
        assert {each: found.of_cluster.get(addresses[each], 0) for each in members} == {
            each: required[each] for each in members
        }
        assert all(
            min(required[end] for end in link) >= duty for link, duty in found.of_links.items()
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_brokers_that_keep_a_profile_are_connected_and_all_that_decide_are_among_them(
    seed: int,
) -> None:
    """Between two units only the lowest link is used."""
    addresses, links = _drawn(seed)
    duties = twin.find_duties(addresses, links)
    lowest: dict[frozenset[Address], Link] = {}
    for a, b in links:
        length = next(n for n, pair in enumerate(zip(addresses[a], addresses[b], strict=True))
                      if pair[0] != pair[1])  # fmt: skip
        sides = frozenset((addresses[a][: length + 1], addresses[b][: length + 1]))
        lowest.setdefault(sides, (a, b))
    for origin, address in addresses.items():
        keepers = _keepers_of(addresses, duties, origin)
        assert _reached(origin, lowest.values(), keepers) == keepers
        for a, b in links:
            level = Place(address).link_level(addresses[a], addresses[b])
            for end in (a, b) if level else ():
                if is_inside(addresses[end], address[: len(address) - level - 1]):
                    assert end in keepers


def test_most_brokers_keep_their_own_profile_only() -> None:
    section = section_of(hierarchy(80, 8))
    duties = twin.find_duties(dict(enumerate(section.addresses)), section.links)
    assert sum(duty == 0 for duty in duties.values()) == 60
    assert sum(duty == 3 for duty in duties.values()) == 6


@pytest.mark.parametrize("brokers, most", [(20, 16), (80, 60), (160, 75)])
def test_a_change_costs_two_messages_for_each_broker_that_keeps_the_profile_and_a_few_more(
    brokers: int, most: int
) -> None:
    section: Hierarchy = section_of(hierarchy(brokers, 8))
    paper, flooding = (ProfileBrokers(section, policy) for policy in (PAPER, EVERY_NODE))
    for origin in range(0, brokers, brokers // 5):
        cost = paper.cost_of_change(origin)
        assert deciding(section, origin) <= cost.keepers
        assert 2 * (cost.keepers - 1) <= cost.messages + cost.answers <= most
    assert flooding.cost_of_change(0).keepers == brokers


def test_messages_and_kept_profiles_grow_with_at_most_the_root_of_the_number_of_brokers() -> None:
    messages, kept = [], []
    for brokers in (40, 160):
        section = section_of(hierarchy(brokers, 8))
        paper = ProfileBrokers(section, PAPER)
        costs = [paper.cost_of_change(origin) for origin in range(0, brokers, brokers // 4)]
        messages.append(fmean(cost.messages + cost.answers for cost in costs))
        counts = count_kept(section)
        kept.append(fmean(counts.values()))
        assert max(inner_brokers(section, counts)) <= 8
    assert messages[1] <= messages[0] * 4**0.5
    assert kept[1] <= kept[0] * 4**0.5


# ------------------------------------------------------------ bad input


def _keepers(policy: str) -> Keepers:
    place = Place((0, 0))
    view = GraphView(0, place)
    near = Neighbours(place, {1: (0, 1)}, {1: None})
    return Keepers(0, near, view, Paths(place, view), policy)


@pytest.mark.parametrize("message", [DutyStated(1, True, 1), UnitsAttested(((0, 1),), 1)])
def test_duties_and_attestations_are_refused_where_every_broker_keeps_every_profile(
    message: DutyStated | UnitsAttested,
) -> None:
    keepers = _keepers(EVERY_NODE)
    handlers: dict[type, Callable[[int, Any], object]] = {
        DutyStated: keepers.on_stated,
        UnitsAttested: keepers.on_attested,
    }
    with pytest.raises(RemoteProtocolError, match="every broker keeps every profile"):
        handlers[type(message)](1, message)


@pytest.mark.parametrize("message", [DutyStated(-1, True, 1), DutyStated(3, True, 1)])
def test_a_duty_for_a_level_that_does_not_exist_is_refused(message: DutyStated) -> None:
    with pytest.raises(RemoteProtocolError, match="no such level"):
        _keepers(PAPER).on_stated(1, message)


def test_an_attestation_of_an_impossible_unit_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="no unit of this hierarchy"):
        _keepers(PAPER).on_attested(1, UnitsAttested(((0, 0, 0),), 1))


def test_a_neighbour_cannot_attest_a_unit_that_is_not_kept_here_or_that_this_broker_is_in() -> None:
    keepers = _keepers(PAPER)
    keepers.on_attested(1, UnitsAttested(((0,), (0, 1), (1,)), 1))
    assert not keepers.is_complete((0, 1))
    assert not keepers.is_complete((1,))


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    parameters = replace(GesParameters(), keeper_policy="gatekeepers")
    with pytest.raises(ConfigError, match="'every_node' or 'paper'"):
        parameters.check("t")


def test_a_protocol_whose_storages_keep_subscriptions_refuses_gatekeepers_of_profiles() -> None:
    parameters = replace(GesReliableParameters(), keeper_policy=PAPER)
    with pytest.raises(ConfigError, match="storages keep the subscriptions"):
        parameters.check("t")
