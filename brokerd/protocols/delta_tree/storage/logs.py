"""The name of a broker's log."""

from typing import Final

LOG: Final = "publications"
