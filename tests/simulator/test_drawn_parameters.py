"""Tests of parameters drawn by seeds: all except those that a planning names with a reason."""

import re
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from brokerd.errors import ConfigError
from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.checks.growth import with_limits
from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.checks.protocol_checks import limits_of, planning_of
from brokerd.simulator.search.adversary import AdversaryOptions, command_for, run_adversary
from brokerd.simulator.search.move import PlanError
from brokerd.simulator.search.plan import read_plan, with_settings, write_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.planning.draw import draw_plan
from brokerd.simulator.search.swarm import SwarmOptions, plan_of, run_seed

PLANS = 230
"""Some parameters are drawn by later seeds only, so that earlier seeds keep their histories."""
SLOW = (12,)


def _drawn(protocol: str) -> dict[str, set[Any]]:
    """Return the values of each parameter in the first plans of a protocol."""
    found: dict[str, set[Any]] = {}
    for seed in range(PLANS):
        parameters = draw_plan(seed, protocol).parameters
        for item in fields(parameters):
            found.setdefault(item.name, set()).add(getattr(parameters, item.name))
    return found


@pytest.mark.parametrize("protocol", sorted(DEFINITIONS))
def test_seeds_draw_every_parameter_but_those_that_are_fixed_for_a_reason(protocol: str) -> None:
    drawn, fixed = _drawn(protocol), planning_of(protocol).fixed
    alone = {name for name, values in drawn.items() if len(values) == 1}
    assert alone == set(fixed)
    assert all(fixed.values()), "each with its reason"


def test_a_parameter_with_one_value_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProtocolPlanning, "rare", {})
    drawn = _drawn("best_effort")
    assert {name for name, values in drawn.items() if len(values) == 1} == {
        "client_subscriptions",
        "client_linger_ns",
    }


@pytest.mark.parametrize("protocol", sorted(DEFINITIONS))
def test_a_plan_with_rare_values_and_lower_limits_equals_the_plan_of_its_text(
    protocol: str,
) -> None:
    plans = [draw_plan(seed, protocol) for seed in range(40)]
    assert any(plan.limits for plan in plans)
    assert all(read_plan(write_plan(plan)) == plan for plan in plans)


# ------------------------------------------------------------ limits in the code


@pytest.mark.parametrize("protocol", sorted(DEFINITIONS))
def test_every_limit_is_a_constant_that_its_module_uses(protocol: str) -> None:
    for limit in limits_of(protocol):
        source = Path(str(import_module(limit.module).__file__)).read_text("utf-8")
        assert len(re.findall(rf"\b{limit.constant}\b", source)) > 1, limit
        usual = getattr(import_module(limit.module), limit.constant)
        with with_limits([(limit.name, limit.values[0])]):
            assert getattr(import_module(limit.module), limit.constant) == limit.values[0] < usual
        assert getattr(import_module(limit.module), limit.constant) == usual


def test_a_limit_that_is_not_there_is_refused_with_the_nearest() -> None:
    text = write_plan(draw_plan(0, "gryphon"))
    text += "lowered brokerd.protocols.gryphon.knowledge._SCATERED=3\n"
    with pytest.raises(PlanError, match=r"no limit .*did you mean .*_SCATTERED"):
        read_plan(text)


def test_brokers_that_crash_behind_low_limits_lose_nothing() -> None:
    plan = replace(
        plan_of(4, "gryphon"),
        limits=(
            ("brokerd.protocols.gryphon.pubend._LOGGED_RECORDS", 1),
            ("brokerd.protocols.gryphon.knowledge._SCATTERED", 1),
            ("brokerd.protocols.gryphon.knowledge._RUN_EVENTS", 3),
        ),
    )
    report = PlanRun(plan).report(4, "")
    assert not report.violations, report.describe()


# ------------------------------------------------------------ values that were never drawn


@pytest.mark.parametrize("protocol, seed", [("gryphon", 8), ("durable", 4)])
def test_a_run_in_messages_of_one_event_may_exceed_a_window_as_one_message_may(
    protocol: str, seed: int
) -> None:
    """Rule `window` mistook each message for a run, and raised an alarm."""
    report = run_seed(seed, protocol, SwarmOptions(settings=("events_per_message=1",)))
    assert not report.violations, report.describe()


