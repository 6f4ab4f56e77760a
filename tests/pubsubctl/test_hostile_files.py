"""Tests of hostile numbers and deep nesting in users' files: refusal in bounded time and memory."""

import json
import subprocess
import sys

import pytest

from tests.helpers.hostile_files import KINDS, REPOSITORY, SECONDS

ONE_IN = 30
"""One case in this many is tried; `python -m tests.helpers.hostile_files 1` tries all."""
FINE = (0, 2, 3, 8, 78)
HALVES = ([*KINDS][::2], [*KINDS][1::2])


@pytest.mark.parametrize("kinds", HALVES, ids=["first", "second"])
def test_a_hostile_value_ends_no_command_in_an_internal_error(kinds: list[str]) -> None:
    command = [sys.executable, "-m", "tests.helpers.hostile_files", str(ONE_IN), *kinds]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["kind"] for row in rows} == {*kinds}
    # A machine without the server of a system reads no further.
    rows = [row for row in rows if "is not installed" not in row["said"]]
    assert not [row for row in rows if row["status"] not in FINE]
    assert not [row for row in rows if row["case"] == "as it is" and row["status"]]
    # What a number makes endless is ended by a signal.
    assert not [row for row in rows if row["s"] > 4 * SECONDS]
