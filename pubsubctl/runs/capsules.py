"""Capsules: runs, verdicts and figures in one file, for readers who want to reproduce the results.

A capsule is a tar.gz with

    capsule.json               its index: runs, and size and SHA-256 of every other file
    ro-crate-metadata.json     the same for archives: RO-Crate 1.1
    README.md                  instructions for use
    runs/<experiment>/<run>/   copies of runs without names of hosts and people

Equal runs result in equal bytes. The verdicts and figures are made from the copies.
"""

import gzip
import io
import json
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from brokerd.files import file_sha256
from pubsubctl.console.console import Progress
from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.runs.capsule_index import (
    CRATE,
    DOCUMENT,
    MOST_INDEX_BYTES,
    RUNS,
    SCHEMA,
    CrateFile,
    crate_of,
    digest_of,
    normalise_name,
    read_index,
)
from pubsubctl.runs.redaction import copy_without_place, pack_run
from pubsubctl.runs.runs import manifest, sibling_run

if TYPE_CHECKING:
    from results.reference.history import Judgement as PlainJudgement

README: Final = "README.md"
_TABLES: Final = "tables"
_OF_BROKERS: Final = ("timeline",)

_README: Final = """\
# {name}

{runs} of pubsubctl {versions}, with verdicts and figures.

    pubsubctl results reproduce CAPSULE                 # draw every figure again: the same bytes?
    pubsubctl results reproduce CAPSULE --level check    # judge every run again: the same verdict?
    pubsubctl results reproduce CAPSULE --level local    # run it again, on brokers on this machine

| run | verdict | figures |
|---|---|---|
{rows}
"""


@dataclass(frozen=True, slots=True)
class Capsule:
    """An unpacked capsule.

    Attributes:
        folder: the folder of the files.
        document: the content of capsule.json.
    """

    folder: Path
    document: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Return the digest of the whole capsule, for citation beside the results."""
        return f"sha256:{self.document['digest']}"

    @property
    def runs(self) -> list[Path]:
        """Return the folders of runs, in order of insertion."""
        return [self.folder / name for name in self.document["runs"]]

    def read_record(self, run: Path) -> Mapping[str, Any]:
        """Return the record of a run: `verdict`, `counts` and `figures`."""
        found: Mapping[str, Any] = self.document["runs"][run.relative_to(self.folder).as_posix()]
        return found


def make_capsule(
    spark: Any,
    runs: Sequence[Path],
    target: Path,
    progress: Progress,
    *,
    keep_hosts: bool = False,
    authors: Sequence[str] = (),
    publisher: str = "",
) -> Capsule:
    """Put runs into a capsule, and for each series its runs.

    Args:
        authors, publisher: named in the metadata for archives.

    Returns:
        The content; the files are in the capsule only.

    Raises:
        UserError: the file exists, or a run cannot be published; see `pack_run`.
        IntegrityError: a run differs from its content at its end.
    """
    refuse_existing(target)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        folder = Path(scratch)
        stated: dict[str, Any] = {}
        originals = _with_series(runs)
        copies = [_copy(run, folder, keep_hosts=keep_hosts) for run in originals]
        figures = {copy: figures_of(run) for copy, run in zip(copies, originals, strict=True)}
        # A series is drawn when the runs in it are judged.
        for at, copy in enumerate(sorted(copies, key=_is_series), start=1):
            stated[_name(copy, folder)] = found_in(
                spark, copy, figures[copy], progress, place=f"{at} of {len(copies)}: "
            )
        names = [_name(copy, folder) for copy in copies]
        document = _document(target, copies, {name: stated[name] for name in names})
        (folder / README).write_text(_readme(document), encoding="utf-8")
        files = [
            CrateFile(name, (folder / name).stat().st_size, digest)
            for name, digest in _hashes(folder)
        ]
        crate = crate_of(document, [CrateFile(DOCUMENT), *files], authors, publisher)
        _write_json(folder / CRATE, crate)
        document["files"] = dict(_list_entries(folder))
        document["digest"] = digest_of(document)
        _write_json(folder / DOCUMENT, document)
        progress.phase(f"writing {target.name}")
        _write_archive(folder, target)
    return Capsule(target, document)


def refuse_existing(target: Path) -> None:
    """Raise a UserError if the file of a new capsule exists."""
    if target.exists():
        raise UserError(f"{target} is there already; name another file")


def unpack_capsule(path: Path, folder: Path, digest: str) -> Capsule:
    """Unpack a capsule, and verify the files against the index.

    Args:
        folder: an empty folder.
        digest: the required digest of the capsule, `sha256:…`; empty for any.

    Raises:
        UserError: the file is no capsule, or there is no room for the content.
        IntegrityError: a byte has changed, or the digest differs; names the first files.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: no regular file, and so no capsule")
    try:
        with tarfile.open(path, "r:gz") as archive:
            document = _extract(archive, path, folder, digest)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise IntegrityError(f"{path}: not a whole capsule: {error}") from None
    actual = dict(_hashes(folder, with_tables=True))
    listed = {name: file["sha256"] for name, file in document["files"].items()}
    if listed != actual:
        raise IntegrityError(f"{path}: {_first_problems(listed, actual)}")
    return Capsule(folder, document)


