"""Tests of backoff: links whose sessions repeatedly end with the same error do not flap."""

from brokerd.sessions.failure_detector import FORGOTTEN_NS, LONGEST_NS, FaultBackoff
from brokerd.units import SECOND_NS


def pauses(errors: int, every_ns: int = 0) -> list[int]:
    """Return the pause after each of `errors` errors, in seconds."""
    backoff = FaultBackoff()
    now_ns, found = 0, []
    for _ in range(errors):
        backoff.note(1, now_ns)
        found.append(backoff.remaining_ns(1, now_ns) // SECOND_NS)
        now_ns += every_ns or backoff.remaining_ns(1, now_ns)
    return found


def test_the_pause_doubles_up_to_a_bound_and_the_first_error_costs_none() -> None:
    assert pauses(9) == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_an_error_long_after_the_last_one_is_the_first_again() -> None:
    assert pauses(3, every_ns=FORGOTTEN_NS) == [0, 0, 0]


def test_a_pause_ends_and_is_of_one_neighbour() -> None:
    backoff = FaultBackoff()
    for _ in range(20):
        backoff.note(1, 0)
    assert backoff.remaining_ns(1, LONGEST_NS - 1) == 1
    assert backoff.remaining_ns(1, LONGEST_NS) == 0
    assert backoff.remaining_ns(2, 0) == 0
    backoff.forget(1)
    assert backoff.remaining_ns(1, 0) == 0
