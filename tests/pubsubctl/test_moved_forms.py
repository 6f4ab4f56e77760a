"""Stories about renamed command lines: one sentence names the new form; the status is 2."""

import shlex
from pathlib import Path

import pytest

from pubsubctl.commands import moved
from pubsubctl.commands.moved import MOVED, MovedForm
from pubsubctl.errors import UserError
from tests.pubsubctl.conftest import Call

FORMS = {
    "bench demo --find-max --p99 20ms": "limit demo --p99 20ms",
    "bench demo --p99=20ms": "limit demo --p99=20ms",
    "bench demo --from-rate 1/s": "limit demo --from-rate 1/s",
    "bench demo --to-rate 1/s": "limit demo --to-rate 1/s",
    "bench demo --against protocol=ges": "compare demo --against protocol=ges",
    "bench demo --sweep seed=1,2": "sweep demo --over seed=1,2",
    "bench demo --sweep=seed=1,2": "sweep demo --over seed=1,2",
    "bench demo --sweep seed=1,2 --budget 1h": "sweep demo --over seed=1,2 --budget 1h",
    "bench demo-rates --budget 1h": "sweep demo-rates --budget 1h",
    "bench demo-rates --bound latency_p99_ms=5": "sweep demo-rates --bound latency_p99_ms=5",
    "bench demo-rates": "sweep demo-rates",
    "bench gd02.fig7 --instances 2": "experiment gd02.fig7 --instances 2",
    "bench ds03.jms": "experiment ds03.jms",
    "bench dft11.fig9": "experiment dft11.fig9",
    "compare --all --only gryphon": "compare --comparison all --only gryphon",
    "simulate dedupe --schedules 3": "experiment dft11.dedupe --schedules 3",
    "simulate stalls": "experiment dft11.stalls",
    "simulate speed": "experiment dft11.speed",
    "simulate routing": "experiment ges.routing",
    "simulate dft11.fig9 --processes 1": "experiment dft11.fig9 --processes 1",
    "simulate gd02.fig6": "experiment gd02.fig6",
    "simulate demo --faults demo": "simulate run demo --faults demo",
    "simulate seed.plan": "simulate run seed.plan",
    "simulate": "simulate swarm",
    "simulate --seeds 1..5": "simulate swarm --seeds 1..5",
    "reproduce paper.tar.gz --level check": "results reproduce paper.tar.gz --level check",
    "load latest --force": "results tables latest --force",
}


@pytest.fixture(autouse=True)
def plan(project: Path) -> None:
    """Write a file that is no workload into the current folder."""
    (project / "seed.plan").write_text("anything\n")


@pytest.mark.parametrize("old", FORMS)
def test_a_moved_form_is_refused_with_the_new_one(call: Call, old: str) -> None:
    answer = call(*shlex.split(old))
    assert answer.status == 2
    assert answer.out == ""
    [sentence] = answer.err.splitlines()
    assert sentence.endswith(f"has moved: `pubsubctl {FORMS[old]}`")


def test_each_row_of_the_table_has_an_example(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[MovedForm] = []

    def refuse(form: MovedForm, *words: object) -> UserError:
        found.append(form)
        return UserError("moved")

    monkeypatch.setattr(moved, "_error", refuse)
    for old in FORMS:
        call(*shlex.split(old))
    assert [form for form in MOVED if form not in found] == []


def test_global_options_stay_in_the_new_command_line(call: Call) -> None:
    answer = call("bench", "demo", "--sweep", "seed=1,2", "--dry-run", "-i", "lab 1")
    assert "`pubsubctl --dry-run -i 'lab 1' sweep demo --over seed=1,2`" in answer.err


def test_an_error_in_json_has_the_sentence_too(call: Call) -> None:
    answer = call("bench", "demo", "--against", "ges", "--json")
    assert answer.status == 2
    assert "pubsubctl --json compare demo --against ges" in answer.document["because"][0]["text"]


@pytest.mark.parametrize(
    "line", ["bench demo --sweep seed=1 --help", "simulate --help", "reproduce -h", "simulate -h"]
)
def test_help_is_no_moved_form(call: Call, line: str) -> None:
    assert "has moved" not in call(*line.split()).err
