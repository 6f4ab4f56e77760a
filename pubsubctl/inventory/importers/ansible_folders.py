"""Variables in the folders group_vars and host_vars beside an Ansible inventory.

Only files of groups and hosts of the inventory are read, as data, and only below the folder of the
inventory. A file that is encrypted as a whole is noted, and not read.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.inventory.importers.ansible_groups import Groups, Setting
from pubsubctl.inventory.importers.ansible_yaml import Table, plain_yaml
from pubsubctl.inventory.importers.found import read_source

MOST_FILES: Final = 512
LARGEST_BYTES: Final = 4 << 20
DEEPEST_FOLDER: Final = 8

_SUFFIXES: Final = ("", ".yml", ".yaml", ".json")
_VAULT: Final = "$ANSIBLE_VAULT"


def read_folders(groups: Groups, source: Path) -> None:
    """Add the variables of the folders to the groups and hosts; followed folders are noted.

    Raises:
        UserError: a file is malformed, too large, or leads out of the folder of the inventory.
    """
    reader = _Reader(groups, source.expanduser().parent)
    for kind, names in (("group_vars", groups.groups), ("host_vars", groups.hosts)):
        variables = groups.group_files if kind == "group_vars" else groups.host_files
        before = reader.files
        if not (reader.folder / kind).is_dir():
            continue
        for name in names:
            if found := reader.variables(kind, name):
                variables[name] = found
        if count := reader.files - before:
            files = f"{count} file{'' if count == 1 else 's'}"
            groups.note(f"{source}: {kind} beside it is followed: {files}")


@dataclass
class _Reader:
    """A reader of files of variables, with bounds."""

    groups: Groups
    folder: Path
    files: int = 0
    size_bytes: int = 0

    def variables(self, kind: str, name: str) -> dict[str, Setting]:
        """Return the variables of a group or host; the first existing suffix decides."""
        if "/" in name or name in ("", ".", ".."):
            return {}
        found: dict[str, Setting] = {}
        for suffix in _SUFFIXES:
            path = self.folder / kind / f"{name}{suffix}"
            if not os.path.lexists(path):
                continue
            for file in self._files_of(path, 0):
                found |= self._read(file)
            break
        return found

    def _files_of(self, path: Path, depth: int) -> Iterator[Path]:
        if path.is_file():
            yield path
        elif path.is_dir() and depth < DEEPEST_FOLDER:
            for inner in sorted(path.iterdir()):
                if inner.name.startswith(".") or inner.name.endswith("~"):
                    continue
                if inner.suffix in _SUFFIXES and (inner.is_file() or not inner.suffix):
                    yield from self._files_of(inner, depth + 1)

    def _read(self, file: Path) -> dict[str, Setting]:
        if not file.resolve().is_relative_to(self.folder.resolve()):
            raise UserError(f"{file}: leads out of {self.folder}, and is not followed")
        self.files += 1
        if self.files > MOST_FILES:
            raise UserError(f"{file}: more than {MOST_FILES} files of variables")
        text = read_source(file)
        self.size_bytes += len(text)
        if self.size_bytes > LARGEST_BYTES:
            raise UserError(f"{file}: more than {LARGEST_BYTES >> 20} MiB of variables")
        if text.startswith(_VAULT):
            self.groups.note(f"{file}: is encrypted, and not read")
            return {}
        content = plain_yaml(text, file)
        if content is None or content == "":
            return {}
        if not isinstance(content, Table):
            raise UserError(f"{file}: expected a map of variables, got {shown(content)}")
        return {key: Setting(content[key], content.where(file, key)) for key in content}
