"""Tests of capsules: unpacked files are equal to the byte, and changes are detected."""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.runs.capsule_index import DOCUMENT, digest_of
from pubsubctl.runs.capsules import Capsule, make_capsule, unpack_capsule
from pubsubctl.runs.reproduction import compare, judge_again, judge_first
from pubsubctl.runs.runs import sibling_run
from pubsubctl.runs.verdicts import JudgedRun
from results.tables.seals import seal
from tests.helpers.runs import Scenario, unpack_sample, write_demo_run
from tests.pubsubctl.conftest import Call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Quiet:
    """Progress without output, which keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.phases: list[str] = []

    def phase(self, text: str) -> None:
        """Keep a phase."""
        self.phases.append(text)

    def print(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a run of brokers by a user with a name, and an experiment of a figure."""
    folder = tmp_path_factory.mktemp("runs")
    run = write_demo_run(folder, Scenario(measure_s=1.0, rate=5))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["argv"] = ["/home/bob/bin/pubsubctl", "bench", "/home/bob/demo.toml"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    seal(run)
    return [run, unpack_sample("dft11-fig9", folder)]


@pytest.fixture(scope="module")
def capsule(
    spark: "SparkSession", runs: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("capsules") / "demo.tar.gz"
    make_capsule(spark, runs, path, Quiet())
    return path


def unpacked(path: Path, folder: Path, digest: str = "") -> Capsule:
    folder.mkdir()
    return unpack_capsule(path, folder, digest)


def rewritten(path: Path, target: Path, change: dict[str, bytes | None]) -> Path:
    """Return a copy of a capsule with changed files; None removes a file."""
    with tarfile.open(path) as old, tarfile.open(target, "w:gz") as new:
        files = {entry.name: old.extractfile(entry).read() for entry in old}  # type: ignore[union-attr]
        for name, content in {**files, **change}.items():
            if content is not None:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                new.addfile(entry, io.BytesIO(content))
    return target


def document_of(path: Path) -> dict[str, Any]:
    with tarfile.open(path) as archive:
        return json.loads(archive.extractfile(DOCUMENT).read())  # type: ignore[union-attr,no-any-return]


def test_a_capsule_contains_no_user_name(capsule: Path, runs: list[Path], tmp_path: Path) -> None:
    held = unpacked(capsule, tmp_path / "held")
    everything = b"".join(path.read_bytes() for path in held.folder.rglob("*") if path.is_file())
    assert b"/home/bob/demo.toml" in (runs[0] / "manifest.json").read_bytes()
    assert b"demo.toml" in everything
    assert b"bob" not in everything


def test_the_same_runs_are_the_same_bytes(
    spark: "SparkSession", runs: list[Path], tmp_path: Path
) -> None:
    first, second = tmp_path / "a" / "c.tar.gz", tmp_path / "b" / "c.tar.gz"
    for path in (first, second):
        path.parent.mkdir()
        progress = Quiet()
        make_capsule(spark, runs[1:], path, progress)
        assert f"drawing dft11.fig9 of 1 of 1: {runs[1].name}" in progress.phases
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(UserError, match="is there already"):
        make_capsule(spark, runs, first, Quiet())


@pytest.mark.parametrize(
    "recorded, now, so, words",
    [
        ("VALID", "valid", "same", "VALID"),
        ("VALID", "invalid", "differs", "INVALID"),
        ("VALID", "unknown", "cannot tell", "UNKNOWN: the machine was busy"),
        ("UNKNOWN", "unknown", "same", "UNKNOWN"),
    ],
)
def test_a_repeated_run_is_reported_as_same_different_or_inconclusive(
    tmp_path: Path, recorded: str, now: str, so: str, words: str
) -> None:
    run = tmp_path / "runs" / "demo" / "1"
    held = Capsule(tmp_path, {"runs": {"runs/demo/1": {"verdict": recorded, "figures": {}}}})
    document = {"verdict": now, "because": ["the machine was busy"]}
    row = judge_again(JudgedRun(tmp_path, tmp_path, document), run, held)
    assert (row.level, row.run, row.so, row.now) == ("local", "demo/1", so, words)


def test_a_recorded_unknown_verdict_is_no_difference(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "demo" / "1"
    held = Capsule(tmp_path, {"runs": {"runs/demo/1": {"verdict": "UNKNOWN", "figures": {}}}})
    row = judge_again(JudgedRun(tmp_path, tmp_path, {"verdict": "valid"}), run, held)
    assert (row.so, row.now) == ("cannot tell", "VALID")


def test_archive_metadata_lists_the_contents_of_a_capsule(capsule: Path, tmp_path: Path) -> None:
    held = unpacked(capsule, tmp_path / "held")
    crate = json.loads((held.folder / "ro-crate-metadata.json").read_text())
    by_id = {each["@id"]: each for each in crate["@graph"]}
    assert by_id["ro-crate-metadata.json"]["about"] == {"@id": "./"}
    parts = {each["@id"] for each in by_id["./"]["hasPart"]}
    listed = {*held.document["files"]} - {"ro-crate-metadata.json"}
    assert parts == {*listed, DOCUMENT}
    for name in listed:
        assert by_id[name]["sha256"] == held.document["files"][name]["sha256"]
    assert "| UNKNOWN | timeline |" in (held.folder / "README.md").read_text()


def test_reproduced_and_differing_results_are_distinguished(
    spark: "SparkSession", capsule: Path, tmp_path: Path
) -> None:
    """The sealed claims exceed the logs and figures."""
    document = document_of(capsule)
    about = next(iter(document["runs"].values()))
    about["counts"]["owed"] += 1
    about["figures"]["timeline"]["timeline.csv"] = "0" * 64
    document["digest"] = digest_of(document)
    changed = rewritten(capsule, tmp_path / "c.tar.gz", {DOCUMENT: json.dumps(document).encode()})
    held = unpacked(changed, tmp_path / "held")
    shown = Quiet()
    judgements = judge_first(held, shown)
    assert shown.lines[-1] == "plain judge: 1 of 1 verdict as recorded"
    assert len(judgements) == 1, "the experiment of a figure has no brokers"
    rows = {
        row.what: row for row in compare(spark, held, shown, judges=True, judgements=judgements)
    }
    assert {what: row.is_same for what, row in rows.items()} == {
        "verdict": False, "timeline": False, "dft11.fig9": True,
    }  # fmt: skip
    assert (rows["timeline"].recorded, rows["timeline"].now) == (
        "4 files", "other bytes in timeline.csv",
    )  # fmt: skip
    assert rows["verdict"].recorded != rows["verdict"].now


def test_a_changed_byte_is_seen_wherever_it_is(capsule: Path, tmp_path: Path) -> None:
    whole = capsule.read_bytes()
    for place in range(10, len(whole), len(whole) // 12):  # behind the header of gzip
        damaged = tmp_path / f"at-{place}.tar.gz"
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(IntegrityError):
            unpacked(damaged, tmp_path / f"held-{place}")
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(IntegrityError, match="not a whole capsule"):
        unpacked(cut, tmp_path / "held-cut")


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("README.md", b"another", "README.md has changed"),
        ("README.md", None, "README.md is missing"),
        ("more.txt", b"more", "more.txt is not in capsule.json"),
        ("../out.txt", b"x", "is no file of a capsule"),
        ("/out.txt", b"x", "is no file of a capsule"),
    ],
)
def test_files_that_are_not_those_that_were_put_in_are_refused(
    capsule: Path, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    changed = rewritten(capsule, tmp_path / "c.tar.gz", {name: content})
    with pytest.raises(IntegrityError, match=words):
        unpacked(changed, tmp_path / "held")
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_links_devices_and_folders_are_no_files(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "c.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("entry")
        entry.type, entry.linkname = kind, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(IntegrityError, match="is no file of a capsule"):
        unpacked(path, tmp_path / "held")


def test_a_file_that_is_there_twice_is_refused(capsule: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.tar.gz"
    with tarfile.open(capsule) as old, tarfile.open(path, "w:gz") as archive:
        for entry in old:
            for _ in range(1 + (entry.name == "README.md")):
                archive.addfile(entry, old.extractfile(entry))
    with pytest.raises(IntegrityError, match="not a whole capsule"):
        unpacked(path, tmp_path / "held")


def test_a_capsule_is_quoted_by_its_digest(call: Call, capsule: Path, tmp_path: Path) -> None:
    digest = unpacked(capsule, tmp_path / "held").digest
    assert unpacked(capsule, tmp_path / "again", digest).digest == digest
    other = f"sha256:{'0' * 64}"
    for given, status, words in ((other, 8, digest), ("sha256:abc", 2, "64 hexadecimal digits")):
        answer = call("results", "reproduce", str(capsule), "--digest", given)
        assert (answer.status, words in answer.err) == (status, True), answer.err


def a_changed_byte(document: dict[str, Any]) -> None:
    document["published"] = "2001-01-01"


def a_run_elsewhere(document: dict[str, Any]) -> None:
    document["runs"] = {"runs/../../x": next(iter(document["runs"].values()))}
    document["digest"] = digest_of(document)


def a_run_of_too_many_parts(document: dict[str, Any]) -> None:
    document["runs"]["runs/a/b/c"] = next(iter(document["runs"].values()))
    document["digest"] = digest_of(document)


def runs_as_a_list(document: dict[str, Any]) -> None:
    document["runs"] = [*document["runs"]]
    document["digest"] = digest_of(document)


def runs_as_null(document: dict[str, Any]) -> None:
    document["runs"] = None
    document["digest"] = digest_of(document)


def no_runs(document: dict[str, Any]) -> None:
    document["runs"] = {}
    document["digest"] = digest_of(document)


def files_of_the_release_before(document: dict[str, Any]) -> None:
    document["files"] = {name: file["sha256"] for name, file in document["files"].items()}
    document["digest"] = digest_of(document)


def a_file_in_deep_folders(document: dict[str, Any]) -> None:
    document["files"]["a/" * 5_000 + "b"] = {"sha256": "0" * 64, "size_bytes": 1}
    document["digest"] = digest_of(document)


def a_file_outside(document: dict[str, Any]) -> None:
    document["files"]["runs/../../b"] = {"sha256": "0" * 64, "size_bytes": 1}
    document["digest"] = digest_of(document)


def files_that_fill_a_disk(document: dict[str, Any]) -> None:
    for number in range(4):
        document["files"][f"b{number}"] = {"sha256": "0" * 64, "size_bytes": 60 << 30}
    document["digest"] = digest_of(document)


def a_figure_with_a_path(document: dict[str, Any]) -> None:
    next(iter(document["runs"].values()))["figures"]["../../figure"] = {}
    document["digest"] = digest_of(document)


def a_verdict_of_its_own(document: dict[str, Any]) -> None:
    next(iter(document["runs"].values()))["verdict"] = "EXCELLENT"
    document["digest"] = digest_of(document)


def counts_that_are_text(document: dict[str, Any]) -> None:
    next(iter(document["runs"].values()))["counts"] = {"owed": "many"}
    document["digest"] = digest_of(document)


def an_unknown_key(document: dict[str, Any]) -> None:
    document["more"] = 1
    document["digest"] = digest_of(document)


@pytest.mark.parametrize(
    "spoil",
    [
        a_changed_byte,
        a_run_elsewhere,
        a_run_of_too_many_parts,
        runs_as_a_list,
        runs_as_null,
        no_runs,
        files_of_the_release_before,
        a_file_in_deep_folders,
        a_file_outside,
        files_that_fill_a_disk,
        a_figure_with_a_path,
        a_verdict_of_its_own,
        counts_that_are_text,
        an_unknown_key,
    ],
)
def test_an_index_that_cannot_be_is_refused_before_anything_is_unpacked(
    capsule: Path, tmp_path: Path, spoil: Callable[[dict[str, Any]], None]
) -> None:
    document = document_of(capsule)
    spoil(document)
    changed = rewritten(capsule, tmp_path / "c.tar.gz", {DOCUMENT: json.dumps(document).encode()})
    with pytest.raises(IntegrityError, match=DOCUMENT + "|a capsule has at most"):
        unpacked(changed, tmp_path / "held")
    assert [*(tmp_path / "held").iterdir()] == []


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b"{}", b"[]", b"null", b"\xff", b'{"schema": "pubsubctl/capsule/1"}'],
)
def test_an_index_that_is_none_is_refused(capsule: Path, tmp_path: Path, content: bytes) -> None:
    changed = rewritten(capsule, tmp_path / "c.tar.gz", {DOCUMENT: content})
    with pytest.raises((IntegrityError, UserError)):
        unpacked(changed, tmp_path / "held")
    assert [*(tmp_path / "held").iterdir()] == []


@pytest.mark.parametrize("name", ["tables/more.parquet", "raw/h/b1/stderr.log"])
def test_every_file_of_a_run_is_covered(capsule: Path, tmp_path: Path, name: str) -> None:
    run = next(iter(document_of(capsule)["runs"]))
    changed = rewritten(capsule, tmp_path / "c.tar.gz", {f"{run}/{name}": b"x"})
    with pytest.raises(IntegrityError, match=f"{name} (is not in|has changed)"):
        unpacked(changed, tmp_path / "held")


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "..", "", "a/b", 7, None])
def test_a_series_names_runs_beside_itself_only(tmp_path: Path, name: object) -> None:
    with pytest.raises(IntegrityError, match="no name of a run"):
        sibling_run(tmp_path / "series", name)


def test_a_file_that_is_no_capsule_is_refused(call: Call, tmp_path: Path) -> None:
    other = tmp_path / "other.tar.gz"
    with tarfile.open(other, "w:gz"):
        pass
    plain = tmp_path / "plain"
    plain.write_bytes(gzip.compress(b"x" * 2000))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words, status, said in (
        (["results", "reproduce", str(other)], 2, "`pubsubctl results capsule` makes capsules"),
        (["results", "reproduce", str(plain)], 8, "not a whole capsule"),
        (["results", "reproduce", str(tmp_path / "none")], 2, "no such file"),
        (["results", "reproduce", str(pipe)], 2, "no regular file"),
        (["results", "reproduce", str(other), "--level", "chekc"], 2, "did you mean 'check'"),
        (["results", "reproduce", str(other), "-o", str(tmp_path)], 2, "is there already"),
    ):
        answer = call(*words)
        assert answer.status == status, answer.err
        assert said in answer.err
