"""Parameters of ges_reliable."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from brokerd.config import check_least, read_section
from brokerd.errors import ConfigError
from brokerd.protocols.ges import EVERY_NODE, INDUCE_ROAM, STAY, check_hints, warn_of_hints
from brokerd.units import MILLISECOND_NS, SECOND_NS

_AT_LEAST_ONE = ("timeout_ns", "fetch_publications", "home_window", "held_limit")

_KEPT_NS = 100 * 365 * 24 * 3600 * SECOND_NS
"""For ever, as the time that a client may be disconnected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GesReliableParameters:
    """Parameters of ges_reliable.

    Attributes:
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is tried again; doubles
            up to the limit.
        purge_ns: after this time without a session a neighbour is not awaited any more, and an
            unreachable broker counts as failed for ever.
        reroute_limit: how often a message may leave its chosen route.
        timeout_ns: the wait for a storage's answer before a request is repeated; doubles up to
            `retry_limit_ns`.
        fetch_wait_ns: how long a storage may wait for publications before it answers a fetch; 0:
            until there are some, so that nothing is sent while nothing happens.
        fetch_publications: the most publications in an answer to a fetch.
        home_window: publications that the clients of a broker may have unacknowledged before it
            stops fetching.
        receipt_interval_ns: how long a storage may lack acknowledgements of clients.
        held_limit: publications of a publisher that a storage keeps while an earlier one is
            missing; more are sent again.
        changes_root: a subscription moves to the storages of another root with its client; else it
            stays with those at which it began.
        roam_clients_above: a broker with more clients redirects those that arrived last to
            neighbours in its cluster that have fewer; 0: never.
        roam_check_ns: the time between two looks for redirects, while anything changes.
        partition_policy: the treatment of a part of a cluster that does not reach the member with
            the lowest address for `purge_ns`: "stay" does nothing; "induce_roam" redirects its
            clients and refuses new ones.
        keeper_policy: only "every_node": storages keep subscriptions, and brokers no profiles.
        client_window: publications a client may have unacknowledged before deliveries wait.
        client_subscriptions: the most subscriptions of a client; more are refused.
        client_linger_ns: a topology that sets it is refused: storages keep subscriptions until
            they are ended.
    """

    retry_first_ns: int = 500 * MILLISECOND_NS
    retry_limit_ns: int = 2 * SECOND_NS
    purge_ns: int = 30 * SECOND_NS
    reroute_limit: int = 4
    timeout_ns: int = 250 * MILLISECOND_NS
    fetch_wait_ns: int = 500 * MILLISECOND_NS
    fetch_publications: int = 4_096
    home_window: int = 16_384
    receipt_interval_ns: int = 100 * MILLISECOND_NS
    held_limit: int = 16_384
    changes_root: bool = True
    roam_clients_above: int = 0
    roam_check_ns: int = SECOND_NS
    partition_policy: str = STAY
    keeper_policy: str = EVERY_NODE
    client_window: int = 16_384
    client_subscriptions: int = 1_000
    client_linger_ns: int = _KEPT_NS

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        parameters: Self = read_section(cls, dict(values), where)
        return parameters

    def check(self, where: str) -> None:
        check_least(self, 1, _AT_LEAST_ONE, where)
        check_least(self, 0, ("fetch_wait_ns",), where)
        check_hints(self, where, (STAY, INDUCE_ROAM))
        if self.keeper_policy != EVERY_NODE:
            raise ConfigError(
                f"{where}: keeper_policy = {self.keeper_policy!r}; only {EVERY_NODE!r}: storages "
                "keep the subscriptions of this protocol, and brokers keep no profiles"
            )

    def warnings(self) -> tuple[str, ...]:
        return warn_of_hints(self)
