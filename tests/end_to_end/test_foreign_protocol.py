"""Stories about a deployed foreign protocol: loaded, disturbed, judged and distinguished."""

import json
import shutil
from pathlib import Path

import pytest

from results.reference.history_reader import judge_folder
from tests.end_to_end.conftest import Lab
from tests.foreign.tree import FILES, FOLDER, make_tree, plant

pytestmark = pytest.mark.end_to_end

SCHEDULE = """\
schema = "pubsubctl/faults/1"
name = "broken"
[[step]]
id = "crash"
at = "300ms"
do = "crash"
on = "r2"
stall = "900ms"
down = "500ms"
[[step]]
id = "away"
at = "2s"
do = "client-disconnect"
on = "r3-sub-1"
for = "500ms"
[[step]]
id = "apart"
after = "crash-restart.recovered"
do = "cut"
on = "r1-r4"
for = "500ms"
"""


@pytest.fixture
def ring(lab: Lab) -> Lab:
    """Return a lab in which commands, agents and brokers run the project with the protocol."""
    project = lab.folder / "project"
    for name in FILES:
        shutil.copy(FOLDER.parent / name, project / name)
    (project / "broken.toml").write_text(SCHEDULE)
    lab.environment["PYTHONPATH"] = str(make_tree(lab.folder / "sound"))
    return lab


@pytest.mark.sampled
def test_a_foreign_protocol_is_loaded_broken_and_judged_and_a_bug_in_it_is_seen(ring: Lab) -> None:
    load = ("bench", "flood.toml", "--faults", "broken.toml", "-d", "5s", "--no-check", "--json")
    sound = ring.call(*load)
    assert sound.status == 0, sound.err
    assert sound.document["state"] == "complete", sound.document["reasons"]
    assert sound.document["published"] == 500
    assert ring.left_behind() == []

    tree = ring.folder / "mistaken"
    shutil.copytree(ring.environment["PYTHONPATH"], tree)
    plant(tree, "ring-forgets-who-was-away")
    ring.environment["PYTHONPATH"] = str(tree)
    mistaken = ring.call(*load)
    assert mistaken.status == 0, mistaken.err
    assert ring.left_behind() == []

    run = Path(sound.document["run_directory"])
    whole = judge_folder(run)
    assert whole.verdict == "VALID", whole.because
    assert whole.counts.recovered == whole.counts.at_risk > 0
    lines = (run / "faults" / "faults.jsonl").read_text().splitlines()
    steps = {row["fault_id"]: row["step"] for row in map(json.loads, lines)}
    for step in ("crash", "away", "apart"):
        (found,) = (
            each for each in whole.recoveries if steps[each.window.fault_ids[0]].startswith(step)
        )
        assert found.at_risk == found.recovered > 0, step
    wanting = judge_folder(Path(mistaken.document["run_directory"]))
    assert wanting.verdict == "INVALID", wanting
    assert wanting.counts.missing > 0


@pytest.mark.sampled
def test_a_foreign_protocol_is_deployed_and_broken_by_hand(ring: Lab) -> None:
    assert ring.call("deploy", "ring.toml", "--protocol", "ring_flood").status == 0
    preview = ring.call("inject", "kill", "r2", "--preview")
    assert "no pair is cut off" in preview.out, preview.err
    refused = ring.call("inject", "cut", "r1-r3", "--for", "1s", "--lint")
    assert refused.status == 2
    assert "no link of ring" in refused.err
    for fault in (("cut", "r1-r4", "--for", "500ms"), ("crash", "r2", "--down", "200ms")):
        answer = ring.call("inject", *fault)
        assert answer.status == 0, answer.err
    rows = ring.call("status", "-j").document["brokers"]
    assert [row["state"] for row in rows] == ["running"] * 4
    assert ring.call("down", "--verify").status == 0
    assert ring.left_behind() == []
