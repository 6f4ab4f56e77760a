"""Named bugs outside the protocols: the rows of all files without a protocol's name."""

from pathlib import Path
from typing import Final

from brokerd.protocols.registry import DEFINITIONS
from tests.helpers.planted_stories import Row, rows_of
from tests.named_bugs.arguments import ARGUMENTS

FILES: Final = tuple(
    path for path in sorted(Path(__file__).parent.glob("*.toml")) if path.stem not in DEFINITIONS
)
ROWS: Final[tuple[Row, ...]] = tuple(row for path in FILES for row in rows_of(path, ARGUMENTS))
