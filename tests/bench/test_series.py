"""Tests of repetitions that survive their process."""

import json
from pathlib import Path

import pytest

from bench.run.run_directory import RunDirectory, new_run_directory
from bench.run.series import (
    LEDGER,
    DrawnOrder,
    FolderInUse,
    Hosts,
    Instance,
    Series,
    alternate,
    describe_other_commits,
    manifest_in,
    open_series,
)
from brokerd.errors import ConfigError

PLAN = {"seed": 1, "protocol": "best_effort"}
POINTS = ("few", "many")


HOSTS = {"the inventory": {"transport": "tcp"}, "n1": {"cores": "share"}}


def opened(runs: Path, instances: int = 2, *, hosts: Hosts = HOSTS, **plan: int) -> Series:
    series = open_series(runs, "story", {**PLAN, **plan}, POINTS, instances, hosts=hosts)
    series.directory.leave()  # as a process that is killed does
    return series


def run_of(runs: Path, state: str = "complete") -> Path:
    """Write a run's folder with a state; `running` means that its process was killed."""
    directory = RunDirectory(new_run_directory(runs, "story"))
    directory.begin("story", {})
    if state == "running":
        directory.leave()
    else:
        directory.end("complete")
    return directory.path


def test_instances_of_all_points_alternate(tmp_path: Path) -> None:
    assert [str(each) for each in opened(tmp_path).remaining()] == [
        "few, instance 1",
        "many, instance 1",
        "few, instance 2",
        "many, instance 2",
    ]


def test_a_series_resumed_after_a_kill_runs_no_instance_twice(tmp_path: Path) -> None:
    """The process is killed at every distinct moment: in a run, after a run, and while writing."""
    first = opened(tmp_path)
    done, in_it, behind_it = (run_of(tmp_path, s) for s in ("complete", "running", "complete"))
    few_1, many_1, few_2, many_2 = first.remaining()
    first.begin(few_1, done)
    first.end(few_1, done, "complete")
    first.begin(many_1, in_it)  # killed in its run

    second = opened(tmp_path)
    assert second.path == first.path
    assert second.remaining() == [many_1, few_2, many_2]
    second.begin(many_1, behind_it)  # killed when the run had ended, and nobody had noted that
    with (second.path / LEDGER).open("a") as ledger:
        ledger.write('{"point": "few", "num')  # the moment of the kill

    third = open_series(tmp_path, "story", PLAN, POINTS, 2, hosts=HOSTS)
    assert third.remaining() == [few_2, many_2]
    assert third.runs() == {"few": [done], "many": [behind_it]}
    for instance in third.remaining():
        run = run_of(tmp_path)
        third.begin(instance, run)
        third.end(instance, run, "complete")
    third.close({"points": {}})
    lines = [json.loads(line) for line in (third.path / LEDGER).read_text().splitlines()]
    ended = [(line["point"], line["number"]) for line in lines if line["state"] != "began"]
    assert len(ended) == len({*ended}) == 4
    assert json.loads((third.path / "manifest.json").read_text())["state"] == "complete"
    assert opened(tmp_path).path != third.path, "a series that is finished stays as it is"


def test_a_series_of_a_command_that_runs_is_not_resumed(tmp_path: Path) -> None:
    running = open_series(tmp_path, "story", PLAN, POINTS, 2, hosts=HOSTS)
    ledger = (running.path / "log.jsonl").read_bytes()
    with pytest.raises(FolderInUse, match="another command carries out its runs") as caught:
        opened(tmp_path)
    assert caught.value.exit_status == 4
    assert (running.path / "log.jsonl").read_bytes() == ledger
    running.directory.leave()
    assert opened(tmp_path).path == running.path


def test_a_series_cannot_resume_with_other_settings(tmp_path: Path) -> None:
    first = opened(tmp_path)
    other = opened(tmp_path, seed=2)
    assert other.path != first.path
    with pytest.raises(ConfigError, match="begun with --instances 2; go on with that"):
        opened(tmp_path, instances=5)


def test_unfinished_work_of_another_commit_is_named(tmp_path: Path) -> None:
    """Its runs are not comparable, so the new series begins anew."""
    first = opened(tmp_path)
    assert describe_other_commits(first.path) == []
    manifest = {**manifest_in(first.path), "git_commit": "1" * 40, "plan_digest": "of commit 1"}
    (first.path / "manifest.json").write_text(json.dumps(manifest))
    second, other = opened(tmp_path), opened(tmp_path, seed=2)
    assert second.path != first.path
    (sentence,) = describe_other_commits(second.path)
    assert sentence.startswith(f"{first.path} is unfinished, of commit 111111111111; at another")
    assert describe_other_commits(other.path) == [], "another plan"
    (first.path / "manifest.json").write_text(json.dumps({**manifest, "state": "complete"}))
    assert describe_other_commits(second.path) == [], "a finished series"


