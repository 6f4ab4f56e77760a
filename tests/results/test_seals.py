"""Tests of seals: a seal covers all files of a run but derived files."""

import json
import os
from pathlib import Path

import pytest

from results.reference import files as plain
from results.reference.files import FileRefusal, is_sealed
from results.tables import seals
from results.tables.json_files import IntegrityError
from results.tables.seals import (
    DERIVED,
    list_seal,
    seal,
    seal_derived,
    verify_derived,
    verify_seal,
)

OWN = ("manifest.json", "log.jsonl", "raw/h1/b1/stats.jsonl", "spec/workload.toml")
MADE = (
    "verdict.json",
    "report.html",
    "evidence/missing.csv",
    "figures/rate.svg",
    "tables/a.parquet",
)
NEARLY = (
    *("figures.toml", "evidence.log", "tables.json", "verdict.json.old", "verdict.jsonl"),
    *("report.html2", "tables2/a.parquet", "raw/figures", "raw/h1/verdict.json", "spec/tables"),
    *("Figures/rate.svg", "evidence-2/missing.csv", "raw/h1/b1/SHA256SUMS"),
)


def sealed_run(folder: Path) -> Path:
    for name in (*OWN, *MADE, *NEARLY):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    seal(folder)
    return folder


def test_each_kind_of_derived_file_is_among_those_tried() -> None:
    assert {name.partition("/")[0] for name in MADE} == {*DERIVED}


@pytest.mark.parametrize("name", [*OWN, *NEARLY])
def test_a_file_of_the_run_is_neither_changed_nor_removed_nor_added(
    tmp_path: Path, name: str
) -> None:
    run = sealed_run(tmp_path)
    digest = verify_seal(run).digest
    path = run / name
    path.write_text("another")
    with pytest.raises(IntegrityError, match="has changed"):
        verify_seal(run)
    path.unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        verify_seal(run)
    path.write_text(name)
    assert verify_seal(run).digest == digest
    assert is_sealed(run)
    added = path.with_name(f"{path.name}.more")
    added.write_text("more")
    with pytest.raises(IntegrityError, match="is not in SHA256SUMS"):
        verify_seal(run)
    with pytest.raises(FileRefusal, match="too much"):
        is_sealed(run)
    with pytest.raises(AssertionError, match="the run itself left"):
        verify_derived(run, name)


@pytest.mark.parametrize("name", MADE)
def test_a_derived_file_may_change_and_is_sealed_again(tmp_path: Path, name: str) -> None:
    run = sealed_run(tmp_path)
    digest = verify_seal(run).digest
    (run / name).write_text("another")
    assert verify_seal(run).digest == digest
    if not name.startswith("tables/"):
        with pytest.raises(IntegrityError):
            verify_derived(run, name)
    seal_derived(run)
    assert verify_seal(run).digest == digest
    (run / OWN[0]).write_text("another")
    seal_derived(run)
    with pytest.raises(IntegrityError, match=f"{OWN[0]} has changed"):
        verify_seal(run)


@pytest.mark.parametrize("name", [name for name in MADE if not name.startswith("tables/")])
def test_a_derived_file_that_was_removed_is_in_no_seal(tmp_path: Path, name: str) -> None:
    """A file of this name that appears later is no file of this derivation."""
    run = sealed_run(tmp_path)
    (run / name).unlink()
    seal_derived(run)
    assert {*list_seal(run)} == {*OWN, *MADE, *NEARLY} - {name, "tables/a.parquet"}
    (run / name).write_text(name)
    with pytest.raises(IntegrityError, match=f"{name} is not in"):
        verify_derived(run, name)


def test_the_seal_of_a_sample_stays_as_the_program_brought_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "samples" / "run"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    seal(run)
    before = (run / "SHA256SUMS").read_bytes()
    (run / "figures").mkdir()
    (run / "figures" / "measure-response.hlog").write_text("#")
    monkeypatch.setattr(seals, "SAMPLES", tmp_path / "samples")
    seal_derived(run)
    assert (run / "SHA256SUMS").read_bytes() == before
    assert verify_seal(run).is_there
    monkeypatch.setattr(seals, "SAMPLES", tmp_path / "elsewhere")
    seal_derived(run)
    assert (run / "SHA256SUMS").read_bytes() != before


def add_records(run: Path) -> None:
    """Add a closed record file longer than the count of the sidecar."""
    folder = run / "raw" / "h1" / "b1"
    sidecar = {"rows": 2, "width": 32, "closed": True}
    (folder / "acks.rec.json").write_text(json.dumps(sidecar))
    (folder / "acks.rec").touch()
    os.truncate(folder / "acks.rec", 3 * 32)


def add_deep_folders(run: Path) -> None:
    """Add folders nested too deeply for a run."""
    (run / "/".join(["raw", *"d" * 60])).mkdir(parents=True)


def add_long_document(run: Path) -> None:
    """Add a document above the limit of one read."""
    (run / "raw" / "long.json").touch()
    os.truncate(run / "raw" / "long.json", 3_000)


SPOILS = {
    "records": (add_records, "its sidecar counts 2 rows", "another number of rows"),
    "folders": (add_deep_folders, "levels or more", "folders in one another"),
    "document": (add_long_document, "3,000 bytes", "no run writes so many"),
}


@pytest.mark.parametrize("name", SPOILS)
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_file_that_no_run_writes_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_listed: bool
) -> None:
    monkeypatch.setattr(seals, "_LARGEST_BYTES", 2_000)
    monkeypatch.setattr(plain, "_LARGEST_BYTES", 2_000)
    run = sealed_run(tmp_path)
    spoil, ours, theirs = SPOILS[name]
    spoil(run)
    if is_listed:
        lines = "".join(
            f"{'0' * 64}  {path.relative_to(run)}\n"
            for path in sorted(run.rglob("*"))
            if path.is_file() and path != run / "SHA256SUMS"
        )
        (run / "SHA256SUMS").write_text(lines)
    else:
        (run / "SHA256SUMS").unlink()
    monkeypatch.setattr(seals, "file_sha256", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(IntegrityError, match=ours):
        verify_seal(run)
    with pytest.raises(FileRefusal, match=theirs):
        is_sealed(run)


def test_a_seal_that_is_no_text_is_refused(tmp_path: Path) -> None:
    run = sealed_run(tmp_path)
    (run / "SHA256SUMS").write_bytes(b"\xff\xfe")
    with pytest.raises(IntegrityError, match="SHA256SUMS"):
        verify_seal(run)
    with pytest.raises(FileRefusal, match="SHA256SUMS"):
        is_sealed(run)
