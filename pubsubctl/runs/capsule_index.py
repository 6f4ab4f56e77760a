"""The index of a capsule, `capsule.json`, and RO-Crate 1.1 metadata.

The index is the first file of the archive. It is validated as a whole before anything else is
unpacked, so a hostile capsule is refused before it can fill a disk or leave its folder.

Archives read the file to show a record. Authors appear only if a user names them, because capsules
have no names of people otherwise.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from brokerd.text import parse_json
from pubsubctl.errors import IntegrityError, UserError

SCHEMA: Final = "pubsubctl/capsule/2"
DOCUMENT: Final = "capsule.json"
RUNS: Final = "runs"
MOST_FILES: Final = 100_000
MOST_BYTES: Final = 64 << 30
MOST_INDEX_BYTES: Final = 64 << 20
MOST_PARTS: Final = 16
MOST_NAME_LENGTH: Final = 512

_PLAIN: Final = re.compile(r"[^/\\\x00-\x1f\x7f]+")


def is_inside(name: str) -> bool:
    """Return True if a name is the name of a file below the capsule's folder."""
    parts = name.split("/")
    return (
        len(name) <= MOST_NAME_LENGTH
        and len(parts) <= MOST_PARTS
        and all(_PLAIN.fullmatch(part) and part not in (".", "..") for part in parts)
    )


def _file_name(name: str) -> str:
    if not is_inside(name):
        raise ValueError(f"{name[:80]!r} is no file of a capsule")
    return name


def _run_name(name: str) -> str:
    if not is_inside(name) or name.count("/") != 2 or not name.startswith(f"{RUNS}/"):
        raise ValueError(f"{name[:80]!r} is not {RUNS}/EXPERIMENT/RUN")
    return name


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, AfterValidator(_file_name)]
RunName = Annotated[str, AfterValidator(_run_name)]
FigureName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CapsuleFile(_Closed):
    """A file of a capsule."""

    sha256: Sha256
    size_bytes: Annotated[int, Field(ge=0, le=MOST_BYTES)]


class CapsuleCounts(BaseModel):
    """The counts behind a verdict: the counts shown to people, and any others."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    owed: int = 0
    delivered: int = 0
    missing: int = 0


class CapsuleRun(_Closed):
    """The recorded verdict on a run, and the figures: name → file → SHA-256."""

    verdict: Literal["VALID", "INVALID", "UNKNOWN"] | None = None
    counts: CapsuleCounts | None = None
    figures: dict[FigureName, dict[FileName, Sha256]]


class CapsuleIndex(_Closed):
    """The content of `capsule.json`.

    Attributes:
        files: every other file of the capsule.
        digest: SHA-256 of the index without this key; stands for the whole capsule.
    """

    schema_: Annotated[Literal["pubsubctl/capsule/2"], Field(alias="schema")]
    name: Annotated[str, Field(max_length=MOST_NAME_LENGTH)]
    made_by: list[str]
    published: str
    runs: Annotated[dict[RunName, CapsuleRun], Field(min_length=1)]
    files: Annotated[dict[FileName, CapsuleFile], Field(max_length=MOST_FILES)]
    digest: Sha256


def digest_of(document: Mapping[str, Any]) -> str:
    """Return the digest of an index, ignoring a digest in the index."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_index(path: Path, content: bytes) -> dict[str, Any]:
    """Return the content of a capsule's index.

    Args:
        path: of the capsule, for errors.

    Raises:
        UserError: the index is of another schema.
        IntegrityError: the index is malformed or has changed; names the key.
    """
    try:
        document = parse_json(content.decode("utf-8"))
    except ValueError as error:
        raise IntegrityError(f"{path}: {DOCUMENT}: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise IntegrityError(f"{path}: {DOCUMENT} holds no object")
    if document.get("schema") != SCHEMA:
        text = f"{path}: schema {str(document.get('schema'))[:80]!r}, expected {SCHEMA!r}"
        raise UserError(text)
    try:
        CapsuleIndex.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part)[:80] for part in first["loc"])
        raise IntegrityError(f"{path}: {DOCUMENT}: {where}: {first['msg']}") from None
    if (found := digest_of(document)) != document["digest"]:
        raise IntegrityError(f"{path}: {DOCUMENT} has changed: its digest is {found}")
    total = sum(file["size_bytes"] for file in document["files"].values())
    if total > MOST_BYTES:
        raise IntegrityError(f"{path}: {total:,} bytes; a capsule has at most {MOST_BYTES:,}")
    return document


def normalise_name(name: str) -> str | None:
    """Return the name of a file in archive notation; None if unpacking the file is unsafe."""
    parts = PurePosixPath(name).parts
    plain = "/".join(parts)
    return plain if plain == name and is_inside(name) else None


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
    authors: Sequence[str],
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
