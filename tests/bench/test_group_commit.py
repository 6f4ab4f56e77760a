"""The measurement of group commit, small."""

from pathlib import Path

import pytest

from bench.group_commit import __main__ as group_commit


def test_publishers_share_the_syncs_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group_commit, "PUBLISHERS", (1, 20))
    monkeypatch.setattr(group_commit, "DELAYS_MS", (1.0,))
    assert group_commit.main(["--seconds", "0.05", "--folder", str(tmp_path)]) == 0
    _, header, *rows = capsys.readouterr().out.splitlines()
    place = header.split().index("per") - 1  # "delay ms" before it is of two words
    alone, together = (float(row.split()[place]) for row in rows)
    assert alone <= 1
    assert together > 5
    assert not list(tmp_path.iterdir())
