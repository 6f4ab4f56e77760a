"""Stories of simultaneous failures in a schedule, and of steps beyond the measure phase."""

import pytest

from bench.spec.spec import load_topology
from brokerd.protocols.registry import protocol_on
from fault_injection.schedule.limits import FaultGuard
from fault_injection.schedule.lint import lint
from fault_injection.schedule.schedule import (
    Problem,
)
from tests.fault_injection.test_schedule import (
    ABSORB,
    HEAD,
    KILL,
    RESTART,
    SECOND_NS,
    TOPOLOGY,
    fault,
    problems,
    read,
    step,
)


def severities(text: str, head: str = HEAD) -> list[str]:
    found: list[Problem] = lint(read(text, head), TOPOLOGY)
    assert all("at the same time" in problem.text for problem in found), found
    return [problem.severity for problem in found]


@pytest.mark.parametrize(
    "other,severity",
    [
        # b1 is down from 8 s on and started again at 30 s (worst case of the absorb).
        (step(at="9s", do="cut", on="b3-s3", for_="1s"), ["error"]),
        (step(at="20s", do="freeze", on="b3", for_="1s"), ["error"]),
        (step(at="40s", do="freeze", on="b3", for_="1s"), ["warning"]),
        (step(at="1s", do="freeze", on="b3", for_="7s"), []),
        (step(at="1s", do="freeze", on="b3", for_="6s..8s"), ["error"]),
        (step(after="r.recovered", do="freeze", on="b3", for_="1s"), []),
        (step(after="r.applied", do="freeze", on="b3", for_="1s"), ["error"]),
        (step(after="r.applied", delay="5s", do="freeze", on="b3", for_="1s"), ["warning"]),
        # The same element twice, or a link of a failed broker, is one failure.
        (step(after="r.applied", do="freeze", on="b1", for_="1s"), []),
        (step(after="a.applied", do="cut", on="b1-s1", for_="1s"), []),
    ],
)
def test_more_than_delta_at_once_is_found_where_the_times_can_meet(
    other: str, severity: list[str]
) -> None:
    assert severities(ABSORB + KILL + RESTART + other) == severity


def test_a_bounded_recovery_settles_what_an_unbounded_one_leaves_open() -> None:
    other = step(at="45s", do="freeze", on="b3", for_="1s")
    bounded = RESTART + '\nawait = { state = "ready", within = "10s" }'
    assert severities(ABSORB + KILL + RESTART + other) == ["warning"]
    (found,) = problems(ABSORB + KILL + RESTART + other)
    assert "unless r recovers quickly: anchor the later step at r.recovered, or bound" in found
    assert severities(ABSORB + KILL + bounded + other) == []


def test_a_draw_shared_by_two_steps_counts_once() -> None:
    """c begins 1 s after a's end for any length of a, so c and a never overlap."""
    first = step(id="a", at="8s", do="absorb", on="b1", for_="1s..60s")
    then = step(id="c", after="a", delay="1s", do="cut", on="b3-s3", for_="1s")
    assert severities(first + then) == []


def test_a_higher_limit_allows_more_at_once_and_no_more_than_that() -> None:
    head = HEAD + "[guard]\nmax_faulty_brokers = 2\n"

    def faults(*names: str) -> str:
        return "".join(step(at="1s", do="freeze", on=n, for_="1s") for n in names)

    def errors(text: str) -> list[Problem]:
        found = lint(read(text, head), TOPOLOGY)
        return [problem for problem in found if problem.severity == "error"]

    assert errors(faults("b1", "b3")) == []
    (problem,) = errors(faults("b1", "b3", "b4"))
    assert "b1 and b3 and b4 may be failed at the same time; at most 2 may" in problem.text
    guard = FaultGuard(protocol_on(load_topology("x10-paths"), "durable"))
    lost = [frozenset({"b1"})]
    assert guard.exceeds(lost)
    assert guard.explain(lost).startswith("without b1, no route leads from p1")


def test_a_broker_that_is_never_started_again_stays_failed() -> None:
    other = step(at="10min", do="freeze", on="b3", for_="1s")
    assert severities(step(at="1s", do="kill", on="b1") + other) == ["error"]


def test_a_step_beyond_the_measure_phase_is_reported() -> None:
    late = step(id="l", at="70s", do="kill", on="b1")
    (found,) = problems(late, measure_ns=60 * SECOND_NS)
    assert "begins 70s after the origin at the earliest; measure is 1min" in found
    long = step(id="l", at="50s", do="absorb", on="b1", for_="5s..15s")
    (found,) = problems(long, measure_ns=60 * SECOND_NS)
    assert "step l: at = '50s': may last until 65s" in found


@pytest.mark.parametrize(
    "at, lasts, text",
    [
        ("59999ms", "1ms", ""),
        ("59999ms", "2ms", "may last until 60.001s"),
        ("60s", "1ms", "begins 1min after the origin at the earliest"),
    ],
)
def test_a_step_fits_that_ends_with_the_measure_phase(at: str, lasts: str, text: str) -> None:
    found = problems(
        step(id="l", at=at, do="absorb", on="b1", for_=lasts), measure_ns=60 * SECOND_NS
    )
    assert len(found) == bool(text)
    assert all(text in each for each in found)


def test_a_step_after_a_recovery_without_a_bound_may_begin_in_time() -> None:
    first = fault("absorb", for_="1s")
    then = step(id="c", after="a.recovered", do="absorb", on="b1", for_="1s")
    assert problems(first + then, measure_ns=60 * SECOND_NS) == []


def test_each_circle_of_steps_is_reported_once() -> None:
    after = {"a": "b", "b": "a", "c": "a", "d": "e", "e": "f", "f": "d", "g": "g"}
    text = "".join(
        step(id=name, after=f"{other}.applied", do="kill", on="b1") for name, other in after.items()
    )
    found = [line for line in problems(text) if "none of them ever begins" in line]
    assert [line.partition("step ")[2][0] for line in found] == ["a", "d", "g"]


def test_a_recovery_is_that_of_the_restart_of_the_same_broker() -> None:
    other = step(id="k2", at="1s", do="kill", on="b2")
    other += step(id="r2", at="2s", do="restart", on="b2")
    kill = step(id="k", at="9s", do="kill", on="b1")
    late = step(id="l", after="k.recovered", do="term", on="b3")
    found = [line for line in problems(other + kill + late) if "does not recover" in line]
    assert len(found) == 1
    assert "recovered does" not in found[0]


def test_an_absorb_that_ends_before_its_kill_is_a_warning() -> None:
    late = step(id="k", after="a", delay="1s", do="kill", on="b1")
    (found,) = problems(ABSORB + late)
    assert "step a: for = '2s': is released before k" in found
    for harmless in ("freeze", "blackhole"):
        after = step(id="k", after="a", delay="1s", do=harmless, on="b1", for_="1s")
        assert problems(ABSORB + after) == []
