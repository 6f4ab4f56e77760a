"""RO-Crate 1.1 metadata of capsules: required and recommended fields, and every file.

Archives read the file to show a record. Authors appear only if a user names them, because capsules
have no names of people otherwise.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

CRATE: Final = "ro-crate-metadata.json"
LICENSE: Final = "https://spdx.org/licenses/Apache-2.0"

_FORMATS: Final = {
    ".csv": "text/csv",
    ".gz": "application/gzip",
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".log": "text/plain",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".toml": "application/toml",
    ".txt": "text/plain",
    "": "text/plain",
}
_OTHER_FORMAT: Final = "application/octet-stream"
_UNNAMED: Final = "The authors of this capsule"


class CrateFile(NamedTuple):
    """A file of a capsule.

    Attributes:
        size_bytes: None for the index, which lists the metadata itself.
    """

    name: str
    size_bytes: int | None = None
    sha256: str = ""

    def entity(self) -> dict[str, Any]:
        """Return the file's entry of the metadata."""
        path = PurePosixPath(self.name)
        found: dict[str, Any] = {
            "@id": self.name,
            "@type": "File",
            "name": path.name,
            "encodingFormat": _FORMATS.get(path.suffix.lower(), _OTHER_FORMAT),
        }
        if self.size_bytes is not None:
            found |= {"contentSize": str(self.size_bytes), "sha256": self.sha256}
        return found


def crate_of(
    document: Mapping[str, Any],
    files: Iterable[CrateFile],
    authors: Sequence[str] = (),
    publisher: str = "",
) -> dict[str, Any]:
    """Return the metadata of a capsule: files, programs, people, license and date."""
    entities = [file.entity() for file in files]
    programs = [
        {
            "@id": f"#pubsubctl-{number}",
            "@type": "SoftwareApplication",
            "name": "pubsubctl",
            "version": version,
            "softwareVersion": version,
        }
        for number, version in enumerate(document["made_by"], start=1)
    ]
    people = [
        {"@id": f"#author-{number}", "@type": "Person" if authors else "Organization", "name": name}
        for number, name in enumerate(authors or [_UNNAMED], start=1)
    ]
    house = {"@id": "#publisher", "@type": "Organization", "name": publisher or people[0]["name"]}
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": document["name"],
        "description": "Runs of publish/subscribe brokers with their verdicts and figures.",
        "datePublished": document["published"],
        "author": [{"@id": each["@id"]} for each in people],
        "publisher": {"@id": house["@id"]},
        "license": {"@id": LICENSE},
        "keywords": "publish/subscribe, exactly-once delivery, fault injection",
        "hasPart": [{"@id": each["@id"]} for each in entities],
        "mentions": [{"@id": each["@id"]} for each in programs],
    }
    about = {
        "@id": CRATE,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
    }
    license_ = {
        "@id": LICENSE,
        "@type": "CreativeWork",
        "name": "Apache License 2.0",
        "description": "A permissive license for files and programs.",
    }
    graph = [about, root, *people, house, *programs, license_, *entities]
    return {"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph}
