"""Tests of gaps that no other file bears out, on objects: what is announced, when, and why."""

from types import SimpleNamespace
from typing import Any

import pytest

from results.rules.terms import STATE_LOST
from results.witnesses.gaps import _SLACK_NS as SLACK
from results.witnesses.gaps import doubts_about_gaps
from results.witnesses.rows import SourceRows

SECOND = 10**9
ERROR = SECOND // 4
ERRORS = {frozenset("h"): 0, frozenset("g"): 0, frozenset("hg"): ERROR}
"""Error of the clocks of two hosts; clocks of one host agree."""
SOURCE = "c1/0"
HIGHEST, FENCES = 20, (1, 18)
FIRST, LAST = 8, 12
"""The announced numbers; number n was sent at n seconds."""
TOLD = 15 * SECOND
DRAINED = 40 * SECOND
LOSS = {"event": "loss_accepted", "cause": "an older copy"}
AWAY = (7 * SECOND, 14 * SECOND)


def folder(gap: dict[str, Any], losses: list[dict[str, Any]], away: Any, breaks: Any = ()) -> Any:
    """Return a run with a gap at a subscriber, and events of a broker on another host."""
    timeline = SimpleNamespace(
        to_timeline=lambda ns, host: ns,
        error_ns=lambda one, other: ERRORS[frozenset((one, other))],
    )

    def process(host: str, name: str, **files: Any) -> Any:
        place = f"raw/{host}/{name}"
        lines = {key.replace("_", ".") + "l": value for key, value in files.items()}
        return SimpleNamespace(host=host, place=place, lines=lambda name: lines.get(name, ()))

    return SimpleNamespace(
        timeline=timeline,
        origin_ns=0,
        processes=(
            process("h", "load-sub", gaps_json=(gap,)),
            process("g", "load-pub"),
            process("g", "c1", events_json=losses),
        ),
        phase_ns=lambda name: (30 * SECOND, DRAINED) if name == "drain" else None,
        absences=lambda client: [away] if away and client == "c3-sub-1" else [],
        fault_rows=breaks,
    )


def rows() -> Any:
    def sent_ns(source: str, incarnation: int, number: int) -> int | None:
        is_known = (source, incarnation) == (SOURCE, 1) and 0 < number <= HIGHEST
        return number * SECOND if is_known else None

    of = SourceRows(HIGHEST, FENCES, SECOND, HIGHEST * SECOND)
    return SimpleNamespace(
        sources={(SOURCE, 1): of, ("c1/5", 1): of},
        sent_ns=sent_ns,
        published={"raw/g/load-pub": HIGHEST},
    )


def said(
    losses: Any = (), away: Any = AWAY, breaks: Any = (), **changes: Any
) -> list[str]:  # fmt: skip
    gap = {
        "sub_id": "c3-sub-1/1", "source": SOURCE, "incarnation": 1, "first": FIRST, "last": LAST,
        "t_ns": TOLD, "reason": "retention",
    }  # fmt: skip
    return [*doubts_about_gaps(folder(gap | changes, losses, away, breaks), rows())]


def test_a_gap_within_an_absence_is_borne_out() -> None:
    assert said() == []


def test_a_gap_of_a_run_that_broke_off_has_no_latest_time() -> None:
    gap = {
        "sub_id": "c3-sub-1/1", "source": SOURCE, "incarnation": 1, "first": FIRST, "last": LAST,
        "t_ns": 2 * DRAINED, "reason": "retention",
    }  # fmt: skip
    run = folder(gap, [], (7 * SECOND, 3 * DRAINED))
    assert len([*doubts_about_gaps(run, rows())]) == 1
    run.phase_ns = lambda name: None
    assert [*doubts_about_gaps(run, rows())] == []


def test_a_stream_of_no_publisher_has_no_gap_but_of_lost_state() -> None:
    losses = [LOSS | {"t_ns": TOLD}]
    assert said(losses=losses, source="c2/9", reason=STATE_LOST) == []
    (found,) = said(losses=losses, source="c2/9")
    assert "c2/9" in found


@pytest.mark.parametrize(
    "changes, count",
    [
        ({"last": FENCES[1] - 1}, 0),
        ({"last": FENCES[1]}, 1),
        ({"first": HIGHEST, "last": HIGHEST, "t_ns": HIGHEST * SECOND}, 0),
        ({"first": HIGHEST, "last": HIGHEST + 1, "t_ns": HIGHEST * SECOND}, 1),
        ({"first": 2}, 0),
        ({"first": FENCES[0]}, 1),
        ({"incarnation": 2}, 1),
        ({"source": "c1/1"}, 1),
        ({"t_ns": FIRST * SECOND - ERROR}, 0),
        ({"t_ns": FIRST * SECOND - ERROR - 1}, 1),
        ({"t_ns": DRAINED + ERROR}, 0),
        ({"t_ns": DRAINED + ERROR + 1}, 1),
        ({"sub_id": "c3-sub-2/1"}, 1),
    ],
)
def test_a_gap_is_of_publications_without_fences_and_of_the_time_of_the_run(
    changes: dict[str, Any], count: int
) -> None:
    assert len(said(away=(0, HIGHEST * SECOND), **changes)) == count


@pytest.mark.parametrize(
    "away, count",
    [
        (None, 1),
        ((0, FIRST * SECOND - ERROR), 0),
        ((0, FIRST * SECOND - ERROR - 1), 1),
        ((TOLD + SLACK + ERROR, TOLD + SECOND), 0),
        ((TOLD + SLACK + ERROR + 1, TOLD + SECOND), 1),
    ],
)
def test_an_absence_explains_a_gap_from_the_first_publication_to_the_announcement(
    away: Any, count: int
) -> None:
    found = said(away=away)
    assert len(found) == count
    assert all("absence" in each for each in found)


@pytest.mark.parametrize("verb, count", [("kill", 0), ("cut", 0), ("cpu-share", 1)])
def test_a_fault_that_keeps_publications_away_explains_a_gap(verb: str, count: int) -> None:
    fault = {
        "verb": verb, "target": "c1", "t_applied_ns": 7 * SECOND, "t_healed_ns": 14 * SECOND
    }  # fmt: skip
    assert len(said(away=None, breaks=(fault,))) == count


@pytest.mark.parametrize(
    "loss, count",
    [
        ({"t_ns": FIRST * SECOND - ERROR - SLACK}, 0),
        ({"t_ns": FIRST * SECOND - ERROR - SLACK - 1}, 1),
        ({"t_ns": TOLD, "event": "run_begun"}, 1),
        ({"t_ns": TOLD, "cause": None}, 1),
    ],
)
def test_a_lost_state_needs_an_accepted_loss_after_the_first_publication(
    loss: dict[str, Any], count: int
) -> None:
    assert len(said(losses=[LOSS | loss], reason=STATE_LOST)) == count


@pytest.mark.parametrize(
    "loss, count",
    [
        ({"t_ns": TOLD + ERROR + SLACK}, 0),
        ({"t_ns": TOLD + ERROR + SLACK + 1}, 1),
        ({"t_ns": TOLD, "cause": None}, 1),
    ],
)
def test_a_lost_stream_of_a_broker_needs_an_accepted_loss_before_the_announcement(
    loss: dict[str, Any], count: int
) -> None:
    """No publisher has the stream, so nothing else is known of it."""
    found = said(losses=[LOSS | loss], reason=STATE_LOST, source="c2/9", away=None)
    assert len(found) == count
