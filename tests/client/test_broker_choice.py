"""Tests of the choice among brokers of a list: order, pauses and exclusions."""

from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from brokerd.client.application import ClientError
from brokerd.client.broker_choice import REDIRECTED_FOR_S, AllRefused, Attempt, Brokers
from brokerd.client.mobility import move


def attempts(brokers: Brokers, count: int, *, may_leave: bool = True) -> list[tuple[str, float]]:
    """Return address and pause of `count` attempts that fail."""
    steps = [brokers.failed(may_leave=may_leave) for _ in range(count)]
    return [(step.address, step.pause_s) for step in steps]


def test_brokers_are_tried_in_order_with_one_pause_per_round() -> None:
    brokers = Brokers(["a", "b", "c"])
    assert brokers.address == "a"
    assert attempts(brokers, 7) == [
        ("b", 0), ("c", 0), ("a", 0.1), ("b", 0), ("c", 0), ("a", 0.2), ("b", 0),
    ]  # fmt: skip
    pauses = [pause_s for _, pause_s in attempts(brokers, 30) if pause_s]
    assert pauses == [0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]


Act = Callable[[Brokers], Attempt | AllRefused]


def draw_act(random: Random) -> Act:
    """Return a failure or a refusal at the present broker."""
    may_leave = random.random() < 0.8
    if random.random() < 0.3:
        return lambda brokers: brokers.on_refusal("full", may_leave=may_leave)
    spoken = random.random() < 0.3
    return lambda brokers: brokers.failed(may_leave=may_leave, spoken=spoken)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_client_that_was_attached_tries_brokers_like_a_new_one(
    *, seed: int, is_lost: bool
) -> None:
    random = Random(seed)
    addresses = ["a", "b", "c"][: random.choice((1, 2, 3))]
    used, new = Brokers(addresses), Brokers(addresses)
    for _ in range(random.randrange(9)):
        draw_act(random)(used)
    new.address = used.address
    if is_lost:
        assert used.on_lost() == new.on_lost()
    used.attached()
    new.attached()
    for _ in range(12):
        act = draw_act(random)
        assert act(used) == act(new)
        assert used.address == new.address


def test_the_pause_begins_anew_after_a_session_of_any_length() -> None:
    brokers = Brokers(["a"])
    assert attempts(brokers, 3)[-1] == ("a", 0.4)
    assert brokers.failed(may_leave=True, spoken=True) == Attempt("a", 0.1)
    assert attempts(brokers, 1) == [("a", 0.2)]


def test_a_client_continues_its_list_behind_the_broker_it_starts_with() -> None:
    brokers = Brokers(["a", "b", "c"])
    assert attempts(brokers.starting_with("b"), 3) == [("c", 0), ("a", 0), ("b", 0.1)]
    assert attempts(brokers.starting_with("x"), 4) == [("a", 0), ("b", 0), ("c", 0), ("x", 0.1)]
    assert attempts(Brokers(["a"]).starting_with("x"), 2) == [("x", 0.1), ("x", 0.2)]


def test_a_redirect_within_the_list_repeats_no_broker() -> None:
    brokers = Brokers(["a", "b"])
    assert brokers.on_redirect(["b"], 0.0)
    assert brokers.on_lost() == Attempt("b", 0.0)
    assert attempts(brokers, 4) == [("a", 0), ("b", 0.1), ("a", 0), ("b", 0.2)]


def test_a_single_broker_that_refuses_is_the_end_without_an_address() -> None:
    assert Brokers(["a"]).on_refusal("full", may_leave=True) == AllRefused("full")


def test_a_single_broker_is_tried_again_after_pauses_that_grow() -> None:
    assert attempts(Brokers(["a"]), 3) == [("a", 0.1), ("a", 0.2), ("a", 0.4)]


def test_a_pinned_client_stays_at_its_broker() -> None:
    brokers = Brokers(["a", "b"])
    assert attempts(brokers, 2, may_leave=False) == [("a", 0.1), ("a", 0.2)]
    brokers.pinned = True
    assert attempts(brokers, 1) == [("a", 0.4)]


