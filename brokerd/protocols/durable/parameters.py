"""The parameters of durable in a topology."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from brokerd.config import check_least
from brokerd.errors import ConfigError
from brokerd.model.retention_policy import RetentionPolicy, parse_policies
from brokerd.protocols.gryphon import GryphonParameters
from brokerd.units import MILLISECOND_NS, SECOND_NS

LEAST_LEASE_NS: Final = SECOND_NS
"""A hold is renewed after a fifth of its lease, over all links to its pubend."""

_DAY_NS: Final = 24 * 3600 * SECOND_NS
_LINGER_NS: Final = 30 * _DAY_NS
_AT_LEAST_ONE: Final = (
    *("commit_interval_ns", "silence_interval_ns", "catchup_batch", "catchup_window"),
    *("catchup_watch_ns", "live_limit", "fetched_limit_bytes", "token_lanes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableParameters(GryphonParameters):
    """The behaviour of brokers; all brokers of a topology have the same.

    Attributes:
        filters: whether brokers withhold events that no subscriber below wants, away or not. A
            subscription then starts when all pubends have its predicate. Brokers request silence
            by `delay_curiosity_ns`, which bounds the delay of a release, and no broker with clients
            can accept a loss of its state.
        client_linger_ns: how long a subscriber may be away before its subscriptions end.
        commit_interval_ns: the least time between commits of deliveries and acknowledgements.
        silence_interval_ns: the longest time without a message about a stream that progresses.
        max_retain_ns: older events may be lost to subscribers that are away, or catch up, without
            their acknowledgement; 0: none ever are.
        max_retain_bytes: so may events of a pubend whose newer events have as many bytes, payload
            and overhead; 0: none may.
        retention: policies of pubends, in place of both bounds: `0:age=60s,bytes=1MB;3:never` for
            the first and the fourth pubend of each broker.
        release_grace_ns: the least time after its start in which a pubend loses nothing for these
            reasons; the age of the pubend's policy if the age is longer.
        catchup_batch: the most unacknowledged events of a subscription in catch-up before fetching
            stops, and the size of a fetch.
        catchup_window: the most events of a pubend that all subscriptions in catch-up at a broker
            may have requested together.
        catchup_watch_ns: the time in which a subscription in catch-up must approach the others,
            before a record is made.
        token_lanes: the most concurrent transactions of token commits; each has the subscriptions
            of one remainder of their number.
        token_batch: the most subscribers in a transaction; 0: all that wait.
        hold_lease_ns: how long a pubend keeps the events that a moved subscription lacks while its
            new broker does not renew the hold. By default `client_linger_ns`, and one second at
            least. A lease that is shorter than this or than a day may lose events to gaps.
        live_limit: the most unacknowledged events of a subscription before it is left to catch up.
        fetched_limit_bytes: the size of the cache of fetched events.
        passed_limit_bytes: the size of the store of events that have passed a broker and that
            subscribers may still request; 0: no store, so publishers' brokers send each missed
            event again.
    """

    filters: bool = False
    client_linger_ns: int = _LINGER_NS
    commit_interval_ns: int = 250 * MILLISECOND_NS
    silence_interval_ns: int = SECOND_NS
    max_retain_ns: int = 0
    max_retain_bytes: int = 0
    retention: str = ""
    release_grace_ns: int = 10 * SECOND_NS
    catchup_batch: int = 5_000
    catchup_window: int = 20_000
    catchup_watch_ns: int = 60 * SECOND_NS
    live_limit: int = 16_384
    fetched_limit_bytes: int = 16 * 1024 * 1024
    passed_limit_bytes: int = 16 * 1024 * 1024
    token_lanes: int = 4
    token_batch: int = 0
    hold_lease_ns: int = _LINGER_NS

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """See Parameters: a hold lasts as long as its client may be away, unless it is set."""
        chosen = super(DurableParameters, cls).from_mapping(values, where)
        if "hold_lease_ns" in values:
            return chosen
        return replace(chosen, hold_lease_ns=max(chosen.client_linger_ns, LEAST_LEASE_NS))

    @property
    def gap_ages_ns(self) -> tuple[int | None, ...]:
        """Return the least age of an event in a gap of each pubend. See `gap_age_with`."""
        return tuple(map(self.gap_age_with, self.policies))

    def gap_age_with(self, policy: RetentionPolicy) -> int | None:
        """Return the least age of an event in a gap with a policy, 0 for any; None for no gaps.

        A hold also expires while its client is connected to a broker that cannot renew the hold.
        """
        age_ns = policy.gap_age_ns
        if not self._holds_may_expire:
            return age_ns
        return self.hold_lease_ns if age_ns is None else min(age_ns, self.hold_lease_ns)

    @property
    def policies(self) -> tuple[RetentionPolicy, ...]:
        default = RetentionPolicy(self.max_retain_ns, self.max_retain_bytes)
        return parse_policies(self.retention, default, self.pubends, "retention")

    @property
    def _holds_may_expire(self) -> bool:
        """True unless no broker is unreachable for as long as a lease: a day at least."""
        return self.hold_lease_ns < max(self.client_linger_ns, _DAY_NS)

    def check(self, where: str) -> None:
        super(DurableParameters, self).check(where)
        if self.is_total:
            raise ConfigError(
                f"{where}: order = {self.order!r}; durable supports publisher order only"
            )
        if self.filters and not self.delay_curiosity_ns:
            raise ConfigError(
                f"{where}: filters = true and delay_curiosity_ns = 0; without that, brokers would "
                "not learn of withheld events, and would never release what precedes them"
            )
        check_least(self, 1, _AT_LEAST_ONE, where)
        if self.hold_lease_ns < LEAST_LEASE_NS:
            raise ConfigError(
                f"{where}: hold_lease_ns = {self.hold_lease_ns}; at least {LEAST_LEASE_NS} (1 s): "
                "a shorter lease ends before it can be renewed"
            )
        check_least(self, 0, ("token_batch", "passed_limit_bytes", "max_retain_bytes"), where)
        default = RetentionPolicy()
        parse_policies(self.retention, default, self.pubends, f"{where}: retention")

    def warnings(self) -> tuple[str, ...]:
        found = []
        if self.max_retain_ns:
            found.append(
                f"max_retain_ns = {self.max_retain_ns}: a subscriber that is disconnected for "
                f"longer than {self.max_retain_ns / SECOND_NS:g} s receives a gap in place of "
                "older publications."
            )
        if self.max_retain_bytes:
            found.append(
                f"max_retain_bytes = {self.max_retain_bytes}: a subscriber that is disconnected "
                "while a pubend receives more than that receives a gap in place of the oldest "
                "publications."
            )
        for number, policy in enumerate(self.policies if self.retention else ()):
            if policy.gap_age_ns is not None:
                found.append(
                    f"retention of pubend {number} is {policy}: a subscriber that is disconnected "
                    "for longer receives a gap in place of older publications."
                )
        if self._holds_may_expire:
            found.append(
                f"hold_lease_ns = {self.hold_lease_ns}: a subscriber that moved to a broker which "
                f"is then unreachable for {self.hold_lease_ns / SECOND_NS:g} s may receive a gap."
            )
        return tuple(found)
