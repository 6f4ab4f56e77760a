"""Tests of the online checker's comparison of subscriptions in a process with the reference."""

from random import Random

import pytest

from bench.load import online_checker
from bench.load.online_checker import COMPARED, SharedOrder
from results.reference.rule import check
from tests.helpers.online import Online
from tests.helpers.promised_histories import CASES, promised_history

SENT_AGAIN = "what_is_sent_again_after_a_loss_has_another_place"
IN_TOTAL_ORDER = [name for name in CASES if CASES[name].promises.order == "total"]


@pytest.mark.parametrize("name", IN_TOTAL_ORDER)
def test_pairs_that_differ_are_counted_as_the_reference_does(name: str) -> None:
    """Four subscriptions to two publishers, with histories exchanged at one place."""
    case = CASES[name]
    for seed in range(12):
        rng = Random(seed)
        history = case.change(promised_history(rng, case.promises), rng)
        order = Online(history).checker.order
        assert order is not None
        counted = check(history).counts.violations.get("order_differs", 0)
        assert bool(counted) == ("order_differs" in case.kinds)
        if name == SENT_AGAIN:  # a load generator cannot read the acts of brokers
            assert order.differing_pairs >= counted
        else:
            assert order.differing_pairs == counted


def random_logs(seed: int) -> list[list[int]]:
    rng = Random(seed)
    order = rng.sample(range(1, 41), 40)
    logs = [[one for one in order if rng.random() < 0.7] for _ in range(5)]
    for log in logs[: seed % 3]:
        place = rng.randrange(len(log) - 3)
        log[place : place + 3] = rng.sample(log[place : place + 3], 3)
    return logs


def differing(logs: list[list[int]]) -> int:
    """Return the number of pairs of logs with different orders of their common entries."""
    pairs = [(a, b) for number, a in enumerate(logs) for b in logs[:number]]
    return sum([x for x in a if x in b] != [x for x in b if x in a] for a, b in pairs)


def test_however_deliveries_are_interleaved_the_same_pairs_differ() -> None:
    found = 0
    for seed in range(60):
        logs, rng = random_logs(seed), Random(seed)
        order = SharedOrder([f"s{number}" for number in range(5)])
        waiting = [(number, iter(log)) for number, log in enumerate(logs)]
        while waiting:
            number, rest = rng.choice(waiting)
            part = [one for _, one in zip(range(3), rest, strict=False)]
            order.got(f"s{number}", "p1/0", 1, part)
            order.got(f"s{number}", "p1/0", 1, part[:1])  # again
            if not part:
                waiting.remove((number, rest))
        assert order.differing_pairs == differing(logs), seed
        found += order.differing_pairs
    assert found > 60


def test_the_memory_of_the_shared_order_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last publications and the first subscriptions are retained."""
    monkeypatch.setattr(online_checker, "_KEPT", 4)
    order = SharedOrder([f"s{number}" for number in range(COMPARED + 1)])
    for name in ("s0", f"s{COMPARED}"):
        order.got(name, "p1/0", 1, range(1, 10))
    order.got("s1", "p1/0", 1, [2, 1, 9, 8])
    assert order.differing_pairs == 1, "9 and 8 are remembered, 2 and 1 are not"
    assert len(order._places) <= 5
    order.got(f"s{COMPARED}", "p1/0", 1, [9, 8, 7])
    assert order.differing_pairs == 1
