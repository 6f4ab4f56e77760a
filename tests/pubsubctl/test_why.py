"""Stories about `why`, the trace of one delivery at the command line."""

import os
import shutil
from pathlib import Path

import pytest

from results.tables.seals import seal
from tests.pubsubctl.conftest import Call

SAMPLE = Path("results/samples/delta-tree-crash").resolve()


def test_why_prints_the_way_of_one_publication(call: Call) -> None:
    answer = call("why", "p1-pub-1:310", "s3-sub-1", str(SAMPLE))
    assert (answer.status, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].startswith("p1/0:1:310 of p1-pub-1: symbol = 'SYMBOL007'")
    assert lines[1:3] == ["to s3-sub-1/1: true", "path p1 > b3 > s3"]
    assert any(line.split()[1:] == ["p1-pub-1", "sends", "the", "publication"] for line in lines)
    assert lines[-2].startswith("delivered 5.24 ms after sending")


def test_why_has_a_document(call: Call) -> None:
    document = call("why", "--json", "p1/0:1:310", "s3-sub-1/1", str(SAMPLE)).document
    assert document["schema"] == "pubsubctl/why/1"
    assert (document["outcome"], document["path"]) == ("delivered", ["p1", "b3", "s3"])
    assert [*document["events"][0]] == ["at_ns", "place", "text"]


@pytest.mark.parametrize(
    "publication, subscription, said",
    [
        ("p1-pub-1:9999", "s3-sub-1", "the run has 1 to 1577"),
        ("p1-pub-7:1", "s3-sub-1", "did you mean 'p1-pub-"),
        ("p1-pub-1:1", "s9-sub-1", "no subscription 's9-sub-1' in this run"),
        ("310", "s3-sub-1", "write SOURCE:NUMBER"),
    ],
)
def test_what_a_run_does_not_have_ends_with_status_2(
    call: Call, publication: str, subscription: str, said: str
) -> None:
    answer = call("why", publication, subscription, str(SAMPLE))
    assert answer.status == 2
    assert said in answer.err


def test_a_damaged_run_ends_with_status_8(call: Call, tmp_path: Path) -> None:
    run = Path(shutil.copytree(SAMPLE, tmp_path / "run"))
    (run / "raw/local1/load-sub/deliveries.rec.json").write_text("{")
    assert call("why", "p1-pub-1:310", "s3-sub-1", str(run)).status == 8


@pytest.mark.parametrize("content", [b"\xff\n", None], ids=["no UTF-8", "a pipe"])
@pytest.mark.parametrize("name", ["log.jsonl", "spec/workload.toml", "SHA256SUMS"])
def test_a_hostile_file_is_named_and_never_awaited(
    call: Call, tmp_path: Path, name: str, content: bytes | None
) -> None:
    run = Path(shutil.copytree(SAMPLE, tmp_path / "run"))
    (run / name).unlink()
    if content is None:
        os.mkfifo(run / name)
    else:
        (run / name).write_bytes(content)
        if name != "SHA256SUMS":
            seal(run)
    answer = call("why", "p1-pub-1:310", "s3-sub-1", str(run))
    assert (answer.status, name in answer.err) == (8, True), answer.err


def test_a_run_with_a_changed_file_is_not_traced(call: Call, tmp_path: Path) -> None:
    run = Path(shutil.copytree(SAMPLE, tmp_path / "run"))
    with (run / "log.jsonl").open("a") as journal:
        journal.write("{}\n")
    answer = call("why", "p1-pub-1:310", "s3-sub-1", str(run))
    assert (answer.status, "log.jsonl has changed" in answer.err) == (8, True), answer.err
