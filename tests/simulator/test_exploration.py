"""Stories of exploration: all states of small worlds, and shortest histories of planted bugs."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from brokerd.errors import ConfigError
from brokerd.model.client_messages import PublishAcknowledged
from brokerd.simulator.checks.protocol_checks import with_bugs
from brokerd.simulator.search.exploration.exploration import Exploration
from brokerd.simulator.search.exploration.fingerprint import Fingerprints
from brokerd.simulator.search.exploration.history_file import (
    HistoryError,
    read_history,
    write_history,
)
from brokerd.simulator.search.exploration.reduction import is_independent
from brokerd.simulator.search.exploration.small_world import SmallWorld, WorldState
from brokerd.simulator.search.exploration.snapshots import Snapshots
from tests.helpers.kept_objects import list_kept_objects

ROOT = Path(__file__).parents[2]
PROTOCOLS = ("best_effort", "delta_tree", "gryphon", "durable", "ges", "ges_reliable")
TINY = SmallWorld(brokers=2, publications=1, faults=0)


def explore(world: SmallWorld, *, reduced: bool = True, delays: int | None = None) -> Exploration:
    """Return the exploration of a world, after its end."""
    exploration = Exploration(world, is_reduced=reduced, delay_bound=delays)
    with with_bugs(world.mutants, world.protocol):
        for _ in exploration.run():
            pass
    return exploration


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_tiny_world_of_each_protocol_is_complete_without_a_violation(protocol: str) -> None:
    found = explore(replace(TINY, protocol=protocol)).progress
    assert found.finding is None
    assert found.is_complete
    assert found.transitions > 60
    assert found.finals > 0, "no history ends with everything delivered"


def test_a_tiny_world_of_proxies_has_no_violation_within_one_delay() -> None:
    found = explore(replace(TINY, protocol="multi_proxy"), delays=1).progress
    assert found.finding is None
    assert found.is_complete
    assert found.finals > 0, "no history ends with everything delivered"


TWINS = (
    replace(TINY, protocol="best_effort", brokers=3),
    replace(TINY, protocol="best_effort", faults=1, kinds=("leave",)),
    replace(TINY, protocol="delta_tree"),
    replace(TINY, protocol="gryphon"),
    replace(TINY, protocol="ges", publications=2),
    replace(TINY, protocol="ges_reliable"),
)


@pytest.mark.parametrize("world", TWINS, ids=lambda world: f"{world.protocol}-{world.faults}")
def test_a_reduced_search_reaches_the_same_ends_and_marks_with_fewer_states(
    world: SmallWorld,
) -> None:
    reduced, plain = explore(world), explore(world, reduced=False)
    assert reduced.ends == plain.ends
    assert len(reduced.ends) > 2
    assert reduced.progress.marks.keys() == plain.progress.marks.keys()
    assert reduced.progress.states < plain.progress.states
    assert reduced.progress.transitions < plain.progress.transitions


def test_a_search_counts_the_marks_that_its_steps_reach() -> None:
    found = explore(replace(TINY, protocol="gryphon")).progress
    assert {"filter-sent", "starts-announced"} <= found.marks.keys()


PROMPT_TWINS = (
    replace(TINY, protocol="best_effort", brokers=3, publications=2),
    replace(TINY, protocol="best_effort", faults=1, kinds=("crash",)),
    replace(TINY, protocol="gryphon"),
)


@pytest.mark.parametrize("world", PROMPT_TWINS, ids=lambda each: f"{each.protocol}-{each.faults}")
def test_a_search_without_lag_reaches_the_same_ends_with_and_without_reduction(
    world: SmallWorld,
) -> None:
    prompt = replace(world, has_lag=False)
    reduced, plain = explore(prompt), explore(prompt, reduced=False)
    assert reduced.progress.is_complete
    assert reduced.ends == plain.ends
    assert plain.progress.marks.keys() <= reduced.progress.marks.keys()
    assert reduced.progress.states < plain.progress.states


@pytest.mark.parametrize("protocol", ["best_effort", "delta_tree"])
def test_the_ends_without_lag_are_ends_with_lag(protocol: str) -> None:
    world = replace(TINY, protocol=protocol)
    prompt, whole = explore(replace(world, has_lag=False)), explore(world)
    assert prompt.ends.keys() <= whole.ends.keys()
    assert prompt.progress.transitions < whole.progress.transitions


def test_a_broker_of_the_next_fault_acts_at_any_moment() -> None:
    state = WorldState.begin(replace(TINY, faults=1, has_lag=False))
    state.perform(("publish", "p1", 0, 1))
    state.plan("1")
    assert state.enabled() == [("p1>0",)]
    state.plan("0")
    assert ("crash", 0, 0) in state.enabled()


def test_only_deliveries_at_different_brokers_are_independent() -> None:
    assert is_independent(("0>1",), ("1>2",))
    assert is_independent(("0>1#1",), ("2:disk",))
    assert not is_independent(("0>1",), ("2>1",))
    assert not is_independent(("0>1",), ("2:dials:1",))
    assert not is_independent(("0>1",), ("0>s1",))
    assert not is_independent(("0>1",), ("crash", 2, 0))


def test_a_delay_bound_covers_a_part_of_the_world() -> None:
    world = replace(TINY, protocol="best_effort")
    bounded, whole = explore(world, delays=0), explore(world, reduced=False)
    assert bounded.progress.is_complete
    assert {each[:16] for each in bounded.fingerprints} < whole.fingerprints


LEAVES = (
    (range(1), range(2)),
    (bytearray(b"a"), bytearray(b"b")),
    (deque((1,)), deque((2,))),
    ({1}, {2}),
    ([1, 2], [2, 1]),
    ({1: 2, 3: 4}, {3: 4, 1: 2}),
)


@pytest.mark.parametrize("one, other", LEAVES, ids=lambda leaf: type(leaf).__name__)
def test_different_contents_have_different_fingerprints(one: object, other: object) -> None:
    fingerprints = Fingerprints()
    assert fingerprints.digest([one], 0) != fingerprints.digest([other], 0)
    assert fingerprints.digest([one], 0) == fingerprints.digest([copy(one)], 0)


def test_a_record_and_its_copy_are_the_same_value() -> None:
    fingerprints, run = Fingerprints(), PublishAcknowledged(1, 2)
    assert fingerprints.digest([run, run], 0) == fingerprints.digest([run, copy(run)], 0)


def test_a_class_without_readable_contents_is_refused() -> None:
    with pytest.raises(AssertionError, match="leaves out the contents of <class 'slice'>"):
        Fingerprints().digest([slice(1)], 0)


def test_a_world_returns_to_each_snapshot_and_goes_on_from_it() -> None:
    state = WorldState.begin(replace(TINY, protocol="delta_tree"))
    fingerprints, snapshots = Fingerprints(), Snapshots(state)
    visited = []
    for _ in range(8):
        visited.append((snapshots.take(), fingerprints.of(state), state.enabled()))
        state.perform(state.enabled()[-1])
    for snapshot, fingerprint, enabled in (*reversed(visited), *visited):
        snapshots.restore(snapshot)
        assert (fingerprints.of(state), state.enabled()) == (fingerprint, enabled)
        state.perform(enabled[-1])
        assert fingerprints.of(state) != fingerprint


def test_snapshots_share_the_cores_that_no_action_has_touched() -> None:
    state = WorldState.begin(replace(TINY, protocol="delta_tree", brokers=3))
    snapshots = Snapshots(state)
    state.perform(("publish", "p1", 0, 1))
    before = snapshots.take()
    state.perform(("p1>0",))
    after = snapshots.take()
    assert [before.parts[number] is after.parts[number] for number in range(3)] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("protocol", ["delta_tree", "gryphon", "durable"])
def test_a_restart_after_a_crash_always_leads_to_the_same_state(protocol: str) -> None:
    state = WorldState.begin(replace(TINY, protocol=protocol, faults=1))
    fingerprints = Fingerprints()
    snapshots = Snapshots(state)
    before, found = snapshots.take(), {}
    for _ in range(4):
        snapshots.restore(before)
        state.perform(("crash", 0, 0))
        state.perform(("restart", 0))
        found[fingerprints.of(state)] = None
    assert len(found) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_checks_keep_no_objects_of_cores(protocol: str) -> None:
    state = WorldState.begin(replace(TINY, protocol=protocol, faults=1))
    random, kept = Random(3), dict[str, None]()
    for _ in range(30):
        if enabled := state.enabled():
            state.perform(random.choice(enabled))
            kept |= dict.fromkeys(list_kept_objects(state))
    assert not kept


BUGS: Sequence[tuple[str, str, str]] = (
    ("gryphon", "M04-done-with-the-first", "final early"),
    ("gryphon", "M08-seen-before-durable", "acknowledged early"),
    ("gryphon", "final-covers-open-ticks", "final early"),
    ("durable", "announced-before-rows", "chopped early"),
    ("delta_tree", "M14", "unaware source"),
)


@pytest.mark.parametrize("protocol, bug, rule", BUGS)
def test_a_planted_bug_has_a_history_that_replays(protocol: str, bug: str, rule: str) -> None:
    world = replace(TINY, protocol=protocol, mutants=frozenset((bug,)))
    finding = explore(world).progress.finding
    assert finding is not None
    assert finding.rule == rule
    text = write_history(world, finding)
    read, actions = read_history(text)
    assert read.scene() == world.scene()
    with with_bugs(read.mutants, read.protocol):
        assert Exploration(read).play(actions) == finding
    assert Exploration(replace(read, mutants=frozenset())).play(actions) is None


@pytest.mark.parametrize("protocol, bug, rule", BUGS)
def test_a_search_without_reduction_finds_the_same_violation(
    protocol: str, bug: str, rule: str
) -> None:
    world = replace(TINY, protocol=protocol, mutants=frozenset((bug,)))
    finding = explore(world, reduced=False).progress.finding
    assert finding is not None
    assert finding.rule == rule


def test_equal_worlds_have_equal_states_in_interpreters_with_different_hashes() -> None:
    program = (
        "from brokerd.simulator.search.exploration.exploration import Exploration\n"
        "from brokerd.simulator.search.exploration.small_world import SmallWorld\n"
        "world = SmallWorld(protocol='best_effort', brokers=2, publications=1, faults=0)\n"
        "exploration = Exploration(world)\n"
        "print([*exploration.run()][-1].transitions, sorted(exploration.fingerprints))\n"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert answers[0] == answers[1]
    assert len(answers[0]) > 500


@pytest.mark.parametrize(
    "world, words",
    [
        (SmallWorld(brokers=0), "brokers = 0; from 2 to 6"),
        (SmallWorld(publications=0), "publications = 0; from 1 to 8"),
        (SmallWorld(subscriptions=0), "subscriptions = 0; from 1 to 4"),
        (SmallWorld(faults=9), "faults = 9; from 0 to 4"),
        (SmallWorld(early=9), "early = 9; from 0 to 4"),
        (SmallWorld(kinds=("crsh",)), "no kind of fault 'crsh'; did you mean 'crash'?"),
        (
            SmallWorld(settings=("audit_interval_ns=2000000000000",)),
            "audit_interval_ns = 2000000000000: the world cannot be bounded",
        ),
    ],
)
def test_a_world_without_bounds_is_refused_by_name(world: SmallWorld, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Exploration(world)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "text, words",
    [
        ("world protocol=grypon", "line 1: no protocol 'grypon'; did you mean 'gryphon'?"),
        ("world protocol=gryphon broker=3", "line 1: unknown bound 'broker'"),
        ("world protocol=gryphon brokers=few", "line 1: brokers = 'few'; write a number"),
        ("world protocol=gryphon\ndoo 1>2", "line 2: unknown word 'doo'"),
        ("world protocol=gryphon brokers=0", "brokers = 0; from 2 to 6"),
    ],
)
def test_a_history_that_cannot_be_read_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(HistoryError) as refused:
        read_history(text)
    assert words in str(refused.value)


def test_an_impossible_action_of_a_history_is_refused() -> None:
    with pytest.raises(ConfigError, match="0>1: impossible in this state"):
        Exploration(replace(TINY, protocol="best_effort")).play([("0>1",)])
