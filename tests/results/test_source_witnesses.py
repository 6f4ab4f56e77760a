"""Tests of fences, new incarnations and passages of brokers that were down, on objects."""

import tomllib
from types import SimpleNamespace
from typing import Any

import pytest

from results.witnesses import counters
from results.witnesses.passage import _SLACK_NS as EDGE
from results.witnesses.passage import doubts_about_passage
from results.witnesses.rows import Blockage, SourceRows
from results.witnesses.sources import _SIMULATED_LOOK_NS as LOOK
from results.witnesses.sources import _SLACK_NS as SLACK
from results.witnesses.sources import doubts_about_sources
from tests.helpers.every_protocol import topology_text

SECOND = 10**9
SOURCE, CLIENT = "c1/0", "c1-pub-1"
TIMELINE = SimpleNamespace(to_timeline=lambda ns, host: ns)
ROW = tomllib.loads(topology_text("best_effort"))
"""Three brokers in a row."""


def folder(**facts: Any) -> Any:
    """Return a complete run of processes with these facts."""
    own: dict[str, Any] = {
        "manifest": {"state": "complete"}, "is_simulated": False, "is_witnessed": True,
        "session_lines": {}, "fault_rows": (), "processes": (), "timeline": TIMELINE,
    }  # fmt: skip
    return SimpleNamespace(**own | facts)


def rows(*incarnations: SourceRows, **facts: Any) -> Any:
    """Return the counts of a source, with incarnations from 1 on."""
    return SimpleNamespace(
        sources={(SOURCE, n): of for n, of in enumerate(incarnations, start=1)},
        client_of={SOURCE: CLIENT},
        **facts,
    )


@pytest.mark.parametrize(
    "fences, count",
    [((1, 9), 0), ((2, 9), 1), ((1, 8), 1), ((1,), 1), ((1, 5, 9), 1), ((), 1)],
)
def test_a_source_has_a_fence_at_each_end(fences: tuple[int, ...], count: int) -> None:
    of = rows(SourceRows(9, fences, 0, SECOND))
    assert len([*doubts_about_sources(folder(), of)]) == count
    assert [*doubts_about_sources(folder(manifest={"state": "partial"}), of)] == []


def test_a_source_without_a_fence_is_named_so() -> None:
    (found,) = doubts_about_sources(folder(), rows(SourceRows(9, (), 0, SECOND)))
    assert "none" in found


def test_the_second_incarnation_has_the_last_fence() -> None:
    sessions = {CLIENT: ((0, "up", "c1"), (3 * SECOND, "up", "c1"))}
    for first, second, count in (((1,), (6,), 0), ((1, 9), (6,), 1), ((1,), (1, 6), 1)):
        of = rows(
            SourceRows(9, first, 0, 2 * SECOND), SourceRows(6, second, 4 * SECOND, 5 * SECOND)
        )
        assert len([*doubts_about_sources(folder(session_lines=sessions), of)]) == count


