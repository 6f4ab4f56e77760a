"""Parameters of ges_reliable."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from brokerd.config import read_section
from brokerd.errors import ConfigError
from brokerd.protocols.ges.parameters import INDUCE_ROAM, STAY, check_hints, warned_of_hints
from brokerd.units import MILLISECOND_NS, SECOND_NS

_AT_LEAST_ONE = ("timeout_ns", "fetch_wait_ns", "fetch_publications", "home_window", "held_limit")

_KEPT_NS = 100 * 365 * 24 * 3600 * SECOND_NS
"""For ever, for whoever asks how long a client may be away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GesReliableParameters:
    """Parameters of ges_reliable.

    Attributes:
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is tried again; doubles
            up to the limit.
        purge_ns: after so long without a session a neighbour is not waited for any more, and who
            cannot be reached in any way is taken for gone for ever.
        reroute_limit: how often what is sent may leave the way that was decided on for it.
        timeout_ns: how long a storage's answer is waited for before it is asked again; doubles up
            to `retry_limit_ns`.
        fetch_wait_ns: how long a storage may wait for something to answer a fetch with.
        fetch_publications: at most, in one answer to a fetch.
        home_window: publications with which clients of a broker may not be done before it
            fetches no more.
        receipt_interval_ns: how long a storage may not know what clients are done with.
        held_limit: publications of one publisher that a storage keeps while one before them is
            missing; more are sent again.
        changes_root: a subscription goes on at the storages of another root when its client comes
            to that one's unit; else it stays with those that it began at.
        roam_clients_above: with more clients than this a broker tells those that came last to go
            to neighbours in its cluster that have fewer; 0: it never does.
        roam_check_ns: how often it looks whether it should, while anything changes.
        partition_policy: what clients are told at a part of a cluster that does not reach the
            member with the lowest address, for `purge_ns`: nothing with "stay"; with "induce_roam"
            to go elsewhere, and new ones are refused.
        client_window: publications a client may have unacknowledged before deliveries wait.
        client_subscriptions: how many subscriptions a client may have; more are refused.
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
    client_window: int = 16_384
    client_subscriptions: int = 1_000
    client_linger_ns: int = _KEPT_NS

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """See Parameters."""
        parameters: Self = read_section(cls, dict(values), where)
        return parameters

    def check(self, where: str) -> None:
        """See Parameters."""
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{where}: {name} = {getattr(self, name)}; at least 1")
        check_hints(self, where, (STAY, INDUCE_ROAM))

    def warnings(self) -> tuple[str, ...]:
        """See Parameters."""
        return warned_of_hints(self)
