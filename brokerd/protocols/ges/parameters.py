"""Parameters of ges."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from brokerd.config import MILLISECOND_NS, SECOND_NS, read_section
from brokerd.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GesParameters:
    """Parameters of ges.

    Attributes:
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is tried again; doubles
            up to the limit.
        purge_ns: after so long without a session a neighbour is not waited for any more, and who
            cannot be reached in any way is taken for gone for ever.
        reroute_limit: how often a publication may leave the way that was decided on for it.
        slow_link_ns: what a round trip over a link may take, queues included, before the link costs
            more: twice as much up to twice as long, then four and eight times; 0: whatever it
            takes, nothing is measured.
        cost_check_ns: how often it is checked; two checks in a row raise what a link costs, three
            lower it.
        client_subscriptions: how many subscriptions a client may have; more are refused.
        client_linger_ns: how long a vanished subscriber's subscriptions stay.
    """

    retry_first_ns: int = 500 * MILLISECOND_NS
    retry_limit_ns: int = 2 * SECOND_NS
    purge_ns: int = 30 * SECOND_NS
    reroute_limit: int = 4
    slow_link_ns: int = 0
    cost_check_ns: int = 5 * SECOND_NS
    client_subscriptions: int = 64
    client_linger_ns: int = 30 * SECOND_NS

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """Read the parameters of a topology file.

        Raises:
            ConfigError: an unknown key or a value of the wrong type; says which, in `where`.
        """
        parameters: Self = read_section(cls, dict(values), where)
        return parameters

    def check(self, where: str) -> None:
        """See Parameters."""
        if self.slow_link_ns < 0:
            raise ConfigError(f"{where}: slow_link_ns = {self.slow_link_ns}; at least 0")
        if self.cost_check_ns < 1:
            raise ConfigError(f"{where}: cost_check_ns = {self.cost_check_ns}; at least 1")

    def warnings(self) -> tuple[str, ...]:
        """See Parameters."""
        if not self.slow_link_ns:
            return ()
        return (
            f"slow_link_ns = {self.slow_link_ns}: when publications leave a slow link for another "
            "way, those still on it are overtaken and lost",
        )
