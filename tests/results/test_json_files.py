"""Tests of the journal of an experiment or a series: a copy of the manifest."""

import json
from pathlib import Path
from typing import Any

import pytest

from results.tables.json_files import JOURNAL, IntegrityError, check_journal

MANIFEST = {"kind": "experiment", "seed": 7, "labels": {"a": "b"}}
ROWS = {"what": "rows", "latencies": 3}


def folder_with(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / JOURNAL
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_a_journal_that_repeats_the_manifest_yields_its_line_about_rows(tmp_path: Path) -> None:
    assert check_journal(tmp_path, MANIFEST) == {}
    end = {"what": "end", "manifest": MANIFEST}
    folder = folder_with(tmp_path, {"what": "begin", "manifest": {}}, ROWS, end)
    assert check_journal(folder, {**MANIFEST, "started_utc": "now", "argv": ["a"]}) == ROWS
    assert check_journal(folder_with(tmp_path, end), MANIFEST) == {}


@pytest.mark.parametrize(
    "journaled, key",
    [
        ({**MANIFEST, "seed": 8}, "seed"),
        ({**MANIFEST, "more": 1}, "more"),
        ({"kind": "experiment", "labels": {"a": "b"}}, "seed"),
        ({**MANIFEST, "labels": {}}, "labels"),
    ],
)
def test_a_key_that_only_one_of_both_has_is_named(
    tmp_path: Path, journaled: dict[str, Any], key: str
) -> None:
    same = {"what": "end", "manifest": MANIFEST}
    folder = folder_with(tmp_path, same, {"what": "end", "manifest": journaled}, ROWS)
    with pytest.raises(IntegrityError, match=rf"manifest.json and .* differ on {key}$"):
        check_journal(folder, MANIFEST)
