"""Archives of the runs behind the figures of papers: one small file per experiment.

An archive is a .tar.xz file with the folder of a run: first `SHA256SUMS` and the numbers of its
figures, then the other files. Pictures and tables are left out, because `plot` makes them again.
Files above `MOST_BYTES`, such as logs of brokers, are left out, too; their digests stay in
`SHA256SUMS`. The archive of a series has the manifests, the specifications and the verdicts of its
runs below `runs/`.

Archives are deterministic: equal runs give equal bytes.
"""

import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from brokerd.text import parse_json
from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.runs.claims import FIGURE_SCHEMA, Measurement, measurement
from pubsubctl.runs.runs import read_json

SUFFIX: Final = ".tar.xz"
CHECKSUMS: Final = "SHA256SUMS"
MOST_BYTES: Final = 4 << 20
"""The size of the greatest file that is archived, before compression."""
_MANIFEST: Final = "manifest.json"
_WITH_PATHS: Final = {_MANIFEST: ("argv",), "cli.json": ("file",)}
"""The keys with paths or command lines, by name of the document."""
_ABSOLUTE: Final = re.compile(r"(^|^-i|=)((?:~|/).*)")
"""An absolute path that is a word of a command line, or the value of an option."""
_BELOW_PROJECT: Final = 3
"""The usual folders between a run and its project: results/runs/EXPERIMENT."""
_FIGURES: Final = "figures/"
_OF_MEMBERS: Final = (_MANIFEST, "verdict.json", CHECKSUMS, "spec/*")
_LEFT_OUT: Final = (".svg", ".png", ".csv", ".html")
_MOST_NUMBERS_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive of a run.

    Attributes:
        figures: names of the figures with their numbers.
        left_out: files that are too large, whose digests the archive has.
    """

    path: Path
    figures: tuple[str, ...]
    size_bytes: int
    left_out: tuple[str, ...]


def archive_run(run: Path, folder: Path) -> Archive:
    """Write the archive of a run or series into a folder, which exists; replace an earlier one.

    Raises:
        UserError: the run has no figure of a paper.
        IntegrityError: a file of the run has changed since the run ended.
    """
    from results.tables.json_files import IntegrityError as Damaged
    from results.tables.seals import verify_derived, verify_seal

    numbers = [
        path
        for path in sorted((run / "figures").glob("*.json"))
        if read_json(path).get("schema") == FIGURE_SCHEMA and not path.name.startswith("series.")
    ]
    if not numbers:
        raise UserError(
            f"{run}: no numbers of a paper's figure; `pubsubctl plot FIGURE {run}` draws them"
        )
    try:
        verify_seal(run)
        for path in numbers:
            verify_derived(run, path.relative_to(run).as_posix())
    except Damaged as error:
        raise IntegrityError(str(error)) from None
    files: dict[str, Path] = {CHECKSUMS: run / CHECKSUMS}
    files |= {path.relative_to(run).as_posix(): path for path in numbers}
    left_out: list[str] = []
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if not path.is_file() or name in files or name.startswith((_FIGURES, "tables/")):
            continue
        if path.stat().st_size > MOST_BYTES:
            left_out.append(name)
        elif path.suffix not in _LEFT_OUT:
            files[name] = path
    files |= _files_of_members(run)
    target = folder / f"{run.resolve().parent.name}{SUFFIX}"
    _write(_with_relative_paths(files, run), target)
    return Archive(
        target, tuple(path.stem for path in numbers), target.stat().st_size, tuple(left_out)
    )


def _files_of_members(run: Path) -> Mapping[str, Path]:
    """Return manifests, specifications and verdicts of the runs of a series."""
    points = read_json(run / "manifest.json").get("runs") or {}
    return {
        f"runs/{run_id}/{path.relative_to(member).as_posix()}": path
        for of_point in (points.values() if isinstance(points, dict) else ())
        for run_id in of_point
        for member in (run.parent / str(run_id),)
        for pattern in _OF_MEMBERS
        for path in sorted(member.glob(pattern))
    }


def _with_relative_paths(files: Mapping[str, Path], run: Path) -> dict[str, bytes]:
    """Return the contents of files, without paths of this machine in command lines and file names.

    The line of such a document in the checksums is that of its new content.
    """
    folders = run.resolve().parents
    project = folders[min(_BELOW_PROJECT, len(folders) - 1)]
    contents = {name: path.read_bytes() for name, path in files.items()}
    for name in [name for name in files if Path(name).name in _WITH_PATHS]:
        document = read_json(files[name])
        relative = {
            key: _relative(document[key], project)
            for key in _WITH_PATHS[Path(name).name]
            if key in document
        }
        changed = {**document, **relative}
        if changed == document:
            continue
        before = sha256(contents[name]).hexdigest()
        contents[name] = (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode()
        after = sha256(contents[name]).hexdigest()
        for folder in Path(name).parents:
            sums = (folder / CHECKSUMS).as_posix()
            if sums in contents:
                contents[sums] = contents[sums].replace(before.encode(), after.encode())
    return contents


def _relative(value: object, project: Path) -> object:
    """Return a path or the words of a command line, without absolute paths."""
    if isinstance(value, list):
        return relative_words([str(word) for word in value], project)
    return relative_words([value], project)[0] if isinstance(value, str) else value


def relative_words(words: Sequence[str], folder: Path) -> list[str]:
    """Return words of a command line, with relative paths in place of absolute ones.

    A path in the folder is relative to the folder; any other path is only its last part.
    """

    def relative(found: re.Match[str]) -> str:
        path = Path(found[2])
        is_inside = path.is_relative_to(folder)
        return found[1] + (str(path.relative_to(folder)) if is_inside else path.name or ".")

    return [_ABSOLUTE.sub(relative, word) for word in words]


def _write(contents: Mapping[str, bytes], target: Path) -> None:
    """Write an archive atomically, without traces of author or time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    temporary = target.with_suffix(".tmp")
    temporary.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    temporary.rename(target)


def archived_measurements(folder: Path, figures: Iterable[str]) -> list[Measurement]:
    """Return the numbers of the named figures in the archives of a folder.

    Raises:
        IntegrityError: the numbers are not those of the seal.
    """
    wanted = {*figures}
    return [
        measurement(document, f"{path}: {_FIGURES}{figure}.json", archived=True)
        for path in sorted(folder.glob(f"*{SUFFIX}"))
        for figure, document in _numbers_in(path)
        if figure in wanted
    ]


def _numbers_in(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the figures of an archive with their numbers; nothing else is unpacked."""
    sums: dict[str, str] = {}
    try:
        with tarfile.open(path, mode="r|xz") as archive:
            for entry in archive:
                stream = archive.extractfile(entry)
                if entry.name != CHECKSUMS and not entry.name.startswith(_FIGURES):
                    return
                if stream is None or entry.size > _MOST_NUMBERS_BYTES:
                    raise IntegrityError(f"{path}: {entry.name} is no file of numbers")
                content = stream.read()
                if entry.name == CHECKSUMS:
                    lines = content.decode().splitlines()
                    sums = {name: digest for digest, _, name in (x.partition("  ") for x in lines)}
                    continue
                if sums.get(entry.name) != sha256(content).hexdigest():
                    raise IntegrityError(f"{path}: {entry.name} has changed")
                figure = entry.name.removeprefix(_FIGURES).removesuffix(".json")
                yield figure, parse_json(content.decode("utf-8"))
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
        raise IntegrityError(f"{path}: no archive of a run: {error}") from None