def test_the_broker_it_has_is_tried_once_more_before_another() -> None:
    brokers = Brokers(["a", "b", "c"])
    attempts(brokers, 1)
    brokers.attached()
    assert brokers.on_lost() == Attempt("b", 0.1)
    assert attempts(brokers, 3) == [("c", 0), ("a", 0), ("b", 0.2)]


def test_a_repeated_address_counts_once() -> None:
    assert attempts(Brokers(["a", "b", "a"]), 2) == [("b", 0), ("a", 0.1)]


def test_a_client_refused_by_all_brokers_fails_with_each_reason() -> None:
    brokers = Brokers(["a", "b"])
    assert brokers.on_refusal("full", may_leave=True) == Attempt("b", 0)
    assert brokers.failed(may_leave=True) == Attempt("a", 0.1)
    assert brokers.on_refusal("full", may_leave=True) == Attempt("b", 0)
    assert brokers.on_refusal("unknown", may_leave=True) == AllRefused("a: full; b: unknown")


def test_a_refusal_counts_until_its_broker_fails_in_another_way() -> None:
    brokers = Brokers(["a", "b"])
    assert brokers.on_refusal("full", may_leave=True) == Attempt("b", 0)
    assert attempts(brokers, 2) == [("a", 0.1), ("b", 0)]
    assert brokers.on_refusal("full", may_leave=True) == Attempt("a", 0.2)


def test_a_refusal_where_it_has_to_stay_is_the_end() -> None:
    brokers = Brokers(["a", "b"])
    assert brokers.on_refusal("evicted", may_leave=False) == AllRefused("evicted")


def test_a_redirected_client_moves_to_the_first_configured_address() -> None:
    brokers = Brokers(["a", "b"], ["c"])
    assert attempts(brokers, 2) == [("b", 0), ("a", 0.1)], "nobody comes to c by failures alone"
    brokers.attached()
    assert not brokers.on_redirect(["x", "a"], 0.0), "it has never heard of x, and is at a"
    assert brokers.on_redirect(["x", "a", "c", "b"], 0.0)
    assert brokers.on_lost() == Attempt("c", 0.0)
    assert attempts(brokers, 3) == [("a", 0), ("b", 0), ("c", 0.1)]


def test_a_redirected_client_ignores_an_early_redirect_back() -> None:
    brokers = Brokers(["a", "b"])
    assert brokers.on_redirect(["b"], 5.0)
    brokers.on_lost()
    brokers.attached()
    assert not brokers.on_redirect(["a"], 5.0 + REDIRECTED_FOR_S - 1)
    assert brokers.address == "b"
    assert brokers.on_lost() == Attempt("b", 0.1), "a session that breaks later is one that breaks"
    assert brokers.on_redirect(["a"], 5.0 + REDIRECTED_FOR_S)
    assert brokers.on_lost() == Attempt("a", 0.0)


def test_a_pinned_client_ignores_redirects() -> None:
    brokers = Brokers(["a", "b"], ["c"])
    brokers.pinned = True
    assert not brokers.on_redirect(["b", "c"], 0.0)
    brokers = brokers.starting_with("b")
    assert brokers.on_redirect(["c"], 0.0), "what it was given holds wherever it begins"


class MovingLine:
    """A connection without a network."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.core = SimpleNamespace(
            subscriptions={}, attachment=SimpleNamespace(leaves_freely=True)
        )

    @property
    def address(self) -> str:
        return self.brokers.address

    async def move_to(self, brokers: Brokers) -> None:
        self.brokers = brokers


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_whose_move_has_ended_may_leave_its_broker_like_a_new_one(fails: bool) -> None:
    line = MovingLine(Brokers(["a", "b"]))
    pinned: list[bool] = []

    async def attach() -> None:
        pinned.append(line.brokers.pinned)
        if fails:
            raise ClientError("the new broker refuses")

    broker: Any = SimpleNamespace(line=line, occupation="", wait_attached=attach)
    before = line.brokers
    with pytest.raises(ClientError) if fails else nullcontext():
        trio.run(move, broker, "b")
    assert pinned == [True]
    assert (before.pinned, line.brokers.pinned, broker.occupation) == (False, False, "")
    assert line.address == ("a" if fails else "b")
