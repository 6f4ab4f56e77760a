"""Parameters of ring_flood."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from brokerd.config import read_section
from brokerd.errors import ConfigError
from brokerd.units import MILLISECOND_NS, SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class RingFloodParameters:
    """Parameters of ring_flood.

    Attributes:
        copies: the number of brokers' disks with a publication before its publisher receives an
            acknowledgement: 1 (the publisher's broker), 2 or 3 (with the neighbours).
        retry_first_ns, retry_limit_ns: wait before a further attempt at an unreachable broker;
            doubles up to the limit.
        client_window: publications a client may have unacknowledged before deliveries wait.
        client_subscriptions: the number of subscriptions per client; more are refused.
        client_linger_ns: the time for which a vanished subscriber's subscriptions are kept.
    """

    copies: int = 2
    retry_first_ns: int = 200 * MILLISECOND_NS
    retry_limit_ns: int = 2 * SECOND_NS
    client_window: int = 16_384
    client_subscriptions: int = 1_000
    client_linger_ns: int = 60 * SECOND_NS

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """See Parameters."""
        parameters: Self = read_section(cls, dict(values), where)
        return parameters

    def check(self, where: str) -> None:
        """See Parameters."""
        if not 1 <= self.copies <= 3:
            raise ConfigError(f"{where}: copies = {self.copies}; a broker has two neighbours: 1-3")

    def warnings(self) -> tuple[str, ...]:
        """See Parameters."""
        if self.copies == 1:
            return ("copies = 1: what is done is lost with the disk of its publisher's broker",)
        return ()
