"""Stories about files as users have them: byte order marks, folders, links, empty and damaged."""

import errno
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import pubsubctl
from pubsubctl.console.outputs import write_output
from pubsubctl.errors import PreflightFailed
from tests.helpers.small_disk import fill_disk, mounted_disk
from tests.pubsubctl.conftest import Call

MARK = "\ufeff"
NEW = "20260105T000000Z-eeeeee"


def _packaged(folder: str, name: str) -> str:
    return (Path(__file__).parents[2] / folder / name).read_text(encoding="utf-8")


def _first(change: Callable[[str], str] = str) -> dict[str, str]:
    """Return a workload file, changed, as `mine`."""
    return {"bench/workloads/mine.toml": change(_packaged("bench/workloads", "chain3.toml"))}


def _inventory(change: Callable[[str], str]) -> dict[str, str]:
    return {"inventories/mine.toml": change(_packaged("inventories", "local.toml"))}


LINT = ("workload", "lint", "mine")


@pytest.mark.parametrize(
    "files, line, status, said",
    [
        (_first(lambda text: MARK + text), LINT, 0, "mine.toml: ok"),
        (_first(lambda text: text.replace("\n", "\r\n")), LINT, 0, "mine.toml: ok"),
        (_first(lambda text: f"{text}\n[phases]\n"), LINT, 2, "twice"),
        (
            _first(lambda text: f'schema = "a"\n{text}'),
            LINT,
            2,
            "this key has a value already (at line",
        ),
        ({"bench/workloads/mine.toml": ""}, LINT, 2, "key 'schema' is missing"),
        (_inventory(lambda text: MARK + text), ("-i", "mine", "inventory", "list"), 0, "local1"),
        (
            {"inventories/mine.toml": ""},
            ("-i", "mine", "status"),
            2,
            "mine.toml:1: key 'schema' is missing",
        ),
        (
            {"bench/sweeps/mine.toml": ""},
            ("sweep", "mine", "--dry-run"),
            2,
            "bench/sweeps/mine.toml: key 'workload' is missing",
        ),
        (
            {"a.cfg": f"{MARK}Host a\n  HostName 10.0.0.1\n"},
            ("inventory", "import", "ssh-config", "a.cfg"),
            2,
            "a.cfg:1: begins with a byte order mark; save the file as plain UTF-8",
        ),
        (
            {"a.cfg": "Host a\r\n  HostName 10.0.0.1\r\n"},
            ("inventory", "import", "ssh-config", "a.cfg"),
            0,
            'address = "10.0.0.1"',
        ),
        ({}, ("bench", "", "--dry-run"), 2, "workload '': the name is empty"),
        ({}, ("-i", " ", "status"), 2, "inventory ' ': the name is empty"),
        ({}, ("bench", "/dev/null", "--dry-run"), 2, "'/dev/null': this is no regular file"),
        ({}, ("limit", "chain3", "--p99", "0ms"), 2, "--p99 0ms: no latency is below it"),
        ({"x/a b ü.toml": _first()["bench/workloads/mine.toml"]},
         ("workload", "lint", "x/../x/a b ü.toml"), 0, "a b ü.toml: ok"),
    ],
)  # fmt: skip
def test_a_file_as_users_have_it_is_read_or_refused_in_a_sentence(
    call: Call, project: Path, files: Mapping[str, str], line: tuple[str, ...], status: int,
    said: str,
) -> None:  # fmt: skip
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text, encoding="utf-8", newline="")
    answer = call(*line)
    assert answer.status == status, answer.err
    assert said in answer.out + answer.err


def test_a_path_without_a_file_is_answered_with_the_nearest_file(call: Call, project: Path) -> None:
    assert "'x/mine.tml': there is no such file\n" in call("bench", "x/mine.tml").err
    (project / "x").mkdir()
    (project / "x/mine.toml").touch()
    (project / "x/mine.tmp").mkdir()
    said = "'x/mine.tml': there is no such file; did you mean 'mine.toml'?"
    assert said in call("bench", "x/mine.tml").err


@pytest.mark.parametrize(
    "kind, folder, line",
    [
        ("workload", "bench/workloads", ("workload", "lint", "mine")),
        ("workload", "bench/workloads", ("bench", "mine", "--dry-run")),
        ("topology", "bench/topologies", ("topology", "show", "mine")),
        ("schedule", "fault_injection", ("inject", "mine", "--lint", "--topology", "demo")),
        ("inventory", "inventories", ("-i", "mine", "status")),
    ],
)
@pytest.mark.parametrize(
    "entry, what", [("folder", "a folder"), ("loop", "a link that leads in a circle")]
)
def test_an_entry_that_is_no_file_is_not_offered_as_its_own_correction(
    call: Call, project: Path, kind: str, folder: str, line: tuple[str, ...], entry: str, what: str
) -> None:
    path = project / folder / "mine.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry == "folder":
        path.mkdir()
    else:
        path.symlink_to("mine.toml")
    answer = call(*line)
    assert answer.status == 2
    assert f"{kind} 'mine': {folder}/mine.toml is {what}" in answer.err
    assert "did you mean" not in answer.err