def test_a_window_that_counts_one_message_of_a_run_is_seen() -> None:
    options = SwarmOptions(
        mutants=frozenset(("answers-unbounded",)), settings=("events_per_message=1",)
    )
    rules = {run_seed(seed, "gryphon", options).rule for seed in range(4, 10)}
    assert "window" in rules


def test_the_growth_rule_scales_with_the_number_of_streams() -> None:
    """Rule `growth` assumed four pubends at each broker."""
    report = run_seed(24, "gryphon", SwarmOptions(settings=("pubends=16",)))
    assert not report.violations, report.describe()


def test_a_broker_that_ends_for_being_slow_is_started_again() -> None:
    """The faults of the broker assumed that it was running."""
    settings = (
        *("slow_link_ns=50_000_000", "slow_broker_ns=240_000_000"),
        "cost_check_ns=40_000_000",
    )
    reports = [run_seed(seed, "ges", SwarmOptions(settings=settings)) for seed in SLOW]
    assert not [report.violations for report in reports if report.violations]
    assert all(report.counters["brokers_ended"] for report in reports)


@pytest.mark.parametrize("protocol, seed", [("gryphon", 6), ("durable", 12), ("multi_proxy", 12)])
def test_a_client_that_is_disconnected_beyond_its_linger_time_restarts(
    protocol: str, seed: int
) -> None:
    settings = ("client_linger_ns=1_000_000_000",)
    report = run_seed(seed, protocol, SwarmOptions(settings=settings))
    assert not report.violations, report.describe()


# ------------------------------------------------------------ --set


@pytest.mark.parametrize("value", ["true", "True", "TRUE"])
def test_a_boolean_may_be_written_in_any_case(value: str) -> None:
    plan = plan_of(0, "delta_tree", SwarmOptions(settings=(f"publication_log={value}",)))
    assert plan.parameters.publication_log is True


@pytest.mark.parametrize(
    "setting, value",
    [
        ("client_window=1_000", 1_000),
        ("client_window=0x10", 16),
        ("client_window=1e3", 1_000),
        ("client_window = 7", 7),
        ('switch="drain"', "drain"),
        ("switch=drain", "drain"),
    ],
)
def test_a_value_may_be_written_as_in_a_topology_file(setting: str, value: Any) -> None:
    plan = with_settings(draw_plan(0, "delta_tree"), (setting,))
    assert getattr(plan.parameters, setting.partition("=")[0].strip()) == value


@pytest.mark.parametrize(
    "setting, complaint",
    [
        ("client_window=many", "not of type int"),
        ("client_window=1.5", "not of type int"),
        ("client_window=true", "not of type int"),
        ("publication_log=yes", "not of type bool"),
        ("client_window", "write client_window=VALUE"),
        ("client_windo=3", "did you mean"),
        ("client_window=1\nx = 2", "not of type int"),
    ],
)
def test_an_invalid_parameter_value_is_refused(setting: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        with_settings(draw_plan(0, "delta_tree"), (setting,))


@pytest.mark.parametrize(
    "protocol, setting, complaint",
    [
        ("ges_reliable", "partition_policy=readdress", "'stay' or 'induce_roam'"),
        ("durable", "hold_lease_ns=0", "at least"),
        ("gryphon", "nack_chunk_ns=0", "at least"),
        ("multi_proxy", "ownership=none", "ownership"),
    ],
)
def test_a_value_that_no_topology_may_have_is_refused_in_simulations_too(
    protocol: str, setting: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        with_settings(draw_plan(0, protocol), (setting,))


def test_an_adversary_accepts_parameters_and_repeats_them_in_its_command() -> None:
    options = AdversaryOptions(protocol="gryphon", settings=("events_per_message=1",))
    plain = run_adversary(3, AdversaryOptions(protocol="gryphon"))
    report = run_adversary(3, options)
    assert not report.violations
    assert report.digest != plain.digest
    assert command_for(3, options).endswith(" --protocol gryphon --set events_per_message=1")