@pytest.mark.parametrize(
    "accepted_ns, fence, is_simulated, count",
    [
        (SECOND, 5, True, 0),
        (SECOND + 1, 5, True, 1),
        (SECOND - LOOK, 5, True, 0),
        (SECOND - LOOK - 1, 5, True, 1),
        (SECOND, 5, False, 1),
        (SECOND + 1, 1, True, 0),
        (None, 5, True, 1),
    ],
)
def test_a_simulated_source_opens_when_all_subscriptions_have_started(
    accepted_ns: int | None, fence: int, is_simulated: bool, count: int
) -> None:
    times = [] if accepted_ns is None else [accepted_ns, SECOND // 2]
    lines = [{"t_accepted_ns": ns} for ns in times]
    process = SimpleNamespace(host="h", lines=lambda name: lines)
    run = folder(is_simulated=is_simulated, processes=(process,))
    of = rows(SourceRows(9, (fence, 9), 0, SECOND), sent_ns=lambda *key: SECOND)
    assert len([*doubts_about_sources(run, of)]) == count


@pytest.mark.parametrize(
    "up_ns, is_witnessed, target, count",
    [
        (2 * SECOND - SLACK, True, "", 0),
        (2 * SECOND - SLACK - 1, True, "", 1),
        (4 * SECOND + SLACK, True, "", 0),
        (4 * SECOND + SLACK + 1, True, "", 1),
        (None, True, "c1", 1),
        (None, False, "c1", 0),
        (None, False, CLIENT, 0),
        (None, False, "c2", 1),
        (0, False, "c1", 1),
    ],
)
def test_an_incarnation_begins_in_a_new_session(
    up_ns: int | None, is_witnessed: bool, target: str, count: int
) -> None:
    """Older runs have no sessions; a fault of the client or of its broker explains."""
    run = folder(
        session_lines={} if up_ns is None else {CLIENT: ((up_ns, "up", "c1"),)},
        is_witnessed=is_witnessed,
        fault_rows=({"target": target},),
    )
    of = rows(SourceRows(9, (1,), 0, 2 * SECOND), SourceRows(6, (6,), 4 * SECOND, 5 * SECOND))
    assert len([*doubts_about_sources(run, of)]) == count
    run.fault_rows += ({"target": "c9"},)
    assert len([*doubts_about_sources(run, of)]) == count


@pytest.mark.parametrize("n, more", [(4, ""), (5, " and 1 more")])
def test_the_first_four_fences_are_named(n: int, more: str) -> None:
    fences = tuple(range(2, 2 + n))
    (found,) = doubts_about_sources(folder(), rows(SourceRows(9, fences, 0, SECOND)))
    assert f"1.2, 1.3, 1.4, 1.5{more}" in found
    assert ("more" in found) == bool(more)


def blockages(
    *faults: tuple[str, str, int, int], error_ns: int | None = 0, **facts: Any
) -> list[Blockage]:
    """Return the stretches in which faults, each with verb and target, let nothing pass.

    Args:
        error_ns: of the clock of the agent.
    """
    found: list[Blockage] = []

    def breaches(asked: Any) -> list[tuple[int, int]]:
        found.extend(asked)
        return [(0, 0)] * len(asked)

    run = folder(
        clients={CLIENT: ("publisher", "c1")}
        | {f"{broker}-sub-1": ("subscriber", broker) for broker in ("c2", "c3")},
        session_lines={CLIENT: ((0, "up", "c1"),), "c3-sub-1": ((0, "up", "c3"),)},
        origin_ns=0,
        brokers=["c1", "c2", "c3"],
        topology=ROW,
        memoize=lambda name, make: make(),
        processes=(SimpleNamespace(is_load=True, host="h", lines=lambda name: ()),),
        timeline=SimpleNamespace(
            to_timeline=lambda ns, host: ns,
            error_ns=lambda one, other: 0 if one == other else error_ns,
        ),
        document=lambda name: {"brokers": [{"broker": "c1", "host": "h"}]},
        phase_ns=lambda name: (5 * SECOND, 6 * SECOND) if name == "drain" else None,
        **{"is_foreign": False, "workload": {"protocol": "best_effort"}} | facts,
        fault_rows=[
            {
                "fault_id": f"{verb}-{target}", "verb": verb, "target": target, "params": {},
                "t_applied_ns": from_ns, "t_observed_ns": from_ns, "t_healed_ns": to_ns,
                "healed_by": "schedule", "host_stamps": {"requested": {"agent": from_ns}},
            }
            for verb, target, from_ns, to_ns in faults
        ],
    )  # fmt: skip
    lanes = {(f"{broker}-sub-1/1", SOURCE, 1): None for broker in ("c2", "c3")}
    assert [*doubts_about_passage(run, rows(lanes=lanes, breaches=breaches))] == []
    return found


def test_a_frozen_broker_is_silent_and_separates_its_clients() -> None:
    (frozen,) = blockages(("freeze", "c1", SECOND, 2 * SECOND))
    assert (frozen.from_ns, frozen.to_ns) == (SECOND + EDGE, 2 * SECOND - EDGE)
    assert SOURCE in frozen.silent
    assert frozen.separates(SOURCE, "c3-sub-1/1")
    assert frozen.why == "freeze-c1"


def test_two_faults_at_once_block_in_three_parts() -> None:
    found = blockages(
        ("freeze", "c1", SECOND, 3 * SECOND), ("freeze", "c3", 2 * SECOND, 4 * SECOND)
    )
    assert [each.why for each in found] == ["freeze-c1", "freeze-c1, freeze-c3", "freeze-c3"]
    assert [SOURCE in each.silent for each in found] == [True, True, False]
    assert all(each.separates(SOURCE, "c3-sub-1/1") for each in found)


@pytest.mark.parametrize("length_ns, count", [(2 * EDGE, 0), (2 * EDGE + 1, 1)])
def test_a_fault_of_a_moment_blocks_nothing(length_ns: int, count: int) -> None:
    assert len(blockages(("freeze", "c1", SECOND, SECOND + length_ns))) == count


@pytest.mark.parametrize("verb, silent", [("freeze", {SOURCE}), ("cpu-share", None)])
def test_a_slow_broker_blocks_nothing(verb: str, silent: set[str] | None) -> None:
    found = blockages((verb, "c1", SECOND, 2 * SECOND))
    assert [each.silent for each in found] == ([] if silent is None else [silent])


@pytest.mark.parametrize("restarted_ns, over_ns", [(2 * SECOND, 2 * SECOND), (0, 6 * SECOND)])
def test_a_killed_broker_blocks_until_the_next_restart_or_the_end(
    restarted_ns: int, over_ns: int
) -> None:
    (killed,) = blockages(
        ("kill", "c1", SECOND, 9 * SECOND), ("restart", "c1", restarted_ns, restarted_ns)
    )
    assert (killed.from_ns, killed.to_ns) == (SECOND + EDGE, over_ns - EDGE)


def test_a_frozen_broker_separates_nobody_unknown() -> None:
    (frozen,) = blockages(("freeze", "c1", SECOND, 2 * SECOND))
    assert not frozen.separates("c2/0", "c3-sub-1/1")
    assert not frozen.separates(SOURCE, "c2-sub-2/1")


def test_two_faults_with_time_between_block_twice() -> None:
    found = blockages(
        ("freeze", "c1", SECOND, 2 * SECOND), ("freeze", "c3", 3 * SECOND, 4 * SECOND)
    )
    assert [each.why for each in found] == ["freeze-c1", "freeze-c3"]


def test_a_client_that_roams_is_separated_by_no_broker() -> None:
    moved = ("client-roam", "c3-sub-1", 0, 0)
    (frozen,) = blockages(moved, ("freeze", "c3", SECOND, 2 * SECOND))
    assert not frozen.separates(SOURCE, "c3-sub-1/1")


@pytest.mark.parametrize("protocol, is_apart", [("best_effort", True), ("unknown", False)])
def test_a_frozen_broker_between_separates_where_the_protocol_is_known(
    protocol: str, is_apart: bool
) -> None:
    (frozen,) = blockages(("freeze", "c2", SECOND, 2 * SECOND), workload={"protocol": protocol})
    assert frozen.separates(SOURCE, "c3-sub-1/1") == is_apart


@pytest.mark.parametrize(
    "verb, target, is_cut",
    [
        ("cut", "c1-c2", True),
        ("cut", "c2-c1", True),
        ("cut", "c2-c3", True),
        ("partition", "c1|c2,c3", True),
        ("partition", "c3", True),
        ("partition", "c1,c2|c3", True),
        ("partition", "c2|c4", False),
        ("delay", "c1-c2", False),
        ("cut", "c2", False),
    ],
)
def test_a_cut_link_separates_both_sides(verb: str, target: str, is_cut: bool) -> None:
    found = blockages((verb, target, SECOND, 2 * SECOND))
    assert any(each.separates(SOURCE, "c3-sub-1/1") for each in found) == is_cut
    is_near = target in ("c1-c2", "c2-c1", "c1|c2,c3") and verb != "delay"
    assert any(each.separates(SOURCE, "c2-sub-1/1") for each in found) == is_near
    assert all(each.silent == frozenset() for each in found)


@pytest.mark.parametrize("verb, count", [("cut", 1), ("blackhole", 0)])
def test_a_cut_server_of_another_system_does_nothing(verb: str, count: int) -> None:
    found = blockages((verb, "c1", SECOND, 2 * SECOND), is_foreign=True)
    assert [SOURCE in each.silent for each in found] == [True] * count


def test_clocks_shorten_a_blockage_and_unknown_clocks_prevent_it() -> None:
    fault = ("freeze", "c1", SECOND, 2 * SECOND)
    (frozen,) = blockages(fault, error_ns=SECOND // 5)
    assert frozen.from_ns == SECOND + SECOND // 5 + EDGE
    assert frozen.to_ns == 2 * SECOND - SECOND // 5 - EDGE
    assert blockages(fault, error_ns=None) == blockages(fault, error_ns=SECOND // 2) == []


def test_an_absent_subscriber_alone_receives_nothing() -> None:
    (absent,) = blockages(("client-disconnect", "c3-sub-1", SECOND, 2 * SECOND))
    assert (absent.from_ns, absent.to_ns) == (SECOND + EDGE, 2 * SECOND - EDGE)
    assert absent.silent == frozenset()
    assert absent.separates(SOURCE, "c3-sub-1/1")
    assert not absent.separates(SOURCE, "c3-sub-11/1")


@pytest.mark.parametrize("restarted, found", [("", ["b1", "b2"]), ("b2", []), ("b3", ["b1", "b2"])])
def test_counters_of_moved_clients_are_those_of_all_their_brokers(
    monkeypatch: pytest.MonkeyPatch, restarted: str, found: list[str]
) -> None:
    """A broker that was started again has counted from zero again."""
    processes: Any = [SimpleNamespace(name=name) for name in ("b1", "b2", "b3")]
    folder: Any = SimpleNamespace(
        clients={"s": ("subscriber", "b1"), "p": ("publisher", "b3")},
        session_lines={"s": [(0, 1, "b1"), (2, 3, "b2")]},
    )
    faults = {restarted: [{"verb": "restart"}]}
    monkeypatch.setattr(counters, "faults_at", lambda _, name: faults.get(name, []))
    homes = counters._list_homes(folder, processes, "subscriber")
    assert [each.name for each in homes] == found
