"""Tests of fault logs: both readers draw the same faults and doubts."""

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from results.checker.clocks import Clocks
from results.reference import times as reference
from results.reference.fault_log import FaultLog
from results.rules.fault_log import (
    doubts_about_fault_log,
    fault_rows,
    fault_spans,
    faults_of,
)
from results.rules.terms import doubt
from results.tables.json_files import IntegrityError

SECOND = 10**9
ORIGIN_NS = 100 * SECOND
HOSTS = "abc"
TOPOLOGY = {"brokers": ["p", "q", "r"], "links": [("p", "q"), ("q", "r")]}
VERBS = {
    "freeze": ("p", "q"), "cut": ("p-q", "r-q", "p->q"), "absorb": ("q",), "host-loss": ("a", "c"),
    "partition": ("p|q|r", "p|q,r", "q"), "client-disconnect": ("s",), "kill": ("r",),
}  # fmt: skip
STAGES = ("requested", "applied", "observed", "heal_requested", "healed", "recovered")


def clock_lines(random: Random) -> list[dict[str, Any]]:
    """Draw the clocks of hosts; some hosts share the clock of the first."""
    lines = []
    for host in HOSTS:
        clock_id = random.choice(("a", host))
        for phase, at_ns in (("before", 90), ("after", 130))[: random.randrange(1, 3)]:
            lines.append({
                "phase": phase, "host_id": host, "ref_host": "a", "same_clock": clock_id == "a",
                "clock_id": clock_id, "t_ns": at_ns * SECOND, "drift_ppb": 0.0, "n": 9,
                "offset_ns": random.choice((0, 7 * SECOND, 7 * SECOND + 40)),
                "rtt_min_ns": 2, "err_ns": random.choice((1, 50, 3_000)),
            })  # fmt: skip
    return lines


def fault_lines(random: Random) -> list[dict[str, Any]]:
    """Draw faults, perhaps with a duplicate log line, with stamps of one host or of several."""
    lines = []
    for number in range(random.randrange(1, 5)):
        verb = random.choice([*VERBS])
        line: dict[str, Any] = {
            "fault_id": f"f{number}", "verb": verb, "target": random.choice(VERBS[verb]),
            "params": {}, "absorbed_msgs": random.choice((None, 0, 3)),
            "state": random.choice(("healed", "failed")), "host_stamps": {}, "evidence": "{}",
        }  # fmt: skip
        for stage in STAGES:
            at_ns = ORIGIN_NS + random.randrange(3) * SECOND
            line[f"t_{stage}_ns"] = random.choice((at_ns, at_ns, None))
            hosts = random.sample(HOSTS, random.randrange(3))
            if hosts:
                line["host_stamps"][stage] = {h: at_ns + random.randrange(100) for h in hosts}
        lines.append(line)
    return lines + random.choice(([], [], lines[:1]))


