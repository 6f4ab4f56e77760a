"""Parameters of best_effort."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from brokerd.config import read_section
from brokerd.units import MILLISECOND_NS, SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEffortParameters:
    """Parameters of best_effort.

    Attributes:
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is dialled again; doubles
            up to the limit.
        client_subscriptions: greatest number of subscriptions of a client; further ones are
            refused.
        client_linger_ns: duration for which subscriptions of a disconnected subscriber are kept.
    """

    retry_first_ns: int = 500 * MILLISECOND_NS
    retry_limit_ns: int = 2 * SECOND_NS
    client_subscriptions: int = 1_000
    client_linger_ns: int = 60 * SECOND_NS

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """Return the parameters in `values`, with defaults for missing keys.

        Raises:
            ConfigError: an unknown key or a value of the wrong type; names the key in `where`.
        """
        parameters: Self = read_section(cls, dict(values), where)
        return parameters

    def check(self, where: str) -> None:
        """Accept every combination of parameters."""

    def warnings(self) -> tuple[str, ...]:
        return ()
