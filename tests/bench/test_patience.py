"""Tests of the end of a drain: by evidence, by silence, or at its bound."""

import pytest

from bench.load.load_control import QUIET_S, Patience
from bench.spec.workload_model import Phases


def ended_s(patience: Patience, arrived: list[int]) -> float:
    """Return the end of a wait that checks every second and never finds evidence."""
    for second, count in enumerate(arrived):
        if patience.is_over(second):
            patience.note_arrivals(second, count)
            if patience.is_over(second):
                return second
    raise AssertionError("it waits for ever")


def test_a_wait_without_progress_ends_soon_after_the_limit() -> None:
    assert ended_s(Patience(0, 30, 300), [7] * 400) == 30 + QUIET_S


def test_a_wait_continues_while_deliveries_arrive_and_ends_when_they_stop() -> None:
    arrived = [min(second, 100) for second in range(400)]
    assert 100 <= ended_s(Patience(0, 30, 300), arrived) <= 100 + 2 * QUIET_S


def test_a_wait_ends_at_its_bound_whatever_arrives() -> None:
    patience = Patience(0, 30, 300)
    assert ended_s(patience, [*range(400)]) == 300
    assert patience.is_at_bound(300)


def test_a_wait_without_an_extension_ends_at_the_limit_despite_progress() -> None:
    assert ended_s(Patience(0, 30, 30), [*range(400)]) == 30


@pytest.mark.parametrize("bound", ["0s", "0ns", "29s"])
def test_a_bound_below_the_limit_is_refused(bound: str) -> None:
    with pytest.raises(ValueError, match="at least as long as drain = '30s'"):
        Phases.model_validate({"measure": "10s", "drain_bound": bound})


def test_a_bound_is_ten_times_the_limit_by_default() -> None:
    assert Phases.model_validate({"measure": "10s", "drain": "3s"}).longest_drain_ns == 30 * 10**9
    given = {"measure": "10s", "drain": "3s", "drain_bound": "4s"}
    assert Phases.model_validate(given).longest_drain_ns == 4 * 10**9
