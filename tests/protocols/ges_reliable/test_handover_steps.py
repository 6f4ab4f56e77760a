"""Single steps of a handover on objects: the switch to a successor, and ends with all storages."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.protocols.ges_reliable.handover import (
    EndConfirmation,
    FetchStart,
    FetchStop,
    Handovers,
    HandoverStep,
    PendingEnd,
    ReceiptWait,
    Request,
    Stage,
    TreeHandover,
    TreeHandovers,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue

HERE, SUCCESSOR, BEFORE, EARLIER = 1, 2, 3, 4
ENDED = ("c", 1)


def stored(**values: Any) -> Any:
    """Return a subscription that is stored at one storage."""
    defaults: dict[str, Any] = {
        "key": ENDED, "generation": 1, "predicate": None, "storage": HERE, "successor": None,
        "until": None, "earlier": [], "awaits_handover": False, "pending_end": ENDED,
        "is_over": False, "delivered_epoch": 5, "successor_start": None, "received_of": {},
    }  # fmt: skip
    return SimpleNamespace(**(defaults | values))


def begun(**values: Any) -> Any:
    """Return the answer of a storage."""
    defaults = {"after": None, "before": None, "successor": None, "received_of": {}}
    return SimpleNamespace(**(defaults | values))


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("delivered, until", [(4, 7), (7, 7), (9, 9)])
def test_the_present_storage_is_followed_until_the_successor_begins(
    delivered: int, until: int
) -> None:
    local = stored(delivered_epoch=delivered)
    step = HandoverStep(Stage.SUCCESSOR_BEGUN, local)
    handovers: Any = SimpleNamespace()
    assert [*Handovers.on_answer(handovers, step, begun(after=7), 0)] == [ReceiptWait(local)]
    assert local.until == until


@pytest.mark.parametrize(
    "stage", [Stage.SUCCESSOR_BEGUN, Stage.SUCCESSOR_FOUND, Stage.SUCCESSOR_RECORDED]
)
def test_answers_change_nothing_after_an_end_or_without_a_begin(stage: Stage) -> None:
    handovers: Any = SimpleNamespace()
    for is_over, after in ((True, 7), (False, None), (True, None)):
        local = stored(is_over=is_over)
        before = dict(vars(local))
        step = HandoverStep(stage, local)
        assert [*Handovers.on_answer(handovers, step, begun(after=after), 0)] == []
        assert vars(local) == before


def test_a_successor_in_another_tree_begins_at_its_own_epoch() -> None:
    local = stored()
    step = HandoverStep(Stage.SUCCESSOR_FOUND, local)
    handovers: Any = SimpleNamespace()
    answer = begun(after=70, received_of={"s": 3})
    assert [*Handovers.on_answer(handovers, step, answer, 0)] == [ReceiptWait(local)]
    assert local.successor_start == (70, {"s": 3})
    assert local.until is None


# ---------------------------------------------------------------- the switch


@pytest.mark.parametrize("begins_elsewhere", [True, False])
def test_a_switch_names_the_storage_before_to_every_later_end(begins_elsewhere: bool) -> None:
    start = (70, {"s": 3}) if begins_elsewhere else None
    local = stored(successor=SUCCESSOR, until=9, earlier=[EARLIER], successor_start=start)
    handovers: Any = SimpleNamespace()
    stop, begin, request = Handovers.on_last_receipt(handovers, local)
    assert stop == FetchStop(local)
    assert begin == (FetchStart(local, 70, 70) if begins_elsewhere else FetchStart(local, 9, 0))
    assert isinstance(request, Request)
    assert (local.storage, local.successor, local.until) == (SUCCESSOR, None, None)
    assert (local.earlier, local.awaits_handover) == ([EARLIER, HERE], True)
    assert local.received_of == ({"s": 3} if begins_elsewhere else {})
    assert local.successor_start is None


# ---------------------------------------------------------------- roots that are behind

ROOT, NEXT_ROOT = 8, 9
WAIT_NS = 50


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_handovers_that_wait_for_a_root_ask_it_again_and_once_each(count: int) -> None:
    """The root lacks a publication that the successor's root has; one subscription ends."""
    deadlines: DeadlineQueue[Any] = DeadlineQueue()
    trees = TreeHandovers(deadlines, WAIT_NS)
    locals_ = [stored(key=("c", number), received_of=()) for number in range(count)]
    for now_ns, local in enumerate(locals_):
        handover = TreeHandover(local, ROOT, NEXT_ROOT, next_received_of={"s": 3})  # type: ignore[dict-item]
        answer = begun(after=7, received_of=(("s", 2),))
        assert [*trees.on_answer(Stage.FIRST_ROOT, handover, answer, now_ns)] == []
    ((_, root),) = deadlines.due(WAIT_NS)
    assert root == ROOT, "since the first of them"
    assert trees.waited == count
    locals_[0].is_over = count == 3
    queries = [*trees.query_again(ROOT)]
    wanted = [each for each in locals_ if not each.is_over]
    assert [query.request.key for query in queries] == [each.key for each in wanted]
    assert {query.storage for query in queries} == {ROOT}
    assert [*trees.query_again(ROOT)] == [], "all of them have asked"


# ---------------------------------------------------------------- ends


def ends(local: Any, answer: Any) -> tuple[list[Any], list[Any]]:
    """Return the storages that are awaited, and those that are notified only."""
    handovers: Any = SimpleNamespace()
    found = [*Handovers.end(handovers, local, answer)]
    awaited = [each for each in found if isinstance(each, Request) and each.step is not None]
    assert all(each.step == PendingEnd(len(awaited), ENDED) for each in awaited)  # type: ignore[arg-type]
    others = [each.storage for each in found if isinstance(each, Request) and each.step is None]
    assert len(awaited) + len(others) == len(found)
    return [each.storage for each in awaited], others


def test_an_end_is_sent_to_each_storage_that_may_have_the_subscription() -> None:
    for awaits, successor, before in product(
        (True, False), (None, SUCCESSOR), (None, HERE, BEFORE)
    ):
        local = stored(awaits_handover=awaits, earlier=[EARLIER, 9])
        awaited, notified = ends(local, begun(successor=successor, before=before))
        expected = [HERE] + [SUCCESSOR] * (successor is not None) + [BEFORE] * (before == BEFORE)
        expected += [9] * awaits
        assert sorted(awaited) == sorted(expected)
        assert notified == [each for each in (EARLIER, 9) if each not in expected]
        assert local.pending_end is None


@pytest.mark.parametrize("values", [{"pending_end": None}, {"storage": None}])
def test_an_end_that_is_over_or_of_no_storage_is_sent_nowhere(values: dict[str, Any]) -> None:
    local = stored(**values)
    assert ends(local, begun(successor=SUCCESSOR, before=BEFORE)) == ([], [])
    assert local.pending_end is None


def test_an_end_that_was_dropped_is_confirmed_once() -> None:
    local = stored()
    handovers: Any = SimpleNamespace(is_pending_end=lambda _: False)
    assert [*Handovers.on_end_answer(handovers, local, begun())] == [EndConfirmation(ENDED)]  # type: ignore[arg-type]
    assert [*Handovers.on_end_answer(handovers, local, begun())] == []
