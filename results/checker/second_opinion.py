"""The verdict on a small run once more, by the reference that shares no rule with Spark's.

Where the two disagree one of them is wrong, and nobody knows which: there is no verdict then.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from results.checker.canary import CheckerBroken
from results.reference.files import Refused
from results.reference.reading import judge_folder
from results.rules.terms import Counts, VerdictName

MOST_ROWS = 50_000
"""Row by row, so many take a few seconds."""


def second_opinion(folder: Path, verdict: VerdictName, counts: Counts) -> dict[str, Any]:
    """What the reference says, for verdict.json.

    Args:
        verdict: by what the run itself leaves open, not by what the check could not try.

    Raises:
        CheckerBroken: it says something else.
    """
    try:
        found = judge_folder(folder)
    except Refused as error:
        raise CheckerBroken(f"{folder}: the second opinion refuses it: {error}") from error
    ours, theirs = _told(verdict, counts), _told(found.verdict, found.counts)
    if ours != theirs:
        other = [f"{name} {theirs[name]!r}, not {ours[name]!r}" for name in ours
                 if ours[name] != theirs[name]]  # fmt: skip
        doubts = f"; it doubts: {'; '.join(found.doubts)}" if found.verdict == "UNKNOWN" else ""
        raise CheckerBroken(f"{folder}: the second opinion is {', '.join(other)}{doubts}")
    return {"verdict": found.verdict.lower(), "doubts": len(found.doubts)}


def _told(verdict: VerdictName, counts: Counts) -> Mapping[str, Any]:
    return {
        "verdict": verdict,
        **{name: getattr(counts, name) for name in Counts.__dataclass_fields__},
    }