@pytest.mark.parametrize("seed", range(40))
def test_both_judges_read_the_same_faults_and_doubts(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    clocks, faults = clock_lines(random), fault_lines(random)
    others = {line["fault_id"] for line in faults if random.random() < 0.2}
    planned = [
        {**line, "verb": "kill"} if line["fault_id"] in others else line
        for line in faults
        if random.random() < 0.8
    ]
    (tmp_path / "faults").mkdir()
    (tmp_path / "spec").mkdir()
    placed = [{"broker": broker, "host": host} for broker, host in zip("pqr", "aca", strict=True)]
    (tmp_path / "spec" / "placement.json").write_text(json.dumps({"brokers": placed}))
    for name, lines in (("faults", faults), ("plan", planned)):
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (tmp_path / "faults" / f"{name}.jsonl").write_text(text)
    until_ns, load = ORIGIN_NS + 10 * SECOND, ["a", random.choice(HOSTS)]
    ours, theirs = Clocks.from_rows("a", clocks), reference.Clocks("a", until_ns, tuple(clocks))
    run: Any = SimpleNamespace(
        folder=tmp_path, topology=TOPOLOGY, links=TOPOLOGY["links"], clocks=ours,
        origin_ns=ORIGIN_NS, hosts_of_load=load,
        to_timeline=lambda ns, host: ns - ours.offset_ns(host, ns) - ORIGIN_NS,
        clock_error_ns=lambda a, b: ours.error_between_ns(a, b, until_ns),
    )  # fmt: skip
    rows = [*fault_rows(run)]
    log = FaultLog(tmp_path, TOPOLOGY, theirs, ORIGIN_NS, load)
    assert log.faults == faults_of(rows)
    wanted = [*doubts_about_fault_log(tmp_path, rows, simulated=False)]
    assert sorted(log.doubts(simulated=False)) == sorted(wanted)
    is_twice = len({line["fault_id"] for line in faults}) < len(faults)
    assert (doubt("twice", what="one fault") in wanted) == is_twice


def test_a_fault_whose_stages_have_no_stamps_by_host_is_refused(tmp_path: Path) -> None:
    line = {**fault_lines(Random(0))[0], "host_stamps": {"applied": {"a": 1}, "healed": 7}}
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "faults.jsonl").write_text(f"{json.dumps(line)}\n")
    run: Any = SimpleNamespace(
        folder=tmp_path, topology=TOPOLOGY, links=TOPOLOGY["links"], hosts_of_load=["a"],
        clocks=Clocks.from_rows("a", []), to_timeline=lambda ns, host: ns,
        clock_error_ns=lambda a, b: 0,
    )  # fmt: skip
    with pytest.raises(IntegrityError, match="are no stamps"):
        [*fault_rows(run)]


ENDS: dict[str, tuple[list[tuple[str, str, int, dict[str, int]]], int]] = {
    "the heal": ([("freeze", "p", 2, {"healed": 5})], 5),
    "the run": ([("freeze", "p", 2, {})], 20),
    "a heal before the next fault": (
        [("freeze", "p", 2, {"healed": 5}), ("cut", "p", 8, {})], 5
    ),
    "a fault before the heal": ([("absorb", "p", 2, {"healed": 9}), ("kill", "p", 6, {})], 6),
    "a fault in place of a heal": ([("absorb", "p", 2, {}), ("cut", "p", 6, {})], 6),
    "no fault of another part": ([("absorb", "p", 2, {}), ("cut", "q", 6, {})], 20),
    "the restart": ([("kill", "p", 2, {}), ("restart", "p", 7, {"recovered": 9})], 7),
    "the first restart": (
        [("kill", "p", 2, {}), ("restart", "p", 7, {}), ("restart", "p", 9, {})], 7
    ),
    "no restart of another": ([("kill", "p", 2, {}), ("restart", "q", 7, {})], 20),
    "no restart before it": ([("restart", "p", 1, {}), ("kill", "p", 2, {})], 20),
    "a second kill is no end": ([("kill", "p", 2, {}), ("kill", "p", 4, {})], 20),
    "the arrival of a client": ([("client-roam", "p", 2, {"observed": 4, "healed": 9})], 4),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_a_fault_has_an_effect_until_its_heal_or_the_fault_that_replaces_it(name: str) -> None:
    faults, end = ENDS[name]
    rows = [
        {
            "fault_id": f"f{place}", "verb": verb, "target": target, "t_applied_ns": at_ns,
            **{f"t_{stage}_ns": ns for stage, ns in stamps.items()},
        }
        for place, (verb, target, at_ns, stamps) in enumerate(faults)
    ]  # fmt: skip
    rows.append({"fault_id": "never", "verb": "kill", "target": "p", "t_applied_ns": None})
    for order in (rows, rows[::-1]):
        spans = fault_spans(order, 20)
        assert [each.from_ns for each in spans] == sorted(row[2] for row in faults)
        found = next(each for each in spans if each.from_ns == 2)
        assert (found.to_ns, found.is_over) == (end, end < 20)


def test_a_restart_lasts_until_the_broker_is_ready() -> None:
    row = {"fault_id": "f", "verb": "restart", "target": "p", "t_applied_ns": 2}
    for stamps, end in (
        ({"t_recovered_ns": 9, "t_observed_ns": 5}, 9), ({"t_observed_ns": 5}, 5), ({}, 2)
    ):  # fmt: skip
        [span] = fault_spans([{**row, **stamps}], 20)
        assert (span.kind, span.from_ns, span.to_ns) == ("back", 2, end)
