"""Tests of churn: workload keys, times of absence, effects and warnings."""

from pathlib import Path
from typing import Any

import pytest
import trio

from bench.load.pacing import absences
from bench.spec.keys import Overrides
from bench.spec.lint import churn_warnings
from bench.spec.spec import load_experiment
from bench.spec.validation import SpecError
from brokerd.units import SECOND_NS
from tests.bench.test_client_faults import begin, end
from tests.bench.test_load_generator import folder, lines, running
from tests.helpers.fake_broker import FakeBroker
from tests.pubsubctl.conftest import Call, call, project

__all__ = ["call", "folder", "project"]

TOPOLOGY = """
schema = "pubsubctl/topology/2"
name = "two"
kind = ["tree", "cells", "bipartite"]
brokers = ["p1", "s1"]
links = [["p1", "s1"]]
[tree]
delta = 1
[cells]
bundles = [["p1", "s1"]]
[bipartite]
proxies = ["p1"]
servers = ["s1"]
{parameters}
"""
WORKLOAD = """
schema = "pubsubctl/workload/1"
name = "churn"
topology = "two.toml"
protocol = "{protocol}"
[churn]
{churn}
[phases]
measure = "60s"
[[publishers]]
at = "p1"
rate = "10/s"
[[subscribers]]
at = "s1"
count = 3
{more}
"""
USUAL = 'disconnected = "5s"\nevery = "20s"'


def write(
    folder: Path, churn: str = USUAL, *, protocol: str = "durable", parameters: str = "",
    more: str = "",
) -> Path:  # fmt: skip
    (folder / "two.toml").write_text(TOPOLOGY.format(parameters=parameters))
    path = folder / "churn.toml"
    path.write_text(WORKLOAD.format(churn=churn, protocol=protocol, more=more))
    return path


