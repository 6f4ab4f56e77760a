"""Tests of two judges on one history: the simulator's oracle, and the checker for real runs.

The judges share no code: the oracle follows each delivery, the checker numbers the publications and
searches for missing ranks. On correct swarms both find no violation; if a bug makes the oracle
report an observation of a client, the checker reports the same.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from brokerd.simulator.search.client_moves import MemoryLoss
from brokerd.simulator.search.plan import Plan, read_plan
from brokerd.simulator.search.planning.draw import is_long
from brokerd.simulator.search.swarm import plan_of
from brokerd.simulator.world.clock import NEVER_NS
from results.reference.history import History
from results.reference.rule import check
from results.rules.terms import STREAMS
from tests.helpers.oracle_histories import observe
from tests.helpers.promised_histories import ALL, CASES, promised_history, with_noise
from tests.helpers.swarm_histories import Recorder

SOUND = range(10)
PLANS = Path(__file__).parent / "plans"

ALIKE = {
    "gap": ("missing",),
    "duplicate": ("duplicate",),
    "order": ("reordered", "duplicate", "withheld_delivered"),
    "incomplete": ("missing",),
    "unwanted": ("wrong_match",),
    "phantom": ("phantom", "corrupted"),
}
"""The oracle's rules, and the equivalent rules of the checker."""


def _with_one_life_each(seed: int) -> Plan:
    """Return the plan of a seed without forgetful or expired clients: a history has one of each."""
    plan = plan_of(seed, "delta_tree")
    parameters = replace(plan.parameters, client_linger_ns=NEVER_NS, client_subscriptions=1_000)
    kept = [move for move in plan.moves if type(move) is not MemoryLoss]
    return replace(plan, parameters=parameters).with_moves(kept)


@pytest.mark.parametrize("first", range(SOUND.start, SOUND.stop, 10))
def test_both_find_nothing_in_sound_swarms(first: int) -> None:
    streams = 0
    for seed in range(first, first + 10):
        if is_long(seed):
            continue  # ten minutes, of which the oracle says as much as of others
        recorder = Recorder(_with_one_life_each(seed))
        report, found = recorder.play()
        assert not report.violations, report.describe()
        assert not found, f"seed {seed}: {found[:5]}"
        streams += report.counters["deliveries"]
    assert streams > 500


def test_the_reference_checker_confirms_violations_of_the_oracle() -> None:
    rules = []
    for path in sorted(PLANS.glob("*.plan")):
        report, found = Recorder(read_plan(path.read_text(encoding="utf-8"))).play()
        assert report.violations, f"{path.name} has become sound"
        if report.rule in ALIKE:
            rules.append(report.rule)
            kinds = {violation.kind for violation in found}
            assert kinds & set(ALIKE[report.rule]), f"{path.name}: {report.describe()}\n{found[:5]}"
    assert rules, "no plan is wrong where a client could see it"


@pytest.mark.parametrize(
    "kind, spoil",
    [
        ("missing", lambda rows: rows.pop(len(rows) // 2)),
        ("duplicate", lambda rows: rows.append(rows[0])),
        ("reordered", lambda rows: rows.reverse()),
    ],
)
def test_a_spoilt_history_is_wrong_by_rank(kind: str, spoil: Callable[[list[Any]], object]) -> None:
    recorder = Recorder(plan_of(0, "delta_tree"))
    recorder.play()
    spoil(max((seen.delivered for seen in recorder.seen.values()), key=len))
    assert kind in {violation.kind for violation in recorder.judge(ended=True)}


# ---------------------------------------------------------------- what protocols promise

PROMISED_ALIKE = {
    "gap": {"missing", "fence_missing", "reordered", "gap_early"},
    "silent": {"missing", "fence_missing", "reordered"},
    "incomplete": {"missing", "fence_missing"},
    "order": {"reordered", "duplicate"},
    "duplicate": {"duplicate"},
    "total order": {"order_differs"},
    "gap unpromised": {"gap_unpromised", "gap_early"},
    "gap delivered": {"gap_delivered"},
    "gap early": {"gap_early"},
}

OF_STREAMS = {"place_back", "place_taken", "place_order", "reordered"}
"""Rules that the oracle cannot judge if the order is of topics or streams."""


def agree(history: History, name: str) -> Counter[str]:
    """Check that both judges report the same kinds; return the findings."""
    counts, oracle = check(history).counts, observe(history)
    told = {kind for rule in oracle.violations for kind in PROMISED_ALIKE[rule]}
    found = {*counts.violations} - (OF_STREAMS if history.order in STREAMS else set())
    assert found <= told, f"{name}: {counts.violations}, {oracle.violations}"
    for rule in oracle.violations:
        assert PROMISED_ALIKE[rule] & {*counts.violations}, f"{name}: {oracle.first_violations}"
    assert oracle.arrivals.redelivered == counts.redelivered, name
    return Counter([*oracle.violations])


OF_PUBLISHERS = [name for name in CASES if not name.startswith("a_gap_of_positions")]
"""Cases whose gaps name publishers. The oracle has no streams without a publisher."""


@pytest.mark.parametrize("name", OF_PUBLISHERS)
def test_both_judges_judge_by_the_promise(name: str) -> None:
    for seed in range(12):
        rng = Random(seed)
        agree(CASES[name].change(promised_history(rng, CASES[name].promises), rng), f"seed {seed}")


def _told_in_time(history: History) -> History:
    """Return the history with each gap announced before all later events, as the oracle requires.

    Absences explain nothing here: the oracle judges both parts of a partly explained gap alike.
    """
    logs = []
    for log in history.subscriptions:
        gaps = []
        for gap in log.gaps:
            behind = [
                place
                for place, row in enumerate(log.delivered)
                if row.source == gap.source and row.sequence >= gap.first
            ]
            gaps.append(replace(gap, place=min([gap.place, *behind])))
        logs.append(replace(log, gaps=gaps))
    promises = replace(history.promises, absence_gaps=())
    return replace(history, subscriptions=logs, promises=promises)


def test_both_agree_on_whatever_may_be_promised_and_happen() -> None:
    found: Counter[str] = Counter()
    for seed in range(400):
        rng = Random(seed)
        history = _told_in_time(with_noise(promised_history(rng, ALL), rng))
        found += agree(history, f"seed {seed}")
    assert {rule for rule in PROMISED_ALIKE if found[rule] >= 10} == {*PROMISED_ALIKE}, found