def test_a_failed_output_keeps_the_earlier_content_and_leaves_no_part(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, new = project / "there.toml", project / "new.toml"
    write_output(there, "earlier")
    there.chmod(0o600)

    def fail(path: Path, text: str, encoding: str) -> int:
        with path.open("w") as file:
            file.write(text[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", fail)
        for path in (there, new):
            with pytest.raises(PreflightFailed, match="cannot be written: no space left"):
                write_output(path, "later")
    assert there.read_text() == "earlier"
    assert [path.name for path in project.iterdir() if path.is_file()] == ["there.toml"]
    write_output(there, "later")
    assert (there.read_text(), there.stat().st_mode & 0o777) == ("later", 0o600)


def test_an_output_that_is_a_link_or_a_device_stays_one(project: Path) -> None:
    (project / "link.toml").symlink_to("target.toml")
    write_output(project / "link.toml", "text")
    assert (project / "link.toml").is_symlink()
    assert (project / "target.toml").read_text() == "text"
    write_output(Path("/dev/null"), "text")
    assert not Path("/dev/null").is_file()


def test_a_project_is_written_whole_or_not_at_all(call: Call, tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", 1) as disk:
        filler = fill_disk(disk)
        answer = call("init", str(disk / "study"))
        assert answer.status == 4
        assert "cannot be written: no space left on device" in answer.err
        filler.unlink()
        assert call("init", str(disk / "study")).status == 0


def test_a_full_disk_is_named(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    usage = shutil.disk_usage(tmp_path)
    full = tmp_path / "state"
    full.mkdir()

    def usage_of(path: Path) -> object:
        return usage._replace(free=0) if Path(path) == full else usage

    monkeypatch.setattr("pubsubctl.commands.failures.shutil.disk_usage", usage_of)
    monkeypatch.setattr("pubsubctl.runs.run_records.records_in", fail)
    answer = call("results", "list")
    assert (answer.status, answer.err) == (
        4, f"error: no space left on the disk of {full}; what was written stays there\n"
    )  # fmt: skip


def test_a_damaged_run_hides_no_other_run(call: Call, project: Path) -> None:
    runs = project / "results" / "runs" / "demo"
    for run_id, content in (("20260101T000000Z-aaaaaa", "[]"), (NEW, json.dumps({"run_id": NEW}))):
        (runs / run_id).mkdir(parents=True)
        (runs / run_id / "manifest.json").write_text(content)
    listed = call("results", "list", "--json").document["runs"]
    assert [(row["run_id"][:8], row["state"]) for row in listed] == [
        ("20260101", "damaged"), ("20260105", ""),
    ]  # fmt: skip
    assert call("results", "index").status == 0
    assert call("results", "show", "20260101T000000Z-aaaaaa").status == 8
    assert call("results", "remove", "20260101T000000Z-aaaaaa", "--yes").status == 0
    assert [path.name for path in runs.iterdir()] == [NEW]


def test_an_empty_manifest_and_a_folder_of_that_name_are_damage(call: Call, project: Path) -> None:
    run = project / "results" / "runs" / "demo" / NEW
    (run / "manifest.json").mkdir(parents=True)
    listed = call("results", "list", "--json").document["runs"]
    assert [row["state"] for row in listed] == ["damaged"]
    result = call("results", "show", NEW)
    assert result.status in (2, 8), result.err
    (run / "manifest.json").rmdir()
    (run / "manifest.json").write_text("\n")
    result = call("results", "show", NEW)
    assert (result.status, "manifest.json: the file is empty" in result.err) == (8, True)


def test_a_label_of_a_run_outside_of_a_folder_of_runs_is_refused(call: Call, project: Path) -> None:
    sample = project / "samples" / "delta-tree-crash"
    sample.mkdir(parents=True)
    (sample / "manifest.json").write_text("{}")
    answer = call("results", "label", "samples/delta-tree-crash", "best=y")
    assert answer.status == 2
    assert "samples/delta-tree-crash: not in a folder of runs" in answer.err
    assert sorted(project.rglob("index.*")) == []


def test_the_examples_on_topologies_work_in_their_order(call: Call, project: Path) -> None:
    page = (Path(pubsubctl.__file__).parent / "help" / "topologies.md").read_text("utf-8")
    examples = re.findall(r"^    pubsubctl (topology [^#&\n]*)", page, re.MULTILINE)
    assert len(examples) > 12
    wrong = {line: found.err for line in examples if (found := call(*line.split())).status}
    assert wrong == {}
