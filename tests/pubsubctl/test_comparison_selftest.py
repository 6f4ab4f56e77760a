"""Stories about the comparison's test on series with a given difference, and about its doubts."""

import json
import shutil
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from pubsubctl.runs import differences
from results.repetitions.comparison import Trial, can_be_believed, trial_of
from results.tables.seals import seal
from tests.pubsubctl.conftest import Call


def trials_with(noise: float, slowdown: float, count: int = 20, seed: int = 17) -> list[Trial]:
    """Return trials of both kinds, with figures that scatter around the mean by this noise."""
    random = Random(seed)

    def measure(slowed: bool) -> float:
        return random.lognormvariate(0, noise) * (1 + slowdown * slowed)

    return [
        trial_of(number, kind, 10, measure) for kind in (False, True) for number in range(count)
    ]


def test_on_a_quiet_machine_all_are_right() -> None:
    trials = trials_with(noise=0.02, slowdown=0.10)
    assert all(trial.is_right for trial in trials)
    assert {trial.outcome for trial in trials if trial.planted} == {"slower"}
    assert can_be_believed(trials)


def test_a_slowdown_hidden_by_noise_is_reported() -> None:
    assert not can_be_believed(trials_with(noise=0.3, slowdown=0.10))


def test_a_slowdown_reported_as_a_gain_is_wrong() -> None:
    random = Random(1)
    trial = trial_of(1, True, 10, lambda slowed: random.uniform(0.99, 1.01) * (1 - 0.2 * slowed))
    assert (trial.outcome, trial.is_right) == ("faster", False)


def test_one_wrong_trial_of_twenty_is_tolerated_but_not_two() -> None:
    right = trials_with(noise=0.02, slowdown=0.10)
    wrong = trial_of(1, True, 10, lambda slowed: 1.0)
    assert not wrong.is_right
    assert can_be_believed([*right[:-1], wrong])
    assert not can_be_believed([*right[:-2], wrong, wrong])


def test_both_sides_are_made_in_turn() -> None:
    made: list[bool] = []

    def measure(slowed: bool) -> float:
        made.append(slowed)
        return 1.0

    trial_of(1, True, 3, measure)
    assert made == [False, True, True, False, False, True]


def test_the_table_has_every_trial(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(3)

    def measured(*, slowed: bool) -> float:
        return random.uniform(0.99, 1.01) * (1.1 if slowed else 1.0)

    monkeypatch.setattr(differences, "processor_us_per_message", measured)
    result = call("--json", "compare", "--selftest", "--trials", "2", "--instances", "5")
    assert result.status == 0, result.err
    assert (result.document["differ"], result.document["found"]) == (0, 2)
    assert [row["said"] for row in result.document["trials"]] == [
        "same",
        "same",
        "slower",
        "slower",
    ]


def test_a_simulated_run_uses_processor_time() -> None:
    assert differences.processor_us_per_message(slowed=True) > 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--trials", "3"], "--trials 3: can be used with --selftest only"),
        (["--instances", "3"], "--instances 3: can be used with --against or --selftest only"),
        (["--selftest", "latest"], "makes the runs that it compares"),
    ],
)
def test_incompatible_options_are_refused(
    call: Call,
    arguments: list[str],
    said: str,
) -> None:
    result = call("compare", *arguments)
    assert result.status == 2
    assert said in result.err


WITNESSED = Path(__file__).parents[1] / "results" / "witnessed_run"


def test_a_compared_run_with_a_false_file_or_verdict_is_doubted(tmp_path: Path) -> None:
    """A verdict in the folder of a run proves nothing: its files are judged again."""
    folder = shutil.copytree(WITNESSED, tmp_path / "run")
    said: list[str] = []
    progress: Any = SimpleNamespace(print=said.append)

    def find() -> list[str]:
        seal(folder)
        return [str(error) for error in differences.find_doubts([folder], progress)]

    assert find() == []
    assert "VALID" in said[-1]
    judged = {
        "counts": {"owed": 2, "delivered": 1}, "recoveries": [],
        "exercised": {"resent_publications": 0},
    }  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps(judged))
    assert any("verdict.json and the logs in raw/ differ on delivered" in each for each in find())
    (folder / "verdict.json").unlink()
    (path,) = folder.glob("raw/*/load-sub/online.json")
    online = json.loads(path.read_text())
    online["totals"]["delivered"] += 1
    path.write_text(json.dumps(online))
    assert find()
    shutil.rmtree(folder / "raw")
    assert find() == []
    assert "taken on trust" in said[-1]
