"""Tests of quotas: a client beyond its limit waits, and silence earns no credit."""

from brokerd.model.identity import ClientId
from brokerd.runtime.admission_control import PublishingRate
from brokerd.units import SECOND_NS

CLIENT = ClientId("c1-pub-1")


def test_a_client_waits_while_it_is_ahead_by_more_than_a_second() -> None:
    rate = PublishingRate(10)
    rate.sent(CLIENT, 10, 0)
    assert not rate.has_to_wait(CLIENT, 0)
    rate.sent(CLIENT, 10, 0)
    assert rate.has_to_wait(CLIENT, 0)
    assert rate.clients_within_rate(0) == []
    assert rate.clients_within_rate(SECOND_NS) == [CLIENT]
    rate.sent(CLIENT, 10, SECOND_NS)
    assert rate.has_to_wait(CLIENT, SECOND_NS), "its earlier publications count"
    assert rate.clients_within_rate(3 * SECOND_NS) == [CLIENT]
    assert rate.clients_within_rate(3 * SECOND_NS) == []


def test_a_client_that_was_silent_is_limited_like_a_new_one() -> None:
    for silent_ns in (0, 5 * SECOND_NS, 60 * SECOND_NS):
        rate = PublishingRate(10)
        rate.sent(CLIENT, 1, 0)
        rate.sent(CLIENT, 21, silent_ns)
        assert rate.has_to_wait(CLIENT, silent_ns), silent_ns
