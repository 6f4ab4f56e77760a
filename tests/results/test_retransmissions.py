"""Tests of the time span of requests for retransmission, whatever a broker states."""

import json
from pathlib import Path

import pytest

from results.tables.logs import read_logs
from results.tables.manifest import read_run
from results.tables.seals import seal
from results.tables.small_tables import request_rows, total_rows
from tests.helpers.runs import Scenario, write_demo_run

FROM_TICK_0_NS = 57 * 365 * 86_400 * 10**9


@pytest.mark.parametrize("asked_ns", [FROM_TICK_0_NS, 2**63 - 1, -1])
def test_a_request_is_for_no_more_time_than_the_run_has_taken(
    tmp_path: Path, asked_ns: int
) -> None:
    folder = write_demo_run(tmp_path, Scenario(measure_s=1.0, rate=5))
    (path,) = folder.glob("raw/*/s1/events.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (example,) = [line for line in lines if line["event"] == "retransmission_requested"][:1]
    several = [{**example, "asked_ns": asked_ns} for _ in range(10)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *several]))
    seal(folder)
    run = read_run(folder)
    rows = request_rows(run, read_logs(run))
    began_ns = min(phase.from_ns for phase in run.phases)
    assert len([row for row in rows if row["broker"] == "s1"]) >= 11
    assert all(0 <= row["asked_ns"] <= row["t_ns"] - began_ns for row in rows)
    totals = [*total_rows(rows, run.topology["brokers"])]
    assert all(row["asked_ns"] < 2**63 for row in totals)
