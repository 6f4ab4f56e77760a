"""Parameters of ges."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from brokerd.config import MILLISECOND_NS, SECOND_NS, read_section


@dataclass(frozen=True, slots=True, kw_only=True)
class GesParameters:
    """Parameters of ges.

    Attributes:
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is tried again; doubles
            up to the limit.
        purge_ns: after so long without a session a neighbour is not waited for any more, and who
            cannot be reached in any way is taken for gone for ever.
        reroute_limit: how often a publication may leave the way that was decided on for it.
        client_subscriptions: how many subscriptions a client may have; more are refused.
        client_linger_ns: how long a vanished subscriber's subscriptions stay.
    """

    retry_first_ns: int = 500 * MILLISECOND_NS
    retry_limit_ns: int = 2 * SECOND_NS
    purge_ns: int = 30 * SECOND_NS
    reroute_limit: int = 4
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
        """Any of them will do."""

    def warnings(self) -> tuple[str, ...]:
        """None beyond what its document says."""
        return ()
