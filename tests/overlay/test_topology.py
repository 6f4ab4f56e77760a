"""Tests of topology files: valid files, and errors that name the cure."""

from dataclasses import asdict

import pytest
from hypothesis import given

from brokerd.config import SessionParameters
from brokerd.errors import ConfigError
from brokerd.overlay.topology import Topology
from brokerd.protocols.best_effort.parameters import BestEffortParameters
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.registry import parameters_on, read_topology
from tests.helpers.strategies import trees

FILE = "bench/topologies/t.toml"


def mapping(**changes):
    values = {
        "schema": "pubsubctl/topology/2",
        "name": "t",
        "kind": "tree",
        "tree": {"delta": 1},
        "brokers": ["p1", "b1", "s1"],
        "links": [["p1", "b1"], ["b1", "s1"]],
    }
    return {**values, **changes}


def test_the_order_of_brokers_determines_their_numbers():
    topology = Topology.from_mapping(mapping(), FILE)
    assert [topology.number_of(name) for name in ("p1", "b1", "s1")] == [0, 1, 2]
    assert topology.links == ((0, 1), (1, 2))
    assert topology.neighbours() == ((1,), (0, 2), (1,))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"brokerz": []}, "unknown key 'brokerz'; did you mean 'brokers'?"),
        ({"schema": "pubsubctl/topology/9"}, "this reads 'pubsubctl/topology/2'"),
        ({"kind": "ring"}, "kind = 'ring'; one of tree"),
        ({"name": "../x"}, "name = '../x' is not of [a-z0-9-]"),
        ({"tree": {"delta": -1}}, "delta = -1; a whole number from 0 to 16"),
        ({"tree": {"delta": True}}, "delta = True; a whole number"),
        ({"tree": {"dleta": 1}}, "unknown key 'dleta'; did you mean 'delta'?"),
        ({"parameters": {"delta_tree": 1}}, "parameters.delta_tree: expected a table, got 1"),
        ({"parameters": {"delta_three": {}}}, "'delta_three'; did you mean 'delta_tree'?"),
        ({"parameters": {"delta_tree": {"delta": 2}}}, "delta stands in [tree]"),
        ({"parameters": {"best_effort": {"cut": "src"}}}, "unknown key 'cut'"),
        ({"parameters": {"all": {"kut": 1}}}, "unknown key 'kut'; did you mean 'cut'?"),
        (
            {"parameters": {"delta_tree": {"client_window": "9"}}},
            "client_window = '9' is not of type int",
        ),
        (
            {"parameters": {"all": {"retry_first_ns": -1}}},
            "retry_first_ns = -1 must not be negative",
        ),
        ({"parameters": 1}, "parameters: expected a table"),
        ({"session": 1}, "session: expected a table"),
        ({"session": {"hartbeat": "2s"}}, "unknown key 'hartbeat'; did you mean 'heartbeat'?"),
        ({"session": {"suspicion": 8}}, "suspicion = 8: a duration has a number and a unit"),
        ({"session": {"heartbeat": "0s"}}, "heartbeat = '0s'; from 10ms to 10min"),
        ({"session": {"heartbeat": "2s", "suspicion": "3s"}}, "at least '4s'"),
        ({"session": {"heartbeat": "2s"}}, "suspicion = '750ms' (when not given) is less than two"),
        ({"brokers": []}, "expected a list of names"),
        ({"brokers": ["p1", "b1", "p1"]}, "brokers[2] = 'p1' stands there twice"),
        ({"brokers": ["p1", "-b", "s1"]}, "brokers[1] = '-b'"),
        ({"brokers": ["p1", "$(x)", "s1"]}, "brokers[1] = '$(x)'"),
        ({"links": [["p1", "b1"], ["b1", "s2"]]}, "no broker called 's2'; did you mean 's1'?"),
        ({"links": [["p1", "b1"], ["b1", "b1"]]}, "'b1' is linked to itself"),
        ({"links": [["p1", "b1"], ["b1", "p1"]]}, "b1-p1 stands there twice"),
        ({"links": [["p1", "b1"]]}, "s1 not connected to p1"),
        ({"links": [["p1", "b1"], ["b1", "s1"], ["s1", "p1"]]}, "s1 closes a cycle"),
        ({"links": [["p1"]]}, "links[0] = ['p1'] is not a pair"),
        ({"links": "p1-b1"}, "expected a list of pairs"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place_and_cure(changes, message):
    with pytest.raises(ConfigError) as refused:
        read_topology(mapping(**changes), FILE)
    assert message in str(refused.value)
    assert str(refused.value).startswith(FILE)


def test_a_missing_key_is_named():
    values = mapping()
    del values["links"]
    with pytest.raises(ConfigError, match="key 'links' is missing"):
        Topology.from_mapping(values, FILE)


def test_an_unknown_broker_is_answered_with_the_nearest():
    topology = Topology.from_mapping(mapping(), FILE)
    with pytest.raises(ConfigError, match="no broker called 'b2'; did you mean 'b1'"):
        topology.number_of("b2")


def test_the_digest_changes_with_everything_brokers_must_agree_on():
    topology = Topology.from_mapping(mapping(), FILE)
    digest = topology.digest("delta_tree", {"delta": 1})
    assert digest == topology.digest("delta_tree", {"delta": 1})
    different = [
        topology.digest("best_effort", {"delta": 1}),
        topology.digest("delta_tree", {"delta": 2}),
        Topology.from_mapping(mapping(tree={"delta": 2}), FILE).digest("delta_tree", {}),
        Topology.from_mapping(mapping(brokers=["b1", "p1", "s1"]), FILE).digest("delta_tree", {}),
    ]
    assert digest not in different
    assert len(dict.fromkeys(different)) == len(different)


def test_more_failures_than_any_path_has_room_for_are_refused():
    topology = Topology.from_mapping(mapping(tree={"delta": 3}), FILE)
    with pytest.raises(
        ConfigError, match=r"delta = 3, but no two brokers .* 2 links apart; use 2 at"
    ):
        topology.check_delta(FILE)
    Topology.from_mapping(mapping(tree={"delta": 2}), FILE).check_delta(FILE)


@given(topology=trees())
def test_a_topology_survives_its_mapping(topology):
    assert Topology.from_mapping(topology.to_mapping(), FILE) == topology


def test_protocol_parameters_of_the_file_are_written_and_part_of_the_digest():
    plain = Topology.from_mapping(mapping(), FILE)
    own = {"delta_tree": {"client_window": 9}}
    set_up = Topology.from_mapping(mapping(parameters=own), FILE)
    assert parameters_on(plain, "delta_tree") == DeltaTreeParameters(delta=1)
    assert parameters_on(set_up, "delta_tree") == DeltaTreeParameters(delta=1, client_window=9)
    assert parameters_on(set_up, "best_effort") == BestEffortParameters()
    assert set_up.to_mapping()["parameters"] == own
    assert plain.digest("delta_tree", {}) != set_up.digest("delta_tree", {})


def test_a_file_before_parameters_were_by_protocol_means_the_same():
    """An old file has one table with delta and the parameters of any protocol."""
    flat = mapping(schema="pubsubctl/topology/1", parameters={"delta": 2, "client_window": 9})
    del flat["tree"]
    old = read_topology(flat, FILE)
    new = read_topology(mapping(tree={"delta": 2}, parameters={"all": {"client_window": 9}}), FILE)
    assert old == new
    assert parameters_on(old, "delta_tree") == DeltaTreeParameters(delta=2, client_window=9)
    with pytest.raises(ConfigError, match="unknown key 'dleta'; did you mean 'delta'"):
        read_topology({**flat, "parameters": {"dleta": 1}}, FILE)


def test_session_parameters_of_the_file_are_written_and_part_of_the_digest():
    plain = Topology.from_mapping(mapping(), FILE)
    slow = Topology.from_mapping(mapping(session={"heartbeat": "2s", "suspicion": "8s"}), FILE)
    written = Topology.from_mapping(
        mapping(session={"heartbeat": "2000ms", "suspicion": "8s"}), FILE
    )
    assert plain.session_parameters() == SessionParameters()
    assert slow.session_parameters() == SessionParameters(
        heartbeat_ns=2_000_000_000, suspicion_ns=8_000_000_000
    )
    assert slow.to_mapping()["session"] == {"heartbeat": "2s", "suspicion": "8s"}
    assert "session" not in plain.to_mapping()
    assert plain.digest("delta_tree", {}) != slow.digest("delta_tree", {})
    assert written.digest("delta_tree", {}) == slow.digest("delta_tree", {})


def test_brokers_agree_on_a_profile_and_its_switches():
    """A profile supplies the values that are not set."""
    paper = Topology.from_mapping(mapping(parameters={"delta_tree": {"profile": "paper"}}), FILE)
    told = parameters_on(paper, "delta_tree")
    assert (told.accept, told.tag_eval, told.cut) == ("late", "pt", "full")
    assert (told.dedupe, told.legitimacy) == ("vector", "hold")
    mixed = {"profile": "paper", "dedupe": "source"}
    mixture = Topology.from_mapping(mapping(parameters={"delta_tree": mixed}), FILE)
    by_source = parameters_on(mixture, "delta_tree")
    assert (by_source.accept, by_source.dedupe) == ("late", "source")
    digests = [
        paper.digest("delta_tree", asdict(parameters))
        for parameters in (told, by_source, told.in_profile("robust"))
    ]
    assert len(set(digests)) == 3
    assert told.in_profile("robust") == DeltaTreeParameters()


@pytest.mark.parametrize(
    "parameters, said",
    [
        ({"accept": "late"}, "accept = 'late' with cut = 'src' .* needs cut = 'full'"),
        ({"profile": "paper", "cut": "src"}, "accept = 'late' with cut = 'src'"),
        ({"dedupe": "vector"}, "'vector' with legitimacy = 'observe' .* legitimacy = 'hold'"),
        ({"profile": "paper", "legitimacy": "observe"}, "dedupe = 'vector' with legitimacy"),
    ],
)
def test_switches_that_lose_publications_together_are_refused(parameters, said):
    with pytest.raises(ConfigError, match=rf"{FILE}: parameters\.delta_tree: .*{said}"):
        read_topology(mapping(parameters={"delta_tree": parameters}), FILE)


@pytest.mark.parametrize(
    "parameters",
    [
        {"accept": "late", "cut": "full"},
        {"cut": "full"},
        {"profile": "paper", "dedupe": "source", "legitimacy": "observe"},
        {"legitimacy": "hold"},
        {"dedupe": "both"},
    ],
)
def test_switches_that_bear_each_other_are_taken(parameters):
    read_topology(mapping(parameters={"delta_tree": parameters}), FILE)


@pytest.mark.parametrize("name", ["profile", "accept", "tag_eval", "cut"])
def test_a_switch_that_does_not_exist_is_refused_with_those_that_do(name):
    with pytest.raises(ConfigError, match=f"{name} = 'often'; one of "):
        read_topology(mapping(parameters={"delta_tree": {name: "often"}}), FILE)
