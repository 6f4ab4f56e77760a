"""Copies of runs for publication: names of people and places are replaced, events stay.

Hosts become h1, h2, …, and so do their addresses; users, home folders, gateways and failure domains
lose their names, as does all other user text in the inventory. The logs are not changed otherwise,
so the copy gets the verdict of the run.
"""

import getpass
import json
import re
import shutil
import socket
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from brokerd.text import expand_range
from pubsubctl.console.outputs import whole_folder
from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.inventory.inventory import Inventory, load_inventory
from pubsubctl.inventory.inventory_schema import json_schema
from pubsubctl.runs.runs import MANIFEST, read_json

_WORD: Final = re.compile(r"[\w-]+")
_PACKAGES: Final = ("brokerd", "bench", "fault_injection", "pubsubctl", "results")
_SHORTEST: Final = 4
"""The length from which a word counts on its own; shorter words are part of too many others."""
_ORDINARY: Final = frozenset(
    (
        *("bench", "boot", "cluster", "data", "disk", "example", "home", "hosts", "house"),
        *("id_ed25519", "id_rsa", "known_hosts", "local", "localhost", "media", "node", "nodes"),
        *("opt", "performance", "powersave", "python", "python3", "root", "runs", "scratch"),
        *("srv", "ssh", "state", "test", "tmp", "toml", "user", "users", "usr", "var", "work"),
        *("interleave", "fill"),
    )
)
"""Words of which every machine has some, in folders and names."""


def pseudonyms_of_words(
    inventory: Inventory, known: Collection[str], structure: Collection[str]
) -> dict[str, str]:
    """Return a pseudonym for each string of an inventory without a pseudonym, and each word in it.

    Args:
        known: names with a pseudonym.
        structure: words that stay, because a run uses them with another meaning.
    """
    vocabulary = {*_vocabulary(json_schema())}
    found: dict[str, str] = {}

    def add(text: str, kind: str) -> None:
        is_known = text in known or text in found or text in vocabulary or text in structure
        is_stated = bool(_WORD.search(text)) and not text.replace(".", "").isdigit()
        if is_stated and not is_known and text not in _ORDINARY:
            number = sum(each.startswith(f"{kind}-") for each in found.values()) + 1
            found[text] = f"{kind}-{number}"

    for text in _strings(tomllib.loads(inventory.text), vocabulary):
        for each in (text, *_expand(text)):
            kind = _kind(each)
            add(each, kind)
            if kind == "folder":
                folder = Path(each).expanduser()
                add(str(folder), kind)
                add(str((inventory.path.parent / folder).absolute()), kind)
            for word in _WORD.findall(each):
                if len(word) >= _SHORTEST and not word.replace("-", "").isdigit():
                    add(word, "word")
    return found


@cache
def words_of_ours() -> frozenset[str]:
    """Return all words in the source of our programs."""
    root = Path(__file__).parents[2]
    found: set[str] = set()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(_WORD.findall(path.read_text(encoding="utf-8")))
    return frozenset(found)


def _kind(text: str) -> str:
    if "/" in text or text.startswith("~"):
        return "folder"
    return "address" if "." in text or ":" in text else "name"


def _expand(text: str) -> Iterable[str]:
    """Return all names of a range; nothing if the text is no range."""
    try:
        return expand_range(text) if "[" in text else ()
    except (UserError, ValueError):
        return ()


def _strings(value: Any, vocabulary: Collection[str]) -> Iterator[str]:
    """Yield strings of a TOML document, and keys that are not of the format."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in vocabulary:
                yield key
            yield from _strings(inner, vocabulary)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, vocabulary)


def _vocabulary(schema: Any) -> Iterator[str]:
    """Yield words of the format: keys, and values of which there are a few."""
    if isinstance(schema, list):
        for each in schema:
            yield from _vocabulary(each)
    if not isinstance(schema, Mapping):
        return
    yield from schema.get("properties", {})
    for values in (schema.get("enum", ()), [schema.get("const")], [schema.get("default")]):
        yield from (each for each in values if isinstance(each, str))
    for each in schema.values():
        yield from _vocabulary(each)


TEXTS = (".json", ".jsonl", ".toml", ".log", ".txt", ".csv", ".md")
RECORDS = ".rec"
LEFT_OUT = ("spec/inventory.toml", "spec/hosts.json")
"""Files that a copy leaves out.

