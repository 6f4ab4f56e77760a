"""The meta store in memory, for tests and for brokers without durable state."""

import copy
from collections.abc import Iterable

from brokerd.storage.meta_store import (
    WITNESSED,
    Beginning,
    FolderMarks,
    NewMarks,
    RowChange,
    Tables,
    decode_value,
    encode_value,
)


class MemoryMetaStore:
    """A store of rows for the life of the object; values pass the same encoding."""

    def __init__(self) -> None:
        self._incarnation = 0
        self._deployment_id = ""
        self._rows: Tables = {}
        self.commits = 0

    def knows(self, deployment_id: str) -> bool:
        """See MetaStore."""
        return self._deployment_id == deployment_id

    def check_owner(self, deployment_id: str) -> None:
        """See MetaStore; a store in memory never moves to another broker."""

    def marks(self) -> FolderMarks:
        """See MetaStore; state in memory is never restored from a copy."""
        return FolderMarks(commits=self.commits)

    def begin(self, deployment_id: str, marks: NewMarks | None = None) -> Beginning:
        """See MetaStore."""
        self._incarnation += 1
        recovering = self._deployment_id == deployment_id
        if not recovering:
            self._rows.clear()
        self._deployment_id = deployment_id
        return Beginning(self._incarnation, recovering, copy.deepcopy(self._rows))

    def commit(self, changes: Iterable[RowChange]) -> None:
        """See MetaStore."""
        changes = list(changes)
        self.commits += any(table != WITNESSED for table, _, _ in changes)
        for table, key, value in changes:
            rows = self._rows.setdefault(table, {})
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = decode_value(encode_value(value))
            if not rows:
                del self._rows[table]

    def close(self) -> None:
        """See MetaStore."""
