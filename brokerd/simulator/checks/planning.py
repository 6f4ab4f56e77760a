"""How a simulated seed sets a protocol: its parameters, and what of it bears what."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from random import Random
from typing import Any, ClassVar, Final

from brokerd.errors import ConfigError
from brokerd.overlay.topology import TREE, Topology, nearest
from brokerd.protocols.definition import ProtocolDefinition
from brokerd.units import SECOND_NS

RARE: Final = 0.15
"""Share of the seeds that draw a rare value, of each parameter that has some."""

CLIENT_LIMITS: Final[Mapping[str, tuple[Any, ...]]] = {
    "client_subscriptions": (1, 2, 3),
    "client_linger_ns": (SECOND_NS, 3 * SECOND_NS),
}
"""Rare values of the parameters of the client service."""


class ProtocolPlanning:
    """What plans ask of a protocol; as it stands, of one whose parameters are left alone.

    Attributes:
        profiles: by name, the bugs that brokers have with it.
        kept: parameters that decide what a plan means, so that it is cut down without them.
        rare: values that some seeds set in place of the usual ones, by parameter.
        fixed: parameters that no seed draws, with the reason.
    """

    profiles: ClassVar[Mapping[str, frozenset[str]]] = {}
    kept: ClassVar[tuple[str, ...]] = ("client_linger_ns",)
    rare: ClassVar[Mapping[str, tuple[Any, ...]]] = CLIENT_LIMITS
    fixed: ClassVar[Mapping[str, str]] = {}

    def __init__(self, definition: ProtocolDefinition) -> None:
        self._definition = definition
        kind: Any = definition.parameters
        self._names = tuple(item.name for item in fields(kind))

    def topology(self, random: Random) -> Topology:
        """What brokers there are and how they are linked, as a seed draws it.

        Protocols that run on trees may leave it to the plan, which draws some.
        """
        raise ConfigError(
            f"{self._definition.name} runs on kind {self._definition.kind!r}, and nobody draws "
            "such topologies: its planning has no `topology`"
        )

    @property
    def draws_topologies(self) -> bool:
        """Whether it does so itself."""
        return self._definition.kind != TREE

    def tolerated(self, topology: Topology) -> int:
        """How many brokers or links may fail at once without breaking what is promised."""
        return topology.delta if topology.kind == TREE else 1

    def parameters(self, delta: int, values: Mapping[str, Any]) -> Any:
        """The parameters with these values, as far as the protocol has them.

        Args:
            delta: how many failures at once are tolerated; of one that has such a parameter.

        Raises:
            ConfigError: a value that cannot be.
        """
        known = {key: values[key] for key in self._names if key in values}
        if "delta" in self._names:
            known["delta"] = delta
        return self._definition.parameters.from_mapping(known, "core")

    def plain(self, parameters: Any, delta: int) -> Any:
        """The defaults, but for what a plan cannot do without."""
        values = asdict(parameters)
        return self.parameters(delta, {key: values[key] for key in self.kept if key in values})

    def options(self, seed: int, parameters: Any, *, long: bool, simple: bool) -> Any:
        """The parameters with what a seed chooses of the protocol's own.

        Args:
            long: the seed lasts for minutes.
            simple: it keeps to the oldest mix of choices.
        """
        return parameters

    def rare_options(self, seed: int, parameters: Any, *, timed: bool = True) -> Any:
        """Return the parameters with the rare values of a seed.

        Args:
            timed: there is a clock; without one, no client is ever disconnected for long.
        """
        chosen = {}
        for name, values in self.rare.items():
            random = Random(f"rare {name} {seed}")
            is_known = name in self._names and (timed or name != "client_linger_ns")
            if is_known and random.random() < RARE:
                chosen[name] = random.choice(values)
        return replace(parameters, **chosen)

    def waiting_options(self, seed: int, parameters: Any) -> Any:
        """The same, where no link stays broken, so that something may wait for one."""
        return parameters

    def trial(self, random: Random, values: Mapping[str, Any], delta: int) -> Any:
        """The parameters of a world without a clock, which tries events in any order."""
        return self.parameters(delta, values)

    def needed(self, bugs: Iterable[str]) -> Mapping[str, Any]:
        """The parameters without which these bugs do not show."""
        return {}

    def may_wait_for_links(self, parameters: Any) -> bool:
        """Whether something waits for ever for a link that stays broken."""
        return False

    def in_profile(self, parameters: Any, profile: str) -> Any:
        """The parameters, with everything that a profile chooses chosen by this one.

        Raises:
            ConfigError: the protocol has no such profile.
        """
        known = nearest(profile, [*self.profiles])
        raise ConfigError(f"{self._definition.name} has no profile {profile!r}{known}")

    def lost(self, random: Random, topology: Topology) -> Sequence[tuple[str, ...]]:
        """Brokers that die in a plan and never come back, those together that do so at once.

        None, of a protocol that needs all of them back.
        """
        return ()

    def roles(self, random: Random, topology: Topology) -> Sequence[tuple[str, str]]:
        """Brokers that come to be something else in the overlay of a plan, and what, in order."""
        return ()

    def newcomers(
        self, random: Random, topology: Topology, lost: Sequence[str]
    ) -> Sequence[tuple[str, tuple[str, ...]]]:
        """Brokers that join a plan whatever its clients do, and whom each is linked to.

        Args:
            lost: those that die and never come back.
        """
        return ()

    def forgetting_ns(self, parameters: Any) -> int:
        """How long it takes until all have forgotten who does not come back."""
        return 0

    def retry_limit_ns(self, parameters: Any) -> int:
        """The longest wait before an unreachable broker is tried again."""
        return int(getattr(parameters, "retry_limit_ns", 0))

    def discovery_ns(self, parameters: Any) -> int:
        """How long a loss may stay without anybody knowing of it or doing anything about it."""
        return 0

    def saying_ns(self, parameters: Any) -> int:
        """Return how long brokers may keep what they have still to announce; see `still_to_say`."""
        return 0

    def client_window(self, parameters: Any) -> int:
        """How much a client may have unacknowledged before its deliveries wait; 0 for any."""
        return int(getattr(parameters, "client_window", 0))

    def turns(self, parameters: Any, publications: int) -> int:
        """How many messages go one after another until all that was published has had its turn.

        More than none only where so little may be under way at a time that it has to wait.
        """
        return 0

    def counters(self, parameters: Any) -> Mapping[str, int]:
        """What a seed's counters say of its parameters."""
        return {}
