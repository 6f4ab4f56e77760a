"""The seal of a run: SHA256SUMS, written at the run's end by the program that wrote the files.

Judging a run adds derived files. The lines of derived files are kept up to date; the lines of the
run's own files are never written again, and a run without a seal does not get a seal.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brokerd.files import file_sha256
from brokerd.history.records import ROW_BYTES
from results.tables.json_files import IntegrityError, read_json, write_whole

CHECKSUMS = "SHA256SUMS"
NOT_SEALED = ("tables",)
"""Made anew from the rest at any time, and not the same bytes twice."""
# `check`, `plot` and `report` make these again from verified files, so a run with changed figures
# is still whole. A reader that uses such a file without making the file again calls
# `verify_derived`: its line is in the seal.
DERIVED = ("verdict.json", "report.html", "evidence", "figures", *NOT_SEALED)

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
_PROBLEMS_NAMED = 4
_LARGEST_BYTES = 1 << 30
"""Limit of a file that is read whole."""
_READ_WHOLE = (".json", ".jsonl", ".toml")
_DEEPEST = 32


@dataclass(frozen=True)
class Seal:
    """The result of verifying a run's files.

    Attributes:
        is_there: True if the run has a seal, which then holds.
        digest: equal for equal files, regardless of derived files.
    """

    is_there: bool
    digest: str


def seal(folder: Path) -> None:
    """Write SHA256SUMS over all files of a run but its tables; the caller vouches for the files."""
    _write(folder, {name: file_sha256(path) for name, path in _files(folder).items()})


def seal_derived(folder: Path) -> None:
    """Update the lines of derived files, if there is a seal.

    The seals of samples stay as they are: samples belong to the program, as its other files do.
    """
    if not (folder / CHECKSUMS).is_file() or folder.resolve().is_relative_to(SAMPLES):
        return
    lines = {name: line for name, line in _list(folder).items() if not is_derived(name)}
    derived = {name: path for name, path in _files(folder).items() if is_derived(name)}
    _write(folder, lines | {name: file_sha256(path) for name, path in derived.items()})


def verify_seal(folder: Path) -> Seal:
    """Compare a run's files with its SHA256SUMS, if there is a seal.

    Derived files (verdict, evidence, figures, report) may differ.

    Raises:
        IntegrityError: a file was changed, removed or added, names the first few; or there is an
            entry that is no file.
    """
    found = {name: path for name, path in _files(folder).items() if not is_derived(name)}
    if not (folder / CHECKSUMS).is_file():
        _refuse(folder, [*_find_impossible_sizes(found)])
        return Seal(False, _digest({name: file_sha256(path) for name, path in found.items()}))
    listed = {name: digest for name, digest in _list(folder).items() if not is_derived(name)}
    problems = [f"{name} is missing" for name in listed if name not in found]
    problems += [f"{name} is not in {CHECKSUMS}" for name in found if name not in listed]
    _refuse(folder, problems)
    _refuse(folder, [*_find_impossible_sizes(found)])
    actual = {name: file_sha256(path) for name, path in found.items()}
    problems = [
        f"{name} has changed"
        for name, digest in actual.items()
        if name in listed and digest != listed[name]
    ]
    _refuse(folder, problems)
    return Seal(True, _digest(actual))


def _find_impossible_sizes(found: Mapping[str, Path]) -> Iterator[str]:
    """Yield large documents, and closed records that differ in number from their sidecar.

    A sparse file has any size, and takes no room. No digest is computed of such a file.
    """
    for name, path in found.items():
        size = path.stat().st_size
        if path.suffix in _READ_WHOLE and size > _LARGEST_BYTES:
            yield f"{name} has {size:,} bytes, more than {_LARGEST_BYTES:,}"
        sidecar = found.get(f"{name}.json")
        if path.suffix == ".rec" and sidecar is not None:
            facts = read_json(sidecar)
            rows = facts.get("rows")
            is_wrong = isinstance(rows, int) and size != rows * ROW_BYTES
            if facts.get("closed") is True and is_wrong:
                yield f"{name} has {size:,} bytes, and its sidecar counts {rows:,} rows"


def _refuse(folder: Path, problems: Sequence[str]) -> None:
    """Raise an error that names the first few problems, if there is any."""
    if problems:
        more = len(problems) - _PROBLEMS_NAMED
        named = ", ".join(problems[:_PROBLEMS_NAMED]) + (f" and {more} more" if more > 0 else "")
        raise IntegrityError(f"{folder}: {named}")


def verify_derived(folder: Path, name: str) -> None:
    """Compare a derived file with its line, if the run has a seal.

    Args:
        name: relative to the run's folder, as in "figures/dft11.fig9.json".

    Raises:
        IntegrityError: the file was changed or added since its derivation.
    """
    assert is_derived(name), f"{name} is a file that the run itself left"
    if not (folder / CHECKSUMS).is_file():
        return
    digest = _list(folder).get(name)
    if digest is None:
        raise IntegrityError(f"{folder}: {name} is not in {CHECKSUMS}")
    if digest != file_sha256(folder / name):
        raise IntegrityError(f"{folder}: {name} has changed")


def list_seal(folder: Path) -> dict[str, str]:
    """Return the digests in the seal of a run, by name; {} without a seal."""
    return _list(folder) if (folder / CHECKSUMS).is_file() else {}


def digest_of_seal(listed: Mapping[str, str]) -> str:
    """Return `Seal.digest` of a run whose files are as listed."""
    return _digest({name: digest for name, digest in listed.items() if not is_derived(name)})


def is_derived(name: str) -> bool:
    """Return True if a file of a run is derived from the others."""
    return name.partition("/")[0] in DERIVED


def file_hashes(folder: Path) -> dict[str, str]:
    """Return SHA-256 of each file below a folder, by relative name."""
    return {
        path.relative_to(folder).as_posix(): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _files(folder: Path) -> dict[str, Path]:
    """Return all sealed files by name.

    Raises:
        IntegrityError: an entry is neither file nor folder: a link may lead to unsealed content.
            Or folders are nested too deeply.
    """
    found = {}
    for path in sorted(_walk(folder)):
        name = path.relative_to(folder)
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a link" if stat.S_ISLNK(status.st_mode) else "no file"
            raise IntegrityError(f"{folder}: {name} is {kind}; a run's files are its own")
        if name == Path(CHECKSUMS) or name.parts[0] in NOT_SEALED:
            continue
        found[name.as_posix()] = path
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all entries below a folder that are no folders.

    Raises:
        IntegrityError: folders are nested too deeply.
    """
    level, depth = [folder], 0
    while level:
        if depth > _DEEPEST:
            raise IntegrityError(f"{folder}: folders below one another, {depth} levels or more")
        entries = [entry for place in level for entry in _scan(place)]
        level = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from (Path(e.path) for e in entries if not e.is_dir(follow_symlinks=False))
        depth += 1


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [*entries]


def _list(folder: Path) -> dict[str, str]:
    listed: dict[str, str] = {}
    path = folder / CHECKSUMS
    if path.stat().st_size > _LARGEST_BYTES:
        raise IntegrityError(f"{path} has {path.stat().st_size:,} bytes, more than a seal has")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{path}: {error}") from None
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    return listed


def _write(folder: Path, lines: dict[str, str]) -> None:
    ordered = sorted(lines.items(), key=lambda line: Path(line[0]))
    write_whole(folder / CHECKSUMS, "".join(f"{digest}  {name}\n" for name, digest in ordered))


def _digest(actual: dict[str, str]) -> str:
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(actual.items()))
    return hashlib.sha256(text.encode()).hexdigest()
