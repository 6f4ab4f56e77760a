"""Stories about experiments on this machine: loaded, disturbed, judged, interrupted and removed."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from results.reference.history_reader import judge_folder
from tests.end_to_end.conftest import Lab, wait_until
from tests.helpers.patience import PATIENCE_S

pytestmark = pytest.mark.end_to_end

WORKLOAD = """\
schema = "pubsubctl/workload/1"
name = "broken"
topology = "chain3"
protocol = "delta_tree"
seed = 9
[bars]
deliveries_per_pair_min = 20
[phases]
warmup = "500ms"
measure = "6s"
drain = "120s"
[thresholds]
"loadgen.lateness_p99" = "< 60s"
[attributes]
symbol = { choose = 5 }
[[publishers]]
at = "c1"
rate = "100/s"
[[subscribers]]
at = "c3"
filter = "true"
"""

SCHEDULE = """\
schema = "pubsubctl/faults/1"
name = "crash"
[[step]]
id = "crash"
at = "1s"
do = "crash"
on = "c2"
stall = "1s"
down = "1s"
"""


@pytest.fixture
def broken(lab: Lab) -> Lab:
    """Return a lab with a workload in which the middle broker is stalled, killed and restarted."""
    project = lab.folder / "project"
    (project / "broken.toml").write_text(WORKLOAD)
    (project / "crash.toml").write_text(SCHEDULE)
    return lab


def manifest(run: str) -> dict[str, object]:
    content = json.loads((Path(run) / "manifest.json").read_text())
    assert isinstance(content, dict)
    return content


def test_a_crash_under_load_loses_publications_in_best_effort_only(
    broken: Lab,
) -> None:
    crash = ("bench", "broken.toml", "--faults", "crash.toml", "--no-check", "--json")
    answer = broken.call(*crash)
    assert answer.status == 0, answer.err
    found = answer.document
    assert found["state"] == "complete", found["reasons"]
    assert found["published"] == 600
    assert found["delivered_per_s"] > 0
    assert found["broker_cpu_us_per_message"] > 0
    assert found["online"]["missing"] == 0
    assert broken.left_behind() == []

    lossy = broken.call(*crash, "--protocol", "best_effort")
    assert lossy.status == 0, lossy.err
    assert lossy.document["online"]["missing"] > 0
    assert broken.left_behind() == []

    whole, wanting = (judge_folder(Path(each["run_directory"])) for each in (found, lossy.document))
    assert (whole.verdict, wanting.verdict) == ("VALID", "INVALID")
    assert whole.counts.recovered == whole.counts.at_risk > 0
    assert wanting.counts.violations["missing"] > 0


@pytest.mark.sampled
def test_the_run_folder_is_the_last_line(lab: Lab) -> None:
    answer = lab.call("bench", lab.workload("smoke"), "--no-check", "-d", "1s")
    assert answer.status == 0, answer.err
    run = answer.out.splitlines()[-1]
    assert manifest(run)["state"] == "complete"
    assert run.startswith(str(lab.folder / "results" / "smoke"))
    assert lab.left_behind() == []


@pytest.mark.sampled
def test_bench_uses_a_running_deployment_and_leaves_the_brokers_running(lab: Lab) -> None:
    assert lab.call("deploy", "chain3").status == 0
    before = {row["broker"]: row["pid"] for row in lab.call("status", "-j").document["brokers"]}
    other = lab.call("bench", "smoke", "--no-check", "--protocol", "best_effort")
    assert other.status == 4
    assert "protocol is delta_tree, wanted is best_effort" in other.err
    for _ in range(2):
        answer = lab.call("bench", lab.workload("smoke"), "--no-check", "-d", "1s")
        assert answer.status == 0, answer.err
        wait_until("the load has detached", lambda: not _subscriptions(lab))
        rows = lab.call("status", "-j").document["brokers"]
        assert {row["broker"]: row["pid"] for row in rows} == before
    assert lab.call("down", "--verify").status == 0
    assert lab.left_behind() == []


def test_ctrl_c_heals_faults_collects_records_and_stops_the_deployment(broken: Lab) -> None:
    process = broken.start(
        "bench", "broken.toml", "--faults", "crash.toml", "--no-check", "-d", "60s"
    )
    log = "*/*/faults/log.jsonl"
    wait_until("the absorb", lambda: any('"applied"' in row for row in _lines(broken, log)))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "stopping in order" in err
    assert broken.left_behind() == []
    (run,) = (broken.folder / "results" / "broken").glob("2*")
    assert manifest(str(run))["state"] == "partial"
    assert list(run.glob("raw/*/*/deliveries.rec"))
    assert out == ""


@pytest.mark.sampled
def test_the_deployment_of_a_killed_bench_ends_with_its_lease(broken: Lab) -> None:
    process = broken.start("bench", "broken.toml", "--no-check", "-d", "60s")
    wait_until("brokers and load generators run", lambda: len(broken.processes()) >= 9)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert broken.processes()
    wait_until("the lease ends it", lambda: not broken.processes())
    assert broken.call("down", "--verify").status == 0
    assert broken.left_behind() == []
    assert not psutil.pid_exists(process.pid)


@pytest.mark.sampled
def test_a_killed_series_resumes_without_manual_steps(lab: Lab) -> None:
    again = ("bench", lab.workload("smoke"), "--instances", "1", "-d", "1s", "--no-check")
    process = lab.start(*again)
    ledger = "smoke/2*/instances.jsonl"
    wait_until("a run has begun", lambda: any('"began"' in row for row in _lines(lab, ledger)))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert lab.processes()
    answer = lab.call(*again)
    assert answer.status == 0, answer.err
    assert "taking down the deployment of the interrupted run" in answer.err
    assert "not judged" in answer.out
    states = [json.loads(line)["state"] for line in _lines(lab, ledger)]
    assert states == ["began", "began", "complete"]
    assert lab.left_behind() == []


@pytest.mark.sampled
def test_a_deployment_that_fits_not_every_point_stops_a_sweep_at_its_start(
    lab: Lab,
) -> None:
    assert lab.call("deploy", "chain3").status == 0
    answer = lab.call("sweep", lab.workload("smoke"), "--over", "protocol=delta_tree,best_effort")
    assert answer.status == 4, answer.err
    assert "protocol=best_effort: host " in answer.err
    assert "nothing was run" in answer.err
    assert not [*lab.folder.glob("results/*/2*/raw")]
    assert lab.call("down", "--verify").status == 0


def _subscriptions(lab: Lab) -> int:
    rows = lab.call("status", "-j").document["brokers"]
    return sum(row["subscriptions"] for row in rows)


def _lines(lab: Lab, pattern: str) -> list[str]:
    return [
        line
        for path in (lab.folder / "results").glob(pattern)
        for line in path.read_text().splitlines()
    ]
