"""The hierarchies, parameters and losses that simulated seeds draw."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Final

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.generate import random_hierarchy
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.parameters import (
    EVERY_NODE,
    INDUCE_ROAM,
    KEEPER_POLICIES,
    READDRESS,
    STAY,
)
from brokerd.protocols.ges.units import is_inside
from brokerd.simulator.checks.marks import (
    JOINED_BESIDE_REMOVAL,
    JOINED_FAILED,
    PARALLEL_LINKS_FAILED,
)
from brokerd.simulator.checks.planning import CLIENT_LIMITS, ProtocolPlanning
from brokerd.units import MILLISECOND_NS

BEFORE_KEEPERS: Final = 200
"""The last seed whose history is older than `keeper_policy`."""
_ROUNDS = 6
"""A unit is missed after one and a half times `purge_ns`, and consequences take as long again."""


class GesPlanning(ProtocolPlanning):
    """See ProtocolPlanning."""

    compounds: ClassVar[Mapping[str, int]] = {
        JOINED_FAILED: 150,
        JOINED_BESIDE_REMOVAL: 100,
        PARALLEL_LINKS_FAILED: 500,
    }
    rare: ClassVar[Mapping[str, tuple[Any, ...]]] = {**CLIENT_LIMITS, "reroute_limit": (0, 1, 16)}

    def topology(self, random: Random) -> Topology:
        """See ProtocolPlanning: up to three levels of small units."""
        brokers, levels = random.randrange(2, 11), random.randrange(1, 4)
        return random_hierarchy(brokers, levels, random.randrange)

    def options(self, seed: int, parameters: Any, *, long: bool, simple: bool) -> Any:
        """See ProtocolPlanning: a broker that does not return is missed within seconds.

        In half of the seeds slow links cost more; only faults make links slow. In half of the
        later seeds parts of clusters take other addresses.
        """
        if long:
            return replace(parameters, keeper_policy=keeper_policy(seed))
        policy = partition_policy(seed, (INDUCE_ROAM, READDRESS))
        choices = purge_choices_ms(policy)
        if seed > BEFORE_KEEPERS:
            policy = Random(f"readdress {seed}").choice((policy, policy, READDRESS))
            choices = (150, 150, 600) if policy == READDRESS else purge_choices_ms(policy)
        purge_ns = Random(f"ges {seed}").choice(choices) * MILLISECOND_NS
        random = Random(f"ges load {seed}")
        slow_link_ns = random.choice((0, 150)) * MILLISECOND_NS
        cost_check_ns = random.choice((40, 80)) * MILLISECOND_NS
        checks = Random(f"slow brokers {seed}").choice((0, 6, 15)) if slow_link_ns else 0
        return replace(
            parameters,
            purge_ns=purge_ns,
            slow_link_ns=slow_link_ns,
            cost_check_ns=cost_check_ns,
            slow_broker_ns=checks * cost_check_ns,
            partition_policy=policy,
            keeper_policy=keeper_policy(seed),
            **hints(seed),
        )

    def forget_after_ns(self, parameters: Any) -> int:
        return int(parameters.purge_ns) * _ROUNDS

    def draw_losses(self, random: Random, topology: Topology) -> Sequence[tuple[str, ...]]:
        """See ProtocolPlanning: gatekeepers first, and both ends of a link between units at once.

        The rest of each unit is connected inside: partitioned units are not tolerated.
        """
        section = topology.restrict_to_kind("hierarchy").section
        assert isinstance(section, Hierarchy), f"{topology.name} is no hierarchy"
        gateways: list[tuple[int, ...]] = [
            link for link in section.links if section.link_level(*link)
        ]
        ends: list[tuple[int, ...]] = [(end,) for link in gateways for end in link]
        anybody: list[tuple[int, ...]] = [(number,) for number in range(len(topology.brokers))]
        lost: list[BrokerNumber] = []
        found: list[tuple[str, ...]] = []
        for choices in (random.choice((gateways, ends)), anybody)[: random.randrange(1, 3)]:
            possible = [
                each
                for each in choices  # one of several may fail already, and is not lost
                if is_whole_without(section, each) and is_whole_without(section, [*lost, *each])
            ]
            if possible:
                chosen = random.choice(possible)
                lost += chosen
                found.append(tuple(topology.brokers[number] for number in chosen))
        return found

    def draw_slow(self, random: Random, topology: Topology, parameters: Any) -> Sequence[str]:
        """See ProtocolPlanning: where slow brokers end, mostly one or two are slow."""
        if not parameters.slow_broker_ns:
            return ()
        return random.sample(topology.brokers, random.choice((0, 1, 1, 2)))

    def newcomers(
        self, random: Random, topology: Topology, lost: Sequence[str]
    ) -> Sequence[tuple[str, tuple[str, ...]]]:
        return draw_newcomers(random, topology, lost)


def hints(seed: int) -> dict[str, Any]:
    """Return the parameters of redirects of clients, which a third of the seeds use."""
    random = Random(f"hints {seed}")
    above, check_ms = random.choice((0, 0, 1)), random.choice((20, 100))
    return {"roam_clients_above": above, "roam_check_ns": check_ms * MILLISECOND_NS}


def keeper_policy(seed: int) -> str:
    """Return the policy of a seed for the brokers that keep profiles.

    Earlier seeds have the histories that they had before there was a choice.
    """
    random = Random(f"keepers {seed}")
    return random.choice(KEEPER_POLICIES) if seed > BEFORE_KEEPERS else EVERY_NODE


def partition_policy(seed: int, policies: Sequence[str]) -> str:
    """Return the policy of a seed for parts of a cluster: "stay" in half of the seeds."""
    random = Random(f"partition policy {seed}")
    return random.choice((*[STAY] * len(policies), *policies))


def purge_choices_ms(policy: str) -> Sequence[int]:
    """Return the values of `purge_ns` that seeds draw, in milliseconds.

    With a policy, brokers that are down or cut off for a moment make clusters partitioned.
    """
    return (600, 2_000) if policy == STAY else (150, 600)


def draw_newcomers(
    random: Random, topology: Topology, lost: Sequence[str]
) -> Sequence[tuple[str, tuple[str, ...]]]:
    """Return, in half of the plans, one or two brokers with links to one or two staying brokers."""
    staying = [name for name in topology.brokers if name not in lost]
    return [
        (f"m{number}", tuple(random.sample(staying, min(len(staying), random.randrange(1, 3)))))
        for number in range(1, 1 + random.choice((0, 0, 1, 2)))
    ]


def is_whole_without(hierarchy: Hierarchy, lost: Collection[BrokerNumber]) -> bool:
    """Return True if at least two brokers are left, and all units of the rest are connected."""
    left = [number for number in range(len(hierarchy.addresses)) if number not in lost]
    if len(left) < 2 or len({*lost}) < len(lost):
        return False
    units = {
        hierarchy.addresses[number][:length] for number in left for length in _lengths(hierarchy)
    }
    return all(_is_connected(hierarchy, left, unit) for unit in sorted(units))


def _lengths(hierarchy: Hierarchy) -> range:
    return range(len(hierarchy.addresses[0]))


def _is_connected(
    hierarchy: Hierarchy, left: Sequence[BrokerNumber], unit: tuple[int, ...]
) -> bool:
    members = [number for number in left if is_inside(hierarchy.addresses[number], unit)]
    reached = {members[0]: None}
    waiting = [members[0]]
    while waiting:
        here = waiting.pop()
        for a, b in hierarchy.links:
            if here in (a, b):
                other = a if here == b else b
                if other in members and other not in reached:
                    reached[other] = None
                    waiting.append(other)
    return len(reached) == len(members)
