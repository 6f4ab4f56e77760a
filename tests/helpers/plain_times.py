"""Times of publications, computed for one publication: the reference for the Spark readers."""

from pathlib import Path

from results.reference.files import read_json, read_records
from results.rules import risks
from results.rules.terms import RiskWindow


def intended_times(folder: Path) -> dict[tuple[str, int, int], int]:
    """Return the intended time of each publication, by source, incarnation and sequence."""
    manifest = read_json(folder / "manifest.json")
    found = {}
    for process in sorted(folder.glob("raw/*/*")):
        records = read_records(process, "publications", manifest["run_id"])
        for row in records.rows if records is not None else ():
            source = records.tables["publishers"][row["publisher"]]  # type: ignore[union-attr]
            key = source, row["incarnation"], row["sequence"]
            found[key] = row["intended_ns"] - manifest["origin_ns"]
    return found


def is_certainly_in(window: RiskWindow, sent_ns: int) -> bool:
    """Return True if a publication was certainly sent in a window."""
    first_ns, end_ns = risks.certain_window_ns(window)
    return first_ns <= sent_ns < end_ns
