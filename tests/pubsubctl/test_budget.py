"""Tests of a workload's estimated cost, printed before the run."""

from pathlib import Path

import pytest

from bench.spec.spec import ExperimentSpec, load_experiment
from pubsubctl.doctor.health_check import budget, connections, most_record_bytes
from tests.pubsubctl.conftest import Call

WORKLOAD = """\
schema = "pubsubctl/workload/1"
name = "w"
topology = "chain3"
protocol = "delta_tree"
[phases]
warmup = "10s"
measure = "190s"
drain = "2h"
[attributes]
symbol = { choose = 5 }
[[publishers]]
at = "c1"
count = 2
rate = "500/s"
[[subscribers]]
at = "c3"
count = 8
"""


@pytest.fixture
def spec(tmp_path: Path) -> ExperimentSpec:
    (tmp_path / "w.toml").write_text(WORKLOAD)
    return load_experiment(tmp_path / "w.toml")


def test_time_and_records_follow_from_the_file(spec: ExperimentSpec) -> None:
    assert most_record_bytes(spec) == 2 * 500 * 200 * (2 + 8) * 32
    ((severity, text, remedy),) = budget(spec, 1 << 30)
    assert (severity, remedy) == ("ok", "")
    assert text.startswith("w takes 3 min, at most 2 h 3 min")
    assert "at most 61 MiB of records" in text
    ((severity, text, remedy),) = budget(spec, 1 << 20)
    assert severity == "fail"
    assert "1 MiB are free" in text
    assert "PUBSUBCTL_RESULTS" in remedy


def test_connections_are_counted_where_there_are_most(spec: ExperimentSpec) -> None:
    ((severity, text, _),) = connections(spec, 1024)
    assert severity == "ok"
    assert text.startswith("c3 has up to 10 connections, load generators 10;")
    ((severity, _, remedy),) = connections(spec, 70)
    assert (severity, remedy) == ("fail", "ulimit -Hn 76, or fewer clients")


def test_doctor_reports_the_budget_of_a_workload(call: Call, project: Path) -> None:
    (project / "w.toml").write_text(WORKLOAD)
    answer = call("doctor", "--for", "w.toml", "--only", "budget,connections", "-j")
    assert answer.status == 0
    assert [row["id"] for row in answer.document["findings"]] == ["budget", "connections"]
    assert call("doctor", "--for", "nothing").status == 2
