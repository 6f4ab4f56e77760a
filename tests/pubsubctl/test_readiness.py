"""Tests of the readiness of started brokers."""

from brokerd.protocols.interface import CoreStatus
from pubsubctl.hosts.readiness import ProbeAnswer, find_unready


def answered(
    *wanted: str, ready: tuple[str, ...] | None = None, state: str = "running"
) -> ProbeAnswer:
    return ProbeAnswer(
        CoreStatus(state=state, wanted=wanted, ready=wanted if ready is None else ready), True
    )


def test_brokers_that_have_all_their_sessions_are_ready() -> None:
    assert find_unready({"c1": answered("c2"), "c2": answered("c1")}) == {}


def test_missing_readiness_is_reported_per_broker() -> None:
    statuses: dict[str, ProbeAnswer | str] = {
        "c1": answered("c2", "c3", ready=("c2",)),
        "c2": answered("c1", state="recovering"),
        "c3": "does not answer yet (no such file)",
        "c4": ProbeAnswer(CoreStatus(state="running"), False),
    }
    assert find_unready(statuses) == {
        "c1": "no session to c3",
        "c2": "recovering",
        "c3": "does not answer yet (no such file)",
        "c4": "has not tried all brokers near it yet",
    }


def test_a_session_that_only_one_end_has_does_not_count() -> None:
    """A decommissioned broker has such a session until the notification arrives."""
    statuses = {"c2": answered(), "c3": answered("c2")}
    assert find_unready(statuses) == {"c3": "no session from c2"}
