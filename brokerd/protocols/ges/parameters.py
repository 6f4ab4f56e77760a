"""Parameters of ges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from brokerd.config import check_least, read_section
from brokerd.errors import ConfigError
from brokerd.units import MILLISECOND_NS, SECOND_NS

STAY: Final = "stay"
INDUCE_ROAM: Final = "induce_roam"
READDRESS: Final = "readdress"

EVERY_NODE: Final = "every_node"
PAPER: Final = "paper"
KEEPER_POLICIES: Final = (EVERY_NODE, PAPER)
"""The policies for the brokers that keep profiles."""


class HintParameters(Protocol):
    """The parameters of redirects of clients."""

    @property
    def roam_clients_above(self) -> int:
        """A broker with more clients redirects some of them; 0: never."""

    @property
    def roam_check_ns(self) -> int:
        """The time between two looks, while anything changes."""

    @property
    def partition_policy(self) -> str:
        """The policy for a partitioned part of a cluster and its clients."""


class SlowParameters(Protocol):
    """The parameters of slow brokers."""

    @property
    def slow_broker_ns(self) -> int:
        """The time after which a broker ends that all its neighbours find slow; 0: never."""


class LoadParameters(SlowParameters, Protocol):
    """The parameters of load measurement."""

    @property
    def slow_link_ns(self) -> int:
        """A longer round trip raises the cost of its link; 0: never."""

    @property
    def cost_check_ns(self) -> int:
        """The time between two checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GesParameters:
    """Parameters of ges.

    Attributes:
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is tried again; doubles
            up to the limit.
        purge_ns: after this time without a session a neighbour is not awaited any more, and an
            unreachable broker counts as failed for ever.
        reroute_limit: how often a publication may leave its chosen route.
        slow_link_ns: the round trip over a link, queues included, above which the link costs more:
            twice as much up to twice as long, then four and eight times; 0: nothing is measured.
        cost_check_ns: the time between checks; two checks in a row raise the cost of a link, three
            lower it.
        slow_broker_ns: a broker ends after all its neighbours have stated the highest cost for
            their links to it for this long; at least six checks, for it takes up to four to see
            that a broker has recovered, and more after repeated recoveries; 0: none does.
        roam_clients_above: a broker with more clients redirects those that arrived last to
            neighbours in its cluster that have fewer; 0: never.
        roam_check_ns: the time between two looks for redirects, while anything changes.
        partition_policy: the treatment of a part of a cluster that does not reach the member with
            the lowest address for `purge_ns`: "stay" does nothing; "induce_roam" redirects its
            clients and refuses new ones; "readdress" makes it a unit of its own until it reaches
            others of the cluster again.
        keeper_policy: the brokers that keep a profile: "paper" keeps it at the gatekeepers that
            decide by it, and at the brokers that link them; "every_node" keeps every profile at
            every broker.
        client_subscriptions: the most subscriptions of a client; more are refused.
        client_linger_ns: how long a vanished subscriber's subscriptions stay.
    """

    retry_first_ns: int = 500 * MILLISECOND_NS
    retry_limit_ns: int = 2 * SECOND_NS
    purge_ns: int = 30 * SECOND_NS
    reroute_limit: int = 4
    slow_link_ns: int = 0
    cost_check_ns: int = 5 * SECOND_NS
    slow_broker_ns: int = 0
    roam_clients_above: int = 0
    roam_check_ns: int = SECOND_NS
    partition_policy: str = STAY
    keeper_policy: str = PAPER
    client_subscriptions: int = 64
    client_linger_ns: int = 30 * SECOND_NS

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """Read the parameters of a topology file.

        Raises:
            ConfigError: an unknown key or a value of the wrong type; names the key, in `where`.
        """
        parameters: Self = read_section(cls, dict(values), where)
        return parameters

    def check(self, where: str) -> None:
        check_least(self, 0, ("slow_link_ns",), where)
        check_least(self, 1, ("cost_check_ns",), where)
        if self.slow_broker_ns and not self.slow_link_ns:
            raise ConfigError(
                f"{where}: slow_broker_ns = {self.slow_broker_ns}: nothing is measured without "
                "slow_link_ns"
            )
        if self.slow_broker_ns and self.slow_broker_ns < 6 * self.cost_check_ns:
            raise ConfigError(
                f"{where}: slow_broker_ns = {self.slow_broker_ns}; 0, or at least six times "
                f"cost_check_ns, {6 * self.cost_check_ns}"
            )
        check_hints(self, where, (STAY, INDUCE_ROAM, READDRESS))
        check_keeper_policy(self.keeper_policy, where)

    def warnings(self) -> tuple[str, ...]:
        found = []
        if self.slow_link_ns:
            found.append(
                f"slow_link_ns = {self.slow_link_ns}: when publications leave a slow link for "
                "another way, those still on it are overtaken and lost"
            )
        if self.slow_broker_ns:
            found.append(
                f"slow_broker_ns = {self.slow_broker_ns}: a broker that its neighbours find slow "
                "for so long ends and is not started again by itself"
            )
        if self.roam_clients_above:
            found.append(
                f"roam_clients_above = {self.roam_clients_above}: a redirected subscriber misses "
                "publications while it moves"
            )
        return (*found, *warn_of_hints(self))


def check_keeper_policy(policy: str, where: str) -> None:
    """Check that there is such a policy for the brokers that keep profiles.

    Raises:
        ConfigError: there is none.
    """
    if policy not in KEEPER_POLICIES:
        known = " or ".join(map(repr, KEEPER_POLICIES))
        raise ConfigError(f"{where}: keeper_policy = {policy!r}; {known}")


def check_hints(parameters: HintParameters, where: str, policies: Sequence[str]) -> None:
    """Check that the parameters of redirects are valid.

    Args:
        policies: the policies for partitioned parts that this protocol has.

    Raises:
        ConfigError: a number is too small, or there is no such policy.
    """
    check_least(parameters, 0, ("roam_clients_above",), where)
    check_least(parameters, 1, ("roam_check_ns",), where)
    if parameters.partition_policy not in policies:
        policy, known = parameters.partition_policy, " or ".join(map(repr, policies))
        raise ConfigError(f"{where}: partition_policy = {policy!r}; {known}")


def warn_of_hints(parameters: HintParameters) -> tuple[str, ...]:
    """Return warnings for a topology's author about a partition policy."""
    if parameters.partition_policy == STAY:
        return ()
    also = {
        INDUCE_ROAM: "take no clients either",
        READDRESS: "are in a unit of their own, and not where the topology has them",
    }[parameters.partition_policy]
    return (
        f'partition_policy = "{parameters.partition_policy}": while the lowest member of a cluster '
        f"is down for long, the others there {also}",
    )
