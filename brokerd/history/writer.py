"""Writers of record files and JSON lines, with which a reader can recognise a torn file."""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brokerd.files import write_whole
from brokerd.history.records import ROW_BYTES, SIDECAR_SCHEMA, Layout

_BUFFER_BYTES = 256 * 1024
_HASH_BYTES = 32


class RecordWriter:
    """A writer of one record file and its sidecar.

    The sidecar contains `closed: false` until `close`, in every case in which the process ends
    before.

    Attributes:
        path: path of the record file, `<layout>.rec` in the given folder.
    """

    def __init__(self, folder: Path, layout: Layout, run_id: str) -> None:
        self.path = folder / f"{layout.name}.rec"
        self._layout = layout
        self._run_id = run_id
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._buffer: list[bytes | bytearray] = []
        self._buffered_bytes = 0
        self._written_bytes = 0
        self._hash = hashlib.blake2b(digest_size=_HASH_BYTES)
        self._closed = False
        self._write_sidecar({}, {})

    def append(self, rows: bytes | bytearray) -> None:
        """Add whole rows, which are written when enough have gathered."""
        self._buffer.append(rows)
        self._buffered_bytes += len(rows)
        if self._buffered_bytes >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all appended rows to the operating system."""
        rows = b"".join(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        self._hash.update(rows)
        self._written_bytes += len(rows)
        view = memoryview(rows)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        """Wait until all flushed rows are durable; may run in another thread."""
        os.fdatasync(self._descriptor)

    def close(self, tables: Mapping[str, Any], **facts: Any) -> None:
        """Close the file in order, with the string tables and further facts for the sidecar."""
        assert not self._closed, f"{self.path} is closed"
        missing = [name for name in self._layout.tables if name not in tables]
        assert not missing, f"{self.path} needs the tables {missing}"
        self.flush()
        assert self._written_bytes % ROW_BYTES == 0, f"{self.path}: a row was cut"
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._closed = True
        self._write_sidecar(tables, facts)

    def abandon(self) -> None:
        """Flush and close the file without marking the file as whole."""
        if not self._closed:
            self._closed = True
            self.flush()
            os.close(self._descriptor)

    def _write_sidecar(self, tables: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        content: dict[str, Any] = {
            "schema": SIDECAR_SCHEMA,
            "layout": self._layout.name,
            "width": ROW_BYTES,
            "columns": list(self._layout.columns),
            "run_id": self._run_id,
            "tables": dict(tables),
            **facts,
        }
        if self._closed:
            content["rows"] = self._written_bytes // ROW_BYTES
            content["blake2b"] = self._hash.hexdigest()
        content["closed"] = self._closed
        path = self.path.with_name(f"{self.path.name}.json")
        write_whole(path, json.dumps(content) + "\n")


class LineWriter:
    """A writer that appends JSON objects to a file, one per line.

    Every line is with the operating system when `write` returns. There must be no other writer of
    the file.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, value: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            OSError: the line cannot be written; no part of the line is in the file.
        """
        line = (json.dumps(value) + "\n").encode()
        written_bytes = os.write(self._descriptor, line)
        if written_bytes < len(line):
            size_bytes = os.fstat(self._descriptor).st_size
            os.ftruncate(self._descriptor, size_bytes - written_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        os.close(self._descriptor)
