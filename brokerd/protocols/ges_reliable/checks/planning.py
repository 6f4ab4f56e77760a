"""The hierarchies, storages and parameters that simulated seeds draw."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Final

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.generate import random_hierarchy
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.checks.planning import (
    draw_newcomers,
    hints,
    is_whole_without,
    partition_policy,
    purge_choices_ms,
)
from brokerd.protocols.ges.parameters import INDUCE_ROAM
from brokerd.protocols.ges.units import hierarchy_of
from brokerd.protocols.ges_reliable.definition import check_storages
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.simulator.checks.marks import (
    JOINED_BESIDE_REMOVAL,
    JOINED_FAILED,
    PARALLEL_LINKS_FAILED,
    RESTORED_THEN_REMOVED,
)
from brokerd.simulator.checks.planning import CLIENT_LIMITS, ProtocolPlanning
from brokerd.units import MILLISECOND_NS

_ONE_UNIT = 0.4
"""Share of seeds with a single root."""
_FINER = 0.3
"""Share of smaller units that have a storage of their own."""
BEFORE_PATIENCE: Final = 200
"""The last seed whose history is older than fetches that wait without a limit."""
_PATIENT = 0.3
"""Share of the later seeds with such fetches."""
_ROUNDS = 6
"""A unit is missed after one and a half times `purge_ns`, and consequences take as long again."""


class GesReliablePlanning(ProtocolPlanning):
    """See ProtocolPlanning."""

    compounds: ClassVar[Mapping[str, int]] = {
        RESTORED_THEN_REMOVED: 500,
        JOINED_FAILED: 150,
        JOINED_BESIDE_REMOVAL: 100,
        PARALLEL_LINKS_FAILED: 500,
    }
    draws_restored: ClassVar[bool] = True
    rare: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "client_subscriptions": CLIENT_LIMITS["client_subscriptions"],
        "reroute_limit": (0, 1, 16),
    }
    fixed: ClassVar[Mapping[str, str]] = {
        "keeper_policy": "brokers keep no profiles: another value is refused",
        "client_linger_ns": "refused in a topology: storages keep subscriptions",
    }

    def topology(self, random: Random) -> Topology:
        """See ProtocolPlanning: up to three levels of small units, with storages of any levels."""
        brokers, levels = random.randrange(2, 9), random.randrange(1, 3)
        return with_storages(random_hierarchy(brokers, levels, random.randrange), random)

    def options(self, seed: int, parameters: Any, *, long: bool, simple: bool) -> Any:
        """See ProtocolPlanning: answers of a few publications."""
        random = Random(f"ges_reliable {seed}")
        policy = partition_policy(seed, (INDUCE_ROAM,))
        chosen: GesReliableParameters = replace(
            parameters, purge_ns=random.choice(purge_choices_ms(policy)) * MILLISECOND_NS
        )
        is_patient = seed > BEFORE_PATIENCE and Random(f"patient {seed}").random() < _PATIENT
        if long:
            return replace(parameters, fetch_wait_ns=0) if is_patient else parameters
        timeout_ns = random.choice((40, 150)) * MILLISECOND_NS
        fetch_wait_ns = random.choice((50, 200)) * MILLISECOND_NS
        return replace(
            chosen,
            fetch_wait_ns=0 if is_patient else fetch_wait_ns,
            timeout_ns=timeout_ns,
            fetch_publications=random.choice((30, 50, 4_096)),
            home_window=random.choice((64, 256, 16_384)),
            receipt_interval_ns=random.choice((1, 100)) * MILLISECOND_NS,
            held_limit=random.choice((4, 16_384)),
            changes_root=random.random() < 0.9,
            partition_policy=policy,
            **hints(seed),
        )

    def trial(self, random: Random, values: Mapping[str, Any], delta: int) -> Any:
        return super().trial(random, values, delta)

    def forget_after_ns(self, parameters: Any) -> int:
        return int(parameters.purge_ns) * _ROUNDS

    def draw_losses(self, random: Random, topology: Topology) -> Sequence[tuple[str, ...]]:
        """See ProtocolPlanning: gatekeepers first, but no storage; the rest is connected."""
        section = hierarchy_of(topology)
        storages = [broker for broker, _ in section.all_storages]
        gatekeepers = [end for link in section.links if section.link_level(*link) for end in link]
        lost: list[BrokerNumber] = []
        for choices in (gatekeepers, range(len(section.addresses)))[: random.randrange(1, 3)]:
            possible = [
                broker
                for broker in choices
                if broker not in storages and is_whole_without(section, [*lost, broker])
            ]
            if possible:
                lost.append(random.choice(possible))
        return [(topology.brokers[broker],) for broker in lost]

    def roles(self, random: Random, topology: Topology) -> Sequence[tuple[str, str]]:
        """See ProtocolPlanning: storages that are added, of any levels, and some that retire."""
        found: list[tuple[str, str]] = []
        for _ in range(random.choice((0, 0, 1, 2, 4))):
            section = hierarchy_of(topology)
            storages = dict(section.all_storages)
            possible = [
                (name, "retired" if broker in storages else str(level))
                for broker, name in enumerate(topology.brokers)
                for level in range(section.top)
            ]
            random.shuffle(possible)
            for name, role in possible:
                try:
                    changed = topology.with_role(name, role, "plan")
                    check_storages(changed, "plan")
                except ConfigError:
                    continue
                topology = changed
                found.append((name, role))
                break
        return found

    def draw_slow(self, random: Random, topology: Topology, parameters: Any) -> Sequence[str]:
        """See ProtocolPlanning: one broker in a sixth of the seeds."""
        return random.sample(topology.brokers, random.choice((0, 0, 0, 0, 0, 1)))

    def newcomers(
        self, random: Random, topology: Topology, lost: Sequence[str]
    ) -> Sequence[tuple[str, tuple[str, ...]]]:
        return draw_newcomers(random, topology, lost)

    def discovery_ns(self, parameters: Any) -> int:
        """See ProtocolPlanning: unanswered requests are repeated, with doubled waits."""
        chosen: GesReliableParameters = parameters
        return 4 * (chosen.timeout_ns + chosen.fetch_wait_ns + chosen.retry_limit_ns)


def with_storages(topology: Topology, random: Random) -> Topology:
    """Return the same hierarchy, as it is or as a single unit of a system, with storages.

    Every unit below the system has a storage, and any other unit may.
    """
    values = topology.to_mapping()
    section = values["hierarchy"]
    first = random.choice(topology.brokers)
    more = Random(str(section))  # later draws do not depend on the number of storages
    if more.random() < _ONE_UNIT:
        section["addresses"] = {name: f"0.{text}" for name, text in section["addresses"].items()}
    addresses: dict[str, str] = section["addresses"]
    top = addresses[first].count(".")
    section["storages"] = storages = {first: top}
    for level in range(top, -1, -1):
        units: dict[str, list[str]] = {}
        for name, address in addresses.items():
            units.setdefault(address.rsplit(".", level)[0], []).append(name)
        for unit, members in units.items():
            has_one = level == top and unit == addresses[first].rsplit(".", level)[0]
            free = [name for name in members if name not in storages]
            if not has_one and free and (level == top or more.random() < _FINER):
                storages[more.choice(free)] = level
    return Topology.from_mapping(values, topology.name)
