"""The check of the specification against the digest from before the run.

The digest is the SHA-256 of a line per file below `spec/`: the SHA-256 of the content, two blanks
and the name, in the order of names. The manifest and the journal contain the digest.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results.rules.terms import doubt
from results.tables.json_files import read_json_lines
from results.tables.manifest import Run

WITHOUT_DIGEST = ("", "pubsubctl/manifest/1")
"""Versions of manifests that need no digest."""


def specification_doubts(run: Run) -> Iterator[str]:
    """Yield contradictions between manifest, journal and specification."""
    found = specification_digest(run.folder / "spec")
    journal = _find_journal_line(run.folder / "log.jsonl")
    in_manifest = run.manifest.get("specification_digest")
    stated = {"manifest.json": in_manifest, "log.jsonl": journal.get("digest")}
    is_needed = str(run.manifest.get("schema", "")) not in WITHOUT_DIGEST
    is_needed |= any(digest is not None for digest in stated.values())
    for file, digest in stated.items():
        if digest is None and is_needed:
            yield doubt("no_digest", file=file)
        elif digest is not None and digest != found:
            yield doubt("other_digest", file=file, found=digest, wanted=found)
    promised = journal.get("promises")
    if promised is not None and promised != run.manifest.get("promises"):
        yield doubt("other_promises", found=promised, wanted=run.manifest.get("promises"))


def specification_digest(folder: Path) -> str:
    """Return the digest of the files in a folder."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
        for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix())
        if path.is_file()
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _find_journal_line(journal: Path) -> dict[str, Any]:
    """Return the line of the journal about the specification; {} if absent."""
    for line in read_json_lines(journal, missing_ok=True):
        if line.get("what") == "specification":
            return line
    return {}
