"""Stories about clients that lose connections, stall and move, in one judged run."""

import json
from pathlib import Path
from typing import Any

import pytest

from results.reference.history_reader import judge_folder
from tests.end_to_end.conftest import Lab

pytestmark = pytest.mark.end_to_end

WORKLOAD = """\
schema = "pubsubctl/workload/1"
name = "clients"
topology = "chain3"
protocol = "delta_tree"
seed = 9
[bars]
deliveries_per_pair_min = 20
[phases]
warmup = "500ms"
measure = "7s"
drain = "120s"
[thresholds]
"loadgen.lateness_p99" = "< 60s"
[attributes]
symbol = { choose = 5 }
[[publishers]]
at = "c1"
rate = "100/s"
[[subscribers]]
at = ["c2", "c3"]
filter = "true"
[[subscribers]]
at = "c3"
filter = "symbol != 'SYMBOL001'"
"""

SCHEDULE = """\
schema = "pubsubctl/faults/1"
name = "clients"
[[step]]
id = "away"
at = "500ms"
do = "client-disconnect"
on = "c3-sub-1"
for = "1s"
await = { within = "200s" }
[[step]]
id = "publisher-away"
at = "1s"
do = "client-disconnect"
on = "c1-pub-1"
for = "500ms"
[[step]]
id = "slow"
at = "2s"
do = "client-slow"
on = "c2-sub-1"
for = "1500ms"
[[step]]
id = "roam"
at = "2500ms"
do = "client-roam"
on = "c3-sub-2"
to = "c1"
[[step]]
id = "away-again"
after = "roam.observed"
delay = "200ms"
do = "client-disconnect"
on = "c3-sub-2"
for = "500ms"
"""


@pytest.fixture
def clients(lab: Lab) -> Lab:
    """Return a lab with a workload of disturbed clients."""
    project = lab.folder / "project"
    (project / "clients.toml").write_text(WORKLOAD)
    (project / "disturbed.toml").write_text(SCHEDULE)
    return lab


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.sampled
def test_clients_that_are_away_slow_and_on_the_move_get_everything_once(clients: Lab) -> None:
    disturbed = ("bench", "clients.toml", "--faults", "disturbed.toml", "--no-check", "--json")
    answer = clients.call(*disturbed)
    assert answer.status == 0, answer.err
    found = answer.document
    assert found["state"] == "complete", found["reasons"]
    assert found["published"] == 700
    assert clients.left_behind() == []

    run = Path(found["run_directory"])
    faults = {row["step"]: row for row in rows_of(run / "faults" / "faults.jsonl")}
    states = {step: (row["state"], row["healed_by"]) for step, row in faults.items()}
    healed = ("recovered", "schedule")
    assert states == {
        "away": healed,
        "publisher-away": healed,
        "slow": healed,
        "roam": ("observed", None),
        "away-again": healed,
    }
    assert json.loads(faults["roam"]["evidence"])["broker"] == "c1"
    sessions = rows_of(run / "raw" / "e1" / "load-sub" / "sessions.jsonl")
    at = [(row["event"], row["broker"]) for row in sessions if row["client"] == "c3-sub-2"]
    assert at[:5] == [("up", "c3"), ("down", "c3"), ("up", "c1"), ("down", "c1"), ("up", "c1")]

    judgement = judge_folder(run)
    assert (judgement.verdict, judgement.violations) == ("VALID", ())
    step_of = {row["fault_id"]: step for step, row in faults.items()}
    recoveries = {step_of[each.window.fault_ids[0]]: each for each in judgement.recoveries}
    for step, least in (("away", 25), ("slow", 75), ("away-again", 20)):
        assert recoveries[step].at_risk == recoveries[step].recovered >= least, step

    # The same disturbances show the losses of a broker without storage for clients.
    lossy = clients.call(*disturbed, "--protocol", "best_effort")
    assert lossy.status == 0, lossy.err
    assert lossy.document["online"]["missing"] >= 25
