"""Parameters of multi_proxy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from brokerd.config import MILLISECOND_NS, SECOND_NS, read_section
from brokerd.errors import ConfigError

_AT_LEAST_ONE: Final = ("topics", "timeout_ns", "get_wait_ns", "get_publications", "home_window")


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiProxyParameters:
    """Parameters of multi_proxy.

    Attributes:
        topic_attribute: whose value decides a publication's topic.
        apart_attribute: publications that have it have no topic attribute, so that who asks for
            it need not follow every topic; "" for none.
        topics: how many there are, beside that of publications without the topic attribute; equal
            values have the same one.
        timeout_ns: how long an answer is waited for before another proxy is tried.
        get_wait_ns: how long a server may wait for something to answer a get with.
        get_publications: of a topic, at most, in one answer to a get.
        home_window: publications of a topic with which clients of a broker may not be done before
            it asks for no more.
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is tried again; doubles
            up to the limit.
        client_window: publications a client may have unacknowledged before deliveries wait.
        client_subscriptions: how many subscriptions a client may have; more are refused.
        client_linger_ns: how long a vanished subscriber's subscriptions stay.

    Paper: [MP22] §3 (timeout), §4.
    """

    topic_attribute: str = "symbol"
    apart_attribute: str = "fence"
    topics: int = 64
    timeout_ns: int = 250 * MILLISECOND_NS
    get_wait_ns: int = 500 * MILLISECOND_NS
    get_publications: int = 4_096
    home_window: int = 16_384
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
        if not self.topic_attribute:
            raise ConfigError(f"{where}: topic_attribute is empty")
        if self.topic_attribute == self.apart_attribute:
            raise ConfigError(
                f"{where}: apart_attribute = {self.apart_attribute!r} is the topic attribute"
            )
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{where}: {name} = {getattr(self, name)}; at least 1")

    def warnings(self) -> tuple[str, ...]:
        """See Parameters."""
        return ()
