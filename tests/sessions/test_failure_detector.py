"""Tests of the failure detector: silence is suspected, lateness is not."""

from random import Random

import pytest

from brokerd.config import SessionParameters
from brokerd.sessions.failure_detector import (
    GRACE_NS,
    LATENESS_HALVES_EVERY_NS,
    FailureDetector,
    check_interval_ns,
)
from brokerd.units import MILLISECOND_NS, SECOND_NS

DEFAULTS = SessionParameters()
TICK_NS = check_interval_ns(DEFAULTS)


def watch(detector: FailureDetector, start_ns: int, end_ns: int) -> int | None:
    """Check in time from start to end; return the time of the suspicion."""
    now_ns = start_ns
    while now_ns < end_ns:
        now_ns = min(now_ns + TICK_NS, max(detector.due_ns, now_ns + 1), end_ns)
        if detector.check(now_ns):
            return now_ns
    return None


def test_a_silent_peer_is_suspected_after_the_timeout_and_a_grace_period() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    detector.record_life(40 * MILLISECOND_NS)
    suspected_ns = watch(detector, 0, 10 * SECOND_NS)
    assert suspected_ns == 40 * MILLISECOND_NS + DEFAULTS.suspicion_ns + GRACE_NS


def test_a_message_read_in_the_grace_period_prevents_suspicion() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    assert watch(detector, 0, DEFAULTS.suspicion_ns) is None
    detector.record_life(DEFAULTS.suspicion_ns + GRACE_NS // 2)
    assert not detector.check(DEFAULTS.suspicion_ns + GRACE_NS)
    assert watch(detector, DEFAULTS.suspicion_ns + GRACE_NS, SECOND_NS) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_peer_with_regular_heartbeats_is_not_suspected(seed: int) -> None:
    random = Random(seed)
    detector = FailureDetector(DEFAULTS, 0)
    now_ns = 0
    for _ in range(240):
        next_ns = now_ns + DEFAULTS.heartbeat_ns + random.randrange(60) * MILLISECOND_NS
        assert watch(detector, now_ns, next_ns) is None
        detector.record_life(next_ns)
        now_ns = next_ns
    assert detector.allowed_ns == DEFAULTS.suspicion_ns


def test_a_resumed_process_does_not_suspect_its_peers() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    detector.record_life(0)
    assert not detector.check(TICK_NS)
    woken_ns = 60 * SECOND_NS
    assert not detector.check(woken_ns)
    detector.record_life(woken_ns)  # what had gathered meanwhile
    assert watch(detector, woken_ns, woken_ns + 2 * SECOND_NS) is None


def test_lateness_seen_under_load_allows_for_more_of_it() -> None:
    """Gaps grow to 1.2 s; each is only a little longer than the gaps before."""
    detector = FailureDetector(DEFAULTS, 0)
    now_ns = 0
    for gap_ms in (*range(250, 1200, 50), 1200, 1200):
        end_ns = now_ns + gap_ms * MILLISECOND_NS
        assert watch(detector, now_ns, end_ns) is None, gap_ms
        detector.record_life(end_ns)
        now_ns = end_ns
    assert watch(detector, now_ns, now_ns + 10 * SECOND_NS) is not None


def test_own_lateness_counts_as_load_too() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    detector.check(TICK_NS)
    detector.check(TICK_NS + SECOND_NS)
    assert detector.allowed_ns > 2 * DEFAULTS.suspicion_ns


def test_allowance_is_bounded_and_fades() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    detector.check(30 * SECOND_NS)
    assert detector.allowed_ns == 4 * DEFAULTS.suspicion_ns
    for now_ns in range(30 * SECOND_NS, 150 * SECOND_NS, TICK_NS):
        detector.record_life(now_ns)
        detector.check(now_ns)
    assert detector.allowed_ns < DEFAULTS.suspicion_ns + 2 * MILLISECOND_NS


def test_peers_of_a_machine_that_was_suspended_get_time_to_speak_again() -> None:
    """The peers were suspended as well, so no heartbeats had gathered."""
    detector = FailureDetector(DEFAULTS, 0)
    assert not detector.check(TICK_NS)
    woken_ns = 60 * SECOND_NS
    assert watch(detector, woken_ns, woken_ns + DEFAULTS.heartbeat_ns) is None


def test_a_peer_that_falls_silent_after_a_standstill_is_suspected_as_soon_as_any() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    detector.check(60 * SECOND_NS)
    detector.record_life(60 * SECOND_NS)
    suspected_ns = watch(detector, 60 * SECOND_NS, 120 * SECOND_NS)
    assert suspected_ns is not None
    assert suspected_ns <= 60 * SECOND_NS + 4 * DEFAULTS.suspicion_ns + GRACE_NS + TICK_NS


def test_each_suspicion_has_a_grace_period_of_its_own() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    now_ns = 0
    for _ in range(3):
        heard_ns, now_ns = now_ns, now_ns + DEFAULTS.suspicion_ns
        assert watch(detector, heard_ns, now_ns) is None
        now_ns += GRACE_NS // 2
        detector.record_life(now_ns)  # in the grace period
        assert detector.due_ns == now_ns + detector.allowed_ns
    suspected_ns = watch(detector, now_ns, now_ns + 10 * SECOND_NS)
    assert suspected_ns == now_ns + detector.allowed_ns + GRACE_NS


def test_the_allowed_silence_shrinks_after_a_time_without_lateness() -> None:
    parameters = SessionParameters()
    detector = FailureDetector(parameters, 0)
    detector.record_life(parameters.suspicion_ns // 2 + parameters.heartbeat_ns + detector.tick_ns)
    grown_ns = detector.allowed_ns - parameters.suspicion_ns
    assert grown_ns == parameters.suspicion_ns
    began_ns = detector._received_ns
    assert LATENESS_HALVES_EVERY_NS % TICK_NS == 0
    for now_ns in range(0, 2 * LATENESS_HALVES_EVERY_NS + 1, TICK_NS):
        if now_ns > began_ns:
            detector.record_life(now_ns)
        assert not detector.check(now_ns)
        halvings = now_ns // LATENESS_HALVES_EVERY_NS
        assert detector.allowed_ns - parameters.suspicion_ns == grown_ns >> halvings
