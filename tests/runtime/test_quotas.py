"""Tests of quotas: a client beyond its limit waits, and silence earns no credit."""

from brokerd.config import SessionParameters
from brokerd.model.identity import ClientId
from brokerd.runtime.admission_control import AdmissionControl, PublishingRate
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


def test_a_stranger_takes_no_place_of_an_identified_client() -> None:
    """One place of two is for brokers; the second connection has not sent a greeting."""
    parameters = SessionParameters(connections_limit=2, broker_reserve=1)
    admission = AdmissionControl(parameters)
    member = admission.admit("10.0.0.1", lambda: None)
    assert member is not None
    member.on_handshake_end()
    assert admission.admit("10.0.0.2", lambda: None) is not None
    assert admission.can_stay(is_broker=False)
    assert admission.can_stay(is_broker=True)