# --- Keys of a workload -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "churn, more, said",
    [
        ('disconected = "5s"\nevery = "20s"', "", "unknown key 'disconected'; did you mean 'disc"),
        ('disconnected = "5s"', "", "key 'churn.every' is missing"),
        ('disconnected = "5s"\nevery = 20', "", "churn.every = 20: a duration"),
        (USUAL + '\npattern = "simultaneus"', "", "did you mean 'simultaneous'?"),
        ('disconnected = "20s"\nevery = "20s"', "", "less than every = '20s'"),
        ('disconnected = "0s"\nevery = "20s"', "", "more than nothing"),
    ],
)
def test_a_slip_in_churn_is_named(tmp_path: Path, churn: str, more: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_experiment(write(tmp_path, churn, more=more))
    assert said in str(caught.value)


def test_without_churn_the_same_workload_is_calm(tmp_path: Path) -> None:
    spec = load_experiment(write(tmp_path), Overrides(churn=False))
    assert (spec.workload.churn, spec.workload.calm) == (None, True)
    assert {plan.absences for plan in spec.subscriber_plans()} == {()}


# --- Who is away when -------------------------------------------------------------------------


def away(pattern: str, index: int, *, seed: int = 1, duration_s: int = 100) -> list[Any]:
    return absences(
        disconnected_ns=5 * SECOND_NS, every_ns=20 * SECOND_NS, pattern=pattern,
        seed=seed, index=index, duration_ns=duration_s * SECOND_NS,
    )  # fmt: skip


def test_each_subscriber_is_away_once_in_each_period_at_a_time_of_its_own() -> None:
    of_all = [away("independent", index) for index in range(40)]
    assert {len(of_one) for of_one in of_all} == {5}
    assert len({of_one[0] for of_one in of_all}) == 40
    assert of_all == [away("independent", index) for index in range(40)]
    assert of_all[0] != away("independent", 0, seed=2)
    for of_one in of_all:
        for (from_ns, to_ns), number in zip(of_one, range(5), strict=True):
            assert from_ns // (20 * SECOND_NS) == number
            assert to_ns == min(from_ns + 5 * SECOND_NS, 100 * SECOND_NS)


def test_simultaneous_subscribers_are_away_at_the_same_time() -> None:
    assert {tuple(away("simultaneous", index)) for index in range(40)} == {
        tuple(away("simultaneous", 0))
    }


def test_no_client_is_disconnected_at_the_end_of_the_measurement() -> None:
    (cut,) = away("simultaneous", 0, duration_s=away("simultaneous", 0)[0][0] // SECOND_NS + 1)
    assert cut[1] - cut[0] < SECOND_NS


# --- What a load generator does ---------------------------------------------------------------


@pytest.mark.parametrize("own_processes", [(), (1,)], ids=["as one of many", "as a process"])
def test_a_subscriber_is_away_when_it_should_be_and_its_absences_are_written_down(
    folder: Path, own_processes: tuple[int, ...]
) -> None:
    """The broker stores nothing for disconnected clients, so missing deliveries show absences."""
    broker = FakeBroker(protocol="best_effort") if own_processes else FakeBroker()
    planned = [[100_000_000, 200_000_000], [300_000_000, 400_000_000]]

    async def play() -> tuple[int, dict[str, Any]]:
        async with running(
            folder, broker, absences=planned, own_processes=own_processes
        ) as control:
            await begin(control)
            now_ns = (await control.request("status"))["now_ns"]
            await control.request("churn", measure_from_ns=now_ns)
            while sessions(folder) != ["up", "down", "up", "down", "up"]:
                await trio.sleep(0.01)
            return now_ns, await end(control)

    from_ns, finished = trio.run(play)
    assert finished["online"]["missing"] >= 20
    assert finished["problems"] == []
    written = lines(folder, "absences.jsonl")
    for line, (left_ns, back_ns) in zip(written, planned, strict=True):
        assert line["subscriber"] == "p1-sub-1"
        assert from_ns + left_ns <= line["t_left_ns"]
        assert line["t_back_ns"] - line["t_left_ns"] >= back_ns - left_ns


def sessions(folder: Path) -> list[str]:
    rows = lines(folder, "sessions.jsonl")
    return [row["event"] for row in rows if row["client"] == "p1-sub-1"]


# --- Warnings and refusals --------------------------------------------------------------------


@pytest.mark.parametrize(
    "protocol, parameters, said",
    [
        ("durable", "", []),
        ("delta_tree", "", []),
        ("durable", "[parameters.durable]\nmax_retain_ns = 7_000_000_000", []),
        ("durable", "[parameters.durable]\nmax_retain_ns = 6_000_000_000", ["older than 6s"]),
        ("multi_proxy", "", []),
        (
            "multi_proxy",
            "[parameters.multi_proxy]\nmax_retain_bytes = 9",
            ["lose publications of any age"],
        ),
        (
            "gryphon",
            "[parameters.gryphon]\nclient_linger_ns = 3_000_000_000",
            ["are disconnected for 3s"],
        ),
        ("best_effort", "", ["does not promise publications of that time"]),
    ],
)
def test_churn_that_a_protocol_does_not_bear_is_warned_of(
    tmp_path: Path, protocol: str, parameters: str, said: list[str]
) -> None:
    spec = load_experiment(write(tmp_path, protocol=protocol, parameters=parameters))
    found = [*churn_warnings(spec)]
    assert len(found) == len(said)
    for text, part in zip(found, said, strict=True):
        assert part in text
        assert "churn.disconnected = '5s'" in text


def test_the_command_warns_before_anything_is_started(call: Call, project: Path) -> None:
    write(project, parameters="[parameters.durable]\nmax_retain_ns = 2_000_000_000")
    answer = call("simulate", "run", "churn.toml")
    before, started, _ = answer.err.partition("simulating churn")
    assert "may lose publications older than 2s" in before
    assert started, answer.err
    assert answer.status == 0, answer.err


def test_a_client_is_not_kept_away_by_churn_and_a_fault_at_once(call: Call, project: Path) -> None:
    write(project)
    (project / "away.toml").write_text(
        'schema = "pubsubctl/faults/1"\nname = "away"\n[[step]]\nid = "a"\nat = "1s"\n'
        'do = "client-disconnect"\non = "s1-sub-1"\nfor = "1s"\n'
    )
    answer = call("bench", "churn.toml", "--faults", "away.toml", "--dry-run")
    assert answer.status == 2
    assert "add --no-churn" in answer.err
