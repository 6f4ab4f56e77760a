"""Parameters of multi_proxy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from brokerd.config import check_least, read_section
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
    "get_publications",
    "home_window",
    "topic_window",
    "patience_ns",
)

_AT_LEAST_NOTHING: Final = ("get_wait_ns", "max_retain_ns", "max_retain_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiProxyParameters:
    """Parameters of multi_proxy.

    Attributes:
        ownership: the choice of the owner of a topic. "arbiter": a server that follows from a hash
            gives each new topic to the server that has fewest, as the asking proxy sees it;
            "rendezvous": the server that follows from the hash owns it; "causal": proxies decide
            by themselves, so that two servers may own a topic until that is detected, and their
            parts are merged; "paper": the same, but merging loses publications.
        period_ns: with "causal" and "paper", the period of a server's announcements to proxies;
            with "arbiter" and "causal", of its notifications to access brokers about new topics.
        topic_attribute: its value decides a publication's topic.
        apart_attribute: publications with it have no topic attribute, so that a subscription to it
            need not follow every topic; "" for none.
        topics: the number of topics, beside that of publications without the topic attribute;
            equal values have the same one.
        assign_retry_ns: how long an arbiter waits for a server to take a topic before it chooses
            another one; with "arbiter" and "causal", how long a server that gives a topic to
            another one waits for its answer before it sends all of it again.
        spread_topics: with "arbiter", a server that has this many topics more than another one
            that is reached gives one to it, until none has; a topic never returns to a server that
            has given it away; 0: topics stay.
        timeout_ns: the wait for an answer before another proxy is tried.
        get_wait_ns: how long a server waits for publications before it answers a get; 0: until
            there are any.
        get_publications: the most publications of a topic in an answer to a get.
        home_window: publications of a topic that the clients of a broker may have unacknowledged
            before it stops fetching.
        topic_window: publications of a topic that an access broker may be behind before publish
            requests wait for it; requests under way at that moment are added.
        patience_ns: the wait for an access broker that is that far behind, without progress.
        max_retain_ns: publications stored for longer are released, although an access broker has
            not acknowledged them: subscribers there receive a gap; 0: everything is retained as
            long as needed.
        max_retain_bytes: the log's content beyond that is released, oldest first, with gaps as
            well; 0: no bound. The newest record, and a topic while it is given to another server,
            with everything logged after it, are retained all the same.
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is tried again; doubles
            up to the limit.
        client_window: publications a client may have unacknowledged before deliveries wait.
        client_subscriptions: the most subscriptions of a client; more are refused.
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
    get_wait_ns: int = 0
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
        parameters: Self = read_section(cls, dict(values), where)
        return parameters

    def check(self, where: str) -> None:
        if self.ownership not in _OWNERSHIPS:
            choices = ", ".join(_OWNERSHIPS)
            raise ConfigError(f"{where}: ownership = {self.ownership!r}; one of {choices}")
        if not self.topic_attribute:
            raise ConfigError(f"{where}: topic_attribute is empty")
        if self.topic_attribute == self.apart_attribute:
            raise ConfigError(
                f"{where}: apart_attribute = {self.apart_attribute!r} is the topic attribute"
            )
        check_least(self, 1, _AT_LEAST_ONE, where)
        if self.spread_topics < 0 or self.spread_topics == 1:
            raise ConfigError(f"{where}: spread_topics = {self.spread_topics}; 0, or at least 2")
        check_least(self, 0, _AT_LEAST_NOTHING, where)

    def warnings(self) -> tuple[str, ...]:
        warnings = []
        if self.ownership == PAPER:
            warnings.append(
                'ownership = "paper" loses publications whenever two servers own a topic'
            )
        if self.max_retain_ns:
            warnings.append(
                f"max_retain_ns = {self.max_retain_ns}: a subscriber whose broker is down for "
                f"longer than {self.max_retain_ns / SECOND_NS:g} s receives a gap in place of "
                "older publications"
            )
        if self.max_retain_bytes:
            warnings.append(
                f"max_retain_bytes = {self.max_retain_bytes}: a subscriber whose broker is down "
                "while a server logs more than that, or falls so far behind, receives a gap in "
                "place of the oldest publications"
            )
        return tuple(warnings)