The inventory has comments, and no facts about the run beyond placement.json; the other file serves
to resume a series that has not ended.
"""

_HOMES = re.compile(r"(/home|/Users)/[^/\s\"'\\:,]+|/root(?=/)")
_ANYBODY = ("root", "user", "localhost", "127.0.0.1", "::1", "local", "")


@dataclass(frozen=True)
class RedactedRun:
    """A copy that was made.

    Attributes:
        folder: of the copy.
        renamed: how many names were replaced.
        left_out: files that are not in the copy.
    """

    folder: Path
    renamed: int
    left_out: tuple[str, ...]


def pack_run(run: Path, folder: Path, *, keep_hosts: bool = False) -> RedactedRun:
    """Copy a run to `folder`, for publication.

    Files that are derived from the logs (tables, verdict, figures, report) are not copied.

    Args:
        keep_hosts: keep all names.

    Raises:
        UserError: the folder exists; or a host's name has another meaning in the run.
        IntegrityError: the run differs from its content at its end.
    """
    from results.tables.manifest import read_run
    from results.tables.seals import seal, verify_seal

    if folder.exists():
        raise UserError(f"{folder}: exists already")
    verify_seal(run)
    manifest = read_json(run / MANIFEST)
    renames: dict[str, str] = {}
    inventory = run / LEFT_OUT[0]
    if not keep_hosts:
        found = load_inventory(inventory) if inventory.is_file() else None
        boot = str(manifest.get("clock", {}).get("boot_id", ""))
        # The clock of simulated brokers belongs to no machine; its name is the run's.
        renames = pseudonyms(found, [] if boot == manifest["run_id"] else [boot])
        renames |= {
            name: "lab" for name in _list_named_inventories(manifest) if name not in _ANYBODY
        }
        topology = read_run(run).topology
        _refuse_ambiguous(renames, topology, manifest)
        if found is not None:
            structure = {
                *_ANYBODY,
                *_list_taken(topology, manifest),
                *renames.values(),
                *words_of_ours(),
            }
            renames |= pseudonyms_of_words(found, renames, structure)
    left_out: list[str] = []
    with whole_folder(folder) as fresh:
        copied = _copy_renamed(run, fresh, renames, left_out, keep_hosts=keep_hosts)
        _renew_digests(run, fresh, copied)
        _check(fresh)
        seal(fresh)
    return RedactedRun(folder, len(renames), tuple(left_out))


def _copy_renamed(
    run: Path, folder: Path, renames: dict[str, str], left_out: list[str], *, keep_hosts: bool
) -> dict[str, str]:
    """Copy the files of a run; return the names of the copies by the names in the run.

    Args:
        left_out: gets the names of files that are not copied.
    """
    from results.tables.seals import CHECKSUMS, DERIVED

    manifest = read_json(run / MANIFEST)
    words = _pattern(renames)
    copied: dict[str, str] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run)
        if path.is_dir() or name.parts[0] in (*DERIVED, CHECKSUMS):
            continue
        is_text = path.suffix in TEXTS
        if path.is_symlink() or not (is_text or path.suffix == RECORDS or keep_hosts):
            left_out.append(name.as_posix())
            continue
        if name.as_posix() in LEFT_OUT and not keep_hosts:
            left_out.append(name.as_posix())
            continue
        target = folder.joinpath(*(_rename(part, words, renames) for part in name.parts))
        target.parent.mkdir(parents=True, exist_ok=True)
        copied[name.as_posix()] = target.relative_to(folder).as_posix()
        if is_text and not keep_hosts:
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
            if name.as_posix() == MANIFEST:
                text = _without_place(manifest)
            elif name.as_posix() == _COMMAND:
                text = _without_folder(read_json(path))
            text = _HOMES.sub("/home/user", _rename(text, words, renames))
            target.write_text(text, encoding="utf-8", errors="surrogateescape")
        else:
            shutil.copyfile(path, target)
    return copied


def copy_without_place(run: Path, folder: Path) -> None:
    """Copy a run that names no host, for example a series or an experiment without brokers.

    Home folders and the program's path are replaced; derived files are not copied.

    Raises:
        UserError: the folder exists.
        IntegrityError: the run differs from its content at its end.
    """
    from results.tables.seals import seal, verify_seal

    if folder.exists():
        raise UserError(f"{folder}: exists already")
    verify_seal(run)
    with whole_folder(folder) as fresh:
        _copy_plain(run, fresh)
        _renew_digests(run, fresh, {})
        seal(fresh)


def _copy_plain(run: Path, folder: Path) -> None:
    from results.tables.seals import CHECKSUMS, DERIVED

    for path in sorted(run.rglob("*")):
        name = path.relative_to(run)
        if path.is_dir() or name.parts[0] in (*DERIVED, CHECKSUMS) or name.as_posix() in LEFT_OUT:
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix not in TEXTS:
            shutil.copyfile(path, target)
            continue
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        if name.as_posix() == MANIFEST:
            text = _without_place(read_json(path))
        elif name.as_posix() == _COMMAND:
            text = _without_folder(read_json(path))
        text = _HOMES.sub("/home/user", text)
        target.write_text(text, encoding="utf-8", errors="surrogateescape")


def _renew_digests(run: Path, folder: Path, renamed: Mapping[str, str]) -> None:
    """Replace each digest of a changed file by the digest of the copy, if the digest was right.

    Manifest, journal and load generators have the digest of the specification. The journal has the
    digests of all files of processes and faults.

    Args:
        renamed: names of copied files in the run, and in the copy.
    """
    from bench.run.run_directory import specification_digest
    from brokerd.files import file_sha256

    journal = folder / "log.jsonl"
    if (run / "spec").is_dir():
        digest, copied = specification_digest(run / "spec"), specification_digest(folder / "spec")
        for path in (folder / MANIFEST, journal, *folder.glob("raw/*/*/setting.json")):
            _replace(path, {digest: copied})
    digests = {
        file_sha256(run / name): file_sha256(folder / target)
        for name, target in renamed.items()
        if name.startswith(_DIGESTED)
    }
    _replace(journal, digests)


_DIGESTED = ("raw/", "faults/", "clock.jsonl")


def _replace(path: Path, words: Mapping[str, str]) -> None:
    changed = {old: new for old, new in words.items() if old != new}
    if not path.is_file() or not changed:
        return
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    text = re.sub(r"[0-9a-f]{64}", lambda found: changed.get(found[0], found[0]), text)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")


def pseudonyms(inventory: Inventory | None, boots: Iterable[str]) -> dict[str, str]:
    """Return names of people and places → pseudonyms."""
    renames = {getpass.getuser(): "user", socket.gethostname(): "controller"}
    renames |= {boot: f"boot-{number}" for number, boot in enumerate(boots, start=1)}
    if inventory is not None:
        renames[inventory.name] = "lab"
        for number, gateway in enumerate(inventory.gateways.values(), start=1):
            renames |= dict.fromkeys((gateway.name, gateway.address), f"g{number}")
            renames[gateway.user or ""] = "user"
        domains: dict[str, str] = {}
        for number, host in enumerate(inventory.hosts, start=1):
            if host.failure_domain != host.name:
                domains.setdefault(host.failure_domain, f"d{len(domains) + 1}")
            for folder in (host.root, host.data_dir):
                renames.setdefault(folder or "", f"/root-of-h{number}")
            renames |= dict.fromkeys((host.name, host.address, host.bench_address), f"h{number}")
            renames[host.user or ""] = "user"
        renames |= domains
    return {old: new for old, new in renames.items() if old not in _ANYBODY and old != new}


def _list_named_inventories(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the inventory's name on the command line."""
    argv = [str(word) for word in manifest.get("argv", ())]
    for word, value in pairwise([*argv, ""]):
        option, equals, glued = word.partition("=")
        if option in ("-i", "--inventory"):
            yield Path(glued if equals else value).stem
        elif word.startswith("-i") and not word.startswith("--"):
            yield Path(word[2:]).stem


