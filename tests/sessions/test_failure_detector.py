"""Silence is suspected, lateness is not."""

from random import Random

import pytest

from brokerd.config import MILLISECOND_NS, SECOND_NS, SessionParameters
from brokerd.sessions.failure_detector import FailureDetector, check_interval_ns

DEFAULTS = SessionParameters()
TICK_NS = check_interval_ns(DEFAULTS)


def watch(detector: FailureDetector, start_ns: int, end_ns: int) -> int | None:
    """Check in time from start to end; returns when the peer was suspected."""
    for now_ns in range(start_ns + TICK_NS, end_ns + 1, TICK_NS):
        if detector.check(now_ns):
            return now_ns
    return None


def test_a_silent_peer_is_suspected_within_a_second() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    suspected_ns = watch(detector, 0, 10 * SECOND_NS)
    assert suspected_ns is not None
    assert DEFAULTS.suspicion_ns <= suspected_ns <= SECOND_NS


@pytest.mark.parametrize("seed", range(20))
def test_heartbeats_that_come_as_they_should_keep_a_peer_trusted(seed: int) -> None:
    random = Random(seed)
    detector = FailureDetector(DEFAULTS, 0)
    next_ns = 0
    for now_ns in range(TICK_NS, 60 * SECOND_NS, TICK_NS):
        while next_ns < now_ns:
            detector.heard()
            next_ns += DEFAULTS.heartbeat_ns + random.randrange(60) * MILLISECOND_NS
        assert not detector.check(now_ns)
    assert detector.allowed_ns < SECOND_NS


def test_a_process_that_was_stopped_does_not_suspect_everybody_when_it_goes_on() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    detector.heard()
    assert not detector.check(TICK_NS)
    woken_ns = 60 * SECOND_NS
    assert not detector.check(woken_ns)
    detector.heard()  # what had gathered meanwhile
    assert watch(detector, woken_ns, woken_ns + 2 * SECOND_NS) is None


def test_lateness_seen_under_load_allows_for_more_of_it() -> None:
    """Gaps grow to 1.2 s; each is only a little longer than those before."""
    detector = FailureDetector(DEFAULTS, 0)
    now_ns = 0
    for gap_ms in (*range(250, 1200, 50), 1200, 1200):
        end_ns = now_ns + gap_ms * MILLISECOND_NS
        assert watch(detector, now_ns, end_ns) is None, gap_ms
        detector.heard()
        now_ns += (end_ns - now_ns) // TICK_NS * TICK_NS
    assert watch(detector, now_ns, now_ns + 10 * SECOND_NS) is not None


def test_own_lateness_counts_as_load_too() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    detector.heard()
    detector.check(TICK_NS)
    detector.check(TICK_NS + SECOND_NS)
    assert detector.allowed_ns > 2 * DEFAULTS.suspicion_ns


def test_allowance_is_bounded_and_fades() -> None:
    detector = FailureDetector(DEFAULTS, 0)
    detector.heard()
    detector.check(30 * SECOND_NS)
    assert detector.allowed_ns == 4 * DEFAULTS.suspicion_ns
    for now_ns in range(30 * SECOND_NS, 150 * SECOND_NS, TICK_NS):
        detector.heard()
        detector.check(now_ns)
    assert detector.allowed_ns < DEFAULTS.suspicion_ns + 2 * MILLISECOND_NS
