"""Small rows that survive a restart: incarnation, home table, publisher numbers, positions.

A store is changed in transactions that are durable when `commit` returns.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

RowChange = tuple[str, str, Any]
"""Table, key, value; None deletes the row."""

Tables = dict[str, dict[str, Any]]

WITNESSED: Final = "witnessed"
"""Table of the state marks of neighbours; its changes are not counted as commits."""

VOUCHED: Final = "vouched"
"""Row of WITNESSED: the neighbours that have returned a mark of this folder.

A row of an earlier release is True, once any neighbour has.
"""


@dataclass(frozen=True, slots=True)
class FolderMarks:
    """The marks that a state folder contains about itself.

    Attributes:
        key: secret of the folder; b"" if there is none yet.
        lineage: time in seconds at which a loss was accepted last; 0 if none was.
        vouched: see `sessions.state_marks`.
        commits: transactions so far, without transactions that change WITNESSED alone.
        starts: (incarnation, start, commits, groups) of each start on record, ascending.
    """

    key: bytes = b""
    lineage: int = 0
    vouched: tuple[int, ...] = ()
    commits: int = 0
    starts: tuple[tuple[int, bytes, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Beginning:
    """The stored state that a starting broker reads from its disk.

    Attributes:
        incarnation: the new incarnation; already durable.
        recovering: True if the same deployment has run here before.
        rows: the rows of that deployment.
    """

    incarnation: int
    recovering: bool
    rows: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class NewMarks:
    """The marks that a start adds to a state folder.

    Attributes:
        key: key of the folder, if the folder has none.
        start: random number of the start.
        groups: groups of the log at the start.
        kept: number of starts that stay on record.
        lineage: lineage of this start, which accepts a loss; 0 if the start accepts none.
        step: least advance of the incarnation.
        witnessed: the highest incarnation that a neighbour has proved.
    """

    key: bytes
    start: bytes
    groups: int
    kept: int
    lineage: int = 0
    step: int = 1
    witnessed: int = 0


class MetaStore(Protocol):
    """Rows of named tables.

    Attributes:
        commits: durable transactions so far; see `FolderMarks`.
    """

    @property
    def commits(self) -> int:
        """See the class."""
        ...

    def marks(self) -> FolderMarks:
        """Return the marks that the folder contains about itself."""
        ...

    def has_deployment(self, deployment_id: str) -> bool:
        """Return True if this deployment began here last."""
        ...

    def check_owner(self, deployment_id: str) -> None:
        """Check that the folder is new, or of this broker in this deployment.

        Raises:
            ForeignState: the folder is of another deployment, broker or protocol, and unchanged.
        """
        ...

    def missing(self, deployment_id: str) -> int:
        """Return the number of durable transactions of this deployment that are missing."""
        ...

    def begin(self, deployment_id: str, marks: NewMarks | None = None) -> Beginning:
        """Start a new incarnation; rows of another deployment are dropped."""
        ...

    def commit(self, changes: Iterable[RowChange]) -> None:
        """Change rows in one transaction, durable on return. Never run twice at once."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


def encode_value(value: Any) -> str:
    """Return a row's value as text: JSON, with bytes as {"hex": …}."""
    return json.dumps(value, default=_encode_bytes, separators=(",", ":"), allow_nan=False)


def decode_value(text: str) -> Any:
    """Return the value that `encode_value` wrote; tuples are returned as lists.

    Raises:
        ValueError: the text was not written by `encode_value`.
    """
    return json.loads(text, object_hook=_decode_bytes)


def _encode_bytes(value: Any) -> dict[str, str]:
    assert isinstance(value, bytes), f"a {type(value).__name__} cannot be stored"
    return {"hex": value.hex()}


def _decode_bytes(pairs: dict[str, Any]) -> bytes:
    if list(pairs) != ["hex"]:
        raise ValueError(f"a stored map with the keys {list(pairs)[:4]}")
    return bytes.fromhex(pairs["hex"])