_COMMAND = "spec/cli.json"


def _without_place(manifest: Mapping[str, Any]) -> str:
    """Return the manifest without the program's path, and without folders of typed files."""
    argv = list(manifest.get("argv", ()))
    words = [_without_parents(word) for word in argv[1:]]
    shown = {**manifest, **({"argv": ["pubsubctl", *words]} if argv else {})}
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


def _without_folder(command: Mapping[str, Any]) -> str:
    """Return the record of a command line without the folder of the workload."""
    shown = {**command, "file": _without_parents(command.get("file"))}
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


def _without_parents(word: Any) -> Any:
    """Return the name of a file with an absolute path; anything else as it is."""
    is_path = isinstance(word, str) and word.startswith("/")
    return Path(word).name if is_path else word


def _refuse_ambiguous(renames: dict[str, str], topology: Any, manifest: dict[str, Any]) -> None:
    """Refuse a name that is not only a host's, because it cannot be replaced."""
    taken = _list_taken(topology, manifest)
    for name in renames:
        if name in taken:
            raise UserError(
                f"{name!r} names a host, user or domain, and something else in the run as well; "
                "--keep-hosts copies it with all its names"
            )


def _list_taken(topology: Any, manifest: dict[str, Any]) -> set[str]:
    """Return names in a run of something else than hosts."""
    taken = {*topology["brokers"], *manifest, "broker", "publisher", "subscriber", "phase"}
    return taken | {phase["phase"] for phase in manifest.get("phases", ())}


def _pattern(renames: dict[str, str]) -> re.Pattern[str] | None:
    if not renames:
        return None
    longest_first = sorted(renames, key=lambda name: (-len(name), name))
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")


def _rename(text: str, words: re.Pattern[str] | None, renames: dict[str, str]) -> str:
    return text if words is None else words.sub(lambda found: renames[found[0]], text)


def _check(folder: Path) -> None:
    """Check that the copy is a valid run."""
    from results.tables.json_files import IntegrityError as Damaged
    from results.tables.logs import read_logs
    from results.tables.manifest import read_run

    try:
        read_logs(read_run(folder))
    except (Damaged, KeyError, ValueError) as error:
        shutil.rmtree(folder)
        raise IntegrityError(f"the copy would be no run: {error}; try --keep-hosts") from None
