"""Tests of an adversary without a clock: in small clusters, any event may be next."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.overlay.generate import chain
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.adversary import (
    AdversaryOptions,
    run_adversaries,
    run_adversary,
    shrink_seed,
)
from brokerd.simulator.search.campaign import CAMPAIGN
from brokerd.simulator.search.seed_report import SeedReport, total
from brokerd.simulator.search.shrink import failure_of
from brokerd.simulator.world.actions import ActedCluster, Scene
from brokerd.simulator.world.network import Network
from brokerd.simulator.world.sessions import SessionEnd
from tests.helpers.delta_tree_bugs import Mutant

ROOT = Path(__file__).parents[2]
PROMISED = [name for name, row in CAMPAIGN.items() if row.bound]
MIXED_SEEDS, ROW_SEEDS = 50, 10

# What must have happened somewhere in the mixed seeds for their verdict to mean anything.
LEAST = {
    "actions": 40_000,
    "published": 2_000,
    "deliveries": 3_000,
    "owed": 3_000,
    "announced": 200,
    "at_risk": 500,
    "bypass_sessions": 300,
    "notifiers_sent": 100,
    "duplicates_at_clients": 1,
    "duplicates_received": 1_000,
    "resent_publications": 1_000,
    "messages_ignored": 20,
    "messages_lost": 500,
    "opens_failed": 200,
    "crashes_before_persisted": 8,
    "action_crash": 50,
    "action_cut": 200,
    "action_suspect": 200,
    "action_time_out": 5,
    "action_hold": 30,
    "action_stale": 15,
    "action_unsubscribe": 30,
    "action_deadline": 500,
    "action_forget": 20,
    "action_persist": 2_000,
}


def _scene(seed: int) -> Scene:
    """Return a line of four brokers with one publisher at an end."""
    return Scene(
        protocol="delta_tree",
        topology=chain(4, 1),
        parameters=DeltaTreeParameters(delta=1, assist="off"),
        publishers=(("p", 0),),
        chance=seed,
    )


def _sound(seeds: range, setting: str = "") -> list[SeedReport]:
    reports = []
    for report in run_adversaries(seeds, AdversaryOptions(setting=setting)):
        assert not report.violations, report.describe()
        reports.append(report)
    return reports


def test_delta_tree_keeps_its_promises_under_any_order_of_actions() -> None:
    ledger = total(_sound(range(MIXED_SEEDS)))
    lacking = {
        name: ledger.get(name, 0) for name, least in LEAST.items() if ledger.get(name, 0) < least
    }
    assert not lacking, f"too little of {lacking} in {ledger}"


@pytest.mark.sampled
@pytest.mark.parametrize("setting", PROMISED)
def test_a_setting_of_the_campaign_shows_no_violation(setting: str) -> None:
    ledger = total(_sound(range(ROW_SEEDS), setting))
    for what in ("deliveries", "at_risk", "announced", "notifiers_sent"):
        assert ledger[what] > ROW_SEEDS, f"too little of {what} in {ledger}"


def test_an_adversary_injects_the_failures_of_its_setting() -> None:
    assert not total(_sound(range(10), "links"))["action_crash"]
    assert total(_sound(range(10), "crashes-beyond"))["action_crash"] > 20


def test_best_effort_loses_publications_but_never_breaks_down() -> None:
    reports = list(run_adversaries(range(15), AdversaryOptions(protocol="best_effort")))
    rules = {report.rule for report in reports if report.rule}
    assert "gap" in " ".join(rule for report in reports for rule in report.violations)
    assert not [rule for rule in rules if rule.endswith("Error")], rules


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean links-beyond"):
        run_adversary(0, AdversaryOptions(setting="links-beyon"))


# ---------------------------------------------------------------- the same again


def test_a_seed_repeats_its_history_and_another_seed_differs() -> None:
    first, again, other = (run_adversary(seed) for seed in (8, 8, 9))
    assert first == again
    assert first.digest != other.digest


def _drawn(seed: int, count: int) -> ActedCluster:
    """Play a random history of lanes with a crash, a cut and a lost memory."""
    acted = ActedCluster(_scene(seed))
    acted.start()
    acted.perform(("subscribe", "s", 3, 0))
    random = Random(seed)
    verbs = [
        ("publish", "p", 0, 2), ("crash", 1, 1), ("hold", "2:disk"), ("cut", 2, 3), ("forget", "s"),
        ("suspect", 0, 1), ("time out", 1, 2), ("deadline", 2), ("stale", 0), ("restart", 1),
    ]  # fmt: skip
    for step in range(count):
        if step % 7 == 6:
            acted.perform(random.choice(verbs))
        else:
            acted.happen()
    return acted


def test_replayed_actions_reproduce_the_same_history() -> None:
    verbs = set()
    for seed in range(5):
        first = _drawn(seed, 400)
        verbs |= {action[0] for action in first.actions}
        again = ActedCluster(_scene(seed))
        again.start()
        assert all(again.perform(action) for action in first.actions)
        assert again.digest() == first.digest()
    assert {"crash", "hold", "cut", "forget", "suspect", "deadline", "restart"} <= verbs


def test_each_broker_has_a_clock_of_its_own() -> None:
    acted = ActedCluster(_scene(1))
    acted.start(pure=2)
    acted.perform(("cut", 0, 1))
    while acted.happen():
        pass
    for _ in range(3):
        assert acted.perform(("deadline", 0))
        while acted.happen():
            pass
    acted.brokers[0].history = []
    acted.perform(("publish", "p", 0, 1))
    while acted.happen():
        pass
    for number, is_late in ((0, True), (2, False)):
        events = acted.brokers[number].history
        assert events
        assert {now_ns > 0 for _, now_ns, _ in events} == {is_late}


def test_a_crash_keeps_the_stated_number_of_transactions() -> None:
    kept = []
    for count in (0, 1, 99):
        acted = ActedCluster(_scene(1))
        acted.start()
        acted.perform(("hold", "0:disk"))
        before = repr(acted.brokers[0].on_disk())
        while acted.happen():
            pass
        acted.perform(("publish", "p", 0, 1))
        while acted.happen():
            pass
        assert acted.perform(("crash", 0, count))
        kept.append(repr(acted.brokers[0].on_disk()))
        if not count:
            assert kept == [before]
    assert len(set(kept)) > 1


def test_seeds_have_equal_histories_under_any_string_hash() -> None:
    """Iteration over a set of strings would change the histories."""
    program = (
        "from brokerd.simulator.search.adversary import run_adversary\n"
        "for seed in range(6): print(run_adversary(seed).digest)"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert len(set(printed[0].split())) == 6
    assert printed[0] == printed[1]


def test_seeds_over_processes_report_what_one_process_reports() -> None:
    assert list(run_adversaries(range(6), processes=2)) == list(run_adversaries(range(6)))


def test_a_violation_reports_its_command_for_repetition() -> None:
    mutants = frozenset((Mutant.CONFIRM_ON_RECEIPT,))
    options = AdversaryOptions(setting="links", mutants=mutants, story=True)
    report = next(
        report
        for report in run_adversaries(range(10), options)
        if report.rule == "acknowledged too early"
    )
    said = report.describe()
    assert f"seed {report.seed}: after " in said
    assert "last steps:" in said
    command = f"simulate adversary --seeds {report.seed}..{report.seed} --setting links"
    assert f"pubsubctl {command} --mutant M21" in said


def test_a_history_is_cut_down_to_actions_that_are_all_needed() -> None:
    mutants = frozenset((Mutant.START_BEFORE_CONFIRMED,))
    short = shrink_seed(0, AdversaryOptions(setting="links", mutants=mutants))
    assert short is not None
    rule, _, _ = failure_of(short.scene, short.actions, to_the_end=False)
    assert rule == "unaware source"
    assert 3 < len(short.actions) < 30, short.describe()
    for place in range(len(short.actions)):
        fewer = [*short.actions[:place], *short.actions[place + 1 :]]
        rule, _, _ = failure_of(short.scene, fewer, to_the_end=False)
        assert rule != "unaware source", f"{place} is not needed in {short.describe()}"


def test_there_is_nothing_to_cut_down_where_nothing_fails() -> None:
    assert shrink_seed(0) is None


# ---------------------------------------------------------------- what an adversary may not do


class _SessionsThatGoOn(Network):
    """A network on which a cut destroys messages but the session continues."""

    def deafen(self, end: SessionEnd) -> None:
        end.lane.truncate(0)
        if not end.up:
            super().deafen(end)


def _play_flaps(seed: int, make_network: type[Network]) -> None:
    """Play a publisher and a subscriber at the ends of a line of flapping links, then settle."""
    scene = _scene(seed)
    cluster = ActedCluster(scene, make_network=make_network)
    cluster.start()
    cluster.perform(("subscribe", "s", 3, 0))
    random = Random(seed)
    for step in range(600):
        if step % 20 == 19:
            a, b = random.choice(scene.topology.links)
            cluster.perform(("cut", a, b))
            cluster.perform(("heal", a, b))
        elif step % 5 == 4:
            cluster.perform(("publish", "p", 0, 1))
        else:
            cluster.happen()
    cluster.heal_all()
    cluster.settle(random)
    cluster.oracle.judge_end()


def test_a_session_that_continues_after_a_loss_is_detected() -> None:
    """A session that has lost one message must end: the protocol relies on this rule."""
    rules = []
    for seed in range(20):
        try:
            _play_flaps(seed, _SessionsThatGoOn)
        except InvariantViolated as violation:
            rules.append(violation.rule)
        except RemoteProtocolError:
            pass  # a session without its first message
    assert "incomplete" in rules or "liveness" in rules, rules
    assert len(rules) > 5, rules


def test_the_same_flaps_do_no_harm_to_sessions_that_end() -> None:
    for seed in range(20):
        _play_flaps(seed, Network)