@pytest.mark.parametrize(
    "hosts, difference",
    [
        ({**HOSTS, "n1": {"cores": "own"}}, 'cores of n1 was "share", and is "own"'),
        ({**HOSTS, "n1": {}}, 'cores of n1 was "share", and is unset'),
        ({**HOSTS, "n2": {"cores": "share"}}, "n2 was none of them"),
        ({"the inventory": {"transport": "tcp"}}, "n1 was one of them"),
        (
            {**HOSTS, "the inventory": {"transport": "tls"}},
            'transport of the inventory was "tcp", and is "tls"',
        ),
    ],
)
def test_a_series_cannot_resume_on_other_hosts(
    tmp_path: Path, hosts: Hosts, difference: str
) -> None:
    """Runs on other hosts are not comparable, so the refusal precedes them."""
    first = opened(tmp_path)
    with pytest.raises(ConfigError, match=f"{first.path}: begun on other hosts: {difference}; go"):
        opened(tmp_path, hosts=hosts)
    assert opened(tmp_path).path == first.path, "nothing is lost"


def test_a_series_cannot_resume_on_another_machine(tmp_path: Path) -> None:
    first = opened(tmp_path)
    manifest = {**manifest_in(first.path), "cores": 4096}
    (first.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="cores of this machine was 4096, and is "):
        opened(tmp_path)


def test_an_instance_that_was_run_cannot_be_run_again(tmp_path: Path) -> None:
    series = opened(tmp_path)
    instance = Instance("few", 1)
    series.end(instance, run_of(tmp_path), "complete")
    with pytest.raises(AssertionError, match="few, instance 1 was run twice"):
        series.end(instance, run_of(tmp_path), "complete")


_LINE = {"point": "few", "number": 1, "run_id": "", "state": "complete"}


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"point": "other"}, "other, instance 1: no instance"),
        ({"point": 5}, "point = 5"),
        ({"number": 3}, "few, instance 3: no instance"),
        ({"number": True}, "number = True"),
        ({"number": 2**70}, "line 1"),
        ({"run_id": "../../x"}, "run_id = '../../x'"),
        ({"run_id": "20261124T000000Z-000000"}, "is of run None"),
        ({"state": None}, "state = None"),
        ({"verdict": "VALID"}, "verdict: no such key"),
        (None, "not a JSON object"),
    ],
)
def test_a_line_of_no_instance_ends_a_series_by_name(
    tmp_path: Path, changes: dict[str, object] | None, says: str
) -> None:
    series = opened(tmp_path)
    line = [] if changes is None else {**_LINE, "run_id": run_of(tmp_path).name, **changes}
    (series.path / LEDGER).write_text(json.dumps(line) + "\n")
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path)
    assert str(series.path / LEDGER) in str(caught.value)
    assert says in str(caught.value)


def test_a_run_counts_for_one_instance(tmp_path: Path) -> None:
    series, run = opened(tmp_path), run_of(tmp_path)
    for number in (1, 2):
        series.end(Instance("few", number), run, "complete")
    with pytest.raises(ConfigError, match="the run of few, instance 1, too"):
        opened(tmp_path)


def test_an_instance_has_one_run(tmp_path: Path) -> None:
    series = opened(tmp_path)
    lines = [{**_LINE, "run_id": run_of(tmp_path).name} for _ in range(2)]
    (series.path / LEDGER).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ConfigError, match="few, instance 1 has ended as"):
        opened(tmp_path)


def test_hosts_of_another_shape_end_a_series_by_name(tmp_path: Path) -> None:
    file = opened(tmp_path).path / "spec" / "hosts.json"
    for text in ("[]", "{", '{"n1": 5}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"hosts\.json"):
            opened(tmp_path)


def test_a_failed_instance_delays_no_other_and_is_repeated_last(tmp_path: Path) -> None:
    first = opened(tmp_path)
    few_1, many_1, few_2, many_2 = first.remaining()
    first.fail(few_1, "a broker did not start")
    assert first.failed == {few_1: "a broker did not start"}
    first.end(many_1, run_of(tmp_path), "complete")

    second = opened(tmp_path)
    assert second.failed == {}
    assert second.remaining() == [few_2, many_2, few_1]
    with pytest.raises(AssertionError, match="are missing"):
        second.close({"points": {}})


def test_a_drawn_order_holds_each_point_once_in_every_repetition(tmp_path: Path) -> None:
    points = [f"p{number}" for number in range(8)]

    def order(seed: int) -> list[Instance]:
        runs = tmp_path / str(seed)
        series = open_series(runs, "story", PLAN, points, 3, DrawnOrder(seed), hosts=HOSTS)
        series.directory.leave()
        return series.remaining()

    drawn = order(11)
    repetitions = [[each.point for each in drawn[at : at + 8]] for at in (0, 8, 16)]
    assert [sorted(one) for one in repetitions] == [points] * 3
    assert [each.number for each in drawn] == [1] * 8 + [2] * 8 + [3] * 8
    assert len({*map(tuple, repetitions)}) == 3, "another order each time"
    assert drawn == order(11), "the same for the same seed"
    assert drawn != order(12)


def test_compared_points_alternate_in_the_first_place(tmp_path: Path) -> None:
    series = open_series(tmp_path, "story", PLAN, POINTS, 4, alternate, hosts=HOSTS)
    series.directory.leave()
    assert [each.point for each in series.remaining()] == [
        *("few", "many"), *("many", "few"), *("few", "many"), *("many", "few"),
    ]  # fmt: skip


def test_a_first_line_that_was_cut_off_leaves_nothing(tmp_path: Path) -> None:
    first = opened(tmp_path)
    (first.path / LEDGER).write_text('{"point": "few", "num')
    second = opened(tmp_path)
    instance = second.remaining()[0]
    second.end(instance, run_of(tmp_path), "complete")
    assert instance not in opened(tmp_path).remaining()
