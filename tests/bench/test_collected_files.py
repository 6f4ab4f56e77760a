"""Stories of files that are copied from a host while they grow, vanish, or find no room."""

import errno
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.run.testbed import HostFiles


class GrowingHost:
    """A host whose files grow; a copy equals a listing that is newer than the last growth.

    Attributes:
        grows: by name, how often a file grows behind a listing.
        fails: by name, the error of a copy.
        vanishes: files that the first listing alone has.
    """

    def __init__(self, **grows: int) -> None:
        self.grows = grows
        self.fails: dict[str, OSError] = {}
        self.vanishes: set[str] = set()
        self._listings = 0

    async def files(self, process: str, folder: str) -> dict[str, Any]:
        self._listings += 1
        rows = [
            {"name": name, "size_bytes": 1, "sha256": sha256(self._content(name)).hexdigest()}
            for name in self.grows
            if self._listings == 1 or name not in self.vanishes
        ]
        return {"folder": "/there", "files": rows}

    def _content(self, name: str) -> bytes:
        """Return the content at the last listing."""
        return b"%d" % min(self._listings, self.grows[name] + 1)

    async def fetch(self, host: str, source: str, target: Path, _most_bytes: int) -> None:
        folder, _, name = source.rpartition("/")
        assert (host, folder, name) == ("h1", "/there", target.name)
        target.write_bytes(b"%d" % (self.grows[name] + 1))
        if name in self.fails:
            raise self.fails[name]


def collect(found: GrowingHost, folder: Path, names: set[str] | None = None) -> list[str]:
    async def fetch(host: str, source: str, target: Path, most_bytes: int) -> Any:
        await found.fetch(host, source, target, most_bytes)

    files = HostFiles({"h1": found}, fetch)
    return trio.run(lambda: files.collect("h1", "load", None, folder / "new", names))


def test_a_file_that_grew_since_its_listing_is_compared_with_a_newer_one(tmp_path: Path) -> None:
    assert collect(GrowingHost(a=0, b=1, c=0), tmp_path) == []
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"a", "b", "c"}


def test_a_file_that_differs_twice_is_damaged_and_others_are_copied(tmp_path: Path) -> None:
    assert collect(GrowingHost(a=2, b=0), tmp_path) == ["h1:/there/a"]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"a", "b"}


def test_only_named_files_are_copied(tmp_path: Path) -> None:
    assert collect(GrowingHost(a=0, b=2), tmp_path, {"a"}) == []
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a"]


def test_a_file_that_vanished_or_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    found = GrowingHost(a=1, b=0, c=0)
    found.vanishes = {"a"}
    found.fails["b"] = OSError(errno.EIO, os.strerror(errno.EIO))
    assert collect(found, tmp_path) == ["h1:/there/a", "h1:/there/b"]


def test_nothing_stays_of_a_file_without_room(tmp_path: Path) -> None:
    found = GrowingHost(a=0, b=0)
    found.fails["b"] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / ".b.x.part").write_text("a part")
    with pytest.raises(OSError, match="No space left"):
        collect(found, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["a"]
