"""Tests that no option of the command line is lost between its class and its destination."""

from dataclasses import fields
from typing import Any

import pytest

from brokerd.simulator.checks.protocol_checks import bug_names
from brokerd.simulator.search.campaign import CAMPAIGN
from pubsubctl.commands.options.global_options import GlobalOptions
from pubsubctl.commands.options.runs import SeriesOptions
from pubsubctl.commands.options.simulation import SeedOptions, WorldOptions
from pubsubctl.commands.options.workload import LoadOptions
from pubsubctl.console.console import Console
from pubsubctl.console.invocation import Invocation

LOAD: dict[str, Any] = {
    "protocol": "gryphon",
    "topology": "chain3",
    "seed": 7,
    "rate": "25/s",
    "duration": "10s",
    "warmup": "2s",
    "size": "100B",
    "publishers": 3,
    "subscribers": 4,
    "no_churn": True,
    "records": "hist",
    "settings": ["phases.drain=5s"],
}


def changed(name: str, value: Any) -> dict[str, Any]:
    return LoadOptions(**{name: value}).overrides().as_mapping()


def test_each_option_of_a_load_replaces_its_own_value() -> None:
    assert {*LOAD} == {each.name for each in fields(LoadOptions)}
    names = {"duration": "measure", "no_churn": "churn", "settings": "keys"}
    values = {"no_churn": False, "settings": {"phases.drain": "5s"}}
    assert LoadOptions().overrides().as_mapping() == {}
    for name, value in LOAD.items():
        assert changed(name, value) == {names.get(name, name): values.get(name, value)}
    found = LoadOptions(**LOAD).overrides()
    assert found.is_typed
    assert {*LoadOptions(**LOAD).given()} == {
        f"--{name}" for name in LOAD if name not in ("settings", "no_churn")
    } | {"--set", "--no-churn"}


def test_each_option_of_a_series_reaches_its_runs() -> None:
    usual = SeriesOptions().habits()
    assert (usual.labels, usual.check, usual.teardown) == ({}, True, True)
    found = SeriesOptions(labels=["a=b"], check=False, no_teardown=True).habits()
    assert (found.labels, found.check, found.teardown) == ({"a": "b"}, False, False)
    assert SeriesOptions(no_teardown=True).list_given() == ["--no-teardown"]
    assert SeriesOptions(check=False).list_given() == ["--no-check"]
    assert SeriesOptions(labels=["a=b"]).list_given() == ["--label"]


def test_each_option_of_a_swarm_reaches_its_seeds() -> None:
    mutant, row = sorted(bug_names())[0], next(iter(CAMPAIGN))

    for given in (
        {"mutants": [mutant]},
        {"campaign": row},
        {"profile": "paper"},
        {"settings": ["queue_limit=5"]},
        {"moves": True},
    ):
        chosen: Any = {"protocol": "delta_tree", **given}
        found = SeedOptions(**chosen).check(Console())
        usual = SeedOptions(protocol="delta_tree").check(Console())
        differs = {
            each.name
            for each in fields(type(found))
            if getattr(found, each.name) != getattr(usual, each.name)
        }
        assert differs == {*given}


WORLD: dict[str, Any] = {
    "protocol": "gryphon",
    "brokers": 4,
    "publications": 3,
    "subscriptions": 2,
    "faults": 0,
    "kinds": ["crash"],
    "early": 1,
    "has_lag": False,
}


@pytest.mark.parametrize("name", WORLD)
def test_each_bound_of_a_small_world_reaches_it(name: str) -> None:
    usual = WorldOptions(protocol="delta_tree").world(frozenset(), ())
    chosen = {"protocol": "delta_tree", name: WORLD[name]}
    found = WorldOptions(**chosen).world(frozenset(), ())
    value = tuple(WORLD[name]) if name == "kinds" else WORLD[name]
    assert getattr(found, name) == value != getattr(usual, name)


def test_each_global_option_reaches_the_invocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUBSUBCTL_FORKS", raising=False)
    call = Invocation()
    GlobalOptions(
        inventory_file="lab", limit=["n1", "n2"], forks=3, use_ssh_config=True, dry_run=True,
        yes=True, verbose=2, quiet=False, as_json=True, color="never", no_progress=True,
    ).apply(call)  # fmt: skip
    assert (call.inventory_option, call.limit, call.forks_option) == ("lab", ("n1", "n2"), 3)
    assert (call.use_ssh_config, call.dry_run, call.yes) == (True, True, True)
    GlobalOptions().apply(call)
    assert (call.inventory_option, call.limit, call.forks_option) == (None, (), None)
    assert (call.use_ssh_config, call.dry_run, call.yes) == (False, False, False)
