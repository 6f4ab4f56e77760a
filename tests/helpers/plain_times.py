"""Intended times of publications, read row by row: the reference for the Spark reader."""

from pathlib import Path

from results.reference.files import read_json, read_records


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
