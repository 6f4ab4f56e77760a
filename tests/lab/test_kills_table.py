"""Tests of the table of kills: every row reports a kill or an end before the kill."""

import re
import signal
from pathlib import Path

from tests.lab.kills_table import Kill, kills_table

KEPT = Path(__file__).parents[2] / "results" / "lab_kills.md"
ROW = re.compile(r"\| \d+ \| (\w+) \| ([\d.]+) \| (.*) \| ([\d.]+) \| clean \|")
LIMITS = {"first_lease_s": 45, "lease_s": 15, "slack_s": 120}


def test_a_command_that_had_ended_before_its_kill_is_named_above_the_table() -> None:
    killed = Kill("deploy", 1.5, "reaching hosts", -signal.SIGKILL, 2.0)
    ended, failed = Kill("bench", 13.88, "taken down", 0), Kill("inject", 2.0, "no host", 6)
    head, rows = kills_table(1, [killed, ended, failed], **LIMITS).split("\n\n| # |")
    assert head.splitlines()[-2:] == [
        "Row 2 killed nothing: that `bench` had already ended.",
        "Row 3 killed nothing: that `inject` had already ended.",
    ]
    assert "| 2 | bench | 13.88 | taken down | 0.0 | clean |" in rows.splitlines()
    assert "killed nothing" not in kills_table(1, [killed], **LIMITS)


def test_the_stored_table_equals_the_text_of_its_rows() -> None:
    """No hand-written text is in the file, because the next `make lab-long` would drop it."""
    text = KEPT.read_text(encoding="utf-8")
    said = re.search(r"seed (\d+):[^|]*within (\d+) s:[^|]* is (\d+) s, and (\d+) s", text)
    assert said is not None
    seed, within_s, first_lease_s, lease_s = map(int, said.groups())
    too_late = {int(number) for number in re.findall(r"Row (\d+) killed nothing", text)}
    kills = [
        Kill(verb, float(after), said, 0 if number in too_late else -9, float(healed))
        for number, (verb, after, said, healed) in enumerate(ROW.findall(text), start=1)
    ]
    limits = {"first_lease_s": first_lease_s, "lease_s": lease_s}
    assert kills_table(seed, kills, slack_s=within_s - first_lease_s, **limits) == text
