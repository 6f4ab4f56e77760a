"""Settings of a protocol by a simulated seed: parameters, and tolerated failures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from random import Random
from typing import Any, ClassVar, Final, Protocol

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.overlay.topology import TREE, Topology, nearest
from brokerd.protocols.definition import ProtocolDefinition
from brokerd.units import SECOND_NS

RARE: Final = 0.15
"""Share of the seeds that draw a rare value, for each parameter with rare values."""

CLIENT_LIMITS: Final[Mapping[str, tuple[Any, ...]]] = {
    "client_subscriptions": (1, 2, 3),
    "client_linger_ns": (SECOND_NS, 3 * SECOND_NS),
}
"""Rare values of the parameters of the client service."""


class DiskHolder(Protocol):
    """A broker with its disk, alive or not."""

    @property
    def number(self) -> BrokerNumber: ...

    @property
    def lineage(self) -> int: ...

    def rows_of(self, table: str) -> Mapping[str, Any]: ...

    def records_of(self, log: str) -> tuple[int, Sequence[bytes]]: ...


class ProtocolPlanning:
    """The interface of plans to a protocol; the base class leaves the parameters unchanged.

    Attributes:
        profiles: named bugs of all brokers, by profile.
        kept: parameters that determine the meaning of a plan, so that shrinking keeps them.
        rare: values that some seeds set in place of the usual values, by parameter.
        fixed: parameters that no seed draws, with the reason.
        compounds: compound faults that a swarm must reach, each once in a number of seeds; see
            `checks.marks`.
        draws_restored: some plans restore a broker from an older copy of its disk.
        stores_elsewhere: a publisher may leave before the decommission of its broker, because other
            brokers have its acknowledged publications.
        waits_for_publishers: a restarted broker starts no subscription while a publisher is absent
            that its disk names, until the publisher expires.
    """

    profiles: ClassVar[Mapping[str, frozenset[str]]] = {}
    kept: ClassVar[tuple[str, ...]] = ("client_linger_ns",)
    rare: ClassVar[Mapping[str, tuple[Any, ...]]] = CLIENT_LIMITS
    fixed: ClassVar[Mapping[str, str]] = {}
    compounds: ClassVar[Mapping[str, int]] = {}
    draws_restored: ClassVar[bool] = False
    stores_elsewhere: ClassVar[bool] = False
    waits_for_publishers: ClassVar[bool] = False

    def __init__(self, definition: ProtocolDefinition) -> None:
        self._definition = definition
        kind: Any = definition.parameters
        self._names = tuple(item.name for item in fields(kind))

    def topology(self, random: Random) -> Topology:
        """Return the brokers and links that a seed draws.

        Protocols on trees may leave the topology to the plan, which draws trees.
        """
        raise ConfigError(
            f"{self._definition.name} runs on kind {self._definition.kind!r}, and no "
            "topologies of this kind are drawn: its planning has no `topology`"
        )

    @property
    def draws_topologies(self) -> bool:
        """True if the protocol draws its own topologies."""
        return self._definition.kind != TREE

    def count_tolerated(self, topology: Topology) -> int:
        """Return the number of simultaneous failures that break no promise."""
        return topology.delta if topology.kind == TREE else 1

    def parameters(self, delta: int, values: Mapping[str, Any]) -> Any:
        """Return the parameters with these values, limited to names of the protocol's parameters.

        Args:
            delta: number of tolerated simultaneous failures, for a protocol with this parameter.

        Raises:
            ConfigError: a value is invalid.
        """
        known = {key: values[key] for key in self._names if key in values}
        known.update(dict.fromkeys(self._definition.topology_parameters, delta))
        return self._definition.parameters.from_mapping(known, "core")

    def plain(self, parameters: Any, delta: int) -> Any:
        """Return the default parameters, except the values that a plan needs."""
        values = asdict(parameters)
        return self.parameters(delta, {key: values[key] for key in self.kept if key in values})

    def options(self, seed: int, parameters: Any, *, long: bool, simple: bool) -> Any:
        """Return the parameters with the protocol's own choices for a seed.

        Args:
            long: the seed lasts for minutes.
            simple: the seed keeps to the oldest mix of choices.
        """
        return parameters

    def topology_options(self, seed: int, parameters: Any, topology: Topology) -> Any:
        """Return the parameters with the choices of a seed that its topology bounds."""
        return parameters

    def rare_options(self, seed: int, parameters: Any, *, timed: bool = True) -> Any:
        """Return the parameters with the rare values of a seed.

        Args:
            timed: the seed has a clock; without a clock, no client is ever disconnected for long.
        """
        chosen = {}
        for name, values in self.rare.items():
            random = Random(f"rare {name} {seed}")
            is_known = name in self._names and (timed or name != "client_linger_ns")
            if is_known and random.random() < RARE:
                chosen[name] = random.choice(values)
        return replace(parameters, **chosen)

    def wait_options(self, seed: int, parameters: Any) -> Any:
        """Return the parameters for seeds that may wait for links: no link stays broken."""
        return parameters

    def trial(self, random: Random, values: Mapping[str, Any], delta: int) -> Any:
        """Return the parameters of a world without a clock, which tries events in any order."""
        return self.parameters(delta, values)

    def required_parameters(self, bugs: Iterable[str]) -> Mapping[str, Any]:
        """Return the parameters without which these bugs have no effect."""
        return {}

    def can_wait_for_links(self, parameters: Any) -> bool:
        """Return True if the protocol waits for ever for a link that stays broken."""
        return False

    def in_profile(self, parameters: Any, profile: str) -> Any:
        """Return the parameters with all choices of a profile.

        Raises:
            ConfigError: the protocol has no such profile.
        """
        known = nearest(profile, [*self.profiles])
        raise ConfigError(f"{self._definition.name} has no profile {profile!r}{known}")

    def policies(self, random: Random) -> Sequence[RetentionPolicy | None]:
        """Return policies of early release that a plan sets, None for the policy of its parameters.

        A protocol with fixed bounds returns none.
        """
        return ()

    def can_restore(
        self,
        topology: Topology,
        parameters: Any,
        broker: BrokerNumber,
        brokers: Sequence[DiskHolder],
    ) -> bool:
        """Return True if the disks of brokers have the state that a broker has lost."""
        return False

    def draw_losses(self, random: Random, topology: Topology) -> Sequence[tuple[str, ...]]:
        """Return the brokers that are lost in a plan, grouped by simultaneous losses.

        A protocol that needs all brokers back returns none.
        """
        return ()

    def draw_slow(self, random: Random, topology: Topology, parameters: Any) -> Sequence[str]:
        """Return the brokers that are slow for a long time in a plan, over all their links."""
        return ()

    def roles(self, random: Random, topology: Topology) -> Sequence[tuple[str, str]]:
        """Return the brokers that change their role in a plan, with the role, in order."""
        return ()

    def newcomers(
        self, random: Random, topology: Topology, lost: Sequence[str]
    ) -> Sequence[tuple[str, tuple[str, ...]]]:
        """Return the brokers that join a plan for any clients, with their neighbours.

        Args:
            lost: brokers that are lost.
        """
        return ()

    def forget_after_ns(self, parameters: Any) -> int:
        """Return the time until all brokers have forgotten a lost broker, in nanoseconds."""
        return 0

    def retry_limit_ns(self, parameters: Any) -> int:
        """Return the longest wait before an unreachable broker is retried, in nanoseconds."""
        return int(getattr(parameters, "retry_limit_ns", 0))

    def discovery_ns(self, parameters: Any) -> int:
        """Return the longest time without detection or repair of a loss, in nanoseconds."""
        return 0

    def announce_within_ns(self, parameters: Any) -> int:
        """Return the longest delay of announcements in nanoseconds; see `list_pending`."""
        return 0

    def client_window(self, parameters: Any) -> int:
        """Return the limit of a client's unacknowledged deliveries; 0 for none."""
        return int(getattr(parameters, "client_window", 0))

    def turns(self, parameters: Any, publications: int) -> int:
        """Return the number of sequential messages until all publications have been sent.

        The number is positive only if so few messages may be in flight that publications wait.
        """
        return 0

    def counters(self, parameters: Any) -> Mapping[str, int]:
        """Return the counters that describe the parameters of a seed."""
        return {}