def figures_of(run: Path) -> list[str]:
    """Return the figures of a run: the experiment's figures, or figures drawn before."""
    from results.figures.catalogue import FIGURES
    from results.tables.derived import find_unsealed_derived

    about = manifest(run)
    named = [str(each) for each in about.get("figures") or ()]
    if not named and (figure := about.get("figure")):
        named = [name for name in FIGURES if name == figure or name.startswith(f"{figure}.")]
    if not named:
        named = sorted(
            path.stem for path in (find_unsealed_derived(run) / "figures").glob("*.json")
        )
    return named or ([*_OF_BROKERS] if is_of_brokers(run) else [])


def is_judged(run: Path) -> bool:
    """Return True if a run can have a verdict: messages were delivered in the run."""
    from results.papers.experiment_runs import has_verdict

    return is_of_brokers(run) or has_verdict(run)


def is_of_brokers(run: Path) -> bool:
    """Return True for a run of brokers, not a series or an experiment without brokers."""
    return "kind" not in manifest(run)


# ------------------------------------------------------------ making


def _with_series(runs: Sequence[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for run in runs:
        run = run.resolve()
        found[run] = None
        for of_point in manifest(run).get("runs", {}).values() if _is_series(run) else ():
            found.update(dict.fromkeys(sibling_run(run, run_id) for run_id in of_point))
    return [*found]


def _is_series(run: Path) -> bool:
    return manifest(run).get("kind") == "series"


def _copy(run: Path, folder: Path, *, keep_hosts: bool) -> Path:
    about = manifest(run)
    if about.get("state") != "complete":
        raise UserError(f"{run}: the run is {about.get('state')}; only whole ones go into capsules")
    copy = folder / RUNS / str(about.get("experiment") or run.parent.name) / run.name
    if is_of_brokers(run):
        pack_run(run, copy, keep_hosts=keep_hosts)
    else:
        copy_without_place(run, copy)
    return copy


def found_in(
    spark: Any,
    run: Path,
    figures: Iterable[str],
    progress: Progress,
    *,
    judges: bool = True,
    judgement: "PlainJudgement | None" = None,
    place: str = "",
) -> dict[str, Any]:
    """Return a run's `verdict` and `counts`, if any, and by figure the SHA-256 of the files.

    Args:
        judgement, place: see `judge_with`.
    """
    from pubsubctl.runs.verdicts import judge_with
    from results.figures.catalogue import draw

    found: dict[str, Any] = {}
    if judges and is_judged(run):
        document = judge_with(spark, run, progress, judgement, place).document
        found["verdict"] = str(document["verdict"]).upper()
        found["counts"] = document.get("counts")
    found["figures"] = {}
    for name in figures:
        progress.phase(f"drawing {name} of {place}{run.name}")
        found["figures"][name] = {path.name: file_sha256(path) for path in draw(name, spark, run)}
    return found


def _name(run: Path, folder: Path) -> str:
    return run.relative_to(folder).as_posix()


def _document(target: Path, copies: Sequence[Path], stated: Mapping[str, Any]) -> dict[str, Any]:
    made_by = dict.fromkeys(
        f"{manifest(copy).get('tool_version')} ({manifest(copy).get('git_commit')})"
        for copy in copies
    )
    return {
        "schema": SCHEMA,
        "name": target.name.removesuffix(".gz").removesuffix(".tar"),
        "made_by": [*made_by],
        "published": max(str(manifest(copy).get("ended_utc", "")) for copy in copies),
        "runs": dict(stated),
    }


def _readme(document: Mapping[str, Any]) -> str:
    rows = [
        f"| {name.removeprefix(f'{RUNS}/')} | {about.get('verdict', '–')} | "
        f"{', '.join(about['figures']) or '–'} |"
        for name, about in document["runs"].items()
    ]
    count = len(document["runs"])
    return _README.format(
        name=document["name"],
        runs=f"{count} run{'s' if count > 1 else ''}",
        versions=", ".join(document["made_by"]),
        rows="\n".join(rows),
    )


def _write_archive(folder: Path, target: Path) -> None:
    """Write the archive atomically, without traces of author or time."""
    temporary = folder / "archive"
    with (
        temporary.open("wb") as stream,
        gzip.GzipFile(fileobj=stream, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in _files(folder):
            if path == temporary:
                continue
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
    temporary.rename(target)


# ------------------------------------------------------------ unpacking


def _extract(archive: tarfile.TarFile, path: Path, folder: Path, digest: str) -> Mapping[str, Any]:
    """Unpack the files that the index lists; return the index.

    The index comes first and contains the size of every other file, so nothing is written before
    all of it is listed.
    """
    document: Mapping[str, Any] | None = None
    for entry in archive:
        name = normalise_name(entry.name)
        if name is None or not entry.isreg() or entry.issparse():
            raise ValueError(f"{entry.name[:80]!r} is no file of a capsule")
        with archive.extractfile(entry) or io.BytesIO() as content:
            if document is None:
                document = _index(path, name, content, digest)
                _check_room(path, folder, document)
            elif name not in document["files"]:
                raise ValueError(f"{name} is not in {DOCUMENT}")
            elif entry.size != document["files"][name]["size_bytes"]:
                raise ValueError(f"{name} has changed")
            else:
                target = folder.joinpath(*name.split("/"))
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as stream:
                    shutil.copyfileobj(content, stream)
    if document is None:
        raise _explain_no_capsule(path)
    return document


def _index(path: Path, name: str, content: IO[bytes], digest: str) -> Mapping[str, Any]:
    if name != DOCUMENT:
        raise _explain_no_capsule(path)
    text = content.read(MOST_INDEX_BYTES + 1)
    if len(text) > MOST_INDEX_BYTES:
        raise IntegrityError(f"{path}: {DOCUMENT} has more than {MOST_INDEX_BYTES:,} bytes")
    document = read_index(path, text)
    if digest and digest.removeprefix("sha256:") != document["digest"]:
        raise IntegrityError(f"{path}: its digest is sha256:{document['digest']}, not {digest}")
    return document


def _check_room(path: Path, folder: Path, document: Mapping[str, Any]) -> None:
    wanted = sum(file["size_bytes"] for file in document["files"].values())
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise UserError(f"{path}: {wanted:,} bytes unpacked; {folder} has room for {free:,}")


def _explain_no_capsule(path: Path) -> UserError:
    return UserError(
        f"{path}: does not begin with {DOCUMENT}; `pubsubctl results capsule` makes capsules"
    )


def _first_problems(listed: Mapping[str, str], actual: Mapping[str, str]) -> str:
    problems = [f"{name} is missing" for name in listed if name not in actual]
    problems += [f"{name} is not in {DOCUMENT}" for name in actual if name not in listed]
    problems += [f"{name} has changed" for name in actual if listed.get(name) != actual[name]]
    return ", ".join([*dict.fromkeys(problems)][:4])


def _files(folder: Path, *, with_tables: bool = False) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder, the index first; tables are made from the others."""
    index = folder / DOCUMENT
    if index.is_file():
        yield DOCUMENT, index
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_table = name.parts[0] == RUNS and _TABLES in name.parts[3:4]
        if path.is_file() and path != index and (with_tables or not is_table):
            yield name.as_posix(), path


def _hashes(folder: Path, *, with_tables: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the SHA-256 of every file but the index."""
    for name, path in _files(folder, with_tables=with_tables):
        if name != DOCUMENT:
            yield name, file_sha256(path)


def _list_entries(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entry of every file in the index."""
    for name, path in _files(folder):
        yield name, {"sha256": file_sha256(path), "size_bytes": path.stat().st_size}


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
