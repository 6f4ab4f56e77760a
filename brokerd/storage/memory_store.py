"""The meta store's twin in memory, for tests and for brokers that need survive nothing."""

import copy
from collections.abc import Iterable

from brokerd.storage.meta_store import Beginning, RowChange, Tables, decode_value, encode_value


class MemoryMetaStore:
    """Keeps rows as long as the object lives; values go through the same encoding."""

    def __init__(self) -> None:
        self._incarnation = 0
        self._deployment_id = ""
        self._rows: Tables = {}

    def knows(self, deployment_id: str) -> bool:
        """See MetaStore."""
        return self._deployment_id == deployment_id

    def begin(self, deployment_id: str) -> Beginning:
        """See MetaStore."""
        self._incarnation += 1
        recovering = self._deployment_id == deployment_id
        if not recovering:
            self._rows.clear()
        self._deployment_id = deployment_id
        return Beginning(self._incarnation, recovering, copy.deepcopy(self._rows))

    def commit(self, changes: Iterable[RowChange]) -> None:
        """See MetaStore."""
        for table, key, value in list(changes):
            rows = self._rows.setdefault(table, {})
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = decode_value(encode_value(value))
            if not rows:
                del self._rows[table]

    def close(self) -> None:
        """See MetaStore."""
