"""Stories about a program that is replaced during its use."""

import json
from pathlib import Path

import pytest

from results.reference.history_reader import judge_folder
from tests.end_to_end.conftest import Lab

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


def pids(lab: Lab) -> dict[str, int]:
    return {row["broker"]: row["pid"] for row in lab.call("status", "-j").document["brokers"]}


@pytest.mark.sampled
def test_an_older_program_is_named_and_replaced_broker_by_broker(lab: Lab) -> None:
    assert lab.call("deploy", "chain3").status == 0
    before = pids(lab)
    record = lab.state / "e1" / "deployment.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "program": "0" * 64}))

    told = lab.call("deploy", "chain3", "-j")
    assert told.status == 0
    assert told.document["changed"] is False
    assert "host e1 runs another program than this one" in told.err
    assert pids(lab) == before

    rolled = lab.call("deploy", "chain3", "--rolling", "-j")
    assert rolled.status == 0, rolled.err
    assert rolled.document["replaced"] == ["c1", "c3"]
    after = pids(lab)
    assert {name: after[name] == before[name] for name in before} == {
        "c1": False,
        "c2": True,  # on e2, which has this program
        "c3": False,
    }
    again = lab.call("deploy", "chain3", "--rolling", "-j")
    assert again.document["replaced"] == []
    assert "another program" not in again.err
    down = lab.call("down", "--verify")
    assert down.status == 0, down.err
    assert lab.left_behind() == []


@pytest.mark.sampled
def test_nothing_is_lost_or_twice_while_every_broker_is_replaced_under_load(lab: Lab) -> None:
    steady = lab.folder / "project" / lab.workload("chain3")
    steady.write_text(steady.read_text().replace('rate = "max"\nwindow = 32768', 'rate = "40/s"'))
    arguments = ("bench", steady.name, "--rolling", "-d", "60s", "--no-check", "-j")
    bench = lab.call(*arguments)
    assert bench.status == 0, bench.err
    for broker in ("c1", "c2", "c3"):
        assert f"replacing {broker}" in bench.err
    online = bench.document["online"]
    assert online["owed"] == online["deliveries"] > 2000
    assert online["missing"] == online["duplicate"] == online["reordered"] == 0
    run = Path(bench.document["run_directory"])
    judgement = judge_folder(run)
    assert judgement.verdict == "VALID", judgement.because
    raw = run / "raw"
    sessions = (raw / "e1" / "load-pub" / "sessions.jsonl").read_text()
    assert len(sessions.splitlines()) > 2  # its broker was replaced, too
    assert lab.left_behind() == []
