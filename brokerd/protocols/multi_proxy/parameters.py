"""Parameters of multi_proxy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from brokerd.config import read_section
from brokerd.errors import ConfigError
from brokerd.units import MILLISECOND_NS, SECOND_NS

ARBITER: Final = "arbiter"
RENDEZVOUS: Final = "rendezvous"
PAPER: Final = "paper"
CAUSAL: Final = "causal"
_OWNERSHIPS: Final = (ARBITER, RENDEZVOUS, CAUSAL, PAPER)

_AT_LEAST_ONE: Final = (
    "topics",
    "assign_retry_ns",
    "period_ns",
    "timeout_ns",
    "get_wait_ns",
    "get_publications",
    "home_window",
    "topic_window",
    "patience_ns",
)

_AT_LEAST_NOTHING: Final = ("max_retain_ns", "max_retain_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiProxyParameters:
    """Parameters of multi_proxy.

    Attributes:
        ownership: who decides which server owns a topic. "arbiter": a server that follows from a
            hash gives each new topic to the server that has fewest, as the asking proxy sees it;
            "rendezvous": the server that follows from the hash owns it; "causal": each proxy by
            itself, so that two may own it until that is found, and what they have is merged;
            "paper": the same, but merging them loses publications.
        period_ns: with "causal" and "paper", how often a server tells proxies what it owns; with
            "arbiter" and "causal", how often it tells homes of topics that have come to it.
        topic_attribute: whose value decides a publication's topic.
        apart_attribute: publications that have it have no topic attribute, so that who asks for
            it need not follow every topic; "" for none.
        topics: how many there are, beside that of publications without the topic attribute; equal
            values have the same one.
        assign_retry_ns: how long an arbiter waits for a server to take a topic before it lets
            another one have it; with "arbiter" and "causal", how long a server that gives a topic
            to another one waits for its answer before it sends all of it again.
        spread_topics: with "arbiter", a server that has so many topics more than another one that
            is reached gives one to it, until none has; a topic never comes back to a server that
            has given it away; 0: topics stay where they are.
        timeout_ns: how long an answer is waited for before another proxy is tried.
        get_wait_ns: how long a server may wait for something to answer a get with.
        get_publications: of a topic, at most, in one answer to a get.
        home_window: publications of a topic with which clients of a broker may not be done before
            it asks for no more.
        topic_window: publications of a topic that a home may be behind what is put before puts
            wait for it; what is under way at that moment comes on top.
        patience_ns: how long a home that is so far behind, and comes no further, is waited for.
        max_retain_ns: what a server has kept for longer it lets go of, although a home was not done
            with it: subscribers there are told of a gap; 0: it keeps all for as long as it takes.
        max_retain_bytes: what a server has in its log beyond that it lets go of, oldest first, with
            gaps as well; 0: as much as it takes. The newest record, and a topic while it is given
            to another server, with all that was logged behind it, are kept all the same.
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is tried again; doubles
            up to the limit.
        client_window: publications a client may have unacknowledged before deliveries wait.
        client_subscriptions: how many subscriptions a client may have; more are refused.
        client_linger_ns: how long a vanished subscriber's subscriptions stay.

    Paper: [MP22] §3 (timeout), §4.
    """

    ownership: str = ARBITER
    topic_attribute: str = "symbol"
    apart_attribute: str = "fence"
    topics: int = 64
    assign_retry_ns: int = SECOND_NS
    spread_topics: int = 0
    period_ns: int = 5 * SECOND_NS
    timeout_ns: int = 250 * MILLISECOND_NS
    get_wait_ns: int = 500 * MILLISECOND_NS
    get_publications: int = 4_096
    home_window: int = 16_384
    topic_window: int = 2_048
    patience_ns: int = 2 * SECOND_NS
    max_retain_ns: int = 0
    max_retain_bytes: int = 0
    retry_first_ns: int = 500 * MILLISECOND_NS
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
        if self.ownership not in _OWNERSHIPS:
            choices = ", ".join(_OWNERSHIPS)
            raise ConfigError(f"{where}: ownership = {self.ownership!r}; one of {choices}")
        if not self.topic_attribute:
            raise ConfigError(f"{where}: topic_attribute is empty")
        if self.topic_attribute == self.apart_attribute:
            raise ConfigError(
                f"{where}: apart_attribute = {self.apart_attribute!r} is the topic attribute"
            )
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{where}: {name} = {getattr(self, name)}; at least 1")
        if self.spread_topics < 0 or self.spread_topics == 1:
            raise ConfigError(f"{where}: spread_topics = {self.spread_topics}; 0, or at least 2")
        for name in _AT_LEAST_NOTHING:
            if getattr(self, name) < 0:
                raise ConfigError(f"{where}: {name} = {getattr(self, name)}; at least 0")

    def warnings(self) -> tuple[str, ...]:
        """See Parameters."""
        warnings = []
        if self.ownership == PAPER:
            warnings.append(
                'ownership = "paper" loses publications whenever two servers own a topic'
            )
        if self.max_retain_ns:
            warnings.append(
                f"max_retain_ns = {self.max_retain_ns}: a subscriber whose broker is away for "
                f"longer than {self.max_retain_ns / SECOND_NS:g} s is told of a gap in place of "
                "what is older"
            )
        if self.max_retain_bytes:
            warnings.append(
                f"max_retain_bytes = {self.max_retain_bytes}: a subscriber whose broker is away "
                "while a server logs more than that, or falls so far behind, is told of a gap in "
                "place of what there is no room for"
            )
        return tuple(warnings)
